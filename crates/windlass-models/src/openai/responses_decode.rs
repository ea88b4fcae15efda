//! Decoding of Responses API responses, plain and streamed. A streamed response is decoded from its last event,
//! which holds the whole response. If a server omits the items there, they come from the
//! `response.output_item.done` events.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use windlass::core::{
    id::CallId,
    item::{CallKind, ContentPart, Item, Message, ReasoningItem, Role, ToolCall},
};
use windlass::model::{FinishReason, ModelResponse};

use super::provider_calls::{answered_call_ids, decode_provider_call};
use super::usage::OpenAiUsage;
use crate::error::ProviderError;
use crate::protocol::{DeltaBuffer, ResponseDecoder, ResponseError, StreamProgress};
use crate::sse::SseEvent;
use crate::wire::{
    BorrowedText, ItemOrigin, RequestBase, annotations_part, find_offered_tool, function_call,
    incomplete_error, keep_other_fields, parse_raw, resolve_tool_name,
};

/// The decoder of the response to one request.
pub(crate) struct ResponsesDecoder<'a> {
    base: RequestBase<'a>,
    /// The ids of the calls, by the output index of their items.
    call_ids: Vec<(u64, CallId)>,
    /// The complete items, as received.
    completed_items: Vec<Box<RawValue>>,
    outcome: Option<Result<ModelResponse, ResponseError>>,
}

#[derive(Deserialize)]
struct ResponsesEvent<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: BorrowedText<'a>,
    #[serde(borrow, default)]
    delta: BorrowedText<'a>,
    #[serde(default)]
    output_index: u64,
    #[serde(borrow, default)]
    item: Option<&'a RawValue>,
    #[serde(borrow, default)]
    response: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ResponsesTypeTag<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: BorrowedText<'a>,
}

#[derive(Deserialize)]
struct ResponsesCallTag<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: BorrowedText<'a>,
    #[serde(borrow, default)]
    call_id: BorrowedText<'a>,
}

impl ResponseDecoder for ResponsesDecoder<'_> {
    fn decode_body(&mut self, body: &str) -> Result<ModelResponse, ResponseError> {
        decode_response(body, &self.base, &[])
    }

    fn decode_event(
        &mut self,
        event: SseEvent<'_>,
        deltas: &mut DeltaBuffer,
    ) -> Result<StreamProgress, ResponseError> {
        let parsed = match serde_json::from_str::<ResponsesEvent<'_>>(event.data) {
            Ok(parsed) => parsed,
            Err(error) => return handle_undecodable_event(event.data, &error),
        };
        match parsed.kind.as_str() {
            "response.output_text.delta" | "response.refusal.delta" => {
                deltas.push_text(parsed.delta.into_cow());
            }
            "response.function_call_arguments.delta" => {
                let mut calls = self.call_ids.iter().rev();
                if let Some((_, call)) = calls.find(|(index, _)| *index == parsed.output_index) {
                    deltas.push_arguments(call.as_str(), parsed.delta.into_cow());
                }
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                deltas.push_reasoning(parsed.delta.into_cow());
            }
            "response.output_item.added" => {
                if let Some(item) = parsed.item
                    && let Ok(call) = serde_json::from_str::<ResponsesOutputCall<'_>>(item.get())
                    && let Some(id) = call.call_id.into_option()
                {
                    self.call_ids.push((parsed.output_index, CallId::from(id)));
                }
            }
            "response.output_item.done" => self.completed_items.extend(parsed.item.map(ToOwned::to_owned)),
            "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" => {
                let response = parsed.response.map_or("null", RawValue::get);
                self.outcome = Some(decode_response(response, &self.base, &self.completed_items));
                return Ok(StreamProgress::Complete);
            }
            "error" => return Err(ResponseError::reported_in(event.data)),
            "keepalive" | "ping" => return Ok(StreamProgress::KeepAlive),
            "" if event.data.contains("\"error\"") => return Err(ResponseError::reported_in(event.data)),
            _ => {}
        }
        Ok(StreamProgress::Advanced)
    }

    fn is_complete(&self) -> bool {
        self.outcome.is_some()
    }

    fn take_response(&mut self) -> Result<ModelResponse, ResponseError> {
        self.outcome.take().unwrap_or(Err(ResponseError::Truncated))
    }
}

