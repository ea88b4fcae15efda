//! Vectors of texts, by OpenAI's protocol.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::model::{ModelError, ModelErrorKind, RetryAdvice};

use crate::endpoint::Endpoint;
use crate::error::Fault;
use crate::exchange::{Question, ask_plain};
use crate::http::Replay;

/// How often a request is sent at most.
const MOST_TRIES: u32 = 5;
/// How long is waited after the first failure where the provider does not say; twice as long after each.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// A provider that asks for more patience than this is given up.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// A model that makes vectors of texts.
#[derive(Clone, Debug)]
pub struct EmbeddingsModel {
    endpoint: Arc<Endpoint>,
    model: String,
    dimensions: Option<usize>,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    input: &'a [&'a str],
    encoding_format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<usize>,
}

#[derive(Deserialize)]
struct Answered {
    data: Vec<One>,
    #[serde(default)]
    usage: Option<Cost>,
}

#[derive(Deserialize)]
struct One {
    #[serde(default)]
    index: Option<usize>,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct Cost {
    total_tokens: u64,
}

impl EmbeddingsModel {
    pub(crate) fn new(endpoint: Arc<Endpoint>, model: &str) -> Self {
        Self { endpoint, model: model.to_owned(), dimensions: None }
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.model
    }

    /// Asks for vectors of so many numbers. Not every model can; those that cannot say so.
    #[must_use]
    pub fn dimensions(mut self, count: usize) -> Self {
        self.dimensions = Some(count);
        self
    }

    /// One vector for each text, in order. It is one request, which is sent again where that may help, within limits.
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
            let wait = match error.advice() {
                RetryAdvice::Never => return Err(error),
                // A server that answers in another form does so again.
                _ if error.kind() == ModelErrorKind::Unreadable => return Err(error),
                RetryAdvice::Safe => FIRST_WAIT * 2u32.pow(tries - 1),
                RetryAdvice::After(wait) => wait,
            };
            if tries >= MOST_TRIES || wait > LONGEST_WAIT {
                return Err(error);
            }
            tokio::time::sleep(wait).await;
            tries += 1;
        }
    }

    async fn try_embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelError> {
        let body =
            Body { model: &self.model, input: texts, encoding_format: "float", dimensions: self.dimensions };
        let question = Question {
            path: "/embeddings",
            model: &self.model,
            body: crate::written(&body)?,
            replay: Replay::Safe,
            is_streamed: false,
        };
        ask_plain(&self.endpoint, question, |body| read(body, texts.len())).await
    }
}

/// The vectors of an answer, in the order of the texts, whatever order they came in.
fn read(body: &[u8], wanted: usize) -> Result<(Vec<Vec<f32>>, Option<u64>), Fault> {
    let answered: Answered =
        serde_json::from_slice(body).map_err(|error| Fault::Unreadable(error.to_string()))?;
    let came = answered.data.len();
    let mut vectors = vec![Vec::new(); wanted];
    for (at, one) in answered.data.into_iter().enumerate() {
        let index = one.index.unwrap_or(at);
        match vectors.get_mut(index) {
            Some(place) if place.is_empty() => *place = one.embedding,
            _ => {
                return Err(Fault::Unreadable(format!(
                    "it has a vector for text {index} that nobody asked for"
                )));
            }
        }
    }
    if vectors.iter().any(Vec::is_empty) {
        return Err(Fault::Unreadable(format!("{wanted} vectors were asked for, and {came} came")));
    }
    Ok((vectors, answered.usage.map(|usage| usage.total_tokens)))
}
