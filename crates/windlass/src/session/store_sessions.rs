//! The sessions of a store of runs, as a session store.

use std::sync::Arc;

use super::{SessionStore, SessionWrapper};
use crate::error::StoreError;
use crate::store::Store;

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
}

impl SessionWrapper for StoreSessions {
    fn inner_sessions(&self) -> Result<&dyn SessionStore, StoreError> {
        self.store.sessions().ok_or_else(|| StoreError::new("the store keeps no sessions"))
    }

    fn shared_sessions(&self) -> Option<&dyn SessionStore> {
        self.store.sessions()
    }
}
