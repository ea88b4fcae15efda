//! Errors: invalid configuration ([`SetupError`]), and failures that a provider reports ([`ProviderError`]).

use std::time::Duration;

use serde_json::Value;
use windlass::core::usage::Usage;
use windlass::model::ModelErrorKind;

use crate::retry::parse_duration;

/// An invalid model configuration. No request was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The API key is missing.
    #[error(
        "there is no key for {provider}; hint: set {variable} in the environment, or give it with `.key(…)`"
    )]
    MissingKey {
        /// The provider.
        provider: String,
        /// The environment variable that can hold the key.
        variable: String,
    },
    /// An environment variable that the configuration names is not set.
    #[error("the environment variable {variable} for {provider} is not set")]
    MissingVariable {
        /// The provider.
        provider: String,
        /// The environment variable.
        variable: String,
    },
    /// The API key contains characters that are not allowed in a header.
    #[error(
        "the key for {provider} has characters that a header must not have; hint: look for line ends or quotes in {variable}"
    )]
    InvalidKey {
        /// The provider.
        provider: String,
        /// The environment variable that can hold the key.
        variable: String,
    },
    /// The base URL is invalid.
    #[error("`{url}` is not the address of a model server: {why}")]
    InvalidBaseUrl {
        /// The base URL.
        url: String,
        /// The reason.
        why: String,
    },
    /// The name or value of a header is invalid.
    #[error("the header `{name}` cannot be sent; names and values are plain text in one line")]
    InvalidHeader {
        /// The header's name.
        name: String,
    },
    /// The model string lacks the provider or the model.
    #[error(
        "`{spec}` does not name a model; hint: write `provider:model`, such as `openai:gpt-5.2` or `ollama:llama3.2`"
    )]
    InvalidModelSpec {
        /// The model string.
        spec: String,
    },
    /// No provider has this name.
    #[error(
        "there is no provider `{name}`; known providers: {known}; hint: add your own with `ProviderRegistry::with_provider`"
    )]
    UnknownProvider {
        /// The name.
        name: String,
        /// The known names, separated by commas.
        known: String,
    },
}

/// A failure as reported by a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderError {
    /// The provider's code, such as `rate_limit_exceeded`; empty if there is none.
    pub code: String,
    /// The provider's message.
    pub message: String,
    /// The usage, if the provider reported it despite the failure.
    pub usage: Option<Box<Usage>>,
    /// Delay after which the provider says that a retry helps, if the body has one. Google's providers send it there.
    pub retry_delay: Option<Duration>,
    /// The HTTP status that the body names as its code. A gateway names that of the server behind it, in a response of its
    /// own that has the status 200.
    pub status: Option<u16>,
    /// Size of the context window in tokens, if the body has it in a field of its own. llama.cpp sends it there.
    pub context_window: Option<u64>,
}

impl ProviderError {
    /// Parses an error body in any of the known formats: `{"error": {"message", "type", "code"}}`, `{"error":
    /// "…"}`, `{"type": "error", "error": {…}}`, `{"message"}`, `{"detail"}`, or text that is not JSON.
    pub fn parse(body: &[u8]) -> Self {
        let Ok(value) = serde_json::from_slice::<Value>(body) else {
            return Self { message: shorten_message(&String::from_utf8_lossy(body)), ..Self::default() };
        };
        Self::from_json(&value)
    }

    pub(crate) fn from_json(value: &Value) -> Self {
        // Some gateways wrap the error in a list of one element.
        let value = value.get(0).unwrap_or(value);
        let error = match value.get("error") {
            Some(error) if !error.is_null() => error,
            _ => value,
        };
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        // The code is more specific than the type. A number is a status.
        let code = match (text("code"), text("type"), text("status")) {
            ("", "" | "error", status) => status,
            ("", kind, _) => kind,
            (code, ..) => code,
        };
        let message = match error {
            Value::String(message) => message.clone(),
            _ => match (text("message"), error.get("detail")) {
                ("", Some(Value::String(detail))) => detail.clone(),
                ("", Some(detail)) => detail.to_string(),
                ("", None) => value.to_string(),
                (message, _) => message.to_owned(),
            },
        };
        let details = error.get("details").and_then(Value::as_array).into_iter().flatten();
        let retry_delay =
            details.filter_map(|detail| detail.get("retryDelay")?.as_str()).find_map(parse_duration);
        let status = match error.get("code") {
            Some(Value::String(code)) => code.parse().ok(),
            Some(code) => code.as_u64().and_then(|code| u16::try_from(code).ok()),
            None => None,
        };
        let status = status.filter(|status| (400..=599).contains(status));
        let context_window = error.get("n_ctx").and_then(Value::as_u64);
        Self {
            code: code.to_owned(),
            message: shorten_message(&message),
            usage: None,
            retry_delay,
            status,
            context_window,
        }
    }

