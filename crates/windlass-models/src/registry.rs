//! Resolution of model strings of the form `provider:model`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use windlass::model::SharedModel;

use crate::anthropic::{MessagesProtocol, anthropic_version_header};
use crate::api_key::ApiKey;
use crate::bedrock::ConverseProtocol;
use crate::endpoint::{ApiKeyHeader, EndpointConfig, ProviderTimeouts, without_blank};
use crate::error::SetupError;
use crate::gemini::GeminiProtocol;
use crate::openai::{
    ChatDialect, ChatOutputFormat, ChatProtocol, OpenAi, ResponsesProtocol, TokenLimitField,
};
use crate::provider_model::ProviderModel;
use crate::providers::KNOWN_PROVIDERS;

/// Returns the model that a string names, with keys and base URLs from the environment.
///
/// | string | protocol | environment |
/// | --- | --- | --- |
/// | `openai:gpt-5.2` | Responses | `OPENAI_API_KEY`, `OPENAI_BASE_URL`, `OPENAI_ORG_ID`, `OPENAI_PROJECT_ID` |
/// | `openai-chat:gpt-5.2` | Chat Completions | the same |
/// | `anthropic:claude-opus-4-5` | Messages | `ANTHROPIC_API_KEY`, `ANTHROPIC_BASE_URL` |
/// | `azure:my-deployment` | Responses | `AZURE_OPENAI_ENDPOINT`, `AZURE_OPENAI_API_KEY` or `AZURE_OPENAI_AD_TOKEN`, `OPENAI_API_VERSION` |
/// | `azure-chat:my-deployment` | Chat Completions | the same |
/// | `gemini:gemini-3-pro` | Gemini | `GEMINI_API_KEY` or `GOOGLE_API_KEY`, `GEMINI_BASE_URL` |
/// | `vertex:gemini-3-pro` | Gemini | `GOOGLE_CLOUD_PROJECT`, `GOOGLE_CLOUD_LOCATION`, `GOOGLE_ACCESS_TOKEN` |
/// | `bedrock:amazon.nova-lite-v1:0` | Converse | `AWS_REGION`, `AWS_BEARER_TOKEN_BEDROCK`, or AWS credentials (feature `sigv4`) |
/// | `bedrock-anthropic:…` | Messages | the same |
/// | `mistral:…`, `groq:…`, `openrouter:…`, `deepseek:…`, `xai:…`, `together:…`, `fireworks:…` | Chat Completions | `MISTRAL_API_KEY` and so on, `MISTRAL_BASE_URL` and so on |
/// | `ollama:llama3.2` | Chat Completions | `OLLAMA_HOST` |
/// | `llamacpp:…`, `vllm:…`, `lmstudio:…` | Chat Completions | `LLAMACPP_BASE_URL`, `VLLM_BASE_URL`, `LMSTUDIO_BASE_URL` |
///
/// The keys of the last two rows are in `OLLAMA_API_KEY`, `LLAMACPP_API_KEY`, `VLLM_API_KEY` and
/// `LMSTUDIO_API_KEY`; most such servers need none.
///
/// No request is sent before the model is used.
///
/// # Errors
///
/// Returns an error if the string is invalid, or a key or base URL is missing or invalid.
pub fn model(spec: &str) -> Result<SharedModel, SetupError> {
    ProviderRegistry::from_env().model(spec)
}

/// Returns the model that the environment names: `WINDLASS_MODEL`, or `OPENAI_DEFAULT_MODEL` at OpenAI. `None` if
/// neither is set.
pub fn default_model() -> Option<Result<SharedModel, SetupError>> {
    let providers = ProviderRegistry::from_env();
    let spec = providers.default_spec()?;
    Some(providers.model(&spec))
}

/// The known providers by name, with the environment variables that configure them.
///
/// ```
/// use windlass_models::ProviderRegistry;
///
/// # fn main() -> Result<(), windlass_models::SetupError> {
/// let providers = ProviderRegistry::from_env().with_server_at("lab", "http://10.0.0.7:8000/v1");
/// let model = providers.model("lab:qwen3-32b")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ProviderRegistry {
    env_variables: BTreeMap<String, String>,
    custom_providers: BTreeMap<String, ModelFactory>,
}

/// A function that creates the model with a name.
#[derive(Clone)]
struct ModelFactory(Arc<dyn Fn(&str) -> Result<SharedModel, SetupError> + Send + Sync>);

impl fmt::Debug for ModelFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelFactory")
    }
}

/// The variables that select a default model.
const DEFAULT_MODEL_VARIABLES: [&str; 2] = ["OPENAI_DEFAULT_MODEL", "WINDLASS_MODEL"];

/// A provider that can be named in a model string.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderInfo {
    /// The name.
    pub name: String,
    /// The API that is used, such as `Responses`; empty for a provider that the application added.
    pub api: &'static str,
    /// The address; absent if it depends on variables that are not set.
    pub base_url: Option<String>,
    /// The variable that sets the address.
    pub base_url_variable: &'static str,
    /// The variable of the key.
    pub key_variable: &'static str,
    /// The required variables that are not set.
    pub missing_variables: Vec<&'static str>,
    /// True if a model of the provider can be created.
    pub is_configured: bool,
}

