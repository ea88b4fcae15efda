//! The SQLite file of every released version opens, and its runs continue.
//!
//! `WINDLASS_WRITE_GOLDEN=1` writes the file of this version if there is none. It never changes an existing
//! file.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use windlass::core::{
    decision::{Decision, DecisionScope},
    id::RunId,
};
use windlass::prelude::*;
use windlass::tool::{ReceiptPolicy, ReceiptScope};
use windlass::{
    artefact::read_output,
    core::tool::ToolEffect,
    store::{SqliteStore, Store},
};

/// The versions with a golden file.
const GOLDEN_VERSIONS: [u32; 1] = [1];

fn golden_file(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/store-v{version}.db"))
}

/// Counts the effects of the tools.
#[derive(Default)]
struct EffectCounts {
    ordered: AtomicU32,
    sent: AtomicU32,
}

fn empty_schema() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

fn scripted_agent(done: &Arc<EffectCounts>, replies: impl IntoIterator<Item = ScriptedResponse>) -> Agent {
    let (ordering, sending) = (done.clone(), done.clone());
    let order = Tool::dynamic("order", "Orders.", empty_schema(), move |_: ToolContext, _: Value| {
        let number = ordering.ordered.fetch_add(1, Ordering::SeqCst) + 1;
        async move { Ok::<_, ToolError>(format!("order {number}")) }
    });
    let receipts = ReceiptPolicy { scope: ReceiptScope::Store, expire_after: None };
    let send = Tool::dynamic("send", "Sends.", empty_schema(), move |_: ToolContext, _: Value| {
        sending.sent.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>("sent") }
    });
    let list = Tool::dynamic("list", "Lists.", empty_schema(), |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("a long list ".repeat(20))
    });
    Agent::new("desk")
        .model(ScriptedModel::new(replies))
        .tools((
            order.effect(ToolEffect::Idempotent).receipt_policy(receipts),
            send.needs_approval(),
            list.max_output_bytes(24),
        ))
        .tool(read_output())
}

/// Writes a store with a finished run in a session, and a paused run with a posted decision that no driver has
/// applied.
async fn write_golden(path: &Path) {
    let done = Arc::default();
    let store = Arc::new(SqliteStore::open(path).expect("it can be made"));
    let session = Session::new("guest", store.clone());
    let first = ScriptedResponse::call("c1", "order", json!({})).and_call("c2", "list", json!({}));
    let ended = scripted_agent(&done, [first, ScriptedResponse::text("Ordered.")]);
    let ended = ended.run("Order it.").run_id("ended").store(store.clone()).session(&session);
    assert_eq!(ended.await.expect("it ends").output_text().expect("the run finished"), "Ordered.");
    let waits = scripted_agent(&done, [ScriptedResponse::call("c1", "send", json!({}))]);
    let waits = waits.run("Send it.").run_id("waits").store(store.clone()).await.expect("it waits");
    assert!(waits.into_paused().is_some());
    let run = RunId::new("waits");
    let yes = (Decision::Approve, DecisionScope::ThisCall);
    windlass::store::post_decision(&*store, &run, "c1", yes.0, yes.1, "ann").await.expect("it is posted");
    store.flush().await.expect("it is written");
}

#[tokio::test]
async fn the_file_of_every_version_opens_and_goes_on() {
    if std::env::var_os("WINDLASS_WRITE_GOLDEN").is_some() && !golden_file(1).exists() {
        std::fs::create_dir_all(golden_file(1).parent().expect("it is in a folder")).expect("it can be made");
        write_golden(&golden_file(1)).await;
    }
    for version in GOLDEN_VERSIONS {
        let folder = tempfile::tempdir().expect("there is a disk");
        let copy = folder.path().join("copy.db");
        std::fs::copy(golden_file(version), &copy).expect("the golden file is there");
        check_continues(&copy).await;
    }
}

async fn check_continues(path: &Path) {
    let done: Arc<EffectCounts> = Arc::default();
    let store = Arc::new(SqliteStore::open(path).expect("it opens"));
    let session = Session::new("guest", store.clone());
    let said: Vec<_> = session
        .items()
        .await
        .expect("it is there")
        .iter()
        .map(|item| windlass::model::describe_item(item))
        .collect();
    assert_eq!(said[0], "user: Order it.");
    assert_eq!(said.last().map(String::as_str), Some("assistant: Ordered."));

    // The paused run continues on its own, because its decision was posted.
    let waits = scripted_agent(&done, [ScriptedResponse::text("Sent.")]);
    let outcome = waits.recover("waits", store.clone()).await.expect("it goes on");
    assert_eq!(
        (outcome.output_text().expect("the run finished"), done.sent.load(Ordering::SeqCst)),
        ("Sent.", 1)
    );
    assert!(
        waits
            .recover("waits", store.clone())
            .await
            .is_ok_and(|outcome| outcome.output_text().expect("the run finished") == "Sent.")
    );
    assert_eq!(done.sent.load(Ordering::SeqCst), 1, "and once only");

    // The receipt prevents a second order, and the full output can be read.
    let again = scripted_agent(
        &done,
        [ScriptedResponse::call("c1", "order", json!({})), ScriptedResponse::text("Again.")],
    );
    let outcome = again.run("Order it.").run_id("again").store(store.clone()).await.expect("it ends");
    assert_eq!(
        (outcome.output_text().expect("the run finished"), done.ordered.load(Ordering::SeqCst)),
        ("Again.", 0)
    );
    let whole = store.load_artefact(&RunId::new("ended"), "c2").await.expect("it can be read");
    assert_eq!(whole.as_deref(), Some("a long list ".repeat(20).as_bytes()));
}
