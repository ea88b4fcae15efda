//! The followers that a process knows: its own, which it renews in the store, and those of others, which it observes.
//!
//! Invariant: nobody waits here for a store, except a follower for its own registration. Others read what is known, and ask
//! for a look at the store that a task of its own takes. No stored time decides whether a follower lives: its beat is
//! observed on this process's clock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use windlass_core::id::RunId;

use super::{DeltaOrigin, DeltaStore, StoredFollower};
use crate::lock_unpoisoned;
use crate::store::Store;

/// Time between two renewals of a process's own followers.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(2);
/// Time without a renewal after which a follower counts as gone.
const FOLLOWER_PATIENCE: Duration = Duration::from_secs(10);
/// Time without a renewal after which a follower is removed from the store.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(60);
/// Age of the knowledge about other followers after which a model request asks for another look.
const KNOWLEDGE_AGE: Duration = Duration::from_millis(500);
/// Longest time that a model request waits for a look that is under way.
const LOOK_PATIENCE: Duration = Duration::from_millis(50);

/// The followers that a process knows. A store that carries deltas has one.
pub struct FollowerRegistry {
    id: String,
    reach: RegistryReach,
    state: Mutex<RegistryState>,
    /// One renewal at a time.
    renewal: tokio::sync::Mutex<()>,
    looked: Notify,
}

/// The processes in which followers may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegistryReach {
    ThisProcess,
    AllProcesses,
}

#[derive(Default)]
struct RegistryState {
    /// The followers in this process, by the deltas that they want.
    own: BTreeMap<RunId, OwnFollowers>,
    has_changed: bool,
    renewed_at: Option<Instant>,
    /// True for each name under which the store may have a row.
    has_row: [bool; 2],
    others: BTreeMap<String, ObservedFollower>,
    looked_at: Option<Instant>,
    look: LookState,
}

/// The number of followers of a run in this process.
#[derive(Clone, Copy, Default)]
struct OwnFollowers {
    of_any_process: usize,
    of_others: usize,
}

struct ObservedFollower {
    beat: u64,
    changed_at: Instant,
    runs: Vec<RunId>,
}

/// The look at the store that is under way.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum LookState {
    #[default]
    None,
    UnderWay,
    /// Another one follows: it was asked for after the first had begun.
    UnderWayAndAskedAgain,
}

impl FollowerRegistry {
    /// Creates the registry of a store that other processes use, too.
    pub fn for_all_processes() -> Self {
        Self::new(RegistryReach::AllProcesses)
    }

    /// Creates the registry of a store that no other process has.
    pub fn for_this_process() -> Self {
        Self::new(RegistryReach::ThisProcess)
    }

    fn new(reach: RegistryReach) -> Self {
        Self {
            id: uuid::Uuid::now_v7().to_string(),
            reach,
            state: Mutex::default(),
            renewal: tokio::sync::Mutex::default(),
            looked: Notify::new(),
        }
    }

