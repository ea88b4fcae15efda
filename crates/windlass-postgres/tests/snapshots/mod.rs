//! A long run opens from its snapshot: nothing before it is read until somebody needs it, and nothing of it is believed that
//! its head does not stand for.
//!
//! The runtimes of these tests have one thread, so that a reader that needs them would wait for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use windlass::core::decision::Decision;
use windlass::core::id::RunId;
use windlass::core::item::Item;
use windlass::core::journal::{HistoryReference, JournalLine, decode_lines};
use windlass::core::run::{ReplayedRun, Run};
use windlass::error::StoreError;
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::prelude::*;
use windlass::store::{
    JournalReader, SnapshotVerification, Store, StoreFuture, StoreWrapper, load_paused, post_decision,
    verify_stored_run,
};
use windlass_postgres::{PostgresOptions, PostgresStore};

use crate::server::TestServer;

const INTERVAL: u64 = 8;

async fn connect(server: &TestServer, schema: &str) -> Arc<PostgresStore> {
    let options = PostgresOptions {
        schema: schema.to_owned(),
        max_connections: 2,
        snapshot_interval: INTERVAL,
        ..Default::default()
    };
    Arc::new(PostgresStore::connect_with(&server.address(), options).await.expect("it connects"))
}

/// Creates an agent that looks `looks` times, then pays if a person approves, and finishes.
fn clerk_agent(looks: usize) -> Agent {
    let schema = json!({
        "type": "object", "properties": { "number": { "type": "integer" } }, "additionalProperties": false
    });
    let body = |_: ToolContext, _: Value| async { Ok::<_, ToolError>("seen") };
    let look = Tool::dynamic("look", "Looks.", schema.clone(), body);
    let pay = Tool::dynamic("pay", "Pays.", schema, body).needs_approval();
    let mut replies: Vec<ScriptedResponse> = (0..looks)
        .map(|number| ScriptedResponse::call(&format!("look-{number}"), "look", json!({ "number": number })))
        .collect();
    replies.push(ScriptedResponse::call("pay", "pay", json!({})));
    replies.push(ScriptedResponse::text("all done"));
    Agent::new("clerk").model(ScriptedModel::new(replies)).tools(vec![look, pay])
}

/// Makes a run that waits for an approval after many turns.
async fn make_waiting_run(store: &Arc<PostgresStore>, run: &str, looks: usize) {
    let outcome = clerk_agent(looks).run("go").run_id(run).unlimited_turns().store(store.clone()).await;
    assert!(outcome.expect("it goes on").is_paused());
}

async fn replay_journal(store: &PostgresStore, run: &RunId) -> ReplayedRun {
    let lines = store.load_journal(run, 0).await.expect("it is there");
    Run::replay(&decode_lines(&lines).expect("it can be read")).expect("it adds up")
}

/// A store that counts the lines and the segments that are read.
struct CountingStore {
    inner: Arc<PostgresStore>,
    counts: Arc<ReadCounts>,
}

#[derive(Default)]
struct ReadCounts {
    lines: AtomicU64,
    segments: AtomicU64,
}

impl ReadCounts {
    fn add_lines(&self, lines: Vec<JournalLine>) -> Vec<JournalLine> {
        self.lines.fetch_add(lines.len() as u64, Ordering::SeqCst);
        lines
    }

    fn add_segments(&self, segments: Vec<String>) -> Vec<String> {
        self.segments.fetch_add(segments.len() as u64, Ordering::SeqCst);
        segments
    }

    fn take(&self) -> (u64, u64) {
        (self.lines.swap(0, Ordering::SeqCst), self.segments.swap(0, Ordering::SeqCst))
    }
}

struct CountingReader {
    inner: Arc<dyn JournalReader>,
    counts: Arc<ReadCounts>,
}

impl JournalReader for CountingReader {
    fn read_lines(&self, run: &RunId, from: u64, limit: u32) -> Result<Vec<JournalLine>, StoreError> {
        Ok(self.counts.add_lines(self.inner.read_lines(run, from, limit)?))
    }

    fn read_segments(&self, run: &RunId, count: u64) -> Result<Vec<String>, StoreError> {
        Ok(self.counts.add_segments(self.inner.read_segments(run, count)?))
    }

    fn read_history(&self, reference: &HistoryReference) -> Result<Option<Vec<Arc<Item>>>, StoreError> {
        self.inner.read_history(reference)
    }

    fn read_artefact(&self, run: &RunId, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.read_artefact(run, name)
    }
}

