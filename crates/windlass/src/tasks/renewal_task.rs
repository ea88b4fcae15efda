//! The task that renews a claim of a driver in a store.
//!
//! Invariant: when the renewal has ended, none is on its way to the store, so that none claims again what is released then.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A task that renews a claim until it is told to stop. Dropping it stops it, too.
pub(crate) struct RenewalTask {
    stop: CancellationToken,
    task: JoinHandle<()>,
    /// Maximum time that a renewal may take to arrive.
    limit: Duration,
}

impl RenewalTask {
    /// Starts the renewal of a claim that lasts `lasting` without one. It returns soon after the token is cancelled, and
    /// drops no request to the store for it.
    pub(crate) fn spawn<F>(lasting: Duration, renew: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = tokio::spawn(renew(stop.clone()));
        Self { stop, task, limit: lasting }
    }

    /// Ends the renewal, and waits until the one that is on its way has arrived. A store that does not answer for as long as
    /// the claim lasts is waited for no longer.
    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        if tokio::time::timeout(self.limit, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
