//! The MCP servers of an application: connected together and closed together.

use std::sync::Arc;

use futures_util::future::join_all;

use windlass::tool::Tool;

use crate::client::{
    FetchedPromptMessage, FetchedResource, McpCatalogue, McpConnectError, McpConnection, McpPromptInfo,
    McpRequestError, McpResourceInfo, McpToolInfo, ProtocolEra,
};
use crate::config::{DisabledServer, McpConfig, ServerTrust};
use crate::resource_tools;
use crate::tools::McpTools;

/// Connections to MCP servers. Clones share the same connections; a lost connection is re-established on demand.
///
/// Dropping the last clone, and the agents that use its tools, stops the servers that are child processes;
/// [`McpConnections::close`] stops them at once. They also stop if this process is killed.
#[derive(Clone)]
pub struct McpConnections {
    inner: Arc<McpConnectionSet>,
}

struct McpConnectionSet {
    connections: Vec<Arc<McpConnection>>,
    disabled: Vec<DisabledServer>,
    missing_policy: MissingServerPolicy,
}

/// The reaction to a server that is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingServerPolicy {
    /// The run continues without the server's tools, with a warning.
    Warn,
    /// The run fails.
    Fail,
}

/// The status of all configured servers.
#[derive(Clone, Debug)]
pub struct McpStatusReport {
    /// The servers in the order of the configuration, followed by the disabled ones.
    pub servers: Vec<McpServerStatus>,
}

/// The status of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpServerStatus {
    /// The server's name.
    pub server: String,
    /// The connection state.
    pub state: McpServerState,
    /// Warnings about the server's tool list, such as tools that were ignored and the reason.
    pub warnings: Vec<String>,
}

/// The connection state of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum McpServerState {
    /// The server is connected.
    Ready {
        /// The protocol era of the server.
        era: Option<ProtocolEra>,
        /// Number of tools offered to agents.
        tools: usize,
    },
    /// The server cannot be reached at the moment; the next use retries.
    Failed {
        /// The reason.
        reason: String,
    },
    /// The configuration disables the server, or its entry is invalid.
    Disabled {
        /// The reason.
        reason: String,
    },
}

/// The instructions of a server for its use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInstructions {
    /// The server's name.
    pub server: String,
    /// The instructions.
    pub text: String,
    /// The user's trust in the server.
    pub trust: ServerTrust,
}

/// The error of [`McpConnections::connect_strict`]: a server is unavailable.
#[derive(Clone, Debug, thiserror::Error)]
#[error("MCP server `{server}` is unavailable: {reason}")]
pub struct StrictConnectError {
    /// The first unavailable server.
    pub server: String,
    /// The reason.
    pub reason: String,
}

impl McpConnections {
    /// Connects to all servers concurrently. A server that cannot be reached appears in the report and does not
    /// affect the others; it is retried when its tools are needed.
    pub async fn connect(config: McpConfig) -> Self {
        let servers = Self::new(config, MissingServerPolicy::Warn);
        servers.report().await;
        servers
    }

    /// Connects to all servers or to none. An agent with these servers does not run while one is unavailable.
    ///
    /// # Errors
    ///
    /// Returns an error if a server is disabled, cannot be reached or lists an invalid tool; connections that were
    /// opened are closed.
    pub async fn connect_strict(config: McpConfig) -> Result<Self, StrictConnectError> {
        let servers = Self::new(config, MissingServerPolicy::Fail);
        for server in servers.report().await.servers {
            let why = match server.state {
                McpServerState::Ready { .. } if server.warnings.is_empty() => continue,
                McpServerState::Ready { .. } => server.warnings.join("; "),
                McpServerState::Failed { reason: why } | McpServerState::Disabled { reason: why } => why,
            };
            servers.close().await;
            return Err(StrictConnectError { server: server.server, reason: why });
        }
        Ok(servers)
    }

    fn new(config: McpConfig, strictness: MissingServerPolicy) -> Self {
        let connections =
            config.servers.into_iter().map(|server| Arc::new(McpConnection::new(server))).collect();
        Self {
            inner: Arc::new(McpConnectionSet {
                connections,
                disabled: config.disabled,
                missing_policy: strictness,
            }),
        }
    }

    /// Returns the current status of all servers, connecting to them if necessary.
    pub async fn report(&self) -> McpStatusReport {
        let asked = self.inner.connections.iter().map(|connection| async move {
            let (state, warnings) = match connection.tool_listing().await {
                Ok(listing) => {
                    let era = connection.era().await;
                    (McpServerState::Ready { era, tools: listing.tools.len() }, listing.warnings.clone())
                }
                Err(why) => (McpServerState::Failed { reason: why }, Vec::new()),
            };
            McpServerStatus { server: connection.config.name().to_owned(), state, warnings }
        });
        let mut servers = join_all(asked).await;
        servers.extend(self.inner.disabled.iter().map(|disabled| McpServerStatus {
            server: disabled.server.clone(),
            state: McpServerState::Disabled { reason: disabled.reason.clone() },
            warnings: Vec::new(),
        }));
        McpStatusReport { servers }
    }

