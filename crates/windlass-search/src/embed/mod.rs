//! Vectors of texts: a table that comes with the crate, a model of your own, or a provider's.

#[cfg(feature = "model")]
mod bert;
#[cfg(feature = "provider")]
mod provider;
mod words;

#[cfg(feature = "model")]
pub use bert::SentenceModel;
#[cfg(feature = "provider")]
pub use provider::ProviderEmbedder;
pub use words::WordTable;

use std::fmt;

/// Makes vectors of texts, so that what means the same is near.
///
/// It is asked from a thread that may block. Its vectors need not be of length one; only their directions count. A
/// text that it cannot say anything about gets a vector of zeros, and then only words decide.
pub trait Embedder: Send + Sync {
    /// A name that changes when the vectors do, such as `all-MiniLM-L6-v2`. Vectors of another name are never
    /// compared: an index that was made with one embedder says so when it is opened with another.
    fn name(&self) -> &str;

    /// How many numbers a vector has.
    fn dimensions(&self) -> usize;

    /// How much its vectors count beside words unless a search says otherwise, 0 to 1. A half suits a model.
    fn weight(&self) -> f32 {
        0.5
    }

    /// One vector for each text, in order.
    fn embed(&self, texts: &[&str], of: Purpose) -> Result<Vec<Vec<f32>>, EmbedError>;
}

/// What a text is. Some models are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A piece of a file.
    Document,
    /// A question.
    Query,
}

/// Why vectors could not be made.
#[derive(Debug, thiserror::Error)]
#[error("vectors cannot be made by `{embedder}`: {why}")]
pub struct EmbedError {
    /// Whose failure it is.
    pub embedder: String,
    /// What went wrong.
    pub why: String,
}

impl EmbedError {
    /// A failure of an embedder.
    pub fn new(embedder: impl Into<String>, why: impl fmt::Display) -> Self {
        Self { embedder: embedder.into(), why: why.to_string() }
    }
}

/// A vector in a byte for each number, of length one when it is scaled.
#[derive(Clone, Debug)]
pub(crate) struct Quantised {
    pub(crate) scale: f32,
    pub(crate) values: Vec<i8>,
}

/// Makes a vector small. One of zeros stays one.
pub(crate) fn quantise(vector: &[f32]) -> Quantised {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    let most = vector.iter().fold(0f32, |most, value| most.max(value.abs()));
    if length == 0.0 || !length.is_finite() || most == 0.0 {
        return Quantised { scale: 0.0, values: vec![0; vector.len()] };
    }
    let values = vector.iter().map(|value| (value / most * 127.0).round() as i8).collect();
    Quantised { scale: most / 127.0 / length, values }
}

/// The product of two vectors of bytes.
pub(crate) fn dot(left: &[i8], right: &[i8]) -> i32 {
    let mut sum = 0;
    // Blocks of a fixed size are what compilers turn into wide instructions.
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
