//! The next action of a run, as a value that the driver matches exhaustively, and the schedule of a turn: which of its
//! calls a driver works on now.

use std::sync::Arc;

use super::call_slot::{CallSlot, CallSlotState, OpenTurn};
use super::{ApplyError, CallOutcome, OutputCandidate, Run, RunEnd, RunPhase, StopMode, model_text};
use crate::decision::PendingCall;
use crate::failure::RunFailure;
use crate::id::{AgentName, CallId};
use crate::item::Item;
use crate::journal::{HandoffRecorded, JournalEntry, OutputRejected};

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
    /// Fail the run: a call ended it, or its budget is exhausted. Of several such calls, the first in the model's order
    /// counts.
    Fail(RunFailure),
    /// Pause: no call can make progress until a decision about one of these is recorded, or a budget is reached and a person
    /// is asked for more.
    Pause(Vec<PendingCall>),
    /// Settle the calls in flight, and record that the run was cancelled: by a request, or by an earlier driver that stopped
    /// calls of it and did not come to record its end.
    Cancel,
    /// Leave the run as it is for another driver.
    Leave,
    /// The run has ended; there is nothing to do.
    Ended,
}

/// A request to end a run or to leave it, which changes the next action of its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRequest {
    /// Cancel the run now.
    Cancel,
    /// Stop the calls and pause, because the run waits for people whose decisions are kept open.
    Pause,
    /// Cancel the run when the turn has settled.
    CancelAfterTurn,
    /// Leave the run now.
    Leave,
    /// Leave the run when the turn has settled.
    LeaveAfterTurn,
}

