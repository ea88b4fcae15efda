//! Encoding of Converse requests. Roles must alternate, so consecutive items of one role become one message.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use windlass::core::item::{ContentPart, Item, MediaSource, OutputContent, OutputStatus, Role};
use windlass::model::{ModelRequest, ToolChoice};

use crate::media_support::{MediaForm, MediaSupport};
use crate::prompt_cache::{cached_turns, wants_cache_points};
use crate::wire::{
    MediaLocation, RequestBase, RequestFields, called_tool_names, chosen_tool_name, describe_output_schema,
    offered_tools, output_schema_name, to_wire_name,
};

/// The forms of images and files that the API accepts.
pub(super) const CONVERSE_MEDIA: MediaSupport =
    MediaSupport { api: "Bedrock", images: &[MediaForm::Bytes], files: &[MediaForm::Bytes] };
/// The `type` in the raw value of reasoning items from this protocol.
pub(super) const REASONING_KIND: &str = "converse.reasoning";

/// The body of a request.
pub(super) struct ConverseRequestBody<'a> {
    pub(super) base: RequestBase<'a>,
}

impl Serialize for ConverseRequestBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let request = &self.base.request;
        let settings = request.settings;
        let mut fields = RequestFields::start_without_model(serializer, &self.base)?;
        let (system, mut messages) = encode_conversation(&self.base);
        let mut system: Vec<Value> = system.iter().map(|text| json!({ "text": text })).collect();
        let cache_point = self.cache_point();
        if let Some(point) = &cache_point {
            if !system.is_empty() {
                system.push(point.clone());
            }
            let places: Vec<usize> =
                cached_turns(messages.len(), |place| messages[place].role == "user").collect();
            for place in places {
                messages[place].content.push(point.clone());
            }
        }
        fields.put("messages", &messages)?;
        if !system.is_empty() {
            fields.put("system", &system)?;
        }
        let mut inference = Map::new();
        let mut put =
            |name: &str, value: Option<Value>| inference.extend(value.map(|value| (name.to_owned(), value)));
        put("maxTokens", settings.max_tokens.map(Value::from));
        put("temperature", settings.temperature.map(Value::from));
        put("topP", settings.top_p.map(Value::from));
        put("stopSequences", settings.stop.as_ref().map(|stop| json!(stop)));
        if !inference.is_empty() {
            fields.put("inferenceConfig", &inference)?;
        }
        if let Some(mut tools) = encode_tools(request) {
            // Amazon's own models cache no tools.
            if let (Some(point), Some(tools), false) =
                (cache_point, tools["tools"].as_array_mut(), self.base.model.contains("amazon.nova"))
            {
                tools.push(point);
            }
            fields.put("toolConfig", &tools)?;
        }
        let mut output = Map::new();
        output.extend(settings.reasoning_effort.as_ref().map(|effort| ("effort".to_owned(), json!(effort))));
        output.extend(request.output_schema.filter(|output| output.is_strict).map(|output| {
            let schema =
                json!({ "schema": output.schema.to_string(), "name": output_schema_name(&output.name) });
            let format = json!({ "type": "json_schema", "structure": { "jsonSchema": schema } });
            ("textFormat".to_owned(), format)
        }));
        if !output.is_empty() {
            fields.put("outputConfig", &output)?;
        }
        if !settings.metadata.is_empty() {
            fields.put("requestMetadata", &settings.metadata)?;
        }
        fields
            .put_if_some("serviceTier", settings.service_tier.as_ref().map(|tier| json!({ "type": tier })))?;
        fields.finish()
    }
}

impl ConverseRequestBody<'_> {
    /// Returns a cache point if the model accepts them. One that is not known to is asked for them only if the settings
    /// say so: the provider refuses requests with points that a model does not support.
    fn cache_point(&self) -> Option<Value> {
        let request = &self.base.request;
        let settings = request.settings;
        let is_wanted = settings.prompt_cache.is_some() || settings.prompt_cache_retention.is_some();
        let is_known = is_wanted || has_prompt_cache(self.base.model);
        (is_known && wants_cache_points(request, "cachePoint")).then(|| {
            let mut point = json!({ "type": "default" });
            if let Some(ttl) = &settings.prompt_cache_retention {
                point["ttl"] = ttl.as_str().into();
            }
            json!({ "cachePoint": point })
        })
    }
}

/// True if the model is known to cache prompts.
fn has_prompt_cache(model: &str) -> bool {
    /// Models of Anthropic before prompt caching.
    const OLD_MODELS: [&str; 6] = [
        "claude-v2",
        "claude-instant",
        "claude-3-haiku",
        "claude-3-sonnet",
        "claude-3-opus",
        "claude-3-5-sonnet-20240620",
    ];
    model.contains("amazon.nova")
        || (model.contains("anthropic.claude") && !OLD_MODELS.iter().any(|old| model.contains(old)))
}

