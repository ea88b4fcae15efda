//! Requests of the Chat Completions API. What an answer said, thought and called is one message here.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use windlass::core::{Call, Content, Item, Message, OutputContent, Role};
use windlass::model::{ModelRequest, OfferedTool, ToolChoice};

use super::chat_read::{CALL_FIELDS, REASONING};
use crate::wire::{Fields, address, shape_name, wire_name};

/// The body of a request.
pub(crate) struct Body<'a> {
    pub(crate) request: ModelRequest<'a>,
    pub(crate) model: &'a str,
    pub(crate) is_streamed: bool,
    pub(crate) is_openai: bool,
}

impl Serialize for Body<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let settings = self.request.settings;
        let mut fields = Fields::new(serializer, &settings.extra)?;
        fields.put("model", self.model)?;
        fields.put("messages", &messages(&self.request))?;
        let tools: Vec<Value> = self.request.tools.iter().chain(self.request.handoffs).map(tool).collect();
        if !tools.is_empty() {
            fields.put("tools", &tools)?;
            fields.put_some("tool_choice", tool_choice(&self.request))?;
            fields.put_some("parallel_tool_calls", settings.parallel_calls)?;
        }
        fields.put_some("temperature", settings.temperature)?;
        fields.put_some("top_p", settings.top_p)?;
        let limit = if self.is_openai { "max_completion_tokens" } else { "max_tokens" };
        fields.put_some(limit, settings.max_tokens)?;
        fields.put_some("reasoning_effort", settings.reasoning_effort.as_ref())?;
        fields.put_some(
            "response_format",
            self.request.output.map(|shape| {
                json!({ "type": "json_schema", "json_schema": {
                    "name": shape_name(&shape.name),
                    "schema": shape.schema,
                    "strict": true,
                }})
            }),
        )?;
        if self.is_streamed {
            fields.put("stream", &true)?;
            fields.put("stream_options", &json!({ "include_usage": true }))?;
        }
        fields.end()
    }
}

fn tool(tool: &OfferedTool) -> Value {
    let mut function = json!({
        "name": wire_name(tool.namespace.as_deref(), &tool.name),
        "description": tool.description,
        "parameters": tool.parameters,
    });
    if tool.strict {
        function["strict"] = true.into();
    }
    json!({ "type": "function", "function": function })
}

fn tool_choice(request: &ModelRequest<'_>) -> Option<Value> {
    let choice = request.settings.tool_choice.as_ref()?;
    let ToolChoice::Tool(name) = choice else { return Some(choice.as_str().into()) };
    let named = request.tools.iter().find(|tool| *tool.name == **name);
    let name = wire_name(named.and_then(|tool| tool.namespace.as_deref()), name);
    Some(json!({ "type": "function", "function": { "name": name } }))
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Turn<'a> {
    System { content: Cow<'a, str> },
    User { content: Parts<'a> },
    Assistant(Said<'a>),
    Tool { tool_call_id: &'a str, content: Cow<'a, str> },
}

#[derive(Default, Serialize)]
struct Said<'a> {
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
    #[serde(flatten)]
    thought: Map<String, Value>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Parts<'a> {
    Text(&'a str),
    Parts(Vec<Value>),
}

fn messages<'a>(request: &ModelRequest<'a>) -> Vec<Turn<'a>> {
    let mut turns = Turns::default();
    if let Some(instructions) = request.instructions {
        turns.done.push(Turn::System { content: instructions.into() });
    }
    for item in request.input {
        turns.add(item);
    }
    turns.end_answer();
    turns.end_outputs();
    turns.done
}

#[derive(Default)]
struct Turns<'a> {
    done: Vec<Turn<'a>>,
    /// The answer under way.
    said: Option<Said<'a>>,
    /// Pictures that tools gave: outputs take text alone, so they follow in a message.
    shown: Vec<Value>,
}

