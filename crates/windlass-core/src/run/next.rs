//! What the machine asks for now, as a value to match exhaustively.

use std::sync::Arc;

use super::slot::{Following, Slot, SlotState};
use super::{Candidate, Phase, Run, text};
use crate::decision::Pending;
use crate::entry::{CallSettled, CallStarted, Entry, How};
use crate::failure::Failure;
use crate::id::{AgentName, CallId};
use crate::item::OutputContent;
use crate::plan::{BodyKind, Work};
use crate::tool::{Effect, Gate, ToolKey};

/// What to do now.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Ask the model of `agent`, for turn number `turn`.
    Model {
        /// Whose model.
        agent: AgentName,
        /// Which turn, from 1.
        turn: u32,
    },
    /// The turn budget is used up: end the run, or let a handler give the output.
    Exhausted {
        /// How many turns there were.
        max_turns: u32,
    },
    /// Work on these calls, in the model's order where the number at once is bounded.
    Calls(Vec<Step>),
    /// Pass control to another agent.
    HandOff {
        /// The call that asks for it.
        call: CallId,
        /// The agent that asks.
        from: AgentName,
        /// The agent that is to go on.
        to: AgentName,
        /// What the model wrote as arguments.
        arguments: String,
    },
    /// Ask the application's function whether the results of the turn ([`Run::turn_results`]) are final.
    Judge {
        /// The agent whose function it is.
        agent: AgentName,
    },
    /// Guard this output and end the run with it.
    Finish(Candidate),
    /// End the run with this: a call did, and the driver that recorded it was gone before it had said so.
    Fail(Failure),
    /// Nothing moves until one of these is decided.
    Pause(Vec<Pending>),
    /// The run has ended.
    Over,
}

/// What to do with one call.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Find out whether a person must decide; then hold it or run it.
    Gate(GateStep),
    /// Guard it and run its body.
    Run(Runnable),
    /// Tell the model what is wrong with its arguments.
    Invalid(InvalidStep),
    /// Its output is known: record it.
    Settle(SettleStep),
    /// It was running when an earlier driver ended, and may have taken effect.
    Doubt(Doubt),
}

impl Step {
    /// Which call.
    pub fn call(&self) -> &CallId {
        match self {
            Self::Gate(step) => &step.call,
            Self::Run(step) => &step.call,
            Self::Invalid(step) => &step.call,
            Self::Settle(step) => &step.settled.call,
            Self::Doubt(step) => &step.call,
        }
    }

    /// The call that must settle before this one starts.
    pub fn after(&self) -> Option<&CallId> {
        match self {
            Self::Gate(step) => step.after.as_ref(),
            Self::Run(step) => step.after.as_ref(),
            Self::Invalid(_) | Self::Settle(_) | Self::Doubt(_) => None,
        }
    }

    /// The arguments that a person put in place of the model's.
    pub fn edited(&self) -> Option<&str> {
        match self {
            Self::Run(step) => step.edited(),
            Self::Doubt(step) => step.edited(),
            Self::Gate(_) | Self::Invalid(_) | Self::Settle(_) => None,
        }
    }
}

/// A call of which it is not known yet whether a person must decide.
#[derive(Clone, Debug, PartialEq)]
pub struct GateStep {
    call: CallId,
    gate: Gate,
    after: Option<CallId>,
    body: BodyKind,
    is_covered: bool,
}

impl GateStep {
    /// Which call.
    pub fn call(&self) -> &CallId {
        &self.call
    }

    /// The call that must settle first.
    pub fn after(&self) -> Option<&CallId> {
        self.after.as_ref()
    }

    /// Whether the tool's rule is to be asked; otherwise a person decides in any case.
    pub fn asks_rule(&self) -> bool {
        matches!(self.gate, Gate::Ask | Gate::AskEach)
    }

    /// Whether an approval for good covers it, so that only what is to be decided each time is left to ask about.
    pub fn is_covered(&self) -> bool {
        self.is_covered
    }

    /// The rule said that nobody needs to decide. `None` where that is not for the rule to say.
    pub fn free(&self) -> Option<Runnable> {
        match self.gate {
            Gate::Ask | Gate::AskEach | Gate::Open => Some(Runnable {
                call: self.call.clone(),
                attempt: 1,
                edited: None,
                after: self.after.clone(),
                body: self.body,
            }),
            Gate::Closed | Gate::Each => None,
        }
    }
}

/// A call that may run: only the machine makes one.
#[derive(Clone, Debug, PartialEq)]
pub struct Runnable {
    call: CallId,
    attempt: u32,
    edited: Option<Arc<str>>,
    after: Option<CallId>,
    body: BodyKind,
}

impl Runnable {
    /// Which call.
    pub fn call(&self) -> &CallId {
        &self.call
    }

    /// Which attempt it will be, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The call that must settle first.
    pub fn after(&self) -> Option<&CallId> {
        self.after.as_ref()
    }

    /// Whether a function or an agent runs.
    pub fn body(&self) -> BodyKind {
        self.body
    }

    /// The arguments that a person put in place of the model's.
    pub fn edited(&self) -> Option<&str> {
        self.edited.as_deref()
    }

    /// The entry that makes the start durable.
    pub fn started(&self) -> Entry {
        self.again(self.attempt)
    }

    /// The entry that makes a further attempt durable.
    pub fn again(&self, attempt: u32) -> Entry {
        Entry::CallStarted(CallStarted { call: self.call.clone(), attempt })
    }
}

