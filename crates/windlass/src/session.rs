//! Sessions: stored history that runs share. A run adds to it a whole turn at a time, so that every call in it
//! has its output whenever anybody looks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{Item, SessionId};

use crate::error::StoreError;

/// Where sessions are kept.
pub trait SessionStore: Send + Sync + 'static {
    /// All items of a session, oldest first; none for one that is new.
    fn load<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<Vec<Arc<Item>>, StoreError>>;

    /// Adds items to the end, all or none.
    fn append<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}

/// One session. Copies stand for the same one.
#[derive(Clone)]
pub struct Session {
    id: SessionId,
    store: Arc<dyn SessionStore>,
}

impl Session {
    /// A session kept in a store.
    pub fn new(id: impl Into<SessionId>, store: Arc<dyn SessionStore>) -> Self {
        Self { id: id.into(), store }
    }

    /// A session that lasts as long as somebody holds it.
    pub fn in_memory(id: impl Into<SessionId>) -> Self {
        Self::new(id, Arc::new(MemorySessions::default()))
    }

    /// Its id.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// What it holds, oldest first.
    pub async fn items(&self) -> Result<Vec<Arc<Item>>, StoreError> {
        self.store.load(&self.id).await
    }

    /// Adds items to the end, all or none.
    pub async fn append(&self, items: Vec<Arc<Item>>) -> Result<(), StoreError> {
        if items.is_empty() { Ok(()) } else { self.store.append(&self.id, items).await }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.id)
    }
}

/// Sessions in memory.
#[derive(Debug, Default)]
pub struct MemorySessions {
    sessions: Mutex<BTreeMap<SessionId, Vec<Arc<Item>>>>,
}

impl SessionStore for MemorySessions {
    fn load<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<Vec<Arc<Item>>, StoreError>> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        std::future::ready(Ok(sessions.get(session).cloned().unwrap_or_default())).boxed()
    }

    fn append<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.entry(session.clone()).or_default().extend(items);
        std::future::ready(Ok(())).boxed()
    }
}
