//! A worker that an engine dispatches drives the runs that the engine names, and no other.

#![allow(clippy::expect_used)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::Notify;
use windlass::core::decision::{Decision, DecisionScope};
use windlass::core::id::{RunId, Timestamp};
use windlass::event::EventReplay;
use windlass::fleet::{
    AgentRegistry, DecisionRequest, DispatchError, NextWake, QueueOrder, QueuedState, RunDispatch, RunQueue,
    RunSubmission, SegmentDispatcher, Worker, WorkerMetrics, WorkerReport, WorkerStop,
};
use windlass::prelude::*;
use windlass::store::{EventFeed, MemoryStore, load_paused, post_decision};

/// Longest time that a test waits for a condition.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// A body that counts its starts, and goes on when it is told to.
#[derive(Clone, Default)]
struct GatedBody {
    started: Arc<AtomicU32>,
    gate: Arc<Notify>,
}

impl GatedBody {
    fn tool(&self) -> Tool {
        let body = self.clone();
        let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        Tool::dynamic("order", "Orders.", schema, move |_: ToolContext, _: Value| {
            let body = body.clone();
            async move {
                body.started.fetch_add(1, Ordering::SeqCst);
                body.gate.notified().await;
                Ok::<_, ToolError>("ordered")
            }
        })
    }

    async fn wait_until_started(&self) {
        let waiting = async {
            while self.started.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the body starts");
    }
}

fn agent(tool: Tool) -> Agent {
    let call = ScriptedResponse::call("c1", "order", json!({}));
    Agent::new("desk").model(ScriptedModel::new([call, ScriptedResponse::text("finished")])).tools(tool)
}

/// An engine that only notes the runs that it is to wake.
#[derive(Default)]
struct NotedWakes {
    runs: Mutex<Vec<RunId>>,
    noted: Notify,
}

impl RunDispatch for NotedWakes {
    fn wake_run<'a>(
        &'a self,
        run: &'a RunId,
        _: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<(), DispatchError>> {
        self.runs.lock().expect("a lock").push(run.clone());
        self.noted.notify_one();
        std::future::ready(Ok(())).boxed()
    }
}

/// A worker in a task of its own.
struct WorkingDesk {
    queue: Arc<MemoryStore>,
    wakes: Arc<NotedWakes>,
    dispatcher: SegmentDispatcher,
    stop: WorkerStop,
    metrics: WorkerMetrics,
    work: tokio::task::JoinHandle<WorkerReport>,
}

impl WorkingDesk {
    async fn start(tool: Tool) -> Self {
        let queue = Arc::new(MemoryStore::default());
        for run in ["one", "two"] {
            let submission = RunSubmission::new(run, "desk", "go");
            queue.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
        }
        let worker = Worker::new(queue.clone(), AgentRegistry::from(agent(tool)));
        let metrics = worker.metrics();
        let (stop, wakes) = (worker.stop_handle(), Arc::new(NotedWakes::default()));
        let (dispatcher, work) = worker.into_dispatched(wakes.clone());
        let work = tokio::spawn(async { work.await.expect("it works") });
        Self { queue, wakes, dispatcher, stop, metrics, work }
    }

    async fn drive(&self, run: &str) -> (String, NextWake) {
        let report = self.dispatcher.drive_segment(&RunId::from(run)).await.expect("it is driven");
        assert_eq!(report.agent.as_str(), "desk");
        (report.state, report.wake)
    }

