//! Elicitations of a server, as questions to a person.
//!
//! A modern server elicits input by returning an `InputRequiredResult` with an opaque request state. The
//! request state is stored with the question in the run's journal, so that any process that receives the
//! answer can resume the call.

use std::collections::BTreeMap;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest,
    InputRequiredResult,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass::core::decision::PersonQuestion;
use windlass::tool::{ToolContext, ToolError};

use super::call::McpCallContext;
use super::connection::McpConnection;

/// The key in a question's schema under which MCP stores its own data.
pub(crate) const SCHEMA_EXTENSION: &str = "x-mcp";

/// The input requests of one `InputRequiredResult`, with the server's opaque request state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct InputRequestRound {
    requests: BTreeMap<String, InputRequest>,
    request_state: Option<String>,
}

impl InputRequestRound {
    pub(super) fn from_result(required: InputRequiredResult) -> Self {
        Self { requests: required.input_requests.unwrap_or_default(), request_state: required.request_state }
    }

    /// Returns the round that was last answered for this call, if any.
    pub(super) fn last_answered<C>(ctx: &ToolContext<C>) -> Option<Self> {
        let schema = ctx.answered_questions().last()?.question.schema.as_ref()?;
        serde_json::from_value(schema.get(SCHEMA_EXTENSION)?.get("round")?.clone()).ok()
    }

    /// Adds the answers to the next request.
    ///
    /// # Errors
    ///
    /// Returns the first question that has no answer yet, or an error if the server requests something that is not
    /// offered.
    pub(super) async fn fill_responses<C>(
        self,
        connection: &McpConnection,
        caller: &McpCallContext<'_, C>,
        params: &mut CallToolRequestParams,
    ) -> Result<(), ToolError> {
        let mut responses = BTreeMap::new();
        for (name, request) in &self.requests {
            let extension = json!({ "request": name, "round": self });
            let response = answer_input_request(connection, caller, request, extension).await?;
            responses.insert(name.clone(), response);
        }
        params.input_responses = (!responses.is_empty()).then_some(responses);
        params.request_state = self.request_state;
        Ok(())
    }
}

/// Answers one input request: an elicitation by the journal, the application or a person, everything else by the
/// application's policy. `extension` is stored with the question.
///
/// # Errors
///
/// Returns the question if it has no answer yet, or an error if the request is not offered.
pub(super) async fn answer_input_request<C>(
    connection: &McpConnection,
    caller: &McpCallContext<'_, C>,
    request: &InputRequest,
    extension: Value,
) -> Result<Value, ToolError> {
    let policy = &connection.config.server_requests;
    let refused = |reason: &dyn std::fmt::Display| {
        ToolError::visible(format!("The server asks for something that is not offered here: {reason}"))
    };
    match request {
        InputRequest::Elicitation(request) => {
            let mut question = question_from_elicitation(&request.params);
            let schema = question.schema.get_or_insert_with(|| json!({}));
            schema[SCHEMA_EXTENSION] = extension;
            let Some(answer) = caller.answer_question(&question).await else {
                return Err(ToolError::ask_person(question));
            };
            Ok(serde_json::to_value(result_from_answer(answer)).unwrap_or_default())
        }
        InputRequest::ListRoots(_) => Ok(serde_json::to_value(policy.list_roots()).unwrap_or_default()),
        InputRequest::CreateMessage(request) => {
            let answered = policy.create_message(connection.config.name(), request.params.clone()).await;
            Ok(serde_json::to_value(answered.map_err(|error| refused(&error.message))?).unwrap_or_default())
        }
        _ => Err(refused(&"an unknown request")),
    }
}

/// Converts an elicitation into a question to a person.
pub(super) fn question_from_elicitation(params: &ElicitRequestParams) -> PersonQuestion {
    match params {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            let mut schema = serde_json::to_value(requested_schema).unwrap_or_default();
            // `null` declines, so that the server hears of it.
            schema["type"] = json!(["object", "null"]);
            PersonQuestion::new(message.as_str()).with_schema(schema)
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => PersonQuestion::new(format!(
            "{message}\nOpen {url} and answer when it is done, or answer `null` to decline."
        )),
        other => PersonQuestion::new(serde_json::to_string(other).unwrap_or_default()),
    }
}

/// The answer to an elicitation of a server.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ElicitationAnswer {
    /// The person accepts, with this content for a form.
    Accept(Value),
    /// The person declines; the server is told and goes on without the input.
    Decline,
    /// The person closes the question without an answer.
    Cancel,
}

impl From<Value> for ElicitationAnswer {
    /// Interprets a recorded answer: `null` declines.
    fn from(answer: Value) -> Self {
        if answer.is_null() { Self::Decline } else { Self::Accept(answer) }
    }
}

/// Converts an answer into the elicitation result for the server.
pub(super) fn result_from_answer(answer: ElicitationAnswer) -> ElicitResult {
    match answer {
        ElicitationAnswer::Accept(content) if content.is_object() => {
            ElicitResult::new(ElicitationAction::Accept).with_content(content)
        }
        ElicitationAnswer::Accept(_) => ElicitResult::new(ElicitationAction::Accept),
        ElicitationAnswer::Decline => ElicitResult::new(ElicitationAction::Decline),
        ElicitationAnswer::Cancel => ElicitResult::new(ElicitationAction::Cancel),
    }
}

/// The JSON-RPC error code with which a server refuses a call until the person has visited a URL.
pub(super) const URL_ELICITATION_REQUIRED: i32 = -32042;

/// Returns the question of a call that the server refused until the person has visited a URL.
pub(super) fn question_from_url_error(error: &ErrorData) -> Option<PersonQuestion> {
    if error.code.0 != URL_ELICITATION_REQUIRED {
        return None;
    }
    let elicitations = error.data.as_ref()?.get("elicitations")?.as_array()?;
    let urls: Vec<String> = elicitations
        .iter()
        .filter_map(|elicitation| {
            let url = elicitation.get("url")?.as_str()?;
            let message = elicitation.get("message").and_then(Value::as_str).unwrap_or_default();
            Some(format!("{message}\nOpen {url}"))
        })
        .collect();
    if urls.is_empty() {
        return None;
    }
    let text = format!("{}\nAnswer when it is done, or `null` to decline.", urls.join("\n"));
    let mut question = PersonQuestion::new(text);
    question.schema = Some(json!({ SCHEMA_EXTENSION: { "urls": elicitations } }));
    Some(question)
}
