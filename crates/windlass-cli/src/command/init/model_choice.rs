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

/// Providers whose key is in the environment: variable, model, and the server's address that rules the model out.
const KEYED_MODELS: [(&str, &str, &str); 2] = [
    ("OPENAI_API_KEY", "openai:gpt-5-mini", "OPENAI_BASE_URL"),
    ("ANTHROPIC_API_KEY", "anthropic:claude-sonnet-4-5", "ANTHROPIC_BASE_URL"),
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
            Self::Server(address) => format!("a server answers at {address}"),
            Self::Scripted => "answers from a file; needs no key and no network".to_owned(),
        }
    }
}

/// Finds the models, in the order in which they are offered.
pub(super) async fn find_models() -> Vec<ModelChoice> {
    let is_set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let mut found = Vec::new();
    if let Some(model) = is_set("WINDLASS_MODEL") {
        found.push(ModelChoice { model, origin: ModelOrigin::Variable("WINDLASS_MODEL") });
    }
    for (variable, model, server) in KEYED_MODELS {
        // Another server has other models.
        if is_set(variable).is_some() && is_set(server).is_none() {
            found.push(ModelChoice { model: model.to_owned(), origin: ModelOrigin::Variable(variable) });
        }
    }
    let probes = LOCAL_SERVERS.map(|(name, variable, default)| {
        let address = is_set(variable).unwrap_or_else(|| default.to_owned());
        tokio::task::spawn_blocking(move || list_server_models(name, &address))
    });
    for probe in probes {
        found.extend(probe.await.unwrap_or_default());
    }
    found
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
