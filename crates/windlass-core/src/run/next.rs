//! The next action of a run, as a value that the driver matches exhaustively.

use std::sync::Arc;

use super::call_slot::{CallSlot, CallSlotState, PredecessorState};
use super::{OutputCandidate, Run, RunPhase, model_text};
use crate::decision::PendingCall;
use crate::failure::RunFailure;
use crate::id::{AgentName, CallId};
use crate::item::OutputContent;
use crate::journal::{CallSettled, CallStarted, CallStatus, JournalEntry};
use crate::plan::{BodyKind, CallDisposition};
use crate::tool::{ApprovalPolicy, ToolEffect, ToolKey};

/// The next action of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum RunAction {
    /// Send a request to the model of `agent` for turn `turn`.
    RequestModel {
        /// The agent whose model is requested.
        agent: AgentName,
        /// Turn number, from 1.
        turn: u32,
    },
    /// The maximum number of turns is reached: fail the run, or let a handler produce the output.
    MaxTurnsReached {
        /// The maximum number of turns.
        max_turns: u32,
    },
    /// Execute these call actions; if concurrency is limited, in the model's order.
    AdvanceCalls(Vec<CallAction>),
    /// Hand control to another agent.
    HandOff {
        /// The call that requested the handoff.
        call: CallId,
        /// The agent that requested the handoff.
        from: AgentName,
        /// The agent that takes over.
        to: AgentName,
        /// The arguments as the model wrote them.
        arguments: String,
    },
    /// Ask the application's function whether the results of the turn ([`Run::turn_results`]) are final.
    EvaluateResults {
        /// The agent that the function belongs to.
        agent: AgentName,
    },
    /// Run the output guardrails on this output, then finish the run with it.
    Finish(OutputCandidate),
    /// Fail the run: a call ended it, and the driver that settled the call stopped before it recorded the
    /// failure.
    Fail(RunFailure),
    /// Pause: no call can make progress until a decision about one of these is recorded.
    Pause(Vec<PendingCall>),
    /// The run has ended; there is nothing to do.
    Ended,
}

/// The next action for one call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallAction {
    /// Evaluate the approval policy, then hold the call or execute it.
    CheckApproval(ApprovalCheck),
    /// Run the input guardrails, then execute the body.
    Execute(RunnableCall),
    /// Report the invalid arguments to the model.
    ReportInvalidArguments(InvalidCall),
    /// Record the output, which is already known.
    Settle(CallSettlement),
    /// Resolve the doubt: the call was running when an earlier driver stopped, and may have taken effect.
    ResolveDoubt(InDoubtCall),
}

impl CallAction {
    /// Returns the call's id.
    pub fn call(&self) -> &CallId {
        match self {
            Self::CheckApproval(step) => &step.call,
            Self::Execute(step) => &step.call,
            Self::ReportInvalidArguments(step) => &step.call,
            Self::Settle(step) => &step.settled.call,
            Self::ResolveDoubt(step) => &step.call,
        }
    }

    /// Returns the call that must settle before this one starts.
    pub fn predecessor(&self) -> Option<&CallId> {
        match self {
            Self::CheckApproval(step) => step.predecessor.as_ref(),
            Self::Execute(step) => step.predecessor.as_ref(),
            Self::ReportInvalidArguments(_) | Self::Settle(_) | Self::ResolveDoubt(_) => None,
        }
    }

    /// Returns the arguments as edited by a person, if they were edited.
    pub fn edited_arguments(&self) -> Option<&str> {
        match self {
            Self::Execute(step) => step.edited_arguments(),
            Self::ResolveDoubt(step) => step.edited_arguments(),
            Self::CheckApproval(_) | Self::ReportInvalidArguments(_) | Self::Settle(_) => None,
        }
    }
}

/// A call whose approval policy has not been evaluated yet.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalCheck {
    call: CallId,
    approval_policy: ApprovalPolicy,
    predecessor: Option<CallId>,
    body: BodyKind,
    has_standing_approval: bool,
}

impl ApprovalCheck {
    /// Returns the call's id.
    pub fn call(&self) -> &CallId {
        &self.call
    }

    /// Returns the call that must settle first.
    pub fn predecessor(&self) -> Option<&CallId> {
        self.predecessor.as_ref()
    }

