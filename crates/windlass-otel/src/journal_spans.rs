//! The fold from records of a journal to spans.
//!
//! Invariant: [`JournalSpans::add`] reads nothing but the records, so the spans of a live run and of a replayed journal
//! are equal. Guardrails of a call's input have no times of their own in the journal; their spans are instants.

use std::collections::BTreeMap;

use opentelemetry::{KeyValue, SpanId, TraceId};
use windlass::core::{
    failure::RunFailure,
    id::{AgentName, CallId, RunId, Timestamp},
    item::Item,
    journal::{
        BudgetReached, CallHeld, CallSettled, CallStarted, CallStatus, DecisionRecorded, GuardrailRecord,
        GuardrailStage, JournalEntry, JournalRecord, ModelRequestFailed, ModelResponded, RequestedModel,
        RunStarted,
    },
    plan::{CallDisposition, PlannedCall},
    run::BUDGET_CALL,
    tool::ToolKey,
    usage::Usage,
};

use crate::attributes::{
    self as names, call_status_name, convention, failure_name, finish_reasons_attribute, messages_attribute,
    output_text, requested_attributes, serialised_name, truncated, usage_attributes,
};
use crate::run_span::{
    RunSpan, RunSpanEvent, RunSpanKind, RunSpanLink, RunSpanStatus, SpanPlace, trace_id_of_run,
};

/// Content of the conversation in spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceContent {
    /// Arguments, outputs and messages are left out.
    #[default]
    LeftOut,
    /// Arguments, outputs and messages are attributes, up to 16 KiB each.
    Included,
}

/// Derives the spans of a run from its records.
///
/// The records of a journal are added in order, from the first. A span is returned with the record that completes it. The
/// span of a turn is completed by the next request to the model, or by the end of the run.
#[derive(Debug)]
pub struct JournalSpans {
    content: TraceContent,
    /// The run and its trace; absent before its first record.
    run: Option<(RunId, TraceId)>,
    /// The agents whose runs are open, by the calls that lead to them.
    agents: BTreeMap<Vec<CallId>, OpenAgent>,
}

#[derive(Debug)]
struct OpenAgent {
    id: SpanId,
    parent: Option<SpanId>,
    /// The agent that the run started with. A handoff is a span of its own.
    agent: AgentName,
    started_at: Timestamp,
    /// Time of the last record of this agent, or of an agent inside one of its calls.
    last_at: Timestamp,
    /// Time from which the agent waits for its model.
    request_from: Timestamp,
    turn_count: u64,
    turn: Option<OpenTurn>,
    /// The question about a budget that waits for a person.
    budget_wait: Option<OpenWait>,
    budget_wait_count: u64,
    usage: Usage,
    attributes: Vec<KeyValue>,
    events: Vec<RunSpanEvent>,
    links: Vec<RunSpanLink>,
}

#[derive(Debug)]
struct OpenTurn {
    id: SpanId,
    number: u64,
    started_at: Timestamp,
    request_count: u64,
    has_response: bool,
    calls: BTreeMap<CallId, OpenCall>,
}

#[derive(Debug)]
struct OpenCall {
    tool: ToolKey,
    attributes: Vec<KeyValue>,
    started_at: Option<Timestamp>,
    attempts: u32,
    body_ended_at: Option<Timestamp>,
    wait: Option<OpenWait>,
    wait_count: u64,
    events: Vec<RunSpanEvent>,
}

#[derive(Debug)]
struct OpenWait {
    started_at: Timestamp,
    attributes: Vec<KeyValue>,
}

impl JournalSpans {
    /// Creates the spans of a run without records.
    pub fn new(content: TraceContent) -> Self {
        Self { content, run: None, agents: BTreeMap::new() }
    }

