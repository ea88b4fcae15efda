//! Responses in front of an agent.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use windlass::core::id::SessionId;
use windlass::core::item::Item;
use windlass::core::run::{RunEnd, RunItem, RunItemKind};
use windlass::error::StoreErrorKind;
use windlass::fleet::{RunQueue, RunSubmission};
use windlass::model::FinishReason;
use windlass::store::{OpenRunError, load_paused};
use windlass_text::SafeText;

use super::chat::read_to_end;
use super::live_text::{RunEndPiece, TextPiece, TextReader};
use super::{OfferedTools, RequestContent, read_message, request_run_id};
use crate::access::AccessRole;
use crate::api::{
    ApiError, JsonBody, RequestPerson, StreamPermit, UrlPath, find_viewable_run, run_blocking,
    start_submission, stream_response,
};
use crate::server::{ServerState, wall_clock_now};

/// A request. Fields for a model are the agent's own and are ignored.
#[derive(Deserialize)]
pub(super) struct ResponseRequest {
    model: String,
    input: Value,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    background: bool,
    previous_response_id: Option<String>,
    #[serde(flatten)]
    tools: OfferedTools,
}

pub(super) async fn create(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ResponseRequest>,
) -> Result<Response, ApiError> {
    request.tools.refuse()?;
    let input = match &request.input {
        Value::String(text) => vec![Arc::new(Item::user(text.clone()))],
        Value::Array(items) => items
            .iter()
            .map(|item| read_message(item["role"].as_str(), &item["content"]))
            .collect::<Result<Vec<_>, _>>()?,
        _ => return Err(ApiError::invalid("`input` is a text or a list of messages")),
    };
    let content = RequestContent {
        prefix: "resp_",
        agent: &request.model,
        input: &input,
        previous: request.previous_response_id.as_deref(),
    };
    let run = request_run_id(&state, &person.name, &headers, &content)?;
    // The responses of a conversation share a session, which has the id of the first of them.
    let session = match &request.previous_response_id {
        None => SessionId::from(run.as_str()),
        Some(previous) => {
            let (id, _) = find_viewable_run(&state, &person, previous, AccessRole::View).await?;
            let queued = state.queue.load_queued_run(&id).await?;
            let session = queued.and_then(|queued| queued.submission.session);
            session.ok_or_else(|| ApiError::invalid("the previous response has no conversation"))?
        }
    };
    let permit = StreamPermit::acquire(&state, &person)?;
    let mut reader = TextReader::new(&state, &run).await;
    let submission = RunSubmission::new(run.clone(), request.model.as_str(), input)
        .tenant(person.name.clone())
        .session(session);
    if start_submission(&state, &person, &submission).await? {
        reader.note_missed_deltas();
    }
    let head = ResponseHead {
        id: run.as_str().to_owned(),
        created: wall_clock_now().0 / 1000,
        model: request.model,
        previous: request.previous_response_id,
    };
    if request.background {
        return Ok(Json(head.response("queued", &[], None)).into_response());
    }
    if !request.stream {
        let (messages, end) = read_to_end(&mut reader).await?;
        return Ok(Json(head.response(status_of(&end), &messages, Some(&end))).into_response());
    }
    let writer = ResponseWriter { head, sequence: 0, messages: Vec::new(), is_open: false, is_done: false };
    let events = stream::unfold((reader, writer, true), |(mut reader, mut writer, is_first)| async move {
        let events = if is_first { writer.start() } else { writer.next_events(&mut reader).await? };
        Some((stream::iter(events), (reader, writer, false)))
    });
    Ok(stream_response(&state, permit, events.flatten()))
}

