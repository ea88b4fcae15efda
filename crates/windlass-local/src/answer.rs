//! The one form that an answer has: a call of a tool with its arguments, or something to say.

use serde_json::{Map, Value, json};
use windlass::core::Item;
use windlass::model::{ModelRequest, OfferedKind, OfferedTool, ToolChoice};

/// Why an answer is not in the form that it was asked for. The engine keeps models to it, so this is for answers that
/// were cut off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model's answer was cut off or is not in the form it was asked for: {0}")]
pub struct BadAnswer(String);

/// The JSON Schema of everything that may be answered to a request.
///
/// An answer is `{"tool": NAME, "arguments": {…}}` for one of the tools and handoffs, or `{"answer": …}`, which is text
/// or has the shape that the agent's output must have.
pub fn shape(request: &ModelRequest<'_>) -> Value {
    let offered = request.tools.iter().chain(request.handoffs);
    let calls = offered.filter(|tool| matches!(tool.kind, OfferedKind::Function)).map(call_shape);
    let choice = request.settings.tool_choice.as_ref();
    let mut forms: Vec<Value> = match choice {
        Some(ToolChoice::None) => Vec::new(),
        Some(ToolChoice::Tool(name)) => calls.filter(|call| call_name(call) == Some(name)).collect(),
        Some(ToolChoice::Auto | ToolChoice::Required) | None => calls.collect(),
    };
    let must_call = matches!(choice, Some(ToolChoice::Required | ToolChoice::Tool(_))) && !forms.is_empty();
    if !must_call {
        let said = request.output.map_or_else(|| json!({ "type": "string" }), |shape| shape.schema.clone());
        forms.push(object([("answer", said)]));
    }
    // References in a schema are looked up from its root, which is not where the schema stands any more.
    let mut definitions = Map::new();
    for (number, form) in forms.iter_mut().enumerate() {
        hoist(form, number, &mut definitions);
    }
    match forms.len() {
        1 => with_definitions(forms.remove(0), definitions),
        _ => with_definitions(json!({ "anyOf": forms }), definitions),
    }
}

fn with_definitions(mut schema: Value, definitions: Map<String, Value>) -> Value {
    if let (Some(fields), false) = (schema.as_object_mut(), definitions.is_empty()) {
        fields.insert("$defs".to_owned(), definitions.into());
    }
    schema
}

fn call_shape(tool: &OfferedTool) -> Value {
    object([("tool", json!({ "const": tool.name })), ("arguments", (*tool.parameters).clone())])
}

fn call_name(call: &Value) -> Option<&str> {
    call.pointer("/properties/tool/const")?.as_str()
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> =
        fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({ "type": "object", "properties": properties, "required": names, "additionalProperties": false })
}

/// Moves the definitions inside a form to the root, under names of their own.
fn hoist(form: &mut Value, number: usize, definitions: &mut Map<String, Value>) {
    match form {
        Value::Object(fields) => {
            for place in ["$defs", "definitions"] {
                let Some(Value::Object(own)) = fields.remove(place) else { continue };
                for (name, mut schema) in own {
                    hoist(&mut schema, number, definitions);
                    definitions.insert(format!("{number}.{name}"), schema);
                }
            }
            if let Some(Value::String(reference)) = fields.get_mut("$ref") {
                for place in ["#/$defs/", "#/definitions/"] {
                    if let Some(name) = reference.strip_prefix(place) {
                        *reference = format!("#/$defs/{number}.{name}");
                        break;
                    }
                }
            }
            fields.values_mut().for_each(|value| hoist(value, number, definitions));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| hoist(value, number, definitions)),
        _ => {}
    }
}

/// Reads an answer. `call` is the id of the call, if it is one.
pub fn items(text: &str, call: &str) -> Result<Vec<Item>, BadAnswer> {
    let answer: Value = serde_json::from_str(text).map_err(|error| BadAnswer(error.to_string()))?;
    if let (Some(Value::String(tool)), Some(arguments)) = (answer.get("tool"), answer.get("arguments")) {
        return Ok(vec![Item::call(call, tool, arguments.to_string())]);
    }
    match answer.get("answer") {
        Some(Value::String(said)) => Ok(vec![Item::assistant(said)]),
        Some(shaped) => Ok(vec![Item::assistant(shaped.to_string())]),
        None => Err(BadAnswer("it has neither `tool` nor `answer`".to_owned())),
    }
}

/// What can be shown of an answer that is still being written: the text said so far.
#[cfg_attr(
    not(feature = "engine"),
    allow(dead_code, reason = "only an engine writes answers piece by piece")
)]
pub(crate) fn said_so_far(text: &str) -> Option<String> {
    let said = text.trim_start().strip_prefix('{')?.trim_start().strip_prefix("\"answer\"")?;
    let said = said.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let mut end = said.len();
    // An escape may not be whole yet; the longest has twelve letters.
    for _ in 0..12 {
        if said.is_char_boundary(end)
            && let Ok(text) = serde_json::from_str::<String>(&format!("\"{}\"", closed(&said[..end])))
        {
            return Some(text);
        }
        end = end.checked_sub(1)?;
    }
    None
}

/// The text up to the quotation mark that ends it, if that has come.
fn closed(said: &str) -> &str {
    let mut is_escaped = false;
    for (at, letter) in said.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return &said[..at],
            _ => {}
        }
    }
    said
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
