//! The queue of runs: submission, dispatch to workers, orders, wake-up times and dead letters.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use windlass_core::{
    id::{AgentName, RunId, SessionId, Timestamp},
    item::Item,
};

use super::schedule::{RunSchedule, StoredSchedule};
use crate::run::IntoInput;
use crate::store::{Lease, LeaseClaim, RunStatus, Store, StoreFuture, StoredLease};

/// Default number of attempts without progress after which a run becomes a dead letter. With the default delays of
/// [`RetryBackoff`](super::RetryBackoff), a run outlasts a provider that is away for about half an hour.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 20;

/// Separates the name of a worker from the id of its run in the owner of a lease.
const WORKER_SEPARATOR: char = '~';

/// Returns the worker in the name of a lease's owner; `None` if the owner is not a run of a worker.
///
/// A worker names the owner of each run that it drives `worker~run`. All of its leases live and die with its one heartbeat.
pub fn worker_of_owner(owner: &str) -> Option<&str> {
    owner.split_once(WORKER_SEPARATOR).map(|(worker, _)| worker)
}

/// Returns the owner of the lease of a worker's run.
pub(crate) fn run_owner(worker: &str, run: &RunId) -> String {
    format!("{worker}{WORKER_SEPARATOR}{run}")
}

/// A queue of runs beside the store that keeps them. The suite in [`crate::testing`] checks the contract.
///
/// A queued run is *ready*, *waiting* for a time, *taken* by a worker, *parked* until a person decides, *ended*, or a *dead
/// letter*. Every transition is one transaction, and one that ends a segment also sets the run's status and releases its
/// lease.
///
/// # Leases of workers
///
/// A worker has one heartbeat ([`RunQueue::renew_worker`]) for all runs that it drives. The stored lease of such a run,
/// whose owner names the worker ([`worker_of_owner`]), has the beat, the duration and the last renewal of the worker. So
/// contenders observe it as they observe any other lease. Whoever takes over one run of a worker, or retires the worker,
/// frees all of its runs, and its next renewal fails with
/// [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced). A lease is granted to a worker only while it is
/// registered.
pub trait RunQueue: Store {
    /// Submits a run. Submitting the same again has no effect.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::AlreadyExists`](crate::error::StoreErrorKind::AlreadyExists) if
    /// another run of this id was submitted.
    fn submit_run<'a>(
        &'a self,
        submission: &'a RunSubmission,
        now: Timestamp,
    ) -> StoreFuture<'a, SubmitResult>;

    /// Registers a worker under a name that no other worker has had.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::AlreadyExists`](crate::error::StoreErrorKind::AlreadyExists) if
    /// the name is registered.
    fn register_worker<'a>(&'a self, claim: LeaseClaim<'a>) -> StoreFuture<'a, ()>;

    /// Renews the one lease of a worker: increments its beat.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced) if the worker was
    /// retired.
    fn renew_worker<'a>(&'a self, worker: &'a str, now: Timestamp) -> StoreFuture<'a, ()>;

    /// Retires a worker: frees its runs and makes those that it had taken ready again. Without `abandoned` the worker
    /// retires itself; with it, the worker is retired only if its lease is still the observed one.
    ///
    /// Retiring a worker that is not registered has no effect.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::LeaseHeld`](crate::error::StoreErrorKind::LeaseHeld) if the worker
    /// has renewed its lease since it was observed.
    fn retire_worker<'a>(
        &'a self,
        worker: &'a str,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ()>;

    /// Lists the leases of the registered workers, by name. The owner is the worker; the epoch is 0.
    fn list_workers(&self) -> StoreFuture<'_, Vec<StoredLease>>;

    /// Takes ready runs for a worker, and returns the orders for the runs that it has. Runs whose wake-up time has come are
    /// ready. A run whose attempts are used up becomes a dead letter instead.
    ///
    /// Tenants are served in turn; the runs of a tenant by priority, equal ones in turn between its agents, and those of
    /// an agent in the order in which they became ready: see [`choose_fairly`](super::choose_fairly).
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced) if the worker was
    /// retired.
    fn take_work<'a>(&'a self, request: &'a WorkRequest) -> StoreFuture<'a, TakenWork>;

    /// Ends the segment of a taken run, in one transaction: sets the status of the run, releases its lease, removes the
    /// orders that were carried out, and says when the run is taken next.
    ///
    /// A run that is to be parked is ready instead if a decision or an order was posted during the segment.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced) if the worker does
    /// not have the run any more.
    fn leave_run<'a>(&'a self, departure: &'a RunDeparture) -> StoreFuture<'a, ()>;

    /// Posts an order for a submitted run, and returns its number. The worker that has the run finds it with its next
    /// request for work; a run that nobody drives becomes ready. An order for a run that has ended has no effect. Of the
    /// orders for a dead letter, [`QueueOrder::Cancel`] revives the run, so that a worker ends it; the others stay until
    /// the run is revived.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::RunNotFound`](crate::error::StoreErrorKind::RunNotFound) if the
    /// run was not submitted.
    fn post_order<'a>(&'a self, run: &'a RunId, order: &'a QueueOrder) -> StoreFuture<'a, u64>;

    /// Makes a run ready again that is a dead letter, waits or is parked, and resets its attempts and refusals.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::RunNotFound`](crate::error::StoreErrorKind::RunNotFound) if the
    /// run was not submitted.
    fn revive_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, ()>;

    /// Loads the state of a submitted run in the queue.
    fn load_queued_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<QueuedRun>>;

    /// Lists at most `limit` submitted runs that have not ended, match a filter and come after `after`, by their id. A run
    /// whose submission cannot be read is listed without its input, and with the error as its reason unless it has one.
    fn list_queued_runs<'a>(
        &'a self,
        filter: QueueFilter,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<QueuedRun>>;

    /// Lists runs that a worker could take: those that are ready, and those whose wake-up time has come.
    fn list_ready_runs<'a>(&'a self, query: &'a ReadyRunsQuery) -> StoreFuture<'a, Vec<RunId>>;

    /// Saves a schedule, in place of an earlier one of its name. Its times after `now` count. Saving the same again has no
    /// effect.
    fn save_schedule<'a>(&'a self, schedule: &'a RunSchedule, now: Timestamp) -> StoreFuture<'a, ()>;

    /// Removes a schedule, and returns true if there was one. Runs that it has submitted stay.
    fn remove_schedule<'a>(&'a self, name: &'a str) -> StoreFuture<'a, bool>;

    /// Lists the schedules by name.
    fn list_schedules(&self) -> StoreFuture<'_, Vec<StoredSchedule>>;

    /// Notes that the times of a schedule were dealt with, unless another worker has noted it since
    /// [`StoredSchedule::covered_until`] was `from`.
    fn advance_schedule<'a>(
        &'a self,
        name: &'a str,
        from: Timestamp,
        until: Timestamp,
    ) -> StoreFuture<'a, ()>;

    /// Waits for a hint that there may be work. A hint counts that is given after this call, also before the future is
    /// polled: a worker calls this, looks for work, and then waits. Hints may be missing or needless: polling is the truth.
    /// The default never resolves.
    fn wait_for_work(&self) -> BoxFuture<'_, ()> {
        std::future::pending().boxed()
    }
}

