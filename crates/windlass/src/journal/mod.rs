//! Writing of a run's journal: the ordered write queue, snapshots, and outputs that guardrails withhold.
//!
//! Invariant: an entry gets its place in the journal when it is enqueued, before the first await.

mod run_journal;
mod run_recorder;
mod snapshot_schedule;
mod write_queue;

pub(crate) use self::run_journal::{LeaseTerms, ResumedRun, RunJournal, save_announced_mark};
pub(crate) use self::run_recorder::{RecordedEntry, RunRecorder, WithheldOutputs};
pub(crate) use self::write_queue::AppendTarget;

use self::run_journal::EnqueuedEntry;
use self::write_queue::PendingWrite;
