//! The MCP servers of an agent file.

#[cfg(not(feature = "mcp"))]
use serde::Deserialize;
#[cfg(not(feature = "mcp"))]
use windlass::agent::Agent;

use super::AgentFile;
#[cfg(not(feature = "mcp"))]
use crate::cli_error::CliError;

/// The table of one server.
#[cfg(feature = "mcp")]
pub(super) use windlass_mcp::McpServerEntry as McpServerSpec;

/// The table of one server, of which a build without MCP reads nothing but the allowed tools.
#[cfg(not(feature = "mcp"))]
#[derive(Debug, Deserialize)]
pub(super) struct McpServerSpec {
    /// Tools that require no approval, unless the agent file has a policy.
    #[serde(default)]
    #[cfg_attr(not(test), expect(dead_code, reason = "only used with the feature `mcp`"))]
    allow: Vec<String>,
}

#[cfg(all(test, not(feature = "mcp")))]
impl McpServerSpec {
    pub(super) fn allowed_tools(&self) -> &[String] {
        &self.allow
    }
}

/// The tools of an agent's MCP servers.
#[derive(Debug, Default)]
pub(crate) struct McpToolListing {
    /// Names and descriptions of the tools.
    pub(crate) tools: Vec<(String, String)>,
    /// Messages about servers that cannot be reached.
    pub(crate) unreachable: Vec<String>,
}

#[cfg(not(feature = "mcp"))]
pub(super) async fn connect_servers(agent: Agent, file: &AgentFile) -> Result<Agent, CliError> {
    if has_servers(file) { Err(mcp_not_built_error()) } else { Ok(agent) }
}

#[cfg(not(feature = "mcp"))]
pub(super) async fn list_tools(file: &AgentFile) -> Result<McpToolListing, CliError> {
    if has_servers(file) { Err(mcp_not_built_error()) } else { Ok(McpToolListing::default()) }
}

#[cfg(not(feature = "mcp"))]
fn mcp_not_built_error() -> CliError {
    CliError::new("the agent uses MCP servers, but this windlass was built without MCP")
        .with_hint("build it with `--features mcp`")
}

fn has_servers(file: &AgentFile) -> bool {
    file.spec.mcp_file.is_some() || !file.spec.mcp.is_empty()
}

#[cfg(feature = "mcp")]
pub(super) use with_servers::{connect_servers, list_tools};

#[cfg(feature = "mcp")]
mod with_servers {
    use std::path::PathBuf;
    use std::sync::Arc;

    use windlass::agent::Agent;
    use windlass_mcp::{McpApprovalPolicy, McpConfig, McpConnections, McpEntryContext};

    use super::super::AgentFile;
    use super::{McpToolListing, has_servers};
    use crate::cli_error::CliError;
    use crate::terminal::print_authorisation_address;

    /// Adds the tools of the servers to the agent. A server that cannot be reached causes a warning when the
    /// run starts.
    pub(crate) async fn connect_servers(agent: Agent, file: &AgentFile) -> Result<Agent, CliError> {
        if !has_servers(file) {
            return Ok(agent);
        }
        let mut tools = McpConnections::connect(build_config(file)?).await.tools();
        for (name, server) in &file.spec.mcp {
            let allowed =
                server.allowed_tools().iter().map(|tool| (tool.clone(), McpApprovalPolicy::Never)).collect();
            tools = tools
                .approve_for(name, McpApprovalPolicy::PerTool(allowed, Box::new(McpApprovalPolicy::ByHints)));
        }
        Ok(match file.policy().rules() {
            Some(policy) => agent.tool_source(policy.apply_to_source(tools)),
            None => agent.tool_source(tools),
        })
    }

    pub(crate) async fn list_tools(file: &AgentFile) -> Result<McpToolListing, CliError> {
        if !has_servers(file) {
            return Ok(McpToolListing::default());
        }
        let servers = McpConnections::connect(build_config(file)?).await;
        let missing = servers.report().await.unavailable_servers();
        let listed = servers.list_tools().await;
        let tools = listed
            .iter()
            .map(|tool| (format!("mcp:{}/{}", tool.server, tool.name), tool.description.to_string()));
        let listing = McpToolListing { tools: tools.collect(), unreachable: missing };
        servers.close().await;
        Ok(listing)
    }

    fn build_config(file: &AgentFile) -> Result<McpConfig, CliError> {
        let mut config = match &file.spec.mcp_file {
            Some(path) => McpConfig::read(file.folder.join(path)).map_err(|error| {
                CliError::new(error.to_string()).with_hint("check `mcp_file` in the agent file")
            })?,
            None => McpConfig::new(),
        };
        let context = McpEntryContext {
            folder: &file.folder,
            variable: &|name| std::env::var(name).ok(),
            token_file: token_file(),
            announce_url: Arc::new(print_authorisation_address),
        };
        for (name, server) in &file.spec.mcp {
            config = config.server(server.to_config(name, &context).map_err(|why| {
                CliError::new(format!("MCP server `{name}` is not configured correctly: {why}"))
                    .with_hint(format!("check `[mcp.{name}]` in the agent file"))
            })?);
        }
        Ok(config)
    }

    /// Returns the file of OAuth credentials in the user's state folder.
    fn token_file() -> PathBuf {
        let state = std::env::var_os("XDG_STATE_HOME").filter(|folder| !folder.is_empty());
        let state = state.map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(".local/state")));
        state.unwrap_or_default().join("windlass/mcp-tokens.json")
    }
}
