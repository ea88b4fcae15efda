//! The SQLite store: durability over a restart, group commit, and whole runs on it.

#![cfg(feature = "sqlite")]
#![allow(clippy::expect_used)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tempfile::TempDir;
use windlass::core::{
    canonical::Digest,
    decision::{Decision, DecisionScope, HoldReason},
    id::{CallPath, RunId, Timestamp},
    item::Item,
    journal::{DecisionRecorded, HashChain, JournalEntry, JournalLine, JournalRecord},
};
use windlass::prelude::*;
use windlass::session::SessionStore;
use windlass::store::{
    DerivedWrites, Durability, Lease, LeaseClaim, PostDecisionError, PostedDecision, ReceiptClaim,
    ReceiptKey, ReceiptWrite, RunQuery, RunStatus, Store,
};
use windlass::{core::journal::CallStatus, error::StoreErrorKind, store::SqliteStore};

/// A store file in a temporary folder.
struct StoreFile {
    _folder: TempDir,
    path: PathBuf,
}

impl StoreFile {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store.db");
        Self { _folder: folder, path }
    }

    fn open(&self) -> Arc<SqliteStore> {
        Arc::new(SqliteStore::open(&self.path).expect("opens"))
    }
}

fn lease_claim(owner: &str, now: u64) -> LeaseClaim<'_> {
    LeaseClaim { owner, now: Timestamp(now), duration: Duration::from_secs(1) }
}

fn journal_lines(count: u64) -> Vec<JournalLine> {
    let mut chain = HashChain::default();
    let record =
        |seq| JournalRecord { seq, at: Timestamp(seq), path: Vec::new(), entry: JournalEntry::TurnContinued };
    (0..count).map(|seq| chain.append(&record(seq))).collect()
}

async fn append_lines(store: &SqliteStore, lease: &Lease, at: u64, lines: Vec<JournalLine>) {
    Store::append_journal(store, lease, at, lines, Durability::Sync).await.expect("kept");
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let place = StoreFile::new();
    let run = RunId::from("run");
    let key = ReceiptKey { scope: "session:s".to_owned(), digest: Digest::of_text("call") };
    let decided = DecisionRecorded {
        call: "c1".into(),
        digest: Digest::of_text("shown"),
        decision: Decision::Approve,
        scope: DecisionScope::ToolForRun,
        decided_by: Some("bea".to_owned()),
        displayed: Some(Digest::of_text("displayed")),
        posted_revision: 0,
        signature: None,
        mac: None,
    };
    let posted = PostedDecision {
        path: CallPath::from("c1"),
        attempt: 0,
        decision: decided,
        posted_at: Timestamp(7),
        mac: None,
    };
    let store = place.open();
    let lease =
        store.create_run(&run, &"agent".into(), lease_claim("ann", 1_000), Vec::new()).await.expect("made");
    append_lines(&store, &lease, 0, journal_lines(3)).await;
    store.set_status(&lease, RunStatus::Paused, Timestamp(1_500)).await.expect("marked");
    store.post_decision(&run, posted.clone(), 1).await.expect("posted");
    store.save_artefact(&lease, "c1", b"all of it").await.expect("kept");
    store.claim_receipt(&key, lease_claim("ann", 1_000), None).await.expect("claimed");
    let receipt =
        ReceiptWrite { key: key.clone(), owner: "ann".to_owned(), output: "output".into(), expires_at: None };
    let writes = DerivedWrites { receipts: vec![receipt], ..DerivedWrites::default() };
    store.append_with_writes(&lease, 3, Vec::new(), Durability::Sync, writes).await.expect("kept");
    SessionStore::append_items(&*store, &"s".into(), vec![Arc::new(Item::user("hello"))])
        .await
        .expect("kept");
    let listed = store.list_runs(&RunQuery::default()).await.expect("listed");
    drop(store);

    let store = place.open();
    assert_eq!(store.list_runs(&RunQuery::default()).await.expect("listed"), listed);
    assert_eq!(Store::load_journal(&*store, &run, 0).await.expect("read"), journal_lines(3));
    let mut stored = posted;
    stored.decision.posted_revision = 1;
    assert_eq!(store.posted_decisions(&run).await.expect("read"), [stored]);
    assert_eq!(store.load_artefact(&run, "c1").await.expect("read").as_deref(), Some(&b"all of it"[..]));
    let receipt = store.claim_receipt(&key, lease_claim("bea", 9_000), None).await.expect("answered");
    assert_eq!(receipt, ReceiptClaim::Completed("output".into()));
    assert_eq!(Session::new("s", store.clone()).items().await.expect("read").len(), 1);
    // The lease outlives its owner until it is abandoned.
    let early = store.acquire_lease(&run, lease_claim("bea", 90_000), None).await.expect_err("it is owned");
    assert_eq!(early.kind(), StoreErrorKind::LeaseHeld);
    let seen = store.load_lease(&run).await.expect("read");
    let taken = store.acquire_lease(&run, lease_claim("bea", 2_000), seen.as_ref()).await.expect("taken");
    assert_eq!(taken.epoch, 2);
}

