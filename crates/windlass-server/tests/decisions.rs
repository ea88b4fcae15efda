//! Decisions over HTTP beyond plain approvals: calls in doubt, corrections, forked questions, and calls with secrets.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use support::{PATIENCE, TestClient, TestServer, clerk};
use windlass::agent::Agent;
use windlass::core::item::Item;
use windlass::fleet::{AgentRegistry, RunQueue, Worker};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse, SharedModel};
use windlass::store::{EncryptedStore, EncryptionKeys, SqliteStore};
use windlass::tool::{Tool, ToolContext, ToolError};
use windlass_server::{AgentServer, ServerLimits};

fn decision(item: &Value, decision: Value) -> Value {
    json!({ "call": item["call"], "attempt": item["attempt"], "displayed": item["sheet"]["digest"], "decision": decision })
}

/// Lets the server drive no run itself.
fn without_worker(server: AgentServer) -> AgentServer {
    server.limits(ServerLimits { concurrent_runs: 0, ..ServerLimits::default() })
}

/// A model that calls one tool, and then says that it is done.
struct OneCallModel {
    tool: &'static str,
    arguments: Value,
    answer: &'static str,
}

impl Model for OneCallModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let is_done = request.input.iter().any(|item| matches!(&**item, Item::Output(_)));
        let item = if is_done {
            Item::assistant(self.answer)
        } else {
            Item::call("c1", self.tool, self.arguments.to_string())
        };
        Ok(ModelResponse { items: vec![Arc::new(item)], ..ModelResponse::default() })
    }
}

/// The number of executions by run.
type Executions = Arc<Mutex<BTreeMap<String, u32>>>;

/// An agent whose transfers never return at the first execution.
fn banker(executions: &Executions) -> Agent {
    let executions = executions.clone();
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let wire = Tool::dynamic("wire", "Transfers money.", schema, move |ctx: ToolContext, _: Value| {
        let executions = executions.clone();
        async move {
            let count = {
                let mut executions = executions.lock().unwrap();
                let count = executions.entry(ctx.run_context().run_id().to_string()).or_default();
                *count += 1;
                *count
            };
            if count == 1 {
                std::future::pending::<()>().await;
            }
            Ok::<_, ToolError>("wired by the bank")
        }
    });
    let model = OneCallModel { tool: "wire", arguments: json!({}), answer: "Done." };
    Agent::new("banker").model(SharedModel::new(model)).tool(wire)
}

async fn start_run(client: &TestClient, run: &str, agent: &str, input: &str) {
    let (code, body) = client.post("/v1/runs", &json!({ "run": run, "agent": agent, "input": input })).await;
    assert_eq!(code, 201, "{body}");
}

async fn model_input(client: &TestClient, run: &str) -> String {
    client.get(&format!("/v1/runs/{run}/state")).await.1["model_input"].to_string()
}

