//! Leases: no clock step breaks them, a dead or failed driver's run is free at once, and a frozen driver is fenced off.
//! Processes are this test binary, started again with a part to play.

#![cfg(all(feature = "sqlite", target_os = "linux"))]
#![allow(clippy::expect_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::tool::ToolEffect;
use windlass::core::{
    decision::HoldReason,
    id::{RunId, Timestamp},
    journal::{JournalEntry, JournalLine},
};
use windlass::error::{RunError, StoreError, StoreErrorKind};
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::prelude::*;
use windlass::store::{
    Durability, Lease, LeaseClaim, LeaseObserver, LeaseStanding, MemoryStore, SqliteStore, Store,
    StoreFuture, StoreWrapper, StoredLease, load_paused,
};
use windlass::tool::{ReceiptPolicy, ReceiptScope};

const RUN: &str = "run-1";
const PATH_VARIABLE: &str = "WINDLASS_LEASE_TEST_FILE";
const LEASE_VARIABLE: &str = "WINDLASS_LEASE_TEST_MILLIS";

/// A store as a process sees it whose wall clock is wrong.
struct WrongClockStore {
    inner: Arc<dyn Store>,
    offset_millis: i64,
}

impl WrongClockStore {
    fn shift(&self, time: Timestamp) -> Timestamp {
        Timestamp(time.0.saturating_add_signed(self.offset_millis))
    }
}

impl StoreWrapper for WrongClockStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn acquire_lease<'a>(
        &'a self,
        run: &'a RunId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, Lease> {
        self.inner.acquire_lease(run, LeaseClaim { now: self.shift(claim.now), ..claim }, abandoned)
    }

    fn renew_lease<'a>(&'a self, lease: &'a Lease, now: Timestamp) -> StoreFuture<'a, ()> {
        self.inner.renew_lease(lease, self.shift(now))
    }
}

/// A store whose disk fails after the first few appends.
struct FailingStore {
    inner: MemoryStore,
    is_broken: AtomicBool,
}

impl StoreWrapper for FailingStore {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()> {
        match self.is_broken.load(Ordering::Relaxed) {
            true => Box::pin(std::future::ready(Err(StoreError::new("the disk failed")))),
            false => self.inner.append_journal(lease, at, lines, durability),
        }
    }
}

/// A store that stops answering when a call starts, and answers after the lease has run out. The start is durable.
struct StallingStore {
    inner: MemoryStore,
    is_stalled: AtomicBool,
}

impl StoreWrapper for StallingStore {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let is_start = lines.iter().any(|line| line.body.contains("call_started"));
            self.inner.append_journal(lease, at, lines, durability).await?;
            if is_start {
                self.is_stalled.store(true, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(60)).await;
                self.is_stalled.store(false, Ordering::Relaxed);
            }
            Ok(())
        })
    }

    fn renew_lease<'a>(&'a self, lease: &'a Lease, now: Timestamp) -> StoreFuture<'a, ()> {
        match self.is_stalled.load(Ordering::Relaxed) {
            true => Box::pin(std::future::pending()),
            false => self.inner.renew_lease(lease, now),
        }
    }
}

/// A store that refuses artefacts.
struct FullStore {
    inner: MemoryStore,
}

impl StoreWrapper for FullStore {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn save_artefact<'a>(&'a self, _: &'a Lease, _: &'a str, _: &'a [u8]) -> StoreFuture<'a, ()> {
        Box::pin(std::future::ready(Err(StoreError::new("the disk is full"))))
    }
}

/// An agent whose only tool says that it is in its body, and stays there.
fn paying_agent(in_body: impl Fn(&ToolContext) + Send + Sync + 'static) -> Agent {
    let in_body = Arc::new(in_body);
    let pay =
        Tool::dynamic("pay", "Pays.", json!({ "type": "object" }), move |ctx: ToolContext, _: Value| {
            let in_body = in_body.clone();
            async move {
                in_body(&ctx);
                std::future::pending::<()>().await;
                Ok::<_, ToolError>("paid")
            }
        })
        .non_strict();
    let replies = [ScriptedResponse::call("c1", "pay", json!({})), ScriptedResponse::text("done")];
    Agent::new("till").model(ScriptedModel::new(replies)).tools(pay)
}

