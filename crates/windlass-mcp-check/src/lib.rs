//! What the checks of MCP share.

use std::io::Write;
use std::path::Path;

use windlass::prelude::*;
use windlass_mcp::{Approve, Config, ServerConfig, Servers};

/// Adds a line to a file, whole. It stands for an effect in the outside world.
pub fn note(ledger: &str, line: &str) {
    if let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(ledger) {
        let _written = file.write_all(format!("{line}\n").as_bytes());
    }
}

/// The lines of such a file.
pub fn noted(ledger: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// An agent that has something built by a server at an address, and says what came of it.
pub async fn builder(url: &str) -> Agent {
    let servers = Servers::connect(Config::new().server(ServerConfig::http("works", url))).await;
    let model = ScriptedModel::new([Reply::call("c1", "build", json!({})), Reply::text("it stands")]);
    Agent::new("builder").model(model).tool_source(servers.tools().approve(Approve::Never))
}
