//! A worker process: it looks for runs that nobody drives, and drives them until it is stopped or killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::Instant;
use windlass::error::{RunError, StoreError, StoreErrorKind};
use windlass::run::{CancelHandle, RunResult};
use windlass::session::Session;
use windlass::store::{LeaseObserver, SqliteStore};
use windlass_postgres::{PostgresOptions, PostgresStore};
use windlass_sim::SimRng;

use crate::agent::{order_model, torture_agent};
use crate::deployment::WorkerBuild;
use crate::files::{RoundFolder, append_line, read_lines};
use crate::order::{RunOrder, is_elsewhere};
use crate::outside::OutsideWorld;
use crate::plant::{PlantedBug, ProcessStore};
use crate::tools::{ToolDeployment, TortureContext};

/// Number of runs that a worker drives at the same time.
const CONCURRENT_RUNS: usize = 6;
/// A small interval, so that most of these short runs still recover from a snapshot.
const SNAPSHOT_INTERVAL: u64 = 4;

/// A time limit below a quarter of a lease where nothing freezes: a worker notices a dead connection before its lease is over.
const STATEMENT_TIMEOUT: Duration = Duration::from_millis(1_200);

/// The settings of a worker process.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// The folder of the round.
    pub folder: RoundFolder,
    /// Name of the process in logs and in the ledger.
    pub name: String,
    /// The build that this process runs.
    pub build: WorkerBuild,
    /// Duration of leases.
    pub lease_duration: Duration,
    /// The outside world.
    pub world: OutsideWorld,
    /// Seed of the order in which the worker looks for runs.
    pub seed: u64,
    /// The planted bug.
    pub planted: Option<PlantedBug>,
}

/// The end of a run, as a worker saw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndedRun {
    /// Id of the run.
    pub run: String,
    /// The outcome, for the reader of a failure.
    pub outcome: String,
}

/// The place of a round's store in a database.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreDatabase {
    /// Address of the database.
    pub address: String,
    /// Schema of the round.
    pub schema: String,
}

/// The result of one attempt to drive a run.
enum DriveResult {
    /// The run has ended.
    Ended,
    /// The run waits for a person, or another driver has it.
    Waiting,
    /// The worker cannot drive the run now.
    Refused(String),
    /// The disk failed. A store that could not be written has to be opened again.
    DiskFailed(String),
}

/// Drives runs until the process is told to stop.
///
/// # Errors
/// Returns the message of an error that no retry can mend.
pub async fn work(settings: WorkerSettings) -> Result<(), String> {
    let mut terminated = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut store = open_store(&settings.folder, settings.planted, settings.build).await;
    let mut rng = SimRng::for_purpose(settings.seed, &settings.name);
    // With an observer, a worker tries the runs of others all the time. Without one, it waits for one run at a time.
    let observer = rng.chance(75).then(LeaseObserver::new);
    let mut tasks: JoinSet<(String, DriveResult)> = JoinSet::new();
    let mut handles: BTreeMap<String, [CancelHandle; 2]> = BTreeMap::new();
    let mut next_try: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        let now = Instant::now();
        let mut candidates = load_open_orders(&settings.folder)?;
        candidates.retain(|order| {
            !handles.contains_key(&order.run) && next_try.get(&order.run).is_none_or(|time| *time <= now)
        });
        while handles.len() < CONCURRENT_RUNS && !candidates.is_empty() {
            let order = candidates.swap_remove(rng.index(candidates.len()));
            let cancel_handles =
                start_drive(&settings, order.clone(), (&store, observer.as_ref()), &mut tasks);
            handles.insert(order.run, cancel_handles);
        }
        tokio::select! {
            Some(Ok((run, result))) = tasks.join_next() => {
                handles.remove(&run);
                let wait = match result {
                    DriveResult::Ended => Duration::from_secs(3_600),
                    DriveResult::Waiting => Duration::from_millis(5 + rng.below(40)),
                    DriveResult::Refused(reason) => {
                        eprintln!("{}: {run}: {reason}", settings.name);
                        Duration::from_millis(20 + rng.below(60))
                    }
                    DriveResult::DiskFailed(reason) => {
                        eprintln!("{}: {run}: {reason}", settings.name);
                        handles.values().flatten().for_each(CancelHandle::detach);
                        while tasks.join_next().await.is_some() {}
                        handles.clear();
                        store = open_store(&settings.folder, settings.planted, settings.build).await;
                        Duration::from_millis(20 + rng.below(60))
                    }
                };
                next_try.insert(run, Instant::now() + wait);
            }
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
            _ = terminated.recv() => break,
        }
    }
    handles.values().flatten().for_each(CancelHandle::detach);
    while tasks.join_next().await.is_some() {}
    Ok(())
}

