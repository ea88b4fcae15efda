//! The MCP servers of an agent file.

#[cfg(not(feature = "mcp"))]
use serde::Deserialize;
use windlass::agent::Agent;
#[cfg(not(feature = "mcp"))]
use windlass::core::item::Item;

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
    /// Names of the prompts, with their arguments, and their descriptions.
    pub(crate) prompts: Vec<(String, String)>,
    /// Messages about servers that cannot be reached.
    pub(crate) unreachable: Vec<String>,
}

#[cfg(not(feature = "mcp"))]
pub(super) async fn connect_servers(
    agent: Agent,
    instructions: Option<String>,
    file: &AgentFile,
) -> Result<Agent, CliError> {
    if has_servers(file) { Err(mcp_not_built_error()) } else { Ok(add_instructions(agent, instructions)) }
}

#[cfg(not(feature = "mcp"))]
pub(super) async fn list_tools(file: &AgentFile) -> Result<McpToolListing, CliError> {
    if has_servers(file) { Err(mcp_not_built_error()) } else { Ok(McpToolListing::default()) }
}

#[cfg(not(feature = "mcp"))]
pub(super) async fn fetch_prompt(_: &AgentFile, _: &str, _: &[String]) -> Result<Vec<Item>, CliError> {
    Err(mcp_not_built_error())
}

#[cfg(not(feature = "mcp"))]
fn mcp_not_built_error() -> CliError {
    CliError::new("the agent uses MCP servers, but this windlass was built without MCP")
        .with_hint("build it with `--features mcp`")
}

fn add_instructions(agent: Agent, text: Option<String>) -> Agent {
    match text {
        Some(text) => agent.instructions(text),
        None => agent,
    }
}

fn has_servers(file: &AgentFile) -> bool {
    file.spec.mcp_file.is_some() || !file.spec.mcp.is_empty()
}

/// Returns the names of the tools for resources, if the agent has them.
#[cfg(feature = "mcp")]
pub(super) fn resource_tool_names(file: &AgentFile) -> &'static [&'static str] {
    let has_resources = file.spec.mcp.values().any(McpServerSpec::uses_resources);
    if has_resources { &["list_mcp_resources", "read_mcp_resource"] } else { &[] }
}

#[cfg(not(feature = "mcp"))]
pub(super) fn resource_tool_names(_: &AgentFile) -> &'static [&'static str] {
    &[]
}

#[cfg(feature = "mcp")]
pub(super) use with_servers::{connect_servers, fetch_prompt, list_tools};

#[cfg(feature = "mcp")]
mod with_servers {
    use std::path::PathBuf;
    use std::sync::Arc;

    use serde_json::Value;
    use windlass::agent::Agent;
    use windlass::core::item::{Item, Message, Role};
    use windlass::core::provenance::ContentSource;
    use windlass::tool::Tool;
    use windlass_mcp::{McpApprovalPolicy, McpConfig, McpConnections, McpEntryContext, MessageAuthor};

    use super::super::AgentFile;
    use super::{McpToolListing, add_instructions, has_servers};
    use crate::cli_error::CliError;
    use crate::terminal::print_authorisation_address;

