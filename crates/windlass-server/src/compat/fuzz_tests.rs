//! Fuzzing of the requests of other protocols: AG-UI, Chat and Responses.

#![cfg(target_os = "linux")]

use windlass_fuzz::FuzzTarget;

use super::ag_ui::{self, RunAgentInput};
use super::chat::ChatRequest;
use super::read_message;
use super::responses::ResponseRequest;

#[test]
fn requests_of_other_protocols() {
    let target_of_interrupt = r#"{"run":"r","call":"c1","attempt":0,"displayed":"00","reason":"question"}"#;
    let hex: String = target_of_interrupt.bytes().map(|byte| format!("{byte:02x}")).collect();
    let seeds = [
        format!(
            r#"{{"threadId":"t","runId":"r","messages":[{{"id":"1","role":"user","content":[{{"type":"text","text":"Go."}}]}}],"resume":[{{"interruptId":"interrupt-{hex}","status":"resolved","payload":{{"approved":true,"arguments":{{}}}}}}]}}"#
        ),
        r#"{"model":"clerk","messages":[{"role":"developer","content":"x"}],"stream":true,"stream_options":{"include_usage":true}}"#.to_owned(),
        r#"{"model":"clerk","input":[{"role":"user","content":[{"type":"input_text","text":"x"}]}],"previous_response_id":"resp_1","store":false}"#.to_owned(),
        format!("interrupt-{hex}"),
    ];
    let words = [
        "interrupt-",
        "\"resume\":[",
        "\"status\":\"cancelled\"",
        "\"payload\":",
        "\"role\":",
        "\"content\":[",
    ];
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "server_protocols").seeds(seeds).words(words);
    target.run(module_path!(), "requests_of_other_protocols", |input| {
        if let Ok(input) = serde_json::from_slice::<RunAgentInput>(input) {
            ag_ui::read_all_answers(&input);
        }
        ag_ui::read_interrupt(&String::from_utf8_lossy(input));
        let _ = serde_json::from_slice::<ChatRequest>(input);
        let _ = serde_json::from_slice::<ResponseRequest>(input);
        if let Ok(value) = serde_json::from_slice::<serde_json::Value>(input) {
            let _ = read_message(value["role"].as_str(), &value["content"]);
        }
    });
}
