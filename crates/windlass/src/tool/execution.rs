//! Execution settings of a tool: timeout, retries, receipts, concurrency and order.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::{
    BodyPlacement, OnFailure, OnTimeout, ReceiptPolicy, ReconcileOutcome, SharedLimit, Tool, ToolContext,
    ToolRetryPolicy,
};
use crate::receipts::BodyLimit;

impl<C: Send + Sync + 'static> Tool<C> {
    /// Sets the timeout of the body. An async body is dropped when it elapses. A blocking body cannot be
    /// dropped: its call is reported as still running, and its late result is recorded.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Polls async bodies of this tool in the task of their run instead of in a task of their own, which saves some
    /// microseconds per call.
    ///
    /// Only for bodies that never block: while an inline body blocks, its run cannot be cancelled and its sibling calls
    /// wait. The driver moves an inline body to a task of its own after a slow poll, and warns about a body that blocked
    /// its thread. A tool with a timeout is never inline.
    #[must_use]
    pub fn inline(mut self) -> Self {
        self.placement = BodyPlacement::Inline;
        self
    }

    /// Sets the reaction to a timeout: for the run and for the model.
    #[must_use]
    pub fn on_timeout(mut self, policy: OnTimeout<C>) -> Self {
        self.on_timeout = policy;
        self
    }

    /// Sets the reaction to a failure: for the run and for the model.
    #[must_use]
    pub fn on_failure(mut self, policy: OnFailure<C>) -> Self {
        self.on_failure = policy;
        self
    }

    /// Retries a failed body, up to `attempts` attempts in total, with exponential backoff that starts at
    /// `base`.
    #[must_use]
    pub fn retry(mut self, attempts: u32, base: Duration) -> Self {
        self.retry = Some(ToolRetryPolicy { max_attempts: attempts, base_delay: base });
        self
    }

    /// Sets the scope and lifetime of an idempotent tool's receipts. The default is the run, without expiry.
    /// Scopes beyond the run need a store.
    #[must_use]
    pub fn receipt_policy(mut self, receipts: ReceiptPolicy) -> Self {
        self.receipt_policy = receipts;
        self
    }

    /// Sets the maximum number of bodies of this tool that run concurrently, across all runs. A body that outlives its timeout
    /// counts until it ends: a call that finds only such bodies waits for its own timeout, at least for the drain timeout,
    /// and is refused then.
    #[must_use]
    pub fn max_concurrent_calls(mut self, limit: usize) -> Self {
        self.body_limit = Some(BodyLimit::new(limit));
        self
    }

    /// Adds a limit that all processes with the same store share: on the bodies that run at the same time, or on those that
    /// start within a period. A body waits until every limit of its tool has a place for it. Tools with a limit of the same
    /// name share it.
    ///
    /// A place is a row in the store, which a waiting body tries again and again: limits of tens of bodies are cheap, limits
    /// of thousands are not. A body that waits is not served in order. Runs without a store are refused.
    #[must_use]
    pub fn shared_limit(mut self, limit: SharedLimit) -> Self {
        self.shared_limits.push(limit);
        self
    }

    /// Sets the conflict key of a call. Calls of one response with the same key run in the model's order; other
    /// calls run concurrently. While a body that outlived its timeout still runs, no other body with its key begins in the
    /// run: a call waits for its own timeout, at least for the drain timeout, and is refused then.
    #[must_use]
    pub fn conflict_key<A: 'static>(mut self, key: impl Fn(&A) -> String + Send + Sync + 'static) -> Self {
        self.conflict_rule = Some(Arc::new(move |arguments| arguments.downcast_ref::<A>().map(&key)));
        self
    }

    /// Sets a function that determines after a crash if a call that had started was executed.
    #[must_use]
    pub fn reconcile<Fut>(mut self, ask: impl Fn(ToolContext<C>) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = ReconcileOutcome> + Send + 'static,
    {
        self.reconcile = Some(Arc::new(move |ctx| ask(ctx).boxed()));
        self
    }
}
