//! A run refers to the history of its session by position: nothing is copied, and the model's view is exact at replay.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use windlass::core::inspect::ForkChange;
use windlass::core::item::Item;
use windlass::core::run::Run;
use windlass::error::{ConfigError, RunError};
use windlass::model::describe_item;
use windlass::prelude::*;
use windlass::run::PausedRun;
use windlass::session::{CompactionPolicy, Session};
use windlass::store::{SqliteStore, Store, fork_run, load_paused, verify_run};

fn open_store(folder: &tempfile::TempDir) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(folder.path().join("windlass.db")).expect("the store opens"))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn talker(model: &ScriptedModel) -> Agent {
    Agent::new("host").model(model.clone())
}

/// Returns an agent whose first response calls a tool that needs approval.
fn payer(model: &ScriptedModel) -> Agent {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let pay = Tool::dynamic("pay", "Pays.", schema, |_, _| async { Ok::<_, ToolError>("paid 40") });
    Agent::new("till").model(model.clone()).tool(pay.needs_approval())
}

fn paying_model() -> ScriptedModel {
    ScriptedModel::new([
        ScriptedResponse::items([Item::call("c1", "pay", "{}")]),
        ScriptedResponse::text("It is paid."),
    ])
}

fn descriptions(items: &[Arc<Item>]) -> Vec<String> {
    items.iter().map(|item| describe_item(item)).collect()
}

fn size_on_disk(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).expect("the folder can be read");
    files.map(|file| file.expect("a file").metadata().expect("its size").len()).sum()
}

/// Talks once, so that the session has two items.
async fn greet(session: &Session, store: &Arc<SqliteStore>) {
    let model = ScriptedModel::new([ScriptedResponse::text("Good morning.")]);
    talker(&model).run("Hello.").session(session).store(store.clone()).await.expect("it ends");
}

/// Starts a run that pauses.
async fn pause(session: &Session, store: &Arc<SqliteStore>, run: &str) -> PausedRun {
    let paused = payer(&paying_model()).run("Pay.").session(session).store(store.clone()).run_id(run);
    paused.await.expect("it pauses").into_paused().expect("it pauses")
}

/// An agent that goes on after the approval.
fn finisher() -> Agent {
    payer(&ScriptedModel::new([ScriptedResponse::text("It is paid.")]))
}

#[tokio::test]
async fn four_hundred_turns_of_a_kilobyte_take_less_than_three_megabytes() {
    let folder = folder();
    let store = open_store(&folder);
    let session = Session::new("s", store.clone());
    let answer = "a".repeat(512);
    for turn in 0..400 {
        let model = ScriptedModel::new([ScriptedResponse::text(answer.clone())]);
        let question = format!("{turn} {}", "q".repeat(508));
        talker(&model).run(question).session(&session).store(store.clone()).await.expect("it ends");
    }
    assert_eq!(session.items().await.expect("it can be read").len(), 800);
    drop(session);
    drop(store);
    let size = size_on_disk(folder.path());
    println!("{size} bytes on disk");
    assert!(size < 3_000_000, "{size} bytes");
}

#[tokio::test]
async fn a_start_names_positions_and_the_model_sees_the_items() {
    let folder = folder();
    let store = open_store(&folder);
    let session = Session::new("s", store.clone());
    greet(&session, &store).await;
    let model = paying_model();
    let run = payer(&model).run("Pay.").session(&session).store(store.clone()).run_id("r");
    let paused = run.await.expect("it pauses").into_paused().expect("it pauses");
    let seen = descriptions(&model.requests()[0].input);
    assert_eq!(seen, ["user: Hello.", "assistant: Good morning.", "user: Pay."]);
    let lines = store.load_journal(&"r".into(), 0).await.expect("it can be read");
    assert!(!lines[0].body.contains("Good morning"), "{}", lines[0].body);
    // The values in memory have the items, so that they replay as they are.
    let replayed = Run::replay(paused.record().journal()).expect("it replays").run;
    assert_eq!(&replayed, paused.record().state());
    let loaded = load_paused(&*store, &"r".into()).await.expect("it can be opened");
    assert_eq!(loaded.record().history(), paused.record().history());
    verify_run(&*store, &"r".into()).await.expect("it is what was written");
}

