//! Workers drive submitted runs for a segment at a time, and leave them without an effect in doubt that was not running.

#![allow(clippy::expect_used)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use windlass::core::canonical::Digest;
use windlass::core::decision::{Decision, DecisionScope, HoldReason};
use windlass::core::id::{RunId, Timestamp};
use windlass::core::item::Item;
use windlass::core::journal::{JournalEntry, JournalLine};
use windlass::core::tool::ToolEffect;
use windlass::error::{StoreError, StoreErrorKind};
use windlass::fleet::{
    AgentRegistry, DeployedAgent, QueueFilter, QueueOrder, QueueWrapper, QueuedState, RetryBackoff, RunQueue,
    RunSchedule, RunSubmission, RunVerdict, SegmentLimit, Worker, WorkerReport, check_run, fire_schedules,
};
use windlass::model::{
    DeltaSink, Model, ModelError, ModelErrorKind, ModelRequest, ModelResponse, RetryAdvice, describe_item,
};
use windlass::prelude::*;
use windlass::store::{
    Durability, LeaseClaim, MemoryStore, RunQuery, RunStatus, Store, StoreFuture, StoreWrapper, load_paused,
    post_decision,
};

/// Longest time that a test waits for a condition.
const PATIENCE: Duration = Duration::from_secs(3_600);

fn empty_schema() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

/// A model that calls the tools of its list, one turn after another, and then says `finished`. It has no state, so that
/// it answers any number of runs.
#[derive(Clone, Default)]
struct TurnModel {
    turns: Vec<Vec<&'static str>>,
    is_away: Arc<AtomicBool>,
    requests: Arc<Mutex<Vec<Vec<String>>>>,
}

impl TurnModel {
    fn calling(turns: &[&[&'static str]]) -> Self {
        Self { turns: turns.iter().map(|turn| turn.to_vec()).collect(), ..Self::default() }
    }

    fn requests(&self) -> Vec<Vec<String>> {
        self.requests.lock().expect("a lock").clone()
    }
}

impl Model for TurnModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        if self.is_away.load(Ordering::SeqCst) {
            let error = ModelError::new("connection refused").with_kind(ModelErrorKind::Unreachable);
            return Err(error.with_retry_advice(RetryAdvice::Safe));
        }
        self.requests
            .lock()
            .expect("a lock")
            .push(request.input.iter().map(|item| describe_item(item)).collect());
        let done = request.input.iter().filter(|item| matches!(&***item, Item::Output(_))).count();
        let mut before = 0;
        let turn = self.turns.iter().position(|turn| {
            before += turn.len();
            before > done
        });
        let items = match turn {
            Some(turn) => self.turns[turn]
                .iter()
                .enumerate()
                .map(|(place, tool)| Arc::new(Item::call(format!("c{turn}-{place}").as_str(), *tool, "{}")))
                .collect(),
            None => vec![Arc::new(Item::assistant("finished"))],
        };
        Ok(ModelResponse { items, ..ModelResponse::default() })
    }
}

/// A tool that counts its bodies.
fn counting_tool(name: &'static str, count: &Arc<AtomicU32>) -> Tool {
    let count = count.clone();
    Tool::dynamic(name, "Counts.", empty_schema(), move |_: ToolContext, _: Value| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>("done") }
    })
}

/// A tool whose body says that it runs, and goes on when it is told to.
#[derive(Clone, Default)]
struct GatedBody {
    started: Arc<AtomicU32>,
    gate: Arc<Notify>,
}

impl GatedBody {
    fn tool(&self, name: &'static str) -> Tool {
        let body = self.clone();
        Tool::dynamic(name, "Waits.", empty_schema(), move |_: ToolContext, _: Value| {
            let body = body.clone();
            async move {
                body.started.fetch_add(1, Ordering::SeqCst);
                body.gate.notified().await;
                Ok::<_, ToolError>("done")
            }
        })
    }

    async fn wait_until_started(&self, count: u32) {
        wait_for(|| self.started.load(Ordering::SeqCst) >= count).await;
    }
}

