//! Encoding of Chat Completions requests. The text, reasoning and calls of one response become one message.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use windlass::core::item::{CallKind, ContentPart, Item, Message, OutputContent, Role, ToolCall};
use windlass::model::{ModelRequest, ToolChoice, ToolDefinition, ToolKind};

use super::chat_decode::{CUSTOM_CALL_TYPE, REASONING_KIND};
use super::chat_dialect::{
    ChatCachePoints, ChatDialect, ChatOutputFormat, StreamUsageRequest, to_wire_call_id,
};
use crate::prompt_cache::{cached_turns, wants_cache_points};
use crate::wire::{
    ItemOrigin, MediaLocation, RequestBase, RequestFields, chosen_tool_name, describe_output_schema,
    find_offered_tool, offered_tools, output_schema_name, to_wire_name,
};

/// The body of a request.
pub(super) struct ChatRequestBody<'a> {
    pub(super) base: RequestBase<'a>,
    /// The field that limits the output tokens.
    pub(super) token_limit: &'static str,
    pub(super) dialect: ChatDialect,
}

impl Serialize for ChatRequestBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let RequestBase { request, is_streamed, origin, .. } = &self.base;
        let settings = request.settings;
        let mut fields = RequestFields::start(serializer, &self.base)?;
        let messages = encode_messages(request, *origin, self.dialect);
        if self.has_cache_points() {
            fields.put("messages", &with_cache_points(&messages))?;
        } else {
            fields.put("messages", &messages)?;
        }
        let tools: Vec<Value> = offered_tools(request).map(encode_tool).collect();
        fields.put_tools(&tools, encode_tool_choice(request))?;
        if !tools.is_empty() {
            fields.put_if_some("parallel_tool_calls", settings.parallel_tool_calls)?;
        }
        fields.put_sampling()?;
        fields.put_if_some("frequency_penalty", settings.frequency_penalty)?;
        fields.put_if_some("presence_penalty", settings.presence_penalty)?;
        fields.put_if_some(self.dialect.seed_field.unwrap_or("seed"), settings.seed)?;
        fields.put_if_some("stop", settings.stop.as_ref())?;
        fields.put_if_some(self.token_limit, settings.max_tokens)?;
        fields.put_if_some("reasoning_effort", settings.reasoning_effort.as_ref())?;
        fields.put_if_some("verbosity", settings.verbosity.as_ref())?;
        fields.put_if_some("logprobs", settings.top_logprobs.map(|_| true))?;
        fields.put_if_some("top_logprobs", settings.top_logprobs)?;
        fields.put_openai_settings(&self.base)?;
        fields.put_if_some(
            "response_format",
            request.output_schema.map(|output| match self.dialect.output_format {
                ChatOutputFormat::JsonSchema => json!({ "type": "json_schema", "json_schema": {
                    "name": output_schema_name(&output.name),
                    "schema": output.schema,
                    "strict": output.is_strict,
                }}),
                ChatOutputFormat::JsonObject => json!({ "type": "json_object" }),
            }),
        )?;
        if *is_streamed {
            fields.put("stream", &true)?;
            if self.dialect.stream_usage == StreamUsageRequest::ByOption {
                fields.put("stream_options", &json!({ "include_usage": true }))?;
            }
        }
        fields.finish()
    }
}

impl ChatRequestBody<'_> {
    fn has_cache_points(&self) -> bool {
        self.dialect.cache_points == ChatCachePoints::AnthropicModels
            && self.base.model.starts_with("anthropic/")
            && wants_cache_points(&self.base.request, "cache_control")
    }
}

