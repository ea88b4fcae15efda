//! Decoding of Chat Completions responses. Plain and streamed responses go through one assembler, so both give the
//! same items.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use windlass::core::item::{CallKind, ContentPart, Item, Message, ReasoningItem, Role, ToolCall};
use windlass::model::{FinishReason, ModelResponse};

use super::usage::OpenAiUsage;
use crate::call_ids::made_up_call_id;
use crate::error::ProviderError;
use crate::protocol::{DeltaBuffer, ResponseDecoder, ResponseError, StreamProgress};
use crate::sse::SseEvent;
use crate::wire::{
    BorrowedText, RequestBase, TextOrValue, annotations_part, function_call, incomplete_error,
    interrupted_error, keep_other_fields, resolve_tool_name,
};

/// The `type` in the raw value of reasoning items from this protocol.
pub(super) const REASONING_KIND: &str = "chat.reasoning";
/// The provider's type of a call of a custom tool.
pub(super) const CUSTOM_CALL_TYPE: &str = "custom";

/// The decoder of the response to one request.
pub(crate) struct ChatDecoder<'a> {
    base: RequestBase<'a>,
    /// The id, the model and the usage of the response.
    response: ModelResponse,
    /// The field that carries the reasoning, and its text.
    reasoning: Option<(&'static str, String)>,
    /// Fields of the message that only the provider can read, such as signed reasoning.
    provider_fields: Map<String, Value>,
    is_streamed: bool,
    text: Option<String>,
    refusal: Option<String>,
    annotations: Vec<Value>,
    calls: Vec<ChatPartialCall>,
    finish_reason: Option<String>,
    has_choice: bool,
    /// The texts of the choices after the first, by their indexes.
    alternatives: BTreeMap<u64, String>,
}

#[derive(Default)]
struct ChatPartialCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    provider_fields: Map<String, Value>,
    is_custom: bool,
}

#[derive(Deserialize)]
struct ChatChunk<'a> {
    #[serde(borrow, default)]
    id: BorrowedText<'a>,
    #[serde(borrow, default)]
    model: BorrowedText<'a>,
    #[serde(borrow, default)]
    choices: Option<Vec<ChatChoice<'a>>>,
    #[serde(default)]
    usage: Option<OpenAiUsage>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(borrow, default)]
    service_tier: BorrowedText<'a>,
    // These are in every chunk, and say nothing.
    #[serde(rename = "object", default)]
    _object: IgnoredAny,
    #[serde(rename = "created", default)]
    _created: IgnoredAny,
    #[serde(rename = "obfuscation", default)]
    _obfuscation: IgnoredAny,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Deserialize)]
struct ChatChoice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(borrow, default, alias = "message")]
    delta: Option<ChatDelta<'a>>,
    #[serde(borrow, default)]
    finish_reason: BorrowedText<'a>,
    #[serde(default)]
    logprobs: Option<ChatLogprobs>,
    /// The verdict of Azure's filter about the text.
    #[serde(default)]
    content_filter_results: Option<Value>,
}

#[derive(Deserialize)]
struct ChatLogprobs {
    #[serde(default)]
    content: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct ChatDelta<'a> {
    #[serde(borrow, default)]
    content: TextOrValue<'a>,
    #[serde(borrow, default)]
    refusal: BorrowedText<'a>,
    #[serde(borrow, default)]
    reasoning_content: BorrowedText<'a>,
    #[serde(borrow, default)]
    reasoning: BorrowedText<'a>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<ChatToolCall<'a>>>,
    #[serde(default)]
    annotations: Option<Vec<Value>>,
    #[serde(default)]
    reasoning_details: Option<Vec<Value>>,
    #[serde(default)]
    thinking_blocks: Option<Vec<Value>>,
    #[serde(default)]
    provider_specific_fields: Option<Value>,
    #[serde(default)]
    extra_content: Option<Value>,
}

#[derive(Deserialize)]
struct ChatToolCall<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(borrow, default)]
    id: BorrowedText<'a>,
    #[serde(borrow, default)]
    function: Option<ChatFunction<'a>>,
    #[serde(borrow, default)]
    custom: Option<ChatCustomCall<'a>>,
    #[serde(default)]
    extra_content: Option<Value>,
    #[serde(default)]
    provider_specific_fields: Option<Value>,
}

