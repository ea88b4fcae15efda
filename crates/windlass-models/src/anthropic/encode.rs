//! Encoding of Messages API requests. Roles must alternate, so consecutive items of one role become one message of
//! several blocks.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use windlass::core::item::{ContentPart, Item, MediaSource, OutputContent, OutputStatus, Role, ToolCall};
use windlass::model::{ModelRequest, ToolChoice, ToolDefinition, ToolKind};

use super::{ComputerVersion, max_output_tokens};
use crate::media_support::{ALL_FORMS, MediaSupport};
use crate::prompt_cache::{cached_turns, wants_cache_points};
use crate::wire::{
    ItemOrigin, MediaLocation, RequestBase, RequestFields, called_tool_names, chosen_tool_name,
    describe_output_schema, find_offered_tool, offered_tools, to_wire_name, with_annotations,
};

/// The names of the toolsets. A call of one of their members is a call of our computer tool with an `action`.
pub(super) const COMPUTER_TOOLSET: &str = "computer";
pub(super) const BROWSER_TOOLSET: &str = "browser";

/// The members of the browser toolset that are not offered: they would bypass the review of actions.
const WITHHELD_MEMBERS: [&str; 3] = ["javascript_exec", "read_console", "read_network"];

/// A toolset and the tool that its members stand for.
#[derive(Clone, Copy)]
struct OfferedToolset<'a> {
    toolset: &'static str,
    tool: &'a str,
}

/// The forms of images and files that the API accepts.
pub(super) const MESSAGES_MEDIA: MediaSupport =
    MediaSupport { api: "the Messages API", images: ALL_FORMS, files: ALL_FORMS };

/// The field of a cache point.
const CACHE_CONTROL: &str = "cache_control";

/// The body of a request.
pub(super) struct MessagesRequestBody<'a> {
    pub(super) base: RequestBase<'a>,
    pub(super) computer_version: Option<ComputerVersion>,
}

impl Serialize for MessagesRequestBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let RequestBase { request, is_streamed, .. } = &self.base;
        let settings = request.settings;
        let mut fields = RequestFields::start(serializer, &self.base)?;
        fields.put("max_tokens", &max_output_tokens(settings))?;
        let (system, mut messages) = encode_conversation(&self.base, self.offered_toolset());
        let (mut tools, mut choice) = (self.encode_tools(), self.encode_tool_choice());
        if tools.is_empty() && !settings.extra.contains_key("tools") {
            // The agent has no tools now, as in the last answer of a budget or after a handoff. Nothing can be called.
            tools.extend(
                called_tool_names(request)
                    .into_iter()
                    .map(|name| json!({ "name": name, "input_schema": { "type": "object" } })),
            );
            choice = Some(json!({ "type": "none" }));
        }
        let cache_point = self.cache_point();
        if let Some(point) = &cache_point {
            mark_tools(&mut tools, point);
            mark_messages(&mut messages, point);
        }
        match cache_point {
            _ if system.is_empty() => {}
            None => fields.put("system", &system)?,
            Some(point) => {
                fields.put("system", &[json!({ "type": "text", "text": system, "cache_control": point })])?;
            }
        }
        fields.put("messages", &messages)?;
        fields.put_tools(&tools, choice)?;
        fields.put_sampling()?;
        let strict_output = request.output_schema.filter(|output| output.is_strict);
        let format = strict_output.map(|output| json!({ "type": "json_schema", "schema": output.schema }));
        let mut config = serde_json::Map::new();
        config.extend(settings.reasoning_effort.as_ref().map(|effort| ("effort".to_owned(), json!(effort))));
        config.extend(format.map(|format| ("format".to_owned(), format)));
        if !config.is_empty() {
            fields.put("output_config", &config)?;
        }
        fields.put_if_some("stop_sequences", settings.stop.as_ref())?;
        fields.put_if_some(
            "thinking",
            settings.thinking_budget.map(|budget| json!({ "type": "enabled", "budget_tokens": budget })),
        )?;
        fields.put_if_some("service_tier", settings.service_tier.as_ref())?;
        let user = settings.metadata.get("user_id").or(settings.safety_identifier.as_ref());
        fields.put_if_some("metadata", user.map(|user| json!({ "user_id": user })))?;
        if *is_streamed {
            fields.put("stream", &true)?;
        }
        fields.finish()
    }
}