/// The configuration of a server that is not known by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ProviderSettings {
    /// The base URL, to which the protocol appends its path. A query is kept.
    pub base_url: String,
    /// The API of the server.
    #[serde(default)]
    pub api: ServerApi,
    /// The environment variable that holds the key; no key is sent if absent.
    #[serde(default)]
    pub key_variable: Option<String>,
    /// Headers of every request. A value `env:NAME` is that of the environment variable.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Size of the context window of its models in tokens.
    #[serde(default)]
    pub context_window: Option<u64>,
    /// The id of the provider that owns signatures and other data in items; the host if absent.
    #[serde(default)]
    pub provider_id: Option<String>,
    /// The field that limits the output tokens of Chat Completions: `max_tokens`, `max_completion_tokens`, or `by_host`.
    #[serde(default)]
    pub token_limit: TokenLimitField,
    /// The form in which Chat Completions are asked for a typed output: `json_schema` or `json_object`.
    #[serde(default)]
    pub output_format: ChatOutputFormat,
    /// Maximum seconds to open a connection.
    #[serde(default)]
    pub connect_timeout_seconds: Option<u64>,
    /// Maximum seconds between two events of a stream.
    #[serde(default)]
    pub idle_timeout_seconds: Option<u64>,
    /// Maximum seconds of a response that is not streamed.
    #[serde(default)]
    pub total_timeout_seconds: Option<u64>,
}

/// The API of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ServerApi {
    /// Chat Completions.
    #[default]
    Chat,
    /// OpenAI's Responses API.
    Responses,
    /// Anthropic's Messages API.
    Messages,
    /// Google's Gemini API.
    Gemini,
    /// The Converse API of Amazon Bedrock.
    Converse,
}

impl ProviderSettings {
    /// Creates the configuration of a server with this base URL.
    pub fn new(base_url: &str, api: ServerApi) -> Self {
        Self { base_url: base_url.to_owned(), api, ..Self::default() }
    }

    /// Creates a model of the server.
    ///
    /// # Errors
    ///
    /// Returns an error if the address or a header is invalid, or a variable is not set.
    pub fn model(
        &self,
        provider: &str,
        name: &str,
        var: impl Fn(&str) -> Option<String>,
    ) -> Result<SharedModel, SetupError> {
        let missing = |variable: &str| SetupError::MissingVariable {
            provider: provider.to_owned(),
            variable: variable.to_owned(),
        };
        let header = match self.api {
            ServerApi::Chat | ServerApi::Responses | ServerApi::Converse => ApiKeyHeader::Bearer,
            ServerApi::Messages => ApiKeyHeader::Named("x-api-key"),
            ServerApi::Gemini => ApiKeyHeader::Named("x-goog-api-key"),
        };
        let mut config = EndpointConfig::new(provider, &self.base_url, header);
        if let Some(variable) = &self.key_variable {
            config.key = Some(ApiKey::new(var(variable).ok_or_else(|| missing(variable))?));
            config.key_variable = variable.clone().into();
        }
        if self.api == ServerApi::Messages {
            config.headers.push(anthropic_version_header());
        }
        for (name, value) in &self.headers {
            let value = match value.strip_prefix("env:") {
                Some(variable) => var(variable).ok_or_else(|| missing(variable))?,
                None => value.clone(),
            };
            config.headers.push((name.clone(), value));
        }
        config.provider_id = self.provider_id.clone();
        let seconds = |limit: Option<u64>, usual: Duration| limit.map_or(usual, Duration::from_secs);
        config.timeouts = ProviderTimeouts {
            connect: seconds(self.connect_timeout_seconds, config.timeouts.connect),
            idle: seconds(self.idle_timeout_seconds, config.timeouts.idle),
            total: seconds(self.total_timeout_seconds, config.timeouts.total),
        };
        let endpoint = config.build()?;
        let window = self.context_window;
        Ok(match self.api {
            ServerApi::Chat => {
                let dialect = ChatDialect::default().token_limit(self.token_limit);
                let protocol = ChatProtocol::with_dialect(dialect.output_format(self.output_format));
                ProviderModel::new(endpoint, protocol, name).with_window(window).into()
            }
            ServerApi::Responses => {
                ProviderModel::new(endpoint, ResponsesProtocol::default(), name).with_window(window).into()
            }
            ServerApi::Messages => {
                ProviderModel::new(endpoint, MessagesProtocol::default(), name).with_window(window).into()
            }
            ServerApi::Gemini => {
                ProviderModel::new(endpoint, GeminiProtocol::default(), name).with_window(window).into()
            }
            ServerApi::Converse => {
                ProviderModel::new(endpoint, ConverseProtocol::default(), name).with_window(window).into()
            }
        })
    }
}

