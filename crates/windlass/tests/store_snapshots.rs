//! Snapshots: a long run opens from one and replays to the same state as its whole journal; no run depends on
//! its snapshot.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::{
    id::{RunId, Timestamp},
    run::{ReplayedRun, Run},
    tool::ToolEffect,
};
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::store::{
    self, JournalReader, LeaseClaim, SnapshotSegments, SqliteStore, Store, StoredSnapshot,
};
use windlass::{
    agent::Agent,
    run::RunResult,
    tool::{Tool, ToolContext, ToolError},
};

const CARD: &str = "4111-1111-1111-1111";
const RUN_ID: &str = "long";

fn clerk_tools() -> Vec<Tool> {
    let schema = json!({
        "type": "object", "properties": { "card": { "type": "string" } },
        "required": ["card"], "additionalProperties": false
    });
    let body = |_: ToolContext, _: Value| async { Ok::<_, ToolError>("done") };
    let look = Tool::dynamic("look", "Looks.", schema.clone(), body).secret_arguments(["card"]);
    let pay = Tool::dynamic("pay", "Pays.", schema, body).effect(ToolEffect::Once).needs_approval();
    vec![look.effect(ToolEffect::Idempotent), pay]
}

/// Creates an agent that makes `looks` calls, then a payment that needs approval if `pays`, and finishes.
fn clerk_agent(looks: usize, pays: bool) -> Agent {
    let mut replies: Vec<ScriptedResponse> = (0..looks)
        .map(|number| ScriptedResponse::call(&format!("look-{number}"), "look", json!({ "card": CARD })))
        .collect();
    if pays {
        replies.push(ScriptedResponse::call("pay", "pay", json!({ "card": "none" })));
    }
    replies.push(ScriptedResponse::text("all done"));
    Agent::new("clerk").model(ScriptedModel::new(replies)).tools(clerk_tools())
}

fn open_store(folder: &tempfile::TempDir) -> Arc<SqliteStore> {
    let store = SqliteStore::open(folder.path().join("runs.db")).expect("a store");
    Arc::new(store.with_snapshot_interval(8))
}

/// Creates a run of many turns that waits for an approval.
async fn make_waiting_run(folder: &tempfile::TempDir) {
    let store = open_store(folder);
    let outcome = clerk_agent(20, true).run("go").run_id(RUN_ID).unlimited_turns().store(store).await;
    assert!(outcome.expect("the run goes on").is_paused());
}

async fn load_segments(store: &SqliteStore) -> Vec<String> {
    store.load_snapshot_segments(&RUN_ID.into(), 1_000).await.expect("they are there")
}

async fn replay_journal(store: &SqliteStore) -> ReplayedRun {
    let lines = store.load_journal(&RUN_ID.into(), 0).await.expect("it is there");
    let records = windlass::core::journal::decode_lines(&lines).expect("it can be read");
    Run::replay(&records).expect("it adds up")
}

#[tokio::test]
async fn a_run_that_waits_opens_from_a_snapshot_and_goes_on() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    make_waiting_run(&folder).await;
    let store = open_store(&folder);
    let run = RunId::from(RUN_ID);
    let snapshot = store.load_snapshot(&run).await.expect("it can be asked").expect("the run is long enough");
    let whole = replay_journal(&store).await;
    assert!(
        snapshot.record_count + 8 > whole.next_seq,
        "{} of {} records",
        snapshot.record_count,
        whole.next_seq
    );
    assert!(!snapshot.body.contains(CARD), "what is secret is in no snapshot");
    for segment in load_segments(&store).await {
        assert!(!segment.contains(CARD), "nor in a segment");
    }

    let opened = store::load_paused(&*store, &run).await.expect("it opens");
    assert_eq!(opened.record().state(), &whole.run);
    assert_eq!(opened.record().usage(), &whole.usage);
    assert_eq!(opened.record().journal().len() as u64, whole.next_seq, "the journal is all there");
    let text = opened.to_text();
    assert_eq!(
        windlass::core::journal::decode_journal(&text).expect("it can be saved"),
        opened.record().journal()
    );

    store::post_decision(
        &*store,
        &run,
        "pay",
        windlass::core::decision::Decision::Approve,
        Default::default(),
        "ann",
    )
    .await
    .expect("it waits");
    let ended = clerk_agent(0, false).recover(RUN_ID, store.clone()).await.expect("it goes on");
    assert_eq!(ended.output_text().expect("the run finished"), "all done");
    assert_eq!(ended.record().journal().len() as u64, ended.record().journal().last().expect("one").seq + 1);
    assert_eq!(
        store.load_snapshot(&run).await.expect("it can be asked"),
        None,
        "a run that is over needs none"
    );
}

