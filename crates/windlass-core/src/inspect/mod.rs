//! Inspection of journals: time travel, forking, comparison and verification.
//!
//! All functions replay records. None of them changes an existing journal; a fork is a new journal.

mod diff;
mod fork;
mod steps;
mod verify;

use std::sync::Arc;

use crate::id::{AgentName, CallId, CallPath};
use crate::item::Item;
use crate::journal::{ForkOrigin, JournalEntry, JournalRecord};
use crate::run::{ReplayError, Run, RunAction};

pub use diff::{FieldDifference, RecordDifference, RunDiff, diff_runs};
pub use fork::{ForkChange, ForkError, fork};
pub use steps::{StepLine, step_lines};
pub use verify::{
    AuditedAction, AuditedDecision, DecisionBasis, VerifiedJournal, audit_records, verify_lines,
    verify_lines_with_history, verify_text,
};

/// The reason why a journal cannot be inspected as requested.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The journal has no such record.
    #[error("there is no record {seq}: the journal has {records}, numbered from 0")]
    NoSuchRecord {
        /// The requested sequence number.
        seq: u64,
        /// The number that exists.
        records: u64,
    },
    /// No agent ran at this path.
    #[error("no agent ran inside {}", describe_path(.path))]
    NoSuchAgent {
        /// The requested path.
        path: Vec<CallId>,
    },
    /// The agent has no such turn.
    #[error("there is no turn {turn}: the model was asked for {turns}, numbered from 1")]
    NoSuchTurn {
        /// The requested turn.
        turn: u32,
        /// The number that exists.
        turns: u32,
    },
    /// The journal cannot be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// Returns the run as it was after record `seq`.
///
/// # Errors
///
/// Returns [`InspectError`] if the record does not exist or the journal cannot be replayed.
pub fn run_at(records: &[JournalRecord], seq: u64) -> Result<Run, InspectError> {
    let upto = record_index(records, seq)? + 1;
    Ok(Run::replay(&records[..upto])?.run)
}

/// Returns the run and record that the run was forked from; `None` if it is not a fork.
pub fn fork_origin(records: &[JournalRecord]) -> Option<&ForkOrigin> {
    match &records.first()?.entry {
        JournalEntry::RunStarted(started) => started.origin.as_ref(),
        _ => None,
    }
}

/// Returns the sequence number of the record in which a call settled.
pub fn settlement_seq(records: &[JournalRecord], call: &CallPath) -> Option<u64> {
    let settles = |record: &&JournalRecord| {
        record.path == call.parent_calls()
            && match &record.entry {
                JournalEntry::CallSettled(settled) => settled.call == *call.call(),
                JournalEntry::HandoffRecorded(handed) => handed.call == *call.call(),
                _ => false,
            }
    };
    records.iter().find(settles).map(|record| record.seq)
}

/// The input of a model request.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnInput {
    /// The agent that made the request.
    pub agent: AgentName,
    /// The conversation items, as an input filter left them. The agent's instructions are not in the journal.
    pub items: Vec<Arc<Item>>,
    /// Sequence number of the response's record, if the model responded.
    pub response_seq: Option<u64>,
}

/// Returns the model's input for a turn, from 1, of the run itself or of the nested agent at `path`.
///
/// # Errors
///
/// Returns [`InspectError`] if no agent ran at `path`, the turn does not exist, or the journal cannot be
/// replayed.
pub fn turn_input(records: &[JournalRecord], path: &[CallId], turn: u32) -> Result<TurnInput, InspectError> {
    let of_path = || records.iter().enumerate().filter(|(_, record)| record.path == path);
    let is_answer = |entry: &JournalEntry| {
        matches!(entry, JournalEntry::ModelResponded(_) | JournalEntry::ResponseRejected(_))
    };
    if of_path().next().is_none() {
        return Err(InspectError::NoSuchAgent { path: path.to_vec() });
    }
    let answers: Vec<usize> =
        of_path().filter(|(_, record)| is_answer(&record.entry)).map(|(place, _)| place).collect();
    let wanted = (turn as usize).checked_sub(1);
    let answer = wanted.and_then(|wanted| answers.get(wanted)).copied();
    let run = Run::replay(&records[..answer.unwrap_or(records.len())])?.run;
    let asked = nested_run(&run, path).and_then(|run| match run.next() {
        RunAction::RequestModel { agent, turn: due } if due == turn => {
            Some((agent, run.next_model_input().to_vec()))
        }
        _ => None,
    });
    match asked {
        Some((agent, items)) => {
            Ok(TurnInput { agent, items, response_seq: answer.map(|place| place as u64) })
        }
        None => {
            Err(InspectError::NoSuchTurn { turn, turns: u32::try_from(answers.len()).unwrap_or(u32::MAX) })
        }
    }
}

/// Returns the nested run at `path`.
fn nested_run<'a>(run: &'a Run, path: &[CallId]) -> Option<&'a Run> {
    path.iter().try_fold(run, |run, call| run.nested_run(call))
}

fn record_index(records: &[JournalRecord], seq: u64) -> Result<usize, InspectError> {
    match usize::try_from(seq) {
        Ok(index) if index < records.len() => Ok(index),
        _ => Err(InspectError::NoSuchRecord { seq, records: records.len() as u64 }),
    }
}

fn describe_path(calls: &[CallId]) -> String {
    match calls.split_last() {
        Some((call, within)) => format!("call `{}`", CallPath::new(within, call.clone())),
        None => "the run".to_owned(),
    }
}

#[cfg(test)]
#[path = "inspect_tests.rs"]
mod tests;
