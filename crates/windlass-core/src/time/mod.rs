//! Time: a journal looked at, gone back into, forked, compared and checked.
//!
//! All of it is replay of records, and nothing here changes a journal that exists: a fork is a new one.

mod diff;
mod fork;
mod steps;
mod verify;

use std::sync::Arc;

use crate::entry::{Entry, Origin, Record};
use crate::id::{AgentName, CallId, CallPath};
use crate::item::Item;
use crate::run::{Next, ReplayError, Run};

pub use diff::{Diff, Difference, FieldDifference, diff};
pub use fork::{Change, ForkError, fork};
pub use steps::{StepLine, steps};
pub use verify::{Rule, Ruled, Ruling, Verified, verify, verify_text};

/// Why a journal cannot be looked at like this.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TimeError {
    /// The journal is shorter than that.
    #[error("there is no record {seq}: the journal has {records}, numbered from 0")]
    NoSuchRecord {
        /// Which record was asked for.
        seq: u64,
        /// How many there are.
        records: u64,
    },
    /// No agent ran there.
    #[error("no agent ran inside {}", list(.path))]
    NoSuchAgent {
        /// Where one was looked for.
        path: Vec<CallId>,
    },
    /// The model was not asked that often.
    #[error("there is no turn {turn}: the model was asked for {turns}, numbered from 1")]
    NoSuchTurn {
        /// Which turn was asked for.
        turn: u32,
        /// How many there are.
        turns: u32,
    },
    /// The journal does not add up.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// The run as it stood after record `seq`.
pub fn at(records: &[Record], seq: u64) -> Result<Run, TimeError> {
    let upto = index_of(records, seq)? + 1;
    Ok(Run::replay(&records[..upto])?.run)
}

/// Where the run was forked from, if it was.
pub fn origin(records: &[Record]) -> Option<&Origin> {
    match &records.first()?.entry {
        Entry::Started(started) => started.origin.as_ref(),
        _ => None,
    }
}

/// The record that gave a call its output.
pub fn settlement_of(records: &[Record], call: &CallPath) -> Option<u64> {
    let settles = |record: &&Record| {
        record.path == call.within()
            && match &record.entry {
                Entry::CallSettled(settled) => settled.call == *call.call(),
                Entry::HandedOff(handed) => handed.call == *call.call(),
                _ => false,
            }
    };
    records.iter().find(settles).map(|record| record.seq)
}

/// What the model was asked with.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The agent whose model it was.
    pub agent: AgentName,
    /// The conversation, to the item. Instructions are the agent's and a filter is the driver's: neither is in
    /// the journal.
    pub items: Vec<Arc<Item>>,
    /// The record with the answer, where there is one.
    pub answer: Option<u64>,
}

/// What the model was shown for a turn, from 1, of the run itself or of the agent inside the calls of `path`.
pub fn input_at(records: &[Record], path: &[CallId], turn: u32) -> Result<Asked, TimeError> {
    let of_path = || records.iter().enumerate().filter(|(_, record)| record.path == path);
    let is_answer = |entry: &Entry| matches!(entry, Entry::Answered(_) | Entry::AnswerRefused(_));
    if of_path().next().is_none() {
        return Err(TimeError::NoSuchAgent { path: path.to_vec() });
    }
    let answers: Vec<usize> =
        of_path().filter(|(_, record)| is_answer(&record.entry)).map(|(place, _)| place).collect();
    let wanted = (turn as usize).checked_sub(1);
    let answer = wanted.and_then(|wanted| answers.get(wanted)).copied();
    let run = Run::replay(&records[..answer.unwrap_or(records.len())])?.run;
    let asked = nested(&run, path).and_then(|run| match run.next() {
        Next::Model { agent, turn: due } if due == turn => Some((agent, run.history().to_vec())),
        _ => None,
    });
    match asked {
        Some((agent, items)) => Ok(Asked { agent, items, answer: answer.map(|place| place as u64) }),
        None => Err(TimeError::NoSuchTurn { turn, turns: u32::try_from(answers.len()).unwrap_or(u32::MAX) }),
    }
}

/// The run of the agent inside the calls of `path`.
fn nested<'a>(run: &'a Run, path: &[CallId]) -> Option<&'a Run> {
    path.iter().try_fold(run, |run, call| run.child(call))
}

fn index_of(records: &[Record], seq: u64) -> Result<usize, TimeError> {
    match usize::try_from(seq) {
        Ok(index) if index < records.len() => Ok(index),
        _ => Err(TimeError::NoSuchRecord { seq, records: records.len() as u64 }),
    }
}

fn list(calls: &[CallId]) -> String {
    match calls.split_last() {
        Some((call, within)) => format!("call `{}`", CallPath::new(within, call.clone())),
        None => "the run".to_owned(),
    }
}

#[cfg(test)]
#[path = "time_tests.rs"]
mod tests;
