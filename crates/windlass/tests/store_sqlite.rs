//! The store in a file: what it keeps over a restart, how it commits, and whole runs on it.

#![cfg(feature = "sqlite")]
#![allow(clippy::expect_used)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tempfile::TempDir;
use windlass::core::{
    CallPath, Chain, Decided, Decision, Digest, Entry, HoldReason, Item, Line, Reach, Record, RunId,
    Timestamp,
};
use windlass::prelude::*;
use windlass::session::SessionStore;
use windlass::store::{
    Durability, Lease, LeaseClaim, PostError, Posted, ReceiptClaim, ReceiptKey, RunStatus, Store,
};
use windlass::{How, SqliteStore, StoreErrorKind};

struct Place {
    _folder: TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store.db");
        Self { _folder: folder, path }
    }

    fn open(&self) -> Arc<SqliteStore> {
        Arc::new(SqliteStore::open(&self.path).expect("opens"))
    }
}

fn claim(owner: &str, now: u64) -> LeaseClaim<'_> {
    LeaseClaim { owner, now: Timestamp(now), until: Timestamp(now + 1_000) }
}

fn lines(count: u64) -> Vec<Line> {
    let mut chain = Chain::default();
    let record = |seq| Record { seq, at: Timestamp(seq), path: Vec::new(), entry: Entry::WentOn };
    (0..count).map(|seq| chain.add(&record(seq))).collect()
}

async fn append(store: &SqliteStore, lease: &Lease, at: u64, lines: Vec<Line>) {
    Store::append(store, lease, at, lines, Durability::Now).await.expect("kept");
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let place = Place::new();
    let run = RunId::from("run");
    let key = ReceiptKey { scope: "session:s".to_owned(), digest: Digest::of("call") };
    let decided = Decided {
        call: "c1".into(),
        digest: Digest::of("shown"),
        decision: Decision::Approve,
        reach: Reach::Always,
        by: Some("bea".to_owned()),
    };
    let posted = Posted { path: CallPath::from("c1"), attempt: 0, decided };
    let store = place.open();
    let lease = store.create(&run, &"agent".into(), claim("ann", 1_000)).await.expect("made");
    append(&store, &lease, 0, lines(3)).await;
    store.mark(&lease, RunStatus::Paused, Timestamp(1_500)).await.expect("marked");
    store.post(&run, posted.clone()).await.expect("posted");
    store.keep_artefact(&run, "c1", "all of it").await.expect("kept");
    store.claim_receipt(&key, claim("ann", 1_000)).await.expect("claimed");
    store.keep_receipt(&key, "ann", &"output".into(), None).await.expect("kept");
    SessionStore::append(&*store, &"s".into(), vec![Arc::new(Item::user("hello"))]).await.expect("kept");
    let listed = store.runs().await.expect("listed");
    drop(store);

    let store = place.open();
    assert_eq!(store.runs().await.expect("listed"), listed);
    assert_eq!(Store::load(&*store, &run, 0).await.expect("read"), lines(3));
    assert_eq!(store.posted(&run).await.expect("read"), [posted]);
    assert_eq!(store.artefact(&run, "c1").await.expect("read").as_deref(), Some("all of it"));
    let receipt = store.claim_receipt(&key, claim("bea", 9_000)).await.expect("answered");
    assert_eq!(receipt, ReceiptClaim::Receipt("output".into()));
    assert_eq!(Session::new("s", store.clone()).items().await.expect("read").len(), 1);
    // The lease outlives who had it, until it runs out.
    let early = store.acquire(&run, claim("bea", 1_999)).await.expect_err("it is owned");
    assert_eq!(early.kind(), StoreErrorKind::Leased);
    assert_eq!(store.acquire(&run, claim("bea", 2_000)).await.expect("taken").epoch, 2);
}