impl<'a> ResponsesDecoder<'a> {
    pub(crate) fn new(base: RequestBase<'a>) -> Self {
        Self { base, call_ids: Vec::new(), completed_items: Vec::new(), outcome: None }
    }
}

/// Ignores an event that does not parse if its type is unknown; a known type is an error.
fn handle_undecodable_event(data: &str, error: &serde_json::Error) -> Result<StreamProgress, ResponseError> {
    match serde_json::from_str::<ResponsesTypeTag<'_>>(data) {
        Ok(tag) if !tag.kind.as_str().starts_with("response.") => Ok(StreamProgress::Advanced),
        _ => Err(ResponseError::invalid(error)),
    }
}

#[derive(Deserialize)]
struct ResponseObject<'a> {
    #[serde(borrow, default)]
    id: BorrowedText<'a>,
    #[serde(borrow, default)]
    model: BorrowedText<'a>,
    #[serde(borrow, default)]
    status: BorrowedText<'a>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(borrow, default)]
    incomplete_details: Option<IncompleteDetails<'a>>,
    #[serde(borrow, default)]
    output: Option<Vec<&'a RawValue>>,
    #[serde(default)]
    usage: Option<OpenAiUsage>,
    #[serde(borrow, default)]
    service_tier: BorrowedText<'a>,
    // The fields that repeat the request.
    #[serde(rename = "object", default)]
    _object: IgnoredAny,
    #[serde(rename = "created_at", default)]
    _created_at: IgnoredAny,
    #[serde(rename = "completed_at", default)]
    _completed_at: IgnoredAny,
    #[serde(rename = "background", default)]
    _background: IgnoredAny,
    #[serde(rename = "instructions", default)]
    _instructions: IgnoredAny,
    #[serde(rename = "max_output_tokens", default)]
    _max_output_tokens: IgnoredAny,
    #[serde(rename = "max_tool_calls", default)]
    _max_tool_calls: IgnoredAny,
    #[serde(rename = "metadata", default)]
    _metadata: IgnoredAny,
    #[serde(rename = "parallel_tool_calls", default)]
    _parallel_tool_calls: IgnoredAny,
    #[serde(rename = "previous_response_id", default)]
    _previous_response_id: IgnoredAny,
    #[serde(rename = "prompt_cache_key", default)]
    _prompt_cache_key: IgnoredAny,
    #[serde(rename = "prompt_cache_retention", default)]
    _prompt_cache_retention: IgnoredAny,
    #[serde(rename = "safety_identifier", default)]
    _safety_identifier: IgnoredAny,
    #[serde(rename = "store", default)]
    _store: IgnoredAny,
    #[serde(rename = "temperature", default)]
    _temperature: IgnoredAny,
    #[serde(rename = "tool_choice", default)]
    _tool_choice: IgnoredAny,
    #[serde(rename = "tools", default)]
    _tools: IgnoredAny,
    #[serde(rename = "top_logprobs", default)]
    _top_logprobs: IgnoredAny,
    #[serde(rename = "top_p", default)]
    _top_p: IgnoredAny,
    #[serde(rename = "truncation", default)]
    _truncation: IgnoredAny,
    #[serde(rename = "user", default)]
    _user: IgnoredAny,
    #[serde(rename = "text", default)]
    _text: IgnoredAny,
    #[serde(rename = "reasoning", default)]
    _reasoning: IgnoredAny,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Deserialize)]
struct IncompleteDetails<'a> {
    #[serde(borrow, default)]
    reason: BorrowedText<'a>,
}

