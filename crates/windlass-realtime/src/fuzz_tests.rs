//! Fuzzing of the messages of a realtime provider and of a person's device.

#![cfg(target_os = "linux")]

use windlass_fuzz::FuzzTarget;

use crate::openai::{RealtimeEventDecoder, decode_item};
use crate::relay::decode_device_message;

const EVENTS: [&str; 5] = [
    r#"{"type":"response.created","event_id":"e1","response":{"id":"r1","status":"in_progress","output":[]}}"#,
    r#"{"type":"response.output_audio.delta","response_id":"r1","item_id":"i1","output_index":0,"content_index":0,"delta":"AAAA"}"#,
    r#"{"type":"response.done","response":{"id":"r1","status":"completed","output":[{"id":"i2","type":"function_call","call_id":"c1","name":"pay","arguments":"{}"}],"usage":{"input_tokens":1,"output_tokens":18446744073709551615}}}"#,
    r#"{"type":"conversation.item.added","previous_item_id":null,"item":{"id":"i1","type":"message","role":"user","content":[{"type":"input_audio","transcript":"hi"}]}}"#,
    r#"{"type":"input_audio_buffer.speech_stopped","audio_end_ms":-1,"item_id":"i1"}"#,
];
const DEVICE: [&str; 4] = [
    r#"{"event":"start","start":{"streamSid":"s","callSid":"c","mediaFormat":{"encoding":"audio/x-mulaw","sampleRate":8000},"customParameters":{"a":1}}}"#,
    r#"{"event":"media","media":{"payload":"fn5+"}}"#,
    r#"{"type":"played","track":4294967295,"bytes":18446744073709551615}"#,
    r#"{"type":"decide","digest":"00","decision":{"kind":"answer","value":[{}]},"standing":true}"#,
];

#[test]
fn events_of_a_provider() {
    let words =
        ["\"type\":", "\"item\":{", "\"response_id\":", "\"delta\":", "\"content\":[", "\n", "\"status\":"];
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "realtime_events").seeds(EVENTS).words(words);
    target.run(module_path!(), "events_of_a_provider", |input| {
        let mut decoder = RealtimeEventDecoder::default();
        for line in String::from_utf8_lossy(input).lines() {
            let _ = decoder.decode(line);
            if let Ok(raw) = serde_json::from_str(line) {
                let _ = decode_item(&raw);
            }
        }
    });
}

#[test]
fn messages_of_a_device() {
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "relay_messages").seeds(DEVICE);
    target.run(module_path!(), "messages_of_a_device", |input| {
        decode_device_message(&String::from_utf8_lossy(input));
    });
}
