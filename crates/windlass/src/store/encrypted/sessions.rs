//! The sessions of an encrypted store.

use std::sync::Arc;

use windlass_core::id::SessionId;
use windlass_core::item::Item;

use super::sealed_parts::{open_items, seal_items};
use super::{EncryptedStore, session_place};
use crate::error::StoreError;
use crate::session::{SessionStore, SessionWrapper};

impl SessionWrapper for EncryptedStore {
    fn inner_sessions(&self) -> Result<&dyn SessionStore, StoreError> {
        self.inner.sessions().ok_or_else(|| StoreError::new("the store keeps no sessions"))
    }

    fn wrap_items(&self, session: &SessionId, items: Vec<Arc<Item>>) -> Result<Vec<Arc<Item>>, StoreError> {
        seal_items(&self.keys, &session_place(session.as_str()), &items)
    }

    fn unwrap_items(&self, session: &SessionId, items: Vec<Arc<Item>>) -> Result<Vec<Arc<Item>>, StoreError> {
        open_items(&self.keys, &session_place(session.as_str()), items)
    }
}
