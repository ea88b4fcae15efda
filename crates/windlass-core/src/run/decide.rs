//! How calls come to wait for a person, and what decisions do to them.

use super::apply::Illegal;
use super::slot::{Slot, SlotState};
use super::{Run, text};
use crate::decision::{Decision, HoldReason, Reach, Reply, StandingVerdict};
use crate::entry::{Decided, Held, How};
use crate::plan::Work;
use crate::tool::Gate;

impl Run {
    pub(super) fn held(&mut self, held: &Held) -> Result<(), Illegal> {
        let out_of_place = |why| Err(Illegal::OutOfPlace { entry: "held", why });
        let slot = self.open_slot(&held.call)?;
        if !matches!(slot.planned.work, Work::Body { .. }) {
            return out_of_place("the call has no body");
        }
        let (attempt, edited) = match (&slot.state, &held.reason) {
            (SlotState::Open, HoldReason::Approval) => (0, None),
            (SlotState::Running { attempt, edited }, HoldReason::InDoubt) => (*attempt, edited.clone()),
            (SlotState::Running { attempt, edited }, HoldReason::Question(_)) if slot.child.is_none() => {
                (*attempt, edited.clone())
            }
            _ => return out_of_place("the call has gone on"),
        };
        (slot.decided, slot.is_covered) = (None, false);
        let reason = Box::new(held.reason.clone());
        slot.state = SlotState::Held { reason, expires: held.expires, attempt, edited };
        Ok(())
    }

    pub(super) fn decided(&mut self, decided: &Decided) -> Result<(), Illegal> {
        let agent = self.open_turn().map_or_else(|| self.agent.clone(), |turn| turn.agent.clone());
        let slot = self
            .open_turn_mut()
            .and_then(|turn| turn.slot_mut(&decided.call))
            .ok_or_else(|| Illegal::NoSuchCall(decided.call.clone()))?;
        if slot.planned.digest != decided.digest {
            return Err(Illegal::NotCovered(decided.call.clone()));
        }
        let may_reach = match &decided.decision {
            // Nobody has seen, let alone changed, the arguments of the calls to come.
            Decision::ApproveEdited { .. } => Reach::Call,
            Decision::Approve => slot.reach(),
            Decision::Reject { .. }
            | Decision::Happened { .. }
            | Decision::DidNotHappen
            | Decision::Unknown
            | Decision::Answer { .. } => Reach::Always,
        };
        if (may_reach, decided.reach) == (Reach::Call, Reach::Always) {
            let waits = "for a decision about itself alone";
            return Err(Illegal::WrongDecision { call: decided.call.clone(), waits });
        }
        let is_of_approval = matches!(
            decided.decision,
            Decision::Approve | Decision::ApproveEdited { .. } | Decision::Reject { .. }
        );
        if is_of_approval && slot.decided.as_ref().is_some_and(|before| before.0 != decided.decision) {
            slot.uncover();
        }
        match slot.decided.as_deref_mut() {
            Some((before, _)) if *before != decided.decision => {
                return Err(Illegal::AlreadyDecided(decided.call.clone()));
            }
            // Said twice it is one decision: all that can be new is that it now reaches further.
            Some((_, reach @ Reach::Call)) if decided.reach == Reach::Always => *reach = Reach::Always,
            Some(_) => return Ok(()),
            None => slot.decide(decided)?,
        }
        if decided.reach == Reach::Call {
            return Ok(());
        }
        let verdict = match &decided.decision {
            Decision::Approve => StandingVerdict::Approve,
            Decision::Reject { message } => StandingVerdict::Reject { message: message.clone() },
            Decision::ApproveEdited { .. }
            | Decision::Happened { .. }
            | Decision::DidNotHappen
            | Decision::Unknown
            | Decision::Answer { .. } => return Ok(()),
        };
        let key = slot.planned.key.clone();
        if let Some(turn) = self.open_turn_mut() {
            for slot in turn.slots.iter_mut().filter(|slot| slot.planned.key == key) {
                slot.stand_by(&verdict);
            }
        }
        self.standing.insert((agent, key), verdict);
        Ok(())
    }
}

