//! Forks: the prefix of a run under a new id, followed by a change.

use super::{InspectError, nested_run, record_index};
use crate::decision::{Decision, DecisionScope};
use crate::id::{CallId, CallPath, RunId};
use crate::item::OutputContent;
use crate::journal::{
    CallSettled, CallStatus, DecisionRecorded, ForkOrigin, JournalEntry, JournalRecord, ModelResponded,
};
use crate::run::{ApplyError, ReplayError, Run};

/// The change that a fork makes.
///
/// The change replaces the record at which the fork is made if it concerns the same event: the model response,
/// the settlement of the same call, or the decision about the same call. Otherwise it is appended after that
/// record.
#[derive(Clone, Debug, PartialEq)]
pub enum ForkChange {
    /// No change; the fork continues from the record.
    Unchanged,
    /// Another response of the model, for the agent whose record the fork is made at.
    ModelResponse(Box<ModelResponded>),
    /// Another output of a call.
    CallOutput {
        /// The path of the call.
        call: CallPath,
        /// The status that the call settles with.
        status: CallStatus,
        /// The output.
        output: OutputContent,
    },
    /// Another decision about a call.
    CallDecision {
        /// The path of the call.
        call: CallPath,
        /// The decision.
        decision: Decision,
        /// The set of calls that the decision covers.
        scope: DecisionScope,
        /// Name of the person or policy that decided, if known.
        decided_by: Option<String>,
    },
}

/// The reason why a fork cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The record does not exist, or the journal cannot be replayed.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// The fork has the same run id as the original.
    #[error("a fork needs an id of its own: `{0}` is the run that it comes from")]
    SameRunId(RunId),
    /// The change does not fit the state of the run at that record.
    #[error("the change does not fit the run after record {seq}: {error}")]
    InvalidChange {
        /// The last record that the fork keeps.
        seq: u64,
        /// The reason why the change does not fit.
        error: ApplyError,
    },
}

impl From<ReplayError> for ForkError {
    fn from(error: ReplayError) -> Self {
        Self::Inspect(error.into())
    }
}

/// Returns the journal of a fork: the records up to `at` under the id `new_run`, followed by the change.
///
/// Calls that had started and not settled are treated as after a crash: a call that must not run twice is in
/// doubt, and calls that run again keep the idempotency key in their `call_started` entry, because they may have taken
/// effect under it. Calls that had not started get keys of the fork. So do calls that are known to have had no effect
/// (a person or the tool's reconcile function says so), and calls that asked a question: their next attempt is an effect
/// of the fork, which the original run may have too.
///
/// A fork belongs to no session, and has the history of the run inline.
///
/// # Errors
///
/// Returns [`ForkError`] if the record does not exist, the id is not new, or the change does not fit.
pub fn fork(
    records: &[JournalRecord],
    at: u64,
    new_run: RunId,
    change: ForkChange,
) -> Result<Vec<JournalRecord>, ForkError> {
    let place = record_index(records, at)?;
    let last = &records[place];
    let kept = if change.replaces_record(last) { &records[..place] } else { &records[..=place] };
    let mut run = Run::replay(kept)?.run;
    if *run.id() == new_run {
        return Err(ForkError::SameRunId(new_run));
    }
    let seq = kept.len() as u64;
    let changed = change.into_entry(&run, last);
    if let Some((path, entry)) = &changed {
        run.apply_at(path, entry).map_err(|why| ForkError::InvalidChange { seq: seq - 1, error: why })?;
    }
    let mut forked = rename_run(kept, &run, &new_run, at)?;
    // There is no clock in this crate, so the change gets the time of the record at which the fork is made.
    forked.extend(changed.map(|(path, entry)| JournalRecord { seq, at: last.at, path, entry }));
    Ok(forked)
}

impl ForkChange {
    fn replaces_record(&self, record: &JournalRecord) -> bool {
        let is_about = |of: &CallPath, call: &CallId| record.path == of.parent_calls() && call == of.call();
        match (self, &record.entry) {
            (
                Self::ModelResponse(_),
                JournalEntry::ModelResponded(_)
                | JournalEntry::ResponseRejected(_)
                | JournalEntry::ModelRequestFailed(_),
            ) => true,
            (Self::CallOutput { call, .. }, JournalEntry::CallSettled(settled)) => {
                is_about(call, &settled.call)
            }
            (Self::CallDecision { call, .. }, JournalEntry::DecisionRecorded(decided)) => {
                is_about(call, &decided.call)
            }
            _ => false,
        }
    }

    fn into_entry(self, run: &Run, last: &JournalRecord) -> Option<(Vec<CallId>, JournalEntry)> {
        match self {
            Self::Unchanged => None,
            Self::ModelResponse(answered) => {
                Some((last.path.clone(), JournalEntry::ModelResponded(answered)))
            }
            Self::CallOutput { call, status: how, output } => {
                let settled = CallSettled::new(call.call().clone(), how, output);
                Some((call.parent_calls().to_vec(), JournalEntry::CallSettled(settled)))
            }
            Self::CallDecision { call: path, decision, scope: reach, decided_by: by } => {
                let shown =
                    nested_run(run, path.parent_calls()).and_then(|run| run.call_digests().get(path.call()));
                // An unknown call has no digest; the state machine refuses the decision.
                let digest = shown.copied().unwrap_or_else(|| crate::canonical::Digest::of_text(""));
                let call = path.call().clone();
                let decided = DecisionRecorded {
                    call,
                    digest,
                    decision,
                    scope: reach,
                    decided_by: by,
                    displayed: None,
                    posted_revision: 0,
                    signature: None,
                    mac: None,
                };
                Some((path.parent_calls().to_vec(), JournalEntry::DecisionRecorded(decided)))
            }
        }
    }
}

/// Returns the records with the new run id, in the run itself and in nested agents. Starts of open calls are inherited.
fn rename_run(
    records: &[JournalRecord],
    old: &Run,
    new: &RunId,
    at: u64,
) -> Result<Vec<JournalRecord>, ReplayError> {
    let mut records = records.to_vec();
    for record in &mut records {
        let started = match &mut record.entry {
            JournalEntry::RunStarted(started) => started,
            JournalEntry::CallStarted(started) => {
                let run = old.at_path(&record.path);
                started.is_inherited = run.is_some_and(|run| !run.is_call_settled(&started.call));
                continue;
            }
            _ => continue,
        };
        if record.path.is_empty() {
            started.origin = Some(ForkOrigin { run: old.id().clone(), seq: at });
            started.session = None;
            // Keys of the fork are its own. A driver may give it a nonce.
            started.key_nonce = None;
            started.history = started.history.to_inline()?;
        }
        if let Some(rest) = started.run.as_str().strip_prefix(old.id().as_str()) {
            started.run = RunId::new(format!("{new}{rest}"));
        }
    }
    Ok(records)
}
