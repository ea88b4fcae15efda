//! AG-UI in front of an agent: the events of a run, pauses as interrupts, and their answers.
//!
//! A request without answers is a new run. One with answers (`resume`) decides about the calls of the interrupts, in the name
//! of the authenticated person and bound to the sheet that the interrupt carried, and goes on with the events of that run.
//! Edited arguments are another sheet: the answer to an edit is an interrupt with that sheet, and its approval is the decision.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use windlass::core::canonical::Digest;
use windlass::core::id::{CallPath, RunId};
use windlass::fleet::RunSubmission;
use windlass::store::load_paused;

use super::live_text::{RunEndPiece, TextPiece, TextReader};
use super::read_message;
use crate::access::{AccessRole, PersonIdentity};
use crate::api::{
    ApiError, DecisionBody, DecisionInput, InboxItem, JsonBody, RequestPerson, ReviewBody, StreamPermit,
    UrlPath, decide_calls, find_viewable_run, sheet_of, start_submission, stream_response,
};
use crate::server::ServerState;
use crate::spending::date_of_day;

/// Version of the protocol.
const PROTOCOL_VERSION: &str = "1.0";
/// Prefix of the ids of interrupts.
const INTERRUPT_PREFIX: &str = "interrupt-";

/// The input of a run. Tools, state and context of the client are not passed on: the agent has its own.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunAgentInput {
    thread_id: String,
    run_id: String,
    #[serde(default)]
    messages: Vec<InputMessage>,
    #[serde(default)]
    resume: Option<Vec<ResumeEntry>>,
}

