//! A run without its past: the state that the head of a snapshot and the records after it describe.
//!
//! Invariant: an outline has everything that decisions about open calls need. It lacks the conversation, the ids of
//! settled calls and the receipts before the snapshot, and an entry that refers to one of them does not fit it. The
//! machine reads nothing by itself: the caller loads the past and passes it to [`RunOutline::complete`].

use std::sync::Arc;

use super::{ApplyError, ApplyOutcome, ReplayError, ReplayedRun, Run, RunPast, SnapshotPosition};
use crate::id::CallId;
use crate::journal::{JournalEntry, JournalRecord};

/// The sizes of the parts of a run's state that lie before a snapshot and are left out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OmittedPast {
    /// Number of items of the history; 0 after the history was replaced.
    pub(super) history: usize,
    /// Number of run items.
    pub(super) items: usize,
    /// True if the items of the last model request are left out, which an input filter changed.
    pub(super) has_filtered_input: bool,
}

/// A run without the conversation, the ids of settled calls and the receipts before its snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutline {
    pub(super) replay: ReplayedRun,
    pub(super) position: SnapshotPosition,
}

impl RunOutline {
    /// Returns the position of the snapshot.
    pub fn position(&self) -> &SnapshotPosition {
        &self.position
    }

    /// Returns the state. Its open calls, decisions and outcome are complete; its history, items, input, call digests,
    /// receipts and referenced history lack everything before the snapshot.
    pub fn replay(&self) -> &ReplayedRun {
        &self.replay
    }

    /// Applies the next record, as [`ReplayedRun::apply_record`] does.
    ///
    /// # Errors
    ///
    /// Returns an error also if the record refers to the conversation before the snapshot. The outline is then
    /// unchanged, and the record fits the run that [`RunOutline::complete`] returns.
    pub fn apply_record(&mut self, record: &JournalRecord) -> Result<(), ReplayError> {
        self.replay.apply_record(record)
    }

    /// Applies an entry, as [`Run::apply_at`] does.
    ///
    /// # Errors
    ///
    /// Returns an error if the entry does not fit; nothing changes.
    pub fn apply_at(&mut self, path: &[CallId], entry: &JournalEntry) -> Result<ApplyOutcome, ApplyError> {
        self.replay.run.apply_at(path, entry)
    }

    /// Returns the whole run. Returns `None` if this is not the past of the run.
    pub fn complete(&self, past: RunPast) -> Option<ReplayedRun> {
        let position = &self.position;
        let fits = past.history.len() == position.history_len
            && past.items.len() == position.item_count
            && past.call_digests.len() == position.call_count
            && past.receipt_order.len() == position.receipt_count;
        if !fits {
            return None;
        }
        let mut whole = self.replay.clone();
        let run = &mut whole.run;
        let omitted = run.omitted.take()?;
        run.input = past.input;
        run.start_history = past.start_history.map(Arc::new);
        if omitted.history > 0 {
            let mut history = past.history;
            history.extend(run.history.iter().cloned());
            run.history = Arc::new(history);
        }
        if omitted.has_filtered_input {
            run.last_filtered_input = Some(past.last_filtered_input?);
        }
        let later_items = std::mem::replace(&mut run.items, past.items);
        run.items.extend(later_items);
        let later_calls = std::mem::replace(&mut run.call_digests, past.call_digests);
        for (call, digest) in later_calls.iter() {
            if run.call_digests.contains(call) {
                return None;
            }
            run.call_digests.insert(call.clone(), *digest);
        }
        run.ineffective_calls.extend(past.ineffective_calls);
        let later_receipts = std::mem::replace(&mut whole.receipts, past.receipts);
        whole.receipts.extend(later_receipts);
        let later_order = std::mem::replace(&mut whole.receipt_order, past.receipt_order);
        whole.receipt_order.extend(later_order);
        Some(whole)
    }
}

impl Run {
    /// Returns the lengths of the parts of the history and of the run items that are left out.
    pub(super) fn omitted_lens(&self) -> (usize, usize) {
        self.omitted.as_ref().map_or((0, 0), |omitted| (omitted.history, omitted.items))
    }
}
