//! The servers of an application, connected together and ended together.

use std::sync::Arc;

use futures_util::future::join_all;

use crate::client::{ConnectError, Connection, Era, ToolInfo};
use crate::config::{Config, Disabled};
use crate::tools::McpTools;

/// Servers that are connected, or will be when they can be. Copies stand for the same servers.
///
/// Dropping the last copy, and the agents that were given its tools, ends the servers that are child processes;
/// [`Servers::close`] does it at once. They are ended too when this process is killed.
#[derive(Clone)]
pub struct Servers {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Vec<Arc<Connection>>,
    disabled: Vec<Disabled>,
    strictness: Strictness,
}

/// What a server that is not there means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// Its tools are not there, and a warning says why.
    Lenient,
    /// The agent does not run.
    Strict,
}

/// What there is and what there is not.
#[derive(Clone, Debug)]
pub struct Report {
    /// The servers, in the order of the configuration, and then those that were left out.
    pub servers: Vec<ServerReport>,
}

/// What is known of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    /// Its name.
    pub server: String,
    /// How it is.
    pub state: ServerState,
    /// What is wrong with what it lists: tools that were left out, and why.
    pub warnings: Vec<String>,
}

/// How a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It is connected.
    Ready {
        /// Which life of the protocol it leads.
        era: Option<Era>,
        /// How many of its tools are taken.
        tools: usize,
    },
    /// It cannot be reached now. It is tried again when it is needed.
    Failed {
        /// Why.
        why: String,
    },
    /// It is left out.
    Disabled {
        /// Why.
        why: String,
    },
}

/// Why not all servers are there, where all were wanted.
#[derive(Clone, Debug, thiserror::Error)]
#[error("MCP server `{server}` is not there: {why}")]
pub struct ServersError {
    /// The first server that is not there.
    pub server: String,
    /// Why.
    pub why: String,
}

impl Servers {
    /// Connects to all servers at once. One that cannot be reached is in the report, and the others are there; it is
    /// tried again when its tools are wanted.
    pub async fn connect(config: Config) -> Self {
        let servers = Self::new(config, Strictness::Lenient);
        servers.report().await;
        servers
    }

    /// Connects to all servers, or to none: where one is left out or cannot be reached, those that were opened are
    /// closed. An agent with these servers does not run while one is missing.
    pub async fn connect_strict(config: Config) -> Result<Self, ServersError> {
        let servers = Self::new(config, Strictness::Strict);
        for server in servers.report().await.servers {
            let why = match server.state {
                ServerState::Ready { .. } if server.warnings.is_empty() => continue,
                ServerState::Ready { .. } => server.warnings.join("; "),
                ServerState::Failed { why } | ServerState::Disabled { why } => why,
            };
            servers.close().await;
            return Err(ServersError { server: server.server, why });
        }
        Ok(servers)
    }

    fn new(config: Config, strictness: Strictness) -> Self {
        let connections =
            config.servers.into_iter().map(|server| Arc::new(Connection::new(server))).collect();
        Self { inner: Arc::new(Inner { connections, disabled: config.disabled, strictness }) }
    }

    /// What there is and what there is not, asked now.
    pub async fn report(&self) -> Report {
        let asked = self.inner.connections.iter().map(|connection| async move {
            let (state, warnings) = match connection.listing().await {
                Ok(listing) => {
                    let era = connection.era().await;
                    (ServerState::Ready { era, tools: listing.tools.len() }, listing.warnings.clone())
                }
                Err(why) => (ServerState::Failed { why }, Vec::new()),
            };
            ServerReport { server: connection.config.name().to_owned(), state, warnings }
        });
        let mut servers = join_all(asked).await;
        servers.extend(self.inner.disabled.iter().map(|disabled| ServerReport {
            server: disabled.server.clone(),
            state: ServerState::Disabled { why: disabled.why.clone() },
            warnings: Vec::new(),
        }));
        Report { servers }
    }

    /// Their tools, for an agent: `agent.tool_source(servers.tools())`.
    pub fn tools<C>(&self) -> McpTools<C> {
        McpTools::new(self.clone())
    }

    /// What all the servers list now.
    pub async fn list(&self) -> Vec<Arc<ToolInfo>> {
        let listings = join_all(self.inner.connections.iter().map(|connection| connection.listing())).await;
        listings.into_iter().flatten().flat_map(|listing| listing.tools.clone()).collect()
    }

    /// Lets go of the connection to a server and makes it anew. Calls that are under way on it are lost.
    pub async fn reconnect(&self, server: &str) -> Result<(), ConnectError> {
        let found = self.inner.connections.iter().find(|connection| connection.config.name() == server);
        let Some(connection) = found else { return Err(ConnectError::Unknown { server: server.to_owned() }) };
        connection.reset().await;
        connection.live().await.map(|_| ())
    }

    /// The processes that were started for a server: its own, and the one that sees to its end.
    pub async fn processes(&self, server: &str) -> Vec<u32> {
        match self.inner.connections.iter().find(|connection| connection.config.name() == server) {
            Some(connection) => connection.processes().await,
            None => Vec::new(),
        }
    }

    /// Ends all connections and child processes, for good. Doing it again does nothing.
    pub async fn close(&self) {
        join_all(self.inner.connections.iter().map(|connection| connection.close())).await;
    }

    pub(crate) fn connections(&self) -> &[Arc<Connection>] {
        &self.inner.connections
    }

    pub(crate) fn strictness(&self) -> Strictness {
        self.inner.strictness
    }
}

impl Report {
    /// The servers that are not there, each in one line.
    pub fn missing(&self) -> Vec<String> {
        let lines = self.servers.iter().filter_map(|server| match &server.state {
            ServerState::Ready { .. } => None,
            ServerState::Failed { why } => {
                Some(format!("MCP server `{}` cannot be reached: {why}", server.server))
            }
            ServerState::Disabled { why } => {
                Some(format!("MCP server `{}` is left out: {why}", server.server))
            }
        });
        lines.collect()
    }
}
