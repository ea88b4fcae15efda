//! How calls of a tool are run: within which time, how often, how many at once, and after which.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Semaphore;

use super::{OnFailure, OnTimeout, Receipts, Reconciled, Retry, Tool, ToolContext};

impl<C: Send + Sync + 'static> Tool<C> {
    /// How long the body may take. An async body is dropped then. A blocking one cannot be: its call is told
    /// to be left running, and what comes of it is recorded.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// What a timeout means for the run.
    #[must_use]
    pub fn on_timeout(mut self, policy: OnTimeout) -> Self {
        self.on_timeout = policy;
        self
    }

    /// What a failure means for the run, and what the model is told of it.
    #[must_use]
    pub fn on_failure(mut self, policy: OnFailure<C>) -> Self {
        self.on_failure = policy;
        self
    }

    /// Tries a failed body again, up to `attempts` times in all, waiting `base`, then twice that, and so on.
    #[must_use]
    pub fn retry(mut self, attempts: u32, base: Duration) -> Self {
        self.retry = Some(Retry { attempts, base });
        self
    }

    /// Who shares the results of an idempotent tool, and for how long. Without this: the run, for good. Scopes
    /// beyond the run need a store.
    #[must_use]
    pub fn receipts(mut self, receipts: Receipts) -> Self {
        self.receipts = receipts;
        self
    }

    /// How many bodies of this tool may run at once, over all runs.
    #[must_use]
    pub fn concurrency(mut self, limit: usize) -> Self {
        self.permits = Some(Arc::new(Semaphore::new(limit.max(1))));
        self
    }

    /// Calls of one answer for which the rule gives the same key keep the model's order. Other calls overlap.
    #[must_use]
    pub fn conflict<A: 'static>(mut self, key: impl Fn(&A) -> String + Send + Sync + 'static) -> Self {
        self.conflict = Some(Arc::new(move |arguments| arguments.downcast_ref::<A>().map(&key)));
        self
    }

    /// Asked after a crash, of a call that had started: did it happen?
    #[must_use]
    pub fn reconcile<Fut>(mut self, ask: impl Fn(ToolContext<C>) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Reconciled> + Send + 'static,
    {
        self.reconcile = Some(Arc::new(move |ctx| ask(ctx).boxed()));
        self
    }
}
