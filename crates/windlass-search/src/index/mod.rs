//! An index: files cut into chunks, their words and their vectors, in one SQLite file.

mod add;
mod codec;
mod expand;
mod fuse;
mod merge;
mod options;
mod rank;
mod report;
mod schema;
mod search;
mod snapshot;
mod stores;
mod vectors;
mod walk;
mod write;

pub use add::{Add, Document};
pub use options::{IndexOptions, Limits};
pub use report::{Problem, Progress, Report};
pub use search::{Found, Hit, Ranking, Search, Signals, Weights};
#[cfg(feature = "rest")]
pub(crate) use stores::check;
pub use stores::{FileInfo, FileStatus, NewStore, StoreInfo, Upload};

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::Connection;
use sha2::{Digest, Sha256};

use crate::text::Analyser;
use crate::{Chunking, Embedder, SearchError};
use snapshot::Snapshot;

/// The store that files are in unless another was made.
const DEFAULT_STORE: &str = "vs_default";
/// So many connections are kept for searches to come.
const IDLE_READERS: usize = 8;

/// Files that can be searched, kept in one file. It is cheap to clone, and clones share what they remember.
///
/// Several processes may use one index at once: each search sees what was written when it began, and writers take
/// turns. A process that is killed loses the batch that it was about to write, and nothing else.
///
/// ```
/// use windlass_search::Index;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # std::fs::write(folder.path().join("pumps.md"), "# Pumps\n\nBleed the pump before the winter.")?;
/// let index = Index::open(folder.path().join("notes.index"))?;
/// let report = index.add(folder.path().join("pumps.md")).run()?;
/// assert_eq!(report.added, 1);
///
/// let found = index.search("bleeding a pump").run()?;
/// assert_eq!(found.hits[0].name, "pumps.md");
/// assert_eq!(found.hits[0].place.heading, "Pumps");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Index {
    inner: Arc<Inner>,
    store: Arc<str>,
}

struct Inner {
    path: PathBuf,
    writer: Mutex<Connection>,
    readers: Mutex<Vec<Connection>>,
    embedder: Option<Arc<dyn Embedder>>,
    chunking: Chunking,
    limits: Limits,
    snapshot: Mutex<Option<Arc<Snapshot>>>,
    analysers: Analysers,
}

/// Analysers that remember the stems of words, for searches to come.
#[derive(Default)]
struct Analysers(Mutex<Vec<Analyser>>);

impl Analysers {
    fn take(&self) -> Analyser {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn put(&self, analyser: Analyser) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < IDLE_READERS {
            kept.push(analyser);
        }
    }
}

impl Index {
    /// Opens an index, with the table of words that comes with the crate. Makes it where it is not there.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SearchError> {
        IndexOptions::default().open(path)
    }

    /// Another embedder, other chunks, other limits.
    pub fn options() -> IndexOptions {
        IndexOptions::default()
    }

    /// The file that it is kept in.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// How many chunks can be found, in all stores.
    pub fn chunks(&self) -> Result<u64, SearchError> {
        self.inner.read(|db| {
            let count: i64 = db.query_row("SELECT count(*) FROM chunks", [], |row| row.get(0))?;
            Ok(u64::try_from(count).unwrap_or(0))
        })
    }

    /// How large a file may be.
    #[cfg(feature = "rest")]
    pub(crate) fn file_limit(&self) -> u64 {
        self.inner.limits.file_bytes
    }

    /// How many bytes it holds in memory for searches, about. 0 before the first.
    pub fn memory(&self) -> usize {
        let snapshot = self.inner.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.as_ref().map_or(0, |snapshot| snapshot.bytes())
    }
}

impl Inner {
    fn open(path: &Path, options: IndexOptions) -> Result<Self, SearchError> {
        let writer = schema::open(path)?;
        Ok(Self {
            path: path.to_owned(),
            writer: Mutex::new(writer),
            readers: Mutex::default(),
            embedder: options.chosen()?,
            chunking: options.chunking,
            limits: options.limits,
            snapshot: Mutex::default(),
            analysers: Analysers::default(),
        })
    }

    /// Carries out one transaction that writes.
    fn write<T>(&self, body: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, SearchError> {
        let mut db = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let write = || {
            let transaction = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let result = body(&transaction)?;
            transaction.commit()?;
            Ok(result)
        };
        write().map_err(|source| self.sqlite(source))
    }

    /// Carries out one transaction that reads: all of it sees one moment.
    fn read<T>(&self, body: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, SearchError> {
        let idle = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let read = || {
            let mut db = match idle {
                Some(db) => db,
                None => {
                    let db = schema::connect(&self.path)?;
                    db.pragma_update(None, "query_only", true)?;
                    db
                }
            };
            let transaction = db.transaction()?;
            let result = body(&transaction);
            drop(transaction);
            let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() < IDLE_READERS {
                readers.push(db);
            }
            result
        };
        read().map_err(|source| self.sqlite(source))
    }

    fn sqlite(&self, source: rusqlite::Error) -> SearchError {
        SearchError::Sqlite { path: self.path.clone(), source }
    }

    /// What is remembered of the file, brought up to date.
    fn snapshot(&self, db: &Connection) -> rusqlite::Result<Arc<Snapshot>> {
        let generation = schema::number(db, "generation")?;
        let known = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known.as_ref().filter(|known| known.generation == generation) {
            return Ok(known.clone());
        }
        let read = Arc::new(Snapshot::read(db, generation, known.as_deref())?);
        let mut place = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        if place.as_ref().is_none_or(|known| known.generation < generation) {
            *place = Some(read.clone());
        }
        Ok(read)
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("path", &self.inner.path)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// An id for clients, the same for the same file.
fn public_id(what: &str, store: &str, path: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(store.as_bytes());
    hash.update([0]);
    hash.update(path.as_bytes());
    let hex: String = hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("{what}-{hex}")
}
