//! An encrypted store keeps nothing of a conversation readable, and works as the store under it does.

#![cfg(feature = "sqlite")]
#![allow(clippy::expect_used)]

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use windlass::core::canonical::Digest;
use windlass::core::decision::{Decision, DecisionScope};
use windlass::core::id::RunId;
use windlass::core::item::Item;
use windlass::core::journal::JournalEntry;
use windlass::core::tool::ToolEffect;
use windlass::error::StoreErrorKind;
use windlass::fleet::{
    AgentRegistry, DeployedAgent, QueueFilter, QueueOrder, QueuedState, RunQueue, RunSubmission,
    SubmitResult, Worker, WorkerReport,
};
use windlass::prelude::*;
use windlass::store::{
    EncryptedStore, EncryptionKeyError, EncryptionKeys, MemoryStore, RunQuery, RunStatus, SqliteStore, Store,
    load_paused, migrate_store, post_decision, verify_run,
};
use windlass::tool::{ReceiptPolicy, ReceiptScope};

const FIRST: [u8; 32] = [1; 32];
const SECOND: [u8; 32] = [2; 32];
/// A secret that looks like the name of a medium.
const TOKEN: &str = "8c7dd922ad47494fc02c388e12c00eac278d63cf1c8e3a0a5c9a3ad0d1c7b1ef";

fn open(path: &Path, secrets: &[[u8; 32]]) -> Arc<EncryptedStore> {
    let keys = EncryptionKeys::from_text(&EncryptionKeys::text_of_secrets(secrets)).expect("they are keys");
    let file = SqliteStore::open(path).expect("opens").with_snapshot_interval(2);
    Arc::new(EncryptedStore::new(Arc::new(file), keys))
}

fn agent(replies: impl IntoIterator<Item = ScriptedResponse>) -> Agent {
    let schema = json!({ "type": "object", "properties": { "to": { "type": "string" } } });
    let look = Tool::dynamic("look", "Looks.", schema.clone(), |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("xylophone ".repeat(20))
    });
    let receipts = ReceiptPolicy { scope: ReceiptScope::Store, expire_after: None };
    let send = Tool::dynamic("send", "Sends.", schema, |_: ToolContext, arguments: Value| async move {
        Ok::<_, ToolError>(format!("quartz for {arguments}"))
    });
    let look = look.max_output_bytes(24).effect(ToolEffect::Idempotent).receipt_policy(receipts);
    Agent::new("desk").model(ScriptedModel::new(replies)).tools((look, send.needs_approval()))
}

