//! Two servers and the inspector on one PostgreSQL database.
#![allow(clippy::expect_used, clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../../windlass-postgres/tests/server/mod.rs"]
mod database;
mod support;

use std::sync::Arc;

use serde_json::{Value, json};
use support::{PATIENCE, TestServer};
use windlass::fleet::RunQueue;
use windlass_postgres::PostgresStore;
use windlass_server::{AgentServer, ServerLimits};

/// Lets the server drive no run itself.
fn without_worker(server: AgentServer) -> AgentServer {
    server.limits(ServerLimits { concurrent_runs: 0, ..ServerLimits::default() })
}

fn decision(item: &Value) -> Value {
    json!({ "call": item["call"], "attempt": item["attempt"], "displayed": item["sheet"]["digest"],
        "decision": { "type": "approve" } })
}

/// A run is started and decided at one server, driven by another, and watched and read at both.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_database_serve_the_same_runs() {
    let Some(database) = database::TestServer::start() else { return };
    let connect = async || {
        let store: Arc<dyn RunQueue> = Arc::new(PostgresStore::connect(&database.address()).await.unwrap());
        store
    };
    let driving = TestServer::start_on(connect().await, |server| server).await;
    let door = TestServer::start_on(connect().await, without_worker).await;
    let (one, other) = (driving.client(), door.client());

    // Started at the server that drives nothing, and watched there.
    other.start_until("r1", "pay Ropeworks", "paused").await;
    let mut events = other.events("/v1/runs/r1/events", None).await;
    let first = events.next().await.unwrap();
    assert_eq!(first.id.as_deref(), Some("0"));
    let inbox = other.get("/v1/inbox").await.1;
    assert_eq!((&inbox["total"], &inbox["calls"][0]["tool"]), (&json!(1), &json!("pay")), "{inbox}");
    let (code, body) = other.post("/v1/runs/r1/decisions", &decision(&inbox["calls"][0])).await;
    assert_eq!(code, 200, "{body}");
    other.wait_for("r1", "finished").await;
    let records = one.get("/v1/runs/r1/records?limit=500").await.1["records"].as_array().unwrap().len();
    let mut seen = vec![0];
    while let Some(event) = events.next().await {
        match event.event.as_deref() {
            Some("end") => break,
            _ => seen.extend(event.id.map(|id| id.parse::<usize>().unwrap())),
        }
    }
    assert_eq!(seen, (0..records).collect::<Vec<_>>(), "the stream has every record once");

    // A session, a run that is queued, and one that waits: lists, costs and pages are the same at both.
    let start = json!({ "run": "r2", "agent": "clerk", "input": "hello", "session": "s" });
    assert_eq!(one.post("/v1/runs", &start).await.0, 201);
    one.wait_for("r2", "finished").await;
    let start = json!({ "run": "later", "agent": "bank", "input": "hi", "start_at": 4_000_000_000_000_u64 });
    assert_eq!(one.post("/v1/runs", &start).await.0, 201);
    one.start_until("held", "pay Pilots", "paused").await;
    for client in [&one, &other] {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let (_, page) = client.get("/v1/runs").await;
            let seen =
                |run: &Value| format!("{} {}", run["run"].as_str().unwrap(), run["status"].as_str().unwrap());
            let runs: Vec<_> = page["runs"].as_array().unwrap().iter().map(seen).collect();
            // The list is told when the driver has left.
            if runs == ["later queued", "held paused", "r2 finished", "r1 finished"] {
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "{runs:?}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(client.get("/v1/sessions").await.1["sessions"], json!(["s"]));
        let (_, session) = client.get("/v1/sessions/s?from=1&limit=1").await;
        assert_eq!(
            (&session["total"], session["items"].as_array().unwrap().len()),
            (&json!(2), 1),
            "{session}"
        );
        let (_, costs) = client.get("/v1/costs").await;
        assert_eq!(costs["total"]["requests"], json!(4), "{costs}");
        for (path, text) in [
            ("/", "Pilots"),
            ("/runs", ">later</a>"),
            ("/runs/r1", "Ropeworks"),
            ("/runs/r1?at=3", "as it was at record 3"),
            ("/runs/later", "No worker has taken it"),
            ("/diff?first=r1&second=r2", "records are the same"),
            ("/costs", "clerk-1"),
            ("/fleet", "held"),
        ] {
            // The inbox looks for the writes of other processes once a second.
            let deadline = tokio::time::Instant::now() + PATIENCE;
            loop {
                let (code, page) = client.get_text(path).await;
                assert_eq!(code, 200, "{path}: {page}");
                if page.contains(text) {
                    break;
                }
                assert!(tokio::time::Instant::now() < deadline, "{path}: {page}");
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    }
    let (_, verified) = other.get("/v1/runs/r1/verify").await;
    assert_ne!(verified, Value::Null);

    // The server that drives is gone: the other one notices a decision that a third one posts.
    drop(driving.stop().await);
    let third = TestServer::start_on(connect().await, without_worker).await;
    let item = third.client().get("/v1/inbox").await.1["calls"][0].clone();
    assert_eq!(item["run"], "held");
    assert_eq!(other.get("/v1/inbox").await.1["calls"][0]["posted"], Value::Null);
    assert_eq!(third.client().post("/v1/runs/held/decisions", &decision(&item)).await.0, 200);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while other.get("/v1/inbox").await.1["calls"][0]["posted"]["decided_by"] != "tess" {
        assert!(tokio::time::Instant::now() < deadline, "the decision was never seen");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
