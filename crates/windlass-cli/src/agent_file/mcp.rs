//! The MCP servers of an agent file.

use std::collections::BTreeMap;

use serde::Deserialize;
#[cfg(not(feature = "mcp"))]
use windlass::agent::Agent;

use super::AgentFile;
#[cfg(not(feature = "mcp"))]
use crate::cli_error::CliError;

/// The configuration of one server: a command (stdio) or a URL (HTTP).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "mcp"), expect(dead_code, reason = "only used with the feature `mcp`"))]
pub(super) struct McpServerSpec {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// True if the server's own annotations of its tools are trusted.
    #[serde(default)]
    trusted: bool,
    /// Tools that require no approval.
    #[serde(default)]
    allow: Vec<String>,
    /// Tools to offer; all if absent.
    include: Option<Vec<String>>,
    /// Tools to leave out.
    #[serde(default)]
    exclude: Vec<String>,
}

#[cfg(test)]
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
    use windlass::agent::Agent;
    use windlass_mcp::{McpApprovalPolicy, McpConfig, McpConnections, McpServerConfig};

    use super::super::AgentFile;
    use super::{McpServerSpec, McpToolListing, has_servers};
    use crate::cli_error::CliError;

    /// Adds the tools of the servers to the agent. A server that cannot be reached causes a warning when the
    /// run starts.
    pub(crate) async fn connect_servers(agent: Agent, file: &AgentFile) -> Result<Agent, CliError> {
        if !has_servers(file) {
            return Ok(agent);
        }
        let mut tools = McpConnections::connect(build_config(file)?).await.tools();
        for (name, server) in &file.spec.mcp {
            let allowed = server.allow.iter().map(|tool| (tool.clone(), McpApprovalPolicy::Never)).collect();
            tools = tools
                .approve_for(name, McpApprovalPolicy::PerTool(allowed, Box::new(McpApprovalPolicy::ByHints)));
        }
        Ok(agent.tool_source(tools))
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
        for (name, server) in &file.spec.mcp {
            config = config.server(build_server_config(name, server)?);
        }
        Ok(config)
    }

    fn build_server_config(name: &str, server: &McpServerSpec) -> Result<McpServerConfig, CliError> {
        let mut one = match (&server.command, &server.url) {
            (Some(command), None) => {
                McpServerConfig::stdio(name, command.as_str()).args(server.args.iter().cloned())
            }
            (None, Some(url)) => McpServerConfig::http(name, url.as_str()),
            _ => {
                return Err(CliError::new(format!("MCP server `{name}` needs a `command` or a `url`"))
                    .with_hint(
                        "`command` starts a local server (stdio), `url` connects to a remote one (HTTP)",
                    ));
            }
        };
        for (variable, value) in &server.env {
            one = one.env(variable.as_str(), value.as_str());
        }
        for (header, value) in &server.headers {
            one = one.header(header.as_str(), value.as_str());
        }
        if server.trusted {
            one = one.trusted();
        }
        if let Some(include) = &server.include {
            one = one.include_tools(include.iter().cloned());
        }
        Ok(one.exclude_tools(server.exclude.iter().cloned()))
    }
}
