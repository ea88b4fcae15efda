//! Limits that processes share by their store: on bodies that run at the same time, and on bodies that start.

#![cfg(feature = "sqlite")]
#![allow(clippy::expect_used)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use windlass::core::canonical::Digest;
use windlass::core::id::Timestamp;
use windlass::error::{ConfigError, RunError};
use windlass::prelude::*;
use windlass::store::{LeaseClaim, MemoryStore, ReceiptClaim, ReceiptKey, SqliteStore, Store};
use windlass::tool::SharedLimit;

/// The bodies that run, and the most that ran at the same time.
#[derive(Default)]
struct BodyCounts {
    running: AtomicU32,
    most: AtomicU32,
    starts: Mutex<Vec<Instant>>,
}

fn limited_tool(counts: &Arc<BodyCounts>, body: Duration, limit: SharedLimit) -> Tool {
    let counts = counts.clone();
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let tool = Tool::dynamic("call_bank", "Calls the bank.", schema, move |_: ToolContext, _: Value| {
        let counts = counts.clone();
        async move {
            counts.starts.lock().expect("free").push(Instant::now());
            let running = counts.running.fetch_add(1, Ordering::SeqCst) + 1;
            counts.most.fetch_max(running, Ordering::SeqCst);
            tokio::time::sleep(body).await;
            counts.running.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ToolError>("done")
        }
    });
    tool.shared_limit(limit)
}

/// An agent that calls its tool so many times at once.
fn agent_with(tool: Tool, calls: usize) -> Agent {
    let first = (1..calls).fold(ScriptedResponse::call("c0", "call_bank", json!({})), |response, number| {
        response.and_call(&format!("c{number}"), "call_bank", json!({}))
    });
    Agent::new("desk").model(ScriptedModel::new([first, ScriptedResponse::text("Done.")])).tool(tool)
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_the_places_of_a_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let counts: Arc<BodyCounts> = Arc::default();
    let runs = (0..3).map(|number| {
        // Each has connections of its own, as another process has.
        let store = Arc::new(SqliteStore::open(folder.path().join("store.db")).expect("opens"));
        let limit = SharedLimit::concurrency("bank", 2);
        let agent = agent_with(limited_tool(&counts, Duration::from_millis(20), limit), 4);
        tokio::spawn(agent.run("Go.").run_id(format!("run-{number}")).store(store).into_future())
    });
    for run in runs.collect::<Vec<_>>() {
        let outcome = run.await.expect("it lives").expect("it ends");
        assert_eq!(outcome.output_text().expect("finished"), "Done.");
    }
    assert_eq!(counts.starts.lock().expect("free").len(), 12);
    assert!(counts.most.load(Ordering::SeqCst) <= 2, "{:?} at once", counts.most);
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_process_that_died_is_free_after_its_lease() {
    let store = Arc::new(MemoryStore::default());
    let key = ReceiptKey { scope: "windlass:limit".to_owned(), digest: Digest::of_text("bank/0") };
    let lasting = Duration::from_secs(30);
    let claim = LeaseClaim { owner: "another process", now: Timestamp(0), duration: lasting };
    let claimed = store.claim_receipt(&key, claim, None).await.expect("claimed");
    assert_eq!(claimed, ReceiptClaim::Acquired { generation: 0 });
    let counts: Arc<BodyCounts> = Arc::default();
    let agent = agent_with(limited_tool(&counts, Duration::ZERO, SharedLimit::concurrency("bank", 1)), 1);
    let began = Instant::now();
    agent.run("Go.").store(store).await.expect("it ends");
    assert_eq!(counts.starts.lock().expect("free").len(), 1);
    assert!(began.elapsed() >= lasting, "the process may have been alive for {lasting:?}");
}

#[tokio::test(start_paused = true)]
async fn no_period_has_more_starts_than_a_rate_allows() {
    let (store, counts): (_, Arc<BodyCounts>) = (Arc::new(MemoryStore::default()), Arc::default());
    let period = Duration::from_secs(10);
    let runs = (0..4).map(|number| {
        let limit = SharedLimit::rate("bank", 3, period);
        let agent = agent_with(limited_tool(&counts, Duration::from_millis(1), limit), 3);
        tokio::spawn(agent.run("Go.").run_id(format!("run-{number}")).store(store.clone()).into_future())
    });
    for run in runs.collect::<Vec<_>>() {
        run.await.expect("it lives").expect("it ends");
    }
    let mut starts = counts.starts.lock().expect("free").clone();
    starts.sort_unstable();
    assert_eq!(starts.len(), 12);
    for window in starts.windows(4) {
        assert!(window[3] - window[0] >= period, "{:?}", window[3] - window[0]);
    }
}

#[tokio::test]
async fn a_run_without_a_store_has_no_shared_limits() {
    let counts: Arc<BodyCounts> = Arc::default();
    let agent = agent_with(limited_tool(&counts, Duration::ZERO, SharedLimit::concurrency("bank", 1)), 1);
    match agent.run("Go.").await {
        Err(RunError::Config(ConfigError::SharedLimitUnavailable { limit, .. })) => assert_eq!(limit, "bank"),
        other => panic!("{other:?}"),
    }
    assert_eq!(counts.starts.lock().expect("free").len(), 0);
}
