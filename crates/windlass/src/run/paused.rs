//! A run that waits for a person: a value to print, store, decide about and go on with.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use windlass_core::{
    CallId, CallPath, Decided, Decision, Digest, Entry, HoldReason, InputAdded, OutputContent, Pending,
    Question, Reach, Record, Replay, Revoked, Run, Standing, Timestamp, from_text, schema,
};

use super::{IntoInput, Records, RunRecord};
use crate::error::{DecideError, RestoreError};
use crate::tool::freeze;

/// A run that waits for a person.
///
/// It can be stored as text and restored by another process. Decisions may come in any order, and calls that
/// are not decided stay pending when the run goes on.
#[derive(Clone, Debug)]
pub struct Paused {
    record: RunRecord,
    receipts: Receipts,
    by: Option<String>,
}

/// Results of idempotent calls, and since when they are there.
type Receipts = BTreeMap<Digest, (OutputContent, Timestamp)>;

impl Paused {
    pub(crate) fn new(record: RunRecord, receipts: Receipts) -> Self {
        Self { record, receipts, by: None }
    }

    /// Restores a run from its text. The text is not changed: restoring it twice gives two independent runs.
    pub fn from_text(text: &str) -> Result<Self, RestoreError> {
        Ok(Self::from_records(from_text(text)?)?)
    }

    /// Restores a run from its journal.
    pub fn from_records(records: Vec<Record>) -> Result<Self, windlass_core::ReplayError> {
        let replay = Run::replay(&records)?;
        Ok(Self::of(replay, records.into()))
    }

    /// A run and the records that it adds up from.
    pub(crate) fn of(replay: Replay, records: Records) -> Self {
        Self::new(RunRecord { run: replay.run, records, usage: replay.usage }, replay.receipts)
    }

    /// The run as text.
    pub fn to_text(&self) -> String {
        self.record.to_text()
    }

    /// The calls that wait, nested agents' included.
    pub fn pending(&self) -> Vec<Pending> {
        self.record.run.pending()
    }

    /// Decisions that cover later calls too, nested agents' included.
    pub fn standing(&self) -> Vec<Standing> {
        let mut found = Vec::new();
        collect_standing(&self.record.run, &mut Vec::new(), &mut found);
        found
    }

    /// What the run did so far.
    pub fn record(&self) -> &RunRecord {
        &self.record
    }

    /// Says in whose name the decisions that follow are made. It goes into the journal.
    pub fn decide_as(&mut self, who: impl Into<String>) {
        self.by = Some(who.into());
    }

    /// The call may run.
    pub fn approve(&mut self, call: impl Into<CallPath>) -> Result<(), DecideError> {
        self.decide(call, Decision::Approve, Reach::Call)
    }

    /// The call may run, and so may every later call of the same tool by the same agent in this run, those aside that
    /// the tool asks about each time. It is refused where that is every one ([`Pending::reach`]).
    pub fn approve_always(&mut self, call: impl Into<CallPath>) -> Result<(), DecideError> {
        self.decide(call, Decision::Approve, Reach::Always)
    }

    /// The call may run with these arguments, a JSON object, in place of the model's. The model is told.
    pub fn approve_edited(&mut self, call: impl Into<CallPath>, arguments: &str) -> Result<(), DecideError> {
        let arguments = freeze(arguments, str::to_owned).map_err(DecideError::Arguments)?;
        self.decide(call, Decision::ApproveEdited { arguments }, Reach::Call)
    }

    /// The call may not run, and the model is told so.
    pub fn reject(&mut self, call: impl Into<CallPath>) -> Result<(), DecideError> {
        self.decide(call, Decision::Reject { message: None }, Reach::Call)
    }

    /// The call may not run, and the model is told why.
    pub fn reject_because(
        &mut self,
        call: impl Into<CallPath>,
        why: impl Into<String>,
    ) -> Result<(), DecideError> {
        self.decide(call, Decision::Reject { message: Some(why.into()) }, Reach::Call)
    }

    /// The call may not run, nor may any later call of the same tool by the same agent in this run.
    pub fn reject_always(&mut self, call: impl Into<CallPath>) -> Result<(), DecideError> {
        self.decide(call, Decision::Reject { message: None }, Reach::Always)
    }

    /// Of a call in doubt: it happened, with this result.
    pub fn it_happened(
        &mut self,
        call: impl Into<CallPath>,
        output: impl Into<OutputContent>,
    ) -> Result<(), DecideError> {
        self.decide(call, Decision::Happened { output: output.into() }, Reach::Call)
    }

