//! Resolution of model strings of the form `provider:model`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use windlass::model::SharedModel;

use crate::anthropic::Anthropic;
use crate::api_key::ApiKey;
use crate::endpoint::without_blank;
use crate::error::SetupError;
use crate::openai::OpenAi;

/// Returns the model that a string names, with keys and base URLs from the environment.
///
/// | string | protocol | environment |
/// | --- | --- | --- |
/// | `openai:gpt-5.2` | Responses | `OPENAI_API_KEY`, `OPENAI_BASE_URL`, `OPENAI_ORG_ID`, `OPENAI_PROJECT_ID` |
/// | `openai-chat:gpt-5.2` | Chat Completions | the same |
/// | `anthropic:claude-opus-4-5` | Messages | `ANTHROPIC_API_KEY`, `ANTHROPIC_BASE_URL` |
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

/// The environment variables that are read.
const ENV_VARIABLES: [&str; 18] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "LLAMACPP_API_KEY",
    "LLAMACPP_BASE_URL",
    "LMSTUDIO_API_KEY",
    "LMSTUDIO_BASE_URL",
    "OLLAMA_API_KEY",
    "OLLAMA_HOST",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_DEFAULT_MODEL",
    "OPENAI_ORGANIZATION",
    "OPENAI_ORG_ID",
    "OPENAI_PROJECT",
    "OPENAI_PROJECT_ID",
    "VLLM_API_KEY",
    "VLLM_BASE_URL",
    "WINDLASS_MODEL",
];

/// Servers known by name: name, default base URL, the environment variable that overrides it, and the variable of
/// the key.
const KNOWN_SERVERS: [(&str, &str, &str, &str); 4] = [
    ("llamacpp", "http://127.0.0.1:8080/v1", "LLAMACPP_BASE_URL", "LLAMACPP_API_KEY"),
    ("lmstudio", "http://127.0.0.1:1234/v1", "LMSTUDIO_BASE_URL", "LMSTUDIO_API_KEY"),
    ("ollama", "http://127.0.0.1:11434/v1", "OLLAMA_HOST", "OLLAMA_API_KEY"),
    ("vllm", "http://127.0.0.1:8000/v1", "VLLM_BASE_URL", "VLLM_API_KEY"),
];

impl ProviderRegistry {
    /// Creates a registry that is configured by the environment of this process.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// Creates a registry that is configured by the variables that `var` returns.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        let var = without_blank(var);
        let variables =
            ENV_VARIABLES.into_iter().filter_map(|name| Some((name.to_owned(), var(name)?))).collect();
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
        match provider {
            "openai" | "openai-responses" => Ok(OpenAi::from_vars(var)?.responses(name)?.into()),
            "openai-chat" => Ok(OpenAi::from_vars(var)?.chat(name)?.into()),
            "anthropic" => Ok(Anthropic::from_vars(var)?.messages(name)?.into()),
            _ => {
                let (_, usual, variable, key_variable) = KNOWN_SERVERS
                    .into_iter()
                    .find(|server| server.0 == provider)
                    .ok_or_else(|| self.unknown_provider_error(provider))?;
                let address =
                    var(variable).map_or_else(|| usual.to_owned(), |address| normalise_base_url(&address));
                let mut server = OpenAi::named(provider, &address).with_variables(key_variable, variable);
                if let Some(key) = var(key_variable) {
                    server = server.key(ApiKey::new(key));
                }
                Ok(server.chat(name)?.into())
            }
        }
    }

    fn unknown_provider_error(&self, name: &str) -> SetupError {
        let known =
            ["anthropic", "openai", "openai-chat"].into_iter().chain(KNOWN_SERVERS.map(|server| server.0));
        let mut known: Vec<&str> = known.chain(self.custom_providers.keys().map(String::as_str)).collect();
        known.sort_unstable();
        SetupError::UnknownProvider { name: name.to_owned(), known: known.join(", ") }
    }
}

/// Completes a base URL; Ollama's variable may contain only a host and a port.
fn normalise_base_url(address: &str) -> String {
    let address = address.trim().trim_end_matches('/');
    let address = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let (address, query) = match address.split_once('?') {
        Some((address, query)) => (address.trim_end_matches('/').to_owned(), format!("?{query}")),
        None => (address, String::new()),
    };
    let path =
        address.split_once("://").map_or("", |(_, rest)| rest.split_once('/').map_or("", |(_, path)| path));
    if path.is_empty() { format!("{address}/v1{query}") } else { format!("{address}{query}") }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
