//! Snapshots: a long run opens from one, comes to the same state as its whole journal, and never depends on it.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::{Effect, Replay, Run, RunId, Timestamp};
use windlass::model::{Reply, ScriptedModel};
use windlass::store::{self, LeaseClaim, Snapshot, SqliteStore, Store};
use windlass::{Agent, Outcome, Tool, ToolContext, ToolError};

const CARD: &str = "4111-1111-1111-1111";
const RUN: &str = "long";

fn tools() -> Vec<Tool> {
    let schema = json!({
        "type": "object", "properties": { "card": { "type": "string" } },
        "required": ["card"], "additionalProperties": false
    });
    let body = |_: ToolContext, _: Value| async { Ok::<_, ToolError>("done") };
    let look = Tool::dynamic("look", "Looks.", schema.clone(), body).secret_arguments(["card"]);
    let pay = Tool::dynamic("pay", "Pays.", schema, body).effect(Effect::Once).approve_always();
    vec![look.effect(Effect::Idempotent), pay]
}

/// An agent that has looked so many times, pays once somebody agrees, and is done.
fn agent(looks: usize, pays: bool) -> Agent {
    let mut replies: Vec<Reply> = (0..looks)
        .map(|number| Reply::call(&format!("look-{number}"), "look", json!({ "card": CARD })))
        .collect();
    if pays {
        replies.push(Reply::call("pay", "pay", json!({ "card": "none" })));
    }
    replies.push(Reply::text("all done"));
    Agent::new("clerk").model(ScriptedModel::new(replies)).tools(tools())
}

fn open(folder: &tempfile::TempDir) -> Arc<SqliteStore> {
    let store = SqliteStore::open(folder.path().join("runs.db")).expect("a store");
    Arc::new(store.with_snapshots_every(8))
}

/// A run of many turns that waits for an approval.
async fn waiting(folder: &tempfile::TempDir) {
    let store = open(folder);
    let outcome = agent(20, true).run("go").run_id(RUN).unlimited_turns().store(store).await;
    assert!(outcome.expect("the run goes on").is_paused());
}

async fn whole(store: &SqliteStore) -> Replay {
    let lines = store.load(&RUN.into(), 0).await.expect("it is there");
    let records = windlass::core::read_lines(&lines).expect("it can be read");
    Run::replay(&records).expect("it adds up")
}

#[tokio::test]
async fn a_run_that_waits_opens_from_a_snapshot_and_goes_on() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    waiting(&folder).await;
    let store = open(&folder);
    let run = RunId::from(RUN);
    let snapshot = store.snapshot(&run).await.expect("it can be asked").expect("the run is long enough");
    let whole = whole(&store).await;
    assert!(snapshot.records + 8 > whole.next_seq, "{} of {} records", snapshot.records, whole.next_seq);
    assert!(!snapshot.body.contains(CARD), "what is secret is in no snapshot");

    let opened = store::paused(&*store, &run).await.expect("it opens");
    assert_eq!(opened.record().state(), &whole.run);
    assert_eq!(opened.record().usage(), &whole.usage);
    assert_eq!(opened.record().journal().len() as u64, whole.next_seq, "the journal is all there");
    let text = opened.to_text();
    assert_eq!(windlass::core::from_text(&text).expect("it can be saved"), opened.record().journal());

    store::decide(&*store, &run, "pay", windlass::core::Decision::Approve, Default::default(), "ann")
        .await
        .expect("it waits");
    let ended = agent(0, false).recover(RUN, store.clone()).await.expect("it goes on");
    assert_eq!(ended.text(), "all done");
    assert_eq!(ended.record().journal().len() as u64, ended.record().journal().last().expect("one").seq + 1);
    assert_eq!(store.snapshot(&run).await.expect("it can be asked"), None, "a run that is over needs none");
}

#[tokio::test]
async fn a_value_that_was_opened_from_a_snapshot_goes_on_too() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    waiting(&folder).await;
    let store = open(&folder);
    let mut paused = store::paused(&*store, &RUN.into()).await.expect("it opens");
    paused.approve("pay").expect("it waits");
    let elsewhere = windlass::Paused::from_text(&paused.to_text()).expect("its text is whole");
    for (paused, store) in [(paused, Some(store)), (elsewhere, None)] {
        let mut going_on = agent(0, false).resume(paused);
        if let Some(store) = store {
            going_on = going_on.store(store);
        }
        let Outcome::Finished(ended) = going_on.await.expect("it goes on") else { panic!("it ends") };
        assert_eq!(ended.output, "all done");
    }
}

#[tokio::test]
async fn a_snapshot_that_does_not_fit_is_as_none() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    waiting(&folder).await;
    let store = open(&folder);
    let run = RunId::from(RUN);
    let good = store.snapshot(&run).await.expect("it can be asked").expect("there is one");
    let whole = whole(&store).await;
    let other = agent(6, true).run("go").run_id("other").unlimited_turns().store(store.clone()).await;
    other.expect("the run goes on");
    let lines = store.load(&"other".into(), 0).await.expect("it is there");
    let strange = Snapshot { head: lines[5].hash, ..good.clone() };
    for (what, snapshot) in [
        ("of other records", strange),
        ("of more records than there are", Snapshot { records: whole.next_seq + 1, ..good.clone() }),
        ("of fewer than it says", Snapshot { records: good.records - 1, ..good.clone() }),
        ("of none", Snapshot { records: 0, ..good.clone() }),
        ("of another run", Snapshot { body: good.body.replace(RUN, "wrong"), ..good.clone() }),
        ("of another version", Snapshot { body: good.body.replace("shape", "form"), ..good.clone() }),
        ("cut off", Snapshot { body: good.body[..good.body.len() / 2].to_owned(), ..good.clone() }),
    ] {
        let claim =
            LeaseClaim { owner: "test", now: Timestamp(u64::MAX / 4), until: Timestamp(u64::MAX / 4) };
        let lease = store.acquire(&run, claim).await.expect("nobody drives it");
        store.keep_snapshot(&lease, snapshot).await.expect("it is kept");
        store.release(&lease).await.expect("it is given back");
        let opened = store::paused(&*store, &run).await.expect("the journal is enough");
        assert_eq!(opened.record().state(), &whole.run, "a snapshot {what}");
    }
}

#[tokio::test]
async fn a_line_that_was_changed_is_found_though_a_snapshot_covers_it() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    waiting(&folder).await;
    let path = folder.path().join("runs.db");
    let db = rusqlite::Connection::open(path).expect("the file is there");
    let changed = db.execute("UPDATE lines SET body = replace(body, 'look', 'loot') WHERE seq = 3", []);
    assert_eq!(changed.expect("it can be changed"), 1);
    drop(db);
    let error = store::paused(&*open(&folder), &RUN.into()).await.expect_err("it was changed");
    assert!(error.to_string().contains("record 3 is not what was written"), "{error}");
}
