//! Decoding of Messages API responses. A streamed response is assembled into the blocks of a plain one; one
//! function turns the blocks into items.

use std::mem::take;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use windlass::core::item::{ContentPart, Item, Message, ReasoningItem, Role, ToolCall};
use windlass::core::usage::Usage;
use windlass::model::{FinishReason, ModelRequest, ModelResponse};

use super::encode::{BROWSER_TOOLSET, COMPUTER_TOOLSET, computer_tool_name};
use crate::protocol::{DeltaBuffer, ResponseDecoder, ResponseError, StreamProgress};
use crate::sse::SseEvent;
use crate::wire::{
    BorrowedText, ItemOrigin, RequestBase, annotations_part, find_provider_defined, function_call,
    keep_other_fields, non_empty_arguments, parse_raw, resolve_tool_name,
};

/// The decoder of the response to one request.
pub(crate) struct MessagesDecoder<'a> {
    base: RequestBase<'a>,
    /// The id and the model of the response.
    response: ModelResponse,
    blocks: Vec<MessagesBlock>,
    stop_reason: Option<String>,
    stop_sequence: Option<String>,
    usage: Option<MessagesUsage>,
    is_complete: bool,
}

enum MessagesBlock {
    Text {
        text: String,
        citations: Vec<Value>,
    },
    /// A thinking block; `raw` holds its other fields as received.
    Thinking {
        text: String,
        signature: String,
        raw: Value,
    },
    ToolUse {
        id: String,
        name: String,
        /// The toolset that the tool belongs to; empty if none.
        toolset: String,
        input: String,
        caller: Option<Value>,
    },
    /// A call of a tool that the provider runs, or a block of unknown type.
    Other {
        raw: Value,
        input: String,
    },
}

#[derive(Deserialize)]
struct MessagesWireMessage<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: BorrowedText<'a>,
    #[serde(borrow, default)]
    id: BorrowedText<'a>,
    #[serde(borrow, default)]
    model: BorrowedText<'a>,
    #[serde(borrow, default)]
    content: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    stop_reason: BorrowedText<'a>,
    #[serde(borrow, default)]
    stop_sequence: BorrowedText<'a>,
    #[serde(default)]
    usage: Option<MessagesUsage>,
    #[serde(rename = "role", default)]
    _role: IgnoredAny,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct MessagesUsage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens_details: Option<MessagesOutputDetails>,
    service_tier: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct MessagesOutputDetails {
    thinking_tokens: Option<u64>,
}

impl MessagesUsage {
    /// Returns the usage. Anthropic counts cached tokens separately; [`Usage`] includes them in the input tokens.
    fn to_usage(&self) -> Usage {
        let (read, written) =
            (self.cache_read_input_tokens.unwrap_or(0), self.cache_creation_input_tokens.unwrap_or(0));
        let details = self.output_tokens_details.as_ref();
        Usage {
            cached_tokens: read,
            cache_write_tokens: written,
            reasoning_tokens: details.and_then(|details| details.thinking_tokens).unwrap_or(0),
            ..Usage::of_tokens(
                self.input_tokens.unwrap_or(0).saturating_add(read).saturating_add(written),
                self.output_tokens.unwrap_or(0),
            )
        }
    }

    /// Overwrites the counts with later ones, which are cumulative.
    fn merge(&mut self, later: Self) {
        let put = |place: &mut Option<u64>, later: Option<u64>| *place = later.or(*place);
        put(&mut self.input_tokens, later.input_tokens);
        put(&mut self.output_tokens, later.output_tokens);
        put(&mut self.cache_creation_input_tokens, later.cache_creation_input_tokens);
        put(&mut self.cache_read_input_tokens, later.cache_read_input_tokens);
        if later.output_tokens_details.is_some() {
            self.output_tokens_details = later.output_tokens_details;
        }
        if later.service_tier.is_some() {
            self.service_tier = later.service_tier;
        }
    }
}

#[derive(Deserialize)]
struct MessagesEvent<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: BorrowedText<'a>,
    #[serde(default)]
    index: usize,
    #[serde(borrow, default)]
    delta: Option<MessagesDelta<'a>>,
    #[serde(borrow, default)]
    content_block: Option<&'a RawValue>,
    #[serde(borrow, default)]
    message: Option<MessagesWireMessage<'a>>,
    #[serde(default)]
    usage: Option<MessagesUsage>,
    #[serde(default)]
    context_management: Option<Value>,
}

