//! The schedule of snapshots of a run.
//!
//! Invariant: a snapshot is built from journal records, never from the run in memory, so it contains no
//! secrets. Each one writes a small head and the growth since the one before it, so it costs as much as the records that
//! it covers anew, however long the run is.

use windlass_core::{
    canonical::Digest,
    run::{EncodedSnapshot, ReplayedRun, SnapshotPosition},
};

use crate::run::JournalRecords;
use crate::store::{SnapshotSegments, StoredSnapshot};

/// The schedule of a run's snapshots.
#[derive(Default)]
pub(crate) struct SnapshotSchedule {
    /// Replayed run from which the next snapshot is built.
    base: Option<Box<ReplayedRun>>,
    /// Position of the last snapshot, whose segments the store has.
    position: Option<SnapshotPosition>,
    /// Number of records at the last turn boundary, and the hash of the last one.
    last_turn_boundary: Option<(u64, Digest)>,
}

impl SnapshotSchedule {
    /// Creates the schedule of an opened run. The position is that of the snapshot that the store has of it, if that is
    /// in use.
    pub(crate) fn after_open(position: Option<SnapshotPosition>) -> Self {
        Self { position, ..Self::default() }
    }

    pub(crate) fn mark_turn_boundary(&mut self, records: u64, head: Digest) {
        self.last_turn_boundary = Some((records, head));
    }

    /// Returns true if a snapshot is due.
    pub(crate) fn is_due(&self, every: u64) -> bool {
        let covered = self.position.as_ref().map_or(0, SnapshotPosition::next_seq);
        let uncovered = self.last_turn_boundary.map_or(0, |(records, _)| records.saturating_sub(covered));
        uncovered >= every.max(1)
    }

    /// Forgets the segments of earlier snapshots: the store may lack them. The next snapshot writes everything.
    pub(crate) fn restart_segments(&mut self) {
        self.position = None;
    }

    /// Builds a snapshot of the records up to the last turn boundary.
    pub(crate) fn build_snapshot(
        &mut self,
        records: &JournalRecords,
    ) -> Option<(StoredSnapshot, SnapshotSegments)> {
        let (until, head_hash) = self.last_turn_boundary?;
        let earlier = records.len() - records.later_records().len();
        let mut replay = match self.base.take() {
            Some(base) => Some(base),
            None => records.load_snapshot_base().transpose().ok()?.map(|base| Box::new(base.clone())),
        };
        let from = replay.as_ref().map_or(0, |replay| replay.next_seq as usize);
        let until_later = usize::try_from(until).ok()?.checked_sub(earlier)?;
        let new = records.later_records().get(from.checked_sub(earlier)?..until_later)?;
        for record in new {
            match &mut replay {
                Some(replay) => replay.apply_record(record).ok()?,
                None => replay = Some(Box::new(ReplayedRun::from_first_record(record).ok()?)),
            }
        }
        let EncodedSnapshot { head, segment, position } =
            replay.as_ref()?.to_snapshot(self.position.as_ref())?;
        self.base = replay;
        let first = position.segment_count() - 1;
        self.position = Some(position);
        let snapshot = StoredSnapshot { record_count: until, head_hash, body: head };
        Some((snapshot, SnapshotSegments { first, bodies: vec![segment] }))
    }
}
