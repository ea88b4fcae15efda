//! Decoding of Converse responses. A streamed response is assembled into the blocks of a plain one.

use std::mem::take;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use windlass::core::item::{ContentPart, Item, Message, ReasoningItem, Role};
use windlass::core::usage::Usage;
use windlass::model::{FinishReason, ModelResponse};

use super::converse_encode::REASONING_KIND;
use crate::protocol::{DeltaBuffer, ResponseDecoder, ResponseError, StreamProgress};
use crate::sse::SseEvent;
use crate::wire::{RequestBase, function_call, incomplete_error, keep_other_fields, resolve_tool_name};

/// The decoder of the response to one request.
pub(crate) struct ConverseDecoder<'a> {
    base: RequestBase<'a>,
    response: ModelResponse,
    blocks: Vec<Value>,
    /// The arguments of streamed calls, by the places of their blocks.
    inputs: Vec<String>,
    stop_reason: Option<String>,
    usage: Option<ConverseUsage>,
    /// True if the metadata, which end a stream, were received.
    has_metadata: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConverseResponse {
    output: ConverseOutput,
    stop_reason: String,
    #[serde(default)]
    usage: Option<ConverseUsage>,
    #[serde(default)]
    service_tier: Option<ConverseTier>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Deserialize)]
struct ConverseOutput {
    message: ConverseWireMessage,
}

#[derive(Deserialize)]
struct ConverseWireMessage {
    content: Vec<Value>,
}