#[tokio::test]
async fn a_value_that_was_opened_from_a_snapshot_goes_on_too() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    make_waiting_run(&folder).await;
    let store = open_store(&folder);
    let mut paused = store::load_paused(&*store, &RUN_ID.into()).await.expect("it opens");
    paused.approve("pay").expect("it waits");
    let elsewhere = windlass::run::PausedRun::from_text(&paused.to_text()).expect("its text is whole");
    for (paused, store) in [(paused, Some(store)), (elsewhere, None)] {
        let mut going_on = clerk_agent(0, false).resume(paused);
        if let Some(store) = store {
            going_on = going_on.store(store);
        }
        let RunResult::Finished(ended) = going_on.await.expect("it goes on") else { panic!("it ends") };
        assert_eq!(ended.output, "all done");
    }
}

#[tokio::test]
async fn a_snapshot_that_does_not_fit_is_as_none() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    make_waiting_run(&folder).await;
    let store = open_store(&folder);
    let run = RunId::from(RUN_ID);
    let good = store.load_snapshot(&run).await.expect("it can be asked").expect("there is one");
    let whole = replay_journal(&store).await;
    let other = clerk_agent(6, true).run("go").run_id("other").unlimited_turns().store(store.clone()).await;
    other.expect("the run goes on");
    let lines = store.load_journal(&"other".into(), 0).await.expect("it is there");
    let strange = StoredSnapshot { head_hash: lines[5].hash, ..good.clone() };
    for (what, snapshot) in [
        ("of other records", strange),
        (
            "of more records than there are",
            StoredSnapshot { record_count: whole.next_seq + 1, ..good.clone() },
        ),
        ("of fewer than it says", StoredSnapshot { record_count: good.record_count - 1, ..good.clone() }),
        ("of none", StoredSnapshot { record_count: 0, ..good.clone() }),
        ("of another run", StoredSnapshot { body: good.body.replace(RUN_ID, "wrong"), ..good.clone() }),
        (
            "of another version",
            StoredSnapshot { body: good.body.replace(" snapshot ", " snapshot 0"), ..good.clone() },
        ),
        ("cut off", StoredSnapshot { body: good.body[..good.body.len() / 2].to_owned(), ..good.clone() }),
    ] {
        let claim = LeaseClaim {
            owner: "test",
            now: Timestamp(u64::MAX / 4),
            duration: std::time::Duration::from_secs(30),
        };
        let lease = store.acquire_lease(&run, claim, None).await.expect("nobody drives it");
        let kept = SnapshotSegments { first: load_segments(&store).await.len() as u64, bodies: Vec::new() };
        store.save_snapshot(&lease, snapshot, kept).await.expect("it is kept");
        store.release_lease(&lease).await.expect("it is given back");
        let opened = store::load_paused(&*store, &run).await.expect("the journal is enough");
        assert_eq!(opened.record().state(), &whole.run, "a snapshot {what}");
    }
}

