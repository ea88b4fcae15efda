//! Encoding and decoding that all protocols share: tool names, media, opaque items, request fields, and borrowed
//! JSON strings. The protocols differ only in the form of their messages.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Error as _, SerializeMap};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use windlass::core::id::CallId;
use windlass::core::item::{
    CallKind, ContentPart, Item, MediaSource, OpaqueItem, ProviderData, Role, ToolCall,
};
use windlass::model::{
    FinishReason, LengthLimitPolicy, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ModelSettings,
    OutputSchema, ToolDefinition, ToolKind,
};

use crate::error::ProviderError;
use crate::prompt_cache::conversation_cache_key;
use crate::protocol::{ProtocolRequest, ResponseError};

/// Maximum length of a tool name that providers accept.
const MAX_NAME_LEN: usize = 64;

/// Serialises a request body as JSON.
pub(crate) fn encode_body(body: &impl Serialize) -> Result<Vec<u8>, ModelError> {
    serde_json::to_vec(body).map_err(|error| {
        let text = format!("the request cannot be written: {error}");
        ModelError::new(text).with_kind(ModelErrorKind::InvalidRequest).with_source(error)
    })
}

/// Iterates over the tools that the model may call: the agent's tools, then its handoffs.
pub(crate) fn offered_tools<'a>(request: &ModelRequest<'a>) -> impl Iterator<Item = &'a ToolDefinition> {
    request.tools.iter().chain(request.handoffs)
}

/// Iterates over the tools that the model may call, and those that it may call once the provider has found them.
fn callable_tools<'a>(request: &ModelRequest<'a>) -> impl Iterator<Item = &'a ToolDefinition> {
    offered_tools(request).chain(request.deferred_tools)
}

/// Keeps the fields of a response that no other place has. Later ones replace those of earlier parts of a stream.
pub(crate) fn keep_other_fields(response: &mut ModelResponse, fields: Map<String, Value>) {
    response.details.other.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
}

/// Returns the instructions for an output whose schema the protocol has no field for.
pub(crate) fn describe_output_schema(output: &OutputSchema) -> String {
    format!("Answer with a JSON object that matches this JSON Schema:\n{}", output.schema)
}

/// Returns the tool with this name that the model may call, without regard to its namespace.
pub(crate) fn find_offered_tool<'a>(request: &ModelRequest<'a>, name: &str) -> Option<&'a ToolDefinition> {
    callable_tools(request).find(|tool| *tool.name == *name)
}

/// Returns the wire name of the tool that a [`ToolChoice::Tool`](windlass::model::ToolChoice::Tool) names.
pub(crate) fn chosen_tool_name<'a>(request: &ModelRequest<'_>, name: &'a str) -> Cow<'a, str> {
    to_wire_name(find_offered_tool(request, name).and_then(|tool| tool.namespace.as_deref()), name)
}

/// Returns a tool's name in the form that providers accept: letters, digits, `_` and `-`, prefixed with its
/// namespace.
pub(crate) fn to_wire_name<'a>(namespace: Option<&str>, name: &'a str) -> Cow<'a, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if namespace.is_none() && name.len() <= MAX_NAME_LEN && name.chars().all(is_plain) {
        return name.into();
    }
    let whole = namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}__{name}"));
    let mut plain: String = whole.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    if plain.len() > MAX_NAME_LEN {
        // The hash keeps two truncated names distinct.
        let hash = whole
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        plain.truncate(MAX_NAME_LEN - 9);
        plain.push_str(&format!("_{hash:08x}"));
    }
    plain.into()
}

/// Returns the names of the tools that the input has calls of, each once. Some providers refuse a conversation with calls
/// if no tool is defined.
pub(crate) fn called_tool_names<'a>(request: &ModelRequest<'a>) -> BTreeSet<Cow<'a, str>> {
    let calls = request.input.iter().filter_map(|item| match &**item {
        Item::Call(call) => Some(to_wire_name(call.namespace.as_deref(), &call.name)),
        _ => None,
    });
    calls.collect()
}

