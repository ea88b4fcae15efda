//! The queue of the store in memory.

use std::collections::BTreeMap;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::id::{RunId, Timestamp};

use super::memory::{MemoryState, MemoryStore};
use super::{LeaseClaim, StoreFuture, StoredLease};
use crate::error::{StoreError, StoreErrorKind};
use crate::fleet::{
    AgentOffer, FairShares, LaneCandidate, NextStep, PostedOrder, QueueFilter, QueueOrder, QueuedRun,
    QueuedState, ReadyLane, ReadyRunsQuery, RunDeparture, RunQueue, RunSchedule, RunSubmission, ShareKey,
    StoredSchedule, SubmitResult, TakenRun, TakenWork, WorkRequest, choose_fairly, worker_of_owner,
};

/// The queue: workers, submitted runs, orders and shares.
#[derive(Debug, Default)]
pub(super) struct MemoryQueue {
    workers: BTreeMap<String, StoredLease>,
    rows: BTreeMap<RunId, QueueRow>,
    orders: BTreeMap<u64, (RunId, QueueOrder)>,
    last_order: u64,
    last_position: u64,
    shares: BTreeMap<ShareKey, u64>,
    schedules: BTreeMap<String, StoredSchedule>,
}

#[derive(Debug)]
struct QueueRow {
    submission: RunSubmission,
    state: QueuedState,
    /// Position among the ready runs.
    position: u64,
    attempt: u32,
    signals: u64,
    reason: Option<String>,
    declined_by: BTreeMap<String, String>,
}

impl QueueRow {
    /// Makes the run ready, behind all others.
    fn make_ready(&mut self, last_position: &mut u64) {
        *last_position += 1;
        self.state = QueuedState::Ready;
        self.position = *last_position;
    }

    /// Resets the attempts and refusals, and makes a run ready that is a dead letter or waits.
    fn revive(&mut self, last_position: &mut u64) {
        (self.attempt, self.reason) = (0, None);
        self.declined_by.clear();
        let is_asleep = matches!(
            self.state,
            QueuedState::DeadLetter | QueuedState::Waiting { .. } | QueuedState::Parked { .. }
        );
        if is_asleep {
            self.make_ready(last_position);
        }
    }

    fn wake_time(&self) -> Option<Timestamp> {
        match &self.state {
            QueuedState::Waiting { until } => Some(*until),
            QueuedState::Parked { wake_at } => *wake_at,
            QueuedState::Ready | QueuedState::Taken { .. } | QueuedState::Ended | QueuedState::DeadLetter => {
                None
            }
        }
    }

    fn is_taken_by(&self, worker: &str) -> bool {
        matches!(&self.state, QueuedState::Taken { worker: taken_by } if taken_by == worker)
    }

    /// Returns true if one of the builds can drive the run.
    fn is_offered(&self, offers: &[AgentOffer]) -> bool {
        let can_drive = |offer: &AgentOffer| {
            offer.agent == self.submission.agent && !self.declined_by.contains_key(&offer.build)
        };
        offers.iter().any(can_drive)
    }

    fn to_taken_run(&self) -> TakenRun {
        let (submission, attempt, signals) = (self.submission.clone(), self.attempt, self.signals);
        TakenRun { submission, attempt, signals }
    }

    fn to_queued_run(&self) -> QueuedRun {
        QueuedRun {
            submission: self.submission.clone(),
            state: self.state.clone(),
            attempt: self.attempt,
            reason: self.reason.clone(),
            declined_by: self.declined_by.iter().map(|(build, why)| (build.clone(), why.clone())).collect(),
        }
    }
}

impl MemoryQueue {
    /// Returns a lease as it is now: that of a worker's run lives with the worker.
    pub(super) fn current_lease(&self, lease: Option<&StoredLease>) -> Option<StoredLease> {
        let lease = lease?;
        match worker_of_owner(&lease.owner) {
            None => Some(lease.clone()),
            Some(worker) => {
                let alive = self.workers.get(worker)?;
                Some(StoredLease { owner: lease.owner.clone(), epoch: lease.epoch, ..alive.clone() })
            }
        }
    }

    /// Fails if the owner is a run of a worker that is not registered.
    pub(super) fn check_owner(&self, owner: &str) -> Result<(), StoreError> {
        match worker_of_owner(owner) {
            Some(worker) => self.check_worker(worker),
            None => Ok(()),
        }
    }

    fn check_worker(&self, worker: &str) -> Result<(), StoreError> {
        if self.workers.contains_key(worker) { Ok(()) } else { Err(StoreError::worker_retired(worker)) }
    }

