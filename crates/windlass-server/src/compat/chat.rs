//! Chat Completions in front of an agent.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use windlass::fleet::RunSubmission;

use super::live_text::{RunEndPiece, TextPiece, TextReader};
use super::{OfferedTools, RequestContent, read_message, request_run_id};
use crate::api::{ApiError, JsonBody, RequestPerson, StreamPermit, start_submission, stream_response};
use crate::server::{ServerState, wall_clock_now};

/// Text between two messages of one run.
const MESSAGE_BREAK: &str = "\n\n";

/// A request. Fields for a model, such as a temperature, are the agent's own and are ignored.
#[derive(Deserialize)]
pub(super) struct ChatRequest {
    model: String,
    messages: Vec<ChatMessage>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    tools: OfferedTools,
}

#[derive(Deserialize)]
struct ChatMessage {
    role: Option<String>,
    #[serde(default)]
    content: Value,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

pub(super) async fn complete(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ChatRequest>,
) -> Result<Response, ApiError> {
    request.tools.refuse()?;
    let messages = request.messages.iter().map(|one| read_message(one.role.as_deref(), &one.content));
    let input = messages.collect::<Result<Vec<_>, _>>()?;
    let content =
        RequestContent { prefix: "chatcmpl-", agent: &request.model, input: &input, previous: None };
    let run = request_run_id(&state, &person.name, &headers, &content)?;
    let permit = StreamPermit::acquire(&state, &person)?;
    let mut reader = TextReader::new(&state, &run).await;
    let submission =
        RunSubmission::new(run.clone(), request.model.as_str(), input).tenant(person.name.clone());
    if start_submission(&state, &person, &submission).await? {
        reader.note_missed_deltas();
    }
    let created = wall_clock_now().0 / 1000;
    if !request.stream {
        let (messages, end) = read_to_end(&mut reader).await?;
        if let Some(error) = end.error {
            // The run would fail again, or repeat what it has done.
            let error = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "run_failed", error);
            return Err(error.without_retry());
        }
        return Ok(Json(json!({
            "id": run, "object": "chat.completion", "created": created, "model": request.model,
            "choices": [{ "index": 0, "finish_reason": finish_reason(&end), "logprobs": null,
                "message": { "role": "assistant", "content": messages.join(MESSAGE_BREAK), "refusal": null } }],
            "usage": usage(&end),
        }))
        .into_response());
    }
    let has_usage = request.stream_options.is_some_and(|options| options.include_usage);
    let writer = ChunkWriter { id: run.as_str().to_owned(), created, model: request.model, has_usage };
    let events =
        stream::unfold((reader, writer, ChunkStage::Start), |(mut reader, writer, stage)| async move {
            let (events, next) = writer.next_events(&mut reader, stage).await?;
            Some((stream::iter(events), (reader, writer, next)))
        });
    Ok(stream_response(&state, permit, futures_util::StreamExt::flatten(events)))
}

/// Reads a run to its end: its messages, and its end.
///
/// # Errors
///
/// Returns an error if the run is lost from view. It goes on, so that the client must not repeat the request.
pub(super) async fn read_to_end(reader: &mut TextReader) -> Result<(Vec<String>, RunEndPiece), ApiError> {
    let mut messages = Vec::new();
    while let Some(piece) = reader.next().await.map_err(ApiError::without_retry)? {
        match piece {
            TextPiece::Delta(_) | TextPiece::Record(_) => {}
            TextPiece::MessageEnd(text) => messages.push(text),
            TextPiece::End(end) => return Ok((messages, end)),
        }
    }
    let lost =
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", "the run was lost from view");
    Err(lost.without_retry())
}

fn finish_reason(end: &RunEndPiece) -> &'static str {
    if end.is_cut_off { "length" } else { "stop" }
}

fn usage(end: &RunEndPiece) -> Value {
    json!({ "prompt_tokens": end.input_tokens, "completion_tokens": end.output_tokens,
        "total_tokens": end.total_tokens() })
}

/// The stage of a stream of chunks.
enum ChunkStage {
    Start,
    /// Inside a message, or between two.
    Text {
        is_between: bool,
    },
    Done,
}

struct ChunkWriter {
    id: String,
    created: u64,
    model: String,
    has_usage: bool,
}

impl ChunkWriter {
    fn chunk(&self, delta: &Value, finish: Option<&str>) -> Event {
        let chunk = json!({ "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model,
            "choices": [{ "index": 0, "delta": delta, "finish_reason": finish, "logprobs": null }] });
        Event::default().data(chunk.to_string())
    }

    async fn next_events(
        &self,
        reader: &mut TextReader,
        stage: ChunkStage,
    ) -> Option<(Vec<Event>, ChunkStage)> {
        let is_between = match stage {
            ChunkStage::Start => {
                let first = self.chunk(&json!({ "role": "assistant", "content": "" }), None);
                return Some((vec![first], ChunkStage::Text { is_between: false }));
            }
            ChunkStage::Text { is_between } => is_between,
            ChunkStage::Done => return None,
        };
        let failed = |message: &str| {
            let error =
                json!({ "error": { "message": message, "code": "run_failed", "type": "server_error" } });
            Some((vec![Event::default().data(error.to_string())], ChunkStage::Done))
        };
        match reader.next().await {
            Ok(Some(TextPiece::Delta(text))) => {
                let text = if is_between { format!("{MESSAGE_BREAK}{text}") } else { text };
                Some((
                    vec![self.chunk(&json!({ "content": text }), None)],
                    ChunkStage::Text { is_between: false },
                ))
            }
            Ok(Some(TextPiece::MessageEnd(_))) => Some((Vec::new(), ChunkStage::Text { is_between: true })),
            Ok(Some(TextPiece::Record(_))) => Some((Vec::new(), ChunkStage::Text { is_between })),
            Ok(Some(TextPiece::End(RunEndPiece { error: Some(error), .. }))) => failed(&error),
            Ok(Some(TextPiece::End(end))) => {
                let mut events = vec![self.chunk(&json!({}), Some(finish_reason(&end)))];
                if self.has_usage {
                    let chunk = json!({ "id": self.id, "object": "chat.completion.chunk", "created": self.created,
                        "model": self.model, "choices": [], "usage": usage(&end) });
                    events.push(Event::default().data(chunk.to_string()));
                }
                events.push(Event::default().data("[DONE]"));
                Some((events, ChunkStage::Done))
            }
            Ok(None) => failed("the run was lost from view"),
            Err(error) => failed(&error.message),
        }
    }
}