fn decode_response(
    text: &str,
    base: &RequestBase<'_>,
    done: &[Box<RawValue>],
) -> Result<ModelResponse, ResponseError> {
    let response: ResponseObject<'_> =
        serde_json::from_str(text).map_err(|error| ResponseError::invalid_json(&error))?;
    let usage = response.usage.as_ref().map(OpenAiUsage::to_usage);
    let error = response.error.as_ref().map(ProviderError::from_json);
    let is_incomplete = response.status.as_str() == "incomplete";
    match response.status.as_str() {
        "completed" | "incomplete" | "" => {}
        status => {
            let error = error.unwrap_or_else(|| ProviderError {
                message: format!("the answer is `{status}`"),
                ..ProviderError::default()
            });
            return Err(ResponseError::ReportedByProvider(ProviderError {
                usage: usage.map(Box::new),
                ..error
            }));
        }
    }
    if let Some(error) = error {
        return Err(ResponseError::ReportedByProvider(ProviderError { usage: usage.map(Box::new), ..error }));
    }
    let output = match response.output {
        Some(output) if !output.is_empty() || done.is_empty() => output,
        None if done.is_empty() && is_incomplete => Vec::new(),
        None if done.is_empty() => {
            return Err(ResponseError::invalid("it has no `output`"));
        }
        _ => done.iter().map(|item| &**item).collect(),
    };
    let calls = output.iter().filter_map(|raw| serde_json::from_str::<ResponsesCallTag<'_>>(raw.get()).ok());
    let calls: Vec<_> = calls.collect();
    let answered = answered_call_ids(calls.iter().map(|tag| (tag.kind.as_str(), tag.call_id.as_str())));
    let mut decoded = ModelResponse {
        usage,
        response_id: response.id.into_option(),
        model: response.model.into_option(),
        ..ModelResponse::default()
    };
    decoded.details.service_tier = response.service_tier.into_option();
    keep_other_fields(&mut decoded, response.other);
    for raw in output {
        let item = decode_item(raw, base, &answered, &mut decoded.details.logprobs)?;
        decoded.items.push(Arc::new(item));
    }
    if is_incomplete {
        let reason = response.incomplete_details.map(|details| details.reason.into_string());
        let reason = reason.filter(|reason| !reason.is_empty()).unwrap_or_else(|| "incomplete".to_owned());
        if reason == "max_output_tokens" {
            return base.apply_length_limit(reason, decoded);
        }
        decoded.details.finish_reason = Some(match reason.as_str() {
            "content_filter" => FinishReason::ContentFilter,
            _ => FinishReason::Other(reason.clone()),
        });
        return Err(incomplete_error(reason, decoded));
    }
    let has_calls = decoded.items.iter().any(|item| matches!(**item, Item::Call(_)));
    decoded.details.finish_reason =
        Some(if has_calls { FinishReason::ToolCalls } else { FinishReason::Complete });
    Ok(decoded)
}

#[derive(Deserialize)]
struct ResponsesOutputMessage<'a> {
    #[serde(borrow, default)]
    id: BorrowedText<'a>,
    #[serde(borrow, default)]
    content: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct ResponsesOutputPart<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: BorrowedText<'a>,
    #[serde(borrow, default)]
    text: BorrowedText<'a>,
    #[serde(borrow, default)]
    refusal: BorrowedText<'a>,
    #[serde(default)]
    annotations: Option<Vec<Value>>,
    #[serde(default)]
    logprobs: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct ResponsesOutputCall<'a> {
    #[serde(borrow, default)]
    id: BorrowedText<'a>,
    #[serde(borrow, default)]
    call_id: BorrowedText<'a>,
    #[serde(borrow, default)]
    name: BorrowedText<'a>,
    #[serde(borrow, default)]
    namespace: BorrowedText<'a>,
    #[serde(borrow, default)]
    arguments: BorrowedText<'a>,
    #[serde(borrow, default)]
    server_label: BorrowedText<'a>,
    #[serde(default)]
    caller: Option<Value>,
}

