//! Sessions in a migration of a live store: no turn of a run is missing in the target, and none is written twice.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use serde_json::json;
use windlass::core::id::{RunId, Timestamp};
use windlass::core::item::Item;
use windlass::core::tool::ToolEffect;
use windlass::error::StoreError;
use windlass::model::describe_item;
use windlass::prelude::*;
use windlass::session::SessionStore;
use windlass::store::{
    Lease, MemoryStore, RunQuery, RunStatus, Store, StoreFuture, StoreWrapper, StoredReceipt, StoredRun,
    migrate_store,
};
use windlass::tool::{ReceiptPolicy, ReceiptScope};

/// Returns an agent that pays and says so.
fn paying_agent(needs_approval: bool) -> Agent {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let pay = Tool::dynamic("pay", "Pays.", schema, |_, _| async { Ok::<_, ToolError>("paid 40") });
    let receipts = ReceiptPolicy { scope: ReceiptScope::Store, expire_after: None };
    let pay = pay.effect(ToolEffect::Idempotent).receipt_policy(receipts);
    let pay = if needs_approval { pay.needs_approval() } else { pay };
    let model = ScriptedModel::new([
        ScriptedResponse::items([Item::call("c1", "pay", "{}")]),
        ScriptedResponse::text("It is paid."),
    ]);
    Agent::new("till").model(model).tool(pay)
}

const CONVERSATION: [&str; 4] =
    ["user: Pay.", "call c1 pay {}", "output c1 paid 40", "assistant: It is paid."];

async fn conversation(session: &Session) -> Vec<String> {
    let items = session.items().await.expect("the session can be read");
    items.iter().map(|item| describe_item(item)).collect()
}

/// A store in which two runs end after a migration has copied the sessions and before it copies runs: one that was listed
/// as paused, and a new one.
struct LiveStore {
    inner: Arc<MemoryStore>,
    has_moved: AtomicBool,
}

impl LiveStore {
    async fn end_runs(&self) {
        let session = Session::new("s", self.inner.clone());
        let mut paused =
            windlass::store::load_paused(&*self.inner, &"first".into()).await.expect("it is stored");
        paused.approve("c1").expect("it waits for approval");
        let model = ScriptedModel::new([ScriptedResponse::text("It is paid.")]);
        let agent = paying_agent(true).model(model);
        agent.resume(paused).store(self.inner.clone()).await.expect("it ends");
        let run =
            paying_agent(false).run("Pay.").session(&session).store(self.inner.clone()).run_id("second");
        run.await.expect("it ends");
    }
}

impl StoreWrapper for LiveStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        self.inner.sessions()
    }

    fn list_runs<'a>(&'a self, query: &'a RunQuery) -> StoreFuture<'a, Vec<StoredRun>> {
        async move {
            let listed = self.inner.list_runs(query).await?;
            if self.has_moved.swap(true, Ordering::Relaxed) {
                return Ok(listed);
            }
            self.end_runs().await;
            let second =
                self.inner.list_runs(query).await?.into_iter().filter(|run| run.run.as_str() == "second");
            Ok(second.chain(listed).collect())
        }
        .boxed()
    }
}

#[tokio::test]
async fn runs_that_end_during_a_migration_are_whole_in_the_target() {
    let inner = Arc::new(MemoryStore::default());
    let session = Session::new("s", inner.clone());
    let run = paying_agent(true).run("Pay.").session(&session).store(inner.clone()).run_id("first");
    run.await.expect("it pauses").into_paused().expect("it pauses");
    let source = LiveStore { inner, has_moved: AtomicBool::new(false) };
    let target = Arc::new(MemoryStore::default());
    let report = migrate_store(&source, &*target).await.expect("it is migrated");
    assert_eq!(report.copied_runs, ["first", "second"].map(RunId::from));
    let moved = Session::new("s", target.clone());
    assert_eq!(conversation(&moved).await, conversation(&session).await);
    assert_eq!(conversation(&moved).await, [CONVERSATION, CONVERSATION].concat());
    for run in target.list_runs(&RunQuery::default()).await.expect("it can be listed") {
        let position = moved_position(&target, &run).await;
        assert_eq!((run.status, position), (RunStatus::Finished, 4), "{}", run.run);
        // A driver in the target finds the session, and has nothing to add.
        paying_agent(true).recover(run.run, target.clone()).await.expect("it has ended");
    }
    assert_eq!(conversation(&moved).await, [CONVERSATION, CONVERSATION].concat());
    let receipts = target.list_receipts(None, 9).await.expect("they can be listed");
    assert_eq!(receipts, source_receipts(&source).await);
    assert_eq!(report.receipts, 1);
    let report = migrate_store(&source, &*target).await.expect("it can be repeated");
    assert_eq!(report.known_runs.len(), 2);
}

