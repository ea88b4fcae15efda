//! The SQLite file of every version that was ever released opens, and what is in it goes on.
//!
//! `WINDLASS_WRITE_GOLDEN=1` writes the file of this version where there is none. It never changes one that is there.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use windlass::core::{Decision, Reach, RunId};
use windlass::prelude::*;
use windlass::tool::{Receipts, Scope};
use windlass::{Effect, SqliteStore, Store, read_output};

/// The versions that there are files of.
const VERSIONS: [u32; 1] = [1];

fn file(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/store-v{version}.db"))
}

#[derive(Default)]
struct Done {
    ordered: AtomicU32,
    sent: AtomicU32,
}

fn nothing() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

fn agent(done: &Arc<Done>, replies: impl IntoIterator<Item = Reply>) -> Agent {
    let (ordering, sending) = (done.clone(), done.clone());
    let order = Tool::dynamic("order", "Orders.", nothing(), move |_: ToolContext, _: Value| {
        let number = ordering.ordered.fetch_add(1, Ordering::SeqCst) + 1;
        async move { Ok::<_, ToolError>(format!("order {number}")) }
    });
    let receipts = Receipts { scope: Scope::Store, expire_after: None };
    let send = Tool::dynamic("send", "Sends.", nothing(), move |_: ToolContext, _: Value| {
        sending.sent.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>("sent") }
    });
    let list = Tool::dynamic("list", "Lists.", nothing(), |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("a long list ".repeat(20))
    });
    Agent::new("desk")
        .model(ScriptedModel::new(replies))
        .tools((
            order.effect(Effect::Idempotent).receipts(receipts),
            send.approve_always(),
            list.output_budget(24),
        ))
        .tool(read_output())
}

/// A run that has ended, in a session; one that waits, with a decision that nobody has taken yet.
async fn write(path: &Path) {
    let done = Arc::default();
    let store = Arc::new(SqliteStore::open(path).expect("it can be made"));
    let session = Session::new("guest", store.clone());
    let first = Reply::call("c1", "order", json!({})).and_call("c2", "list", json!({}));
    let ended = agent(&done, [first, Reply::text("Ordered.")]);
    let ended = ended.run("Order it.").run_id("ended").store(store.clone()).session(&session);
    assert_eq!(ended.await.expect("it ends").text(), "Ordered.");
    let waits = agent(&done, [Reply::call("c1", "send", json!({}))]);
    let waits = waits.run("Send it.").run_id("waits").store(store.clone()).await.expect("it waits");
    assert!(waits.paused().is_some());
    let run = RunId::new("waits");
    let yes = (Decision::Approve, Reach::Call);
    windlass::store::decide(&*store, &run, "c1", yes.0, yes.1, "ann").await.expect("it is posted");
    store.flush().await.expect("it is written");
}

#[tokio::test]
async fn the_file_of_every_version_opens_and_goes_on() {
    if std::env::var_os("WINDLASS_WRITE_GOLDEN").is_some() && !file(1).exists() {
        std::fs::create_dir_all(file(1).parent().expect("it is in a folder")).expect("it can be made");
        write(&file(1)).await;
    }
    for version in VERSIONS {
        let folder = tempfile::tempdir().expect("there is a disk");
        let copy = folder.path().join("copy.db");
        std::fs::copy(file(version), &copy).expect("the golden file is there");
        goes_on(&copy).await;
    }
}

async fn goes_on(path: &Path) {
    let done: Arc<Done> = Arc::default();
    let store = Arc::new(SqliteStore::open(path).expect("it opens"));
    let session = Session::new("guest", store.clone());
    let said: Vec<_> = session
        .items()
        .await
        .expect("it is there")
        .iter()
        .map(|item| windlass::model::item_line(item))
        .collect();
    assert_eq!(said[0], "user: Order it.");
    assert_eq!(said.last().map(String::as_str), Some("assistant: Ordered."));

    // What waited goes on by itself, because somebody had decided.
    let waits = agent(&done, [Reply::text("Sent.")]);
    let outcome = waits.recover("waits", store.clone()).await.expect("it goes on");
    assert_eq!((outcome.text(), done.sent.load(Ordering::SeqCst)), ("Sent.", 1));
    assert!(waits.recover("waits", store.clone()).await.is_ok_and(|outcome| outcome.text() == "Sent."));
    assert_eq!(done.sent.load(Ordering::SeqCst), 1, "and once only");

    // What was ordered is not ordered again, and what was kept whole can be read.
    let again = agent(&done, [Reply::call("c1", "order", json!({})), Reply::text("Again.")]);
    let outcome = again.run("Order it.").run_id("again").store(store.clone()).await.expect("it ends");
    assert_eq!((outcome.text(), done.ordered.load(Ordering::SeqCst)), ("Again.", 0));
    let whole = store.artefact(&RunId::new("ended"), "c2").await.expect("it can be read");
    assert_eq!(whole.as_deref(), Some("a long list ".repeat(20).as_str()));
}
