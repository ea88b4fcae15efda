//! Schedules: runs that are submitted at the times of a calendar.
//!
//! Invariant: the id of a scheduled run is made of the schedule's name and of its time, and submission is idempotent on the
//! id. So any number of workers may fire the same schedule, and a worker that dies between submitting a run and noting it
//! loses and repeats none.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use windlass_core::id::{RunId, Timestamp};

use super::cron::CronTimes;
use super::queue::{RunQueue, RunSubmission, SubmitResult};
use crate::error::{StoreError, StoreErrorKind};

/// Age from which on a time was missed.
const MISSED_AFTER_MS: u64 = 60_000;
/// Age from which on a missed time is not made up for: a year.
const FORGOTTEN_AFTER_MS: u64 = 366 * 86_400_000;

/// A schedule: it submits a run at each of its times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSchedule {
    /// Name of the schedule.
    pub name: String,
    /// The times.
    pub times: CronTimes,
    /// The run to submit. Its id is replaced by the name of the schedule and the time: see [`RunSchedule::run_id_at`].
    pub submission: RunSubmission,
    /// Treatment of times at which no worker was there.
    pub missed: MissedTimes,
}

/// The treatment of times that are more than a minute past when a worker finds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MissedTimes {
    /// They are skipped.
    Skip,
    /// The last one is made up for, if no later time is due.
    #[default]
    RunLatest,
    /// All of the last year are made up for, but no more than the newest ones up to a limit.
    RunAll {
        /// Maximum number of runs that are submitted at once.
        limit: u32,
    },
}

/// A schedule as a queue keeps it.
#[derive(Clone, Debug)]
pub struct StoredSchedule {
    /// Name of the schedule.
    pub name: String,
    /// The schedule, or the error if it cannot be read.
    pub schedule: Result<RunSchedule, StoreError>,
    /// Time up to which the times of the schedule were dealt with.
    pub covered_until: Timestamp,
}

/// The result of firing the schedules of a queue.
#[derive(Clone, Debug, Default)]
pub struct FiredSchedules {
    /// Number of runs that were submitted.
    pub submitted: u64,
    /// Schedules that could not be fired, by their names. They are fired later, when the error is mended.
    pub failures: Vec<(String, StoreError)>,
}

impl RunSchedule {
    /// Creates a schedule that makes up for the last missed time.
    pub fn new(name: impl Into<String>, times: CronTimes, submission: RunSubmission) -> Self {
        Self { name: name.into(), times, submission, missed: MissedTimes::default() }
    }

    /// Sets the treatment of times at which no worker was there.
    #[must_use]
    pub fn missed(mut self, missed: MissedTimes) -> Self {
        self.missed = missed;
        self
    }

    /// Returns the id of the run of a time.
    pub fn run_id_at(&self, time: Timestamp) -> RunId {
        RunId::new(format!("{}@{}", self.name, time.0 / 1_000))
    }
}

impl RunSchedule {
    /// Returns the times since `covered_until` that are due and not skipped, in their order.
    fn due_times(&self, covered_until: Timestamp, now: Timestamp) -> Vec<Timestamp> {
        let Self { times, missed, .. } = self;
        let begin = covered_until.max(Timestamp(now.0.saturating_sub(FORGOTTEN_AFTER_MS)));
        let due = std::iter::successors(times.next_after(begin), |last| times.next_after(*last))
            .take_while(|time| *time <= now);
        // No more than two times are less than a minute past.
        let most = match missed {
            MissedTimes::Skip | MissedTimes::RunLatest => 2,
            MissedTimes::RunAll { limit } => *limit as usize,
        };
        let mut newest = VecDeque::new();
        for time in due {
            newest.push_back(time);
            if newest.len() > most {
                newest.pop_front();
            }
        }
        let latest = newest.back().copied();
        let is_missed = |time: Timestamp| time.0.saturating_add(MISSED_AFTER_MS) < now.0;
        newest.retain(|time| match missed {
            MissedTimes::Skip => !is_missed(*time),
            MissedTimes::RunLatest => !is_missed(*time) || Some(*time) == latest,
            MissedTimes::RunAll { .. } => true,
        });
        newest.into()
    }
}

/// Submits the runs of all schedules that are due. Workers do it by themselves. A schedule that cannot be read, or whose
/// runs cannot be submitted, keeps no other schedule waiting.
///
/// # Errors
///
/// Returns the error of the store if it cannot list its schedules.
pub async fn fire_schedules(queue: &dyn RunQueue, now: Timestamp) -> Result<FiredSchedules, StoreError> {
    let mut fired = FiredSchedules::default();
    for StoredSchedule { name, schedule, covered_until } in queue.list_schedules().await? {
        let result = match schedule {
            Ok(schedule) => fire_schedule(queue, &schedule, covered_until, now, &mut fired.submitted).await,
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            fired.failures.push((name, error));
        }
    }
    Ok(fired)
}

/// Submits the runs of a schedule that are due, and adds their number to `submitted`.
async fn fire_schedule(
    queue: &dyn RunQueue,
    schedule: &RunSchedule,
    covered_until: Timestamp,
    now: Timestamp,
    submitted: &mut u64,
) -> Result<(), StoreError> {
    if schedule.times.next_after(covered_until).is_none_or(|time| time > now) {
        return Ok(());
    }
    for time in schedule.due_times(covered_until, now) {
        let submission = RunSubmission { run: schedule.run_id_at(time), ..schedule.submission.clone() };
        match queue.submit_run(&submission, now).await {
            Ok(SubmitResult::Accepted) => *submitted += 1,
            Ok(SubmitResult::AlreadySubmitted) => {}
            // The schedule was replaced after another worker had submitted the run of this time.
            Err(error) if error.kind() == StoreErrorKind::AlreadyExists => {
                warn_of_other_run(queue, &submission).await;
            }
            Err(error) => return Err(error),
        }
    }
    queue.advance_schedule(&schedule.name, covered_until, now).await
}

/// Warns if the run under the id of a scheduled one is of another agent or tenant, so that it is no run of the
/// schedule.
async fn warn_of_other_run(queue: &dyn RunQueue, scheduled: &RunSubmission) {
    let other = match queue.load_queued_run(&scheduled.run).await {
        Ok(found) => found.map(|found| found.submission),
        Err(error) => {
            tracing::warn!(run = %scheduled.run, %error, "the run under the id of a scheduled one cannot be read");
            return;
        }
    };
    if let Some(other) =
        other.filter(|other| (&other.agent, &other.tenant) != (&scheduled.agent, &scheduled.tenant))
    {
        let (run, agent, tenant) = (scheduled.run.as_str(), other.agent.as_str(), other.tenant.as_str());
        tracing::warn!(run, agent, tenant, "a scheduled run is not submitted: another run has its id");
    }
}
