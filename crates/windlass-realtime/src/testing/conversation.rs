//! The server's side of one conversation: the rules of the protocol, and its events.

use std::collections::VecDeque;
use std::time::Duration;

use data_encoding::BASE64;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::reply::{ConversationView, LoopbackReply, LoopbackReplyPart, item_text};
use super::reply_steps::{MessageWriter, ReplyStep};
use super::server::LoopbackBehaviour;
use super::speech::{SpeechBoundary, SpeechDetector, tone};
use crate::audio::{AudioFormat, resample};
use crate::json::merge_json;

/// Milliseconds of tone per character of text.
const TONE_MS_PER_CHARACTER: u64 = 60;
/// Fields of the session that are tagged unions: the fields of one kind mean nothing to another, so an update
/// replaces them.
const TAGGED_UNIONS: [&str; 2] = ["format", "turn_detection"];

/// One conversation.
pub(super) struct LoopbackConversation {
    behaviour: LoopbackBehaviour,
    session: Value,
    items: Vec<Value>,
    /// Milliseconds of speech sent, by item.
    sent_speech_ms: Vec<(String, u64)>,
    input_buffer: Vec<i16>,
    speech_detector: SpeechDetector,
    speech_item: String,
    active_reply: Option<ActiveReply>,
    /// Ids of responses outside the conversation.
    side_responses: Vec<String>,
    outgoing_events: Vec<Value>,
    id_count: u64,
    response_count: u64,
    id_prefix: String,
}

/// A response in progress.
struct ActiveReply {
    id: String,
    metadata: Value,
    steps: VecDeque<(Duration, ReplyStep)>,
    due_at: Instant,
    output: Vec<Value>,
    is_stalled: bool,
}

impl LoopbackConversation {
    pub(super) fn new(behaviour: LoopbackBehaviour, number: u64) -> Self {
        let id_prefix = if behaviour.has_restarting_ids { "1".to_owned() } else { number.to_string() };
        let mut conversation = Self {
            behaviour,
            session: json!({
                "type": "realtime",
                "object": "realtime.session",
                "id": format!("sess_{number}"),
                "model": "loopback",
                "output_modalities": ["audio"],
                "instructions": "",
                "tools": [],
                "tool_choice": "auto",
                "audio": {
                    "input": {
                        "format": { "type": "audio/pcm", "rate": 24000 },
                        "turn_detection": { "type": "server_vad", "create_response": true, "interrupt_response": true }
                    },
                    "output": { "format": { "type": "audio/pcm", "rate": 24000 }, "voice": "hum", "speed": 1.0 }
                }
            }),
            items: Vec::new(),
            sent_speech_ms: Vec::new(),
            input_buffer: Vec::new(),
            speech_detector: SpeechDetector::default(),
            speech_item: String::new(),
            active_reply: None,
            side_responses: Vec::new(),
            outgoing_events: Vec::new(),
            id_count: 0,
            response_count: 0,
            id_prefix,
        };
        let session = conversation.session.clone();
        conversation.queue_event("session.created", json!({ "session": session }));
        conversation
    }

    /// Returns the conversation for a new connection. The events that were due meanwhile had no reader.
    pub(super) fn reattached(mut self, now: Instant) -> Self {
        self.advance(now);
        for event in self.take_outgoing() {
            self.record_sent_item(&event);
        }
        let session = self.session.clone();
        self.queue_event("session.created", json!({ "session": session }));
        self
    }

