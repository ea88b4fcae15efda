//! The inference engine: it loads weights and generates one response at a time, constrained by a JSON Schema.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::inference::gguf::GgufFile;
use crate::inference::network::{DecoderNetwork, ForwardError, KeyValueCache};
use crate::inference::prefix::PrefixCache;
use crate::inference::sampler::{SamplingSettings, TokenSampler};
use crate::inference::template::{ChatTemplate, PromptError};
use crate::inference::tokeniser::{EncodeError, GgufTokeniser};
use crate::prompt::PromptMessage;

/// Number of prompt tokens that are read at once; it bounds the memory of reading.
const READ_CHUNK: usize = 128;

/// A loaded model. It is not changed by generating.
pub(crate) struct InferenceEngine {
    network: DecoderNetwork,
    tokeniser: Arc<GgufTokeniser>,
    parsers: ParserFactory,
    template: ChatTemplate,
    pub(crate) context_length: usize,
}

/// The prompts that a model has read.
pub(crate) type ReadPrompts = PrefixCache<KeyValueCache>;

/// A request to generate a response.
pub(crate) struct GenerationRequest {
    pub(crate) messages: Vec<PromptMessage>,
    pub(crate) schema: Value,
    /// Maximum number of tokens in the response.
    pub(crate) max_tokens: usize,
    pub(crate) sampling: SamplingSettings,
    /// Cancellation flag, set when the caller no longer waits for the response.
    pub(crate) stop: Arc<AtomicBool>,
}

/// A request whose prompt is encoded and whose schema is compiled.
pub(crate) struct PreparedRequest {
    prompt: Vec<u32>,
    matcher: Matcher,
    room: usize,
    sampler: TokenSampler,
    stop: Arc<AtomicBool>,
}

/// A generated response with its token counts.
pub(crate) struct GenerationOutput {
    pub(crate) text: String,
    /// True if the response is a whole JSON value.
    pub(crate) is_complete: bool,
    pub(crate) input_tokens: u64,
    /// Number of tokens of the prompt that had been read before.
    pub(crate) known_tokens: u64,
    pub(crate) output_tokens: u64,
}

/// A failed generation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GenerationError {
    #[error("the conversation has {found} tokens or more, and the model's context has {limit}")]
    TooLong { found: usize, limit: usize },
    #[error("the request was cancelled")]
    Cancelled,
    #[error("the tools' schemas are not supported by constrained decoding: {0}")]
    UnsupportedSchema(String),
    #[error("{0}")]
    Other(String),
}

fn other(error: impl ToString) -> GenerationError {
    GenerationError::Other(error.to_string())
}

impl From<ForwardError> for GenerationError {
    fn from(error: ForwardError) -> Self {
        match error {
            ForwardError::Cancelled => Self::Cancelled,
        }
    }
}