    /// Returns the instructions of the connected servers for their use, in the order of the configuration. They are text
    /// from elsewhere: an application that adds them to an agent's instructions trusts the server.
    pub async fn server_instructions(&self) -> Vec<ServerInstructions> {
        let mut all = Vec::new();
        for connection in &self.inner.connections {
            if let Ok(live) = connection.live_connection().await
                && let Some(text) = &live.instructions
            {
                all.push(ServerInstructions {
                    server: connection.config.name().to_owned(),
                    text: text.clone(),
                    trust: connection.config.trust,
                });
            }
        }
        all
    }

    /// Returns the servers' tools as a tool source: `agent.tool_source(servers.tools())`.
    pub fn tools<C>(&self) -> McpTools<C> {
        McpTools::new(self.clone())
    }

    /// Returns the tools that the reachable servers currently list.
    pub async fn list_tools(&self) -> Vec<Arc<McpToolInfo>> {
        let listings =
            join_all(self.inner.connections.iter().map(|connection| connection.tool_listing())).await;
        listings.into_iter().flatten().flat_map(|listing| listing.tools.clone()).collect()
    }

    fn connection(&self, server: &str) -> Result<&Arc<McpConnection>, McpConnectError> {
        let found = self.inner.connections.iter().find(|connection| connection.config.name() == server);
        found.ok_or_else(|| McpConnectError::UnknownServer { server: server.to_owned() })
    }

    /// Returns the prompts of the servers, and the servers whose list is missing or incomplete.
    pub async fn list_prompts(&self) -> McpCatalogue<McpPromptInfo> {
        let asked = self.inner.connections.iter().map(|connection| async move {
            (connection.config.name().to_owned(), connection.list_prompts().await)
        });
        McpCatalogue::from_lists(join_all(asked).await)
    }

    /// Returns the messages of a prompt, for the input of a run.
    ///
    /// # Errors
    ///
    /// Returns an error if the server is not configured, cannot be reached, or refuses.
    pub async fn get_prompt<K: Into<String>, V: Into<String>>(
        &self,
        server: &str,
        prompt: &str,
        arguments: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Vec<FetchedPromptMessage>, McpRequestError> {
        let arguments = arguments.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        self.connection(server)?.get_prompt(prompt, arguments).await
    }

    /// Returns the resources, and the templates of resources, of the servers, and the servers whose list is missing or
    /// incomplete.
    pub async fn list_resources(&self) -> McpCatalogue<McpResourceInfo> {
        let asked = self.inner.connections.iter().map(|connection| async move {
            (connection.config.name().to_owned(), connection.list_resources().await)
        });
        McpCatalogue::from_lists(join_all(asked).await)
    }

    /// Returns the contents of a resource, for example for an agent's instructions.
    ///
    /// # Errors
    ///
    /// Returns an error if the server is not configured, cannot be reached, or refuses.
    pub async fn read_resource(
        &self,
        server: &str,
        uri: &str,
    ) -> Result<Vec<FetchedResource>, McpRequestError> {
        self.connection(server)?.read_resource(uri).await
    }

    /// Returns two tools with which the model lists and reads the servers' resources: `list_mcp_resources` and
    /// `read_mcp_resource`. Reading has no side effects by the protocol, so both are pure.
    pub fn resource_tools<C: Send + Sync + 'static>(&self) -> Vec<Tool<C>> {
        let all = self.inner.connections.iter().map(|connection| connection.config.name().to_owned());
        resource_tools::build(self, all.collect())
    }

    /// As [`McpConnections::resource_tools`], for the resources of these servers only.
    pub fn resource_tools_of<C: Send + Sync + 'static, S: Into<String>>(
        &self,
        servers: impl IntoIterator<Item = S>,
    ) -> Vec<Tool<C>> {
        resource_tools::build(self, servers.into_iter().map(Into::into).collect())
    }

    /// Closes the connection to a server and reconnects. Calls in flight on it are lost.
    pub async fn reconnect(&self, server: &str) -> Result<(), McpConnectError> {
        let connection = self.connection(server)?;
        connection.reset().await;
        connection.live_connection().await.map(|_| ())
    }

    /// Returns the process ids of a server that is a child process: the server's and its watchdog's.
    pub async fn process_ids(&self, server: &str) -> Vec<u32> {
        match self.inner.connections.iter().find(|connection| connection.config.name() == server) {
            Some(connection) => connection.process_ids().await,
            None => Vec::new(),
        }
    }

    /// Closes all connections and stops all child processes permanently. Idempotent.
    pub async fn close(&self) {
        join_all(self.inner.connections.iter().map(|connection| connection.close())).await;
    }

    pub(crate) fn connections(&self) -> &[Arc<McpConnection>] {
        &self.inner.connections
    }

    pub(crate) fn missing_server_policy(&self) -> MissingServerPolicy {
        self.inner.missing_policy
    }
}

impl McpStatusReport {
    /// Returns one line for each unavailable or disabled server, with the reason.
    pub fn unavailable_servers(&self) -> Vec<String> {
        let lines = self.servers.iter().filter_map(|server| match &server.state {
            McpServerState::Ready { .. } => None,
            McpServerState::Failed { reason: why } => {
                Some(format!("MCP server `{}` cannot be reached: {why}", server.server))
            }
            McpServerState::Disabled { reason: why } => {
                Some(format!("MCP server `{}` is disabled: {why}", server.server))
            }
        });
        lines.collect()
    }
}
