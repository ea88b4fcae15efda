//! Settings of model requests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Settings of a model request. Absent values are left to the provider. A provider that has no field for a setting
/// refuses the request before it is sent ([`ModelErrorKind::InvalidRequest`](super::ModelErrorKind::InvalidRequest)).
///
/// | setting | Responses | Chat Completions | Messages |
/// | --- | --- | --- | --- |
/// | `stop` | | `stop` | `stop_sequences` |
/// | `seed`, `frequency_penalty`, `presence_penalty` | | the same names | |
/// | `reasoning_effort` | `reasoning.effort` | `reasoning_effort` | `output_config.effort` |
/// | `reasoning_summary` | `reasoning.summary` | | |
/// | `thinking_budget` | | | `thinking.budget_tokens` |
/// | `verbosity` | `text.verbosity` | `verbosity` | |
/// | `top_logprobs` | `top_logprobs`, `include` | `logprobs`, `top_logprobs` | |
/// | `service_tier` | `service_tier` | `service_tier` | `service_tier` |
/// | `metadata` | `metadata` | `metadata` | `metadata.user_id` only |
/// | `safety_identifier` | `safety_identifier` | `safety_identifier` | `metadata.user_id` |
/// | `prompt_cache_key` | `prompt_cache_key` | `prompt_cache_key` | |
/// | `prompt_cache_retention` | `prompt_cache_retention` | `prompt_cache_retention` | `cache_control.ttl` |
/// | `prompt_cache` | `prompt_cache_key` | `prompt_cache_key` | `cache_control` |
/// | `tool_search` | `tool_search`, `defer_loading` | | `tool_search_tool_bm25_20251119`, `defer_loading` |
/// | `store` | `store` | `store` | |
/// | `truncation`, `include`, `max_tool_calls` | the same names | | |
/// | `previous_response_id`, `conversation` | the same names | | |
///
/// | setting | Gemini (`generationConfig`) | Bedrock Converse |
/// | --- | --- | --- |
/// | `temperature`, `top_p`, `max_tokens`, `stop` | `temperature`, `topP`, `maxOutputTokens`, `stopSequences` | `inferenceConfig` |
/// | `seed`, `frequency_penalty`, `presence_penalty` | `seed`, `frequencyPenalty`, `presencePenalty` | |
/// | `reasoning_effort`, `thinking_budget` | `thinkingConfig.thinkingLevel`, `.thinkingBudget` | |
/// | `reasoning_summary` | `thinkingConfig.includeThoughts` | |
/// | `top_logprobs` | `responseLogprobs`, `logprobs` | |
/// | `metadata` | Vertex: `labels` | `requestMetadata` |
/// | `service_tier` | | `serviceTier.type` |
/// | `prompt_cache`, `prompt_cache_retention` | | `cachePoint`, `cachePoint.ttl` |
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// Tools that the model may or must call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// True if the model may make several tool calls in one response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// Maximum number of calls of hosted tools in one response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tool_calls: Option<u64>,
    /// Sampling temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Penalty for tokens by their frequency so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    /// Penalty for tokens that occurred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    /// Seed of the sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Texts at which the response ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Vec<String>>,
    /// Maximum number of output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Policy for a response that reached the maximum of output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_length_limit: Option<LengthLimitPolicy>,
    /// Reasoning effort: `low`, `medium`, `high`, as the provider defines it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// Form of the reasoning summary: `auto`, `concise` or `detailed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_summary: Option<String>,
    /// Maximum number of tokens for thinking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking_budget: Option<u64>,
    /// Length of the answer: `low`, `medium` or `high`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<String>,
    /// Number of alternatives whose log probabilities are returned for each token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u64>,
    /// The provider's service tier, such as `flex` or `priority`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<String>,
    /// Keys and values that the provider stores with the response.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Pseudonym of the end user, by which the provider detects misuse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safety_identifier: Option<String>,
    /// Key of requests that share a prompt prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_cache_key: Option<String>,
    /// Time for which the provider caches the prompt, such as `24h` (OpenAI), `5m` or `1h` (Anthropic).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_cache_retention: Option<String>,
    /// Use of the provider's prompt cache. The default is [`PromptCaching::Automatic`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_cache: Option<PromptCaching>,
    /// Place in which deferred tools are searched. The default is [`ToolSearchPlace::Local`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_search: Option<ToolSearchPlace>,
    /// Treatment of a conversation that exceeds the context window: `auto` or `disabled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncation: Option<String>,
    /// True if the provider stores the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<bool>,
    /// Additional parts of the response, such as `file_search_call.results`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// The provider's id of a response that the run continues. The provider stores that conversation, so that only
    /// new items are sent, in this and in every later request of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_response_id: Option<String>,
    /// The id of a conversation that the provider stores. Only new items are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Additional fields of the request. They are merged with the fields that the adapter writes: objects field by
    /// field, lists by appending; other values take precedence over the adapter's. A value that would remove an
    /// object or a list fails the request, unless [`replaced_fields`](Self::replaced_fields) names its field.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// Names of top-level fields that `extra` replaces as a whole. A field that `extra` lacks is removed from the
    /// request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replaced_fields: Vec<String>,
}