/// Returns the words of the conversation that are in the files of a store.
fn readable_words(path: &Path) -> Vec<&'static str> {
    let folder = path.parent().expect("a folder");
    let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
    let mut bytes = Vec::new();
    for file in std::fs::read_dir(folder).expect("read") {
        let file = file.expect("read");
        if file.file_name().to_str().is_some_and(|other| other.starts_with(name)) {
            bytes.extend(std::fs::read(file.path()).expect("read"));
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let words = ["zebra", "yonder", "xylophone", "quartz", "violet", "umbrella", "tundra", "saffron", TOKEN];
    words.into_iter().filter(|word| text.contains(word)).collect()
}

/// Writes a run with every kind of value: input, arguments, outputs, artefacts, receipts, an edit, a session, a submission.
async fn write_conversation(store: &Arc<EncryptedStore>) {
    let runs: Arc<dyn Store> = store.clone();
    let session = Session::in_run_store("guest".into(), &runs).expect("it has sessions");
    let replies = [
        ScriptedResponse::call("c1", "look", json!({ "to": format!("yonder/{TOKEN}") })),
        ScriptedResponse::call("c2", "send", json!({ "to": "violet" })),
    ];
    let run = agent(replies).run("Where is the zebra?").run_id("run").store(store.clone()).session(&session);
    run.await.expect("it waits").into_paused().expect("it waits");
    let edited = Decision::ApproveEdited { arguments: json!({ "to": "umbrella" }).to_string() };
    let posted = post_decision(&**store, &"run".into(), "c2", edited, DecisionScope::ThisCall, "ann").await;
    posted.expect("posted");
    let end = agent([ScriptedResponse::text("A tundra answer.")]).recover("run", store.clone()).await;
    assert_eq!(end.expect("it ends").output_text().expect("finished"), "A tundra answer.");
    let submission = RunSubmission::new("later", "desk", "Some saffron.");
    store.submit_run(&submission, Default::default()).await.expect("submitted");
    store.submit_run(&submission, Default::default()).await.expect("the same again");
    let input = QueueOrder::AddInput { items: vec![Arc::new(Item::user("More saffron."))] };
    store.post_order(&"later".into(), &input).await.expect("ordered");
    assert_eq!(session.items().await.expect("read").len(), 6);
}

async fn check_conversation(store: &EncryptedStore) {
    let known = load_paused(store, &"run".into()).await.expect("it opens");
    let text = serde_json::to_string(
        &known.record().journal().iter().map(|record| &record.entry).collect::<Vec<_>>(),
    );
    let text = text.expect("it can be written");
    for word in ["zebra", "yonder", "xylophone", "quartz", "umbrella", "tundra"] {
        assert!(text.contains(word), "{word}");
    }
    verify_run(store, &"run".into()).await.expect("the chain is that of the records");
    let queued = store.load_queued_run(&"later".into()).await.expect("loaded").expect("it is there");
    assert_eq!(queued.submission, RunSubmission::new("later", "desk", "Some saffron."));
    let ended = RunQuery {
        statuses: vec![RunStatus::Finished],
        session: Some("guest".into()),
        ..RunQuery::default()
    };
    assert_eq!(store.list_runs(&ended).await.expect("listed").len(), 1, "the store knows what it needs");
}

#[tokio::test]
async fn nothing_of_a_conversation_is_readable_without_the_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let plain = folder.path().join("plain.db");
    // Without encryption the words are there, so the search finds what it looks for.
    let store = Arc::new(SqliteStore::open(&plain).expect("opens"));
    let run = agent([ScriptedResponse::text("tundra")]).run("zebra").store(store.clone());
    run.await.expect("it ends");
    assert_eq!(readable_words(&plain), ["zebra", "tundra"]);
    let path = folder.path().join("store.db");
    let store = open(&path, &[FIRST]);
    write_conversation(&store).await;
    check_conversation(&store).await;
    assert_eq!(readable_words(&path), [""; 0]);
    drop(store);
    assert_eq!(readable_words(&path), [""; 0]);
    check_conversation(&open(&path, &[FIRST])).await;
}

#[tokio::test]
async fn keys_rotate_and_a_migration_seals_everything_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, new) = (folder.path().join("store.db"), folder.path().join("new.db"));
    write_conversation(&open(&path, &[FIRST])).await;
    let wrong = open(&path, &[SECOND]);
    let error = wrong.load_journal(&"run".into(), 0).await.expect_err("the key is not given");
    assert_eq!(error.kind(), StoreErrorKind::UnknownKey);
    assert!(error.to_string().contains("which is not given"), "{error}");
    let both = open(&path, &[FIRST, SECOND]);
    check_conversation(&both).await;
    let target = open(&new, &[SECOND]);
    migrate_store(&*both, &*target).await.expect("copied");
    let known = load_paused(&*open(&new, &[SECOND]), &"run".into()).await.expect("the new key suffices");
    assert_eq!(
        known.record().journal().len(),
        load_paused(&*both, &"run".into()).await.expect("opens").record().journal().len()
    );
}

#[tokio::test]
async fn a_value_that_was_moved_or_changed_does_not_open() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    write_conversation(&open(&path, &[FIRST])).await;
    let db = rusqlite::Connection::open(&path).expect("opens");
    // The text of one artefact in the place of a line that has another.
    let moved = "UPDATE lines SET body = (SELECT body FROM lines WHERE seq = 1 LIMIT 1) WHERE seq = 2";
    db.execute(moved, []).expect("moved");
    drop(db);
    let error = open(&path, &[FIRST]).load_journal(&"run".into(), 0).await.expect_err("it is not its place");
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}

