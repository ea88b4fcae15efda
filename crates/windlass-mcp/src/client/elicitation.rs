//! Elicitations of a server, as questions to a person.
//!
//! A modern server elicits input by returning an `InputRequiredResult` with an opaque request state. The
//! request state is stored with the question in the run's journal, so that any process that receives the
//! answer can resume the call.

use std::collections::BTreeMap;

use rmcp::model::{
    CallToolRequestParams, ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest,
    InputRequiredResult,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass::core::decision::PersonQuestion;
use windlass::tool::{ToolContext, ToolError};

use super::call::McpCallContext;

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
    /// Returns the first question that has no answer yet, or an error if the server requests something else
    /// than an elicitation.
    pub(super) async fn fill_responses<C>(
        self,
        caller: &McpCallContext<'_, C>,
        params: &mut CallToolRequestParams,
    ) -> Result<(), ToolError> {
        let mut responses = BTreeMap::new();
        for (name, request) in &self.requests {
            let InputRequest::Elicitation(request) = request else {
                return Err(ToolError::visible("The server asks for something that is not offered here."));
            };
            let mut question = question_from_elicitation(&request.params);
            let schema = question.schema.get_or_insert_with(|| json!({}));
            schema[SCHEMA_EXTENSION] = json!({ "request": name, "round": self });
            let Some(answer) = caller.answer_question(&question).await else {
                return Err(ToolError::ask_person(question));
            };
            responses.insert(name.clone(), serde_json::to_value(accept_result(&answer)).unwrap_or_default());
        }
        params.input_responses = (!responses.is_empty()).then_some(responses);
        params.request_state = self.request_state;
        Ok(())
    }
}

/// Converts an elicitation into a question to a person.
pub(super) fn question_from_elicitation(params: &ElicitRequestParams) -> PersonQuestion {
    match params {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            let schema = serde_json::to_value(requested_schema).unwrap_or_default();
            PersonQuestion::new(message.as_str()).with_schema(schema)
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
            PersonQuestion::new(format!("{message}\nOpen {url} and answer when it is done."))
        }
        other => PersonQuestion::new(serde_json::to_string(other).unwrap_or_default()),
    }
}

/// Converts a person's answer into an accepted elicitation result.
pub(super) fn accept_result(answer: &Value) -> ElicitResult {
    let accepted = ElicitResult::new(ElicitationAction::Accept);
    if answer.is_object() { accepted.with_content(answer.clone()) } else { accepted }
}
