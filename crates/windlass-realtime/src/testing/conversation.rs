//! The server's side of one conversation: what the protocol allows, and what follows from it.

use std::collections::VecDeque;
use std::time::Duration;

use data_encoding::BASE64;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::ear::{Listener, Noticed, tone};
use super::reply::{Reply, ReplyPart, Said, words_of};
use super::saying::{Saying, Step, merge};
use super::serve::Mind;
use crate::audio::{AudioFormat, resample};

/// How long humming a letter takes.
const MS_PER_LETTER: u64 = 60;

/// One conversation.
pub(super) struct Conversation {
    mind: Mind,
    session: Value,
    items: Vec<Value>,
    /// How much speech of an item was sent, in milliseconds.
    spoken: Vec<(String, u64)>,
    buffer: Vec<i16>,
    listener: Listener,
    speech_item: String,
    answer: Option<UnderWay>,
    out: Vec<Value>,
    count: u64,
    prefix: String,
}

/// An answer that is being given.
struct UnderWay {
    id: String,
    metadata: Value,
    steps: VecDeque<(Duration, Step)>,
    due: Instant,
    output: Vec<Value>,
    stalls: bool,
}

impl Conversation {
    pub(super) fn new(mind: Mind, number: u64) -> Self {
        let mut conversation = Self {
            mind,
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
            spoken: Vec::new(),
            buffer: Vec::new(),
            listener: Listener::default(),
            speech_item: String::new(),
            answer: None,
            out: Vec::new(),
            count: 0,
            prefix: format!("{number}"),
        };
        let session = conversation.session.clone();
        conversation.send("session.created", json!({ "session": session }));
        conversation
    }

