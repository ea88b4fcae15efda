//! Forks: a run up to one of its records, under another id, and then something else.

use std::collections::BTreeMap;

use super::{TimeError, index_of, nested};
use crate::decision::{Decision, Reach};
use crate::entry::{Answered, CallSettled, Decided, Entry, How, Origin, Record};
use crate::id::{CallId, CallPath, RunId};
use crate::item::OutputContent;
use crate::run::{Illegal, ReplayError, Run};

/// What goes otherwise in a fork.
///
/// A change takes the place of the record that the fork is made at, where that is the record it is about: the
/// answer of the model, the settlement of the same call, the decision about the same call. Otherwise it comes
/// right after that record.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Nothing: the fork goes on from there, and what comes is new.
    None,
    /// The model answers this. It is the model of the agent whose record the fork is made at.
    Answer(Box<Answered>),
    /// The call has this output.
    Output {
        /// Which call.
        call: CallPath,
        /// How it came about.
        how: How,
        /// The output.
        output: OutputContent,
    },
    /// This is decided about the call.
    Decide {
        /// Which call.
        call: CallPath,
        /// What is said.
        decision: Decision,
        /// How far it reaches.
        reach: Reach,
        /// Who says it.
        by: Option<String>,
    },
}

/// Why there cannot be such a fork.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// There is no such record, or the journal does not add up.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// Two runs cannot have one id.
    #[error("a fork needs an id of its own: `{0}` is the run that it comes from")]
    SameRun(RunId),
    /// The change does not fit the run as it stood there.
    #[error("the change does not fit the run after record {seq}: {why}")]
    DoesNotFit {
        /// The last record that the fork keeps.
        seq: u64,
        /// Why not.
        why: Illegal,
    },
}

impl From<ReplayError> for ForkError {
    fn from(error: ReplayError) -> Self {
        Self::Time(error.into())
    }
}

/// The journal of a fork: the records up to `at` under the id `new_run`, and then the change.
///
/// What had started by then and has no output yet is as it would be after a crash: a call that must not happen
/// twice is in doubt, and does not run again because somebody made a fork; whatever does run again has the key that
/// it had. Calls that had not started are the fork's own, and have keys of their own. A fork belongs to no session.
pub fn fork(records: &[Record], at: u64, new_run: RunId, change: Change) -> Result<Vec<Record>, ForkError> {
    let place = index_of(records, at)?;
    let last = &records[place];
    let kept = if change.replaces(last) { &records[..place] } else { &records[..=place] };
    let mut run = Run::replay(kept)?.run;
    if *run.id() == new_run {
        return Err(ForkError::SameRun(new_run));
    }
    let seq = kept.len() as u64;
    let changed = change.entry(&run, last);
    if let Some((path, entry)) = &changed {
        run.apply_at(path, entry).map_err(|why| ForkError::DoesNotFit { seq: seq - 1, why })?;
    }
    let mut forked = renamed(kept, &run, &new_run, at);
    // There is no clock here: the change has the time of what it stands in for.
    forked.extend(changed.map(|(path, entry)| Record { seq, at: last.at, path, entry }));
    Ok(forked)
}

impl Change {
    fn replaces(&self, record: &Record) -> bool {
        let is_about = |of: &CallPath, call: &CallId| record.path == of.within() && call == of.call();
        match (self, &record.entry) {
            (Self::Answer(_), Entry::Answered(_) | Entry::AnswerRefused(_) | Entry::ModelFailed(_)) => true,
            (Self::Output { call, .. }, Entry::CallSettled(settled)) => is_about(call, &settled.call),
            (Self::Decide { call, .. }, Entry::Decided(decided)) => is_about(call, &decided.call),
            _ => false,
        }
    }

    fn entry(self, run: &Run, last: &Record) -> Option<(Vec<CallId>, Entry)> {
        match self {
            Self::None => None,
            Self::Answer(answered) => Some((last.path.clone(), Entry::Answered(answered))),
            Self::Output { call, how, output } => {
                let settled = CallSettled::new(call.call().clone(), how, output);
                Some((call.within().to_vec(), Entry::CallSettled(settled)))
            }
            Self::Decide { call: path, decision, reach, by } => {
                let shown = nested(run, path.within()).and_then(|run| run.seen().get(path.call()));
                // A call that nobody was shown has no digest; the machine refuses it as unknown.
                let digest = shown.copied().unwrap_or_else(|| crate::canonical::Digest::of(""));
                let call = path.call().clone();
                let decided = Decided { call, digest, decision, reach, by };
                Some((path.within().to_vec(), Entry::Decided(decided)))
            }
        }
    }
}

/// The records with the new id in place of the old, in the run itself and in the agents nested in it.
fn renamed(records: &[Record], old: &Run, new: &RunId, at: u64) -> Vec<Record> {
    let mut records = records.to_vec();
    for record in &mut records {
        let Entry::Started(started) = &mut record.entry else { continue };
        // An agent that has ended since has nothing under way.
        let under_way = nested(old, &record.path).map(under_way).unwrap_or_default();
        if record.path.is_empty() {
            started.origin = Some(Origin { run: old.id().clone(), seq: at, under_way });
            started.session = None;
        } else if !under_way.is_empty() {
            started.origin = Some(Origin { run: started.run.clone(), seq: at, under_way });
        }
        if let Some(rest) = started.run.as_str().strip_prefix(old.id().as_str()) {
            started.run = RunId::new(format!("{new}{rest}"));
        }
    }
    records
}

/// The calls of a run, nested agents' left out, whose bodies were started and have not ended, and by the name of
/// which run the world knows them.
fn under_way(run: &Run) -> BTreeMap<CallId, RunId> {
    let known_by = |call: CallId| {
        let name = run.inherited().get(&call).unwrap_or_else(|| run.id()).clone();
        (call, name)
    };
    run.begun().into_iter().map(known_by).collect()
}
