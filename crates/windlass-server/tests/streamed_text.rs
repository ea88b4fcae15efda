//! The text that clients of OpenAI receive: all of it, and nothing that the journal redacts or a guardrail blocks.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "the tests of stores use the rest")]
#[path = "../../windlass/tests/followed_text/mod.rs"]
mod followed_text;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use followed_text::{ANSWER, PARTS, PacedModel};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use support::{TestClient, TestServer};
use tokio::sync::Notify;
use windlass::agent::Agent;
use windlass::core::item::Item;
use windlass::fleet::{AgentRegistry, Worker};
use windlass::guardrail::{GuardrailVerdict, OutputGuardrail};
use windlass::model::{
    DeltaSink, FinishReason, Model, ModelError, ModelRequest, ModelResponse, ScriptedModel, ScriptedResponse,
    SharedModel,
};
use windlass::store::SqliteStore;
use windlass::tool::{Tool, ToolContext, ToolError};
use windlass_server::ServerLimits;

fn request(agent: &str, is_streamed: bool) -> Value {
    json!({ "model": agent, "messages": [{ "role": "user", "content": "hello" }], "stream": is_streamed })
}

/// Returns everything that a client receives.
async fn read_stream(client: &TestClient, agent: &str) -> String {
    let post = client.request("POST", "/v1/chat/completions").header("content-type", "application/json");
    let response = client.send(post.body(request(agent, true).to_string().into()).unwrap()).await;
    let body = response.into_body().collect().await.unwrap().to_bytes();
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

/// Returns the text in the chunks of a stream.
fn text_of_chunks(stream: &str) -> String {
    let chunks =
        stream.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    chunks.filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_another_worker_comes_as_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Arc::new(SqliteStore::open(folder.path().join("store.db")).unwrap());
    let model = PacedModel::new(&PARTS);
    let agent = Agent::new("desk").model(model.clone());
    // The server drives no run itself.
    let limits = ServerLimits { concurrent_runs: 0, ..ServerLimits::default() };
    let server = TestServer::start_agents_on([agent.clone()], open(), |server| server.limits(limits)).await;
    let worker = Worker::new(open(), AgentRegistry::from(agent));
    let stop = worker.stop_handle();
    let work = tokio::spawn(worker.run());
    let client = server.client();
    let post = client.request("POST", "/v1/chat/completions").header("content-type", "application/json");
    let response = client.send(post.body(request("desk", true).to_string().into()).unwrap()).await;
    let (mut body, mut seen) = (response.into_body(), String::new());
    let mut expected = String::new();
    for part in PARTS {
        model.allow(1);
        expected.push_str(part);
        // The last part may come with the record.
        while text_of_chunks(&seen) != expected {
            let frame = body.frame().await.expect("the text comes before the end").unwrap();
            seen.push_str(&String::from_utf8_lossy(frame.data_ref().map_or(&[], |data| data)));
        }
    }
    while let Some(frame) = body.frame().await {
        seen.push_str(&String::from_utf8_lossy(frame.unwrap().data_ref().map_or(&[], |data| data)));
    }
    assert_eq!(text_of_chunks(&seen), ANSWER);
    assert!(seen.contains("[DONE]"), "{seen}");
    stop.drain();
    work.await.unwrap().unwrap();
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
async fn a_message_that_a_guardrail_still_checks_is_in_no_response() {
    let (passed, is_checked) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let (pass, checked) = (passed.clone(), is_checked.clone());
    let guardrail = OutputGuardrail::new("slow", move |_, _| {
        let (pass, checked) = (pass.clone(), checked.clone());
        async move {
            checked.store(true, Ordering::SeqCst);
            pass.notified().await;
            Ok(GuardrailVerdict::Pass)
        }
    });
    let clerk = support::clerk_named("slow").output_guardrail(guardrail);
    let server = TestServer::start_agents([clerk], |server| server).await;
    let client = server.client();
    let start = json!({ "model": "slow", "input": "hello", "background": true });
    let (_, queued) = client.post("/v1/responses", &start).await;
    let id = queued["id"].as_str().unwrap();
    while !is_checked.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    let (_, response) = client.get(&format!("/v1/responses/{id}")).await;
    assert_eq!((&response["status"], &response["output"]), (&json!("in_progress"), &json!([])));
    passed.notify_one();
    client.wait_for(id, "finished").await;
    let (_, response) = client.get(&format!("/v1/responses/{id}")).await;
    assert_eq!(response["output"][0]["content"][0]["text"], "Done after 0 outputs.");
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[expect(dead_code, reason = "only the schema is used")]
struct Order {
    dish: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_has_the_messages_of_the_model_only() {
    let right = r#"{"dish":"soup"}"#;
    let script = ScriptedModel::new([ScriptedResponse::text("soup"), ScriptedResponse::text(right)]);
    let counter = Agent::new("counter").model(SharedModel::new(script)).output_type::<Order>();
    let server = TestServer::start_agents([counter], |server| server).await;
    let client = server.client();
    let (code, answered) =
        client.post("/v1/responses", &json!({ "model": "counter", "input": "hello" })).await;
    assert_eq!(code, 200, "{answered}");
    let (_, response) = client.get(&format!("/v1/responses/{}", answered["id"].as_str().unwrap())).await;
    let texts: Vec<&Value> =
        response["output"].as_array().unwrap().iter().map(|item| &item["content"][0]["text"]).collect();
    assert_eq!(texts, [&json!("soup"), &json!(right)], "{response}");
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

/// A model whose text is cut off.
struct ShortModel;

impl Model for ShortModel {
    async fn respond<'a>(
        &'a self,
        _: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let mut response = ModelResponse::default();
        response.items.push(Arc::new(Item::assistant("Once upon a")));
        response.details.finish_reason = Some(FinishReason::LengthLimit);
        Ok(response)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_cut_off_says_so() {
    let server = TestServer::start_agents([Agent::new("writer").model(ShortModel)], |server| server).await;
    let client = server.client();
    let streamed = read_stream(&client, "writer").await;
    assert!(
        streamed.contains("\"finish_reason\":\"length\"") && !streamed.contains("\"stop\""),
        "{streamed}"
    );
    let plain = client.post("/v1/chat/completions", &request("writer", false)).await.1;
    assert_eq!(plain["choices"][0]["finish_reason"], "length", "{plain}");
    let whole = client.post("/v1/responses", &json!({ "model": "writer", "input": "hello" })).await.1;
    assert_eq!(
        (&whole["status"], &whole["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let again = client.get(&format!("/v1/responses/{}", whole["id"].as_str().unwrap())).await.1;
    assert_eq!(again["status"], "incomplete", "{again}");
}
