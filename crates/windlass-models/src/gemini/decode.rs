//! Decoding of Gemini responses. A streamed response consists of partial responses, whose parts are joined.

use std::mem::take;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use windlass::core::item::{ContentPart, Item, Message, ReasoningItem, Role};
use windlass::core::usage::Usage;
use windlass::model::{FinishReason, ModelResponse};

use super::encode::{SIGNATURE_FIELD, TEXT_SIGNATURE_KIND, THOUGHT_KIND};
use crate::call_ids::made_up_call_id;
use crate::error::ProviderError;
use crate::protocol::{DeltaBuffer, ResponseDecoder, ResponseError, StreamProgress};
use crate::sse::SseEvent;
use crate::wire::{
    RequestBase, annotations_part, function_call, incomplete_error, keep_other_fields, resolve_tool_name,
};

/// The decoder of the response to one request.
pub(crate) struct GeminiDecoder<'a> {
    base: RequestBase<'a>,
    response: ModelResponse,
    parts: Vec<Value>,
    annotations: Vec<Value>,
    finish_reason: Option<String>,
    block_reason: Option<String>,
    usage: Option<GeminiUsage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct GeminiResponse {
    candidates: Vec<GeminiCandidate>,
    prompt_feedback: Option<Value>,
    usage_metadata: Option<GeminiUsage>,
    model_version: Option<String>,
    response_id: Option<String>,
    error: Option<Value>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GeminiCandidate {
    content: Option<GeminiWireContent>,
    finish_reason: Option<String>,
    grounding_metadata: Option<Value>,
    logprobs_result: Option<Value>,
    #[serde(rename = "index")]
    _index: IgnoredAny,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GeminiWireContent {
    parts: Vec<Value>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GeminiUsage {
    prompt_token_count: u64,
    cached_content_token_count: u64,
    candidates_token_count: u64,
    thoughts_token_count: u64,
    tool_use_prompt_token_count: u64,
}

impl GeminiUsage {
    fn to_usage(self) -> Usage {
        Usage {
            cached_tokens: self.cached_content_token_count,
            reasoning_tokens: self.thoughts_token_count,
            ..Usage::of_tokens(
                self.prompt_token_count.saturating_add(self.tool_use_prompt_token_count),
                self.candidates_token_count.saturating_add(self.thoughts_token_count),
            )
        }
    }
}

impl<'a> GeminiDecoder<'a> {
    pub(crate) fn new(base: RequestBase<'a>) -> Self {
        Self {
            base,
            response: ModelResponse::default(),
            parts: Vec::new(),
            annotations: Vec::new(),
            finish_reason: None,
            block_reason: None,
            usage: None,
        }
    }

    /// Takes over a response, or a part of a streamed one.
    fn push(&mut self, text: &str, deltas: &mut DeltaBuffer) -> Result<(), ResponseError> {
        let received: GeminiResponse =
            serde_json::from_str(text).map_err(|error| ResponseError::invalid_json(&error))?;
        if let Some(error) = received.error {
            return Err(ResponseError::ReportedByProvider(ProviderError::from_json(
                &json!({ "error": error }),
            )));
        }
        self.response.response_id = received.response_id.or(self.response.response_id.take());
        self.response.model = received.model_version.or(self.response.model.take());
        self.usage = received.usage_metadata.or(self.usage);
        if let Some(feedback) = received.prompt_feedback {
            let reason = feedback["blockReason"].as_str().map(str::to_owned);
            self.block_reason = reason.or(self.block_reason.take());
            self.response.details.other.insert("promptFeedback".to_owned(), feedback);
        }
        keep_other_fields(&mut self.response, received.other);
        let Some(candidate) = received.candidates.into_iter().next() else { return Ok(()) };
        keep_other_fields(&mut self.response, candidate.other);
        self.finish_reason = candidate.finish_reason.or(self.finish_reason.take());
        self.annotations.extend(candidate.grounding_metadata);
        self.response.details.logprobs.extend(candidate.logprobs_result);
        for part in candidate.content.unwrap_or_default().parts {
            self.push_part(part, deltas);
        }
        Ok(())
    }

    /// Appends a part. Texts of one kind that follow each other are one text.
    fn push_part(&mut self, part: Value, deltas: &mut DeltaBuffer) {
        let is_thought = part["thought"] == true;
        if let Some(text) = part["text"].as_str() {
            if is_thought {
                deltas.push_reasoning(text);
            } else {
                deltas.push_text(text);
            }
            let is_joined = self.parts.last().is_some_and(|last| {
                last["text"].is_string()
                    && (last["thought"] == true) == is_thought
                    && last.get(SIGNATURE_FIELD).is_none()
            });
            if let (true, Some(last)) = (is_joined, self.parts.last_mut()) {
                let joined = format!("{}{text}", last["text"].as_str().unwrap_or_default());
                last["text"] = joined.into();
                if let Some(signature) = part.get(SIGNATURE_FIELD) {
                    last[SIGNATURE_FIELD] = signature.clone();
                }
                return;
            }
        }
        self.parts.push(part);
    }

    /// Returns the items of the parts.
    fn take_items(&mut self) -> Vec<Item> {
        let origin = self.base.origin;
        let mut items: Vec<Item> = Vec::new();
        let mut call_count = 0;
        for mut part in take(&mut self.parts) {
            let signature = part.get(SIGNATURE_FIELD).cloned();
            if part["thought"] == true {
                let summary = part["text"].as_str().unwrap_or_default().to_owned();
                let raw = json!({ "type": THOUGHT_KIND, "part": part });
                let origin = Some(origin.name.to_owned());
                items.push(Item::Reasoning(ReasoningItem { summary, item_id: None, raw, origin }));
            } else if let Some(text) = part["text"].as_str() {
                let mut parts = vec![ContentPart::text(text)];
                let signed = signature.map(|signature| origin.opaque_item(TEXT_SIGNATURE_KIND, signature));
                parts.extend(signed.map(ContentPart::Unknown));
                match items.last_mut() {
                    Some(Item::Message(message)) => message.content.extend(parts),
                    _ => items.push(Item::Message(Message {
                        role: Role::Assistant,
                        content: parts,
                        item_id: None,
                        sources: Default::default(),
                    })),
                }
            } else if part["functionCall"].is_object() {
                let mut called = part["functionCall"].take();
                call_count += 1;
                let id =
                    called.as_object_mut().and_then(|called| called.remove("id")).filter(Value::is_string);
                let mut fields = Map::new();
                fields.extend(id.clone().map(|id| ("id".to_owned(), id)));
                fields.extend(signature.map(|signature| (SIGNATURE_FIELD.to_owned(), signature)));
                let id = id.and_then(|id| id.as_str().map(str::to_owned));
                let id = id.unwrap_or_else(|| made_up_call_id(&self.base.request, call_count));
                let name = called["name"].as_str().unwrap_or_default().to_owned();
                let arguments =
                    if called["args"].is_object() { called["args"].to_string() } else { "{}".to_owned() };
                let mut call = function_call(id, resolve_tool_name(&self.base.request, name), arguments);
                // A call of this provider without data is marked as such, so that nothing is made up for it.
                fields.entry("origin_known".to_owned()).or_insert(true.into());
                call.provider_data = origin.provider_data(fields);
                items.push(Item::Call(call));
            } else {
                let kind = part.as_object().and_then(|part| part.keys().next().cloned()).unwrap_or_default();
                items.push(Item::HostedTool(origin.opaque_item(&kind, part)));
            }
        }
        items
    }
}

impl ResponseDecoder for GeminiDecoder<'_> {
    fn decode_body(&mut self, body: &str) -> Result<ModelResponse, ResponseError> {
        self.push(body, &mut DeltaBuffer::discarding())?;
        self.take_response()
    }

    fn decode_event(
        &mut self,
        event: SseEvent<'_>,
        deltas: &mut DeltaBuffer,
    ) -> Result<StreamProgress, ResponseError> {
        self.push(event.data, deltas)?;
        Ok(StreamProgress::Advanced)
    }

    fn is_complete(&self) -> bool {
        self.finish_reason.is_some() || self.block_reason.is_some()
    }

    fn take_response(&mut self) -> Result<ModelResponse, ResponseError> {
        let mut items = self.take_items();
        if let (Some(Item::Message(message)), Some(part)) = (
            items.iter_mut().rev().find(|item| matches!(item, Item::Message(_))),
            annotations_part(take(&mut self.annotations)),
        ) {
            message.content.push(part);
        }
        let has_calls = items.iter().any(|item| matches!(item, Item::Call(_)));
        let usage = self.usage.take().map(GeminiUsage::to_usage);
        let mut response = ModelResponse {
            items: items.into_iter().map(Arc::new).collect(),
            usage,
            ..take(&mut self.response)
        };
        if let Some(reason) = self.block_reason.take() {
            return Err(incomplete_error(format!("content_filter: {reason}"), response));
        }
        let Some(reason) = self.finish_reason.take() else {
            return Err(ResponseError::invalid("it has no `finishReason`"));
        };
        response.details.finish_reason = Some(match reason.as_str() {
            // Nobody knows whether the arguments are complete.
            "OTHER" | "FINISH_REASON_UNSPECIFIED" if has_calls => {
                return Err(incomplete_error(reason, response));
            }
            "STOP" if has_calls => FinishReason::ToolCalls,
            "STOP" => FinishReason::Complete,
            "MAX_TOKENS" => return self.base.apply_length_limit("max_tokens".to_owned(), response),
            "SAFETY"
            | "RECITATION"
            | "BLOCKLIST"
            | "PROHIBITED_CONTENT"
            | "SPII"
            | "IMAGE_SAFETY"
            | "IMAGE_PROHIBITED_CONTENT"
            | "IMAGE_RECITATION"
            | "MODEL_ARMOR"
            | "LANGUAGE" => {
                return Err(incomplete_error(format!("content_filter: {reason}"), response));
            }
            // The calls of such a response are not what the model meant.
            "MALFORMED_FUNCTION_CALL"
            | "UNEXPECTED_TOOL_CALL"
            | "TOO_MANY_TOOL_CALLS"
            | "MISSING_THOUGHT_SIGNATURE"
            | "MALFORMED_RESPONSE" => return Err(incomplete_error(reason, response)),
            _ => FinishReason::Other(reason),
        });
        Ok(response)
    }
}