fn decode_item(
    raw: &RawValue,
    base: &RequestBase<'_>,
    answered: &BTreeSet<String>,
    logprobs: &mut Vec<Value>,
) -> Result<Item, ResponseError> {
    let (request, origin) = (&base.request, base.origin);
    let tag: ResponsesTypeTag<'_> = parse_raw(raw)?;
    match tag.kind.as_str() {
        "message" => {
            let message: ResponsesOutputMessage<'_> = parse_raw(raw)?;
            let mut content = Vec::with_capacity(message.content.len());
            for raw in message.content {
                decode_content_part(raw, origin, &mut content, logprobs)?;
            }
            let item_id = message.id.into_option();
            Ok(Item::Message(Message {
                role: Role::Assistant,
                content,
                item_id,
                sources: Default::default(),
            }))
        }
        "function_call" => {
            let call: ResponsesOutputCall<'_> = parse_raw(raw)?;
            let name = call.name.into_string();
            let mut fields: Map<String, Value> =
                call.caller.map(|caller| ("caller".to_owned(), caller)).into_iter().collect();
            let tool = match call.namespace.into_option() {
                // The provider has loaded a function by its search, which has no namespace here.
                Some(namespace) if namespace == name && find_offered_tool(request, &name).is_some() => {
                    fields.insert("namespace".to_owned(), namespace.into());
                    resolve_tool_name(request, name)
                }
                Some(namespace) => (Some(namespace), name),
                None => resolve_tool_name(request, name),
            };
            let (id, arguments) = (call.call_id.into_string(), call.arguments.into_string());
            let item_id = call.id.into_option();
            let provider_data = origin.provider_data(fields);
            Ok(Item::Call(ToolCall { item_id, provider_data, ..function_call(id, tool, arguments) }))
        }
        "mcp_approval_request" => {
            let call: ResponsesOutputCall<'_> = parse_raw(raw)?;
            Ok(Item::Call(ToolCall {
                id: call.id.into_string().into(),
                name: call.name.into_string(),
                namespace: call.server_label.into_option(),
                arguments: call.arguments.into_string(),
                item_id: None,
                kind: CallKind::HostedMcp,
                provider_data: None,
            }))
        }
        "computer_call" => Ok(decode_computer_call(&parse_raw(raw)?)),
        "reasoning" => Ok(decode_reasoning(parse_raw(raw)?, origin)),
        kind => match decode_provider_call(kind, parse_raw(raw)?, request, origin, answered) {
            Ok(call) => Ok(Item::Call(call)),
            Err(raw) => {
                let item = origin.opaque_item(kind, raw);
                let is_hosted =
                    kind.ends_with("_call") || kind.ends_with("_output") || kind == "mcp_list_tools";
                Ok(if is_hosted { Item::HostedTool(item) } else { Item::Unknown(item) })
            }
        },
    }
}

fn decode_content_part(
    raw: &RawValue,
    origin: ItemOrigin<'_>,
    content: &mut Vec<ContentPart>,
    logprobs: &mut Vec<Value>,
) -> Result<(), ResponseError> {
    let part: ResponsesOutputPart<'_> = parse_raw(raw)?;
    match part.kind.as_str() {
        "output_text" | "text" => {
            content.push(ContentPart::text(part.text.into_string()));
            content.extend(annotations_part(part.annotations.unwrap_or_default()));
            logprobs.extend(part.logprobs.into_iter().flatten());
        }
        "refusal" => content.push(ContentPart::Refusal { text: part.refusal.into_string() }),
        kind => {
            content.push(ContentPart::Unknown(origin.opaque_item(kind, parse_raw(raw)?)));
        }
    }
    Ok(())
}

fn decode_computer_call(raw: &Value) -> Item {
    let text = |key: &str| raw.get(key).and_then(Value::as_str).map(str::to_owned);
    let actions = match (raw.get("actions"), raw.get("action")) {
        (Some(actions @ Value::Array(_)), _) => actions.clone(),
        (_, Some(action)) if !action.is_null() => json!([action]),
        _ => json!([]),
    };
    let checks = raw.get("pending_safety_checks").filter(|checks| checks.is_array()).cloned();
    let arguments =
        json!({ "actions": actions, "pending_safety_checks": checks.unwrap_or_else(|| json!([])) });
    Item::Call(ToolCall {
        id: text("call_id").unwrap_or_default().into(),
        name: "computer".to_owned(),
        namespace: None,
        arguments: arguments.to_string(),
        item_id: text("id"),
        kind: CallKind::Computer,
        provider_data: None,
    })
}

fn decode_reasoning(raw: Value, origin: ItemOrigin<'_>) -> Item {
    let texts = |key: &str| -> Vec<&str> {
        let parts = raw.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        parts.iter().filter_map(|part| part.get("text")?.as_str()).collect()
    };
    let summary = match texts("summary") {
        summary if summary.is_empty() => texts("content").join("\n\n"),
        summary => summary.join("\n\n"),
    };
    let item_id = raw.get("id").and_then(Value::as_str).map(str::to_owned);
    Item::Reasoning(ReasoningItem { summary, item_id, raw, origin: Some(origin.name.to_owned()) })
}
