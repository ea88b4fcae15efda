//! Text embeddings: by the built-in word vectors, by a local sentence model, or by a provider.

#[cfg(feature = "model")]
mod bert;
#[cfg(feature = "provider")]
mod provider;
mod word_vectors;

#[cfg(feature = "model")]
pub use bert::SentenceModel;
#[cfg(feature = "provider")]
pub use provider::ProviderEmbedder;
pub use word_vectors::WordVectorTable;

use std::fmt;

/// A text embedding model: texts of similar meaning get vectors of similar direction.
///
/// The index calls it from a thread that may block. Vectors need not be normalised. A zero vector means that the
/// embedder cannot represent the text; only BM25 then ranks it.
pub trait Embedder: Send + Sync {
    /// Returns a name that changes whenever the vectors change, such as `all-MiniLM-L6-v2`. An index stores the
    /// name, and refuses to open with an embedder of another name.
    fn name(&self) -> &str;

    /// Returns the number of dimensions of a vector.
    fn dimensions(&self) -> usize;

    /// Returns the default weight of the vectors in score fusion, 0 to 1; BM25 gets the rest. 0.5 suits a
    /// sentence model.
    fn fusion_weight(&self) -> f32 {
        0.5
    }

    /// Returns the number of texts that a call of `embed` should have. The index commits the vectors of each call, so a
    /// slow embedder should choose a small number.
    fn batch_size(&self) -> usize {
        128
    }

    /// Returns one vector per text, in order.
    ///
    /// # Errors
    ///
    /// Returns an error if the model or its provider fails.
    fn embed(&self, texts: &[&str], of: EmbeddingPurpose) -> Result<Vec<Vec<f32>>, EmbedError>;
}

/// The role of a text in retrieval; some models embed queries and documents differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingPurpose {
    /// A chunk of a file.
    Document,
    /// A query.
    Query,
}

/// The error of an embedder.
#[derive(Debug, thiserror::Error)]
#[error("the embedder `{embedder}` failed: {reason}")]
pub struct EmbedError {
    /// Name of the embedder.
    pub embedder: String,
    /// Description of the failure.
    pub reason: String,
}

impl EmbedError {
    /// Creates an error of the named embedder.
    pub fn new(embedder: impl Into<String>, why: impl fmt::Display) -> Self {
        Self { embedder: embedder.into(), reason: why.to_string() }
    }
}

/// A vector quantised to one byte per dimension; multiplied by `scale` it has length 1.
#[derive(Clone, Debug)]
pub(crate) struct QuantisedVector {
    pub(crate) scale: f32,
    pub(crate) values: Vec<i8>,
}

/// Normalises and quantises a vector. A zero vector stays zero.
pub(crate) fn quantise(vector: &[f32]) -> QuantisedVector {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    let most = vector.iter().fold(0f32, |most, value| most.max(value.abs()));
    if length == 0.0 || !length.is_finite() || most == 0.0 {
        return QuantisedVector { scale: 0.0, values: vec![0; vector.len()] };
    }
    let values = vector.iter().map(|value| (value / most * 127.0).round() as i8).collect();
    QuantisedVector { scale: most / 127.0 / length, values }
}

/// Returns the dot product of two quantised vectors.
pub(crate) fn dot_product(left: &[i8], right: &[i8]) -> i32 {
    let mut sum = 0;
    // The compiler vectorises blocks of a fixed size.
    let (lefts, left_rest) = left.as_chunks::<32>();
    let (rights, right_rest) = right.as_chunks::<32>();
    for (left, right) in lefts.iter().zip(rights) {
        let mut block = 0;
        for at in 0..32 {
            block += i32::from(left[at]) * i32::from(right[at]);
        }
        sum += block;
    }
    for (left, right) in left_rest.iter().zip(right_rest) {
        sum += i32::from(*left) * i32::from(*right);
    }
    sum
}
