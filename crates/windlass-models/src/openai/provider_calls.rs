//! Calls of tools that the Responses API defines and the application executes: their payloads as arguments, and
//! their outputs in the item type that belongs to the call. A call without an output would end the conversation.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass::core::item::{CallKind, CallOutput, ContentPart, OutputContent, OutputStatus, ToolCall};
use windlass::model::ModelRequest;

use crate::wire::{ItemOrigin, find_provider_defined, resolve_tool_name};

/// The wire format of the calls of one tool.
struct CallFormat {
    /// The type of the call.
    call_type: &'static str,
    /// The type of the tool in its definition.
    tool_type: &'static str,
    /// The field that holds the arguments.
    payload: &'static str,
}

const CALL_FORMATS: [CallFormat; 5] = [
    CallFormat { call_type: "shell_call", tool_type: "shell", payload: "action" },
    CallFormat { call_type: "local_shell_call", tool_type: "local_shell", payload: "action" },
    CallFormat { call_type: "apply_patch_call", tool_type: "apply_patch", payload: "operation" },
    CallFormat { call_type: "custom_tool_call", tool_type: "custom", payload: "input" },
    CallFormat { call_type: "tool_search_call", tool_type: "tool_search", payload: "arguments" },
];

/// Returns the ids of the calls whose outputs are among these items: the provider executed them itself.
pub(super) fn answered_call_ids<'a>(items: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeSet<String> {
    let outputs = items.into_iter().filter(|(kind, id)| kind.ends_with("_output") && !id.is_empty());
    outputs.map(|(_, id)| id.to_owned()).collect()
}

/// Returns the call that an item requests, or the item itself if the provider executes or executed it. An item
/// whose type ends with `_call` and that has a `call_id` asks the application for an output, also if its type is
/// not known here.
pub(super) fn decode_provider_call(
    kind: &str,
    raw: Value,
    request: &ModelRequest<'_>,
    origin: ItemOrigin<'_>,
    answered: &BTreeSet<String>,
) -> Result<ToolCall, Value> {
    let call_id = raw.get("call_id").and_then(Value::as_str).unwrap_or_default();
    let is_hosted = !kind.ends_with("_call")
        || call_id.is_empty()
        || answered.contains(call_id)
        || raw.get("execution").and_then(Value::as_str) == Some("server");
    let id = call_id.into();
    let mut fields = match raw {
        Value::Object(fields) if !is_hosted => fields,
        raw => return Err(raw),
    };
    let mut take_text = |key: &str| match fields.remove(key) {
        Some(Value::String(text)) if !text.is_empty() => Some(text),
        _ => None,
    };
    let (item_id, _, _) = (take_text("id"), take_text("call_id"), take_text("status"));
    let format = CALL_FORMATS.iter().find(|format| format.call_type == kind);
    let (tool, arguments) = match format {
        Some(CallFormat { call_type: "custom_tool_call", payload, .. }) => {
            let name = take_text("name").unwrap_or_default();
            let tool = match take_text("namespace") {
                Some(namespace) => (Some(namespace), name),
                None => resolve_tool_name(request, name),
            };
            (tool, json!({ "input": fields.remove(*payload).unwrap_or_default() }).to_string())
        }
        Some(format) => {
            let arguments = match fields.remove(format.payload) {
                Some(Value::String(text)) => text,
                Some(Value::Null) | None => "{}".to_owned(),
                Some(payload) => payload.to_string(),
            };
            (find_tool_of_type(request, format.tool_type), arguments)
        }
        None => {
            // The arguments may be secret, so all fields of an unknown call count as arguments.
            fields.remove("type");
            let payload = Value::Object(std::mem::take(&mut fields)).to_string();
            (find_tool_of_type(request, kind.trim_end_matches("_call")), payload)
        }
    };
    fields.insert("type".to_owned(), kind.into());
    let (namespace, name) = tool;
    Ok(ToolCall {
        id,
        name,
        namespace,
        arguments,
        item_id,
        kind: CallKind::ProviderDefined,
        provider_data: origin.provider_data(fields),
    })
}

/// Returns the offered tool of this type. If there is none, its type stands for its name, and the run answers the
/// call as it answers every unknown tool.
fn find_tool_of_type(request: &ModelRequest<'_>, tool_type: &str) -> (Option<String>, String) {
    match find_provider_defined(request, |definition| definition["type"] == *tool_type) {
        Some((tool, _)) => (tool.namespace.as_deref().map(str::to_owned), tool.name.to_string()),
        None => (None, tool_type.to_owned()),
    }
}

