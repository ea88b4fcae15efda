//! Notices that the provider of a run's model is away, so that the run waits in the queue and does not fail.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;

use crate::lock_unpoisoned;
use crate::model::{DeltaSink, ModelError, ModelLayer, ModelRequest, ModelResponse, NextModel, RetryAdvice};

/// Longest delay for which the driver waits itself. A provider that asks for a longer one is away.
const MAX_DELAY_IN_SEGMENT: Duration = Duration::from_secs(10);

/// Middleware that counts the failures of a run's model in a row. After the last attempt, or
/// when the provider asks for a long delay, it reports that the provider is away, and the worker leaves the run while the driver waits for its next attempt.
#[derive(Clone, Debug)]
pub(super) struct ProviderWatch {
    state: Arc<WatchState>,
}

/// A provider that is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProviderAbsence {
    /// The last error of the provider.
    pub(super) reason: String,
    /// Delay that the provider asked for; zero if it named none.
    pub(super) asked_delay: Duration,
}

#[derive(Debug)]
struct WatchState {
    failures: AtomicU32,
    max_failures: u32,
    away: Mutex<Option<ProviderAbsence>>,
    reported: Notify,
}

impl ProviderWatch {
    /// Creates a watch that reports after so many failures in a row.
    pub(super) fn new(max_failures: u32) -> Self {
        let state = WatchState {
            failures: AtomicU32::new(0),
            max_failures: max_failures.max(1),
            away: Mutex::default(),
            reported: Notify::new(),
        };
        Self { state: Arc::new(state) }
    }

    /// Waits until the provider is away.
    pub(super) async fn wait_until_away(&self) {
        self.state.reported.notified().await;
    }

    /// Returns the absence of the provider, if it is away.
    pub(super) fn absence(&self) -> Option<ProviderAbsence> {
        lock_unpoisoned(&self.state.away).clone()
    }

    fn note_failure(&self, error: &ModelError) {
        let asked_delay = match error.retry_advice() {
            RetryAdvice::Never => return,
            RetryAdvice::Safe => Duration::ZERO,
            RetryAdvice::After(delay) => delay,
        };
        let failures = self.state.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures >= self.state.max_failures || asked_delay > MAX_DELAY_IN_SEGMENT {
            let reason = format!("the model's provider is away: {error}");
            *lock_unpoisoned(&self.state.away) = Some(ProviderAbsence { reason, asked_delay });
            self.state.reported.notify_one();
        }
    }
}

impl ModelLayer for ProviderWatch {
    fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
        next: NextModel<'a>,
    ) -> BoxFuture<'a, Result<ModelResponse, ModelError>> {
        async move {
            let result = next.respond(request, deltas).await;
            match &result {
                Ok(_) => self.state.failures.store(0, Ordering::Relaxed),
                Err(error) => self.note_failure(error),
            }
            result
        }
        .boxed()
    }
}
