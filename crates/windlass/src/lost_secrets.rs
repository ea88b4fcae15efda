//! Secret arguments that were lost with the process that had them. A person is asked for them again.
//!
//! Invariant: the answer is where the secrets were, in the state of a live run. Journals and saved runs have a placeholder
//! in its place, and a store gets it only if it seals what it writes.

use std::any::Any;
use std::future::ready;
use std::sync::Arc;

use futures_util::FutureExt;
use serde_json::{Map, Value, json};
use windlass_core::canonical::canonical_json;
use windlass_core::decision::{AnsweredQuestion, Decision, PersonQuestion};
use windlass_core::journal::JournalEntry;

use crate::redaction::{REDACTED, for_each_at, is_redacted};
use crate::tool::{BodyStart, PreparedBody, ToolContext, ToolError};

/// Field of an answer that has the secret arguments.
const ANSWER_FIELD: &str = "secret_arguments";
/// Name of the arguments of a call that are secret as a whole.
const ALL_ARGUMENTS: &str = "arguments";

/// A body that asks a person for the secret arguments of its call. It stands in for the body of the tool.
pub(crate) struct SecretQuestionBody(PersonQuestion);

impl SecretQuestionBody {
    /// Creates the body for a call with these arguments, of which `fields` are secret.
    pub(crate) fn new(arguments: &str, fields: &[Arc<str>]) -> Self {
        let lost = lost_fields(arguments, fields);
        let names: Vec<String> = lost.iter().map(|field| format!("`{field}`")).collect();
        let text = format!(
            "The secret arguments of this call ({}) were lost with the process that had them. Enter them again, or reject \
             the call.",
            names.join(", ")
        );
        // The journal has placeholders in place of the values, which must satisfy the schema, too.
        let properties: Map<String, Value> =
            lost.iter().map(|field| (field.clone(), json!({ "format": "password" }))).collect();
        let secrets = json!({ "type": "object", "properties": properties, "required": lost });
        let schema =
            json!({ "type": "object", "properties": { ANSWER_FIELD: secrets }, "required": [ANSWER_FIELD] });
        Self(PersonQuestion::new(text).with_schema(schema))
    }
}

impl<C> PreparedBody<C> for SecretQuestionBody {
    // Rules take another type, so that they grant nothing.
    fn arguments(&self) -> &(dyn Any + Send + Sync) {
        &()
    }

    fn start(self: Box<Self>, _: ToolContext<C>) -> BodyStart {
        BodyStart::Async(ready(Err(ToolError::ask_person(self.0))).boxed())
    }
}

/// Returns the secret fields that are placeholders.
fn lost_fields(arguments: &str, fields: &[Arc<str>]) -> Vec<String> {
    if arguments == REDACTED {
        return vec![ALL_ARGUMENTS.to_owned()];
    }
    let mut value: Value = serde_json::from_str(arguments).unwrap_or_default();
    let mut lost = Vec::new();
    for field in fields {
        let mut is_lost = false;
        for_each_at(&mut value, field, &mut |held| is_lost |= held.as_str() == Some(REDACTED));
        if is_lost {
            lost.push(field.to_string());
        }
    }
    lost
}

/// Returns the arguments of a call with the secrets that a person has given last; `None` if nobody has given all of them
/// to this process.
pub(crate) fn restore_from_answers(
    answers: &[AnsweredQuestion],
    arguments: &str,
    fields: &[Arc<str>],
) -> Option<String> {
    let answer = answers.iter().rev().find(|answered| is_secret_answer(&answered.answer))?;
    let given = answer.answer.get(ANSWER_FIELD)?.as_object()?;
    if arguments == REDACTED {
        let whole = given.get(ALL_ARGUMENTS).filter(|whole| whole.is_object())?;
        return Some(canonical_json(whole));
    }
    let mut value: Value = serde_json::from_str(arguments).ok()?;
    for (name, secret) in given {
        let mut places = 0;
        for_each_at(&mut value, name, &mut |held| {
            places += usize::from(held.as_str() == Some(REDACTED));
        });
        // Several places of one field get the values of a list in order, or the same value.
        let mut values: Box<dyn Iterator<Item = &Value>> = match secret {
            Value::Array(values) if places > 1 && values.len() == places => Box::new(values.iter()),
            other => Box::new(std::iter::repeat(other)),
        };
        for_each_at(&mut value, name, &mut |held| {
            if held.as_str() == Some(REDACTED)
                && let Some(secret) = values.next()
            {
                *held = secret.clone();
            }
        });
    }
    let restored = canonical_json(&value);
    (!is_redacted(&restored, fields)).then_some(restored)
}

/// Returns true if an answer gives secret arguments.
pub(crate) fn is_secret_answer(value: &Value) -> bool {
    value.get(ANSWER_FIELD).is_some_and(Value::is_object)
}

/// Replaces the secret arguments of an answer by placeholders.
pub(crate) fn redact_answer(entry: &mut JournalEntry) {
    if let JournalEntry::DecisionRecorded(decided) = entry
        && let Decision::Answer { value } = &mut decided.decision
        && let Some(Value::Object(given)) = value.get_mut(ANSWER_FIELD)
    {
        given.values_mut().for_each(|secret| *secret = REDACTED.into());
    }
}
