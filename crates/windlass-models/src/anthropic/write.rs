//! Requests of the Messages API. Messages alternate: what one side says in a row is one message of several blocks.

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use windlass::core::{Call, Content, Item, Media, OutputContent, OutputStatus, Role};
use windlass::model::{ModelRequest, OfferedKind, OfferedTool, ToolChoice};

use super::{ComputerVersion, LONGEST_ANSWER, PromptCache};
use crate::wire::{Fields, wire_name, with_annotations};

/// What kinds of this provider's own items begin with.
pub(super) const OWN: &str = "anthropic.";

/// The family of tools for a screen, whose members' calls are our calls with an `action`.
pub(super) const COMPUTER: &str = "computer";

/// The body of a request.
pub(super) struct Body<'a> {
    pub(super) request: ModelRequest<'a>,
    pub(super) model: &'a str,
    pub(super) is_streamed: bool,
    pub(super) cache: PromptCache,
    pub(super) computer: Option<ComputerVersion>,
}

impl Serialize for Body<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let settings = self.request.settings;
        let mut fields = Fields::new(serializer, &settings.extra)?;
        fields.put("model", self.model)?;
        fields.put("max_tokens", &settings.max_tokens.unwrap_or(LONGEST_ANSWER))?;
        let (system, messages) = conversation(&self.request, self.toolset());
        if !system.is_empty() {
            fields.put("system", &system)?;
        }
        fields.put("messages", &messages)?;
        let tools: Vec<Value> = self.tools();
        if !tools.is_empty() {
            fields.put("tools", &tools)?;
            fields.put_some("tool_choice", self.tool_choice())?;
        }
        fields.put_some("temperature", settings.temperature)?;
        fields.put_some("top_p", settings.top_p)?;
        let format =
            self.request.output.map(|shape| json!({ "type": "json_schema", "schema": shape.schema }));
        let mut config = serde_json::Map::new();
        config.extend(settings.reasoning_effort.as_ref().map(|effort| ("effort".to_owned(), json!(effort))));
        config.extend(format.map(|format| ("format".to_owned(), format)));
        if !config.is_empty() {
            fields.put("output_config", &config)?;
        }
        if self.cache == PromptCache::On {
            fields.put("cache_control", &json!({ "type": "ephemeral" }))?;
        }
        if self.is_streamed {
            fields.put("stream", &true)?;
        }
        fields.end()
    }
}

impl Body<'_> {
    fn tools(&self) -> Vec<Value> {
        let tools = self.request.tools.iter().chain(self.request.handoffs);
        tools
            .map(|offered| match (&offered.kind, self.computer) {
                (OfferedKind::Computer(display), Some(version)) => {
                    let of_size = |kind: &str| {
                        json!({
                            "type": kind,
                            "name": offered.name,
                            "display_width_px": display.width,
                            "display_height_px": display.height,
                        })
                    };
                    match version {
                        ComputerVersion::V20250124 => of_size("computer_20250124"),
                        ComputerVersion::V20251124 => {
                            let mut value = of_size("computer_20251124");
                            value["enable_zoom"] = true.into();
                            value
                        }
                        // It has no name and no size: the pictures say how large the screen is.
                        ComputerVersion::V20260801 => json!({ "type": "computer_toolset_20260801" }),
                    }
                }
                _ => tool(offered),
            })
            .collect()
    }

    /// The name of our tool that stands for a family of the provider's.
    fn toolset(&self) -> Option<&str> {
        match self.computer {
            Some(ComputerVersion::V20260801) => computer_of(&self.request),
            Some(ComputerVersion::V20250124 | ComputerVersion::V20251124) | None => None,
        }
    }

    fn tool_choice(&self) -> Option<Value> {
        let settings = self.request.settings;
        let mut choice = match &settings.tool_choice {
            None | Some(ToolChoice::Auto) => {
                if settings.parallel_calls.is_none() && settings.tool_choice.is_none() {
                    return None;
                }
                json!({ "type": "auto" })
            }
            Some(ToolChoice::Required) => json!({ "type": "any" }),
            Some(ToolChoice::None) => return Some(json!({ "type": "none" })),
            Some(ToolChoice::Tool(name)) => {
                let named = self.request.tools.iter().find(|tool| *tool.name == **name);
                let namespace = named.and_then(|tool| tool.namespace.as_deref());
                json!({ "type": "tool", "name": wire_name(namespace, name) })
            }
        };
        if let Some(may) = settings.parallel_calls {
            choice["disable_parallel_tool_use"] = (!may).into();
        }
        Some(choice)
    }
}

fn tool(tool: &OfferedTool) -> Value {
    let mut value = json!({
        "name": wire_name(tool.namespace.as_deref(), &tool.name),
        "description": tool.description,
        "input_schema": tool.parameters,
    });
    if tool.strict {
        value["strict"] = true.into();
    }
    value
}

#[derive(Serialize)]
struct Turn {
    role: &'static str,
    content: Vec<Value>,
}

