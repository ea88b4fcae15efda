//! The MCP client: connections to servers, and calls of their tools.

mod call;
mod catalogue;
mod child;
mod connect;
mod connection;
mod content;
mod elicitation;
mod event_stream;
mod framing;
mod handler;
mod http;
mod in_flight;
mod legacy_sse;
mod list;
mod oauth;
mod oauth_client;
mod oauth_redirect;
mod server_requests;
mod stdio;
mod task;
mod token_store;

#[cfg(test)]
mod fuzz_tests;

pub use catalogue::{
    FetchedPromptMessage, FetchedResource, McpCatalogue, McpListProblem, McpPromptInfo, McpRequestError,
    McpResourceInfo, ResourceBody,
};
pub use connection::McpConnectError;
pub use elicitation::ElicitationAnswer;
pub use http::McpAuth;
pub use list::{McpToolInfo, ToolHints};
pub use oauth::OAuthConfig;
pub use server_requests::{MessageAuthor, SamplingRequest, SamplingRequestMessage, SamplingResponse};
pub use token_store::{OAuthTokenFile, OAuthTokenStore};

pub(crate) use call::{
    CANCEL_CALL_METHOD, ElicitationHandler, IDEMPOTENCY_META_KEY, KEYED_CALLS_EXTENSION, McpCallContext,
    authorisation_allowance, call_tool,
};
pub(crate) use connection::McpConnection;
pub(crate) use content::convert_result;
pub(crate) use elicitation::SCHEMA_EXTENSION;
pub(crate) use list::{TaskSupport, ToolListing};
pub(crate) use server_requests::ServerRequestPolicy;
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