    /// Returns true if the tool's approval rule is to be evaluated; otherwise approval is always required.
    pub fn must_ask_rule(&self) -> bool {
        matches!(self.approval_policy, ApprovalPolicy::ByRule | ApprovalPolicy::ByRuleEachTime)
    }

    /// Returns true if a standing approval covers the call, so that only the parts of the rule that apply every
    /// time are to be evaluated.
    pub fn has_standing_approval(&self) -> bool {
        self.has_standing_approval
    }

    /// Returns the executable call after the rule found that no approval is required; `None` if the policy
    /// requires approval regardless of a rule.
    pub fn approve_by_rule(&self) -> Option<RunnableCall> {
        match self.approval_policy {
            ApprovalPolicy::ByRule | ApprovalPolicy::ByRuleEachTime | ApprovalPolicy::NotRequired => {
                Some(RunnableCall {
                    call: self.call.clone(),
                    attempt: 1,
                    edited_arguments: None,
                    predecessor: self.predecessor.clone(),
                    body: self.body,
                })
            }
            ApprovalPolicy::Required | ApprovalPolicy::RequiredEachTime => None,
        }
    }
}

/// A call that may be executed. Only the state machine creates values of this type.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnableCall {
    call: CallId,
    attempt: u32,
    edited_arguments: Option<Arc<str>>,
    predecessor: Option<CallId>,
    body: BodyKind,
}

impl RunnableCall {
    /// Returns the call's id.
    pub fn call(&self) -> &CallId {
        &self.call
    }

    /// Returns the number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the call that must settle first.
    pub fn predecessor(&self) -> Option<&CallId> {
        self.predecessor.as_ref()
    }

    /// Returns the kind of body to execute.
    pub fn body(&self) -> BodyKind {
        self.body
    }

    /// Returns the arguments as edited by a person, if they were edited.
    pub fn edited_arguments(&self) -> Option<&str> {
        self.edited_arguments.as_deref()
    }

    /// Returns the entry that records the start. It must be durable before the body starts.
    pub fn start_entry(&self) -> JournalEntry {
        self.retry_entry(self.attempt)
    }

    /// Returns the entry that records the start of a further attempt.
    pub fn retry_entry(&self, attempt: u32) -> JournalEntry {
        JournalEntry::CallStarted(CallStarted { call: self.call.clone(), attempt })
    }
}

/// A call with invalid arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidCall {
    /// The call's id.
    pub call: CallId,
    /// All schema violations, with their paths.
    pub problems: String,
}

/// A call whose output is known without executing its body.
#[derive(Clone, Debug, PartialEq)]
pub struct CallSettlement {
    /// The entry to record.
    pub settled: CallSettled,
}

/// A call in doubt: it may have taken effect before an earlier driver stopped.
#[derive(Clone, Debug, PartialEq)]
pub struct InDoubtCall {
    /// The call's id.
    pub call: CallId,
    /// The tool's identity.
    pub key: ToolKey,
    /// The attempt that was interrupted.
    pub attempt: u32,
    edited_arguments: Option<Arc<str>>,
}

impl InDoubtCall {
    /// Returns the executable call after the tool's reconcile function found that it was not executed.
    pub fn confirm_not_executed(&self) -> RunnableCall {
        RunnableCall {
            call: self.call.clone(),
            attempt: self.attempt + 1,
            edited_arguments: self.edited_arguments.clone(),
            predecessor: None,
            body: BodyKind::Function,
        }
    }

    /// Returns the arguments as edited by a person, if they were edited.
    pub fn edited_arguments(&self) -> Option<&str> {
        self.edited_arguments.as_deref()
    }
}

impl Run {
    /// Returns the next action. The function is pure: it returns the same action until an entry is applied.
    pub fn next(&self) -> RunAction {
        if let (None, Some((_, failure))) = (self.outcome(), &self.ended_by_call) {
            return RunAction::Fail((**failure).clone());
        }
        match &self.phase {
            RunPhase::AwaitingModel => match self.max_turns {
                Some(max_turns) if self.turn >= max_turns => RunAction::MaxTurnsReached { max_turns },
                _ => RunAction::RequestModel { agent: self.agent.clone(), turn: self.turn + 1 },
            },
            RunPhase::CallsOpen(turn) => {
                let mut steps = Vec::with_capacity(turn.slots.len());
                let following = turn.slots.iter().zip(turn.predecessor_states());
                steps.extend(following.filter_map(|(slot, following)| call_action(slot, following)));
                if steps.is_empty() {
                    RunAction::Pause(self.pending_calls())
                } else {
                    RunAction::AdvanceCalls(steps)
                }
            }
            RunPhase::HandoffPending(turn) => match turn.handoff_slot() {
                Some((slot, to)) => RunAction::HandOff {
                    call: slot.planned.call.clone(),
                    from: turn.agent.clone(),
                    to: to.clone(),
                    arguments: slot.call().arguments.clone(),
                },
                None => RunAction::Ended,
            },
            RunPhase::ResultsPending(turn) => RunAction::EvaluateResults { agent: turn.agent.clone() },
            RunPhase::OutputPending(candidate) => RunAction::Finish(candidate.clone()),
            RunPhase::Ended(_) => RunAction::Ended,
        }
    }
}

