//! A store that was restored from a backup repeats no effect that its runs made after the backup.

#![cfg(feature = "sqlite")]
#![allow(clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use windlass::core::canonical::Digest;
use windlass::core::decision::{Decision, DecisionScope, HoldReason, PendingCall};
use windlass::core::id::{RunId, Timestamp};
use windlass::core::journal::JournalEntry;
use windlass::error::StoreErrorKind;
use windlass::fleet::{QueueFilter, QueuedState, RunQueue, RunSchedule, RunSubmission, fire_schedules};
use windlass::model::describe_item;
use windlass::prelude::*;
use windlass::store::{
    LeaseClaim, MemoryStore, ReceiptClaim, ReceiptKey, RunQuery, RunStatus, SkippedSchedule, SqliteStore,
    Store, StoreWarning, StoredReceipt, load_paused, mark_restored, post_decision, verify_run,
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
    assert_eq!((count_marks(&*store, "run").await, count_marks(&*store, "ended").await), (1, 0));
    mark_restored(&*store).await.expect("again");
    assert_eq!(count_marks(&*store, "run").await, 1, "a repetition has no effect");
    assert!(!place.path("new.db.partial").exists());
}

/// Returns a claim of a driver or a worker.
fn claim(owner: &str, now: u64) -> LeaseClaim<'_> {
    LeaseClaim { owner, now: Timestamp(now), duration: std::time::Duration::from_secs(1) }
}

async fn count_marks(store: &dyn Store, run: &str) -> usize {
    let journal = verify_run(store, &run.into()).await.expect("whole").records;
    journal.iter().filter(|record| matches!(record.entry, JournalEntry::RunRestored(_))).count()
}

/// A driver died between the end of its run and the last turn in the session, which is in another store.
#[tokio::test]
async fn a_run_that_ended_before_its_session_has_it_is_not_marked() {
    let place = BankPlace::new();
    let store = place.open("store.db");
    let run = bank(vec![ScriptedResponse::text("Done.")]).run_with_context("Hello.", place.payments.clone());
    let run = run.run_id("ended").session(&Session::in_memory("s")).store(store.clone());
    run.await.expect("it ends");
    let lease = store.acquire_lease(&"ended".into(), claim("dead", 1), None).await.expect("free");
    store.set_status(&lease, RunStatus::Running, Timestamp(1)).await.expect("as before its end");
    store.backup(place.path("backup.db")).await.expect("copied");
    drop(store);

    assert_eq!(restore(&place.path("backup.db"), &place.path("new.db")).await, Vec::<RunId>::new());
    let store = place.open("new.db");
    assert_eq!(count_marks(&*store, "ended").await, 0);
    let session = Session::in_memory("s");
    let recovered = bank(Vec::new()).recover_with_context("ended", store.clone(), place.payments.clone());
    recovered.session(&session).await.expect("it has ended");
    let items = session.items().await.expect("loaded");
    let items: Vec<_> = items.iter().map(|item| describe_item(item)).collect();
    assert_eq!(items, ["user: Hello.", "assistant: Done."]);
    let listed = store.list_runs(&RunQuery::default()).await.expect("listed");
    assert_eq!(listed[0].status, RunStatus::Finished);
}

#[tokio::test]
async fn a_fencing_token_does_not_go_back() {
    let place = BankPlace::new();
    let store = place.open("store.db");
    place.start(&store, vec![pay_call("c1", 5)]).await;
    store.backup(place.path("backup.db")).await.expect("copied");
    let mut last = 0;
    for _ in 0..20 {
        let lease = store.acquire_lease(&"run".into(), claim("driver", 1), None).await.expect("free");
        store.release_lease(&lease).await.expect("released");
        last = lease.epoch;
    }
    drop(store);
    restore(&place.path("backup.db"), &place.path("new.db")).await;
    let store = place.open("new.db");
    let lease = store.acquire_lease(&"run".into(), claim("driver", 1), None).await.expect("free");
    assert!(lease.epoch > last, "{} after {last}", lease.epoch);
}

#[tokio::test]
async fn an_expired_receipt_does_not_give_out_a_key_again() {
    let store = MemoryStore::default();
    let key = |name: &str| ReceiptKey { scope: String::new(), digest: Digest::of_text(name) };
    let receipts = [("expiring", 3, true, Some(10)), ("expired", 3, false, None), ("lasting", 3, true, None)];
    for (name, generation, has_output, expires_at) in receipts {
        let output = has_output.then(|| "paid".into());
        let expires_at = expires_at.map(Timestamp);
        let receipt = StoredReceipt { key: key(name), generation, output, expires_at };
        store.import_receipt(&receipt).await.expect("imported");
    }
    mark_restored(&store).await.expect("marked");
    let early = store.claim_receipt(&key("expiring"), claim("driver", 9), None).await.expect("answered");
    assert_eq!(early, ReceiptClaim::Completed("paid".into()), "it still answers");
    // The lost store may have had the generations after 3.
    for name in ["expiring", "expired"] {
        let claimed = store.claim_receipt(&key(name), claim("driver", 10), None).await.expect("answered");
        let ReceiptClaim::Acquired { generation } = claimed else { panic!("{name}: {claimed:?}") };
        assert!(generation > 1_000, "{name}: {generation}");
    }
    let lasting = store.claim_receipt(&key("lasting"), claim("driver", 10), None).await.expect("answered");
    assert_eq!(lasting, ReceiptClaim::Completed("paid".into()));
}