    /// Counts a decision or an order, and makes a parked run ready.
    pub(super) fn signal_run(&mut self, run: &RunId) {
        let Self { rows, last_position, .. } = self;
        if let Some(row) = rows.get_mut(run) {
            row.signals += 1;
            if matches!(row.state, QueuedState::Parked { .. }) {
                row.make_ready(last_position);
            }
        }
    }

    pub(super) fn forget_run(&mut self, run: &RunId) {
        self.rows.remove(run);
        self.orders.retain(|_, (of, _)| of != run);
    }

    fn row_mut(&mut self, run: &RunId) -> Result<&mut QueueRow, StoreError> {
        self.rows.get_mut(run).ok_or_else(|| StoreError::not_submitted(run))
    }

    fn take_work(&mut self, request: &WorkRequest) -> Result<TakenWork, StoreError> {
        self.check_worker(&request.worker)?;
        let Self { rows, last_position, .. } = self;
        for row in rows.values_mut() {
            if row.wake_time().is_some_and(|time| time <= request.now) {
                row.make_ready(last_position);
            }
            if row.state == QueuedState::Ready && row.attempt >= row.submission.max_attempts {
                row.state = QueuedState::DeadLetter;
                row.reason.get_or_insert_with(|| "its workers died".to_owned());
            }
        }
        let mut runs: Vec<TakenRun> = match &request.held {
            Some(held) => {
                let lost = self
                    .rows
                    .iter()
                    .filter(|(run, row)| row.is_taken_by(&request.worker) && !held.contains(run));
                lost.map(|(_, row)| row.to_taken_run()).collect()
            }
            None => Vec::new(),
        };
        let limit = (request.limit as usize).saturating_sub(runs.len());
        let mut shares = FairShares::new(self.shares.clone());
        let chosen = choose_fairly(self.ready_lanes(request), &mut shares, limit);
        self.shares.extend(shares.into_changed());
        for run in chosen {
            let row = self.row_mut(&RunId::from(run))?;
            row.state = QueuedState::Taken { worker: request.worker.clone() };
            row.attempt += 1;
            runs.push(row.to_taken_run());
        }
        let rows = &self.rows;
        let is_ours = |run: &RunId| rows.get(run).is_some_and(|row| row.is_taken_by(&request.worker));
        let orders = self.orders.iter().filter(|(_, (run, _))| is_ours(run));
        let orders = orders.map(|(number, (run, order))| PostedOrder {
            run: run.clone(),
            number: *number,
            order: order.clone(),
        });
        Ok(TakenWork { runs, orders: orders.collect() })
    }

    fn ready_lanes(&self, request: &WorkRequest) -> Vec<ReadyLane> {
        let mut lanes: BTreeMap<(&str, &str), Vec<&QueueRow>> = BTreeMap::new();
        for row in self.rows.values().filter(|row| row.state == QueuedState::Ready) {
            let can_drive = row.is_offered(&request.offers);
            let is_named = request.only.as_ref().is_none_or(|run| *run == row.submission.run);
            let is_held = request.held.iter().flatten().any(|run| *run == row.submission.run);
            if can_drive && is_named && !is_held {
                let lane = (row.submission.tenant.as_str(), row.submission.agent.as_str());
                lanes.entry(lane).or_default().push(row);
            }
        }
        let to_lane = |((tenant, agent), mut rows): ((&str, &str), Vec<&QueueRow>)| {
            rows.sort_by_key(|row| (std::cmp::Reverse(row.submission.priority), row.position));
            let candidates = rows.iter().map(|row| LaneCandidate {
                run: row.submission.run.as_str().to_owned(),
                priority: row.submission.priority,
            });
            ReadyLane { tenant: tenant.to_owned(), agent: agent.to_owned(), candidates: candidates.collect() }
        };
        lanes.into_iter().map(to_lane).collect()
    }

