//! The Windlass server: agents over HTTP, an inbox for approvers and an inspector in the browser.
//!
//! A worker drives the runs, so they outlive their connections and their process. The journal is the truth: events, pages
//! and the inbox are read from it. The server listens on the loopback interface unless it is told otherwise. It knows people
//! by tokens or by a trusted proxy; a server that is given no access policy makes a token and prints it.
//!
//! ```no_run
//! use windlass::prelude::*;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let agent = Agent::new("host").model(ScriptedModel::new([ScriptedResponse::text("Good morning.")]));
//! windlass_server::serve(agent).await?;
//! # Ok(()) }
//! ```

mod access;
mod addresses;
mod agent_catalogue;
mod api;
mod call_sheet;
mod compat;
mod connections;
mod login_sessions;
mod metrics;
mod pages;
mod rate_limit;
mod request_guard;
mod run_feed;
mod served_queue;
mod server;
mod spending;
mod stalled_write;
mod store_watch;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::access::{AccessEntry, AccessPolicy, AccessRole, TokenDigest, TrustedProxy, new_access_token};
pub use self::api::openapi_description;
pub use self::call_sheet::{CallPreview, PreviewFunction};
pub use self::server::{AgentServer, DEFAULT_ADDRESS, ServerError, ServerLimits, ServerStop, serve};

fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
