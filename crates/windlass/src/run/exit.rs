//! Callbacks that release the resources of a run when its driver exits, for whatever reason.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use windlass_core::run::{Run, RunEnd};

use crate::store::RunStatus;

/// Time that a run waits for its exit callbacks. Slower ones continue in the background.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason that a driver exits a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunExit {
    /// The run ended, or cannot continue in this process.
    Ended,
    /// The run waits for a person.
    Paused,
    /// The driver detached from the run, which is left for another driver.
    Detached,
}

impl RunExit {
    /// Returns the kind of a driver's exit. A driver that failed cannot continue.
    pub(crate) fn of_driver<E>(driven: &Result<Self, E>) -> Self {
        *driven.as_ref().unwrap_or(&Self::Ended)
    }

    /// Returns the status of a run that a driver leaves, for lists.
    pub(crate) fn run_status(self, run: &Run) -> RunStatus {
        match (self, run.outcome()) {
            (Self::Paused, _) => RunStatus::Paused,
            (Self::Detached, _) | (Self::Ended, None) => RunStatus::Running,
            (Self::Ended, Some(RunEnd::Finished(_))) => RunStatus::Finished,
            (Self::Ended, Some(RunEnd::Failed(_))) => RunStatus::Failed,
            (Self::Ended, Some(RunEnd::Cancelled)) => RunStatus::Cancelled,
        }
    }
}

type ExitCallback = Box<dyn FnOnce(RunExit) -> BoxFuture<'static, ()> + Send>;

/// The exit callbacks of a run. They also run if the driver is dropped.
#[derive(Default)]
pub(crate) struct ExitCallbacks(ExitRegistry);

/// The registry through which bodies of calls add exit callbacks. Bodies may outlive the driver.
#[derive(Clone, Default)]
pub(crate) struct ExitRegistry(Arc<Mutex<ExitCallbackList>>);

#[derive(Default)]
struct ExitCallbackList {
    callbacks: Vec<ExitCallback>,
    exit: Option<RunExit>,
}

impl ExitCallbacks {
    pub(crate) fn registry(&self) -> ExitRegistry {
        self.0.clone()
    }

    /// Runs all callbacks in reverse order of their registration, and waits for them up to [`EXIT_TIMEOUT`].
    pub(crate) async fn run_callbacks(&self, leaving: RunExit) {
        let acts = self.0.take_callbacks(leaving);
        if acts.is_empty() {
            return;
        }
        let closing = tokio::spawn(call_in_reverse(acts, leaving));
        match tokio::time::timeout(EXIT_TIMEOUT, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "an exit callback of a run failed"),
            Err(_) => {
                tracing::warn!("the exit callbacks of a run take too long; they continue in the background")
            }
        }
    }
}

impl Drop for ExitCallbacks {
    fn drop(&mut self) {
        spawn_callbacks(self.0.take_callbacks(RunExit::Ended), RunExit::Ended);
    }
}

impl ExitRegistry {
    /// Adds a callback. If the driver has already exited, the callback runs immediately.
    pub(crate) fn register(&self, act: ExitCallback) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match list.exit {
            None => list.callbacks.push(act),
            Some(left) => {
                drop(list);
                spawn_callbacks(vec![act], left);
            }
        }
    }

    fn take_callbacks(&self, leaving: RunExit) -> Vec<ExitCallback> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.exit.get_or_insert(leaving);
        std::mem::take(&mut list.callbacks)
    }
}

async fn call_in_reverse(acts: Vec<ExitCallback>, leaving: RunExit) {
    for act in acts.into_iter().rev() {
        // A panic of one callback does not prevent the others.
        if let Err(error) = tokio::spawn(async move { act(leaving).await }).await {
            tracing::warn!(%error, "an exit callback of a run panicked");
        }
    }
}

/// Runs callbacks in the background. Without a runtime they are dropped.
fn spawn_callbacks(acts: Vec<ExitCallback>, leaving: RunExit) {
    if !acts.is_empty()
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        runtime.spawn(call_in_reverse(acts, leaving));
    }
}
