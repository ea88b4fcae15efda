//! What went wrong: before a model can be asked ([`SetupError`]), and what a provider said in place of an answer.

use serde_json::Value;
use windlass::Usage;
use windlass::model::ModelErrorKind;

/// Why a model cannot be set up. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// No key is set.
    #[error(
        "there is no key for {provider}; hint: set {variable} in the environment, or give it with `.key(…)`"
    )]
    MissingKey {
        /// The provider.
        provider: String,
        /// The variable that may hold the key.
        variable: &'static str,
    },
    /// A key has characters that cannot be sent.
    #[error(
        "the key for {provider} has characters that no key has; hint: look for line ends or quotes in {variable}"
    )]
    UnusableKey {
        /// The provider.
        provider: String,
        /// The variable that may hold the key.
        variable: &'static str,
    },
    /// An address cannot be used.
    #[error("`{url}` is not the address of a model server: {why}")]
    BadAddress {
        /// The address.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// A header cannot be sent.
    #[error("the header `{name}` cannot be sent; names and values are plain text in one line")]
    BadHeader {
        /// Its name.
        name: String,
    },
    /// A model string has no provider or no model.
    #[error(
        "`{spec}` does not name a model; hint: write `provider:model`, such as `openai:gpt-5.2` or `ollama:llama3.2`"
    )]
    NotAModel {
        /// What was given.
        spec: String,
    },
    /// Nobody goes by that name.
    #[error(
        "there is no provider `{name}`; there are {known}; hint: give a server of your own with `Providers::named`"
    )]
    UnknownProvider {
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
}

/// What a provider sent in place of an answer.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It cannot be read.
    Unreadable(String),
    /// It says that it failed.
    Told(Told),
    /// The model stopped before its answer was complete.
    Incomplete { reason: String, usage: Option<Usage> },
}

/// A provider's own words about a failure.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) usage: Option<Usage>,
}

impl Told {
    /// Reads the dialects that there are: `{"error": {"message", "type", "code"}}`, `{"error": "…"}`,
    /// `{"type": "error", "error": {…}}`, `{"message"}`, `{"detail"}`, or no JSON at all.
    pub(crate) fn read(body: &[u8]) -> Self {
        let Ok(value) = serde_json::from_slice::<Value>(body) else {
            return Self { message: shortened(&String::from_utf8_lossy(body)), ..Self::default() };
        };
        Self::from_value(&value)
    }

    pub(crate) fn from_value(value: &Value) -> Self {
        // Some gateways answer with a list of one.
        let value = value.get(0).unwrap_or(value);
        let error = match value.get("error") {
            Some(error) if !error.is_null() => error,
            _ => value,
        };
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        // The code is more exact than the type, where there is one; some have a number there.
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
        Self { code: code.to_owned(), message: shortened(&message), usage: None }
    }

    /// What kind of failure it is, by the status where there is one, the code and the words.
    pub(crate) fn kind(&self, status: Option<u16>) -> ModelErrorKind {
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
            ]);
        let is_filtered =
            code.contains("content_filter") || code.contains("content_policy") || code == "bio_policy";
        let is_unpaid = matches!(code, "insufficient_quota" | "billing_error" | "billing_hard_limit_reached")
            || says(&["exceeded your current quota", "credit balance is too low"]);
        match (status, code) {
            (_, _) if is_unpaid => ModelErrorKind::QuotaExceeded,
            (Some(401 | 403), _) | (_, "authentication_error" | "permission_error" | "invalid_api_key") => {
                ModelErrorKind::Unauthorised
            }
            (Some(429), _) | (_, "rate_limit_error" | "rate_limit_exceeded") => ModelErrorKind::RateLimited,
            (Some(503 | 529), _) | (_, "overloaded_error" | "slow_down") => ModelErrorKind::Overloaded,
            (Some(408), _) | (_, "timeout_error") => ModelErrorKind::TimedOut,
            (_, _) if is_filtered => ModelErrorKind::ContentFilter,
            (Some(400 | 413 | 422) | None, _) if is_too_long => ModelErrorKind::TooLong,
            (Some(404), _) | (_, "model_not_found" | "not_found_error") => ModelErrorKind::NoSuchModel,
            (Some(409), _) => ModelErrorKind::Server,
            (Some(400..=499), _) | (_, "invalid_request_error" | "invalid_prompt") => {
                ModelErrorKind::InvalidRequest
            }
            (Some(500..=599), _) | (_, "server_error" | "api_error" | "internal_server_error") => {
                ModelErrorKind::Server
            }
            _ => ModelErrorKind::Other,
        }
    }
}

/// The longest that a provider's words are told on.
const LONGEST: usize = 600;

/// Words in one line, cut where they go on for too long.
pub(crate) fn shortened(text: &str) -> String {
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}
