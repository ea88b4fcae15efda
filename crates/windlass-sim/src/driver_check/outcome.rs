//! Checks of the end of a run, and of a driver that hands it over, against what the world saw.

use std::collections::BTreeSet;

use windlass::core::{
    id::CallId,
    journal::{CallStatus, JournalEntry},
    run::RunEnd,
    tool::ToolEffect,
};

use super::conduct::settled_status;
use super::scenario::{ScenarioCall, StopKind};
use super::world::{DriverWorld, WorldState, output_text};
use crate::history::check_history;

impl DriverWorld {
    /// Takes the stop of a run that its driver has left for the next one, and checks what it left. Returns false if
    /// nobody asked the driver to leave.
    pub(super) fn take_hand_over(&self) -> bool {
        let mut state = self.state();
        let has_ended = state.audit.run().is_some_and(|run| run.outcome().is_some());
        if state.stop != Some(StopKind::HandOver) || has_ended {
            return false;
        }
        state.stop = None;
        let lost = state.returned.iter().find(|call| !has_recorded_end(&state, call)).cloned();
        if let Some(call) = lost {
            state
                .violations
                .push(format!("call {call} returned before the run was handed over, and is forgotten"));
        }
        true
    }

    /// Checks the end of the run against what the world saw.
    pub(super) fn check_end(&self) {
        let mut state = self.state();
        let state = &mut *state;
        let end = state.audit.run().and_then(|run| run.outcome().cloned());
        // A failure comes before a cancellation.
        let failure = self.first_failure(&[], state).map(|(_, failure)| failure.clone());
        match (failure, state.is_cancelled(), end) {
            (Some(failure), _, Some(RunEnd::Failed(reported))) if reported == failure => {}
            (None, true, Some(RunEnd::Cancelled)) | (None, false, Some(RunEnd::Finished(_))) => {}
            (Some(failure), _, end) => {
                state.violations.push(format!("the run failed with `{failure}` and ended with {end:?}"));
            }
            (None, true, end) => {
                state.violations.push(format!("the run was cancelled and ended with {end:?}"));
            }
            (None, false, end) => state.violations.push(format!("the run did not finish: {end:?}")),
        }
        let broken = state.audit.run().and_then(|run| check_history(run.history()).err());
        state.violations.extend(broken.map(|broken| format!("the run left a broken history: {broken}")));
        let faults: Vec<String> =
            self.scenario.all_calls().filter_map(|call| self.find_fault(call, state)).collect();
        state.violations.extend(faults);
        if let Some(call) = state.withheld.keys().next() {
            state.violations.push(format!("the withheld output of call {call} was not erased"));
        }
    }

    fn find_fault(&self, call: &ScenarioCall, state: &WorldState) -> Option<String> {
        let is_cut_short = self.is_cut_short(&self.path_of(&call.id), state);
        let effects = state.effects.get(&call.id).map(Vec::as_slice).unwrap_or_default();
        let Some(status) = settled_status(state, &call.id) else {
            // The end of the run settles the calls of an interrupted turn.
            let was_made = is_reached(state, &call.id);
            let is_lost = was_made && !is_cut_short;
            let is_discarded =
                is_cut_short && state.returned.contains(&call.id) && !has_recorded_end(state, &call.id);
            return match (is_lost, is_discarded) {
                (true, _) => Some(format!("call {} has no output", call.id)),
                (_, true) => Some(format!("call {} returned, and its result was discarded", call.id)),
                (false, false) => None,
            };
        };
        let fault = self.find_end_fault(call, &status, effects, state)?;
        Some(format!("call {} {fault}: {status:?}, effects {effects:?}", call.id))
    }

