//! What waits for a person, as a question of the protocol, and the person's answer as a decision.

use std::collections::BTreeMap;

use rmcp::model::{
    ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, EnumSchema,
    InputRequest, PrimitiveSchemaDefinition, StringSchema,
};
use serde_json::{Value, json};
use windlass::core::{HoldReason, Question};
use windlass::{DecideError, Paused, Pending};

use crate::client::PLACE;

/// How much of a call's arguments a person is shown.
const LONGEST: usize = 4 * 1024;

/// Says by which name clients of the later protocol know a question; without this, by the call's place in its run.
pub fn named_question(name: &str, mut question: Question) -> Question {
    let schema = question.schema.get_or_insert_with(|| json!({}));
    if let Value::Object(keys) = schema {
        keys.insert(PLACE.to_owned(), json!({ "request": name }));
    }
    question
}

/// All that waits for a person, by the names that answers come back under. A name stands for one question for good.
pub(super) fn questions(paused: &Paused) -> BTreeMap<String, InputRequest> {
    let pending = paused.pending();
    let asked = pending
        .iter()
        .map(|waiting| (name(waiting), InputRequest::Elicitation(ElicitRequest::new(question(waiting)))));
    asked.collect()
}

/// Decides about all that a client came back with an answer for. What it has none for goes on waiting.
pub(super) fn answered(paused: &mut Paused, responses: &BTreeMap<String, Value>) {
    for pending in paused.pending() {
        let response = responses.get(&name(&pending)).cloned();
        let answer = response.and_then(|response| serde_json::from_value::<ElicitResult>(response).ok());
        if let Some(answer) = answer {
            note(decide(paused, &pending, &answer));
        }
    }
}

/// An answer that does not fit leaves the call waiting, and it is asked again.
pub(super) fn note(decided: Result<(), DecideError>) {
    if let Err(error) = decided {
        tracing::debug!(%error, "an answer was not taken");
    }
}

fn name(pending: &Pending) -> String {
    let Pending { path, attempt, reason, .. } = pending;
    match reason {
        HoldReason::Question(Question { schema: Some(schema), .. }) if path.within().is_empty() => {
            match schema.pointer(&format!("/{PLACE}/request")).and_then(Value::as_str) {
                Some(name) => name.to_owned(),
                None => format!("{path}#{attempt}"),
            }
        }
        HoldReason::Question(_) => format!("{path}#{attempt}"),
        _ => path.to_string(),
    }
}

/// What a person is asked about a call that waits.
pub(super) fn question(pending: &Pending) -> ElicitRequestParams {
    let (message, requested_schema) = match &pending.reason {
        HoldReason::Question(question) => {
            let form = question.schema.clone().and_then(|schema| serde_json::from_value(schema).ok());
            (question.text.clone(), form.unwrap_or_else(plain))
        }
        HoldReason::Approval => {
            let arguments = &pending.arguments[..pending.arguments.floor_char_boundary(LONGEST)];
            (format!("May `{}` run with {arguments}?", pending.tool), decision())
        }
        _ => {
            let tool = &pending.tool;
            (format!("Whether `{tool}` had its effect is not known. May it run again?"), decision())
        }
    };
    ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema }
}

/// Decides as the person said. What is not a clear yes is a no.
pub(super) fn decide(
    paused: &mut Paused,
    pending: &Pending,
    answer: &ElicitResult,
) -> Result<(), DecideError> {
    let path = pending.path.clone();
    let content = answer.content.as_ref();
    let said = |key: &str| content.and_then(|content| content.get(key)).and_then(Value::as_str);
    let accepted = answer.action == ElicitationAction::Accept;
    match &pending.reason {
        HoldReason::Question(question) if accepted => {
            let is_form = question
                .schema
                .clone()
                .is_some_and(|schema| serde_json::from_value::<ElicitationSchema>(schema).is_ok());
            let value = if is_form { content.cloned() } else { said("answer").map(Value::from) };
            paused.answer(path, value.unwrap_or(Value::Null))
        }
        HoldReason::Approval if accepted && said("decision") == Some("approve") => paused.approve(path),
        HoldReason::Approval if accepted => {
            match said("reason").filter(|reason| !reason.is_empty()).map(str::to_owned) {
                Some(reason) => paused.reject_because(path, reason),
                None => paused.reject(path),
            }
        }
        HoldReason::Approval | HoldReason::Question(_) => paused.reject(path),
        _ if accepted && said("decision") == Some("approve") => paused.it_did_not_happen(path),
        _ => paused.nobody_knows(path),
    }
}

fn decision() -> ElicitationSchema {
    let choices = vec!["approve".to_owned(), "reject".to_owned()];
    let choice = EnumSchema::builder(choices).build();
    ElicitationSchema::builder()
        .required_property("decision", PrimitiveSchemaDefinition::Enum(choice))
        .property("reason", PrimitiveSchemaDefinition::String(StringSchema::new()))
        .build_unchecked()
}

fn plain() -> ElicitationSchema {
    ElicitationSchema::builder()
        .required_property("answer", PrimitiveSchemaDefinition::String(StringSchema::new()))
        .build_unchecked()
}
