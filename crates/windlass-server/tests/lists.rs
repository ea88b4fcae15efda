//! Lists of runs, the watch over the inbox, and costs: what they have, and what they read.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use support::counting_queue::CountingQueue;
use support::{PATIENCE, TestClient, TestServer, clerk, clerk_named};
use tokio::sync::Semaphore;
use windlass::agent::Agent;
use windlass::core::id::{RunId, Timestamp};
use windlass::core::item::Item;
use windlass::core::journal::{
    HashChain, JournalEntry, JournalRecord, ModelResponded, RunStarted, authenticate_records,
};
use windlass::core::usage::Usage;
use windlass::fleet::RunQueue;
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse, SharedModel};
use windlass::price::PriceList;
use windlass::store::{LeaseClaim, SqliteStore};
use windlass::tool::{Tool, ToolContext, ToolError};
use windlass_server::{AgentServer, ServerLimits};

const DAY_MS: u64 = 86_400_000;

/// Lets the server drive no run itself.
fn without_worker(server: AgentServer) -> AgentServer {
    server.limits(ServerLimits { concurrent_runs: 0, ..ServerLimits::default() })
}

fn open(path: &std::path::Path) -> Arc<dyn RunQueue> {
    Arc::new(SqliteStore::open(path).unwrap())
}

fn decision(item: &Value) -> Value {
    json!({ "call": item["call"], "attempt": item["attempt"], "displayed": item["sheet"]["digest"],
        "decision": { "type": "approve" } })
}

async fn listed(client: &TestClient, query: &str) -> Vec<Value> {
    let (code, page) = client.get(&format!("/v1/runs?{query}")).await;
    assert_eq!(code, 200, "{page}");
    page["runs"].as_array().unwrap().iter().map(|run| run["run"].clone()).collect()
}

/// An inbox that is polled, and metrics that are scraped, read a run that waits once.
#[tokio::test(flavor = "multi_thread")]
async fn a_polled_inbox_reads_nothing_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let first = TestServer::start_on(open(&path), |server| server).await;
    for number in 0..5 {
        first.client().start_until(&format!("r{number}"), "pay Ropeworks", "paused").await;
    }
    drop(first.stop().await);
    let queue = CountingQueue::new(open(&path));
    let server = TestServer::start_on(queue.clone(), without_worker).await;
    let client = server.client();
    assert_eq!(client.get("/v1/inbox").await.1["total"], 5);
    assert!(queue.take_counts().1 > 0, "the runs were read once");
    // The watch looks once a second.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(client.get("/v1/inbox").await.1["total"], 5);
    assert_eq!(client.get("/metrics").await.0, 200);
    assert_eq!(queue.take_counts().1, 0, "runs that have not changed were read again");
}

/// Two servers on one store, and no worker that could take the decision.
#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_shows_the_decision_of_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let first = TestServer::start_on(open(&path), |server| server).await;
    first.client().start_until("r1", "pay Ropeworks", "paused").await;
    drop(first.stop().await);
    let (one, other) = (
        TestServer::start_on(open(&path), without_worker).await,
        TestServer::start_on(open(&path), without_worker).await,
    );
    let (watching, deciding) = (one.client(), other.client());
    let mut stream = watching.events("/v1/inbox/events", None).await;
    stream.next().await.unwrap();
    let item = watching.get("/v1/inbox").await.1["calls"][0].clone();
    assert_eq!(item["posted"], Value::Null);
    assert_eq!(deciding.post("/v1/runs/r1/decisions", &decision(&item)).await.0, 200);
    let deadline = tokio::time::Instant::now() + PATIENCE / 6;
    loop {
        let item = watching.get("/v1/inbox").await.1["calls"][0].clone();
        if item["posted"]["decided_by"] == "tess" {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the decision was never seen: {item}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A model that makes one call, and then says that it is done.
struct OneCallModel;

impl Model for OneCallModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let is_done = request.input.iter().any(|item| matches!(&**item, Item::Output(_)));
        let item = if is_done { Item::assistant("Done.") } else { Item::call("c1", "build", "{}") };
        Ok(ModelResponse { items: vec![Arc::new(item)], ..ModelResponse::default() })
    }
}

