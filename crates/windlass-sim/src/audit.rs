//! The invariants of every journal, checked record by record and independently of the run state machine.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use windlass::core::{
    canonical::{Digest, canonical_text},
    decision::{Decision, DecisionScope, HoldReason},
    id::{AgentName, CallId},
    idempotency::IdempotencyKey,
    journal::{
        CallHeld, CallSettled, CallStarted, CallStatus, DecisionRecorded, HandoffRecorded, JournalEntry,
        JournalRecord, ModelResponded, RunStarted,
    },
    plan::{BodyKind, CallDisposition, PlannedCall, call_digest},
    run::Run,
    tool::{ApprovalPolicy, ToolEffect, ToolKey},
    usage::Usage,
};
use windlass::run::RunRecord;

use crate::history::check_history;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvariantViolation {
    message: String,
}

impl InvariantViolation {
    /// Creates a violation with this message.
    pub fn new(what: impl Into<String>) -> Self {
        Self { message: what.into() }
    }
}

impl fmt::Display for InvariantViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for InvariantViolation {}

/// Reads a journal record by record and checks the invariants of every journal after each:
///
/// - the prefix replays, and between turns a provider would accept the history;
/// - a call starts at most once per attempt, always with the same idempotency key, and settles at most once;
/// - no call starts that waits for a decision, was rejected, or follows an unsettled predecessor;
/// - decisions match the digest of the pending call;
/// - receipts of idempotent calls are used by identical calls of the same agent only;
/// - no entries follow the end of the run.
#[derive(Debug, Default)]
pub struct JournalAudit {
    run: Option<Run>,
    next_seq: u64,
    usage: Usage,
    frames: BTreeMap<Vec<CallId>, AuditFrame>,
    receipts: Vec<(AgentName, Digest)>,
}

/// The audit state of one run: the outermost, or that of a nested agent.
#[derive(Debug, Default)]
struct AuditFrame {
    calls: BTreeMap<CallId, AuditedCall>,
    open_calls: Vec<CallId>,
    standing_decisions: BTreeMap<(AgentName, ToolKey), DecisionEffect>,
    phase: FramePhase,
}

/// The phase of an audited run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FramePhase {
    #[default]
    Running,
    /// A settled call ends the run.
    Ending,
    Ended,
}

/// The state of a call at the current record.
#[derive(Debug)]
struct AuditedCall {
    planned: PlannedCall,
    agent: AgentName,
    attempts: u32,
    hold_reason: Option<HoldReason>,
    decision: Option<DecisionEffect>,
    /// True if the decision is a standing one that was made about another call.
    has_standing_decision: bool,
    /// The decision that was made about this call and can still be corrected, with its scope.
    untaken_decision: Option<(Decision, DecisionScope)>,
    edited_arguments: Option<String>,
    key: Option<IdempotencyKey>,
    leaves_receipt: bool,
    has_nested_run: bool,
    is_settled: bool,
}

/// The effect of a decision on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecisionEffect {
    MayRun,
    MustNotRun,
}

/// Checks a whole journal.
///
/// # Errors
/// Returns the first violated invariant.
pub fn check_journal<'a>(
    records: impl IntoIterator<Item = &'a JournalRecord>,
) -> Result<JournalAudit, InvariantViolation> {
    let mut audit = JournalAudit::default();
    for record in records {
        audit.apply_record(record)?;
    }
    Ok(audit)
}

/// Checks the journal of a run, and that its state and its usage equal the replayed ones.
///
/// # Errors
/// Returns the first violated invariant.
pub fn check_record(record: &RunRecord) -> Result<(), InvariantViolation> {
    let audit = check_journal(record.journal())?;
    if audit.run.as_ref() != Some(record.state()) {
        return Err(InvariantViolation::new(format!(
            "the journal does not replay to the state of the run:\nreplayed {:#?}\nlive {:#?}",
            audit.run,
            record.state()
        )));
    }
    if audit.usage != *record.usage() {
        let (counted, said) = (audit.usage, record.usage());
        return Err(InvariantViolation::new(format!(
            "the entries cost {counted:?} and the run says {said:?}"
        )));
    }
    Ok(())
}