/// A run to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSubmission {
    /// Id of the run. Submitting it again has no effect.
    pub run: RunId,
    /// Agent that starts the run.
    pub agent: AgentName,
    /// Input of the run.
    pub input: Vec<Arc<Item>>,
    /// Session of the run, in the store of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Tenant that the run belongs to. Tenants are served in turn.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// Priority among the runs of the tenant; higher ones are taken first.
    #[serde(default)]
    pub priority: i32,
    /// Time before which the run does not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
    /// Number of attempts without progress after which the run becomes a dead letter.
    pub max_attempts: u32,
}

impl RunSubmission {
    /// Creates a submission with the default priority, for the tenant without a name.
    pub fn new(run: impl Into<RunId>, agent: impl Into<AgentName>, input: impl IntoInput) -> Self {
        Self {
            run: run.into(),
            agent: agent.into(),
            input: input.into_input(),
            session: None,
            tenant: String::new(),
            priority: 0,
            start_at: None,
            max_attempts: DEFAULT_MAX_ATTEMPTS,
        }
    }

    /// Sets the session of the run, in the store of the queue.
    #[must_use]
    pub fn session(mut self, session: impl Into<SessionId>) -> Self {
        self.session = Some(session.into());
        self
    }

    /// Sets the tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Sets the priority among the runs of the tenant.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the time before which the run does not start.
    #[must_use]
    pub fn start_at(mut self, time: Timestamp) -> Self {
        self.start_at = Some(time);
        self
    }

    /// Sets the number of attempts without progress after which the run becomes a dead letter; at least 1.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }
}

/// The result of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitResult {
    /// The run is in the queue now.
    Accepted,
    /// The same submission was accepted before.
    AlreadySubmitted,
}

/// An agent that a worker can drive, in one build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentOffer {
    /// Name of the agent.
    pub agent: AgentName,
    /// Build of the agent. Runs that this build has declined are not taken.
    pub build: String,
}

/// A worker's request for runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkRequest {
    /// Name of the worker.
    pub worker: String,
    /// The worker's time. Runs whose wake-up time has come are ready.
    pub now: Timestamp,
    /// Runs that the worker has, if it says so. Runs that it has taken and that are not among them are returned again: the
    /// answer to an earlier request was lost. Runs among them are not taken: the worker is leaving them, or has handed them
    /// over.
    pub held: Option<Vec<RunId>>,
    /// The agents that the worker can drive.
    pub offers: Vec<AgentOffer>,
    /// Maximum number of runs to take. Runs that are returned again count.
    pub limit: u32,
    /// The only run that may be taken, if an engine has named it.
    pub only: Option<RunId>,
}

