//! Signatures that only their provider can read, in a run that pauses, is resumed from its text, and fails a turn.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::agent::Agent;
use windlass::run::{ModelRetryPolicy, PausedRun, RunResult};
use windlass::tool::{Tool, ToolContext};
use windlass_models::testing::{FakeProvider, FakeReply};

use crate::support::{plain_answer, registry_at};

fn clerk(server: &FakeProvider, provider: &str, variable: &str) -> Agent {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let body = |_: ToolContext, _: Value| async { Ok::<_, String>("paid") };
    let pay = Tool::dynamic("pay", "Pays.", schema, body).needs_approval();
    let model = registry_at(server, variable).model(&format!("{provider}:m1")).expect("a model");
    Agent::new("clerk").model(model).tool(pay)
}

#[tokio::test]
async fn a_signed_call_goes_back_after_a_pause_and_a_failed_turn() {
    let gemini = json!({ "candidates": [{ "finishReason": "STOP", "content": { "role": "model", "parts": [
        { "functionCall": { "id": "fc1", "name": "pay", "args": {} }, "thoughtSignature": "sig-1" }] } }] });
    let chat = json!({ "id": "c", "choices": [{ "index": 0, "finish_reason": "tool_calls", "message": {
        "role": "assistant", "content": null, "tool_calls": [{ "id": "c1", "type": "function",
            "function": { "name": "pay", "arguments": "{}" },
            "extra_content": { "google": { "thought_signature": "sig-1" } } }] } }] });
    let messages = json!({ "id": "m", "type": "message", "role": "assistant", "stop_reason": "tool_use", "content": [
        { "type": "thinking", "thinking": "I pay.", "signature": "sig-1" },
        { "type": "tool_use", "id": "c1", "name": "pay", "input": {} }],
        "usage": { "input_tokens": 3, "output_tokens": 1 } });
    for (provider, variable, api, call) in [
        ("gemini", "GEMINI_BASE_URL", "gemini", gemini),
        ("llamacpp", "LLAMACPP_BASE_URL", "chat", chat),
        ("anthropic", "ANTHROPIC_BASE_URL", "messages", messages),
    ] {
        let replies = [FakeReply::json_body(call.to_string()), FakeReply::status(503), plain_answer(api)];
        let server = FakeProvider::start(replies).await.expect("a server");
        let paused = match clerk(&server, provider, variable).run("Pay.").await.expect("it pauses") {
            RunResult::Paused(paused) => paused.to_text(),
            other => panic!("{provider}: {other:?}"),
        };
        let mut paused = PausedRun::from_text(&paused).expect("it is a run");
        let pending = paused.pending_calls()[0].path.clone();
        paused.approve(pending).expect("it waits");
        let retry = ModelRetryPolicy { base_delay: Duration::from_millis(1), ..ModelRetryPolicy::default() };
        let result = clerk(&server, provider, variable).resume(paused).model_retry(retry).await;
        assert_eq!(result.expect("it ends").output_text().expect("it finishes"), "ok", "{provider}");
        let requests = server.requests();
        assert_eq!(requests.len(), 3, "{provider}");
        for request in &requests[1..] {
            let sent = request.body.to_string();
            assert_eq!(sent.matches("sig-1").count(), 1, "{provider}: {sent}");
        }
    }
}