/// Returns the namespace and the name of the offered tool whose wire name is `wire`.
pub(crate) fn resolve_tool_name(request: &ModelRequest<'_>, wire: String) -> (Option<String>, String) {
    let is_bare = |tool: &ToolDefinition| tool.namespace.is_none() && *tool.name == *wire;
    if callable_tools(request).any(is_bare) {
        return (None, wire);
    }
    let found =
        callable_tools(request).find(|tool| to_wire_name(tool.namespace.as_deref(), &tool.name) == wire);
    match found {
        Some(tool) => (tool.namespace.as_deref().map(str::to_owned), tool.name.to_string()),
        None => (None, wire),
    }
}

/// Creates a function call from the namespace and name of its tool. Some servers send an empty string for a call
/// without arguments; it becomes an empty object.
pub(crate) fn function_call(
    id: impl Into<CallId>,
    (namespace, name): (Option<String>, String),
    arguments: String,
) -> ToolCall {
    let arguments = non_empty_arguments(arguments);
    let kind = CallKind::Function;
    ToolCall { id: id.into(), name, namespace, arguments, item_id: None, kind, provider_data: None }
}

/// Returns the arguments, or an empty object if there are none.
pub(crate) fn non_empty_arguments(arguments: String) -> String {
    if arguments.is_empty() { "{}".to_owned() } else { arguments }
}

/// Returns a cost in billionths. A cost that is not a positive number is unknown.
pub(crate) fn to_cost_nanos(cost: f64) -> u64 {
    if cost.is_finite() && cost > 0.0 { (cost * 1e9).round() as u64 } else { 0 }
}

/// Returns the name of an output schema in the form that providers accept.
pub(crate) fn output_schema_name(name: &str) -> Cow<'_, str> {
    if name.is_empty() { "output".into() } else { to_wire_name(None, name) }
}

/// The place of an image's or a file's bytes, apart from the provider's own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediaLocation<'a> {
    Url(&'a str),
    /// Bytes in base64, from the media's data or from a `data:` URL.
    Inline {
        media_type: &'a str,
        data: &'a str,
    },
}

impl<'a> MediaLocation<'a> {
    /// Returns the location of an image; the default type is PNG.
    pub(crate) fn of_image(media: &'a MediaSource) -> Option<Self> {
        Self::with_default_type(media, "image/png")
    }

    /// Returns the location of a file; the default type is PDF.
    pub(crate) fn of_file(media: &'a MediaSource) -> Option<Self> {
        Self::with_default_type(media, "application/pdf")
    }

    fn with_default_type(media: &'a MediaSource, default_type: &'a str) -> Option<Self> {
        match (&media.url, &media.data) {
            (Some(url), _) => {
                let inline = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
                Some(inline.map_or(Self::Url(url), |(media_type, data)| Self::Inline { media_type, data }))
            }
            (None, Some(data)) => {
                let media_type = media.media_type.as_deref().unwrap_or(default_type);
                Some(Self::Inline { media_type, data })
            }
            (None, None) => None,
        }
    }

    /// Returns the URL; inline bytes become a `data:` URL.
    pub(crate) fn into_url(self) -> String {
        match self {
            Self::Url(url) => url.to_owned(),
            Self::Inline { media_type, data } => format!("data:{media_type};base64,{data}"),
        }
    }
}

/// The API that produced an item. Each API rejects the items of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireProtocol {
    /// The Responses API, whose kinds are recorded as received and contain no dot.
    Responses,
    /// The Messages API, whose kinds are recorded with a prefix.
    Messages,
    /// Chat Completions, which has no opaque items.
    Chat,
    /// Gemini, whose kinds are recorded with a prefix.
    Gemini,
    /// Bedrock Converse, whose kinds are recorded with a prefix.
    Converse,
}