#[derive(Deserialize)]
struct InputMessage {
    role: String,
    #[serde(default)]
    content: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResumeEntry {
    interrupt_id: String,
    status: ResumeStatus,
    #[serde(default)]
    payload: Value,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum ResumeStatus {
    Resolved,
    Cancelled,
}

/// The call of an interrupt, as it was displayed. The id of the interrupt has it, so that any server can read it.
#[derive(Serialize, Deserialize)]
struct InterruptTarget {
    run: String,
    call: String,
    attempt: u32,
    displayed: String,
    reason: String,
    /// Edited arguments, if they were displayed in place of the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arguments: Option<Map<String, Value>>,
}

impl InterruptTarget {
    fn to_id(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("{INTERRUPT_PREFIX}{hex}")
    }

    fn from_id(id: &str) -> Option<Self> {
        let hex = id.strip_prefix(INTERRUPT_PREFIX)?.as_bytes();
        let digit = |byte: u8| (byte as char).to_digit(16);
        let bytes: Option<Vec<u8>> = hex
            .chunks(2)
            .map(|pair| match pair {
                [high, low] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
                _ => None,
            })
            .collect();
        serde_json::from_slice(&bytes?).ok()
    }
}

pub(super) async fn run_agent(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(agent): UrlPath<String>,
    JsonBody(input): JsonBody<RunAgentInput>,
) -> Result<Response, ApiError> {
    let permit = StreamPermit::acquire(&state, &person)?;
    let (run, source) = match &input.resume {
        Some(entries) if !entries.is_empty() => answer_interrupts(&state, &person, entries).await?,
        _ => start_run(&state, &person, agent, &input).await?,
    };
    let writer = AgUiWriter {
        state: state.clone(),
        person,
        run,
        thread_id: input.thread_id,
        run_id: input.run_id,
        open_message: None,
        message_count: 0,
        is_done: false,
    };
    let events = stream::unfold((source, writer, true), |(mut source, mut writer, is_first)| async move {
        let events = match &mut source {
            _ if is_first => writer.start(),
            _ if writer.is_done => return None,
            EventSource::Run(reader) => writer.next_events(reader).await?,
            EventSource::Review(interrupts) => writer.interrupt_run(std::mem::take(interrupts)),
        };
        Some((stream::iter(events), (source, writer, false)))
    });
    Ok(stream_response(&state, permit, events.flatten()))
}

/// The source of the events of a request.
enum EventSource {
    /// The records and texts of the run.
    Run(Box<TextReader>),
    /// Calls with edited arguments, to be displayed before they are decided about. Nothing was decided.
    Review(Vec<Value>),
}

/// Starts a run. The same thread and run of the same person start nothing twice.
async fn start_run(
    state: &Arc<ServerState>,
    person: &PersonIdentity,
    agent: String,
    input: &RunAgentInput,
) -> Result<(RunId, EventSource), ApiError> {
    let mut items = Vec::new();
    for message in &input.messages {
        // The client has the results of the agent's tools and its activities in its history; the agent's texts tell of them.
        let is_text = matches!(message.role.as_str(), "user" | "assistant" | "system" | "developer");
        let is_empty = message.content.as_str().is_none_or(str::is_empty) && !message.content.is_array();
        if is_text && !is_empty {
            items.push(read_message(Some(&message.role), &message.content)?);
        }
    }
    if items.is_empty() {
        return Err(ApiError::invalid("there is no message"));
    }
    let parts = ["windlass ag-ui", &person.name, &input.thread_id, &input.run_id];
    let run = RunId::new(format!("agui-{}", Digest::of_parts(&parts)));
    let mut reader = TextReader::new(state, &run).await;
    let submission = RunSubmission::new(run.clone(), agent, items).tenant(person.name.clone());
    if start_submission(state, person, &submission).await? {
        reader.note_missed_deltas();
    }
    Ok((run, EventSource::Run(Box::new(reader))))
}

/// Posts the answers to interrupts, which are of one run, and reads the run from there. If one of them is refused,
/// nothing is posted. If one of them edits arguments that nobody has seen displayed, nothing is posted either, and all
/// calls are displayed again, with those arguments.
async fn answer_interrupts(
    state: &Arc<ServerState>,
    person: &PersonIdentity,
    entries: &[ResumeEntry],
) -> Result<(RunId, EventSource), ApiError> {
    let unknown = || ApiError::invalid("`interruptId` is not of this server");
    let mut answers = Vec::new();
    for entry in entries {
        let target = InterruptTarget::from_id(&entry.interrupt_id).ok_or_else(unknown)?;
        let decision = read_answer(&target, entry)?;
        answers.push((target, decision));
    }
    let Some(run) = answers.first().map(|(target, _)| target.run.clone()) else { return Err(unknown()) };
    if answers.iter().any(|(target, _)| target.run != run) {
        return Err(ApiError::invalid("the interrupts are of several runs"));
    }
    let (id, _) = find_viewable_run(state, person, &run, AccessRole::Approve).await?;
    let is_unseen = |(target, decision): &(InterruptTarget, DecisionInput)| match decision {
        DecisionInput::ApproveEdited { arguments } => target.arguments.as_ref() != Some(arguments),
        _ => false,
    };
    if answers.iter().any(is_unseen) {
        let mut interrupts = Vec::new();
        for (target, decision) in answers {
            let arguments = match decision {
                DecisionInput::ApproveEdited { arguments } => Some(arguments),
                _ => target.arguments,
            };
            let path = CallPath::from(target.call.as_str());
            let body = ReviewBody { call: target.call, arguments: arguments.clone() };
            let item = sheet_of(state, person, &run, body).await?;
            interrupts.push(interrupt(&item, &path, arguments));
        }
        return Ok((id, EventSource::Review(interrupts)));
    }
    let records = load_paused(&*state.queue, &id).await?.record().record_count();
    let mut reader = TextReader::from_record(state, &id, records).await;
    let bodies = answers.into_iter().map(|(target, decision)| {
        let InterruptTarget { call, attempt, displayed, .. } = target;
        DecisionBody { call, attempt, displayed, decision, for_run: false, signature: None }
    });
    if let Some(taken) = decide_calls(state, person, &run, bodies.collect()).await? {
        // The client repeats answers that were taken, and may have missed all that followed.
        reader = TextReader::from_record(state, &id, taken).await;
        reader.note_missed_deltas();
    }
    Ok((id, EventSource::Run(Box::new(reader))))
}

/// Reads the answer to an interrupt.
fn read_answer(target: &InterruptTarget, entry: &ResumeEntry) -> Result<DecisionInput, ApiError> {
    let payload = &entry.payload;
    let message = payload["message"].as_str().map(str::to_owned);
    if entry.status == ResumeStatus::Cancelled {
        return Ok(match target.reason.as_str() {
            "in_doubt" => DecisionInput::OutcomeUnknown {},
            _ => DecisionInput::Reject { message },
        });
    }
    match target.reason.as_str() {
        "question" => Ok(DecisionInput::Answer { value: payload.clone() }),
        "in_doubt" => match payload["outcome"].as_str() {
            Some("executed") => {
                let output = payload["output"].as_str().unwrap_or_default().to_owned();
                Ok(DecisionInput::ConfirmExecuted { output })
            }
            Some("not_executed") => Ok(DecisionInput::ConfirmNotExecuted {}),
            Some("unknown") => Ok(DecisionInput::OutcomeUnknown {}),
            _ => Err(ApiError::invalid("`outcome` is executed, not_executed or unknown")),
        },
        _ => match (payload["approved"].as_bool(), &payload["arguments"]) {
            (Some(true), Value::Object(arguments)) => {
                Ok(DecisionInput::ApproveEdited { arguments: arguments.clone() })
            }
            (Some(true), _) => Ok(match target.arguments.clone() {
                Some(arguments) => DecisionInput::ApproveEdited { arguments },
                None => DecisionInput::Approve {},
            }),
            (Some(false), _) => Ok(DecisionInput::Reject { message }),
            (None, _) => Err(ApiError::invalid("`approved` is true or false")),
        },
    }
}

/// Writes the events of a run.
struct AgUiWriter {
    state: Arc<ServerState>,
    person: PersonIdentity,
    run: RunId,
    thread_id: String,
    run_id: String,
    /// Id of the message that is being written.
    open_message: Option<String>,
    message_count: u32,
    is_done: bool,
}

impl AgUiWriter {
    fn start(&self) -> Vec<Event> {
        let mut data = json!({ "type": "RUN_STARTED", "protocolVersion": PROTOCOL_VERSION });
        self.add_ids(&mut data);
        vec![event(&data)]
    }

    fn add_ids(&self, data: &mut Value) {
        data["threadId"] = json!(self.thread_id);
        data["runId"] = json!(self.run_id);
        data["metadata"] = json!({ "windlass": { "run": self.run.as_str() } });
    }

    async fn next_events(&mut self, reader: &mut TextReader) -> Option<Vec<Event>> {
        if self.is_done {
            return None;
        }
        Some(match reader.next().await {
            Ok(Some(TextPiece::Delta(delta))) => self.write_delta(&delta),
            Ok(Some(TextPiece::MessageEnd(_))) => self.close_message(),
            Ok(Some(TextPiece::Record(record))) => self.write_record(&record).await,
            Ok(Some(TextPiece::End(end))) => self.write_end(&end),
            Ok(None) => self.fail("the run was lost from view", "store_unavailable"),
            Err(error) => self.fail(&error.message, error.code),
        })
    }

    fn write_delta(&mut self, delta: &str) -> Vec<Event> {
        let mut events = Vec::new();
        if self.open_message.is_none() {
            self.message_count += 1;
            let id = format!("{}-message-{}", self.run_id, self.message_count);
            events
                .push(event(&json!({ "type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant" })));
            self.open_message = Some(id);
        }
        events.push(event(
            &json!({ "type": "TEXT_MESSAGE_CONTENT", "messageId": self.open_message, "delta": delta }),
        ));
        events
    }

    fn close_message(&mut self) -> Vec<Event> {
        let open = self.open_message.take();
        open.map(|id| event(&json!({ "type": "TEXT_MESSAGE_END", "messageId": id }))).into_iter().collect()
    }

    async fn write_record(&mut self, record: &Value) -> Vec<Event> {
        let is_nested = record["path"].as_array().is_some_and(|path| !path.is_empty());
        let mut events = Vec::new();
        if let Some(responded) = record.get("model_responded").filter(|_| !is_nested) {
            for item in responded["items"].as_array().into_iter().flatten() {
                if item["type"] == "call" {
                    let (id, name) = (&item["id"], &item["name"]);
                    events.extend([
                        event(&json!({ "type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": name })),
                        event(&json!({ "type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": item["arguments"] })),
                        event(&json!({ "type": "TOOL_CALL_END", "toolCallId": id })),
                    ]);
                }
            }
        }
        if let Some(settled) = record.get("call_settled").filter(|_| !is_nested) {
            let call = &settled["call"];
            let id = format!("{}-output-{}", self.run_id, call.as_str().unwrap_or_default());
            let result = json!({ "type": "TOOL_CALL_RESULT", "messageId": id, "toolCallId": call, "role": "tool",
                "content": output_text(&settled["output"]) });
            events.push(event(&result));
        }
        // A settlement may let the run pause for a sibling that is held.
        let may_pause =
            ["call_held", "call_settled", "budget_reached"].iter().any(|kind| record.get(*kind).is_some());
        if may_pause {
            match self.interrupts().await {
                Ok(interrupts) if interrupts.is_empty() => {}
                Ok(interrupts) => events.extend(self.interrupt_run(interrupts)),
                Err(error) => events.extend(self.fail(&error.message, error.code)),
            }
        }
        events
    }

    /// Ends the stream with calls that wait for a person.
    fn interrupt_run(&mut self, interrupts: Vec<Value>) -> Vec<Event> {
        self.is_done = true;
        let mut events = self.close_message();
        let mut data = json!({ "type": "RUN_FINISHED",
            "outcome": { "type": "interrupt", "interrupts": interrupts } });
        self.add_ids(&mut data);
        events.push(event(&data));
        events
    }

    /// Returns the calls that the run waits for, if it waits.
    async fn interrupts(&self) -> Result<Vec<Value>, ApiError> {
        let paused = load_paused(&*self.state.queue, &self.run).await?;
        if !paused.record().state().is_paused() {
            return Ok(Vec::new());
        }
        let mut interrupts = Vec::new();
        for pending in paused.pending_calls().into_iter().filter(|pending| pending.posted.is_none()) {
            let body = ReviewBody { call: pending.path.to_string(), arguments: None };
            let item = sheet_of(&self.state, &self.person, self.run.as_str(), body).await?;
            interrupts.push(interrupt(&item, &pending.path, None));
        }
        Ok(interrupts)
    }

    fn write_end(&mut self, end: &RunEndPiece) -> Vec<Event> {
        self.is_done = true;
        let mut events = self.close_message();
        let usage = json!([{ "inputTokens": end.input_tokens, "outputTokens": end.output_tokens,
            "totalTokens": end.total_tokens() }]);
        let mut data = match &end.error {
            None => json!({ "type": "RUN_FINISHED", "outcome": { "type": "success" } }),
            Some(_) if end.is_cancelled => {
                json!({ "type": "RUN_FINISHED", "outcome": { "type": "cancelled" } })
            }
            Some(error) => {
                let data =
                    json!({ "type": "RUN_ERROR", "message": error, "code": "run_failed", "usage": usage });
                events.push(event(&data));
                return events;
            }
        };
        data["usage"] = usage;
        self.add_ids(&mut data);
        events.push(event(&data));
        events
    }

    fn fail(&mut self, message: &str, code: &str) -> Vec<Event> {
        self.is_done = true;
        vec![event(&json!({ "type": "RUN_ERROR", "message": message, "code": code }))]
    }
}

fn event(data: &Value) -> Event {
    Event::default().data(data.to_string())
}

/// Returns the text of an output: all of it, or the texts of its parts.
fn output_text(output: &Value) -> String {
    match output {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// Describes a call that waits, with edited arguments if they are displayed.
fn interrupt(item: &InboxItem, path: &CallPath, arguments: Option<Map<String, Value>>) -> Value {
    let tool_call = path.parent_calls().is_empty().then(|| path.call().as_str().to_owned());
    let target = InterruptTarget {
        run: item.run.clone(),
        call: item.call.clone(),
        attempt: item.attempt,
        displayed: item.sheet.digest.clone(),
        reason: item.reason.clone(),
        arguments,
    };
    let (reason, schema) = match item.reason.as_str() {
        "question" => ("input_required", item.answer_schema.clone()),
        "in_doubt" => ("confirmation", Some(outcome_schema())),
        _ => ("tool_call", Some(approval_schema(item))),
    };
    let lines = std::iter::once(&item.sheet.title).chain(&item.sheet.question);
    let message = lines.map(String::as_str).collect::<Vec<_>>().join("\n");
    let mut data = json!({ "id": target.to_id(), "reason": reason, "message": message,
        "metadata": { "windlass": { "run": item.run, "call": item.call, "tool": item.tool, "agent": item.agent,
            "effect": item.effect, "sheet": item.sheet } } });
    if let Some(schema) = schema.filter(Value::is_object) {
        data["responseSchema"] = schema;
    }
    if let Some(call) = tool_call.filter(|_| item.tool != windlass::core::run::BUDGET_CALL) {
        data["toolCallId"] = json!(call);
    }
    if let Some(time) = item.expires_at {
        data["expiresAt"] = json!(iso_time(time));
    }
    data
}

fn approval_schema(item: &InboxItem) -> Value {
    let mut properties = Map::new();
    properties.insert("approved".to_owned(), json!({ "type": "boolean" }));
    properties.insert(
        "message".to_owned(),
        json!({ "type": "string", "description": "Reason for the model, with a rejection." }),
    );
    let arguments = item.arguments_schema.clone().unwrap_or_else(|| json!({ "type": "object" }));
    properties.insert("arguments".to_owned(), arguments);
    json!({ "type": "object", "properties": properties, "required": ["approved"] })
}

fn outcome_schema() -> Value {
    json!({ "type": "object", "properties": {
        "outcome": { "enum": ["executed", "not_executed", "unknown"] },
        "output": { "type": "string", "description": "The result, if it was executed." } },
        "required": ["outcome"] })
}

/// Writes a time in milliseconds since 1970 by ISO 8601.
fn iso_time(ms: u64) -> String {
    let (day, rest) = (ms / 86_400_000, ms % 86_400_000);
    let (hours, minutes) = (rest / 3_600_000, rest / 60_000 % 60);
    format!("{}T{hours:02}:{minutes:02}:{:02}.{:03}Z", date_of_day(day), rest / 1_000 % 60, rest % 1_000)
}

/// Reads the interrupts and the answers of an input.
#[cfg(test)]
pub(super) fn read_all_answers(input: &RunAgentInput) {
    for entry in input.resume.iter().flatten() {
        if let Some(target) = InterruptTarget::from_id(&entry.interrupt_id) {
            let _ = read_answer(&target, entry);
        }
    }
}

/// Reads the id of an interrupt.
#[cfg(test)]
pub(super) fn read_interrupt(id: &str) {
    if let Some(target) = InterruptTarget::from_id(id) {
        assert!(InterruptTarget::from_id(&target.to_id()).is_some(), "an id is read again");
    }
}