    /// Classifies the failure by the HTTP status of the response, if it is an error, else by the one that the body names, by
    /// the provider's code and by the message.
    pub(crate) fn error_kind(&self, status: Option<u16>) -> ModelErrorKind {
        let status = status.or(self.status);
        // Some servers answer 500 to a request that they will never be able to serve.
        let is_unsupported = |words: &str| {
            ["not supported", "unsupported", "does not support", "not implemented", "not_supported"]
                .iter()
                .any(|part| words.contains(part))
        };
        let words = self.message.to_ascii_lowercase();
        let code = self.code.as_str();
        let says = |any: &[&str]| any.iter().any(|part| words.contains(part));
        let is_too_long = code == "context_length_exceeded"
            || says(&[
                "context length",
                "context window",
                "maximum context",
                "prompt is too long",
                "context size",
                "too many tokens",
                "input is too long",
                "exceeds the maximum number of tokens",
                // Anthropic, of the input together with the maximum of output tokens.
                "exceed context limit",
                // xAI.
                "maximum prompt length",
                // Together and Text Generation Inference, of the input together with the maximum of output tokens.
                "`max_new_tokens` must be",
            ]);
        let is_filtered =
            code.contains("content_filter") || code.contains("content_policy") || code == "bio_policy";
        // Google says the same about its limits per minute.
        let may_be_limit = code == "RESOURCE_EXHAUSTED" || self.retry_delay.is_some();
        let is_unpaid = matches!(code, "insufficient_quota" | "billing_error" | "billing_hard_limit_reached")
            || (says(&["exceeded your current quota", "credit balance is too low"]) && !may_be_limit)
            || status == Some(402);
        // LiteLLM looks up a key that is not its own in its database, and says so if it has none.
        let is_unknown_key = status == Some(400) && says(&["no connected db"]);
        match (status, code) {
            (_, _) if is_unpaid => ModelErrorKind::QuotaExceeded,
            (_, _) if is_unknown_key => ModelErrorKind::Unauthorised,
            (Some(401 | 403), _)
            | (_, "authentication_error" | "permission_error" | "invalid_api_key")
            | (_, "UNAUTHENTICATED" | "PERMISSION_DENIED") => ModelErrorKind::Unauthorised,
            (Some(429), _) | (_, "rate_limit_error" | "rate_limit_exceeded" | "RESOURCE_EXHAUSTED") => {
                ModelErrorKind::RateLimited
            }
            (Some(503 | 529), _) | (_, "overloaded_error" | "slow_down" | "UNAVAILABLE") => {
                ModelErrorKind::Overloaded
            }
            (Some(408), _) | (_, "timeout_error" | "DEADLINE_EXCEEDED") => ModelErrorKind::TimedOut,
            (_, _) if is_filtered => ModelErrorKind::ContentFilter,
            (Some(400 | 413 | 422) | None, _) if is_too_long => ModelErrorKind::ContextLengthExceeded,
            (_, "model_not_found") => ModelErrorKind::ModelNotFound,
            (Some(404), _) | (_, "not_found_error") if says(&["model"]) => ModelErrorKind::ModelNotFound,
            // A conflict, a model that failed behind Bedrock, and a request that came too early.
            (Some(409 | 424 | 425), _) => ModelErrorKind::ServerError,
            (Some(501 | 505), _) => ModelErrorKind::InvalidRequest,
            (Some(500..=599), "invalid_request_error" | "not_supported_error") => {
                ModelErrorKind::InvalidRequest
            }
            (Some(500..=599), _) if is_unsupported(&words) => ModelErrorKind::InvalidRequest,
            (Some(400..=499), _) | (_, "invalid_request_error" | "invalid_prompt") => {
                ModelErrorKind::InvalidRequest
            }
            (Some(500..=599), _)
            | (_, "server_error" | "api_error" | "internal_server_error" | "INTERNAL") => {
                ModelErrorKind::ServerError
            }
            _ => ModelErrorKind::Other,
        }
    }
}

impl ProviderError {
    /// Returns the size of the context window that a refusal names, in tokens.
    pub(crate) fn named_window(&self) -> Option<u64> {
        if self.context_window.is_some() {
            return self.context_window;
        }
        let words = self.message.to_ascii_lowercase();
        let after = |prefix: &str| parse_number(&words[words.find(prefix)? + prefix.len()..]);
        let named = WINDOW_PREFIXES.iter().find_map(|prefix| after(prefix));
        // "prompt is too long: 213462 tokens > 200000 maximum"
        named.or_else(|| after(" > ")).filter(|tokens| *tokens > 0)
    }
}

/// The words in front of the size of the context window, in the refusals of the providers.
const WINDOW_PREFIXES: [&str; 8] = [
    "maximum context length is ",
    "maximum context length of ",
    "maximum prompt length is ",
    "maximum number of tokens allowed (",
    "context size (",
    "context size of ",
    "context window of ",
    "must be <= ",
];

/// Parses the number at the start of a text, which may have separators of thousands.
fn parse_number(text: &str) -> Option<u64> {
    let is_part = |c: char| c.is_ascii_digit() || c == ',' || c == '_';
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    text[..end].replace([',', '_'], "").parse().ok()
}

/// Maximum length of a provider's message in an error, in bytes.
const MAX_MESSAGE_LEN: usize = 600;

/// Collapses whitespace to single spaces and truncates the text to [`MAX_MESSAGE_LEN`] bytes.
pub(crate) fn shorten_message(text: &str) -> String {
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > MAX_MESSAGE_LEN {
        let end = (0..=MAX_MESSAGE_LEN).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}
