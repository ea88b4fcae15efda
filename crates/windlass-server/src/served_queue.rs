//! The store of a server: every write through it wakes those who watch the run.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{Notify, watch};
use windlass::core::{
    id::{RunId, Timestamp},
    journal::JournalLine,
};
use windlass::fleet::{QueueOrder, QueueWrapper, RunDeparture, RunQueue, RunSubmission, SubmitResult};
use windlass::session::SessionStore;
use windlass::store::{JournalAppend, Lease, PostedDecision, RunStatus, Store, StoreFuture, StoreWrapper};

use crate::lock_unpoisoned;

/// A store and queue that announces the writes of this process. Those of other processes are found by
/// [`StoreWatch`](crate::store_watch::StoreWatch).
pub(crate) struct ServedQueue {
    inner: Arc<dyn RunQueue>,
    signals: Mutex<HashMap<RunId, Weak<Notify>>>,
    /// Runs that a decision was posted for since they were last taken.
    posted_runs: Mutex<BTreeSet<RunId>>,
    changes: watch::Sender<u64>,
    /// Number of writes that may be visible and are not announced yet.
    open_writes: AtomicUsize,
}

impl ServedQueue {
    pub(crate) fn new(inner: Arc<dyn RunQueue>) -> Self {
        Self {
            inner,
            signals: Mutex::default(),
            posted_runs: Mutex::default(),
            changes: watch::channel(0).0,
            open_writes: AtomicUsize::new(0),
        }
    }

    /// Returns the signal of a run, which every write of the run sets off.
    pub(crate) fn signal_of(&self, run: &RunId) -> Arc<Notify> {
        let mut signals = lock_unpoisoned(&self.signals);
        if let Some(signal) = signals.get(run).and_then(Weak::upgrade) {
            return signal;
        }
        if signals.len() >= 1024 {
            signals.retain(|_, signal| signal.strong_count() > 0);
        }
        let signal = Arc::new(Notify::new());
        signals.insert(run.clone(), Arc::downgrade(&signal));
        signal
    }

    /// Returns a counter that rises with every write that may change the inbox.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns true if a write may be visible that is not announced yet.
    pub(crate) fn has_open_writes(&self) -> bool {
        self.open_writes.load(Ordering::SeqCst) > 0
    }

    /// Returns true if somebody watches a run.
    pub(crate) fn has_watchers(&self) -> bool {
        lock_unpoisoned(&self.signals).values().any(|signal| signal.strong_count() > 0)
    }

    /// Notes that some process has posted a decision for a run.
    pub(crate) fn note_posted_decision(&self, run: &RunId) {
        lock_unpoisoned(&self.posted_runs).insert(run.clone());
        self.announce(run);
    }

    /// Takes the runs that a decision was posted for.
    pub(crate) fn take_posted_runs(&self) -> BTreeSet<RunId> {
        std::mem::take(&mut *lock_unpoisoned(&self.posted_runs))
    }

    /// Puts runs back that were taken and could not be read.
    pub(crate) fn put_back_posted_runs(&self, runs: BTreeSet<RunId>) {
        lock_unpoisoned(&self.posted_runs).extend(runs);
    }

    /// Wakes those who watch a run.
    pub(crate) fn wake_watchers(&self, run: &RunId) {
        let signal = lock_unpoisoned(&self.signals).get(run).and_then(Weak::upgrade);
        if let Some(signal) = signal {
            signal.notify_waiters();
        }
    }

    /// Announces a write to a run.
    fn announce(&self, run: &RunId) {
        self.wake_watchers(run);
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn announced<'a, T: Send + 'a>(
        &'a self,
        run: &'a RunId,
        operation: StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let _open = OpenWrite::begin(self);
            let result = operation.await;
            if result.is_ok() {
                self.announce(run);
            }
            result
        })
    }
}

/// A write that is under way.
struct OpenWrite<'a>(&'a ServedQueue);

impl<'a> OpenWrite<'a> {
    fn begin(queue: &'a ServedQueue) -> Self {
        queue.open_writes.fetch_add(1, Ordering::SeqCst);
        Self(queue)
    }
}

impl Drop for OpenWrite<'_> {
    fn drop(&mut self) {
        self.0.open_writes.fetch_sub(1, Ordering::SeqCst);
    }
}

impl StoreWrapper for ServedQueue {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn wrap_append<'a, T: Send + 'a>(
        &'a self,
        append: JournalAppend<'a>,
        operation: impl FnOnce(Vec<JournalLine>) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        self.announced(append.run, operation(append.lines))
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        self.inner.sessions()
    }

    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()> {
        self.announced(&lease.run, self.inner.set_status(lease, status, now))
    }

    fn post_decision<'a>(
        &'a self,
        run: &'a RunId,
        posted: PostedDecision,
        record_count: u64,
    ) -> StoreFuture<'a, ()> {
        let post = self.inner.post_decision(run, posted, record_count);
        Box::pin(async move {
            let _open = OpenWrite::begin(self);
            post.await?;
            self.note_posted_decision(run);
            Ok(())
        })
    }
}

impl QueueWrapper for ServedQueue {
    fn inner_queue(&self) -> &dyn RunQueue {
        &*self.inner
    }

    fn submit_run<'a>(
        &'a self,
        submission: &'a RunSubmission,
        now: Timestamp,
    ) -> StoreFuture<'a, SubmitResult> {
        self.announced(&submission.run, self.inner.submit_run(submission, now))
    }

    fn leave_run<'a>(&'a self, departure: &'a RunDeparture) -> StoreFuture<'a, ()> {
        self.announced(&departure.run, self.inner.leave_run(departure))
    }

    fn post_order<'a>(&'a self, run: &'a RunId, order: &'a QueueOrder) -> StoreFuture<'a, u64> {
        self.announced(run, self.inner.post_order(run, order))
    }

    fn revive_run<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, ()> {
        self.announced(run, self.inner.revive_run(run))
    }
}
