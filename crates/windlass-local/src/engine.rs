//! The engine: weights, tokens, and one answer at a time, kept to its schema.

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

use crate::prompt::Line;
use crate::tokens::Tokens;

/// How many tokens a prompt is read in at once: it bounds the memory that reading takes.
const CHUNK: usize = 256;

/// A loaded model.
pub(crate) struct Engine {
    network: Network,
    tokens: Arc<Tokens>,
    parsers: ParserFactory,
    template: String,
    longest: usize,
}

enum Network {
    Llama(quantized_llama::ModelWeights),
    Qwen2(quantized_qwen2::ModelWeights),
    Qwen3(quantized_qwen3::ModelWeights),
}

/// What to write, and how.
pub(crate) struct Task {
    pub(crate) lines: Vec<Line>,
    pub(crate) shape: Value,
    /// The most tokens that an answer may have.
    pub(crate) longest: usize,
    /// Set when nobody waits for the answer any more.
    pub(crate) stop: Arc<AtomicBool>,
}

/// What was written.
pub(crate) struct Written {
    pub(crate) text: String,
    pub(crate) read_tokens: u64,
    pub(crate) written_tokens: u64,
}

impl Engine {
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let mut file = BufReader::new(file);
        let content = Content::read(&mut file).map_err(|error| format!("it is no GGUF file: {error}"))?;
        let tokens = Arc::new(Tokens::read(&content)?);
        let environment: TokEnv = tokens.clone();
        let mut parsers = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        parsers.quiet();
        let text = |name: &str| match content.metadata.get(name) {
            Some(Meta::String(text)) => Some(text.clone()),
            _ => None,
        };
        let family = text("general.architecture").unwrap_or_default();
        let template = text("tokenizer.chat_template").unwrap_or_else(|| CHAT_ML.to_owned());
        let trained =
            content.metadata.get(&format!("{family}.context_length")).and_then(|length| length.to_u32().ok());
        let device = Device::Cpu;
        let network = match family.as_str() {
            "llama" => {
                quantized_llama::ModelWeights::from_gguf(content, &mut file, &device).map(Network::Llama)
            }
            "qwen2" => {
                quantized_qwen2::ModelWeights::from_gguf(content, &mut file, &device).map(Network::Qwen2)
            }
            "qwen3" => {
                quantized_qwen3::ModelWeights::from_gguf(content, &mut file, &device).map(Network::Qwen3)
            }
            other => return Err(format!("its network is `{other}`; llama, qwen2 and qwen3 can be run")),
        };
        let network = network.map_err(|error| error.to_string())?;
        let longest = trained.map_or(2048, |length| length as usize).min(quantized_llama::MAX_SEQ_LEN);
        Ok(Self { network, tokens, parsers, template, longest })
    }

    /// Writes an answer. `seen` is shown all of it after every token.
    pub(crate) fn write(&mut self, task: &Task, mut seen: impl FnMut(&str)) -> Result<Written, String> {
        let prompt = self.tokens.encode(&self.prompt(&task.lines)?);
        let room = self.longest.saturating_sub(prompt.len()).min(task.longest);
        if room == 0 {
            let (there, longest) = (prompt.len(), self.longest);
            return Err(format!(
                "the conversation has {there} tokens, and the model reads {longest} at most"
            ));
        }
        let grammar = TopLevelGrammar::from_json_schema(task.shape.clone());
        let mut matcher = Matcher::new(self.parsers.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(format!("the tools' schemas cannot be kept to: {error}"));
        }
        let mut logits = self.read(&prompt, task)?;
        let (mut bytes, mut written) = (Vec::new(), 0);
        while written < room && !task.stop.load(Ordering::Relaxed) {
            let mask = matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
            let Some(token) = likeliest(&logits, |token| mask.is_allowed(token)) else { break };
            if token == self.tokens.eos {
                break;
            }
            matcher.consume_token(token).map_err(|error| error.to_string())?;
            bytes.extend(self.tokens.bytes(token));
            written += 1;
            seen(&String::from_utf8_lossy(&bytes));
            if matcher.is_stopped() {
                break;
            }
            logits = self.forward(&[token], prompt.len() + written - 1)?;
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Written { text, read_tokens: prompt.len() as u64, written_tokens: written as u64 })
    }

    fn prompt(&self, lines: &[Line]) -> Result<String, String> {
        let mut environment = Environment::new();
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        let messages: Vec<_> =
            lines.iter().map(|line| context! { role => line.role, content => line.text }).collect();
        let eos = self.tokens.special(self.tokens.eos).unwrap_or_default();
        environment
            .render_str(
                &self.template,
                context! { messages, add_generation_prompt => true, eos_token => eos, bos_token => "" },
            )
            .map_err(|error| format!("its chat template cannot be used: {error}"))
    }

    /// Reads a prompt, and says how likely each token is to follow.
    fn read(&mut self, prompt: &[TokenId], task: &Task) -> Result<Vec<f32>, String> {
        let (mut logits, mut from) = (Vec::new(), 0);
        for chunk in prompt.chunks(CHUNK) {
            if task.stop.load(Ordering::Relaxed) {
                return Err("nobody waits for it any more".to_owned());
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
                Network::Llama(network) => network.forward(&input, from)?,
                Network::Qwen2(network) => network.forward(&input, from)?,
                Network::Qwen3(network) => network.forward(&input, from)?,
            };
            output.squeeze(0)?.to_dtype(DType::F32)?.to_vec1()
        };
        run().map_err(|error| error.to_string())
    }
}

/// The likeliest of the tokens that are allowed.
fn likeliest(logits: &[f32], is_allowed: impl Fn(TokenId) -> bool) -> Option<TokenId> {
    let numbered = (0..).zip(logits).filter(|(token, _)| is_allowed(*token));
    numbered.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(token, _)| token)
}

/// The form of chats of most small models, for files that carry none.
const CHAT_ML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
