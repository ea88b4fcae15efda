//! The sessions of a store of runs, as a session store.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use windlass_core::{
    id::{RunId, SessionId},
    item::Item,
};

use super::{SessionClaim, SessionFence, SessionState, SessionStore, SessionWrite};
use crate::error::StoreError;
use crate::store::{LeaseClaim, Store, StoredLease};

/// The sessions of a store that keeps runs and sessions. A run that is recovered finds its session here.
pub(super) struct StoreSessions {
    store: Arc<dyn Store>,
}

impl StoreSessions {
    /// Creates the session store; `None` if the store keeps no sessions.
    pub(super) fn new(store: Arc<dyn Store>) -> Option<Self> {
        store.sessions()?;
        Some(Self { store })
    }

    fn sessions(&self) -> Result<&dyn SessionStore, StoreError> {
        self.store.sessions().ok_or_else(|| StoreError::new("the store keeps no sessions"))
    }
}

impl SessionStore for StoreSessions {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        Box::pin(async move { self.sessions()?.load_session(session).await })
    }

    fn append_items<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { self.sessions()?.append_items(session, items).await })
    }

    fn append_run_items(
        &self,
        write: SessionWrite,
        fence: SessionFence,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.sessions()?.append_run_items(write, fence).await })
    }

    fn run_position<'a>(
        &'a self,
        session: &'a SessionId,
        run: &'a RunId,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move { self.sessions()?.run_position(session, run).await })
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { self.sessions()?.replace_items(session, version, items).await })
    }

    fn claim_session<'a>(
        &'a self,
        session: &'a SessionId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> BoxFuture<'a, Result<SessionClaim, StoreError>> {
        Box::pin(async move { self.sessions()?.claim_session(session, claim, abandoned).await })
    }

    fn release_session<'a>(
        &'a self,
        session: &'a SessionId,
        owner: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { self.sessions()?.release_session(session, owner).await })
    }

    fn list_sessions(&self) -> BoxFuture<'_, Result<Vec<SessionId>, StoreError>> {
        Box::pin(async move { self.sessions()?.list_sessions().await })
    }

    fn shared_sessions(&self) -> Option<&dyn SessionStore> {
        self.store.sessions()
    }
}
