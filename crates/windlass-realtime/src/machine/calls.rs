//! Tool calls. Invariant: each call is executed at most once and gets exactly one output, whatever the model or the
//! connection repeats or loses; the output is kept until the model has it.

use std::time::Duration;

use windlass::core::id::{CallId, RunId};
use windlass::core::usage::Usage;

use super::{
    AgentSetup, CallBatch, ConnectionState, RealtimeMachine, RespondWhen, SessionEffect, ToolCallMode,
};
use crate::event::RealtimeError;
use crate::history::{RealtimeItem, RealtimeItemKind};
use crate::id::{CommandId, ItemId, ResponseId};
use crate::journal::RealtimeEntry;
use crate::model::RealtimeCommandKind;

/// The output of a call that was not executed because its response was interrupted, as the model sees it.
const CALL_NOT_MADE_TEXT: &str =
    "This call was not made, because the answer that it was part of was cut off.";

/// The output of a call that exceeds the limit of calls without an input of the user, as the model sees it.
const CALL_LIMIT_TEXT: &str =
    "This call was not made, because too many answers in a row made calls. Wait for the user.";

/// The output of a call that exceeds the limit of waiting calls, as the model sees it.
const TOO_MANY_CALLS_TEXT: &str = "This call was not made, because too many calls wait for earlier ones.";
/// Maximum number of batches of calls that wait for earlier ones.
const MAX_QUEUED_BATCHES: usize = 64;

/// Time during which outputs of one run are collected, so that calls that settle together lead to one response.
const OUTPUT_WINDOW: Duration = Duration::from_millis(50);
/// Number of times that the session repeats a rejected output by itself.
const MAX_OUTPUT_RESENDS: u32 = 3;
/// Delay before the first repetition of a rejected output; it doubles with each further one.
const RESEND_DELAY: Duration = Duration::from_millis(500);

/// A tool call known to the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RealtimeCall {
    /// The provider's id, valid on the connection on which the call was made.
    wire_id: CallId,
    /// Number of that connection; zero for a call of an earlier process.
    connection: u64,
    name: String,
    arguments: String,
    output_item: Option<ItemId>,
}

impl RealtimeCall {
    pub(super) fn has_no_output(&self) -> bool {
        self.output_item.is_none()
    }

    /// Creates a call of an earlier process.
    fn adopted(call: &CallId, name: String, arguments: String, output_item: Option<ItemId>) -> Self {
        Self { wire_id: call.clone(), connection: 0, name, arguments, output_item }
    }
}

/// An output that the model rejected. It is kept, and sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RejectedOutput {
    times: u32,
    state: RejectedOutputState,
}

/// The next step for a rejected output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RejectedOutputState {
    /// It is sent again at this time.
    ResendAt(Duration),
    /// It is sent again on request, or on the next connection.
    Kept,
    /// It was sent again.
    Resent,
}

/// Outputs of a run that wait for those of its other calls, for a short time.
#[derive(Clone, Debug)]
pub(super) struct CollectedOutputs {
    due_at: Duration,
    outputs: Vec<(CallId, String)>,
}

impl CollectedOutputs {
    pub(super) fn has_output_of(&self, call: &CallId) -> bool {
        self.outputs.iter().any(|(known, _)| known == call)
    }
}

/// The state of a run after it reported outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallBatchStatus {
    /// The run waits for a person's decision.
    WaitingForDecision,
    /// The run has ended.
    Finished,
}

/// The permission to execute the calls of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallPermission {
    Allowed,
    /// The response was interrupted or rejected by a guardrail.
    Denied,
}

/// The response whose calls are accepted.
pub(super) struct CallingResponse<'a> {
    pub(super) response: &'a ResponseId,
    pub(super) agent: &'a AgentSetup,
    /// Number of the connection on which the response was made. It may be lost by now: guardrails check a response after
    /// its end.
    pub(super) connection: u64,
    /// Token usage of the response, if it is known.
    pub(super) usage: Option<Usage>,
    /// Number of runs that execute calls of this response.
    pub(super) run_count: &'a mut u32,
}

