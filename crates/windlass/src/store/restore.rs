//! Restored stores: what may have happened since the backup is in doubt.
//!
//! A backup is older than the world. A run that was open when it was made may have gone on until the store was lost, and
//! the journal does not say how far. [`mark_restored`] records that in every open run, and the state machine does the
//! rest: see [`windlass_core::journal::RunRestored`]. A run that was only submitted may have begun, and the times of a
//! schedule may have had their runs. Nothing of the kind begins again by itself.

use windlass_core::{
    id::{RunId, Timestamp},
    journal::{HashChain, JournalEntry, JournalLine, JournalRecord, RunRestored, decode_record},
};

use super::{
    DEFAULT_LEASE_DURATION, Durability, Lease, LeaseClaim, LeaseOwner, RunCursor, RunQuery, RunStatus,
    StoredReceipt, StoredRun, end_of_run,
};
use crate::clock::RunClock;
use crate::error::{StoreError, StoreErrorKind};
use crate::fleet::{
    AgentOffer, NextStep, QueueFilter, QueuedRun, QueuedState, RunDeparture, RunQueue, WorkRequest,
};

/// Number that is added to the epoch of an open run: more than the number of its drivers between a backup and a
/// restore.
const EPOCH_STEP: u64 = 1_000_000;

/// Number that is added to the generation of a receipt: more than the number of times that it has expired between a
/// backup and a restore.
const GENERATION_STEP: u32 = 1_000_000;

/// Number of lines, submitted runs or receipts that are read at a time.
const PAGE_SIZE: u32 = 128;

/// Reason of the dead letters that a restore makes.
const MAY_HAVE_RUN: &str =
    "submitted before the backup that the store was restored from: it may have run since";

/// The result of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// Runs that were open at the time of the backup, newest first. Their calls may be in doubt.
    pub open_runs: Vec<RunId>,
    /// Submitted runs that had not begun at the time of the backup. They may have run since, so they are dead letters
    /// until a person revives them ([`RunQueue::revive_run`]) or cancels them.
    pub buried_runs: Vec<RunId>,
    /// Schedules that had times since the backup. The runs of these times may have been submitted, so they are not made
    /// up for.
    pub skipped_schedules: Vec<SkippedSchedule>,
}

/// A schedule that has skipped the times between a backup and its restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedSchedule {
    /// Name of the schedule.
    pub name: String,
    /// Time after which its times were skipped.
    pub since: Timestamp,
}

/// Puts in doubt what may have happened since the backup that a store was restored from. Nobody may drive runs of the
/// store meanwhile. A repetition after an interruption does what is left.
///
/// - The workers of the backup are retired.
/// - Every open run records that it was restored, and is ready in the queue. The fencing tokens of its next drivers are
///   higher than those of its drivers between the backup and the loss. A run that has ended and only lacks its status
///   is left to its next driver.
/// - Every submitted run that has not begun, and whose time has come, becomes a dead letter.
/// - The times of schedules up to now are skipped.
/// - A call whose receipt may have expired gets an idempotency key that nobody has used.
///
/// [`SqliteStore::restore`](crate::store::SqliteStore::restore) does it for a file. Call it for a database that was
/// restored by its own means, before its first worker starts.
///
/// # Errors
///
/// Returns an error of the kind [`StoreErrorKind::LeaseHeld`] if somebody drives a run of the store.
pub async fn mark_restored(store: &dyn RunQueue) -> Result<RestoreReport, StoreError> {
    for worker in store.list_workers().await? {
        store.retire_worker(&worker.owner, Some(&worker)).await?;
    }
    let marking =
        RestoreMarking { store, owner: LeaseOwner::for_new_driver().to_string(), clock: RunClock::start() };
    // First, because it finds out if somebody drives a run.
    let open_runs = marking.mark_open_runs().await?;
    let buried_runs = marking.bury_submitted_runs().await?;
    let skipped_schedules = marking.skip_schedules().await?;
    marking.raise_generations().await?;
    Ok(RestoreReport { open_runs, buried_runs, skipped_schedules })
}

struct RestoreMarking<'a> {
    store: &'a dyn RunQueue,
    /// Owner of the leases of runs, and name of the worker that buries submitted ones.
    owner: String,
    clock: RunClock,
}

