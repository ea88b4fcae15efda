//! Decoding of Chat Completions responses. Plain and streamed responses go through one assembler, so both give the
//! same items.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use windlass::core::{
    id::CallId,
    item::{ContentPart, Item, Message, OpaqueItem, ReasoningItem, Role},
};
use windlass::model::{ModelRequest, ModelResponse};

use super::usage::OpenAiUsage;
use crate::error::{ProviderError, ResponseError};
use crate::exchange::{DeltaBuffer, ProtocolDecoder, ResponseDelta, StreamProgress};
use crate::sse::SseEvent;
use crate::wire::{BorrowedText, TextOrValue, annotations_part, function_call, resolve_tool_name};

/// The `type` in the raw value of reasoning items from this protocol.
pub(super) const REASONING_KIND: &str = "chat.reasoning";
/// The kind of an opaque item that holds a call's vendor-specific fields.
pub(super) const CALL_FIELDS_KIND: &str = "chat.call_fields";

/// The decoder of the response to one request.
pub(crate) struct ChatDecoder<'a> {
    request: ModelRequest<'a>,
    /// The id, the model and the usage of the response.
    response: ModelResponse,
    /// The field that carries the reasoning, and its text.
    reasoning: Option<(&'static str, String)>,
    text: Option<String>,
    refusal: Option<String>,
    annotations: Vec<Value>,
    calls: Vec<ChatPartialCall>,
    finish_reason: Option<String>,
    has_choice: bool,
}

#[derive(Default)]
struct ChatPartialCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    extra_fields: Map<String, Value>,
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
}

#[derive(Deserialize)]
struct ChatChoice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(borrow, default, alias = "message")]
    delta: Option<ChatDelta<'a>>,
    #[serde(borrow, default)]
    finish_reason: BorrowedText<'a>,
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
}

#[derive(Deserialize)]
struct ChatToolCall<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(borrow, default)]
    id: BorrowedText<'a>,
    #[serde(borrow, default)]
    function: Option<ChatFunction<'a>>,
    #[serde(default)]
    extra_content: Option<Value>,
}

#[derive(Deserialize)]
struct ChatFunction<'a> {
    #[serde(borrow, default)]
    name: BorrowedText<'a>,
    #[serde(borrow, default)]
    // A string of JSON; some servers send the object itself.
    arguments: TextOrValue<'a>,
}

impl ProtocolDecoder for ChatDecoder<'_> {
    fn decode_body(mut self, body: &str) -> Result<ModelResponse, ResponseError> {
        self.apply_chunk(body, &mut DeltaBuffer::discarding())?;
        if !self.has_choice {
            return Err(ResponseError::invalid("it has no `choices`"));
        }
        self.into_response()
    }

    fn decode_event(
        &mut self,
        event: SseEvent<'_>,
        deltas: &mut DeltaBuffer,
    ) -> Result<StreamProgress, ResponseError> {
        self.apply_chunk(event.data, deltas)?;
        Ok(StreamProgress::Advanced)
    }

    fn is_complete(&self) -> bool {
        self.finish_reason.is_some()
    }

    fn into_response(mut self) -> Result<ModelResponse, ResponseError> {
        let finish = self.finish_reason.as_deref().unwrap_or("stop");
        if matches!(finish, "length" | "content_filter") {
            let usage = self.response.usage;
            return Err(ResponseError::Incomplete { reason: finish.to_owned(), usage });
        }
        let mut items = Vec::new();
        if let Some((field, summary)) = self.reasoning {
            let raw = json!({ "type": REASONING_KIND, "field": field });
            items.push(Item::Reasoning(ReasoningItem { summary, item_id: None, raw }));
        }
        let mut content = Vec::new();
        content.extend(self.text.map(ContentPart::text));
        content.extend(annotations_part(self.annotations));
        content.extend(self.refusal.map(|text| ContentPart::Refusal { text }));
        if !content.is_empty() || self.calls.is_empty() {
            items.push(Item::Message(Message { role: Role::Assistant, content, item_id: None }));
        }
        for part in self.calls {
            let tool = resolve_tool_name(&self.request, part.name);
            items.push(Item::Call(function_call(part.id.as_str(), tool, part.arguments)));
            if !part.extra_fields.is_empty() {
                let raw = json!({ "call": part.id, "fields": part.extra_fields });
                items.push(Item::Unknown(OpaqueItem { kind: CALL_FIELDS_KIND.to_owned(), raw }));
            }
        }
        self.response.items = items.into_iter().map(Arc::new).collect();
        Ok(self.response)
    }
}

impl<'a> ChatDecoder<'a> {
    pub(crate) fn new(request: ModelRequest<'a>) -> Self {
        Self {
            request,
            response: ModelResponse::default(),
            reasoning: None,
            text: None,
            refusal: None,
            annotations: Vec::new(),
            calls: Vec::new(),
            finish_reason: None,
            has_choice: false,
        }
    }

    fn apply_chunk(&mut self, data: &str, deltas: &mut DeltaBuffer) -> Result<(), ResponseError> {
        let chunk: ChatChunk<'_> = serde_json::from_str(data).map_err(ResponseError::invalid)?;
        if let Some(error) = chunk.error {
            let error = ProviderError::from_json(&json!({ "error": error }));
            return Err(ResponseError::ReportedByProvider(error));
        }
        if let Some(usage) = chunk.usage {
            self.response.usage = Some(usage.to_usage());
        }
        set_if_absent(&mut self.response.response_id, chunk.id);
        set_if_absent(&mut self.response.model, chunk.model);
        for choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index == 0) {
            self.has_choice = true;
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
            deltas.push(text, ResponseDelta::Reasoning);
        }
        let content = match delta.content {
            TextOrValue::Absent => None,
            TextOrValue::Text(text) => Some(text),
            TextOrValue::Value(parts) => {
                let parts = parts.as_array().map(Vec::as_slice).unwrap_or_default();
                let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                Some(Cow::Owned(texts.collect::<String>()))
            }
        };
        for (place, text) in [(&mut self.text, content), (&mut self.refusal, delta.refusal.0)] {
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                place.get_or_insert_default().push_str(&text);
                deltas.push(text, ResponseDelta::Text);
            }
        }
        self.annotations.extend(delta.annotations.into_iter().flatten());
        for call in delta.tool_calls.into_iter().flatten() {
            self.apply_tool_call(call, deltas);
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
        let response_id = self.response.response_id.as_deref().unwrap_or("answer");
        let part = &mut self.calls[at];
        if part.id.is_empty() {
            part.id = match id {
                // Every call needs a unique id, even if the server sends none.
                "" if part.name.is_empty() => format!("call_{response_id}_{at}"),
                id => id.to_owned(),
            };
        }
        if let Some(extra) = call.extra_content {
            part.extra_fields.insert("extra_content".to_owned(), extra);
        }
        let Some(function) = call.function else { return };
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
        deltas.push(arguments, |delta| ResponseDelta::Arguments(CallId::from(part.id.as_str()), delta));
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