impl RealtimeMachine {
    /// Accepts complete calls of a response: journals them and queues them for execution. Handoffs have a run of their
    /// own, so that they do not wait for other calls.
    pub(super) fn accept_calls(
        &mut self,
        from: CallingResponse<'_>,
        calls: Vec<RealtimeItem>,
        permission: CallPermission,
    ) {
        let CallingResponse { response, agent, connection, usage, run_count } = from;
        let is_first_of_response = !self.calling_responses.contains(response);
        let is_connection_replaced = connection != self.connection_number;
        let mut fresh = Vec::new();
        for mut item in calls {
            let RealtimeItemKind::Call { call, name, arguments } = &mut item.kind else { continue };
            let key = (response.clone(), call.clone());
            if let Some(known) = self.call_names.get(&key).and_then(|known| self.calls.get(known)) {
                if known.name != *name || known.arguments != *arguments {
                    let call = call.clone();
                    self.emit_error(RealtimeError::CallIdReused { call });
                }
                continue;
            }
            let wire_id = call.clone();
            *call = self.call_name(&wire_id);
            let (call, name, arguments) = (call.clone(), name.clone(), arguments.clone());
            self.call_names.insert(key, call.clone());
            self.calling_responses.insert(response.clone());
            let known = RealtimeCall { wire_id, connection, name, arguments, output_item: None };
            self.calls.insert(call, known);
            item.agent = Some(agent.activation.name.clone());
            item.response = Some(response.clone());
            if is_connection_replaced {
                item.id = self.free_item_name(&item.id);
            }
            let change = self.history.upsert_item(item.clone(), None);
            self.record_change(change);
            // The history was sent on the current connection before this call was part of it.
            if is_connection_replaced && self.connection_state == ConnectionState::Connected {
                let item = item.clone();
                let id = item.id.clone();
                let command = self.send_command(RealtimeCommandKind::CreateItem { item, after: None });
                self.unconfirmed_items.insert(command, id);
            }
            fresh.push(item);
        }
        self.metrics.tool_calls = self.calls.len() as u64;
        if permission == CallPermission::Denied {
            return self.deny_calls(&fresh, CALL_NOT_MADE_TEXT);
        }
        if !fresh.is_empty() && is_first_of_response {
            self.call_rounds += 1;
        }
        let limit = self.policy.max_call_rounds;
        if !fresh.is_empty() && self.call_rounds > limit {
            self.emit_error(RealtimeError::CallLimitReached { response: response.clone(), limit });
            return self.deny_calls(&fresh, CALL_LIMIT_TEXT);
        }
        if !fresh.is_empty() && self.queued_batches.len() >= MAX_QUEUED_BATCHES {
            let message = "too many calls wait for earlier ones".to_owned();
            self.emit_error(RealtimeError::CallsFailed { response: response.clone(), message });
            return self.deny_calls(&fresh, TOO_MANY_CALLS_TEXT);
        }
        let (handoffs, calls): (Vec<_>, Vec<_>) = fresh.into_iter().partition(|item| agent.is_handoff(item));
        for item in &handoffs {
            if let RealtimeItemKind::Call { call, .. } = &item.kind {
                self.open_handoffs.insert(call.clone(), self.now);
            }
        }
        for batch in [calls, handoffs] {
            // The usage of a response is counted by its first run.
            let usage = if *run_count == 0 { usage } else { Some(Usage::default()) };
            if !batch.is_empty() {
                *run_count += 1;
                self.queue_batch(response, agent, batch, usage, *run_count);
            }
        }
        self.start_queued_batches();
    }

    /// Gives an output to calls that are not made. It demands no response.
    fn deny_calls(&mut self, items: &[RealtimeItem], text: &str) {
        for item in items {
            if let RealtimeItemKind::Call { call, .. } = &item.kind {
                self.add_output(call, text.to_owned(), RespondWhen::Later);
            }
        }
    }