impl WireProtocol {
    /// Returns the prefix of the API's kinds of opaque items.
    fn kind_prefix(self) -> &'static str {
        match self {
            Self::Responses | Self::Chat => "",
            Self::Messages => "anthropic.",
            Self::Gemini => "gemini.",
            Self::Converse => "converse.",
        }
    }
}

/// The API and the provider that produce items. An encoder sends only the data of its own provider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemOrigin<'a> {
    pub(crate) protocol: WireProtocol,
    /// The name of the origin, such as `responses:api.openai.com`.
    pub(crate) name: &'a str,
}

impl ItemOrigin<'_> {
    /// Creates an opaque item of a kind that this API defines.
    pub(crate) fn opaque_item(&self, kind: &str, raw: Value) -> OpaqueItem {
        let kind = format!("{}{kind}", self.protocol.kind_prefix());
        OpaqueItem { kind, raw, origin: Some(self.name.to_owned()) }
    }

    /// Returns the item as received if it comes from this API and this provider.
    pub(crate) fn raw_if_own<'i>(&self, item: &'i OpaqueItem) -> Option<&'i Value> {
        let is_of_protocol = match self.protocol {
            WireProtocol::Responses => !item.kind.contains('.'),
            WireProtocol::Messages | WireProtocol::Gemini | WireProtocol::Converse => {
                item.kind.starts_with(self.protocol.kind_prefix())
            }
            WireProtocol::Chat => false,
        };
        (is_of_protocol && self.may_receive(item.origin.as_deref())).then_some(&item.raw)
    }

    /// True if data of this origin may be sent to the provider. Items of an unknown origin may come from an
    /// imported transcript of the same provider.
    pub(crate) fn may_receive(&self, origin: Option<&str>) -> bool {
        origin.is_none_or(|origin| origin == self.name)
    }

    /// Returns fields of a provider's item as provider data, or `None` if there are none.
    pub(crate) fn provider_data(&self, fields: Map<String, Value>) -> Option<Box<ProviderData>> {
        (!fields.is_empty()).then(|| Box::new(ProviderData { origin: self.name.to_owned(), fields }))
    }

    /// Returns the provider data of a call if this provider wrote it.
    pub(crate) fn own_fields<'i>(&self, call: &'i ToolCall) -> Option<&'i Map<String, Value>> {
        call.provider_data.as_deref().filter(|data| data.origin == self.name).map(|data| &data.fields)
    }
}

/// Returns the definition of an offered tool that the provider defines, if `is_wanted` accepts it.
pub(crate) fn find_provider_defined<'a>(
    request: &ModelRequest<'a>,
    is_wanted: impl Fn(&Value) -> bool,
) -> Option<(&'a ToolDefinition, &'a Value)> {
    request.tools.iter().find_map(|tool| match &tool.kind {
        ToolKind::ProviderDefined(definition) if is_wanted(definition) => Some((tool, &**definition)),
        _ => None,
    })
}

/// True if a tool's type belongs to the Messages API, whose types end with a date.
pub(crate) fn is_messages_tool_type(definition: &Value) -> bool {
    let kind = definition.get("type").and_then(Value::as_str).unwrap_or_default();
    let date = kind.rsplit_once('_').map_or("", |(_, date)| date);
    (date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit())) || kind == "mcp_toolset"
}

/// Returns the items after the model's last response: the part that a provider with server-side state lacks.
pub(crate) fn since_last_response(input: &[Arc<Item>]) -> &[Arc<Item>] {
    let is_from_model = |item: &Arc<Item>| match &**item {
        Item::Message(message) => message.role == Role::Assistant,
        Item::Call(_) | Item::Reasoning(_) | Item::HostedTool(_) | Item::Unknown(_) => true,
        _ => false,
    };
    let from = input.iter().rposition(is_from_model).map_or(0, |at| at + 1);
    &input[from..]
}

/// The kind of an opaque content part that holds annotations, such as citations, of the text before it.
const ANNOTATIONS_KIND: &str = "annotations";

