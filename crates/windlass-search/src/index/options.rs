//! Options for opening an index.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use super::schema::IndexAccess;
use super::{DEFAULT_STORE, Index, IndexInner};
use crate::embed::WordVectorTable;
use crate::{ChunkingOptions, EmbedError, Embedder, SearchError};

/// The options for opening an index. See [`Index::options`].
#[derive(Clone, Default)]
#[must_use]
pub struct IndexOptions {
    vector_source: VectorSource,
    pub(super) chunking: ChunkingOptions,
    pub(super) limits: IndexingLimits,
    pub(super) is_read_only: bool,
}

/// The source of a chunk's vectors.
#[derive(Clone, Default)]
enum VectorSource {
    #[default]
    WordVectors,
    Custom(Arc<dyn Embedder>),
    Disabled,
}

/// The limits of indexing. Content beyond a limit is reported as a problem, and the rest is indexed.
#[derive(Clone, Copy, Debug)]
pub struct IndexingLimits {
    /// Maximum size of a file in bytes; larger files are skipped. 64 MB by default.
    pub max_file_bytes: u64,
    /// Maximum size of an uploaded file in bytes, which is stored whether it can be indexed or not. 512 MB by default,
    /// as in the hosted service.
    pub max_upload_bytes: u64,
    /// Maximum number of bytes of text extracted from one file. 16 MB by default.
    pub max_text_bytes: usize,
    /// Maximum total size of the decompressed streams of one file, in bytes. 256 MB by default; a single stream
    /// is limited to 32 MB.
    pub max_inflated_bytes: usize,
    /// Maximum number of steps of work on one PDF file: bytes and objects read, mappings made, glyphs shown. A step
    /// takes about ten nanoseconds.
    pub max_extraction_steps: usize,
    /// Maximum number of files in an added folder, subfolders included. 1,000,000 by default.
    pub max_files: usize,
    /// Maximum nesting depth of folders. 64 by default.
    pub max_depth: usize,
    /// Maximum time to wait for another process that has claimed files of the folder and indexes none of them, such as a
    /// process that was stopped. 10 minutes by default.
    pub max_claim_wait: Duration,
}

impl Default for IndexingLimits {
    fn default() -> Self {
        Self {
            max_file_bytes: 64 << 20,
            max_upload_bytes: 512 << 20,
            max_text_bytes: 16 << 20,
            max_inflated_bytes: 256 << 20,
            max_extraction_steps: 100_000_000,
            max_files: 1_000_000,
            max_depth: 64,
            max_claim_wait: Duration::from_secs(600),
        }
    }
}

impl IndexOptions {
    /// Sets the embedder, which replaces the built-in word vectors.
    pub fn embedder(mut self, embedder: impl Embedder + 'static) -> Self {
        self.vector_source = VectorSource::Custom(Arc::new(embedder));
        self
    }

    /// Disables vectors: searches use BM25 only.
    pub fn without_vectors(mut self) -> Self {
        self.vector_source = VectorSource::Disabled;
        self
    }

    /// Sets the size and overlap of chunks.
    pub fn chunking(mut self, chunking: ChunkingOptions) -> Self {
        self.chunking = chunking;
        self
    }

    /// Sets the limits of indexing.
    pub fn limits(mut self, limits: IndexingLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Opens the index for searches only. The file must exist and is not changed; changes fail with
    /// [`SearchError::ReadOnly`].
    pub fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// Opens the index; creates the file if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the options are invalid, the file is not an index, or it was built with another
    /// embedder.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Index, SearchError> {
        self.chunking.validated().map_err(SearchError::InvalidArgument)?;
        let inner = IndexInner::open(path.as_ref(), self)?;
        inner.check_embedder()?;
        Ok(Index { inner: Arc::new(inner), store: DEFAULT_STORE.into() })
    }

    pub(super) fn has_custom_embedder(&self) -> bool {
        matches!(self.vector_source, VectorSource::Custom(_))
    }

    pub(super) fn resolve_embedder(&self) -> Result<Option<Arc<dyn Embedder>>, EmbedError> {
        Ok(match &self.vector_source {
            VectorSource::WordVectors => Some(Arc::new(WordVectorTable::shared()?)),
            VectorSource::Custom(embedder) => Some(embedder.clone()),
            VectorSource::Disabled => None,
        })
    }
}

impl IndexInner {
    /// Checks that the index was built with this embedder; vectors of different embedders are not comparable.
    fn check_embedder(&self) -> Result<(), SearchError> {
        let Some(embedder) = &self.embedder else { return Ok(()) };
        let name = format!("{} ({})", embedder.name(), embedder.dimensions());
        let read = |db: &Connection| {
            db.query_row("SELECT value FROM meta WHERE key = 'embedder'", [], |row| row.get::<_, String>(0))
                .optional()
        };
        let kept = if self.access == IndexAccess::ReadWrite {
            self.write_transaction(|db| {
                db.execute("INSERT OR IGNORE INTO meta VALUES ('embedder', ?1)", [&name])?;
                read(db)
            })?
        } else {
            self.read_transaction(read)?
        };
        let kept = kept.unwrap_or_else(|| name.clone());
        if kept == name {
            return Ok(());
        }
        Err(SearchError::EmbedderMismatch {
            path: self.path.clone(),
            index_embedder: kept,
            requested_embedder: name,
        })
    }
}
