//! Sessions in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{Item, SessionId};

use super::{SessionState, SessionStore};
use crate::error::StoreError;

/// Sessions in memory.
#[derive(Debug, Default)]
pub struct MemorySessions {
    sessions: Mutex<BTreeMap<SessionId, SessionState>>,
}

impl MemorySessions {
    fn sessions(&self) -> MutexGuard<'_, BTreeMap<SessionId, SessionState>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionStore for MemorySessions {
    fn load<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        std::future::ready(Ok(self.sessions().get(session).cloned().unwrap_or_default())).boxed()
    }

    fn append<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let mut sessions = self.sessions();
        let state = sessions.entry(session.clone()).or_default();
        state.version += 1;
        state.items.extend(items);
        std::future::ready(Ok(())).boxed()
    }

    fn replace<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let mut sessions = self.sessions();
        let state = sessions.entry(session.clone()).or_default();
        let replaced = if state.version == version {
            *state = SessionState { version: version + 1, items };
            Ok(())
        } else {
            Err(StoreError::session_changed(session))
        };
        std::future::ready(replaced).boxed()
    }

    fn sessions(&self) -> BoxFuture<'_, Result<Vec<SessionId>, StoreError>> {
        std::future::ready(Ok(Self::sessions(self).keys().cloned().collect())).boxed()
    }
}
