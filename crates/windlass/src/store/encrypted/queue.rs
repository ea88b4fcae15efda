//! The queue of an encrypted store.

use std::collections::BTreeMap;

use windlass_core::id::{RunId, Timestamp};

use super::EncryptedStore;
use super::sealed_parts::{open_order, open_submission, seal_order, seal_submission};
use crate::error::{StoreError, StoreErrorKind};
use crate::fleet::{
    NextStep, QueueFilter, QueueOrder, QueueWrapper, QueuedRun, RunDeparture, RunQueue, RunSchedule,
    RunSubmission, StoredSchedule, SubmitResult, TakenRun, TakenWork, UnreadableRun, WorkRequest, WorkRows,
};
use crate::store::StoreFuture;

/// Time until a run is ready again whose values were sealed with a key that is not given, in milliseconds.
const MISSING_KEY_DELAY_MS: u64 = 5_000;

impl EncryptedStore {
    /// Takes work and leaves the runs that cannot be opened. The flag is true if some were left.
    async fn take_readable_work(&self, request: &WorkRequest) -> Result<(TakenWork, bool), StoreError> {
        let TakenWork { runs, orders } = self.inner.take_work(request).await?;
        let signals: BTreeMap<RunId, u64> =
            runs.iter().map(|taken| (taken.submission.run.clone(), taken.signals)).collect();
        let open_run = |taken: TakenRun| {
            let run = taken.submission.run.clone();
            let submission = open_submission(&self.keys, taken.submission);
            (run, submission.map(|submission| TakenRun { submission, ..taken }))
        };
        let rows = WorkRows {
            runs: runs.into_iter().map(open_run).collect(),
            orders: orders
                .into_iter()
                .map(|posted| {
                    let order = open_order(&self.keys, &posted.run, posted.order);
                    (posted.run, posted.number, order)
                })
                .collect(),
        };
        let (work, unreadable) = rows.split();
        let mut has_left_some = false;
        for gone in unreadable {
            let signals_seen = signals.get(&gone.run).copied().unwrap_or_default();
            has_left_some |= self.leave_unreadable(request, gone, signals_seen).await;
        }
        Ok((work, has_left_some))
    }

    /// Leaves a run that cannot be opened: to workers that have its key, or as a dead letter if it is damaged. Returns false if
    /// the store did not let it go.
    async fn leave_unreadable(
        &self,
        request: &WorkRequest,
        unreadable: UnreadableRun,
        signals_seen: u64,
    ) -> bool {
        let UnreadableRun { run, error } = unreadable;
        let next = match error.kind() {
            StoreErrorKind::Corrupt => NextStep::Bury { reason: error.to_string() },
            _ => NextStep::Wait { until: Timestamp(request.now.0.saturating_add(MISSING_KEY_DELAY_MS)) },
        };
        let departure = RunDeparture {
            worker: request.worker.clone(),
            run,
            lease: None,
            status: None,
            now: request.now,
            signals_seen,
            orders_done: 0,
            next,
        };
        let left = self.inner.leave_run(&departure).await;
        if let Err(error) = &left {
            // The next request returns the run again.
            tracing::warn!(run = %departure.run, %error, "a run that cannot be opened could not be left");
        }
        left.is_ok()
    }

    /// Opens a run of a list. One that cannot be opened has no input, and the error as its reason.
    fn open_listed(&self, queued: QueuedRun) -> QueuedRun {
        match open_submission(&self.keys, queued.submission.clone()) {
            Ok(submission) => QueuedRun { submission, ..queued },
            Err(error) => {
                let submission = RunSubmission { input: Vec::new(), ..queued.submission };
                let reason = queued.reason.or_else(|| Some(error.to_string()));
                QueuedRun { submission, reason, ..queued }
            }
        }
    }

    fn open_queued(&self, queued: QueuedRun) -> Result<QueuedRun, StoreError> {
        Ok(QueuedRun { submission: open_submission(&self.keys, queued.submission)?, ..queued })
    }
}

impl QueueWrapper for EncryptedStore {
    fn inner_queue(&self) -> &dyn RunQueue {
        &*self.inner
    }

    fn submit_run<'a>(
        &'a self,
        submission: &'a RunSubmission,
        now: Timestamp,
    ) -> StoreFuture<'a, SubmitResult> {
        Box::pin(async move {
            let submitted = self.inner.submit_run(&seal_submission(&self.keys, submission)?, now).await;
            // The same submission is sealed differently with another key, so it is compared in clear.
            if submitted.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::AlreadyExists)
                && let Ok(Some(known)) = QueueWrapper::load_queued_run(self, &submission.run).await
                && known.submission == *submission
            {
                return Ok(SubmitResult::AlreadySubmitted);
            }
            submitted
        })
    }

    fn take_work<'a>(&'a self, request: &'a WorkRequest) -> StoreFuture<'a, TakenWork> {
        Box::pin(async move {
            loop {
                let (work, has_left_some) = self.take_readable_work(request).await?;
                // Runs that cannot be opened do not stand in front of others.
                if !work.runs.is_empty() || !has_left_some {
                    return Ok(work);
                }
            }
        })
    }

    fn post_order<'a>(&'a self, run: &'a RunId, order: &'a QueueOrder) -> StoreFuture<'a, u64> {
        Box::pin(async move { self.inner.post_order(run, &seal_order(&self.keys, run, order)?).await })
    }

    fn load_queued_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<QueuedRun>> {
        Box::pin(async move {
            let queued = self.inner.load_queued_run(run).await?;
            queued.map(|queued| self.open_queued(queued)).transpose()
        })
    }

    fn list_queued_runs<'a>(
        &'a self,
        filter: QueueFilter,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<QueuedRun>> {
        Box::pin(async move {
            let queued = self.inner.list_queued_runs(filter, after, limit).await?;
            Ok(queued.into_iter().map(|queued| self.open_listed(queued)).collect())
        })
    }

    fn save_schedule<'a>(&'a self, schedule: &'a RunSchedule, now: Timestamp) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let submission = seal_submission(&self.keys, &schedule.submission)?;
            self.inner.save_schedule(&RunSchedule { submission, ..schedule.clone() }, now).await
        })
    }

    fn list_schedules(&self) -> StoreFuture<'_, Vec<StoredSchedule>> {
        Box::pin(async move {
            let open = |stored: StoredSchedule| -> Result<StoredSchedule, StoreError> {
                let submission = open_submission(&self.keys, stored.schedule.submission.clone())?;
                let schedule = RunSchedule { submission, ..stored.schedule };
                Ok(StoredSchedule { schedule, ..stored })
            };
            self.inner.list_schedules().await?.into_iter().map(open).collect()
        })
    }
}