/// A call of a tool that takes text.
#[derive(Deserialize)]
struct ChatCustomCall<'a> {
    #[serde(borrow, default)]
    name: BorrowedText<'a>,
    #[serde(borrow, default)]
    input: BorrowedText<'a>,
}

#[derive(Deserialize)]
struct ChatFunction<'a> {
    #[serde(borrow, default)]
    name: BorrowedText<'a>,
    #[serde(borrow, default)]
    // A string of JSON; some servers send the object itself.
    arguments: TextOrValue<'a>,
    #[serde(default)]
    provider_specific_fields: Option<Value>,
}

impl ResponseDecoder for ChatDecoder<'_> {
    fn decode_body(&mut self, body: &str) -> Result<ModelResponse, ResponseError> {
        self.apply_chunk(body, &mut DeltaBuffer::discarding())?;
        if !self.has_choice {
            return Err(ResponseError::invalid("it has no `choices`"));
        }
        self.take_response()
    }

    fn decode_event(
        &mut self,
        event: SseEvent<'_>,
        deltas: &mut DeltaBuffer,
    ) -> Result<StreamProgress, ResponseError> {
        self.is_streamed = true;
        self.apply_chunk(event.data, deltas)?;
        Ok(StreamProgress::Advanced)
    }

    fn is_complete(&self) -> bool {
        self.finish_reason.is_some()
    }

    fn take_response(&mut self) -> Result<ModelResponse, ResponseError> {
        let finish = self.finish_reason.take().unwrap_or_else(|| "stop".to_owned());
        let mut items = Vec::new();
        let origin = self.base.origin;
        if self.reasoning.is_some() || !self.provider_fields.is_empty() {
            let (field, summary) = self.reasoning.take().unzip();
            let mut raw = json!({ "type": REASONING_KIND, "field": field });
            if !self.provider_fields.is_empty() {
                raw["fields"] = take(&mut self.provider_fields).into();
            }
            items.push(Item::Reasoning(ReasoningItem {
                summary: summary.unwrap_or_default(),
                item_id: None,
                raw,
                origin: Some(origin.name.to_owned()),
            }));
        }
        let mut content = Vec::new();
        content.extend(self.text.take().map(ContentPart::text));
        content.extend(annotations_part(take(&mut self.annotations)));
        content.extend(self.refusal.take().map(|text| ContentPart::Refusal { text }));
        if !content.is_empty() || self.calls.is_empty() {
            items.push(Item::Message(Message {
                role: Role::Assistant,
                content,
                item_id: None,
                sources: Default::default(),
            }));
        }
        for part in take(&mut self.calls) {
            let tool = resolve_tool_name(&self.base.request, part.name);
            let mut fields = part.provider_fields;
            let (kind, arguments) = if part.is_custom {
                fields.insert("type".to_owned(), CUSTOM_CALL_TYPE.into());
                (CallKind::ProviderDefined, json!({ "input": part.arguments }).to_string())
            } else {
                (CallKind::Function, part.arguments)
            };
            items.push(Item::Call(ToolCall {
                kind,
                provider_data: origin.provider_data(fields),
                ..function_call(part.id.as_str(), tool, arguments)
            }));
        }
        let mut response = take(&mut self.response);
        response.items = items.into_iter().map(Arc::new).collect();
        response.details.alternatives = take(&mut self.alternatives).into_values().collect();
        response.details.finish_reason = Some(match finish.as_str() {
            "stop" => FinishReason::Complete,
            "tool_calls" | "function_call" => FinishReason::ToolCalls,
            // Mistral calls the end of the context window so.
            "model_length" => return self.base.apply_window_limit(finish, response),
            "length" => return self.base.apply_length_limit(finish, response),
            // OpenRouter and Mistral, DeepSeek, vLLM: the text and the arguments of calls may be cut.
            "error" | "insufficient_system_resource" | "abort" => {
                return Err(interrupted_error(&finish, &response));
            }
            "content_filter" => {
                response.details.finish_reason = Some(FinishReason::ContentFilter);
                return Err(incomplete_error(finish, response));
            }
            _ => FinishReason::Other(finish),
        });
        Ok(response)
    }
}

impl<'a> ChatDecoder<'a> {
    pub(crate) fn new(base: RequestBase<'a>) -> Self {
        Self {
            base,
            response: ModelResponse::default(),
            reasoning: None,
            provider_fields: Map::new(),
            is_streamed: false,
            text: None,
            refusal: None,
            annotations: Vec::new(),
            calls: Vec::new(),
            finish_reason: None,
            has_choice: false,
            alternatives: BTreeMap::new(),
        }
    }

