//! Queues that wrap another queue.

use futures_util::future::BoxFuture;
use windlass_core::id::{RunId, Timestamp};

use super::queue::{
    QueueFilter, QueueOrder, QueuedRun, ReadyRunsQuery, RunDeparture, RunQueue, RunSubmission, SubmitResult,
    TakenWork, WorkRequest,
};
use super::schedule::{RunSchedule, StoredSchedule};
use crate::store::{LeaseClaim, StoreFuture, StoreWrapper, StoredLease};

/// A queue that forwards to another one and overrides some operations. A wrapper implements this trait and [`StoreWrapper`],
/// and is a [`RunQueue`] thereby.
pub trait QueueWrapper: StoreWrapper {
    /// Returns the wrapped queue.
    fn inner_queue(&self) -> &dyn RunQueue;

    /// Forwards [`RunQueue::submit_run`].
    fn submit_run<'a>(
        &'a self,
        submission: &'a RunSubmission,
        now: Timestamp,
    ) -> StoreFuture<'a, SubmitResult> {
        self.inner_queue().submit_run(submission, now)
    }

    /// Forwards [`RunQueue::register_worker`].
    fn register_worker<'a>(&'a self, claim: LeaseClaim<'a>) -> StoreFuture<'a, ()> {
        self.inner_queue().register_worker(claim)
    }

    /// Forwards [`RunQueue::renew_worker`].
    fn renew_worker<'a>(&'a self, worker: &'a str, now: Timestamp) -> StoreFuture<'a, ()> {
        self.inner_queue().renew_worker(worker, now)
    }

    /// Forwards [`RunQueue::retire_worker`].
    fn retire_worker<'a>(
        &'a self,
        worker: &'a str,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ()> {
        self.inner_queue().retire_worker(worker, abandoned)
    }

    /// Forwards [`RunQueue::list_workers`].
    fn list_workers(&self) -> StoreFuture<'_, Vec<StoredLease>> {
        self.inner_queue().list_workers()
    }

    /// Forwards [`RunQueue::take_work`].
    fn take_work<'a>(&'a self, request: &'a WorkRequest) -> StoreFuture<'a, TakenWork> {
        self.inner_queue().take_work(request)
    }

    /// Forwards [`RunQueue::leave_run`].
    fn leave_run<'a>(&'a self, departure: &'a RunDeparture) -> StoreFuture<'a, ()> {
        self.inner_queue().leave_run(departure)
    }

    /// Forwards [`RunQueue::post_order`].
    fn post_order<'a>(&'a self, run: &'a RunId, order: &'a QueueOrder) -> StoreFuture<'a, u64> {
        self.inner_queue().post_order(run, order)
    }

    /// Forwards [`RunQueue::revive_run`].
    fn revive_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, ()> {
        self.inner_queue().revive_run(run)
    }

    /// Forwards [`RunQueue::load_queued_run`].
    fn load_queued_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<QueuedRun>> {
        self.inner_queue().load_queued_run(run)
    }

    /// Forwards [`RunQueue::list_queued_runs`].
    fn list_queued_runs<'a>(
        &'a self,
        filter: QueueFilter,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<QueuedRun>> {
        self.inner_queue().list_queued_runs(filter, after, limit)
    }

    /// Forwards [`RunQueue::list_ready_runs`].
    fn list_ready_runs<'a>(&'a self, query: &'a ReadyRunsQuery) -> StoreFuture<'a, Vec<RunId>> {
        self.inner_queue().list_ready_runs(query)
    }

    /// Forwards [`RunQueue::save_schedule`].
    fn save_schedule<'a>(&'a self, schedule: &'a RunSchedule, now: Timestamp) -> StoreFuture<'a, ()> {
        self.inner_queue().save_schedule(schedule, now)
    }

    /// Forwards [`RunQueue::remove_schedule`].
    fn remove_schedule<'a>(&'a self, name: &'a str) -> StoreFuture<'a, bool> {
        self.inner_queue().remove_schedule(name)
    }

    /// Forwards [`RunQueue::list_schedules`].
    fn list_schedules(&self) -> StoreFuture<'_, Vec<StoredSchedule>> {
        self.inner_queue().list_schedules()
    }

    /// Forwards [`RunQueue::advance_schedule`].
    fn advance_schedule<'a>(
        &'a self,
        name: &'a str,
        from: Timestamp,
        until: Timestamp,
    ) -> StoreFuture<'a, ()> {
        self.inner_queue().advance_schedule(name, from, until)
    }

    /// Forwards [`RunQueue::wait_for_work`].
    fn wait_for_work(&self) -> BoxFuture<'_, ()> {
        self.inner_queue().wait_for_work()
    }
}

impl<W: QueueWrapper> RunQueue for W {
    fn submit_run<'a>(
        &'a self,
        submission: &'a RunSubmission,
        now: Timestamp,
    ) -> StoreFuture<'a, SubmitResult> {
        QueueWrapper::submit_run(self, submission, now)
    }

    fn register_worker<'a>(&'a self, claim: LeaseClaim<'a>) -> StoreFuture<'a, ()> {
        QueueWrapper::register_worker(self, claim)
    }

    fn renew_worker<'a>(&'a self, worker: &'a str, now: Timestamp) -> StoreFuture<'a, ()> {
        QueueWrapper::renew_worker(self, worker, now)
    }

    fn retire_worker<'a>(
        &'a self,
        worker: &'a str,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ()> {
        QueueWrapper::retire_worker(self, worker, abandoned)
    }

    fn list_workers(&self) -> StoreFuture<'_, Vec<StoredLease>> {
        QueueWrapper::list_workers(self)
    }

    fn take_work<'a>(&'a self, request: &'a WorkRequest) -> StoreFuture<'a, TakenWork> {
        QueueWrapper::take_work(self, request)
    }

    fn leave_run<'a>(&'a self, departure: &'a RunDeparture) -> StoreFuture<'a, ()> {
        QueueWrapper::leave_run(self, departure)
    }

    fn post_order<'a>(&'a self, run: &'a RunId, order: &'a QueueOrder) -> StoreFuture<'a, u64> {
        QueueWrapper::post_order(self, run, order)
    }

    fn revive_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, ()> {
        QueueWrapper::revive_run(self, run)
    }

    fn load_queued_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<QueuedRun>> {
        QueueWrapper::load_queued_run(self, run)
    }

    fn list_queued_runs<'a>(
        &'a self,
        filter: QueueFilter,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<QueuedRun>> {
        QueueWrapper::list_queued_runs(self, filter, after, limit)
    }

    fn list_ready_runs<'a>(&'a self, query: &'a ReadyRunsQuery) -> StoreFuture<'a, Vec<RunId>> {
        QueueWrapper::list_ready_runs(self, query)
    }

    fn save_schedule<'a>(&'a self, schedule: &'a RunSchedule, now: Timestamp) -> StoreFuture<'a, ()> {
        QueueWrapper::save_schedule(self, schedule, now)
    }

    fn remove_schedule<'a>(&'a self, name: &'a str) -> StoreFuture<'a, bool> {
        QueueWrapper::remove_schedule(self, name)
    }

    fn list_schedules(&self) -> StoreFuture<'_, Vec<StoredSchedule>> {
        QueueWrapper::list_schedules(self)
    }

    fn advance_schedule<'a>(
        &'a self,
        name: &'a str,
        from: Timestamp,
        until: Timestamp,
    ) -> StoreFuture<'a, ()> {
        QueueWrapper::advance_schedule(self, name, from, until)
    }

    fn wait_for_work(&self) -> BoxFuture<'_, ()> {
        QueueWrapper::wait_for_work(self)
    }
}
