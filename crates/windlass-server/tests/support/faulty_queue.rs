//! A queue whose operations fail while a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use windlass::BoxFuture;
use windlass::core::id::{RunId, Timestamp};
use windlass::core::journal::JournalLine;
use windlass::error::StoreError;
use windlass::fleet::{
    QueueOrder, QueuedRun, RunDeparture, RunQueue, RunSchedule, RunSubmission, StoredSchedule, SubmitResult,
    TakenWork, WorkRequest,
};
use windlass::store::{LeaseClaim, RunQuery, Store, StoreFuture, StoreWrapper, StoredLease, StoredRun};

pub(crate) struct FaultyQueue {
    inner: Arc<dyn RunQueue>,
    /// True if runs cannot be read; they can be listed.
    pub(crate) fails_reads: AtomicBool,
    /// True if records after the first cannot be read in pages.
    pub(crate) fails_pages: AtomicBool,
    /// True if no worker can be registered.
    pub(crate) fails_workers: AtomicBool,
}

impl FaultyQueue {
    pub(crate) fn new(inner: Arc<dyn RunQueue>) -> Arc<Self> {
        let [fails_reads, fails_pages, fails_workers] = [const { AtomicBool::new(false) }; 3];
        Arc::new(Self { inner, fails_reads, fails_pages, fails_workers })
    }
}

fn failure<'a, T: Send + 'a>() -> StoreFuture<'a, T> {
    Box::pin(async { Err(StoreError::new("the disk is away")) })
}

impl StoreWrapper for FaultyQueue {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn wrap_operation<'a, T: Send + 'a>(
        &'a self,
        operation: impl FnOnce() -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        if self.fails_reads.load(Ordering::SeqCst) { failure() } else { operation() }
    }

    fn list_runs<'a>(&'a self, query: &'a RunQuery) -> StoreFuture<'a, Vec<StoredRun>> {
        self.inner.list_runs(query)
    }

    fn load_journal_page<'a>(
        &'a self,
        run: &'a RunId,
        from: u64,
        limit: u32,
    ) -> StoreFuture<'a, Vec<JournalLine>> {
        if from > 0 && self.fails_pages.load(Ordering::SeqCst) {
            return failure();
        }
        self.inner.load_journal_page(run, from, limit)
    }
}

impl RunQueue for FaultyQueue {
    fn submit_run<'a>(
        &'a self,
        submission: &'a RunSubmission,
        now: Timestamp,
    ) -> StoreFuture<'a, SubmitResult> {
        self.inner.submit_run(submission, now)
    }

    fn register_worker<'a>(&'a self, claim: LeaseClaim<'a>) -> StoreFuture<'a, ()> {
        if self.fails_workers.load(Ordering::SeqCst) {
            return failure();
        }
        self.inner.register_worker(claim)
    }

    fn renew_worker<'a>(&'a self, worker: &'a str, now: Timestamp) -> StoreFuture<'a, ()> {
        self.inner.renew_worker(worker, now)
    }

    fn retire_worker<'a>(
        &'a self,
        worker: &'a str,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ()> {
        self.inner.retire_worker(worker, abandoned)
    }

    fn list_workers(&self) -> StoreFuture<'_, Vec<StoredLease>> {
        self.inner.list_workers()
    }

    fn take_work<'a>(&'a self, request: &'a WorkRequest) -> StoreFuture<'a, TakenWork> {
        self.inner.take_work(request)
    }

    fn leave_run<'a>(&'a self, departure: &'a RunDeparture) -> StoreFuture<'a, ()> {
        self.inner.leave_run(departure)
    }

    fn post_order<'a>(&'a self, run: &'a RunId, order: &'a QueueOrder) -> StoreFuture<'a, u64> {
        self.inner.post_order(run, order)
    }

    fn revive_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, ()> {
        self.inner.revive_run(run)
    }

    fn load_queued_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<QueuedRun>> {
        self.inner.load_queued_run(run)
    }

    fn list_queued_runs<'a>(
        &'a self,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<QueuedRun>> {
        self.inner.list_queued_runs(after, limit)
    }

    fn save_schedule<'a>(&'a self, schedule: &'a RunSchedule, now: Timestamp) -> StoreFuture<'a, ()> {
        self.inner.save_schedule(schedule, now)
    }

    fn remove_schedule<'a>(&'a self, name: &'a str) -> StoreFuture<'a, bool> {
        self.inner.remove_schedule(name)
    }

    fn list_schedules(&self) -> StoreFuture<'_, Vec<StoredSchedule>> {
        self.inner.list_schedules()
    }

    fn advance_schedule<'a>(
        &'a self,
        name: &'a str,
        from: Timestamp,
        until: Timestamp,
    ) -> StoreFuture<'a, ()> {
        self.inner.advance_schedule(name, from, until)
    }

    fn wait_for_work(&self) -> BoxFuture<'_, ()> {
        self.inner.wait_for_work()
    }
}
