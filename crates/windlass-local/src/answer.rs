//! The JSON format of a model's response: a tool call with arguments, or an answer.

use serde_json::{Map, Value, json};
use windlass::core::item::{CallKind, Item, ToolCall};
use windlass::model::{ModelRequest, ToolChoice, ToolDefinition};

use crate::prompt::{offered_functions, offered_name};

/// A response that is not in the requested format. Constrained decoding prevents this except for truncated
/// responses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model's answer was cut off or is not in the form it was asked for: {0}")]
pub struct AnswerFormatError(String);

/// Returns the JSON Schema of all valid responses to a request.
///
/// A response is `{"tool": NAME, "arguments": {…}}` for one of the tools and handoffs, or `{"answer": …}`, which
/// is text or matches the schema of the agent's output.
pub fn response_schema(request: &ModelRequest<'_>) -> Value {
    let tools = offered_functions(request);
    let choice = request.settings.tool_choice.as_ref();
    let mut forms: Vec<Value> = match choice {
        Some(ToolChoice::None) => Vec::new(),
        Some(ToolChoice::Tool(name)) => tools.filter(|tool| *tool.name == **name).map(call_schema).collect(),
        Some(ToolChoice::Auto | ToolChoice::Required) | None => tools.map(call_schema).collect(),
    };
    let must_call = matches!(choice, Some(ToolChoice::Required | ToolChoice::Tool(_))) && !forms.is_empty();
    if !must_call {
        let said =
            request.output_schema.map_or_else(|| json!({ "type": "string" }), |shape| shape.schema.clone());
        forms.push(object_schema([("answer", said)]));
    }
    // References resolve from the schema's root, so the definitions of the nested schemas move there.
    let mut definitions = Map::new();
    for (number, form) in forms.iter_mut().enumerate() {
        hoist_definitions(form, number, &mut definitions);
    }
    match forms.len() {
        1 => insert_definitions(forms.remove(0), definitions),
        _ => insert_definitions(json!({ "anyOf": forms }), definitions),
    }
}

fn insert_definitions(mut schema: Value, definitions: Map<String, Value>) -> Value {
    if let (Some(fields), false) = (schema.as_object_mut(), definitions.is_empty()) {
        fields.insert("$defs".to_owned(), definitions.into());
    }
    schema
}

fn call_schema(tool: &ToolDefinition) -> Value {
    let name = offered_name(tool.namespace.as_deref(), &tool.name);
    object_schema([("tool", json!({ "const": name })), ("arguments", (*tool.parameters).clone())])
}

fn object_schema<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> =
        fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({ "type": "object", "properties": properties, "required": names, "additionalProperties": false })
}

/// Moves the definitions inside a schema to the root under unique names, and rewrites the references to them.
fn hoist_definitions(form: &mut Value, number: usize, definitions: &mut Map<String, Value>) {
    match form {
        Value::Object(fields) => {
            for place in ["$defs", "definitions"] {
                let Some(Value::Object(own)) = fields.remove(place) else { continue };
                for (name, mut schema) in own {
                    hoist_definitions(&mut schema, number, definitions);
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
            fields.values_mut().for_each(|value| hoist_definitions(value, number, definitions));
        }
        Value::Array(values) => {
            values.iter_mut().for_each(|value| hoist_definitions(value, number, definitions))
        }
        _ => {}
    }
}

/// Parses the response to a request into items. `call` becomes the id of the call if the response is one.
pub fn parse_items(
    text: &str,
    call: &str,
    request: &ModelRequest<'_>,
) -> Result<Vec<Item>, AnswerFormatError> {
    let answer: Value = serde_json::from_str(text).map_err(|error| AnswerFormatError(error.to_string()))?;
    if let (Some(Value::String(tool)), Some(arguments)) = (answer.get("tool"), answer.get("arguments")) {
        let (namespace, name) = resolve_tool_name(request, tool);
        let (id, arguments) = (call.into(), arguments.to_string());
        let kind = CallKind::Function;
        let call = ToolCall { id, name, namespace, arguments, item_id: None, kind, provider_data: None };
        return Ok(vec![Item::Call(call)]);
    }
    match answer.get("answer") {
        Some(Value::String(said)) => Ok(vec![Item::assistant(said)]),
        Some(shaped) => Ok(vec![Item::assistant(shaped.to_string())]),
        None => Err(AnswerFormatError("it has neither `tool` nor `answer`".to_owned())),
    }
}

/// Returns the namespace and the name of the offered tool that the model calls by this name.
fn resolve_tool_name(request: &ModelRequest<'_>, called: &str) -> (Option<String>, String) {
    let is_bare = |tool: &ToolDefinition| tool.namespace.is_none() && *tool.name == *called;
    let is_called = |tool: &&ToolDefinition| offered_name(tool.namespace.as_deref(), &tool.name) == called;
    if !offered_functions(request).any(is_bare)
        && let Some(tool) = offered_functions(request).find(is_called)
    {
        return (tool.namespace.as_deref().map(str::to_owned), tool.name.to_string());
    }
    (None, called.to_owned())
}

/// Returns the answer's text so far from a response that is still being generated.
#[cfg_attr(
    not(feature = "engine"),
    allow(dead_code, reason = "only the engine generates responses incrementally")
)]
pub(crate) fn partial_text(text: &str) -> Option<String> {
    let said = text.trim_start().strip_prefix('{')?.trim_start().strip_prefix("\"answer\"")?;
    let said = said.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let mut end = said.len();
    // An escape sequence may be incomplete; the longest has twelve characters.
    for _ in 0..12 {
        if said.is_char_boundary(end)
            && let Ok(text) =
                serde_json::from_str::<String>(&format!("\"{}\"", until_closing_quote(&said[..end])))
        {
            return Some(text);
        }
        end = end.checked_sub(1)?;
    }
    None
}

/// Returns the text up to its closing quotation mark, or all of it if the mark has not arrived.
fn until_closing_quote(said: &str) -> &str {
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
