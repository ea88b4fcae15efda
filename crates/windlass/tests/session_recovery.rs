//! Sessions are derived from the journal: whatever happens between the two, a session has each item of its runs once.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::json;
use windlass::core::id::{RunId, SessionId};
use windlass::core::item::Item;
use windlass::core::journal::JournalLine;
use windlass::error::{ConfigError, RunError, StoreError, StoreErrorKind};
use windlass::model::describe_item;
use windlass::prelude::*;
use windlass::run::PausedRun;
use windlass::session::{
    MemorySessionStore, Session, SessionClaim, SessionFence, SessionItemsPage, SessionState, SessionStore,
    SessionWrite,
};
use windlass::store::{
    DerivedWrites, Durability, Lease, LeaseClaim, MemoryStore, RunQuery, RunStatus, SqliteStore, Store,
    StoreFuture, StoreWrapper, StoredLease, load_paused,
};

const RUN: &str = "run";

/// Returns an agent whose first response calls `pay` and whose second says that it is paid.
fn paying_agent(needs_approval: bool) -> Agent {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let pay = Tool::dynamic("pay", "Pays.", schema, |_, _| async { Ok::<_, ToolError>("paid 40") });
    let pay = pay.effect(windlass::core::tool::ToolEffect::Idempotent);
    let pay = if needs_approval { pay.needs_approval() } else { pay };
    let model = ScriptedModel::new([
        ScriptedResponse::items([Item::call("c1", "pay", "{}")]),
        ScriptedResponse::text("It is paid."),
    ]);
    Agent::new("till").model(model).tool(pay)
}

/// Returns an agent that goes on after the call was made.
fn finishing_agent() -> Agent {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let pay = Tool::dynamic("pay", "Pays.", schema, |_, _| async { Ok::<_, ToolError>("paid 40") });
    let pay = pay.effect(windlass::core::tool::ToolEffect::Idempotent).needs_approval();
    Agent::new("till").model(ScriptedModel::new([ScriptedResponse::text("It is paid.")])).tool(pay)
}

fn whole_conversation() -> Vec<String> {
    ["user: Pay.", "call c1 pay {}", "output c1 paid 40", "assistant: It is paid."]
        .map(str::to_owned)
        .to_vec()
}

async fn conversation(session: &Session) -> Vec<String> {
    let items = session.items().await.expect("the session can be read");
    items.iter().map(|item| describe_item(item)).collect()
}

fn open_store(folder: &tempfile::TempDir) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(folder.path().join("windlass.db")).expect("the store opens"))
}

fn approve(mut paused: PausedRun) -> PausedRun {
    paused.approve("c1").expect("it waits for approval");
    paused
}

#[tokio::test]
async fn a_resumed_run_writes_to_its_session_without_being_handed_it_again() {
    // As a value, with a session in memory.
    let session = Session::in_memory("s");
    let agent = paying_agent(true);
    let paused =
        agent.run("Pay.").session(&session).await.expect("it pauses").into_paused().expect("it pauses");
    agent.resume(approve(paused)).await.expect("it ends");
    assert_eq!(conversation(&session).await, whole_conversation());

    // From the store alone: resumed from text, or recovered.
    for is_recovered in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open_store(&folder);
        let session = Session::new("s", store.clone());
        let run = paying_agent(true).run("Pay.").session(&session).store(store.clone()).run_id(RUN);
        let paused = run.await.expect("it pauses").into_paused().expect("it pauses");
        let text = approve(paused).to_text();
        let restored = PausedRun::from_text(&text).expect("it is a saved run");
        let agent = finishing_agent();
        let resumed = agent.resume(restored).store(store.clone());
        if is_recovered {
            drop(resumed);
            let posted = load_paused(&*store, &RUN.into()).await.expect("it is stored");
            let digest = posted.pending_calls()[0].digest;
            post_approval(&store, digest).await;
            agent.recover(RUN, store.clone()).await.expect("it ends");
        } else {
            resumed.await.expect("it ends");
        }
        assert_eq!(conversation(&session).await, whole_conversation(), "recovered: {is_recovered}");
    }
}

