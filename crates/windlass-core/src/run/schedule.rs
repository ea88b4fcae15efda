//! The schedule of a turn: which of its calls a driver works on now.

use super::call_slot::{CallSlot, CallSlotState, OpenTurn};
use super::{CallOutcome, Run};
use crate::id::CallId;

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