#[derive(Deserialize)]
struct MessagesDelta<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: BorrowedText<'a>,
    #[serde(borrow, default)]
    text: BorrowedText<'a>,
    #[serde(borrow, default)]
    partial_json: BorrowedText<'a>,
    #[serde(borrow, default)]
    thinking: BorrowedText<'a>,
    #[serde(borrow, default)]
    signature: BorrowedText<'a>,
    #[serde(default)]
    citation: Option<Value>,
    #[serde(borrow, default)]
    stop_reason: BorrowedText<'a>,
    #[serde(borrow, default)]
    stop_sequence: BorrowedText<'a>,
    #[serde(default)]
    container: Option<Value>,
}

#[derive(Deserialize)]
struct MessagesWireBlock<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: BorrowedText<'a>,
    #[serde(borrow, default)]
    text: BorrowedText<'a>,
    #[serde(default)]
    citations: Option<Vec<Value>>,
    #[serde(borrow, default)]
    id: BorrowedText<'a>,
    #[serde(borrow, default)]
    name: BorrowedText<'a>,
    #[serde(borrow, default)]
    toolset_name: BorrowedText<'a>,
    #[serde(default)]
    caller: Option<Value>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
}

impl ResponseDecoder for MessagesDecoder<'_> {
    fn decode_body(&mut self, body: &str) -> Result<ModelResponse, ResponseError> {
        let mut message: MessagesWireMessage<'_> =
            serde_json::from_str(body).map_err(|error| ResponseError::invalid_json(&error))?;
        if message.kind.as_str() == "error" {
            return Err(ResponseError::reported_in(body));
        }
        let content = message.content.take().ok_or_else(|| ResponseError::invalid("it has no `content`"))?;
        self.blocks = content.into_iter().map(MessagesBlock::from_wire).collect::<Result<_, _>>()?;
        self.apply_head(message);
        self.take_response()
    }

    fn decode_event(
        &mut self,
        event: SseEvent<'_>,
        deltas: &mut DeltaBuffer,
    ) -> Result<StreamProgress, ResponseError> {
        let parsed: MessagesEvent<'_> = match serde_json::from_str(event.data) {
            Ok(parsed) => parsed,
            Err(error) => return handle_undecodable_event(event, &error),
        };
        match parsed.kind.as_str() {
            "content_block_delta" => {
                if let (Some(delta), Some(block)) = (parsed.delta, self.blocks.get_mut(parsed.index)) {
                    block.apply_delta(delta, deltas);
                }
            }
            "content_block_start" => {
                let raw = parsed
                    .content_block
                    .ok_or_else(|| ResponseError::invalid("`content_block_start` has no block"))?;
                if parsed.index != self.blocks.len() {
                    return Err(ResponseError::invalid("its blocks are not in order"));
                }
                self.blocks.push(MessagesBlock::from_wire(raw)?);
            }
            "message_start" => {
                if let Some(message) = parsed.message {
                    self.apply_head(message);
                }
            }
            "message_delta" => {
                if let Some(delta) = parsed.delta {
                    self.stop_reason = delta.stop_reason.into_option().or(self.stop_reason.take());
                    self.stop_sequence = delta.stop_sequence.into_option().or(self.stop_sequence.take());
                    let container = delta.container.map(|container| ("container".to_owned(), container));
                    keep_other_fields(&mut self.response, container.into_iter().collect());
                }
                let edits = parsed.context_management.map(|edits| ("context_management".to_owned(), edits));
                keep_other_fields(&mut self.response, edits.into_iter().collect());
                if let Some(later) = parsed.usage {
                    self.usage.get_or_insert_default().merge(later);
                }
            }
            "message_stop" => {
                self.is_complete = true;
                return Ok(StreamProgress::Complete);
            }
            "error" => return Err(ResponseError::reported_in(event.data)),
            "ping" => return Ok(StreamProgress::KeepAlive),
            _ => {}
        }
        Ok(StreamProgress::Advanced)
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }

    fn take_response(&mut self) -> Result<ModelResponse, ResponseError> {
        let usage = self.usage.as_ref().map(MessagesUsage::to_usage);
        let stop = self.stop_reason.take().unwrap_or_else(|| "end_turn".to_owned());
        let mut items: Vec<Item> = Vec::with_capacity(self.blocks.len());
        for block in take(&mut self.blocks) {
            block.append_to(&mut items, &self.base);
        }
        if stop == "refusal" {
            mark_as_refusal(&mut items);
        }
        let items = items.into_iter().map(Arc::new).collect();
        let mut response = ModelResponse { items, usage, ..take(&mut self.response) };
        response.details.stop_sequence = self.stop_sequence.take();
        response.details.service_tier = self.usage.take().and_then(|usage| usage.service_tier);
        response.details.finish_reason = Some(match stop.as_str() {
            "end_turn" => FinishReason::Complete,
            "tool_use" => FinishReason::ToolCalls,
            "stop_sequence" => FinishReason::StopSequence,
            "refusal" => FinishReason::Refusal,
            "pause_turn" => FinishReason::Paused,
            "max_tokens" => return self.base.apply_length_limit(stop, response),
            "model_context_window_exceeded" => return self.base.apply_window_limit(stop, response),
            _ => FinishReason::Other(stop),
        });
        Ok(response)
    }
}

