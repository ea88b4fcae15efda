//! A worker process that drives submitted runs with `windlass::fleet::Worker`, as a fleet does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use windlass::core::id::{RunId, Timestamp};
use windlass::error::{StoreError, StoreErrorKind};
use windlass::fleet::{
    AgentRegistry, DeployedAgent, QueuedState, RetryBackoff, RunQueue, RunSubmission, SegmentLimit, Worker,
};
use windlass::session::{Session, SessionStore};
use windlass_sim::SimRng;

use crate::agent::{order_model, torture_agent};
use crate::files::append_line;
use crate::order::{RunOrder, is_elsewhere};
use crate::tools::{ToolDeployment, TortureContext};
use crate::worker::{EndedRun, WorkerSettings, load_open_orders, load_orders, open_store};

/// Number of runs that a worker drives at the same time.
const CONCURRENT_RUNS: usize = 6;
/// Time that running bodies get to finish: most of them do.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of attempts of a run: however often its workers die, it is no dead letter.
const MAX_ATTEMPTS: u32 = 1_000_000;
/// Time between two looks at the orders.
const ORDER_INTERVAL: Duration = Duration::from_millis(40);
/// Number of looks for which a run may wait for a time. A worker whose clock was ahead has chosen a longer one.
const MAX_WAITING_LOOKS: u32 = 100;

/// Submits the orders of the round and drives submitted runs, until the process is told to stop.
///
/// # Errors
/// Returns the message of an error that no retry can mend.
pub async fn work_from_queue(settings: WorkerSettings) -> Result<(), String> {
    let mut terminated = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut rng = SimRng::for_purpose(settings.seed, &settings.name);
    loop {
        let store = open_store(&settings.folder, settings.planted, settings.build).await;
        let queue = store.queue.clone().ok_or("a store with this planted bug has no queue")?;
        let worker = create_worker(&settings, (queue.clone(), &store.other_sessions), &mut rng);
        let stop = worker.stop_handle();
        let mut working = tokio::spawn(worker.run());
        let (has_stopped, ended) = tokio::select! {
            _ = terminated.recv() => (true, None),
            // A store whose disk failed has to be opened again, as an operator does.
            failed = tend_orders(&settings, &*queue) => {
                eprintln!("{}: {failed}", settings.name);
                (false, None)
            }
            ended = &mut working => (false, Some(ended)),
        };
        stop.drain();
        let ended = match ended {
            Some(ended) => ended,
            None => working.await,
        };
        // Its first registration may fail, if the disk is full by then.
        if let Err(error) = ended.map_err(|error| error.to_string())? {
            eprintln!("{}: the worker ended: {error}", settings.name);
            tokio::time::sleep(ORDER_INTERVAL).await;
        }
        if has_stopped {
            return Ok(());
        }
    }
}

fn create_worker(
    settings: &WorkerSettings,
    (queue, other_sessions): (Arc<dyn RunQueue>, &Arc<dyn SessionStore>),
    rng: &mut SimRng,
) -> Worker<TortureContext> {
    let registry = [false, true].into_iter().fold(AgentRegistry::new(), |registry, has_session_key| {
        registry.deploy(deploy_agent(settings, other_sessions, has_session_key))
    });
    let limit = match rng.below(3) {
        0 => SegmentLimit::Parked,
        1 => SegmentLimit::Turn,
        _ => SegmentLimit::Deadline(Duration::from_millis(20 + rng.below(200))),
    };
    let backoff =
        RetryBackoff { base_delay: Duration::from_millis(20), max_delay: Duration::from_millis(100) };
    Worker::new(queue, registry)
        .concurrency(CONCURRENT_RUNS)
        .poll_interval(Duration::from_millis(10 + rng.below(60)))
        .lease_duration(settings.lease_duration)
        .drain_timeout(DRAIN_TIMEOUT)
        .retry_backoff(backoff)
        .segment_limit(limit)
}

