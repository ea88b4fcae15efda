//! The state of a run in its record: whole, or without the past that lies before a snapshot.

use std::sync::OnceLock;

use windlass_core::{
    id::CallId,
    journal::JournalEntry,
    run::{ApplyError, ReplayedRun, Run, RunOutline, RunPast},
};

use super::JournalRecords;
use crate::error::{StoreError, StoreErrorKind};
use crate::store::OpenRunError;

/// The state of a run. The past of a run that was opened from a snapshot is loaded when it is first needed.
#[derive(Clone)]
pub(crate) struct RecordedRun {
    state: RecordedState,
    /// The whole run, completed on first access.
    whole: OnceLock<Box<ReplayedRun>>,
}

#[derive(Clone)]
enum RecordedState {
    Whole(Box<Run>),
    Outline(Box<RunOutline>),
}

impl From<Run> for RecordedRun {
    fn from(run: Run) -> Self {
        Self { state: RecordedState::Whole(run.into()), whole: OnceLock::new() }
    }
}

impl From<RunOutline> for RecordedRun {
    fn from(outline: RunOutline) -> Self {
        Self { state: RecordedState::Outline(outline.into()), whole: OnceLock::new() }
    }
}

impl RecordedRun {
    /// Returns the run, perhaps without its past: see [`RunOutline::replay`].
    pub(crate) fn outline(&self) -> &Run {
        match &self.state {
            RecordedState::Whole(run) => run,
            RecordedState::Outline(outline) => &outline.replay().run,
        }
    }

    /// Returns the whole run. The first call may read its past from the store of its records.
    pub(crate) fn load_whole(&self, records: &JournalRecords) -> Result<&Run, OpenRunError> {
        match &self.state {
            RecordedState::Whole(run) => Ok(run),
            RecordedState::Outline(outline) => {
                if self.whole.get().is_none() {
                    let whole = Box::new(complete(outline, records)?);
                    self.whole.get_or_init(|| whole);
                }
                Ok(self.whole.get().map_or(&outline.replay().run, |whole| &whole.run))
            }
        }
    }

    /// Returns the whole run, with the receipts of its past.
    pub(crate) fn into_whole(self, records: &JournalRecords) -> Result<WholeRun, OpenRunError> {
        match (self.state, self.whole.into_inner()) {
            (RecordedState::Whole(run), _) => Ok(WholeRun { run: *run, receipts: Default::default() }),
            (RecordedState::Outline(outline), whole) => {
                let whole = match whole {
                    Some(whole) => *whole,
                    None => complete(&outline, records)?,
                };
                Ok(WholeRun { run: whole.run, receipts: whole.receipts })
            }
        }
    }

    /// Applies an entry, as [`Run::apply_at`] does.
    pub(crate) fn apply_at(&mut self, path: &[CallId], entry: &JournalEntry) -> Result<(), ApplyError> {
        match &mut self.state {
            RecordedState::Whole(run) => run.apply_at(path, entry)?,
            RecordedState::Outline(outline) => outline.apply_at(path, entry)?,
        };
        self.whole.take();
        Ok(())
    }
}

/// A run with its past.
pub(crate) struct WholeRun {
    pub(crate) run: Run,
    /// Receipts that are known from the records alone.
    pub(crate) receipts:
        std::collections::BTreeMap<windlass_core::canonical::Digest, windlass_core::run::CallReceipt>,
}

/// Adds its past to a run.
fn complete(outline: &RunOutline, records: &JournalRecords) -> Result<ReplayedRun, OpenRunError> {
    let past = match records.load_snapshot_base() {
        Some(base) => RunPast::from_replay(base?),
        None => RunPast::default(),
    };
    outline.complete(past).ok_or_else(|| {
        let run = outline.replay().run.id();
        let message = format!("run `{run}` is not what its snapshot was made of");
        StoreError::with_kind(StoreErrorKind::Corrupt, message).into()
    })
}