impl MessagesRequestBody<'_> {
    /// Returns the value of the cache points, if there are any.
    fn cache_point(&self) -> Option<Value> {
        let request = &self.base.request;
        wants_cache_points(request, CACHE_CONTROL).then(|| {
            let mut point = json!({ "type": "ephemeral" });
            if let Some(ttl) = &request.settings.prompt_cache_retention {
                point["ttl"] = ttl.as_str().into();
            }
            point
        })
    }

    /// Returns the tools, those that the provider searches last.
    fn encode_tools(&self) -> Vec<Value> {
        let request = &self.base.request;
        let mut tools = self.encode_offered_tools();
        if request.deferred_tools.is_empty() {
            return tools;
        }
        let is_search =
            |tool: &Value| tool["type"].as_str().is_some_and(|kind| kind.starts_with("tool_search_tool_"));
        if !tools.iter().any(is_search) {
            tools.push(json!({ "type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25" }));
        }
        tools.extend(request.deferred_tools.iter().map(|tool| {
            let mut encoded = encode_tool(tool);
            encoded["defer_loading"] = true.into();
            encoded
        }));
        tools
    }

    fn encode_offered_tools(&self) -> Vec<Value> {
        offered_tools(&self.base.request)
            .map(|tool| match (&tool.kind, self.computer_version) {
                (ToolKind::Computer(display), Some(version)) => {
                    let of_size = |kind: &str| {
                        json!({
                            "type": kind,
                            "name": tool.name,
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
                        // The toolset has no name and no display size; the screenshots show the size.
                        ComputerVersion::V20260801 => json!({ "type": "computer_toolset_20260801" }),
                        ComputerVersion::Browser20260801 => {
                            let withheld =
                                WITHHELD_MEMBERS.map(|member| (member, json!({ "enabled": false })));
                            let configs = withheld.into_iter().collect::<BTreeMap<_, _>>();
                            json!({ "type": "browser_toolset_20260801", "configs": configs })
                        }
                    }
                }
                (ToolKind::ProviderDefined(definition) | ToolKind::Hosted(definition), _) => {
                    (**definition).clone()
                }
                _ => encode_tool(tool),
            })
            .collect()
    }

    /// Returns the toolset as which the computer tool is offered, if any.
    fn offered_toolset(&self) -> Option<OfferedToolset<'_>> {
        let toolset = match self.computer_version {
            Some(ComputerVersion::V20260801) => COMPUTER_TOOLSET,
            Some(ComputerVersion::Browser20260801) => BROWSER_TOOLSET,
            Some(ComputerVersion::V20250124 | ComputerVersion::V20251124) | None => return None,
        };
        computer_tool_name(&self.base.request).map(|tool| OfferedToolset { toolset, tool })
    }

    fn encode_tool_choice(&self) -> Option<Value> {
        let request = &self.base.request;
        let settings = request.settings;
        let mut choice = match &settings.tool_choice {
            None | Some(ToolChoice::Auto) => {
                if settings.parallel_tool_calls.is_none() && settings.tool_choice.is_none() {
                    return None;
                }
                json!({ "type": "auto" })
            }
            Some(ToolChoice::Required) => json!({ "type": "any" }),
            Some(ToolChoice::None) => return Some(json!({ "type": "none" })),
            Some(ToolChoice::Tool(name)) => {
                let name =
                    provider_tool_name(request, name).unwrap_or_else(|| chosen_tool_name(request, name));
                json!({ "type": "tool", "name": name })
            }
        };
        if let Some(may) = settings.parallel_tool_calls {
            choice["disable_parallel_tool_use"] = (!may).into();
        }
        Some(choice)
    }
}

