//! Why an index could not do what it was asked.

use std::path::PathBuf;

/// Why an index could not be opened, changed or searched. What is wrong with single files is not here: it stands in
/// the report of the work, and the rest is done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// The index's file.
    #[error("the index `{path}` cannot be used: {source}")]
    Sqlite {
        /// Which file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// The file is something else.
    #[error("`{path}` is not an index of this kind: {why}; nothing in it was changed")]
    NotAnIndex {
        /// Which file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// What was read is not what was written.
    #[error("the index `{path}` is damaged: {what}; hint: delete the file and add the folders again")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// The path that was to be added is not there, or may not be looked at.
    #[error("`{path}` cannot be added: {source}")]
    Path {
        /// Which path.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The index has vectors of another embedder.
    #[error(
        "the index `{path}` has vectors of `{kept}`, and `{given}` was given; hint: open it with that embedder or \
         `without_vectors`, or make another index"
    )]
    OtherEmbedder {
        /// Which file.
        path: PathBuf,
        /// Whose vectors it has.
        kept: String,
        /// Whose were to be used.
        given: String,
    },
    /// There is no such thing in the index.
    #[error("there is no {what} `{id}`")]
    Missing {
        /// What was looked for.
        what: &'static str,
        /// Its id.
        id: String,
    },
    /// A value that is out of its range.
    #[error("{0}")]
    Invalid(String),
    /// Vectors could not be made.
    #[error("{0}")]
    Embed(#[from] crate::EmbedError),
}
