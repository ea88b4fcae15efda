//! Workers take what becomes ready without waiting for their next poll.

#![allow(clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windlass::core::id::{RunId, Timestamp};
use windlass::fleet::{
    AgentRegistry, QueueWrapper, QueuedState, RunQueue, RunSubmission, TakenWork, WorkRequest, Worker,
    WorkerStop,
};
use windlass::prelude::*;
use windlass::store::{MemoryStore, Store, StoreFuture, StoreWrapper};

/// Longest time that a test waits for a condition.
const PATIENCE: Duration = Duration::from_secs(60);
/// An interval that no test outlasts.
const NEVER: Duration = Duration::from_secs(24 * 3_600);

fn submission(run: &str) -> RunSubmission {
    RunSubmission::new(run, "desk", "go")
}

/// Starts a worker that does not poll.
fn start_worker(queue: Arc<dyn RunQueue>) -> (WorkerStop, tokio::task::JoinHandle<()>) {
    let model = ScriptedModel::from_fn(|_| ScriptedResponse::text("finished"));
    let agent = Agent::new("desk").model(model);
    let worker = Worker::new(queue, AgentRegistry::from(agent)).poll_interval(NEVER);
    let stop = worker.stop_handle();
    let working = async { worker.run().await.map(|_| ()).expect("it works") };
    (stop, tokio::spawn(working))
}

async fn wait_until_ended(queue: &dyn RunQueue, run: &str) {
    let waiting = async {
        loop {
            let queued = queue.load_queued_run(&RunId::from(run)).await.expect("it loads");
            if queued.expect("it was submitted").state == QueuedState::Ended {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the run ends in time");
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_notices_what_another_process_writes_to_its_file() {
    use windlass::core::decision::{Decision, DecisionScope};
    use windlass::store::{SqliteStore, post_decision};

    let folder = tempfile::tempdir().expect("a folder");
    let open = || -> Arc<dyn RunQueue> {
        Arc::new(SqliteStore::open(folder.path().join("fleet.db")).expect("it opens"))
    };
    // Stores share nothing but their file, as processes do.
    let (worker_store, other) = (open(), open());
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let pay = Tool::dynamic("pay", "Pays.", schema, |_: ToolContext, _| async { Ok::<_, ToolError>("paid") });
    let model = ScriptedModel::from_fn(|request| {
        match request.input_text().iter().any(|line| line.starts_with("output")) {
            false => ScriptedResponse::call("c1", "pay", json!({})),
            true => ScriptedResponse::text("finished"),
        }
    });
    let agent = Agent::new("desk").model(model).tools(pay.needs_approval());
    let worker = Worker::new(worker_store, AgentRegistry::from(agent)).poll_interval(NEVER);
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    for run in ["one", "two"] {
        other.submit_run(&submission(run), Timestamp(0)).await.expect("it is submitted");
        let parked = async {
            loop {
                let queued = other.load_queued_run(&RunId::from(run)).await.expect("it loads");
                if matches!(queued.expect("it was submitted").state, QueuedState::Parked { .. }) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, parked).await.expect("the run is taken in time");
        post_decision(&*other, &RunId::from(run), "c1", Decision::Approve, DecisionScope::ThisCall, "ann")
            .await
            .expect("it is posted");
        wait_until_ended(&*other, run).await;
    }
    stop.drain();
    working.await.expect("it ends").expect("it works");
}

/// A queue to which a run is submitted after the first request has looked, and before it is answered.
struct LateSubmission {
    inner: MemoryStore,
    has_come: AtomicBool,
}

impl StoreWrapper for LateSubmission {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
}

impl QueueWrapper for LateSubmission {
    fn inner_queue(&self) -> &dyn RunQueue {
        &self.inner
    }

    fn take_work<'a>(&'a self, request: &'a WorkRequest) -> StoreFuture<'a, TakenWork> {
        Box::pin(async move {
            let taken = self.inner.take_work(request).await;
            if !self.has_come.swap(true, Ordering::SeqCst) {
                self.inner.submit_run(&submission("late"), Timestamp(0)).await?;
            }
            taken
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_comes_during_a_request_is_not_missed() {
    let queue = Arc::new(LateSubmission { inner: MemoryStore::default(), has_come: AtomicBool::new(false) });
    let (stop, working) = start_worker(queue.clone());
    while !queue.has_come.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    wait_until_ended(&queue.inner, "late").await;
    stop.drain();
    working.await.expect("it ends");
}
