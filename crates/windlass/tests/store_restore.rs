//! A store that was restored from a backup repeats no effect that its runs made after the backup.

#![cfg(feature = "sqlite")]
#![allow(clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use windlass::core::decision::{Decision, DecisionScope, HoldReason, PendingCall};
use windlass::core::id::RunId;
use windlass::core::journal::JournalEntry;
use windlass::error::StoreErrorKind;
use windlass::fleet::{QueuedState, RunQueue, RunSubmission};
use windlass::prelude::*;
use windlass::store::{
    MemoryStore, RunQuery, RunStatus, SqliteStore, Store, StoreWarning, load_paused, mark_restored,
    post_decision, verify_run,
};

/// The world outside: the payments that were made.
type Payments = Mutex<Vec<u64>>;

/// Pays an amount. A person approves it.
#[tool(needs_approval = always)]
async fn pay(ctx: &ToolContext<Payments>, cents: u64) -> Result<String, ToolError> {
    ctx.lock().map_err(|_| ToolError::hidden("stuck"))?.push(cents);
    Ok("paid".to_owned())
}

fn bank(replies: Vec<ScriptedResponse>) -> Agent<Payments> {
    Agent::new("bank").model(ScriptedModel::new(replies)).tool(pay)
}

fn pay_call(id: &str, cents: u64) -> ScriptedResponse {
    ScriptedResponse::call(id, "pay", json!({ "cents": cents }))
}

struct BankPlace {
    folder: tempfile::TempDir,
    payments: Arc<Payments>,
}

impl BankPlace {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), payments: Arc::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, name: &str) -> Arc<SqliteStore> {
        Arc::new(SqliteStore::open(self.path(name)).expect("opens"))
    }

    fn paid(&self) -> Vec<u64> {
        self.payments.lock().expect("free").clone()
    }

    async fn start(&self, store: &Arc<SqliteStore>, replies: Vec<ScriptedResponse>) {
        let run = bank(replies).run_with_context("Pay.", self.payments.clone());
        run.run_id("run").store(store.clone()).await.expect("it pauses").into_paused().expect("paused");
    }

    /// Drives the run until it waits, and returns the call that it waits for; `None` if it has ended.
    async fn drive(&self, store: &Arc<SqliteStore>, replies: Vec<ScriptedResponse>) -> Option<PendingCall> {
        let outcome = bank(replies)
            .recover_with_context("run", store.clone(), self.payments.clone())
            .await
            .expect("driven");
        outcome.into_paused().map(|paused| paused.pending_calls().remove(0))
    }
}

async fn decide(store: &SqliteStore, call: &str, decision: Decision) {
    let posted =
        post_decision(store, &RunId::from("run"), call, decision, DecisionScope::ThisCall, "dee").await;
    posted.expect("posted");
}

async fn restore(backup: &Path, path: &Path) -> Vec<RunId> {
    SqliteStore::restore(backup, path).await.expect("restored").open_runs
}

#[tokio::test]
async fn a_payment_that_was_made_after_the_backup_is_not_made_again() {
    let place = BankPlace::new();
    let store = place.open("store.db");
    place.start(&store, vec![pay_call("c1", 5)]).await;
    store.backup(place.path("backup.db")).await.expect("copied");
    decide(&store, "c1", Decision::Approve).await;
    assert_eq!(place.drive(&store, vec![ScriptedResponse::text("Done.")]).await, None);
    assert_eq!(place.paid(), [5]);
    drop(store);

    assert_eq!(restore(&place.path("backup.db"), &place.path("new.db")).await, [RunId::from("run")]);
    let store = place.open("new.db");
    assert_eq!(store.warnings(), []);
    let pending = place.drive(&store, Vec::new()).await.expect("it waits");
    assert_eq!(pending.reason, HoldReason::InDoubt, "nobody is asked to approve it first");
    let refused =
        post_decision(&*store, &"run".into(), "c1", Decision::Approve, DecisionScope::ThisCall, "dee").await;
    refused.expect_err("an approval does not say whether it happened");
    decide(&store, "c1", Decision::ConfirmExecuted { output: "paid".into() }).await;
    // The next call may be one that the lost run made, too.
    let pending = place.drive(&store, vec![pay_call("c2", 6)]).await.expect("it waits");
    assert_eq!((pending.call().as_str(), &pending.reason), ("c2", &HoldReason::InDoubt));
    decide(&store, "c2", Decision::ConfirmNotExecuted).await;
    let pending = place.drive(&store, Vec::new()).await.expect("it waits");
    assert_eq!(pending.reason, HoldReason::Approval, "that it did not happen is no approval");
    assert_eq!(place.paid(), [5]);
    decide(&store, "c2", Decision::Approve).await;
    assert_eq!(place.drive(&store, vec![ScriptedResponse::text("Done.")]).await, None);
    assert_eq!(place.paid(), [5, 6]);
    verify_run(&*store, &"run".into()).await.expect("the chain goes on");
}