/// Returns annotations as an opaque content part, or `None` if there are none.
pub(crate) fn annotations_part(annotations: Vec<Value>) -> Option<ContentPart> {
    (!annotations.is_empty()).then(|| ContentPart::Unknown(OpaqueItem::new(ANNOTATIONS_KIND, annotations)))
}

/// Iterates over the parts of a message, each with the annotations that follow it.
pub(crate) fn with_annotations(
    parts: &[ContentPart],
) -> impl Iterator<Item = (&ContentPart, Option<&Value>)> {
    let is_own = |(_, part): &(usize, &ContentPart)| annotations(part).is_none();
    let own = parts.iter().enumerate().filter(is_own);
    own.map(|(index, part)| (part, parts.get(index + 1).and_then(annotations)))
}

fn annotations(part: &ContentPart) -> Option<&Value> {
    match part {
        ContentPart::Unknown(item) if item.kind == ANNOTATIONS_KIND => Some(&item.raw),
        _ => None,
    }
}

/// The parts of a request body that do not depend on the protocol.
#[derive(Clone, Copy)]
pub(crate) struct RequestBase<'a> {
    pub(crate) request: ModelRequest<'a>,
    /// The name of the model.
    pub(crate) model: &'a str,
    /// The host of the provider.
    pub(crate) host: &'a str,
    pub(crate) is_streamed: bool,
    /// The origin of the response's items.
    pub(crate) origin: ItemOrigin<'a>,
}

impl<'a> RequestBase<'a> {
    pub(crate) fn new(request: &ProtocolRequest<'a>, protocol: WireProtocol) -> Self {
        Self {
            request: request.request,
            model: request.model,
            host: request.host,
            is_streamed: request.is_streamed,
            origin: ItemOrigin { protocol, name: request.origin },
        }
    }

    /// Returns a response that reached the maximum of output tokens as the settings prescribe: as a response if
    /// they keep its text and it has no calls, or as an error.
    pub(crate) fn apply_length_limit(
        &self,
        reason: String,
        mut response: ModelResponse,
    ) -> Result<ModelResponse, ResponseError> {
        response.details.finish_reason = Some(FinishReason::LengthLimit);
        // The arguments of a call may be cut, and still be valid JSON.
        let has_calls = response.items.iter().any(|item| matches!(**item, Item::Call(_)));
        match self.request.settings.on_length_limit.unwrap_or_default() {
            LengthLimitPolicy::KeepText if !has_calls => Ok(response),
            LengthLimitPolicy::KeepText | LengthLimitPolicy::Fail => Err(incomplete_error(reason, response)),
        }
    }
}

impl RequestBase<'_> {
    /// Returns a response that reached the end of the context window as the settings prescribe: as a response that reached
    /// its limit if they keep its text, or as an error after which the history is compacted.
    pub(crate) fn apply_window_limit(
        &self,
        reason: String,
        response: ModelResponse,
    ) -> Result<ModelResponse, ResponseError> {
        if self.request.settings.on_length_limit == Some(LengthLimitPolicy::KeepText) {
            return self.apply_length_limit(reason, response);
        }
        Err(ResponseError::ReportedByProvider(ProviderError {
            code: "context_length_exceeded".to_owned(),
            message: "the response reached the end of the context window".to_owned(),
            usage: response.usage.map(Box::new),
            ..ProviderError::default()
        }))
    }
}

/// Returns the error for a response that the provider gave up, which another attempt may complete.
pub(crate) fn interrupted_error(reason: &str, response: &ModelResponse) -> ResponseError {
    ResponseError::ReportedByProvider(ProviderError {
        code: "server_error".to_owned(),
        message: format!("the response was interrupted ({reason})"),
        usage: response.usage.map(Box::new),
        ..ProviderError::default()
    })
}

/// Returns the error for a response that ended before it was complete.
pub(crate) fn incomplete_error(reason: String, response: ModelResponse) -> ResponseError {
    let usage = response.usage;
    let usage = usage.map(Box::new);
    ResponseError::Incomplete { reason, usage, partial_response: Some(Box::new(response)) }
}