    /// Adds a record and returns the spans that it completes, inner spans first.
    pub fn add(&mut self, record: &JournalRecord) -> Vec<RunSpan> {
        let mut completed = Vec::new();
        if let JournalEntry::RunStarted(started) = &record.entry {
            self.start_agent(record, started);
            return completed;
        }
        let Some((run, trace)) = self.run.clone() else { return completed };
        for depth in 0..=record.path.len() {
            if let Some(agent) = self.agents.get_mut(&record.path[..depth]) {
                agent.last_at = agent.last_at.max(record.at);
            }
        }
        let content = self.content;
        let Some(agent) = self.agents.get_mut(&record.path) else { return completed };
        let mut writer =
            SpanWriter { run: &run, trace, path: &record.path, content, completed: &mut completed };
        let ending = match &record.entry {
            JournalEntry::RunFinished(finished) => {
                if content == TraceContent::Included {
                    let message = Item::assistant(finished.output.clone());
                    let output =
                        messages_attribute(convention::GEN_AI_OUTPUT_MESSAGES, [&message].into_iter());
                    agent.attributes.push(output);
                }
                Some(("finished", None))
            }
            JournalEntry::RunFailed(failed) => {
                agent.add_tripped_guardrail(&failed.failure, record.at, &mut writer);
                Some(("failed", Some(failure_name(&failed.failure))))
            }
            JournalEntry::RunCancelled(_) => Some(("cancelled", None)),
            _ => {
                agent.add(record, &mut writer);
                None
            }
        };
        if let Some((status, failure)) = ending
            && let Some(agent) = self.agents.remove(&record.path)
        {
            agent.end(record.at, status, failure, &mut writer);
        }
        completed
    }

    fn start_agent(&mut self, record: &JournalRecord, started: &RunStarted) {
        let path = &record.path;
        if path.is_empty() {
            self.run = Some((started.run.clone(), trace_id_of_run(&started.run)));
            self.agents.clear();
        }
        let Some((run, _)) = &self.run else { return };
        let mut place = SpanPlace::of_agent(run, path);
        let parent = path.split_last().and_then(|(call, within)| {
            let turn = self.agents.get(within)?.turn.as_ref()?.number;
            place.turn = turn;
            let call = call.as_str();
            Some(SpanPlace { run, kind: RunSpanKind::ToolCall, path: within, turn, call, ordinal: 0 }.id())
        });
        let conversation = started.session.as_ref().map_or(run.as_str(), |session| session.as_str());
        let mut attributes = vec![
            KeyValue::new(convention::GEN_AI_OPERATION_NAME, "invoke_agent"),
            KeyValue::new(convention::GEN_AI_AGENT_NAME, started.agent.to_string()),
            KeyValue::new(convention::GEN_AI_CONVERSATION_ID, conversation.to_owned()),
            KeyValue::new(names::RUN_ID, run.to_string()),
        ];
        if self.content == TraceContent::Included {
            let input = started.input.iter().map(|item| &**item);
            attributes.push(messages_attribute(convention::GEN_AI_INPUT_MESSAGES, input));
        }
        let links = started.origin.iter().map(|origin| RunSpanLink {
            trace: trace_id_of_run(&origin.run),
            span: SpanPlace::of_agent(&origin.run, &[]).id(),
            attributes: vec![
                KeyValue::new(names::RUN_ID, origin.run.to_string()),
                KeyValue::new(names::FORK_SEQ, i64::try_from(origin.seq).unwrap_or(i64::MAX)),
            ],
        });
        let agent = OpenAgent {
            id: place.id(),
            parent,
            agent: started.agent.clone(),
            started_at: record.at,
            last_at: record.at,
            request_from: record.at,
            turn_count: 0,
            turn: None,
            budget_wait: None,
            budget_wait_count: 0,
            usage: Usage { requests: 0, ..Usage::default() },
            attributes,
            events: Vec::new(),
            links: links.collect(),
        };
        self.agents.insert(path.clone(), agent);
    }
}

/// Completes spans of one agent.
struct SpanWriter<'a> {
    run: &'a RunId,
    trace: TraceId,
    path: &'a [CallId],
    content: TraceContent,
    completed: &'a mut Vec<RunSpan>,
}

impl SpanWriter<'_> {
    fn id(&self, kind: RunSpanKind, turn: u64, call: &str, ordinal: u64) -> SpanId {
        SpanPlace { run: self.run, kind, path: self.path, turn, call, ordinal }.id()
    }

    /// Completes a span without events and links.
    fn complete(
        &mut self,
        id: SpanId,
        parent: SpanId,
        kind: RunSpanKind,
        name: String,
        times: SpanTimes,
    ) -> &mut RunSpan {
        let SpanTimes { from, to } = times;
        self.completed.push(RunSpan {
            trace: self.trace,
            id,
            parent: Some(parent),
            kind,
            name,
            started_at: from.min(to),
            ended_at: to,
            attributes: Vec::new(),
            events: Vec::new(),
            links: Vec::new(),
            status: RunSpanStatus::Unset,
        });
        let last = self.completed.len() - 1;
        &mut self.completed[last]
    }
}

