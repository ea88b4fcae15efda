//! Tools of MCP servers, for agents.

mod call;
mod child;
mod connection;
mod content;
mod flight;
mod handler;
mod http;
mod list;
mod oauth;
mod question;
mod task;

pub use connection::ConnectError;
pub use http::Auth;
pub use list::{Hints, ToolInfo};
pub use oauth::OAuth;

pub(crate) use call::{Answers, Caller, call};
pub(crate) use connection::Connection;
pub(crate) use content::given;
pub(crate) use list::{Listing, TaskSupport};
pub(crate) use question::PLACE;
pub(crate) use task::kept;

/// Which of the two lives of the protocol a server leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// Until 2025-11-25: a handshake, a session, and requests in both directions.
    Legacy,
    /// From 2026-07-28: every request stands for itself.
    Modern,
}
