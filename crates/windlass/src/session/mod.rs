//! Sessions: stored history that runs share. A run appends whole turns, so that every call in a session always
//! has its output.

mod compaction;
pub(crate) mod log;
mod memory;
mod repair;
mod run_session;
mod session_hold;
mod session_lease;
mod session_wrapper;
mod store_sessions;

pub use compaction::{CompactionPolicy, CompactionResult, SummaryFunction};
pub use memory::MemorySessionStore;
pub use repair::{RepairedTranscript, repair_transcript};

pub(crate) use run_session::{RunSession, SessionHold, check_session_moved};
pub(crate) use session_hold::{ForeignSessionHold, SessionWait};
pub(crate) use session_wrapper::SessionWrapper;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use windlass_core::{
    history::{cut_places, has_valid_pairs, keep_pairs, paired_places},
    id::{RunId, SessionId},
    item::Item,
    journal::{ItemRange, StartHistory},
};

use self::store_sessions::StoreSessions;
use crate::error::StoreError;
use crate::store::{Lease, LeaseClaim, Store, StoredLease};

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

    /// Adds items of a run and moves the run's position in the session, atomically. A session that has them already is
    /// left as it is, so a write can be repeated after a crash.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`crate::error::StoreErrorKind::Stale`] if the position is neither the one at which
    /// the items begin, nor at or after the one at which they end. Returns an error, and changes nothing, if the fence says
    /// that the driver may not append: see [`SessionFence`].
    fn append_run_items(
        &self,
        write: SessionWrite,
        fence: SessionFence,
    ) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Returns the position up to which the session has the items of a run; 0 if it has none.
    fn run_position<'a>(
        &'a self,
        session: &'a SessionId,
        run: &'a RunId,
    ) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// Lists the positions of at most `limit` runs in the session whose ids come after `after`, in the order of their bytes,
    /// also of runs in other stores. A run without a position is not listed.
    fn list_run_positions<'a>(
        &'a self,
        session: &'a SessionId,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<(RunId, u64)>, StoreError>>;

    /// Replaces all items atomically, if the session is still at `version`. The positions of runs stay: what was
    /// removed is not added again. Items that a stored run refers to stay readable for it.
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

    /// Claims the right to append runs to a session, for runs that are in another store. A claim is a lease: its owner
    /// renews it by claiming again, which increments its beat, and another claimant gets it only if it was released or is
    /// `abandoned`, as in [`Store::acquire_lease`]. In a store that also stores runs, a run that holds the session
    /// ([`Store::hold_session`]) is another owner, with the lease of the run.
    fn claim_session<'a>(
        &'a self,
        session: &'a SessionId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> BoxFuture<'a, Result<SessionClaim, StoreError>>;

    /// Releases the claim of a session. It has no effect unless `owner` holds it.
    fn release_session<'a>(
        &'a self,
        session: &'a SessionId,
        owner: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Lists the sessions.
    fn list_sessions(&self) -> BoxFuture<'_, Result<Vec<SessionId>, StoreError>>;

    /// Returns the session store that this one forwards to, if it only forwards.
    #[doc(hidden)]
    fn shared_sessions(&self) -> Option<&dyn SessionStore> {
        None
    }
}

/// The right of a driver to append to a session. A store compares it in the transaction of the append, so that a driver that
/// was replaced without noticing appends nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionFence {
    /// The driver holds nothing, because no other process reaches the store. If the store knows of a driver that holds the
    /// session, it returns an error of the kind [`crate::error::StoreErrorKind::SessionBusy`].
    Unheld,
    /// The lease of the run, which is in the store of the session. The store returns an error of the kind
    /// [`crate::error::StoreErrorKind::Fenced`] if it was taken over, and of the kind
    /// [`crate::error::StoreErrorKind::SessionBusy`] if another driver holds the session.
    Lease(Lease),
    /// The owner of a claim: see [`SessionStore::claim_session`]. The store returns an error of the kind
    /// [`crate::error::StoreErrorKind::SessionBusy`] unless this owner holds the claim.
    Claim(String),
}

/// The answer to a claim of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionClaim {
    /// The claimant may append runs, and must renew its claim.
    Granted,
    /// Another driver holds the session.
    Held(StoredLease),
    /// No other process reaches the store. The drivers of this process take turns without its help.
    ProcessLocal,
}

/// The state of a session at one point in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionState {
    /// Version, which increases with every change.
    pub version: u64,
    /// All items, oldest first.
    pub items: Vec<Arc<Item>>,
    /// Positions of the items in the session's log, in the same order; empty if the store does not number them. A
    /// position never stands for another item.
    pub positions: Vec<ItemRange>,
}

/// The items of a session that a run sees at its start.
pub(crate) struct LoadedHistory {
    /// Version of the session.
    pub(crate) version: u64,
    /// The items.
    pub(crate) items: Vec<Arc<Item>>,
    /// Positions of the items, if the store numbers them.
    positions: Option<Vec<ItemRange>>,
    /// Description of the calls and outputs that were left out or moved; empty if there were none.
    pub(crate) broken_pairs: String,
}

impl LoadedHistory {
    /// Returns the history for the start of a run: by reference if the store numbers the items, otherwise inline.
    pub(crate) fn into_start(self, session: &SessionId, is_in_store: bool) -> StartHistory {
        match self.positions {
            Some(positions) if is_in_store => {
                StartHistory::referenced(session.clone(), self.version, positions, self.items)
            }
            _ => self.items.into(),
        }
    }
}