    fn leave_run(&mut self, departure: &RunDeparture) -> Result<(), StoreError> {
        let RunDeparture { worker, run, signals_seen, orders_done, next, .. } = departure;
        self.check_worker(worker)?;
        let Self { rows, orders, last_position, .. } = self;
        let row = rows.get_mut(run).filter(|row| row.is_taken_by(worker));
        let row = row.ok_or_else(|| StoreError::worker_retired(worker))?;
        let is_signalled = row.signals != *signals_seen;
        // Orders that came during the segment wake the run as they wake one that waits or is a dead letter.
        let mut open_orders =
            orders.range(orders_done + 1..).filter(|(_, (of, _))| of == run && is_signalled);
        let is_cancelled = open_orders.clone().any(|(_, (_, order))| matches!(order, QueueOrder::Cancel));
        let is_ordered = open_orders.next().is_some();
        match next {
            NextStep::Ready => {
                (row.attempt, row.reason) = (0, None);
                row.make_ready(last_position);
            }
            NextStep::Park { wake_at } => {
                (row.attempt, row.reason) = (0, None);
                match is_signalled {
                    true => row.make_ready(last_position),
                    false => row.state = QueuedState::Parked { wake_at: *wake_at },
                }
            }
            NextStep::End => row.state = QueuedState::Ended,
            NextStep::Retry { at, reason } => {
                row.reason = Some(reason.clone());
                match row.attempt >= row.submission.max_attempts {
                    true if is_cancelled => {
                        row.attempt = 0;
                        row.make_ready(last_position);
                    }
                    true => row.state = QueuedState::DeadLetter,
                    false if is_ordered => row.make_ready(last_position),
                    false => row.state = QueuedState::Waiting { until: *at },
                }
            }
            NextStep::Wait { until } => {
                row.attempt = row.attempt.saturating_sub(1);
                match is_ordered {
                    true => row.make_ready(last_position),
                    false => row.state = QueuedState::Waiting { until: *until },
                }
            }
            NextStep::Decline { build, reason } => {
                row.attempt = row.attempt.saturating_sub(1);
                row.declined_by.insert(build.clone(), reason.clone());
                row.make_ready(last_position);
            }
            NextStep::Bury { reason } => {
                row.reason = Some(reason.clone());
                row.state = QueuedState::DeadLetter;
            }
        }
        let has_ended = row.state == QueuedState::Ended;
        self.orders.retain(|number, (of, _)| of != run || (!has_ended && number > orders_done));
        Ok(())
    }
}

impl MemoryState {
    /// Retires the worker of a lease's owner, if it has one.
    pub(super) fn retire_owner(&mut self, owner: &str) {
        if let Some(worker) = worker_of_owner(owner) {
            self.retire_worker(worker);
        }
    }

    fn retire_worker(&mut self, worker: &str) {
        if self.queue.workers.remove(worker).is_none() {
            return;
        }
        let MemoryQueue { rows, last_position, .. } = &mut self.queue;
        for row in rows.values_mut().filter(|row| row.is_taken_by(worker)) {
            row.make_ready(last_position);
        }
        let is_of_worker =
            |lease: &StoredLease| worker_of_owner(&lease.owner).is_some_and(|one| one == worker);
        for run in self.runs.values_mut() {
            run.lease.take_if(|lease| is_of_worker(lease));
        }
    }
}

