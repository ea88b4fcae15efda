//! The reader pool: a few threads with a connection each, so that a long load blocks neither writes nor short
//! reads.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use futures_util::FutureExt;
use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use super::file::{DatabaseFile, SqliteError};
use super::writer::{RequestSubject, WriterCounters};
use crate::error::StoreError;
use crate::store::StoreFuture;

/// Number of concurrent reads.
const READER_THREADS: usize = 2;

/// Maximum number of queued reads. Further ones wait for a permit: reads need no order.
const MAX_QUEUED_READS: usize = 256;

type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// The handle of the reader threads.
#[derive(Debug)]
pub(super) struct ReaderPool {
    queue: Option<mpsc::Sender<ReadJob>>,
    queue_permits: Arc<Semaphore>,
    file: Arc<DatabaseFile>,
    threads: Vec<JoinHandle<()>>,
}

impl ReaderPool {
    pub(super) fn start(file: &Arc<DatabaseFile>, tally: &Arc<WriterCounters>) -> Result<Self, StoreError> {
        Self::start_with(file, tally, || file.connect_to_read())
    }

    /// Starts readers for a backup, which has no writer.
    pub(super) fn start_without_writer(file: &Arc<DatabaseFile>) -> Result<Self, StoreError> {
        Self::start_with(file, &Arc::default(), || file.connect_to_read())
    }

    /// Starts readers for a damaged file, which has no writer.
    pub(super) fn start_salvage(file: &Arc<DatabaseFile>) -> Result<Self, StoreError> {
        Self::start_with(file, &Arc::default(), || file.connect_to_salvage())
    }

    fn start_with(
        file: &Arc<DatabaseFile>,
        tally: &Arc<WriterCounters>,
        connect: impl Fn() -> Result<Connection, StoreError>,
    ) -> Result<Self, StoreError> {
        let (reads, waiting) = mpsc::channel::<ReadJob>();
        let waiting = Arc::new(Mutex::new(waiting));
        let mut readers = Self {
            queue: Some(reads),
            queue_permits: Arc::new(Semaphore::new(MAX_QUEUED_READS)),
            file: file.clone(),
            threads: Vec::with_capacity(READER_THREADS),
        };
        for _ in 0..READER_THREADS {
            let db = connect()?;
            let (waiting, tally) = (waiting.clone(), tally.clone());
            let thread = thread::Builder::new().name("windlass-reader".to_owned()).spawn(move || {
                while let Some(read) = next_job(&waiting) {
                    tally.wait_for_early_acks();
                    read(&db);
                }
            });
            let thread = thread
                .map_err(|error| StoreError::new("a reader thread cannot be started").with_source(error))?;
            readers.threads.push(thread);
        }
        Ok(readers)
    }

    /// Executes a read on a reader thread.
    pub(super) fn run_read<T, F>(&self, about: RequestSubject, look: F) -> StoreFuture<'_, T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, SqliteError> + Send + 'static,
    {
        async move {
            let room = self.queue_permits.clone().acquire_owned().await;
            let (answer, answered) = oneshot::channel();
            let file = self.file.clone();
            let read: ReadJob = Box::new(move |db| {
                let found = look(db).map_err(|trouble| file.to_store_error_about(&about, trouble));
                drop(room);
                // The caller may have dropped its future.
                answer.send(found).ok();
            });
            // If the threads have stopped, the sender of the result is dropped as well.
            if let Some(reads) = &self.queue {
                reads.send(read).ok();
            }
            answered.await.unwrap_or_else(|_| Err(self.file.thread_stopped_error()))
        }
        .boxed()
    }
}

impl Drop for ReaderPool {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

fn next_job(waiting: &Mutex<mpsc::Receiver<ReadJob>>) -> Option<ReadJob> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}
