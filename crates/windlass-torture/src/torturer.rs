//! The torturer: it starts the processes of a round, injects faults from outside, and lets the round end.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use windlass_sim::SimRng;

use crate::database_server::DatabaseServer;
use crate::fault::{Fault, FaultCounts, FaultMenu};
use crate::files::{RoundFolder, append_line, read_lines};
use crate::namespace::NetworkNamespace;
use crate::network::NetworkLink;
use crate::order::{RunOrder, session_name};
use crate::outside::{FenceRule, OutsideWorld};
use crate::plant::PlantedBug;
use crate::process::{ProcessRole, ProcessSlot, RoundSettings};
use crate::shim::FaultShim;
use crate::verdict::{TortureVerdict, check_round, describe_open_runs, measure_progress};
use crate::worker::{EndedRun, StoreDatabase, load_orders};

/// The options of the torture.
#[derive(Clone, Debug)]
pub struct TortureOptions {
    /// The faults to inject.
    pub goal: TortureGoal,
    /// Seed of all choices.
    pub seed: u64,
    /// Number of competing workers.
    pub workers: usize,
    /// Folder of the stores, the ledgers and the logs.
    pub folder: PathBuf,
    /// Names of faults that are left out; `correction` stands for the corrections of the decider.
    pub left_out: Vec<String>,
    /// The bug that is planted into the processes.
    pub planted: Option<PlantedBug>,
    /// The store of the rounds.
    pub backend: StoreBackend,
}

/// The faults after which a torture ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TortureGoal {
    /// So many faults of any kind.
    Faults(u64),
    /// So many kills. Other faults are injected between them.
    Kills(u64),
}

impl TortureGoal {
    /// Returns the number that was asked for.
    fn count(self) -> u64 {
        match self {
            Self::Faults(count) | Self::Kills(count) => count,
        }
    }

    /// Returns the number that is left after these faults.
    fn left(self, injected: &FaultCounts) -> u64 {
        match self {
            Self::Faults(count) => count.saturating_sub(injected.total()),
            Self::Kills(count) => count.saturating_sub(injected.kills),
        }
    }
}

/// The store that is tortured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreBackend {
    /// A SQLite file for each round.
    File,
    /// A schema for each round in a PostgreSQL server of the torture's own.
    Postgres,
}

/// Number of faults in a round; each round has a store of its own.
const FAULTS_PER_ROUND: u64 = 50;
/// Number of faults in a round with a planted bug: the first round that shows it is the last.
const FAULTS_PER_PLANTED_ROUND: u64 = 25;
/// Duration of leases where nothing freezes: a process that a busy machine starves keeps its runs.
const PLAIN_LEASE: Duration = Duration::from_secs(5);
/// Duration of leases where processes freeze for longer than that.
const FREEZE_LEASE: Duration = Duration::from_millis(600);
/// Time without any progress after which the torturer gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of failed rounds after which the torture ends: there is enough to look at.
const MAX_FAILED_ROUNDS: u32 = 3;
/// Number of open runs for each worker.
const ORDERS_PER_WORKER: usize = 3;
/// Number of sessions in a round. The last one is in another store than its runs.
const SESSION_COUNT: u64 = 4;

/// The result of a torture.
#[derive(Clone, Copy, Debug, Default)]
pub struct TortureReport {
    /// The faults that were injected.
    pub faults: FaultCounts,
    /// Number of runs.
    pub runs: u64,
    /// The verdict over all rounds.
    pub verdict: TortureVerdict,
}

