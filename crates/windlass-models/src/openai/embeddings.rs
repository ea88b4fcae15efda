//! Embeddings with OpenAI's API.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::model::{ModelError, RetryAdvice};

use crate::endpoint::ProviderEndpoint;
use crate::exchange::{ProviderRequest, request_json};
use crate::protocol::{EncodedRequest, ResponseError};
use crate::wire::encode_body;

/// Maximum number of attempts for a request.
const MAX_ATTEMPTS: u32 = 5;
/// Delay after the first failure if the provider does not name one; it doubles with each attempt.
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
/// Maximum delay; a provider that asks for a longer one fails the request.
const MAX_BACKOFF: Duration = Duration::from_secs(120);

/// A model that returns embedding vectors for texts.
#[derive(Clone, Debug)]
pub struct EmbeddingsModel {
    endpoint: Arc<ProviderEndpoint>,
    model: String,
    dimensions: Option<usize>,
}

#[derive(Serialize)]
struct EmbeddingsRequestBody<'a> {
    model: &'a str,
    input: &'a [&'a str],
    encoding_format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<usize>,
}

#[derive(Deserialize)]
struct EmbeddingsResponse {
    data: Vec<EmbeddingEntry>,
    #[serde(default)]
    usage: Option<EmbeddingsUsage>,
}

#[derive(Deserialize)]
struct EmbeddingEntry {
    #[serde(default)]
    index: Option<usize>,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct EmbeddingsUsage {
    total_tokens: u64,
}

impl EmbeddingsModel {
    pub(super) fn new(endpoint: ProviderEndpoint, model: &str) -> Self {
        Self { endpoint: Arc::new(endpoint), model: model.to_owned(), dimensions: None }
    }

    /// Returns the model's name.
    pub fn name(&self) -> &str {
        &self.model
    }

    /// Sets the number of dimensions. A model that does not support this returns an error.
    #[must_use]
    pub fn dimensions(mut self, count: usize) -> Self {
        self.dimensions = Some(count);
        self
    }

    /// Returns one vector for each text, in order. All texts go in one request, which is retried if that is safe.
    ///
    /// # Errors
    ///
    /// Returns the last error if the request fails five times or must not be retried.
    pub async fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelError> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let mut tries = 1;
        loop {
            let error = match self.try_embed(texts).await {
                Ok(vectors) => return Ok(vectors),
                Err(error) => error,
            };
            let wait = match error.retry_advice() {
                RetryAdvice::Never => return Err(error),
                RetryAdvice::Safe => INITIAL_BACKOFF * 2u32.pow(tries - 1),
                RetryAdvice::After(wait) => wait,
            };
            if tries >= MAX_ATTEMPTS || wait > MAX_BACKOFF {
                return Err(error);
            }
            tokio::time::sleep(wait).await;
            tries += 1;
        }
    }

    async fn try_embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelError> {
        let body = EmbeddingsRequestBody {
            model: &self.model,
            input: texts,
            encoding_format: "float",
            dimensions: self.dimensions,
        };
        let request = ProviderRequest {
            model: &self.model,
            encoded: EncodedRequest::new("/embeddings", encode_body(&body)?),
            is_streamed: false,
            call_id_suffix: None,
        };
        request_json(&self.endpoint, request, |body| decode_vectors(body, texts.len())).await
    }
}

/// Decodes the vectors of a response into the order of the texts.
fn decode_vectors(body: &[u8], wanted: usize) -> Result<(Vec<Vec<f32>>, Option<u64>), ResponseError> {
    let response: EmbeddingsResponse =
        serde_json::from_slice(body).map_err(|error| ResponseError::invalid_json(&error))?;
    let count = response.data.len();
    let mut vectors = vec![Vec::new(); wanted];
    for (position, entry) in response.data.into_iter().enumerate() {
        let index = entry.index.unwrap_or(position);
        match vectors.get_mut(index) {
            Some(vector) if vector.is_empty() => *vector = entry.embedding,
            _ => {
                let why = format!("it has a vector for text {index} that nobody asked for");
                return Err(ResponseError::InvalidResponse(why));
            }
        }
    }
    if vectors.iter().any(Vec::is_empty) {
        let why = format!("{wanted} vectors were asked for, and {count} came");
        return Err(ResponseError::InvalidResponse(why));
    }
    Ok((vectors, response.usage.map(|usage| usage.total_tokens)))
}