    /// Adds the tools of the servers to the agent, and the resources and instructions of those whose table says so. A
    /// server that cannot be reached causes a warning when the run starts.
    pub(crate) async fn connect_servers(
        agent: Agent,
        instructions: Option<String>,
        file: &AgentFile,
    ) -> Result<Agent, CliError> {
        if !has_servers(file) {
            return Ok(add_instructions(agent, instructions));
        }
        let servers = McpConnections::connect(build_config(file)?).await;
        let agent = add_instructions(agent, join_instructions(instructions, &servers, file).await);
        let agent = agent.tools(resource_tools(&servers, file));
        let mut tools = servers.tools();
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

    /// Appends the instructions of the servers whose table has `instructions = true`.
    async fn join_instructions(
        own: Option<String>,
        servers: &McpConnections,
        file: &AgentFile,
    ) -> Option<String> {
        let is_used = |name: &str| file.spec.mcp.get(name).is_some_and(|entry| entry.uses_instructions());
        if !file.spec.mcp.values().any(|entry| entry.uses_instructions()) {
            return own;
        }
        let theirs = servers.server_instructions().await.into_iter().filter(|one| is_used(&one.server));
        let theirs =
            theirs.map(|one| format!("Instructions of the MCP server `{}`:\n{}", one.server, one.text));
        let all: Vec<String> = own.into_iter().chain(theirs).collect();
        (!all.is_empty()).then(|| all.join("\n\n"))
    }

    /// Returns the tools for the resources of the servers whose table has `resources = true`. The address of a resource may
    /// carry data to its server, so that reading from a server that the user does not trust requires approval.
    fn resource_tools(servers: &McpConnections, file: &AgentFile) -> Vec<Tool> {
        let used = file.spec.mcp.iter().filter(|(_, entry)| entry.uses_resources());
        let (names, trusted): (Vec<String>, Vec<bool>) =
            used.map(|(name, entry)| (name.clone(), entry.is_trusted())).unzip();
        if names.is_empty() {
            return Vec::new();
        }
        let trusted: Vec<String> = names
            .iter()
            .zip(trusted)
            .filter(|(_, is_trusted)| *is_trusted)
            .map(|(name, _)| name.clone())
            .collect();
        let tools = servers.resource_tools_of(names).into_iter().map(|tool: Tool| {
            let trusted = trusted.clone();
            tool.needs_approval_if(move |arguments: &Value| {
                let server = arguments.get("server").and_then(Value::as_str);
                server.is_some_and(|server| !trusted.iter().any(|name| name == server))
            })
        });
        file.policy().apply_to_other(tools.collect())
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
        let offered = servers.list_prompts().await.items.into_iter().map(|prompt| {
            let arguments = prompt.arguments.iter().map(|(name, is_required)| match is_required {
                true => format!(" {name}=…"),
                false => format!(" [{name}=…]"),
            });
            let name = format!("{}/{}{}", prompt.server, prompt.name, arguments.collect::<String>());
            (name, prompt.description.unwrap_or_default())
        });
        let listing =
            McpToolListing { tools: tools.collect(), prompts: offered.collect(), unreachable: missing };
        servers.close().await;
        Ok(listing)
    }

    /// Returns the messages of a prompt. They are text of the server, and marked as such.
    pub(crate) async fn fetch_prompt(
        file: &AgentFile,
        prompt: &str,
        arguments: &[String],
    ) -> Result<Vec<Item>, CliError> {
        let (server, name) = prompt.split_once('/').ok_or_else(|| {
            CliError::usage(format!("`{prompt}` is no prompt"))
                .with_hint("write SERVER/NAME; `windlass tools` lists them")
        })?;
        let arguments = arguments.iter().map(|argument| {
            argument.split_once('=').ok_or_else(|| {
                CliError::usage(format!("`{argument}` is no argument of a prompt"))
                    .with_hint("write NAME=VALUE")
            })
        });
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        let servers = McpConnections::connect(build_config(file)?).await;
        let fetched = servers.get_prompt(server, name, arguments).await;
        servers.close().await;
        let messages = fetched.map_err(|error| {
            CliError::not_found(format!("the prompt `{prompt}` cannot be fetched: {error}"))
        })?;
        let items = messages.into_iter().map(|message| {
            let role = match message.author {
                MessageAuthor::User => Role::User,
                MessageAuthor::Assistant => Role::Assistant,
            };
            Item::Message(Message::new(role, message.text).with_sources(ContentSource::Mcp))
        });
        let items: Vec<Item> = items.collect();
        match items.is_empty() {
            true => Err(CliError::not_found(format!("the prompt `{prompt}` has no messages"))),
            false => Ok(items),
        }
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
