//! Applies holds and decisions to calls.

use super::apply::ApplyError;
use super::call_slot::{CallSlot, CallSlotState, SlotDecision, UnrecordedStart};
use super::{Run, model_text};
use crate::decision::{AnsweredQuestion, Decision, DecisionScope, HoldReason, PendingCall, StandingVerdict};
use crate::id::{CallPath, Timestamp};
use crate::journal::{CallHeld, CallStatus, DecisionRecorded, JournalEntry};
use crate::plan::CallDisposition;
use crate::schema::{describe_violations, validate};
use crate::tool::ApprovalPolicy;

impl Run {
    /// Returns the entries that reject the pending calls whose approval has expired at `now`, with the paths of the calls.
    pub fn expired_rejections(&self, now: Timestamp) -> Vec<(CallPath, JournalEntry)> {
        let expired = self.pending_calls().into_iter().filter(|pending| pending.is_expired(now));
        let reject = |pending: PendingCall| {
            let rejected = DecisionRecorded {
                call: pending.call().clone(),
                digest: pending.digest,
                decision: Decision::Reject { message: Some(model_text::APPROVAL_EXPIRED.to_owned()) },
                scope: DecisionScope::ThisCall,
                decided_by: Some("expiry".to_owned()),
                displayed: None,
                posted_revision: 0,
                signature: None,
                mac: None,
            };
            (pending.path, JournalEntry::DecisionRecorded(rejected))
        };
        expired.map(reject).collect()
    }

    pub(super) fn apply_call_held(&mut self, held: &CallHeld) -> Result<(), ApplyError> {
        let out_of_place = |why| Err(ApplyError::UnexpectedEntry { entry: "call_held", reason: why });
        let slot = self.open_slot_mut(&held.call)?;
        if !matches!(slot.planned.disposition, CallDisposition::Execute { .. }) {
            return out_of_place("the call has no body");
        }
        let (attempt, edited) = match (&slot.state, &held.reason) {
            (CallSlotState::Open, HoldReason::Approval) => (0, None),
            (CallSlotState::Running { attempt, edited_arguments: edited }, HoldReason::InDoubt) => {
                (*attempt, edited.clone())
            }
            (CallSlotState::Running { attempt, edited_arguments: edited }, HoldReason::Question(_))
                if slot.nested_run.is_none() =>
            {
                (*attempt, edited.clone())
            }
            // It was found that the call had not started after the backup, so it is as before.
            (CallSlotState::Running { attempt, edited_arguments: edited }, HoldReason::Approval)
                if slot.unrecorded_start == Some(UnrecordedStart::SameCall) =>
            {
                slot.unrecorded_start = None;
                (*attempt, edited.clone())
            }
            _ => return out_of_place("the call has gone on"),
        };
        (slot.decision, slot.has_standing_decision) = (None, false);
        (slot.held_attempt, slot.posted_revision) = (Some(attempt), 0);
        let reason = Box::new(held.reason.clone());
        slot.state = CallSlotState::Held {
            reason,
            expires_at: held.expires_at,
            last_driver_seen: held.last_driver_seen,
            attempt,
            edited_arguments: edited,
        };
        Ok(())
    }