impl StoreWrapper for CountingStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn journal_reader(&self) -> Option<Arc<dyn JournalReader>> {
        let inner = self.inner.journal_reader()?;
        Some(Arc::new(CountingReader { inner, counts: self.counts.clone() }))
    }

    fn load_snapshot_segments<'a>(&'a self, run: &'a RunId, count: u64) -> StoreFuture<'a, Vec<String>> {
        Box::pin(
            async move { Ok(self.counts.add_segments(self.inner.load_snapshot_segments(run, count).await?)) },
        )
    }

    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        Box::pin(async move { Ok(self.counts.add_lines(self.inner.load_journal(run, from).await?)) })
    }

    fn load_journal_page<'a>(
        &'a self,
        run: &'a RunId,
        from: u64,
        limit: u32,
    ) -> StoreFuture<'a, Vec<JournalLine>> {
        Box::pin(
            async move { Ok(self.counts.add_lines(self.inner.load_journal_page(run, from, limit).await?)) },
        )
    }
}

#[tokio::test]
async fn a_decision_about_a_long_run_reads_as_little_as_about_a_short_one() {
    let Some(server) = TestServer::start() else { return };
    let inner = connect(&server, "counted").await;
    let counts = Arc::new(ReadCounts::default());
    let store = CountingStore { inner: inner.clone(), counts: counts.clone() };
    for (name, looks) in [("short", 5), ("long", 200)] {
        make_waiting_run(&inner, name, looks).await;
        let run = RunId::from(name);
        let whole = replay_journal(&inner, &run).await;
        let paused = load_paused(&store, &run).await.expect("it opens");
        assert_eq!(paused.pending_calls(), whole.run.pending_calls());
        // The last line that the snapshot covers, and those of the turns after it.
        let (lines, segments) = counts.take();
        assert!(lines <= 2 * INTERVAL, "{name}: {lines} of {} lines were read", whole.next_seq);
        assert_eq!(segments, 0, "{name}: a pending call needs no conversation");
        post_decision(&store, &run, "pay", Decision::Approve, Default::default(), "ann")
            .await
            .expect("it waits");
        let (lines, segments) = counts.take();
        assert!(lines <= 4 * INTERVAL, "{name}: {lines} of {} lines were read to decide", whole.next_seq);
        assert_eq!(segments, 0, "{name}: a decision needs no conversation");
        assert_eq!(paused.record().state(), &whole.run);
        let (lines, segments) = counts.take();
        assert!(lines == 0 && segments > 0, "{name}: the conversation is in the segments");
        let journal = paused.record().read_journal().expect("it is read when it is needed");
        assert_eq!(journal.len() as u64, whole.next_seq);
        assert!(
            counts.take().0 + 2 * INTERVAL >= whole.next_seq,
            "{name}: the journal is read from the store"
        );
    }
}

#[tokio::test]
async fn a_forged_segment_is_noticed_and_the_journal_used() {
    let Some(server) = TestServer::start() else { return };
    let store = connect(&server, "forged").await;
    make_waiting_run(&store, "run", 20).await;
    let run = RunId::from("run");
    let whole = replay_journal(&store, &run).await;
    let verified = verify_stored_run(&*store, &run).await.expect("it is there");
    assert_eq!(verified.snapshot, Some(SnapshotVerification::Verified(None)));
    let (client, connection) =
        tokio_postgres::connect(&server.address(), tokio_postgres::NoTls).await.expect("it connects");
    tokio::spawn(connection);
    let forge = "UPDATE forged.snapshot_segments SET body = convert_to(replace(convert_from(body, 'UTF8'), 'seen', 'gone'), 'UTF8')
        WHERE number = 1";
    assert_eq!(client.execute(forge, &[]).await.expect("it is changed"), 1);
    let segments = store.load_snapshot_segments(&run, 1_000).await.expect("they are there");
    assert!(segments[1].contains("gone"), "the forgery is in place");
    let verified = verify_stored_run(&*store, &run).await.expect("it is there");
    assert_eq!(verified.snapshot, Some(SnapshotVerification::Different));
    let opened = load_paused(&*store, &run).await.expect("the journal is enough");
    assert_eq!(opened.record().read_state().expect("the journal is read"), &whole.run);
    client
        .execute("DELETE FROM forged.snapshot_segments WHERE number = 1", &[])
        .await
        .expect("it is deleted");
    let opened = load_paused(&*store, &run).await.expect("the journal is enough");
    assert_eq!(opened.record().read_state().expect("the journal is read"), &whole.run);
    let recovered = clerk_agent(0).recover("run", store.clone()).await.expect("it goes on");
    assert_eq!(recovered.record().state(), &whole.run);
}