impl<'a> MessagesDecoder<'a> {
    pub(crate) fn new(base: RequestBase<'a>) -> Self {
        Self {
            base,
            response: ModelResponse::default(),
            blocks: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: None,
            is_complete: false,
        }
    }

    /// Takes over the fields of a message other than its blocks.
    fn apply_head(&mut self, message: MessagesWireMessage<'_>) {
        self.response.response_id = message.id.into_option();
        self.response.model = message.model.into_option();
        self.stop_reason = message.stop_reason.into_option();
        self.stop_sequence = message.stop_sequence.into_option();
        self.usage = message.usage;
        keep_other_fields(&mut self.response, message.other);
    }
}

/// Ignores an event that does not parse if its name is unknown; a known name is an error.
fn handle_undecodable_event(
    event: SseEvent<'_>,
    error: &serde_json::Error,
) -> Result<StreamProgress, ResponseError> {
    match event.name {
        Some("ping") => Ok(StreamProgress::KeepAlive),
        Some(name)
            if !name.starts_with("content_block") && !name.starts_with("message") && name != "error" =>
        {
            Ok(StreamProgress::Advanced)
        }
        _ => Err(ResponseError::invalid(error)),
    }
}

impl MessagesBlock {
    fn from_wire(raw: &RawValue) -> Result<Self, ResponseError> {
        let block: MessagesWireBlock<'_> = parse_raw(raw)?;
        Ok(match block.kind.as_str() {
            "text" => {
                Self::Text { text: block.text.into_string(), citations: block.citations.unwrap_or_default() }
            }
            "tool_use" => {
                // A streamed call starts with an empty object; its input follows in deltas.
                let input = block.input.map_or("{}", RawValue::get);
                Self::ToolUse {
                    id: block.id.into_string(),
                    name: block.name.into_string(),
                    toolset: block.toolset_name.into_string(),
                    caller: block.caller,
                    input: if is_empty_object(input) { String::new() } else { input.to_owned() },
                }
            }
            "thinking" => {
                let mut raw: Value = parse_raw(raw)?;
                let mut text = |key: &str| raw[key].take().as_str().unwrap_or_default().to_owned();
                Self::Thinking { text: text("thinking"), signature: text("signature"), raw }
            }
            _ => Self::Other { raw: parse_raw(raw)?, input: String::new() },
        })
    }

    fn apply_delta(&mut self, delta: MessagesDelta<'_>, deltas: &mut DeltaBuffer) {
        match self {
            Self::Text { text, citations } => {
                citations.extend(delta.citation);
                text.push_str(delta.text.as_str());
                deltas.push_text(delta.text.into_cow());
            }
            Self::Thinking { text, signature, .. } => {
                signature.push_str(delta.signature.as_str());
                text.push_str(delta.thinking.as_str());
                deltas.push_reasoning(delta.thinking.into_cow());
            }
            Self::ToolUse { id, input, .. } => {
                input.push_str(delta.partial_json.as_str());
                deltas.push_arguments(id, delta.partial_json.into_cow());
            }
            Self::Other { input, .. } => {
                if delta.kind.as_str() == "input_json_delta" {
                    input.push_str(delta.partial_json.as_str());
                }
            }
        }
    }