    /// Returns the events to send now.
    pub(super) fn take_outgoing(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.outgoing_events)
    }

    /// Returns the time of the next event.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.active_reply.as_ref().filter(|answer| !answer.is_stalled).map(|answer| answer.due_at)
    }

    /// Returns the id of the response in progress.
    pub(super) fn active_response(&self) -> Option<&str> {
        self.active_reply.as_ref().map(|answer| answer.id.as_str())
    }

    fn next_id(&mut self, kind: &str) -> String {
        self.id_count += 1;
        if self.behaviour.has_restarting_ids && kind == "resp" {
            self.response_count += 1;
            return format!("resp_{}", self.response_count);
        }
        format!("{kind}_{}_{}", self.id_prefix, self.id_count)
    }

    fn queue_event(&mut self, kind: &str, fields: Value) {
        self.id_count += 1;
        let mut event = fields;
        event["type"] = kind.into();
        event["event_id"] = format!("event_{}_{}", self.id_prefix, self.id_count).into();
        self.outgoing_events.push(event);
    }

    pub(super) fn queue_error(&mut self, event: &Value, code: &str, message: &str) {
        let error = json!({
            "type": "invalid_request_error",
            "code": code,
            "message": message,
            "param": null,
            "event_id": event["event_id"],
        });
        self.queue_event("error", json!({ "error": error }));
    }

    /// Handles an event of the client.
    pub(super) fn handle_event(&mut self, event: &Value) {
        match event["type"].as_str().unwrap_or_default() {
            "session.update" => {
                merge_json(&mut self.session, &event["session"], &TAGGED_UNIONS);
                let session = self.session.clone();
                self.queue_event("session.updated", json!({ "session": session }));
            }
            "input_audio_buffer.append" => self.append_audio(event),
            "input_audio_buffer.commit" => self.commit_audio(event),
            "input_audio_buffer.clear" => {
                self.input_buffer.clear();
                self.queue_event("input_audio_buffer.cleared", json!({}));
            }
            "conversation.item.create" => self.create_item(event),
            "conversation.item.retrieve" => match self.position_of(&event["item_id"]) {
                Some(place) => {
                    let item = self.items[place].clone();
                    self.queue_event("conversation.item.retrieved", json!({ "item": item }));
                }
                None => self.queue_error(event, "item_not_found", "there is no such item"),
            },
            "conversation.item.delete" => match self.position_of(&event["item_id"]) {
                Some(place) => {
                    self.items.remove(place);
                    let item_id = event["item_id"].clone();
                    self.queue_event("conversation.item.deleted", json!({ "item_id": item_id }));
                }
                None => self.queue_error(event, "item_not_found", "there is no such item"),
            },
            "conversation.item.truncate" => self.truncate_item(event),
            "response.create" => {
                if event["response"]["conversation"] == "none" {
                    return self.send_side_response(event["response"]["metadata"].clone());
                }
                if self.active_reply.is_some() {
                    let message = "the conversation already has an active response";
                    return self.queue_error(event, "conversation_already_has_active_response", message);
                }
                self.start_response(event["response"]["metadata"].clone());
            }
            "response.cancel" => {
                let is_it = match (&self.active_reply, event["response_id"].as_str()) {
                    (Some(_), None) => true,
                    (Some(answer), Some(id)) => answer.id == id,
                    (None, _) => false,
                };
                if is_it {
                    self.cancel_response("client_cancelled");
                } else {
                    self.queue_error(
                        event,
                        "response_cancel_not_active",
                        "there is no such answer under way",
                    );
                }
            }
            other => self.queue_error(event, "unknown_event", &format!("there is no event `{other}`")),
        }
    }

    fn position_of(&self, id: &Value) -> Option<usize> {
        self.items.iter().position(|item| item["id"] == *id)
    }

    fn create_item(&mut self, event: &Value) {
        let mut item = event["item"].clone();
        if item["id"].is_null() {
            item["id"] = self.next_id("item").into();
        }
        if self.position_of(&item["id"]).is_some() {
            return self.queue_error(event, "item_already_exists", "there is an item of that id already");
        }
        let is_output = item["type"] == "function_call_output";
        let has_call = self
            .items
            .iter()
            .any(|known| known["type"] == "function_call" && known["call_id"] == item["call_id"]);
        if is_output && !has_call {
            return self.queue_error(event, "no_such_call", "there is no call for this output");
        }
        item["object"] = "realtime.item".into();
        item["status"] = "completed".into();
        let previous = &event["previous_item_id"];
        let place = match self.position_of(previous) {
            Some(place) => place + 1,
            None if previous.is_null() => self.items.len(),
            None => return self.queue_error(event, "item_not_found", "there is no item to put it behind"),
        };
        self.items.insert(place, item.clone());
        self.announce_item(&item, place);
    }

    fn announce_item(&mut self, item: &Value, place: usize) {
        let previous = place.checked_sub(1).map(|before| self.items[before]["id"].clone());
        self.queue_event("conversation.item.added", json!({ "item": item, "previous_item_id": previous }));
        self.queue_event("conversation.item.done", json!({ "item": item, "previous_item_id": previous }));
    }

    fn truncate_item(&mut self, event: &Value) {
        let Some(place) = self.position_of(&event["item_id"]) else {
            return self.queue_error(event, "item_not_found", "there is no such item");
        };
        let id = event["item_id"].as_str().unwrap_or_default();
        let spoken = self.sent_speech_ms.iter().find(|(item, _)| item == id).map_or(0, |(_, ms)| *ms);
        let end = event["audio_end_ms"].as_u64().unwrap_or(u64::MAX);
        if end > spoken {
            let message = format!("the audio of {spoken} ms is shorter than {end} ms");
            return self.queue_error(event, "invalid_value", &message);
        }
        // The model remembers only the heard part, and its words are not known.
        if let Some(parts) = self.items[place]["content"].as_array_mut() {
            for part in parts {
                part["transcript"] = Value::Null;
            }
        }
        self.items[place]["heard_ms"] = end.into();
        let (item_id, content_index) = (event["item_id"].clone(), event["content_index"].clone());
        let fields = json!({ "item_id": item_id, "content_index": content_index, "audio_end_ms": end });
        self.queue_event("conversation.item.truncated", fields);
    }

    fn audio_format(&self, side: &str) -> AudioFormat {
        match self.session["audio"][side]["format"]["type"].as_str() {
            Some("audio/pcmu") => AudioFormat::Ulaw,
            Some("audio/pcma") => AudioFormat::Alaw,
            _ => AudioFormat::Pcm24k,
        }
    }

    fn append_audio(&mut self, event: &Value) {
        let Ok(bytes) = BASE64.decode(event["audio"].as_str().unwrap_or_default().as_bytes()) else {
            return self.queue_error(event, "invalid_value", "this is no base64");
        };
        let format = self.audio_format("input");
        let samples = resample(&format.decode(&bytes), format.sample_rate(), 24_000);
        self.input_buffer.extend_from_slice(&samples);
        let turns = self.session["audio"]["input"]["turn_detection"].clone();
        if turns.is_null() {
            return;
        }
        let silence = turns["silence_duration_ms"].as_u64().unwrap_or(500);
        for noticed in self.speech_detector.process_samples(&samples, silence) {
            match noticed {
                SpeechBoundary::Started { at_ms } => {
                    self.speech_item = self.next_id("item");
                    let item_id = self.speech_item.clone();
                    let fields = json!({ "audio_start_ms": at_ms, "item_id": item_id });
                    self.queue_event("input_audio_buffer.speech_started", fields);
                    if turns["interrupt_response"] != false && self.active_reply.is_some() {
                        self.cancel_response("turn_detected");
                    }
                }
                SpeechBoundary::Stopped { at_ms } => {
                    let item_id = self.speech_item.clone();
                    let fields = json!({ "audio_end_ms": at_ms, "item_id": item_id });
                    self.queue_event("input_audio_buffer.speech_stopped", fields);
                    self.commit_as_item(item_id);
                    if turns["create_response"] != false && self.active_reply.is_none() {
                        self.start_response(Value::Null);
                    }
                }
            }
        }
    }

    fn commit_audio(&mut self, event: &Value) {
        if self.input_buffer.len() < 2400 {
            return self.queue_error(
                event,
                "input_audio_buffer_commit_empty",
                "there is less than 100 ms of audio",
            );
        }
        let id = self.next_id("item");
        self.commit_as_item(id);
    }

    /// Turns the input buffer into a message and transcribes it.
    fn commit_as_item(&mut self, id: String) {
        let samples = std::mem::take(&mut self.input_buffer);
        let previous = self.items.last().map(|item| item["id"].clone());
        self.queue_event(
            "input_audio_buffer.committed",
            json!({ "item_id": id, "previous_item_id": previous }),
        );
        let transcript = (self.behaviour.transcribe)(&samples);
        let mut item = json!({
            "id": id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{ "type": "input_audio", "transcript": null }],
        });
        self.items.push(item.clone());
        self.announce_item(&item, self.items.len() - 1);
        item["content"][0]["transcript"] = transcript.as_str().into();
        if let Some(last) = self.items.last_mut() {
            *last = item;
        }
        if !self.session["audio"]["input"]["transcription"].is_null() {
            let usage = json!({ "type": "duration", "seconds": samples.len() as f64 / 24_000.0 });
            let fields =
                json!({ "item_id": id, "content_index": 0, "transcript": transcript, "usage": usage });
            self.queue_event("conversation.item.input_audio_transcription.completed", fields);
        }
    }

    /// Starts a response.
    fn start_response(&mut self, metadata: Value) {
        let said = ConversationView { items: self.items.clone(), session: self.session.clone() };
        let reply = (self.behaviour.respond)(&said);
        let id = self.next_id("resp");
        let steps = self.plan_steps(&id, &reply);
        let response = response_json(&id, "in_progress", &metadata, &[], None);
        self.queue_event("response.created", json!({ "response": response }));
        self.active_reply = Some(ActiveReply {
            id,
            metadata,
            due_at: Instant::now() + reply.start_delay,
            steps,
            output: Vec::new(),
            is_stalled: reply.is_stalled,
        });
    }

    /// Sends a whole response outside the conversation: neither its items nor its events change the conversation.
    fn send_side_response(&mut self, metadata: Value) {
        let said = ConversationView { items: self.items.clone(), session: self.session.clone() };
        let reply = (self.behaviour.respond)(&said);
        let id = self.next_id("resp");
        self.side_responses.push(id.clone());
        let mut response = response_json(&id, "in_progress", &metadata, &[], None);
        response["conversation_id"] = Value::Null;
        self.queue_event("response.created", json!({ "response": response }));
        let mut output = Vec::new();
        for (_, step) in self.plan_steps(&id, &reply) {
            match step {
                ReplyStep::SendEvent(event) => {
                    if event["type"] == "response.output_item.done" {
                        output.push(event["item"].clone());
                    }
                    let kind = event["type"].as_str().unwrap_or_default().to_owned();
                    self.queue_event(&kind, event);
                }
                ReplyStep::AddItem(_) | ReplyStep::FinishResponse => {}
            }
        }
        let usage = json!({ "total_tokens": 10, "input_tokens": 0, "output_tokens": 10 });
        let mut response = response_json(&id, "completed", &metadata, &output, Some(usage));
        response["conversation_id"] = Value::Null;
        self.queue_event("response.done", json!({ "response": response }));
    }

    fn plan_steps(&mut self, response: &str, reply: &LoopbackReply) -> VecDeque<(Duration, ReplyStep)> {
        let mut steps = VecDeque::new();
        let speaks = self.session["output_modalities"][0] != "text";
        for (index, part) in reply.parts.iter().enumerate() {
            match part {
                LoopbackReplyPart::Message { text, audio } => {
                    let item = self.next_id("item");
                    let audio = match audio {
                        Some(audio) => audio.to_vec(),
                        None => tone(text.chars().count() as u64 * TONE_MS_PER_CHARACTER),
                    };
                    let said = MessageWriter {
                        response,
                        item: &item,
                        index,
                        text,
                        speed_factor: reply.speed_factor,
                    };
                    if speaks {
                        said.push_speech(&mut steps, self.audio_format("output"), &audio);
                    } else {
                        said.push_text(&mut steps);
                    }
                }
                LoopbackReplyPart::Call { id, name, arguments } => {
                    let item = self.next_id("item");
                    let call = |status: &str, arguments: &str| {
                        json!({
                            "id": item,
                            "object": "realtime.item",
                            "type": "function_call",
                            "status": status,
                            "name": name,
                            "call_id": id,
                            "arguments": arguments,
                        })
                    };
                    let place = json!({ "response_id": response, "output_index": index });
                    let mut push = |kind: &str, fields: Value| {
                        let mut event = place.clone();
                        merge_json(&mut event, &fields, &[]);
                        event["type"] = kind.into();
                        steps.push_back((Duration::ZERO, ReplyStep::SendEvent(event)));
                    };
                    push("response.output_item.added", json!({ "item": call("in_progress", "") }));
                    let of = json!({ "item_id": item, "call_id": id });
                    let mut delta = of.clone();
                    delta["delta"] = arguments.as_str().into();
                    push("response.function_call_arguments.delta", delta);
                    let mut done = of;
                    done["arguments"] = arguments.as_str().into();
                    done["name"] = name.as_str().into();
                    push("response.function_call_arguments.done", done);
                    push("response.output_item.done", json!({ "item": call("completed", arguments) }));
                    steps.push_back((Duration::ZERO, ReplyStep::AddItem(call("completed", arguments))));
                }
            }
        }
        steps.push_back((Duration::ZERO, ReplyStep::FinishResponse));
        steps
    }

    /// Advances the response by all steps that are due.
    pub(super) fn advance(&mut self, now: Instant) {
        while let Some(answer) =
            self.active_reply.as_mut().filter(|answer| answer.due_at <= now && !answer.is_stalled)
        {
            let Some((_, step)) = answer.steps.pop_front() else { break };
            match step {
                ReplyStep::SendEvent(mut event) => {
                    self.id_count += 1;
                    event["event_id"] = format!("event_{}_{}", self.id_prefix, self.id_count).into();
                    self.record_speech(&event);
                    self.outgoing_events.push(event);
                }
                ReplyStep::AddItem(item) => {
                    answer.output.push(item.clone());
                    self.items.push(item.clone());
                    self.announce_item(&item, self.items.len() - 1);
                }
                ReplyStep::FinishResponse => {
                    self.finish_response("completed", None);
                    return;
                }
            }
            if let Some(answer) = &mut self.active_reply
                && let Some((wait, _)) = answer.steps.front()
            {
                answer.due_at += *wait;
            }
        }
    }

    fn record_speech(&mut self, event: &Value) {
        if event["type"] != "response.output_audio.delta" {
            return;
        }
        let bytes = BASE64.decode(event["delta"].as_str().unwrap_or_default().as_bytes()).unwrap_or_default();
        let ms = self.audio_format("output").duration_ms(bytes.len() as u64);
        let id = event["item_id"].as_str().unwrap_or_default();
        match self.sent_speech_ms.iter_mut().find(|(item, _)| item == id) {
            Some((_, spoken)) => *spoken += ms,
            None => {
                self.sent_speech_ms.push((id.to_owned(), ms));
                // The item exists from its first chunk, so that it can be truncated.
                let part = json!({ "type": "output_audio", "transcript": "" });
                let item = json!({
                    "id": id, "object": "realtime.item", "type": "message", "status": "in_progress",
                    "role": "assistant", "content": [part],
                });
                if self.position_of(&item["id"]).is_none() {
                    self.items.push(item.clone());
                    let previous =
                        self.items.len().checked_sub(2).map(|before| self.items[before]["id"].clone());
                    self.queue_event(
                        "conversation.item.added",
                        json!({ "item": item, "previous_item_id": previous }),
                    );
                }
            }
        }
    }

    fn cancel_response(&mut self, reason: &str) {
        self.finish_response("cancelled", Some(reason));
    }

    fn finish_response(&mut self, status: &str, reason: Option<&str>) {
        let Some(answer) = self.active_reply.take() else { return };
        let words: usize = self.items.iter().map(|item| item_text(item).len()).sum();
        let tokens = words as u64 / 4;
        let usage = json!({
            "total_tokens": tokens + 10, "input_tokens": tokens, "output_tokens": 10,
            "input_token_details": { "text_tokens": tokens, "audio_tokens": 0, "cached_tokens": 0 },
            "output_token_details": { "text_tokens": 10, "audio_tokens": 0 },
        });
        let mut response = response_json(&answer.id, status, &answer.metadata, &answer.output, Some(usage));
        if let Some(reason) = reason {
            response["status_details"] = json!({ "type": status, "reason": reason });
        }
        self.queue_event("response.done", json!({ "response": response }));
        let limit = json!({ "name": "tokens", "limit": 40000, "remaining": 39000, "reset_seconds": 0.1 });
        self.queue_event("rate_limits.updated", json!({ "rate_limits": [limit] }));
    }

    /// Records a completed message of the response.
    pub(super) fn record_sent_item(&mut self, event: &Value) {
        let is_side = self.side_responses.iter().any(|side| event["response_id"] == **side);
        if event["type"] != "response.output_item.done" || event["item"]["type"] != "message" || is_side {
            return;
        }
        let item = event["item"].clone();
        if let Some(answer) = &mut self.active_reply {
            answer.output.push(item.clone());
        }
        match self.position_of(&item["id"]) {
            Some(place) => {
                let heard = self.items[place]["heard_ms"].clone();
                self.items[place] = item;
                if !heard.is_null() {
                    self.items[place]["heard_ms"] = heard;
                }
            }
            None => self.items.push(item),
        }
    }
}

fn response_json(id: &str, status: &str, metadata: &Value, output: &[Value], usage: Option<Value>) -> Value {
    json!({
        "object": "realtime.response", "id": id, "status": status, "status_details": null,
        "conversation_id": "conv_1", "output": output, "output_modalities": ["audio"],
        "metadata": metadata, "usage": usage,
    })
}