/// A store whose session is compacted after a migration has copied the sessions and before it copies runs.
struct CompactedStore {
    inner: Arc<MemoryStore>,
    is_compacted: AtomicBool,
}

impl StoreWrapper for CompactedStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        self.inner.sessions()
    }

    fn list_runs<'a>(&'a self, query: &'a RunQuery) -> StoreFuture<'a, Vec<StoredRun>> {
        async move {
            if !self.is_compacted.swap(true, Ordering::Relaxed) {
                let version = self.inner.load_session(&"s".into()).await?.version;
                let items = vec![Item::user("In short: it is paid.").into()];
                self.inner.replace_items(&"s".into(), version, items).await?;
            }
            self.inner.list_runs(query).await
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_session_that_is_compacted_during_a_migration_is_compacted_in_the_target() {
    let inner = Arc::new(MemoryStore::default());
    let session = Session::new("s", inner.clone());
    let run = paying_agent(false).run("Pay.").session(&session).store(inner.clone()).run_id("first");
    run.await.expect("it ends");
    let source = CompactedStore { inner: inner.clone(), is_compacted: AtomicBool::new(false) };
    let target = Arc::new(MemoryStore::default());
    let report = migrate_store(&source, &*target).await.expect("it is migrated");
    assert_eq!(report.copied_runs, [RunId::from("first")]);
    let moved = Session::new("s", target.clone());
    assert_eq!(conversation(&moved).await, ["user: In short: it is paid."]);
    migrate_store(&*inner, &*target).await.expect("it can be repeated");
    // What the target has of its own is not replaced.
    target.append_items(&"s".into(), vec![Item::user("Thanks.").into()]).await.expect("appended");
    let version = inner.load_session(&"s".into()).await.expect("loaded").version;
    let items = vec![Item::user("Shorter.").into()];
    inner.replace_items(&"s".into(), version, items).await.expect("compacted");
    migrate_store(&*inner, &*target).await.expect_err("it is another session");
    assert_eq!(conversation(&moved).await, ["user: In short: it is paid.", "user: Thanks."]);
}

/// A store that is killed once, before it sets the status of a run.
struct KilledTarget {
    inner: MemoryStore,
    is_killed: AtomicBool,
}

impl StoreWrapper for KilledTarget {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        self.inner.sessions()
    }

    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()> {
        match self.is_killed.swap(true, Ordering::Relaxed) {
            true => self.inner.set_status(lease, status, now),
            false => std::future::ready(Err(StoreError::new("killed"))).boxed(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_migration_that_was_killed_before_the_status_sets_it_later() {
    let source = Arc::new(MemoryStore::default());
    let run = paying_agent(false).run("Pay.").store(source.clone()).run_id("first");
    run.await.expect("it ends");
    let target = KilledTarget { inner: MemoryStore::default(), is_killed: AtomicBool::new(false) };
    migrate_store(&*source, &target).await.expect_err("it is killed");
    let report = migrate_store(&*source, &target).await.expect("it is repeated");
    assert_eq!(report.known_runs, [RunId::from("first")], "it has all records already");
    let listed = target.inner.list_runs(&RunQuery::default()).await.expect("listed");
    assert_eq!(listed[0].status, RunStatus::Finished);
}

async fn source_receipts(source: &LiveStore) -> Vec<StoredReceipt> {
    source.inner.list_receipts(None, 9).await.expect("they can be listed")
}

async fn moved_position(target: &MemoryStore, run: &StoredRun) -> u64 {
    target.run_position(&"s".into(), &run.run).await.expect("it can be read")
}

#[tokio::test]
async fn a_run_of_another_store_goes_on_with_the_migrated_session() {
    let (own, old) = (Arc::new(MemoryStore::default()), Arc::new(MemoryStore::default()));
    let session = Session::new("s", old.clone());
    let run = paying_agent(true).run("Pay.").session(&session).store(own.clone()).run_id("r");
    let mut paused = run.await.expect("it pauses").into_paused().expect("it pauses");
    paused.approve("c1").expect("it waits for approval");
    let new = Arc::new(MemoryStore::default());
    migrate_store(&*old, &*new).await.expect("it is migrated");
    let moved = Session::new("s", new);
    let model = ScriptedModel::new([ScriptedResponse::text("It is paid.")]);
    let agent = paying_agent(true).model(model);
    agent.resume(paused).store(own).session(&moved).await.expect("it ends");
    assert_eq!(conversation(&moved).await, CONVERSATION);
}
