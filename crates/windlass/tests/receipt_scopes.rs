//! Who shares the result of an idempotent call, and for how long.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::Effect;
use windlass::model::{Reply, ScriptedModel};
use windlass::tool::{Receipts, Scope};
use windlass::{Agent, MemoryStore, Session, Store, Tool, ToolContext, ToolError};

fn agent(bodies: &Arc<AtomicU32>, receipts: Receipts) -> Agent {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let bodies = bodies.clone();
    let order = Tool::dynamic("order", "Orders.", schema, move |_: ToolContext, _: Value| {
        let bodies = bodies.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok::<_, ToolError>(format!("order {}", bodies.fetch_add(1, Ordering::SeqCst) + 1))
        }
    });
    let two = Reply::call("c1", "order", json!({})).and_call("c2", "order", json!({}));
    let model = ScriptedModel::new([two, Reply::text("done")]);
    Agent::new("shop").model(model).tools(order.effect(Effect::Idempotent).receipts(receipts))
}

/// How many bodies run in two runs with two identical calls each.
async fn bodies(
    scope: Scope,
    sessions: [&Session; 2],
    pause: Duration,
    expire_after: Option<Duration>,
) -> u32 {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let count = Arc::new(AtomicU32::new(0));
    for session in sessions {
        let receipts = Receipts { scope, expire_after };
        let run = agent(&count, receipts).run("go").store(store.clone()).session(session);
        assert_eq!(run.await.expect("the run ends").text(), "done");
        tokio::time::sleep(pause).await;
    }
    count.load(Ordering::SeqCst)
}

#[tokio::test]
async fn s32_receipts_have_the_scope_that_was_declared() {
    let (a, b) = (Session::in_memory("a"), Session::in_memory("b"));
    let none = Duration::ZERO;
    assert_eq!(bodies(Scope::Call, [&a, &a], none, None).await, 4);
    assert_eq!(bodies(Scope::Run, [&a, &a], none, None).await, 2);
    assert_eq!(bodies(Scope::Session, [&a, &a], none, None).await, 1);
    assert_eq!(bodies(Scope::Session, [&a, &b], none, None).await, 2);
    assert_eq!(bodies(Scope::Store, [&a, &b], none, None).await, 1);
}

#[tokio::test]
async fn s32_receipts_expire_when_they_were_to() {
    let session = Session::in_memory("a");
    let long = Some(Duration::from_secs(3600));
    assert_eq!(bodies(Scope::Store, [&session, &session], Duration::ZERO, long).await, 1);
    // Longer than the calls of one run are apart, also where the machine is busy.
    let short = Some(Duration::from_secs(1));
    assert_eq!(bodies(Scope::Store, [&session, &session], Duration::from_millis(1_200), short).await, 2);
}

#[tokio::test]
async fn s31_two_runs_at_once_share_one_body() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let count = Arc::new(AtomicU32::new(0));
    let receipts = Receipts { scope: Scope::Store, expire_after: None };
    let (one, other) = (agent(&count, receipts), agent(&count, receipts));
    let (one, other) =
        tokio::join!(async { one.run("go").store(store.clone()).await.expect("the run ends") }, async {
            other.run("go").store(store.clone()).await.expect("the run ends")
        },);
    assert_eq!((one.text(), other.text()), ("done", "done"));
    assert_eq!(count.load(Ordering::SeqCst), 1);
}