/// Opens the store. The disk may be full at first: the worker tries again.
pub async fn open_store(
    folder: &RoundFolder,
    planted: Option<PlantedBug>,
    build: WorkerBuild,
) -> ProcessStore {
    loop {
        match try_open_store(folder, planted, build).await {
            Ok(store) => return store,
            Err(error) => eprintln!("the store cannot be opened: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Opens the store of a round, a file or a schema of a database.
///
/// # Errors
/// Returns the message of the error.
pub async fn try_open_store(
    folder: &RoundFolder,
    planted: Option<PlantedBug>,
    build: WorkerBuild,
) -> Result<ProcessStore, String> {
    let said = |error: StoreError| error.to_string();
    let databases = read_lines::<StoreDatabase>(&folder.database()).map_err(|error| error.to_string())?;
    let Some(StoreDatabase { address, schema }) = databases.into_iter().next() else {
        let open =
            |path| SqliteStore::open(path).map(|store| store.with_snapshot_interval(SNAPSHOT_INTERVAL));
        let stores = [open(folder.store()).map_err(said)?, open(folder.other_store()).map_err(said)?];
        return Ok(ProcessStore::new(stores, planted, build));
    };
    let connect = async |schema| {
        let options = PostgresOptions {
            schema,
            snapshot_interval: SNAPSHOT_INTERVAL,
            statement_timeout: STATEMENT_TIMEOUT,
            ..PostgresOptions::default()
        };
        PostgresStore::connect_with(&address, options).await.map_err(said)
    };
    let stores = [connect(schema.clone()).await?, connect(format!("{schema}_sessions")).await?];
    Ok(ProcessStore::new(stores, planted, build))
}

/// Returns the orders whose runs have not ended by the word of any worker.
pub(crate) fn load_open_orders(folder: &RoundFolder) -> Result<Vec<RunOrder>, String> {
    let ended = read_lines::<EndedRun>(&folder.ended()).map_err(|error| error.to_string())?;
    let ended: BTreeSet<String> = ended.into_iter().map(|ended| ended.run).collect();
    let mut orders = load_orders(folder).map_err(|error| error.to_string())?;
    orders.retain(|order| !ended.contains(&order.run));
    Ok(orders)
}

/// Returns the orders and the forks of a round.
///
/// # Errors
/// Returns the error of the read.
pub fn load_orders(folder: &RoundFolder) -> std::io::Result<Vec<RunOrder>> {
    let mut orders = read_lines::<RunOrder>(&folder.orders())?;
    orders.extend(read_lines::<RunOrder>(&folder.forks())?);
    Ok(orders)
}

fn start_drive(
    settings: &WorkerSettings,
    order: RunOrder,
    (store, observer): (&ProcessStore, Option<&LeaseObserver>),
    tasks: &mut JoinSet<(String, DriveResult)>,
) -> [CancelHandle; 2] {
    let deployment = ToolDeployment { build: settings.build, planted: settings.planted };
    let actor = format!("{} {}", settings.name, settings.build);
    let agent = torture_agent(order.has_session_key, deployment);
    let model = order_model(&order, (&settings.world, &actor), settings.build);
    let context = Arc::new(TortureContext { order: order.clone(), world: settings.world.clone(), actor });
    let lease = settings.lease_duration;
    let runs = store.runs.clone();
    let mut recovering = agent
        .recover_with_context(order.run.as_str(), runs.clone(), context.clone())
        .model(model.clone())
        .lease_duration(lease)
        .unlimited_turns();
    if let Some(observer) = observer {
        recovering = recovering.lease_observer(observer);
    }
    let starting = agent.run_with_context(order.user_message(), context).run_id(order.run.as_str());
    let mut starting = starting.store(runs).model(model).lease_duration(lease).unlimited_turns();
    if let Some(name) = &order.session {
        let session = Session::new(name.as_str(), store.sessions_of(name).clone());
        starting = starting.session(&session);
        // A session in the store of the run is found there.
        if is_elsewhere(name) {
            recovering = recovering.session(&session);
        }
    }
    let handles = [recovering.cancel_handle(), starting.cancel_handle()];
    let folder = settings.folder.clone();
    tasks.spawn(async move {
        let mut result = recovering.await;
        let is_new =
            matches!(&result, Err(RunError::Store(error)) if error.kind() == StoreErrorKind::RunNotFound);
        if is_new && order.fork_of.is_none() {
            result = starting.await;
        }
        let result = note_end(&folder, &order, result);
        (order.run, result)
    });
    handles
}

/// Notes the end of a run outside, and says whether there is more to do.
fn note_end(folder: &RoundFolder, order: &RunOrder, result: Result<RunResult, RunError>) -> DriveResult {
    let outcome = match result {
        Ok(RunResult::Finished(_)) => "finished".to_owned(),
        Ok(RunResult::Paused(_) | RunResult::Detached(_)) => return DriveResult::Waiting,
        Ok(RunResult::Cancelled(_)) => "cancelled".to_owned(),
        Err(RunError::Failed(failed)) => format!("failed: {}", failed.failure),
        Err(RunError::Store(error) | RunError::Session(error)) if is_contention(&error) => {
            return DriveResult::Waiting;
        }
        Err(RunError::Store(error) | RunError::Session(error)) if error.kind() == StoreErrorKind::Disk => {
            return DriveResult::DiskFailed(error.to_string());
        }
        Err(error) => return DriveResult::Refused(format!("{error:?}").chars().take(400).collect()),
    };
    let ended = EndedRun { run: order.run.clone(), outcome };
    match append_line(&folder.ended(), &ended) {
        Ok(()) => DriveResult::Ended,
        Err(error) => DriveResult::Refused(format!("the end cannot be noted: {error}")),
    }
}

fn is_contention(error: &StoreError) -> bool {
    error.is_busy() || matches!(error.kind(), StoreErrorKind::AlreadyExists | StoreErrorKind::RunNotFound)
}