    fn queue_batch(
        &mut self,
        response: &ResponseId,
        agent: &AgentSetup,
        calls: Vec<RealtimeItem>,
        usage: Option<Usage>,
        number: u32,
    ) {
        let input = std::mem::take(&mut self.items_since_calls);
        let input = input.iter().filter_map(|id| self.history.get(id)?.to_item()).collect();
        let session = &self.policy.session_id;
        let run = RunId::from(match number {
            1 => format!("{session}/{response}"),
            _ => format!("{session}/{response}/{number}"),
        });
        let items = calls.iter().filter_map(RealtimeItem::to_item).collect();
        let agent = agent.activation.clone();
        self.pending_effects.push(SessionEffect::AppendJournal(RealtimeEntry::CallsPlanned {
            run: run.clone(),
            response: response.clone(),
            agent: agent.name.clone(),
            calls,
        }));
        let response = response.clone();
        self.queued_batches.push_back(CallBatch { run, response, agent, input, calls: items, usage });
    }

    /// Starts the queued batches that may run now.
    pub(super) fn start_queued_batches(&mut self) {
        while let Some(batch) = self.queued_batches.pop_front() {
            if self.policy.tool_call_mode == ToolCallMode::Blocking && !self.active_runs.is_empty() {
                self.queued_batches.push_front(batch);
                return;
            }
            let calls = batch.calls.iter().filter_map(call_id).collect();
            self.active_runs.insert(batch.run.clone(), calls);
            self.pending_effects.push(SessionEffect::ExecuteCalls(batch));
        }
    }

    /// Registers a call of an earlier process of this session. If it has no output, its run counts as in
    /// progress.
    pub(crate) fn adopt_call(&mut self, run: &RunId, response: &ResponseId, item: &RealtimeItem) {
        self.calling_responses.insert(response.clone());
        if let RealtimeItemKind::Call { call, name, arguments } = &item.kind {
            let output = self.history.call_output(call).map(|item| item.id.clone());
            if output.is_none() {
                self.active_runs.entry(run.clone()).or_default().push(call.clone());
            }
            let known = RealtimeCall::adopted(call, name.clone(), arguments.clone(), output);
            self.calls.insert(call.clone(), known);
        }
    }

    /// Completes the resumption, after all open calls were adopted: calls without a run get their output, and
    /// an unanswered item demands a response.
    pub(crate) fn on_resumed(&mut self, entries: u64, unanswered: Option<ItemId>) {
        // Each item of this session has at least one journal entry, so ids counted from here on are new.
        self.item_count = self.item_count.max(entries);
        let is_open = |item: &&RealtimeItem| match &item.kind {
            RealtimeItemKind::Call { call, .. } => !self.calls.contains_key(call),
            _ => false,
        };
        let open: Vec<RealtimeItem> = self.history.items().iter().filter(is_open).cloned().collect();
        for item in open {
            let RealtimeItemKind::Call { call, name, arguments } = item.kind else { continue };
            let output = self.history.call_output(&call).map(|item| item.id.clone());
            let known = RealtimeCall::adopted(&call, name, arguments, output);
            self.calls.insert(call.clone(), known);
            self.add_output(&call, CALL_NOT_MADE_TEXT.to_owned(), RespondWhen::Later);
        }
        if unanswered.is_some() {
            self.scheduler.demand_response(self.now, unanswered);
        }
    }

    /// Takes the output of one call. It is sent with those of its siblings that settle within a short time, in the
    /// model's order. The output of a handoff is added when the new agent is current.
    pub(crate) fn on_call_settled(&mut self, run: &RunId, call: &CallId, text: String) {
        let is_open = self.calls.get(call).is_some_and(|known| known.output_item.is_none());
        if !is_open || self.open_handoffs.contains_key(call) {
            return;
        }
        let due_at = self.now.saturating_add(OUTPUT_WINDOW);
        let collected = self
            .collected_outputs
            .entry(run.clone())
            .or_insert_with(|| CollectedOutputs { due_at, outputs: Vec::new() });
        if !collected.outputs.iter().any(|(known, _)| known == call) {
            collected.outputs.push((call.clone(), text));
        }
        let is_collected = |call: &CallId| {
            let outputs = self.collected_outputs.get(run).map(|collected| collected.outputs.as_slice());
            outputs.unwrap_or_default().iter().any(|(known, _)| known == call)
                || self.calls.get(call).is_some_and(|known| known.output_item.is_some())
        };
        if self.active_runs.get(run).is_none_or(|calls| calls.iter().all(is_collected)) {
            self.send_collected_outputs(run);
        }
    }

