//! The rows of a run: its records as a tree of turns, calls and nested agents, flattened in reading order.
//!
//! The timeline and the conversation are two views of the same rows, so that a page of a long run has both.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass::core::{
    decision::HoldReason,
    id::{AgentName, CallId},
    item::{Item, OutputContent},
    journal::{CallStatus, GuardrailOutcome, GuardrailRecord, JournalEntry, JournalRecord},
    plan::{BodyKind, CallDisposition, PlannedCall},
    tool::ToolEffect,
    usage::Usage,
};

/// A row of a run.
#[derive(Clone, Debug)]
pub(super) struct RunRow {
    /// Number of agents around it.
    pub(super) depth: usize,
    /// Sequence number of the record that it begins with.
    pub(super) seq: u64,
    /// Time of that record.
    pub(super) at: u64,
    pub(super) agent: AgentName,
    pub(super) kind: RowKind,
}

/// The kind of a row and its data.
#[derive(Clone, Debug)]
pub(super) enum RowKind {
    /// A run or nested agent begins.
    Start { input: Vec<Arc<Item>>, origin: Option<(String, u64)> },
    /// The model responded.
    Turn(Box<TurnRow>),
    /// A call of the turn before.
    Call(Box<CallRow>),
    /// A request to the model failed.
    ModelFailure { error: String, retry_after_ms: Option<u64> },
    /// Input was added.
    Input { items: Vec<Arc<Item>> },
    /// Control passed to another agent.
    Handoff { to: AgentName },
    /// Something else, in one line.
    Note { text: String },
    /// The run or nested agent ended.
    End { text: String, tone: RowTone },
}

/// A response of the model.
#[derive(Clone, Debug)]
pub(super) struct TurnRow {
    pub(super) number: u32,
    pub(super) model: Option<String>,
    pub(super) usage: Usage,
    pub(super) attempts: u32,
    pub(super) requested_at: u64,
    pub(super) items: Vec<Arc<Item>>,
}

/// A call with everything that the journal has about it.
#[derive(Clone, Debug)]
pub(super) struct CallRow {
    pub(super) path: String,
    pub(super) tool: String,
    pub(super) is_agent: bool,
    pub(super) arguments: String,
    pub(super) effect: Option<ToolEffect>,
    pub(super) digest: String,
    pub(super) key: Option<String>,
    pub(super) attempts: u32,
    pub(super) spans: Vec<CallSpan>,
    pub(super) status: Option<CallStatus>,
    pub(super) output: Option<OutputContent>,
    pub(super) guardrails: Vec<GuardrailRecord>,
    /// Sentences about holds and decisions, with the number of their record.
    pub(super) notes: Vec<(u64, String)>,
    /// Numbers of the records about the call.
    pub(super) records: Vec<u64>,
    pub(super) is_waiting: bool,
}

/// A part of the life of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallSpan {
    pub(super) kind: SpanKind,
    pub(super) from: u64,
    /// Absent while it lasts.
    pub(super) to: Option<u64>,
}

/// The kind of a part of the life of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanKind {
    /// It waits for a person.
    Waiting,
    /// Its body runs.
    Running,
    /// Its output is withheld until the guardrails have passed it.
    Guarded,
}

/// The tone of a row: it decides the colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RowTone {
    Quiet,
    Good,
    Active,
    Waiting,
    Bad,
}

impl RowTone {
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Good => "good",
            Self::Active => "active",
            Self::Waiting => "waiting",
            Self::Bad => "bad",
        }
    }
}

impl RunRow {
    /// Returns the tone of the row.
    pub(super) fn tone(&self) -> RowTone {
        match &self.kind {
            RowKind::Start { .. } | RowKind::Input { .. } | RowKind::Note { .. } => RowTone::Quiet,
            RowKind::Turn(_) | RowKind::Handoff { .. } => RowTone::Good,
            RowKind::Call(call) => call.tone(),
            RowKind::ModelFailure { .. } => RowTone::Bad,
            RowKind::End { tone, .. } => *tone,
        }
    }
}

impl CallRow {
    /// Returns the tone of the call.
    pub(super) fn tone(&self) -> RowTone {
        match &self.status {
            Some(status) if status.is_success() => RowTone::Good,
            Some(CallStatus::Cancelled | CallStatus::SurplusHandoff) => RowTone::Quiet,
            Some(_) => RowTone::Bad,
            None if self.is_waiting => RowTone::Waiting,
            None => RowTone::Active,
        }
    }

