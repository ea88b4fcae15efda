//! When a run is written down as a whole, beside its journal.
//!
//! A snapshot is made of records as the journal has them, never of the run in memory: what is secret there is not in
//! it. It costs as much as the run is long, so the next one waits until the run has doubled; a run that is left for
//! long is worth one sooner.

use windlass_core::{Digest, Replay};

use crate::run::Records;
use crate::store::Snapshot;

#[derive(Default)]
pub(super) struct Snapshots {
    /// What some of the records add up to: the next one is made from there.
    reached: Option<Box<Replay>>,
    /// How many records the last one covers.
    covered: u64,
    /// How many records there were when the run last stood between two turns, and the hash of the last of them.
    between_turns: Option<(u64, Digest)>,
}

impl Snapshots {
    /// Those of a run that was opened, from one that covers so many records or from none.
    pub(super) fn after(opened: &Replay, covered: u64) -> Self {
        // Without one there are all records to make the next from.
        let reached = (covered > 0).then(|| Box::new(opened.clone()));
        Self { reached, covered, between_turns: None }
    }

    pub(super) fn between_turns(&mut self, records: u64, head: Digest) {
        self.between_turns = Some((records, head));
    }

    /// Whether it is time for one while the run goes on.
    pub(super) fn is_due(&self, every: u64) -> bool {
        self.grown() >= every.max(self.covered).max(1)
    }

    /// Whether one is worth making before the run is left.
    pub(super) fn is_worthwhile(&self, every: u64) -> bool {
        self.grown() >= every.max(1)
    }

    /// Makes one of the records up to where the run last stood between two turns.
    pub(super) fn make(&mut self, records: &Records) -> Option<Snapshot> {
        let (until, head) = self.between_turns?;
        let earlier = records.len() - records.later().len();
        let mut replay = self.reached.take();
        let from = replay.as_ref().map_or(0, |replay| replay.next_seq as usize);
        let until_later = usize::try_from(until).ok()?.checked_sub(earlier)?;
        let new = records.later().get(from.checked_sub(earlier)?..until_later)?;
        for record in new {
            match &mut replay {
                Some(replay) => replay.go_on(record).ok()?,
                None => replay = Some(Box::new(Replay::begin(record).ok()?)),
            }
        }
        let body = replay.as_ref()?.to_snapshot()?;
        self.reached = replay;
        self.covered = until;
        Some(Snapshot { records: until, head, body })
    }

    /// How many records the last one does not cover.
    fn grown(&self) -> u64 {
        self.between_turns.map_or(0, |(records, _)| records.saturating_sub(self.covered))
    }
}
