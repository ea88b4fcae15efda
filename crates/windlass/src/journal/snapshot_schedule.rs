//! The schedule of snapshots of a run.
//!
//! Invariant: a snapshot is built from journal records, never from the run in memory, so it contains no
//! secrets. Its cost grows with the run, so the next one is due when the run has doubled; a run that is left
//! open gets one earlier.

use windlass_core::{canonical::Digest, run::ReplayedRun};

use crate::run::JournalRecords;
use crate::store::StoredSnapshot;

/// The schedule of a run's snapshots.
#[derive(Default)]
pub(crate) struct SnapshotSchedule {
    /// Replayed run from which the next snapshot is built.
    base: Option<Box<ReplayedRun>>,
    /// Number of records that the last snapshot covers.
    covered_records: u64,
    /// Number of records at the last turn boundary, and the hash of the last one.
    last_turn_boundary: Option<(u64, Digest)>,
}

impl SnapshotSchedule {
    /// Creates the schedule of an opened run, whose snapshot covers `covered` records.
    pub(crate) fn after_open(opened: &ReplayedRun, covered: u64) -> Self {
        // Without one there are all records to make the next from.
        let reached = (covered > 0).then(|| Box::new(opened.clone()));
        Self { base: reached, covered_records: covered, last_turn_boundary: None }
    }

    pub(crate) fn mark_turn_boundary(&mut self, records: u64, head: Digest) {
        self.last_turn_boundary = Some((records, head));
    }

    /// Returns true if a snapshot is due while the run continues.
    pub(crate) fn is_due(&self, every: u64) -> bool {
        self.uncovered_records() >= every.max(self.covered_records).max(1)
    }

    /// Returns true if a snapshot is worthwhile before the driver leaves the run.
    pub(crate) fn is_worthwhile(&self, every: u64) -> bool {
        self.uncovered_records() >= every.max(1)
    }

    /// Builds a snapshot of the records up to the last turn boundary.
    pub(crate) fn build_snapshot(&mut self, records: &JournalRecords) -> Option<StoredSnapshot> {
        let (until, head) = self.last_turn_boundary?;
        let earlier = records.len() - records.later_records().len();
        let mut replay = self.base.take();
        let from = replay.as_ref().map_or(0, |replay| replay.next_seq as usize);
        let until_later = usize::try_from(until).ok()?.checked_sub(earlier)?;
        let new = records.later_records().get(from.checked_sub(earlier)?..until_later)?;
        for record in new {
            match &mut replay {
                Some(replay) => replay.apply_record(record).ok()?,
                None => replay = Some(Box::new(ReplayedRun::from_first_record(record).ok()?)),
            }
        }
        let body = replay.as_ref()?.to_snapshot()?;
        self.base = replay;
        self.covered_records = until;
        Some(StoredSnapshot { record_count: until, head_hash: head, body })
    }

    /// Returns the number of records after the last snapshot.
    fn uncovered_records(&self) -> u64 {
        self.last_turn_boundary.map_or(0, |(records, _)| records.saturating_sub(self.covered_records))
    }
}
