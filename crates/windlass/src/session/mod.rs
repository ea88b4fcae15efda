//! Sessions: stored history that runs share. A run appends whole turns, so that every call in a session always
//! has its output.

mod compaction;
mod memory;
mod repair;

pub use compaction::{CompactionPolicy, CompactionResult, SummaryFunction};
pub use memory::MemorySessionStore;
pub use repair::{RepairedTranscript, repair_transcript};

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use windlass_core::{id::SessionId, item::Item};

use crate::error::StoreError;

/// A store of sessions.
pub trait SessionStore: Send + Sync + 'static {
    /// Loads a session; empty if it does not exist.
    fn load_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>>;

    /// Appends items atomically, whatever other writers do concurrently.
    fn append_items<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Replaces all items atomically, if the session is still at `version`.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`crate::error::StoreErrorKind::Stale`] if another writer has changed the
    /// session.
    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Lists the sessions.
    fn list_sessions(&self) -> BoxFuture<'_, Result<Vec<SessionId>, StoreError>>;
}

/// The state of a session at one point in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionState {
    /// Version, which increases with every change.
    pub version: u64,
    /// All items, oldest first.
    pub items: Vec<Arc<Item>>,
}

/// A session. Clones refer to the same session.
#[derive(Clone)]
pub struct Session {
    id: SessionId,
    store: Arc<dyn SessionStore>,
    history_limit: Option<usize>,
}

impl Session {
    /// Creates a session in a store.
    pub fn new(id: impl Into<SessionId>, store: Arc<dyn SessionStore>) -> Self {
        Self { id: id.into(), store, history_limit: None }
    }

    /// Creates a session in memory, which lives as long as the value and its clones.
    pub fn in_memory(id: impl Into<SessionId>) -> Self {
        Self::new(id, Arc::new(MemorySessionStore::default()))
    }

    /// Limits the history that runs see to the newest items. Nothing is deleted, and calls are never separated
    /// from their outputs.
    #[must_use]
    pub fn history_limit(mut self, items: usize) -> Self {
        self.history_limit = Some(items);
        self
    }

    /// Returns the id.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Returns the items that runs see, oldest first.
    pub async fn items(&self) -> Result<Vec<Arc<Item>>, StoreError> {
        let items = self.store.load_session(&self.id).await?.items;
        Ok(match self.history_limit {
            Some(limit) => newest_items(items, limit),
            None => items,
        })
    }

    /// Appends items atomically.
    pub async fn append(&self, items: Vec<Arc<Item>>) -> Result<(), StoreError> {
        if items.is_empty() { Ok(()) } else { self.store.append_items(&self.id, items).await }
    }

    /// Removes the last `turns` messages of the user and everything after them, and returns the removed items.
    pub async fn rewind(&self, turns: usize) -> Result<Vec<Arc<Item>>, StoreError> {
        let SessionState { version, mut items } = self.store.load_session(&self.id).await?;
        let users =
            items.iter().enumerate().filter(|(_, item)| is_user_message(item)).map(|(place, _)| place);
        let from = match turns {
            0 => items.len(),
            turns => users.rev().nth(turns - 1).unwrap_or(0),
        };
        let taken = items.split_off(from);
        self.store.replace_items(&self.id, version, items).await?;
        Ok(taken)
    }

    /// Imports a transcript, repairs it if it is invalid, and returns the repaired transcript and the repairs.
    pub async fn import(&self, items: Vec<Arc<Item>>) -> Result<RepairedTranscript, StoreError> {
        let healed = repair_transcript(items);
        self.append(healed.items.clone()).await?;
        Ok(healed)
    }

    /// Exports all items as text: one JSON value per line.
    pub async fn export(&self) -> Result<String, StoreError> {
        let items = self.store.load_session(&self.id).await?.items;
        let lines = items.iter().map(|item| serde_json::to_string(item).unwrap_or_default() + "\n");
        Ok(lines.collect())
    }

    /// Removes all items.
    pub async fn clear(&self) -> Result<(), StoreError> {
        let version = self.store.load_session(&self.id).await?.version;
        self.store.replace_items(&self.id, version, Vec::new()).await
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.id)
    }
}

/// Parses the output of [`Session::export`].
pub fn parse_export(text: &str) -> Result<Vec<Arc<Item>>, serde_json::Error> {
    text.lines().filter(|line| !line.trim().is_empty()).map(serde_json::from_str).collect()
}

/// Returns the newest items, cut at the start of a turn, so that calls are not separated from their outputs.
fn newest_items(mut items: Vec<Arc<Item>>, limit: usize) -> Vec<Arc<Item>> {
    let from = items.len().saturating_sub(limit);
    let from = (from..items.len()).find(|place| is_turn_start(&items, *place)).unwrap_or(items.len());
    items.split_off(from)
}

/// True if the history from this position on is valid by itself: it starts with a message, or with a response
/// whose calls all have their outputs after it.
fn is_turn_start(items: &[Arc<Item>], place: usize) -> bool {
    match &*items[place] {
        Item::Message(_) => true,
        Item::Call(_) | Item::Reasoning(_) => place == 0 || !is_model_item(&items[place - 1]),
        _ => false,
    }
}

fn is_model_item(item: &Item) -> bool {
    matches!(item, Item::Call(_) | Item::Reasoning(_))
}

fn is_user_message(item: &Item) -> bool {
    matches!(item, Item::Message(message) if message.role == windlass_core::item::Role::User)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
