//! What waits for a person, as a question of the protocol, and the person's answer as a decision.

use rmcp::model::{
    ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, EnumSchema,
    PrimitiveSchemaDefinition, StringSchema,
};
use serde_json::Value;
use windlass::core::HoldReason;
use windlass::{DecideError, Paused, Pending};

/// How much of a call's arguments a person is shown.
const LONGEST: usize = 4 * 1024;

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
        _ => (format!("What became of `{}` is not known. May it run?", pending.tool), decision()),
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