/// The name of the tool that is offered as a screen.
pub(super) fn computer_of<'a>(request: &ModelRequest<'a>) -> Option<&'a str> {
    let tools = request.tools.iter();
    tools.filter(|tool| matches!(tool.kind, OfferedKind::Computer(_))).map(|tool| &*tool.name).next()
}

/// The standing orders, and the messages.
fn conversation(request: &ModelRequest<'_>, toolset: Option<&str>) -> (String, Vec<Turn>) {
    let mut system: Vec<String> = request.instructions.map(str::to_owned).into_iter().collect();
    let mut turns: Vec<Turn> = Vec::new();
    let mut say = |role: &'static str, block: Value| match turns.last_mut() {
        Some(turn) if turn.role == role => turn.content.push(block),
        _ => turns.push(Turn { role, content: vec![block] }),
    };
    for item in request.input {
        match &**item {
            Item::Message(message) => match message.role {
                Role::System => system.push(message.text()),
                Role::User => {
                    message.content.iter().filter_map(input).for_each(|block| say("user", block));
                }
                Role::Assistant => {
                    for (part, notes) in with_annotations(&message.content) {
                        if let Some(block) = said(part, notes) {
                            say("assistant", block);
                        }
                    }
                }
            },
            Item::Reasoning(reasoning) => {
                if matches!(reasoning.raw["type"].as_str(), Some("thinking" | "redacted_thinking")) {
                    say("assistant", reasoning.raw.clone());
                }
            }
            Item::Call(call) => say("assistant", tool_use(call, toolset)),
            Item::Output(output) => {
                let content = match &output.content {
                    OutputContent::Text(text) => Value::from(text.as_str()),
                    OutputContent::Parts(parts) => parts.iter().filter_map(input).collect(),
                };
                let mut result =
                    json!({ "type": "tool_result", "tool_use_id": output.call.as_str(), "content": content });
                if output.status == OutputStatus::Failed {
                    result["is_error"] = true.into();
                }
                say("user", result);
            }
            Item::Handoff(handoff) => say(
                "user",
                json!({
                    "type": "tool_result",
                    "tool_use_id": handoff.call.as_str(),
                    "content": handoff.text(),
                }),
            ),
            Item::Hosted(carried) | Item::Unknown(carried) if carried.kind.starts_with(OWN) => {
                say("assistant", carried.raw.clone());
            }
            _ => {}
        }
    }
    (system.join("\n\n"), turns)
}

fn said(part: &Content, notes: Option<&Value>) -> Option<Value> {
    match part {
        // Blocks without text are refused.
        Content::Text { text } | Content::Refusal { text } if text.trim().is_empty() => None,
        Content::Text { text } => {
            let mut block = json!({ "type": "text", "text": text });
            if let Some(notes) = notes {
                block["citations"] = notes.clone();
            }
            Some(block)
        }
        Content::Refusal { text } => Some(json!({ "type": "text", "text": text })),
        _ => None,
    }
}

fn input(part: &Content) -> Option<Value> {
    match part {
        Content::Text { text } | Content::Refusal { text } => {
            (!text.is_empty()).then(|| json!({ "type": "text", "text": text }))
        }
        Content::Image(media) => Some(json!({ "type": "image", "source": source(media, "image/png")? })),
        Content::File(media) => {
            let mut block = json!({ "type": "document", "source": source(media, "application/pdf")? });
            if let Some(name) = &media.name {
                block["title"] = name.as_str().into();
            }
            Some(block)
        }
        Content::Unknown(carried) => carried.kind.starts_with(OWN).then(|| carried.raw.clone()),
        _ => None,
    }
}

fn source(media: &Media, usual: &str) -> Option<Value> {
    if let Some(id) = &media.file_id {
        return Some(json!({ "type": "file", "file_id": id }));
    }
    let bytes = |kind: &str, data: &str| json!({ "type": "base64", "media_type": kind, "data": data });
    match (&media.url, &media.data) {
        (Some(url), _) => {
            // The address may hold the bytes.
            let inline = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
            Some(match inline {
                Some((kind, data)) => bytes(kind, data),
                None => json!({ "type": "url", "url": url }),
            })
        }
        (None, Some(data)) => Some(bytes(media.media_type.as_deref().unwrap_or(usual), data)),
        (None, None) => None,
    }
}

fn tool_use(call: &Call, toolset: Option<&str>) -> Value {
    // Arguments that are no object were the model's mistake, which the output tells it of.
    let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    let mut input = if input.is_object() { input } else { json!({}) };
    if toolset == Some(&*call.name)
        && let Some(Value::String(member)) = input.as_object_mut().and_then(|input| input.remove("action"))
    {
        let id = call.id.as_str();
        return json!({ "type": "tool_use", "id": id, "name": member, "toolset_name": COMPUTER, "input": input });
    }
    json!({
        "type": "tool_use",
        "id": call.id.as_str(),
        "name": wire_name(call.namespace.as_deref(), &call.name),
        "input": input,
    })
}
