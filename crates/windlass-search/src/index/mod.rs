//! The search index: files split into chunks, with an inverted index and embeddings, in one SQLite file.
//!
//! Invariant: a chunk and its postings, vector and file row are written in one transaction, and segments are
//! immutable.

mod add;
mod claim;
mod codec;
mod expand;
mod fuse;
mod merge;
mod options;
mod phrase;
mod query;
mod rank;
mod report;
mod scan;
mod schema;
mod search;
mod snapshot;
mod stores;
mod uploads;
mod vectors;
mod walk;
mod write;

pub use add::{IndexDocument, IndexUpdate};
pub use options::{IndexOptions, IndexingLimits};
pub use report::{IndexingProblem, IndexingProgress, IndexingReport};
pub use search::{HybridWeights, RankingOptions, SearchHit, SearchRequest, SearchResults, SearchSignals};
pub use stores::{IndexedFileStatus, NewVectorStore, VectorStoreFile, VectorStoreInfo};
#[cfg(feature = "rest")]
pub(crate) use stores::{STORE_LIST, UPLOAD_LIST, validate_attributes};
#[cfg(feature = "rest")]
pub(crate) use uploads::UploadSession;
pub use uploads::UploadedFile;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::Connection;
use sha2::{Digest, Sha256};

use crate::text::TextAnalyser;
use crate::{ChunkingOptions, Embedder, SearchError};
use schema::IndexAccess;
use snapshot::IndexSnapshot;

/// Id of the store that holds files unless the caller selects another store.
const DEFAULT_STORE: &str = "vs_default";
/// Maximum number of idle read connections (and idle analysers) kept for later searches.
const MAX_IDLE_CONNECTIONS: usize = 8;

/// A searchable index of files, stored in one SQLite file. Cloning is cheap; clones share caches and connections.
///
/// Several processes may use one index concurrently: a search reads a snapshot taken when it starts, and writers
/// are serialised. A process that is killed loses at most the batch that it has not committed.
///
/// ```
/// use windlass_search::Index;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # std::fs::write(folder.path().join("pumps.md"), "# Pumps\n\nBleed the pump before the winter.")?;
/// let index = Index::open(folder.path().join("notes.index"))?;
/// let report = index.add_path(folder.path().join("pumps.md")).run()?;
/// assert_eq!(report.added, 1);
///
/// let found = index.search("bleeding a pump").run()?;
/// assert_eq!(found.hits[0].file_name, "pumps.md");
/// assert_eq!(found.hits[0].location.heading, "Pumps");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Index {
    inner: Arc<IndexInner>,
    store: Arc<str>,
}

struct IndexInner {
    path: PathBuf,
    access: IndexAccess,
    writer: Mutex<Connection>,
    idle_readers: Mutex<Vec<Connection>>,
    embedder: Option<Arc<dyn Embedder>>,
    /// True if the caller passed the embedder, which may be slow, cost money or fail.
    has_custom_embedder: bool,
    chunking: ChunkingOptions,
    limits: IndexingLimits,
    snapshot: Mutex<Option<Arc<IndexSnapshot>>>,
    analyser_pool: AnalyserPool,
}

/// A pool of text analysers; each caches the stems that it has computed.
#[derive(Default)]
struct AnalyserPool(Mutex<Vec<TextAnalyser>>);

impl AnalyserPool {
    fn acquire(&self) -> TextAnalyser {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn release(&self, analyser: TextAnalyser) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_IDLE_CONNECTIONS {
            kept.push(analyser);
        }
    }
}