/// Returns the messages with cache points at the ends of the instructions and of the conversation.
fn with_cache_points(messages: &[ChatMessage<'_>]) -> Vec<Value> {
    let mut encoded: Vec<Value> = messages.iter().map(|message| json!(message)).collect();
    let is_of_user = |place: usize| !matches!(messages[place], ChatMessage::Assistant(_));
    let first_turn = messages.iter().position(|message| !matches!(message, ChatMessage::System { .. }));
    let system = first_turn.unwrap_or(messages.len()).checked_sub(1);
    let places: Vec<usize> = system.into_iter().chain(cached_turns(messages.len(), is_of_user)).collect();
    for place in places {
        let content = &mut encoded[place]["content"];
        if let Value::String(text) = content {
            *content = json!([{ "type": "text", "text": text }]);
        }
        if let Some(part) = content.as_array_mut().and_then(|parts| parts.last_mut()) {
            part["cache_control"] = json!({ "type": "ephemeral" });
        }
    }
    encoded
}

fn encode_tool(tool: &ToolDefinition) -> Value {
    if let ToolKind::ProviderDefined(definition) = &tool.kind {
        // Chat Completions nests the fields of a custom tool, and of its grammar.
        let mut custom = (**definition).clone();
        if let Some(fields) = custom.as_object_mut() {
            fields.remove("type");
            if let Some(Value::Object(format)) = fields.get_mut("format")
                && format.get("type").is_some_and(|kind| kind == "grammar")
            {
                let mut grammar = std::mem::take(format);
                grammar.remove("type");
                *format = Map::from_iter([
                    ("type".to_owned(), "grammar".into()),
                    ("grammar".to_owned(), grammar.into()),
                ]);
            }
        }
        return json!({ "type": "custom", "custom": custom });
    }
    let mut function = json!({
        "name": to_wire_name(tool.namespace.as_deref(), &tool.name),
        "description": tool.description,
        "parameters": tool.parameters,
    });
    if tool.is_strict {
        function["strict"] = true.into();
    }
    json!({ "type": "function", "function": function })
}

fn encode_tool_choice(request: &ModelRequest<'_>) -> Option<Value> {
    let choice = request.settings.tool_choice.as_ref()?;
    let ToolChoice::Tool(name) = choice else { return Some(choice.as_str().into()) };
    let kind = match find_offered_tool(request, name).map(|tool| &tool.kind) {
        Some(ToolKind::ProviderDefined(_)) => "custom",
        _ => "function",
    };
    Some(json!({ "type": kind, kind: { "name": chosen_tool_name(request, name) } }))
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum ChatMessage<'a> {
    System { content: Cow<'a, str> },
    User { content: ChatContent<'a> },
    Assistant(ChatAssistantMessage<'a>),
    Tool { tool_call_id: Cow<'a, str>, content: Cow<'a, str> },
}

#[derive(Default, Serialize)]
struct ChatAssistantMessage<'a> {
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
    #[serde(flatten)]
    reasoning_fields: Map<String, Value>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ChatContent<'a> {
    Text(&'a str),
    Parts(Vec<Value>),
}

fn encode_messages<'a>(
    request: &ModelRequest<'a>,
    origin: ItemOrigin<'a>,
    dialect: ChatDialect,
) -> Vec<ChatMessage<'a>> {
    let mut turns =
        ChatMessageBuilder { origin, dialect, messages: Vec::new(), assistant: None, tool_media: Vec::new() };
    if let Some(instructions) = request.instructions {
        turns.messages.push(ChatMessage::System { content: instructions.into() });
    }
    if let (Some(output), ChatOutputFormat::JsonObject) = (request.output_schema, dialect.output_format) {
        let content = describe_output_schema(output).into();
        turns.messages.push(ChatMessage::System { content });
    }
    for item in request.input {
        turns.push_item(item);
    }
    turns.flush_assistant();
    turns.flush_tool_media();
    turns.messages
}

struct ChatMessageBuilder<'a> {
    origin: ItemOrigin<'a>,
    dialect: ChatDialect,
    messages: Vec<ChatMessage<'a>>,
    /// The assistant message that is being built.
    assistant: Option<ChatAssistantMessage<'a>>,
    /// Images and files from tool outputs. Tool messages accept only text, so these follow in a user message.
    tool_media: Vec<Value>,
}

impl<'a> ChatMessageBuilder<'a> {
    fn push_item(&mut self, item: &'a Item) {
        match item {
            Item::Output(output) => {
                self.flush_assistant();
                let tool_call_id = to_wire_call_id(output.call.as_str(), self.dialect.call_ids);
                if let OutputContent::Parts(parts) = &output.content {
                    let support = self.dialect.media_support();
                    let media: Vec<Value> = parts
                        .iter()
                        .filter(|part| !matches!(part, ContentPart::Text { .. }))
                        .filter_map(|part| encode_content_part(&support.describe_refused(part)))
                        .collect();
                    if !media.is_empty() {
                        self.tool_media
                            .push(json!({ "type": "text", "text": format!("Output of {tool_call_id}:") }));
                        self.tool_media.extend(media);
                    }
                }
                self.messages.push(ChatMessage::Tool { tool_call_id, content: output.content.text() });
            }
            Item::Handoff(handoff) => {
                self.flush_assistant();
                let content = handoff.output_text().into();
                let tool_call_id = to_wire_call_id(handoff.call.as_str(), self.dialect.call_ids);
                self.messages.push(ChatMessage::Tool { tool_call_id, content });
            }
            Item::Message(message) if message.role != Role::Assistant => {
                self.flush_assistant();
                self.flush_tool_media();
                self.messages.push(encode_input_message(message));
            }
            Item::Message(message) => {
                // Two messages of one response stay separate; calls join the message before them.
                if self
                    .assistant
                    .as_ref()
                    .is_some_and(|said| said.content.is_some() || !said.tool_calls.is_empty())
                {
                    self.flush_assistant();
                }
                self.flush_tool_media();
                let said = self.assistant.get_or_insert_default();
                let text: String = message.content.iter().filter_map(part_text).collect();
                said.content = Some(text).filter(|text| !text.is_empty());
                said.refusal = message.refusal();
            }
            Item::Call(call) => {
                self.flush_tool_media();
                let call = encode_tool_call(call, self.origin, self.dialect);
                self.assistant.get_or_insert_default().tool_calls.push(call);
            }
            Item::Reasoning(reasoning)
                if reasoning.raw["type"] == REASONING_KIND
                    && self.origin.may_receive(reasoning.origin.as_deref()) =>
            {
                self.flush_assistant();
                self.flush_tool_media();
                let said = self.assistant.get_or_insert_default();
                if let Some(field) = reasoning.raw["field"].as_str() {
                    said.reasoning_fields.insert(field.to_owned(), reasoning.summary.as_str().into());
                }
                let signed = reasoning.raw["fields"].as_object().into_iter().flatten();
                said.reasoning_fields.extend(signed.map(|(field, value)| (field.clone(), value.clone())));
            }
            _ => {}
        }
    }

    fn flush_assistant(&mut self) {
        if let Some(said) = self.assistant.take()
            && (said.content.is_some() || said.refusal.is_some() || !said.tool_calls.is_empty())
        {
            self.messages.push(ChatMessage::Assistant(said));
        }
    }

    fn flush_tool_media(&mut self) {
        if !self.tool_media.is_empty() {
            let content = ChatContent::Parts(std::mem::take(&mut self.tool_media));
            self.messages.push(ChatMessage::User { content });
        }
    }
}

fn part_text(part: &ContentPart) -> Option<&str> {
    match part {
        ContentPart::Text { text } => Some(text),
        _ => None,
    }
}

fn encode_input_message(message: &Message) -> ChatMessage<'_> {
    match (message.role, message.content.as_slice()) {
        (Role::System, _) => ChatMessage::System { content: message.text().into() },
        (_, [ContentPart::Text { text }]) => ChatMessage::User { content: ChatContent::Text(text) },
        (_, parts) => ChatMessage::User {
            content: ChatContent::Parts(parts.iter().filter_map(encode_content_part).collect()),
        },
    }
}

