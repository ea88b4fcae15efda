//! Sessions that delay and fail where the seed says.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::StoreError;
use windlass::core::{Item, SessionId};
use windlass::session::{MemorySessions, SessionState, SessionStore};

use crate::sim::Sim;

/// Sessions of a simulated machine: they survive its crashes.
#[derive(Debug)]
pub struct SimSessions {
    sim: Sim,
    kept: MemorySessions,
    longest: Duration,
    failing: AtomicU64,
}

impl SimSessions {
    /// Sessions that answer at once and never fail.
    pub fn new(sim: &Sim) -> Self {
        let kept = MemorySessions::default();
        Self { sim: sim.clone(), kept, longest: Duration::ZERO, failing: AtomicU64::new(0) }
    }

    /// How long anything takes at most.
    #[must_use]
    pub fn longest(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    /// In how many of a hundred cases something fails.
    pub fn set_failing(&self, percent: u64) {
        self.failing.store(percent, Ordering::Relaxed);
    }

    /// What a session holds, whatever becomes of it on the way.
    pub fn items(&self, session: &SessionId) -> Vec<Arc<Item>> {
        self.kept.load(session).now_or_never().and_then(Result::ok).unwrap_or_default().items
    }

    fn op<'a, T: 'a>(
        &'a self,
        act: impl Future<Output = Result<T, StoreError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        async move {
            self.sim.dawdle(self.longest).await;
            if self.sim.is_crashed() {
                std::future::pending::<()>().await;
            }
            if self.sim.chance(self.failing.load(Ordering::Relaxed)) {
                return Err(StoreError::new("the simulated disk failed"));
            }
            act.await
        }
        .boxed()
    }
}

impl SessionStore for SimSessions {
    fn load<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        self.op(async move { self.kept.load(session).await })
    }

    fn append<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.op(async move { self.kept.append(session, items).await })
    }

    fn replace<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.op(async move { self.kept.replace(session, version, items).await })
    }

    fn sessions(&self) -> BoxFuture<'_, Result<Vec<SessionId>, StoreError>> {
        self.op(async move { self.kept.sessions().await })
    }
}
