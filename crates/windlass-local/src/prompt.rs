//! Conversion of a model request into chat messages for a small model.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Value, json};
use windlass::core::item::{ContentPart, Item, OutputContent, Role};
use windlass::model::{ModelRequest, ToolDefinition, ToolKind};

/// A chat message of the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptMessage {
    /// The role: `system`, `user` or `assistant`, as in the chat template of the weights.
    pub role: &'static str,
    /// The text.
    pub text: String,
}

impl PromptMessage {
    fn new(role: &'static str, text: impl Into<String>) -> Self {
        Self { role, text: text.into() }
    }
}

/// Returns the chat messages of a request. The agent's instructions and tools come first.
///
/// Few-shot examples of each response format precede the conversation, because small models choose better with
/// them. Tool outputs become user messages, because chat templates of small models have no role for them.
pub fn prompt_messages(request: &ModelRequest<'_>) -> Vec<PromptMessage> {
    let tools: Vec<&ToolDefinition> = offered_functions(request).collect();
    let mut lines = vec![PromptMessage::new("system", system_prompt(request, &tools))];
    if !tools.is_empty() {
        lines.extend(example_messages());
    }
    let mut names = BTreeMap::new();
    for item in request.input {
        match &**item {
            Item::Message(message) => {
                let text = message.text();
                match message.role {
                    Role::System => lines.push(PromptMessage::new("system", text)),
                    Role::User => lines.push(PromptMessage::new("user", text)),
                    Role::Assistant => {
                        lines.push(PromptMessage::new("assistant", json!({ "answer": text }).to_string()));
                    }
                }
            }
            Item::Call(call) => {
                let name = offered_name(call.namespace.as_deref(), &call.name);
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
                lines.push(PromptMessage::new("assistant", call_text(&name, &arguments)));
                names.insert(call.id.clone(), name);
            }
            Item::Output(output) => {
                let name = names.get(&output.call).map_or("the tool", |name| &**name);
                lines.push(PromptMessage::new("user", result_text(name, &output_text(&output.content))));
            }
            Item::Handoff(handoff) => {
                lines.push(PromptMessage::new("user", result_text("the handoff", &handoff.output_text())));
            }
            // Reasoning and hosted calls of other providers' models mean nothing to these weights.
            _ => {}
        }
    }
    lines
}

/// Returns the text of an output. A note stands for each part that is no text, so that the model knows of it.
fn output_text(content: &OutputContent) -> String {
    let OutputContent::Parts(parts) = content else { return content.text().into_owned() };
    let notes =
        parts.iter().filter_map(media_kind).map(|kind| format!("[{kind}, which this model cannot read]"));
    let text = Some(content.text().into_owned()).filter(|text| !text.is_empty());
    text.into_iter().chain(notes).collect::<Vec<_>>().join("\n")
}

/// Returns the kind of a part that is an image or a file.
pub(crate) fn media_kind(part: &ContentPart) -> Option<&'static str> {
    match part {
        ContentPart::Image(_) => Some("an image"),
        ContentPart::File(_) => Some("a file"),
        _ => None,
    }
}

/// Iterates over the tools and handoffs that the model may call. It supports only functions.
pub(crate) fn offered_functions<'a>(request: &ModelRequest<'a>) -> impl Iterator<Item = &'a ToolDefinition> {
    let offered = request.tools.iter().chain(request.handoffs);
    offered.filter(|tool| matches!(tool.kind, ToolKind::Function))
}

/// Returns the name by which the model calls a tool: that of a tool with a namespace begins with it.
pub(crate) fn offered_name<'a>(namespace: Option<&str>, name: &'a str) -> Cow<'a, str> {
    namespace.map_or(Cow::Borrowed(name), |namespace| Cow::Owned(format!("{namespace}__{name}")))
}

fn system_prompt(request: &ModelRequest<'_>, tools: &[&ToolDefinition]) -> String {
    let mut text = request.instructions.unwrap_or("You are a helpful assistant.").to_owned();
    let answer = match request.output_schema {
        None => "{\"answer\": \"what you say\"}".to_owned(),
        // The constraint alone would give the form, but not what its fields mean.
        Some(output) => format!(
            "{{\"answer\": {{...}}}}, where the answer is an object of this JSON Schema: {}",
            output.schema
        ),
    };
    if tools.is_empty() {
        text.push_str(&format!("\n\nReply with one JSON object: {answer}."));
        return text;
    }
    text.push_str("\n\nYou have these tools:\n");
    for tool in tools {
        let about = tool.description.split_whitespace().collect::<Vec<_>>().join(" ");
        let fields = tool.parameters.get("properties").cloned().unwrap_or_default();
        let name = offered_name(tool.namespace.as_deref(), &tool.name);
        text.push_str(&format!("- {name}: {about} Arguments: {fields}\n"));
    }
    text.push_str(&format!(
        "\nReply with one JSON object and nothing else. To use a tool: \
         {{\"tool\": \"its name\", \"arguments\": {{...}}}}. To speak to the user: {answer}. \
         Use a tool when you need it; when you have its result, answer with it."
    ));
    text
}

/// Returns few-shot examples with a tool that no agent has, so that the model learns the format and not the case.
fn example_messages() -> Vec<PromptMessage> {
    vec![
        PromptMessage::new("user", "How tall is the tower of Pisa?"),
        PromptMessage::new("assistant", call_text("height_of", &json!({ "building": "tower of Pisa" }))),
        PromptMessage::new("user", result_text("height_of", "56 metres")),
        PromptMessage::new(
            "assistant",
            json!({ "answer": "The tower of Pisa is 56 metres tall." }).to_string(),
        ),
        PromptMessage::new("user", "Thank you!"),
        PromptMessage::new("assistant", json!({ "answer": "You are welcome." }).to_string()),
    ]
}

fn call_text(name: &str, arguments: &Value) -> String {
    // The order is that of the response schema: the tool's name decides which arguments may follow.
    format!("{{\"tool\":{},\"arguments\":{arguments}}}", Value::from(name))
}

fn result_text(name: &str, result: &str) -> String {
    format!("Result of {name}: {result}")
}

#[cfg(test)]
#[path = "prompt_tests.rs"]
mod tests;
