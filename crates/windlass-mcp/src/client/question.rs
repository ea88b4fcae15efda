//! What a server wants to know before it goes on, as questions to a person.
//!
//! A server of the later life of the protocol asks by giving its answer back unfinished, with a word of its own by which
//! it knows where it was. That word is kept with the question, in the run's journal, so that the call goes on where it
//! was in whatever process the answer comes to.

use std::collections::BTreeMap;

use rmcp::model::{
    CallToolRequestParams, ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest,
    InputRequiredResult,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass::core::Question;
use windlass::{ToolContext, ToolError};

use super::call::Caller;

/// Where in a question's schema the server's own part is.
pub(crate) const PLACE: &str = "x-mcp";

/// All that a server wants to know at once, and its own word for where it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Round {
    requests: BTreeMap<String, InputRequest>,
    state: Option<String>,
}

impl Round {
    pub(super) fn of(required: InputRequiredResult) -> Self {
        Self { requests: required.input_requests.unwrap_or_default(), state: required.request_state }
    }

    /// The round that was last answered for this call, if any was.
    pub(super) fn before<C>(ctx: &ToolContext<C>) -> Option<Self> {
        let schema = ctx.replies().last()?.question.schema.as_ref()?;
        serde_json::from_value(schema.get(PLACE)?.get("round")?.clone()).ok()
    }

    /// Puts the answers into the next request; or asks the first question that has none.
    pub(super) async fn answer<C>(
        self,
        caller: &Caller<'_, C>,
        params: &mut CallToolRequestParams,
    ) -> Result<(), ToolError> {
        let mut responses = BTreeMap::new();
        for (name, request) in &self.requests {
            let InputRequest::Elicitation(request) = request else {
                return Err(ToolError::tell("The server asks for something that is not offered here."));
            };
            let mut question = question(&request.params);
            let schema = question.schema.get_or_insert_with(|| json!({}));
            schema[PLACE] = json!({ "request": name, "round": self });
            let Some(answer) = caller.answer(&question).await else { return Err(ToolError::ask(question)) };
            responses.insert(name.clone(), serde_json::to_value(accepted(&answer)).unwrap_or_default());
        }
        params.input_responses = (!responses.is_empty()).then_some(responses);
        params.request_state = self.state;
        Ok(())
    }
}

/// A question of the protocol as one to a person.
pub(super) fn question(params: &ElicitRequestParams) -> Question {
    match params {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            let schema = serde_json::to_value(requested_schema).unwrap_or_default();
            Question::new(message.as_str()).schema(schema)
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
            Question::new(format!("{message}\nOpen {url} and answer when it is done."))
        }
        other => Question::new(serde_json::to_string(other).unwrap_or_default()),
    }
}

/// A person's answer as one of the protocol.
pub(super) fn accepted(answer: &Value) -> ElicitResult {
    let accepted = ElicitResult::new(ElicitationAction::Accept);
    if answer.is_object() { accepted.with_content(answer.clone()) } else { accepted }
}