/// A call with arguments that cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidStep {
    /// Which call.
    pub call: CallId,
    /// Every problem, by path.
    pub problems: String,
}

/// A call whose output is known without its body.
#[derive(Clone, Debug, PartialEq)]
pub struct SettleStep {
    /// The entry to record.
    pub settled: CallSettled,
}

/// A call that may have taken effect before an earlier driver ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Doubt {
    /// Which call.
    pub call: CallId,
    /// The tool.
    pub key: ToolKey,
    /// The attempt that was interrupted.
    pub attempt: u32,
    edited: Option<Arc<str>>,
}

impl Doubt {
    /// The tool's own reconciliation says that it did not happen: it may run again.
    pub fn did_not_happen(&self) -> Runnable {
        Runnable {
            call: self.call.clone(),
            attempt: self.attempt + 1,
            edited: self.edited.clone(),
            after: None,
            body: BodyKind::Function,
        }
    }

    /// The arguments that a person put in place of the model's.
    pub fn edited(&self) -> Option<&str> {
        self.edited.as_deref()
    }
}

impl Run {
    /// What to do now. Pure: asking twice gives the same answer.
    pub fn next(&self) -> Next {
        if let (None, Some((_, failure))) = (self.end(), &self.ended_by) {
            return Next::Fail((**failure).clone());
        }
        match &self.phase {
            Phase::Ready => match self.max_turns {
                Some(max_turns) if self.turn >= max_turns => Next::Exhausted { max_turns },
                _ => Next::Model { agent: self.agent.clone(), turn: self.turn + 1 },
            },
            Phase::Working(turn) => {
                let mut steps = Vec::with_capacity(turn.slots.len());
                let following = turn.slots.iter().zip(turn.following());
                steps.extend(following.filter_map(|(slot, following)| step(slot, following)));
                if steps.is_empty() { Next::Pause(self.pending()) } else { Next::Calls(steps) }
            }
            Phase::HandingOff(turn) => match turn.handoff() {
                Some((slot, to)) => Next::HandOff {
                    call: slot.planned.call.clone(),
                    from: turn.agent.clone(),
                    to: to.clone(),
                    arguments: slot.call().arguments.clone(),
                },
                None => Next::Over,
            },
            Phase::Judging(turn) => Next::Judge { agent: turn.agent.clone() },
            Phase::Concluding(candidate) => Next::Finish(candidate.clone()),
            Phase::Over(_) => Next::Over,
        }
    }
}

impl Run {
    /// Whether a call that this one follows, nearer or farther, was not done: it failed, was refused or rejected, or
    /// nobody knows.
    pub fn is_broken_off(&self, call: &CallId) -> bool {
        let Some(turn) = self.open_turn() else { return false };
        let mut slot = turn.slot(call);
        while let Some(before) = slot.and_then(|slot| turn.slot(slot.planned.after.as_ref()?)) {
            if matches!(&before.state, SlotState::Settled { how, .. } if !how.is_success()) {
                return true;
            }
            slot = Some(before);
        }
        false
    }
}

fn step(slot: &Slot, following: Following) -> Option<Step> {
    if slot.is_settled() || slot.waits() {
        return None;
    }
    let call = &slot.planned.call;
    let settle = |how, output: OutputContent| {
        Some(Step::Settle(SettleStep { settled: CallSettled::new(call.clone(), how, output) }))
    };
    let (body, effect, gate) = match &slot.planned.work {
        Work::Handoff { .. } => return None,
        Work::Missing { text } => return settle(How::Missing, text.into()),
        Work::Ignored => return settle(How::Ignored, text::EXTRA_HANDOFF.into()),
        Work::Invalid { problems } => {
            return Some(Step::Invalid(InvalidStep { call: call.clone(), problems: problems.clone() }));
        }
        Work::Body { body, effect, gate, .. } => (*body, *effect, *gate),
    };
    let after = match following {
        Following::Free => None,
        Following::Behind => slot.planned.after.clone(),
        Following::Blocked => return None,
    };
    let runnable = |attempt, edited: &Option<Arc<str>>| {
        Some(Step::Run(Runnable {
            call: call.clone(),
            attempt,
            edited: edited.clone(),
            after: after.clone(),
            body,
        }))
    };
    match &slot.state {
        SlotState::Open => match gate {
            Gate::Open => runnable(1, &None),
            Gate::Ask | Gate::Closed | Gate::AskEach | Gate::Each => {
                let (call, is_covered) = (call.clone(), slot.is_covered);
                Some(Step::Gate(GateStep { call, gate, after, body, is_covered }))
            }
        },
        SlotState::Approved { edited, attempt } => runnable(attempt + 1, edited),
        SlotState::Answered { how, output } => settle(how.clone(), output.clone()),
        // Nothing is under way when a driver asks, so an earlier driver started this and did not see its end.
        SlotState::Running { attempt, edited } => match (body, effect) {
            (BodyKind::Agent, _) => runnable(*attempt, edited),
            (BodyKind::Function, Effect::Pure | Effect::Idempotent) => runnable(attempt + 1, edited),
            (BodyKind::Function, Effect::Once) => Some(Step::Doubt(Doubt {
                call: call.clone(),
                key: slot.planned.key.clone(),
                attempt: *attempt,
                edited: edited.clone(),
            })),
        },
        SlotState::Held { .. } | SlotState::Settled { .. } => None,
    }
}
