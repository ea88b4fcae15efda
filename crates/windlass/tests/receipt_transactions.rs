//! A settlement and its shared receipt are one write: no driver is lost between them.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::journal::{JournalEntry, decode_lines};
use windlass::core::tool::ToolEffect;
use windlass::error::StoreError;
use windlass::prelude::*;
use windlass::store::{MemoryStore, SqliteStore, Store, StoreFuture, StoreWrapper};
use windlass::tool::{ReceiptPolicy, ReceiptScope};

/// Lease of a driver that is lost; another one takes its claims over after it.
const LEASE: Duration = Duration::from_millis(300);
/// Number of operations of a run that is not lost, at most.
const MAX_OPERATIONS: u32 = 100;

/// A store whose process is lost after a number of operations.
struct LostStore {
    inner: Arc<dyn Store>,
    operations_left: AtomicU32,
}

impl StoreWrapper for LostStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn wrap_operation<'a, T: Send + 'a>(
        &'a self,
        operation: impl FnOnce() -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        let left =
            self.operations_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match left {
            Ok(_) => operation(),
            Err(_) => Box::pin(std::future::ready(Err(StoreError::new("the process is lost")))),
        }
    }
}

/// Returns an agent that pays once, and logs the key of the payment.
fn paying_agent(keys: &Arc<Mutex<Vec<String>>>) -> Agent {
    let keys = keys.clone();
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let pay = Tool::dynamic("pay", "Pays.", schema, move |ctx: ToolContext, _: Value| {
        keys.lock().expect("a log").push(ctx.idempotency_key());
        async { Ok::<_, ToolError>("paid") }
    })
    .non_strict()
    .effect(ToolEffect::Idempotent)
    .receipt_policy(ReceiptPolicy { scope: ReceiptScope::Store, expire_after: None });
    let replies = [ScriptedResponse::call("p", "pay", json!({})), ScriptedResponse::text("done")];
    Agent::new("bank").model(ScriptedModel::new(replies)).tool(pay)
}

async fn has_settled(store: &dyn Store, run: &str) -> bool {
    let lines = store.load_journal(&run.into(), 0).await.expect("it can be read");
    let records = decode_lines(&lines).expect("what was written can be read");
    records.iter().any(|record| matches!(record.entry, JournalEntry::CallSettled(_)))
}

/// Loses the process of a run after each number of operations, and lets another run make the same call.
async fn check_every_loss(make: impl Fn() -> Arc<dyn Store>) {
    let mut lost_after_settlement = 0;
    for operations in 0..MAX_OPERATIONS {
        let (keys, store) = (Arc::new(Mutex::default()), make());
        let lost = LostStore { inner: store.clone(), operations_left: AtomicU32::new(operations) };
        let run = paying_agent(&keys).run("pay").run_id("one").store(Arc::new(lost)).lease_duration(LEASE);
        // A driver that a busy machine keeps from renewing its lease is lost, too.
        let is_lost = !matches!(run.await, Ok(RunResult::Finished(_)));
        let settled = has_settled(&*store, "one").await;
        let other = paying_agent(&keys).run("pay").run_id("two").store(store.clone());
        assert_eq!(other.await.expect("it ends").output_text().expect("it finished"), "done");
        let keys = keys.lock().expect("a log").clone();
        let is_one_key = keys.iter().all(|key| *key == keys[0]);
        assert!(is_one_key, "after {operations} operations: {keys:?}");
        if settled {
            assert_eq!(keys.len(), 1, "the key was handed out again after {operations} operations: {keys:?}");
        }
        if !is_lost {
            assert!(lost_after_settlement > 0, "no process was lost after a settlement");
            return;
        }
        lost_after_settlement += u32::from(settled);
    }
    panic!("the run does not end with {MAX_OPERATIONS} operations");
}

#[tokio::test]
async fn no_process_is_lost_between_a_settlement_and_its_receipt_in_memory() {
    check_every_loss(|| Arc::new(MemoryStore::default())).await;
}

#[tokio::test]
async fn no_process_is_lost_between_a_settlement_and_its_receipt_in_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let count = AtomicU32::new(0);
    check_every_loss(|| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        let path = folder.path().join(format!("{number}.db"));
        Arc::new(SqliteStore::open(path).expect("a new file"))
    })
    .await;
}