impl ProviderRegistry {
    /// Creates a registry that is configured by the environment of this process.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// Creates a registry that is configured by the variables that `var` returns.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        let var = without_blank(var);
        let known = KNOWN_PROVIDERS.iter().flat_map(|known| {
            let named = [known.base_url_variable, known.key_variable];
            named
                .into_iter()
                .chain(known.required_variables.iter().copied())
                .chain(known.other_variables.iter().copied())
        });
        let variables = known.chain(DEFAULT_MODEL_VARIABLES);
        let variables = variables.filter_map(|name| Some((name.to_owned(), var(name)?))).collect();
        Self { env_variables: variables, custom_providers: BTreeMap::new() }
    }

    /// Adds a server with the Chat Completions API under a name.
    #[must_use]
    pub fn with_server_at(self, name: &str, base_url: &str) -> Self {
        self.with_server(name, OpenAi::named(name, base_url))
    }

    /// Adds a server with its own key, headers and limits under a name.
    #[must_use]
    pub fn with_server(self, name: &str, server: OpenAi) -> Self {
        self.with_provider(name, move |model| Ok(server.chat(model)?.into()))
    }

    /// Adds a provider under a name: a function that creates its models. It takes precedence over a provider of
    /// this crate with the same name.
    ///
    /// ```
    /// use windlass_models::{ModelProvider, ProviderRegistry, protocol::ResponsesProtocol};
    ///
    /// let gateway = ModelProvider::new("gateway", "https://models.example/v1").key("…");
    /// let providers = ProviderRegistry::from_env()
    ///     .with_provider("gateway", move |name| Ok(gateway.model(ResponsesProtocol::default(), name)?.into()));
    /// assert!(providers.model("gateway:gpt-5.2").is_ok());
    /// ```
    #[must_use]
    pub fn with_provider(
        mut self,
        name: &str,
        create_model: impl Fn(&str) -> Result<SharedModel, SetupError> + Send + Sync + 'static,
    ) -> Self {
        self.custom_providers.insert(name.to_owned(), ModelFactory(Arc::new(create_model)));
        self
    }

    /// Returns the model string that the variables name, if any.
    pub fn default_spec(&self) -> Option<String> {
        let openai = || self.env_variables.get("OPENAI_DEFAULT_MODEL").map(|model| format!("openai:{model}"));
        self.env_variables.get("WINDLASS_MODEL").cloned().or_else(openai)
    }

    /// Returns the model that a string names.
    ///
    /// # Errors
    ///
    /// As [`model`].
    pub fn model(&self, spec: &str) -> Result<SharedModel, SetupError> {
        let not_a_model = || SetupError::InvalidModelSpec { spec: spec.to_owned() };
        let (provider, name) = spec.split_once(':').ok_or_else(not_a_model)?;
        let (provider, name) = (provider.trim(), name.trim());
        if provider.is_empty() || name.is_empty() {
            return Err(not_a_model());
        }
        let var = |name: &str| self.env_variables.get(name).cloned();
        if let Some(ModelFactory(create_model)) = self.custom_providers.get(provider) {
            return create_model(name);
        }
        let known = KNOWN_PROVIDERS.iter().find(|known| known.name == provider);
        known.ok_or_else(|| self.unknown_provider_error(provider))?.model(name, var)
    }

    /// Returns the providers that a model string can name: those of this crate, then those that were added.
    pub fn providers(&self) -> Vec<ProviderInfo> {
        let var = |name: &str| self.env_variables.get(name).cloned();
        let known = KNOWN_PROVIDERS.iter().filter(|known| !self.custom_providers.contains_key(known.name));
        let known = known.map(|known| {
            let usual = (!known.base_url.is_empty()).then(|| known.base_url.to_owned());
            let missing = known.required_variables.iter().copied().filter(|name| var(name).is_none());
            let is_configured = known.model("any", var).is_ok();
            ProviderInfo {
                name: known.name.to_owned(),
                api: known.api(),
                base_url: var(known.base_url_variable).map(|url| known.complete_base_url(&url)).or(usual),
                base_url_variable: known.base_url_variable,
                key_variable: known.key_variable,
                // An address, or another kind of authorisation, may stand in for a key.
                missing_variables: if is_configured { Vec::new() } else { missing.collect() },
                is_configured,
            }
        });
        let added = self.custom_providers.keys().map(|name| ProviderInfo {
            name: name.clone(),
            api: "",
            base_url: None,
            base_url_variable: "",
            key_variable: "",
            missing_variables: Vec::new(),
            is_configured: true,
        });
        known.chain(added).collect()
    }

    fn unknown_provider_error(&self, name: &str) -> SetupError {
        let known = KNOWN_PROVIDERS.iter().map(|known| known.name);
        let mut known: Vec<&str> = known.chain(self.custom_providers.keys().map(String::as_str)).collect();
        known.sort_unstable();
        SetupError::UnknownProvider { name: name.to_owned(), known: known.join(", ") }
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
