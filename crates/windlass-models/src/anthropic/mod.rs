//! Anthropic's Messages API.

mod decode;
mod encode;

use windlass::model::{ModelError, ModelErrorKind, ModelSettings, ToolDefinition, ToolKind};

use crate::api_key::ApiKey;
use crate::endpoint::{ApiKeyHeader, EndpointConfig, endpoint_builder_methods, without_blank};
use crate::error::SetupError;
use crate::protocol::{EncodedRequest, ModelProtocol, ProtocolRequest, ResponseDecoder};
use crate::provider_model::ProviderModel;
use crate::setting_support::check_settings;
use crate::wire::{RequestBase, WireProtocol, encode_body, is_messages_tool_type};

pub(crate) use decode::MessagesDecoder;

/// Anthropic's base URL.
const ANTHROPIC_BASE_URL: &str = "https://api.anthropic.com";
/// The API version that is sent in the `anthropic-version` header.
const ANTHROPIC_API_VERSION: &str = "2023-06-01";
/// The settings of the Messages API beside the common ones.
const MESSAGES_SETTINGS: [&str; 8] = [
    "stop",
    "reasoning_effort",
    "thinking_budget",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_retention",
    "tool_search",
];
/// Default of `max_tokens` without the reasoning. The API requires the field.
const DEFAULT_MAX_TOKENS: u64 = 8192;

/// Returns the header with the version of the API.
pub(crate) fn anthropic_version_header() -> (String, String) {
    ("anthropic-version".to_owned(), ANTHROPIC_API_VERSION.to_owned())
}

/// Anthropic or a compatible server; the builder of [`MessagesModel`].
#[derive(Clone, Debug)]
pub struct Anthropic {
    config: EndpointConfig,
    computer_version: Option<ComputerVersion>,
}

/// The version of Anthropic's computer tool that a model is offered. Newer models require newer versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComputerVersion {
    /// `computer_20250124`.
    V20250124,
    /// `computer_20251124`, which can zoom into a part of the screen.
    V20251124,
    /// `computer_toolset_20260801`, a toolset with one tool for each action. Models from Claude Opus 5.5 on
    /// support no other version.
    V20260801,
    /// `browser_toolset_20260801`: a browser with addresses, tabs and elements by reference, for a computer that is a
    /// browser. The model gets no members that run scripts or read the console and the network.
    Browser20260801,
}

impl ComputerVersion {
    /// Returns the value of the `anthropic-beta` header that the version requires, if any.
    fn beta_header_value(self) -> Option<&'static str> {
        match self {
            Self::V20250124 => Some("computer-use-2025-01-24"),
            Self::V20251124 => Some("computer-use-2025-11-24"),
            Self::V20260801 | Self::Browser20260801 => None,
        }
    }
}

impl Anthropic {
    /// Creates a client of Anthropic with this key.
    pub fn new(key: impl Into<ApiKey>) -> Self {
        Self::at(ANTHROPIC_BASE_URL).key(key)
    }

    /// Creates a client of a compatible server at this base URL, without a key.
    pub fn at(base_url: &str) -> Self {
        let mut config = EndpointConfig::new("anthropic", base_url, ApiKeyHeader::Named("x-api-key"))
            .with_variables("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL");
        config.headers.push(anthropic_version_header());
        Self { config, computer_version: None }
    }