/// Returns the stores whose queue is restored.
fn restored_queues(place: &BankPlace) -> [Arc<dyn RunQueue>; 2] {
    [Arc::new(MemoryStore::default()), place.open("queue.db")]
}

async fn queue_state(queue: &dyn RunQueue, run: &str) -> QueuedState {
    queue.load_queued_run(&run.into()).await.expect("loaded").expect("it is there").state
}

#[tokio::test]
async fn submitted_runs_that_may_have_run_are_dead_letters() {
    let place = BankPlace::new();
    for queue in restored_queues(&place) {
        let now = Timestamp(1);
        let distant = Timestamp(u64::from(u32::MAX) * 1_000);
        let submission = |run: &str| RunSubmission::new(run, "bank", "Pay.");
        for run in ["taken", "ready", "begun"] {
            queue.submit_run(&submission(run), now).await.expect("submitted");
        }
        let later = submission("later").start_at(distant);
        queue.submit_run(&later, now).await.expect("submitted");
        // Its time has come since the backup.
        queue.submit_run(&submission("due").start_at(Timestamp(5)), now).await.expect("submitted");
        let store: Arc<dyn Store> = queue.clone();
        let begun = bank(vec![pay_call("c1", 5)]).run_with_context("Pay.", place.payments.clone());
        begun.run_id("begun").store(store).await.expect("it waits").into_paused().expect("it waits");
        queue.register_worker(claim("w", 1)).await.expect("registered");
        let request = windlass::fleet::WorkRequest {
            worker: "w".to_owned(),
            now,
            held: None,
            offers: vec![windlass::fleet::AgentOffer { agent: "bank".into(), build: "b".to_owned() }],
            limit: 1,
            only: Some("taken".into()),
        };
        assert_eq!(queue.take_work(&request).await.expect("taken").runs.len(), 1);

        let report = mark_restored(&*queue).await.expect("marked");
        let buried = ["due", "ready", "taken"].map(RunId::from);
        assert_eq!(report.buried_runs, buried, "a person is told of them");
        assert_eq!(report.open_runs, [RunId::from("begun")]);
        assert_eq!(queue.list_workers().await.expect("listed"), []);
        for run in &buried {
            assert_eq!(queue_state(&*queue, run.as_str()).await, QueuedState::DeadLetter, "{run}");
        }
        let known = queue.load_queued_run(&"ready".into()).await.expect("loaded").expect("it is there");
        assert!(known.reason.is_some_and(|reason| reason.contains("may have run since")));
        assert_eq!(queue_state(&*queue, "begun").await, QueuedState::Ready);
        assert_eq!(queue_state(&*queue, "later").await, QueuedState::Waiting { until: distant });
        // A repetition names them again, until a person revives them.
        queue.revive_run(&"taken".into()).await.expect("revived");
        assert_eq!(queue_state(&*queue, "taken").await, QueuedState::Ready);
        let report = mark_restored(&*queue).await.expect("marked again");
        assert_eq!(report.buried_runs, buried);
    }
}

#[tokio::test]
async fn schedules_skip_the_times_since_the_backup() {
    let place = BankPlace::new();
    for queue in restored_queues(&place) {
        let hourly = "0 * * * *".parse().expect("a time");
        let schedule = RunSchedule::new("report", hourly, RunSubmission::new("any", "bank", "Report."));
        // The last time that the backup knows of is long ago.
        queue.save_schedule(&schedule, Timestamp(5)).await.expect("saved");
        let report = mark_restored(&*queue).await.expect("marked");
        let skipped = SkippedSchedule { name: "report".to_owned(), since: Timestamp(5) };
        assert_eq!(report.skipped_schedules, [skipped]);
        let covered = queue.list_schedules().await.expect("listed")[0].covered_until;
        assert_eq!(fire_schedules(&*queue, covered).await.expect("fired"), 0);
        assert_eq!(queue.list_queued_runs(QueueFilter::Open, None, 9).await.expect("listed"), []);
        let hour = Timestamp(covered.0 + 3_600_000);
        assert_eq!(fire_schedules(&*queue, hour).await.expect("fired"), 1, "it goes on");
    }
}