/// Runs rounds until all faults are injected.
///
/// # Errors
/// Returns the message of an error that prevents a verdict.
pub fn torture(options: &TortureOptions, runtime: &Runtime) -> Result<TortureReport, String> {
    std::fs::create_dir_all(&options.folder)
        .map_err(|error| format!("{}: {error}", options.folder.display()))?;
    let shim = match FaultShim::compile(&options.folder) {
        Ok(shim) => Some(shim),
        Err(reason) => {
            eprintln!(
                "not shown: clock steps, a full disk, failing syncs and kills inside store operations: {reason}"
            );
            None
        }
    };
    let server = match options.backend {
        StoreBackend::File => None,
        StoreBackend::Postgres => Some(DatabaseServer::start(&options.folder.join("server"))?),
    };
    let has_namespaces = match server.as_ref().map(|_| NetworkNamespace::create()) {
        None => false,
        Some(Ok(_)) => true,
        Some(Err(reason)) => {
            eprintln!("not shown: lost packets: {reason}");
            false
        }
    };
    let mut report = TortureReport::default();
    let mut failed_rounds = 0;
    for number in 0_u64.. {
        // A short torture has plain and fenced rounds, and both kinds with a queue, too.
        let per_round = match options.planted {
            Some(_) => FAULTS_PER_PLANTED_ROUND,
            None => FAULTS_PER_ROUND.min(options.goal.count().div_ceil(4)),
        };
        let faults = options.goal.left(&report.faults).min(per_round);
        if faults == 0 {
            break;
        }
        let is_left_out = |fault: &str| options.left_out.iter().any(|name| name == fault);
        let is_fenced = !is_left_out("freeze") && number % 2 == 1;
        let round = RoundSettings {
            folder: RoundFolder::at(options.folder.join(format!("round-{number}"))),
            seed: SimRng::for_purpose(options.seed, &format!("round {number}")).next_u64(),
            lease_duration: if is_fenced { FREEZE_LEASE } else { PLAIN_LEASE },
            is_fenced,
            is_queued: options.planted.map_or(number % 4 >= 2, PlantedBug::needs_queue),
            has_corrections: !is_left_out("correction"),
            planted: options.planted,
            has_namespaces,
            shim: shim.clone(),
        };
        let before = report;
        run_round((&round, server.as_ref()), faults, options, &mut report, runtime)?;
        if report.verdict.violations() == before.verdict.violations() {
            std::fs::remove_dir_all(round.folder.path()).map_err(|error| error.to_string())?;
        } else {
            failed_rounds += 1;
        }
        let max_failed_rounds = if options.planted.is_some() { 1 } else { MAX_FAILED_ROUNDS };
        if failed_rounds == max_failed_rounds || report.faults.total() == before.faults.total() {
            break;
        }
    }
    Ok(report)
}

/// Creates the outside world of a round.
pub fn open_world(folder: &Path, is_fenced: bool) -> OutsideWorld {
    let rule = if is_fenced { FenceRule::RefuseStale } else { FenceRule::Ignore };
    OutsideWorld::in_folder(folder, rule)
}

fn run_round(
    (round, server): (&RoundSettings, Option<&DatabaseServer>),
    faults: u64,
    options: &TortureOptions,
    report: &mut TortureReport,
    runtime: &Runtime,
) -> Result<(), String> {
    round.folder.create().map_err(|error| error.to_string())?;
    let schema = format!("round_{}", round.seed);
    if let Some(server) = server {
        let address = DatabaseServer::address_by((Ipv4Addr::LOCALHOST, server.port()).into());
        let database = StoreDatabase { address, schema: schema.clone() };
        append_line(&round.folder.database(), &database).map_err(|error| error.to_string())?;
    }
    let mut rng = SimRng::for_purpose(round.seed, "faults");
    let mut orders = OrderBook { round, count: 0 };
    let workers = options.workers;
    for _ in 0..ORDERS_PER_WORKER * workers {
        orders.publish()?;
    }
    let mut slots: Vec<ProcessSlot> =
        (0..workers).map(|place| ProcessSlot::new(ProcessRole::Worker, format!("worker{place}"))).collect();
    slots.push(ProcessSlot::new(ProcessRole::Decider, "decider".to_owned()));
    for slot in &mut slots {
        if let Some(server) = server {
            let namespace = round.has_namespaces.then(NetworkNamespace::create).transpose()?;
            let network = NetworkLink::open(runtime.handle(), server.port(), namespace);
            slot.attach_network(network.map_err(|error| error.to_string())?, &schema, &round.folder)?;
        }
        slot.start(round, &mut report.faults)?;
    }
    let menu = FaultMenu {
        left_out: options.left_out.clone(),
        has_freezes: round.is_fenced,
        has_shim: round.shim.is_some(),
        has_server: server.is_some(),
    };
    let goal = report.faults.total() + faults;
    let tortured =
        inject_faults((round, server), (&menu, goal), &mut slots, &mut orders, &mut rng, &mut report.faults);
    let finished = tortured.and_then(|()| let_finish(round, &mut slots, &mut report.faults, runtime));
    drop(slots);
    if let Err(reason) = finished {
        eprintln!("{}: {reason}", round.folder.path().display());
        report.verdict.unfinished += 1;
    }
    let world = open_world(round.folder.path(), round.is_fenced);
    let verdict = runtime.block_on(check_round(&round.folder, &world))?;
    report.verdict.add(&verdict);
    report.runs += load_orders(&round.folder).map_err(|error| error.to_string())?.len() as u64;
    Ok(())
}

