//! Why a model did not answer, and whether asking again may help.

use std::time::Duration;

use windlass_core::Usage;

/// Why a model did not answer.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    message: String,
    kind: ModelErrorKind,
    retry: RetryAdvice,
    request_id: Option<String>,
    usage: Option<Box<Usage>>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What kind of failure it was. Policies such as a fallback name kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// None of the others.
    #[default]
    Other,
    /// The model is not set up: a key or an address is missing.
    Setup,
    /// The provider does not accept the key, or does not allow this.
    Unauthorised,
    /// The provider does not have the model.
    NoSuchModel,
    /// The provider cannot use the request.
    InvalidRequest,
    /// The conversation is longer than the model can read.
    TooLong,
    /// The provider's filter kept the question or the answer back.
    ContentFilter,
    /// Too many requests or tokens in too short a time.
    RateLimited,
    /// What was paid for is used up.
    QuotaExceeded,
    /// The provider has too much to do.
    Overloaded,
    /// The provider failed.
    Server,
    /// The provider could not be reached. Nothing was sent.
    Unreachable,
    /// The provider took too long.
    TimedOut,
    /// The connection ended before the answer did.
    CutShort,
    /// The model stopped before its answer was complete: it had used all the tokens that it may.
    Incomplete,
    /// What the provider sent cannot be read.
    Unreadable,
}

/// Whether asking again may help, and is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAdvice {
    /// Asking again is of no use, or may repeat what the provider already did.
    Never,
    /// The request did nothing, and may be sent again after the usual wait.
    Safe,
    /// The same, after the wait that the provider named.
    After(Duration),
}

impl ModelError {
    /// An error that asking again does not mend.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            kind: ModelErrorKind::Other,
            retry: RetryAdvice::Never,
            request_id: None,
            usage: None,
            source: None,
        }
    }

    /// Says what kind of failure it is.
    #[must_use]
    pub fn of_kind(mut self, kind: ModelErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// Says whether asking again may help.
    #[must_use]
    pub fn retry(mut self, advice: RetryAdvice) -> Self {
        self.retry = advice;
        self
    }

    /// Names the request, as the provider does.
    #[must_use]
    pub fn for_request(mut self, id: Option<String>) -> Self {
        self.request_id = id;
        self
    }

    /// Says what it cost, where the provider said so though it failed.
    #[must_use]
    pub fn at_cost(mut self, usage: Option<Usage>) -> Self {
        self.usage = usage.map(Box::new);
        self
    }

    /// Keeps the error that caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> ModelErrorKind {
        self.kind
    }

    /// Whether asking again may help.
    pub fn advice(&self) -> RetryAdvice {
        self.retry
    }

    /// The provider's id of the request.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// What it cost, where that is known.
    pub fn usage(&self) -> Option<&Usage> {
        self.usage.as_deref()
    }
}
