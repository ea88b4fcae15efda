//! Models with the Responses API.

use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse, ToolDefinition};

use super::responses_encode::ResponsesRequestBody;
use crate::StreamingMode;
use crate::client::ModelClient;

/// A model with the Responses API.
#[derive(Clone, Debug)]
pub struct ResponsesModel {
    client: ModelClient,
    conversation_state: ConversationState,
}

/// The party that stores the conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConversationState {
    /// The client: every request contains the whole conversation.
    #[default]
    ClientManaged,
    /// The provider, by the id of its last response: only new items are sent. The provider must store its
    /// responses.
    PreviousResponse,
    /// The provider, in the conversation with this id: only new items are sent.
    Conversation(String),
}

impl ResponsesModel {
    pub(super) fn new(client: ModelClient) -> Self {
        Self { client, conversation_state: ConversationState::default() }
    }

    /// Sets the party that stores the conversation.
    #[must_use]
    pub fn conversation_state(mut self, state: ConversationState) -> Self {
        self.conversation_state = state;
        self
    }

    /// Sets when responses are streamed.
    #[must_use]
    pub fn streaming(mut self, streaming: StreamingMode) -> Self {
        self.client.streaming = streaming;
        self
    }
}

impl Model for ResponsesModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let base = self.client.request_base(request, deltas);
        self.client.send(ResponsesRequestBody::new(base, &self.conversation_state), deltas).await
    }

    fn check_tool_support(&self, _: &ToolDefinition) -> Result<(), String> {
        // Only the provider knows which hosted tools it can run.
        Ok(())
    }
}
