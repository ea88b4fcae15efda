//! The queue of an encrypted store.

use windlass_core::id::{RunId, Timestamp};

use super::EncryptedStore;
use super::sealed_parts::{open_order, open_submission, seal_order, seal_submission};
use crate::error::StoreError;
use crate::fleet::{
    PostedOrder, QueueOrder, QueueWrapper, QueuedRun, RunQueue, RunSchedule, RunSubmission, StoredSchedule,
    SubmitResult, TakenRun, TakenWork, WorkRequest,
};
use crate::store::StoreFuture;

impl EncryptedStore {
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
        Box::pin(async move { self.inner.submit_run(&seal_submission(&self.keys, submission)?, now).await })
    }

    fn take_work<'a>(&'a self, request: &'a WorkRequest) -> StoreFuture<'a, TakenWork> {
        Box::pin(async move {
            let TakenWork { runs, orders } = self.inner.take_work(request).await?;
            let open_run = |taken: TakenRun| {
                let submission = open_submission(&self.keys, taken.submission)?;
                Ok::<_, StoreError>(TakenRun { submission, ..taken })
            };
            let open_posted = |posted: PostedOrder| {
                let order = open_order(&self.keys, &posted.run, posted.order)?;
                Ok::<_, StoreError>(PostedOrder { order, ..posted })
            };
            Ok(TakenWork {
                runs: runs.into_iter().map(open_run).collect::<Result<_, _>>()?,
                orders: orders.into_iter().map(open_posted).collect::<Result<_, _>>()?,
            })
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
        after: Option<&'a RunId>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<QueuedRun>> {
        Box::pin(async move {
            let queued = self.inner.list_queued_runs(after, limit).await?;
            queued.into_iter().map(|queued| self.open_queued(queued)).collect()
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