#[tokio::test]
async fn a_line_that_was_changed_is_found_though_a_snapshot_covers_it() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    make_waiting_run(&folder).await;
    let path = folder.path().join("runs.db");
    let db = rusqlite::Connection::open(path).expect("the file is there");
    let changed = db.execute("UPDATE lines SET body = replace(body, 'look', 'loot') WHERE seq = 3", []);
    assert_eq!(changed.expect("it can be changed"), 1);
    drop(db);
    // Opening reads nothing before the snapshot; whoever reads the journal finds the change.
    let opened = store::load_paused(&*open_store(&folder), &RUN_ID.into()).await.expect("it opens");
    let error = opened.record().read_journal().expect_err("it was changed");
    assert!(error.to_string().contains("record 3 is not what was written"), "{error}");
    windlass::run::PausedRun::from_text(&opened.to_text()).expect_err("half a text is refused");
    let lines = open_store(&folder).load_journal(&RUN_ID.into(), 0).await.expect("it is there");
    let error = windlass::core::inspect::verify_lines(&lines).expect_err("it was changed");
    assert_eq!(error.first_bad_seq(), Some(3));
}

#[tokio::test]
async fn each_snapshot_writes_only_what_has_grown() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    make_waiting_run(&folder).await;
    let segments = load_segments(&open_store(&folder)).await;
    assert!(segments.len() > 3, "the run had {} snapshots", segments.len());
    let count_of = |number: usize| {
        let call = format!("\"look-{number}\"");
        segments.iter().filter(|segment| segment.contains(&call)).count()
    };
    let counts: Vec<usize> = (0..20).map(count_of).collect();
    // The last calls may be of a turn after the last snapshot.
    assert!(counts.iter().all(|count| *count <= 1), "{counts:?}");
    assert!(counts[..15].iter().all(|count| *count == 1), "{counts:?}");
}

#[tokio::test]
async fn a_segment_that_was_changed_is_noticed_and_the_journal_used() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    make_waiting_run(&folder).await;
    let store = open_store(&folder);
    let run = RunId::from(RUN_ID);
    let whole = replay_journal(&store).await;
    let snapshot = store.load_snapshot(&run).await.expect("it can be asked").expect("there is one");
    let good = load_segments(&store).await;
    let mut changed = good.clone();
    changed[1] = changed[1].replace("done", "forged");
    assert_ne!(changed, good);
    for bodies in [changed, good[..good.len() - 1].to_vec()] {
        let claim = LeaseClaim {
            owner: "test",
            now: Timestamp(u64::MAX / 4),
            duration: std::time::Duration::from_secs(30),
        };
        let lease = store.acquire_lease(&run, claim, None).await.expect("nobody drives it");
        let segments = SnapshotSegments { first: 0, bodies };
        store.save_snapshot(&lease, snapshot.clone(), segments).await.expect("it is kept");
        store.release_lease(&lease).await.expect("it is given back");
        let opened = store::load_paused(&*store, &run).await.expect("the journal is enough");
        assert_eq!(opened.record().read_state().expect("the journal is read"), &whole.run);
    }
    let ended = clerk_agent(0, false).recover(RUN_ID, store.clone()).await.expect("it goes on");
    assert!(ended.is_paused(), "it waits still");
    assert_eq!(ended.record().state(), &whole.run);
}

/// A store that notes the first line that was asked for, and how often segments were.
struct NotingStore {
    inner: Arc<SqliteStore>,
    first_line: std::sync::atomic::AtomicU64,
    segment_reads: Arc<std::sync::atomic::AtomicU64>,
}

/// A reader that notes how often segments were asked for.
struct NotingReader {
    inner: Arc<dyn JournalReader>,
    segment_reads: Arc<std::sync::atomic::AtomicU64>,
}

impl JournalReader for NotingReader {
    fn read_lines(
        &self,
        run: &RunId,
        from: u64,
        limit: u32,
    ) -> Result<Vec<windlass::core::journal::JournalLine>, windlass::error::StoreError> {
        self.inner.read_lines(run, from, limit)
    }

    fn read_segments(&self, run: &RunId, count: u64) -> Result<Vec<String>, windlass::error::StoreError> {
        self.segment_reads.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        self.inner.read_segments(run, count)
    }

