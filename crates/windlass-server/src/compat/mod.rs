//! Protocols of others in front of an agent: OpenAI's Chat Completions and Responses, and AG-UI.
//!
//! A request is a run of the agent that it names as its model. The answer comes when the run ends; a call that waits for a
//! person is decided in the inbox meanwhile. The run outlives the connection.

mod ag_ui;
mod chat;
#[cfg(test)]
mod fuzz_tests;
mod live_text;
mod recent_requests;
mod responses;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use windlass::core::canonical::Digest;
use windlass::core::id::RunId;
use windlass::core::item::{Item, Message, Role};

use crate::access::AccessRole;
use crate::api::{ApiError, RequestPerson};
use crate::server::ServerState;

pub(crate) use self::live_text::LiveText;
pub(crate) use self::recent_requests::RecentRequests;

/// Makes the router of the protocols.
pub(crate) fn compat_router() -> Router<Arc<ServerState>> {
    Router::new()
        .route("/v1/models", get(list_models))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{response}", get(responses::retrieve))
        .route("/v1/ag-ui/{agent}", post(ag_ui::run_agent))
}

async fn list_models(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
) -> Json<Value> {
    let runnable = state.catalogue.agents().filter(|(name, _)| person.may(AccessRole::Run, name));
    let models: Vec<Value> = runnable
        .map(|(name, _)| json!({ "id": name.as_str(), "object": "model", "created": 0, "owned_by": "windlass" }))
        .collect();
    Json(json!({ "object": "list", "data": models }))
}

/// Tools that a client offers. The agent runs its own tools only, and a client that waits for calls of its tools would wait
/// in vain.
#[derive(Default, Deserialize)]
struct OfferedTools {
    #[serde(default)]
    tools: Value,
    #[serde(default)]
    functions: Value,
    #[serde(default)]
    tool_choice: Value,
}

impl OfferedTools {
    /// Refuses tools of the client, and a demand for calls. An empty list offers nothing.
    fn refuse(&self) -> Result<(), ApiError> {
        let is_offered =
            |tools: &Value| !tools.is_null() && tools.as_array().is_none_or(|list| !list.is_empty());
        let is_demanded =
            !self.tool_choice.is_null() && self.tool_choice != "auto" && self.tool_choice != "none";
        if is_offered(&self.tools) || is_offered(&self.functions) || is_demanded {
            return Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                "tools_not_supported",
                "the agent runs its own tools: leave out `tools`, and a `tool_choice` other than `auto` and `none`",
            ));
        }
        Ok(())
    }
}

/// Reads a message: its role, and its content as a text or as parts with texts.
fn read_message(role: Option<&str>, content: &Value) -> Result<Arc<Item>, ApiError> {
    let role = match role {
        None | Some("user") => Role::User,
        Some("system" | "developer") => Role::System,
        Some("assistant") => Role::Assistant,
        Some(_) => {
            return Err(ApiError::invalid(
                "the agent runs its own tools: messages are of the roles system, user and assistant",
            ));
        }
    };
    let text = match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| part["text"].as_str());
            texts
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| ApiError::invalid("only text is accepted"))?
                .concat()
        }
        _ => return Err(ApiError::invalid("`content` is a text or a list of parts")),
    };
    Ok(Arc::new(Item::Message(Message::new(role, text))))
}

/// Header in which the official clients of OpenAI count the repetitions of a request.
const RETRY_COUNT: &str = "x-stainless-retry-count";

/// The parts of a request that make its run.
struct RequestContent<'a> {
    /// Prefix of the ids of the protocol.
    prefix: &'a str,
    agent: &'a str,
    input: &'a [Arc<Item>],
    /// The response that the run continues.
    previous: Option<&'a str>,
}

/// Returns the id of a run for a request: from its idempotency key, of the request that it repeats, or a new one.
///
/// # Errors
///
/// An empty or repeated key is refused: a client that sends one relies on it. A repetition of a request that this
/// server does not know is refused too: the run of that request may be under way.
fn request_run_id(
    state: &ServerState,
    person: &str,
    headers: &HeaderMap,
    content: &RequestContent<'_>,
) -> Result<RunId, ApiError> {
    let RequestContent { prefix, agent, input, previous } = content;
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else {
        let input = serde_json::to_string(input).unwrap_or_default();
        let parts =
            ["windlass repeated request", prefix, person, agent, &input, previous.unwrap_or_default()];
        let digest = Digest::of_parts(&parts);
        if headers.get(RETRY_COUNT).is_some_and(|count| count.as_bytes() != b"0") {
            return state
                .recent_requests
                .find_run(&digest)
                .ok_or_else(|| unknown_repetition().without_retry());
        }
        let run = RunId::new(format!("{prefix}{}", uuid::Uuid::now_v7().simple()));
        // Noted before the run is submitted, so that no repetition overtakes it.
        state.recent_requests.note_run(digest, run.clone());
        return Ok(run);
    };
    if key.is_empty() || keys.next().is_some() {
        return Err(ApiError::invalid("`Idempotency-Key` is one key, and not empty"));
    }
    // The bytes of a key need not be ASCII. Different bytes have different escapes.
    let key = key.as_bytes().escape_ascii().to_string();
    let digest = Digest::of_parts(&["windlass request", person, &key]);
    Ok(RunId::new(format!("{prefix}{digest}")))
}

fn unknown_repetition() -> ApiError {
    ApiError::conflict(
        "unknown_repetition",
        "the client repeats a request that this server does not know, and its run may be under way: look for the run, and \
         send an `Idempotency-Key` with requests that may be repeated",
    )
}