    pub(super) fn apply_decision(&mut self, decided: &DecisionRecorded) -> Result<(), ApplyError> {
        let agent = self.open_turn().map_or_else(|| self.agent.clone(), |turn| turn.agent.clone());
        let slot = self
            .open_turn_mut()
            .and_then(|turn| turn.slot_mut(&decided.call))
            .ok_or_else(|| ApplyError::UnknownCall(decided.call.clone()))?;
        if slot.planned.digest != decided.digest {
            return Err(ApplyError::DigestMismatch(decided.call.clone()));
        }
        let may_reach = match &decided.decision {
            // Nobody has seen, let alone changed, the arguments of the calls to come.
            Decision::ApproveEdited { .. } => DecisionScope::ThisCall,
            Decision::Approve => slot.max_approval_scope(),
            Decision::Reject { .. }
            | Decision::ConfirmExecuted { .. }
            | Decision::ConfirmNotExecuted
            | Decision::OutcomeUnknown
            | Decision::Answer { .. } => DecisionScope::ToolForRun,
        };
        if (may_reach, decided.scope) == (DecisionScope::ThisCall, DecisionScope::ToolForRun) {
            let waits = "for a decision about itself alone";
            return Err(ApplyError::DecisionNotApplicable { call: decided.call.clone(), waiting_for: waits });
        }
        let is_of_approval = matches!(
            decided.decision,
            Decision::Approve | Decision::ApproveEdited { .. } | Decision::Reject { .. }
        );
        // A decision about the call itself outlasts the standing one, also if it says the same.
        if is_of_approval && slot.decision.is_some() {
            slot.clear_standing_decision();
        }
        let mut withdrawn_key = None;
        match slot.decision.as_deref_mut() {
            Some(before) if before.is_corrected_by(decided, slot.has_standing_decision) => {
                if !slot.is_decision_untaken() {
                    return Err(ApplyError::AlreadyDecided(decided.call.clone()));
                }
                let unchanged = slot.clone();
                let was_standing = slot.undo_decision() == Some(DecisionScope::ToolForRun);
                if let Err(error) = slot.apply_decision(decided) {
                    *slot = unchanged;
                    return Err(error);
                }
                withdrawn_key = was_standing.then(|| slot.planned.key.clone());
            }
            // Said twice it is one decision: all that can be new is that it now reaches further.
            Some(SlotDecision { scope: reach @ DecisionScope::ThisCall, .. })
                if decided.scope == DecisionScope::ToolForRun =>
            {
                *reach = DecisionScope::ToolForRun
            }
            Some(_) => {
                slot.posted_revision = slot.posted_revision.max(decided.posted_revision);
                return Ok(());
            }
            None => slot.apply_decision(decided)?,
        }
        slot.posted_revision = slot.posted_revision.max(decided.posted_revision);
        let key = slot.planned.key.clone();
        if let Some(key) = withdrawn_key {
            // What the corrected decision said about other calls is void, too.
            self.standing_decisions.remove(&(agent.clone(), key.clone()));
            if let Some(turn) = self.open_turn_mut() {
                for slot in turn.slots.iter_mut().filter(|slot| slot.planned.key == key) {
                    slot.clear_standing_decision();
                }
            }
        }
        if decided.scope == DecisionScope::ThisCall {
            return Ok(());
        }
        let verdict = match &decided.decision {
            Decision::Approve => StandingVerdict::Approve,
            Decision::Reject { message } => StandingVerdict::Reject { message: message.clone() },
            Decision::ApproveEdited { .. }
            | Decision::ConfirmExecuted { .. }
            | Decision::ConfirmNotExecuted
            | Decision::OutcomeUnknown
            | Decision::Answer { .. } => return Ok(()),
        };
        if let Some(turn) = self.open_turn_mut() {
            for slot in turn.slots.iter_mut().filter(|slot| slot.planned.key == key) {
                slot.apply_standing_decision(&verdict);
            }
        }
        self.standing_decisions.insert((agent, key), verdict);
        Ok(())
    }
}

impl CallSlot {
    /// Applies a decision that was made about this call.
    fn apply_decision(&mut self, decided: &DecisionRecorded) -> Result<(), ApplyError> {
        let wrong =
            |waits| Err(ApplyError::DecisionNotApplicable { call: decided.call.clone(), waiting_for: waits });
        if !matches!(self.planned.disposition, CallDisposition::Execute { .. }) {
            return wrong("for nobody");
        }
        let (reason, attempt, edited) = match &self.state {
            // A decision may come before the call was seen to need one: it is kept, and nobody is asked again.
            CallSlotState::Open => (HoldReason::Approval, 0, None),
            CallSlotState::Held { reason, attempt, edited_arguments: edited, .. } => {
                ((**reason).clone(), *attempt, edited.clone())
            }
            CallSlotState::Approved { .. }
            | CallSlotState::OutputKnown { .. }
            | CallSlotState::Running { .. }
            | CallSlotState::BodyEnded { .. }
            | CallSlotState::Settled { .. } => return Err(ApplyError::AlreadyDecided(decided.call.clone())),
        };
        let state_after = match (&decided.decision, reason) {
            (Decision::Approve, HoldReason::Approval) => {
                CallSlotState::Approved { edited_arguments: None, attempt }
            }
            (Decision::ApproveEdited { arguments }, HoldReason::Approval) => {
                CallSlotState::Approved { edited_arguments: Some(arguments.as_str().into()), attempt }
            }
            (Decision::Reject { message }, HoldReason::Approval | HoldReason::Question(_)) => {
                rejected_state(message.as_deref())
            }
            (Decision::ConfirmExecuted { output }, HoldReason::InDoubt) => {
                CallSlotState::OutputKnown { status: CallStatus::Reconciled, output: output.clone() }
            }
            // What runs again is what ran before, with the arguments that a person may have put in.
            (Decision::ConfirmNotExecuted, HoldReason::InDoubt) => {
                CallSlotState::Approved { edited_arguments: edited, attempt }
            }
            (Decision::OutcomeUnknown, HoldReason::InDoubt) => CallSlotState::OutputKnown {
                status: CallStatus::OutcomeUnknown,
                output: model_text::OUTCOME_UNKNOWN.into(),
            },
            (Decision::Answer { value }, HoldReason::Question(question)) => {
                let problems =
                    question.schema.as_ref().map(|schema| validate(schema, value)).unwrap_or_default();
                if !problems.is_empty() {
                    let problems = describe_violations(&problems);
                    return Err(ApplyError::InvalidAnswer { call: decided.call.clone(), problems });
                }
                self.answered_questions.push(AnsweredQuestion { question, answer: value.clone() });
                CallSlotState::Approved { edited_arguments: edited, attempt }
            }
            (_, HoldReason::InDoubt) => return wrong("to know whether it happened"),
            (_, HoldReason::Question(_)) => return wrong("for an answer to its question"),
            (_, HoldReason::Approval) => return wrong("for approval"),
        };
        let is_new_again = matches!(decided.decision, Decision::ConfirmNotExecuted);
        if is_new_again && self.unrecorded_start.take().is_some() {
            // That it did not happen is no approval.
            (self.state, self.held_attempt) = (CallSlotState::Open, None);
            return Ok(());
        }
        let state_before = std::mem::replace(&mut self.state, state_after);
        let made = SlotDecision {
            decision: decided.decision.clone(),
            scope: decided.scope,
            decided_by: decided.decided_by.clone(),
            state_before,
        };
        (self.decision, self.has_standing_decision) = (Some(Box::new(made)), false);
        Ok(())
    }

