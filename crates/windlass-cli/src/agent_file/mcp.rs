//! The MCP servers that an agent's file names.

use std::collections::BTreeMap;

use serde::Deserialize;
#[cfg(not(feature = "mcp"))]
use windlass::Agent;

use super::AgentFile;
#[cfg(not(feature = "mcp"))]
use crate::problem::Problem;

/// One server: a program, or an address.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(
    not(feature = "mcp"),
    expect(dead_code, reason = "what it says is read where servers can be reached")
)]
pub(super) struct McpServer {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Whether what it says of its own tools is believed.
    #[serde(default)]
    trusted: bool,
    /// Its tools that nobody is asked about.
    #[serde(default)]
    allow: Vec<String>,
    /// Only these of its tools.
    include: Option<Vec<String>>,
    /// None of these.
    #[serde(default)]
    exclude: Vec<String>,
}

#[cfg(test)]
impl McpServer {
    pub(super) fn allowed(&self) -> &[String] {
        &self.allow
    }
}

/// What the servers of an agent have.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Their tools: name and description.
    pub(crate) tools: Vec<(String, String)>,
    /// The servers that are not there, and why.
    pub(crate) missing: Vec<String>,
}

#[cfg(not(feature = "mcp"))]
pub(super) async fn connected(agent: Agent, file: &AgentFile) -> Result<Agent, Problem> {
    if has_any(file) { Err(not_built()) } else { Ok(agent) }
}

#[cfg(not(feature = "mcp"))]
pub(super) async fn list(file: &AgentFile) -> Result<Listing, Problem> {
    if has_any(file) { Err(not_built()) } else { Ok(Listing::default()) }
}

#[cfg(not(feature = "mcp"))]
fn not_built() -> Problem {
    Problem::new("the agent names MCP servers, and this windlass was built without them")
        .hint("build it with `--features mcp`")
}

fn has_any(file: &AgentFile) -> bool {
    file.spec.mcp_file.is_some() || !file.spec.mcp.is_empty()
}

#[cfg(feature = "mcp")]
pub(super) use with_servers::{connected, list};

#[cfg(feature = "mcp")]
mod with_servers {
    use windlass::Agent;
    use windlass_mcp::{Approve, Config, ServerConfig, Servers};

    use super::super::AgentFile;
    use super::{Listing, McpServer, has_any};
    use crate::problem::Problem;

    /// The agent with the tools of its servers. A server that cannot be reached is told of when the run begins.
    pub(crate) async fn connected(agent: Agent, file: &AgentFile) -> Result<Agent, Problem> {
        if !has_any(file) {
            return Ok(agent);
        }
        let mut tools = Servers::connect(config(file)?).await.tools();
        for (name, server) in &file.spec.mcp {
            let allowed = server.allow.iter().map(|tool| (tool.clone(), Approve::Never)).collect();
            tools = tools.approve_for(name, Approve::PerTool(allowed, Box::new(Approve::Hints)));
        }
        Ok(agent.tool_source(tools))
    }

    pub(crate) async fn list(file: &AgentFile) -> Result<Listing, Problem> {
        if !has_any(file) {
            return Ok(Listing::default());
        }
        let servers = Servers::connect(config(file)?).await;
        let missing = servers.report().await.missing();
        let listed = servers.list().await;
        let tools = listed
            .iter()
            .map(|tool| (format!("mcp:{}/{}", tool.server, tool.name), tool.description.to_string()));
        let listing = Listing { tools: tools.collect(), missing };
        servers.close().await;
        Ok(listing)
    }

    fn config(file: &AgentFile) -> Result<Config, Problem> {
        let mut config = match &file.spec.mcp_file {
            Some(path) => Config::read(file.folder.join(path)).map_err(|error| {
                Problem::new(error.to_string()).hint("`mcp_file` in the agent's file names it")
            })?,
            None => Config::new(),
        };
        for (name, server) in &file.spec.mcp {
            config = config.server(one(name, server)?);
        }
        Ok(config)
    }

    fn one(name: &str, server: &McpServer) -> Result<ServerConfig, Problem> {
        let mut one = match (&server.command, &server.url) {
            (Some(command), None) => {
                ServerConfig::stdio(name, command.as_str()).args(server.args.iter().cloned())
            }
            (None, Some(url)) => ServerConfig::http(name, url.as_str()),
            _ => {
                return Err(Problem::new(format!("MCP server `{name}` needs a `command` or a `url`"))
                    .hint("a program is spoken to as a child, an address by HTTP"));
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
            one = one.include(include.iter().cloned());
        }
        Ok(one.exclude(server.exclude.iter().cloned()))
    }
}