fn lease_error(result: Result<RunResult, RunError>) -> StoreError {
    match result {
        Err(RunError::Store(error)) if error.kind() == StoreErrorKind::LeaseHeld => error,
        other => panic!("the run is held: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_live_run_is_not_taken_whatever_the_wall_clock_says() {
    const HOUR: i64 = 3_600_000;
    for (ours, theirs) in [(0, HOUR), (0, -HOUR), (HOUR, 0), (-HOUR, 0)] {
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let as_seen = |offset_millis| Arc::new(WrongClockStore { inner: memory.clone(), offset_millis });
        let driver = paying_agent(|_| {}).run("go").run_id(RUN).store(as_seen(ours));
        let driver = tokio::spawn(driver.lease_duration(Duration::from_secs(30)).into_future());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let contender = || paying_agent(|_| panic!("it runs beside the other")).recover(RUN, as_seen(theirs));
        // It waits until it has seen a renewal.
        lease_error(contender().await);
        // With observations of its own it does not wait, however often it asks.
        let observer = LeaseObserver::new();
        for _ in 0..100 {
            let error = lease_error(contender().lease_observer(&observer).await);
            assert!(error.retry_after().is_some_and(|left| left > Duration::ZERO), "{error}");
            tokio::time::sleep(Duration::from_secs(7)).await;
        }
        assert!(!driver.is_finished());
        driver.abort();
        driver.await.expect_err("it is gone");
        // Now nobody renews it: it is abandoned after its duration on the contender's clock.
        let before = tokio::time::Instant::now();
        let paused = contender().await.expect("it goes on").into_paused();
        let waited = before.elapsed();
        assert!(waited >= Duration::from_secs(30) && waited < Duration::from_secs(33), "{waited:?}");
        assert_eq!(paused.expect("it is in doubt").pending_calls()[0].reason, HoldReason::InDoubt);
    }
}

#[tokio::test(start_paused = true)]
async fn no_body_begins_after_its_driver_has_lost_the_lease() {
    let schema = || json!({ "type": "object" });
    for is_blocking in [false, true] {
        let store =
            Arc::new(StallingStore { inner: MemoryStore::default(), is_stalled: AtomicBool::new(false) });
        let paid = Arc::new(AtomicBool::new(false));
        let noted = paid.clone();
        let pay = move || {
            noted.store(true, Ordering::SeqCst);
            Ok::<_, ToolError>("paid")
        };
        let pay = match is_blocking {
            true => Tool::dynamic_blocking("pay", "Pays.", schema(), move |_: ToolContext, _: Value| pay()),
            false => Tool::dynamic("pay", "Pays.", schema(), move |_: ToolContext, _: Value| {
                let pay = pay.clone();
                async move { pay() }
            }),
        };
        let replies = [ScriptedResponse::call("c1", "pay", json!({})), ScriptedResponse::text("done")];
        let agent = Agent::new("till").model(ScriptedModel::new(replies)).tools(pay.non_strict());
        let run = agent.run("go").run_id(RUN).store(store.clone()).lease_duration(Duration::from_secs(30));
        let ended = run.await;
        assert!(matches!(ended, Ok(RunResult::Detached(_)) | Err(RunError::Store(_))), "{ended:?}");
        let paused = load_paused(&*store, &RUN.into()).await.expect("it is stored");
        let last = paused.record().journal().last().map(|record| &record.entry);
        assert!(matches!(last, Some(JournalEntry::CallStarted(_))), "the start is durable: {last:?}");
        assert!(!paid.load(Ordering::SeqCst), "another driver may pay now");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_drivers_run_is_taken_at_once() {
    let store = Arc::new(FailingStore { inner: MemoryStore::default(), is_broken: AtomicBool::new(true) });
    let failed = paying_agent(|_| {}).run("go").run_id(RUN).store(store.clone()).await;
    assert!(matches!(failed, Err(RunError::Store(_))), "{failed:?}");
    store.is_broken.store(false, Ordering::Relaxed);
    let observer = LeaseObserver::new();
    let standing = observer.observe(&*store, &RUN.into()).await.expect("read");
    assert_eq!(standing, LeaseStanding::Free);
    let agent = Agent::new("till").model(ScriptedModel::new([ScriptedResponse::text("done")]));
    let ended = agent.recover(RUN, store.clone()).lease_observer(&observer).await.expect("it goes on");
    assert!(matches!(ended, RunResult::Finished(_)), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_cannot_be_started_is_free() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let paused = {
        let gated =
            Tool::dynamic("pay", "Pays.", json!({ "type": "object" }), async |_: ToolContext, _: Value| {
                Ok::<_, ToolError>("paid")
            });
        let replies = [ScriptedResponse::call("c1", "pay", json!({}))];
        let agent = Agent::new("till").model(ScriptedModel::new(replies));
        let agent = agent.tools(gated.non_strict().needs_approval());
        agent.run("go").run_id(RUN).store(store.clone()).await.expect("it pauses")
    };
    assert!(paused.is_paused());
    // A worker without the tool fails, and keeps nobody out.
    let wrong = Agent::new("till").model(ScriptedModel::new([]));
    let failed = wrong.recover(RUN, store.clone()).await;
    assert!(!matches!(failed, Ok(RunResult::Finished(_))), "{failed:?}");
    let standing = LeaseObserver::new().observe(&*store, &RUN.into()).await.expect("read");
    assert_eq!(standing, LeaseStanding::Free);
}

#[tokio::test(start_paused = true)]
async fn a_body_has_the_fencing_token_of_its_driver() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let (sender, mut contexts) = tokio::sync::mpsc::unbounded_channel();
    let agent = |sender: tokio::sync::mpsc::UnboundedSender<ToolContext>| {
        let pay =
            Tool::dynamic("pay", "Pays.", json!({ "type": "object" }), move |ctx: ToolContext, _: Value| {
                let sender = sender.clone();
                async move {
                    sender.send(ctx).map_err(|_| "nobody listens".to_owned())?;
                    std::future::pending::<()>().await;
                    Ok::<_, String>("paid")
                }
            });
        let replies = [ScriptedResponse::call("c1", "pay", json!({}))];
        let tool = pay.non_strict().effect(ToolEffect::Idempotent);
        Agent::new("till").model(ScriptedModel::new(replies)).tools(tool)
    };
    let first = agent(sender.clone()).run("go").run_id(RUN).store(store.clone());
    let first = tokio::spawn(first.into_future());
    let frozen = contexts.recv().await.expect("it is in the body");
    assert_eq!((frozen.fence(), frozen.still_owner().await), (1, true));
    first.abort();
    first.await.expect_err("it is gone");
    let second = tokio::spawn(agent(sender.clone()).recover(RUN, store.clone()).into_future());
    let ctx = contexts.recv().await.expect("it is in the body again");
    assert_eq!((ctx.fence(), ctx.still_owner().await), (2, true));
    assert_eq!((frozen.fence(), frozen.still_owner().await), (1, false));
    assert_eq!(ctx.idempotency_key(), frozen.idempotency_key());
    second.abort();
    let alone = tokio::spawn(agent(sender).run("go").into_future());
    let ctx = contexts.recv().await.expect("it is in the body");
    assert_eq!((ctx.fence(), ctx.still_owner().await), (0, true));
    alone.abort();
}

/// The target has seen the fences of a forgotten run. Those of a later run of the same id are higher.
#[tokio::test]
async fn a_run_of_a_used_id_has_a_higher_fencing_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let sqlite = || Arc::new(SqliteStore::open(folder.path().join("store.db")).expect("opens"));
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::default());
    for is_sqlite in [false, true] {
        let mut fences = Vec::new();
        for _ in 0..3 {
            // A store that was closed in between knows it too.
            let store: Arc<dyn Store> = if is_sqlite { sqlite() } else { memory.clone() };
            let seen = Arc::new(AtomicU64::new(0));
            let noted = seen.clone();
            let pay = Tool::dynamic(
                "pay",
                "Pays.",
                json!({ "type": "object" }),
                move |ctx: ToolContext, _: Value| {
                    noted.store(ctx.fence(), Ordering::SeqCst);
                    async { Ok::<_, ToolError>("paid") }
                },
            );
            let replies = [ScriptedResponse::call("c1", "pay", json!({})), ScriptedResponse::text("done")];
            let agent = Agent::new("till").model(ScriptedModel::new(replies)).tools(pay.non_strict());
            agent.run("go").run_id(RUN).store(store.clone()).await.expect("the run ends");
            fences.push(seen.load(Ordering::SeqCst));
            store.forget_run(&RUN.into(), None).await.expect("it is forgotten");
        }
        assert!(fences.is_sorted_by(|earlier, later| earlier < later), "{fences:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_about_a_call_that_another_runs_receipt_answers() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let agent = || {
        let pay =
            Tool::dynamic("pay", "Pays.", json!({ "type": "object" }), async |_: ToolContext, _: Value| {
                Ok::<_, ToolError>("paid")
            });
        let pay = pay.non_strict().effect(ToolEffect::Idempotent).needs_approval();
        let pay = pay.receipt_policy(ReceiptPolicy { scope: ReceiptScope::Store, expire_after: None });
        let replies = [ScriptedResponse::call("c1", "pay", json!({})), ScriptedResponse::text("done")];
        Agent::new("till").model(ScriptedModel::new(replies)).tools(pay)
    };
    let first = agent();
    let paused = first.run("go").run_id("first").store(store.clone()).await.expect("it pauses");
    let mut paused = paused.into_paused().expect("a person is asked");
    paused.approve("c1").expect("it waits");
    let ended = first.resume(paused).store(store.clone()).await.expect("it ends");
    assert!(matches!(ended, RunResult::Finished(_)), "{ended:?}");
    let ended = agent().run("go").run_id("second").store(store.clone()).await.expect("it ends");
    assert!(matches!(ended, RunResult::Finished(_)), "{ended:?}");
}

/// Entry point of a child process: it drives a run into a body. Does nothing in the test run itself.
#[tokio::test]
async fn a_driver_of_its_own() {
    let Some(path) = std::env::var_os(PATH_VARIABLE) else { return };
    let millis = std::env::var(LEASE_VARIABLE).expect("a duration").parse().expect("a number");
    let store = Arc::new(SqliteStore::open(PathBuf::from(path)).expect("opens"));
    let agent = paying_agent(|_| print_line("in the body"));
    let run = agent.run("go").run_id(RUN).store(store).lease_duration(Duration::from_millis(millis));
    match run.await {
        Ok(RunResult::Detached(_)) | Err(RunError::Store(_)) => print_line("lost the run"),
        other => panic!("it cannot end like this: {other:?}"),
    }
}

fn print_line(words: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{words}").and_then(|()| out.flush()).expect("somebody listens");
}

struct DriverProcess {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl DriverProcess {
    /// Starts a process that drives a run, and waits until it is in the body.
    fn start(path: &Path, lease: Duration) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(["a_driver_of_its_own", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(PATH_VARIABLE, path).env(LEASE_VARIABLE, lease.as_millis().to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut process = Self { child, lines };
        process.wait_for("in the body");
        process
    }

    fn wait_for(&mut self, words: &str) {
        let found = self.lines.by_ref().map(|line| line.expect("text")).any(|line| line == words);
        assert!(found, "the process ended before it said `{words}`");
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("sent");
        assert!(sent.success());
    }
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

#[tokio::test]
async fn a_killed_drivers_run_is_taken_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let mut process = DriverProcess::start(&path, Duration::from_secs(3_600));
    let store = Arc::new(SqliteStore::open(&path).expect("opens"));
    let observer = LeaseObserver::new();
    let contender = || paying_agent(|_| panic!("nobody may pay")).recover(RUN, store.clone());
    lease_error(contender().lease_observer(&observer).await);
    process.child.kill().expect("killed");
    // Its parent has not asked for its exit status: only a zombie is left of it.
    while !matches!(
        observer.observe(&*store, &RUN.into()).await.expect("read"),
        LeaseStanding::Abandoned(ref lease) if lease.is_owner_dead()
    ) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let paused = contender().lease_observer(&observer).await.expect("taken").into_paused();
    assert_eq!(paused.expect("in doubt").pending_calls()[0].reason, HoldReason::InDoubt);
}

#[tokio::test]
async fn a_frozen_driver_is_taken_over_and_fenced_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let mut process = DriverProcess::start(&path, Duration::from_secs(1));
    process.signal("-STOP");
    let store = Arc::new(SqliteStore::open(&path).expect("opens"));
    let paused = paying_agent(|_| panic!("nobody may pay")).recover(RUN, store.clone()).await;
    assert!(paused.expect("taken").is_paused());
    let before = load_paused(&*store, &RUN.into()).await.expect("read").record().journal().len();
    process.signal("-CONT");
    process.wait_for("lost the run");
    let paused = load_paused(&*store, &RUN.into()).await.expect("read");
    let journal = paused.record().journal();
    assert_eq!(journal.len(), before, "the thawed driver wrote nothing");
    let starts = journal.iter().filter(|record| matches!(record.entry, JournalEntry::CallStarted(_)));
    assert_eq!(starts.count(), 1);
}

#[tokio::test]
async fn a_run_whose_start_fails_is_released() {
    let store = Arc::new(FullStore { inner: MemoryStore::default() });
    let run = paying_agent(|_| {}).run("go").run_id(RUN).store(store.clone());
    run.artefact("picture", "AAAA").await.expect_err("it is not saved");
    assert_eq!(store.inner.load_lease(&RUN.into()).await.expect("it was created"), None);
}
