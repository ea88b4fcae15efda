//! The reasons why a step of a run does not complete, and calls of application code that end with them.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;
use windlass_core::failure::RunFailure;

use crate::error::{ConfigError, RunError, StoreError, truncate_message};
use crate::guardrail::panic_message;
use crate::tasks::unless_stopped;

/// The reason why a step of the driver did not complete.
pub(crate) enum DriveError {
    /// The run fails with this failure.
    RunFailed(Box<RunFailure>),
    /// The run was cancelled.
    Cancelled,
    /// This driver cannot continue; the run keeps its state.
    Aborted(Box<RunError>),
}

impl DriveError {
    /// Returns the error of a driver that cannot continue. A run that ends ignores other errors on the way.
    pub(crate) fn into_abort(self) -> Result<(), RunError> {
        match self {
            Self::RunFailed(_) | Self::Cancelled => Ok(()),
            Self::Aborted(error) => Err(*error),
        }
    }
}

impl From<RunFailure> for DriveError {
    fn from(failure: RunFailure) -> Self {
        Self::RunFailed(failure.into())
    }
}

impl From<RunError> for DriveError {
    fn from(error: RunError) -> Self {
        Self::Aborted(error.into())
    }
}

impl From<ConfigError> for DriveError {
    fn from(error: ConfigError) -> Self {
        RunError::from(error).into()
    }
}

impl From<StoreError> for DriveError {
    fn from(error: StoreError) -> Self {
        RunError::from(error).into()
    }
}

/// Returns the result of application code, or an error if `stop` is cancelled first. A panic is a failure of the run.
pub(crate) async fn call_unless_stopped<F: Future>(
    stop: &CancellationToken,
    future: F,
) -> Result<F::Output, DriveError> {
    let called = unless_stopped(stop, AssertUnwindSafe(future).catch_unwind()).await;
    called.ok_or(DriveError::Cancelled)?.map_err(application_panicked)
}

/// Returns the error of a step in which application code panicked.
pub(crate) fn application_panicked(panic: Box<dyn Any + Send>) -> DriveError {
    panic_failure(panic).into()
}

/// Returns the failure of a run whose application code panicked.
pub(crate) fn panic_failure(panic: Box<dyn Any + Send>) -> RunFailure {
    RunFailure::ApplicationPanicked { message: truncate_message(panic_message(&*panic)) }
}