    /// Takes the outputs of a run that has paused or ended: sends them to the model and demands a response.
    pub(crate) fn on_outputs(
        &mut self,
        run: &RunId,
        outputs: Vec<(CallId, String)>,
        status: CallBatchStatus,
    ) {
        let now = self.now;
        let collected = self
            .collected_outputs
            .entry(run.clone())
            .or_insert_with(|| CollectedOutputs { due_at: now, outputs: Vec::new() });
        for (call, text) in outputs {
            if !collected.outputs.iter().any(|(known, _)| *known == call) {
                collected.outputs.push((call, text));
            }
        }
        self.send_collected_outputs(run);
        if status == CallBatchStatus::Finished {
            self.active_runs.remove(run);
        }
    }

    /// Forgets a batch that is not executed any more, because the session ends.
    pub(crate) fn forget_batch(&mut self, run: &RunId) {
        self.active_runs.remove(run);
    }

    /// Sends the collected outputs whose time has come.
    pub(super) fn send_due_outputs(&mut self) {
        let is_due = |collected: &CollectedOutputs| collected.due_at <= self.now;
        let due = self.collected_outputs.iter().filter(|(_, collected)| is_due(collected));
        let due: Vec<RunId> = due.map(|(run, _)| run.clone()).collect();
        for run in due {
            self.send_collected_outputs(&run);
        }
    }

    pub(super) fn send_collected_outputs(&mut self, run: &RunId) {
        let Some(CollectedOutputs { mut outputs, .. }) = self.collected_outputs.remove(run) else { return };
        if let Some(order) = self.active_runs.get(run) {
            outputs.sort_by_key(|(call, _)| order.iter().position(|known| known == call));
        }
        for (call, text) in outputs {
            if let Some(item) = self.add_output(&call, text, RespondWhen::Now) {
                self.scheduler.demand_response(self.now, Some(item));
            }
        }
    }

    /// Adds the output of a call, at most once per call. Returns the new item.
    pub(super) fn add_output(&mut self, call: &CallId, text: String, respond: RespondWhen) -> Option<ItemId> {
        self.open_handoffs.remove(call);
        let known = self.calls.get(call)?;
        if known.output_item.is_some() {
            return None;
        }
        let id = self.next_item_id();
        if let Some(known) = self.calls.get_mut(call) {
            known.output_item = Some(id.clone());
        }
        let output = RealtimeItemKind::Output { call: call.clone(), text };
        self.add_item(RealtimeItem::new(id.clone(), output), None, respond);
        Some(id)
    }

    /// Returns the provider's id of a call, if the provider knows the call by that id on this connection.
    pub(super) fn wire_call(&self, call: &CallId) -> Option<CallId> {
        let known = self.calls.get(call)?;
        (known.connection == self.connection_number).then(|| known.wire_id.clone())
    }

    /// Handles the rejection of an item. Returns true if the item was the output of a call; the output is then sent
    /// again after a while, a limited number of times.
    pub(super) fn on_item_rejected(&mut self, command: &CommandId, message: &str) -> bool {
        let Some(item) = self.unconfirmed_items.remove(command) else { return false };
        let of = self.calls.iter().find(|(_, known)| known.output_item.as_ref() == Some(&item));
        let Some((call, _)) = of else { return false };
        let call = call.clone();
        let before = self.rejected_outputs.get(&call).map_or(0, |rejected| rejected.times);
        let delay = RESEND_DELAY.saturating_mul(1 << before.min(16));
        let state = match before < MAX_OUTPUT_RESENDS {
            true => RejectedOutputState::ResendAt(self.now.saturating_add(delay)),
            false => RejectedOutputState::Kept,
        };
        self.rejected_outputs.insert(call.clone(), RejectedOutput { times: before + 1, state });
        self.emit_error(RealtimeError::OutputRejected { call, message: message.to_owned() });
        true
    }