impl InferenceEngine {
    pub(crate) fn load(path: &Path, threads: usize, context_length: Option<usize>) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let mut file = GgufFile::read(file)?;
        let tokeniser = Arc::new(GgufTokeniser::from_gguf(&file)?);
        let source = file.text("tokenizer.chat_template");
        if source.is_none() && !tokeniser.has_control_token("<|im_start|>") {
            return Err("the file has no chat template, and its vocabulary is not that of ChatML".to_owned());
        }
        let template = ChatTemplate::compile(source, tokeniser.beginning_name(), tokeniser.end_name())?;
        let network = DecoderNetwork::load(&mut file, threads)?;
        if network.vocabulary_size() < tokeniser.len() {
            return Err("its network knows fewer tokens than its tokeniser".to_owned());
        }
        let environment: TokEnv = Arc::new(ConstrainedVocabulary::new(tokeniser.clone()));
        let mut parsers = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        parsers.quiet();
        let trained = network.context_length();
        let context_length = context_length.map_or(trained, |length| length.min(trained));
        Ok(Self { network, tokeniser, parsers, template, context_length })
    }

    /// Encodes the prompt of a request and compiles its schema. This needs no turn of the model, so other requests can
    /// generate meanwhile.
    ///
    /// # Errors
    ///
    /// Returns an error if the prompt exceeds the context or the schema is not supported.
    pub(crate) fn prepare(&self, request: &GenerationRequest) -> Result<PreparedRequest, GenerationError> {
        let limit = self.context_length;
        let prompt = self.template.encode_prompt(&self.tokeniser, &request.messages, limit, &request.stop);
        let prompt = prompt.map_err(|error| match error {
            PromptError::Template(why) => GenerationError::Other(why),
            PromptError::Encoding(EncodeError::TooLong(found)) => GenerationError::TooLong { found, limit },
            PromptError::Encoding(EncodeError::Cancelled) => GenerationError::Cancelled,
        })?;
        let room = limit.saturating_sub(prompt.len()).min(request.max_tokens);
        if room == 0 || prompt.is_empty() {
            return Err(GenerationError::TooLong { found: prompt.len(), limit });
        }
        // Without white space between the parts, a response has the text that later prompts show.
        let mut schema = request.schema.clone();
        if let Some(fields) = schema.as_object_mut() {
            let style = json!({ "whitespace_flexible": false, "item_separator": ",", "key_separator": ":" });
            fields.insert("x-guidance".to_owned(), style);
        }
        let grammar = TopLevelGrammar::from_json_schema(schema);
        let matcher = Matcher::new(self.parsers.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(GenerationError::UnsupportedSchema(error));
        }
        let sampler = TokenSampler::new(request.sampling.clone());
        Ok(PreparedRequest { prompt, matcher, room, sampler, stop: request.stop.clone() })
    }

    /// Generates a response. `seen` is called with the whole text so far after every token, and ends the response by
    /// returning false.
    ///
    /// # Errors
    ///
    /// Returns an error if generation fails or is cancelled while the prompt is read.
    pub(crate) fn generate(
        &self,
        mut request: PreparedRequest,
        read_prompts: &mut ReadPrompts,
        seen: impl FnMut(&str) -> bool,
    ) -> Result<GenerationOutput, GenerationError> {
        let mut prefix = read_prompts.take(&request.prompt, || self.network.empty_cache());
        let known = prefix.tokens.len();
        let result = self.continue_prefix(&mut request, &mut prefix.state, &mut prefix.tokens, seen);
        read_prompts.put(prefix);
        let (bytes, is_complete, written) = result?;
        // A response that is cut off may end inside a character.
        let end = bytes.utf8_chunks().next().map_or(0, |chunk| chunk.valid().len());
        Ok(GenerationOutput {
            text: String::from_utf8_lossy(&bytes[..end]).into_owned(),
            is_complete,
            input_tokens: request.prompt.len() as u64,
            known_tokens: known as u64,
            output_tokens: written as u64,
        })
    }

    fn continue_prefix(
        &self,
        request: &mut PreparedRequest,
        cache: &mut KeyValueCache,
        read: &mut Vec<u32>,
        mut seen: impl FnMut(&str) -> bool,
    ) -> Result<(Vec<u8>, bool, usize), GenerationError> {
        let stop = request.stop.clone();
        let is_cancelled = || stop.load(Ordering::Relaxed);
        let mut logits = Vec::new();
        for chunk in request.prompt[read.len()..].chunks(READ_CHUNK) {
            logits = self.network.forward(cache, chunk, &is_cancelled)?;
            read.extend_from_slice(chunk);
        }
        let (mut bytes, mut written, mut is_complete) = (Vec::new(), 0, false);
        while written < request.room {
            if is_cancelled() {
                return Err(GenerationError::Cancelled);
            }
            let mask = request.matcher.compute_mask_or_eos().map_err(other)?;
            // A network may have more rows than the vocabulary has tokens.
            logits.truncate(self.tokeniser.len());
            let token = request.sampler.choose(&logits, |token| mask.is_allowed(token));
            let Some(token) = token else { break };
            if token == self.tokeniser.end {
                is_complete = true;
                break;
            }
            request.matcher.consume_token(token).map_err(other)?;
            bytes.extend_from_slice(self.tokeniser.token_bytes(token));
            written += 1;
            let is_wanted = seen(&String::from_utf8_lossy(&bytes));
            is_complete = request.matcher.is_stopped();
            if is_complete || !is_wanted {
                break;
            }
            logits = self.network.forward(cache, &[token], &is_cancelled)?;
            read.push(token);
        }
        Ok((bytes, is_complete, written))
    }
}

/// The vocabulary in the form that the constraint needs.
struct ConstrainedVocabulary {
    tokeniser: Arc<GgufTokeniser>,
    trie: TokTrie,
}

impl ConstrainedVocabulary {
    fn new(tokeniser: Arc<GgufTokeniser>) -> Self {
        let count = u32::try_from(tokeniser.len()).unwrap_or(u32::MAX);
        let words: Vec<Vec<u8>> = (0..count)
            .map(|token| {
                let bytes = tokeniser.token_bytes(token);
                // The marker tells the trie that the token is not text.
                let marker = tokeniser.is_control(token).then_some(TokTrie::SPECIAL_TOKEN_MARKER);
                marker.into_iter().chain(bytes.iter().copied()).collect()
            })
            .collect();
        let trie = TokTrie::from(&TokRxInfo::new(count, tokeniser.end), &words);
        Self { tokeniser, trie }
    }
}

impl TokenizerEnv for ConstrainedVocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| self.tokeniser.encode_plain(text))
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
