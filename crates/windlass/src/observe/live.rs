//! The events of a live run: derived when an entry is recorded, delivered when it is durable.

use std::collections::VecDeque;
use std::sync::Mutex;

use windlass_core::journal::JournalRecord;
use windlass_core::run::{ReplayedRun, Run};

use super::unannounced::resume_observer;
use super::{HookObservation, RunObserver, UnannouncedRecord};
use crate::event::{EventEmitter, RunEvent};
use crate::lock_unpoisoned;

/// The observations of a live run, shared by the drivers of its nested agents.
///
/// Invariant: events are delivered in the order of their records, whichever call waits for which record. The journal
/// acknowledges records in their order, so a durable record makes all before it due.
#[derive(Default)]
pub(crate) struct LiveEvents {
    state: Mutex<LiveState>,
}

#[derive(Default)]
struct LiveState {
    observer: RunObserver,
    /// Events that are not delivered yet, in the order of their records.
    queue: VecDeque<RunEvent>,
}

impl LiveEvents {
    /// Creates the observations of a run that has these records after a snapshot, or from its start. Returns also the
    /// records after `announced_up_to` that its last driver may not have announced.
    pub(crate) fn resume(
        snapshot: Option<&ReplayedRun>,
        records: &[JournalRecord],
        announced_up_to: Option<u64>,
    ) -> (Self, Vec<UnannouncedRecord>) {
        let (observer, unannounced) = resume_observer(snapshot, records, announced_up_to);
        let state = LiveState { observer, queue: VecDeque::new() };
        (Self { state: Mutex::new(state) }, unannounced)
    }

    /// Derives the observations of a record that was applied to `root`. Its events wait for [`LiveEvents::deliver`].
    pub(crate) fn observe(&self, record: &JournalRecord, root: &Run) -> Option<HookObservation> {
        let mut state = lock_unpoisoned(&self.state);
        let observed = state.observer.observe(record, root);
        state.queue.extend(observed.events);
        observed.for_hooks
    }

    /// Delivers the events of the records up to `seq`, which are durable.
    pub(crate) async fn deliver(&self, seq: u64, emitter: &EventEmitter) {
        loop {
            let is_due = lock_unpoisoned(&self.state).queue.front().is_some_and(|event| event.seq <= seq);
            if !is_due {
                return;
            }
            // The event is removed when there is room for it, so that none is lost with a dropped future.
            let Some(room) = emitter.reserve().await else {
                lock_unpoisoned(&self.state).queue.clear();
                return;
            };
            let mut state = lock_unpoisoned(&self.state);
            if let Some(event) = state.queue.pop_front_if(|event| event.seq <= seq) {
                room.send(event);
            }
        }
    }
}