impl Run {
    /// Returns true if a direct or indirect predecessor of the call settled without success.
    pub fn is_blocked_by_predecessor(&self, call: &CallId) -> bool {
        let Some(turn) = self.open_turn() else { return false };
        let mut slot = turn.slot(call);
        while let Some(before) = slot.and_then(|slot| turn.slot(slot.planned.predecessor.as_ref()?)) {
            if matches!(&before.state, CallSlotState::Settled { status, .. } if !status.is_success()) {
                return true;
            }
            slot = Some(before);
        }
        false
    }
}

fn call_action(slot: &CallSlot, following: PredecessorState) -> Option<CallAction> {
    if slot.is_settled() || slot.is_waiting() {
        return None;
    }
    let call = &slot.planned.call;
    let settle = |how, output: OutputContent| {
        Some(CallAction::Settle(CallSettlement { settled: CallSettled::new(call.clone(), how, output) }))
    };
    let (body, effect, gate) = match &slot.planned.disposition {
        CallDisposition::Handoff { .. } => return None,
        CallDisposition::UnknownTool { message: text } => {
            return settle(CallStatus::UnknownTool, text.into());
        }
        CallDisposition::SurplusHandoff => {
            return settle(CallStatus::SurplusHandoff, model_text::SURPLUS_HANDOFF.into());
        }
        CallDisposition::InvalidArguments { problems } => {
            return Some(CallAction::ReportInvalidArguments(InvalidCall {
                call: call.clone(),
                problems: problems.clone(),
            }));
        }
        CallDisposition::Execute { body, effect, approval_policy: gate, .. } => (*body, *effect, *gate),
    };
    let after = match following {
        PredecessorState::NoneOrSettled => None,
        PredecessorState::Unsettled => slot.planned.predecessor.clone(),
        PredecessorState::WaitingForPerson => return None,
    };
    let runnable = |attempt, edited: &Option<Arc<str>>| {
        Some(CallAction::Execute(RunnableCall {
            call: call.clone(),
            attempt,
            edited_arguments: edited.clone(),
            predecessor: after.clone(),
            body,
        }))
    };
    match &slot.state {
        CallSlotState::Open => match gate {
            ApprovalPolicy::NotRequired => runnable(1, &None),
            ApprovalPolicy::ByRule
            | ApprovalPolicy::Required
            | ApprovalPolicy::ByRuleEachTime
            | ApprovalPolicy::RequiredEachTime => {
                let (call, is_covered) = (call.clone(), slot.has_standing_decision);
                Some(CallAction::CheckApproval(ApprovalCheck {
                    call,
                    approval_policy: gate,
                    predecessor: after,
                    body,
                    has_standing_approval: is_covered,
                }))
            }
        },
        CallSlotState::Approved { edited_arguments: edited, attempt } => runnable(attempt + 1, edited),
        CallSlotState::OutputKnown { status: how, output } => settle(how.clone(), output.clone()),
        // Nothing is under way when a driver asks, so an earlier driver started this and did not see its end.
        CallSlotState::Running { attempt, edited_arguments: edited } => match (body, effect) {
            (BodyKind::Agent, _) => runnable(*attempt, edited),
            (BodyKind::Function, ToolEffect::Pure | ToolEffect::Idempotent) => runnable(attempt + 1, edited),
            (BodyKind::Function, ToolEffect::Once) => Some(CallAction::ResolveDoubt(InDoubtCall {
                call: call.clone(),
                key: slot.planned.key.clone(),
                attempt: *attempt,
                edited_arguments: edited.clone(),
            })),
        },
        CallSlotState::Held { .. } | CallSlotState::Settled { .. } => None,
    }
}
