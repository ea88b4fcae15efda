//! MCP for Windlass: an MCP client that gives agents the tools of MCP servers, and an MCP server that exposes
//! tools and agents.
//!
//! A call of an MCP tool takes the same path as any other tool call: planning, guardrails, approval, journal,
//! and no repetition after a crash. Approvals are keyed by server and tool, independent of the name that the
//! model sees. A server's annotations of its own tools are hints only; the user's policy decides.
//!
//! ```no_run
//! use windlass::prelude::*;
//! use windlass_mcp::{McpConfig, McpConnections};
//!
//! # async fn example(agent: Agent) -> Result<(), Box<dyn std::error::Error>> {
//! let servers = McpConnections::connect(McpConfig::read(".mcp.json")?).await;
//! for line in servers.report().await.unavailable_servers() {
//!     eprintln!("{line}");
//! }
//! let agent = agent.tool_source(servers.tools());
//! # Ok(()) }
//! ```

mod client;
mod config;
mod names;
mod policy;
mod resource_tools;
mod schema;
mod serve;
mod server_entry;
mod servers;
mod tools;
mod variables;

pub use client::{
    ElicitationAnswer, FetchedPromptMessage, FetchedResource, McpAuth, McpCatalogue, McpConnectError,
    McpListProblem, McpPromptInfo, McpRequestError, McpResourceInfo, McpToolInfo, MessageAuthor, OAuthConfig,
    OAuthTokenFile, OAuthTokenStore, ProtocolEra, ResourceBody, SamplingRequest, SamplingRequestMessage,
    SamplingResponse, ToolHints,
};
pub use config::{DisabledServer, McpConfig, McpConfigError, McpServerConfig, ServerTrust};
pub use names::ToolNaming;
pub use policy::{McpApprovalPolicy, McpApprovalRule};
pub use serve::{
    HttpLimits, McpAuthRefusal, McpClientIdentity, McpHttpRequest, McpPrompt, McpPromptArgument,
    McpPromptMessage, McpResource, McpResourceContents, McpServeError, McpServer, ResourceUpdateNotifier,
    TaskPolicy, named_question,
};
pub use server_entry::{McpEntryContext, McpServerEntry};
pub use servers::{
    McpConnections, McpServerState, McpServerStatus, McpStatusReport, ServerInstructions, StrictConnectError,
};
pub use tools::McpTools;
pub use windlass_net as net;
