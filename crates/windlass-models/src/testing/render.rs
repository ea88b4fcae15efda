//! Renders a reply in the protocol of the request's path, plain or as a stream of events.

use serde_json::{Value, json};

use super::reply::{FakeReply, FakeReplyContent, FakeReplyPart, FakeStopReason};
use super::{ReceivedRequest, embeddings};

/// A reply in its wire format.
pub(super) struct RenderedReply {
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
    pub(super) request_id: String,
}

const JSON_TYPE: &str = "application/json";
const EVENT_STREAM_TYPE: &str = "text/event-stream; charset=utf-8";

pub(super) fn render_reply(reply: &FakeReply, request: &ReceivedRequest, number: usize) -> RenderedReply {
    let request_id = format!("req_{number}");
    let path = request.path.split('?').next().unwrap_or_default();
    let is_streamed = request.body["stream"] == json!(true);
    let said = match &reply.content {
        FakeReplyContent::Raw { content_type: kind, body } => {
            return RenderedReply { content_type: kind, body: body.clone(), request_id };
        }
        FakeReplyContent::Error => {
            let body = error_body(reply.status, &request.path).to_string().into_bytes();
            return RenderedReply { content_type: JSON_TYPE, body, request_id };
        }
        FakeReplyContent::Parts(said) => said,
    };
    let model = request.body["model"].as_str().unwrap_or("fake").to_owned();
    if path.ends_with("/embeddings") {
        let body = embeddings::embeddings_body(&request.body).to_string().into_bytes();
        return RenderedReply { content_type: JSON_TYPE, body, request_id };
    }
    let scene = ReplyRenderer { reply, parts: said, model, number };
    let (plain, events) = if path.ends_with("/responses") {
        (scene.response_body(), scene.response_events())
    } else if path.ends_with("/chat/completions") {
        (scene.completion_body(), scene.completion_events())
    } else if path.ends_with("/messages") {
        (scene.message_body(), scene.message_events())
    } else {
        (json!({ "error": { "message": format!("there is no {}", request.path) } }), String::new())
    };
    if is_streamed {
        RenderedReply { content_type: EVENT_STREAM_TYPE, body: events.into_bytes(), request_id }
    } else {
        RenderedReply { content_type: JSON_TYPE, body: plain.to_string().into_bytes(), request_id }
    }
}

fn error_body(status: u16, path: &str) -> Value {
    let (kind, message) = match status {
        401 => ("authentication_error", "the key is not valid"),
        403 => ("permission_error", "this is not allowed"),
        404 => ("not_found_error", "the model does not exist"),
        429 => ("rate_limit_error", "too many requests"),
        529 => ("overloaded_error", "there is too much to do"),
        400..=499 => ("invalid_request_error", "the request cannot be used"),
        _ => ("api_error", "something went wrong"),
    };
    if path.ends_with("/messages") {
        json!({ "type": "error", "error": { "type": kind, "message": message } })
    } else {
        json!({ "error": { "message": message, "type": kind, "param": null, "code": null } })
    }
}

/// A reply together with the parts of its request that rendering needs.
struct ReplyRenderer<'a> {
    reply: &'a FakeReply,
    parts: &'a [FakeReplyPart],
    model: String,
    number: usize,
}

