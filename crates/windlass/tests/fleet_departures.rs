//! Workers leave their runs: late answers and failures of the store, and hand-overs.

#![allow(clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use windlass::core::id::{RunId, Timestamp};
use windlass::error::StoreError;
use windlass::fleet::{
    AgentRegistry, QueueOrder, QueueWrapper, QueuedRun, QueuedState, RunDeparture, RunQueue, RunSubmission,
    SegmentLimit, TakenWork, WorkRequest, Worker,
};
use windlass::prelude::*;
use windlass::store::{MemoryStore, RunQuery, RunStatus, Store, StoreFuture, StoreWrapper, StoredLease};

/// Longest time that a test waits for a condition.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// A queue whose departures are answered late, or fail at first.
#[derive(Default)]
struct SlowDepartures {
    inner: MemoryStore,
    answer_delay: Duration,
    failures_left: AtomicU32,
}

impl StoreWrapper for SlowDepartures {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
}

impl QueueWrapper for SlowDepartures {
    fn inner_queue(&self) -> &dyn RunQueue {
        &self.inner
    }

    fn leave_run<'a>(&'a self, departure: &'a RunDeparture) -> StoreFuture<'a, ()> {
        let fewer = |left: u32| left.checked_sub(1);
        if self.failures_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
            return Box::pin(async { Err(StoreError::new("no space left on device")) });
        }
        Box::pin(async move {
            let left = self.inner.leave_run(departure).await;
            tokio::time::sleep(self.answer_delay).await;
            left
        })
    }
}

/// A tool whose bodies take a while, and which counts those that run at the same time.
#[derive(Clone, Default)]
struct SlowBody {
    started: Arc<AtomicU32>,
    running: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
}

impl SlowBody {
    fn tool(&self) -> Tool {
        let body = self.clone();
        Tool::dynamic("step", "Steps.", empty_schema(), move |_: ToolContext, _: Value| {
            let body = body.clone();
            async move {
                body.started.fetch_add(1, Ordering::SeqCst);
                let running = body.running.fetch_add(1, Ordering::SeqCst) + 1;
                body.most.fetch_max(running, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_secs(2)).await;
                body.running.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, ToolError>("done")
            }
        })
    }
}

fn empty_schema() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

fn stepping_agent(tool: Tool, steps: usize) -> Agent {
    let model = ScriptedModel::from_fn(move |request| {
        let done = request.input_text().iter().filter(|line| line.starts_with("output")).count();
        match done < steps {
            true => ScriptedResponse::call(&format!("c{done}"), "step", json!({})),
            false => ScriptedResponse::text("finished"),
        }
    });
    Agent::new("desk").model(model).tools(tool)
}

async fn submit(queue: &dyn RunQueue, run: &str) {
    let submission = RunSubmission::new(run, "desk", "go");
    queue.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
}

async fn load(queue: &dyn RunQueue, run: &str) -> QueuedRun {
    let queued = queue.load_queued_run(&RunId::from(run)).await.expect("it loads");
    queued.expect("it was submitted")
}