/// Sets a cache point after the last function that is part of the prompt: deferred ones are not.
fn mark_tools(tools: &mut [Value], point: &Value) {
    let is_in_prompt =
        |tool: &&mut Value| tool.get("input_schema").is_some() && tool.get("defer_loading").is_none();
    if let Some(tool) = tools.iter_mut().rev().find(is_in_prompt) {
        tool[CACHE_CONTROL] = point.clone();
    }
}

/// Sets cache points at the ends of the conversation and of the request before.
fn mark_messages(turns: &mut [MessagesTurn], point: &Value) {
    let places: Vec<usize> = cached_turns(turns.len(), |place| turns[place].role == "user").collect();
    for place in places {
        if let Some(block) = turns[place].content.last_mut() {
            block[CACHE_CONTROL] = point.clone();
        }
    }
}

fn encode_tool(tool: &ToolDefinition) -> Value {
    let mut value = json!({
        "name": to_wire_name(tool.namespace.as_deref(), &tool.name),
        "description": tool.description,
        "input_schema": tool.parameters,
    });
    if tool.is_strict {
        value["strict"] = true.into();
    }
    value
}

#[derive(Serialize)]
struct MessagesTurn {
    role: &'static str,
    content: Vec<Value>,
}

/// Returns the name of the offered computer tool.
pub(super) fn computer_tool_name<'a>(request: &ModelRequest<'a>) -> Option<&'a str> {
    let tools = request.tools.iter();
    tools.filter(|tool| matches!(tool.kind, ToolKind::Computer(_))).map(|tool| &*tool.name).next()
}

/// Returns the system prompt and the messages.
fn encode_conversation(
    base: &RequestBase<'_>,
    toolset: Option<OfferedToolset<'_>>,
) -> (String, Vec<MessagesTurn>) {
    let (request, origin) = (&base.request, base.origin);
    let encode_input_part = |part: &ContentPart| encode_input_part(part, origin);
    let mut system: Vec<String> = request.instructions.map(str::to_owned).into_iter().collect();
    // The API accepts strict schemas only.
    let other_output = request.output_schema.filter(|output| !output.is_strict);
    system.extend(other_output.map(describe_output_schema));
    let mut turns: Vec<MessagesTurn> = Vec::new();
    let mut push_block = |role: &'static str, block: Value| match turns.last_mut() {
        Some(turn) if turn.role == role => turn.content.push(block),
        _ => turns.push(MessagesTurn { role, content: vec![block] }),
    };
    for item in request.input {
        match &**item {
            Item::Message(message) => match message.role {
                Role::System => system.push(message.text()),
                Role::User => {
                    message
                        .content
                        .iter()
                        .filter_map(encode_input_part)
                        .for_each(|block| push_block("user", block));
                }
                Role::Assistant => {
                    for (part, annotations) in with_annotations(&message.content) {
                        if let Some(block) = encode_assistant_part(part, annotations) {
                            push_block("assistant", block);
                        }
                    }
                }
            },
            Item::Reasoning(reasoning) => {
                let is_thinking =
                    matches!(reasoning.raw["type"].as_str(), Some("thinking" | "redacted_thinking"));
                if is_thinking && origin.may_receive(reasoning.origin.as_deref()) {
                    push_block("assistant", reasoning.raw.clone());
                }
            }
            Item::Call(call) => push_block("assistant", encode_tool_use(call, base, toolset)),
            Item::Output(output) => {
                let content = match &output.content {
                    OutputContent::Text(text) => Value::from(text.as_str()),
                    OutputContent::Parts(parts) => {
                        let parts = parts.iter().map(|part| MESSAGES_MEDIA.describe_refused(part));
                        parts.filter_map(|part| encode_input_part(&part)).collect()
                    }
                };
                let mut result =
                    json!({ "type": "tool_result", "tool_use_id": output.call.as_str(), "content": content });
                if output.status == OutputStatus::Failed {
                    result["is_error"] = true.into();
                }
                push_block("user", result);
            }
            Item::Handoff(handoff) => push_block(
                "user",
                json!({
                    "type": "tool_result",
                    "tool_use_id": handoff.call.as_str(),
                    "content": handoff.output_text(),
                }),
            ),
            Item::HostedTool(item) | Item::Unknown(item) => {
                if let Some(block) = origin.raw_if_own(item) {
                    push_block("assistant", block.clone());
                }
            }
            _ => {}
        }
    }
    (system.join("\n\n"), turns)
}

