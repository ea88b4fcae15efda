//! OpenAI and every server that speaks its protocols.

mod chat;
mod chat_read;
mod chat_write;
mod embeddings;
mod responses;
mod responses_read;
mod responses_write;

use std::sync::Arc;

#[cfg(test)]
use windlass::model::ModelRequest;

use crate::cassette::Cassette;
use crate::endpoint::{EndpointConfig, KeyHeader, Timeouts};
use crate::error::SetupError;
use crate::limit::RateLimit;
use crate::secret::ApiKey;

pub use chat::ChatModel;
pub use embeddings::EmbeddingsModel;
pub use responses::{ResponsesModel, ServerState};

/// The address of OpenAI.
const OPENAI: &str = "https://api.openai.com/v1";

/// OpenAI, or a server that speaks its protocols. It is the start of a [`ResponsesModel`] or a [`ChatModel`].
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
    /// OpenAI with this key.
    pub fn new(key: impl Into<ApiKey>) -> Self {
        Self::official(OPENAI).key(key)
    }

    /// A server at this address, with no key. Many want none.
    pub fn at(base_url: &str) -> Self {
        Self::named("the model server", base_url)
    }

    /// OpenAI as the environment says: `OPENAI_API_KEY`, `OPENAI_BASE_URL`, `OPENAI_ORG_ID` and
    /// `OPENAI_PROJECT_ID`. Without an address of its own a key must be there.
    pub fn from_env() -> Result<Self, SetupError> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// The same, from variables that are looked up with `var`.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, SetupError> {
        let var = |name: &str| var(name).filter(|text| !text.trim().is_empty());
        let address = var("OPENAI_BASE_URL");
        let mut openai = Self::official(address.as_deref().unwrap_or(OPENAI));
        match var("OPENAI_API_KEY") {
            Some(key) => openai = openai.key(key),
            None if address.is_none() => {
                return Err(SetupError::MissingKey {
                    provider: "openai".to_owned(),
                    variable: "OPENAI_API_KEY",
                });
            }
            None => {}
        }
        if let Some(organisation) = var("OPENAI_ORG_ID").or_else(|| var("OPENAI_ORGANIZATION")) {
            openai = openai.organisation(&organisation);
        }
        if let Some(project) = var("OPENAI_PROJECT_ID").or_else(|| var("OPENAI_PROJECT")) {
            openai = openai.project(&project);
        }
        Ok(openai)
    }

    fn official(base_url: &str) -> Self {
        Self::named("openai", base_url).variables("OPENAI_API_KEY", "OPENAI_BASE_URL")
    }

    /// A server by the name that errors give it.
    pub(crate) fn named(provider: &str, base_url: &str) -> Self {
        Self {
            config: EndpointConfig {
                provider: provider.to_owned(),
                base_url: base_url.to_owned(),
                key: None,
                key_header: KeyHeader::Bearer,
                // A server that was given in the program is not in the environment.
                key_variable: "",
                address_variable: "",
                headers: Vec::new(),
                timeouts: Timeouts::default(),
                limit: None,
                cassette: None,
            },
        }
    }

    pub(crate) fn variables(mut self, key: &'static str, address: &'static str) -> Self {
        self.config.key_variable = key;
        self.config.address_variable = address;
        self
    }

    /// The key.
    #[must_use]
    pub fn key(mut self, key: impl Into<ApiKey>) -> Self {
        self.config.key = Some(key.into());
        self
    }

    /// The address that paths such as `/responses` are added to.
    #[must_use]
    pub fn base_url(mut self, url: &str) -> Self {
        self.config.base_url = url.to_owned();
        self
    }

    /// The organisation that pays.
    #[must_use]
    pub fn organisation(self, id: &str) -> Self {
        self.header("openai-organization", id)
    }

    /// The project that pays.
    #[must_use]
    pub fn project(self, id: &str) -> Self {
        self.header("openai-project", id)
    }

    /// A header that every request has. It is treated as a secret.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.config.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// How long it may take.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.config.timeouts = timeouts;
        self
    }

    /// How much may be asked in a minute.
    #[must_use]
    pub fn rate_limit(mut self, limit: RateLimit) -> Self {
        self.config.limit = Some(limit);
        self
    }

    /// Plays or records what is asked and answered.
    #[must_use]
    pub fn cassette(mut self, cassette: Cassette) -> Self {
        self.config.cassette = Some(cassette);
        self
    }

    /// A model, by the Responses API.
    pub fn responses(&self, model: &str) -> Result<ResponsesModel, SetupError> {
        Ok(ResponsesModel::new(Arc::new(self.config.build()?), model))
    }

    /// A model, by the Chat Completions API.
    pub fn chat(&self, model: &str) -> Result<ChatModel, SetupError> {
        Ok(ChatModel::new(Arc::new(self.config.build()?), model))
    }

    /// A model that makes vectors of texts.
    pub fn embeddings(&self, model: &str) -> Result<EmbeddingsModel, SetupError> {
        Ok(EmbeddingsModel::new(Arc::new(self.config.build()?), model))
    }
}

#[cfg(test)]
pub(crate) fn responses_reading(request: ModelRequest<'_>) -> responses_read::Reading<'_> {
    responses_read::Reading { request }
}

#[cfg(test)]
pub(crate) fn chat_reading(request: ModelRequest<'_>) -> chat_read::Reading<'_> {
    chat_read::Reading { request }
}
