//! Session stores that wrap another one: one place that forwards every operation.

use std::future::ready;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use windlass_core::{
    id::{RunId, SessionId},
    item::Item,
};

use super::{SessionClaim, SessionFence, SessionItemsPage, SessionState, SessionStore, SessionWrite};
use crate::error::StoreError;
use crate::store::{LeaseClaim, StoredLease};

/// The sessions of another store, with the items changed on their way. A wrapper is a [`SessionStore`] thereby.
///
/// Forwarded operations begin when they are called and not when they are first polled, because items are in the order of
/// the calls.
pub(crate) trait SessionWrapper: Send + Sync + 'static {
    /// Returns the wrapped sessions.
    fn inner_sessions(&self) -> Result<&dyn SessionStore, StoreError>;

    /// Changes items on their way to the wrapped sessions. The default leaves them as they are.
    fn wrap_items(&self, _session: &SessionId, items: Vec<Arc<Item>>) -> Result<Vec<Arc<Item>>, StoreError> {
        Ok(items)
    }

    /// Changes items back that come from the wrapped sessions. The default leaves them as they are.
    fn unwrap_items(
        &self,
        _session: &SessionId,
        items: Vec<Arc<Item>>,
    ) -> Result<Vec<Arc<Item>>, StoreError> {
        Ok(items)
    }

    /// Returns the sessions that other processes share, if these are the sessions of a store.
    fn shared_sessions(&self) -> Option<&dyn SessionStore> {
        None
    }
}

/// The future of a session operation.
type SessionFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Calls an operation at once, or returns its error as a future.
fn call_now<'a, T: Send + 'a>(
    operation: impl FnOnce() -> Result<SessionFuture<'a, T>, StoreError>,
) -> SessionFuture<'a, T> {
    operation().unwrap_or_else(|error| Box::pin(ready(Err(error))))
}

impl<W: SessionWrapper> SessionStore for W {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> SessionFuture<'a, SessionState> {
        Box::pin(async move {
            let state = self.inner_sessions()?.load_session(session).await?;
            let SessionState { version, items, positions } = state;
            Ok(SessionState { version, items: self.unwrap_items(session, items)?, positions })
        })
    }

    fn load_session_items<'a>(
        &'a self,
        session: &'a SessionId,
        skip: u64,
        limit: u32,
    ) -> SessionFuture<'a, SessionItemsPage> {
        Box::pin(async move {
            let page = self.inner_sessions()?.load_session_items(session, skip, limit).await?;
            Ok(SessionItemsPage { items: self.unwrap_items(session, page.items)?, ..page })
        })
    }

    fn append_items<'a>(&'a self, session: &'a SessionId, items: Vec<Arc<Item>>) -> SessionFuture<'a, ()> {
        call_now(|| Ok(self.inner_sessions()?.append_items(session, self.wrap_items(session, items)?)))
    }

    fn append_run_items(&self, write: SessionWrite, fence: SessionFence) -> SessionFuture<'_, ()> {
        call_now(|| {
            let SessionWrite { session, items, .. } = &write;
            let items = self.wrap_items(session, items.clone())?;
            Ok(self.inner_sessions()?.append_run_items(SessionWrite { items, ..write }, fence))
        })
    }

    fn run_position<'a>(&'a self, session: &'a SessionId, run: &'a RunId) -> SessionFuture<'a, u64> {
        call_now(|| Ok(self.inner_sessions()?.run_position(session, run)))
    }

    fn list_run_positions<'a>(
        &'a self,
        session: &'a SessionId,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> SessionFuture<'a, Vec<(RunId, u64)>> {
        call_now(|| Ok(self.inner_sessions()?.list_run_positions(session, after, limit)))
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> SessionFuture<'a, ()> {
        call_now(|| {
            let items = self.wrap_items(session, items)?;
            Ok(self.inner_sessions()?.replace_items(session, version, items))
        })
    }

    fn claim_session<'a>(
        &'a self,
        session: &'a SessionId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> SessionFuture<'a, SessionClaim> {
        call_now(|| Ok(self.inner_sessions()?.claim_session(session, claim, abandoned)))
    }

    fn release_session<'a>(&'a self, session: &'a SessionId, owner: &'a str) -> SessionFuture<'a, ()> {
        call_now(|| Ok(self.inner_sessions()?.release_session(session, owner)))
    }

    fn list_sessions<'a>(
        &'a self,
        after: Option<&'a SessionId>,
        limit: u32,
    ) -> SessionFuture<'a, Vec<SessionId>> {
        call_now(|| Ok(self.inner_sessions()?.list_sessions(after, limit)))
    }

    fn shared_sessions(&self) -> Option<&dyn SessionStore> {
        SessionWrapper::shared_sessions(self)
    }
}