impl StopRequest {
    /// Returns the way in which this request ends the calls of the run. Calls of a run that goes on later stay open: no
    /// model is told that its run was stopped.
    pub fn stop_mode(self) -> StopMode {
        match self {
            Self::Cancel | Self::CancelAfterTurn => StopMode::EndRun,
            Self::Pause | Self::Leave | Self::LeaveAfterTurn => StopMode::HandOver,
        }
    }
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
        if let Some(failure) = self.ending_failure() {
            return RunAction::Fail(failure.clone());
        }
        if self.is_cancelling() {
            return RunAction::Cancel;
        }
        match &self.phase {
            RunPhase::AwaitingModel => match (self.budget_failure(), self.max_turns) {
                (Some(failure), _) => RunAction::Fail(failure),
                (None, _) if self.is_asking_for_budget() => RunAction::Pause(self.pending_calls()),
                (None, Some(max_turns)) if self.turn >= max_turns => RunAction::MaxTurnsReached { max_turns },
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

    /// Returns the next action of a driver that was asked to end the run or to leave it. A failure of the run comes before
    /// a cancellation, and a request for the end of the turn waits for it.
    pub fn next_action(&self, request: Option<StopRequest>) -> RunAction {
        let next = self.next();
        match (request, &next) {
            (None, _)
            | (_, RunAction::Ended)
            | (Some(StopRequest::Cancel | StopRequest::Pause), RunAction::Fail(_)) => next,
            (Some(StopRequest::Cancel), _) => RunAction::Cancel,
            (Some(StopRequest::Pause), _) => RunAction::Pause(self.pending_calls()),
            (Some(StopRequest::Leave), _) => RunAction::Leave,
            (
                Some(StopRequest::CancelAfterTurn),
                RunAction::RequestModel { .. } | RunAction::MaxTurnsReached { .. },
            ) => RunAction::Cancel,
            (
                Some(StopRequest::LeaveAfterTurn),
                RunAction::RequestModel { .. } | RunAction::MaxTurnsReached { .. },
            ) => RunAction::Leave,
            (Some(StopRequest::CancelAfterTurn | StopRequest::LeaveAfterTurn), _) => next,
        }
    }

    /// Returns the history that a handoff leaves if no filter changes it.
    ///
    /// # Errors
    /// Returns an error if the run does not wait for this handoff.
    pub fn history_after_handoff(&self, call: &CallId, to: &AgentName) -> Result<Vec<Arc<Item>>, ApplyError> {
        let mut after = self.clone();
        let recorded = HandoffRecorded { call: call.clone(), to: to.clone(), filtered_history: None };
        after.apply(&JournalEntry::HandoffRecorded(recorded))?;
        Ok(after.history().to_vec())
    }

    /// Returns the entry that asks the model to correct a final output that does not match its type.
    ///
    /// # Errors
    /// Returns the failure of the run if the model was asked `max_corrections` times or has no turn left.
    pub fn correct_output(&self, problem: &str, max_corrections: u32) -> Result<OutputRejected, RunFailure> {
        let asked = self.output_corrections();
        if asked < max_corrections && self.turns_left() != Some(0) {
            let text = format!("{} {}", model_text::OUTPUT_NOT_VALID, model_text::truncate_detail(problem));
            return Ok(OutputRejected { correction: Arc::new(Item::user(text)) });
        }
        let message = match asked {
            0 => problem.to_owned(),
            1 => format!("{problem}; the model was asked once to correct its output"),
            _ => format!("{problem}; the model was asked {asked} times to correct its output"),
        };
        Err(RunFailure::InvalidOutput { message })
    }

    /// Returns true if the next action is [`RunAction::Pause`].
    pub fn is_paused(&self) -> bool {
        !self.is_ending()
            && match &self.phase {
                RunPhase::CallsOpen(turn) => !turn.can_any_advance(),
                RunPhase::AwaitingModel => self.is_asking_for_budget(),
                _ => false,
            }
    }

    /// Returns true if the next action is [`RunAction::Fail`].
    pub fn is_failing(&self) -> bool {
        self.ending_failure().is_some() || (self.outcome().is_none() && self.budget_failure().is_some())
    }

    /// Returns true if the run only ends: its next action is [`RunAction::Fail`] or [`RunAction::Cancel`].
    pub(super) fn is_ending(&self) -> bool {
        self.is_failing() || self.is_cancelling()
    }

    /// Returns the failure with which an active run ends: a call recorded it, or a nested run that was stopped because of
    /// it. The driver that stopped it may not have come to record the end of this run.
    fn ending_failure(&self) -> Option<&RunFailure> {
        match (self.outcome(), &self.ended_by_call) {
            (Some(_), _) => None,
            (None, Some((_, failure))) => Some(failure),
            (None, None) => self.open_nested_runs().find_map(Self::outer_failure),
        }
    }

    /// Returns the failure of the run around this one, if this one ends or ended because of it.
    fn outer_failure(&self) -> Option<&RunFailure> {
        let failure = match self.outcome() {
            Some(RunEnd::Failed(failure)) => failure,
            Some(RunEnd::Finished(_) | RunEnd::Cancelled) => return None,
            None => self.ending_failure()?,
        };
        match failure {
            RunFailure::OuterRunFailed { failure } => Some(failure),
            _ => None,
        }
    }

    /// Returns the nested runs of the calls that have not settled.
    fn open_nested_runs(&self) -> impl Iterator<Item = &Self> {
        let slots = self.open_turn().map(|turn| turn.slots.as_slice()).unwrap_or_default();
        slots.iter().filter(|slot| !slot.is_settled()).filter_map(|slot| slot.nested_run.as_deref())
    }

    /// Returns true if a call of this run, or of a run nested in it, was stopped because the run is cancelled. Such a run
    /// only ends: a model must not be told of its own run's cancellation.
    pub fn is_cancelling(&self) -> bool {
        if self.outcome().is_some() || self.is_failing() {
            return false;
        }
        let is_cancelled =
            |nested: &Self| nested.is_cancelling() || nested.outcome() == Some(&RunEnd::Cancelled);
        self.has_cancelled_call || self.open_nested_runs().any(is_cancelled)
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

/// The calls of an open turn that a driver works on: in the model's order, at most `limit` at once, and each after the
/// call before it with the same conflict key has settled. Calls whose body ended under an earlier driver come first, so
/// that an identical call finds their result instead of running again.
#[derive(Clone, Debug)]
pub struct TurnSchedule {
    work: Vec<CallWork>,
    /// No position before this one is ready.
    first_ready: usize,
    /// Positions of the calls whose body ended under an earlier driver, last first.
    withheld: Vec<usize>,
    /// Positions of a call and of one that follows it with the same conflict key, sorted.
    followers: Vec<(usize, usize)>,
    active_count: usize,
    limit: usize,
}

/// The work on one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallWork {
    /// Nothing can be done: the call has settled, waits for a person, or follows a call that has not settled.
    Idle,
    /// The driver may begin.
    Ready,
    /// The driver works on it.
    Active,
}

impl TurnSchedule {
    /// Creates the schedule of the run's open turn. Without an open turn it is empty.
    pub fn new(run: &Run, limit: usize) -> Self {
        let turn = run.open_turn();
        let slots = turn.map(|turn| turn.slots.as_slice()).unwrap_or_default();
        let mut schedule = Self {
            work: vec![CallWork::Idle; slots.len()],
            first_ready: 0,
            withheld: Vec::new(),
            followers: Vec::new(),
            active_count: 0,
            limit: limit.max(1),
        };
        if let Some(turn) = turn {
            let has_ended = |slot: &CallSlot| matches!(slot.state, CallSlotState::BodyEnded { .. });
            let places = slots.iter().enumerate();
            schedule.withheld =
                places.clone().rev().filter(|(_, slot)| has_ended(slot)).map(|(place, _)| place).collect();
            schedule.followers = places
                .filter_map(|(place, slot)| {
                    Some((turn.position_of(slot.planned.predecessor.as_ref()?)?, place))
                })
                .collect();
            schedule.followers.sort_unstable();
        }
        schedule.refresh(run);
        schedule
    }

    /// Finds the calls that have become ready, after decisions were recorded.
    pub fn refresh(&mut self, run: &Run) {
        let Some(turn) = run.open_turn() else { return };
        for place in 0..self.work.len() {
            self.update(place, turn);
        }
    }

    /// Takes the first ready call in the model's order, with its position; `None` if the limit is reached or none is
    /// ready.
    pub fn begin_call(&mut self, run: &Run) -> Option<(usize, CallId)> {
        if self.active_count >= self.limit {
            return None;
        }
        let place = match self.withheld.pop() {
            Some(place) => place,
            None => {
                let ahead = self.work.get(self.first_ready..)?;
                let place = self.first_ready + ahead.iter().position(|work| *work == CallWork::Ready)?;
                self.first_ready = place + 1;
                place
            }
        };
        self.work[place] = CallWork::Active;
        self.active_count += 1;
        let slot = run.open_turn()?.slots.get(place)?;
        Some((place, slot.planned.call.clone()))
    }

    /// Ends the driver's work on the call at a position.
    pub fn end_call(&mut self, place: usize, outcome: CallOutcome, run: &Run) {
        if self.work.get(place) != Some(&CallWork::Active) {
            return;
        }
        self.work[place] = CallWork::Idle;
        self.active_count -= 1;
        let Some(turn) = run.open_turn() else { return };
        // A decision may have come while the driver ended its work on the call.
        if matches!(outcome, CallOutcome::Held) {
            self.update(place, turn);
        }
        let mut next = self.followers.partition_point(|(before, _)| *before < place);
        while let Some((before, follower)) = self.followers.get(next).copied()
            && before == place
        {
            self.update(follower, turn);
            next += 1;
        }
    }

    /// Returns the number of calls that the driver works on.
    pub fn active_count(&self) -> usize {
        self.active_count
    }

    fn update(&mut self, place: usize, turn: &OpenTurn) {
        let Some(slot) = turn.slots.get(place) else { return };
        if self.work[place] == CallWork::Idle && turn.can_advance(slot) {
            self.work[place] = CallWork::Ready;
            self.first_ready = self.first_ready.min(place);
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
