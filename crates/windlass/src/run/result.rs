//! The result of a run.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use windlass_core::{
    decision::HoldReason,
    id::{AgentName, RunId},
    item::Item,
    journal::{JournalEntry, JournalRecord, ModelResponded, encode_lines},
    run::{Run, RunEnd, RunItem},
    usage::Usage,
};

use super::{JournalRecords, KeptResults, PausedRun, RecordedRun, RunExit, RunSettlement};
use crate::error::{FailedRun, OutputError, RunError, UnfinishedRun};
use crate::model::{FinishReason, ModelError};
use crate::store::OpenRunError;

/// The result of a run that did not fail.
#[derive(Debug)]
pub enum RunResult {
    /// The run ended with an output.
    Finished(FinishedRun),
    /// The run waits for a person.
    Paused(PausedRun),
    /// The run was cancelled.
    Cancelled(CancelledRun),
    /// The driver detached from the run, which another driver can continue.
    Detached(PausedRun),
}

/// A run that ended with an output.
#[derive(Debug)]
pub struct FinishedRun {
    /// The final output: text, or the JSON text of a typed output.
    pub output: String,
    /// The record of the run.
    pub record: RunRecord,
}

/// A run that was cancelled.
#[derive(Debug)]
pub struct CancelledRun {
    /// The calls of the last turn, by their fate.
    pub settlement: RunSettlement,
    /// The record of the run.
    pub record: RunRecord,
}

impl RunResult {
    /// Creates the result of a run that a driver leaves. A run that failed is an error.
    pub(crate) fn after_exit(
        exit: RunExit,
        record: RunRecord,
        kept: KeptResults,
        model_error: Option<ModelError>,
    ) -> Result<Self, RunError> {
        match (exit, record.outline().outcome().cloned()) {
            (RunExit::Paused, _) | (RunExit::Ended, None) => Ok(Self::Paused(PausedRun::new(record, kept))),
            (RunExit::Detached, _) => Ok(Self::Detached(PausedRun::new(record, kept))),
            (RunExit::Ended, Some(RunEnd::Finished(output))) => {
                Ok(Self::Finished(FinishedRun { output, record }))
            }
            (RunExit::Ended, Some(RunEnd::Failed(failure))) => {
                let settlement = RunSettlement::from_record(&record);
                Err(RunError::Failed(Box::new(FailedRun { failure, settlement, record, model_error })))
            }
            (RunExit::Ended, Some(RunEnd::Cancelled)) => {
                let settlement = RunSettlement::from_record(&record);
                Ok(Self::Cancelled(CancelledRun { settlement, record }))
            }
        }
    }

    /// Returns the final output: text, or the JSON text of a typed output.
    ///
    /// # Errors
    ///
    /// Fails if the run did not finish: it is paused, was cancelled, or its driver detached.
    pub fn output_text(&self) -> Result<&str, UnfinishedRun> {
        match self {
            Self::Finished(finished) => Ok(&finished.output),
            Self::Paused(paused) => {
                Err(UnfinishedRun::Paused { pending_calls: paused.pending_calls().len() })
            }
            Self::Cancelled(_) => Err(UnfinishedRun::Cancelled),
            Self::Detached(_) => Err(UnfinishedRun::Detached),
        }
    }

    /// Parses the final output as the agent's output type.
    ///
    /// # Errors
    ///
    /// Fails if the run did not finish, or if the output is not a `T`.
    pub fn output_as<T: DeserializeOwned>(&self) -> Result<T, OutputError> {
        Ok(serde_json::from_str(self.output_text()?)?)
    }

    /// Returns the record of the run.
    pub fn record(&self) -> &RunRecord {
        match self {
            Self::Finished(finished) => &finished.record,
            Self::Paused(paused) | Self::Detached(paused) => paused.record(),
            Self::Cancelled(cancelled) => &cancelled.record,
        }
    }

    /// Returns the paused run, if the run waits for a person.
    pub fn into_paused(self) -> Option<PausedRun> {
        match self {
            Self::Paused(paused) => Some(paused),
            Self::Finished(_) | Self::Cancelled(_) | Self::Detached(_) => None,
        }
    }

    /// True if the run waits for a person.
    pub fn is_paused(&self) -> bool {
        matches!(self, Self::Paused(_))
    }
}

/// The record of a run: its journal and the state that results from it.
#[derive(Clone)]
pub struct RunRecord {
    pub(crate) run: RecordedRun,
    pub(crate) records: JournalRecords,
    pub(crate) usage: Usage,
}

