//! The errors of the API: a status, a code for programs and a message for people.

use axum::Json;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use windlass::core::inspect::{ForkError, InspectError};
use windlass::error::{StoreError, StoreErrorKind};
use windlass::store::{OpenRunError, PostDecisionError, StoredForkError};
use windlass_text::SafeText;

/// An error of the API.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// True if the request must not be repeated by itself: its run may have started.
    forbids_retry: bool,
}

/// Header that keeps the official clients of OpenAI from repeating a request.
pub(crate) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The body of an error.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ErrorBody {
    /// The error.
    pub(crate) error: ErrorDetail,
}

/// An error in the body of an answer.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ErrorDetail {
    /// Code for programs.
    pub(crate) code: String,
    /// Message for people.
    pub(crate) message: String,
}

/// The code of the error that a response reports, for the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorCode(pub(crate) &'static str);

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), forbids_retry: false }
    }

    /// Tells clients not to repeat the request by themselves.
    #[must_use]
    pub(crate) fn without_retry(mut self) -> Self {
        self.forbids_retry = true;
        self
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "a valid token is required")
    }

    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, message)
    }

    pub(crate) fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    pub(crate) fn run_not_found(run: &str) -> Self {
        let run = SafeText::from_line(run);
        Self::new(StatusCode::NOT_FOUND, "run_not_found", format!("there is no run `{run}`"))
    }

    pub(crate) fn too_many_requests() -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", "there were too many requests; wait")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let detail = ErrorDetail { code: self.code.to_owned(), message: self.message };
        let mut response = (self.status, Json(ErrorBody { error: detail })).into_response();
        response.extensions_mut().insert(ErrorCode(self.code));
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response
                .headers_mut()
                .insert(axum::http::header::RETRY_AFTER, axum::http::HeaderValue::from_static("1"));
        }
        if self.forbids_retry {
            response.headers_mut().insert(SHOULD_RETRY, axum::http::HeaderValue::from_static("false"));
        }
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = SafeText::from_words(&error.to_string()).to_string();
        match error.kind() {
            StoreErrorKind::RunNotFound => Self::new(StatusCode::NOT_FOUND, "run_not_found", message),
            StoreErrorKind::AlreadyExists => Self::conflict("already_exists", message),
            StoreErrorKind::AlreadyDecided => Self::conflict("already_decided", message),
            StoreErrorKind::LeaseHeld | StoreErrorKind::SessionBusy | StoreErrorKind::Stale => {
                Self::conflict("busy", message)
            }
            StoreErrorKind::Corrupt | StoreErrorKind::UnsupportedVersion | StoreErrorKind::UnknownKey => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unreadable_run", message)
            }
            _ => {
                tracing::error!(%error, "the store has failed");
                Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "store_unavailable",
                    "the store has failed; try again",
                )
            }
        }
    }
}

impl From<OpenRunError> for ApiError {
    fn from(error: OpenRunError) -> Self {
        match error {
            OpenRunError::Store(error) => error.into(),
            other => {
                let message = SafeText::from_words(&other.to_string()).to_string();
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unreadable_run", message)
            }
        }
    }
}

impl From<InspectError> for ApiError {
    fn from(error: InspectError) -> Self {
        let message = SafeText::from_words(&error.to_string()).to_string();
        match error {
            InspectError::Replay(_) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unreadable_run", message),
            _ => Self::new(StatusCode::NOT_FOUND, "record_not_found", message),
        }
    }
}

impl From<PostDecisionError> for ApiError {
    fn from(error: PostDecisionError) -> Self {
        let message = SafeText::from_words(&error.to_string()).to_string();
        match error {
            PostDecisionError::Open(error) => error.into(),
            PostDecisionError::Store(error) => error.into(),
            PostDecisionError::AlreadyTaken(_) => Self::conflict("already_taken", message),
            PostDecisionError::Signature(_) => Self::forbidden("not_an_approver", message),
            _ => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "decision_refused", message),
        }
    }
}

impl From<StoredForkError> for ApiError {
    fn from(error: StoredForkError) -> Self {
        let message = SafeText::from_words(&error.to_string()).to_string();
        match error {
            StoredForkError::Open(error) => error.into(),
            StoredForkError::Store(error) => error.into(),
            StoredForkError::Fork(ForkError::Inspect(error)) => error.into(),
            StoredForkError::Fork(ForkError::SameRunId(_)) => Self::conflict("already_exists", message),
            _ => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "fork_refused", message),
        }
    }
}
