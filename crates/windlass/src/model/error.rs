//! Errors of model requests, with advice about retries.

use std::time::Duration;

use windlass_core::usage::Usage;

use super::ModelResponse;

/// An error of a model request.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    message: String,
    kind: ModelErrorKind,
    retry_advice: RetryAdvice,
    request_id: Option<String>,
    usage: Option<Box<Usage>>,
    context_window: Option<u64>,
    partial_response: Option<Box<ModelResponse>>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The kind of a [`ModelError`]. Policies such as a fallback match on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// None of the other kinds.
    #[default]
    Other,
    /// The model is not configured: the API key or the URL is missing, the network is banned, or a cassette lacks the
    /// request.
    NotConfigured,
    /// The provider rejects the API key or denies permission.
    Unauthorised,
    /// The provider does not have the model.
    ModelNotFound,
    /// The provider rejects the request as invalid.
    InvalidRequest,
    /// The conversation exceeds the model's context window.
    ContextLengthExceeded,
    /// The provider's content filter blocked the request or the response.
    ContentFilter,
    /// The provider's rate limit was exceeded.
    RateLimited,
    /// The account's quota is used up.
    QuotaExceeded,
    /// The provider is overloaded.
    Overloaded,
    /// The provider failed internally.
    ServerError,
    /// The connection to the provider failed. Nothing was sent.
    Unreachable,
    /// The provider did not respond in time.
    TimedOut,
    /// The connection closed before the response was complete.
    ConnectionLost,
    /// The response is incomplete: the model reached its output token limit.
    Incomplete,
    /// The provider's response could not be parsed.
    InvalidResponse,
}

/// Advice about a retry: useful or not, and safe or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAdvice {
    /// A retry is useless, or may repeat work that the provider already did.
    Never,
    /// The request had no effect, and may be retried after the usual delay.
    Safe,
    /// The request had no effect, and may be retried after the delay that the provider named.
    After(Duration),
}

impl ModelError {
    /// Creates an error of the kind [`ModelErrorKind::Other`] that is not retried.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            kind: ModelErrorKind::Other,
            retry_advice: RetryAdvice::Never,
            request_id: None,
            usage: None,
            context_window: None,
            partial_response: None,
            source: None,
        }
    }

    /// Sets the kind of the error.
    #[must_use]
    pub fn with_kind(mut self, kind: ModelErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the advice about retries.
    #[must_use]
    pub fn with_retry_advice(mut self, advice: RetryAdvice) -> Self {
        self.retry_advice = advice;
        self
    }

    /// Sets the provider's id of the request.
    #[must_use]
    pub fn with_request_id(mut self, id: Option<String>) -> Self {
        self.request_id = id;
        self
    }

    /// Sets the usage, if the provider reported it despite the failure.
    #[must_use]
    pub fn with_usage(mut self, usage: Option<Usage>) -> Self {
        self.usage = usage.map(Box::new);
        self
    }

    /// Sets the size of the context window in tokens, if the provider named it when it refused a request as too long.
    #[must_use]
    pub fn with_context_window(mut self, tokens: Option<u64>) -> Self {
        self.context_window = tokens;
        self
    }

    /// Sets the part of the response that was received before the failure.
    #[must_use]
    pub fn with_partial_response(mut self, response: Option<Box<ModelResponse>>) -> Self {
        self.partial_response = response;
        self
    }

    /// Sets the source of the error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ModelErrorKind {
        self.kind
    }

    /// Returns the advice about retries.
    pub fn retry_advice(&self) -> RetryAdvice {
        self.retry_advice
    }

    /// Returns the provider's id of the request.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// Returns the size of the context window in tokens, if the provider named it.
    pub fn context_window(&self) -> Option<u64> {
        self.context_window
    }

    /// Returns the part of the response that was received before the failure, if the response is incomplete.
    pub fn partial_response(&self) -> Option<&ModelResponse> {
        self.partial_response.as_deref()
    }

    /// Returns the usage, if known.
    pub fn usage(&self) -> Option<&Usage> {
        self.usage.as_deref()
    }
}
