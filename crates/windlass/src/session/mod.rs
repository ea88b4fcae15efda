//! Sessions: stored history that runs share. A run adds to it a whole turn at a time, so that every call in it
//! has its output whenever anybody looks.

mod compact;
mod heal;
mod memory;

pub use compact::{Compacted, Compaction, Summarise};
pub use heal::{Healed, heal};
pub use memory::MemorySessions;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use windlass_core::{Item, SessionId};

use crate::error::StoreError;

/// Where sessions are kept.
pub trait SessionStore: Send + Sync + 'static {
    /// A session as it is now; an empty one where it is new.
    fn load<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>>;

    /// Adds items to the end, all or none, whatever others do at the same time.
    fn append<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Puts other items in place of all that there are, all or none, if the session is still at `version`.
    /// Otherwise somebody else changed it, and the error is of kind [`crate::error::StoreErrorKind::Stale`].
    fn replace<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The sessions that there are.
    fn sessions(&self) -> BoxFuture<'_, Result<Vec<SessionId>, StoreError>>;
}

/// A session at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionState {
    /// Grows with every change.
    pub version: u64,
    /// What it holds, oldest first.
    pub items: Vec<Arc<Item>>,
}

/// One session. Copies stand for the same one.
#[derive(Clone)]
pub struct Session {
    id: SessionId,
    store: Arc<dyn SessionStore>,
    limit: Option<usize>,
}

impl Session {
    /// A session kept in a store.
    pub fn new(id: impl Into<SessionId>, store: Arc<dyn SessionStore>) -> Self {
        Self { id: id.into(), store, limit: None }
    }

    /// A session that lasts as long as somebody holds it.
    pub fn in_memory(id: impl Into<SessionId>) -> Self {
        Self::new(id, Arc::new(MemorySessions::default()))
    }

    /// Shows runs the newest items only, this many at most. Nothing is deleted, and no call is parted from its
    /// output.
    #[must_use]
    pub fn limit(mut self, items: usize) -> Self {
        self.limit = Some(items);
        self
    }

    /// Its id.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// What runs are shown of it, oldest first.
    pub async fn items(&self) -> Result<Vec<Arc<Item>>, StoreError> {
        let items = self.store.load(&self.id).await?.items;
        Ok(match self.limit {
            Some(limit) => newest(items, limit),
            None => items,
        })
    }

    /// Adds items to the end, all or none.
    pub async fn append(&self, items: Vec<Arc<Item>>) -> Result<(), StoreError> {
        if items.is_empty() { Ok(()) } else { self.store.append(&self.id, items).await }
    }

    /// Takes the session back to before the last `turns` messages of the user. Gives what was taken off.
    pub async fn rewind(&self, turns: usize) -> Result<Vec<Arc<Item>>, StoreError> {
        let SessionState { version, mut items } = self.store.load(&self.id).await?;
        let users = items.iter().enumerate().filter(|(_, item)| is_user(item)).map(|(place, _)| place);
        let from = match turns {
            0 => items.len(),
            turns => users.rev().nth(turns - 1).unwrap_or(0),
        };
        let taken = items.split_off(from);
        self.store.replace(&self.id, version, items).await?;
        Ok(taken)
    }

    /// Takes in a transcript from elsewhere, healed where it is broken, and says what was healed.
    pub async fn import(&self, items: Vec<Arc<Item>>) -> Result<Healed, StoreError> {
        let healed = heal(items);
        self.append(healed.items.clone()).await?;
        Ok(healed)
    }

    /// All of it as text: one item a line, in JSON.
    pub async fn export(&self) -> Result<String, StoreError> {
        let items = self.store.load(&self.id).await?.items;
        let lines = items.iter().map(|item| serde_json::to_string(item).unwrap_or_default() + "\n");
        Ok(lines.collect())
    }

    /// Empties it.
    pub async fn clear(&self) -> Result<(), StoreError> {
        let version = self.store.load(&self.id).await?.version;
        self.store.replace(&self.id, version, Vec::new()).await
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.id)
    }
}

/// Reads what [`Session::export`] wrote.
pub fn read_export(text: &str) -> Result<Vec<Arc<Item>>, serde_json::Error> {
    text.lines().filter(|line| !line.trim().is_empty()).map(serde_json::from_str).collect()
}

/// The newest items, cut where a turn begins, so that no call is parted from its output.
fn newest(mut items: Vec<Arc<Item>>, limit: usize) -> Vec<Arc<Item>> {
    let from = items.len().saturating_sub(limit);
    let from = (from..items.len()).find(|place| begins_a_turn(&items, *place)).unwrap_or(items.len());
    items.split_off(from)
}

/// Whether the history from here on stands by itself: it begins with a user, or with an answer whose calls all
/// have their outputs after it.
fn begins_a_turn(items: &[Arc<Item>], place: usize) -> bool {
    match &*items[place] {
        Item::Message(_) => true,
        Item::Call(_) | Item::Reasoning(_) => place == 0 || !is_answer(&items[place - 1]),
        _ => false,
    }
}

fn is_answer(item: &Item) -> bool {
    matches!(item, Item::Call(_) | Item::Reasoning(_))
}

fn is_user(item: &Item) -> bool {
    matches!(item, Item::Message(message) if message.role == windlass_core::Role::User)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