/// Encodes a call in the format in which the provider sent it. `fields` is its provider data.
pub(super) fn encode_provider_call(call: &ToolCall, fields: &Map<String, Value>) -> Value {
    let mut item = fields.clone();
    let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default();
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    match CALL_FORMATS.iter().find(|format| format.call_type == kind) {
        Some(CallFormat { call_type: "custom_tool_call", payload, .. }) => {
            item.insert((*payload).to_owned(), arguments["input"].as_str().unwrap_or_default().into());
            item.insert("name".to_owned(), call.name.as_str().into());
            item.extend(
                call.namespace.as_deref().map(|namespace| ("namespace".to_owned(), namespace.into())),
            );
        }
        Some(format) => {
            item.insert(format.payload.to_owned(), arguments);
            item.insert("status".to_owned(), "completed".into());
        }
        None => {
            if let Value::Object(arguments) = arguments {
                item.extend(arguments);
            }
            item.insert("status".to_owned(), "completed".into());
        }
    }
    item.insert("call_id".to_owned(), call.id.as_str().into());
    item.extend(call.item_id.as_deref().map(|id| ("id".to_owned(), id.into())));
    Value::Object(item)
}

/// Encodes the output of a call whose provider data is `fields`. `content` is the output as the API writes it in
/// the output of a function.
pub(super) fn encode_provider_output(
    call: &ToolCall,
    fields: &Map<String, Value>,
    output: &CallOutput,
    content: Value,
) -> Value {
    let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default();
    let text = || Value::from(output.content.text());
    let mut item = match kind {
        "shell_call" => {
            let mut item = json!({ "type": "shell_call_output", "output": shell_entries(output) });
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
            if let Some(limit @ Value::Number(_)) = arguments.get("max_output_length") {
                item["max_output_length"] = limit.clone();
            }
            item
        }
        "local_shell_call" => json!({ "type": "local_shell_call_output", "output": text() }),
        "apply_patch_call" => {
            let status = if output.status == OutputStatus::Ok { "completed" } else { "failed" };
            json!({ "type": "apply_patch_call_output", "status": status, "output": text() })
        }
        "custom_tool_call" => json!({ "type": "custom_tool_call_output", "output": content }),
        "tool_search_call" => json!({
            "type": "tool_search_output",
            "execution": "client",
            "status": "completed",
            "tools": found_tools(output).unwrap_or_default(),
        }),
        kind => json!({ "type": format!("{kind}_output"), "output": text() }),
    };
    item["call_id"] = call.id.as_str().into();
    if let Some(caller) = fields.get("caller") {
        item["caller"] = caller.clone();
    }
    item
}

/// Returns the parts of an output that its item type cannot hold; they follow in a message.
pub(super) fn parts_beside_output<'a>(
    fields: &Map<String, Value>,
    output: &'a CallOutput,
) -> Vec<std::borrow::Cow<'a, ContentPart>> {
    use std::borrow::Cow;
    match fields.get("type").and_then(Value::as_str) {
        Some("custom_tool_call") => Vec::new(),
        Some("tool_search_call") if found_tools(output).is_none() => {
            vec![Cow::Owned(ContentPart::text(output.content.text()))]
        }
        _ => match &output.content {
            OutputContent::Text(_) => Vec::new(),
            OutputContent::Parts(parts) => {
                let is_media =
                    |part: &&ContentPart| matches!(part, ContentPart::Image(_) | ContentPart::File(_));
                parts.iter().filter(is_media).map(Cow::Borrowed).collect()
            }
        },
    }
}

/// Returns the entries of a shell output. Text of another form, such as a rejection, becomes one entry.
fn shell_entries(output: &CallOutput) -> Value {
    let text = output.content.text();
    let is_entry = |entry: &Value| {
        entry.get("stdout").is_some_and(Value::is_string)
            && entry.get("stderr").is_some_and(Value::is_string)
            && entry.get("outcome").is_some_and(Value::is_object)
    };
    match serde_json::from_str::<Value>(&text) {
        Ok(Value::Array(entries)) if entries.iter().all(is_entry) => Value::Array(entries),
        _ if output.status == OutputStatus::Ok => {
            json!([{ "stdout": text, "stderr": "", "outcome": { "type": "exit", "exit_code": 0 } }])
        }
        _ => json!([{ "stdout": "", "stderr": text, "outcome": { "type": "exit", "exit_code": 1 } }]),
    }
}

/// Returns the definitions that a tool search found: a list, or an object with a list `tools`.
fn found_tools(output: &CallOutput) -> Option<Vec<Value>> {
    match serde_json::from_str(&output.content.text()).ok()? {
        Value::Array(tools) => Some(tools),
        Value::Object(mut found) => match found.remove("tools")? {
            Value::Array(tools) => Some(tools),
            _ => None,
        },
        _ => None,
    }
}
