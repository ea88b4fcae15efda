//! The inference engine: it loads weights and generates one response at a time, constrained by a JSON Schema.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::quantized::gguf_file::{Content, Value as Meta};
use candle_core::{DType, Device, Tensor};
use candle_transformers::models::{quantized_llama, quantized_qwen2, quantized_qwen3};
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use minijinja::{Environment, context};
use serde_json::Value;
use toktrie::{TokEnv, TokenId};

use crate::prompt::PromptMessage;
use crate::tokeniser::GgufTokeniser;

/// Number of prompt tokens processed at once; it bounds the memory of the prefill.
const PREFILL_CHUNK: usize = 256;

/// A loaded model.
pub(crate) struct InferenceEngine {
    network: ModelNetwork,
    tokeniser: Arc<GgufTokeniser>,
    parsers: ParserFactory,
    template: String,
    context_length: usize,
}

enum ModelNetwork {
    Llama(quantized_llama::ModelWeights),
    Qwen2(quantized_qwen2::ModelWeights),
    Qwen3(quantized_qwen3::ModelWeights),
}

/// A request to generate a response.
pub(crate) struct GenerationRequest {
    pub(crate) messages: Vec<PromptMessage>,
    pub(crate) schema: Value,
    /// Maximum number of tokens in the response.
    pub(crate) max_tokens: usize,
    /// Cancellation flag, set when the caller no longer waits for the response.
    pub(crate) stop: Arc<AtomicBool>,
}

/// A generated response with its token counts.
pub(crate) struct GenerationOutput {
    pub(crate) text: String,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
}

impl InferenceEngine {
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let mut file = BufReader::new(file);
        let content = Content::read(&mut file).map_err(|error| format!("it is no GGUF file: {error}"))?;
        let tokens = Arc::new(GgufTokeniser::from_gguf(&content)?);
        let environment: TokEnv = tokens.clone();
        let mut parsers = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        parsers.quiet();
        let text = |name: &str| match content.metadata.get(name) {
            Some(Meta::String(text)) => Some(text.clone()),
            _ => None,
        };
        let family = text("general.architecture").unwrap_or_default();
        let template = text("tokenizer.chat_template").unwrap_or_else(|| CHAT_ML_TEMPLATE.to_owned());
        let trained =
            content.metadata.get(&format!("{family}.context_length")).and_then(|length| length.to_u32().ok());
        let device = Device::Cpu;
        let network =
            match family.as_str() {
                "llama" => quantized_llama::ModelWeights::from_gguf(content, &mut file, &device)
                    .map(ModelNetwork::Llama),
                "qwen2" => quantized_qwen2::ModelWeights::from_gguf(content, &mut file, &device)
                    .map(ModelNetwork::Qwen2),
                "qwen3" => quantized_qwen3::ModelWeights::from_gguf(content, &mut file, &device)
                    .map(ModelNetwork::Qwen3),
                other => return Err(format!("its network is `{other}`; llama, qwen2 and qwen3 can be run")),
            };
        let network = network.map_err(|error| error.to_string())?;
        let longest = trained.map_or(2048, |length| length as usize).min(quantized_llama::MAX_SEQ_LEN);
        Ok(Self { network, tokeniser: tokens, parsers, template, context_length: longest })
    }

    /// Generates a response. `seen` is called with the whole text so far after every token.
    ///
    /// # Errors
    ///
    /// Returns the reason as text if the prompt exceeds the context, the schema is not supported, or generation
    /// fails.
    pub(crate) fn generate(
        &mut self,
        task: &GenerationRequest,
        mut seen: impl FnMut(&str),
    ) -> Result<GenerationOutput, String> {
        let prompt = self.tokeniser.encode(&self.render_prompt(&task.messages)?);
        let room = self.context_length.saturating_sub(prompt.len()).min(task.max_tokens);
        if room == 0 {
            let (there, longest) = (prompt.len(), self.context_length);
            return Err(format!(
                "the conversation has {there} tokens, and the model's context has {longest}"
            ));
        }
        let grammar = TopLevelGrammar::from_json_schema(task.schema.clone());
        let mut matcher = Matcher::new(self.parsers.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(format!("the tools' schemas are not supported by constrained decoding: {error}"));
        }
        let mut logits = self.prefill(&prompt, task)?;
        let (mut bytes, mut written) = (Vec::new(), 0);
        while written < room && !task.stop.load(Ordering::Relaxed) {
            let mask = matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
            let Some(token) = most_likely_token(&logits, |token| mask.is_allowed(token)) else { break };
            if token == self.tokeniser.eos {
                break;
            }
            matcher.consume_token(token).map_err(|error| error.to_string())?;
            bytes.extend(self.tokeniser.token_bytes(token));
            written += 1;
            seen(&String::from_utf8_lossy(&bytes));
            if matcher.is_stopped() {
                break;
            }
            logits = self.forward(&[token], prompt.len() + written - 1)?;
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(GenerationOutput { text, input_tokens: prompt.len() as u64, output_tokens: written as u64 })
    }

    fn render_prompt(&self, lines: &[PromptMessage]) -> Result<String, String> {
        let mut environment = Environment::new();
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        let messages: Vec<_> =
            lines.iter().map(|line| context! { role => line.role, content => line.text }).collect();
        let eos = self.tokeniser.special_text(self.tokeniser.eos).unwrap_or_default();
        environment
            .render_str(
                &self.template,
                context! { messages, add_generation_prompt => true, eos_token => eos, bos_token => "" },
            )
            .map_err(|error| format!("its chat template cannot be used: {error}"))
    }

    /// Processes a prompt and returns the logits of the next token.
    fn prefill(&mut self, prompt: &[TokenId], task: &GenerationRequest) -> Result<Vec<f32>, String> {
        let (mut logits, mut from) = (Vec::new(), 0);
        for chunk in prompt.chunks(PREFILL_CHUNK) {
            if task.stop.load(Ordering::Relaxed) {
                return Err("the request was cancelled".to_owned());
            }
            logits = self.forward(chunk, from)?;
            from += chunk.len();
        }
        Ok(logits)
    }

    fn forward(&mut self, tokens: &[TokenId], from: usize) -> Result<Vec<f32>, String> {
        let mut run = || -> candle_core::Result<Vec<f32>> {
            let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
            let output = match &mut self.network {
                ModelNetwork::Llama(network) => network.forward(&input, from)?,
                ModelNetwork::Qwen2(network) => network.forward(&input, from)?,
                ModelNetwork::Qwen3(network) => network.forward(&input, from)?,
            };
            output.squeeze(0)?.to_dtype(DType::F32)?.to_vec1()
        };
        run().map_err(|error| error.to_string())
    }
}

/// Returns the most likely of the allowed tokens.
fn most_likely_token(logits: &[f32], is_allowed: impl Fn(TokenId) -> bool) -> Option<TokenId> {
    let numbered = (0..).zip(logits).filter(|(token, _)| is_allowed(*token));
    numbered.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(token, _)| token)
}

/// The ChatML template, for files without a chat template; most small models use it.
const CHAT_ML_TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
