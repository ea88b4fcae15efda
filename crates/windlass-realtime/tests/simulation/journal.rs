//! The journal of a session, in the middle of whose writing the process may crash.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::StoreError;
use windlass::core::RunId;
use windlass_realtime::{LiveEntry, LiveJournal, MemoryJournal};
use windlass_sim::Sim;

/// Copies stand for the same one, and no crash touches what is in it.
#[derive(Clone)]
pub(crate) struct SimJournal {
    sim: Sim,
    kept: MemoryJournal,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    entries: usize,
    /// How many appends there are to come before the one that the process crashes in.
    crash_in: Option<u64>,
}

impl SimJournal {
    pub(crate) fn new(sim: &Sim) -> Self {
        Self { sim: sim.clone(), kept: MemoryJournal::default(), state: Arc::default() }
    }

    /// The process crashes in the append of this number, or in none.
    pub(crate) fn crash_at(&self, append: Option<u64>) {
        self.state().crash_in = append;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state().entries == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the append that the process crashes in.
    fn is_the_last(&self) -> bool {
        let mut state = self.state();
        let is_it = state.crash_in == Some(0);
        state.crash_in = state.crash_in.and_then(|left| left.checked_sub(1));
        is_it
    }
}

impl LiveJournal for SimJournal {
    fn append<'a>(
        &'a self,
        session: &'a RunId,
        at: u64,
        mut entries: Vec<LiveEntry>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            let is_last = self.is_the_last();
            if is_last {
                // So much of it is on the disk.
                entries.truncate(self.sim.draw(|rng| rng.index(entries.len() + 1)));
            } else {
                self.sim.dawdle(Duration::from_millis(10)).await;
            }
            let count = entries.len();
            self.kept.append(session, at, entries).await?;
            self.state().entries += count;
            if is_last {
                self.sim.crash().await;
            }
            Ok(())
        }
        .boxed()
    }

    fn load<'a>(&'a self, session: &'a RunId) -> BoxFuture<'a, Result<Vec<LiveEntry>, StoreError>> {
        self.kept.load(session)
    }
}
