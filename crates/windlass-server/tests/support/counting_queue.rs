//! A queue that counts what is read from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use windlass::core::id::RunId;
use windlass::core::journal::JournalLine;
use windlass::fleet::{QueueWrapper, RunQueue};
use windlass::store::{RunQuery, Store, StoreFuture, StoreWrapper, StoredRun};

/// A queue that counts the runs and lines that are read from it.
pub struct CountingQueue {
    inner: Arc<dyn RunQueue>,
    runs: AtomicU64,
    lines: AtomicU64,
}

impl CountingQueue {
    pub fn new(inner: Arc<dyn RunQueue>) -> Arc<Self> {
        Arc::new(Self { inner, runs: AtomicU64::new(0), lines: AtomicU64::new(0) })
    }

    /// Returns the number of runs and of lines that were read since the last call.
    pub fn take_counts(&self) -> (u64, u64) {
        (self.runs.swap(0, Ordering::SeqCst), self.lines.swap(0, Ordering::SeqCst))
    }
}

impl StoreWrapper for CountingQueue {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn list_runs<'a>(&'a self, query: &'a RunQuery) -> StoreFuture<'a, Vec<StoredRun>> {
        Box::pin(async move {
            let runs = self.inner.list_runs(query).await?;
            self.runs.fetch_add(runs.len() as u64, Ordering::SeqCst);
            Ok(runs)
        })
    }

    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        Box::pin(async move {
            let lines = self.inner.load_journal(run, from).await?;
            self.lines.fetch_add(lines.len() as u64, Ordering::SeqCst);
            Ok(lines)
        })
    }

    fn load_journal_page<'a>(
        &'a self,
        run: &'a RunId,
        from: u64,
        limit: u32,
    ) -> StoreFuture<'a, Vec<JournalLine>> {
        Box::pin(async move {
            let lines = self.inner.load_journal_page(run, from, limit).await?;
            self.lines.fetch_add(lines.len() as u64, Ordering::SeqCst);
            Ok(lines)
        })
    }
}

impl QueueWrapper for CountingQueue {
    fn inner_queue(&self) -> &dyn RunQueue {
        &*self.inner
    }
}