    /// Sends a rejected output again. The call does not run again. A response is demanded when the model has accepted
    /// the output, so that a model that rejects every output is not asked again and again.
    fn resend_output(&mut self, call: &CallId) {
        let output = self.calls.get(call).and_then(|known| known.output_item.as_ref());
        let Some(item) = output.and_then(|id| self.history.get(id)).cloned() else {
            self.rejected_outputs.remove(call);
            return;
        };
        if let Some(rejected) = self.rejected_outputs.get_mut(call) {
            rejected.state = RejectedOutputState::Resent;
        }
        let id = self.send_command(RealtimeCommandKind::CreateItem { item: item.clone(), after: None });
        self.unconfirmed_items.insert(id, item.id);
    }

    /// Handles the confirmation of an item. A rejected output that the model has at last demands a response.
    pub(super) fn on_item_confirmed(&mut self, item: &ItemId) {
        let mut rejected = self.rejected_outputs.keys();
        let is_it = |call: &&CallId| {
            self.calls.get(*call).is_some_and(|known| known.output_item.as_ref() == Some(item))
        };
        if let Some(call) = rejected.find(is_it).cloned() {
            self.rejected_outputs.remove(&call);
            self.scheduler.demand_response(self.now, Some(item.clone()));
        }
    }

    /// Returns true if the item is an output that the model rejected.
    pub(super) fn is_rejected_output(&self, item: &ItemId) -> bool {
        let output = |call: &CallId| self.calls.get(call).and_then(|known| known.output_item.as_ref());
        self.rejected_outputs.keys().any(|call| output(call) == Some(item))
    }

    /// Demands a response to the rejected outputs, which are sent with the history on a new connection.
    pub(super) fn demand_rejected_outputs(&mut self) {
        for call in std::mem::take(&mut self.rejected_outputs).into_keys() {
            if let Some(item) = self.calls.get(&call).and_then(|known| known.output_item.clone()) {
                self.scheduler.demand_response(self.now, Some(item));
            }
        }
    }

    /// Sends the rejected outputs again whose time has come.
    pub(super) fn resend_due_outputs(&mut self) {
        let now = self.now;
        self.resend_outputs_if(|state| match state {
            RejectedOutputState::ResendAt(at) => at <= now,
            RejectedOutputState::Kept | RejectedOutputState::Resent => false,
        });
    }

    /// Sends all rejected outputs again.
    pub(crate) fn resend_outputs(&mut self) {
        self.resend_outputs_if(|state| state != RejectedOutputState::Resent);
    }

    fn resend_outputs_if(&mut self, is_due: impl Fn(RejectedOutputState) -> bool) {
        let due = self.rejected_outputs.iter().filter(|(_, rejected)| is_due(rejected.state));
        let due: Vec<CallId> = due.map(|(call, _)| call.clone()).collect();
        for call in due {
            self.resend_output(&call);
        }
    }

    /// Returns the time at which collected outputs are sent next.
    pub(super) fn output_deadline(&self) -> Option<Duration> {
        self.collected_outputs.values().map(|collected| collected.due_at).min()
    }

    /// Returns the time at which a rejected output is sent again.
    pub(super) fn resend_deadline(&self) -> Option<Duration> {
        let resend_at = |rejected: &RejectedOutput| match rejected.state {
            RejectedOutputState::ResendAt(at) => Some(at),
            RejectedOutputState::Kept | RejectedOutputState::Resent => None,
        };
        self.rejected_outputs.values().filter_map(resend_at).min()
    }
}

impl AgentSetup {
    /// Returns true if the item is a call of one of the agent's handoffs.
    pub(super) fn is_handoff(&self, item: &RealtimeItem) -> bool {
        match &item.kind {
            RealtimeItemKind::Call { name, .. } => {
                self.configuration.handoffs.iter().any(|handoff| *handoff.name == **name)
            }
            _ => false,
        }
    }
}

fn call_id(item: &windlass::core::item::Item) -> Option<CallId> {
    match item {
        windlass::core::item::Item::Call(call) => Some(call.id.clone()),
        _ => None,
    }
}
