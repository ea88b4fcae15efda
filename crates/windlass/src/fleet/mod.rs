//! Fleets: a queue of runs beside a store, and workers that drive them, in one process or on many machines.
//!
//! The journal stays the truth; the queue only dispatches: it says which worker drives which run, when, and again after a
//! failure. A lost row of the queue loses no effect and repeats none.
//!
//! - [`RunQueue`]: runs are submitted once, taken fairly, left in one transaction, and ordered to stop from any process.
//! - [`Worker`]: takes runs, drives each for one segment, and leaves them at any boundary.
//! - [`AgentRegistry`]: the agents of a worker, by name and build.
//! - [`RunSchedule`]: submits runs at the times of a calendar.
//! - [`RunDispatch`]: an engine outside says when a worker drives which run.
//! - [`check_run`]: says before a deploy if a registry could finish a run.

mod cron;
mod decision_request;
mod deploy_check;
mod dispatch;
mod fair_share;
mod provider_watch;
mod queue;
mod queue_wrapper;
mod registry;
mod schedule;
mod segment;
mod segment_store;
mod work_rows;
mod worker;
mod worker_metrics;
mod worker_peers;
mod worker_pulse;

pub use cron::{CronError, CronTimes};
pub use decision_request::DecisionRequest;
pub use deploy_check::{RunVerdict, check_run};
pub use dispatch::{DispatchError, NextWake, RunDispatch, SegmentDispatcher, SegmentReport};
pub use fair_share::{FairShares, LaneCandidate, ReadyLane, ShareKey, choose_fairly};
pub use queue::{
    AgentOffer, DEFAULT_MAX_ATTEMPTS, NextStep, PostedOrder, QueueFilter, QueueOrder, QueuedRun, QueuedState,
    ReadyRunsQuery, RunDeparture, RunQueue, RunSubmission, SubmitResult, TakenRun, TakenWork, WorkRequest,
    worker_of_owner,
};
pub use queue_wrapper::QueueWrapper;
pub use registry::{AgentRegistry, DeployedAgent};
pub use schedule::{MissedTimes, RunSchedule, StoredSchedule, fire_schedules};
pub use segment::{SegmentEnd, SegmentLimit};
pub use work_rows::{UnreadableRun, WorkRows};
pub use worker::{RetryBackoff, Worker, WorkerReport, WorkerStop};
pub use worker_metrics::{WorkerMetrics, WorkerSnapshot};