    /// Returns what is wrong with the end of a call that settled.
    fn find_end_fault(
        &self,
        call: &ScenarioCall,
        status: &CallStatus,
        effects: &[String],
        state: &WorldState,
    ) -> Option<&'static str> {
        let tool = self.scenario.tool_of(call);
        let output = settled_output(state, &call.id);
        if *status == CallStatus::Cancelled {
            // What a stopped body did is unknown. That a returned one is not stopped is checked when it settles.
            return (tool.effect == ToolEffect::Once && effects.len() > 1).then_some("must take effect once");
        }
        if *status == CallStatus::BlockedByGuardrail && tool.is_exclusive && effects.is_empty() {
            // The call before it, with which it conflicts, did not succeed.
            return None;
        }
        let turn = self.scenario.script_of(&call.id).map_or(0, |(_, turn)| turn);
        if tool.switched_off_in.is_some_and(|off| turn >= off) {
            let is_right = effects.is_empty()
                && matches!(
                    status,
                    CallStatus::UnknownTool | CallStatus::Rejected | CallStatus::BlockedByGuardrail
                );
            return (!is_right).then_some("has a tool that was switched off");
        }
        if *status == CallStatus::Deduplicated {
            return self.find_receipt_fault(call, &output, effects, state);
        }
        if call.is_rejected {
            return (*status != CallStatus::Rejected || !effects.is_empty()).then_some("was rejected");
        }
        if call.is_input_blocked {
            let is_right = *status == CallStatus::BlockedByGuardrail && effects.is_empty();
            return (!is_right).then_some("was blocked by its input guardrail");
        }
        if tool.is_agent {
            let nested: Vec<CallId> = vec![call.id.as_str().into()];
            if self.first_failure(&nested, state).is_some() {
                return (*status != CallStatus::Failed).then_some("has an agent that failed");
            }
            let is_right = *status == CallStatus::Succeeded && output == output_text(call);
            return (!is_right).then_some("has lost the output of its agent");
        }
        self.find_execution_fault(call, status, &output, effects, state)
    }

    /// Returns what is wrong with a call that was executed.
    fn find_execution_fault(
        &self,
        call: &ScenarioCall,
        status: &CallStatus,
        output: &str,
        effects: &[String],
        state: &WorldState,
    ) -> Option<&'static str> {
        let tool = self.scenario.tool_of(call);
        let attempts = state.bodies.iter().filter(|(one, _)| *one == call.id).count() as u32;
        let is_cut_short = self.is_cut_short(&self.path_of(&call.id), state);
        let is_quiet = self.scenario.has_quiet_processes() && !call.asks && !is_cut_short;
        if effects.is_empty() && call.transient_failures > 0 && *status == CallStatus::Failed {
            // With crashes between its attempts, a call may fail earlier.
            return (is_quiet && attempts < tool.max_attempts).then_some("was not tried again");
        }
        let may_be_withheld = call.is_output_blocked || is_cut_short;
        if effects.is_empty() && may_be_withheld && *status == CallStatus::OutputWithheld {
            return (call.transient_failures == 0).then_some("must take effect");
        }
        let distinct: BTreeSet<&String> = effects.iter().collect();
        match tool.effect {
            ToolEffect::Once if effects.len() != 1 => return Some("must take effect once"),
            ToolEffect::Idempotent if distinct.len() != 1 => return Some("must have one idempotency key"),
            ToolEffect::Once | ToolEffect::Idempotent | ToolEffect::Pure if effects.is_empty() => {
                return Some("must take effect");
            }
            ToolEffect::Once | ToolEffect::Idempotent | ToolEffect::Pure => {}
        }
        if call.hangs && is_quiet && tool.effect != ToolEffect::Once && attempts < tool.max_attempts {
            return Some("was not tried again");
        }
        let is_executed = matches!(
            status,
            CallStatus::Succeeded | CallStatus::Reconciled | CallStatus::Failed | CallStatus::TimedOut
        );
        match (call.is_output_blocked, call.fails || call.hangs) {
            // The run ends with the failure, without its output guardrails.
            (true, true)
                if *status == CallStatus::Failed
                    && tool.fails_run
                    && !output.contains(&output_text(call)) =>
            {
                None
            }
            (true, _) if *status != CallStatus::OutputWithheld || output.contains(&output_text(call)) => {
                Some("has an output that its guardrail blocked")
            }
            // The run ended before the output guardrail did.
            (false, _) if *status == CallStatus::OutputWithheld && is_cut_short => None,
            (false, false) if !is_executed || output != output_text(call) => Some("has lost its output"),
            (false, true) if !is_executed => Some("has lost its failure"),
            _ => None,
        }
    }

    /// Returns what is wrong with a call that the receipt of an identical call answered.
    fn find_receipt_fault(
        &self,
        call: &ScenarioCall,
        output: &str,
        effects: &[String],
        state: &WorldState,
    ) -> Option<&'static str> {
        let tool = self.scenario.tool_of(call);
        let turn_of = |id: &str| self.scenario.script_of(id).map_or(0, |(_, turn)| turn);
        let mut twins = self.scenario.turns.iter().flatten().filter(|one| {
            one.id != call.id
                && (one.tool, one.n) == (call.tool, call.n)
                && settled_status(state, &one.id) == Some(CallStatus::Succeeded)
        });
        let is_fresh = |twin: &ScenarioCall| {
            !tool.receipts_expire || !self.has_one_clock(state) || turn_of(&twin.id) == turn_of(&call.id)
        };
        match () {
            () if !tool.shares_receipts => Some("does not share receipts"),
            () if !twins.clone().any(|twin| twin.id != call.id) => Some("has the receipt of no call"),
            () if !twins.any(is_fresh) => Some("has an expired receipt"),
            () if output != output_text(call) => Some("has another output than its receipt"),
            // A crash may interrupt a body whose twin then answers for it.
            () if self.scenario.has_quiet_processes() && !effects.is_empty() => Some("ran and has a receipt"),
            () => None,
        }
    }
}

/// Returns true if the model made the call in a response that is durable.
fn is_reached(state: &WorldState, call: &str) -> bool {
    state.records.iter().any(|record| match &record.entry {
        JournalEntry::ModelResponded(responded) => {
            responded.calls.iter().any(|planned| planned.call.as_str() == call)
        }
        _ => false,
    })
}

/// Returns true if the end of a call's body is durable.
fn has_recorded_end(state: &WorldState, call: &str) -> bool {
    state.records.iter().any(|record| match &record.entry {
        JournalEntry::CallBodyEnded(ended) => ended.call.as_str() == call,
        JournalEntry::CallSettled(settled) => settled.call.as_str() == call,
        _ => false,
    })
}

fn settled_output(state: &WorldState, call: &str) -> String {
    let output = state.records.iter().find_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) if settled.call.as_str() == call => {
            Some(settled.output.text().into_owned())
        }
        _ => None,
    });
    output.unwrap_or_default()
}