    /// Appends the item of a complete block. Consecutive texts become one message; the provider splits it into
    /// blocks at citations.
    fn append_to(self, items: &mut Vec<Item>, base: &RequestBase<'_>) {
        let (request, origin) = (&base.request, base.origin);
        match self {
            Self::Text { text, citations } => {
                let parts = [Some(ContentPart::text(text)), annotations_part(citations)];
                let parts = parts.into_iter().flatten();
                match items.last_mut() {
                    Some(Item::Message(message)) => message.content.extend(parts),
                    _ => items.push(assistant_message(parts.collect())),
                }
            }
            Self::Thinking { text, signature, mut raw } => {
                raw["thinking"] = text.as_str().into();
                raw["signature"] = signature.into();
                let origin = Some(origin.name.to_owned());
                items.push(Item::Reasoning(ReasoningItem { summary: text, item_id: None, raw, origin }));
            }
            Self::ToolUse { id, name, toolset, input, caller } => {
                let mut fields = Map::new();
                fields.extend(caller.map(|caller| ("caller".to_owned(), caller)));
                let (tool, arguments) = match computer_tool_name(request) {
                    Some(computer) if toolset == COMPUTER_TOOLSET || toolset == BROWSER_TOOLSET => {
                        let arguments = with_action_argument(&name, non_empty_arguments(input));
                        ((None, computer.to_owned()), arguments)
                    }
                    _ => {
                        if !toolset.is_empty() {
                            fields.insert("toolset_name".to_owned(), toolset.into());
                        }
                        (resolve_provider_tool_name(request, name), input)
                    }
                };
                let provider_data = origin.provider_data(fields);
                items.push(Item::Call(ToolCall { provider_data, ..function_call(id, tool, arguments) }));
            }
            Self::Other { mut raw, input } => {
                if !input.is_empty() {
                    raw["input"] = serde_json::from_str(&input).unwrap_or_else(|_| json!({}));
                }
                items.push(item_from_unknown_block(raw, origin));
            }
        }
    }
}

fn assistant_message(content: Vec<ContentPart>) -> Item {
    Item::Message(Message { role: Role::Assistant, content, item_id: None, sources: Default::default() })
}

/// Replaces the messages and calls of a refused response with one refusal.
fn mark_as_refusal(items: &mut Vec<Item>) {
    let texts = items.iter().filter_map(|item| match item {
        Item::Message(message) => Some(message.text()),
        _ => None,
    });
    let text: String = texts.collect();
    let text = if text.is_empty() { "the model declined to answer".to_owned() } else { text };
    items.retain(|item| !matches!(item, Item::Message(_) | Item::Call(_)));
    items.push(assistant_message(vec![ContentPart::Refusal { text }]));
}

fn is_empty_object(text: &str) -> bool {
    text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).is_some_and(|text| text.trim().is_empty())
}

fn item_from_unknown_block(raw: Value, origin: ItemOrigin<'_>) -> Item {
    let kind = raw["type"].as_str().unwrap_or("block").to_owned();
    if kind == "redacted_thinking" {
        let origin = Some(origin.name.to_owned());
        return Item::Reasoning(ReasoningItem { summary: String::new(), item_id: None, raw, origin });
    }
    let is_hosted = kind == "server_tool_use" || kind.ends_with("_tool_result") || kind == "mcp_tool_use";
    let item = origin.opaque_item(&kind, raw);
    if is_hosted { Item::HostedTool(item) } else { Item::Unknown(item) }
}

/// Returns the namespace and the name of the tool that the model calls `wire`. Tools that the provider defines have
/// a name of the provider's.
fn resolve_provider_tool_name(request: &ModelRequest<'_>, wire: String) -> (Option<String>, String) {
    match find_provider_defined(request, |definition| definition["name"] == *wire) {
        Some((tool, _)) => (tool.namespace.as_deref().map(str::to_owned), tool.name.to_string()),
        None => resolve_tool_name(request, wire),
    }
}

/// Turns a call of a toolset member into a call of the computer tool by adding the member's name as `action`.
/// Arguments that are not an object stay unchanged, so that the argument check reports them to the model.
fn with_action_argument(member: &str, arguments: String) -> String {
    match serde_json::from_str(&arguments) {
        Ok(Value::Object(mut input)) => {
            input.insert("action".to_owned(), member.into());
            Value::Object(input).to_string()
        }
        Ok(_) | Err(_) => arguments,
    }
}

#[cfg(test)]
mod tests {
    use super::MessagesUsage;

    #[test]
    fn counts_of_any_size_are_added() {
        let usage: Result<MessagesUsage, _> = serde_json::from_str(
            r#"{"input_tokens":18446744073709551615,"cache_read_input_tokens":18446744073709551615,"cache_creation_input_tokens":1,"output_tokens":2}"#,
        );
        let usage = usage.unwrap_or_default().to_usage();
        assert_eq!((usage.input_tokens, usage.output_tokens), (u64::MAX, 2));
    }
}