impl JournalAudit {
    /// Checks the next record.
    ///
    /// # Errors
    /// Returns the first violated invariant.
    pub fn apply_record(&mut self, record: &JournalRecord) -> Result<(), InvariantViolation> {
        let checked = self.check_next(record);
        checked.map_err(|broken| {
            InvariantViolation::new(format!("record {}: {broken}: {:?}", record.seq, record.entry))
        })
    }

    /// Returns the run replayed from the records so far.
    pub fn run(&self) -> Option<&Run> {
        self.run.as_ref()
    }

    /// Returns the total usage of the records so far.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns the number of starts of a call's body.
    pub fn attempt_count(&self, within: &[CallId], call: &CallId) -> u32 {
        self.frames.get(within).and_then(|frame| frame.calls.get(call)).map_or(0, |seen| seen.attempts)
    }

    fn check_next(&mut self, record: &JournalRecord) -> Result<(), InvariantViolation> {
        if record.seq != self.next_seq {
            return Err(InvariantViolation::new(format!("record {} is due", self.next_seq)));
        }
        self.next_seq += 1;
        self.track_entry(&record.path, &record.entry)?;
        let illegal = |why| InvariantViolation::new(format!("it does not replay: {why}"));
        match (&mut self.run, &record.entry) {
            (run @ None, JournalEntry::RunStarted(started)) => *run = Some(Run::start((**started).clone())),
            (None, _) => return Err(InvariantViolation::new("the journal does not begin with a start")),
            (Some(run), entry) => {
                run.apply_at(&record.path, entry).map_err(illegal)?;
            }
        }
        self.check_histories(&record.path)
    }

    /// Checks the histories of the run and of the nested agents on the path of the record.
    fn check_histories(&self, path: &[CallId]) -> Result<(), InvariantViolation> {
        let mut run = self.run.as_ref();
        let mut on = path.iter();
        while let Some(one) = run {
            if one.is_between_turns() {
                check_history(one.history())?;
            }
            run = on.next().and_then(|call| one.nested_run(call));
        }
        Ok(())
    }

    fn track_entry(&mut self, path: &[CallId], entry: &JournalEntry) -> Result<(), InvariantViolation> {
        match entry {
            JournalEntry::RunStarted(started) => return self.track_start(path, started),
            JournalEntry::ModelResponded(answered) => self.usage.add(&answered.usage),
            JournalEntry::ResponseRejected(refused) => self.usage.add(&refused.usage),
            JournalEntry::ModelRequestFailed(failed) => self.usage.add(&failed.usage_or_unknown()),
            _ => {}
        }
        let frame =
            self.frames.get_mut(path).ok_or_else(|| InvariantViolation::new("nothing was started there"))?;
        if let JournalEntry::CallEndedLate(late) = entry {
            let has_started = frame.calls.get(&late.call).is_some_and(|seen| seen.attempts > 0);
            return if has_started {
                Ok(())
            } else {
                Err(InvariantViolation::new("a call ended late that never started"))
            };
        }
        if frame.phase == FramePhase::Ended {
            return Err(InvariantViolation::new("the run has ended"));
        }
        match entry {
            JournalEntry::ModelResponded(answered) => frame.track_response(answered),
            JournalEntry::CallHeld(held) => frame.track_hold(held),
            JournalEntry::DecisionRecorded(decided) => frame.track_decision(decided),
            JournalEntry::DecisionRevoked(revoked) => {
                frame.standing_decisions.remove(&(revoked.agent.clone(), revoked.tool.clone()));
                Ok(())
            }
            JournalEntry::CallStarted(started) => frame.track_call_start(started),
            JournalEntry::CallSettled(settled) => frame.track_settlement(settled, &mut self.receipts),
            JournalEntry::HandoffRecorded(handed) => frame.track_handoff(handed),
            JournalEntry::RunFinished(_) => frame.track_finish(),
            JournalEntry::RunFailed(_) | JournalEntry::RunCancelled(_) => {
                frame.phase = FramePhase::Ended;
                frame.settle_open_calls();
                Ok(())
            }
            JournalEntry::ResponseRejected(_) | JournalEntry::ModelRequestFailed(_) => {
                frame.require_running("asked its model")
            }
            _ => Ok(()),
        }
    }