    fn apply_chunk(&mut self, data: &str, deltas: &mut DeltaBuffer) -> Result<(), ResponseError> {
        let chunk: ChatChunk<'_> = serde_json::from_str(data).map_err(|error| match self.is_streamed {
            true => ResponseError::invalid(error),
            false => ResponseError::invalid_json(&error),
        })?;
        if let Some(error) = chunk.error {
            let error = ProviderError::from_json(&json!({ "error": error }));
            return Err(ResponseError::ReportedByProvider(error));
        }
        if let Some(usage) = chunk.usage {
            self.response.usage = Some(usage.to_usage());
        }
        set_if_absent(&mut self.response.response_id, chunk.id);
        set_if_absent(&mut self.response.model, chunk.model);
        if let Some(tier) = chunk.service_tier.0 {
            self.response.details.service_tier = Some(tier.into_owned());
        }
        keep_other_fields(&mut self.response, chunk.other);
        for choice in chunk.choices.into_iter().flatten() {
            if choice.index > 0 {
                let text = self.alternatives.entry(choice.index).or_default();
                if let Some(delta) = choice.delta {
                    text.push_str(&content_text(delta.content).unwrap_or_default());
                }
                continue;
            }
            self.has_choice = true;
            if let Some(results) = choice.content_filter_results.filter(|results| !is_empty(results)) {
                self.response.details.other.insert("content_filter_results".to_owned(), results);
            }
            let logprobs = choice.logprobs.and_then(|logprobs| logprobs.content);
            self.response.details.logprobs.extend(logprobs.into_iter().flatten());
            if let Some(delta) = choice.delta {
                self.apply_delta(delta, deltas);
            }
            if let Some(reason) = choice.finish_reason.0
                && !reason.is_empty()
            {
                self.finish_reason = Some(reason.into_owned());
            }
        }
        Ok(())
    }

    fn apply_delta(&mut self, delta: ChatDelta<'_>, deltas: &mut DeltaBuffer) {
        let reasoning = match (delta.reasoning_content.0, delta.reasoning.0) {
            (Some(text), _) if !text.is_empty() => Some(("reasoning_content", text)),
            (_, Some(text)) if !text.is_empty() => Some(("reasoning", text)),
            _ => None,
        };
        if let Some((field, text)) = reasoning {
            self.reasoning.get_or_insert_with(|| (field, String::new())).1.push_str(&text);
            deltas.push_reasoning(text);
        }
        let content = content_text(delta.content);
        for (place, text) in [(&mut self.text, content), (&mut self.refusal, delta.refusal.0)] {
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                place.get_or_insert_default().push_str(&text);
                deltas.push_text(text);
            }
        }
        self.annotations.extend(delta.annotations.into_iter().flatten());
        for (field, pieces) in
            [("reasoning_details", delta.reasoning_details), ("thinking_blocks", delta.thinking_blocks)]
        {
            self.apply_signed_pieces(field, pieces.unwrap_or_default());
        }
        for (field, value) in [
            ("provider_specific_fields", delta.provider_specific_fields),
            ("extra_content", delta.extra_content),
        ] {
            if let Some(value) = value.filter(|value| !is_empty(value)) {
                merge_fields(self.provider_fields.entry(field).or_insert(Value::Null), value);
            }
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.apply_tool_call(call, deltas);
        }
    }

    /// Appends blocks of signed reasoning. A stream splits the text of a block over several pieces.
    fn apply_signed_pieces(&mut self, field: &str, pieces: Vec<Value>) {
        for piece in pieces {
            let list = self.provider_fields.entry(field).or_insert_with(|| json!([]));
            let Value::Array(blocks) = list else { return };
            let known = if self.is_streamed { find_open_block(blocks, &piece) } else { None };
            match known {
                Some(at) => extend_block(&mut blocks[at], piece),
                None => blocks.push(piece),
            }
        }
    }

    fn apply_tool_call(&mut self, call: ChatToolCall<'_>, deltas: &mut DeltaBuffer) {
        let id = call.id.as_str();
        // Some servers give every call the index 0, and some give none.
        let known = match call.index {
            Some(index) => self.calls.iter().rposition(|known| known.index == Some(index)),
            None if id.is_empty() => self.calls.len().checked_sub(1),
            None => self.calls.iter().rposition(|known| known.id == id),
        };
        let is_another = |known: &ChatPartialCall| !id.is_empty() && !known.id.is_empty() && known.id != id;
        let known = known.filter(|at| !is_another(&self.calls[*at]));
        let at = known.unwrap_or_else(|| {
            self.calls.push(ChatPartialCall { index: call.index, ..ChatPartialCall::default() });
            self.calls.len() - 1
        });
        let part = &mut self.calls[at];
        if part.id.is_empty() {
            part.id = match id {
                // Every call needs a unique id, even if the server sends none.
                "" if part.name.is_empty() => made_up_call_id(&self.base.request, at),
                id => id.to_owned(),
            };
        }
        for (field, value) in [
            ("extra_content", call.extra_content),
            ("provider_specific_fields", call.provider_specific_fields),
        ] {
            if let Some(value) = value.filter(|value| !is_empty(value)) {
                merge_fields(part.provider_fields.entry(field).or_insert(Value::Null), value);
            }
        }
        if let Some(custom) = call.custom {
            part.is_custom = true;
            if let Some(name) = custom.name.0
                && part.name.is_empty()
            {
                part.name = name.into_owned();
            }
            part.arguments.push_str(custom.input.as_str());
        }
        let Some(function) = call.function else { return };
        if let Some(value) = function.provider_specific_fields.filter(|value| !is_empty(value)) {
            let fields = json!({ "provider_specific_fields": value });
            merge_fields(part.provider_fields.entry("function").or_insert(Value::Null), fields);
        }
        if let Some(name) = function.name.0
            && part.name.is_empty()
        {
            part.name = name.into_owned();
        }
        let arguments = match function.arguments {
            TextOrValue::Absent => return,
            TextOrValue::Text(text) => text,
            TextOrValue::Value(value) => Cow::Owned(value.to_string()),
        };
        part.arguments.push_str(&arguments);
        deltas.push_arguments(&part.id, arguments);
    }
}

