//! The Chat Completions API, which most compatible servers implement.

use windlass::model::{ModelError, ToolDefinition, ToolKind};

use super::chat_decode::ChatDecoder;
use super::chat_dialect::ChatDialect;
use super::chat_encode::ChatRequestBody;
use crate::protocol::{EncodedRequest, ModelProtocol, ProtocolRequest, ResponseDecoder};
use crate::provider_model::ProviderModel;
use crate::setting_support::check_settings;
use crate::wire::{RequestBase, WireProtocol, encode_body};

/// A model with the Chat Completions API.
pub type ChatModel = ProviderModel<ChatProtocol>;

/// The Chat Completions API.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ChatProtocol {
    /// The points in which the provider differs.
    pub dialect: ChatDialect,
}

impl ChatProtocol {
    /// Creates the protocol in a dialect.
    pub fn with_dialect(dialect: ChatDialect) -> Self {
        Self { dialect }
    }
}

/// The settings of Chat Completions beside the common ones.
const CHAT_SETTINGS: [&str; 13] = [
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "stop",
    "reasoning_effort",
    "verbosity",
    "top_logprobs",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "store",
];

impl ModelProtocol for ChatProtocol {
    fn name(&self) -> &str {
        "chat"
    }

    fn provider_name(&self) -> &str {
        "openai"
    }

    fn encode(&self, request: &ProtocolRequest<'_>) -> Result<EncodedRequest, ModelError> {
        let ChatDialect { token_limit, unsupported_settings, .. } = self.dialect;
        let api = if unsupported_settings.is_empty() { "Chat Completions" } else { "the provider" };
        check_settings(api, request.request.settings, &CHAT_SETTINGS, unsupported_settings)?;
        self.dialect.media_support().check(&request.request)?;
        let base = RequestBase::new(request, WireProtocol::Chat);
        let token_limit = token_limit.name_for(request.host);
        let body = ChatRequestBody { base, token_limit, dialect: self.dialect };
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
