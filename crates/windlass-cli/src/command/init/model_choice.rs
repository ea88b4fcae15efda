//! Models that can be used on this machine: those whose key is set, and those of local servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

/// Time that a local server has to answer.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum length of a server's answer, in bytes.
const MAX_ANSWER: u64 = 256 << 10;
/// Maximum number of models that are offered for one server.
const MAX_MODELS: usize = 5;

/// Providers that need a key, each with the model that is offered. A deployment has a name of its user's.
#[cfg(feature = "models")]
const KEYED_MODELS: [(&str, Option<&str>); 13] = [
    ("openai", Some("gpt-5-mini")),
    ("anthropic", Some("claude-sonnet-4-5")),
    ("gemini", Some("gemini-2.5-flash")),
    ("vertex", Some("gemini-2.5-flash")),
    ("azure", None),
    ("bedrock", Some("amazon.nova-lite-v1:0")),
    ("mistral", Some("mistral-small-latest")),
    ("groq", Some("llama-3.3-70b-versatile")),
    ("openrouter", Some("openai/gpt-5-mini")),
    ("deepseek", Some("deepseek-chat")),
    ("xai", Some("grok-4")),
    ("together", Some("meta-llama/Llama-3.3-70B-Instruct-Turbo")),
    ("fireworks", Some("accounts/fireworks/models/llama-v3p3-70b-instruct")),
];

/// Servers on this machine: name, variable of the address, and default address.
const LOCAL_SERVERS: [(&str, &str, &str); 4] = [
    ("ollama", "OLLAMA_HOST", "127.0.0.1:11434"),
    ("lmstudio", "LMSTUDIO_BASE_URL", "127.0.0.1:1234"),
    ("llamacpp", "LLAMACPP_BASE_URL", "127.0.0.1:8080"),
    ("vllm", "VLLM_BASE_URL", "127.0.0.1:8000"),
];

/// A model that the agent could use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelChoice {
    pub(super) model: String,
    pub(super) origin: ModelOrigin,
}

/// The reason why a model is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ModelOrigin {
    /// The user named it.
    Named,
    /// This environment variable is set.
    Variable(&'static str),
    /// The variables of its provider are set.
    Configured,
    /// A server on this machine has it.
    Server(String),
    /// It needs nothing.
    Scripted,
}

impl ModelChoice {
    pub(super) fn is_scripted(&self) -> bool {
        self.origin == ModelOrigin::Scripted
    }
}

impl ModelOrigin {
    pub(super) fn words(&self) -> String {
        match self {
            Self::Named => "as you named it".to_owned(),
            Self::Variable(name) => format!("{name} is set"),
            Self::Configured => "its variables are set".to_owned(),
            Self::Server(address) => format!("a server answers at {address}"),
            Self::Scripted => "answers from a file; needs no key and no network".to_owned(),
        }
    }
}

/// The models that can be used on this machine, in the order in which they are offered.
#[derive(Clone, Debug, Default)]
pub(super) struct FoundModels {
    pub(super) choices: Vec<ModelChoice>,
    /// Providers that are set up, and whose models have names of their users'.
    pub(super) unnamed: Vec<&'static str>,
}

/// Finds the models.
pub(super) async fn find_models() -> FoundModels {
    let is_set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let mut found = FoundModels::default();
    if let Some(model) = is_set("WINDLASS_MODEL") {
        found.choices.push(ModelChoice { model, origin: ModelOrigin::Variable("WINDLASS_MODEL") });
    }
    #[cfg(feature = "models")]
    add_keyed_models(&mut found, is_set);
    let probes = LOCAL_SERVERS.map(|(name, variable, default)| {
        let address = is_set(variable).unwrap_or_else(|| default.to_owned());
        tokio::task::spawn_blocking(move || list_server_models(name, &address))
    });
    for probe in probes {
        found.choices.extend(probe.await.unwrap_or_default());
    }
    found
}

/// Adds the models of the providers that the environment sets up.
#[cfg(feature = "models")]
fn add_keyed_models(found: &mut FoundModels, var: impl Fn(&str) -> Option<String> + Copy) {
    let providers = windlass_models::ProviderRegistry::from_vars(var).providers();
    for (name, model) in KEYED_MODELS {
        let Some(provider) = providers.iter().find(|provider| provider.name == name) else { continue };
        match model {
            _ if !provider.is_configured => {}
            None => found.unnamed.push(name),
            // Another server has other models.
            Some(_) if var(provider.base_url_variable).is_some() => {}
            Some(model) => {
                let has_key = var(provider.key_variable).is_some();
                let origin = match has_key {
                    true => ModelOrigin::Variable(provider.key_variable),
                    false => ModelOrigin::Configured,
                };
                found.choices.push(ModelChoice { model: format!("{name}:{model}"), origin });
            }
        }
    }
}

/// Lists the models of a server on this machine. A server elsewhere is not asked.
fn list_server_models(name: &str, address: &str) -> Vec<ModelChoice> {
    let Some((authority, address)) = local_address(address) else { return Vec::new() };
    let models = request_models(&authority, address).unwrap_or_default();
    let origin = ModelOrigin::Server(authority);
    let choices = models.into_iter().take(MAX_MODELS);
    choices.map(|model| ModelChoice { model: format!("{name}:{model}"), origin: origin.clone() }).collect()
}

/// Returns the host and port, and the address, of a server on this machine.
fn local_address(address: &str) -> Option<(String, SocketAddr)> {
    let address = address.strip_prefix("http://").unwrap_or(address);
    let authority = address.split('/').next().unwrap_or_default().to_owned();
    let resolved = authority.to_socket_addrs().ok()?.find(|resolved| resolved.ip().is_loopback())?;
    Some((authority, resolved))
}

/// Requests the names of a server's models. Names with characters that a person cannot see are left out.
fn request_models(authority: &str, address: SocketAddr) -> std::io::Result<Vec<String>> {
    let mut stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    stream.set_write_timeout(Some(PROBE_TIMEOUT))?;
    stream.write_all(
        format!("GET /v1/models HTTP/1.0\r\nHost: {authority}\r\nAccept: application/json\r\n\r\n")
            .as_bytes(),
    )?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    let models: Value = serde_json::from_str(body.trim())?;
    let is_name = |name: &&str| {
        !name.is_empty()
            && name.len() < 200
            && !name.chars().any(|letter| letter == ' ' || windlass_text::is_hidden(letter))
    };
    let names = models["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str());
    // Models for embeddings cannot talk.
    let names = names.filter(is_name).filter(|name| !name.contains("embed"));
    Ok(names.map(str::to_owned).collect())
}

#[cfg(test)]
#[path = "model_choice_tests.rs"]
mod tests;