/// The orders of a round, published one by one.
struct OrderBook<'a> {
    round: &'a RoundSettings,
    count: u64,
}

impl OrderBook<'_> {
    fn publish(&mut self) -> Result<(), String> {
        let run = format!("run-{}", self.count);
        let mut rng = SimRng::for_purpose(self.round.seed, &run);
        let session = rng.chance(60).then(|| rng.below(SESSION_COUNT));
        // The bugs are planted into the store of the runs.
        let is_elsewhere = |number| number == SESSION_COUNT - 1 && self.round.planted.is_none();
        let session = session.map(|number| session_name(number, is_elsewhere(number)));
        // Only submitted runs are cancelled from another process. The words of sessions are counted.
        let is_cancelled = self.round.is_queued && session.is_none() && rng.chance(40);
        let has_session_key = session.is_some() && rng.chance(60);
        let (seed, fork_of) = (rng.next_u64(), None);
        let order = RunOrder { run, seed, session, has_session_key, fork_of, is_cancelled };
        self.count += 1;
        append_line(&self.round.folder.orders(), &order).map_err(|error| error.to_string())
    }

    /// Keeps the workers busy.
    fn replenish(&mut self, workers: usize) -> Result<(), String> {
        let open = count_open_orders(&self.round.folder)?;
        for _ in open..ORDERS_PER_WORKER * workers {
            self.publish()?;
        }
        Ok(())
    }
}

fn count_open_orders(folder: &RoundFolder) -> Result<usize, String> {
    let said = |error: std::io::Error| error.to_string();
    let ended: BTreeSet<String> =
        read_lines::<EndedRun>(&folder.ended()).map_err(said)?.into_iter().map(|ended| ended.run).collect();
    let orders = load_orders(folder).map_err(said)?;
    Ok(orders.iter().filter(|order| !ended.contains(&order.run)).count())
}

fn inject_faults(
    (round, server): (&RoundSettings, Option<&DatabaseServer>),
    (menu, goal): (&FaultMenu, u64),
    slots: &mut [ProcessSlot],
    orders: &mut OrderBook<'_>,
    rng: &mut SimRng,
    counts: &mut FaultCounts,
) -> Result<(), String> {
    let workers = slots.len() - 1;
    while counts.total() < goal {
        let next_fault = Instant::now() + Duration::from_micros(2_000 + rng.below(120_000));
        while Instant::now() < next_fault {
            for slot in &mut *slots {
                slot.tend(round, counts)?;
            }
            let left = next_fault.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(3)));
        }
        orders.replenish(workers)?;
        let fault = menu.draw(rng, counts);
        if let (Fault::ServerCrash, Some(server)) = (fault, server) {
            server.crash_and_resume()?;
            counts.server_crashes += 1;
            continue;
        }
        let place = if rng.chance(12) { workers } else { rng.index(workers) };
        if slots[place].is_calm() {
            slots[place].inject(fault, round, rng, counts)?;
        }
    }
    Ok(())
}

/// Ends all faults, and waits until every run has ended.
fn let_finish(
    round: &RoundSettings,
    slots: &mut [ProcessSlot],
    counts: &mut FaultCounts,
    runtime: &Runtime,
) -> Result<(), String> {
    // All of them first: a frozen process may hold a lock that another one needs for its end.
    for slot in &mut *slots {
        slot.thaw()?;
    }
    for slot in &mut *slots {
        slot.calm_down(round, counts)?;
    }
    let mut progress = (0, Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(50));
        for slot in &mut *slots {
            slot.tend(round, counts)?;
        }
        if count_open_orders(&round.folder)? == 0 {
            // The decider may just have forked a run.
            slots.iter_mut().filter(|slot| slot.is_decider()).for_each(ProcessSlot::kill);
            if count_open_orders(&round.folder)? == 0 {
                break;
            }
            for slot in slots.iter_mut().filter(|slot| slot.is_decider()) {
                slot.start(round, counts)?;
            }
        }
        if progress.1.elapsed() > PATIENCE / 20 {
            let now = runtime.block_on(measure_progress(&round.folder))?;
            if now != progress.0 {
                progress = (now, Instant::now());
            } else if progress.1.elapsed() > PATIENCE {
                let open = runtime.block_on(describe_open_runs(&round.folder))?;
                return Err(format!("nothing has moved for {PATIENCE:?}:\n{open}"));
            }
        }
    }
    let workers = slots.iter_mut().filter(|slot| !slot.is_decider());
    workers.map(ProcessSlot::stop).collect::<Result<Vec<()>, String>>()?;
    Ok(())
}