#[tokio::test]
async fn two_handles_see_each_other() {
    let place = StoreFile::new();
    let (one, two) = (place.open(), place.open());
    let run = RunId::from("run");
    let lease =
        one.create_run(&run, &"agent".into(), lease_claim("ann", 1_000), Vec::new()).await.expect("made");
    append_lines(&one, &lease, 0, journal_lines(2)).await;
    assert_eq!(Store::load_journal(&*two, &run, 0).await.expect("read").len(), 2);
    let exists = two
        .create_run(&run, &"agent".into(), lease_claim("bea", 1_000), Vec::new())
        .await
        .expect_err("it is there");
    assert_eq!(exists.kind(), StoreErrorKind::AlreadyExists);
    let seen = two.load_lease(&run).await.expect("read");
    let later = two.acquire_lease(&run, lease_claim("bea", 2_000), seen.as_ref()).await.expect("taken over");
    let late = Store::append_journal(&*one, &lease, 2, journal_lines(3).split_off(2), Durability::Sync).await;
    assert!(late.expect_err("it is late").is_fenced());
    append_lines(&two, &later, 2, journal_lines(3).split_off(2)).await;
    assert_eq!(Store::load_journal(&*one, &run, 0).await.expect("read"), journal_lines(3));
    // Both handles append concurrently.
    let session = "s".into();
    join_all((0..40).map(|one_item| {
        let store = if one_item % 2 == 0 { &one } else { &two };
        SessionStore::append_items(&**store, &session, vec![Arc::new(Item::user(one_item.to_string()))])
    }))
    .await
    .into_iter()
    .for_each(|added| added.expect("kept"));
    assert_eq!(SessionStore::load_session(&*one, &session).await.expect("read").items.len(), 40);
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_made() {
    let place = StoreFile::new();
    let path = place.path.with_file_name("a").join("b").join("store.db");
    let store = SqliteStore::open(&path).expect("opens");
    assert_eq!(store.path(), path);
    assert!(store.list_runs(&RunQuery::default()).await.expect("listed").is_empty());
}

#[test]
fn many_may_open_a_new_file_at_once() {
    for _ in 0..20 {
        let place = StoreFile::new();
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    start.wait();
                    place.open()
                });
            }
        });
    }
}

#[tokio::test]
async fn requests_that_wait_together_are_committed_together() {
    let place = StoreFile::new();
    let store = place.open();
    let names: Vec<String> = (0..128).map(|one| format!("run-{one}")).collect();
    let agent = "agent".into();
    let runs: Vec<RunId> = names.iter().map(|name| name.as_str().into()).collect();
    let leases =
        join_all(runs.iter().map(|run| store.create_run(run, &agent, lease_claim("ann", 1_000), Vec::new())))
            .await;
    let leases: Vec<Lease> = leases.into_iter().map(|lease| lease.expect("made")).collect();
    let before = store.writer_stats();
    for at in 0..4 {
        let line = || journal_lines(4).split_off(at).into_iter().take(1).collect();
        let appends = leases
            .iter()
            .map(|lease| Store::append_journal(&*store, lease, at as u64, line(), Durability::Sync));
        join_all(appends).await.into_iter().for_each(|kept| kept.expect("kept"));
    }
    let written = store.writer_stats();
    let (requests, commits) = (written.requests - before.requests, written.commits - before.commits);
    assert_eq!(requests, 512);
    assert!(commits <= 100, "{commits} commits for {requests} requests");
}