pub(super) async fn retrieve(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(response): UrlPath<String>,
) -> Result<Json<Value>, ApiError> {
    let (id, agent) = find_viewable_run(&state, &person, &response, AccessRole::View).await?;
    let head = ResponseHead { id: response, created: 0, model: agent.as_str().to_owned(), previous: None };
    // Read before the journal: a run that has ended since has no obstacle.
    let queued = state.queue.load_queued_run(&id).await?;
    let obstacle = queued.and_then(|queued| state.catalogue.find_obstacle(&queued));
    let obstacle = obstacle.map(|obstacle| SafeText::from_words(&obstacle).to_string());
    let paused = match load_paused(&*state.queue, &id).await {
        Ok(paused) => paused,
        Err(OpenRunError::Store(error)) if error.kind() == StoreErrorKind::RunNotFound => {
            return Ok(Json(head.queued_response(obstacle)));
        }
        Err(error) => return Err(error.into()),
    };
    let created = state.record_time(&id, 0).await? / 1000;
    // A long conversation is read without holding up other requests.
    let paused = run_blocking(move || {
        paused.record().read_state()?;
        Ok(paused)
    })
    .await?;
    let record = paused.record();
    let head = ResponseHead { created, ..head };
    let usage = record.usage();
    let error = match record.state().outcome() {
        Some(RunEnd::Failed(failure)) => Some(failure.to_string()),
        Some(RunEnd::Finished(_) | RunEnd::Cancelled) => None,
        None => obstacle,
    };
    let end = RunEndPiece {
        error,
        is_cancelled: matches!(record.state().outcome(), Some(RunEnd::Cancelled)),
        is_cut_off: record.finish_reason() == Some(&FinishReason::LengthLimit),
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
    };
    let messages = match record.state().outcome() {
        Some(RunEnd::Finished(_)) => model_messages(&record.run_items(), MessagesShown::All),
        // The last message of a failed run may be the one that an output guardrail has blocked.
        Some(RunEnd::Failed(_)) => Vec::new(),
        Some(RunEnd::Cancelled) | None => model_messages(&record.run_items(), MessagesShown::BesideCalls),
    };
    let status = match record.state().outcome() {
        Some(RunEnd::Finished(_)) if end.is_cut_off => "incomplete",
        Some(RunEnd::Finished(_)) => "completed",
        Some(RunEnd::Failed(_)) => "failed",
        Some(RunEnd::Cancelled) => "cancelled",
        None if end.error.is_some() => "failed",
        None => "in_progress",
    };
    Ok(Json(head.response(status, &messages, Some(&end))))
}

/// Returns the status of a response whose run has ended.
fn status_of(end: &RunEndPiece) -> &'static str {
    match (&end.error, end.is_cut_off) {
        (Some(_), _) if end.is_cancelled => "cancelled",
        (Some(_), _) => "failed",
        (None, true) => "incomplete",
        (None, false) => "completed",
    }
}

/// The messages of a run that a client may see.
#[derive(Clone, Copy, PartialEq)]
enum MessagesShown {
    /// The run has finished, so that no guardrail has blocked a message.
    All,
    /// Those of responses with calls. Any other message is a final output that guardrails may not have passed.
    BesideCalls,
}

/// Returns the messages of the model.
fn model_messages(items: &[RunItem], shown: MessagesShown) -> Vec<String> {
    let mut messages = Vec::new();
    let mut has_calls = false;
    for item in items.iter().rev() {
        match (item.kind, &*item.item) {
            (RunItemKind::ModelOutput, Item::Message(message)) => {
                if has_calls || shown == MessagesShown::All {
                    messages.push(message.text());
                }
            }
            (RunItemKind::ModelOutput, _) => {}
            (RunItemKind::ToolCall | RunItemKind::HandoffCall, _) => has_calls = true,
            (RunItemKind::CallOutput | RunItemKind::HandoffOutput | RunItemKind::Correction, _) => {
                has_calls = false;
            }
        }
    }
    messages.reverse();
    messages
}

/// The facts of a response that do not change.
struct ResponseHead {
    id: String,
    created: u64,
    model: String,
    previous: Option<String>,
}

impl ResponseHead {
    /// Returns the response of a run that has not started: one that no worker takes has failed.
    fn queued_response(&self, obstacle: Option<String>) -> Value {
        let Some(obstacle) = obstacle else { return self.response("queued", &[], None) };
        let error = Some(obstacle);
        self.response(
            "failed",
            &[],
            Some(&RunEndPiece {
                error,
                is_cancelled: false,
                is_cut_off: false,
                input_tokens: 0,
                output_tokens: 0,
            }),
        )
    }

