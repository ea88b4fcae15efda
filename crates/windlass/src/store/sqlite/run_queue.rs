//! The queue of the store, as requests to its writer and its readers.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::id::{RunId, Timestamp};

use super::runs::OwnedLeaseClaim;
use super::writer::{AckLevel, RequestSubject};
use super::{SqliteStore, queue, schedules};
use crate::fleet::{
    QueueFilter, QueueOrder, QueuedRun, ReadyRunsQuery, RunDeparture, RunQueue, RunSchedule, RunSubmission,
    StoredSchedule, SubmitResult, TakenWork, WorkRequest,
};
use crate::store::{LeaseClaim, StoreFuture, StoredLease};

impl SqliteStore {
    /// Tells the workers of this process that there may be work, when a write has succeeded.
    fn hint_after<'a, T: Send + 'a>(&'a self, write: StoreFuture<'static, T>) -> StoreFuture<'a, T> {
        async move {
            let value = write.await?;
            self.hints.give_work();
            Ok(value)
        }
        .boxed()
    }
}

impl RunQueue for SqliteStore {
    fn submit_run<'a>(
        &'a self,
        submission: &'a RunSubmission,
        now: Timestamp,
    ) -> StoreFuture<'a, SubmitResult> {
        let submission = submission.clone();
        let about = RequestSubject::Run(submission.run.clone());
        self.hint_after(
            self.submit_write(about, AckLevel::Synced, move |desk| {
                queue::submit_run(desk.db, &submission, now)
            }),
        )
    }

    fn register_worker<'a>(&'a self, claim: LeaseClaim<'a>) -> StoreFuture<'a, ()> {
        let by = OwnedLeaseClaim::from(claim);
        self.submit_write(RequestSubject::Store, AckLevel::Committed, move |desk| {
            desk.record_place()?;
            queue::register_worker(desk.db, &by)
        })
    }

    fn renew_worker<'a>(&'a self, worker: &'a str, now: Timestamp) -> StoreFuture<'a, ()> {
        let worker = worker.to_owned();
        self.submit_write(RequestSubject::Store, AckLevel::Committed, move |desk| {
            queue::renew_worker(desk.db, &worker, now)
        })
    }

    fn retire_worker<'a>(
        &'a self,
        worker: &'a str,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ()> {
        let (worker, abandoned) = (worker.to_owned(), abandoned.cloned());
        self.hint_after(self.submit_write(RequestSubject::Store, AckLevel::Committed, move |desk| {
            queue::retire_worker(desk.db, &worker, abandoned.as_ref())
        }))
    }

    fn list_workers(&self) -> StoreFuture<'_, Vec<StoredLease>> {
        self.readers.run_read(RequestSubject::Store, queue::list_workers)
    }

    fn take_work<'a>(&'a self, request: &'a WorkRequest) -> StoreFuture<'a, TakenWork> {
        let request = request.clone();
        self.submit_write(RequestSubject::Store, AckLevel::Committed, move |desk| {
            queue::take_work(desk.db, &request)
        })
    }

    fn leave_run<'a>(&'a self, departure: &'a RunDeparture) -> StoreFuture<'a, ()> {
        let departure = departure.clone();
        let about = RequestSubject::Run(departure.run.clone());
        self.hint_after(
            self.submit_write(about, AckLevel::Synced, move |desk| queue::leave_run(desk.db, &departure)),
        )
    }

    fn post_order<'a>(&'a self, run: &'a RunId, order: &'a QueueOrder) -> StoreFuture<'a, u64> {
        let (run, order) = (run.clone(), order.clone());
        let about = RequestSubject::Run(run.clone());
        self.hint_after(
            self.submit_write(about, AckLevel::Synced, move |desk| queue::post_order(desk.db, &run, &order)),
        )
    }

    fn revive_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, ()> {
        let run = run.clone();
        let about = RequestSubject::Run(run.clone());
        self.hint_after(
            self.submit_write(about, AckLevel::Synced, move |desk| queue::revive_run(desk.db, &run)),
        )
    }

    fn load_queued_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<QueuedRun>> {
        let run = run.clone();
        self.readers.run_read(RequestSubject::Run(run.clone()), move |db| queue::load_queued_run(db, &run))
    }

    fn list_ready_runs<'a>(&'a self, query: &'a ReadyRunsQuery) -> StoreFuture<'a, Vec<RunId>> {
        let query = query.clone();
        self.readers.run_read(RequestSubject::Store, move |db| queue::list_ready_runs(db, &query))
    }

    fn list_queued_runs<'a>(
        &'a self,
        filter: QueueFilter,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<QueuedRun>> {
        let after = after.cloned();
        self.readers.run_read(RequestSubject::Store, move |db| {
            queue::list_queued_runs(db, filter, after.as_ref(), limit)
        })
    }

    fn save_schedule<'a>(&'a self, schedule: &'a RunSchedule, now: Timestamp) -> StoreFuture<'a, ()> {
        let schedule = schedule.clone();
        self.submit_write(RequestSubject::Store, AckLevel::Synced, move |desk| {
            schedules::save_schedule(desk.db, &schedule, now)
        })
    }

    fn remove_schedule<'a>(&'a self, name: &'a str) -> StoreFuture<'a, bool> {
        let name = name.to_owned();
        self.submit_write(RequestSubject::Store, AckLevel::Synced, move |desk| {
            schedules::remove_schedule(desk.db, &name)
        })
    }

    fn list_schedules(&self) -> StoreFuture<'_, Vec<StoredSchedule>> {
        self.readers.run_read(RequestSubject::Store, schedules::list_schedules)
    }

    fn advance_schedule<'a>(
        &'a self,
        name: &'a str,
        from: Timestamp,
        until: Timestamp,
    ) -> StoreFuture<'a, ()> {
        let name = name.to_owned();
        self.submit_write(RequestSubject::Store, AckLevel::Committed, move |desk| {
            schedules::advance_schedule(desk.db, &name, from, until)
        })
    }

    fn wait_for_work(&self) -> BoxFuture<'_, ()> {
        self.hints.wait_for_work()
    }
}
