//! Checks of a driver's conduct: at each record, each request and each body.

use windlass::core::{
    decision::{AnsweredQuestion, Decision, PersonQuestion},
    id::CallId,
    journal::{CallStatus, JournalEntry, JournalRecord},
    tool::ToolEffect,
};

use super::scenario::{ScenarioCall, StopKind};
use super::world::{DriverWorld, WorldState, answer_of, output_text, question_of};

impl DriverWorld {
    /// Checks a record before it becomes durable.
    pub(super) fn check_record(&self, record: &JournalRecord, state: &mut WorldState) {
        self.check_sent_input(record, state);
        if let Err(broken) = state.audit.apply_record(record) {
            state.violations.push(broken.to_string());
        }
        let written = serde_json::to_string(&record.entry).unwrap_or_default();
        let blocked = self.scenario.all_calls().filter(|call| call.is_output_blocked);
        let leak = blocked.into_iter().find(|call| written.contains(&output_text(call)));
        // A person who resolves a doubt says what happened in the clear.
        if let Some(call) = leak
            && !matches!(record.entry, JournalEntry::DecisionRecorded(_))
        {
            state.violations.push(format!("the withheld output of call {} is in the journal", call.id));
        }
        // A call of a run that fails is stopped, too.
        let is_failing =
            (0..=record.path.len()).any(|len| self.first_failure(&record.path[..len], state).is_some());
        let is_cancelled = match &record.entry {
            JournalEntry::RunCancelled(_) => record.path.is_empty() || !is_failing,
            JournalEntry::CallSettled(settled) => settled.status == CallStatus::Cancelled && !is_failing,
            _ => false,
        };
        match &record.entry {
            JournalEntry::CallSettled(settled) => {
                self.check_settled_failure(settled, state);
                self.check_drained(settled, &record.path, state);
            }
            JournalEntry::RunFailed(failed) => self.check_run_failure(&record.path, &failed.failure, state),
            _ => {}
        }
        match state.stop {
            Some(StopKind::HandOver) if is_cancelled => {
                let message =
                    format!("the driver that hands the run over cancelled something: {:?}", record.entry);
                state.violations.push(message);
            }
            None if is_cancelled => state.violations.push("nobody cancelled the run".to_owned()),
            Some(StopKind::HandOver | StopKind::Cancel | StopKind::CancelAfterTurn) | None => {}
        }
        if let JournalEntry::CallSettled(settled) = &record.entry
            && settled.status == CallStatus::Cancelled
            && state.returned.contains(settled.call.as_str())
        {
            let message = format!("call {} returned, and its result was discarded", settled.call);
            state.violations.push(message);
        }
        if state.stop == Some(StopKind::CancelAfterTurn)
            && !is_failing
            && matches!(&record.entry, JournalEntry::CallSettled(settled) if settled.status == CallStatus::Cancelled)
        {
            state.violations.push("the run was to finish its turn, and a call was stopped".to_owned());
        }
    }

    /// Checks that a response was requested with the input that the journal says.
    fn check_sent_input(&self, record: &JournalRecord, state: &mut WorldState) {
        if !matches!(record.entry, JournalEntry::ModelResponded(_)) {
            return;
        }
        let asked = state.audit.run().and_then(|run| run.at_path(&record.path));
        let (Some(run), Some(sent)) = (asked, state.sent.remove(&record.path)) else { return };
        if run.next_model_input() != sent.as_slice() {
            let message = format!("the input of response {} is not what the journal says", record.seq);
            state.violations.push(message);
        }
    }

    /// Checks a model request of the agent at a path.
    pub(super) fn check_request(&self, path: &[CallId], state: &mut WorldState) {
        self.check_begin(path, None, state);
        match state.stop {
            Some(StopKind::Cancel) => {
                state.violations.push("the model was asked after the run was cancelled".to_owned());
            }
            Some(StopKind::CancelAfterTurn) if path.is_empty() => {
                state
                    .violations
                    .push("the model was asked after the last turn of a cancelled run".to_owned());
            }
            Some(StopKind::HandOver | StopKind::CancelAfterTurn) | None => {}
        }
    }

    /// Checks that a body may begin.
    pub(super) fn check_body_start(&self, call: &CallId, state: &mut WorldState) {
        let starts = state.records.iter().filter_map(|record| match &record.entry {
            JournalEntry::CallStarted(started) if started.call == *call => Some(started.attempt),
            _ => None,
        });
        let Some(attempt) = starts.max() else {
            state.violations.push(format!("call {call} began without a durable start"));
            return;
        };
        if !state.bodies.insert((call.to_string(), attempt)) {
            state.violations.push(format!("attempt {attempt} of call {call} ran twice"));
        }
        let Some(spec) = self.find(call) else {
            state.violations.push(format!("a body of call {call} ran, which is not in the scenario"));
            return;
        };
        self.check_begin(&self.path_of(&spec.id), Some(call), state);
        let tool = self.scenario.tool_of(spec);
        if tool.has_input_guardrail && !state.admitted.remove(call.as_str()) {
            state.violations.push(format!("call {call} began before its input guardrail had passed"));
        }
        if tool.effect == ToolEffect::Once && state.has_taken_effect(call) {
            state.violations.push(format!("call {call} took effect twice"));
        }
        if state.stop == Some(StopKind::Cancel) {
            state.violations.push(format!("call {call} began after the run was cancelled"));
        }
        let attempts = state.bodies.iter().filter(|(one, _)| one == call.as_str()).count();
        if self.scenario.has_quiet_processes() && !spec.asks && attempts > tool.max_attempts as usize {
            state.violations.push(format!("call {call} was tried more often than its tool allows"));
        }
        let turn = self.scenario.script_of(&spec.id).map_or(0, |(_, turn)| turn);
        if tool.switched_off_in.is_some_and(|off| turn >= off) {
            state.violations.push(format!("call {call} began although its tool was switched off"));
        }
        self.check_conflicts(spec, state);
        self.check_twins(spec, state);
    }