#[test]
fn a_text_without_keys_is_refused() {
    let error = |text: &str| EncryptionKeys::from_text(text).expect_err("refused");
    assert_eq!(error("windlass keys 1\n"), EncryptionKeyError::MissingHeader);
    assert_eq!(error("windlass encryption keys 1\n"), EncryptionKeyError::NoKey);
    assert_eq!(error("windlass encryption keys 1\nabc\n"), EncryptionKeyError::InvalidKey { line: 2 });
    let keys = EncryptionKeys::from_text(&EncryptionKeys::text_of_secrets(&[FIRST, SECOND])).expect("keys");
    assert_eq!(keys.ids().count(), 2);
    assert!(!format!("{keys:?}").contains(&Digest::from_bytes(FIRST).to_string()));
}

/// Processes of one store, each with keys of its own.
struct KeyedProcesses {
    inner: Arc<MemoryStore>,
    old: Arc<EncryptedStore>,
    both: Arc<EncryptedStore>,
}

impl KeyedProcesses {
    fn new() -> Self {
        let inner = Arc::new(MemoryStore::default());
        let with = |secrets: &[[u8; 32]]| {
            let text = EncryptionKeys::text_of_secrets(secrets);
            let keys = EncryptionKeys::from_text(&text).expect("they are keys");
            Arc::new(EncryptedStore::new(inner.clone(), keys))
        };
        let (old, both) = (with(&[FIRST]), with(&[FIRST, SECOND]));
        Self { inner, old, both }
    }

    async fn state(&self, run: &str) -> (QueuedState, u32) {
        let queued = self.inner.load_queued_run(&RunId::from(run)).await.expect("loaded");
        queued.map(|queued| (queued.state, queued.attempt)).expect("it is there")
    }
}

async fn submit(queue: &EncryptedStore, run: &str) {
    let submitted = queue.submit_run(&RunSubmission::new(run, "desk", "Go."), Default::default()).await;
    assert_eq!(submitted.expect("submitted"), SubmitResult::Accepted);
}

async fn work(queue: &Arc<EncryptedStore>) -> WorkerReport {
    let schema = json!({ "type": "object", "properties": {} });
    let send = Tool::dynamic("send", "Sends.", schema, |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("sent")
    });
    // A run whose input says so calls the tool once.
    let model = ScriptedModel::from_fn(|request| {
        let lines = request.input_text();
        let has = |beginning: &str| lines.iter().any(|line| line.starts_with(beginning));
        match has("user: send") && !has("output") {
            true => ScriptedResponse::call("c1", "send", json!({})),
            false => ScriptedResponse::text("Done."),
        }
    });
    let agent = Agent::new("desk").model(model).tool(send.needs_approval());
    let registry = AgentRegistry::new().deploy(DeployedAgent::new(agent));
    Worker::new(queue.clone(), registry).run_until_idle().await.expect("it works")
}

#[tokio::test]
async fn a_worker_leaves_what_it_cannot_open_to_those_who_have_the_key() {
    let processes = KeyedProcesses::new();
    let KeyedProcesses { inner, old, both } = &processes;
    submit(both, "new").await;
    submit(old, "plain").await;
    for run in ["ordered", "asking"] {
        let asking = RunSubmission::new(run, "desk", "send");
        old.submit_run(&asking, Default::default()).await.expect("submitted");
    }
    let input = QueueOrder::AddInput { items: vec![Arc::new(Item::user("More."))] };
    both.post_order(&"ordered".into(), &input).await.expect("ordered");
    let report = work(old).await;
    assert_eq!((report.ended, report.parked, report.failed), (1, 1, 0), "{report:?}");
    let listed = old.list_queued_runs(QueueFilter::Open, None, 9).await.expect("listed");
    let new = listed.iter().find(|queued| queued.submission.run.as_str() == "new").expect("it is listed");
    assert!(new.submission.input.is_empty());
    let reason = new.reason.as_deref().unwrap_or_default();
    assert!(reason.contains("which is not given"), "{reason}");
    for run in ["new", "ordered"] {
        let (state, attempt) = processes.state(run).await;
        assert!(matches!(state, QueuedState::Waiting { .. }), "{run}: {state:?}");
        assert_eq!(attempt, 0, "{run}: nobody has tried it");
        inner.revive_run(&run.into()).await.expect("woken");
    }
    let report = work(both).await;
    assert_eq!((report.ended, report.parked), (1, 1), "{report:?}");
    let ordered = load_paused(&**both, &"ordered".into()).await.expect("it opens");
    let added = |entry: &JournalEntry| matches!(entry, JournalEntry::InputAdded(_));
    assert_eq!(ordered.record().journal().iter().filter(|record| added(&record.entry)).count(), 1);
    // A decision that was sealed with the new key.
    let edited = Decision::Reject { message: Some("no".to_owned()) };
    let posted = post_decision(&**both, &"asking".into(), "c1", edited, DecisionScope::ThisCall, "ann").await;
    posted.expect("posted");
    let report = work(old).await;
    assert_eq!((report.ended, report.failed), (0, 1), "{report:?}");
    assert!(matches!(processes.state("asking").await, (QueuedState::Waiting { .. }, 0)));
    inner.revive_run(&"asking".into()).await.expect("woken");
    assert_eq!(work(both).await.ended, 1);
}

