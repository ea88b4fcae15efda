//! The end of a session. Invariant: what happened before the end is in the history and the journal, and nothing new begins.

use windlass::core::id::CallId;

use super::calls::RealtimeCall;
use super::{ConnectionState, RealtimeMachine, RespondWhen, SessionEffect};
use crate::id::ResponseId;
use crate::model::ResponseStatus;

/// The output of a call that was not made because the session ended, as the model sees it.
const SESSION_ENDED_TEXT: &str = "This call was not made, because the session ended.";

impl RealtimeMachine {
    /// Ends the responses that are under way, and gives an output to the calls that no run will answer. Returns those
    /// calls. The runs have settled before.
    pub(crate) fn end_open_work(&mut self) -> Vec<CallId> {
        self.is_ending = true;
        self.connection_state = ConnectionState::Disconnected;
        let open: Vec<ResponseId> = self.turns.keys().cloned().collect();
        for response in open {
            self.interrupt_playback(Some(&response));
            self.on_response_ended(&response, ResponseStatus::Unknown, None, Vec::new());
            self.settle_unchecked(&response);
        }
        self.end_side_responses();
        self.queued_batches.clear();
        let has_run = |call: &CallId| self.active_runs.values().flatten().any(|known| known == call);
        let calls: Vec<CallId> = self.calls.keys().filter(|call| !has_run(call)).cloned().collect();
        let open = self.open_calls(&calls);
        for call in &open {
            self.add_output(call, SESSION_ENDED_TEXT.to_owned(), RespondWhen::Later);
        }
        open
    }

    /// Returns those of the calls that have no output, collected or sent.
    pub(crate) fn open_calls(&self, calls: &[CallId]) -> Vec<CallId> {
        let is_collected =
            |call: &CallId| self.collected_outputs.values().any(|known| known.has_output_of(call));
        let has_no_output = |call: &CallId| self.calls.get(call).is_some_and(RealtimeCall::has_no_output);
        let is_open = |call: &&CallId| has_no_output(call) && !is_collected(call);
        calls.iter().filter(is_open).cloned().collect()
    }

    /// Adds the outputs that are collected, and returns the journal entries and the events that are left. No command is
    /// among them.
    pub(crate) fn take_last_effects(&mut self) -> Vec<SessionEffect> {
        self.connection_state = ConnectionState::Disconnected;
        for run in self.collected_outputs.keys().cloned().collect::<Vec<_>>() {
            self.send_collected_outputs(&run);
        }
        let mut effects = std::mem::take(&mut self.pending_effects);
        effects
            .retain(|effect| matches!(effect, SessionEffect::AppendJournal(_) | SessionEffect::EmitEvent(_)));
        effects
    }
}