/// A run that goes on after an approval is listed as running while it works, and not as waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_run_is_listed_as_running() {
    let (working, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let gates = (working.clone(), may_end.clone());
    let build = Tool::dynamic("build", "Builds for hours.", schema, move |_: ToolContext, _: Value| {
        let (working, may_end) = gates.clone();
        async move {
            working.add_permits(1);
            may_end.acquire().await.unwrap().forget();
            Ok::<_, ToolError>("built")
        }
    })
    .needs_approval();
    let agent = Agent::new("builder").model(SharedModel::new(OneCallModel)).tool(build);
    let server = TestServer::start_agents([agent], |server| server).await;
    let client = server.client();
    client.post("/v1/runs", &json!({ "run": "r1", "agent": "builder", "input": "go" })).await;
    let paused = client.wait_for("r1", "paused").await;
    // The list is told when the driver has left.
    while listed(&client, "status=paused").await != [json!("r1")] {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (code, body) = client.post("/v1/runs/r1/decisions", &decision(&paused["pending"][0])).await;
    assert_eq!(code, 200, "{body}");
    working.acquire().await.unwrap().forget();
    assert_eq!(listed(&client, "status=running").await, [json!("r1")]);
    assert!(listed(&client, "status=paused").await.is_empty());
    may_end.add_permits(1);
    client.wait_for("r1", "finished").await;
}

/// Runs that no worker has started are in the list, before the others.
#[tokio::test(flavor = "multi_thread")]
async fn queued_runs_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let first = TestServer::start_on(open(&path), |server| server).await;
    first.client().start_until("done", "hello", "finished").await;
    first.client().start_until("held", "pay Ropeworks", "paused").await;
    drop(first.stop().await);
    let server = TestServer::start_on(open(&path), without_worker).await;
    let client = server.client();
    for (run, agent) in [("q1", "clerk"), ("q2", "bank"), ("q3", "clerk")] {
        let start = json!({ "run": run, "agent": agent, "input": "hi", "start_at": 4_000_000_000_000_u64 });
        assert_eq!(client.post("/v1/runs", &start).await.0, 201);
    }
    let (_, page) = client.get("/v1/runs").await;
    let seen = |run: &Value| (run["run"].clone(), run["status"].clone());
    let runs: Vec<_> = page["runs"].as_array().unwrap().iter().map(seen).collect();
    let expected =
        [("q1", "queued"), ("q2", "queued"), ("q3", "queued"), ("held", "paused"), ("done", "finished")];
    assert_eq!(runs, expected.map(|(run, status)| (json!(run), json!(status))));
    let queued = &page["runs"][0];
    assert_eq!((&queued["start_at"], &queued["created_at"]), (&json!(4_000_000_000_000_u64), &Value::Null));
    assert_eq!(listed(&client, "status=queued").await, ["q1", "q2", "q3"].map(|run| json!(run)));
    assert_eq!(
        listed(&client, "status=queued,paused&agent=clerk").await,
        ["q1", "q3", "held"].map(|run| json!(run))
    );
    assert_eq!(listed(&client, "status=finished").await, [json!("done")]);
    assert_eq!(listed(&client, "search=q2").await, [json!("q2")]);
    assert_eq!(listed(&client, "search=lerk").await, ["q1", "q3", "held", "done"].map(|run| json!(run)));
    // The pages together have every run once, whatever their size.
    for limit in 1..=6 {
        let (mut after, mut all) = (String::new(), Vec::new());
        loop {
            let (_, page) = client.get(&format!("/v1/runs?limit={limit}&after={after}")).await;
            all.extend(page["runs"].as_array().unwrap().iter().map(|run| run["run"].clone()));
            match page["next"].as_str() {
                Some(next) => after = next.to_owned(),
                None => break,
            }
        }
        assert_eq!(all, expected.map(|(run, _)| json!(run)), "pages of {limit}");
    }
    let (_, page) = client.get_text("/runs?status=queued").await;
    assert!(page.contains(">q2</a>") && page.contains("queued"), "{page}");
}

/// The next page of a list has the filters of this one.
#[tokio::test(flavor = "multi_thread")]
async fn the_pager_keeps_every_filter() {
    let server = TestServer::start().await;
    let client = server.client();
    for (run, session) in [("r1", "s"), ("r2", "other"), ("r3", "s")] {
        let start = json!({ "run": run, "agent": "clerk", "input": "hello", "session": session });
        assert_eq!(client.post("/v1/runs", &start).await.0, 201);
        client.wait_for(run, "finished").await;
    }
    let query =
        "status=finished&agent=clerk&session=s&search=r&updated_from=1&updated_before=9000000000000&limit=1";
    let (_, page) = client.get_text(&format!("/runs?{query}")).await;
    assert!(page.contains(">r3</a>") && !page.contains(">r1</a>"), "{page}");
    let start = page.find("rel=\"next\" href=\"").unwrap() + "rel=\"next\" href=\"".len();
    let next = page[start..].split('"').next().unwrap().replace("&amp;", "&");
    for field in query.split('&') {
        assert!(next.split(['?', '&']).any(|one| one == field), "{field}: {next}");
    }
    let (_, page) = client.get_text(&next).await;
    assert!(page.contains(">r1</a>") && !page.contains(">r2</a>"), "{page}");
}

fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64
}

