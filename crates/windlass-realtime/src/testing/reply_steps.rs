//! The events of a scripted response, step by step.

use std::collections::VecDeque;
use std::time::Duration;

use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::audio::{AudioFormat, resample};
use crate::json::merge_json;

/// Duration of one chunk of speech.
const CHUNK_MS: u64 = 100;

/// One step of a response.
pub(super) enum ReplyStep {
    SendEvent(Value),
    AddItem(Value),
    FinishResponse,
}

/// A builder of the steps that send one message.
pub(super) struct MessageWriter<'a> {
    pub(super) response: &'a str,
    pub(super) item: &'a str,
    pub(super) index: usize,
    pub(super) text: &'a str,
    pub(super) speed_factor: Option<u32>,
}

impl MessageWriter<'_> {
    fn message_item(&self, status: &str, content: &[Value]) -> Value {
        json!({
            "id": self.item, "object": "realtime.item", "type": "message", "status": status,
            "role": "assistant", "content": content,
        })
    }

    fn push_event(
        &self,
        steps: &mut VecDeque<(Duration, ReplyStep)>,
        kind: &str,
        fields: Value,
        wait: Duration,
    ) {
        let mut event = json!({
            "type": kind, "response_id": self.response, "item_id": self.item,
            "output_index": self.index, "content_index": 0,
        });
        merge_json(&mut event, &fields, &[]);
        steps.push_back((wait, ReplyStep::SendEvent(event)));
    }

    fn push_start(&self, steps: &mut VecDeque<(Duration, ReplyStep)>, part: &Value) {
        let item = self.message_item("in_progress", &[]);
        let added = json!({
            "type": "response.output_item.added", "response_id": self.response,
            "output_index": self.index, "item": item,
        });
        steps.push_back((Duration::ZERO, ReplyStep::SendEvent(added)));
        self.push_event(steps, "response.content_part.added", json!({ "part": part }), Duration::ZERO);
    }

    fn push_end(&self, steps: &mut VecDeque<(Duration, ReplyStep)>, part: &Value) {
        let mut spoken = part.clone();
        spoken["type"] = if part["type"] == "output_audio" { "audio".into() } else { "text".into() };
        self.push_event(steps, "response.content_part.done", json!({ "part": spoken }), Duration::ZERO);
        let done = json!({
            "type": "response.output_item.done", "response_id": self.response,
            "output_index": self.index, "item": self.message_item("completed", std::slice::from_ref(part)),
        });
        steps.push_back((Duration::ZERO, ReplyStep::SendEvent(done)));
    }

    pub(super) fn push_speech(
        &self,
        steps: &mut VecDeque<(Duration, ReplyStep)>,
        format: AudioFormat,
        audio: &[i16],
    ) {
        let bytes = format.encode(&resample(audio, 24_000, format.sample_rate()));
        let piece = (format.bytes_per_ms() * CHUNK_MS) as usize;
        let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
        let letters: Vec<char> = self.text.chars().collect();
        let part = json!({ "type": "audio", "transcript": "" });
        self.push_start(steps, &part);
        let count = pieces.len().max(1);
        for (number, bytes) in pieces.into_iter().enumerate() {
            let wait =
                self.speed_factor.map_or(Duration::ZERO, |pace| Duration::from_millis(CHUNK_MS) / pace);
            let (from, to) = (letters.len() * number / count, letters.len() * (number + 1) / count);
            if from < to {
                let delta: String = letters[from..to].iter().collect();
                self.push_event(
                    steps,
                    "response.output_audio_transcript.delta",
                    json!({ "delta": delta }),
                    Duration::ZERO,
                );
            }
            self.push_event(
                steps,
                "response.output_audio.delta",
                json!({ "delta": BASE64.encode(bytes) }),
                wait,
            );
        }
        self.push_event(steps, "response.output_audio.done", json!({}), Duration::ZERO);
        self.push_event(
            steps,
            "response.output_audio_transcript.done",
            json!({ "transcript": self.text }),
            Duration::ZERO,
        );
        self.push_end(steps, &json!({ "type": "output_audio", "transcript": self.text }));
    }

    pub(super) fn push_text(&self, steps: &mut VecDeque<(Duration, ReplyStep)>) {
        self.push_start(steps, &json!({ "type": "text", "text": "" }));
        let letters: Vec<char> = self.text.chars().collect();
        for piece in letters.chunks(16) {
            let delta: String = piece.iter().collect();
            let wait =
                self.speed_factor.map_or(Duration::ZERO, |pace| Duration::from_millis(CHUNK_MS) / pace);
            self.push_event(steps, "response.output_text.delta", json!({ "delta": delta }), wait);
        }
        self.push_event(steps, "response.output_text.done", json!({ "text": self.text }), Duration::ZERO);
        self.push_end(steps, &json!({ "type": "output_text", "text": self.text }));
    }
}
