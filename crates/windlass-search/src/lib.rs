//! File search for agents: the provider's hosted file search tool ([`HostedFileSearch`]), and the same tool over
//! local files, without a service or an API key ([`Index`]).
//!
//! An index is one SQLite file. It holds the text of files split into chunks, an inverted index (one posting
//! list per term and segment) and an embedding per chunk. A search fuses the scores of BM25, of BM25 with
//! pseudo-relevance feedback, and of the nearest neighbours of the query's embedding.
//!
//! Data is loaded lazily: opening an index reads one page, the first search reads a few bytes per chunk, and
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

pub use chunk::{ChunkLocation, ChunkingOptions};
#[cfg(feature = "provider")]
pub use embed::ProviderEmbedder;
#[cfg(feature = "model")]
pub use embed::SentenceModel;
pub use embed::{EmbedError, Embedder, EmbeddingPurpose, WordVectorTable};
pub use error::SearchError;
pub use extract::DocumentFormat;
pub use filter::{
    AttributeComparison, AttributeFilter, AttributeMembership, AttributeValue, CompoundFilter, FileAttributes,
};
pub use hosted::HostedFileSearch;
pub use index::{
    HybridWeights, Index, IndexDocument, IndexOptions, IndexUpdate, IndexedFileStatus, IndexingLimits,
    IndexingProblem, IndexingProgress, IndexingReport, NewVectorStore, RankingOptions, SearchHit,
    SearchRequest, SearchResults, SearchSignals, UploadedFile, VectorStoreFile, VectorStoreInfo,
};
pub use tool::SearchTool;