impl RunQueue for MemoryStore {
    fn submit_run<'a>(
        &'a self,
        submission: &'a RunSubmission,
        now: Timestamp,
    ) -> StoreFuture<'a, SubmitResult> {
        self.ready_result(|kept| {
            if let Some(known) = kept.queue.rows.get(&submission.run) {
                return match known.submission == *submission {
                    true => Ok(SubmitResult::AlreadySubmitted),
                    false => Err(StoreError::already_exists(&submission.run)),
                };
            }
            let state = match submission.start_at.filter(|start| *start > now) {
                Some(until) => QueuedState::Waiting { until },
                None => QueuedState::Ready,
            };
            kept.queue.last_position += 1;
            let position = kept.queue.last_position;
            let row = QueueRow {
                submission: submission.clone(),
                state,
                position,
                attempt: 0,
                signals: 0,
                reason: None,
                declined_by: BTreeMap::new(),
            };
            kept.queue.rows.insert(submission.run.clone(), row);
            self.work_hint.notify_waiters();
            Ok(SubmitResult::Accepted)
        })
    }

    fn register_worker<'a>(&'a self, claim: LeaseClaim<'a>) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            let LeaseClaim { owner, now, duration } = claim;
            if kept.queue.workers.contains_key(owner) {
                let message = format!("there is a worker `{owner}` already");
                return Err(StoreError::with_kind(StoreErrorKind::AlreadyExists, message));
            }
            let lease = StoredLease { owner: owner.to_owned(), epoch: 0, beat: 0, duration, renewed_at: now };
            kept.queue.workers.insert(owner.to_owned(), lease);
            Ok(())
        })
    }

    fn renew_worker<'a>(&'a self, worker: &'a str, now: Timestamp) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            let lease =
                kept.queue.workers.get_mut(worker).ok_or_else(|| StoreError::worker_retired(worker))?;
            lease.beat += 1;
            lease.renewed_at = now;
            Ok(())
        })
    }

    fn retire_worker<'a>(
        &'a self,
        worker: &'a str,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            if let (Some(seen), Some(known)) = (abandoned, kept.queue.workers.get(worker))
                && !seen.is_same_beat(known)
            {
                let message = format!("worker `{worker}` has renewed its lease");
                return Err(StoreError::with_kind(StoreErrorKind::LeaseHeld, message));
            }
            kept.retire_worker(worker);
            self.work_hint.notify_waiters();
            Ok(())
        })
    }

    fn list_workers(&self) -> StoreFuture<'_, Vec<StoredLease>> {
        self.ready_result(|kept| Ok(kept.queue.workers.values().cloned().collect()))
    }

    fn take_work<'a>(&'a self, request: &'a WorkRequest) -> StoreFuture<'a, TakenWork> {
        self.ready_result(|kept| kept.queue.take_work(request))
    }

    fn leave_run<'a>(&'a self, departure: &'a RunDeparture) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            kept.queue.leave_run(departure)?;
            if let Some(lease) = &departure.lease
                && let Ok(run) = kept.owned_run_mut(lease)
            {
                run.lease = None;
                if let Some(status) = departure.status {
                    (run.status, run.updated_at) = (status, departure.now);
                }
            }
            self.work_hint.notify_waiters();
            Ok(())
        })
    }

    fn post_order<'a>(&'a self, run: &'a RunId, order: &'a QueueOrder) -> StoreFuture<'a, u64> {
        self.ready_result(|kept| {
            let MemoryQueue { rows, last_position, .. } = &mut kept.queue;
            let row = rows.get_mut(run).ok_or_else(|| StoreError::not_submitted(run))?;
            let has_ended = row.state == QueuedState::Ended;
            if matches!(row.state, QueuedState::Waiting { .. }) {
                row.make_ready(last_position);
            }
            if row.state == QueuedState::DeadLetter && matches!(order, QueueOrder::Cancel) {
                row.revive(last_position);
            }
            kept.queue.signal_run(run);
            kept.queue.last_order += 1;
            let number = kept.queue.last_order;
            if !has_ended {
                kept.queue.orders.insert(number, (run.clone(), order.clone()));
            }
            self.work_hint.notify_waiters();
            Ok(number)
        })
    }

    fn revive_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            let MemoryQueue { rows, last_position, .. } = &mut kept.queue;
            let row = rows.get_mut(run).ok_or_else(|| StoreError::not_submitted(run))?;
            row.revive(last_position);
            self.work_hint.notify_waiters();
            Ok(())
        })
    }

    fn load_queued_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<QueuedRun>> {
        self.ready_result(|kept| Ok(kept.queue.rows.get(run).map(QueueRow::to_queued_run)))
    }

    fn list_queued_runs<'a>(
        &'a self,
        filter: QueueFilter,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<QueuedRun>> {
        self.ready_result(|kept| {
            let later = kept.queue.rows.iter().filter(|(run, _)| after.is_none_or(|after| *run > after));
            let open = later.filter(|(run, row)| match filter {
                QueueFilter::Open => row.state != QueuedState::Ended,
                QueueFilter::DeadLetters => row.state == QueuedState::DeadLetter,
                QueueFilter::NotStarted => row.state != QueuedState::Ended && !kept.runs.contains_key(*run),
            });
            Ok(open.take(limit as usize).map(|(_, row)| row.to_queued_run()).collect())
        })
    }

    fn list_ready_runs<'a>(&'a self, query: &'a ReadyRunsQuery) -> StoreFuture<'a, Vec<RunId>> {
        self.ready_result(|kept| {
            let is_ready = |row: &QueueRow| {
                row.state == QueuedState::Ready || row.wake_time().is_some_and(|time| time <= query.now)
            };
            let rows = kept.queue.rows.iter().filter(|(run, row)| {
                is_ready(row) && row.is_offered(&query.offers) && !query.except.contains(run)
            });
            Ok(rows.take(query.limit as usize).map(|(run, _)| run.clone()).collect())
        })
    }

    fn save_schedule<'a>(&'a self, schedule: &'a RunSchedule, now: Timestamp) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            let known = kept.queue.schedules.get(&schedule.name);
            if known.is_none_or(|known| known.schedule != *schedule) {
                let stored = StoredSchedule { schedule: schedule.clone(), covered_until: now };
                kept.queue.schedules.insert(schedule.name.clone(), stored);
            }
            Ok(())
        })
    }

    fn remove_schedule<'a>(&'a self, name: &'a str) -> StoreFuture<'a, bool> {
        self.ready_result(|kept| Ok(kept.queue.schedules.remove(name).is_some()))
    }

    fn list_schedules(&self) -> StoreFuture<'_, Vec<StoredSchedule>> {
        self.ready_result(|kept| Ok(kept.queue.schedules.values().cloned().collect()))
    }

    fn advance_schedule<'a>(
        &'a self,
        name: &'a str,
        from: Timestamp,
        until: Timestamp,
    ) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            if let Some(stored) = kept.queue.schedules.get_mut(name)
                && stored.covered_until == from
            {
                stored.covered_until = until;
            }
            Ok(())
        })
    }

    fn wait_for_work(&self) -> BoxFuture<'_, ()> {
        self.work_hint.notified().boxed()
    }
}
