//! File search for agents: the tool that a provider runs on its own stores ([`FileSearch`]), and the same tool on local
//! files, with no service and no key ([`Index`]).
//!
//! An index is one SQLite file. It holds the text of files cut into chunks, lists of where each word occurs, and a
//! vector for each chunk. A search puts together what the words say (BM25, with feedback from the best answers) and
//! what the vectors say.
//!
//! Nothing is loaded before it is needed: opening reads a page, the first search reads a few bytes for each chunk, and
//! vectors are read when a search first uses them.

mod chunk;
mod embed;
mod error;
mod extract;
mod filter;
mod hosted;
mod index;
#[cfg(feature = "rest")]
pub mod rest;
mod text;
mod tool;

pub use chunk::{Chunking, Place};
#[cfg(feature = "provider")]
pub use embed::ProviderEmbedder;
#[cfg(feature = "model")]
pub use embed::SentenceModel;
pub use embed::{EmbedError, Embedder, Purpose, WordTable};
pub use error::SearchError;
pub use extract::Kind;
pub use filter::{Attribute, Attributes, Comparison, Compound, Filter, Membership};
pub use hosted::FileSearch;
pub use index::{
    Add, Document, FileInfo, FileStatus, Found, Hit, Index, IndexOptions, Limits, NewStore, Problem,
    Progress, Ranking, Report, Search, Signals, StoreInfo, Upload, Weights,
};
pub use tool::SearchTool;

/// The samples of the guide compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/file-search.md")]
mod guide {}