impl<'a> Turns<'a> {
    fn add(&mut self, item: &'a Item) {
        match item {
            Item::Output(output) => {
                self.end_answer();
                let tool_call_id = output.call.as_str();
                if let OutputContent::Parts(parts) = &output.content {
                    let media: Vec<Value> = parts
                        .iter()
                        .filter(|part| !matches!(part, Content::Text { .. }))
                        .filter_map(part)
                        .collect();
                    if !media.is_empty() {
                        self.shown
                            .push(json!({ "type": "text", "text": format!("Output of {tool_call_id}:") }));
                        self.shown.extend(media);
                    }
                }
                self.done.push(Turn::Tool { tool_call_id, content: output.content.text() });
            }
            Item::Handoff(handoff) => {
                self.end_answer();
                let content = handoff.text().into();
                self.done.push(Turn::Tool { tool_call_id: handoff.call.as_str(), content });
            }
            Item::Message(message) if message.role != Role::Assistant => {
                self.end_answer();
                self.end_outputs();
                self.done.push(asked(message));
            }
            Item::Message(message) => {
                // Two messages of one answer stay two, unless calls follow.
                if self
                    .said
                    .as_ref()
                    .is_some_and(|said| said.content.is_some() || !said.tool_calls.is_empty())
                {
                    self.end_answer();
                }
                self.end_outputs();
                let said = self.said.get_or_insert_default();
                let text: String = message.content.iter().filter_map(plain).collect();
                said.content = Some(text).filter(|text| !text.is_empty());
                said.refusal = message.refusal();
            }
            Item::Call(call) => {
                self.end_outputs();
                self.said.get_or_insert_default().tool_calls.push(function_call(call));
            }
            Item::Reasoning(reasoning) if reasoning.raw["type"] == REASONING => {
                self.end_answer();
                self.end_outputs();
                let field = reasoning.raw["field"].as_str().unwrap_or("reasoning_content").to_owned();
                let said = self.said.get_or_insert_default();
                said.thought.insert(field, reasoning.summary.as_str().into());
            }
            Item::Unknown(carried) if carried.kind == CALL_FIELDS => {
                let calls = self.said.iter_mut().flat_map(|said| &mut said.tool_calls);
                if let (Some(Value::Object(call)), Some(fields)) = (
                    calls.into_iter().find(|call| call["id"] == carried.raw["call"]),
                    carried.raw["fields"].as_object(),
                ) {
                    call.extend(fields.iter().map(|(key, value)| (key.clone(), value.clone())));
                }
            }
            _ => {}
        }
    }

    fn end_answer(&mut self) {
        if let Some(said) = self.said.take()
            && (said.content.is_some() || said.refusal.is_some() || !said.tool_calls.is_empty())
        {
            self.done.push(Turn::Assistant(said));
        }
    }

    fn end_outputs(&mut self) {
        if !self.shown.is_empty() {
            let content = Parts::Parts(std::mem::take(&mut self.shown));
            self.done.push(Turn::User { content });
        }
    }
}

fn plain(part: &Content) -> Option<&str> {
    match part {
        Content::Text { text } => Some(text),
        _ => None,
    }
}

fn asked(message: &Message) -> Turn<'_> {
    match (message.role, message.content.as_slice()) {
        (Role::System, _) => Turn::System { content: message.text().into() },
        (_, [Content::Text { text }]) => Turn::User { content: Parts::Text(text) },
        (_, parts) => Turn::User { content: Parts::Parts(parts.iter().filter_map(part).collect()) },
    }
}

fn part(part: &Content) -> Option<Value> {
    match part {
        Content::Text { text } | Content::Refusal { text } => Some(json!({ "type": "text", "text": text })),
        Content::Image(media) => {
            let mut image = json!({ "url": address(media, "image/png")? });
            if let Some(detail) = &media.detail {
                image["detail"] = detail.as_str().into();
            }
            Some(json!({ "type": "image_url", "image_url": image }))
        }
        Content::File(media) => {
            let mut file = Map::new();
            if let Some(id) = &media.file_id {
                file.insert("file_id".to_owned(), id.as_str().into());
            } else {
                file.insert("file_data".to_owned(), address(media, "application/pdf")?.into());
                file.insert("filename".to_owned(), media.name.as_deref().unwrap_or("file").into());
            }
            Some(json!({ "type": "file", "file": file }))
        }
        _ => None,
    }
}

fn function_call(call: &Call) -> Value {
    json!({
        "id": call.id.as_str(),
        "type": "function",
        "function": {
            "name": wire_name(call.namespace.as_deref(), &call.name),
            "arguments": call.arguments,
        },
    })
}