/// The policy for a response that reached the maximum of output tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LengthLimitPolicy {
    /// The request fails with [`ModelErrorKind::Incomplete`](super::ModelErrorKind::Incomplete). The error has the
    /// partial response.
    #[default]
    Fail,
    /// The partial text is the response. A response with tool calls fails nevertheless: their arguments may be
    /// incomplete.
    KeepText,
}

/// The use of a provider's prompt cache, which makes it cheaper to read the beginning of a conversation again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptCaching {
    /// Requests that others will follow, because they offer tools or continue a conversation, have what the provider needs
    /// for a hit: cache points after the tools, the instructions and the conversation (Anthropic, Bedrock, OpenRouter's
    /// models of Anthropic), or a key of the conversation (OpenAI, Azure). Points that `extra` has replace these.
    #[default]
    Automatic,
    /// Nothing is asked of the cache. Some providers cache nevertheless.
    Off,
}

/// The place in which deferred tools are searched: see [`Tool::deferred`](crate::tool::Tool::deferred).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolSearchPlace {
    /// The model calls a tool of this library, which searches names, descriptions and parameters.
    #[default]
    Local,
    /// The provider gets all definitions and searches them itself, without showing them to the model. A model without such
    /// a search refuses the request.
    Provider,
}

/// The tools that a model may or must call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// The model must call at least one tool.
    Required,
    /// The model must not call a tool.
    None,
    /// The model must call this tool.
    Tool(String),
}

impl ToolChoice {
    /// Returns the choice in the providers' notation.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Auto => "auto",
            Self::Required => "required",
            Self::None => "none",
            Self::Tool(name) => name,
        }
    }
}

impl From<&str> for ToolChoice {
    fn from(text: &str) -> Self {
        match text {
            "auto" => Self::Auto,
            "required" => Self::Required,
            "none" => Self::None,
            name => Self::Tool(name.to_owned()),
        }
    }
}

impl From<String> for ToolChoice {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<ToolChoice> for String {
    fn from(choice: ToolChoice) -> Self {
        choice.as_str().to_owned()
    }
}

/// Calls a macro with the fields that are absent if they are `None`.
macro_rules! for_optional_settings {
    ($callback:ident) => {
        $callback!(
            tool_choice,
            parallel_tool_calls,
            max_tool_calls,
            temperature,
            top_p,
            frequency_penalty,
            presence_penalty,
            seed,
            stop,
            max_tokens,
            on_length_limit,
            reasoning_effort,
            reasoning_summary,
            thinking_budget,
            verbosity,
            top_logprobs,
            service_tier,
            safety_identifier,
            prompt_cache_key,
            prompt_cache_retention,
            prompt_cache,
            tool_search,
            truncation,
            store,
            previous_response_id,
            conversation,
        )
    };
}

impl ModelSettings {
    /// Returns the names of the settings that are present, without `extra` and `replaced_fields`, which name fields of
    /// the provider.
    pub fn setting_names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        macro_rules! push_present {
            ($($field:ident),* $(,)?) => {
                $(if self.$field.is_some() {
                    names.push(stringify!($field));
                })*
            };
        }
        for_optional_settings!(push_present);
        if !self.metadata.is_empty() {
            names.push("metadata");
        }
        if !self.include.is_empty() {
            names.push("include");
        }
        names
    }

    /// Returns these settings, overridden by the values that are present in `over`. Objects in `extra` are merged
    /// field by field.
    #[must_use]
    pub fn with_overrides(&self, over: &Self) -> Self {
        let mut merged = self.clone();
        macro_rules! override_present {
            ($($field:ident),* $(,)?) => {
                $(if over.$field.is_some() {
                    merged.$field = over.$field.clone();
                })*
            };
        }
        for_optional_settings!(override_present);
        merged.metadata.extend(over.metadata.clone());
        for name in &over.include {
            if !merged.include.contains(name) {
                merged.include.push(name.clone());
            }
        }
        for name in &over.replaced_fields {
            if !merged.replaced_fields.contains(name) {
                merged.replaced_fields.push(name.clone());
            }
        }
        merge_objects(&mut merged.extra, &over.extra);
        merged
    }
}

/// Overrides the values of an object, and merges the objects within it.
fn merge_objects(base: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(Value::Object(base)), Value::Object(over)) => merge_objects(base, over),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
