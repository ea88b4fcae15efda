//! MCP for Windlass: the tools of MCP servers for agents, and tools and agents as an MCP server.
//!
//! A server's tool is a tool like any other: it is planned, guarded, decided about, journalled and never done twice.
//! Decisions belong to the server and the tool, whatever name the model knows it by. What a server says about its own
//! tools is a proposal; the user's policy decides.
//!
//! ```no_run
//! use windlass::prelude::*;
//! use windlass_mcp::{Config, Servers};
//!
//! # async fn example(agent: Agent) -> Result<(), Box<dyn std::error::Error>> {
//! let servers = Servers::connect(Config::read(".mcp.json")?).await;
//! for line in servers.report().await.missing() {
//!     eprintln!("{line}");
//! }
//! let agent = agent.tool_source(servers.tools());
//! # Ok(()) }
//! ```

mod client;
mod config;
mod names;
mod policy;
mod schema;
mod serve;
mod servers;
mod tools;
mod vars;

pub use client::{Auth, ConnectError, Era, Hints, OAuth, ToolInfo};
pub use config::{Config, ConfigFileError, Disabled, ServerConfig, Trust};
pub use names::Naming;
pub use policy::{Approve, Rule};
pub use serve::{
    Argument, Changes, Contents, McpServer, Message, Prompt, Resource, ServeError, Tasks, named_question,
};
pub use servers::{Report, ServerReport, ServerState, Servers, ServersError};
pub use tools::McpTools;

/// The samples of the guide compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/mcp.md")]
pub struct Guide;
