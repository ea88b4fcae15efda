//! The Chat Completions API, which most compatible servers implement.

use windlass::model::{ModelError, ToolDefinition, ToolKind};

use super::chat_decode::ChatDecoder;
use super::chat_encode::{ChatRequestBody, TokenLimitField};
use crate::protocol::{EncodedRequest, ModelProtocol, ProtocolRequest, ResponseDecoder};
use crate::provider_model::ProviderModel;
use crate::wire::{RequestBase, WireProtocol, encode_body};

/// A model with the Chat Completions API.
pub type ChatModel = ProviderModel<ChatProtocol>;

/// The Chat Completions API.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ChatProtocol {}

impl ModelProtocol for ChatProtocol {
    fn name(&self) -> &str {
        "chat"
    }

    fn encode(&self, request: &ProtocolRequest<'_>) -> Result<EncodedRequest, ModelError> {
        let base = RequestBase::new(request, WireProtocol::Chat);
        let body = ChatRequestBody { base, token_limit: TokenLimitField::for_host(request.host) };
        Ok(EncodedRequest::new("/chat/completions", encode_body(&body)?))
    }

    fn decoder<'a>(&'a self, request: ProtocolRequest<'a>) -> Box<dyn ResponseDecoder + 'a> {
        Box::new(ChatDecoder::new(RequestBase::new(&request, WireProtocol::Chat)))
    }

    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        match &tool.kind {
            ToolKind::Function => Ok(()),
            ToolKind::ProviderDefined(definition) if definition["type"] == "custom" => Ok(()),
            ToolKind::Computer(_) => Err("Chat Completions has no computer tool".to_owned()),
            ToolKind::Hosted(_) | ToolKind::ProviderDefined(_) => {
                Err("Chat Completions has only functions and custom tools".to_owned())
            }
        }
    }
}