/// Waits until a condition holds.
async fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The three answers for a call whose worker disappeared while its body ran.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_doubt_is_settled_from_the_inbox() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let executions = Executions::default();
    let open = || -> Arc<dyn RunQueue> { Arc::new(SqliteStore::open(&path).unwrap()) };
    let server = TestServer::start_agents_on([banker(&executions)], open(), without_worker).await;
    let client = server.client();
    let runs = ["executed", "not-executed", "unknown"];
    for run in runs {
        start_run(&client, run, "banker", "wire it").await;
    }
    // The worker is gone with its runtime: its tasks end at their next await, and nothing is written for them.
    let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let work = |store| {
        Worker::new(store, AgentRegistry::from(banker(&executions)))
            .lease_duration(Duration::from_millis(500))
    };
    let lost = work(open());
    other.spawn(lost.run());
    wait_until("every body starts", || executions.lock().unwrap().len() == runs.len()).await;
    other.shutdown_background();
    let worker = work(open());
    let stop = worker.stop_handle();
    let work = tokio::spawn(worker.run());
    let answers = [
        json!({ "type": "confirm_executed", "output": "wired, says the statement" }),
        json!({ "type": "confirm_not_executed" }),
        json!({ "type": "outcome_unknown" }),
    ];
    for (run, answer) in runs.into_iter().zip(answers) {
        let paused = client.wait_for(run, "paused").await;
        let item = &paused["pending"][0];
        assert_eq!(item["reason"], "in_doubt", "{paused}");
        assert!(item["last_driver_seen"].is_number(), "{item}");
        // It is no question, and an approval would leave open whether the call was executed.
        for wrong in [json!({ "type": "answer", "value": 1 }), json!({ "type": "approve" })] {
            let (code, body) =
                client.post(&format!("/v1/runs/{run}/decisions"), &decision(item, wrong.clone())).await;
            assert!((400..500).contains(&code), "{wrong}: {code} {body}");
        }
        let (code, body) = client.post(&format!("/v1/runs/{run}/decisions"), &decision(item, answer)).await;
        assert_eq!(code, 200, "{body}");
        client.wait_for(run, "finished").await;
    }
    let executed = |run: &str| executions.lock().unwrap()[run];
    assert_eq!((executed("executed"), executed("not-executed"), executed("unknown")), (1, 2, 1));
    assert!(model_input(&client, "executed").await.contains("wired, says the statement"));
    assert!(model_input(&client, "not-executed").await.contains("wired by the bank"));
    let told = model_input(&client, "unknown").await;
    assert!(told.contains("It is not known whether") && !told.contains("wired"), "{told}");
    stop.drain();
    work.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_is_corrected_until_a_worker_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    let open =
        || -> Arc<dyn RunQueue> { Arc::new(SqliteStore::open(folder.path().join("store.db")).unwrap()) };
    let server = TestServer::start_agents_on([clerk()], open(), without_worker).await;
    let client = server.client();
    let worker = || {
        let worker = Worker::new(open(), AgentRegistry::from(clerk()));
        let stop = worker.stop_handle();
        (tokio::spawn(worker.run()), stop)
    };
    let (work, stop) = worker();
    let paused = client.start_until("r1", "pay Ropeworks", "paused").await;
    let item = &paused["pending"][0];
    stop.drain();
    work.await.unwrap().unwrap();
    let before = support::PAYMENTS.load(std::sync::atomic::Ordering::SeqCst);
    let approve = decision(item, json!({ "type": "approve" }));
    assert_eq!(client.post("/v1/runs/r1/decisions", &approve).await.0, 200);
    let reject = decision(item, json!({ "type": "reject", "message": "wrong payee" }));
    let (code, body) = client.post("/v1/runs/r1/decisions", &reject).await;
    assert_eq!(code, 200, "{body}");
    let (work, stop) = worker();
    client.wait_for("r1", "finished").await;
    assert_eq!(support::PAYMENTS.load(std::sync::atomic::Ordering::SeqCst), before);
    let told = model_input(&client, "r1").await;
    assert!(told.contains("wrong payee") && !told.contains("paid"), "{told}");
    let (code, body) = client.post("/v1/runs/r1/decisions", &approve).await;
    assert_eq!((code, &body["error"]["code"]), (409, &json!("already_taken")), "{body}");
    stop.drain();
    work.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_at_a_question_gets_another_answer() {
    let server = TestServer::start().await;
    let client = server.client();
    let answer = async |run: &str, colour: &str| {
        let paused = client.wait_for(run, "paused").await;
        let answer = decision(&paused["pending"][0], json!({ "type": "answer", "value": colour }));
        let (code, body) = client.post(&format!("/v1/runs/{run}/decisions"), &answer).await;
        assert_eq!(code, 200, "{body}");
        client.wait_for(run, "finished").await;
    };
    start_run(&client, "green", "clerk", "ask me").await;
    answer("green", "green").await;
    let (_, records) = client.get("/v1/runs/green/records?limit=500").await;
    let records = records["records"].as_array().unwrap();
    let asked = records.iter().find(|record| record.get("call_held").is_some()).unwrap();
    let fork = json!({ "run": "blue", "at": asked["seq"], "start": true });
    let (code, body) = client.post("/v1/runs/green/fork", &fork).await;
    assert_eq!(code, 201, "{body}");
    answer("blue", "blue").await;
    let (first, second) = (model_input(&client, "green").await, model_input(&client, "blue").await);
    assert!(first.contains("the colour is") && first.contains("green"), "{first}");
    assert!(second.contains("blue") && !second.contains("green"), "{second}");
    let (_, diff) = client.get("/v1/runs/blue/diff?with=green").await;
    assert_eq!(
        (&diff["is_same"], &diff["common_records"]),
        (&json!(false), &json!(asked["seq"].as_u64().unwrap() + 1))
    );
}

