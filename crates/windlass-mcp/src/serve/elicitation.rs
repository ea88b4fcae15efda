//! Pending calls as MCP elicitations, and elicitation results as decisions.

use std::collections::BTreeMap;

use rmcp::model::{
    ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, EnumSchema,
    InputRequest, PrimitiveSchemaDefinition, StringSchema,
};
use serde_json::{Value, json};
use windlass::core::decision::{HoldReason, PersonQuestion};
use windlass::{core::decision::PendingCall, error::DecisionError, run::PausedRun};
use windlass_text::{SafeText, escape_json};

use crate::client::SCHEMA_EXTENSION;

/// Sets the name of a question in `inputRequests` of the modern protocol. By default the call's path is the name.
pub fn named_question(name: &str, mut question: PersonQuestion) -> PersonQuestion {
    let schema = question.schema.get_or_insert_with(|| json!({}));
    if let Value::Object(keys) = schema {
        keys.insert(SCHEMA_EXTENSION.to_owned(), json!({ "request": name }));
    }
    question
}

/// Returns the input requests of a paused run by name. A name identifies the same question permanently.
pub(super) fn input_requests(paused: &PausedRun) -> BTreeMap<String, InputRequest> {
    let pending = paused.pending_calls();
    let asked = pending.iter().map(|waiting| {
        (request_name(waiting), InputRequest::Elicitation(ElicitRequest::new(elicitation_params(waiting))))
    });
    asked.collect()
}

/// Applies a client's responses as decisions. Calls without a response keep waiting.
pub(super) fn apply_responses(paused: &mut PausedRun, responses: &BTreeMap<String, Value>) {
    for pending in paused.pending_calls() {
        let response = responses.get(&request_name(&pending)).cloned();
        let answer = response.and_then(|response| serde_json::from_value::<ElicitResult>(response).ok());
        // A question that is closed without an answer is not decided.
        if let Some(answer) = answer.filter(|answer| answer.action != ElicitationAction::Cancel) {
            log_decision_error(apply_answer(paused, &pending, &answer));
        }
    }
}

/// Logs an answer that was not accepted; the call keeps waiting and is asked about again.
pub(super) fn log_decision_error(decided: Result<(), DecisionError>) {
    if let Err(error) = decided {
        tracing::debug!(%error, "an answer was not taken");
    }
}

fn request_name(pending: &PendingCall) -> String {
    let PendingCall { path, attempt, reason, .. } = pending;
    match reason {
        HoldReason::Question(PersonQuestion { schema: Some(schema), .. })
            if path.parent_calls().is_empty() =>
        {
            match schema.pointer(&format!("/{SCHEMA_EXTENSION}/request")).and_then(Value::as_str) {
                Some(name) => name.to_owned(),
                None => format!("{path}#{attempt}"),
            }
        }
        HoldReason::Question(_) => format!("{path}#{attempt}"),
        _ => path.to_string(),
    }
}

/// Returns the elicitation for a pending call.
pub(super) fn elicitation_params(pending: &PendingCall) -> ElicitRequestParams {
    // Names, arguments and questions come from a model or from a tool: nothing in them is invisible to the person who
    // reads them.
    let tool = SafeText::from_line(&pending.tool.to_string());
    let arguments = escape_json(&pending.arguments);
    let (message, requested_schema) = match &pending.reason {
        HoldReason::Question(question) => {
            let lines: Vec<SafeText> = question.text.lines().map(SafeText::from_prose).collect();
            let message = lines.iter().map(SafeText::as_str).collect::<Vec<_>>().join("\n");
            (message, form_schema(question).unwrap_or_else(text_schema))
        }
        HoldReason::Approval => {
            // A decision covers all of the arguments, so all of them are shown.
            (format!("May `{tool}` run with {arguments}?"), decision_schema())
        }
        _ => {
            let message =
                format!("Whether `{tool}` with {arguments} had its effect is not known. May it run again?");
            (message, decision_schema())
        }
    };
    ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema }
}

/// Applies a person's answer as a decision. Everything but an explicit approval is a rejection.
pub(super) fn apply_answer(
    paused: &mut PausedRun,
    pending: &PendingCall,
    answer: &ElicitResult,
) -> Result<(), DecisionError> {
    let path = pending.path.clone();
    let content = answer.content.as_ref();
    let said = |key: &str| content.and_then(|content| content.get(key)).and_then(Value::as_str);
    let accepted = answer.action == ElicitationAction::Accept;
    match &pending.reason {
        HoldReason::Question(question) if accepted => {
            let is_form = form_schema(question).is_some();
            let value = if is_form { content.cloned() } else { said("answer").map(Value::from) };
            paused.answer_question(path, value.unwrap_or(Value::Null))
        }
        HoldReason::Approval if accepted && said("decision") == Some("approve") => paused.approve(path),
        HoldReason::Approval if accepted => {
            match said("reason").filter(|reason| !reason.is_empty()).map(str::to_owned) {
                Some(reason) => paused.reject_because(path, reason),
                None => paused.reject(path),
            }
        }
        HoldReason::Approval | HoldReason::Question(_) => paused.reject(path),
        _ if accepted && said("decision") == Some("approve") => paused.confirm_not_executed(path),
        _ => paused.mark_outcome_unknown(path),
    }
}

/// Returns the form of a question whose answers an elicitation can express.
fn form_schema(question: &PersonQuestion) -> Option<ElicitationSchema> {
    let mut schema = question.schema.clone()?;
    // A question of another MCP server also accepts `null`, which declines; here the client's action does that.
    if schema.get("type") == Some(&json!(["object", "null"])) {
        schema["type"] = "object".into();
    }
    serde_json::from_value(schema).ok()
}

fn decision_schema() -> ElicitationSchema {
    let choices = vec!["approve".to_owned(), "reject".to_owned()];
    let choice = EnumSchema::builder(choices).build();
    ElicitationSchema::builder()
        .required_property("decision", PrimitiveSchemaDefinition::Enum(choice))
        .property("reason", PrimitiveSchemaDefinition::String(StringSchema::new()))
        .build_unchecked()
}

fn text_schema() -> ElicitationSchema {
    ElicitationSchema::builder()
        .required_property("answer", PrimitiveSchemaDefinition::String(StringSchema::new()))
        .build_unchecked()
}
