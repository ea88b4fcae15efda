//! The text that clients of OpenAI receive: all of it, and nothing that the journal redacts or a guardrail blocks.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::{TestClient, TestServer};
use windlass::agent::Agent;
use windlass::guardrail::{GuardrailVerdict, OutputGuardrail};
use windlass::model::{ScriptedModel, ScriptedResponse, SharedModel};
use windlass::tool::{Tool, ToolContext, ToolError};

fn request(agent: &str, is_streamed: bool) -> Value {
    json!({ "model": agent, "messages": [{ "role": "user", "content": "hello" }], "stream": is_streamed })
}

/// Returns everything that a client receives.
async fn read_stream(client: &TestClient, agent: &str) -> String {
    let post = client.request("POST", "/v1/chat/completions").header("content-type", "application/json");
    let response = client.send(post.body(request(agent, true).to_string().into()).unwrap()).await;
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    String::from_utf8_lossy(&body).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_answer_and_a_secret_do_not_leave_the_process() {
    let answer = "Done after 0 outputs.";
    let clerk = |name: &str| support::clerk_named(name);
    let blocked = clerk("blocked")
        .output_guardrail(OutputGuardrail::new("no", |_, _| async { Ok(GuardrailVerdict::Tripwire) }));
    let passed = clerk("passed")
        .output_guardrail(OutputGuardrail::new("yes", |_, _| async { Ok(GuardrailVerdict::Pass) }));
    let open = Tool::dynamic(
        "open_door",
        "Opens a door.",
        json!({ "type": "object", "properties": { "code": { "type": "string" } }, "required": ["code"], "additionalProperties": false }),
        |_: ToolContext, _: Value| async { Ok::<_, ToolError>("open") },
    )
    .secret_arguments(["code"]);
    let script = ScriptedModel::new([
        ScriptedResponse::call("c", "open_door", json!({ "code": "tulip-4711" })),
        ScriptedResponse::text("The code tulip-4711 has opened it.").in_chunks_of(4),
    ]);
    let secret = Agent::new("porter").model(SharedModel::new(script)).tool(open);
    let agents = [clerk("clerk"), blocked, passed, secret];
    let server = TestServer::start_agents(agents, |server| server).await;
    let client = server.client();
    assert!(
        read_stream(&client, "clerk").await.contains("\"content\":\"Done \""),
        "text comes as it is written"
    );
    let refused = read_stream(&client, "blocked").await;
    assert!(
        refused.contains("run_failed") && !refused.contains("Done") && !refused.contains("outputs"),
        "{refused}"
    );
    let whole = read_stream(&client, "passed").await;
    assert!(whole.contains(answer) && whole.contains("[DONE]"), "{whole}");
    let redacted = read_stream(&client, "porter").await;
    assert!(redacted.contains("has opened it") && !redacted.contains("tulip-4711"), "{redacted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_of_any_bytes_starts_one_run_and_an_odd_one_is_refused() {
    let server = TestServer::start().await;
    let client = server.client();
    let send = async |keys: &[&[u8]]| {
        let mut post =
            client.request("POST", "/v1/chat/completions").header("content-type", "application/json");
        for key in keys {
            post = post.header("idempotency-key", *key);
        }
        let post = post.body(request("clerk", false).to_string().into()).unwrap();
        support::read_json(client.send(post).await).await
    };
    let (code, first) = send(&["clé".as_bytes()]).await;
    assert_eq!(code, 200, "{first}");
    assert_eq!(send(&["clé".as_bytes()]).await.1["id"], first["id"]);
    assert_ne!(send(&["cle".as_bytes()]).await.1["id"], first["id"]);
    assert_eq!(send(&[b"".as_slice()]).await.0, 400);
    assert_eq!(send(&[b"a".as_slice(), b"b"]).await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_read_later_says_that_its_run_has_failed() {
    let blocked = support::clerk_named("blocked")
        .output_guardrail(OutputGuardrail::new("no", |_, _| async { Ok(GuardrailVerdict::Tripwire) }));
    let server = TestServer::start_agents([blocked], |server| server).await;
    let client = server.client();
    let start = json!({ "model": "blocked", "input": "hello", "background": true });
    let (code, queued) = client.post("/v1/responses", &start).await;
    assert_eq!((code, &queued["status"]), (200, &json!("queued")));
    let id = queued["id"].as_str().unwrap();
    client.wait_for(id, "failed").await;
    let (_, response) = client.get(&format!("/v1/responses/{id}")).await;
    assert_eq!(response["status"], "failed");
    assert!(response["error"]["message"].is_string(), "{response}");
    assert!(!response.to_string().contains("Done after"), "{response}");
}