    fn track_start(&mut self, path: &[CallId], started: &RunStarted) -> Result<(), InvariantViolation> {
        if let Some((call, within)) = path.split_last() {
            let outer = self.frames.get_mut(within).and_then(|frame| frame.calls.get_mut(call));
            let seen = outer
                .ok_or_else(|| InvariantViolation::new("a nested agent began in a call that is not there"))?;
            let is_agent =
                matches!(seen.planned.disposition, CallDisposition::Execute { body: BodyKind::Agent, .. });
            if !is_agent || seen.attempts == 0 || seen.is_settled {
                return Err(InvariantViolation::new("a nested agent began in a call that is not running"));
            }
            if std::mem::replace(&mut seen.has_nested_run, true) {
                return Err(InvariantViolation::new("a nested agent began twice in one call"));
            }
        } else if !self.frames.is_empty() {
            return Err(InvariantViolation::new("the run began twice"));
        }
        let missing = |error| InvariantViolation::new(format!("it does not replay: {error}"));
        check_history(started.history.items().map_err(missing)?)?;
        self.frames.insert(path.to_vec(), AuditFrame::default());
        Ok(())
    }
}

impl AuditFrame {
    fn unsettled_call(&mut self, call: &CallId) -> Result<&mut AuditedCall, InvariantViolation> {
        match self.calls.get_mut(call) {
            Some(seen) if !seen.is_settled => Ok(seen),
            Some(_) => Err(InvariantViolation::new(format!("call `{call}` has its output"))),
            None => Err(InvariantViolation::new(format!("there is no call `{call}`"))),
        }
    }

    fn require_running(&self, how: &str) -> Result<(), InvariantViolation> {
        match self.phase {
            FramePhase::Running => Ok(()),
            FramePhase::Ending => Err(InvariantViolation::new(format!("a call ended the run, and it {how}"))),
            FramePhase::Ended => Err(InvariantViolation::new("the run has ended")),
        }
    }

    fn require_all_settled(&self) -> Result<(), InvariantViolation> {
        match self.open_calls.iter().find(|call| self.calls.get(*call).is_none_or(|seen| !seen.is_settled)) {
            Some(call) => Err(InvariantViolation::new(format!("call `{call}` has no output yet"))),
            None => Ok(()),
        }
    }

    fn settle_open_calls(&mut self) {
        for call in std::mem::take(&mut self.open_calls) {
            if let Some(seen) = self.calls.get_mut(&call) {
                seen.is_settled = true;
            }
        }
    }

    fn track_response(&mut self, answered: &ModelResponded) -> Result<(), InvariantViolation> {
        self.require_running("took another answer")?;
        self.require_all_settled()?;
        self.open_calls.clear();
        for planned in &answered.calls {
            let standing =
                self.standing_decisions.get(&(answered.agent.clone(), planned.key.clone())).copied();
            let seen = AuditedCall {
                planned: planned.clone(),
                agent: answered.agent.clone(),
                attempts: 0,
                hold_reason: None,
                decision: standing.filter(|said| is_covered_by_standing(planned, *said)),
                has_standing_decision: standing.is_some_and(|said| is_covered_by_standing(planned, said)),
                untaken_decision: None,
                edited_arguments: None,
                key: None,
                leaves_receipt: false,
                has_nested_run: false,
                is_settled: false,
            };
            if self.calls.insert(planned.call.clone(), seen).is_some() {
                return Err(InvariantViolation::new(format!(
                    "call id `{}` stands for two calls",
                    planned.call
                )));
            }
            self.open_calls.push(planned.call.clone());
        }
        Ok(())
    }

    fn track_hold(&mut self, held: &CallHeld) -> Result<(), InvariantViolation> {
        let seen = self.unsettled_call(&held.call)?;
        let fits = match held.reason {
            HoldReason::Approval => {
                seen.attempts == 0 && seen.decision.is_none() && needs_approval(&seen.planned)
            }
            HoldReason::InDoubt => seen.attempts > 0 && seen.may_take_effect(),
            HoldReason::Question(_) => seen.attempts > 0 && !seen.has_nested_run,
            _ => true,
        };
        if !fits || seen.hold_reason.is_some() {
            return Err(InvariantViolation::new(format!("call `{}` has nothing to wait for", held.call)));
        }
        seen.hold_reason = Some(held.reason.clone());
        Ok(())
    }

