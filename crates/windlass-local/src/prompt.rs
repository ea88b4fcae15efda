//! A conversation as a small model reads it: who speaks, and what.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use windlass::core::{Item, Role};
use windlass::model::{ModelRequest, OfferedKind, OfferedTool};

/// One line of the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Who speaks: `system`, `user` or `assistant`, as the weights' chat template calls them.
    pub role: &'static str,
    /// What is said.
    pub text: String,
}

impl Line {
    fn new(role: &'static str, text: impl Into<String>) -> Self {
        Self { role, text: text.into() }
    }
}

/// The lines of a request, the agent's instructions and tools first.
///
/// Small models choose well when they are shown what choosing looks like, so an example of each form comes before the
/// conversation. What a tool gave is told as something that the user says, because chat templates of small models know
/// no other speaker.
pub fn lines(request: &ModelRequest<'_>) -> Vec<Line> {
    let tools: Vec<&OfferedTool> = request
        .tools
        .iter()
        .chain(request.handoffs)
        .filter(|tool| matches!(tool.kind, OfferedKind::Function))
        .collect();
    let mut lines = vec![Line::new("system", standing_orders(request.instructions, &tools))];
    if !tools.is_empty() {
        lines.extend(examples());
    }
    let mut names = BTreeMap::new();
    for item in request.input {
        match &**item {
            Item::Message(message) => {
                let text = message.text();
                match message.role {
                    Role::System => lines.push(Line::new("system", text)),
                    Role::User => lines.push(Line::new("user", text)),
                    Role::Assistant => {
                        lines.push(Line::new("assistant", json!({ "answer": text }).to_string()));
                    }
                }
            }
            Item::Call(call) => {
                names.insert(call.id.clone(), call.name.clone());
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
                lines.push(Line::new("assistant", call_text(&call.name, &arguments)));
            }
            Item::Output(output) => {
                let name = names.get(&output.call).map_or("the tool", String::as_str);
                lines.push(Line::new("user", result_text(name, &output.content.text())));
            }
            Item::Handoff(handoff) => {
                lines.push(Line::new("user", result_text("the handoff", &handoff.text())));
            }
            // What other providers' models thought or did is nothing that these weights were trained on.
            _ => {}
        }
    }
    lines
}

fn standing_orders(instructions: Option<&str>, tools: &[&OfferedTool]) -> String {
    let mut text = instructions.unwrap_or("You are a helpful assistant.").to_owned();
    if tools.is_empty() {
        text.push_str("\n\nReply with one JSON object: {\"answer\": \"what you say\"}.");
        return text;
    }
    text.push_str("\n\nYou have these tools:\n");
    for tool in tools {
        let about = tool.description.split_whitespace().collect::<Vec<_>>().join(" ");
        let fields = tool.parameters.get("properties").cloned().unwrap_or_default();
        text.push_str(&format!("- {}: {about} Arguments: {fields}\n", tool.name));
    }
    text.push_str(
        "\nReply with one JSON object and nothing else. To use a tool: \
         {\"tool\": \"its name\", \"arguments\": {...}}. To speak to the user: {\"answer\": \"what you say\"}. \
         Use a tool when you need it; when you have its result, answer with it.",
    );
    text
}

/// Examples of each form, with a tool that no agent has: the model learns the form and not the case.
fn examples() -> Vec<Line> {
    vec![
        Line::new("user", "How tall is the tower of Pisa?"),
        Line::new("assistant", call_text("height_of", &json!({ "building": "tower of Pisa" }))),
        Line::new("user", result_text("height_of", "56 metres")),
        Line::new("assistant", json!({ "answer": "The tower of Pisa is 56 metres tall." }).to_string()),
        Line::new("user", "Thank you!"),
        Line::new("assistant", json!({ "answer": "You are welcome." }).to_string()),
    ]
}

fn call_text(name: &str, arguments: &Value) -> String {
    // In the order in which the answer's schema has them: the name decides what may follow.
    format!("{{\"tool\":{},\"arguments\":{arguments}}}", Value::from(name))
}

fn result_text(name: &str, result: &str) -> String {
    format!("Result of {name}: {result}")
}

#[cfg(test)]
#[path = "prompt_tests.rs"]
mod tests;