/// Times of a span.
#[derive(Clone, Copy)]
struct SpanTimes {
    from: Timestamp,
    to: Timestamp,
}

impl OpenAgent {
    fn add(&mut self, record: &JournalRecord, writer: &mut SpanWriter<'_>) {
        let at = record.at;
        self.usage.add(&record.entry.model_usage());
        match &record.entry {
            JournalEntry::ModelResponded(responded) => self.add_response(responded, at, writer),
            JournalEntry::ResponseRejected(rejected) => {
                let error = Some(("response_rejected".to_owned(), None));
                let requested = RequestedModel::default();
                self.add_failed_request(&rejected.agent, &requested, &rejected.usage, error, at, writer);
            }
            JournalEntry::ModelRequestFailed(failed) => {
                let ModelRequestFailed { agent, retry_after_ms, .. } = failed;
                let error = Some(("model_request_failed".to_owned(), *retry_after_ms));
                let usage = failed.usage_or_unknown();
                self.add_failed_request(agent, &failed.requested, &usage, error, at, writer);
            }
            JournalEntry::CallHeld(held) => self.hold_call(held, at),
            JournalEntry::DecisionRecorded(decision) => self.decide(decision, at, writer),
            JournalEntry::CallStarted(started) => self.start_call(started, at, writer),
            JournalEntry::CallBodyEnded(ended) => {
                if let Some(call) = self.call_mut(&ended.call) {
                    call.body_ended_at = Some(at);
                }
            }
            JournalEntry::CallSettled(settled) => self.settle_call(settled, at, writer),
            JournalEntry::HandoffRecorded(handoff) => self.hand_off(&handoff.call, &handoff.to, at, writer),
            JournalEntry::OutputRejected(_) => self.push_event("output_rejected", at),
            JournalEntry::InputAdded(_) => self.push_event("input_added", at),
            JournalEntry::RunRestored(_) => self.push_event("run_restored", at),
            JournalEntry::ModelInputFiltered(_) => self.push_event("model_input_filtered", at),
            JournalEntry::HistoryCompacted(_) => self.push_event("history_compacted", at),
            JournalEntry::BudgetReached(reached) => self.reach_budget(reached, at),
            JournalEntry::RunStarted(_)
            | JournalEntry::BudgetReserved(_)
            | JournalEntry::DecisionRevoked(_)
            | JournalEntry::CallEndedLate(_)
            | JournalEntry::TurnContinued
            | JournalEntry::RunFinished(_)
            | JournalEntry::RunFailed(_)
            | JournalEntry::RunCancelled(_) => {}
        }
    }

    fn push_event(&mut self, name: &'static str, at: Timestamp) {
        self.events.push(RunSpanEvent { name, at, attributes: Vec::new() });
    }

    /// Closes the open turn if it has its response. The next request then begins at the last record, unless it says when.
    fn close_answered_turn(&mut self, writer: &mut SpanWriter<'_>) {
        if self.turn.as_ref().is_some_and(|turn| turn.has_response) {
            self.close_turn(writer);
        }
    }

    /// Begins a turn, unless one is open that has no response yet.
    fn begin_turn(&mut self, at: Timestamp, writer: &mut SpanWriter<'_>) -> &mut OpenTurn {
        self.close_answered_turn(writer);
        let started_at = self.request_from.min(at);
        let number = &mut self.turn_count;
        self.turn.get_or_insert_with(|| {
            *number += 1;
            OpenTurn {
                id: writer.id(RunSpanKind::Turn, *number, "", 0),
                number: *number,
                started_at,
                request_count: 0,
                has_response: false,
                calls: BTreeMap::new(),
            }
        })
    }

