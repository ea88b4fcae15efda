//! Protocols of others in front of an agent: OpenAI's Chat Completions and Responses, and AG-UI.
//!
//! A request is a run of the agent that it names as its model. The answer comes when the run ends; a call that waits for a
//! person is decided in the inbox meanwhile. The run outlives the connection.

mod ag_ui;
mod chat;
#[cfg(test)]
mod fuzz_tests;
mod live_text;
mod responses;

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use windlass::core::id::RunId;
use windlass::core::item::{Item, Message, Role};

use crate::access::AccessRole;
use crate::api::{ApiError, RequestPerson};
use crate::server::ServerState;

pub(crate) use self::live_text::LiveText;

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

/// Returns the id of a run for a request: from its idempotency key, or a new one.
///
/// # Errors
///
/// An empty or repeated key is refused: a client that sends one relies on it.
fn request_run_id(prefix: &str, person: &str, headers: &axum::http::HeaderMap) -> Result<RunId, ApiError> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else {
        return Ok(RunId::new(format!("{prefix}{}", uuid::Uuid::now_v7().simple())));
    };
    if key.is_empty() || keys.next().is_some() {
        return Err(ApiError::invalid("`Idempotency-Key` is one key, and not empty"));
    }
    // The bytes of a key need not be ASCII. Different bytes have different escapes.
    let key = key.as_bytes().escape_ascii().to_string();
    let digest = windlass::core::canonical::Digest::of_parts(&["windlass request", person, &key]);
    Ok(RunId::new(format!("{prefix}{digest}")))
}