    fn response(&self, status: &str, messages: &[String], end: Option<&RunEndPiece>) -> Value {
        let output: Vec<Value> =
            messages.iter().enumerate().map(|(place, text)| self.message(place, text, "completed")).collect();
        let usage = end.map(|end| {
            json!({ "input_tokens": end.input_tokens, "input_tokens_details": { "cached_tokens": 0 },
                "output_tokens": end.output_tokens, "output_tokens_details": { "reasoning_tokens": 0 },
                "total_tokens": end.total_tokens() })
        });
        let error = end.and_then(|end| end.error.as_ref());
        let error = error.map(|message| json!({ "code": "server_error", "message": message }));
        let incomplete = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "model": self.model,
            "output": output, "usage": usage, "error": error, "incomplete_details": incomplete, "instructions": null,
            "metadata": {}, "parallel_tool_calls": true, "temperature": null, "top_p": null, "tool_choice": "auto",
            "tools": [], "previous_response_id": self.previous, "store": true,
        })
    }

    fn message(&self, place: usize, text: &str, status: &str) -> Value {
        let content = match status {
            "completed" => {
                json!([{ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }])
            }
            _ => json!([]),
        };
        json!({ "type": "message", "id": format!("msg_{}_{place}", self.id), "role": "assistant", "status": status, "content": content })
    }
}

/// Writes the events of a streamed response.
struct ResponseWriter {
    head: ResponseHead,
    sequence: u64,
    messages: Vec<String>,
    /// True if a message is being written.
    is_open: bool,
    is_done: bool,
}

impl ResponseWriter {
    fn event(&mut self, kind: &str, mut data: Value) -> Event {
        data["type"] = json!(kind);
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        Event::default().event(kind).data(data.to_string())
    }

    fn start(&mut self) -> Vec<Event> {
        let response = self.head.response("in_progress", &[], None);
        let created = self.event("response.created", json!({ "response": response }));
        vec![created, self.event("response.in_progress", json!({ "response": response }))]
    }

    fn place(&self) -> Value {
        let place = self.messages.len();
        json!({ "output_index": place, "content_index": 0, "item_id": format!("msg_{}_{place}", self.head.id) })
    }

    fn open_message(&mut self) -> Vec<Event> {
        self.is_open = true;
        let place = self.messages.len();
        let item = self.head.message(place, "", "in_progress");
        let added = self.event("response.output_item.added", json!({ "output_index": place, "item": item }));
        let mut part = self.place();
        part["part"] = json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] });
        vec![added, self.event("response.content_part.added", part)]
    }

    async fn next_events(&mut self, reader: &mut TextReader) -> Option<Vec<Event>> {
        if self.is_done {
            return None;
        }
        let piece = reader.next().await;
        let mut events = Vec::new();
        if !self.is_open && matches!(piece, Ok(Some(TextPiece::Delta(_) | TextPiece::MessageEnd(_)))) {
            events = self.open_message();
        }
        match piece {
            Ok(Some(TextPiece::Delta(text))) => {
                let mut delta = self.place();
                delta["delta"] = json!(text);
                delta["logprobs"] = json!([]);
                events.push(self.event("response.output_text.delta", delta));
            }
            Ok(Some(TextPiece::MessageEnd(text))) => {
                let mut done = self.place();
                done["text"] = json!(text);
                done["logprobs"] = json!([]);
                events.push(self.event("response.output_text.done", done));
                let mut part = self.place();
                part["part"] =
                    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] });
                events.push(self.event("response.content_part.done", part));
                let place = self.messages.len();
                let item = self.head.message(place, &text, "completed");
                events.push(
                    self.event("response.output_item.done", json!({ "output_index": place, "item": item })),
                );
                self.messages.push(text);
                self.is_open = false;
            }
            Ok(Some(TextPiece::Record(_))) => {}
            Ok(Some(TextPiece::End(end))) => {
                self.is_done = true;
                // A stream has no event for a cancelled response.
                let status = match status_of(&end) {
                    "cancelled" => "failed",
                    status => status,
                };
                let response = self.head.response(status, &self.messages, Some(&end));
                events.push(self.event(&format!("response.{status}"), json!({ "response": response })));
            }
            Ok(None) | Err(_) => {
                self.is_done = true;
                let data =
                    json!({ "code": "server_error", "message": "the run was lost from view", "param": null });
                events.push(self.event("error", data));
            }
        }
        Some(events)
    }
}