#[derive(Deserialize)]
struct ConverseTier {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ConverseUsage {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: u64,
    cache_write_input_tokens: u64,
}

impl ConverseUsage {
    /// Returns the usage. Bedrock counts cached tokens separately; [`Usage`] includes them in the input tokens.
    fn to_usage(self) -> Usage {
        let (read, written) = (self.cache_read_input_tokens, self.cache_write_input_tokens);
        let input = self.input_tokens.saturating_add(read).saturating_add(written);
        Usage {
            cached_tokens: read,
            cache_write_tokens: written,
            ..Usage::of_tokens(input, self.output_tokens)
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConverseEvent {
    #[serde(default)]
    content_block_index: usize,
    #[serde(default)]
    start: Option<Value>,
    #[serde(default)]
    delta: Option<Value>,
    #[serde(default)]
    stop_reason: Option<String>,
    #[serde(default)]
    usage: Option<ConverseUsage>,
    #[serde(default)]
    service_tier: Option<ConverseTier>,
    /// Padding of random length.
    #[serde(rename = "p", default)]
    _padding: IgnoredAny,
    #[serde(rename = "role", default)]
    _role: IgnoredAny,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// Maximum number of blocks in a streamed response.
const MAX_BLOCKS: usize = 10_000;

impl<'a> ConverseDecoder<'a> {
    pub(crate) fn new(base: RequestBase<'a>) -> Self {
        Self {
            base,
            response: ModelResponse::default(),
            blocks: Vec::new(),
            inputs: Vec::new(),
            stop_reason: None,
            usage: None,
            has_metadata: false,
        }
    }

    /// Makes room for the block at `place`.
    fn reach_block(&mut self, place: usize) -> Result<(), ResponseError> {
        if place >= MAX_BLOCKS {
            return Err(ResponseError::invalid("it has too many blocks"));
        }
        if self.blocks.len() <= place {
            self.blocks.resize(place + 1, Value::Null);
            self.inputs.resize(place + 1, String::new());
        }
        Ok(())
    }

    fn apply_delta(&mut self, place: usize, delta: &Value, deltas: &mut DeltaBuffer) {
        let block = &mut self.blocks[place];
        let append = |block: &mut Value, path: &[&str], text: &str| {
            let mut at = block;
            for key in path {
                // The provider's data may have another shape on the way.
                if !at.is_object() {
                    *at = json!({});
                }
                at = &mut at[*key];
            }
            let joined = format!("{}{text}", at.as_str().unwrap_or_default());
            *at = joined.into();
        };
        if let Some(text) = delta["text"].as_str() {
            append(block, &["text"], text);
            deltas.push_text(text);
        }
        if let Some(input) = delta["toolUse"]["input"].as_str() {
            self.inputs[place].push_str(input);
            deltas.push_arguments(block["toolUse"]["toolUseId"].as_str().unwrap_or_default(), input);
        }
        let reasoning = &delta["reasoningContent"];
        if let Some(text) = reasoning["text"].as_str() {
            append(block, &["reasoningContent", "reasoningText", "text"], text);
            deltas.push_reasoning(text);
        }
        if let Some(signature) = reasoning["signature"].as_str() {
            append(block, &["reasoningContent", "reasoningText", "signature"], signature);
        }
        if let Some(redacted) = reasoning["redactedContent"].as_str() {
            append(block, &["reasoningContent", "redactedContent"], redacted);
        }
    }

    fn take_items(&mut self) -> Vec<Item> {
        let origin = self.base.origin;
        let mut items: Vec<Item> = Vec::new();
        let mut inputs = take(&mut self.inputs).into_iter();
        for mut block in take(&mut self.blocks) {
            let streamed_input = inputs.next().unwrap_or_default();
            if let Some(text) = block["text"].as_str() {
                let part = ContentPart::text(text);
                match items.last_mut() {
                    Some(Item::Message(message)) => message.content.push(part),
                    _ => items.push(Item::Message(Message {
                        role: Role::Assistant,
                        content: vec![part],
                        item_id: None,
                        sources: Default::default(),
                    })),
                }
            } else if block["toolUse"].is_object() {
                let used = &block["toolUse"];
                let text = |key: &str| used[key].as_str().unwrap_or_default().to_owned();
                let arguments = match streamed_input.is_empty() {
                    true if used["input"].is_object() => used["input"].to_string(),
                    _ => streamed_input,
                };
                let tool = resolve_tool_name(&self.base.request, text("name"));
                items.push(Item::Call(function_call(text("toolUseId"), tool, arguments)));
            } else if block["reasoningContent"].is_object() {
                let content = block["reasoningContent"].take();
                let summary = content["reasoningText"]["text"].as_str().unwrap_or_default().to_owned();
                let raw = json!({ "type": REASONING_KIND, "content": content });
                let origin = Some(origin.name.to_owned());
                items.push(Item::Reasoning(ReasoningItem { summary, item_id: None, raw, origin }));
            } else if let Some(kind) = block.as_object().and_then(|block| block.keys().next().cloned()) {
                items.push(Item::HostedTool(origin.opaque_item(&kind, block)));
            }
        }
        items
    }
}

impl ResponseDecoder for ConverseDecoder<'_> {
    fn decode_body(&mut self, body: &str) -> Result<ModelResponse, ResponseError> {
        let received: ConverseResponse =
            serde_json::from_str(body).map_err(|error| ResponseError::invalid_json(&error))?;
        self.blocks = received.output.message.content;
        self.stop_reason = Some(received.stop_reason);
        self.usage = received.usage;
        keep_other_fields(&mut self.response, received.other);
        self.response.details.service_tier = received.service_tier.map(|tier| tier.kind);
        self.take_response()
    }

    fn decode_event(
        &mut self,
        event: SseEvent<'_>,
        deltas: &mut DeltaBuffer,
    ) -> Result<StreamProgress, ResponseError> {
        let received: ConverseEvent = serde_json::from_str(event.data).map_err(ResponseError::invalid)?;
        let place = received.content_block_index;
        keep_other_fields(&mut self.response, received.other);
        match event.name.unwrap_or_default() {
            "contentBlockStart" => {
                self.reach_block(place)?;
                self.blocks[place] = received.start.unwrap_or_default();
            }
            "contentBlockDelta" => {
                self.reach_block(place)?;
                self.apply_delta(place, &received.delta.unwrap_or_default(), deltas);
            }
            "messageStop" => self.stop_reason = received.stop_reason.or_else(|| Some("end_turn".to_owned())),
            "metadata" => {
                self.usage = received.usage.or(self.usage);
                self.response.details.service_tier = received.service_tier.map(|tier| tier.kind);
                self.has_metadata = true;
                if self.stop_reason.is_some() {
                    return Ok(StreamProgress::Complete);
                }
            }
            _ => {}
        }
        Ok(StreamProgress::Advanced)
    }

    fn is_complete(&self) -> bool {
        self.stop_reason.is_some()
    }

    fn take_response(&mut self) -> Result<ModelResponse, ResponseError> {
        let items = self.take_items().into_iter().map(Arc::new).collect();
        let usage = self.usage.take().map(ConverseUsage::to_usage);
        let mut response = ModelResponse { items, usage, ..take(&mut self.response) };
        let stop = self.stop_reason.take().unwrap_or_default();
        response.details.finish_reason = Some(match stop.as_str() {
            "end_turn" => FinishReason::Complete,
            "tool_use" => FinishReason::ToolCalls,
            "stop_sequence" => FinishReason::StopSequence,
            "max_tokens" => return self.base.apply_length_limit(stop, response),
            "model_context_window_exceeded" => return self.base.apply_window_limit(stop, response),
            "guardrail_intervened" | "content_filtered" => {
                return Err(incomplete_error(format!("content_filter: {stop}"), response));
            }
            "malformed_model_output" | "malformed_tool_use" => return Err(incomplete_error(stop, response)),
            _ => FinishReason::Other(stop),
        });
        Ok(response)
    }
}