    fn track_decision(&mut self, decided: &DecisionRecorded) -> Result<(), InvariantViolation> {
        let seen = self.unsettled_call(&decided.call)?;
        if seen.planned.digest != decided.digest {
            return Err(InvariantViolation::new(format!(
                "the decision about call `{}` covers another call",
                decided.call
            )));
        }
        let said = match &decided.decision {
            Decision::Approve
            | Decision::ApproveEdited { .. }
            | Decision::ConfirmNotExecuted
            | Decision::Answer { .. } => DecisionEffect::MayRun,
            Decision::Reject { .. } | Decision::ConfirmExecuted { .. } | Decision::OutcomeUnknown => {
                DecisionEffect::MustNotRun
            }
        };
        let is_corrected_standing = seen.untaken_decision.as_ref().is_some_and(|(made, scope)| {
            // The same decision about fewer calls is a correction, too.
            let is_corrected = *made != decided.decision || decided.scope == DecisionScope::ThisCall;
            is_corrected && *scope == DecisionScope::ToolForRun
        });
        seen.hold_reason = None;
        seen.decision = Some(said);
        seen.has_standing_decision = false;
        seen.untaken_decision = Some((decided.decision.clone(), decided.scope));
        match &decided.decision {
            Decision::ApproveEdited { arguments } => {
                let canonical = canonical_text(arguments).map_or_else(|_| arguments.clone(), Cow::into_owned);
                seen.edited_arguments = Some(canonical);
            }
            Decision::Approve | Decision::Reject { .. } => seen.edited_arguments = None,
            // The call has run with the arguments that it had.
            Decision::ConfirmExecuted { .. }
            | Decision::ConfirmNotExecuted
            | Decision::OutcomeUnknown
            | Decision::Answer { .. } => {}
        }
        let covered = (seen.agent.clone(), seen.planned.key.clone());
        if is_corrected_standing {
            self.standing_decisions.remove(&covered);
            self.clear_standing_decisions(&covered.1);
        }
        if decided.scope == DecisionScope::ToolForRun {
            self.clear_standing_decisions(&covered.1);
            for call in &self.open_calls {
                if let Some(seen) = self.calls.get_mut(call)
                    && seen.planned.key == covered.1
                    && seen.attempts == 0
                    && seen.decision.is_none()
                    && is_covered_by_standing(&seen.planned, said)
                {
                    seen.decision = Some(said);
                    seen.has_standing_decision = true;
                    seen.hold_reason = None;
                }
            }
            self.standing_decisions.insert(covered, said);
        }
        Ok(())
    }

    /// Removes the effect of a standing decision on the calls of a tool that have not started.
    fn clear_standing_decisions(&mut self, key: &ToolKey) {
        for call in &self.open_calls {
            if let Some(seen) = self.calls.get_mut(call)
                && seen.planned.key == *key
                && seen.attempts == 0
                && seen.has_standing_decision
                && !seen.is_settled
            {
                (seen.decision, seen.has_standing_decision) = (None, false);
            }
        }
    }

    fn track_call_start(&mut self, started: &CallStarted) -> Result<(), InvariantViolation> {
        let call = &started.call;
        let seen = self.unsettled_call(call)?;
        let CallDisposition::Execute { approval_policy: gate, .. } = seen.planned.disposition else {
            return Err(InvariantViolation::new(format!("call `{call}` started and has no body")));
        };
        if started.attempt != seen.attempts + 1 {
            return Err(InvariantViolation::new(format!("call `{call}` started twice for one attempt")));
        }
        if seen.hold_reason.is_some() {
            return Err(InvariantViolation::new(format!(
                "call `{call}` started while it waits for a person"
            )));
        }
        seen.untaken_decision = None;
        match (seen.decision, gate) {
            (Some(DecisionEffect::MustNotRun), _) => {
                return Err(InvariantViolation::new(format!("call `{call}` was rejected and started")));
            }
            (None, ApprovalPolicy::Required | ApprovalPolicy::RequiredEachTime) => {
                return Err(InvariantViolation::new(format!("call `{call}` started without a decision")));
            }
            (Some(DecisionEffect::MayRun), _)
            | (None, ApprovalPolicy::NotRequired | ApprovalPolicy::ByRule | ApprovalPolicy::ByRuleEachTime) =>
                {}
        }
        if seen.key.get_or_insert_with(|| started.idempotency_key.clone()) != &started.idempotency_key {
            return Err(InvariantViolation::new(format!(
                "call `{call}` started with another idempotency key"
            )));
        }
        seen.leaves_receipt = started.receipt_digest.is_some();
        seen.attempts += 1;
        let before = seen.planned.predecessor.clone();
        match before.and_then(|before| self.calls.get(&before)) {
            Some(before) if !before.is_settled => Err(InvariantViolation::new(format!(
                "call `{call}` started before call `{}`, which it conflicts with, had settled",
                before.planned.call
            ))),
            _ => Ok(()),
        }
    }

