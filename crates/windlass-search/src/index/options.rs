//! How an index is opened.

use std::path::Path;
use std::sync::Arc;

use super::{DEFAULT_STORE, Index, Inner};
use crate::embed::WordTable;
use crate::{Chunking, EmbedError, Embedder, SearchError};

/// How an index is opened. See [`Index::options`].
#[derive(Clone, Default)]
#[must_use]
pub struct IndexOptions {
    vectors: Vectors,
    pub(super) chunking: Chunking,
    pub(super) limits: Limits,
}

#[derive(Clone, Default)]
enum Vectors {
    #[default]
    Words,
    Of(Arc<dyn Embedder>),
    Without,
}

/// What one file may cost. What is beyond is reported, and the rest is indexed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Files larger than this are left out. 32 MB unless said otherwise.
    pub file_bytes: u64,
    /// How much text is taken from one file. 16 MB.
    pub text_bytes: usize,
    /// How much the compressed parts of one file may become, all together. 256 MB, of which 32 at once.
    pub inflated_bytes: usize,
    /// How many files one folder may hold, with the folders in it. 1,000,000.
    pub files: usize,
    /// How many folders deep. 64.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            file_bytes: 32 << 20,
            text_bytes: 16 << 20,
            inflated_bytes: 256 << 20,
            files: 1_000_000,
            depth: 64,
        }
    }
}

impl IndexOptions {
    /// Vectors of this embedder, instead of the table of words that comes with the crate.
    pub fn embedder(mut self, embedder: impl Embedder + 'static) -> Self {
        self.vectors = Vectors::Of(Arc::new(embedder));
        self
    }

    /// No vectors: words alone.
    pub fn without_vectors(mut self) -> Self {
        self.vectors = Vectors::Without;
        self
    }

    /// How files are cut.
    pub fn chunking(mut self, chunking: Chunking) -> Self {
        self.chunking = chunking;
        self
    }

    /// What one file may cost.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Opens the index; makes it where it is not there.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Index, SearchError> {
        self.chunking.checked().map_err(SearchError::Invalid)?;
        let inner = Inner::open(path.as_ref(), self)?;
        inner.check_embedder()?;
        Ok(Index { inner: Arc::new(inner), store: DEFAULT_STORE.into() })
    }

    pub(super) fn chosen(&self) -> Result<Option<Arc<dyn Embedder>>, EmbedError> {
        Ok(match &self.vectors {
            Vectors::Words => Some(Arc::new(WordTable::shared()?)),
            Vectors::Of(embedder) => Some(embedder.clone()),
            Vectors::Without => None,
        })
    }
}

impl Inner {
    /// Vectors of different embedders cannot be compared, so an index has those of one.
    fn check_embedder(&self) -> Result<(), SearchError> {
        let Some(embedder) = &self.embedder else { return Ok(()) };
        let name = format!("{} ({})", embedder.name(), embedder.dimensions());
        let kept = self.write(|db| {
            db.execute("INSERT OR IGNORE INTO meta VALUES ('embedder', ?1)", [&name])?;
            db.query_row("SELECT value FROM meta WHERE key = 'embedder'", [], |row| row.get::<_, String>(0))
        })?;
        if kept == name {
            return Ok(());
        }
        Err(SearchError::OtherEmbedder { path: self.path.clone(), kept, given: name })
    }
}