/// Shows the run without its items: a live record has the secrets of its calls.
impl std::fmt::Debug for RunRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunRecord")
            .field("run", self.run_id())
            .field("last_agent", self.last_agent())
            .field("usage", self.usage())
            .finish_non_exhaustive()
    }
}

impl RunRecord {
    /// Returns the id of the run.
    pub fn run_id(&self) -> &RunId {
        self.run.outline().id()
    }

    /// Returns the agent that was current last.
    pub fn last_agent(&self) -> &AgentName {
        self.run.outline().agent()
    }

    /// Returns the usage of the run, including nested agents.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns the reason for which the last response of the model ended, if it is another one than the end of its text or
    /// its calls: a text that ended at the maximum of tokens is cut off.
    pub fn finish_reason(&self) -> Option<&FinishReason> {
        fn last_response(records: &[JournalRecord]) -> Option<&ModelResponded> {
            records.iter().rev().find_map(|record| match &record.entry {
                JournalEntry::ModelResponded(responded) if record.path.is_empty() => Some(&**responded),
                _ => None,
            })
        }
        // Usually it follows the snapshot that the run was opened from.
        let last = last_response(self.records.later_records()).or_else(|| last_response(self.journal()));
        last?.finish_reason.as_ref()
    }

    /// Returns the items that the run produced and the input that was added to it, in order. For an open turn these are the calls and the outputs
    /// so far.
    pub fn run_items(&self) -> Vec<RunItem> {
        let run = self.state();
        let mut items = run.items().to_vec();
        items.extend(run.open_turn_items());
        items
    }

    /// Returns the conversation as the next model request would contain it. It is valid for a provider unless a
    /// turn is open.
    pub fn history(&self) -> &[Arc<Item>] {
        self.state().history()
    }

    /// Returns the number of records in the journal. It reads none of them.
    pub fn record_count(&self) -> u64 {
        self.records.len() as u64
    }

    /// Returns the journal. Of a run that was opened from a snapshot, the first call reads the records before the
    /// snapshot from the store, blocking the thread; if they cannot be read, those after the snapshot are returned, and
    /// [`RunRecord::read_journal`] returns the error.
    pub fn journal(&self) -> &[JournalRecord] {
        self.read_journal().unwrap_or_else(|error| {
            tracing::error!(run = %self.run_id(), %error, "the records before a snapshot cannot be read");
            self.records.later_records()
        })
    }

    /// Returns the journal, as [`RunRecord::journal`] does, or the error that prevents reading all of it.
    ///
    /// # Errors
    ///
    /// Returns an error if records before the snapshot that the run was opened from cannot be read, or are not what was
    /// written.
    pub fn read_journal(&self) -> Result<&[JournalRecord], OpenRunError> {
        self.records.all_records()
    }

    /// Encodes the journal as text. If records before a snapshot cannot be read, the text is incomplete, and no reader
    /// accepts it: see [`RunRecord::read_journal`].
    pub fn to_text(&self) -> String {
        self.records.to_text().unwrap_or_else(|error| {
            tracing::error!(run = %self.run_id(), %error, "the records before a snapshot cannot be read");
            encode_lines(self.records.later_lines())
        })
    }

    /// Returns the state that the journal replays to. Of a run that was opened from a snapshot, the first call reads the
    /// conversation before the snapshot from the store, blocking the thread; if it cannot be read, the state without it is
    /// returned, and [`RunRecord::read_state`] returns the error.
    pub fn state(&self) -> &Run {
        self.read_state().unwrap_or_else(|error| {
            tracing::error!(run = %self.run_id(), %error, "the conversation before a snapshot cannot be read");
            self.run.outline()
        })
    }

    /// Returns the state, as [`RunRecord::state`] does, or the error that prevents reading all of it.
    ///
    /// # Errors
    ///
    /// Returns an error if neither the segments of the snapshot that the run was opened from nor the records before it
    /// can be read.
    pub fn read_state(&self) -> Result<&Run, OpenRunError> {
        self.run.load_whole(&self.records)
    }

    /// Returns the state without reading anything: its open calls, decisions, agent, session, usage and outcome are those
    /// of [`RunRecord::state`]. Of a run that was opened from a snapshot it lacks what lies before the snapshot: history,
    /// items, input and settled calls.
    pub fn outline(&self) -> &Run {
        self.run.outline()
    }

    /// Returns the calls of this run, without those of nested agents, that required approval, in order.
    pub fn approval_calls(&self) -> impl Iterator<Item = &windlass_core::id::CallId> {
        self.journal().iter().filter(|record| record.path.is_empty()).filter_map(|record| {
            match &record.entry {
                JournalEntry::CallHeld(held) if held.reason == HoldReason::Approval => Some(&held.call),
                _ => None,
            }
        })
    }
}
