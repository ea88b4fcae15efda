//! The queue of runs.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::id::{RunId, Timestamp};
use windlass::fleet::{
    NextStep, QueueFilter, QueueOrder, QueuedRun, ReadyRunsQuery, RunDeparture, RunQueue, RunSchedule,
    RunSubmission, StoredSchedule, SubmitResult, TakenWork, WorkRequest,
};
use windlass::store::{LeaseClaim, StoreFuture, StoredLease};

use crate::database::{TransactionMode, transact};
use crate::{PostgresStore, queue, schedules};

impl RunQueue for PostgresStore {
    fn submit_run<'a>(
        &'a self,
        submission: &'a RunSubmission,
        now: Timestamp,
    ) -> StoreFuture<'a, SubmitResult> {
        async move {
            let result = transact!(self.database, |db| queue::submit_run(db, submission, now));
            self.hints.give_work();
            result
        }
        .boxed()
    }

    fn register_worker<'a>(&'a self, claim: LeaseClaim<'a>) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, attempt, |db| queue::register_worker(db, claim, attempt)) }
            .boxed()
    }

    fn renew_worker<'a>(&'a self, worker: &'a str, now: Timestamp) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| queue::renew_worker(db, worker, now)) }.boxed()
    }

    fn retire_worker<'a>(
        &'a self,
        worker: &'a str,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ()> {
        async move {
            let result = transact!(self.database, |db| queue::retire_worker(db, worker, abandoned));
            self.hints.give_work();
            result
        }
        .boxed()
    }

    fn list_workers(&self) -> StoreFuture<'_, Vec<StoredLease>> {
        async move { transact!(self.database, TransactionMode::Reading, |db| queue::list_workers(db)) }
            .boxed()
    }

    // A lost answer is no loss: the next request names the runs that the worker has.
    fn take_work<'a>(&'a self, request: &'a WorkRequest) -> StoreFuture<'a, TakenWork> {
        async move { transact!(self.database, |db| queue::take_work(db, request)) }.boxed()
    }

    fn leave_run<'a>(&'a self, departure: &'a RunDeparture) -> StoreFuture<'a, ()> {
        async move {
            let result = transact!(self.database, |db| queue::leave_run(db, departure));
            // A run that stays where it is needs no worker now; one that was woken meanwhile is found by polling.
            if matches!(departure.next, NextStep::Ready | NextStep::Decline { .. }) {
                self.hints.give_work();
            }
            result
        }
        .boxed()
    }

    fn post_order<'a>(&'a self, run: &'a RunId, order: &'a QueueOrder) -> StoreFuture<'a, u64> {
        async move {
            let result =
                transact!(self.database, TransactionMode::Once, |db| queue::post_order(db, run, order));
            self.hints.give_work();
            result
        }
        .boxed()
    }

    fn revive_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, ()> {
        async move {
            let result = transact!(self.database, |db| queue::revive_run(db, run));
            self.hints.give_work();
            result
        }
        .boxed()
    }

    fn load_queued_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<QueuedRun>> {
        async move { transact!(self.database, TransactionMode::Reading, |db| queue::load_queued_run(db, run)) }.boxed()
    }

    fn list_ready_runs<'a>(&'a self, query: &'a ReadyRunsQuery) -> StoreFuture<'a, Vec<RunId>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| queue::list_ready_runs(db, query))
        }
        .boxed()
    }

    fn list_queued_runs<'a>(
        &'a self,
        filter: QueueFilter,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<QueuedRun>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| queue::list_queued_runs(
                db, filter, after, limit
            ))
        }
        .boxed()
    }

    fn save_schedule<'a>(&'a self, schedule: &'a RunSchedule, now: Timestamp) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| schedules::save_schedule(db, schedule, now)) }.boxed()
    }

    fn remove_schedule<'a>(&'a self, name: &'a str) -> StoreFuture<'a, bool> {
        async move { transact!(self.database, attempt, |db| schedules::remove_schedule(db, name, attempt)) }
            .boxed()
    }

    fn list_schedules(&self) -> StoreFuture<'_, Vec<StoredSchedule>> {
        async move { transact!(self.database, TransactionMode::Reading, |db| schedules::list_schedules(db)) }
            .boxed()
    }

    fn advance_schedule<'a>(
        &'a self,
        name: &'a str,
        from: Timestamp,
        until: Timestamp,
    ) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| schedules::advance_schedule(db, name, from, until)) }
            .boxed()
    }

    fn wait_for_work(&self) -> BoxFuture<'_, ()> {
        self.hints.wait_for_work()
    }
}