    fn add_response(&mut self, responded: &ModelResponded, at: Timestamp, writer: &mut SpanWriter<'_>) {
        self.close_answered_turn(writer);
        // The time at which the record before this one was written is the end of the turn before it.
        if responded.attempts == 1
            && let Some(requested_at) = responded.requested_at
        {
            self.request_from = requested_at;
        }
        let turn = self.begin_turn(at, writer);
        turn.has_response = true;
        for planned in &responded.calls {
            turn.calls.insert(planned.call.clone(), OpenCall::new(planned, responded, writer.content));
        }
        let span = self.complete_request(&responded.agent, &responded.usage, at, writer);
        name_request(span, &responded.requested);
        if let Some(model) = &responded.model {
            if responded.requested.model.is_none() {
                span.name = format!("chat {model}");
            }
            span.attributes.push(KeyValue::new(convention::GEN_AI_RESPONSE_MODEL, model.clone()));
        }
        span.attributes.push(finish_reasons_attribute(responded));
        let ids = [
            (convention::GEN_AI_RESPONSE_ID, &responded.response_id),
            (names::REQUEST_ID, &responded.request_id),
        ];
        let ids = ids.into_iter().filter_map(|(name, id)| Some(KeyValue::new(name, id.clone()?)));
        span.attributes.extend(ids);
        if writer.content == TraceContent::Included {
            let items = responded.items.iter().map(|item| &**item);
            let messages = messages_attribute(convention::GEN_AI_OUTPUT_MESSAGES, items);
            if let Some(span) = writer.completed.last_mut() {
                span.attributes.push(messages);
            }
        }
        self.request_from = at;
    }

    fn add_failed_request(
        &mut self,
        agent: &AgentName,
        requested: &RequestedModel,
        usage: &Usage,
        error: Option<(String, Option<u64>)>,
        at: Timestamp,
        writer: &mut SpanWriter<'_>,
    ) {
        self.begin_turn(at, writer);
        let span = self.complete_request(agent, usage, at, writer);
        name_request(span, requested);
        let mut delay = 0;
        if let Some((name, retry_after_ms)) = error {
            span.attributes.push(KeyValue::new(convention::ERROR_TYPE, name.clone()));
            if let Some(after) = retry_after_ms {
                delay = after;
                span.attributes
                    .push(KeyValue::new(names::RETRY_AFTER_MS, i64::try_from(after).unwrap_or(i64::MAX)));
            }
            span.status = RunSpanStatus::Error(name);
        }
        self.request_from = Timestamp(at.0.saturating_add(delay));
    }