/// Items that a run adds to its session. They are derived from the run's journal: position 0 is before the input of the
/// run, position 1 after it, and each settled item of the run is one position further.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionWrite {
    /// The session.
    pub session: SessionId,
    /// The run.
    pub run: RunId,
    /// Position at which the items begin.
    pub from: u64,
    /// Position after the items. A failed turn may add fewer items than positions.
    pub to: u64,
    /// The items.
    pub items: Vec<Arc<Item>>,
}

impl SessionWrite {
    /// Returns true if the items are new to a session in which the run has this position; false if it has them.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`crate::error::StoreErrorKind::Stale`] if the session has a part of them, or lacks
    /// items before them.
    pub fn is_new_at(&self, position: u64) -> Result<bool, StoreError> {
        match position {
            position if position >= self.to => Ok(false),
            position if position == self.from => Ok(true),
            position => Err(StoreError::session_position(self, position)),
        }
    }
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
        Ok(self.load_history().await?.items)
    }

    /// Loads the items that runs see. Calls without outputs and outputs without calls are left out, and outputs stand
    /// directly after their responses.
    pub(crate) async fn load_history(&self) -> Result<LoadedHistory, StoreError> {
        let SessionState { version, items, positions } = self.store.load_session(&self.id).await?;
        let mut places = paired_places(&items);
        let broken_pairs = match has_valid_pairs(&items) {
            true => String::new(),
            false => keep_pairs(items.clone()).describe_repairs(),
        };
        let kept = |places: &[usize]| places.iter().map(|place| items[*place].clone()).collect::<Vec<_>>();
        if let Some(limit) = self.history_limit {
            let from = cut_place(&kept(&places), limit);
            places.drain(..from);
        }
        let positions: Vec<u64> = positions.iter().flat_map(|range| range.from..range.to).collect();
        let positions = match positions.len() == items.len() {
            true => Some(ItemRange::from_positions(places.iter().map(|place| positions[*place]))),
            false => None,
        };
        Ok(LoadedHistory { version, items: kept(&places), positions, broken_pairs })
    }

    /// Appends items atomically.
    pub async fn append(&self, items: Vec<Arc<Item>>) -> Result<(), StoreError> {
        if items.is_empty() { Ok(()) } else { self.store.append_items(&self.id, items).await }
    }

    /// Creates a session in a store of runs; `None` if the store keeps no sessions.
    pub fn in_run_store(id: SessionId, store: &Arc<dyn Store>) -> Option<Self> {
        Some(Self::new(id, Arc::new(StoreSessions::new(store.clone())?)))
    }

    /// Returns true if the session is in the store of runs, so that both are written in one transaction.
    pub(crate) fn is_in_store(&self, store: &dyn Store) -> bool {
        let Some(sessions) = store.sessions() else { return false };
        let own = self.store.shared_sessions().unwrap_or(&*self.store);
        std::ptr::addr_eq(own, sessions)
    }

    /// Returns the address of the store, which is the same for all sessions of a store.
    pub(crate) fn store_address(&self) -> usize {
        let own = self.store.shared_sessions().unwrap_or(&*self.store);
        std::ptr::from_ref(own).cast::<()>().addr()
    }

    /// Claims the right to append runs of another store.
    pub(crate) async fn claim(
        &self,
        claim: LeaseClaim<'_>,
        abandoned: Option<&StoredLease>,
    ) -> Result<SessionClaim, StoreError> {
        self.store.claim_session(&self.id, claim, abandoned).await
    }

    /// Releases the claim of `owner`.
    pub(crate) async fn release(&self, owner: &str) -> Result<(), StoreError> {
        self.store.release_session(&self.id, owner).await
    }

    /// Adds items of a run, unless the session has them.
    pub(crate) async fn append_run_items(
        &self,
        write: SessionWrite,
        fence: SessionFence,
    ) -> Result<(), StoreError> {
        self.store.append_run_items(write, fence).await
    }

    /// Returns the position up to which the session has the items of a run.
    pub(crate) async fn run_position(&self, run: &RunId) -> Result<u64, StoreError> {
        self.store.run_position(&self.id, run).await
    }

    /// Removes the last `turns` messages of the user and everything after them, and returns the removed items.
    pub async fn rewind(&self, turns: usize) -> Result<Vec<Arc<Item>>, StoreError> {
        let SessionState { version, mut items, .. } = self.store.load_session(&self.id).await?;
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
        Ok(export_items(&self.store.load_session(&self.id).await?.items))
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

/// Returns items as text: one JSON value per line.
pub(crate) fn export_items(items: &[Arc<Item>]) -> String {
    items.iter().map(|item| serde_json::to_string(item).unwrap_or_default() + "\n").collect()
}

/// Parses the output of [`Session::export`].
pub fn parse_export(text: &str) -> Result<Vec<Arc<Item>>, serde_json::Error> {
    text.lines().filter(|line| !line.trim().is_empty()).map(serde_json::from_str).collect()
}

/// Returns the place from which on at most `newest` items are left, and where no call is parted from its output.
fn cut_place(items: &[Arc<Item>], newest: usize) -> usize {
    let wanted = items.len().saturating_sub(newest);
    cut_places(items).into_iter().find(|place| *place >= wanted).unwrap_or(items.len())
}

fn is_user_message(item: &Item) -> bool {
    matches!(item, Item::Message(message) if message.role == windlass_core::item::Role::User)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
