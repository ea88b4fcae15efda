//! The verdict: journals and sessions compared with the outside world.

mod decisions;
mod effects;
mod inputs;
mod journal;
mod sessions;
mod transfers;

use std::collections::BTreeMap;
use std::fmt;

use windlass::core::id::RunId;
use windlass::store::{RunQuery, Store, list_all_runs, load_paused};
use windlass_sim::check_history;

use crate::decision_log::load_standing;
use crate::deployment::WorkerBuild;
use crate::files::RoundFolder;
use crate::order::RunOrder;
use crate::outside::OutsideWorld;
use crate::plant::ProcessStore;
use crate::session_edits::SessionEdits;
use crate::worker::{load_orders, try_open_store};

use self::journal::{JournalCall, RunJournal};

/// The number of calls and of violations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TortureVerdict {
    /// Number of calls.
    pub calls: u64,
    /// Number of receipts that expired, so that their operation took place again under a new key.
    pub expired_receipts: u64,
    /// Number of runs that ended as cancelled, as they were ordered to.
    pub cancelled_runs: u64,
    /// Number of orders whose input was added to a run.
    pub added_inputs: u64,
    /// Number of compactions and rewinds of sessions.
    pub session_edits: u64,
    /// Number of forks.
    pub forks: u64,
    /// Number of effects that happened twice, or under a key that is not theirs.
    pub twice: u64,
    /// Number of calls that succeeded in the journal and have no effect in the outside world, and of inputs that were
    /// ordered and are not in the journal.
    pub lost: u64,
    /// Number of messages, calls and outputs that a session lacks, has twice, or has in the wrong place.
    pub forgotten: u64,
    /// Number of effects without a standing approval, and of decisions that were not obeyed.
    pub unapproved: u64,
    /// Number of runs that did not finish, or whose journal or history is invalid.
    pub unfinished: u64,
}

impl TortureVerdict {
    /// Returns the number of violations.
    pub fn violations(&self) -> u64 {
        self.twice + self.lost + self.forgotten + self.unapproved + self.unfinished
    }

    /// Adds the verdict over another round.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.expired_receipts += other.expired_receipts;
        self.cancelled_runs += other.cancelled_runs;
        self.added_inputs += other.added_inputs;
        self.session_edits += other.session_edits;
        self.forks += other.forks;
        self.twice += other.twice;
        self.lost += other.lost;
        self.forgotten += other.forgotten;
        self.unapproved += other.unapproved;
        self.unfinished += other.unfinished;
    }
}

impl fmt::Display for TortureVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, twice, lost, forgotten, unapproved, unfinished, .. } = self;
        write!(
            f,
            "calls={calls} twice={twice} lost={lost} forgotten={forgotten} unapproved={unapproved} unfinished={unfinished}"
        )
    }
}

/// Counts a violation and says on stderr what it is.
fn report_violation(count: &mut u64, kind: &str, what: impl fmt::Display) {
    eprintln!("{kind}: {what}");
    *count += 1;
}

/// The journals of a round, and the outside world beside them.
struct RoundEvidence {
    orders: BTreeMap<String, RunOrder>,
    journals: BTreeMap<String, RunJournal>,
}

impl RoundEvidence {
    /// Returns a call of a run, by its path.
    fn find_call(&self, run: &str, path: &str) -> Option<&JournalCall> {
        self.journals.get(run).and_then(|journal| journal.calls.get(path))
    }
}