    /// Of a call in doubt: it did not happen, and may run.
    pub fn it_did_not_happen(&mut self, call: impl Into<CallPath>) -> Result<(), DecideError> {
        self.decide(call, Decision::DidNotHappen, Reach::Call)
    }

    /// Of a call in doubt: nobody knows, and the model is told so.
    pub fn nobody_knows(&mut self, call: impl Into<CallPath>) -> Result<(), DecideError> {
        self.decide(call, Decision::Unknown, Reach::Call)
    }

    /// Of a call that asks: the answer, with which it goes on. It must fit what the question says of it.
    pub fn answer(&mut self, call: impl Into<CallPath>, value: impl Into<Value>) -> Result<(), DecideError> {
        self.decide(call, Decision::Answer { value: value.into() }, Reach::Call)
    }

    /// Takes a decision for good back. Calls that it let run have run.
    pub fn revoke(&mut self, standing: &Standing) -> Result<(), DecideError> {
        let entry = Entry::Revoked(Revoked { agent: standing.agent.clone(), tool: standing.tool.clone() });
        self.push(standing.within.clone(), entry)
    }

    /// Adds input, which the model sees when it is next asked.
    pub fn add_input(&mut self, input: impl IntoInput) -> Result<(), DecideError> {
        self.push(Vec::new(), Entry::InputAdded(InputAdded { items: input.into_input() }))
    }

    /// Makes any decision.
    pub fn decide(
        &mut self,
        call: impl Into<CallPath>,
        decision: Decision,
        reach: Reach,
    ) -> Result<(), DecideError> {
        let path = self.find(call.into())?;
        let digest = self.shown(&path)?;
        if let Some(pending) = self.pending().into_iter().find(|pending| pending.path == path) {
            if pending.is_over(now()) {
                return Err(DecideError::Expired(path));
            }
            if let (Decision::Answer { value }, HoldReason::Question(Question { schema: Some(schema), .. })) =
                (&decision, &pending.reason)
            {
                let problems = schema::check(schema, value);
                if !problems.is_empty() {
                    return Err(DecideError::Answer(schema::describe(&problems)));
                }
            }
        }
        let entry = Entry::Decided(Decided {
            call: path.call().clone(),
            digest,
            decision,
            reach,
            by: self.by.clone(),
        });
        self.push(path.within().to_vec(), entry)
    }

    /// The full path of a call that waits, where the id alone is given and means only one.
    fn find(&self, path: CallPath) -> Result<CallPath, DecideError> {
        let pending = self.pending();
        if pending.iter().any(|pending| pending.path == path) {
            return Ok(path);
        }
        let mut matching =
            pending.into_iter().filter(|pending| path.within().is_empty() && pending.call() == path.call());
        match (matching.next(), matching.next()) {
            (Some(only), None) => Ok(only.path),
            (Some(_), Some(_)) => Err(DecideError::Ambiguous(path)),
            // It may have been decided already: the machine says whether this is the same decision again.
            (None, _) => Ok(path),
        }
    }

    /// What was shown of the call: the decision is bound to it.
    fn shown(&self, path: &CallPath) -> Result<Digest, DecideError> {
        let mut run = &self.record.run;
        for call in path.within() {
            run = run.child(call).ok_or_else(|| DecideError::NotPending(path.clone()))?;
        }
        run.seen().get(path.call()).copied().ok_or_else(|| DecideError::NotPending(path.clone()))
    }

    fn push(&mut self, path: Vec<CallId>, entry: Entry) -> Result<(), DecideError> {
        self.record.run.apply_at(&path, &entry)?;
        let seq = self.record.records.len() as u64;
        self.record.records.push(Record { seq, at: now(), path, entry });
        Ok(())
    }

    pub(crate) fn into_parts(self) -> (RunRecord, Receipts) {
        (self.record, self.receipts)
    }
}

fn collect_standing(run: &Run, within: &mut Vec<CallId>, found: &mut Vec<Standing>) {
    found.extend(run.standing().into_iter().map(|standing| Standing { within: within.clone(), ..standing }));
    for call in run.unsettled() {
        if let Some(child) = run.child(&call) {
            within.push(call);
            collect_standing(child, within, found);
            within.pop();
        }
    }
}

/// The wall clock. A decision is an event of the outside world, and has the outside world's time.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
