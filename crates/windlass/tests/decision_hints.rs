//! A live driver is woken by a posted decision: it does not wait for its next look at the store.

#![allow(clippy::expect_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use windlass::core::decision::{Decision, DecisionScope};
use windlass::core::id::RunId;
use windlass::core::item::Item;
use windlass::prelude::*;
use windlass::store::{MemoryStore, Store, post_decision};

/// What happened in a run, with its time since the start.
type Moments = Arc<Mutex<Vec<(&'static str, Duration)>>>;

fn tool(name: &'static str, moments: &Moments, start: Instant, ends: Option<Arc<Notify>>) -> Tool {
    let moments = moments.clone();
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    Tool::dynamic(name, "Works.", schema, move |_: ToolContext, _| {
        moments.lock().expect("a lock").push((name, start.elapsed()));
        let ends = ends.clone();
        async move {
            if let Some(ends) = ends {
                ends.notified().await;
            }
            Ok::<_, ToolError>("done")
        }
    })
}

async fn approve(store: &dyn Store, call: &str) {
    post_decision(store, &RunId::from("run"), call, Decision::Approve, DecisionScope::ThisCall, "ann")
        .await
        .expect("it is posted");
}

/// The clock is paused: it moves only when everything waits, so the times are exact.
#[tokio::test(start_paused = true)]
async fn an_approved_call_starts_at_the_moment_of_the_post() {
    // Early, between the first looks, and long after them, when the driver looks once a second.
    for posted_after in [Duration::from_millis(7), Duration::from_millis(10_321)] {
        let (moments, start) = (Moments::default(), Instant::now());
        let paid = Arc::new(Notify::new());
        let store = Arc::new(MemoryStore::default());
        let slow = tool("slow", &moments, start, Some(paid.clone()));
        let pay = tool("pay", &moments, start, None).needs_approval();
        let model = ScriptedModel::new([
            ScriptedResponse::items([Item::call("c1", "slow", "{}"), Item::call("c2", "pay", "{}")]),
            ScriptedResponse::text("bye"),
        ]);
        let agent = Agent::new("teller").model(model).tools((slow, pay));
        let decider = async {
            tokio::time::sleep(posted_after).await;
            approve(&*store, "c2").await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            paid.notify_one();
        };
        let run = agent.run("go").run_id("run").store(store.clone());
        let (result, ()) = tokio::join!(async { run.await.expect("it ends") }, decider);
        assert!(!result.is_paused());
        let moments = moments.lock().expect("a lock").clone();
        assert_eq!(moments, [("slow", Duration::ZERO), ("pay", posted_after)]);
    }
}

/// A call inside a nested agent is approved while a call beside the agent runs.
#[tokio::test(start_paused = true)]
async fn the_driver_of_a_nested_agent_is_woken_too() {
    let posted_after = Duration::from_millis(3_333);
    let (moments, start) = (Moments::default(), Instant::now());
    let paid = Arc::new(Notify::new());
    let store = Arc::new(MemoryStore::default());
    let inner_slow = tool("inner_slow", &moments, start, Some(paid.clone()));
    let pay = tool("pay", &moments, start, None).needs_approval();
    let inner = ScriptedModel::new([
        ScriptedResponse::items([Item::call("i1", "inner_slow", "{}"), Item::call("i2", "pay", "{}")]),
        ScriptedResponse::text("inner bye"),
    ]);
    let clerk = Agent::new("clerk").model(inner).tools((inner_slow, pay));
    let outer = ScriptedModel::new([
        ScriptedResponse::call("c1", "clerk", json!({ "input": "pay it" })),
        ScriptedResponse::text("bye"),
    ]);
    let agent = Agent::new("desk").model(outer).tools(clerk.as_tool("clerk", "Pays."));
    let decider = async {
        tokio::time::sleep(posted_after).await;
        approve(&*store, "c1/i2").await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        paid.notify_one();
    };
    let run = agent.run("go").run_id("run").store(store.clone());
    let (result, ()) = tokio::join!(async { run.await.expect("it ends") }, decider);
    assert!(!result.is_paused());
    let moments = moments.lock().expect("a lock").clone();
    assert_eq!(moments, [("inner_slow", Duration::ZERO), ("pay", posted_after)]);
}

/// Stores that share nothing but their file, as those of two processes do.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_another_process_posts_in_the_file_is_noticed() {
    use windlass::store::SqliteStore;

    let folder = tempfile::tempdir().expect("a folder");
    let open = || SqliteStore::open(folder.path().join("runs.db")).expect("it opens");
    let (driver, decider) = (Arc::new(open()), open());
    let (moments, start) = (Moments::default(), Instant::now());
    let pay = tool("pay", &moments, start, None).needs_approval();
    let model = ScriptedModel::new([ScriptedResponse::call("c1", "pay", json!({}))]);
    let agent = Agent::new("teller").model(model).tools(pay);
    let paused = agent.run("go").run_id("run").store(driver.clone()).await.expect("it pauses");
    assert!(paused.is_paused());
    let run = RunId::from("run");
    // The first decision comes at once after the wait has begun; a hint for each correction must come, too.
    for decision in [Decision::Approve, Decision::Reject { message: None }, Decision::Approve] {
        let mut hint = driver.wait_for_decision(&run);
        let other = driver.wait_for_decision(&RunId::from("other"));
        let posting = async {
            post_decision(&decider, &run, "c1", decision, DecisionScope::ThisCall, "ann")
                .await
                .expect("it is posted");
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = &mut hint => {}
            () = other => panic!("the hint was about another run"),
            () = posting => {}
            () = tokio::time::sleep(Duration::from_secs(60)) => panic!("the hint does not come"),
        }
    }
}