    /// What is to be sent now.
    pub(super) fn take_out(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.out)
    }

    /// When there is something to be sent, the next time.
    pub(super) fn due(&self) -> Option<Instant> {
        self.answer.as_ref().filter(|answer| !answer.stalls).map(|answer| answer.due)
    }

    pub(super) fn is_answering(&self) -> bool {
        self.answer.is_some()
    }

    fn id(&mut self, kind: &str) -> String {
        self.count += 1;
        format!("{kind}_{}_{}", self.prefix, self.count)
    }

    fn send(&mut self, kind: &str, fields: Value) {
        self.count += 1;
        let mut event = fields;
        event["type"] = kind.into();
        event["event_id"] = format!("event_{}_{}", self.prefix, self.count).into();
        self.out.push(event);
    }

    pub(super) fn refuse(&mut self, event: &Value, code: &str, message: &str) {
        let error = json!({
            "type": "invalid_request_error",
            "code": code,
            "message": message,
            "param": null,
            "event_id": event["event_id"],
        });
        self.send("error", json!({ "error": error }));
    }

    /// Takes an event of the client.
    pub(super) fn take(&mut self, event: &Value) {
        match event["type"].as_str().unwrap_or_default() {
            "session.update" => {
                merge(&mut self.session, &event["session"]);
                let session = self.session.clone();
                self.send("session.updated", json!({ "session": session }));
            }
            "input_audio_buffer.append" => self.hear(event),
            "input_audio_buffer.commit" => self.commit(event),
            "input_audio_buffer.clear" => {
                self.buffer.clear();
                self.send("input_audio_buffer.cleared", json!({}));
            }
            "conversation.item.create" => self.create_item(event),
            "conversation.item.retrieve" => match self.place(&event["item_id"]) {
                Some(place) => {
                    let item = self.items[place].clone();
                    self.send("conversation.item.retrieved", json!({ "item": item }));
                }
                None => self.refuse(event, "item_not_found", "there is no such item"),
            },
            "conversation.item.delete" => match self.place(&event["item_id"]) {
                Some(place) => {
                    self.items.remove(place);
                    let item_id = event["item_id"].clone();
                    self.send("conversation.item.deleted", json!({ "item_id": item_id }));
                }
                None => self.refuse(event, "item_not_found", "there is no such item"),
            },
            "conversation.item.truncate" => self.truncate(event),
            "response.create" => {
                if event["response"]["conversation"] == "none" {
                    return self.refuse(
                        event,
                        "not_supported",
                        "this server has no answers beside the conversation",
                    );
                }
                if self.answer.is_some() {
                    let message = "the conversation already has an active response";
                    return self.refuse(event, "conversation_already_has_active_response", message);
                }
                self.answer(event["response"]["metadata"].clone());
            }
            "response.cancel" => {
                let is_it = match (&self.answer, event["response_id"].as_str()) {
                    (Some(_), None) => true,
                    (Some(answer), Some(id)) => answer.id == id,
                    (None, _) => false,
                };
                if is_it {
                    self.cancel("client_cancelled");
                } else {
                    self.refuse(event, "response_cancel_not_active", "there is no such answer under way");
                }
            }
            other => self.refuse(event, "unknown_event", &format!("there is no event `{other}`")),
        }
    }

    fn place(&self, id: &Value) -> Option<usize> {
        self.items.iter().position(|item| item["id"] == *id)
    }

    fn create_item(&mut self, event: &Value) {
        let mut item = event["item"].clone();
        if item["id"].is_null() {
            item["id"] = self.id("item").into();
        }
        if self.place(&item["id"]).is_some() {
            return self.refuse(event, "item_already_exists", "there is an item of that id already");
        }
        let is_output = item["type"] == "function_call_output";
        let has_call = self
            .items
            .iter()
            .any(|known| known["type"] == "function_call" && known["call_id"] == item["call_id"]);
        if is_output && !has_call {
            return self.refuse(event, "no_such_call", "there is no call for this output");
        }
        item["object"] = "realtime.item".into();
        item["status"] = "completed".into();
        let previous = &event["previous_item_id"];
        let place = match self.place(previous) {
            Some(place) => place + 1,
            None if previous.is_null() => self.items.len(),
            None => return self.refuse(event, "item_not_found", "there is no item to put it behind"),
        };
        self.items.insert(place, item.clone());
        self.tell_item(&item, place);
    }

    fn tell_item(&mut self, item: &Value, place: usize) {
        let previous = place.checked_sub(1).map(|before| self.items[before]["id"].clone());
        self.send("conversation.item.added", json!({ "item": item, "previous_item_id": previous }));
        self.send("conversation.item.done", json!({ "item": item, "previous_item_id": previous }));
    }

    fn truncate(&mut self, event: &Value) {
        let Some(place) = self.place(&event["item_id"]) else {
            return self.refuse(event, "item_not_found", "there is no such item");
        };
        let id = event["item_id"].as_str().unwrap_or_default();
        let spoken = self.spoken.iter().find(|(item, _)| item == id).map_or(0, |(_, ms)| *ms);
        let end = event["audio_end_ms"].as_u64().unwrap_or(u64::MAX);
        if end > spoken {
            let message = format!("the audio of {spoken} ms is shorter than {end} ms");
            return self.refuse(event, "invalid_value", &message);
        }
        // What the model remembers of it is what was heard, and of that the words are not known.
        if let Some(parts) = self.items[place]["content"].as_array_mut() {
            for part in parts {
                part["transcript"] = Value::Null;
            }
        }
        self.items[place]["heard_ms"] = end.into();
        let (item_id, content_index) = (event["item_id"].clone(), event["content_index"].clone());
        let fields = json!({ "item_id": item_id, "content_index": content_index, "audio_end_ms": end });
        self.send("conversation.item.truncated", fields);
    }

    fn format(&self, side: &str) -> AudioFormat {
        match self.session["audio"][side]["format"]["type"].as_str() {
            Some("audio/pcmu") => AudioFormat::Ulaw,
            Some("audio/pcma") => AudioFormat::Alaw,
            _ => AudioFormat::Pcm24k,
        }
    }

    fn hear(&mut self, event: &Value) {
        let Ok(bytes) = BASE64.decode(event["audio"].as_str().unwrap_or_default().as_bytes()) else {
            return self.refuse(event, "invalid_value", "this is no base64");
        };
        let format = self.format("input");
        let samples = resample(&format.decode(&bytes), format.rate(), 24_000);
        self.buffer.extend_from_slice(&samples);
        let turns = self.session["audio"]["input"]["turn_detection"].clone();
        if turns.is_null() {
            return;
        }
        let silence = turns["silence_duration_ms"].as_u64().unwrap_or(500);
        for noticed in self.listener.hear(&samples, silence) {
            match noticed {
                Noticed::Started { at_ms } => {
                    self.speech_item = self.id("item");
                    let item_id = self.speech_item.clone();
                    let fields = json!({ "audio_start_ms": at_ms, "item_id": item_id });
                    self.send("input_audio_buffer.speech_started", fields);
                    if turns["interrupt_response"] != false && self.answer.is_some() {
                        self.cancel("turn_detected");
                    }
                }
                Noticed::Stopped { at_ms } => {
                    let item_id = self.speech_item.clone();
                    let fields = json!({ "audio_end_ms": at_ms, "item_id": item_id });
                    self.send("input_audio_buffer.speech_stopped", fields);
                    self.become_item(item_id);
                    if turns["create_response"] != false && self.answer.is_none() {
                        self.answer(Value::Null);
                    }
                }
            }
        }
    }

    fn commit(&mut self, event: &Value) {
        if self.buffer.len() < 2400 {
            return self.refuse(
                event,
                "input_audio_buffer_commit_empty",
                "there is less than 100 ms of audio",
            );
        }
        let id = self.id("item");
        self.become_item(id);
    }

    /// The audio so far becomes a message, and is written down.
    fn become_item(&mut self, id: String) {
        let samples = std::mem::take(&mut self.buffer);
        let previous = self.items.last().map(|item| item["id"].clone());
        self.send("input_audio_buffer.committed", json!({ "item_id": id, "previous_item_id": previous }));
        let transcript = (self.mind.ear)(&samples);
        let mut item = json!({
            "id": id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{ "type": "input_audio", "transcript": null }],
        });
        self.items.push(item.clone());
        self.tell_item(&item, self.items.len() - 1);
        item["content"][0]["transcript"] = transcript.as_str().into();
        if let Some(last) = self.items.last_mut() {
            *last = item;
        }
        if !self.session["audio"]["input"]["transcription"].is_null() {
            let usage = json!({ "type": "duration", "seconds": samples.len() as f64 / 24_000.0 });
            let fields =
                json!({ "item_id": id, "content_index": 0, "transcript": transcript, "usage": usage });
            self.send("conversation.item.input_audio_transcription.completed", fields);
        }
    }

    /// Begins an answer.
    fn answer(&mut self, metadata: Value) {
        let said = Said { items: self.items.clone(), session: self.session.clone() };
        let reply = (self.mind.think)(&said);
        let id = self.id("resp");
        let steps = self.steps(&id, &reply);
        let response = response(&id, "in_progress", &metadata, &[], None);
        self.send("response.created", json!({ "response": response }));
        self.answer = Some(UnderWay {
            id,
            metadata,
            due: Instant::now() + reply.think,
            steps,
            output: Vec::new(),
            stalls: reply.stalls,
        });
    }

    fn steps(&mut self, response: &str, reply: &Reply) -> VecDeque<(Duration, Step)> {
        let mut steps = VecDeque::new();
        let speaks = self.session["output_modalities"][0] != "text";
        for (index, part) in reply.parts.iter().enumerate() {
            match part {
                ReplyPart::Say { text, audio } => {
                    let item = self.id("item");
                    let audio = match audio {
                        Some(audio) => audio.to_vec(),
                        None => tone(text.chars().count() as u64 * MS_PER_LETTER),
                    };
                    let said = Saying { response, item: &item, index, text, pace: reply.pace };
                    if speaks {
                        said.speak(&mut steps, self.format("output"), &audio);
                    } else {
                        said.write(&mut steps);
                    }
                }
                ReplyPart::Call { id, name, arguments } => {
                    let item = self.id("item");
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
                        merge(&mut event, &fields);
                        event["type"] = kind.into();
                        steps.push_back((Duration::ZERO, Step::Send(event)));
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
                    steps.push_back((Duration::ZERO, Step::Item(call("completed", arguments))));
                }
            }
        }
        steps.push_back((Duration::ZERO, Step::Done));
        steps
    }

    /// Goes on with the answer, as far as it is due.
    pub(super) fn step(&mut self, now: Instant) {
        while let Some(answer) = self.answer.as_mut().filter(|answer| answer.due <= now && !answer.stalls) {
            let Some((_, step)) = answer.steps.pop_front() else { break };
            match step {
                Step::Send(mut event) => {
                    self.count += 1;
                    event["event_id"] = format!("event_{}_{}", self.prefix, self.count).into();
                    self.note_speech(&event);
                    self.out.push(event);
                }
                Step::Item(item) => {
                    answer.output.push(item.clone());
                    self.items.push(item.clone());
                    self.tell_item(&item, self.items.len() - 1);
                }
                Step::Done => {
                    self.finish("completed", None);
                    return;
                }
            }
            if let Some(answer) = &mut self.answer
                && let Some((wait, _)) = answer.steps.front()
            {
                answer.due += *wait;
            }
        }
    }

    fn note_speech(&mut self, event: &Value) {
        if event["type"] != "response.output_audio.delta" {
            return;
        }
        let bytes = BASE64.decode(event["delta"].as_str().unwrap_or_default().as_bytes()).unwrap_or_default();
        let ms = self.format("output").millis(bytes.len() as u64);
        let id = event["item_id"].as_str().unwrap_or_default();
        match self.spoken.iter_mut().find(|(item, _)| item == id) {
            Some((_, spoken)) => *spoken += ms,
            None => {
                self.spoken.push((id.to_owned(), ms));
                // The item is there from its first word, so that it can be cut off.
                let part = json!({ "type": "output_audio", "transcript": "" });
                let item = json!({
                    "id": id, "object": "realtime.item", "type": "message", "status": "in_progress",
                    "role": "assistant", "content": [part],
                });
                if self.place(&item["id"]).is_none() {
                    self.items.push(item.clone());
                    let previous =
                        self.items.len().checked_sub(2).map(|before| self.items[before]["id"].clone());
                    self.send(
                        "conversation.item.added",
                        json!({ "item": item, "previous_item_id": previous }),
                    );
                }
            }
        }
    }

    fn cancel(&mut self, reason: &str) {
        self.finish("cancelled", Some(reason));
    }

    fn finish(&mut self, status: &str, reason: Option<&str>) {
        let Some(answer) = self.answer.take() else { return };
        let words: usize = self.items.iter().map(|item| words_of(item).len()).sum();
        let tokens = words as u64 / 4;
        let usage = json!({
            "total_tokens": tokens + 10, "input_tokens": tokens, "output_tokens": 10,
            "input_token_details": { "text_tokens": tokens, "audio_tokens": 0, "cached_tokens": 0 },
            "output_token_details": { "text_tokens": 10, "audio_tokens": 0 },
        });
        let mut response = response(&answer.id, status, &answer.metadata, &answer.output, Some(usage));
        if let Some(reason) = reason {
            response["status_details"] = json!({ "type": status, "reason": reason });
        }
        self.send("response.done", json!({ "response": response }));
        let limit = json!({ "name": "tokens", "limit": 40000, "remaining": 39000, "reset_seconds": 0.1 });
        self.send("rate_limits.updated", json!({ "rate_limits": [limit] }));
    }

    /// An item of the answer under way is whole.
    pub(super) fn note_sent(&mut self, event: &Value) {
        if event["type"] != "response.output_item.done" || event["item"]["type"] != "message" {
            return;
        }
        let item = event["item"].clone();
        if let Some(answer) = &mut self.answer {
            answer.output.push(item.clone());
        }
        match self.place(&item["id"]) {
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

fn response(id: &str, status: &str, metadata: &Value, output: &[Value], usage: Option<Value>) -> Value {
    json!({
        "object": "realtime.response", "id": id, "status": status, "status_details": null,
        "conversation_id": "conv_1", "output": output, "output_modalities": ["audio"],
        "metadata": metadata, "usage": usage,
    })
}
