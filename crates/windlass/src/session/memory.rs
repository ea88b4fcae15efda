//! The in-memory session store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{id::SessionId, item::Item};

use super::{SessionState, SessionStore};
use crate::error::StoreError;

/// A session store in memory.
#[derive(Debug, Default)]
pub struct MemorySessionStore {
    sessions: Mutex<BTreeMap<SessionId, SessionState>>,
}

impl MemorySessionStore {
    fn lock_sessions(&self) -> MutexGuard<'_, BTreeMap<SessionId, SessionState>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionStore for MemorySessionStore {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        std::future::ready(Ok(self.lock_sessions().get(session).cloned().unwrap_or_default())).boxed()
    }

    fn append_items<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let mut sessions = self.lock_sessions();
        let state = sessions.entry(session.clone()).or_default();
        state.version += 1;
        state.items.extend(items);
        std::future::ready(Ok(())).boxed()
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let mut sessions = self.lock_sessions();
        let state = sessions.entry(session.clone()).or_default();
        let replaced = if state.version == version {
            *state = SessionState { version: version + 1, items };
            Ok(())
        } else {
            Err(StoreError::session_changed(session))
        };
        std::future::ready(replaced).boxed()
    }

    fn list_sessions(&self) -> BoxFuture<'_, Result<Vec<SessionId>, StoreError>> {
        std::future::ready(Ok(Self::lock_sessions(self).keys().cloned().collect())).boxed()
    }
}