    /// Returns the status in words.
    pub(super) fn status_text(&self) -> &'static str {
        match &self.status {
            None if self.is_waiting => "waits for a person",
            None if self.spans.is_empty() => "has not started",
            None => "runs",
            Some(status) => match status {
                CallStatus::Succeeded => "succeeded",
                CallStatus::Failed => "failed",
                CallStatus::TimedOut => "timed out",
                CallStatus::TimedOutStillRunning => "timed out, may still run",
                CallStatus::InvalidArguments => "invalid arguments",
                CallStatus::UnknownTool => "unknown tool",
                CallStatus::SurplusHandoff => "surplus handoff",
                CallStatus::Rejected => "rejected",
                CallStatus::BlockedByGuardrail => "blocked by a guardrail",
                CallStatus::OutputWithheld => "output withheld",
                CallStatus::Deduplicated => "answered by a receipt",
                CallStatus::Cancelled => "cancelled",
                CallStatus::Reconciled => "confirmed as executed",
                CallStatus::OutcomeUnknown => "outcome unknown",
            },
        }
    }

    /// Returns true if a guardrail did anything but let the call pass.
    pub(super) fn has_guardrail_verdict(&self) -> bool {
        self.guardrails.iter().any(|one| one.verdict != GuardrailOutcome::Allowed)
    }

    fn close_spans(&mut self, at: u64) {
        for span in &mut self.spans {
            span.to.get_or_insert(at);
        }
    }
}

/// A node of the tree: a row and the rows of the nested agent inside it.
struct RowNode {
    row: RunRow,
    nested: Vec<usize>,
}

/// Builds the rows of a run.
#[derive(Default)]
pub(super) struct RowBuilder {
    nodes: Vec<RowNode>,
    roots: Vec<usize>,
    agents: BTreeMap<Vec<CallId>, AgentName>,
    turns: BTreeMap<Vec<CallId>, u32>,
    calls: BTreeMap<(Vec<CallId>, CallId), usize>,
    last_at: BTreeMap<Vec<CallId>, u64>,
}

impl RowBuilder {
    /// Returns the rows of the records, in reading order.
    pub(super) fn rows_of(records: &[JournalRecord]) -> Vec<RunRow> {
        let mut builder = Self::default();
        for record in records {
            builder.add_record(record);
            builder.last_at.insert(record.path.clone(), record.at.0);
        }
        let mut rows = Vec::with_capacity(builder.nodes.len());
        let mut stack: Vec<usize> = builder.roots.iter().rev().copied().collect();
        while let Some(place) = stack.pop() {
            if let Some(node) = builder.nodes.get(place) {
                rows.push(node.row.clone());
                stack.extend(node.nested.iter().rev());
            }
        }
        rows
    }

    fn push(&mut self, record: &JournalRecord, agent: AgentName, kind: RowKind) -> usize {
        let row = RunRow { depth: record.path.len(), seq: record.seq, at: record.at.0, agent, kind };
        let place = self.nodes.len();
        self.nodes.push(RowNode { row, nested: Vec::new() });
        let parent = record
            .path
            .split_last()
            .and_then(|(call, within)| self.calls.get(&(within.to_vec(), call.clone())))
            .copied();
        match parent.and_then(|parent| self.nodes.get_mut(parent)) {
            Some(parent) => parent.nested.push(place),
            None => self.roots.push(place),
        }
        place
    }

    fn call(&mut self, record: &JournalRecord, call: &CallId) -> Option<&mut CallRow> {
        let place = *self.calls.get(&(record.path.clone(), call.clone()))?;
        match &mut self.nodes.get_mut(place)?.row.kind {
            RowKind::Call(row) => {
                row.records.push(record.seq);
                Some(row)
            }
            _ => None,
        }
    }

