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

#[tokio::test(flavor = "multi_thread")]
async fn no_client_repeats_a_run_that_failed_or_one_under_way() {
    let server = TestServer::start_agents([support::clerk(), support::spender()], |server| server).await;
    let client = server.client();
    let send = async |path: &str, body: Value, retries: Option<&str>| {
        let mut post = client.request("POST", path).header("content-type", "application/json");
        if let Some(retries) = retries {
            post = post.header("x-stainless-retry-count", retries);
        }
        let response = client.send(post.body(body.to_string().into()).unwrap()).await;
        let is_refused = response.headers().get("x-should-retry").is_some_and(|value| value == "false");
        let (code, body) = support::read_json(response).await;
        (code, is_refused, body)
    };
    let chat = "/v1/chat/completions";
    let spent = || support::SPENT.load(Ordering::SeqCst);
    let (code, is_refused, body) = send(chat, request("spender", false), Some("0")).await;
    assert_eq!((code, is_refused, spent()), (422, true, 1), "{body}");
    let respond = json!({ "model": "spender", "input": "hello" });
    let (code, _, body) = send("/v1/responses", respond, Some("0")).await;
    assert_eq!((code, body["status"].as_str(), spent()), (200, Some("failed"), 2), "{body}");
    // A repetition joins the run, also when it has ended.
    let (code, is_refused, body) = send(chat, request("spender", false), Some("1")).await;
    assert_eq!((code, is_refused, spent()), (422, true, 2), "{body}");
    let (_, _, first) = send(chat, request("clerk", false), None).await;
    let (_, _, repeated) = send(chat, request("clerk", false), Some("2")).await;
    assert!(first["id"].is_string() && repeated["id"] == first["id"], "{first} {repeated}");
    let (_, _, other) = send(chat, request("clerk", false), Some("0")).await;
    assert_ne!(other["id"], first["id"]);
    // This server has not seen the request: the one before may have started the run.
    let unknown = json!({ "model": "clerk", "messages": [{ "role": "user", "content": "what?" }] });
    let (code, is_refused, body) = send(chat, unknown, Some("1")).await;
    assert_eq!((code, is_refused, body["error"]["code"].as_str()), (409, true, Some("unknown_repetition")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_no_worker_takes_has_an_end_and_a_reason_for_its_client() {
    // The build of this agent cannot drive any run.
    let server = TestServer::start_agents([Agent::new("mute"), support::clerk()], |server| server).await;
    let client = server.client();
    let (code, body) = client.post("/v1/chat/completions", &request("mute", false)).await;
    let message = body["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!((code, body["error"]["code"].as_str()), (422, Some("run_failed")), "{body}");
    assert!(message.contains("has declined it") && message.contains("model"), "{message}");
    let (code, response) =
        client.post("/v1/responses", &json!({ "model": "mute", "input": "hello", "background": true })).await;
    assert_eq!(code, 200, "{response}");
    let run = response["id"].as_str().unwrap();
    let deadline = tokio::time::Instant::now() + support::PATIENCE;
    loop {
        let (_, response) = client.get(&format!("/v1/responses/{run}")).await;
        if response["status"] == "failed" {
            assert!(response["error"]["message"].as_str().unwrap().contains("declined"), "{response}");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{response}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    // The API and the pages say why.
    let (_, detail) = client.get(&format!("/v1/runs/{run}")).await;
    assert_eq!(detail["queue"]["declined_by"].as_array().map(Vec::len), Some(1), "{detail}");
    for page in [format!("/runs/{run}"), "/fleet".to_owned()] {
        let (_, text) = client.get_text(&page).await;
        assert!(text.contains("declined"), "{page}: {text}");
    }
}

async fn ag_ui_events(client: &TestClient, agent: &str, body: &Value) -> Result<support::EventReader, u16> {
    let post = client
        .request("POST", &format!("/v1/ag-ui/{agent}"))
        .header("content-type", "application/json")
        .body(body.to_string().into())
        .unwrap();
    let response = client.send(post).await;
    let code = response.status().as_u16();
    if code == 200 { Ok(support::EventReader::new(response.into_body())) } else { Err(code) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_ag_ui_that_joins_a_run_gets_whole_messages() {
    let model = PacedModel::new(&PARTS);
    let agent = Agent::new("desk").model(model.clone());
    let server = TestServer::start_agents([agent], |server| server).await;
    let client = server.client();
    let input = json!({ "threadId": "t", "runId": "r",
        "messages": [{ "id": "m", "role": "user", "content": "hello" }] });
    let mut first = ag_ui_events(&client, "desk", &input).await.unwrap();
    model.allow(1);
    while first.next().await.unwrap().json()["type"] != "TEXT_MESSAGE_CONTENT" {}
    let mut joined = ag_ui_events(&client, "desk", &input).await.unwrap();
    assert_eq!(joined.next().await.unwrap().json()["type"], "RUN_STARTED");
    model.allow(PARTS.len());
    let (mut text, mut messages) = (String::new(), 0);
    while let Some(event) = joined.next().await {
        let event = event.json();
        match event["type"].as_str().unwrap() {
            "TEXT_MESSAGE_START" => messages += 1,
            "TEXT_MESSAGE_CONTENT" => text.push_str(event["delta"].as_str().unwrap()),
            _ => {}
        }
    }
    assert_eq!((text.as_str(), messages), (ANSWER, 1));
}

/// Returns the id of an interrupt whose displayed sheet is another one.
fn with_other_sheet(id: &str) -> String {
    let hex = id.strip_prefix("interrupt-").unwrap();
    let digits = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
    let mut target: Value = serde_json::from_slice(&digits.collect::<Vec<_>>()).unwrap();
    target["displayed"] = json!("0".repeat(64));
    let hex: String = target.to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("interrupt-{hex}")
}

#[tokio::test(flavor = "multi_thread")]
async fn several_answers_of_ag_ui_are_posted_together_and_can_be_repeated() {
    let script = ScriptedModel::new([
        ScriptedResponse::call("a", "open_door", json!({})).and_call("b", "open_door", json!({})),
        ScriptedResponse::text("Both are open."),
    ]);
    let open = Tool::dynamic(
        "open_door",
        "Opens a door.",
        json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false }),
        |_: ToolContext, _: Value| async { Ok::<_, ToolError>("open") },
    )
    .needs_approval();
    let agent = Agent::new("porter").model(SharedModel::new(script)).tool(open);
    let server = TestServer::start_agents([agent], |server| server).await;
    let client = server.client();
    let input = json!({ "threadId": "t", "runId": "r",
        "messages": [{ "id": "m", "role": "user", "content": "open both" }] });
    let mut events = ag_ui_events(&client, "porter", &input).await.unwrap();
    let mut interrupts = Vec::new();
    let mut run = String::new();
    while let Some(event) = events.next().await {
        let event = event.json();
        if event["type"] == "RUN_FINISHED" {
            let found = event["outcome"]["interrupts"].as_array().unwrap().iter();
            interrupts = found.map(|one| one["id"].as_str().unwrap().to_owned()).collect();
            run = event["metadata"]["windlass"]["run"].as_str().unwrap().to_owned();
        }
    }
    assert_eq!(interrupts.len(), 2);
    let answer =
        |id: &str| json!({ "interruptId": id, "status": "resolved", "payload": { "approved": true } });
    let resume = |answers: [Value; 2]| json!({ "threadId": "t", "runId": "s", "resume": answers });
    // The second is refused, and the first has no effect.
    let stale = resume([answer(&interrupts[0]), answer(&with_other_sheet(&interrupts[1]))]);
    assert_eq!(ag_ui_events(&client, "porter", &stale).await.err(), Some(409));
    let (_, detail) = client.get(&format!("/v1/runs/{run}")).await;
    let pending = detail["pending"].as_array().unwrap();
    assert!(pending.len() == 2 && pending.iter().all(|call| call["posted"].is_null()), "{detail}");
    let whole = resume([answer(&interrupts[0]), answer(&interrupts[1])]);
    for _ in 0..2 {
        // The client repeats the answers, because the connection was lost, for example.
        let mut events = ag_ui_events(&client, "porter", &whole).await.unwrap();
        let mut last = Value::Null;
        let mut results = 0;
        while let Some(event) = events.next().await {
            last = event.json();
            results += usize::from(last["type"] == "TOOL_CALL_RESULT");
        }
        assert_eq!(
            (last["type"].as_str(), &last["outcome"]["type"]),
            (Some("RUN_FINISHED"), &json!("success"))
        );
        assert_eq!(results, 2);
    }
}