    /// True if the call has a decision of its own that is not taken: neither has the body started since, nor has the call
    /// settled.
    pub(super) fn is_decision_untaken(&self) -> bool {
        !self.has_standing_decision
            && matches!(self.state, CallSlotState::Approved { .. } | CallSlotState::OutputKnown { .. })
    }

    /// Takes the decision about this call back, because another one replaces it. Returns its scope.
    fn undo_decision(&mut self) -> Option<DecisionScope> {
        let SlotDecision { decision, scope, state_before, .. } = *self.decision.take()?;
        if matches!(decision, Decision::Answer { .. }) {
            self.answered_questions.pop();
        }
        self.state = state_before;
        Some(scope)
    }

    /// Removes the effect of a standing decision, because a different decision was made about this call or
    /// about all calls of its tool. A call that has started or settled is unchanged.
    fn clear_standing_decision(&mut self) {
        let has_gone_on = match &self.state {
            CallSlotState::Approved { attempt, .. } => *attempt > 0,
            CallSlotState::Open | CallSlotState::OutputKnown { .. } => false,
            CallSlotState::Held { .. }
            | CallSlotState::Running { .. }
            | CallSlotState::BodyEnded { .. }
            | CallSlotState::Settled { .. } => true,
        };
        if self.has_standing_decision && !has_gone_on {
            (self.decision, self.has_standing_decision) = (None, false);
            self.state = CallSlotState::Open;
        }
    }

    /// Applies a standing decision for the call's tool.
    pub(super) fn apply_standing_decision(&mut self, verdict: &StandingVerdict) {
        self.clear_standing_decision();
        let waits = match &self.state {
            CallSlotState::Open => true,
            CallSlotState::Held { reason, .. } => **reason == HoldReason::Approval,
            CallSlotState::Approved { .. }
            | CallSlotState::OutputKnown { .. }
            | CallSlotState::Running { .. }
            | CallSlotState::BodyEnded { .. }
            | CallSlotState::Settled { .. } => false,
        };
        let CallDisposition::Execute { approval_policy: gate, .. } = self.planned.disposition else { return };
        if !waits || self.decision.is_some() {
            return;
        }
        match (gate, verdict) {
            (ApprovalPolicy::RequiredEachTime, StandingVerdict::Approve) => return,
            // Its rule is asked all the same, and only then does this count.
            (ApprovalPolicy::ByRuleEachTime, StandingVerdict::Approve) => {
                self.has_standing_decision = matches!(self.state, CallSlotState::Open);
                return;
            }
            (ApprovalPolicy::NotRequired | ApprovalPolicy::ByRule | ApprovalPolicy::Required, _)
            | (
                ApprovalPolicy::ByRuleEachTime | ApprovalPolicy::RequiredEachTime,
                StandingVerdict::Reject { .. },
            ) => {}
        }
        let (state, decision) = match verdict {
            StandingVerdict::Approve => {
                (CallSlotState::Approved { edited_arguments: None, attempt: 0 }, Decision::Approve)
            }
            StandingVerdict::Reject { message } => {
                (rejected_state(message.as_deref()), Decision::Reject { message: message.clone() })
            }
        };
        let state_before = std::mem::replace(&mut self.state, state);
        let made =
            SlotDecision { decision, scope: DecisionScope::ToolForRun, decided_by: None, state_before };
        (self.decision, self.has_standing_decision) = (Some(Box::new(made)), true);
    }
}

impl SlotDecision {
    /// Returns true if a decision differs from this one: another one, or one about fewer calls. A decision about this
    /// call alone leaves a standing decision that says the same as it is.
    fn is_corrected_by(&self, decided: &DecisionRecorded, is_standing: bool) -> bool {
        let covers_fewer_calls =
            (self.scope, decided.scope) == (DecisionScope::ToolForRun, DecisionScope::ThisCall);
        self.decision != decided.decision || (covers_fewer_calls && !is_standing)
    }
}

fn rejected_state(message: Option<&str>) -> CallSlotState {
    CallSlotState::OutputKnown {
        status: CallStatus::Rejected,
        output: message.unwrap_or(model_text::REJECTED).into(),
    }
}