    fn add_record(&mut self, record: &JournalRecord) {
        let JournalRecord { seq, at, path, entry } = record;
        let (seq, at) = (*seq, at.0);
        let agent = self.agents.get(path).cloned().unwrap_or_else(|| "?".into());
        match entry {
            JournalEntry::RunStarted(started) => {
                self.agents.insert(path.clone(), started.agent.clone());
                let origin = started.origin.as_ref().map(|one| (one.run.as_str().to_owned(), one.seq));
                self.push(
                    record,
                    started.agent.clone(),
                    RowKind::Start { input: started.input.clone(), origin },
                );
            }
            JournalEntry::ModelResponded(responded) => {
                let number = self.turns.entry(path.clone()).or_default();
                *number += 1;
                let before = self.last_at.get(path).copied().unwrap_or(at);
                let turn = TurnRow {
                    number: *number,
                    model: responded.model.clone(),
                    usage: responded.usage,
                    attempts: responded.attempts,
                    requested_at: responded.requested_at.map_or(before, |time| time.0).min(at),
                    items: responded.items.clone(),
                };
                self.push(record, responded.agent.clone(), RowKind::Turn(Box::new(turn)));
                for planned in &responded.calls {
                    let row = CallRow::planned(record, planned, &responded.items);
                    let place = self.push(record, responded.agent.clone(), RowKind::Call(Box::new(row)));
                    self.calls.insert((path.clone(), planned.call.clone()), place);
                }
            }
            JournalEntry::ModelRequestFailed(failed) => {
                let kind = RowKind::ModelFailure {
                    error: failed.error.clone(),
                    retry_after_ms: failed.retry_after_ms,
                };
                self.push(record, agent, kind);
            }
            JournalEntry::InputAdded(added) => {
                self.push(record, agent, RowKind::Input { items: added.items.clone() });
            }
            JournalEntry::CallHeld(held) => {
                if let Some(call) = self.call(record, &held.call) {
                    let text = match &held.reason {
                        HoldReason::InDoubt => "in doubt: its process ended after it had started".to_owned(),
                        HoldReason::Question(question) => format!("asks: {}", question.text),
                        _ => "waits for approval".to_owned(),
                    };
                    call.close_spans(at);
                    call.notes.push((seq, text));
                    call.spans.push(CallSpan { kind: SpanKind::Waiting, from: at, to: None });
                    call.is_waiting = true;
                }
            }
            JournalEntry::DecisionRecorded(decided) => {
                if let Some(call) = self.call(record, &decided.call) {
                    let by = decided.decided_by.as_deref().unwrap_or("somebody");
                    call.notes.push((seq, format!("{} by {by}", decided.decision.describe())));
                    call.close_spans(at);
                    call.is_waiting = false;
                }
            }
            JournalEntry::CallStarted(started) => {
                if let Some(call) = self.call(record, &started.call) {
                    call.attempts = call.attempts.max(started.attempt);
                    call.key = Some(started.idempotency_key.to_string());
                    call.close_spans(at);
                    call.spans.push(CallSpan { kind: SpanKind::Running, from: at, to: None });
                }
            }
            JournalEntry::CallBodyEnded(ended) => {
                if let Some(call) = self.call(record, &ended.call) {
                    call.close_spans(at);
                    call.spans.push(CallSpan { kind: SpanKind::Guarded, from: at, to: None });
                }
            }
            JournalEntry::CallSettled(settled) => {
                if let Some(call) = self.call(record, &settled.call) {
                    call.close_spans(at);
                    call.is_waiting = false;
                    call.status = Some(settled.status.clone());
                    call.output = Some(settled.output.clone());
                    call.guardrails.clone_from(&settled.guardrails);
                }
            }
            JournalEntry::CallEndedLate(late) => {
                if let Some(call) = self.call(record, &late.call) {
                    call.notes.push((seq, "its body ended late".to_owned()));
                }
            }
            JournalEntry::HandoffRecorded(handed) => {
                if let Some(call) = self.call(record, &handed.call) {
                    call.close_spans(at);
                    call.status = Some(CallStatus::Succeeded);
                    call.notes.push((seq, format!("hands over to {}", handed.to)));
                }
                self.push(record, agent, RowKind::Handoff { to: handed.to.clone() });
                self.agents.insert(path.clone(), handed.to.clone());
            }
            JournalEntry::RunFinished(finished) => {
                let text = finished.output.clone();
                self.push(record, agent, RowKind::End { text, tone: RowTone::Good });
            }
            JournalEntry::RunFailed(failed) => {
                let text = failed.failure.to_string();
                self.push(record, agent, RowKind::End { text, tone: RowTone::Bad });
            }
            JournalEntry::RunCancelled(_) => {
                let text = "cancelled".to_owned();
                self.push(record, agent, RowKind::End { text, tone: RowTone::Quiet });
            }
            JournalEntry::ResponseRejected(_) => {
                self.note(record, agent, "the model's response was rejected")
            }
            JournalEntry::ModelInputFiltered(_) => {
                self.note(record, agent, "a filter changed the next request")
            }
            JournalEntry::HistoryCompacted(compacted) => {
                let (before, after) = (compacted.tokens_before, compacted.tokens_after);
                let text = format!("the history was compacted, from about {before} tokens to {after}");
                self.push(record, agent, RowKind::Note { text });
            }
            JournalEntry::BudgetReached(reached) => {
                let text = reached.budget.to_string();
                self.push(record, agent, RowKind::Note { text });
            }
            JournalEntry::BudgetReserved(_) => {}
            JournalEntry::OutputRejected(_) => self.note(record, agent, "the output does not match its type"),
            JournalEntry::DecisionRevoked(_) => self.note(record, agent, "a standing decision was revoked"),
            JournalEntry::RunRestored(_) => self.note(
                record,
                agent,
                "the store was restored from a backup; what the run did since is unknown",
            ),
            JournalEntry::TurnContinued => {}
        }
    }

    fn note(&mut self, record: &JournalRecord, agent: AgentName, text: &str) {
        self.push(record, agent, RowKind::Note { text: text.to_owned() });
    }
}

impl CallRow {
    fn planned(record: &JournalRecord, planned: &PlannedCall, items: &[Arc<Item>]) -> Self {
        let arguments = items.iter().find_map(|item| match &**item {
            Item::Call(call) if call.id == planned.call => Some(call.arguments.clone()),
            _ => None,
        });
        let (effect, is_agent) = match &planned.disposition {
            CallDisposition::Execute { effect, body, .. } => (Some(*effect), *body == BodyKind::Agent),
            _ => (None, false),
        };
        Self {
            path: windlass::core::id::CallPath::new(&record.path, planned.call.clone()).to_string(),
            tool: planned.key.to_string(),
            is_agent,
            arguments: arguments.unwrap_or_default(),
            effect,
            digest: planned.digest.to_string(),
            key: None,
            attempts: 0,
            spans: Vec::new(),
            status: None,
            output: None,
            guardrails: Vec::new(),
            notes: Vec::new(),
            records: vec![record.seq],
            is_waiting: false,
        }
    }
}