/// Number of concurrent runs, and the maximum number of disk syncs that their queued appends need.
const CONCURRENT_RUNS: usize = 64;
const MAX_SYNCS: u64 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn runs_at_once_share_the_syncs_of_the_disk() {
    let place = StoreFile::new();
    let store = place.open();
    let mut leases = Vec::new();
    for run in 0..CONCURRENT_RUNS {
        let run = format!("run-{run}").as_str().into();
        leases.push(
            store
                .create_run(&run, &"agent".into(), lease_claim("ann", 1_000), Vec::new())
                .await
                .expect("made"),
        );
    }
    // The appends of all runs wait in the queue while another connection holds the file.
    let mut other = rusqlite::Connection::open(&place.path).expect("opens");
    let kept_locked =
        other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("locked");
    let before = store.writer_stats().syncs;
    let appends = leases
        .iter()
        .map(|lease| Store::append_journal(&*store, lease, 0, journal_lines(1), Durability::Sync));
    let mut appends = join_all(appends);
    assert!((&mut appends).now_or_never().is_none(), "the appends wait for the file");
    drop(kept_locked);
    appends.await.into_iter().for_each(|kept| kept.expect("kept"));
    let syncs = store.writer_stats().syncs - before;
    assert!((1..=MAX_SYNCS).contains(&syncs), "{CONCURRENT_RUNS} durable appends took {syncs} syncs");
}

#[tokio::test]
async fn what_need_not_be_durable_does_not_wait_for_the_disk() {
    let place = StoreFile::new();
    let store = place.open();
    let lease = store
        .create_run(&"run".into(), &"agent".into(), lease_claim("ann", 1_000), Vec::new())
        .await
        .expect("made");
    store.renew_lease(&lease, Timestamp(5_000)).await.expect("renewed");
    for (at, line) in (0..).zip(journal_lines(10)) {
        Store::append_journal(&*store, &lease, at, vec![line], Durability::Deferred).await.expect("taken");
    }
    assert_eq!(Store::load_journal(&*store, &lease.run, 0).await.expect("read").len(), 10);
    assert_eq!(store.writer_stats().syncs, 0);
    store.flush().await.expect("flushed");
    assert_eq!(store.writer_stats().syncs, 1);
    append_lines(&store, &lease, 10, journal_lines(11).split_off(10)).await;
    assert_eq!(store.writer_stats().syncs, 2);
}