fn encode_tools(request: &ModelRequest<'_>) -> Option<Value> {
    let choice = request.settings.tool_choice.as_ref();
    // The API cannot forbid calls, so tools are not offered. A conversation with calls still needs their definitions.
    let has_calls = request.input.iter().any(|item| matches!(**item, Item::Call(_)));
    if choice == Some(&ToolChoice::None) && !has_calls {
        return None;
    }
    let mut tools: Vec<Value> = offered_tools(request)
        .map(|tool| {
            let mut spec = json!({
                "name": to_wire_name(tool.namespace.as_deref(), &tool.name),
                "inputSchema": { "json": tool.parameters },
            });
            if !tool.description.is_empty() {
                spec["description"] = (*tool.description).into();
            }
            if tool.is_strict {
                spec["strict"] = true.into();
            }
            json!({ "toolSpec": spec })
        })
        .collect();
    let mut choice = choice;
    if tools.is_empty() {
        // The agent has no tools now, as in the last answer of a budget or after a handoff. Nothing can be chosen.
        choice = None;
        tools.extend(called_tool_names(request).into_iter().map(
            |name| json!({ "toolSpec": { "name": name, "inputSchema": { "json": { "type": "object" } } } }),
        ));
    }
    if tools.is_empty() {
        return None;
    }
    let mut config = json!({ "tools": tools });
    match choice {
        None | Some(ToolChoice::None) => {}
        Some(ToolChoice::Auto) => config["toolChoice"] = json!({ "auto": {} }),
        Some(ToolChoice::Required) => config["toolChoice"] = json!({ "any": {} }),
        Some(ToolChoice::Tool(name)) => {
            config["toolChoice"] = json!({ "tool": { "name": chosen_tool_name(request, name) } });
        }
    }
    Some(config)
}

#[derive(Serialize)]
struct ConverseMessage {
    role: &'static str,
    content: Vec<Value>,
}

/// Returns the system texts and the messages.
fn encode_conversation(base: &RequestBase<'_>) -> (Vec<String>, Vec<ConverseMessage>) {
    let (request, origin) = (&base.request, base.origin);
    let mut system: Vec<String> = request.instructions.map(str::to_owned).into_iter().collect();
    // The API accepts strict schemas only.
    let other_output = request.output_schema.filter(|output| !output.is_strict);
    system.extend(other_output.map(describe_output_schema));
    let mut messages: Vec<ConverseMessage> = Vec::new();
    let mut push_block = |role: &'static str, block: Value| match messages.last_mut() {
        Some(message) if message.role == role => message.content.push(block),
        _ => messages.push(ConverseMessage { role, content: vec![block] }),
    };
    for item in request.input {
        match &**item {
            Item::Message(message) => {
                let role = match message.role {
                    Role::System => {
                        system.push(message.text());
                        continue;
                    }
                    Role::User => "user",
                    Role::Assistant => "assistant",
                };
                message.content.iter().filter_map(encode_part).for_each(|block| push_block(role, block));
            }
            Item::Reasoning(reasoning)
                if reasoning.raw["type"] == REASONING_KIND
                    && origin.may_receive(reasoning.origin.as_deref()) =>
            {
                push_block("assistant", json!({ "reasoningContent": reasoning.raw["content"] }));
            }
            Item::Call(call) => {
                let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
                let input = if input.is_object() { input } else { json!({}) };
                let name = to_wire_name(call.namespace.as_deref(), &call.name);
                let block = json!({ "toolUseId": call.id.as_str(), "name": name, "input": input });
                push_block("assistant", json!({ "toolUse": block }));
            }
            Item::Output(output) => {
                let mut content: Vec<Value> = match &output.content {
                    OutputContent::Text(text) => vec![json!({ "text": text })],
                    OutputContent::Parts(parts) => {
                        let parts = parts.iter().map(|part| CONVERSE_MEDIA.describe_refused(part));
                        parts.filter_map(|part| encode_part(&part)).collect()
                    }
                };
                if content.is_empty() {
                    // The provider refuses a result without content.
                    content.push(json!({ "text": "[the output has no part that this provider accepts]" }));
                }
                let mut result = json!({ "toolUseId": output.call.as_str(), "content": content });
                if output.status == OutputStatus::Failed {
                    result["status"] = "error".into();
                }
                push_block("user", json!({ "toolResult": result }));
            }
            Item::Handoff(handoff) => {
                let content = json!([{ "text": handoff.output_text() }]);
                push_block(
                    "user",
                    json!({ "toolResult": { "toolUseId": handoff.call.as_str(), "content": content } }),
                );
            }
            Item::HostedTool(item) | Item::Unknown(item) => {
                if let Some(block) = origin.raw_if_own(item) {
                    push_block("assistant", block.clone());
                }
            }
            _ => {}
        }
    }
    (system, messages)
}

fn encode_part(part: &ContentPart) -> Option<Value> {
    match part {
        // The API rejects blocks without text.
        ContentPart::Text { text } | ContentPart::Refusal { text } => {
            (!text.trim().is_empty()).then(|| json!({ "text": text }))
        }
        ContentPart::Image(media) => encode_media("image", media, MediaLocation::of_image(media)),
        ContentPart::File(media) => encode_media("document", media, MediaLocation::of_file(media)),
        _ => None,
    }
}

/// Returns the block of an image or a document. The API takes bytes, and no addresses of the web.
fn encode_media(kind: &str, media: &MediaSource, location: Option<MediaLocation<'_>>) -> Option<Value> {
    let MediaLocation::Inline { media_type, data } = location? else { return None };
    let format = match media_type.rsplit(['/', '+']).next().unwrap_or_default() {
        "jpg" => "jpeg",
        "plain" => "txt",
        "markdown" => "md",
        "vnd.openxmlformats-officedocument.wordprocessingml.document" => "docx",
        "vnd.openxmlformats-officedocument.spreadsheetml.sheet" => "xlsx",
        format => format,
    };
    let mut block = json!({ "format": format, "source": { "bytes": data } });
    if kind == "document" {
        // Names may have letters, digits, spaces, hyphens and brackets.
        let name = media.name.as_deref().unwrap_or("document");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-()[] ".contains(c);
        block["name"] = name.chars().map(|c| if is_plain(c) { c } else { '-' }).collect::<String>().into();
    }
    Some(json!({ kind: block }))
}