#[tokio::test]
async fn limits_and_missing_pairs_give_the_same_view_at_replay() {
    let folder = folder();
    let store = open_store(&folder);
    let session = Session::new("s", store.clone());
    greet(&session, &store).await;
    let lost = vec![Arc::new(Item::call("lost", "look", "{}")), Arc::new(Item::user("Are you there?"))];
    session.append(lost).await.expect("it can be written");
    greet(&session, &store).await;
    for limit in 0..8 {
        let model = paying_model();
        let limited = session.clone().history_limit(limit);
        let run =
            payer(&model).run("Pay.").session(&limited).store(store.clone()).run_id(format!("r{limit}"));
        run.await.expect("it pauses");
        let seen = model.requests()[0].input.clone();
        let loaded = load_paused(&*store, &format!("r{limit}").into()).await.expect("it can be opened");
        assert_eq!(descriptions(loaded.record().state().last_model_input()), descriptions(&seen));
        session.rewind(1).await.expect("nobody else writes");
    }
}

#[tokio::test]
async fn compaction_rewind_and_clear_keep_what_runs_refer_to() {
    let folder = folder();
    let store = open_store(&folder);
    let session = Session::new("s", store.clone());
    greet(&session, &store).await;
    let first = pause(&session, &store, "first").await;
    session.compact(&CompactionPolicy::above_items(2, 1)).await.expect("it can be compacted");
    let second = pause(&session, &store, "second").await;
    session.rewind(1).await.expect("nobody else writes");
    let third = pause(&session, &store, "third").await;
    session.clear().await.expect("nobody else writes");
    assert_eq!(session.items().await.expect("it can be read"), []);
    for (name, paused) in [("first", first), ("second", second), ("third", third)] {
        let loaded = load_paused(&*store, &name.into()).await.expect("it can be opened");
        assert_eq!(loaded.record().history(), paused.record().history(), "{name}");
        let mut approved = loaded;
        approved.approve("c1").expect("it waits");
        finisher().resume(approved).store(store.clone()).await.expect("it ends");
    }
    // The items that the session no longer shows go with the last run that refers to them.
    for name in ["first", "second", "third"] {
        assert!(stored_items(&folder).contains("Good morning"), "{name} refers to it");
        store.forget_run(&name.into(), None).await.expect("it has ended");
    }
    let shown = descriptions(&session.items().await.expect("it can be read"));
    assert_eq!(shown.len(), 9, "{shown:?}");
    let stored = stored_items(&folder);
    assert!(!stored.contains("Good morning"), "nobody refers to it: {stored}");
}

/// Returns the texts of all items in the file.
fn stored_items(folder: &tempfile::TempDir) -> String {
    let db = rusqlite::Connection::open(folder.path().join("windlass.db")).expect("it is a database");
    let mut select = db.prepare("SELECT body FROM items ORDER BY seq").expect("there is a table");
    let bodies = select.query_map([], |row| row.get::<_, String>(0)).expect("it can be read");
    bodies.map(|body| body.expect("it is text") + "\n").collect()
}

#[tokio::test]
async fn a_text_opens_without_the_store_and_goes_on_in_another() {
    let folder = folder();
    let store = open_store(&folder);
    let session = Session::new("s", store.clone());
    greet(&session, &store).await;
    let text = pause(&session, &store, "r").await.to_text();
    session.clear().await.expect("nobody else writes");
    let restore = || {
        let mut paused = PausedRun::from_text(&text).expect("the text has all that it needs");
        paused.approve("c1").expect("it waits");
        paused
    };
    let elsewhere = self::folder();
    let other = open_store(&elsewhere);
    let model = ScriptedModel::new([ScriptedResponse::text("It is paid.")]);
    // A session of the same name in the other store is another conversation.
    let theirs = Session::new("s", other.clone());
    theirs.append(vec![Arc::new(Item::user("Ours?"))]).await.expect("nobody else writes");
    let error = payer(&model).resume(restore()).store(other.clone()).await.expect_err("which session?");
    assert!(matches!(&error, RunError::Config(ConfigError::NoSession { .. })), "{error}");
    assert_eq!(other.load_journal(&"r".into(), 0).await.expect("it can be read"), Vec::new());
    assert_eq!(descriptions(&theirs.items().await.expect("it can be read")), ["user: Ours?"]);
    let ours = Session::in_memory("s");
    payer(&model).resume(restore()).store(other.clone()).session(&ours).await.expect("it ends");
    assert_eq!(
        descriptions(&ours.items().await.expect("it can be read")),
        ["user: Pay.", "call c1 pay {}", "output c1 paid 40", "assistant: It is paid."]
    );
    assert_eq!(descriptions(&theirs.items().await.expect("it can be read")), ["user: Ours?"]);
    // Nor does a later driver take it for the run's.
    let error = payer(&model).recover("r", other.clone()).await.expect_err("which session?");
    assert!(matches!(&error, RunError::Config(ConfigError::NoSession { .. })), "{error}");
    let seen = descriptions(&model.requests()[0].input);
    assert_eq!(
        seen,
        ["user: Hello.", "assistant: Good morning.", "user: Pay.", "call c1 pay {}", "output c1 paid 40"]
    );
    verify_run(&*other, &"r".into()).await.expect("the other store has the history");
    // The lines are the same, so the text still fits the store that it comes from.
    finisher().resume(restore()).store(store.clone()).await.expect("it ends");
    // A text without its history is refused with the name of the session.
    let cut: Vec<&str> = text.lines().filter(|line| !line.starts_with("history ")).collect();
    let error = PausedRun::from_text(&cut.join("\n")).expect_err("the history is missing");
    assert!(error.to_string().contains("session `s`"), "{error}");
}

