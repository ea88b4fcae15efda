//! Checks of runs that fail: which failure is reported, what begins no more, and what must not be lost.

use windlass::core::{
    failure::RunFailure,
    id::CallId,
    journal::{CallSettled, CallStatus, JournalEntry, JournalRecord},
};

use super::conduct::settled_status;
use super::scenario::ScenarioCall;
use super::world::{DriverWorld, WorldState};

impl DriverWorld {
    /// Returns the place in its turn and the failure of the first call in the model's order that has ended the run at a
    /// path.
    pub(super) fn first_failure<'a>(
        &self,
        path: &[CallId],
        state: &'a WorldState,
    ) -> Option<(usize, &'a RunFailure)> {
        let settled = state.records.iter().filter(|record| record.path == path);
        let failures = settled.filter_map(|record| match &record.entry {
            JournalEntry::CallSettled(settled) if settled.status != CallStatus::Cancelled => {
                Some((self.place_of(settled.call.as_str())?, &**settled.run_failure.as_ref()?))
            }
            _ => None,
        });
        failures.min_by_key(|(place, _)| *place)
    }

    /// Returns true if the run at a path ends early: it was cancelled, a call failed it, or the run around it ends early.
    pub(super) fn is_cut_short(&self, path: &[CallId], state: &WorldState) -> bool {
        state.is_cancelled() || (0..=path.len()).any(|len| self.first_failure(&path[..len], state).is_some())
    }

    /// Returns the path of the agent that makes a call.
    pub(super) fn path_of(&self, call: &str) -> Vec<CallId> {
        let parents = self.scenario.turns.iter().flatten();
        let parent = parents.filter(|one| one.nested.iter().flatten().any(|nested| nested.id == call));
        parent.map(|parent| CallId::from(parent.id.as_str())).collect()
    }

    /// Checks the failure with which a call settles.
    pub(super) fn check_settled_failure(&self, settled: &CallSettled, state: &mut WorldState) {
        let Some(call) = self.find(&settled.call) else { return };
        let by_guardrail = matches!(
            &settled.status,
            CallStatus::BlockedByGuardrail if call.is_input_blocked && call.guardrail_fails_run
        ) && state.refused.contains(&call.id);
        // A result that was at hand when the run stopped is withheld without its guardrails.
        let by_output_guardrail = settled.status == CallStatus::OutputWithheld
            && call.is_output_blocked
            && call.guardrail_fails_run
            && state.released.contains(&call.id);
        let by_body = settled.status == CallStatus::Failed && self.scenario.tool_of(call).fails_run;
        let must_fail = by_guardrail || by_output_guardrail || by_body;
        let names_call = match settled.run_failure.as_deref() {
            None => !must_fail,
            // It was stopped, and names the failure of the call that stopped it.
            Some(_) if settled.status == CallStatus::Cancelled => true,
            Some(
                RunFailure::ToolFailed { call: named, .. }
                | RunFailure::ToolInputGuardrailTripped { call: named, .. }
                | RunFailure::ToolOutputGuardrailTripped { call: named, .. },
            ) => must_fail && *named == settled.call,
            Some(_) => false,
        };
        if !names_call {
            let (id, status, failure) = (&call.id, &settled.status, &settled.run_failure);
            let rule = if must_fail { "must end the run" } else { "must not end the run" };
            state.violations.push(format!("call {id} {rule}, and settled as {status:?} with {failure:?}"));
        }
    }

    /// Checks the end of a failed run at a path.
    pub(super) fn check_run_failure(&self, path: &[CallId], failure: &RunFailure, state: &mut WorldState) {
        let Some((place, first)) = self.first_failure(path, state) else {
            let is_nested = !path.is_empty() && self.is_cut_short(&[], state);
            if !is_nested {
                state
                    .violations
                    .push(format!("the run at {path:?} failed with {failure}, and no call ended it"));
            }
            return;
        };
        if first != failure {
            state.violations.push(format!(
                "the run at {path:?} failed with `{failure}`, and the first in the model's order is `{first}`"
            ));
        }
        let lost = self.turn_of_failure(path, state).iter().take(place).find(|call| {
            state.begun.contains(&call.id) && call.returns() && settled_status(state, &call.id).is_none()
        });
        if let Some(lost) = lost.filter(|_| !state.is_cancelled() && self.is_drained(path, state)) {
            let message = format!("call {} ran when a later call failed the run, and is lost", lost.id);
            state.violations.push(message);
        }
    }

    /// Checks that a call that ran beside a later one, which failed the run, is not stopped: it has the time of the drain.
    pub(super) fn check_drained(&self, settled: &CallSettled, path: &[CallId], state: &mut WorldState) {
        let Some(call) = self.find(&settled.call) else { return };
        let has_failed_later = match (self.place_of(&call.id), self.first_failure(path, state)) {
            (Some(place), Some((failed, _))) => place < failed,
            (_, None) | (None, _) => false,
        };
        let was_running =
            state.begun.contains(&call.id) && call.returns() && !self.scenario.tool_of(call).is_agent;
        if settled.status == CallStatus::Cancelled
            && has_failed_later
            && was_running
            && !state.is_cancelled()
            && self.is_drained(path, state)
        {
            let message = format!("call {} was stopped when a later call failed the run", call.id);
            state.violations.push(message);
        }
    }

    /// Returns true if the calls of the run at a path have the time of the drain: the run around it does not end.
    fn is_drained(&self, path: &[CallId], state: &WorldState) -> bool {
        (0..path.len()).all(|len| self.first_failure(&path[..len], state).is_none())
    }

    /// Returns true if the last start of a call was recorded before a call failed the run at a path: its body may begin at
    /// any time then.
    fn has_start_before_failure(&self, call: &CallId, path: &[CallId], state: &WorldState) -> bool {
        let start = state.records.iter().rposition(
            |record| matches!(&record.entry, JournalEntry::CallStarted(started) if started.call == *call),
        );
        let failure = state.records.iter().position(|record| match &record.entry {
            JournalEntry::CallSettled(settled) => record.path == path && settled.run_failure.is_some(),
            _ => false,
        });
        start < failure
    }

    /// Checks that the agent at a path, or a call of it, may begin something: no earlier call has failed a run around it.
    /// `begun` is the call that begins, if it is one.
    pub(super) fn check_begin(&self, path: &[CallId], begun: Option<&CallId>, state: &mut WorldState) {
        let calls: Vec<Option<&CallId>> =
            path.iter().chain(begun).map(Some).chain(begun.is_none().then_some(None)).collect();
        for (depth, call) in calls.into_iter().enumerate() {
            let Some((failed, failure)) = self.first_failure(&path[..depth], state) else { continue };
            if begun.is_some_and(|begun| self.has_start_before_failure(begun, &path[..depth], state)) {
                continue;
            }
            let is_later = call.is_none_or(|call| self.place_of(call.as_str()).is_none_or(|at| at > failed));
            if is_later {
                let what = call.map_or("a model request".to_owned(), |call| format!("call {call}"));
                let message = format!("{what} at {path:?} began after the run had failed with `{failure}`");
                state.violations.push(message);
                return;
            }
        }
    }

    /// Returns the calls of the response in which a call failed the run at a path.
    fn turn_of_failure(&self, path: &[CallId], state: &WorldState) -> &[ScenarioCall] {
        let failed = state.records.iter().rev().find_map(|record: &JournalRecord| match &record.entry {
            JournalEntry::CallSettled(settled) if record.path == path && settled.run_failure.is_some() => {
                Some(settled.call.as_str())
            }
            _ => None,
        });
        let found = failed.and_then(|call| self.scenario.script_of(call));
        found.map_or(&[], |(turns, turn)| &turns[turn])
    }

    /// Returns the place of a call in its response.
    fn place_of(&self, call: &str) -> Option<usize> {
        let (turns, turn) = self.scenario.script_of(call)?;
        turns[turn].iter().position(|one| one.id == call)
    }
}
