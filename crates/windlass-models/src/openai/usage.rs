//! Token usage in the responses of both OpenAI APIs. They report the same counts under different names.

use serde::Deserialize;
use windlass::core::usage::Usage;

use crate::wire::to_cost_nanos;

/// The `usage` object. The Responses API counts input and output tokens, Chat Completions the tokens of the prompt
/// and of the completion.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct OpenAiUsage {
    input_tokens: Option<u64>,
    input_tokens_details: Option<OpenAiTokenDetails>,
    output_tokens: Option<u64>,
    output_tokens_details: Option<OpenAiTokenDetails>,
    prompt_tokens: Option<u64>,
    prompt_tokens_details: Option<OpenAiTokenDetails>,
    completion_tokens: Option<u64>,
    completion_tokens_details: Option<OpenAiTokenDetails>,
    /// The cost in the provider's currency unit, which gateways report.
    cost: Option<f64>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct OpenAiTokenDetails {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
    audio_tokens: Option<u64>,
}

impl OpenAiUsage {
    pub(super) fn to_usage(&self) -> Usage {
        let input = self.prompt_tokens_details.or(self.input_tokens_details).unwrap_or_default();
        let output = self.completion_tokens_details.or(self.output_tokens_details).unwrap_or_default();
        Usage {
            cached_tokens: input.cached_tokens.unwrap_or(0),
            cache_write_tokens: input.cache_write_tokens.unwrap_or(0),
            reasoning_tokens: output.reasoning_tokens.unwrap_or(0),
            audio_input_tokens: input.audio_tokens.unwrap_or(0),
            audio_output_tokens: output.audio_tokens.unwrap_or(0),
            cost_nanos: to_cost_nanos(self.cost.unwrap_or(0.0)),
            ..Usage::of_tokens(
                self.prompt_tokens.or(self.input_tokens).unwrap_or(0),
                self.completion_tokens.or(self.output_tokens).unwrap_or(0),
            )
        }
    }
}
