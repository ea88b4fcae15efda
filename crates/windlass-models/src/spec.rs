//! Models by name: `provider:model`.

use std::collections::BTreeMap;

use windlass::model::SharedModel;

use crate::anthropic::Anthropic;
use crate::error::SetupError;
use crate::openai::OpenAi;
use crate::secret::ApiKey;

/// The model that a string names, with keys and addresses from the environment.
///
/// | string | speaks | environment |
/// | --- | --- | --- |
/// | `openai:gpt-5.2` | Responses | `OPENAI_API_KEY`, `OPENAI_BASE_URL`, `OPENAI_ORG_ID`, `OPENAI_PROJECT_ID` |
/// | `openai-chat:gpt-5.2` | Chat Completions | the same |
/// | `anthropic:claude-opus-4-5` | Messages | `ANTHROPIC_API_KEY`, `ANTHROPIC_BASE_URL` |
/// | `ollama:llama3.2` | Chat Completions | `OLLAMA_HOST` |
/// | `llamacpp:…`, `vllm:…`, `lmstudio:…` | Chat Completions | `LLAMACPP_BASE_URL`, `VLLM_BASE_URL`, `LMSTUDIO_BASE_URL` |
///
/// Nothing is sent until the model is asked; what is missing is said here.
pub fn model(spec: &str) -> Result<SharedModel, SetupError> {
    Providers::from_env().model(spec)
}

/// The model that the environment names: `WINDLASS_MODEL`, or `OPENAI_DEFAULT_MODEL` at OpenAI. None where neither is
/// set.
pub fn default_model() -> Option<Result<SharedModel, SetupError>> {
    let providers = Providers::from_env();
    let spec = providers.default_spec()?;
    Some(providers.model(&spec))
}

/// Who there is to ask, by name, and the variables that say how.
///
/// ```
/// use windlass_models::Providers;
///
/// # fn main() -> Result<(), windlass_models::SetupError> {
/// let providers = Providers::from_env().named("lab", "http://10.0.0.7:8000/v1");
/// let model = providers.model("lab:qwen3-32b")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Providers {
    variables: BTreeMap<String, String>,
    named: BTreeMap<String, OpenAi>,
}

/// The variables that are looked at.
const VARIABLES: [&str; 15] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "LLAMACPP_BASE_URL",
    "LMSTUDIO_BASE_URL",
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

/// Servers that are known by name: where they are unless a variable says otherwise, and which one does.
const SERVERS: [(&str, &str, &str); 4] = [
    ("llamacpp", "http://127.0.0.1:8080/v1", "LLAMACPP_BASE_URL"),
    ("lmstudio", "http://127.0.0.1:1234/v1", "LMSTUDIO_BASE_URL"),
    ("ollama", "http://127.0.0.1:11434/v1", "OLLAMA_HOST"),
    ("vllm", "http://127.0.0.1:8000/v1", "VLLM_BASE_URL"),
];

impl Providers {
    /// Those that are known, as the environment of this process says.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// The same, with variables that are looked up with `var`.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        let found = VARIABLES.into_iter().filter_map(|name| Some((name.to_owned(), var(name)?)));
        let variables = found.filter(|(_, text)| !text.trim().is_empty()).collect();
        Self { variables, named: BTreeMap::new() }
    }

    /// Adds a server that speaks Chat Completions, under a name of its own.
    #[must_use]
    pub fn named(self, name: &str, base_url: &str) -> Self {
        self.with(name, OpenAi::named(name, base_url))
    }

    /// Adds a server with a key, headers and limits, under a name of its own.
    #[must_use]
    pub fn with(mut self, name: &str, server: OpenAi) -> Self {
        self.named.insert(name.to_owned(), server);
        self
    }

    /// The model that the variables name, where they do.
    pub fn default_spec(&self) -> Option<String> {
        let openai = || self.variables.get("OPENAI_DEFAULT_MODEL").map(|model| format!("openai:{model}"));
        self.variables.get("WINDLASS_MODEL").cloned().or_else(openai)
    }

    /// The model that a string names.
    pub fn model(&self, spec: &str) -> Result<SharedModel, SetupError> {
        let not_a_model = || SetupError::NotAModel { spec: spec.to_owned() };
        let (provider, name) = spec.split_once(':').ok_or_else(not_a_model)?;
        let (provider, name) = (provider.trim(), name.trim());
        if provider.is_empty() || name.is_empty() {
            return Err(not_a_model());
        }
        let var = |name: &str| self.variables.get(name).cloned();
        if let Some(server) = self.named.get(provider) {
            return Ok(server.chat(name)?.into());
        }
        match provider {
            "openai" | "openai-responses" => Ok(OpenAi::from_vars(var)?.responses(name)?.into()),
            "openai-chat" => Ok(OpenAi::from_vars(var)?.chat(name)?.into()),
            "anthropic" => Ok(Anthropic::from_vars(var)?.messages(name)?.into()),
            _ => {
                let (_, usual, variable) = SERVERS
                    .into_iter()
                    .find(|server| server.0 == provider)
                    .ok_or_else(|| self.unknown(provider))?;
                let address = var(variable).map_or_else(|| usual.to_owned(), |address| whole(&address));
                let mut server = OpenAi::named(provider, &address).variables("", variable);
                if let (Some(key), "vllm") = (var("VLLM_API_KEY"), provider) {
                    server = server.key(ApiKey::new(key)).variables("VLLM_API_KEY", variable);
                }
                Ok(server.chat(name)?.into())
            }
        }
    }

    fn unknown(&self, name: &str) -> SetupError {
        let known = ["anthropic", "openai", "openai-chat"].into_iter().chain(SERVERS.map(|server| server.0));
        let mut known: Vec<&str> = known.chain(self.named.keys().map(String::as_str)).collect();
        known.sort_unstable();
        SetupError::UnknownProvider { name: name.to_owned(), known: known.join(", ") }
    }
}

/// An address in full: Ollama's variable may hold a host and a port alone.
fn whole(address: &str) -> String {
    let address = address.trim().trim_end_matches('/');
    let address = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let path =
        address.split_once("://").map_or("", |(_, rest)| rest.split_once('/').map_or("", |(_, path)| path));
    if path.is_empty() { format!("{address}/v1") } else { address }
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
