//! The readers: a few threads with a connection each, so that a long load holds up neither writes nor short reads.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use futures_util::FutureExt;
use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use super::file::{File, Trouble};
use super::writer::{About, Tally};
use crate::error::StoreError;
use crate::store::StoreResult;

/// How many reads go on at once.
const THREADS: usize = 2;

/// How many reads may wait in the queue. Further ones wait outside it: reads need no order.
const WAITING: usize = 256;

type Read = Box<dyn FnOnce(&Connection) + Send>;

/// The way to the readers' threads.
#[derive(Debug)]
pub(super) struct Readers {
    reads: Option<mpsc::Sender<Read>>,
    room: Arc<Semaphore>,
    file: Arc<File>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(super) fn start(file: &Arc<File>, tally: &Arc<Tally>) -> Result<Self, StoreError> {
        Self::with(file, tally, || file.connect_to_read())
    }

    /// Readers of a damaged file, which nobody writes to.
    pub(super) fn salvage(file: &Arc<File>) -> Result<Self, StoreError> {
        Self::with(file, &Arc::default(), || file.connect_to_salvage())
    }

    fn with(
        file: &Arc<File>,
        tally: &Arc<Tally>,
        connect: impl Fn() -> Result<Connection, StoreError>,
    ) -> Result<Self, StoreError> {
        let (reads, waiting) = mpsc::channel::<Read>();
        let waiting = Arc::new(Mutex::new(waiting));
        let mut readers = Self {
            reads: Some(reads),
            room: Arc::new(Semaphore::new(WAITING)),
            file: file.clone(),
            threads: Vec::with_capacity(THREADS),
        };
        for _ in 0..THREADS {
            let db = connect()?;
            let (waiting, tally) = (waiting.clone(), tally.clone());
            let thread = thread::Builder::new().name("windlass-reader".to_owned()).spawn(move || {
                while let Some(read) = next(&waiting) {
                    tally.wait_for_answered();
                    read(&db);
                }
            });
            let thread =
                thread.map_err(|error| StoreError::new("a reader cannot be started").caused_by(error))?;
            readers.threads.push(thread);
        }
        Ok(readers)
    }

    /// Reads something.
    pub(super) fn read<T, F>(&self, about: About, look: F) -> StoreResult<'_, T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Trouble> + Send + 'static,
    {
        async move {
            let room = self.room.clone().acquire_owned().await;
            let (answer, answered) = oneshot::channel();
            let file = self.file.clone();
            let read: Read = Box::new(move |db| {
                let found = look(db).map_err(|trouble| file.explain_about(&about, trouble));
                drop(room);
                // Nobody may be waiting any more.
                answer.send(found).ok();
            });
            // Where the threads are gone, so is the sender of the answer.
            if let Some(reads) = &self.reads {
                reads.send(read).ok();
            }
            answered.await.unwrap_or_else(|_| Err(self.file.stopped()))
        }
        .boxed()
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.reads = None;
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

fn next(waiting: &Mutex<mpsc::Receiver<Read>>) -> Option<Read> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}