    /// Completes the span of a request to the model that ended at `at`. A turn is open.
    fn complete_request<'w>(
        &mut self,
        agent: &AgentName,
        usage: &Usage,
        at: Timestamp,
        writer: &'w mut SpanWriter<'_>,
    ) -> &'w mut RunSpan {
        let (parent, number, ordinal) = match &mut self.turn {
            Some(turn) => {
                turn.request_count += 1;
                (turn.id, turn.number, turn.request_count)
            }
            None => (self.id, 0, 0),
        };
        let id = writer.id(RunSpanKind::ModelRequest, number, "", ordinal);
        let times = SpanTimes { from: self.request_from, to: at };
        let span = writer.complete(id, parent, RunSpanKind::ModelRequest, "chat".to_owned(), times);
        span.attributes.push(KeyValue::new(convention::GEN_AI_OPERATION_NAME, "chat"));
        span.attributes.push(KeyValue::new(convention::GEN_AI_AGENT_NAME, agent.to_string()));
        span.attributes.extend(usage_attributes(usage));
        span
    }

    fn call_mut(&mut self, call: &CallId) -> Option<&mut OpenCall> {
        self.turn.as_mut()?.calls.get_mut(call)
    }

    fn hold_call(&mut self, held: &CallHeld, at: Timestamp) {
        let Some(call) = self.call_mut(&held.call) else { return };
        let reason = serialised_name(serde_json::to_value(&held.reason).ok());
        let attributes = vec![KeyValue::new(names::WAIT_REASON, reason)];
        call.wait = Some(OpenWait { started_at: at, attributes });
    }

    fn decide(&mut self, recorded: &DecisionRecorded, at: Timestamp, writer: &mut SpanWriter<'_>) {
        let decision = serialised_name(serde_json::to_value(&recorded.decision).ok());
        let mut attributes = vec![KeyValue::new(names::WAIT_DECISION, decision)];
        let decided_by = recorded.decided_by.clone();
        attributes.extend(decided_by.map(|name| KeyValue::new(names::WAIT_DECIDED_BY, name)));
        if recorded.call.as_str() == BUDGET_CALL {
            return self.end_budget_wait(attributes, at, writer);
        }
        self.end_wait(&recorded.call, attributes, at, writer);
    }

    fn reach_budget(&mut self, reached: &BudgetReached, at: Timestamp) {
        self.push_event("budget_reached", at);
        if reached.question.is_some() {
            let resource = serialised_name(serde_json::to_value(reached.budget.resource).ok());
            let attributes = vec![
                KeyValue::new(names::WAIT_REASON, "budget"),
                KeyValue::new(names::BUDGET_RESOURCE, resource),
            ];
            self.budget_wait = Some(OpenWait { started_at: at, attributes });
        }
    }

    /// Completes the span of the question about a budget. It is beside the turns: the next one begins after the answer.
    fn end_budget_wait(&mut self, attributes: Vec<KeyValue>, at: Timestamp, writer: &mut SpanWriter<'_>) {
        let Some(wait) = self.budget_wait.take() else { return };
        self.budget_wait_count += 1;
        let id = writer.id(RunSpanKind::PersonWait, 0, BUDGET_CALL, self.budget_wait_count);
        let times = SpanTimes { from: wait.started_at, to: at };
        let name = "wait_for_person budget".to_owned();
        let span = writer.complete(id, self.id, RunSpanKind::PersonWait, name, times);
        span.attributes.extend(wait.attributes);
        span.attributes.extend(attributes);
        // The request that was held back begins now.
        self.request_from = self.request_from.max(at);
    }

    /// Completes the span of the guardrail of the agent that has failed the run. Its start is not in the journal, and
    /// neither is a guardrail that passed.
    fn add_tripped_guardrail(&self, failure: &RunFailure, at: Timestamp, writer: &mut SpanWriter<'_>) {
        let (name, stage, verdict) = match failure {
            RunFailure::InputGuardrailTripped { guardrail } => (guardrail, Some("input"), "failed_run"),
            RunFailure::OutputGuardrailTripped { guardrail } => (guardrail, Some("output"), "failed_run"),
            RunFailure::GuardrailFailed { guardrail, .. } => (guardrail, None, "failed"),
            _ => return,
        };
        let id = writer.id(RunSpanKind::Guardrail, 0, "", 1);
        let times = SpanTimes { from: at, to: at };
        let span = writer.complete(id, self.id, RunSpanKind::Guardrail, format!("guardrail {name}"), times);
        span.attributes.push(KeyValue::new(names::GUARDRAIL_NAME, name.clone()));
        span.attributes.extend(stage.map(|stage| KeyValue::new(names::GUARDRAIL_STAGE, stage)));
        span.attributes.push(KeyValue::new(names::GUARDRAIL_VERDICT, verdict));
    }

    fn end_wait(
        &mut self,
        call: &CallId,
        attributes: Vec<KeyValue>,
        at: Timestamp,
        writer: &mut SpanWriter<'_>,
    ) {
        let Some(turn) = &mut self.turn else { return };
        let Some(open) = turn.calls.get_mut(call) else { return };
        let Some(wait) = open.wait.take() else { return };
        open.wait_count += 1;
        let id = writer.id(RunSpanKind::PersonWait, turn.number, call.as_str(), open.wait_count);
        let times = SpanTimes { from: wait.started_at, to: at };
        let name = format!("wait_for_person {}", open.tool);
        let span = writer.complete(id, turn.id, RunSpanKind::PersonWait, name, times);
        span.attributes.push(KeyValue::new(convention::GEN_AI_TOOL_NAME, open.tool.to_string()));
        span.attributes.push(KeyValue::new(convention::GEN_AI_TOOL_CALL_ID, call.to_string()));
        span.attributes.extend(wait.attributes);
        span.attributes.extend(attributes);
    }

    fn start_call(&mut self, started: &CallStarted, at: Timestamp, writer: &mut SpanWriter<'_>) {
        self.end_wait(&started.call, Vec::new(), at, writer);
        let Some(call) = self.call_mut(&started.call) else { return };
        call.attempts = started.attempt;
        match call.started_at {
            None => call.started_at = Some(at),
            Some(_) => {
                let attempt = KeyValue::new(names::CALL_ATTEMPTS, i64::from(started.attempt));
                let name = if started.is_retry { "retry" } else { "restart" };
                call.events.push(RunSpanEvent { name, at, attributes: vec![attempt] });
            }
        }
    }

    fn settle_call(&mut self, settled: &CallSettled, at: Timestamp, writer: &mut SpanWriter<'_>) {
        self.end_wait(&settled.call, Vec::new(), at, writer);
        let Some(turn) = &mut self.turn else { return };
        let Some(call) = turn.calls.remove(&settled.call) else { return };
        let output =
            (writer.content == TraceContent::Included).then(|| truncated(output_text(&settled.output)));
        let status = call_status_name(&settled.status);
        let is_error = is_error_status(&settled.status);
        call.complete(&settled.call, turn, at, &settled.guardrails, (status, is_error), output, writer);
    }

    fn hand_off(&mut self, call: &CallId, to: &AgentName, at: Timestamp, writer: &mut SpanWriter<'_>) {
        let Some(turn) = &mut self.turn else { return };
        turn.calls.remove(call);
        let id = writer.id(RunSpanKind::Handoff, turn.number, call.as_str(), 0);
        let times = SpanTimes { from: at, to: at };
        let span = writer.complete(id, turn.id, RunSpanKind::Handoff, format!("handoff {to}"), times);
        span.attributes.push(KeyValue::new(convention::GEN_AI_AGENT_NAME, to.to_string()));
        span.attributes.push(KeyValue::new(convention::GEN_AI_TOOL_CALL_ID, call.to_string()));
    }

    /// Completes the span of the open turn, with those of its calls that have no settlement.
    fn close_turn(&mut self, writer: &mut SpanWriter<'_>) {
        let calls: Vec<CallId> = self.turn.iter().flat_map(|turn| turn.calls.keys().cloned()).collect();
        for call in calls {
            self.end_wait(&call, Vec::new(), self.last_at, writer);
        }
        let Some(mut turn) = self.turn.take() else { return };
        for (id, call) in std::mem::take(&mut turn.calls) {
            // A call that never started did nothing, and has no span.
            if call.started_at.is_some() {
                call.complete(&id, &turn, self.last_at, &[], ("interrupted".to_owned(), true), None, writer);
            }
        }
        let times = SpanTimes { from: turn.started_at, to: self.last_at };
        let name = format!("turn {}", turn.number);
        let span = writer.complete(turn.id, self.id, RunSpanKind::Turn, name, times);
        let number = i64::try_from(turn.number).unwrap_or(i64::MAX);
        span.attributes.push(KeyValue::new(names::TURN_NUMBER, number));
        self.request_from = self.last_at;
    }

    fn end(
        mut self,
        at: Timestamp,
        status: &'static str,
        failure: Option<String>,
        writer: &mut SpanWriter<'_>,
    ) {
        self.close_turn(writer);
        self.end_budget_wait(Vec::new(), at, writer);
        let mut attributes = self.attributes;
        attributes.push(KeyValue::new(names::RUN_STATUS, status));
        attributes.extend(usage_attributes(&self.usage));
        attributes.extend(failure.clone().map(|name| KeyValue::new(convention::ERROR_TYPE, name)));
        writer.completed.push(RunSpan {
            trace: writer.trace,
            id: self.id,
            parent: self.parent,
            kind: RunSpanKind::Agent,
            name: format!("invoke_agent {}", self.agent),
            started_at: self.started_at,
            ended_at: at,
            attributes,
            events: self.events,
            links: self.links,
            status: failure.map_or(RunSpanStatus::Unset, RunSpanStatus::Error),
        });
    }
}