/// A writer for the fields of a request body. Extra fields from the model settings are merged with fields of the
/// same name.
pub(crate) struct RequestFields<'a, M> {
    map: M,
    settings: &'a ModelSettings,
    /// The extra fields that were merged with fields of the adapter.
    merged_fields: BTreeSet<&'a str>,
}

impl<'a, M: SerializeMap> RequestFields<'a, M> {
    /// Starts a body with the name of the model.
    pub(crate) fn start<S: Serializer<SerializeMap = M, Error = M::Error, Ok = M::Ok>>(
        serializer: S,
        base: &RequestBase<'a>,
    ) -> Result<Self, M::Error> {
        let mut fields = Self::start_without_model(serializer, base)?;
        fields.put("model", base.model)?;
        Ok(fields)
    }

    /// Starts a body of an API whose path names the model.
    pub(crate) fn start_without_model<S: Serializer<SerializeMap = M, Error = M::Error, Ok = M::Ok>>(
        serializer: S,
        base: &RequestBase<'a>,
    ) -> Result<Self, M::Error> {
        let settings = base.request.settings;
        let map = serializer.serialize_map(None)?;
        Ok(Self { map, settings, merged_fields: BTreeSet::new() })
    }

    pub(crate) fn put<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), M::Error> {
        if self.settings.replaced_fields.iter().any(|replaced| replaced == key) {
            return Ok(());
        }
        let Some((key, extra)) = self.settings.extra.get_key_value(key) else {
            return self.map.serialize_entry(key, value);
        };
        let own = serde_json::to_value(value).map_err(M::Error::custom)?;
        let merged = merge_extra(own, extra, key).map_err(M::Error::custom)?;
        self.merged_fields.insert(key);
        self.map.serialize_entry(key, &merged)
    }

    pub(crate) fn put_if_some<T: Serialize>(&mut self, key: &str, value: Option<T>) -> Result<(), M::Error> {
        value.map_or(Ok(()), |value| self.put(key, &value))
    }

    /// Writes the tools and the tool choice, unless there are no tools.
    pub(crate) fn put_tools(&mut self, tools: &[Value], choice: Option<Value>) -> Result<(), M::Error> {
        if tools.is_empty() && !self.settings.extra.contains_key("tools") {
            return Ok(());
        }
        self.put("tools", tools)?;
        self.put_if_some("tool_choice", choice)
    }

    /// Writes the sampling settings.
    pub(crate) fn put_sampling(&mut self) -> Result<(), M::Error> {
        self.put_if_some("temperature", self.settings.temperature)?;
        self.put_if_some("top_p", self.settings.top_p)
    }

    /// Writes the settings that both of OpenAI's APIs have.
    pub(crate) fn put_openai_settings(&mut self, base: &RequestBase<'_>) -> Result<(), M::Error> {
        let settings = self.settings;
        // Servers that imitate the API may refuse the field.
        let own_key = is_openai_host(base.host).then(|| conversation_cache_key(&base.request)).flatten();
        let cache_key = settings.prompt_cache_key.as_ref().or(own_key.as_ref());
        self.put_if_some("service_tier", settings.service_tier.as_ref())?;
        if !settings.metadata.is_empty() {
            self.put("metadata", &settings.metadata)?;
        }
        self.put_if_some("safety_identifier", settings.safety_identifier.as_ref())?;
        self.put_if_some("prompt_cache_key", cache_key)?;
        self.put_if_some("prompt_cache_retention", settings.prompt_cache_retention.as_ref())?;
        self.put_if_some("store", settings.store)
    }

    pub(crate) fn finish(mut self) -> Result<M::Ok, M::Error> {
        for (key, value) in &self.settings.extra {
            if !self.merged_fields.contains(key.as_str()) {
                self.map.serialize_entry(key, value)?;
            }
        }
        self.map.end()
    }
}