async fn post_approval(store: &Arc<SqliteStore>, digest: windlass::core::canonical::Digest) {
    let decision = windlass::core::journal::DecisionRecorded {
        call: "c1".into(),
        digest,
        decision: windlass::core::decision::Decision::Approve,
        scope: windlass::core::decision::DecisionScope::ThisCall,
        decided_by: None,
        displayed: None,
        posted_revision: 0,
        signature: None,
        mac: None,
    };
    let posted = windlass::store::PostedDecision {
        path: "c1".into(),
        attempt: 0,
        decision,
        posted_at: windlass::core::id::Timestamp(0),
        mac: None,
    };
    store.post_decision(&RUN.into(), posted, 1).await.expect("it is posted");
}

#[tokio::test]
async fn a_session_that_cannot_be_reached_is_an_error() {
    let session = Session::in_memory("s");
    let run = paying_agent(true).run("Pay.").session(&session);
    let paused = run.await.expect("it pauses").into_paused().expect("it pauses");
    let restored = PausedRun::from_text(&paused.to_text()).expect("it is a saved run");
    let error = finishing_agent().resume(restored.clone()).await.expect_err("there is no session");
    assert!(matches!(&error, RunError::Config(ConfigError::NoSession { .. })), "{error}");
    let other = Session::in_memory("other");
    let error = finishing_agent().resume(restored).session(&other).await.expect_err("another session");
    assert!(matches!(&error, RunError::Config(ConfigError::OtherSession { .. })), "{error}");
    assert_eq!(conversation(&other).await, Vec::<String>::new());

    let paused = paying_agent(true).run("Pay.").await.expect("it pauses").into_paused().expect("it pauses");
    let error = finishing_agent().resume(paused).session(&session).await.expect_err("it has none");
    assert!(error.to_string().contains("belongs to no session, not to session `s`"), "{error}");
}

/// Sessions whose write with this number never ends, before or after it is done.
struct HangingSessions {
    memory: MemorySessionStore,
    writes_left: AtomicUsize,
    is_written: bool,
}

impl SessionStore for HangingSessions {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        self.memory.load_session(session)
    }

    fn load_session_items<'a>(
        &'a self,
        session: &'a SessionId,
        skip: u64,
        limit: u32,
    ) -> BoxFuture<'a, Result<SessionItemsPage, StoreError>> {
        self.memory.load_session_items(session, skip, limit)
    }

    fn append_items<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.memory.append_items(session, items)
    }

    fn append_run_items(
        &self,
        write: SessionWrite,
        fence: SessionFence,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        let left = self
            .writes_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(1)));
        let hangs = left == Ok(1);
        async move {
            if hangs && !self.is_written {
                std::future::pending::<()>().await;
            }
            self.memory.append_run_items(write, fence).await?;
            if hangs {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
        .boxed()
    }

    fn run_position<'a>(
        &'a self,
        session: &'a SessionId,
        run: &'a RunId,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.memory.run_position(session, run)
    }

    fn list_run_positions<'a>(
        &'a self,
        session: &'a SessionId,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<(RunId, u64)>, StoreError>> {
        self.memory.list_run_positions(session, after, limit)
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.memory.replace_items(session, version, items)
    }

    fn claim_session<'a>(
        &'a self,
        session: &'a SessionId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> BoxFuture<'a, Result<SessionClaim, StoreError>> {
        self.memory.claim_session(session, claim, abandoned)
    }

    fn release_session<'a>(
        &'a self,
        session: &'a SessionId,
        owner: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.memory.release_session(session, owner)
    }

    fn list_sessions<'a>(
        &'a self,
        after: Option<&'a SessionId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<SessionId>, StoreError>> {
        self.memory.list_sessions(after, limit)
    }
}