/// Compares the store of a round with the outside world.
///
/// # Errors
/// Returns the message of an error that prevents the comparison.
pub async fn check_round(folder: &RoundFolder, world: &OutsideWorld) -> Result<TortureVerdict, String> {
    let said = |error: &dyn fmt::Display| error.to_string();
    let stores = open_evidence(folder).await?;
    let mut verdict = TortureVerdict::default();
    let mut evidence = RoundEvidence { orders: BTreeMap::new(), journals: BTreeMap::new() };
    for order in load_orders(folder).map_err(|error| said(&error))? {
        match load_run(&*stores.runs, &order).await {
            Ok(journal) => {
                verdict.calls += journal.calls.len() as u64;
                verdict.cancelled_runs += u64::from(journal.is_cancelled);
                verdict.added_inputs += journal.added_inputs.len() as u64;
                for (text, count) in journal.added_inputs.iter().filter(|(_, count)| **count > 1) {
                    let what = format!("{}: the input {text:?} is there {count} times", order.run);
                    report_violation(&mut verdict.twice, "twice", what);
                }
                evidence.journals.insert(order.run.clone(), journal);
            }
            Err(reason) => report_violation(&mut verdict.unfinished, "unfinished", reason),
        }
        verdict.forks += u64::from(order.fork_of.is_some());
        evidence.orders.insert(order.run.clone(), order);
    }
    let standing = load_standing(folder).map_err(|error| said(&error))?;
    effects::check_effects(&evidence, world, &mut verdict).map_err(|error| said(&error))?;
    inputs::check_inputs(&evidence, folder, &mut verdict).map_err(|error| said(&error))?;
    transfers::check_transfers(&evidence, world, &mut verdict).map_err(|error| said(&error))?;
    decisions::check_decisions(&evidence, world, &standing, &mut verdict).map_err(|error| said(&error))?;
    let edits = SessionEdits::load(folder).map_err(|error| said(&error))?;
    verdict.session_edits += edits.count();
    let held = (world.fence_rule(), &standing);
    sessions::check_sessions(&evidence, (&stores, &edits), held, &mut verdict).await?;
    Ok(verdict)
}

/// Opens the store of a round as it is.
async fn open_evidence(folder: &RoundFolder) -> Result<ProcessStore, String> {
    try_open_store(folder, None, WorkerBuild::Base).await
}

/// Loads the journal of a run. It must have finished, replay from its first record, and have a valid history.
async fn load_run(store: &dyn Store, order: &RunOrder) -> Result<RunJournal, String> {
    let name = &order.run;
    let loaded = load_paused(store, &RunId::new(name.as_str())).await;
    let loaded = loaded.map_err(|error| format!("{name}: {error}"))?;
    let records = loaded.record().journal().to_vec();
    let replay = windlass::core::run::Run::replay(&records).map_err(|error| format!("{name}: {error}"))?;
    match replay.run.outcome() {
        Some(windlass::core::run::RunEnd::Finished { .. }) => {}
        Some(windlass::core::run::RunEnd::Cancelled) if order.is_cancelled => {}
        other => return Err(format!("{name}: the outcome is {other:?}: {}", replay.run.summary())),
    }
    check_history(replay.run.history()).map_err(|violation| format!("{name}: {violation}"))?;
    Ok(RunJournal::read(&records, replay.run.history()))
}

/// Returns a number that changes when a run of the round moves on.
///
/// # Errors
/// Returns the message of the store's error.
pub async fn measure_progress(folder: &RoundFolder) -> Result<u64, String> {
    let store = open_evidence(folder).await?.runs;
    let runs = list_all_runs(&*store, RunQuery::default()).await.map_err(|error| error.to_string())?;
    Ok(runs.iter().map(|run| run.record_count).sum())
}

/// Describes the runs that have not ended, one per line.
///
/// # Errors
/// Returns the message of an error that prevents it.
pub async fn describe_open_runs(folder: &RoundFolder) -> Result<String, String> {
    let store = open_evidence(folder).await?.runs;
    let mut lines = Vec::new();
    for order in load_orders(folder).map_err(|error| error.to_string())? {
        match load_paused(&*store, &RunId::new(order.run.as_str())).await {
            Ok(run) if run.record().state().outcome().is_some() => {}
            Ok(run) => {
                let waiting: Vec<String> = run
                    .pending_calls()
                    .iter()
                    .map(|call| format!("{} ({:?}, attempt {})", call.path, call.reason, call.attempt))
                    .collect();
                lines.push(format!(
                    "{}: {}; waiting: {waiting:?}",
                    order.run,
                    run.record().state().summary()
                ));
            }
            Err(error) => lines.push(format!("{}: {error}", order.run)),
        }
    }
    Ok(lines.join("\n"))
}