    async fn state_of(&self, run: &str) -> QueuedState {
        let queued = self.queue.load_queued_run(&RunId::from(run)).await.expect("it loads");
        queued.expect("it was submitted").state
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_named_run_is_driven() {
    let body = GatedBody::default();
    body.gate.notify_one();
    let desk = WorkingDesk::start(body.tool()).await;
    assert_eq!(desk.drive("one").await, ("ended".to_owned(), NextWake::Never));
    assert_eq!(desk.state_of("two").await, QueuedState::Ready);
    assert_eq!(desk.drive("one").await, ("ended".to_owned(), NextWake::Never), "a needless wake-up");
    assert_eq!(body.started.load(Ordering::SeqCst), 1);
    let unknown = desk.dispatcher.drive_segment(&RunId::from("unknown")).await;
    assert!(matches!(unknown, Err(DispatchError::NotSubmitted { .. })), "{unknown:?}");
    desk.stop.drain();
    assert_eq!(desk.work.await.expect("it stops").ended, 1);
    let late = desk.dispatcher.drive_segment(&RunId::from("two")).await;
    assert!(matches!(late, Err(DispatchError::WorkerStopped)), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_attaches_to_the_segment() {
    let body = GatedBody::default();
    let desk = WorkingDesk::start(body.tool()).await;
    let run = RunId::from("one");
    {
        // The engine drops its request, as one does that has crashed.
        let dropped = desk.dispatcher.drive_segment(&run);
        tokio::select! {
            report = dropped => panic!("the body waits: {report:?}"),
            () = body.wait_until_started() => {}
        }
    }
    let while_driving = desk.metrics.snapshot();
    assert_eq!((while_driving.active, while_driving.taken, while_driving.capacity), (1, 1, 16));
    let again = async { desk.drive("one").await };
    let open = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        body.gate.notify_one();
    };
    let (report, ()) = tokio::join!(again, open);
    assert_eq!(report, ("ended".to_owned(), NextWake::Never));
    assert_eq!(body.started.load(Ordering::SeqCst), 1);
    desk.stop.drain();
    let report = desk.work.await.expect("it stops");
    assert_eq!((report.ended, report.parked, report.left), (1, 0, 0));
    let metrics = desk.metrics.snapshot();
    assert_eq!((metrics.active, metrics.segments, metrics.retirements), (0, report, 0));
    assert!(metrics.segment_time >= Duration::from_secs(5), "{metrics:?}");
    let text = metrics.to_prometheus();
    assert!(text.contains("windlass_worker_segments_total{end=\"ended\"} 1\n"), "{text}");
    assert!(text.contains("\nwindlass_worker_active_runs 0\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_decision_and_an_order_reach_the_run() {
    let body = GatedBody::default();
    let desk = WorkingDesk::start(body.tool().needs_approval()).await;
    assert_eq!(desk.drive("one").await, ("parked".to_owned(), NextWake::AfterSignal));
    assert_eq!(desk.drive("one").await, ("parked".to_owned(), NextWake::AfterSignal), "nobody has decided");
    let run = RunId::from("one");
    let paused = load_paused(&*desk.queue, &run).await.expect("it opens");
    let call = paused.pending_calls()[0].path.clone();
    post_decision(&*desk.queue, &run, call, Decision::Approve, DecisionScope::ThisCall, "ann")
        .await
        .expect("decides");
    let cancelled = async {
        body.wait_until_started().await;
        desk.queue.post_order(&run, &QueueOrder::Cancel).await.expect("it is ordered");
        // A body that ends during the drain is not in doubt.
        body.gate.notify_one();
    };
    let (report, ()) = tokio::join!(async { desk.drive("one").await }, cancelled);
    assert_eq!(report, ("ended".to_owned(), NextWake::Never));
    desk.stop.drain();
    desk.work.await.expect("it stops");
}

#[tokio::test(start_paused = true)]
async fn events_are_followed_from_an_offset() {
    let body = GatedBody::default();
    let desk = WorkingDesk::start(body.tool().needs_approval()).await;
    // The feed begins before the run does, and goes on while the run waits for a person.
    let mut feed = EventFeed::new(desk.queue.clone(), "one", 0);
    let follow = tokio::spawn(async move {
        let mut events = Vec::new();
        while let Some(event) = feed.next().await {
            events.push(event.expect("the journal is read"));
        }
        events
    });
    assert_eq!(desk.drive("one").await.0, "parked");
    let run = RunId::from("one");
    let approve = DecisionRequest::new("c1", Decision::Approve, "ann");
    approve.post(&*desk.queue, &run).await.expect("it is posted");
    body.gate.notify_one();
    assert_eq!(desk.drive("one").await.0, "ended");
    approve.post(&*desk.queue, &run).await.expect("repeated by an engine after it was taken");
    let other = DecisionRequest::new("c1", Decision::Reject { message: None }, "ann");
    other.post(&*desk.queue, &run).await.expect_err("a contrary decision");
    let events =
        tokio::time::timeout(PATIENCE, follow).await.expect("the feed ends").expect("it is followed");
    let paused = load_paused(&*desk.queue, &run).await.expect("it opens");
    let expected = EventReplay::events_of(paused.record().journal()).expect("they are derived");
    assert_eq!(events, expected);

    let offset = events[events.len() / 2].seq;
    let mut later = EventFeed::new(desk.queue.clone(), "one", offset + 1);
    let mut rest = Vec::new();
    while let Some(event) = later.next().await {
        rest.push(event.expect("the journal is read"));
    }
    let expected: Vec<_> = events.into_iter().filter(|event| event.seq > offset).collect();
    assert!(!expected.is_empty());
    assert_eq!(rest, expected);
    desk.stop.drain();
    desk.work.await.expect("it stops");
}

#[tokio::test(start_paused = true)]
async fn forgotten_runs_are_relayed_to_the_engine() {
    let desk = WorkingDesk::start(GatedBody::default().tool()).await;
    let waiting = async {
        while desk.wakes.runs.lock().expect("a lock").len() < 2 {
            desk.wakes.noted.notified().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("they are woken");
    let mut woken = desk.wakes.runs.lock().expect("a lock").clone();
    woken.sort();
    assert_eq!(woken, [RunId::from("one"), RunId::from("two")]);
    let of_queue: &dyn RunQueue = &*desk.queue;
    of_queue.wake_run(&RunId::from("one"), None).await.expect("a queue wakes its runs by itself");
    let unknown = of_queue.wake_run(&RunId::from("unknown"), None).await;
    assert!(matches!(unknown, Err(DispatchError::NotSubmitted { .. })), "{unknown:?}");
    desk.stop.drain();
    desk.work.await.expect("it stops");
}

/// Runs of an agent that nobody has deployed, and runs that the engine does not get to, hide no others.
#[tokio::test(start_paused = true)]
async fn runs_that_stay_ready_hide_no_others_from_the_relay() {
    let desk = WorkingDesk::start(GatedBody::default().tool()).await;
    let numbered = |agent: &str, number: u32| RunSubmission::new(format!("{agent}-{number:04}"), agent, "go");
    // Names that come before all others in the order of a queue.
    for number in 0..600 {
        for agent in ["another", "desk"] {
            let submission = numbered(agent, number);
            desk.queue.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
        }
    }
    let waiting = async {
        loop {
            let woken: std::collections::BTreeSet<RunId> =
                desk.wakes.runs.lock().expect("a lock").iter().cloned().collect();
            if woken.len() >= 602 {
                return woken;
            }
            desk.wakes.noted.notified().await;
        }
    };
    let woken = tokio::time::timeout(PATIENCE, waiting).await.expect("they are woken");
    assert!(woken.iter().all(|run| !run.as_str().starts_with("another")), "{woken:?}");
    desk.stop.drain();
    desk.work.await.expect("it stops");
}

/// An engine that asks for more than a worker takes is told so, and asks again.
#[tokio::test(start_paused = true)]
async fn a_worker_bounds_the_requests_that_wait_for_it() {
    let body = GatedBody::default();
    let desk = WorkingDesk::start(body.tool()).await;
    let first = {
        let dispatcher = desk.dispatcher.clone();
        tokio::spawn(async move { dispatcher.drive_segment(&RunId::from("one")).await })
    };
    body.wait_until_started().await;
    let asking = (0..10_000).map(|number| {
        let dispatcher = desk.dispatcher.clone();
        async move { dispatcher.drive_segment(&RunId::from(format!("run-{number}"))).await }
    });
    // Nobody polls the worker meanwhile.
    let mut asking: Vec<_> = asking.map(Box::pin).collect();
    let refused = asking.iter_mut().filter_map(|one| one.as_mut().now_or_never());
    let refused: Vec<_> = refused.collect();
    assert!(refused.len() > 5_000, "{}", refused.len());
    assert!(refused.iter().all(|answer| matches!(answer, Err(DispatchError::WorkerBusy))));
    drop(asking);
    body.gate.notify_one();
    let report = first.await.expect("it lives").expect("it is driven");
    assert_eq!(report.wake, NextWake::Never);
    desk.stop.drain();
    desk.work.await.expect("it stops");
}
