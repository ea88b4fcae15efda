//! The in-memory session store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{
    id::{RunId, SessionId},
    item::Item,
};

use super::log::SessionLogs;
use super::{SessionClaim, SessionFence, SessionItemsPage, SessionState, SessionStore, SessionWrite};
use crate::error::StoreError;
use crate::store::{LeaseClaim, StoredLease};

/// A session store in memory.
#[derive(Debug, Default)]
pub struct MemorySessionStore {
    logs: Mutex<SessionLogs>,
}

impl MemorySessionStore {
    fn lock_logs(&self) -> MutexGuard<'_, SessionLogs> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionStore for MemorySessionStore {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        std::future::ready(Ok(self.lock_logs().load_session(session))).boxed()
    }

    fn load_session_items<'a>(
        &'a self,
        session: &'a SessionId,
        skip: u64,
        limit: u32,
    ) -> BoxFuture<'a, Result<SessionItemsPage, StoreError>> {
        std::future::ready(Ok(self.lock_logs().load_session_items(session, skip, limit))).boxed()
    }

    fn append_items<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.lock_logs().append_items(session, items);
        std::future::ready(Ok(())).boxed()
    }

    fn append_run_items(
        &self,
        write: SessionWrite,
        _fence: SessionFence,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        std::future::ready(self.lock_logs().append_run_items(write)).boxed()
    }

    fn run_position<'a>(
        &'a self,
        session: &'a SessionId,
        run: &'a RunId,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        std::future::ready(Ok(self.lock_logs().run_position(session, run))).boxed()
    }

    fn list_run_positions<'a>(
        &'a self,
        session: &'a SessionId,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<(RunId, u64)>, StoreError>> {
        std::future::ready(Ok(self.lock_logs().list_run_positions(session, after, limit))).boxed()
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        std::future::ready(self.lock_logs().replace_items(session, version, &items)).boxed()
    }

    fn claim_session<'a>(
        &'a self,
        _session: &'a SessionId,
        _claim: LeaseClaim<'a>,
        _abandoned: Option<&'a StoredLease>,
    ) -> BoxFuture<'a, Result<SessionClaim, StoreError>> {
        std::future::ready(Ok(SessionClaim::ProcessLocal)).boxed()
    }

    fn release_session<'a>(
        &'a self,
        _session: &'a SessionId,
        _owner: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        std::future::ready(Ok(())).boxed()
    }

    fn list_sessions<'a>(
        &'a self,
        after: Option<&'a SessionId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<SessionId>, StoreError>> {
        std::future::ready(Ok(self.lock_logs().list_sessions(after, limit))).boxed()
    }
}