/// A secret argument is on no page and in no answer, before and after the call runs. The body receives it.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_argument_is_in_no_answer_and_on_no_page() {
    const SECRET: &str = "tulip-4711";
    let received = Arc::new(Mutex::new(Vec::new()));
    let seen = received.clone();
    let schema = json!({ "type": "object", "properties": { "door": { "type": "string" }, "code": { "type": "string" } },
        "required": ["door", "code"], "additionalProperties": false });
    let open =
        Tool::dynamic("open_door", "Opens a door.", schema, move |_: ToolContext, arguments: Value| {
            seen.lock().unwrap().push(arguments["code"].clone());
            async { Ok::<_, ToolError>("open, with tulip-4711") }
        })
        .secret_arguments(["code"])
        .needs_approval();
    let arguments = json!({ "door": "north", "code": SECRET });
    let model = OneCallModel { tool: "open_door", arguments, answer: "I used tulip-4711." };
    let porter = Agent::new("porter").model(SharedModel::new(model)).tool(open);
    let folder = tempfile::tempdir().unwrap();
    let file = SqliteStore::open(folder.path().join("store.db")).unwrap();
    let keys = EncryptionKeys::from_text(&EncryptionKeys::text_of_secrets(&[[7; 32]])).unwrap();
    // Only an encrypted store carries the answer with the secret to the worker.
    let store = Arc::new(EncryptedStore::new(Arc::new(file), keys));
    let server = TestServer::start_agents_on([porter], store, |server| server).await;
    let client = server.client();
    start_run(&client, "r1", "porter", "open it").await;
    let paused = client.wait_for("r1", "paused").await;
    let check = async || {
        let places = [
            "/v1/runs",
            "/v1/runs/r1",
            "/v1/runs/r1/records?limit=500",
            "/v1/runs/r1/state",
            "/v1/runs/r1/export",
            "/v1/runs/r1/verify",
            "/v1/inbox",
            "/v1/fleet",
            "/",
            "/runs",
            "/runs/r1",
            "/runs/r1?page=1",
            "/fleet",
            "/costs",
        ];
        let mut shown = 0;
        for place in places {
            let (code, text) = client.get_text(place).await;
            assert_eq!(code, 200, "{place}: {text}");
            assert!(!text.contains(SECRET), "{place}: {text}");
            shown += usize::from(text.contains("north"));
        }
        assert!(shown >= 4, "the other argument is shown");
    };
    check().await;
    let approve = decision(&paused["pending"][0], json!({ "type": "approve" }));
    assert_eq!(client.post("/v1/runs/r1/decisions", &approve).await.0, 200);
    // The run was parked, and its secrets are in no store: the worker that takes it up asks for them.
    let question = loop {
        let paused = client.wait_for("r1", "paused").await;
        if paused["pending"][0]["reason"] == "question" {
            break paused["pending"][0].clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    check().await;
    let value = json!({ "secret_arguments": { "code": SECRET } });
    let answer = decision(&question, json!({ "type": "answer", "value": value }));
    let (code, body) = client.post("/v1/runs/r1/decisions", &answer).await;
    assert_eq!(code, 200, "{body}");
    assert!(!body.to_string().contains(SECRET), "{body}");
    client.wait_for("r1", "finished").await;
    check().await;
    let mut events = client.events("/v1/runs/r1/events", None).await;
    while let Some(event) = events.next().await {
        assert!(!event.data.contains(SECRET), "{event:?}");
        if event.event.as_deref() == Some("end") {
            break;
        }
    }
    assert_eq!(*received.lock().unwrap(), [json!(SECRET)]);
}
