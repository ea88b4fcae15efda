//! The next action of a run, as a value that the driver matches exhaustively.

use super::call_slot::CallSlotState;
use super::{OutputCandidate, Run, RunPhase};
use crate::decision::PendingCall;
use crate::failure::RunFailure;
use crate::id::{AgentName, CallId};

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
    /// Work on the open calls: a [`TurnSchedule`](super::TurnSchedule) says on which, and [`Run::next_effect`] says
    /// what each of them needs.
    AdvanceCalls,
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
    /// Fail the run: a call ended it. Of several such calls, the first in the model's order counts.
    Fail(RunFailure),
    /// Pause: no call can make progress until a decision about one of these is recorded.
    Pause(Vec<PendingCall>),
    /// The run has ended; there is nothing to do.
    Ended,
}

/// The need of an open call for its tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolNeed {
    /// The call is answered without a tool.
    None,
    /// The output is known or the arguments are invalid: the tool's policies apply if it is there.
    IfPresent,
    /// The body may run.
    Required {
        /// True if a person edited the arguments.
        has_edited_arguments: bool,
    },
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
                if turn.can_any_advance() {
                    RunAction::AdvanceCalls
                } else {
                    RunAction::Pause(self.pending_calls())
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

    /// Returns true if the next action is [`RunAction::Pause`].
    pub fn is_paused(&self) -> bool {
        self.ended_by_call.is_none()
            && matches!(&self.phase, RunPhase::CallsOpen(turn) if !turn.can_any_advance())
    }

    /// Returns true if the next action is [`RunAction::Fail`].
    pub fn is_failing(&self) -> bool {
        self.outcome().is_none() && self.ended_by_call.is_some()
    }

    /// Returns true if a direct or indirect predecessor of the call settled without success.
    pub(super) fn is_blocked_by_predecessor(&self, call: &CallId) -> bool {
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