fn encode_content_part(part: &ContentPart) -> Option<Value> {
    match part {
        ContentPart::Text { text } | ContentPart::Refusal { text } => {
            Some(json!({ "type": "text", "text": text }))
        }
        ContentPart::Image(media) => {
            let mut image = json!({ "url": MediaLocation::of_image(media)?.into_url() });
            if let Some(detail) = &media.detail {
                image["detail"] = detail.as_str().into();
            }
            Some(json!({ "type": "image_url", "image_url": image }))
        }
        ContentPart::File(media) => {
            let mut file = Map::new();
            if let Some(id) = &media.file_id {
                file.insert("file_id".to_owned(), id.as_str().into());
            } else {
                file.insert("file_data".to_owned(), MediaLocation::of_file(media)?.into_url().into());
                file.insert("filename".to_owned(), media.name.as_deref().unwrap_or("file").into());
            }
            Some(json!({ "type": "file", "file": file }))
        }
        _ => None,
    }
}

fn encode_tool_call(call: &ToolCall, origin: ItemOrigin<'_>, dialect: ChatDialect) -> Value {
    let id = to_wire_call_id(call.id.as_str(), dialect.call_ids);
    let fields = origin.own_fields(call);
    let name = to_wire_name(call.namespace.as_deref(), &call.name);
    let is_custom = call.kind == CallKind::ProviderDefined
        && fields.is_some_and(|fields| fields.get("type").is_some_and(|kind| kind == CUSTOM_CALL_TYPE));
    let mut value = if is_custom {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
        let input = arguments["input"].as_str().unwrap_or_default();
        json!({ "id": id, "type": "custom", "custom": { "name": name, "input": input } })
    } else {
        json!({
            "id": id,
            "type": "function",
            "function": { "name": name, "arguments": call.arguments },
        })
    };
    for (field, own) in fields.into_iter().flatten().filter(|(field, _)| *field != "type") {
        match (value.get_mut(field), own) {
            (Some(Value::Object(place)), Value::Object(own)) => {
                place.extend(own.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
            _ => value[field] = own.clone(),
        }
    }
    value
}
