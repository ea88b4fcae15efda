//! The sessions of the file, as the session store that applications use.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use windlass_core::{
    id::{RunId, SessionId},
    item::Item,
};

use super::runs::OwnedLeaseClaim;
use super::writer::{AckLevel, RequestSubject};
use super::{SqliteStore, history, sessions};
use crate::error::StoreError;
use crate::session::{
    SessionClaim, SessionFence, SessionItemsPage, SessionState, SessionStore, SessionWrite,
};
use crate::store::{LeaseClaim, StoredLease};

impl SessionStore for SqliteStore {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        let session = session.clone();
        self.readers.run_read(RequestSubject::Session(session.clone()), move |db| {
            sessions::load_session(db, &session)
        })
    }

    fn load_session_items<'a>(
        &'a self,
        session: &'a SessionId,
        skip: u64,
        limit: u32,
    ) -> BoxFuture<'a, Result<SessionItemsPage, StoreError>> {
        let session = session.clone();
        self.readers.run_read(RequestSubject::Session(session.clone()), move |db| {
            sessions::load_session_items(db, &session, skip, limit)
        })
    }

    fn append_items<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let session = session.clone();
        let about = RequestSubject::Session(session.clone());
        self.submit_write(about, AckLevel::Synced, move |desk| {
            sessions::append_items(desk.db, &session, &items)
        })
    }

    fn append_run_items(
        &self,
        write: SessionWrite,
        fence: SessionFence,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        let about = RequestSubject::Session(write.session.clone());
        self.submit_write(about, AckLevel::Synced, move |desk| {
            history::append_fenced(desk.db, &write, &fence)
        })
    }

    fn run_position<'a>(
        &'a self,
        session: &'a SessionId,
        run: &'a RunId,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        let (session, run) = (session.clone(), run.clone());
        self.readers.run_read(RequestSubject::Session(session.clone()), move |db| {
            sessions::run_position(db, &session, &run)
        })
    }

    fn list_run_positions<'a>(
        &'a self,
        session: &'a SessionId,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<(RunId, u64)>, StoreError>> {
        let (session, after) = (session.clone(), after.cloned());
        self.readers.run_read(RequestSubject::Session(session.clone()), move |db| {
            sessions::list_run_positions(db, &session, after.as_ref(), limit)
        })
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let session = session.clone();
        let about = RequestSubject::Session(session.clone());
        self.submit_write(about, AckLevel::Synced, move |desk| {
            sessions::replace_items(desk.db, &session, version, &items)
        })
    }

    fn claim_session<'a>(
        &'a self,
        session: &'a SessionId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> BoxFuture<'a, Result<SessionClaim, StoreError>> {
        let (session, by, abandoned) = (session.clone(), OwnedLeaseClaim::from(claim), abandoned.cloned());
        let about = RequestSubject::Session(session.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| {
            history::claim_session(desk.db, &session, &by, abandoned.as_ref())
        })
    }

    fn release_session<'a>(
        &'a self,
        session: &'a SessionId,
        owner: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let (session, owner) = (session.clone(), owner.to_owned());
        let about = RequestSubject::Session(session.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| {
            history::release_claim(desk.db, &session, &owner)
        })
    }

    fn list_sessions<'a>(
        &'a self,
        after: Option<&'a SessionId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<SessionId>, StoreError>> {
        let after = after.cloned();
        self.readers
            .run_read(RequestSubject::Store, move |db| sessions::list_sessions(db, after.as_ref(), limit))
    }
}