    /// Checks that the calls before this one with which it conflicts have settled.
    fn check_conflicts(&self, spec: &ScenarioCall, state: &mut WorldState) {
        if !self.scenario.tool_of(spec).is_exclusive {
            return;
        }
        let Some((turns, turn)) = self.scenario.script_of(&spec.id) else { return };
        let before = turns[turn].iter().take_while(|one| one.id != spec.id);
        let open =
            before.filter(|one| one.tool == spec.tool).find(|one| settled_status(state, &one.id).is_none());
        if let Some(open) = open {
            let message = format!("call {} began before call {}, with which it conflicts", spec.id, open.id);
            state.violations.push(message);
        }
    }

    /// Checks that no identical call is in flight or has left a receipt.
    fn check_twins(&self, spec: &ScenarioCall, state: &mut WorldState) {
        let tool = self.scenario.tool_of(spec);
        if !tool.shares_receipts {
            return;
        }
        let turn_of = |id: &str| self.scenario.script_of(id).map_or(0, |(_, turn)| turn);
        let twins = self.scenario.turns.iter().flatten();
        let twins = twins.filter(|one| one.id != spec.id && (one.tool, one.n) == (spec.tool, spec.n));
        let mut found = Vec::new();
        for twin in twins {
            let has_ended = state.records.iter().any(|record| {
                matches!(&record.entry, JournalEntry::CallBodyEnded(ended)
                    if ended.call.as_str() == twin.id && ended.status == CallStatus::Succeeded)
            });
            match settled_status(state, &twin.id) {
                Some(CallStatus::Succeeded) => {
                    let may_have_expired = tool.receipts_expire
                        && (turn_of(&twin.id) != turn_of(&spec.id) || !self.has_one_clock(state));
                    if !may_have_expired {
                        found.push(format!("call {} ran, and call {} has its receipt", spec.id, twin.id));
                    }
                }
                None if state.begun.contains(&twin.id) || has_ended => {
                    found.push(format!("call {} ran beside the identical call {}", spec.id, twin.id));
                }
                Some(_) | None => {}
            }
        }
        state.violations.extend(found);
    }

    /// Returns true if one clock measures the whole run. A driver that is resumed after a crash or a pause may read another
    /// one, so that nothing can be said about the age of receipts.
    pub(super) fn has_one_clock(&self, state: &WorldState) -> bool {
        let is_hold = |record: &JournalRecord| matches!(record.entry, JournalEntry::CallHeld(_));
        self.scenario.has_quiet_processes() && !state.records.iter().any(is_hold)
    }

    /// Checks the answers that a body receives.
    pub(super) fn check_answers(
        &self,
        spec: &ScenarioCall,
        answers: &[AnsweredQuestion],
        state: &mut WorldState,
    ) {
        let expected = AnsweredQuestion { question: question_of(spec), answer: answer_of(spec) };
        let is_right = match is_answered(state, &spec.id) {
            true => answers == [expected],
            false => answers.is_empty(),
        };
        if !is_right {
            state.violations.push(format!("call {} received the answers {answers:?}", spec.id));
        }
    }

    /// Checks a question that a person is asked.
    pub(super) fn check_question(&self, call: &CallId, question: &PersonQuestion, state: &mut WorldState) {
        let is_expected = self.find(call).is_some_and(|call| call.asks && question_of(call) == *question);
        if !is_expected {
            state.violations.push(format!("call {call} did not ask {question:?}"));
        }
        if is_answered(state, call.as_str()) {
            state.violations.push(format!("a person was asked the question of call {call} twice"));
        }
    }
}

/// Returns the status with which a call settled.
pub(super) fn settled_status(state: &WorldState, call: &str) -> Option<CallStatus> {
    state.records.iter().find_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) if settled.call.as_str() == call => Some(settled.status.clone()),
        _ => None,
    })
}

/// Returns true if the answer to a call's question is durable.
fn is_answered(state: &WorldState, call: &str) -> bool {
    state.records.iter().any(|record| match &record.entry {
        JournalEntry::DecisionRecorded(decided) => {
            decided.call.as_str() == call && matches!(decided.decision, Decision::Answer { .. })
        }
        _ => false,
    })
}
