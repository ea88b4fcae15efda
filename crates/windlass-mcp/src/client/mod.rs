//! The MCP client: connections to servers, and calls of their tools.

mod call;
mod child;
mod connection;
mod content;
mod elicitation;
mod handler;
mod http;
mod in_flight;
mod list;
mod oauth;
mod task;

pub use connection::McpConnectError;
pub use http::McpAuth;
pub use list::{McpToolInfo, ToolHints};
pub use oauth::OAuthConfig;

pub(crate) use call::{ElicitationHandler, McpCallContext, call_tool};
pub(crate) use connection::McpConnection;
pub(crate) use content::convert_result;
pub(crate) use elicitation::SCHEMA_EXTENSION;
pub(crate) use list::{TaskSupport, ToolListing};
pub(crate) use task::load_task_id;

/// The generation of the MCP protocol that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolEra {
    /// Versions up to 2025-11-25: an `initialize` handshake, a session, and requests in both directions.
    Legacy,
    /// Versions from 2026-07-28: stateless; every request is self-contained.
    Modern,
}