    fn track_settlement(
        &mut self,
        settled: &CallSettled,
        receipts: &mut Vec<(AgentName, Digest)>,
    ) -> Result<(), InvariantViolation> {
        let seen = self.unsettled_call(&settled.call)?;
        let fits = match settled.status {
            CallStatus::Succeeded => seen.attempts > 0,
            CallStatus::Rejected => seen.decision == Some(DecisionEffect::MustNotRun),
            CallStatus::Deduplicated => receipts.contains(&seen.operation()),
            CallStatus::Cancelled => true,
            _ => seen.decision != Some(DecisionEffect::MustNotRun) || seen.attempts > 0,
        };
        if !fits {
            return Err(InvariantViolation::new(format!(
                "call `{}` cannot have settled like this",
                settled.call
            )));
        }
        seen.is_settled = true;
        if settled.status == CallStatus::Succeeded && seen.leaves_receipt {
            receipts.push(seen.operation());
        }
        // A model must not be told that its run was stopped.
        if settled.run_failure.is_some() || settled.status == CallStatus::Cancelled {
            self.phase = FramePhase::Ending;
        }
        Ok(())
    }

    fn track_handoff(&mut self, handed: &HandoffRecorded) -> Result<(), InvariantViolation> {
        self.require_running("handed over")?;
        self.unsettled_call(&handed.call)?.is_settled = true;
        self.require_all_settled()
    }

    fn track_finish(&mut self) -> Result<(), InvariantViolation> {
        self.require_running("finished")?;
        self.phase = FramePhase::Ended;
        self.require_all_settled()
    }
}

impl AuditedCall {
    /// Returns true if somebody may have to find out whether the call took effect. An idempotent call runs again instead,
    /// unless a check refuses that.
    fn may_take_effect(&self) -> bool {
        matches!(
            self.planned.disposition,
            CallDisposition::Execute {
                body: BodyKind::Function,
                effect: ToolEffect::Once | ToolEffect::Idempotent,
                ..
            }
        )
    }

    /// Returns the agent and the digest of the call with the arguments that run.
    fn operation(&self) -> (AgentName, Digest) {
        let digest = match &self.edited_arguments {
            Some(edited) => call_digest(&self.planned.key, edited),
            None => self.planned.digest,
        };
        (self.agent.clone(), digest)
    }
}

fn needs_approval(planned: &PlannedCall) -> bool {
    matches!(
        planned.disposition,
        CallDisposition::Execute {
            approval_policy: ApprovalPolicy::ByRule
                | ApprovalPolicy::Required
                | ApprovalPolicy::ByRuleEachTime
                | ApprovalPolicy::RequiredEachTime,
            ..
        }
    )
}

/// Returns true if a standing decision covers this call. A standing approval does not cover calls that require
/// approval every time.
fn is_covered_by_standing(planned: &PlannedCall, said: DecisionEffect) -> bool {
    let CallDisposition::Execute { approval_policy: gate, .. } = planned.disposition else { return false };
    match (gate, said) {
        (ApprovalPolicy::NotRequired, _)
        | (ApprovalPolicy::ByRuleEachTime | ApprovalPolicy::RequiredEachTime, DecisionEffect::MayRun) => {
            false
        }
        (ApprovalPolicy::ByRule | ApprovalPolicy::Required, _)
        | (ApprovalPolicy::ByRuleEachTime | ApprovalPolicy::RequiredEachTime, DecisionEffect::MustNotRun) => {
            true
        }
    }
}
