//! The Responses API.

use windlass::model::{ModelError, ToolDefinition, ToolKind};

use super::responses_decode::ResponsesDecoder;
use super::responses_encode::{ResponsesRequestBody, is_own_response};
use crate::media_support::{ALL_FORMS, MediaSupport};
use crate::protocol::{EncodedRequest, ModelProtocol, ProtocolRequest, ResponseDecoder};
use crate::provider_model::ProviderModel;
use crate::setting_support::check_settings;
use crate::wire::{RequestBase, WireProtocol, encode_body, is_messages_tool_type};

/// The settings of the Responses API beside the common ones.
const RESPONSES_SETTINGS: [&str; 16] = [
    "max_tool_calls",
    "reasoning_effort",
    "reasoning_summary",
    "verbosity",
    "top_logprobs",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "truncation",
    "store",
    "include",
    "previous_response_id",
    "conversation",
    "tool_search",
];

/// A model with the Responses API.
pub type ResponsesModel = ProviderModel<ResponsesProtocol>;

/// The party that stores the conversation. Settings of a run can name a previous response or a conversation too
/// ([`ModelSettings`](windlass::model::ModelSettings)); they take precedence.
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

/// The Responses API.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ResponsesProtocol {
    /// The party that stores the conversation.
    pub conversation_state: ConversationState,
}

impl ResponsesModel {
    /// Sets the party that stores the conversation.
    #[must_use]
    pub fn conversation_state(mut self, state: ConversationState) -> Self {
        self.protocol.conversation_state = state;
        self
    }
}

/// The forms of images and files that the API accepts.
const RESPONSES_MEDIA: MediaSupport =
    MediaSupport { api: "the Responses API", images: ALL_FORMS, files: ALL_FORMS };

impl ModelProtocol for ResponsesProtocol {
    fn name(&self) -> &str {
        "responses"
    }

    fn provider_name(&self) -> &str {
        "openai"
    }

    fn encode(&self, request: &ProtocolRequest<'_>) -> Result<EncodedRequest, ModelError> {
        check_settings("the Responses API", request.request.settings, &RESPONSES_SETTINGS, &[])?;
        RESPONSES_MEDIA.check(&request.request)?;
        let base = RequestBase::new(request, WireProtocol::Responses);
        let body = ResponsesRequestBody::new(base, &self.conversation_state);
        let encoded = EncodedRequest::new("/responses", encode_body(&body)?);
        Ok(encoded.with_replay_safety(body.replay_safety()))
    }

    fn decoder<'a>(&'a self, request: ProtocolRequest<'a>) -> Box<dyn ResponseDecoder + 'a> {
        Box::new(ResponsesDecoder::new(RequestBase::new(&request, WireProtocol::Responses)))
    }

    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        match &tool.kind {
            ToolKind::Hosted(definition) | ToolKind::ProviderDefined(definition)
                if is_messages_tool_type(definition) =>
            {
                Err("it is a tool of the Messages API".to_owned())
            }
            // Only the provider knows which tools it can run.
            _ => Ok(()),
        }
    }

    fn has_stored_conversation(&self, last_response_id: Option<&str>) -> bool {
        match &self.conversation_state {
            ConversationState::ClientManaged => false,
            ConversationState::PreviousResponse => last_response_id.is_some_and(is_own_response),
            ConversationState::Conversation(_) => true,
        }
    }
}