/// Deploys the agent with a tool whose receipts are the session's, or without one. The order of a run says what its model does.
fn deploy_agent(
    settings: &WorkerSettings,
    other_sessions: &Arc<dyn SessionStore>,
    has_session_key: bool,
) -> DeployedAgent<TortureContext> {
    let deployment = ToolDeployment { build: settings.build, planted: settings.planted };
    let actor = format!("{} {}", settings.name, settings.build);
    let (folder, world) = (settings.folder.clone(), settings.world.clone());
    let find_order = move |run: &RunId| {
        let orders = load_orders(&folder).unwrap_or_default();
        let order = orders.into_iter().find(|order| order.run == run.as_str());
        // The segment fails, and the run is tried again.
        order.unwrap_or_else(|| panic!("the order of {run} cannot be read"))
    };
    let context = {
        let (find_order, world, actor) = (find_order.clone(), world.clone(), actor.clone());
        move |submission: &RunSubmission| {
            let (world, actor) = (world.clone(), actor.clone());
            Arc::new(TortureContext { order: find_order(&submission.run), world, actor })
        }
    };
    let (build, other_sessions) = (settings.build, other_sessions.clone());
    DeployedAgent::with_context(torture_agent(has_session_key, deployment), context).configure_submissions(
        move |run, submission| {
            let order = find_order(&submission.run);
            let run = run.model(order_model(&order, (&world, &actor), build)).unlimited_turns();
            match order.session.filter(|session| is_elsewhere(session)) {
                Some(session) => run.session(&Session::new(session, other_sessions.clone())),
                None => run,
            }
        },
    )
}

fn describe_submission(order: &RunOrder) -> RunSubmission {
    let submission = RunSubmission::new(order.run.as_str(), order.agent_name(), order.user_message());
    let submission = submission.max_attempts(MAX_ATTEMPTS).tenant(format!("tenant-{}", order.seed % 3));
    match order.session.as_ref().filter(|session| !is_elsewhere(session)) {
        Some(session) => submission.session(session.as_str()),
        None => submission,
    }
}

/// Submits the orders, and notes the ends of their runs. Returns when the disk has failed.
async fn tend_orders(settings: &WorkerSettings, queue: &dyn RunQueue) -> String {
    let mut submitted = BTreeSet::new();
    let mut waiting_looks = BTreeMap::<String, u32>::new();
    loop {
        let orders = match load_open_orders(&settings.folder) {
            Ok(orders) => orders,
            Err(error) => {
                eprintln!("{}: {error}", settings.name);
                Vec::new()
            }
        };
        for (place, order) in orders.iter().enumerate() {
            // The first one is submitted again each time, which has no effect, and shows if the disk still takes writes.
            let is_new = place == 0 || !submitted.contains(&order.run);
            match tend_order(settings, queue, order, is_new, &mut waiting_looks).await {
                Ok(()) => {
                    submitted.insert(order.run.clone());
                }
                Err(error) if error.kind() == StoreErrorKind::Disk => return error.to_string(),
                Err(error) => eprintln!("{}: {}: {error}", settings.name, order.run),
            }
        }
        tokio::time::sleep(ORDER_INTERVAL).await;
    }
}

async fn tend_order(
    settings: &WorkerSettings,
    queue: &dyn RunQueue,
    order: &RunOrder,
    is_new: bool,
    waiting_looks: &mut BTreeMap<String, u32>,
) -> Result<(), StoreError> {
    if is_new {
        queue.submit_run(&describe_submission(order), Timestamp(0)).await?;
    }
    let run = RunId::new(order.run.as_str());
    let Some(queued) = queue.load_queued_run(&run).await? else { return Ok(()) };
    let looks = waiting_looks.entry(order.run.clone()).or_default();
    *looks = if matches!(queued.state, QueuedState::Waiting { .. }) { *looks + 1 } else { 0 };
    if *looks > MAX_WAITING_LOOKS {
        *looks = 0;
        queue.revive_run(&run).await?;
    }
    if queued.state == QueuedState::Ended {
        let ended = EndedRun { run: order.run.clone(), outcome: "ended in the queue".to_owned() };
        append_line(&settings.folder.ended(), &ended)
            .map_err(|error| StoreError::new(format!("the end cannot be noted: {error}")))?;
    }
    Ok(())
}