/// Merges an extra value into the adapter's value at `place`. Objects are merged field by field, lists are
/// appended, and other values take precedence over the adapter's.
///
/// # Errors
///
/// Returns the reason if the extra value would remove an object, a list or a value of the adapter.
fn merge_extra(own: Value, extra: &Value, place: &str) -> Result<Value, String> {
    match (own, extra) {
        (Value::Null, extra) => Ok(extra.clone()),
        (Value::Object(mut own), Value::Object(extra)) => {
            for (key, value) in extra {
                let merged = match own.remove(key) {
                    Some(own) => merge_extra(own, value, &format!("{place}.{key}"))?,
                    None => value.clone(),
                };
                own.insert(key.clone(), merged);
            }
            Ok(Value::Object(own))
        }
        (Value::Array(mut own), Value::Array(extra)) => {
            for value in extra {
                if !own.contains(value) {
                    own.push(value.clone());
                }
            }
            Ok(Value::Array(own))
        }
        (own @ (Value::Object(_) | Value::Array(_)), _) | (own, Value::Null) => {
            let kind = match own {
                Value::Object(_) => "an object",
                Value::Array(_) => "a list",
                _ => "a value",
            };
            let field = place.split('.').next().unwrap_or(place);
            Err(format!(
                "the extra field `{place}` would remove {kind} that the request needs; hint: name `{field}` in \
                 `replaced_fields` if that is intended"
            ))
        }
        (_, extra) => Ok(extra.clone()),
    }
}

/// True if the host belongs to OpenAI or to Azure OpenAI.
pub(crate) fn is_openai_host(host: &str) -> bool {
    ["openai.com", "openai.azure.com", "cognitiveservices.azure.com", "services.ai.azure.com"]
        .iter()
        .any(|domain| host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

/// Parses a part of a response that was left raw.
pub(crate) fn parse_raw<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, ResponseError> {
    serde_json::from_str(raw.get()).map_err(ResponseError::invalid)
}

/// An optional JSON string that borrows from the input unless it contains escapes. `null` is `None`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BorrowedText<'a>(pub(crate) Option<Cow<'a, str>>);

impl<'a> BorrowedText<'a> {
    pub(crate) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns the text, empty if it is absent.
    pub(crate) fn into_cow(self) -> Cow<'a, str> {
        self.0.unwrap_or_default()
    }

    /// Returns the text as a string, empty if it is absent.
    pub(crate) fn into_string(self) -> String {
        self.into_cow().into_owned()
    }

    /// Returns the text as a string if it is present.
    pub(crate) fn into_option(self) -> Option<String> {
        self.0.map(Cow::into_owned)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for BorrowedText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = BorrowedText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or null")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<BorrowedText<'de>, E> {
                Ok(BorrowedText(Some(Cow::Borrowed(text))))
            }

            fn visit_str<E>(self, text: &str) -> Result<BorrowedText<'de>, E> {
                Ok(BorrowedText(Some(Cow::Owned(text.to_owned()))))
            }

            fn visit_unit<E>(self) -> Result<BorrowedText<'de>, E> {
                Ok(BorrowedText(None))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// A JSON string, or another JSON value in its place.
#[derive(Debug, Default, PartialEq)]
pub(crate) enum TextOrValue<'a> {
    #[default]
    Absent,
    Text(Cow<'a, str>),
    Value(Value),
}

impl<'de: 'a, 'a> Deserialize<'de> for TextOrValue<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = TextOrValue<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a list, an object or null")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<TextOrValue<'de>, E> {
                Ok(TextOrValue::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<TextOrValue<'de>, E> {
                Ok(TextOrValue::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_unit<E>(self) -> Result<TextOrValue<'de>, E> {
                Ok(TextOrValue::Absent)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<TextOrValue<'de>, A::Error> {
                Value::deserialize(SeqAccessDeserializer::new(list)).map(TextOrValue::Value)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TextOrValue<'de>, A::Error> {
                Value::deserialize(MapAccessDeserializer::new(map)).map(TextOrValue::Value)
            }
        }
        deserializer.deserialize_any(Read)
    }
}
