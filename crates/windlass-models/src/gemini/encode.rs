//! Encoding of Gemini requests. Consecutive items of one role become one content with several parts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use windlass::core::item::{ContentPart, Item, MediaSource, OutputContent, OutputStatus, Role, ToolCall};
use windlass::model::{ModelRequest, ToolChoice, ToolKind};

use crate::media_support::{ALL_FORMS, MediaSupport};
use crate::wire::{
    ItemOrigin, MediaLocation, RequestBase, RequestFields, chosen_tool_name, offered_tools, to_wire_name,
};

/// The forms of images and files that the API accepts.
pub(super) const GEMINI_MEDIA: MediaSupport =
    MediaSupport { api: "Gemini", images: ALL_FORMS, files: ALL_FORMS };

/// The field of a part that holds a signature.
pub(super) const SIGNATURE_FIELD: &str = "thoughtSignature";
/// The kind of the opaque part with the signature of the text before it.
pub(super) const TEXT_SIGNATURE_KIND: &str = "text_signature";
/// The `type` in the raw value of reasoning items from this protocol.
pub(super) const THOUGHT_KIND: &str = "gemini.thought";
/// The signature that the provider accepts for calls that another model made.
const FOREIGN_SIGNATURE: &str = "skip_thought_signature_validator";

/// The body of a request.
pub(super) struct GeminiRequestBody<'a> {
    pub(super) base: RequestBase<'a>,
}

impl Serialize for GeminiRequestBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let request = &self.base.request;
        let mut fields = RequestFields::start_without_model(serializer, &self.base)?;
        let (system, contents) = encode_conversation(&self.base);
        if !system.is_empty() {
            fields.put("systemInstruction", &json!({ "parts": [{ "text": system }] }))?;
        }
        fields.put("contents", &contents)?;
        let (tools, config) = encode_tools(request);
        if !tools.is_empty() {
            fields.put("tools", &tools)?;
        }
        if !config.is_empty() {
            fields.put("toolConfig", &config)?;
        }
        let config = encode_generation_config(request);
        if !config.is_empty() {
            fields.put("generationConfig", &config)?;
        }
        if !request.settings.metadata.is_empty() {
            fields.put("labels", &request.settings.metadata)?;
        }
        fields.finish()
    }
}

fn encode_generation_config(request: &ModelRequest<'_>) -> Map<String, Value> {
    let settings = request.settings;
    let mut config = Map::new();
    let mut put =
        |name: &str, value: Option<Value>| config.extend(value.map(|value| (name.to_owned(), value)));
    put("temperature", settings.temperature.map(Value::from));
    put("topP", settings.top_p.map(Value::from));
    put("maxOutputTokens", settings.max_tokens.map(Value::from));
    put("stopSequences", settings.stop.as_ref().map(|stop| json!(stop)));
    put("seed", settings.seed.map(Value::from));
    put("presencePenalty", settings.presence_penalty.map(Value::from));
    put("frequencyPenalty", settings.frequency_penalty.map(Value::from));
    put("responseLogprobs", settings.top_logprobs.map(|_| true.into()));
    put("logprobs", settings.top_logprobs.map(Value::from));
    if let Some(output) = request.output_schema {
        put("responseMimeType", Some("application/json".into()));
        put("responseJsonSchema", Some(output.schema.clone()));
    }
    let mut thinking = Map::new();
    let mut put_thinking =
        |name: &str, value: Option<Value>| thinking.extend(value.map(|value| (name.to_owned(), value)));
    put_thinking("thinkingLevel", settings.reasoning_effort.as_deref().map(Value::from));
    put_thinking("thinkingBudget", settings.thinking_budget.map(Value::from));
    put_thinking("includeThoughts", settings.reasoning_summary.as_ref().map(|_| true.into()));
    if !thinking.is_empty() {
        config.insert("thinkingConfig".to_owned(), thinking.into());
    }
    config
}