/// Returns the text of a message's content, which may be a list of parts.
fn content_text(content: TextOrValue<'_>) -> Option<Cow<'_, str>> {
    match content {
        TextOrValue::Absent => None,
        TextOrValue::Text(text) => Some(text),
        TextOrValue::Value(parts) => {
            let parts = parts.as_array().map(Vec::as_slice).unwrap_or_default();
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            Some(Cow::Owned(texts.collect::<String>()))
        }
    }
}

/// True if a value says nothing: gateways send fields of a provider as `null`, in lists and objects of their own.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.iter().all(is_empty),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Merges the fields of a later value into an earlier one. Values that are not objects are replaced.
fn merge_fields(place: &mut Value, later: Value) {
    match (place, later) {
        (Value::Object(fields), Value::Object(later)) => {
            for (key, value) in later {
                merge_fields(fields.entry(key).or_insert(Value::Null), value);
            }
        }
        (place, later) => *place = later,
    }
}

/// Returns the block that a piece of a stream continues: the one with its index, or the last one of its type if
/// that has no signature yet.
fn find_open_block(blocks: &[Value], piece: &Value) -> Option<usize> {
    let is_of_type = |block: &Value| block.get("type") == piece.get("type");
    match piece.get("index") {
        Some(index) if !index.is_null() => {
            blocks.iter().rposition(|block| is_of_type(block) && block.get("index") == Some(index))
        }
        _ => {
            let last = blocks.last()?;
            let signature = last.get("signature").and_then(Value::as_str).unwrap_or_default();
            (is_of_type(last) && signature.is_empty()).then(|| blocks.len() - 1)
        }
    }
}

/// Continues a block of signed reasoning: its texts grow, and its other fields are replaced.
fn extend_block(block: &mut Value, piece: Value) {
    let (Value::Object(block), Value::Object(piece)) = (block, piece) else { return };
    for (key, value) in piece {
        match (block.get_mut(&key), value) {
            (_, Value::Null) => {}
            (Some(Value::String(text)), Value::String(more))
                if matches!(key.as_str(), "text" | "summary" | "data" | "thinking" | "signature") =>
            {
                text.push_str(&more);
            }
            (_, value) => {
                block.insert(key, value);
            }
        }
    }
}

fn set_if_absent(place: &mut Option<String>, text: BorrowedText<'_>) {
    if place.is_none()
        && let Some(text) = text.0
        && !text.is_empty()
    {
        *place = Some(text.into_owned());
    }
}