    /// Returns the id of this process as a publisher.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn follow(&self, run: &RunId, origin: DeltaOrigin) {
        let mut state = lock_unpoisoned(&self.state);
        state.has_changed = true;
        *state.own.entry(run.clone()).or_default().count_mut(origin) += 1;
    }

    pub(super) fn unfollow(&self, run: &RunId, origin: DeltaOrigin) {
        let mut state = lock_unpoisoned(&self.state);
        state.has_changed = true;
        if let Some(own) = state.own.get_mut(run) {
            let count = own.count_mut(origin);
            *count = count.saturating_sub(1);
            if own.of_any_process == 0 && own.of_others == 0 {
                state.own.remove(run);
            }
        }
    }

    /// Returns true if somebody follows a run who wants the deltas of this process.
    pub(super) fn is_followed(&self, run: &RunId) -> bool {
        let state = lock_unpoisoned(&self.state);
        let lives = |other: &&ObservedFollower| other.changed_at.elapsed() < FOLLOWER_PATIENCE;
        state.own.get(run).is_some_and(|own| own.of_any_process > 0)
            || state.others.values().filter(lives).any(|other| other.runs.contains(run))
    }

    /// Asks for a look at the followers of other processes, and does not wait for it.
    pub(crate) fn request_look(&self, store: &Arc<dyn Store>) {
        if self.reach == RegistryReach::ThisProcess {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut state = lock_unpoisoned(&self.state);
        match state.look {
            LookState::None => {
                state.look = LookState::UnderWay;
                runtime.spawn(look_at_followers(store.clone()));
            }
            LookState::UnderWay | LookState::UnderWayAndAskedAgain => {
                state.look = LookState::UnderWayAndAskedAgain;
            }
        }
    }

    /// Asks for a look at the followers of other processes if the last one was long ago, and does not wait for it. Returns
    /// true if it has asked.
    pub(crate) fn request_look_if_old(&self, store: &Arc<dyn Store>) -> bool {
        let is_old = {
            let state = lock_unpoisoned(&self.state);
            state.look == LookState::None
                && state.looked_at.is_none_or(|looked_at| looked_at.elapsed() >= KNOWLEDGE_AGE)
        };
        if is_old {
            self.request_look(store);
        }
        is_old
    }

    /// Waits a moment for a look that is under way; asks for one if the last one was long ago.
    pub(super) async fn prepare(&self, store: &Arc<dyn Store>) {
        if self.reach == RegistryReach::ThisProcess || self.request_look_if_old(store) {
            return;
        }
        let wait = async {
            loop {
                let looked = self.looked.notified();
                if lock_unpoisoned(&self.state).look == LookState::None {
                    return;
                }
                looked.await;
            }
        };
        tokio::time::timeout(LOOK_PATIENCE, wait).await.ok();
    }

    /// Tells the other processes which runs are followed here, if they do not know it yet or it is time again.
    pub(super) async fn renew(&self, deltas: &dyn DeltaStore) {
        if self.reach == RegistryReach::ThisProcess {
            return;
        }
        let _turn = self.renewal.lock().await;
        let (names, renewals) = {
            let mut state = lock_unpoisoned(&self.state);
            let is_due = state.renewed_at.is_none_or(|at| at.elapsed() >= RENEWAL_INTERVAL);
            if !state.has_changed && (!is_due || state.own.is_empty()) {
                return;
            }
            state.has_changed = false;
            state.renewed_at = Some(Instant::now());
            let runs_of = |origin: DeltaOrigin| -> Vec<RunId> {
                let own = state.own.iter();
                own.filter(|(_, own)| own.count(origin) > 0).map(|(run, _)| run.clone()).collect()
            };
            let renewals = [runs_of(DeltaOrigin::AnyProcess), runs_of(DeltaOrigin::OtherProcesses)];
            (self.names(), renewals)
        };
        for (place, (name, runs)) in names.into_iter().zip(renewals).enumerate() {
            let has_runs = !runs.is_empty();
            if !has_runs && !lock_unpoisoned(&self.state).has_row[place] {
                continue;
            }
            let renewed = deltas.renew_follower(&name, runs).await;
            let mut state = lock_unpoisoned(&self.state);
            match renewed {
                Ok(()) => state.has_row[place] = has_runs,
                Err(error) => {
                    tracing::debug!(%error, "the followed runs could not be noted");
                    state.has_row[place] = true;
                    state.has_changed = true;
                }
            }
        }
    }

    /// Returns the names of this process's followers: those of any delta, and those of other processes' deltas.
    fn names(&self) -> [String; 2] {
        [self.id.clone(), format!("{} of others", self.id)]
    }

    /// Notes the followers that the store has, and returns those that have not been renewed for long.
    fn observe(&self, stored: Vec<StoredFollower>) -> Vec<(String, u64)> {
        let own_names = self.names();
        let now = Instant::now();
        let mut state = lock_unpoisoned(&self.state);
        let mut before = std::mem::take(&mut state.others);
        for StoredFollower { name, beat, runs } in stored {
            if own_names.contains(&name) {
                continue;
            }
            let known = before.remove(&name).filter(|known| known.beat == beat);
            let changed_at = known.map_or(now, |known| known.changed_at);
            state.others.insert(name, ObservedFollower { beat, changed_at, runs });
        }
        state.looked_at = Some(now);
        let gone = state.others.iter().filter(|(_, other)| now - other.changed_at >= REMOVAL_PATIENCE);
        gone.map(|(name, other)| (name.clone(), other.beat)).collect()
    }
}

impl OwnFollowers {
    fn count(&self, origin: DeltaOrigin) -> usize {
        match origin {
            DeltaOrigin::AnyProcess => self.of_any_process,
            DeltaOrigin::OtherProcesses => self.of_others,
        }
    }

    fn count_mut(&mut self, origin: DeltaOrigin) -> &mut usize {
        match origin {
            DeltaOrigin::AnyProcess => &mut self.of_any_process,
            DeltaOrigin::OtherProcesses => &mut self.of_others,
        }
    }
}

/// Marks the end of a look, also if its task is dropped.
struct LookUnderWay<'a> {
    registry: &'a FollowerRegistry,
    has_ended: bool,
}

impl Drop for LookUnderWay<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            lock_unpoisoned(&self.registry.state).look = LookState::None;
        }
        self.registry.looked.notify_waiters();
    }
}

/// Looks at the followers that the store has, until nobody has asked for another look since the last one began.
async fn look_at_followers(store: Arc<dyn Store>) {
    let Some(deltas) = store.deltas() else { return };
    let registry = deltas.followers();
    let mut under_way = LookUnderWay { registry, has_ended: false };
    loop {
        match deltas.list_followers().await {
            Ok(stored) => {
                for (name, beat) in registry.observe(stored) {
                    deltas.remove_follower(&name, beat).await.ok();
                }
            }
            Err(error) => tracing::debug!(%error, "the followers of runs could not be read"),
        }
        let mut state = lock_unpoisoned(&registry.state);
        if state.look != LookState::UnderWayAndAskedAgain {
            // In the same lock, so that no request falls between the look and its end.
            state.look = LookState::None;
            under_way.has_ended = true;
            return;
        }
        state.look = LookState::UnderWay;
    }
}

impl fmt::Debug for FollowerRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowerRegistry").field("id", &self.id).finish_non_exhaustive()
    }
}