#[tokio::test]
async fn a_changed_item_of_the_session_is_found() {
    let folder = folder();
    let store = open_store(&folder);
    let session = Session::new("s", store.clone());
    greet(&session, &store).await;
    let items = session.items().await.expect("it can be read");
    pause(&session, &store, "r").await;
    drop((session, store));
    // Somebody puts another item in the place of one that the run has seen.
    let other = folder.path().join("windlass.db");
    let db = rusqlite::Connection::open(&other).expect("it is a database");
    let changed = serde_json::to_string(&Item::assistant("Good evening.")).expect("it is plain");
    let known = serde_json::to_string(&items[1]).expect("it is plain");
    let digest = windlass::core::canonical::Digest::of_text(&changed);
    let count = db.execute(
        "UPDATE items SET body = ?1, hash = ?2 WHERE body = ?3",
        rusqlite::params![changed, digest.as_bytes().as_slice(), known],
    );
    assert_eq!(count.expect("the table is there"), 1);
    drop(db);
    let store = open_store(&folder);
    let error = load_paused(&*store, &"r".into()).await.expect_err("the model saw something else");
    assert!(error.to_string().contains("session `s` is not what the run started with"), "{error}");
    verify_run(&*store, &"r".into()).await.expect_err("the model saw something else");
}

#[tokio::test]
async fn a_fork_has_its_history_inline() {
    let folder = folder();
    let store = open_store(&folder);
    let session = Session::new("s", store.clone());
    greet(&session, &store).await;
    let paused = pause(&session, &store, "r").await;
    let fork =
        fork_run(&*store, &"r".into(), 1, "fork".into(), ForkChange::Unchanged).await.expect("it forks");
    assert_eq!(fork.record().history(), paused.record().history());
    session.clear().await.expect("nobody else writes");
    store.forget_run(&"r".into(), None).await.expect("it is parked");
    let loaded = load_paused(&*store, &"fork".into()).await.expect("it needs no session");
    assert_eq!(loaded.record().history(), paused.record().history());
}

#[tokio::test]
async fn a_session_elsewhere_is_inline_and_must_be_handed_over() {
    let folder = folder();
    let store = open_store(&folder);
    let session = Session::in_memory("s");
    greet(&session, &store).await;
    pause(&session, &store, "r").await;
    let mut loaded = load_paused(&*store, &"r".into()).await.expect("it needs no session");
    assert_eq!(loaded.record().history()[..2], session.items().await.expect("it can be read")[..2]);
    loaded.approve("c1").expect("it waits");
    let error = finisher().resume(loaded.clone()).store(store.clone()).await.expect_err("where is it?");
    let RunError::Config(ConfigError::NoSession { session: name, .. }) = &error else { panic!("{error}") };
    assert_eq!(name.as_str(), "s");
    finisher().resume(loaded).store(store.clone()).session(&session).await.expect("it ends");
    let last = descriptions(&session.items().await.expect("it can be read")).pop();
    assert_eq!(last.as_deref(), Some("assistant: It is paid."));
}

#[tokio::test]
async fn the_next_run_knows_of_the_approved_call() {
    let folder = folder();
    let store = open_store(&folder);
    let session = Session::new("s", store.clone());
    let mut paused = pause(&session, &store, "r").await;
    paused.approve("c1").expect("it waits");
    finisher().resume(paused).store(store.clone()).await.expect("it ends");
    let model = ScriptedModel::new([ScriptedResponse::text("Yes.")]);
    talker(&model).run("Is it paid?").session(&session).store(store.clone()).await.expect("it ends");
    assert_eq!(
        descriptions(&model.requests()[0].input),
        ["user: Pay.", "call c1 pay {}", "output c1 paid 40", "assistant: It is paid.", "user: Is it paid?"]
    );
}
