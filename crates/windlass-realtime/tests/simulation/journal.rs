//! A session journal during whose appends the process may crash.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::id::RunId;
use windlass::error::StoreError;
use windlass_realtime::{MemoryJournal, RealtimeEntry, RealtimeJournal};
use windlass_sim::Sim;

/// A journal that survives simulated crashes. Clones share it.
#[derive(Clone)]
pub(crate) struct SimJournal {
    sim: Sim,
    inner: MemoryJournal,
    state: Arc<Mutex<SimJournalState>>,
}

#[derive(Default)]
struct SimJournalState {
    entries: usize,
    /// Number of appends before the one in which the process crashes.
    appends_until_crash: Option<u64>,
}

impl SimJournal {
    pub(crate) fn new(sim: &Sim) -> Self {
        Self { sim: sim.clone(), inner: MemoryJournal::default(), state: Arc::default() }
    }

    /// Sets the append in which the process crashes; none if absent.
    pub(crate) fn crash_at_append(&self, append: Option<u64>) {
        self.lock_state().appends_until_crash = append;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock_state().entries == 0
    }

    fn lock_state(&self) -> MutexGuard<'_, SimJournalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the process crashes in this append.
    fn is_crashing_append(&self) -> bool {
        let mut state = self.lock_state();
        let is_it = state.appends_until_crash == Some(0);
        state.appends_until_crash = state.appends_until_crash.and_then(|left| left.checked_sub(1));
        is_it
    }
}

impl RealtimeJournal for SimJournal {
    fn append<'a>(
        &'a self,
        session: &'a RunId,
        at: u64,
        mut entries: Vec<RealtimeEntry>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            let is_last = self.is_crashing_append();
            if is_last {
                // A random part of the entries is on disk.
                entries.truncate(self.sim.draw(|rng| rng.index(entries.len() + 1)));
            } else {
                self.sim.random_delay(Duration::from_millis(10)).await;
            }
            let count = entries.len();
            self.inner.append(session, at, entries).await?;
            self.lock_state().entries += count;
            if is_last {
                self.sim.crash().await;
            }
            Ok(())
        }
        .boxed()
    }

    fn load<'a>(&'a self, session: &'a RunId) -> BoxFuture<'a, Result<Vec<RealtimeEntry>, StoreError>> {
        self.inner.load(session)
    }
}
