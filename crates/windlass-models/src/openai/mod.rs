//! OpenAI, and servers compatible with its APIs.

mod chat;
mod chat_decode;
mod chat_dialect;
mod chat_encode;
mod embeddings;
mod provider_calls;
mod responses;
mod responses_decode;
mod responses_encode;
mod usage;

use crate::api_key::ApiKey;
use crate::endpoint::{ApiKeyHeader, EndpointConfig, endpoint_builder_methods, without_blank};
use crate::error::SetupError;
use crate::provider_model::ProviderModel;

#[cfg(test)]
pub(crate) use {chat_decode::ChatDecoder, responses_decode::ResponsesDecoder};

pub use chat::{ChatModel, ChatProtocol};
pub use chat_dialect::{
    ChatCachePoints, ChatCallIds, ChatDialect, ChatOutputFormat, StreamUsageRequest, TokenLimitField,
};
pub use embeddings::EmbeddingsModel;
pub use responses::{ConversationState, ResponsesModel, ResponsesProtocol};

/// OpenAI's base URL.
const OPENAI_BASE_URL: &str = "https://api.openai.com/v1";

/// OpenAI or a compatible server; the builder of [`ResponsesModel`], [`ChatModel`] and [`EmbeddingsModel`].
///
/// ```
/// use windlass_models::OpenAi;
///
/// # fn main() -> Result<(), windlass_models::SetupError> {
/// let vllm = OpenAi::at("http://localhost:8000/v1").chat("qwen3")?;
/// let openai = OpenAi::new("sk-…").organisation("org-1").responses("gpt-5.2")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct OpenAi {
    config: EndpointConfig,
}

impl OpenAi {
    /// Creates a client of OpenAI with this key.
    pub fn new(key: impl Into<ApiKey>) -> Self {
        Self::openai_at(OPENAI_BASE_URL).key(key)
    }

    /// Creates a client of a compatible server at this base URL, without a key.
    pub fn at(base_url: &str) -> Self {
        Self::named("the model server", base_url)
    }

    /// Creates a client from the environment: `OPENAI_API_KEY`, `OPENAI_BASE_URL`, `OPENAI_ORG_ID` and
    /// `OPENAI_PROJECT_ID`.
    ///
    /// # Errors
    ///
    /// Returns [`SetupError::MissingKey`] if neither a key nor a base URL is set.
    pub fn from_env() -> Result<Self, SetupError> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// As [`from_env`](Self::from_env), with the variables that `var` returns.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, SetupError> {
        let var = without_blank(var);
        let mut openai = Self { config: Self::openai_at(OPENAI_BASE_URL).config.read_vars(&var)? };
        if let Some(organisation) = var("OPENAI_ORG_ID").or_else(|| var("OPENAI_ORGANIZATION")) {
            openai = openai.organisation(&organisation);
        }
        if let Some(project) = var("OPENAI_PROJECT_ID").or_else(|| var("OPENAI_PROJECT")) {
            openai = openai.project(&project);
        }
        Ok(openai)
    }

    fn openai_at(base_url: &str) -> Self {
        Self::named("openai", base_url).with_variables("OPENAI_API_KEY", "OPENAI_BASE_URL")
    }

    /// Creates a client of a server; errors call it `provider`.
    pub(crate) fn named(provider: &str, base_url: &str) -> Self {
        Self { config: EndpointConfig::new(provider, base_url, ApiKeyHeader::Bearer) }
    }

    pub(crate) fn into_config(self) -> EndpointConfig {
        self.config
    }

    pub(crate) fn with_variables(self, key: &'static str, base_url: &'static str) -> Self {
        Self { config: self.config.with_variables(key, base_url) }
    }

    endpoint_builder_methods!();

    /// Sets the base URL, to which paths such as `/responses` are appended.
    #[must_use]
    pub fn base_url(mut self, url: &str) -> Self {
        self.config.base_url = url.to_owned();
        self
    }

    /// Sets the organisation that is billed.
    #[must_use]
    pub fn organisation(self, id: &str) -> Self {
        self.header("openai-organization", id)
    }

    /// Sets the project that is billed.
    #[must_use]
    pub fn project(self, id: &str) -> Self {
        self.header("openai-project", id)
    }

    /// Creates a model with the Responses API.
    pub fn responses(&self, model: &str) -> Result<ResponsesModel, SetupError> {
        Ok(ProviderModel::new(self.config.build()?, ResponsesProtocol::default(), model))
    }

    /// Creates a model with the Chat Completions API.
    pub fn chat(&self, model: &str) -> Result<ChatModel, SetupError> {
        Ok(ProviderModel::new(self.config.build()?, ChatProtocol::default(), model))
    }

    /// Creates an embeddings model.
    pub fn embeddings(&self, model: &str) -> Result<EmbeddingsModel, SetupError> {
        Ok(EmbeddingsModel::new(self.config.build()?, model))
    }
}