/// Returns the tools and their configuration.
fn encode_tools(request: &ModelRequest<'_>) -> (Vec<Value>, Map<String, Value>) {
    let mut functions = Vec::new();
    let mut tools = Vec::new();
    for tool in offered_tools(request) {
        match &tool.kind {
            ToolKind::Hosted(definition) => {
                let mut options = definition.as_object().cloned().unwrap_or_default();
                let kind = options.remove("type");
                let name = to_camel_case(kind.as_ref().and_then(Value::as_str).unwrap_or_default());
                tools.push(json!({ name: options }));
            }
            _ => functions.push(json!({
                "name": to_wire_name(tool.namespace.as_deref(), &tool.name),
                "description": tool.description,
                "parametersJsonSchema": tool.parameters,
            })),
        }
    }
    let mut config = Map::new();
    if !functions.is_empty() && !tools.is_empty() {
        // The provider returns the calls of its own tools, which it needs back beside the functions.
        config.insert("includeServerSideToolInvocations".to_owned(), true.into());
    }
    let choice = match &request.settings.tool_choice {
        None => None,
        Some(ToolChoice::Auto) => Some(json!({ "mode": "AUTO" })),
        Some(ToolChoice::Required) => Some(json!({ "mode": "ANY" })),
        Some(ToolChoice::None) => Some(json!({ "mode": "NONE" })),
        Some(ToolChoice::Tool(name)) => {
            Some(json!({ "mode": "ANY", "allowedFunctionNames": [chosen_tool_name(request, name)] }))
        }
    };
    if let (Some(choice), false) = (choice, functions.is_empty()) {
        config.insert("functionCallingConfig".to_owned(), choice);
    }
    if !functions.is_empty() {
        tools.insert(0, json!({ "functionDeclarations": functions }));
    }
    (tools, config)
}

/// Returns a name such as `google_search` as `googleSearch`.
fn to_camel_case(name: &str) -> String {
    let mut camel = String::with_capacity(name.len());
    let mut is_start = false;
    for letter in name.chars() {
        match letter {
            '_' => is_start = true,
            letter if is_start => {
                camel.extend(letter.to_uppercase());
                is_start = false;
            }
            letter => camel.push(letter),
        }
    }
    camel
}

#[derive(Serialize)]
struct GeminiContent {
    role: &'static str,
    parts: Vec<Value>,
}

/// The name and the provider's id of a call, which its response needs.
struct SentCall<'a> {
    name: Cow<'a, str>,
    id: Option<&'a Value>,
}

/// Returns the system prompt and the contents.
fn encode_conversation(base: &RequestBase<'_>) -> (String, Vec<GeminiContent>) {
    let (request, origin) = (&base.request, base.origin);
    let mut system: Vec<String> = request.instructions.map(str::to_owned).into_iter().collect();
    let mut contents: Vec<GeminiContent> = Vec::new();
    let mut calls: BTreeMap<&str, SentCall<'_>> = BTreeMap::new();
    let mut push_part = |role: &'static str, part: Value| match contents.last_mut() {
        Some(content) if content.role == role => content.parts.push(part),
        _ => contents.push(GeminiContent { role, parts: vec![part] }),
    };
    let mut is_first_call = true;
    for item in request.input {
        match &**item {
            Item::Message(message) => match message.role {
                Role::System => system.push(message.text()),
                Role::User => {
                    message.content.iter().filter_map(encode_part).for_each(|part| push_part("user", part))
                }
                Role::Assistant => {
                    for part in encode_model_parts(&message.content, origin) {
                        push_part("model", part);
                    }
                }
            },
            Item::Reasoning(reasoning)
                if reasoning.raw["type"] == THOUGHT_KIND
                    && origin.may_receive(reasoning.origin.as_deref()) =>
            {
                push_part("model", reasoning.raw["part"].clone());
            }
            Item::Call(call) => {
                let name = to_wire_name(call.namespace.as_deref(), &call.name);
                let own = origin.own_fields(call);
                push_part("model", encode_call(call, &name, base, is_first_call));
                is_first_call = false;
                calls
                    .insert(call.id.as_str(), SentCall { name, id: own.and_then(|fields| fields.get("id")) });
            }
            Item::Output(output) => {
                is_first_call = true;
                let text = output.content.text();
                let key = if output.status == OutputStatus::Failed { "error" } else { "output" };
                push_part("user", encode_response(&calls, output.call.as_str(), key, &text));
                if let OutputContent::Parts(parts) = &output.content {
                    let media = parts.iter().filter(|part| !matches!(part, ContentPart::Text { .. }));
                    let media = media.map(|part| GEMINI_MEDIA.describe_refused(part));
                    media.filter_map(|part| encode_part(&part)).for_each(|part| push_part("user", part));
                }
            }
            Item::Handoff(handoff) => {
                is_first_call = true;
                push_part(
                    "user",
                    encode_response(&calls, handoff.call.as_str(), "output", &handoff.output_text()),
                );
            }
            Item::HostedTool(item) | Item::Unknown(item) => {
                if let Some(part) = origin.raw_if_own(item) {
                    push_part("model", part.clone());
                }
            }
            _ => {}
        }
    }
    (system.join("\n\n"), contents)
}

