//! Models by the Responses API.

use std::sync::Arc;

use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest, OfferedTool};

use super::responses_read::Reading;
use super::responses_write::Body;
use crate::Streaming;
use crate::endpoint::Endpoint;
use crate::exchange::{Question, ask};
use crate::http::Replay;

/// A model by the Responses API.
#[derive(Clone, Debug)]
pub struct ResponsesModel {
    endpoint: Arc<Endpoint>,
    model: String,
    state: ServerState,
    streaming: Streaming,
}

/// Who holds the conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ServerState {
    /// This side: every request has all of it.
    #[default]
    Ours,
    /// The provider, by the id of its last answer: only what is new is sent. It must store its answers.
    PreviousResponse,
    /// The provider, in the conversation of this id: only what is new is sent.
    Conversation(String),
}

impl ResponsesModel {
    pub(crate) fn new(endpoint: Arc<Endpoint>, model: &str) -> Self {
        Self {
            endpoint,
            model: model.to_owned(),
            state: ServerState::default(),
            streaming: Streaming::default(),
        }
    }

    /// Who holds the conversation.
    #[must_use]
    pub fn server_state(mut self, state: ServerState) -> Self {
        self.state = state;
        self
    }

    /// When answers are streamed.
    #[must_use]
    pub fn streaming(mut self, streaming: Streaming) -> Self {
        self.streaming = streaming;
        self
    }
}

impl Model for ResponsesModel {
    async fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> Result<Answer, ModelError> {
        let is_streamed = self.streaming.is_on(deltas);
        let body = Body::new(request, &self.model, &self.state, is_streamed);
        let replay = if body.moves_state() { Replay::Unsafe } else { Replay::Safe };
        let body = crate::written(&body)?;
        let question = Question { path: "/responses", model: &self.model, body, replay, is_streamed };
        ask(&self.endpoint, &Reading { request }, question, deltas).await
    }

    fn supports(&self, _: &OfferedTool) -> Result<(), String> {
        // What its provider can run, only the provider knows.
        Ok(())
    }
}