#[tokio::test]
async fn an_approval_that_was_posted_before_the_backup_starts_nothing_after_it() {
    let place = BankPlace::new();
    let store = place.open("store.db");
    place.start(&store, vec![pay_call("c1", 5)]).await;
    decide(&store, "c1", Decision::Approve).await;
    store.backup(place.path("backup.db")).await.expect("copied");
    drop(store);
    restore(&place.path("backup.db"), &place.path("new.db")).await;
    let store = place.open("new.db");
    let pending = place.drive(&store, Vec::new()).await.expect("it waits");
    assert_eq!((pending.reason, place.paid()), (HoldReason::InDoubt, Vec::new()));
}

#[tokio::test]
async fn a_backup_is_read_and_not_driven() {
    let place = BankPlace::new();
    let store = place.open("store.db");
    place.start(&store, vec![pay_call("c1", 5)]).await;
    store.backup(place.path("backup.db")).await.expect("copied");
    drop(store);
    for name in ["backup.db", "store.db"] {
        // Also if somebody puts the backup in place by hand.
        if name == "store.db" {
            std::fs::copy(place.path("backup.db"), place.path(name)).expect("put in place");
        }
        let backup = place.open(name);
        assert_eq!(backup.warnings(), [StoreWarning::Backup], "{name}");
        let known = load_paused(&*backup, &"run".into()).await.expect("it can be read");
        assert_eq!(known.pending_calls().len(), 1);
        let run = bank(Vec::new()).recover_with_context("run", backup.clone(), place.payments.clone()).await;
        let error = run.expect_err("it is not driven").to_string();
        assert!(error.contains("is a backup"), "{error}");
        let submission = RunSubmission::new("other", "bank", "Pay.");
        let error = backup.submit_run(&submission, Default::default()).await.expect_err("nothing is written");
        assert_eq!(error.kind(), StoreErrorKind::NotRestored);
    }
    let error = SqliteStore::restore(place.path("backup.db"), place.path("store.db")).await;
    assert_eq!(error.expect_err("it exists").kind(), StoreErrorKind::AlreadyExists);
    let error = SqliteStore::restore(place.path("none.db"), place.path("new.db")).await;
    error.expect_err("there is no backup");
    assert!(!place.path("new.db").exists());
}

#[tokio::test]
async fn ended_runs_stay_and_parked_ones_become_ready() {
    let place = BankPlace::new();
    let store = place.open("store.db");
    place.start(&store, vec![pay_call("c1", 5)]).await;
    let run = bank(vec![ScriptedResponse::text("Done.")]).run_with_context("Hello.", place.payments.clone());
    run.run_id("ended").store(store.clone()).await.expect("it ends");
    store.backup(place.path("backup.db")).await.expect("copied");
    drop(store);
    // An interrupted restore is begun anew.
    std::fs::write(place.path("new.db.partial"), "half").expect("written");
    restore(&place.path("backup.db"), &place.path("new.db")).await;
    let store = place.open("new.db");
    let open = RunQuery { statuses: vec![RunStatus::Running, RunStatus::Paused], ..RunQuery::default() };
    let open = store.list_runs(&open).await.expect("listed");
    assert_eq!(open.iter().map(|run| run.run.as_str()).collect::<Vec<_>>(), ["run"]);
    let marks = async |run: &str| {
        let journal = verify_run(&*store, &run.into()).await.expect("whole").records;
        journal.iter().filter(|record| matches!(record.entry, JournalEntry::RunRestored(_))).count()
    };
    assert_eq!((marks("run").await, marks("ended").await), (1, 0));
    mark_restored(&*store).await.expect("again");
    assert_eq!(marks("run").await, 1, "a repetition has no effect");
    assert!(!place.path("new.db.partial").exists());
}

#[tokio::test]
async fn the_queue_of_a_restored_store_has_no_workers_and_drives_what_was_parked() {
    let queue = MemoryStore::default();
    let now = Default::default();
    let submission = RunSubmission::new("run", "bank", "Pay.");
    queue.submit_run(&submission, now).await.expect("submitted");
    let claim = windlass::store::LeaseClaim { owner: "w", now, duration: std::time::Duration::from_secs(1) };
    queue.register_worker(claim).await.expect("registered");
    let request = windlass::fleet::WorkRequest {
        worker: "w".to_owned(),
        now,
        held: None,
        offers: vec![windlass::fleet::AgentOffer { agent: "bank".into(), build: "b".to_owned() }],
        limit: 1,
        only: None,
    };
    assert_eq!(queue.take_work(&request).await.expect("taken").runs.len(), 1);
    mark_restored(&queue).await.expect("marked");
    assert_eq!(queue.list_workers().await.expect("listed"), []);
    let known = queue.load_queued_run(&"run".into()).await.expect("loaded").expect("it is there");
    assert_eq!(known.state, QueuedState::Ready);
}