/// Names the span of a request after the model that was asked.
fn name_request(span: &mut RunSpan, requested: &RequestedModel) {
    if let Some(model) = &requested.model {
        span.name = format!("chat {model}");
    }
    span.attributes.extend(requested_attributes(requested));
}

impl OpenCall {
    fn new(planned: &PlannedCall, responded: &ModelResponded, content: TraceContent) -> Self {
        let tool_type = match planned.key {
            ToolKey::Mcp { .. } => "extension",
            ToolKey::Bare(_) | ToolKey::Namespaced { .. } | ToolKey::Deferred(_) => "function",
        };
        let mut attributes = vec![
            KeyValue::new(convention::GEN_AI_OPERATION_NAME, "execute_tool"),
            KeyValue::new(convention::GEN_AI_TOOL_NAME, planned.key.to_string()),
            KeyValue::new(convention::GEN_AI_TOOL_CALL_ID, planned.call.to_string()),
            KeyValue::new(convention::GEN_AI_TOOL_TYPE, tool_type),
            KeyValue::new(convention::GEN_AI_AGENT_NAME, responded.agent.to_string()),
        ];
        if let CallDisposition::Execute { effect, .. } = &planned.disposition {
            let effect = serialised_name(serde_json::to_value(effect).ok());
            attributes.push(KeyValue::new(names::CALL_EFFECT, effect));
        }
        let arguments = responded.items.iter().find_map(|item| match &**item {
            Item::Call(call) if call.id == planned.call => Some(&call.arguments),
            _ => None,
        });
        if content == TraceContent::Included
            && let Some(arguments) = arguments
        {
            let arguments = truncated(arguments.clone());
            attributes.push(KeyValue::new(convention::GEN_AI_TOOL_CALL_ARGUMENTS, arguments));
        }
        Self {
            tool: planned.key.clone(),
            attributes,
            started_at: None,
            attempts: 0,
            body_ended_at: None,
            wait: None,
            wait_count: 0,
            events: Vec::new(),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a settlement, from its two callers")]
    fn complete(
        self,
        call: &CallId,
        turn: &OpenTurn,
        at: Timestamp,
        guardrails: &[GuardrailRecord],
        (status, is_error): (String, bool),
        output: Option<String>,
        writer: &mut SpanWriter<'_>,
    ) {
        let id = writer.id(RunSpanKind::ToolCall, turn.number, call.as_str(), 0);
        let started_at = self.started_at.unwrap_or(at);
        for (ordinal, guardrail) in guardrails.iter().enumerate() {
            let ordinal = u64::try_from(ordinal).unwrap_or(u64::MAX);
            let guardrail_id = writer.id(RunSpanKind::Guardrail, turn.number, call.as_str(), ordinal);
            let times = match guardrail.stage {
                GuardrailStage::Input => SpanTimes { from: started_at, to: started_at },
                GuardrailStage::Output => SpanTimes { from: self.body_ended_at.unwrap_or(at), to: at },
            };
            let name = format!("guardrail {}", guardrail.name);
            let span = writer.complete(guardrail_id, id, RunSpanKind::Guardrail, name, times);
            let serialised = |value: serde_json::Result<_>| serialised_name(value.ok());
            span.attributes.extend([
                KeyValue::new(names::GUARDRAIL_NAME, guardrail.name.clone()),
                KeyValue::new(names::GUARDRAIL_STAGE, serialised(serde_json::to_value(guardrail.stage))),
                KeyValue::new(names::GUARDRAIL_VERDICT, serialised(serde_json::to_value(guardrail.verdict))),
            ]);
        }
        let times = SpanTimes { from: started_at, to: at };
        let name = format!("execute_tool {}", self.tool);
        let span = writer.complete(id, turn.id, RunSpanKind::ToolCall, name, times);
        span.attributes = self.attributes;
        span.attributes.push(KeyValue::new(names::CALL_ATTEMPTS, i64::from(self.attempts)));
        span.attributes.push(KeyValue::new(names::CALL_STATUS, status.clone()));
        span.attributes.extend(output.map(|text| KeyValue::new(convention::GEN_AI_TOOL_CALL_RESULT, text)));
        span.events = self.events;
        if is_error {
            span.attributes.push(KeyValue::new(convention::ERROR_TYPE, status.clone()));
            span.status = RunSpanStatus::Error(status);
        }
    }
}

/// Returns true if a call with this status went wrong. A rejection and a guardrail's block are decisions.
fn is_error_status(status: &CallStatus) -> bool {
    match status {
        CallStatus::Failed
        | CallStatus::TimedOut
        | CallStatus::TimedOutStillRunning
        | CallStatus::InvalidArguments
        | CallStatus::UnknownTool
        | CallStatus::OutcomeUnknown => true,
        CallStatus::Succeeded
        | CallStatus::SurplusHandoff
        | CallStatus::Rejected
        | CallStatus::BlockedByGuardrail
        | CallStatus::OutputWithheld
        | CallStatus::Deduplicated
        | CallStatus::Cancelled
        | CallStatus::Reconciled => false,
    }
}