#[tokio::test]
async fn a_process_that_ends_in_a_session_write_forgets_nothing() {
    for number in 1..=3 {
        for is_written in [false, true] {
            let sessions = Arc::new(HangingSessions {
                memory: MemorySessionStore::default(),
                writes_left: AtomicUsize::new(number),
                is_written,
            });
            let (session, store) = (Session::new("s", sessions), Arc::new(MemoryStore::default()));
            let agent = paying_agent(false);
            let run = agent.run("Pay.").session(&session).store(store.clone()).run_id(RUN);
            let run = run.lease_duration(Duration::from_millis(40));
            // The process ends here.
            let ended = tokio::time::timeout(Duration::from_millis(300), run).await;
            assert!(ended.is_err(), "write {number} hangs");
            // Whoever goes through the runs that are not ended finds it, also if its end is in the journal.
            assert_eq!(run_status(&*store).await, RunStatus::Running, "write {number}, {is_written}");
            tokio::time::sleep(Duration::from_millis(100)).await;
            let recovered = agent.recover(RUN, store.clone()).session(&session).await.expect("it ends");
            assert_eq!(recovered.output_text().expect("it finished"), "It is paid.");
            assert_eq!(conversation(&session).await, whole_conversation(), "write {number}, {is_written}");
            assert_eq!(run_status(&*store).await, RunStatus::Finished, "write {number}, {is_written}");
        }
    }
}

/// Returns the status in the list of runs.
async fn run_status(store: &dyn Store) -> RunStatus {
    let runs = store.list_runs(&RunQuery::default()).await.expect("the runs can be listed");
    runs[0].status
}

#[tokio::test]
async fn the_id_of_a_forgotten_run_can_be_used_again() {
    let store = Arc::new(MemoryStore::default());
    let session = Session::new("s", store.clone());
    for times in 1..=2 {
        let run = paying_agent(false).run("Pay.").session(&session).store(store.clone()).run_id(RUN);
        run.await.expect("it ends");
        store.forget_run(&RUN.into(), None).await.expect("nobody drives it");
        let expected = vec![whole_conversation(); times].concat();
        assert_eq!(conversation(&session).await, expected);
    }
    // A session in another store cannot tell that the earlier run is forgotten.
    let session = Session::in_memory("s");
    let run = || paying_agent(false).run("Pay.").session(&session).store(store.clone()).run_id(RUN);
    run().await.expect("it ends");
    let error = run().await.expect_err("the run exists");
    assert!(
        matches!(&error, RunError::Store(error) if error.kind() == StoreErrorKind::AlreadyExists),
        "{error}"
    );
    store.forget_run(&RUN.into(), None).await.expect("nobody drives it");
    let error = run().await.expect_err("the session has items of it");
    assert!(
        matches!(&error, RunError::Session(error) if error.kind() == StoreErrorKind::AlreadyExists),
        "{error}"
    );
    assert_eq!(conversation(&session).await, whole_conversation());
    let lines = store.load_journal(&RUN.into(), 0).await.expect("it can be read");
    assert_eq!(lines, Vec::new(), "it has not started");
}

/// A store whose process ends right after the append with the run's last record.
struct DyingStore {
    inner: Arc<SqliteStore>,
}

impl StoreWrapper for DyingStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        self.inner.sessions()
    }

    fn append_with_writes<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
        writes: DerivedWrites,
    ) -> StoreFuture<'a, ()> {
        async move {
            let is_last = lines.iter().any(|line| line.body.contains("run_finished"));
            self.inner.append_with_writes(lease, at, lines, durability, writes).await?;
            if is_last {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_finished_run_and_its_session_are_written_in_one_transaction() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_store(&folder);
    let session = Session::new("s", store.clone());
    let dying = Arc::new(DyingStore { inner: store.clone() });
    let run = paying_agent(false).run("Pay.").session(&session).store(dying).run_id(RUN);
    let mut run = Box::pin(run);
    // The process ends as soon as the end of the run is durable.
    loop {
        let _step = tokio::time::timeout(Duration::from_millis(20), &mut run).await;
        let lines = store.load_journal(&RUN.into(), 0).await.expect("it can be read");
        if lines.iter().any(|line| line.body.contains("run_finished")) {
            break;
        }
    }
    drop(run);
    assert_eq!(conversation(&session).await, whole_conversation());
}