impl RestoreMarking<'_> {
    fn claim(&self) -> LeaseClaim<'_> {
        LeaseClaim { owner: &self.owner, now: self.clock.now(), duration: DEFAULT_LEASE_DURATION }
    }

    /// Marks the open runs, and returns those that have not ended.
    async fn mark_open_runs(&self) -> Result<Vec<RunId>, StoreError> {
        let statuses = vec![RunStatus::Running, RunStatus::Paused];
        let mut query = RunQuery { statuses, ..RunQuery::default() };
        let mut open = Vec::new();
        loop {
            let page = self.store.list_runs(&query).await?;
            let Some(last) = page.last() else { return Ok(open) };
            query.after = Some(RunCursor::from(last));
            for stored in page {
                if self.mark_run(&stored).await? {
                    open.push(stored.run);
                }
            }
        }
    }

    /// Marks a run, and makes it ready in the queue. Returns false if it has ended: its session may lack its last turn,
    /// which its next driver adds, and nothing follows the end of a journal.
    async fn mark_run(&self, stored: &StoredRun) -> Result<bool, StoreError> {
        let store = self.store;
        // The owner that the backup names has not outlived the store.
        let lease = store.acquire_lease(&stored.run, self.claim(), stored.lease.as_ref()).await?;
        let lease = store.raise_epoch(&lease, lease.epoch + EPOCH_STEP).await?;
        let has_ended = self.has_ended(stored).await?;
        if !has_ended {
            self.append_mark(&lease, stored.record_count).await?;
            store.set_status(&lease, RunStatus::Running, self.clock.now()).await?;
        }
        store.release_lease(&lease).await?;
        match store.revive_run(&stored.run).await {
            // The run was not submitted to the queue.
            Err(error) if error.kind() == StoreErrorKind::RunNotFound => {}
            revived => revived?,
        }
        Ok(!has_ended)
    }

    /// Returns true if the journal of a run has its end. Only the late ends of bodies follow it.
    async fn has_ended(&self, stored: &StoredRun) -> Result<bool, StoreError> {
        let mut until = stored.record_count;
        while until > 0 {
            let from = until.saturating_sub(PAGE_SIZE.into());
            let limit = u32::try_from(until - from).unwrap_or(PAGE_SIZE);
            let lines = match self.store.load_journal_page(&stored.run, from, limit).await {
                // The mark needs the last line only, and whoever opens the run is told of the damage.
                Err(error) if error.kind() == StoreErrorKind::Corrupt => return Ok(false),
                page => page?,
            };
            if end_of_run(&lines).is_some() {
                return Ok(true);
            }
            // A sealed line does not say what it is.
            let may_follow_end = |line: &JournalLine| {
                decode_record(from, &line.body)
                    .map_or(true, |record| matches!(record.entry, JournalEntry::CallEndedLate(_)))
            };
            if !lines.first().is_some_and(may_follow_end) {
                return Ok(false);
            }
            until = from;
        }
        Ok(false)
    }

    /// Appends the mark, unless it is the last record already.
    async fn append_mark(&self, lease: &Lease, record_count: u64) -> Result<(), StoreError> {
        let Some(last_seq) = record_count.checked_sub(1) else { return Ok(()) };
        let last = self.store.load_journal_page(&lease.run, last_seq, 1).await?.pop();
        let last = last.ok_or_else(|| {
            let message = format!("run `{}` has no record {last_seq}", lease.run);
            StoreError::with_kind(StoreErrorKind::Corrupt, message)
        })?;
        let is_marked = decode_record(last_seq, &last.body)
            .is_ok_and(|record| matches!(record.entry, JournalEntry::RunRestored(_)));
        if is_marked {
            return Ok(());
        }
        let mark = JournalRecord {
            seq: record_count,
            at: self.clock.now(),
            path: Vec::new(),
            entry: JournalEntry::RunRestored(RunRestored::default()),
        };
        let line = HashChain::from_head(last.hash).append(&mark);
        self.store.append_journal(lease, record_count, vec![line], Durability::Sync).await
    }

    /// Makes dead letters of the submitted runs that may have begun since the backup, and returns them.
    async fn bury_submitted_runs(&self) -> Result<Vec<RunId>, StoreError> {
        self.store.register_worker(self.claim()).await?;
        let mut buried = Vec::new();
        let mut after = None;
        loop {
            let page = self.store.list_queued_runs(QueueFilter::Open, after.as_ref(), PAGE_SIZE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.submission.run.clone());
            for queued in page {
                if self.may_have_begun(&queued).await? {
                    self.bury_run(&queued).await?;
                    buried.push(queued.submission.run);
                }
            }
        }
        self.store.retire_worker(&self.owner, None).await?;
        Ok(buried)
    }

    /// Returns true if a worker may have begun a submitted run since the backup, and would begin it again, or if an
    /// earlier attempt of this restore has buried it for that.
    async fn may_have_begun(&self, queued: &QueuedRun) -> Result<bool, StoreError> {
        let is_due = match &queued.state {
            QueuedState::DeadLetter => queued.reason.as_deref() == Some(MAY_HAVE_RUN),
            QueuedState::Waiting { until } => {
                // A run that waits for its first attempt, and not for another one.
                *until <= self.clock.now() || queued.submission.start_at != Some(*until)
            }
            QueuedState::Ready | QueuedState::Taken { .. } | QueuedState::Parked { .. } => true,
            QueuedState::Ended => false,
        };
        if !is_due {
            return Ok(false);
        }
        match self.store.load_lease(&queued.submission.run).await {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == StoreErrorKind::RunNotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Makes a dead letter of a submitted run, as a worker does.
    async fn bury_run(&self, queued: &QueuedRun) -> Result<(), StoreError> {
        let (run, agent) = (&queued.submission.run, &queued.submission.agent);
        // Neither a time nor attempts of the past keep this worker from taking it.
        self.store.revive_run(run).await?;
        let request = WorkRequest {
            worker: self.owner.clone(),
            now: self.clock.now(),
            held: None,
            offers: vec![AgentOffer { agent: agent.clone(), build: self.owner.clone() }],
            limit: 1,
            only: Some(run.clone()),
        };
        let taken = self.store.take_work(&request).await?.runs.pop();
        let Some(taken) = taken.filter(|taken| taken.submission.run == *run) else {
            // The queue makes a dead letter of a submission that cannot be read.
            return match self.store.load_queued_run(run).await {
                Ok(Some(QueuedRun { state: QueuedState::DeadLetter, .. })) => Ok(()),
                Err(error) if error.kind() == StoreErrorKind::Corrupt => Ok(()),
                _ => {
                    let message =
                        format!("run `{run}` may have run since the backup, and the queue keeps it");
                    Err(StoreError::with_kind(StoreErrorKind::LeaseHeld, message))
                }
            };
        };
        let departure = RunDeparture {
            worker: self.owner.clone(),
            run: run.clone(),
            lease: None,
            status: None,
            now: self.clock.now(),
            signals_seen: taken.signals,
            orders_done: 0,
            next: NextStep::Bury { reason: MAY_HAVE_RUN.to_owned() },
        };
        self.store.leave_run(&departure).await
    }

    /// Skips the times of schedules up to now, and returns the schedules that have skipped some.
    async fn skip_schedules(&self) -> Result<Vec<SkippedSchedule>, StoreError> {
        let mut skipped = Vec::new();
        for stored in self.store.list_schedules().await? {
            let (name, since, now) = (stored.schedule.name, stored.covered_until, self.clock.now());
            if stored.schedule.times.next_after(since).is_some_and(|time| time <= now) {
                self.store.advance_schedule(&name, since, now).await?;
                skipped.push(SkippedSchedule { name, since });
            }
        }
        Ok(skipped)
    }

    /// Raises the generations of receipts that may have expired since the backup. Keys of the generations between were
    /// handed out to calls that the store does not know.
    async fn raise_generations(&self) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let page = self.store.list_receipts(after.as_ref(), PAGE_SIZE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.key.clone());
            for receipt in page {
                if receipt.output.is_none() || receipt.expires_at.is_some() {
                    let generation = receipt.generation.saturating_add(GENERATION_STEP);
                    self.store.import_receipt(&StoredReceipt { generation, ..receipt }).await?;
                }
            }
        }
    }
}
