//! The blocking reader of what opening a run from its snapshot leaves out.
//!
//! Invariant: its connection belongs to a thread of its own. A caller may block the only thread of its runtime, which then
//! polls no connection of the pool.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::{Builder, Runtime};
use windlass::core::id::RunId;
use windlass::core::item::Item;
use windlass::core::journal::{HistoryReference, JournalLine};
use windlass::error::StoreError;
use windlass::store::JournalReader;

use crate::database::{Database, TransactionMode, transact};
use crate::{artefacts, history, runs};

/// A read that the thread carries out.
type ReadRequest = Box<dyn FnOnce(&Runtime, &Database) + Send>;

/// The reader. Its thread starts with the first read and ends with the reader.
#[derive(Debug)]
pub(crate) struct BlockingReader {
    database: Arc<Database>,
    requests: Mutex<Option<Sender<ReadRequest>>>,
}

impl BlockingReader {
    pub(crate) fn new(database: Arc<Database>) -> Self {
        Self { database, requests: Mutex::default() }
    }

    /// Carries out a read on the thread, and waits for its result.
    fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Runtime, &Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = channel();
        let request: ReadRequest = Box::new(move |runtime, database| {
            reply.send(work(runtime, database)).ok();
        });
        self.send(request)?;
        answer.recv().map_err(|_| StoreError::new("the reader of the database ended"))?
    }

    fn send(&self, request: ReadRequest) -> Result<(), StoreError> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = match &*requests {
            Some(running) => running.send(request).err().map(|error| error.0),
            None => Some(request),
        };
        let Some(request) = refused else { return Ok(()) };
        let (sender, waiting) = channel();
        sender.send(request).map_err(|_| StoreError::new("the reader of the database ended"))?;
        let database = self.database.with_one_connection();
        let failed = |error| StoreError::new("the reader of the database cannot start").with_source(error);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let serve = move || serve_requests(&runtime, &database, &waiting);
        std::thread::Builder::new()
            .name("windlass-postgres-reader".to_owned())
            .spawn(serve)
            .map_err(failed)?;
        *requests = Some(sender);
        Ok(())
    }
}

fn serve_requests(runtime: &Runtime, database: &Database, waiting: &Receiver<ReadRequest>) {
    while let Ok(request) = waiting.recv() {
        request(runtime, database);
    }
}

impl JournalReader for BlockingReader {
    fn read_lines(&self, run: &RunId, from: u64, limit: u32) -> Result<Vec<JournalLine>, StoreError> {
        let run = run.clone();
        self.read(move |runtime, database| {
            runtime.block_on(async {
                transact!(database, TransactionMode::Reading, |db| runs::load_journal(
                    db,
                    &run,
                    from,
                    Some(limit)
                ))
            })
        })
    }

    fn read_segments(&self, run: &RunId, count: u64) -> Result<Vec<String>, StoreError> {
        let run = run.clone();
        self.read(move |runtime, database| {
            runtime.block_on(async {
                transact!(database, TransactionMode::Reading, |db| runs::load_segments(db, &run, count))
            })
        })
    }

    fn read_history(&self, reference: &HistoryReference) -> Result<Option<Vec<Arc<Item>>>, StoreError> {
        let reference = reference.clone();
        self.read(move |runtime, database| {
            runtime.block_on(async {
                transact!(database, TransactionMode::Reading, |db| history::load_history(db, &reference))
            })
        })
    }

    fn read_artefact(&self, run: &RunId, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let (run, name) = (run.clone(), name.to_owned());
        self.read(move |runtime, database| {
            runtime.block_on(async {
                transact!(database, TransactionMode::Reading, |db| artefacts::load_artefact(db, &run, &name))
            })
        })
    }
}
