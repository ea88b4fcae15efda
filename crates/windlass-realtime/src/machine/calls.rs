//! Tool calls. Invariant: each call is executed at most once, whatever the model or the connection repeats, and
//! its output is kept until the model has it.

use windlass::core::id::{CallId, RunId};
use windlass::core::usage::Usage;

use super::{AgentActivation, CallBatch, RealtimeMachine, RespondWhen, SessionEffect, ToolCallMode};
use crate::event::RealtimeError;
use crate::history::{RealtimeItem, RealtimeItemKind};
use crate::id::{CommandId, ItemId, ResponseId};
use crate::journal::RealtimeEntry;
use crate::model::RealtimeCommandKind;

/// The output of a call that was not executed because its response was interrupted, as the model sees it.
const CALL_NOT_MADE_TEXT: &str =
    "This call was not made, because the answer that it was part of was cut off.";

/// A tool call known to the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RealtimeCall {
    name: String,
    arguments: String,
    output_item: Option<ItemId>,
    delivery: OutputDelivery,
}

impl RealtimeCall {
    fn new(name: String, arguments: String, output_item: Option<ItemId>) -> Self {
        Self { name, arguments, output_item, delivery: OutputDelivery::NotRejected }
    }
}

/// The delivery state of a call's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputDelivery {
    /// There is no output yet, or the model has not rejected it.
    NotRejected,
    /// The model rejected the output.
    Rejected,
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

impl RealtimeMachine {
    /// Accepts the calls of an ended response: journals them and queues them for execution.
    pub(super) fn accept_calls(
        &mut self,
        response: &ResponseId,
        agent: AgentActivation,
        calls: Vec<RealtimeItem>,
        permission: CallPermission,
        usage: Option<Usage>,
    ) {
        let mut fresh = Vec::new();
        for mut item in calls {
            let RealtimeItemKind::Call { call, name, arguments } = &item.kind else { continue };
            let call = call.clone();
            match self.calls.get(&call) {
                Some(known) if known.name == *name && known.arguments == *arguments => {
                    self.resend_output(&call);
                    continue;
                }
                Some(_) => {
                    self.emit_error(RealtimeError::CallIdReused { call });
                    continue;
                }
                None => {}
            }
            self.calls.insert(call, RealtimeCall::new(name.clone(), arguments.clone(), None));
            item.agent = Some(agent.name.clone());
            item.response = Some(response.clone());
            let change = self.history.upsert_item(item.clone(), None);
            self.record_change(change);
            fresh.push(item);
        }
        if fresh.is_empty() {
            return;
        }
        if permission == CallPermission::Denied {
            for item in &fresh {
                if let RealtimeItemKind::Call { call, .. } = &item.kind {
                    self.add_output(call, CALL_NOT_MADE_TEXT.to_owned(), RespondWhen::Later);
                }
            }
            return;
        }
        let input = std::mem::take(&mut self.items_since_calls);
        let input = input.iter().filter_map(|id| self.history.get(id)?.to_item()).collect();
        let run = RunId::from(format!("{}/{response}", self.policy.session_id));
        let items = fresh.iter().filter_map(RealtimeItem::to_item).collect();
        self.pending_effects.push(SessionEffect::AppendJournal(RealtimeEntry::CallsPlanned {
            run: run.clone(),
            response: response.clone(),
            agent: agent.name.clone(),
            calls: fresh,
        }));
        self.metrics.tool_calls = self.calls.len() as u64;
        let batch = CallBatch { run, response: response.clone(), agent, input, calls: items, usage };
        self.queued_batches.push_back(batch);
        self.start_queued_batches();
    }

    /// Starts the queued batches that may run now.
    pub(super) fn start_queued_batches(&mut self) {
        while let Some(batch) = self.queued_batches.pop_front() {
            if self.policy.tool_call_mode == ToolCallMode::Blocking && !self.active_runs.is_empty() {
                self.queued_batches.push_front(batch);
                return;
            }
            self.active_runs.insert(batch.run.clone());
            self.pending_effects.push(SessionEffect::ExecuteCalls(batch));
        }
    }

    /// Registers a call of an earlier process of this session. If it has no output, its run counts as in
    /// progress.
    pub(crate) fn adopt_call(&mut self, run: &RunId, item: &RealtimeItem) {
        if let RealtimeItemKind::Call { call, name, arguments } = &item.kind {
            let output = self.history.call_output(call).map(|item| item.id.clone());
            if output.is_none() {
                self.active_runs.insert(run.clone());
            }
            self.calls.insert(call.clone(), RealtimeCall::new(name.clone(), arguments.clone(), output));
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
            self.calls.insert(call.clone(), RealtimeCall::new(name, arguments, output));
            self.add_output(&call, CALL_NOT_MADE_TEXT.to_owned(), RespondWhen::Later);
        }
        if unanswered.is_some() {
            self.scheduler.demand_response(self.now, unanswered);
        }
    }

    /// Takes the outputs of a run: sends them to the model and demands a response.
    pub(crate) fn on_outputs(
        &mut self,
        run: &RunId,
        outputs: Vec<(CallId, String)>,
        status: CallBatchStatus,
    ) {
        if status == CallBatchStatus::Finished {
            self.active_runs.remove(run);
        }
        for (call, text) in outputs {
            if let Some(item) = self.add_output(&call, text, RespondWhen::Now) {
                self.scheduler.demand_response(self.now, Some(item));
            }
        }
    }

    /// Adds the output of a call, at most once per call. Returns the new item.
    pub(super) fn add_output(&mut self, call: &CallId, text: String, respond: RespondWhen) -> Option<ItemId> {
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

    /// Handles the rejection of an item. Returns true if the item was the output of a call.
    pub(super) fn on_item_rejected(&mut self, command: &CommandId, message: &str) -> bool {
        let Some(item) = self.unconfirmed_items.remove(command) else { return false };
        let of = self.calls.iter_mut().find(|(_, known)| known.output_item.as_ref() == Some(&item));
        match of {
            Some((call, known)) => {
                known.delivery = OutputDelivery::Rejected;
                let call = call.clone();
                self.emit_error(RealtimeError::OutputRejected { call, message: message.to_owned() });
                true
            }
            None => false,
        }
    }

    /// Sends a rejected output again. The call does not run again.
    fn resend_output(&mut self, call: &CallId) {
        let Some(known) = self.calls.get_mut(call).filter(|known| known.delivery == OutputDelivery::Rejected)
        else {
            return;
        };
        known.delivery = OutputDelivery::NotRejected;
        let Some(item) = known.output_item.as_ref().and_then(|id| self.history.get(id)).cloned() else {
            return;
        };
        let id = self.send_command(RealtimeCommandKind::CreateItem { item: item.clone(), after: None });
        self.unconfirmed_items.insert(id, item.id.clone());
        self.scheduler.demand_response(self.now, Some(item.id));
    }

    /// Sends all rejected outputs again.
    pub(crate) fn resend_outputs(&mut self) {
        let rejected: Vec<CallId> = self
            .calls
            .iter()
            .filter(|(_, known)| known.delivery == OutputDelivery::Rejected)
            .map(|(call, _)| call.clone())
            .collect();
        for call in rejected {
            self.resend_output(&call);
        }
    }
}
