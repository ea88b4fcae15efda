//! An answer, step by step, as it goes over the wire.

use std::collections::VecDeque;
use std::time::Duration;

use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::audio::{AudioFormat, resample};

/// Speech is sent in pieces of this length.
const PIECE_MS: u64 = 100;

pub(super) enum Step {
    Send(Value),
    Item(Value),
    Done,
}

/// Something that is being said.
pub(super) struct Saying<'a> {
    pub(super) response: &'a str,
    pub(super) item: &'a str,
    pub(super) index: usize,
    pub(super) text: &'a str,
    pub(super) pace: Option<u32>,
}

impl Saying<'_> {
    fn message(&self, status: &str, content: &[Value]) -> Value {
        json!({
            "id": self.item, "object": "realtime.item", "type": "message", "status": status,
            "role": "assistant", "content": content,
        })
    }

    fn push(&self, steps: &mut VecDeque<(Duration, Step)>, kind: &str, fields: Value, wait: Duration) {
        let mut event = json!({
            "type": kind, "response_id": self.response, "item_id": self.item,
            "output_index": self.index, "content_index": 0,
        });
        merge(&mut event, &fields);
        steps.push_back((wait, Step::Send(event)));
    }

    fn begin(&self, steps: &mut VecDeque<(Duration, Step)>, part: &Value) {
        let item = self.message("in_progress", &[]);
        let added = json!({
            "type": "response.output_item.added", "response_id": self.response,
            "output_index": self.index, "item": item,
        });
        steps.push_back((Duration::ZERO, Step::Send(added)));
        self.push(steps, "response.content_part.added", json!({ "part": part }), Duration::ZERO);
    }

    fn end(&self, steps: &mut VecDeque<(Duration, Step)>, part: &Value) {
        let mut spoken = part.clone();
        spoken["type"] = if part["type"] == "output_audio" { "audio".into() } else { "text".into() };
        self.push(steps, "response.content_part.done", json!({ "part": spoken }), Duration::ZERO);
        let done = json!({
            "type": "response.output_item.done", "response_id": self.response,
            "output_index": self.index, "item": self.message("completed", std::slice::from_ref(part)),
        });
        steps.push_back((Duration::ZERO, Step::Send(done)));
    }

    pub(super) fn speak(&self, steps: &mut VecDeque<(Duration, Step)>, format: AudioFormat, audio: &[i16]) {
        let bytes = format.encode(&resample(audio, 24_000, format.rate()));
        let piece = (format.bytes_per_ms() * PIECE_MS) as usize;
        let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
        let letters: Vec<char> = self.text.chars().collect();
        let part = json!({ "type": "audio", "transcript": "" });
        self.begin(steps, &part);
        let count = pieces.len().max(1);
        for (number, bytes) in pieces.into_iter().enumerate() {
            let wait = self.pace.map_or(Duration::ZERO, |pace| Duration::from_millis(PIECE_MS) / pace);
            let (from, to) = (letters.len() * number / count, letters.len() * (number + 1) / count);
            if from < to {
                let delta: String = letters[from..to].iter().collect();
                self.push(
                    steps,
                    "response.output_audio_transcript.delta",
                    json!({ "delta": delta }),
                    Duration::ZERO,
                );
            }
            self.push(steps, "response.output_audio.delta", json!({ "delta": BASE64.encode(bytes) }), wait);
        }
        self.push(steps, "response.output_audio.done", json!({}), Duration::ZERO);
        self.push(
            steps,
            "response.output_audio_transcript.done",
            json!({ "transcript": self.text }),
            Duration::ZERO,
        );
        self.end(steps, &json!({ "type": "output_audio", "transcript": self.text }));
    }

    pub(super) fn write(&self, steps: &mut VecDeque<(Duration, Step)>) {
        self.begin(steps, &json!({ "type": "text", "text": "" }));
        let letters: Vec<char> = self.text.chars().collect();
        for piece in letters.chunks(16) {
            let delta: String = piece.iter().collect();
            let wait = self.pace.map_or(Duration::ZERO, |pace| Duration::from_millis(PIECE_MS) / pace);
            self.push(steps, "response.output_text.delta", json!({ "delta": delta }), wait);
        }
        self.push(steps, "response.output_text.done", json!({ "text": self.text }), Duration::ZERO);
        self.end(steps, &json!({ "type": "output_text", "text": self.text }));
    }
}

/// Puts fields over others, field by field.
pub(super) fn merge(value: &mut Value, over: &Value) {
    match (value, over) {
        (Value::Object(known), Value::Object(over)) => {
            for (key, new) in over {
                let known = known.entry(key.as_str()).or_insert(Value::Null);
                // These are one of several kinds, and the fields of one mean nothing to another.
                match key.as_str() {
                    "format" | "turn_detection" => *known = new.clone(),
                    _ => merge(known, new),
                }
            }
        }
        (value, new) => *value = new.clone(),
    }
}
