//! The calls of a journal, each with its starts, its decision and its settlement.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use windlass::core::decision::Decision;
use windlass::core::id::CallPath;
use windlass::core::item::Item;
use windlass::core::journal::{CallStatus, JournalEntry, JournalRecord};

use crate::deployment::without_nulls;

/// A call in the journal.
#[derive(Clone, Debug, Default)]
pub(super) struct JournalCall {
    /// Agent that made the call.
    pub(super) agent: String,
    /// Name of the tool.
    pub(super) tool: String,
    /// Arguments that the model wrote, without nulls.
    pub(super) arguments: Value,
    /// Arguments that a person wrote in their place, without nulls.
    pub(super) edited: Option<Value>,
    /// Keys of the starts.
    pub(super) keys: Vec<String>,
    /// Epoch of the driver that started the call first; 0 if it has not started.
    pub(super) first_epoch: u64,
    /// Epoch of the driver that started the call last; 0 if it has not started.
    pub(super) last_epoch: u64,
    /// The decisions that the journal has, oldest first: true if it approves.
    pub(super) approvals: Vec<bool>,
    /// The last answer that the journal has.
    pub(super) answer: Option<Value>,
    /// Status of the settlement.
    pub(super) status: Option<CallStatus>,
    /// Output of the settlement.
    pub(super) output: String,
}

/// The journal of a run.
#[derive(Debug, Default)]
pub(super) struct RunJournal {
    /// The calls by path.
    pub(super) calls: BTreeMap<String, JournalCall>,
    /// True if the run ended as cancelled.
    pub(super) is_cancelled: bool,
    /// The number of times that the journal has the input of each order, by its words.
    pub(super) added_inputs: BTreeMap<String, u64>,
    /// The outputs that the history has for the calls of the root agent at the end, by the id of the call.
    pub(super) final_outputs: BTreeMap<String, String>,
    /// Epoch of the last driver that started a call; 0 if none has.
    pub(super) last_epoch: u64,
    /// Epoch of the last driver that started a call before the last response of the root agent's model.
    pub(super) responded_epoch: u64,
}

impl RunJournal {
    pub(super) fn read(records: &[JournalRecord], history: &[Arc<Item>]) -> Self {
        let mut journal = Self::default();
        for record in records {
            journal.add(record);
        }
        for item in history {
            if let Item::Output(output) = &**item {
                journal.final_outputs.insert(output.call.to_string(), output.content.text().into_owned());
            }
        }
        journal
    }

    fn add(&mut self, record: &JournalRecord) {
        let path = |call: &windlass::core::id::CallId| CallPath::new(&record.path, call.clone()).to_string();
        match &record.entry {
            JournalEntry::ModelResponded(response) => {
                if record.path.is_empty() {
                    self.responded_epoch = self.last_epoch;
                }
                for item in &response.items {
                    let Item::Call(call) = &**item else { continue };
                    let arguments = serde_json::from_str(&call.arguments).unwrap_or_default();
                    let call = self.calls.entry(path(&call.id)).or_insert_with(|| JournalCall {
                        agent: response.agent.to_string(),
                        tool: call.name.to_string(),
                        arguments: without_nulls(arguments),
                        ..JournalCall::default()
                    });
                    debug_assert!(call.status.is_none() || !call.tool.is_empty());
                }
            }
            JournalEntry::CallStarted(started) => {
                self.last_epoch = self.last_epoch.max(started.epoch);
                let call = self.calls.entry(path(&started.call)).or_default();
                if call.keys.is_empty() {
                    call.first_epoch = started.epoch;
                }
                call.last_epoch = started.epoch;
                call.keys.push(started.idempotency_key.to_string());
            }
            JournalEntry::DecisionRecorded(decided) => {
                let call = self.calls.entry(path(&decided.call)).or_default();
                match &decided.decision {
                    Decision::Approve => {
                        call.approvals.push(true);
                        call.edited = None;
                    }
                    Decision::ApproveEdited { arguments } => {
                        call.approvals.push(true);
                        let arguments = serde_json::from_str(arguments).unwrap_or_default();
                        call.edited = Some(without_nulls(arguments));
                    }
                    Decision::Reject { .. } => call.approvals.push(false),
                    Decision::ConfirmExecuted { .. }
                    | Decision::ConfirmNotExecuted
                    | Decision::OutcomeUnknown => {}
                    Decision::Answer { value } => call.answer = Some(value.clone()),
                }
            }
            JournalEntry::RunCancelled(_) if record.path.is_empty() => self.is_cancelled = true,
            JournalEntry::InputAdded(added) => {
                for item in &added.items {
                    if let Item::Message(message) = &**item {
                        *self.added_inputs.entry(message.text()).or_default() += 1;
                    }
                }
            }
            JournalEntry::CallSettled(settled) => {
                let call = self.calls.entry(path(&settled.call)).or_default();
                call.status = Some(settled.status.clone());
                call.output = settled.output.text().into_owned();
            }
            _ => {}
        }
    }
}