#[tokio::test]
async fn a_repetition_is_recognised_after_a_key_was_rotated() {
    let KeyedProcesses { inner, old, both } = &KeyedProcesses::new();
    submit(old, "run").await;
    let again = both.submit_run(&RunSubmission::new("run", "desk", "Go."), Default::default()).await;
    assert_eq!(again.expect("the same"), SubmitResult::AlreadySubmitted);
    let other = both.submit_run(&RunSubmission::new("run", "desk", "Stop."), Default::default()).await;
    assert_eq!(other.expect_err("another").kind(), StoreErrorKind::AlreadyExists);
    old.submit_run(&RunSubmission::new("asking", "desk", "send"), Default::default())
        .await
        .expect("submitted");
    work(old).await;
    let run = RunId::from("asking");
    let reject = |message: &str| Decision::Reject { message: Some(message.to_owned()) };
    let post = async |store: &EncryptedStore, message: &str| {
        let posted = post_decision(store, &run, "c1", reject(message), DecisionScope::ThisCall, "ann").await;
        posted.expect("posted");
        let known = inner.posted_decisions(&run).await.expect("loaded").remove(0);
        known.decision.posted_revision
    };
    assert_eq!(post(old, "no").await, 1);
    assert_eq!(post(both, "no").await, 1, "it says the same");
    assert_eq!(post(both, "never").await, 2, "it corrects the first");
}

/// A damaged row does not stand in front of others.
#[tokio::test]
async fn a_damaged_row_of_the_queue_is_a_dead_letter() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let store = open(&path, &[FIRST]);
    for run in ["1-damaged", "2-ordered", "3-cancelled", "4-whole"] {
        submit(&store, run).await;
    }
    let input = QueueOrder::AddInput { items: vec![Arc::new(Item::user("More."))] };
    for run in ["2-ordered", "3-cancelled"] {
        store.post_order(&run.into(), &input).await.expect("ordered");
    }
    store.post_order(&"3-cancelled".into(), &QueueOrder::Cancel).await.expect("ordered");
    drop(store);
    let db = rusqlite::Connection::open(&path).expect("opens");
    db.execute("UPDATE queue SET body = '{' WHERE run = '1-damaged'", []).expect("damaged");
    db.execute("UPDATE queue_orders SET body = '{' WHERE number <= 2", []).expect("damaged");
    drop(db);
    let store = open(&path, &[FIRST]);
    let report = work(&store).await;
    assert_eq!((report.ended, report.failed), (2, 0), "{report:?}");
    let listed = store.list_queued_runs(QueueFilter::Open, None, 9).await.expect("listed");
    let inputs = listed.iter().map(|queued| (queued.submission.run.as_str(), queued.submission.input.len()));
    assert_eq!(inputs.collect::<Vec<_>>(), [("1-damaged", 0), ("2-ordered", 1)]);
    assert!(listed.iter().all(|queued| queued.state == QueuedState::DeadLetter), "{listed:?}");
    drop(store);
    let db = rusqlite::Connection::open(&path).expect("opens");
    let mut select = db.prepare("SELECT state, reason FROM queue ORDER BY run").expect("a statement");
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("read");
    let rows: Vec<(String, Option<String>)> = rows.collect::<Result<_, _>>().expect("read");
    let states: Vec<&str> = rows.iter().map(|(state, _)| state.as_str()).collect();
    assert_eq!(states, ["dead", "dead", "ended", "ended"]);
    let reason = rows[0].1.as_deref().unwrap_or_default();
    assert!(reason.contains("does not fit its hash"), "{reason}");
}