impl ReplyRenderer<'_> {
    fn split_text(&self, text: &str) -> Vec<String> {
        let characters: Vec<char> = text.chars().collect();
        characters.chunks(self.reply.delta_chars).map(|piece| piece.iter().collect()).collect()
    }

    fn response_item(&self, index: usize, said: &FakeReplyPart) -> Value {
        let id = |kind: &str| format!("{kind}_{}_{index}", self.number);
        match said {
            FakeReplyPart::Reasoning { id, text } => json!({
                "type": "reasoning",
                "id": id,
                "summary": [{ "type": "summary_text", "text": text }],
                "encrypted_content": format!("sealed {id}"),
            }),
            FakeReplyPart::Text(text) => json!({
                "type": "message",
                "id": id("msg"),
                "role": "assistant",
                "status": "completed",
                "content": [{ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }],
            }),
            FakeReplyPart::Refusal(text) => json!({
                "type": "message",
                "id": id("msg"),
                "role": "assistant",
                "status": "completed",
                "content": [{ "type": "refusal", "refusal": text }],
            }),
            FakeReplyPart::Call { id: call, name, arguments } => json!({
                "type": "function_call",
                "id": id("fc"),
                "call_id": call,
                "name": name,
                "arguments": arguments,
                "status": "completed",
            }),
            FakeReplyPart::Raw(value) => value.clone(),
        }
    }

    fn response_head(&self, status: &str) -> Value {
        json!({
            "id": format!("resp_{}", self.number),
            "object": "response",
            "created_at": 1_760_000_000,
            "status": status,
            "model": self.model,
            "output": [],
            "parallel_tool_calls": true,
            "tool_choice": "auto",
            "tools": [],
            "error": null,
            "incomplete_details": null,
            "usage": null,
        })
    }

    fn response_body(&self) -> Value {
        let (status, error, details) = match &self.reply.stop {
            FakeStopReason::Complete => ("completed", Value::Null, Value::Null),
            FakeStopReason::MaxTokens => {
                ("incomplete", Value::Null, json!({ "reason": "max_output_tokens" }))
            }
            FakeStopReason::ContentFilter => {
                ("incomplete", Value::Null, json!({ "reason": "content_filter" }))
            }
            FakeStopReason::Failed { code, message } => {
                ("failed", json!({ "code": code, "message": message }), Value::Null)
            }
        };
        let mut response = self.response_head(status);
        let items = self.parts.iter().enumerate().map(|(index, said)| self.response_item(index, said));
        response["output"] = items.collect();
        response["error"] = error;
        response["incomplete_details"] = details;
        let [read, cached, written, reasoning] = self.reply.usage;
        response["usage"] = json!({
            "input_tokens": read,
            "input_tokens_details": { "cached_tokens": cached, "cache_write_tokens": 0 },
            "output_tokens": written,
            "output_tokens_details": { "reasoning_tokens": reasoning },
            "total_tokens": read + written,
        });
        response
    }

    fn response_events(&self) -> String {
        let mut events = SseWriter::default();
        let mut tell = |mut event: Value| {
            event["sequence_number"] = events.count.into();
            let name = event["type"].as_str().unwrap_or_default().to_owned();
            events.push_named(&name, &event);
        };
        tell(json!({ "type": "response.created", "response": self.response_head("in_progress") }));
        tell(json!({ "type": "response.in_progress", "response": self.response_head("in_progress") }));
        for (index, said) in self.parts.iter().enumerate() {
            let item = self.response_item(index, said);
            let id = item["id"].clone();
            let at = |kind: &str, more: Value| {
                let mut event = json!({ "type": kind, "item_id": id, "output_index": index });
                if let (Value::Object(event), Value::Object(more)) = (&mut event, more) {
                    event.extend(more);
                }
                event
            };
            let mut added = item.clone();
            match said {
                FakeReplyPart::Text(_) | FakeReplyPart::Refusal(_) => {
                    added["content"] = json!([]);
                    added["status"] = "in_progress".into();
                }
                FakeReplyPart::Call { .. } => {
                    added["arguments"] = "".into();
                    added["status"] = "in_progress".into();
                }
                FakeReplyPart::Reasoning { .. } => added["summary"] = json!([]),
                FakeReplyPart::Raw(_) => {}
            }
            tell(json!({ "type": "response.output_item.added", "output_index": index, "item": added }));
            match said {
                FakeReplyPart::Text(text) => {
                    let empty =
                        json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] });
                    tell(at("response.content_part.added", json!({ "content_index": 0, "part": empty })));
                    for delta in self.split_text(text) {
                        tell(at(
                            "response.output_text.delta",
                            json!({ "content_index": 0, "delta": delta, "logprobs": [] }),
                        ));
                    }
                    tell(at(
                        "response.output_text.done",
                        json!({ "content_index": 0, "text": text, "logprobs": [] }),
                    ));
                    let part = &item["content"][0];
                    tell(at("response.content_part.done", json!({ "content_index": 0, "part": part })));
                }
                FakeReplyPart::Refusal(text) => {
                    for delta in self.split_text(text) {
                        tell(at("response.refusal.delta", json!({ "content_index": 0, "delta": delta })));
                    }
                    tell(at("response.refusal.done", json!({ "content_index": 0, "refusal": text })));
                }
                FakeReplyPart::Call { name, arguments, .. } => {
                    for delta in self.split_text(arguments) {
                        tell(at("response.function_call_arguments.delta", json!({ "delta": delta })));
                    }
                    tell(at(
                        "response.function_call_arguments.done",
                        json!({ "name": name, "arguments": arguments }),
                    ));
                }
                FakeReplyPart::Reasoning { text, .. } => {
                    for delta in self.split_text(text) {
                        tell(at(
                            "response.reasoning_summary_text.delta",
                            json!({ "summary_index": 0, "delta": delta }),
                        ));
                    }
                }
                FakeReplyPart::Raw(_) => {}
            }
            tell(json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
        }
        let response = self.response_body();
        let status = response["status"].as_str().unwrap_or_default();
        tell(json!({ "type": format!("response.{status}"), "response": response }));
        events.text
    }

    fn completion_usage(&self) -> Value {
        let [read, cached, written, reasoning] = self.reply.usage;
        json!({
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": { "cached_tokens": cached },
            "completion_tokens_details": { "reasoning_tokens": reasoning },
        })
    }

    fn finish_reason(&self) -> &'static str {
        match &self.reply.stop {
            FakeStopReason::MaxTokens => "length",
            FakeStopReason::ContentFilter => "content_filter",
            _ if self.parts.iter().any(|said| matches!(said, FakeReplyPart::Call { .. })) => "tool_calls",
            _ => "stop",
        }
    }

    fn error_event(&self) -> Option<Value> {
        match &self.reply.stop {
            FakeStopReason::Failed { code, message } => Some(json!({
                "error": { "message": message, "type": code, "param": null, "code": code },
            })),
            _ => None,
        }
    }

    fn completion_body(&self) -> Value {
        if let Some(failure) = self.error_event() {
            return failure;
        }
        let mut message = json!({ "role": "assistant", "content": null, "refusal": null });
        let mut calls = Vec::new();
        for said in self.parts {
            match said {
                FakeReplyPart::Reasoning { text, .. } => message["reasoning_content"] = text.as_str().into(),
                FakeReplyPart::Text(text) => {
                    let so_far = message["content"].as_str().unwrap_or_default();
                    message["content"] = format!("{so_far}{text}").into();
                }
                FakeReplyPart::Refusal(text) => message["refusal"] = text.as_str().into(),
                FakeReplyPart::Call { id, name, arguments } => calls.push(json!({
                    "id": id,
                    "type": "function",
                    "function": { "name": name, "arguments": arguments },
                })),
                FakeReplyPart::Raw(_) => {}
            }
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        json!({
            "id": format!("chatcmpl-{}", self.number),
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": self.model,
            "choices": [{
                "index": 0,
                "message": message,
                "finish_reason": self.finish_reason(),
                "logprobs": null,
            }],
            "usage": self.completion_usage(),
        })
    }

    fn completion_events(&self) -> String {
        let mut events = SseWriter::default();
        let chunk = |choices: Value, usage: Value| {
            json!({
                "id": format!("chatcmpl-{}", self.number),
                "object": "chat.completion.chunk",
                "created": 1_760_000_000,
                "model": self.model,
                "choices": choices,
                "usage": usage,
            })
        };
        let delta = |delta: Value, reason: Value| {
            let choice = json!({ "index": 0, "delta": delta, "finish_reason": reason, "logprobs": null });
            chunk(json!([choice]), Value::Null)
        };
        events.push_data(&delta(json!({ "role": "assistant", "content": "" }), Value::Null));
        let mut calls = 0;
        for said in self.parts {
            match said {
                FakeReplyPart::Reasoning { text, .. } => {
                    self.split_text(text).into_iter().for_each(|piece| {
                        events.push_data(&delta(json!({ "reasoning_content": piece }), Value::Null))
                    })
                }
                FakeReplyPart::Text(text) => self
                    .split_text(text)
                    .into_iter()
                    .for_each(|piece| events.push_data(&delta(json!({ "content": piece }), Value::Null))),
                FakeReplyPart::Refusal(text) => self
                    .split_text(text)
                    .into_iter()
                    .for_each(|piece| events.push_data(&delta(json!({ "refusal": piece }), Value::Null))),
                FakeReplyPart::Call { id, name, arguments } => {
                    let function = json!({ "name": name, "arguments": "" });
                    let first = json!({ "index": calls, "id": id, "type": "function", "function": function });
                    events.push_data(&delta(json!({ "tool_calls": [first] }), Value::Null));
                    for piece in self.split_text(arguments) {
                        let more = json!({ "index": calls, "function": { "arguments": piece } });
                        events.push_data(&delta(json!({ "tool_calls": [more] }), Value::Null));
                    }
                    calls += 1;
                }
                FakeReplyPart::Raw(_) => {}
            }
        }
        if let Some(failure) = self.error_event() {
            events.push_data(&failure);
            return events.text;
        }
        events.push_data(&delta(json!({}), self.finish_reason().into()));
        events.push_data(&chunk(json!([]), self.completion_usage()));
        events.text.push_str("data: [DONE]\n\n");
        events.text
    }

    fn message_block(said: &FakeReplyPart) -> Value {
        match said {
            FakeReplyPart::Reasoning { id, text } => {
                json!({ "type": "thinking", "thinking": text, "signature": format!("signed {id}") })
            }
            FakeReplyPart::Text(text) | FakeReplyPart::Refusal(text) => {
                json!({ "type": "text", "text": text, "citations": null })
            }
            FakeReplyPart::Call { id, name, arguments } => {
                let input: Value = serde_json::from_str(arguments).unwrap_or_default();
                json!({ "type": "tool_use", "id": id, "name": name, "input": input })
            }
            FakeReplyPart::Raw(value) => value.clone(),
        }
    }

    fn stop_reason(&self) -> &'static str {
        let has = |wanted: fn(&FakeReplyPart) -> bool| self.parts.iter().any(wanted);
        match &self.reply.stop {
            FakeStopReason::MaxTokens => "max_tokens",
            FakeStopReason::ContentFilter => "refusal",
            _ if has(|said| matches!(said, FakeReplyPart::Refusal(_))) => "refusal",
            _ if has(|said| matches!(said, FakeReplyPart::Call { .. })) => "tool_use",
            _ => "end_turn",
        }
    }

    fn message_usage(&self) -> Value {
        let [read, cached, written, _] = self.reply.usage;
        json!({
            "input_tokens": read - cached.min(read),
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": written,
        })
    }

    fn message_body(&self) -> Value {
        if let Some(failure) = self.error_event() {
            return json!({ "type": "error", "error": failure["error"] });
        }
        json!({
            "id": format!("msg_{}", self.number),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self.parts.iter().map(Self::message_block).collect::<Value>(),
            "stop_reason": self.stop_reason(),
            "stop_sequence": null,
            "usage": self.message_usage(),
        })
    }

    fn message_events(&self) -> String {
        let mut events = SseWriter::default();
        let mut tell = |event: Value| {
            let name = event["type"].as_str().unwrap_or_default().to_owned();
            events.push_named(&name, &event);
        };
        let mut usage = self.message_usage();
        usage["output_tokens"] = 1.into();
        tell(json!({ "type": "message_start", "message": {
            "id": format!("msg_{}", self.number),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage,
        }}));
        tell(json!({ "type": "ping" }));
        for (index, said) in self.parts.iter().enumerate() {
            let mut block = Self::message_block(said);
            let deltas: Vec<Value> = match said {
                FakeReplyPart::Text(text) | FakeReplyPart::Refusal(text) => {
                    block["text"] = "".into();
                    let delta = |piece| json!({ "type": "text_delta", "text": piece });
                    self.split_text(text).into_iter().map(delta).collect()
                }
                FakeReplyPart::Reasoning { id, text } => {
                    block["thinking"] = "".into();
                    block["signature"] = "".into();
                    let delta = |piece| json!({ "type": "thinking_delta", "thinking": piece });
                    let signed = json!({ "type": "signature_delta", "signature": format!("signed {id}") });
                    self.split_text(text).into_iter().map(delta).chain([signed]).collect()
                }
                FakeReplyPart::Call { .. } => {
                    let input = block["input"].take().to_string();
                    block["input"] = json!({});
                    let delta = |piece| json!({ "type": "input_json_delta", "partial_json": piece });
                    self.split_text(&input).into_iter().map(delta).collect()
                }
                FakeReplyPart::Raw(_) => Vec::new(),
            };
            tell(json!({ "type": "content_block_start", "index": index, "content_block": block }));
            for delta in deltas {
                tell(json!({ "type": "content_block_delta", "index": index, "delta": delta }));
            }
            tell(json!({ "type": "content_block_stop", "index": index }));
        }
        if let Some(failure) = self.error_event() {
            tell(json!({ "type": "error", "error": failure["error"] }));
            return events.text;
        }
        let delta = json!({ "stop_reason": self.stop_reason(), "stop_sequence": null });
        let usage = json!({ "output_tokens": self.reply.usage[2] });
        tell(json!({ "type": "message_delta", "delta": delta, "usage": usage }));
        tell(json!({ "type": "message_stop" }));
        events.text
    }
}

/// A writer of server-sent events.
#[derive(Default)]
struct SseWriter {
    text: String,
    count: usize,
}

impl SseWriter {
    fn push_named(&mut self, name: &str, data: &Value) {
        self.text.push_str(&format!("event: {name}\n"));
        self.push_data(data);
    }

    fn push_data(&mut self, data: &Value) {
        self.text.push_str(&format!("data: {data}\n\n"));
        self.count += 1;
    }
}