#[tokio::test]
async fn a_dropped_store_finishes_what_it_was_asked() {
    let place = StoreFile::new();
    let store = place.open();
    let lease = store
        .create_run(&"run".into(), &"agent".into(), lease_claim("ann", 1_000), Vec::new())
        .await
        .expect("made");
    for (at, line) in (0..).zip(journal_lines(300)) {
        // An append has begun when it was polled.
        let _unfinished =
            Store::append_journal(&*store, &lease, at, vec![line], Durability::Sync).now_or_never();
    }
    drop(store);
    assert_eq!(
        Store::load_journal(&*place.open(), &"run".into(), 0).await.expect("read"),
        journal_lines(300)
    );
    let beside = place.path.with_file_name("store.db-wal");
    assert!(!beside.exists(), "whoever closes last tidies up");
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_was_deleted_is_not_written_to() {
    let place = StoreFile::new();
    let store = place.open();
    let lease = store
        .create_run(&"run".into(), &"agent".into(), lease_claim("ann", 1_000), Vec::new())
        .await
        .expect("made");
    let moved = place.path.with_file_name("moved.db");
    std::fs::rename(&place.path, &moved).expect("moved");
    let error = Store::append_journal(&*store, &lease, 0, journal_lines(1), Durability::Sync)
        .await
        .expect_err("it is gone");
    assert_eq!(error.kind(), StoreErrorKind::Disk);
    assert!(error.to_string().contains("was moved or deleted while it was open"), "{error}");
    std::fs::rename(&moved, &place.path).expect("moved back");
    append_lines(&store, &lease, 0, journal_lines(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_waits_for_another_process_and_has_a_limit() {
    let place = StoreFile::new();
    let store = place.open();
    let lease = store
        .create_run(&"run".into(), &"agent".into(), lease_claim("ann", 1_000), Vec::new())
        .await
        .expect("made");
    let mut other = rusqlite::Connection::open(&place.path).expect("opens");
    let kept_locked =
        other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("locked");
    let waiting: Vec<_> = (0..65_536).map(|_| store.release_lease(&lease)).collect();
    let refused = store.release_lease(&lease).await.expect_err("there is no room");
    assert!(refused.to_string().contains("is full (65536 requests)"), "{refused}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(kept_locked);
    join_all(waiting).await.into_iter().for_each(|done| done.expect("done in the end"));
    store.release_lease(&lease).await.expect("there is room again");
}

/// Pays, and writes down that it did.
#[tool(needs_approval = always)]
async fn pay(ctx: &ToolContext<Mutex<Vec<String>>>, to: String) -> Result<String, ToolError> {
    ctx.lock().map_err(|_| ToolError::hidden("stuck"))?.push(to.clone());
    Ok(format!("{to} is paid"))
}

/// Looks something up, and writes down that it did.
#[tool]
async fn look(ctx: &ToolContext<Mutex<Vec<String>>>, what: String) -> Result<String, ToolError> {
    ctx.lock().map_err(|_| ToolError::hidden("stuck"))?.push(what.clone());
    Ok(format!("{what} is fine"))
}

fn clerk_agent(replies: impl IntoIterator<Item = ScriptedResponse>) -> Agent<Mutex<Vec<String>>> {
    Agent::new("clerk").model(ScriptedModel::new(replies)).tools((pay, look))
}

#[tokio::test]
async fn a_run_goes_on_after_a_restart_with_a_decision_from_elsewhere() {
    let place = StoreFile::new();
    let did = Arc::new(Mutex::new(Vec::new()));
    let run = RunId::from("run-1");
    {
        let store = place.open();
        let session = Session::new("ann", store.clone());
        let agent = clerk_agent([ScriptedResponse::call("l1", "look", json!({ "what": "the bill" }))
            .and_call("p1", "pay", json!({ "to": "bo" }))
            .and_call("p2", "pay", json!({ "to": "cy" }))]);
        let outcome = agent
            .run_with_context("Settle it.", did.clone())
            .run_id("run-1")
            .store(store)
            .session(&session)
            .await;
        assert!(outcome.expect("it pauses").is_paused());
    }
    assert_eq!(*did.lock().expect("free"), ["the bill"]);

    // An approver in another process.
    {
        let desk = place.open();
        let waiting = windlass::store::load_paused(&*desk, &run).await.expect("a look");
        let waiting: Vec<String> = waiting.pending_calls().iter().map(|call| call.path.to_string()).collect();
        assert_eq!(waiting, ["p1", "p2"]);
        let decide = async |call, decision| {
            windlass::store::post_decision(&*desk, &run, call, decision, DecisionScope::ThisCall, "dee").await
        };
        decide("p1", Decision::Approve).await.expect("posted");
        decide("p1", Decision::Approve).await.expect("the same again is one");
        decide("p1", Decision::Reject { message: None }).await.expect("nothing has started");
        decide("p1", Decision::Approve).await.expect("it is corrected once more");
        decide("p2", Decision::Reject { message: Some("not him".to_owned()) }).await.expect("posted");
        let wrong = decide("p9", Decision::Approve).await.expect_err("no such call");
        assert!(matches!(wrong, PostDecisionError::Decide(_)), "{wrong}");
        let nobody = windlass::store::load_paused(&*desk, &"run-2".into()).await.expect_err("no such run");
        assert_eq!(nobody.to_string(), "there is no run `run-2`");
        assert_eq!(desk.list_runs(&RunQuery::default()).await.expect("listed")[0].status, RunStatus::Paused);
    }

    let store = place.open();
    let session = Session::new("ann", store.clone());
    let agent = clerk_agent([ScriptedResponse::text("Bo is paid, Cy is not.")]);
    let outcome = agent
        .recover_with_context("run-1", store.clone(), did.clone())
        .session(&session)
        .await
        .expect("it ends");
    assert_eq!(outcome.output_text().expect("the run finished"), "Bo is paid, Cy is not.");
    assert_eq!(*did.lock().expect("free"), ["the bill", "bo"], "nothing ran twice");
    let listed = store.list_runs(&RunQuery::default()).await.expect("listed").remove(0);
    assert_eq!((listed.status, listed.lease), (RunStatus::Finished, None));
    let kept = windlass::store::load_paused(&*store, &run).await.expect("a look");
    let by: Vec<Option<String>> = kept
        .record()
        .journal()
        .iter()
        .filter_map(|record| match &record.entry {
            JournalEntry::DecisionRecorded(decided) => Some(decided.decided_by.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(by, [Some("dee".to_owned()), Some("dee".to_owned())]);
    assert_eq!(session.items().await.expect("read").len(), 8);
}

/// Moves money, and never says whether it did.
#[tool]
async fn transfer(ctx: &ToolContext<Mutex<Vec<String>>>, cents: u64) -> Result<String, ToolError> {
    ctx.lock().map_err(|_| ToolError::hidden("stuck"))?.push(cents.to_string());
    std::future::pending().await
}

#[tokio::test]
async fn a_decision_about_one_doubt_does_not_settle_the_next() {
    let place = StoreFile::new();
    let run = RunId::from("run-1");
    let did = Arc::new(Mutex::new(Vec::new()));
    let stuck =
        |replies: Vec<ScriptedResponse>| Agent::new("bank").model(ScriptedModel::new(replies)).tool(transfer);
    let lease = Duration::from_millis(500);
    // The process crashes in the body, twice.
    let dies = async |started: usize, driver: windlass::run::RunBuilder<Mutex<Vec<String>>>| {
        let process = tokio::spawn(driver.lease_duration(lease));
        while did.lock().expect("free").len() < started {
            assert!(!process.is_finished(), "it should be in the body");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        process.abort();
        process.await.expect_err("it is gone");
        tokio::time::sleep(lease * 2).await;
    };
    let in_doubt = async |store: &Arc<SqliteStore>| {
        let outcome = stuck(Vec::new())
            .recover_with_context("run-1", store.clone(), did.clone())
            .await
            .expect("it pauses");
        let pending = outcome.into_paused().expect("in doubt").pending_calls();
        assert_eq!((pending.len(), &pending[0].reason), (1, &HoldReason::InDoubt));
        pending[0].attempt
    };
    let store = place.open();
    let agent = stuck(vec![ScriptedResponse::call("c1", "transfer", json!({ "cents": 5 }))]);
    dies(1, agent.run_with_context("Go.", did.clone()).run_id("run-1").store(store.clone())).await;
    assert_eq!(in_doubt(&store).await, 1);
    let decide = async |decision| {
        windlass::store::post_decision(&*store, &run, "c1", decision, DecisionScope::ThisCall, "dee").await
    };
    decide(Decision::ConfirmNotExecuted).await.expect("posted");
    dies(2, stuck(Vec::new()).recover_with_context("run-1", store.clone(), did.clone())).await;
    // The first answer does not cover the second attempt, so a person is asked again.
    assert_eq!(in_doubt(&store).await, 2);
    assert_eq!(did.lock().expect("free").len(), 2);
    decide(Decision::ConfirmExecuted { output: "moved once".into() }).await.expect("posted");
    let end = stuck(vec![ScriptedResponse::text("Done.")])
        .recover_with_context("run-1", store.clone(), did.clone())
        .await;
    assert_eq!(end.expect("it ends").output_text().expect("the run finished"), "Done.");
    assert_eq!(did.lock().expect("free").len(), 2, "nothing ran that nobody asked for");
    let kept = windlass::store::load_paused(&*store, &run).await.expect("a look");
    let how = kept.record().journal().iter().find_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some(settled.status.clone()),
        _ => None,
    });
    assert_eq!(how, Some(CallStatus::Reconciled));
}

#[tokio::test]
async fn a_backup_is_a_store_of_its_time() {
    let place = StoreFile::new();
    let store = place.open();
    let lease = store
        .create_run(&"run".into(), &"agent".into(), lease_claim("ann", 1_000), Vec::new())
        .await
        .expect("made");
    append_lines(&store, &lease, 0, journal_lines(3)).await;
    // Acknowledged before its commit.
    let deferred = journal_lines(4).split_off(3);
    Store::append_journal(&*store, &lease, 3, deferred, Durability::Deferred).await.expect("taken");
    let target = place.path.with_file_name("backup.db");
    store.backup(&target).await.expect("copied");
    append_lines(&store, &lease, 4, journal_lines(5).split_off(4)).await;
    let again = store.backup(&target).await.expect_err("it exists");
    assert_eq!(again.kind(), StoreErrorKind::AlreadyExists);
    let copy = SqliteStore::open(&target).expect("opens");
    assert_eq!(Store::load_journal(&copy, &"run".into(), 0).await.expect("read"), journal_lines(4));
    let written = copy.append_journal(&lease, 4, journal_lines(5).split_off(4), Durability::Sync).await;
    assert_eq!(written.expect_err("nothing is written to a backup").kind(), StoreErrorKind::NotRestored);
    drop(copy);
    let names = std::fs::read_dir(target.parent().expect("a folder")).expect("read");
    let names: Vec<_> =
        names.map(|entry| entry.expect("read").file_name().into_string().expect("text")).collect();
    assert!(!names.iter().any(|name| name.ends_with(".partial")), "{names:?}");
    let nowhere = place.path.with_file_name("missing").join("backup.db");
    assert_eq!(store.backup(nowhere).await.expect_err("no folder").kind(), StoreErrorKind::Disk);
}

/// Backups while runs write: each is a prefix of every run, and intact.
#[tokio::test(flavor = "multi_thread")]
async fn backups_are_consistent_while_runs_go_on() {
    let place = StoreFile::new();
    let store = place.open();
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            let lease =
                store.create_run(&"run".into(), &"agent".into(), lease_claim("ann", 1_000), Vec::new()).await;
            let lease = lease.expect("made");
            for (at, line) in (0..).zip(journal_lines(200)) {
                append_lines(&store, &lease, at, vec![line]).await;
            }
        }
    });
    for number in 0..3 {
        let target = place.path.with_file_name(format!("backup-{number}.db"));
        store.backup(&target).await.expect("copied");
        let copy = SqliteStore::open(&target).expect("opens");
        let lines = Store::load_journal(&copy, &"run".into(), 0).await.expect("read");
        assert_eq!(lines, journal_lines(lines.len() as u64));
    }
    writer.await.expect("writes");
}

/// A newer build may have migrated a file that this one still has open.
#[tokio::test]
async fn a_flush_leaves_the_version_of_the_schema() {
    let file = StoreFile::new();
    let store = file.open();
    let db = rusqlite::Connection::open(&file.path).expect("opens");
    db.pragma_update(None, "user_version", 99).expect("migrated");
    store.flush().await.expect("flushed");
    let version: i32 = db.pragma_query_value(None, "user_version", |row| row.get(0)).expect("read");
    assert_eq!(version, 99);
}