impl Slot {
    /// Takes a decision that was made about this call.
    fn decide(&mut self, decided: &Decided) -> Result<(), Illegal> {
        let wrong = |waits| Err(Illegal::WrongDecision { call: decided.call.clone(), waits });
        if !matches!(self.planned.work, Work::Body { .. }) {
            return wrong("for nobody");
        }
        let (reason, attempt, edited) = match &self.state {
            // A decision may come before the call was seen to need one: it is kept, and nobody is asked again.
            SlotState::Open => (HoldReason::Approval, 0, None),
            SlotState::Held { reason, attempt, edited, .. } => ((**reason).clone(), *attempt, edited.clone()),
            SlotState::Approved { .. }
            | SlotState::Answered { .. }
            | SlotState::Running { .. }
            | SlotState::Settled { .. } => return Err(Illegal::AlreadyDecided(decided.call.clone())),
        };
        self.state = match (&decided.decision, reason) {
            (Decision::Approve, HoldReason::Approval) => SlotState::Approved { edited: None, attempt },
            (Decision::ApproveEdited { arguments }, HoldReason::Approval) => {
                SlotState::Approved { edited: Some(arguments.as_str().into()), attempt }
            }
            (Decision::Reject { message }, HoldReason::Approval | HoldReason::Question(_)) => {
                rejected(message.as_deref())
            }
            (Decision::Happened { output }, HoldReason::InDoubt) => {
                SlotState::Answered { how: How::Reconciled, output: output.clone() }
            }
            // What runs again is what ran before, with the arguments that a person may have put in.
            (Decision::DidNotHappen, HoldReason::InDoubt) => SlotState::Approved { edited, attempt },
            (Decision::Unknown, HoldReason::InDoubt) => {
                SlotState::Answered { how: How::Unknown, output: text::UNKNOWN.into() }
            }
            (Decision::Answer { value }, HoldReason::Question(question)) => {
                self.replies.push(Reply { question, answer: value.clone() });
                SlotState::Approved { edited, attempt }
            }
            (_, HoldReason::InDoubt) => return wrong("to know whether it happened"),
            (_, HoldReason::Question(_)) => return wrong("for an answer to its question"),
            (_, HoldReason::Approval) => return wrong("for approval"),
        };
        (self.decided, self.is_covered) = (Some(Box::new((decided.decision.clone(), decided.reach))), false);
        Ok(())
    }

    /// Forgets what was said of every call of its tool, for somebody says something else of this one, or of all of
    /// them. What has begun, or has its output, stays as it is.
    fn uncover(&mut self) {
        let has_gone_on = match &self.state {
            SlotState::Approved { attempt, .. } => *attempt > 0,
            SlotState::Open | SlotState::Answered { .. } => false,
            SlotState::Held { .. } | SlotState::Running { .. } | SlotState::Settled { .. } => true,
        };
        if self.is_covered && !has_gone_on {
            (self.decided, self.is_covered) = (None, false);
            self.state = SlotState::Open;
        }
    }

    /// Takes a decision that was made about every call of its tool.
    pub(super) fn stand_by(&mut self, verdict: &StandingVerdict) {
        self.uncover();
        let waits = match &self.state {
            SlotState::Open => true,
            SlotState::Held { reason, .. } => **reason == HoldReason::Approval,
            SlotState::Approved { .. }
            | SlotState::Answered { .. }
            | SlotState::Running { .. }
            | SlotState::Settled { .. } => false,
        };
        let Work::Body { gate, .. } = self.planned.work else { return };
        if !waits || self.decided.is_some() {
            return;
        }
        match (gate, verdict) {
            (Gate::Each, StandingVerdict::Approve) => return,
            // Its rule is asked all the same, and only then does this count.
            (Gate::AskEach, StandingVerdict::Approve) => {
                self.is_covered = matches!(self.state, SlotState::Open);
                return;
            }
            (Gate::Open | Gate::Ask | Gate::Closed, _)
            | (Gate::AskEach | Gate::Each, StandingVerdict::Reject { .. }) => {}
        }
        let (state, decision) = match verdict {
            StandingVerdict::Approve => (SlotState::Approved { edited: None, attempt: 0 }, Decision::Approve),
            StandingVerdict::Reject { message } => {
                (rejected(message.as_deref()), Decision::Reject { message: message.clone() })
            }
        };
        self.state = state;
        (self.decided, self.is_covered) = (Some(Box::new((decision, Reach::Always))), true);
    }
}

fn rejected(message: Option<&str>) -> SlotState {
    SlotState::Answered { how: How::Rejected, output: message.unwrap_or(text::REJECTED).into() }
}