impl Index {
    /// Opens an index with the built-in word vectors; creates the file if it does not exist. A file that this process
    /// cannot write is opened for searches only.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is not an index, cannot be opened, or was built with another embedder.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SearchError> {
        IndexOptions::default().open(path)
    }

    /// Returns options for opening an index with another embedder, chunk size or limits.
    pub fn options() -> IndexOptions {
        IndexOptions::default()
    }

    /// Returns true if the index can be searched and not changed. See [`IndexOptions::read_only`].
    pub fn is_read_only(&self) -> bool {
        self.inner.access != IndexAccess::ReadWrite
    }

    /// Returns the path of the index file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns the number of chunks in all stores.
    pub fn chunk_count(&self) -> Result<u64, SearchError> {
        self.inner.read_transaction(|db| {
            let count: i64 = db.query_row("SELECT count(*) FROM chunks", [], |row| row.get(0))?;
            Ok(u64::try_from(count).unwrap_or(0))
        })
    }

    /// Returns the maximum size of an uploaded file in bytes.
    #[cfg(feature = "rest")]
    pub(crate) fn max_upload_bytes(&self) -> u64 {
        self.inner.limits.max_upload_bytes
    }

    /// Returns the approximate number of bytes that the index holds in memory; 0 before the first search.
    pub fn memory_bytes(&self) -> usize {
        let snapshot = self.inner.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.as_ref().map_or(0, |snapshot| snapshot.memory_bytes())
    }
}

impl IndexInner {
    fn open(path: &Path, options: IndexOptions) -> Result<Self, SearchError> {
        let (writer, access) = if options.is_read_only {
            schema::open_read_only(path)?
        } else {
            match schema::open_database(path) {
                Ok(db) if db.is_readonly("main").is_ok_and(|is_readonly| is_readonly) => {
                    schema::open_read_only(path)?
                }
                Ok(db) => (db, IndexAccess::ReadWrite),
                // The first error tells more than that of the second attempt.
                Err(error) if schema::is_write_failure(&error) => {
                    schema::open_read_only(path).map_err(|_| error)?
                }
                Err(error) => return Err(error),
            }
        };
        Ok(Self {
            path: path.to_owned(),
            access,
            writer: Mutex::new(writer),
            idle_readers: Mutex::default(),
            embedder: options.resolve_embedder()?,
            has_custom_embedder: options.has_custom_embedder(),
            chunking: options.chunking,
            limits: options.limits,
            snapshot: Mutex::default(),
            analyser_pool: AnalyserPool::default(),
        })
    }

    /// Runs `body` in one write transaction and commits it.
    fn write_transaction<T>(
        &self,
        body: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, SearchError> {
        if self.access != IndexAccess::ReadWrite {
            return Err(SearchError::ReadOnly { path: self.path.clone() });
        }
        let mut db = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let write = || {
            let transaction = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let result = body(&transaction)?;
            transaction.commit()?;
            Ok(result)
        };
        write().map_err(|source| self.sqlite_error(source))
    }

    /// Runs `body` in one read transaction, so that all its queries see the same snapshot.
    fn read_transaction<T>(
        &self,
        body: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, SearchError> {
        let idle = self.idle_readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let read = || {
            let mut db = match idle {
                Some(db) => db,
                None => {
                    let db = schema::open_connection(&self.path, self.access)?;
                    db.pragma_update(None, "query_only", true)?;
                    db
                }
            };
            let transaction = db.transaction()?;
            let result = body(&transaction);
            drop(transaction);
            let mut readers = self.idle_readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() < MAX_IDLE_CONNECTIONS {
                readers.push(db);
            }
            result
        };
        read().map_err(|source| self.sqlite_error(source))
    }

    fn sqlite_error(&self, source: rusqlite::Error) -> SearchError {
        SearchError::Sqlite { path: self.path.clone(), source }
    }

    /// Returns the in-memory snapshot of the generation that the transaction sees; loads it if it is stale.
    fn current_snapshot(&self, db: &Connection) -> rusqlite::Result<Arc<IndexSnapshot>> {
        let generation = schema::read_meta(db, "generation")?;
        let known = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known.as_ref().filter(|known| known.generation == generation) {
            return Ok(known.clone());
        }
        let read = Arc::new(IndexSnapshot::load(db, generation, known.as_deref())?);
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

/// Returns the current Unix time in seconds.
pub(crate) fn unix_now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Derives a client-visible id from a store and a path; the same file always gets the same id.
fn derive_file_id(what: &str, store: &str, path: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(store.as_bytes());
    hash.update([0]);
    hash.update(path.as_bytes());
    let hex: String = hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("{what}-{hex}")
}
