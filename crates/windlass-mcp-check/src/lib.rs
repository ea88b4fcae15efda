//! Shared helpers of the MCP checks.

pub mod mischief;

use std::io::Write;
use std::path::Path;

use windlass::prelude::*;
use windlass_mcp::{McpApprovalPolicy, McpConfig, McpConnections, McpServerConfig};

/// Appends a line to a ledger file in one write. It stands for an external side effect.
pub fn append_line(ledger: &str, line: &str) {
    if let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(ledger) {
        let _written = file.write_all(format!("{line}\n").as_bytes());
    }
}

/// Returns the lines of a ledger file.
pub fn read_lines(ledger: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Creates an agent that calls the tool `build` of the server at a URL once.
pub async fn build_agent(url: &str) -> Agent {
    let servers = McpConnections::connect(McpConfig::new().server(McpServerConfig::http("works", url))).await;
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "build", json!({})),
        ScriptedResponse::text("it stands"),
    ]);
    Agent::new("builder").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never))
}