#[tokio::test]
async fn two_handles_see_each_other() {
    let place = Place::new();
    let (one, two) = (place.open(), place.open());
    let run = RunId::from("run");
    let lease = one.create(&run, &"agent".into(), claim("ann", 1_000)).await.expect("made");
    append(&one, &lease, 0, lines(2)).await;
    assert_eq!(Store::load(&*two, &run, 0).await.expect("read").len(), 2);
    let exists = two.create(&run, &"agent".into(), claim("bea", 1_000)).await.expect_err("it is there");
    assert_eq!(exists.kind(), StoreErrorKind::Exists);
    let later = two.acquire(&run, claim("bea", 2_000)).await.expect("taken over");
    let late = Store::append(&*one, &lease, 2, lines(3).split_off(2), Durability::Now).await;
    assert!(late.expect_err("it is late").is_fenced());
    append(&two, &later, 2, lines(3).split_off(2)).await;
    assert_eq!(Store::load(&*one, &run, 0).await.expect("read"), lines(3));
    // Both at once.
    let session = "s".into();
    join_all((0..40).map(|one_item| {
        let store = if one_item % 2 == 0 { &one } else { &two };
        SessionStore::append(&**store, &session, vec![Arc::new(Item::user(one_item.to_string()))])
    }))
    .await
    .into_iter()
    .for_each(|added| added.expect("kept"));
    assert_eq!(SessionStore::load(&*one, &session).await.expect("read").items.len(), 40);
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_made() {
    let place = Place::new();
    let path = place.path.with_file_name("a").join("b").join("store.db");
    let store = SqliteStore::open(&path).expect("opens");
    assert_eq!(store.path(), path);
    assert!(store.runs().await.expect("listed").is_empty());
}

#[test]
fn many_may_open_a_new_file_at_once() {
    for _ in 0..20 {
        let place = Place::new();
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
    let place = Place::new();
    let store = place.open();
    let names: Vec<String> = (0..128).map(|one| format!("run-{one}")).collect();
    let agent = "agent".into();
    let runs: Vec<RunId> = names.iter().map(|name| name.as_str().into()).collect();
    let leases = join_all(runs.iter().map(|run| store.create(run, &agent, claim("ann", 1_000)))).await;
    let leases: Vec<Lease> = leases.into_iter().map(|lease| lease.expect("made")).collect();
    let before = store.written();
    for at in 0..4 {
        let line = || lines(4).split_off(at).into_iter().take(1).collect();
        let appends =
            leases.iter().map(|lease| Store::append(&*store, lease, at as u64, line(), Durability::Now));
        // All are on their way before the first is awaited.
        let appends: Vec<_> = appends.collect();
        join_all(appends).await.into_iter().for_each(|kept| kept.expect("kept"));
    }
    let written = store.written();
    let (requests, commits) = (written.requests - before.requests, written.commits - before.commits);
    assert_eq!(requests, 512);
    assert!(commits <= 100, "{commits} commits for {requests} requests");
}

/// Does nothing.
#[tool]
async fn noop() -> &'static str {
    "ok"
}

/// How many runs there are at once, and how many entries one sync of the disk carries at least.
const AT_ONCE: usize = 64;
const A_SYNC: u64 = 10;

#[tokio::test]
async fn runs_at_once_share_the_syncs_of_the_disk() {
    let mut carried = Vec::new();
    // A disk that syncs in no time gives little time to gather in, so it has a few chances.
    for _ in 0..5 {
        let place = Place::new();
        let store = place.open();
        let agent = || {
            let turns = (0..10).map(|turn| Reply::call(&format!("c{turn}"), "noop", json!({})));
            let model = ScriptedModel::new(turns.chain([Reply::text("done")]));
            Agent::new("busy").model(model).tools((noop,))
        };
        let before = store.written().syncs;
        let runs =
            (0..AT_ONCE).map(|_| agent().run("go").store(store.clone()).unlimited_turns().into_future());
        let outcomes = join_all(runs).await;
        let entries: usize =
            outcomes.into_iter().map(|outcome| outcome.expect("runs").record().journal().len()).sum();
        let syncs = store.written().syncs - before;
        carried.push(entries as u64 / syncs.max(1));
        if carried.last().is_some_and(|carried| *carried >= A_SYNC) {
            return;
        }
    }
    panic!("entries that a sync carried: {carried:?}");
}

#[tokio::test]
async fn what_need_not_be_durable_does_not_wait_for_the_disk() {
    let place = Place::new();
    let store = place.open();
    let lease = store.create(&"run".into(), &"agent".into(), claim("ann", 1_000)).await.expect("made");
    store.renew(&lease, Timestamp(5_000)).await.expect("renewed");
    for (at, line) in (0..).zip(lines(10)) {
        Store::append(&*store, &lease, at, vec![line], Durability::Later).await.expect("taken");
    }
    assert_eq!(Store::load(&*store, &lease.run, 0).await.expect("read").len(), 10);
    assert_eq!(store.written().syncs, 0);
    store.flush().await.expect("flushed");
    assert_eq!(store.written().syncs, 1);
    append(&store, &lease, 10, lines(11).split_off(10)).await;
    assert_eq!(store.written().syncs, 2);
}

#[tokio::test]
async fn a_dropped_store_finishes_what_it_was_asked() {
    let place = Place::new();
    let store = place.open();
    let lease = store.create(&"run".into(), &"agent".into(), claim("ann", 1_000)).await.expect("made");
    for (at, line) in (0..).zip(lines(300)) {
        drop(Store::append(&*store, &lease, at, vec![line], Durability::Now));
    }
    drop(store);
    assert_eq!(Store::load(&*place.open(), &"run".into(), 0).await.expect("read"), lines(300));
    let beside = place.path.with_file_name("store.db-wal");
    assert!(!beside.exists(), "whoever closes last tidies up");
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_was_deleted_is_not_written_to() {
    let place = Place::new();
    let store = place.open();
    let lease = store.create(&"run".into(), &"agent".into(), claim("ann", 1_000)).await.expect("made");
    let moved = place.path.with_file_name("moved.db");
    std::fs::rename(&place.path, &moved).expect("moved");
    let error = Store::append(&*store, &lease, 0, lines(1), Durability::Now).await.expect_err("it is gone");
    assert_eq!(error.kind(), StoreErrorKind::Disk);
    assert!(error.to_string().contains("was moved or deleted while it was open"), "{error}");
    std::fs::rename(&moved, &place.path).expect("moved back");
    append(&store, &lease, 0, lines(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_waits_for_another_process_and_has_a_limit() {
    let place = Place::new();
    let store = place.open();
    let lease = store.create(&"run".into(), &"agent".into(), claim("ann", 1_000)).await.expect("made");
    let mut other = rusqlite::Connection::open(&place.path).expect("opens");
    let kept_locked =
        other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("locked");
    let waiting: Vec<_> = (0..65_536).map(|_| store.release(&lease)).collect();
    let refused = store.release(&lease).await.expect_err("there is no room");
    assert!(refused.to_string().contains("65536 requests wait"), "{refused}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(kept_locked);
    join_all(waiting).await.into_iter().for_each(|done| done.expect("done in the end"));
    store.release(&lease).await.expect("there is room again");
}

/// Pays, and writes down that it did.
#[tool(approve = always)]
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

fn clerk(replies: impl IntoIterator<Item = Reply>) -> Agent<Mutex<Vec<String>>> {
    Agent::new("clerk").model(ScriptedModel::new(replies)).tools((pay, look))
}

#[tokio::test]
async fn a_run_goes_on_after_a_restart_with_a_decision_from_elsewhere() {
    let place = Place::new();
    let did = Arc::new(Mutex::new(Vec::new()));
    let run = RunId::from("run-1");
    {
        let store = place.open();
        let session = Session::new("ann", store.clone());
        let agent = clerk([Reply::call("l1", "look", json!({ "what": "the bill" }))
            .and_call("p1", "pay", json!({ "to": "bo" }))
            .and_call("p2", "pay", json!({ "to": "cy" }))]);
        let outcome =
            agent.run_with("Settle it.", did.clone()).run_id("run-1").store(store).session(&session).await;
        assert!(outcome.expect("it pauses").is_paused());
    }
    assert_eq!(*did.lock().expect("free"), ["the bill"]);

    // A person at another desk.
    {
        let desk = place.open();
        let waiting = windlass::store::paused(&*desk, &run).await.expect("a look");
        let waiting: Vec<String> = waiting.pending().iter().map(|call| call.path.to_string()).collect();
        assert_eq!(waiting, ["p1", "p2"]);
        let decide = async |call, decision| {
            windlass::store::decide(&*desk, &run, call, decision, Reach::Call, "dee").await
        };
        decide("p1", Decision::Approve).await.expect("posted");
        decide("p1", Decision::Approve).await.expect("the same again is one");
        let other = decide("p1", Decision::Reject { message: None }).await.expect_err("too late");
        assert!(
            matches!(&other, PostError::Store(error) if error.kind() == StoreErrorKind::Decided),
            "{other}"
        );
        decide("p2", Decision::Reject { message: Some("not him".to_owned()) }).await.expect("posted");
        let wrong = decide("p9", Decision::Approve).await.expect_err("no such call");
        assert!(matches!(wrong, PostError::Decide(_)), "{wrong}");
        let nobody = windlass::store::paused(&*desk, &"run-2".into()).await.expect_err("no such run");
        assert_eq!(nobody.to_string(), "there is no run `run-2`");
        assert_eq!(desk.runs().await.expect("listed")[0].status, RunStatus::Paused);
    }

    let store = place.open();
    let session = Session::new("ann", store.clone());
    let agent = clerk([Reply::text("Bo is paid, Cy is not.")]);
    let outcome =
        agent.recover_with("run-1", store.clone(), did.clone()).session(&session).await.expect("it ends");
    assert_eq!(outcome.text(), "Bo is paid, Cy is not.");
    assert_eq!(*did.lock().expect("free"), ["the bill", "bo"], "nothing ran twice");
    let listed = store.runs().await.expect("listed").remove(0);
    assert_eq!((listed.status, listed.owner), (RunStatus::Finished, None));
    let kept = windlass::store::paused(&*store, &run).await.expect("a look");
    let by: Vec<Option<String>> = kept
        .record()
        .journal()
        .iter()
        .filter_map(|record| match &record.entry {
            Entry::Decided(decided) => Some(decided.by.clone()),
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
    let place = Place::new();
    let run = RunId::from("run-1");
    let did = Arc::new(Mutex::new(Vec::new()));
    let stuck =
        |replies: Vec<Reply>| Agent::new("bank").model(ScriptedModel::new(replies)).tools((transfer,));
    let lease = Duration::from_millis(500);
    // The process dies in the body, again and again.
    let dies = async |started: usize, driver: windlass::RunBuilder<Mutex<Vec<String>>>| {
        let process = tokio::spawn(driver.lease(lease).into_future());
        while did.lock().expect("free").len() < started {
            assert!(!process.is_finished(), "it should be in the body");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        process.abort();
        process.await.expect_err("it is gone");
        tokio::time::sleep(lease * 2).await;
    };
    let in_doubt = async |store: &Arc<SqliteStore>| {
        let outcome =
            stuck(Vec::new()).recover_with("run-1", store.clone(), did.clone()).await.expect("it pauses");
        let pending = outcome.paused().expect("in doubt").pending();
        assert_eq!((pending.len(), &pending[0].reason), (1, &HoldReason::InDoubt));
        pending[0].attempt
    };
    let store = place.open();
    let agent = stuck(vec![Reply::call("c1", "transfer", json!({ "cents": 5 }))]);
    dies(1, agent.run_with("Go.", did.clone()).run_id("run-1").store(store.clone())).await;
    assert_eq!(in_doubt(&store).await, 1);
    let decide =
        async |decision| windlass::store::decide(&*store, &run, "c1", decision, Reach::Call, "dee").await;
    decide(Decision::DidNotHappen).await.expect("posted");
    dies(2, stuck(Vec::new()).recover_with("run-1", store.clone(), did.clone())).await;
    // The same answer again would be a lie, so somebody has to be asked.
    assert_eq!(in_doubt(&store).await, 2);
    assert_eq!(did.lock().expect("free").len(), 2);
    decide(Decision::Happened { output: "moved once".into() }).await.expect("posted");
    let end = stuck(vec![Reply::text("Done.")]).recover_with("run-1", store.clone(), did.clone()).await;
    assert_eq!(end.expect("it ends").text(), "Done.");
    assert_eq!(did.lock().expect("free").len(), 2, "nothing ran that nobody asked for");
    let kept = windlass::store::paused(&*store, &run).await.expect("a look");
    let how = kept.record().journal().iter().find_map(|record| match &record.entry {
        Entry::CallSettled(settled) => Some(settled.how.clone()),
        _ => None,
    });
    assert_eq!(how, Some(How::Reconciled));
}