async fn wait_for(mut is_met: impl FnMut() -> bool) {
    let waiting = async {
        while !is_met() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the condition is met in time");
}

async fn wait_for_state(queue: &dyn RunQueue, run: &str, is_met: impl Fn(&QueuedState) -> bool) {
    let run = RunId::from(run);
    let waiting = async {
        loop {
            let queued = queue.load_queued_run(&run).await.expect("it loads").expect("it was submitted");
            if is_met(&queued.state) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the state is reached in time");
}

fn registry(agent: Agent) -> AgentRegistry {
    AgentRegistry::new().deploy(DeployedAgent::new(agent))
}

async fn submit(queue: &dyn RunQueue, run: &str) {
    let submission = RunSubmission::new(run, "desk", "go");
    queue.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
}

async fn status_of(store: &dyn Store, run: &str) -> RunStatus {
    let runs = store.list_runs(&RunQuery::default()).await.expect("they are listed");
    runs.into_iter().find(|stored| stored.run.as_str() == run).expect("the run exists").status
}

async fn entries(store: &dyn Store, run: &str) -> Vec<JournalEntry> {
    let paused = load_paused(store, &RunId::from(run)).await.expect("it opens");
    paused.record().journal().iter().map(|record| record.entry.clone()).collect()
}

async fn work_until_idle(queue: &Arc<MemoryStore>, agent: Agent) -> WorkerReport {
    Worker::new(queue.clone(), registry(agent)).run_until_idle().await.expect("it works")
}

#[tokio::test(start_paused = true)]
async fn two_workers_finish_every_run_once() {
    let queue = Arc::new(MemoryStore::default());
    for number in 0..40 {
        submit(&*queue, &format!("run-{number}")).await;
    }
    let count = Arc::new(AtomicU32::new(0));
    let agent = Agent::new("desk").model(TurnModel::calling(&[&["order"], &["order"]]));
    let agent = agent.tools(counting_tool("order", &count));
    let worker = || Worker::new(queue.clone(), registry(agent.clone())).concurrency(4).run_until_idle();
    let (one, two) = tokio::join!(worker(), worker());
    let (one, two) = (one.expect("it works"), two.expect("it works"));
    assert_eq!((one.ended + two.ended, count.load(Ordering::SeqCst)), (40, 80));
    for number in 0..40 {
        assert_eq!(status_of(&*queue, &format!("run-{number}")).await, RunStatus::Finished);
    }
    assert_eq!(queue.list_workers().await.expect("they are listed"), []);
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn two_workers_share_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let open =
        || Arc::new(windlass::store::SqliteStore::open(folder.path().join("fleet.db")).expect("opens"));
    let (first, second) = (open(), open());
    for number in 0..20 {
        submit(&*first, &format!("run-{number}")).await;
    }
    let count = Arc::new(AtomicU32::new(0));
    let agent =
        Agent::new("desk").model(TurnModel::calling(&[&["order"]])).tools(counting_tool("order", &count));
    let worker = |queue| Worker::new(queue, registry(agent.clone())).concurrency(4).run_until_idle();
    let (one, two) = tokio::join!(worker(first.clone()), worker(second.clone()));
    let (one, two) = (one.expect("it works"), two.expect("it works"));
    assert_eq!((one.ended + two.ended, count.load(Ordering::SeqCst)), (20, 20));
}

#[tokio::test(start_paused = true)]
async fn a_decision_from_elsewhere_wakes_a_parked_run() {
    let queue = Arc::new(MemoryStore::default());
    let count = Arc::new(AtomicU32::new(0));
    let agent = Agent::new("desk")
        .model(TurnModel::calling(&[&["pay"]]))
        .tools(counting_tool("pay", &count).needs_approval());
    submit(&*queue, "run").await;
    assert_eq!(work_until_idle(&queue, agent.clone()).await.parked, 1);
    assert_eq!(status_of(&*queue, "run").await, RunStatus::Paused);
    assert_eq!(work_until_idle(&queue, agent.clone()).await, WorkerReport::default());
    let worker = Worker::new(queue.clone(), registry(agent));
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    let run = RunId::from("run");
    post_decision(&*queue, &run, "c0-0", Decision::Approve, DecisionScope::ThisCall, "ann")
        .await
        .expect("it is posted");
    wait_for_state(&*queue, "run", |state| *state == QueuedState::Ended).await;
    stop.drain();
    let report = working.await.expect("it ends").expect("it works");
    assert_eq!((report.ended, count.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn an_approval_expires_without_anybody_asking() {
    let queue = Arc::new(MemoryStore::default());
    let count = Arc::new(AtomicU32::new(0));
    let agent = Agent::new("desk")
        .model(TurnModel::calling(&[&["pay"]]))
        .tools(counting_tool("pay", &count).needs_approval());
    let deployed =
        DeployedAgent::new(agent).configure_runs(|run| run.approvals_expire_after(Duration::from_secs(2)));
    submit(&*queue, "run").await;
    let worker = Worker::new(queue.clone(), AgentRegistry::new().deploy(deployed));
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    let has_expiry = |state: &QueuedState| matches!(state, QueuedState::Parked { wake_at: Some(_) });
    wait_for_state(&*queue, "run", has_expiry).await;
    wait_for_state(&*queue, "run", |state| *state == QueuedState::Ended).await;
    stop.drain();
    working.await.expect("it ends").expect("it works");
    assert_eq!((status_of(&*queue, "run").await, count.load(Ordering::SeqCst)), (RunStatus::Finished, 0));
}

#[tokio::test(start_paused = true)]
async fn a_run_is_cancelled_from_elsewhere_wherever_it_is() {
    let queue = Arc::new(MemoryStore::default());
    let body = GatedBody::default();
    let agent = Agent::new("desk").model(TurnModel::calling(&[&["wait"]])).tools(body.tool("wait"));
    let cancel = |run: &'static str| {
        let queue = queue.clone();
        async move { queue.post_order(&run.into(), &QueueOrder::Cancel).await.expect("posted") }
    };
    submit(&*queue, "unbegun").await;
    cancel("unbegun").await;
    submit(&*queue, "running").await;
    let worker = Worker::new(queue.clone(), registry(agent)).drain_timeout(Duration::from_secs(1));
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    body.wait_until_started(1).await;
    cancel("running").await;
    for run in ["unbegun", "running"] {
        wait_for_state(&*queue, run, |state| *state == QueuedState::Ended).await;
        assert_eq!(status_of(&*queue, run).await, RunStatus::Cancelled, "{run}");
    }
    stop.drain();
    working.await.expect("it ends").expect("it works");
    assert_eq!(body.started.load(Ordering::SeqCst), 1);
    // A parked run is cancelled, too.
    let count = Arc::new(AtomicU32::new(0));
    let asking = Agent::new("desk")
        .model(TurnModel::calling(&[&["pay"]]))
        .tools(counting_tool("pay", &count).needs_approval());
    submit(&*queue, "parked").await;
    assert_eq!(work_until_idle(&queue, asking.clone()).await.parked, 1);
    cancel("parked").await;
    assert_eq!(work_until_idle(&queue, asking).await.ended, 1);
    assert_eq!(status_of(&*queue, "parked").await, RunStatus::Cancelled);
}

/// The orders reach the worker after its driver has decided to pause, and before the run is parked.
#[tokio::test(start_paused = true)]
async fn orders_that_come_while_a_driver_leaves_its_run_are_carried_out() {
    let queue = Arc::new(MemoryStore::default());
    let (leaving, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let note = {
        let (leaving, gate) = (leaving.clone(), gate.clone());
        Tool::dynamic("note", "Notes.", empty_schema(), move |ctx: ToolContext, _: Value| {
            let (leaving, gate) = (leaving.clone(), gate.clone());
            ctx.on_run_exit(move |_| async move {
                leaving.fetch_add(1, Ordering::SeqCst);
                gate.notified().await;
            });
            async { Ok::<_, ToolError>("noted") }
        })
    };
    let count = Arc::new(AtomicU32::new(0));
    let model = TurnModel::calling(&[&["note", "pay"]]);
    let agent = Agent::new("desk").model(model).tools((note, counting_tool("pay", &count).needs_approval()));
    submit(&*queue, "run").await;
    let worker = Worker::new(queue.clone(), registry(agent));
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    wait_for(|| leaving.load(Ordering::SeqCst) == 1).await;
    let items = vec![Arc::new(Item::user("hurry"))];
    for order in [QueueOrder::AddInput { items }, QueueOrder::HandOver, QueueOrder::Cancel] {
        queue.post_order(&"run".into(), &order).await.expect("posted");
    }
    // The worker polls meanwhile, and hears of the orders.
    tokio::time::sleep(Duration::from_secs(5)).await;
    gate.notify_one();
    wait_for_state(&*queue, "run", |state| *state == QueuedState::Ended).await;
    assert_eq!(status_of(&*queue, "run").await, RunStatus::Cancelled);
    let added = |entry: &JournalEntry| matches!(entry, JournalEntry::InputAdded(_));
    assert_eq!(entries(&*queue, "run").await.iter().filter(|entry| added(entry)).count(), 1);
    stop.drain();
    working.await.expect("it ends").expect("it works");
}

/// A worker that handed the run over would leave both orders for the next one, which would hand it over again, for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_is_not_handed_over() {
    let queue = Arc::new(MemoryStore::default());
    let (body, segments) = (GatedBody::default(), Arc::new(AtomicU32::new(0)));
    let model = TurnModel::calling(&[&["wait"]]);
    let agent = Agent::new("desk").model(model).tools(body.tool("wait").effect(ToolEffect::Idempotent));
    submit(&*queue, "run").await;
    for order in [QueueOrder::Cancel, QueueOrder::HandOver, QueueOrder::Cancel] {
        queue.post_order(&"run".into(), &order).await.expect("posted");
    }
    let counted = segments.clone();
    let deployed = DeployedAgent::new(agent).configure_runs(move |run| {
        counted.fetch_add(1, Ordering::SeqCst);
        run
    });
    let worker = Worker::new(queue.clone(), AgentRegistry::new().deploy(deployed));
    tokio::select! {
        report = worker.run_until_idle() => assert_eq!(report.expect("it works").ended, 1),
        () = wait_for(|| segments.load(Ordering::SeqCst) > 20) => panic!("it is driven again and again"),
    }
    assert_eq!(status_of(&*queue, "run").await, RunStatus::Cancelled);
    assert_eq!(
        queue.load_queued_run(&"run".into()).await.expect("it loads").map(|run| run.state),
        Some(QueuedState::Ended)
    );
}

/// The body that runs finishes; the call after it does not start here, and nothing is in doubt.
#[tokio::test(start_paused = true)]
async fn a_drained_worker_leaves_nothing_in_doubt() {
    let queue = Arc::new(MemoryStore::default());
    let (body, later) = (GatedBody::default(), Arc::new(AtomicU32::new(0)));
    let agent = Agent::new("desk")
        .model(TurnModel::calling(&[&["wait", "order"]]))
        .tools((body.tool("wait"), counting_tool("order", &later)));
    let deployed = || DeployedAgent::new(agent.clone()).configure_runs(|run| run.sequential_calls());
    submit(&*queue, "run").await;
    let worker = Worker::new(queue.clone(), AgentRegistry::new().deploy(deployed()));
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    body.wait_until_started(1).await;
    stop.drain();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    body.gate.notify_one();
    let report = working.await.expect("it ends").expect("it works");
    assert_eq!((report.left, later.load(Ordering::SeqCst)), (1, 0));
    let queued = queue.load_queued_run(&"run".into()).await.expect("it loads").expect("it is queued");
    assert_eq!((queued.state, queued.attempt), (QueuedState::Ready, 0));
    let next = Worker::new(queue.clone(), AgentRegistry::new().deploy(deployed()));
    assert_eq!(next.run_until_idle().await.expect("it works").ended, 1);
    assert_eq!((body.started.load(Ordering::SeqCst), later.load(Ordering::SeqCst)), (1, 1));
    let in_doubt = |entry: &JournalEntry| matches!(entry, JournalEntry::CallHeld(held) if held.reason == HoldReason::InDoubt);
    assert!(!entries(&*queue, "run").await.iter().any(in_doubt));
}

#[tokio::test(start_paused = true)]
async fn input_is_added_once_after_the_turn() {
    let queue = Arc::new(MemoryStore::default());
    let body = GatedBody::default();
    let model = TurnModel::calling(&[&["wait"]]);
    let agent = Agent::new("desk").model(model.clone()).tools(body.tool("wait"));
    submit(&*queue, "run").await;
    let worker = Worker::new(queue.clone(), registry(agent));
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    body.wait_until_started(1).await;
    let items = vec![Arc::new(Item::user("and be quick"))];
    let order = QueueOrder::AddInput { items };
    queue.post_order(&"run".into(), &order).await.expect("posted");
    tokio::time::sleep(Duration::from_secs(2)).await;
    body.gate.notify_one();
    wait_for_state(&*queue, "run", |state| *state == QueuedState::Ended).await;
    stop.drain();
    working.await.expect("it ends").expect("it works");
    let last = model.requests().pop().expect("a request");
    assert_eq!(last, ["user: go", "call c0-0 wait {}", "output c0-0 done", "user: and be quick"]);
    let added =
        |entry: &JournalEntry| matches!(entry, JournalEntry::InputAdded(added) if added.order.is_some());
    assert_eq!(entries(&*queue, "run").await.iter().filter(|entry| added(entry)).count(), 1);
    assert_eq!(body.started.load(Ordering::SeqCst), 1);
}

/// A segment that could not continue the run has not written the input, which the next one adds.
#[tokio::test(start_paused = true)]
async fn input_outlasts_a_segment_that_fails() {
    let queue = Arc::new(MemoryStore::default());
    let count = Arc::new(AtomicU32::new(0));
    let model = TurnModel::calling(&[&["pay"]]);
    let agent = Agent::new("desk").model(model.clone()).tools(counting_tool("pay", &count).needs_approval());
    submit(&*queue, "run").await;
    assert_eq!(work_until_idle(&queue, agent.clone()).await.parked, 1);
    // Somebody resumes the run without the queue.
    let claim = LeaseClaim { owner: "ann", now: Timestamp(0), duration: Duration::from_secs(3_600) };
    let run = RunId::from("run");
    let lease = queue.acquire_lease(&run, claim, None).await.expect("it is free");
    let order = QueueOrder::AddInput { items: vec![Arc::new(Item::user("and be quick"))] };
    queue.post_order(&run, &order).await.expect("posted");
    assert_eq!(work_until_idle(&queue, agent.clone()).await.busy, 1);
    queue.release_lease(&lease).await.expect("released");
    post_decision(&*queue, &run, "c0-0", Decision::Approve, DecisionScope::ThisCall, "ann")
        .await
        .expect("it is posted");
    queue.revive_run(&run).await.expect("it is woken");
    let report = work_until_idle(&queue, agent).await;
    assert_eq!(report.ended, 1, "{report:?}");
    let last = model.requests().pop().expect("a request");
    assert!(last.contains(&"user: and be quick".to_owned()), "{last:?}");
    let added = |entry: &JournalEntry| matches!(entry, JournalEntry::InputAdded(_));
    assert_eq!(entries(&*queue, "run").await.iter().filter(|entry| added(entry)).count(), 1);
}

#[tokio::test]
async fn a_provider_that_is_away_delays_a_run_and_does_not_fail_it() {
    let queue = Arc::new(MemoryStore::default());
    let model = TurnModel::default();
    model.is_away.store(true, Ordering::SeqCst);
    let agent = Agent::new("desk").model(model.clone());
    queue
        .submit_run(&RunSubmission::new("run", "desk", "go").max_attempts(1_000_000), Timestamp(0))
        .await
        .expect("it is submitted");
    queue
        .submit_run(&RunSubmission::new("short", "desk", "go").max_attempts(2), Timestamp(0))
        .await
        .expect("it is submitted");
    let backoff =
        RetryBackoff { base_delay: Duration::from_millis(20), max_delay: Duration::from_millis(80) };
    let worker = Worker::new(queue.clone(), registry(agent)).retry_backoff(backoff).provider_attempts(1);
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    wait_for_state(&*queue, "short", |state| *state == QueuedState::DeadLetter).await;
    let dead = queue.load_queued_run(&"short".into()).await.expect("it loads").expect("it is queued");
    let reason = dead.reason.expect("a reason");
    assert!(reason.contains("provider is away") && reason.contains("connection refused"), "{reason}");
    assert_eq!(status_of(&*queue, "short").await, RunStatus::Running);
    model.is_away.store(false, Ordering::SeqCst);
    wait_for_state(&*queue, "run", |state| *state == QueuedState::Ended).await;
    assert_eq!(status_of(&*queue, "run").await, RunStatus::Finished);
    queue.revive_run(&"short".into()).await.expect("it is revived");
    wait_for_state(&*queue, "short", |state| *state == QueuedState::Ended).await;
    assert_eq!(status_of(&*queue, "short").await, RunStatus::Finished);
    stop.drain();
    working.await.expect("it ends").expect("it works");
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_to_a_build_that_can_finish_it() {
    let queue = Arc::new(MemoryStore::default());
    let count = Arc::new(AtomicU32::new(0));
    let model = || TurnModel::calling(&[&["legacy"]]);
    let old = Agent::new("desk").model(model()).tools(counting_tool("legacy", &count).needs_approval());
    let new = Agent::new("desk").model(model()).tools(counting_tool("modern", &count));
    submit(&*queue, "run").await;
    assert_eq!(work_until_idle(&queue, old.clone()).await.parked, 1);
    let run = RunId::from("run");
    post_decision(&*queue, &run, "c0-0", Decision::Approve, DecisionScope::ThisCall, "ann")
        .await
        .expect("it is posted");
    let report = work_until_idle(&queue, new.clone()).await;
    assert_eq!((report.declined, report.ended), (1, 0));
    let declined = queue.load_queued_run(&run).await.expect("it loads").expect("it is queued").declined_by;
    let (build, reason) = declined.into_iter().next().expect("a refusal");
    assert_eq!(build, new.compute_build().to_string());
    assert!(reason.contains("`legacy`"), "{reason}");
    let report = work_until_idle(&queue, old).await;
    assert_eq!((report.declined, report.ended, count.load(Ordering::SeqCst)), (0, 1, 1));
}

/// Parks a run of `agent` before its call, and returns the store.
async fn park_run(agent: DeployedAgent) -> Arc<MemoryStore> {
    let queue = Arc::new(MemoryStore::default());
    submit(&*queue, "run").await;
    let worker = Worker::new(queue.clone(), AgentRegistry::new().deploy(agent));
    assert_eq!(worker.run_until_idle().await.expect("it works").parked, 1);
    queue
}

#[tokio::test(start_paused = true)]
async fn a_run_records_the_build_that_began_it() {
    let count = Arc::new(AtomicU32::new(0));
    let desk = Agent::new("desk")
        .model(TurnModel::calling(&[&["order"]]))
        .tools(counting_tool("order", &count).needs_approval());
    let queue = park_run(DeployedAgent::new(desk.clone()).release("v1")).await;
    let paused = load_paused(&*queue, &"run".into()).await.expect("it loads");
    let Some(JournalEntry::RunStarted(started)) = paused.record().journal().first().map(|first| &first.entry)
    else {
        panic!("a run begins with its start");
    };
    assert_eq!(started.build, Some(desk.compute_build().with_release(Some("v1".to_owned()))));
}

#[tokio::test(start_paused = true)]
async fn a_check_before_the_deploy_names_the_runs_that_the_new_build_cannot_finish() {
    let count = Arc::new(AtomicU32::new(0));
    let desk = |tool: Tool| Agent::new("desk").model(TurnModel::calling(&[&["order"]])).tools(tool);
    let order = || counting_tool("order", &count).needs_approval();
    let queue = park_run(DeployedAgent::new(desk(order())).release("v1")).await;
    let run = RunId::from("run");
    let check = |agent: DeployedAgent| {
        let (queue, run) = (queue.clone(), run.clone());
        async move {
            let registry = AgentRegistry::new().deploy(agent);
            check_run(&*queue, &run, &registry).await.expect("it is checked")
        }
    };
    assert_eq!(check(DeployedAgent::new(desk(order()))).await, RunVerdict::SameBuild);
    let wider = desk(order()).tools(counting_tool("other", &count));
    let begun_by = Some(desk(order()).compute_build().with_release(Some("v1".to_owned())));
    assert_eq!(check(DeployedAgent::new(wider)).await, RunVerdict::OtherBuild { begun_by: begun_by.clone() });
    let schema = json!({ "type": "object", "properties": { "size": { "type": "string" } }, "required": ["size"],
        "additionalProperties": false });
    let stricter = Tool::dynamic("order", "Orders.", schema, |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("ordered")
    });
    let cases = [
        (DeployedAgent::new(desk(counting_tool("modern", &count))), "`order`"),
        (DeployedAgent::new(desk(stricter)), "size"),
        (DeployedAgent::new(Agent::new("clerk").model(TurnModel::default())), "`desk` is not deployed"),
        (DeployedAgent::new(desk(order())).release("v2").only_releases(["v3"]), "v1@"),
    ];
    for (agent, part) in cases {
        let RunVerdict::CannotFinish { begun_by: recorded, reason } = check(agent).await else {
            panic!("the build without {part} cannot finish the run");
        };
        assert_eq!(recorded, begun_by);
        assert!(reason.contains(part), "{reason}");
    }
    // A worker declines what the check has said that it cannot finish.
    post_decision(&*queue, &run, "c0-0", Decision::Approve, DecisionScope::ThisCall, "ann")
        .await
        .expect("it is posted");
    let worker = |agent| Worker::new(queue.clone(), AgentRegistry::new().deploy(agent)).run_until_idle();
    let other = DeployedAgent::new(desk(order())).release("v2").only_releases(["v3"]);
    let report = worker(other).await.expect("it works");
    assert_eq!((report.declined, report.ended), (1, 0));
    let listed = DeployedAgent::new(desk(order())).release("v4").only_releases(["v1"]);
    let report = worker(listed).await.expect("it works");
    assert_eq!((report.declined, report.ended, count.load(Ordering::SeqCst)), (0, 1, 1));
    assert_eq!(check(DeployedAgent::new(desk(order()))).await, RunVerdict::Ended);
}

/// A newer version writes an entry that this one does not know.
#[tokio::test(start_paused = true)]
async fn a_worker_leaves_a_newer_journal_alone() {
    let count = Arc::new(AtomicU32::new(0));
    let desk = Agent::new("desk")
        .model(TurnModel::calling(&[&["order"]]))
        .tools(counting_tool("order", &count).needs_approval());
    let queue = park_run(DeployedAgent::new(desk.clone())).await;
    let run = RunId::from("run");
    let lines = queue.load_journal(&run, 0).await.expect("it loads");
    let claim = LeaseClaim { owner: "newer", now: Timestamp(0), duration: Duration::from_secs(30) };
    let lease = queue.acquire_lease(&run, claim, None).await.expect("it is free");
    let body = r#"{"at":1,"call_teleported":{}}"#.to_owned();
    let head = lines.last().expect("a line").hash;
    let hash = Digest::of_bytes(&[head.as_bytes(), body.as_bytes()].concat());
    queue
        .append_journal(&lease, lines.len() as u64, vec![JournalLine { hash, body }], Durability::Sync)
        .await
        .expect("it is written");
    queue.release_lease(&lease).await.expect("it is released");
    queue.post_order(&run, &QueueOrder::HandOver).await.expect("it is posted");

    let report = work_until_idle(&queue, desk.clone()).await;
    assert_eq!((report.declined, report.ended, report.failed), (1, 0, 0));
    let after = queue.load_journal(&run, 0).await.expect("it loads");
    assert_eq!(after.len(), lines.len() + 1, "nothing was written");
    let queued = queue.load_queued_run(&run).await.expect("it loads").expect("it is queued");
    assert_eq!(queued.state, QueuedState::Ready, "a newer worker takes it");
    let verdict = check_run(&*queue, &run, &registry(desk)).await.expect("it is checked");
    assert!(matches!(verdict, RunVerdict::CannotFinish { .. }), "{verdict:?}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_fires_schedules_and_drives_their_runs() {
    let queue = Arc::new(MemoryStore::default());
    let times = "* * * * *".parse().expect("it is valid");
    let schedule =
        RunSchedule::new("tidy", times, RunSubmission::new("any", "desk", "tidy up").tenant("acme"));
    queue.save_schedule(&schedule, Timestamp(0)).await.expect("it is saved");
    let agent = Agent::new("desk").model(TurnModel::default());
    assert_eq!(work_until_idle(&queue, agent).await.ended, 1, "the last missed time is made up for");
    let runs = queue.list_runs(&RunQuery::default()).await.expect("they are listed");
    let [run] = runs.as_slice() else { panic!("one run") };
    assert!(run.run.as_str().starts_with("tidy@"), "{}", run.run);
    let queued = queue.load_queued_run(&run.run).await.expect("it loads").expect("it was submitted");
    assert_eq!((queued.submission.tenant.as_str(), queued.state), ("acme", QueuedState::Ended));
}

/// Two stores may have the same schedule, whose runs get the same ids: the payments of one tenant are not the other's.
#[tokio::test(start_paused = true)]
async fn the_runs_of_a_schedule_have_other_keys_in_every_store() {
    let (keys, mut runs) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
    for _ in 0..2 {
        let queue = Arc::new(MemoryStore::default());
        let times = "* * * * *".parse().expect("it is valid");
        let schedule = RunSchedule::new("payroll", times, RunSubmission::new("any", "desk", "pay"));
        queue.save_schedule(&schedule, Timestamp(0)).await.expect("it is saved");
        assert_eq!(fire_schedules(&*queue, Timestamp(60_000)).await.expect("it is fired").submitted, 1);
        runs.push(
            queue
                .list_queued_runs(QueueFilter::Open, None, 9)
                .await
                .expect("listed")
                .remove(0)
                .submission
                .run,
        );
        let noted = keys.clone();
        let pay = Tool::dynamic("pay", "Pays.", empty_schema(), move |ctx: ToolContext, _: Value| {
            let key = (ctx.run_context().run_id().clone(), ctx.idempotency_key());
            noted.lock().expect("a lock").push(key);
            async { Ok::<_, ToolError>("paid") }
        });
        let agent = Agent::new("desk").model(TurnModel::calling(&[&["pay"]]));
        work_until_idle(&queue, agent.tools(pay.effect(ToolEffect::Idempotent))).await;
    }
    assert_eq!(runs[0], runs[1], "the ids are those of the schedule");
    let mut keys = keys.lock().expect("a lock").clone();
    keys.retain(|(run, _)| *run == runs[0]);
    assert_eq!(keys.len(), 2);
    assert_ne!(keys[0].1, keys[1].1);
}

#[tokio::test(start_paused = true)]
async fn the_runs_of_a_worker_that_has_died_are_taken_over() {
    let queue = Arc::new(MemoryStore::default());
    submit(&*queue, "run").await;
    let claim = LeaseClaim { owner: "elsewhere", now: Timestamp(0), duration: Duration::from_secs(30) };
    queue.register_worker(claim).await.expect("it is registered");
    let agent = Agent::new("desk").model(TurnModel::default());
    let request = windlass::fleet::WorkRequest {
        worker: "elsewhere".to_owned(),
        now: Timestamp(1),
        held: None,
        offers: registry(agent.clone()).offers(),
        limit: 1,
        only: None,
    };
    assert_eq!(queue.take_work(&request).await.expect("it is taken").runs.len(), 1);
    let worker = Worker::new(queue.clone(), registry(agent));
    let stop = worker.stop_handle();
    let began = tokio::time::Instant::now();
    let working = tokio::spawn(worker.run());
    wait_for_state(&*queue, "run", |state| *state == QueuedState::Ended).await;
    assert!(began.elapsed() >= Duration::from_secs(30), "its lease was not over");
    let late = queue.renew_worker("elsewhere", Timestamp(2)).await.expect_err("it is retired");
    assert_eq!(late.kind(), StoreErrorKind::Fenced);
    stop.drain();
    working.await.expect("it ends").expect("it works");
}

/// A worker that was retired while it slept stops its drivers and goes on under a new name.
#[tokio::test(start_paused = true)]
async fn a_retired_worker_stops_its_drivers_and_starts_again() {
    let queue = Arc::new(MemoryStore::default());
    let body = GatedBody::default();
    let pure = body.tool("wait").effect(ToolEffect::Pure);
    let agent = Agent::new("desk").model(TurnModel::calling(&[&["wait"]])).tools(pure);
    submit(&*queue, "run").await;
    let worker = Worker::new(queue.clone(), registry(agent)).drain_timeout(Duration::from_secs(1));
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    body.wait_until_started(1).await;
    let name = queue.list_workers().await.expect("they are listed").remove(0).owner;
    queue.retire_worker(&name, None).await.expect("it is retired");
    body.wait_until_started(2).await;
    let names = queue.list_workers().await.expect("they are listed");
    assert!(names.len() == 1 && names[0].owner != name, "{names:?}");
    body.gate.notify_waiters();
    wait_for_state(&*queue, "run", |state| *state == QueuedState::Ended).await;
    stop.drain();
    let report = working.await.expect("it ends").expect("it works");
    assert_eq!((report.lost, report.ended), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn segments_of_a_turn_take_turns() {
    let queue = Arc::new(MemoryStore::default());
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = order.clone();
    let tool = Tool::dynamic("step", "Steps.", empty_schema(), move |ctx: ToolContext, _: Value| {
        seen.lock().expect("a lock").push(ctx.run_context().run_id().to_string());
        async { Ok::<_, ToolError>("done") }
    });
    let agent = Agent::new("desk").model(TurnModel::calling(&[&["step"], &["step"], &["step"]])).tools(tool);
    for run in ["a", "b"] {
        submit(&*queue, run).await;
    }
    let worker = Worker::new(queue.clone(), registry(agent)).concurrency(1).segment_limit(SegmentLimit::Turn);
    let report = worker.run_until_idle().await.expect("it works");
    assert_eq!((report.ended, report.left), (2, 6));
    assert_eq!(*order.lock().expect("a lock"), ["a", "b", "a", "b", "a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_submitted_run_uses_its_session() {
    let queue = Arc::new(MemoryStore::default());
    let model = TurnModel::default();
    let agent = Agent::new("desk").model(model.clone());
    for (run, input) in [("one", "first"), ("two", "second")] {
        let submission = RunSubmission::new(run, "desk", input).session("talk");
        queue.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
    }
    let report =
        Worker::new(queue.clone(), registry(agent)).concurrency(1).run_until_idle().await.expect("it works");
    assert_eq!(report.ended, 2);
    let last = model.requests().pop().expect("a request");
    assert_eq!(last, ["user: first", "assistant: finished", "user: second"]);
}

/// A function of the application that panics costs its run an attempt, and no slot of the worker.
#[tokio::test]
async fn a_panic_in_a_segment_is_an_attempt_that_failed() {
    let queue = Arc::new(MemoryStore::default());
    let panics = Arc::new(AtomicU32::new(2));
    let left = panics.clone();
    let deployed =
        DeployedAgent::new(Agent::new("desk").model(TurnModel::default())).configure_runs(move |run| {
            let take = |left: u32| left.checked_sub(1);
            assert!(left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err(), "no configuration");
            run
        });
    for run in ["one", "two", "three"] {
        submit(&*queue, run).await;
    }
    let backoff = RetryBackoff { base_delay: Duration::from_millis(5), max_delay: Duration::from_millis(5) };
    let worker = Worker::new(queue.clone(), AgentRegistry::new().deploy(deployed));
    let worker = worker.concurrency(1).retry_backoff(backoff).poll_interval(Duration::from_millis(5));
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    for run in ["one", "two", "three"] {
        wait_for_state(&*queue, run, |state| *state == QueuedState::Ended).await;
        assert_eq!(status_of(&*queue, run).await, RunStatus::Finished);
    }
    stop.drain();
    let report = working.await.expect("it ends").expect("it works");
    assert_eq!((report.failed, report.ended), (2, 3));
}

/// A provider that asks for a delay that no driver waits for: the run waits in the queue, and has not failed.
#[tokio::test]
async fn a_provider_that_asks_for_a_long_delay_gets_it() {
    let queue = Arc::new(MemoryStore::default());
    let model = ScriptedModel::from_fn(|_| {
        let busy = ModelError::new("too many requests").with_kind(ModelErrorKind::RateLimited);
        ScriptedResponse::error(busy.with_retry_advice(RetryAdvice::After(Duration::from_secs(3_600))))
    });
    submit(&*queue, "run").await;
    let begun = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let worker = Worker::new(queue.clone(), registry(Agent::new("desk").model(model.clone())));
    let report = worker.run_until_idle().await.expect("it works");
    assert_eq!((report.failed, report.ended), (1, 0));
    assert_eq!(model.requests().len(), 1, "it is not asked before the delay is over");
    assert_eq!(status_of(&*queue, "run").await, RunStatus::Running);
    let queued = queue.load_queued_run(&"run".into()).await.expect("it loads").expect("it is queued");
    let QueuedState::Waiting { until } = queued.state else { panic!("{queued:?}") };
    assert!(until.0 >= u64::try_from(begun.as_millis()).expect("a time") + 3_600_000, "{until:?}");
}

/// Input for a run that starts later does not start it, and a cancellation ends it.
#[tokio::test]
async fn an_order_does_not_start_a_run_before_its_time() {
    let queue = Arc::new(MemoryStore::default());
    let agent = Agent::new("desk").model(TurnModel::default());
    let start_at = Timestamp(u64::MAX / 2);
    let submission = RunSubmission::new("run", "desk", "go").start_at(start_at);
    queue.submit_run(&submission, Timestamp(0)).await.expect("it is submitted");
    let input = QueueOrder::AddInput { items: vec![Arc::new(Item::user("and more"))] };
    queue.post_order(&"run".into(), &input).await.expect("it is posted");
    let report = work_until_idle(&queue, agent.clone()).await;
    assert_eq!((report.left, report.ended), (1, 0));
    wait_for_state(&*queue, "run", |state| *state == QueuedState::Waiting { until: start_at }).await;
    assert!(queue.list_runs(&RunQuery::default()).await.expect("they are listed").is_empty());
    queue.post_order(&"run".into(), &QueueOrder::Cancel).await.expect("it is posted");
    work_until_idle(&queue, agent).await;
    wait_for_state(&*queue, "run", |state| *state == QueuedState::Ended).await;
}

/// A queue whose store is away for a while.
struct FlakyQueue {
    inner: MemoryStore,
    is_away: AtomicBool,
}

impl StoreWrapper for FlakyQueue {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }
}

impl QueueWrapper for FlakyQueue {
    fn inner_queue(&self) -> &dyn RunQueue {
        &self.inner
    }

    fn register_worker<'a>(&'a self, claim: LeaseClaim<'a>) -> StoreFuture<'a, ()> {
        match self.is_away.load(Ordering::SeqCst) {
            true => Box::pin(async { Err(StoreError::new("the database is away")) }),
            false => self.inner.register_worker(claim),
        }
    }
}

/// A worker that lost its lease registers again as soon as the store takes it; only its first registration may fail.
#[tokio::test(start_paused = true)]
async fn a_worker_survives_a_store_that_is_away() {
    let queue = Arc::new(FlakyQueue { inner: MemoryStore::default(), is_away: AtomicBool::new(true) });
    let agent = || Agent::new("desk").model(TurnModel::default());
    let refused = Worker::new(queue.clone(), registry(agent())).run().await;
    assert!(refused.is_err(), "a worker that was never registered says so");
    queue.is_away.store(false, Ordering::SeqCst);
    let worker = Worker::new(queue.clone(), registry(agent()));
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    let workers = async || queue.inner.list_workers().await.expect("they are listed");
    while workers().await.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    queue.is_away.store(true, Ordering::SeqCst);
    let name = workers().await.remove(0).owner;
    queue.inner.retire_worker(&name, None).await.expect("it is retired");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!working.is_finished() && workers().await.is_empty());
    submit(&*queue, "run").await;
    queue.is_away.store(false, Ordering::SeqCst);
    wait_for_state(&*queue, "run", |state| *state == QueuedState::Ended).await;
    stop.drain();
    working.await.expect("it ends").expect("it works");
}