fn encode_assistant_part(part: &ContentPart, annotations: Option<&Value>) -> Option<Value> {
    match part {
        // The API rejects blocks without text.
        ContentPart::Text { text } | ContentPart::Refusal { text } if text.trim().is_empty() => None,
        ContentPart::Text { text } => {
            let mut block = json!({ "type": "text", "text": text });
            if let Some(annotations) = annotations {
                block["citations"] = annotations.clone();
            }
            Some(block)
        }
        ContentPart::Refusal { text } => Some(json!({ "type": "text", "text": text })),
        _ => None,
    }
}

fn encode_input_part(part: &ContentPart, origin: ItemOrigin<'_>) -> Option<Value> {
    match part {
        ContentPart::Text { text } | ContentPart::Refusal { text } => {
            (!text.is_empty()).then(|| json!({ "type": "text", "text": text }))
        }
        ContentPart::Image(media) => {
            let source = encode_media_source(media, MediaLocation::of_image(media))?;
            Some(json!({ "type": "image", "source": source }))
        }
        ContentPart::File(media) => {
            let source = encode_media_source(media, MediaLocation::of_file(media))?;
            let mut block = json!({ "type": "document", "source": source });
            if let Some(name) = &media.name {
                block["title"] = name.as_str().into();
            }
            Some(block)
        }
        ContentPart::Unknown(item) => origin.raw_if_own(item).cloned(),
        _ => None,
    }
}

fn encode_media_source(media: &MediaSource, location: Option<MediaLocation<'_>>) -> Option<Value> {
    if let Some(id) = &media.file_id {
        return Some(json!({ "type": "file", "file_id": id }));
    }
    Some(match location? {
        MediaLocation::Url(url) => json!({ "type": "url", "url": url }),
        MediaLocation::Inline { media_type, data } => {
            json!({ "type": "base64", "media_type": media_type, "data": data })
        }
    })
}

fn encode_tool_use(call: &ToolCall, base: &RequestBase<'_>, toolset: Option<OfferedToolset<'_>>) -> Value {
    // The API accepts only objects. The output of a call with other arguments tells the model of its mistake.
    let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    let mut input = if input.is_object() { input } else { json!({}) };
    if let Some(OfferedToolset { toolset, .. }) = toolset.filter(|offered| offered.tool == &*call.name)
        && let Some(Value::String(member)) = input.as_object_mut().and_then(|input| input.remove("action"))
    {
        let id = call.id.as_str();
        return json!({ "type": "tool_use", "id": id, "name": member, "toolset_name": toolset, "input": input });
    }
    let name = provider_tool_name(&base.request, &call.name)
        .unwrap_or_else(|| to_wire_name(call.namespace.as_deref(), &call.name));
    let mut block = json!({ "type": "tool_use", "id": call.id.as_str(), "name": name, "input": input });
    for (field, value) in base.origin.own_fields(call).into_iter().flatten() {
        block[field] = value.clone();
    }
    block
}

/// Returns the provider's name of an offered tool that the provider defines or runs.
fn provider_tool_name<'a>(request: &ModelRequest<'a>, name: &str) -> Option<Cow<'a, str>> {
    match &find_offered_tool(request, name)?.kind {
        ToolKind::ProviderDefined(definition) | ToolKind::Hosted(definition) => {
            definition["name"].as_str().map(Cow::Borrowed)
        }
        _ => None,
    }
}
