//! Models with the Chat Completions API, which most compatible servers implement.

use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};

use super::chat_encode::{ChatRequestBody, TokenLimitField};
use crate::StreamingMode;
use crate::client::ModelClient;

/// A model with the Chat Completions API.
#[derive(Clone, Debug)]
pub struct ChatModel {
    client: ModelClient,
}

impl ChatModel {
    pub(super) fn new(client: ModelClient) -> Self {
        Self { client }
    }

    /// Sets when responses are streamed.
    #[must_use]
    pub fn streaming(mut self, streaming: StreamingMode) -> Self {
        self.client.streaming = streaming;
        self
    }
}

impl Model for ChatModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let base = self.client.request_base(request, deltas);
        let token_limit = TokenLimitField::for_host(self.client.endpoint.host());
        self.client.send(ChatRequestBody { base, token_limit }, deltas).await
    }
}