/// Stores a run that is driven since `created`, with one request at `asked`.
async fn store_driven_run(store: &dyn RunQueue, run: &str, created: u64, asked: u64) {
    let run = RunId::from(run);
    let responded = json!({ "agent": "clerk", "items": [Item::assistant("Hm.")], "usage": Usage::of_tokens(10, 5),
        "model": "clerk-1" });
    let responded: ModelResponded = serde_json::from_value(responded).unwrap();
    let entries = [
        (created, JournalEntry::RunStarted(RunStarted::new(run.clone(), "clerk".into()).into())),
        (asked, JournalEntry::ModelResponded(responded.into())),
    ];
    let record = |(seq, (at, entry))| JournalRecord { seq, at: Timestamp(at), path: Vec::new(), entry };
    let mut records: Vec<_> = (0..).zip(entries).map(record).collect();
    let lines = authenticate_records(HashChain::default(), &run, &mut records, None);
    let claim = LeaseClaim { owner: "other", now: Timestamp(created), duration: Duration::from_secs(60) };
    store.create_run(&run, &"clerk".into(), claim, lines).await.unwrap();
}

/// A run that has been driven since yesterday has requests of today.
#[tokio::test(flavor = "multi_thread")]
async fn costs_have_the_requests_of_runs_that_are_still_driven() {
    let server = TestServer::start_with(without_worker).await;
    store_driven_run(&*server.queue, "old", now() - DAY_MS, now()).await;
    store_driven_run(&*server.queue, "older", now() - 3 * DAY_MS, now() - 2 * DAY_MS).await;
    store_driven_run(&*server.queue, "new", now(), now()).await;
    let (_, costs) = server.client().get("/v1/costs?days=1").await;
    assert_eq!((&costs["total"]["requests"], &costs["unread_runs"]), (&json!(2), &json!(0)), "{costs}");
    assert_eq!(costs["runs"].as_object().unwrap().keys().collect::<Vec<_>>(), ["new", "old"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn costs_name_the_costliest_runs_and_count_the_others() {
    let server = TestServer::start_with(without_worker).await;
    for number in 0..5 {
        store_driven_run(&*server.queue, &format!("r{number}"), now(), now()).await;
    }
    let client = server.client();
    let (_, costs) = client.get("/v1/costs?limit=2").await;
    let named = costs["runs"].as_object().unwrap().len();
    assert_eq!(
        (named, &costs["more_runs"], &costs["total"]["requests"]),
        (2, &json!(3), &json!(5)),
        "{costs}"
    );
    assert_eq!(client.get("/v1/costs?limit=501").await.0, 400);
}

/// Prices in another currency are not shown as dollars.
#[tokio::test(flavor = "multi_thread")]
async fn pages_show_costs_in_the_currency_of_the_prices() {
    let prices = PriceList::parse(
        r#"{ "as_of": "2026-10-01", "source": "the contract", "currency": "EUR",
             "models": [{ "model": "clerk-1", "input": 1000.0, "output": 2000.0 }] }"#,
    );
    let prices = prices.unwrap();
    let server = TestServer::start_with(|server| server.prices(prices)).await;
    let client = server.client();
    client.start_until("r1", "hello", "finished").await;
    for path in ["/costs", "/runs", "/runs/r1"] {
        let (_, page) = client.get_text(path).await;
        assert!(page.contains("€0.8740") && !page.contains('$'), "{path}: {page}");
    }
}

/// A client that offers tools, or demands calls, would wait for calls in vain.
#[tokio::test(flavor = "multi_thread")]
async fn tools_of_a_client_are_refused() {
    let server = TestServer::start_agents([clerk(), clerk_named("bank")], |server| server).await;
    let client = server.client();
    let tool = json!([{ "type": "function", "function": { "name": "now", "parameters": {} } }]);
    let bodies = [
        (
            "/v1/chat/completions",
            json!({ "model": "clerk", "messages": [{ "role": "user", "content": "hello" }] }),
        ),
        ("/v1/responses", json!({ "model": "clerk", "input": "hello" })),
    ];
    for (path, body) in bodies {
        let with = |field: &str, value: Value| {
            let mut body = body.clone();
            body[field] = value;
            body
        };
        for refused in [
            with("tools", tool.clone()),
            with("functions", tool.clone()),
            with("tool_choice", json!("required")),
        ] {
            let (code, answer) = client.post(path, &refused).await;
            assert_eq!((code, &answer["error"]["code"]), (400, &json!("tools_not_supported")), "{answer}");
        }
        for accepted in
            [with("tools", json!([])), with("tool_choice", json!("none")), with("tools", Value::Null)]
        {
            let (code, answer) = client.post(path, &accepted).await;
            assert_eq!(code, 200, "{answer}");
        }
    }
    assert_eq!(listed(&client, "").await.len(), 6, "a refused request starts no run");
}
