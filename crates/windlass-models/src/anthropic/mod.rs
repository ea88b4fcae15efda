//! Anthropic, by its Messages API.

mod read;
mod write;

use std::sync::Arc;

use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest, OfferedKind, OfferedTool};

use crate::Streaming;
use crate::cassette::Cassette;
use crate::endpoint::{Endpoint, EndpointConfig, KeyHeader, Timeouts};
use crate::error::SetupError;
use crate::exchange::{Question, ask};
use crate::http::Replay;
use crate::limit::RateLimit;
use crate::secret::ApiKey;

/// The address of Anthropic.
const ANTHROPIC: &str = "https://api.anthropic.com";
/// The version of the protocol that is spoken.
const VERSION: &str = "2023-06-01";
/// The longest answer, where the settings name none: the protocol wants a number.
const LONGEST_ANSWER: u64 = 8192;

/// Anthropic, or a server that speaks its protocol. It is the start of a [`MessagesModel`].
#[derive(Clone, Debug)]
pub struct Anthropic {
    config: EndpointConfig,
    computer: Option<ComputerVersion>,
}

/// Which of Anthropic's computer tools a model is offered. Newer models want the newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputerVersion {
    /// `computer_20250124`.
    V20250124,
    /// `computer_20251124`, which can look closely at a part of the screen.
    V20251124,
    /// `computer_toolset_20260801`: a family of tools, one for each action. Models from Claude Opus 5.5 on have no other.
    V20260801,
}

impl ComputerVersion {
    /// What has to be asked for in a header; the newest is for everybody.
    fn beta(self) -> Option<&'static str> {
        match self {
            Self::V20250124 => Some("computer-use-2025-01-24"),
            Self::V20251124 => Some("computer-use-2025-11-24"),
            Self::V20260801 => None,
        }
    }
}

impl Anthropic {
    /// Anthropic with this key.
    pub fn new(key: impl Into<ApiKey>) -> Self {
        Self::at(ANTHROPIC).key(key)
    }

    /// A server at this address, with no key.
    pub fn at(base_url: &str) -> Self {
        let config = EndpointConfig {
            provider: "anthropic".to_owned(),
            base_url: base_url.to_owned(),
            key: None,
            key_header: KeyHeader::XApiKey,
            key_variable: "ANTHROPIC_API_KEY",
            address_variable: "ANTHROPIC_BASE_URL",
            headers: vec![("anthropic-version".to_owned(), VERSION.to_owned())],
            timeouts: Timeouts::default(),
            limit: None,
            cassette: None,
        };
        Self { config, computer: None }
    }

    /// Anthropic as the environment says: `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL`.
    pub fn from_env() -> Result<Self, SetupError> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// The same, from variables that are looked up with `var`.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, SetupError> {
        let var = |name: &str| var(name).filter(|text| !text.trim().is_empty());
        let address = var("ANTHROPIC_BASE_URL");
        let anthropic = Self::at(address.as_deref().unwrap_or(ANTHROPIC));
        match var("ANTHROPIC_API_KEY") {
            Some(key) => Ok(anthropic.key(key)),
            None if address.is_some() => Ok(anthropic),
            None => Err(SetupError::MissingKey {
                provider: "anthropic".to_owned(),
                variable: "ANTHROPIC_API_KEY",
            }),
        }
    }

    /// The key.
    #[must_use]
    pub fn key(mut self, key: impl Into<ApiKey>) -> Self {
        self.config.key = Some(key.into());
        self
    }

    /// A header that every request has, such as `anthropic-beta`. It is treated as a secret.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.config.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Offers screens by Anthropic's own computer tool. Where that is in beta, the header that asks for it is added to
    /// those that there are.
    #[must_use]
    pub fn computer(mut self, version: ComputerVersion) -> Self {
        self.computer = Some(version);
        const BETA: &str = "anthropic-beta";
        let Some(beta) = version.beta() else { return self };
        match self.config.headers.iter_mut().find(|(name, _)| name.eq_ignore_ascii_case(BETA)) {
            Some((_, value)) => *value = format!("{value},{beta}"),
            None => self.config.headers.push((BETA.to_owned(), beta.to_owned())),
        }
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

    /// A model, by the Messages API.
    pub fn messages(&self, model: &str) -> Result<MessagesModel, SetupError> {
        Ok(MessagesModel {
            endpoint: Arc::new(self.config.build()?),
            model: model.to_owned(),
            streaming: Streaming::default(),
            cache: PromptCache::default(),
            computer: self.computer,
        })
    }
}

#[cfg(test)]
pub(crate) fn reading(request: ModelRequest<'_>) -> read::Reading<'_> {
    read::Reading { request }
}

/// What the provider is asked to remember of a prompt, so that reading it again is cheaper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptCache {
    /// Nothing but what it does by itself.
    #[default]
    Off,
    /// The tools, the instructions and the conversation so far.
    On,
}

/// A model by the Messages API.
#[derive(Clone, Debug)]
pub struct MessagesModel {
    endpoint: Arc<Endpoint>,
    model: String,
    streaming: Streaming,
    cache: PromptCache,
    computer: Option<ComputerVersion>,
}

impl MessagesModel {
    /// When answers are streamed.
    #[must_use]
    pub fn streaming(mut self, streaming: Streaming) -> Self {
        self.streaming = streaming;
        self
    }

    /// What is remembered of prompts.
    #[must_use]
    pub fn prompt_cache(mut self, cache: PromptCache) -> Self {
        self.cache = cache;
        self
    }
}

impl Model for MessagesModel {
    async fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> Result<Answer, ModelError> {
        let is_streamed = self.streaming.is_on(deltas);
        let (model, cache, computer) = (self.model.as_str(), self.cache, self.computer);
        let body = crate::written(&write::Body { request, model, is_streamed, cache, computer })?;
        let question = Question { path: "/v1/messages", model, body, replay: Replay::Safe, is_streamed };
        ask(&self.endpoint, &read::Reading { request }, question, deltas).await
    }

    fn supports(&self, tool: &OfferedTool) -> Result<(), String> {
        match &tool.kind {
            OfferedKind::Function => Ok(()),
            OfferedKind::Computer(_) if self.computer.is_some() => Ok(()),
            OfferedKind::Computer(_) => {
                Err("which computer tool it has is not said: see `Anthropic::computer`".to_owned())
            }
            OfferedKind::Hosted(_) => Err("its provider does not run such a tool".to_owned()),
        }
    }
}