    fn read_history(
        &self,
        reference: &windlass::core::journal::HistoryReference,
    ) -> Result<Option<Vec<Arc<windlass::core::item::Item>>>, windlass::error::StoreError> {
        self.inner.read_history(reference)
    }

    fn read_artefact(&self, run: &RunId, name: &str) -> Result<Option<Vec<u8>>, windlass::error::StoreError> {
        self.inner.read_artefact(run, name)
    }
}

impl NotingStore {
    fn new(inner: Arc<SqliteStore>) -> Arc<Self> {
        Arc::new(Self { inner, first_line: u64::MAX.into(), segment_reads: Arc::default() })
    }

    fn segment_reads(&self) -> u64 {
        self.segment_reads.load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl store::StoreWrapper for NotingStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn journal_reader(&self) -> Option<Arc<dyn JournalReader>> {
        let inner = self.inner.journal_reader()?;
        Some(Arc::new(NotingReader { inner, segment_reads: self.segment_reads.clone() }))
    }

    fn load_snapshot_segments<'a>(
        &'a self,
        run: &'a RunId,
        count: u64,
    ) -> store::StoreFuture<'a, Vec<String>> {
        self.segment_reads.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        self.inner.load_snapshot_segments(run, count)
    }

    fn load_journal<'a>(
        &'a self,
        run: &'a RunId,
        from: u64,
    ) -> store::StoreFuture<'a, Vec<windlass::core::journal::JournalLine>> {
        self.first_line.fetch_min(from, std::sync::atomic::Ordering::SeqCst);
        self.inner.load_journal(run, from)
    }
}

#[tokio::test]
async fn nothing_before_a_snapshot_is_read() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    make_waiting_run(&folder).await;
    let inner = open_store(&folder);
    let snapshot = inner.load_snapshot(&RUN_ID.into()).await.expect("it can be asked").expect("there is one");
    let store = NotingStore::new(inner);
    let mut paused = store::load_paused(&*store, &RUN_ID.into()).await.expect("it opens");
    paused.approve("pay").expect("it waits");
    let resumed = clerk_agent(0, false).resume(paused).store(store.clone()).await.expect("it goes on");
    assert_eq!(resumed.output_text().expect("the run finished"), "all done");
    let first = store.first_line.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(first, snapshot.record_count - 1);
    let journal = resumed.record().read_journal().expect("it is read when it is needed");
    assert_eq!(journal.len() as u64, journal.last().expect("one").seq + 1);
}

#[tokio::test]
async fn a_decision_reads_no_segment_and_whoever_needs_the_conversation_does() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    make_waiting_run(&folder).await;
    let store = NotingStore::new(open_store(&folder));
    let whole = replay_journal(&store.inner).await;
    let run = RunId::from(RUN_ID);
    let mut paused = store::load_paused(&*store, &run).await.expect("it opens");
    assert_eq!(paused.pending_calls(), whole.run.pending_calls());
    assert_eq!(paused.standing_decisions(), Vec::new());
    assert_eq!(paused.record().outline().outcome(), None);
    assert_eq!(paused.record().usage(), &whole.usage);
    paused.approve("pay").expect("it waits");
    let approve = windlass::core::decision::Decision::Approve;
    store::post_decision(&*store, &run, "pay", approve, Default::default(), "ann").await.expect("it waits");
    assert_eq!(store.segment_reads(), 0, "a decision needs no conversation");
    let first = store.first_line.load(std::sync::atomic::Ordering::SeqCst);
    let snapshot = store.inner.load_snapshot(&run).await.expect("it can be asked").expect("there is one");
    assert_eq!(first, snapshot.record_count - 1, "a decision reads no line before the snapshot's last");
    assert_eq!(paused.record().history(), whole.run.history());
    assert_eq!(paused.record().state().pending_calls(), Vec::new(), "the decision is in the state");
    assert_eq!(store.segment_reads(), 1, "the conversation is read once");
}
