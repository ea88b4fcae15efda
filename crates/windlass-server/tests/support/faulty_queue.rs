//! A queue whose operations fail while a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use windlass::core::id::RunId;
use windlass::core::journal::JournalLine;
use windlass::error::StoreError;
use windlass::fleet::{QueueWrapper, RunQueue};
use windlass::store::{LeaseClaim, RunQuery, Store, StoreFuture, StoreWrapper, StoredRun};

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

impl QueueWrapper for FaultyQueue {
    fn inner_queue(&self) -> &dyn RunQueue {
        &*self.inner
    }

    fn register_worker<'a>(&'a self, claim: LeaseClaim<'a>) -> StoreFuture<'a, ()> {
        if self.fails_workers.load(Ordering::SeqCst) {
            return failure();
        }
        self.inner.register_worker(claim)
    }
}
