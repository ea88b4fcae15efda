//! The error type of an index.

use std::path::PathBuf;

/// An error that prevented an index from being opened, changed or searched.
///
/// Problems with single files are not errors: they are listed in [`crate::IndexingReport`], and the other files
/// are indexed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// SQLite could not open, read or write the index file.
    #[error("the index `{path}` cannot be used: {source}")]
    Sqlite {
        /// Path of the index file.
        path: PathBuf,
        /// The error of SQLite.
        source: rusqlite::Error,
    },
    /// The file is not an index, or is an index of another format version.
    #[error("`{path}` is not an index that this program reads: {reason}; the file was not changed")]
    NotAnIndex {
        /// Path of the file.
        path: PathBuf,
        /// Description of what the file holds instead.
        reason: String,
    },
    /// The index file is corrupt.
    #[error("the index `{path}` is damaged: {detail}; hint: delete the file and add the folders again")]
    Corrupt {
        /// Path of the index file.
        path: PathBuf,
        /// Description of the inconsistency.
        detail: String,
    },
    /// The path to add does not exist or cannot be accessed.
    #[error("`{path}` cannot be added: {source}")]
    PathAccess {
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A folder or file that was added before does not exist any more, or the folder has no files any more, as a mount
    /// point without its disk. Its files stay in the index.
    #[error(
        "`{path}` is gone or has no files any more, and {file_count} of its files are in the index; hint: `remove_path` \
         removes them, and so does `add_path(…).remove_if_missing()`"
    )]
    MissingRoot {
        /// The path that was added before.
        path: PathBuf,
        /// Number of files that the index has from it.
        file_count: usize,
    },
    /// The index can only be searched, because the file is write-protected or was opened with `read_only`.
    #[error("the index `{path}` is read-only")]
    ReadOnly {
        /// Path of the index file.
        path: PathBuf,
    },
    /// The index was built with a different embedder.
    #[error(
        "the index `{path}` was built with the embedder `{index_embedder}`, not `{requested_embedder}`; hint: open it with `{index_embedder}` or \
         `without_vectors`, or create another index"
    )]
    EmbedderMismatch {
        /// Path of the index file.
        path: PathBuf,
        /// Name of the embedder that the index was built with.
        index_embedder: String,
        /// Name of the embedder that the caller passed.
        requested_embedder: String,
    },
    /// The index has no store, file or batch of this id.
    #[error("there is no {object} `{id}`")]
    NotFound {
        /// Kind of the missing object, such as `vector store`.
        object: &'static str,
        /// Id of the missing object.
        id: String,
    },
    /// An argument is outside its permitted range.
    #[error("{0}")]
    InvalidArgument(String),
    /// The embedder failed.
    #[error("{0}")]
    Embed(#[from] crate::EmbedError),
}
