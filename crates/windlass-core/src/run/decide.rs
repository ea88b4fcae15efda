//! Applies holds and decisions to calls.

use super::apply::ApplyError;
use super::call_slot::{CallSlot, CallSlotState};
use super::{Run, model_text};
use crate::decision::{AnsweredQuestion, Decision, DecisionScope, HoldReason, StandingVerdict};
use crate::journal::{CallHeld, CallStatus, DecisionRecorded};
use crate::plan::CallDisposition;
use crate::schema::{describe_violations, validate};
use crate::tool::ApprovalPolicy;

impl Run {
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
            _ => return out_of_place("the call has gone on"),
        };
        (slot.decision, slot.has_standing_decision) = (None, false);
        let reason = Box::new(held.reason.clone());
        slot.state =
            CallSlotState::Held { reason, expires_at: held.expires_at, attempt, edited_arguments: edited };
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
        if is_of_approval && slot.decision.as_ref().is_some_and(|before| before.0 != decided.decision) {
            slot.clear_standing_decision();
        }
        match slot.decision.as_deref_mut() {
            Some((before, _)) if *before != decided.decision => {
                return Err(ApplyError::AlreadyDecided(decided.call.clone()));
            }
            // Said twice it is one decision: all that can be new is that it now reaches further.
            Some((_, reach @ DecisionScope::ThisCall)) if decided.scope == DecisionScope::ToolForRun => {
                *reach = DecisionScope::ToolForRun
            }
            Some(_) => return Ok(()),
            None => slot.apply_decision(decided)?,
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
        let key = slot.planned.key.clone();
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
        self.state = match (&decided.decision, reason) {
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
        (self.decision, self.has_standing_decision) =
            (Some(Box::new((decided.decision.clone(), decided.scope))), false);
        Ok(())
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
        self.state = state;
        (self.decision, self.has_standing_decision) =
            (Some(Box::new((decision, DecisionScope::ToolForRun))), true);
    }
}

fn rejected_state(message: Option<&str>) -> CallSlotState {
    CallSlotState::OutputKnown {
        status: CallStatus::Rejected,
        output: message.unwrap_or(model_text::REJECTED).into(),
    }
}
