//! The store of sessions.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::id::{RunId, SessionId};
use windlass::core::item::Item;
use windlass::error::StoreError;
use windlass::session::{
    SessionClaim, SessionFence, SessionItemsPage, SessionState, SessionStore, SessionWrite,
};
use windlass::store::{LeaseClaim, StoredLease};

use crate::database::{TransactionMode, transact};
use crate::{PostgresStore, history};

impl SessionStore for PostgresStore {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        async move { transact!(self.database, TransactionMode::Reading, |db| history::load_session(db, session)) }.boxed()
    }

    fn load_session_items<'a>(
        &'a self,
        session: &'a SessionId,
        skip: u64,
        limit: u32,
    ) -> BoxFuture<'a, Result<SessionItemsPage, StoreError>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| history::load_session_items(
                db, session, skip, limit
            ))
        }
        .boxed()
    }

    fn append_items<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let queued = self.session_appends.enqueue(session, items);
        async move {
            let closed = |_| Err(StoreError::new("the store was closed"));
            queued?.await.unwrap_or_else(closed)
        }
        .boxed()
    }

    fn append_run_items(
        &self,
        write: SessionWrite,
        fence: SessionFence,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        async move { transact!(self.database, |db| history::append_fenced(db, &write, &fence)) }.boxed()
    }

    fn run_position<'a>(
        &'a self,
        session: &'a SessionId,
        run: &'a RunId,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| history::run_position(db, session, run))
        }
        .boxed()
    }

    fn list_run_positions<'a>(
        &'a self,
        session: &'a SessionId,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<(RunId, u64)>, StoreError>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| history::list_run_positions(
                db, session, after, limit
            ))
        }
        .boxed()
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            transact!(self.database, TransactionMode::Once, |db| history::replace_items(
                db, session, version, &items
            ))
        }
        .boxed()
    }

    fn claim_session<'a>(
        &'a self,
        session: &'a SessionId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> BoxFuture<'a, Result<SessionClaim, StoreError>> {
        async move { transact!(self.database, |db| history::claim_session(db, session, claim, abandoned)) }
            .boxed()
    }

    fn release_session<'a>(
        &'a self,
        session: &'a SessionId,
        owner: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        async move { transact!(self.database, |db| history::release_claim(db, session, owner)) }.boxed()
    }

    fn list_sessions<'a>(
        &'a self,
        after: Option<&'a SessionId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<SessionId>, StoreError>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| history::list_sessions(db, after, limit))
        }
        .boxed()
    }
}