    /// Creates a client from the environment: `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL`.
    ///
    /// # Errors
    ///
    /// Returns [`SetupError::MissingKey`] if neither a key nor a base URL is set.
    pub fn from_env() -> Result<Self, SetupError> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// As [`from_env`](Self::from_env), with the variables that `var` returns.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, SetupError> {
        let anthropic = Self::at(ANTHROPIC_BASE_URL);
        Ok(Self { config: anthropic.config.read_vars(without_blank(var))?, ..anthropic })
    }

    endpoint_builder_methods!();

    /// Offers computer tools as Anthropic's own computer tool. If that version is in beta, its name is added to
    /// the `anthropic-beta` header.
    #[must_use]
    pub fn computer_tool(mut self, version: ComputerVersion) -> Self {
        self.computer_version = Some(version);
        const BETA_HEADER: &str = "anthropic-beta";
        let Some(beta) = version.beta_header_value() else { return self };
        match self.config.headers.iter_mut().find(|(name, _)| name.eq_ignore_ascii_case(BETA_HEADER)) {
            Some((_, value)) => *value = format!("{value},{beta}"),
            None => self.config.headers.push((BETA_HEADER.to_owned(), beta.to_owned())),
        }
        self
    }

    /// Creates a model with the Messages API.
    pub fn messages(&self, model: &str) -> Result<MessagesModel, SetupError> {
        let protocol = MessagesProtocol { computer_version: self.computer_version };
        Ok(ProviderModel::new(self.config.build()?, protocol, model))
    }
}

/// A model with the Messages API.
pub type MessagesModel = ProviderModel<MessagesProtocol>;

/// The Messages API.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct MessagesProtocol {
    /// The version of the computer tool, if computer tools are offered as the provider's own.
    pub computer_version: Option<ComputerVersion>,
}

/// Returns the maximum of output tokens that a request asks for.
fn max_output_tokens(settings: &ModelSettings) -> u64 {
    // The budget of the reasoning is a part of the maximum.
    let default_maximum = settings.thinking_budget.unwrap_or(0).saturating_add(DEFAULT_MAX_TOKENS);
    settings.max_tokens.unwrap_or(default_maximum)
}

impl ModelProtocol for MessagesProtocol {
    fn name(&self) -> &str {
        "messages"
    }

    fn provider_name(&self) -> &str {
        "anthropic"
    }

    fn encode(&self, request: &ProtocolRequest<'_>) -> Result<EncodedRequest, ModelError> {
        let settings = request.request.settings;
        check_settings("the Messages API", settings, &MESSAGES_SETTINGS, &[])?;
        if let Some(key) = settings.metadata.keys().find(|key| *key != "user_id") {
            let text = format!("the Messages API has no metadata `{key}`, only `user_id`");
            return Err(ModelError::new(text).with_kind(ModelErrorKind::InvalidRequest));
        }
        if let (Some(budget), Some(maximum)) = (settings.thinking_budget, settings.max_tokens)
            && maximum <= budget
        {
            let text = format!(
                "`max_tokens` is {maximum}, and the reasoning alone may take {budget}; hint: raise `max_tokens` above \
                 `thinking_budget`, or leave it out"
            );
            return Err(ModelError::new(text).with_kind(ModelErrorKind::InvalidRequest));
        }
        encode::MESSAGES_MEDIA.check(&request.request)?;
        let body = encode::MessagesRequestBody {
            base: RequestBase::new(request, WireProtocol::Messages),
            computer_version: self.computer_version,
        };
        Ok(EncodedRequest::new("/v1/messages", encode_body(&body)?))
    }

    fn decoder<'a>(&'a self, request: ProtocolRequest<'a>) -> Box<dyn ResponseDecoder + 'a> {
        Box::new(MessagesDecoder::new(RequestBase::new(&request, WireProtocol::Messages)))
    }

    fn max_output_tokens(&self, settings: &ModelSettings) -> Option<u64> {
        Some(max_output_tokens(settings))
    }

    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        match &tool.kind {
            ToolKind::Function => Ok(()),
            ToolKind::Computer(_) if self.computer_version.is_some() => Ok(()),
            ToolKind::Computer(_) => {
                Err("no version of the computer tool is set: see `Anthropic::computer_tool`".to_owned())
            }
            ToolKind::Hosted(definition) | ToolKind::ProviderDefined(definition)
                if is_messages_tool_type(definition) =>
            {
                Ok(())
            }
            ToolKind::Hosted(_) | ToolKind::ProviderDefined(_) => {
                let example = "such as `web_search_20250305`";
                Err(format!("it is no tool of the Messages API, whose types end with a date, {example}"))
            }
        }
    }
}