async fn wait_until_ended(queue: &dyn RunQueue, run: &str) {
    let waiting = async {
        while load(queue, run).await.state != QueuedState::Ended {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the run ends in time");
}

async fn wait_until_started(count: &AtomicU32, least: u32) {
    let waiting = async {
        while count.load(Ordering::SeqCst) < least {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the body starts in time");
}

/// The queue offers the run again before the worker knows that its departure has succeeded.
#[tokio::test(start_paused = true)]
async fn a_worker_does_not_take_a_run_again_before_it_has_left_it() {
    let queue: Arc<dyn RunQueue> =
        Arc::new(SlowDepartures { answer_delay: Duration::from_millis(900), ..Default::default() });
    submit(&*queue, "run").await;
    let body = SlowBody::default();
    let worker = Worker::new(queue.clone(), AgentRegistry::from(stepping_agent(body.tool(), 3)));
    let worker = worker.segment_limit(SegmentLimit::Turn);
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    wait_until_ended(&*queue, "run").await;
    stop.drain();
    let report = working.await.expect("it ends").expect("it works");
    assert_eq!((report.ended, report.left), (1, 3), "{report:?}");
    assert_eq!((report.busy, report.lost, report.failed), (0, 0, 0), "{report:?}");
    assert_eq!((body.started.load(Ordering::SeqCst), body.most.load(Ordering::SeqCst)), (3, 1));
}

/// An order reaches the segment that follows one whose departure was answered late.
#[tokio::test(start_paused = true)]
async fn a_run_that_was_left_slowly_is_still_cancelled() {
    let queue: Arc<dyn RunQueue> =
        Arc::new(SlowDepartures { answer_delay: Duration::from_millis(900), ..Default::default() });
    submit(&*queue, "run").await;
    let body = SlowBody::default();
    let worker = Worker::new(queue.clone(), AgentRegistry::from(stepping_agent(body.tool(), 1_000)));
    let worker = worker.segment_limit(SegmentLimit::Turn).drain_timeout(Duration::from_secs(5));
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    wait_until_started(&body.started, 2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    queue.post_order(&"run".into(), &QueueOrder::Cancel).await.expect("it is posted");
    wait_until_ended(&*queue, "run").await;
    stop.drain();
    working.await.expect("it ends").expect("it works");
    assert!(body.started.load(Ordering::SeqCst) < 10, "it is cancelled soon");
    let runs = queue.list_runs(&RunQuery::default()).await.expect("they are listed");
    assert_eq!(runs[0].status, RunStatus::Cancelled);
}

/// The heartbeat of the worker survives a disk that is full for a while, and so do its leases.
#[tokio::test(start_paused = true)]
async fn a_worker_drives_a_run_on_that_it_could_not_leave() {
    let queue: Arc<dyn RunQueue> =
        Arc::new(SlowDepartures { failures_left: AtomicU32::new(12), ..Default::default() });
    submit(&*queue, "run").await;
    let body = SlowBody::default();
    let worker = Worker::new(queue.clone(), AgentRegistry::from(stepping_agent(body.tool(), 1)));
    let worker = worker.segment_limit(SegmentLimit::Turn);
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    wait_until_ended(&*queue, "run").await;
    stop.drain();
    let report = working.await.expect("it ends").expect("it works");
    assert_eq!((report.ended, report.busy, report.failed), (1, 0, 2), "{report:?}");
    assert_eq!(body.started.load(Ordering::SeqCst), 1);
}

/// The worker that gave the run away has room for it, and the other one has none yet.
#[tokio::test(start_paused = true)]
async fn a_handed_over_run_goes_on_elsewhere() {
    let queue = Arc::new(MemoryStore::default());
    let (started, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let body = {
        let (started, gate) = (started.clone(), gate.clone());
        Tool::dynamic("step", "Steps.", empty_schema(), move |_: ToolContext, _: Value| {
            let (started, gate) = (started.clone(), gate.clone());
            async move {
                started.fetch_add(1, Ordering::SeqCst);
                gate.notified().await;
                Ok::<_, ToolError>("done")
            }
        })
    };
    let worker = || {
        let worker = Worker::new(queue.clone(), AgentRegistry::from(stepping_agent(body.clone(), 1)));
        let worker = worker.concurrency(1);
        let stop = worker.stop_handle();
        (stop, tokio::spawn(worker.run()))
    };
    submit(&*queue, "moved").await;
    let (first_stop, first) = worker();
    wait_until_started(&started, 1).await;
    submit(&*queue, "other").await;
    let (second_stop, second) = worker();
    wait_until_started(&started, 2).await;
    queue.post_order(&"moved".into(), &QueueOrder::HandOver).await.expect("posted");
    tokio::time::sleep(Duration::from_secs(2)).await;
    // The bodies end in the order in which they wait: the moved run is left, and the other one ends later.
    gate.notify_one();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(load(&*queue, "moved").await.state, QueuedState::Ready);
    gate.notify_one();
    for run in ["moved", "other"] {
        wait_until_ended(&*queue, run).await;
    }
    first_stop.drain();
    second_stop.drain();
    let first = first.await.expect("it ends").expect("it works");
    let second = second.await.expect("it ends").expect("it works");
    assert_eq!((first.left, first.ended, second.ended), (1, 0, 2));
    assert_eq!(started.load(Ordering::SeqCst), 2);
}

/// A queue in a database that has stopped to answer.
#[derive(Default)]
struct DeadDatabase {
    inner: MemoryStore,
    asked: AtomicU32,
}

impl StoreWrapper for DeadDatabase {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
}

impl QueueWrapper for DeadDatabase {
    fn inner_queue(&self) -> &dyn RunQueue {
        &self.inner
    }

    fn take_work<'a>(&'a self, _: &'a WorkRequest) -> StoreFuture<'a, TakenWork> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::pending())
    }

    fn retire_worker<'a>(&'a self, _: &'a str, _: Option<&'a StoredLease>) -> StoreFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_stops_although_the_store_does_not_answer() {
    let queue = Arc::new(DeadDatabase::default());
    let worker =
        Worker::new(queue.clone(), AgentRegistry::from(stepping_agent(SlowBody::default().tool(), 1)));
    let worker = worker.lease_duration(PATIENCE * 10);
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    wait_until_started(&queue.asked, 1).await;
    stop.drain();
    let stopped = tokio::time::timeout(PATIENCE, working).await.expect("it stops in time");
    stopped.expect("it ends").expect("it works");
}