fn encode_call(call: &ToolCall, name: &str, base: &RequestBase<'_>, is_first: bool) -> Value {
    let args: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    let args = if args.is_object() { args } else { json!({}) };
    let mut part = json!({ "functionCall": { "name": name, "args": args } });
    match base.origin.own_fields(call) {
        Some(fields) => {
            if let Some(id) = fields.get("id") {
                part["functionCall"]["id"] = id.clone();
            }
            if let Some(signature) = fields.get(SIGNATURE_FIELD) {
                part[SIGNATURE_FIELD] = signature.clone();
            }
        }
        // Newer models refuse a first call without a signature.
        None if is_first && needs_signature(base.model) => part[SIGNATURE_FIELD] = FOREIGN_SIGNATURE.into(),
        None => {}
    }
    part
}

/// Returns true if a model refuses the first call of a step without a signature.
fn needs_signature(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    name.starts_with("gemini-3")
}

fn encode_response(calls: &BTreeMap<&str, SentCall<'_>>, call: &str, key: &str, text: &str) -> Value {
    let sent = calls.get(call);
    let name = sent.map_or(call, |sent| &*sent.name);
    let mut response = json!({ "name": name, "response": { key: text } });
    if let Some(id) = sent.and_then(|sent| sent.id) {
        response["id"] = id.clone();
    }
    json!({ "functionResponse": response })
}

/// Returns the parts of a message of the model, each text with its signature.
fn encode_model_parts(parts: &[ContentPart], origin: ItemOrigin<'_>) -> Vec<Value> {
    let mut encoded: Vec<Value> = Vec::new();
    for part in parts {
        match part {
            ContentPart::Text { text } | ContentPart::Refusal { text } => {
                encoded.push(json!({ "text": text }))
            }
            ContentPart::Unknown(item) => {
                if let (Some(raw), Some(last)) = (origin.raw_if_own(item), encoded.last_mut())
                    && item.kind.ends_with(TEXT_SIGNATURE_KIND)
                {
                    last[SIGNATURE_FIELD] = raw.clone();
                }
            }
            _ => {}
        }
    }
    // The API rejects parts without text, unless they carry a signature.
    encoded.retain(|part| part["text"] != "" || part.get(SIGNATURE_FIELD).is_some());
    encoded
}

fn encode_part(part: &ContentPart) -> Option<Value> {
    match part {
        ContentPart::Text { text } | ContentPart::Refusal { text } => {
            (!text.is_empty()).then(|| json!({ "text": text }))
        }
        ContentPart::Image(media) => encode_media(media, MediaLocation::of_image(media), "image/png"),
        ContentPart::File(media) => encode_media(media, MediaLocation::of_file(media), "application/pdf"),
        _ => None,
    }
}

fn encode_media(
    media: &MediaSource,
    location: Option<MediaLocation<'_>>,
    default_type: &str,
) -> Option<Value> {
    let media_type = media.media_type.as_deref().unwrap_or(default_type);
    if let Some(id) = &media.file_id {
        return Some(json!({ "fileData": { "fileUri": id, "mimeType": media_type } }));
    }
    Some(match location? {
        MediaLocation::Url(url) => json!({ "fileData": { "fileUri": url, "mimeType": media_type } }),
        MediaLocation::Inline { media_type, data } => {
            json!({ "inlineData": { "mimeType": media_type, "data": data } })
        }
    })
}
