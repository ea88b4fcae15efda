//! Scope and expiry of the receipts of idempotent calls.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::tool::ToolEffect;
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::tool::{ReceiptPolicy, ReceiptScope};
use windlass::{
    agent::Agent,
    session::Session,
    store::{MemoryStore, Store},
    tool::{Tool, ToolContext, ToolError},
};

fn ordering_agent(bodies: &Arc<AtomicU32>, receipts: ReceiptPolicy) -> Agent {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let bodies = bodies.clone();
    let order = Tool::dynamic("order", "Orders.", schema, move |_: ToolContext, _: Value| {
        let bodies = bodies.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok::<_, ToolError>(format!("order {}", bodies.fetch_add(1, Ordering::SeqCst) + 1))
        }
    });
    let two = ScriptedResponse::call("c1", "order", json!({})).and_call("c2", "order", json!({}));
    let model = ScriptedModel::new([two, ScriptedResponse::text("done")]);
    Agent::new("shop").model(model).tools(order.effect(ToolEffect::Idempotent).receipt_policy(receipts))
}

/// Returns the number of bodies executed in two runs with two identical calls each.
async fn count_bodies(
    scope: ReceiptScope,
    sessions: [&Session; 2],
    pause: Duration,
    expire_after: Option<Duration>,
) -> u32 {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let count = Arc::new(AtomicU32::new(0));
    for session in sessions {
        let receipts = ReceiptPolicy { scope, expire_after };
        let run = ordering_agent(&count, receipts).run("go").store(store.clone()).session(session);
        assert_eq!(run.await.expect("the run ends").output_text().expect("the run finished"), "done");
        tokio::time::sleep(pause).await;
    }
    count.load(Ordering::SeqCst)
}

#[tokio::test]
async fn s32_receipts_have_the_scope_that_was_declared() {
    let (a, b) = (Session::in_memory("a"), Session::in_memory("b"));
    let none = Duration::ZERO;
    assert_eq!(count_bodies(ReceiptScope::Call, [&a, &a], none, None).await, 4);
    assert_eq!(count_bodies(ReceiptScope::Run, [&a, &a], none, None).await, 2);
    assert_eq!(count_bodies(ReceiptScope::Session, [&a, &a], none, None).await, 1);
    assert_eq!(count_bodies(ReceiptScope::Session, [&a, &b], none, None).await, 2);
    assert_eq!(count_bodies(ReceiptScope::Store, [&a, &b], none, None).await, 1);
}

#[tokio::test]
async fn s32_receipts_expire_when_they_were_to() {
    let session = Session::in_memory("a");
    let long = Some(Duration::from_secs(3600));
    assert_eq!(count_bodies(ReceiptScope::Store, [&session, &session], Duration::ZERO, long).await, 1);
    // Longer than the interval between the calls of one run, also on a busy machine.
    let short = Some(Duration::from_secs(1));
    assert_eq!(
        count_bodies(ReceiptScope::Store, [&session, &session], Duration::from_millis(1_200), short).await,
        2
    );
}

#[tokio::test]
async fn s31_two_runs_at_once_share_one_body() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let count = Arc::new(AtomicU32::new(0));
    let receipts = ReceiptPolicy { scope: ReceiptScope::Store, expire_after: None };
    let (one, other) = (ordering_agent(&count, receipts), ordering_agent(&count, receipts));
    let (one, other) =
        tokio::join!(async { one.run("go").store(store.clone()).await.expect("the run ends") }, async {
            other.run("go").store(store.clone()).await.expect("the run ends")
        },);
    assert_eq!(
        (one.output_text().expect("the run finished"), other.output_text().expect("the run finished")),
        ("done", "done")
    );
    assert_eq!(count.load(Ordering::SeqCst), 1);
}
