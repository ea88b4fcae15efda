//! Models by the Chat Completions API, which most servers speak.

use std::sync::Arc;

use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest};

use super::chat_read::Reading;
use super::chat_write::Body;
use crate::Streaming;
use crate::endpoint::Endpoint;
use crate::exchange::{Question, ask};
use crate::http::Replay;

/// A model by the Chat Completions API.
#[derive(Clone, Debug)]
pub struct ChatModel {
    endpoint: Arc<Endpoint>,
    model: String,
    streaming: Streaming,
}

impl ChatModel {
    pub(crate) fn new(endpoint: Arc<Endpoint>, model: &str) -> Self {
        Self { endpoint, model: model.to_owned(), streaming: Streaming::default() }
    }

    /// When answers are streamed.
    #[must_use]
    pub fn streaming(mut self, streaming: Streaming) -> Self {
        self.streaming = streaming;
        self
    }
}

impl Model for ChatModel {
    async fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> Result<Answer, ModelError> {
        let is_streamed = self.streaming.is_on(deltas);
        // OpenAI's own field for the limit is one that other servers do not know.
        let is_openai = self.endpoint.host().ends_with("openai.com");
        let body = crate::written(&Body { request, model: &self.model, is_streamed, is_openai })?;
        let question = Question {
            path: "/chat/completions",
            model: &self.model,
            body,
            replay: Replay::Safe,
            is_streamed,
        };
        ask(&self.endpoint, &Reading { request }, question, deltas).await
    }
}
