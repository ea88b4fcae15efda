//! A session store with seeded delays and failures.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::{
    id::{RunId, SessionId},
    item::Item,
};
use windlass::error::StoreError;
use windlass::session::{
    MemorySessionStore, SessionClaim, SessionFence, SessionItemsPage, SessionState, SessionStore,
    SessionWrite,
};
use windlass::store::{LeaseClaim, StoredLease};

use crate::sim::Sim;

/// A session store of a simulated machine. Its sessions survive crashes.
#[derive(Debug)]
pub struct SimSessions {
    sim: Sim,
    backing_sessions: MemorySessionStore,
    max_latency: Duration,
    failure_percent: AtomicU64,
}

impl SimSessions {
    /// Creates a session store without latency and failures.
    pub fn new(sim: &Sim) -> Self {
        let kept = MemorySessionStore::default();
        Self {
            sim: sim.clone(),
            backing_sessions: kept,
            max_latency: Duration::ZERO,
            failure_percent: AtomicU64::new(0),
        }
    }

    /// Sets the maximum latency of an operation.
    #[must_use]
    pub fn max_latency(mut self, longest: Duration) -> Self {
        self.max_latency = longest;
        self
    }

    /// Sets the percentage of operations that fail.
    pub fn set_failure_percent(&self, percent: u64) {
        self.failure_percent.store(percent, Ordering::Relaxed);
    }

    /// Returns the stored items of a session, without latency and failures.
    pub fn stored_items(&self, session: &SessionId) -> Vec<Arc<Item>> {
        self.backing_sessions
            .load_session(session)
            .now_or_never()
            .and_then(Result::ok)
            .unwrap_or_default()
            .items
    }

    fn with_latency<'a, T: 'a>(
        &'a self,
        act: impl Future<Output = Result<T, StoreError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        async move {
            self.sim.random_delay(self.max_latency).await;
            if self.sim.is_crashed() {
                std::future::pending::<()>().await;
            }
            if self.sim.chance(self.failure_percent.load(Ordering::Relaxed)) {
                return Err(StoreError::new("the simulated disk failed"));
            }
            act.await
        }
        .boxed()
    }
}

impl SessionStore for SimSessions {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        self.with_latency(async move { self.backing_sessions.load_session(session).await })
    }

    fn load_session_items<'a>(
        &'a self,
        session: &'a SessionId,
        skip: u64,
        limit: u32,
    ) -> BoxFuture<'a, Result<SessionItemsPage, StoreError>> {
        self.with_latency(async move { self.backing_sessions.load_session_items(session, skip, limit).await })
    }

    fn append_items<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.with_latency(async move { self.backing_sessions.append_items(session, items).await })
    }

    fn append_run_items(
        &self,
        write: SessionWrite,
        fence: SessionFence,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.with_latency(async move { self.backing_sessions.append_run_items(write, fence).await })
    }

    fn run_position<'a>(
        &'a self,
        session: &'a SessionId,
        run: &'a RunId,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.with_latency(async move { self.backing_sessions.run_position(session, run).await })
    }

    fn list_run_positions<'a>(
        &'a self,
        session: &'a SessionId,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<(RunId, u64)>, StoreError>> {
        self.with_latency(
            async move { self.backing_sessions.list_run_positions(session, after, limit).await },
        )
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.with_latency(async move { self.backing_sessions.replace_items(session, version, items).await })
    }

    fn claim_session<'a>(
        &'a self,
        session: &'a SessionId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> BoxFuture<'a, Result<SessionClaim, StoreError>> {
        self.with_latency(async move { self.backing_sessions.claim_session(session, claim, abandoned).await })
    }

    fn release_session<'a>(
        &'a self,
        session: &'a SessionId,
        owner: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.with_latency(async move { self.backing_sessions.release_session(session, owner).await })
    }

    fn list_sessions<'a>(
        &'a self,
        after: Option<&'a SessionId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<SessionId>, StoreError>> {
        self.with_latency(async move { self.backing_sessions.list_sessions(after, limit).await })
    }
}
