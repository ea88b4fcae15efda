//! The sessions of an encrypted store.

use std::future::ready;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use windlass_core::{
    id::{RunId, SessionId},
    item::Item,
};

use super::sealed_parts::{open_items, seal_items};
use super::{EncryptedStore, session_place};
use crate::error::StoreError;
use crate::session::{SessionClaim, SessionFence, SessionState, SessionStore, SessionWrite};
use crate::store::{LeaseClaim, StoredLease};

impl EncryptedStore {
    fn inner_sessions(&self) -> Result<&dyn SessionStore, StoreError> {
        self.inner.sessions().ok_or_else(|| StoreError::new("the store keeps no sessions"))
    }
}

impl SessionStore for EncryptedStore {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        Box::pin(async move {
            let state = self.inner_sessions()?.load_session(session).await?;
            let items = open_items(&self.keys, &session_place(session.as_str()), state.items)?;
            Ok(SessionState { items, version: state.version, positions: state.positions })
        })
    }

    fn append_items<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        // Items are in the order of the calls, not of the polls.
        let sealed = seal_items(&self.keys, &session_place(session.as_str()), &items);
        match (self.inner_sessions(), sealed) {
            (Ok(sessions), Ok(items)) => sessions.append_items(session, items),
            (Err(error), _) | (_, Err(error)) => Box::pin(ready(Err(error))),
        }
    }

    fn append_run_items(
        &self,
        write: SessionWrite,
        fence: SessionFence,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        let sealed = seal_items(&self.keys, &session_place(write.session.as_str()), &write.items);
        match (self.inner_sessions(), sealed) {
            (Ok(sessions), Ok(items)) => sessions.append_run_items(SessionWrite { items, ..write }, fence),
            (Err(error), _) | (_, Err(error)) => Box::pin(ready(Err(error))),
        }
    }

    fn run_position<'a>(
        &'a self,
        session: &'a SessionId,
        run: &'a RunId,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move { self.inner_sessions()?.run_position(session, run).await })
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let sealed = seal_items(&self.keys, &session_place(session.as_str()), &items);
        match (self.inner_sessions(), sealed) {
            (Ok(sessions), Ok(items)) => sessions.replace_items(session, version, items),
            (Err(error), _) | (_, Err(error)) => Box::pin(ready(Err(error))),
        }
    }

    fn claim_session<'a>(
        &'a self,
        session: &'a SessionId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> BoxFuture<'a, Result<SessionClaim, StoreError>> {
        Box::pin(async move { self.inner_sessions()?.claim_session(session, claim, abandoned).await })
    }

    fn release_session<'a>(
        &'a self,
        session: &'a SessionId,
        owner: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { self.inner_sessions()?.release_session(session, owner).await })
    }

    fn list_sessions(&self) -> BoxFuture<'_, Result<Vec<SessionId>, StoreError>> {
        Box::pin(async move { self.inner_sessions()?.list_sessions().await })
    }
}