/// A query for the runs that a worker could take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyRunsQuery {
    /// The worker's time. Runs whose wake-up time has come are ready.
    pub now: Timestamp,
    /// The agents that the worker can drive.
    pub offers: Vec<AgentOffer>,
    /// Runs that are left out.
    pub except: Vec<RunId>,
    /// Maximum number of runs.
    pub limit: u32,
}

/// The runs that a worker has taken, and the orders for its runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TakenWork {
    /// Newly taken runs.
    pub runs: Vec<TakenRun>,
    /// All orders for runs of the worker, old and new, by their number.
    pub orders: Vec<PostedOrder>,
}

/// A run that a worker has taken.
#[derive(Clone, Debug, PartialEq)]
pub struct TakenRun {
    /// The submission.
    pub submission: RunSubmission,
    /// Number of attempts since the run last made progress, including this one.
    pub attempt: u32,
    /// Number of decisions and orders that were posted so far: see [`RunDeparture::signals_seen`].
    pub signals: u64,
}

/// An order for a run, from any process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum QueueOrder {
    /// Cancels the run.
    Cancel,
    /// Makes the worker leave the run. It leaves the run to other workers for the duration of its lease, unless an engine
    /// gives it the run.
    HandOver,
    /// Adds input for the next model request.
    AddInput {
        /// The items.
        items: Vec<Arc<Item>>,
    },
}

/// An order with its number.
#[derive(Clone, Debug, PartialEq)]
pub struct PostedOrder {
    /// The run.
    pub run: RunId,
    /// Number of the order; later ones have higher numbers.
    pub number: u64,
    /// The order.
    pub order: QueueOrder,
}

/// The end of a segment.
#[derive(Clone, Debug, PartialEq)]
pub struct RunDeparture {
    /// Name of the worker.
    pub worker: String,
    /// The run.
    pub run: RunId,
    /// Lease that the driver had; absent if it got none.
    pub lease: Option<Lease>,
    /// Status of the run for lists; unchanged if absent.
    pub status: Option<RunStatus>,
    /// The worker's time.
    pub now: Timestamp,
    /// [`TakenRun::signals`] of the segment.
    pub signals_seen: u64,
    /// Number of the last order that was carried out; 0 if none was.
    pub orders_done: u64,
    /// The time and the state of the run in the queue from now on.
    pub next: NextStep,
}

/// The state of a run in the queue after a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Any worker may take it at once. The segment made progress.
    Ready,
    /// The run waits for a person, at most until a time.
    Park {
        /// Time at which the run is ready without a decision, because a hold expires.
        wake_at: Option<Timestamp>,
    },
    /// The run has ended.
    End,
    /// The segment failed: the run is ready again at a time, or a dead letter if its attempts are used up.
    Retry {
        /// Time of the next attempt.
        at: Timestamp,
        /// Reason of the failure.
        reason: String,
    },
    /// The run is ready at a time, and the attempt does not count: another driver has it, or its session is busy.
    Wait {
        /// Time of the next attempt.
        until: Timestamp,
    },
    /// A build cannot drive the run: workers of other builds may take it.
    Decline {
        /// The build.
        build: String,
        /// Reason of the refusal.
        reason: String,
    },
    /// No worker takes the run until somebody revives it.
    Bury {
        /// Reason.
        reason: String,
    },
}

/// A submitted run, as the queue has it.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuedRun {
    /// The submission.
    pub submission: RunSubmission,
    /// State of the run in the queue.
    pub state: QueuedState,
    /// Number of attempts since the run last made progress.
    pub attempt: u32,
    /// Reason of the last failure, if the run has failed since it last made progress.
    pub reason: Option<String>,
    /// Builds that have declined the run, with their reasons.
    pub declined_by: Vec<(String, String)>,
}

/// A filter of the submitted runs that have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFilter {
    /// All of them.
    Open,
    /// Runs that no worker takes until somebody revives them.
    DeadLetters,
    /// Runs that no worker has started: the store has no journal of them.
    NotStarted,
}

/// The state of a submitted run in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueuedState {
    /// A worker may take the run.
    Ready,
    /// The run is ready at a time.
    Waiting {
        /// The time.
        until: Timestamp,
    },
    /// A worker has the run.
    Taken {
        /// Name of the worker.
        worker: String,
    },
    /// The run waits for a person.
    Parked {
        /// Time at which the run is ready without a decision.
        wake_at: Option<Timestamp>,
    },
    /// The run has ended.
    Ended,
    /// The attempts of the run are used up, or it was buried.
    DeadLetter,
}

impl QueuedState {
    /// Returns the name of the state: `ready`, `waiting`, `taken`, `parked`, `ended` or `dead_letter`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Waiting { .. } => "waiting",
            Self::Taken { .. } => "taken",
            Self::Parked { .. } => "parked",
            Self::Ended => "ended",
            Self::DeadLetter => "dead_letter",
        }
    }
}
