//! A runtime for AI agents that act. Every tool call is planned, guarded, approved, executed and journalled, so
//! that a run can wait for a person, crash, move to another machine, and resume without repeating an effect.
//!
//! ```
//! use windlass::prelude::*;
//!
//! /// Current weather for a city.
//! #[tool(effect = pure)]
//! async fn weather(city: String) -> String {
//!     format!("rain in {city}")
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = ScriptedModel::new([
//!     ScriptedResponse::call("c1", "weather", json!({ "city": "Oslo" })),
//!     ScriptedResponse::text("Take an umbrella."),
//! ]);
//! let agent = Agent::new("guide").instructions("Help the traveller.").model(model).tool(weather);
//!
//! assert_eq!(agent.run("What should I pack for Oslo?").await?.output_text()?, "Take an umbrella.");
//! # Ok(()) }
//! ```
#![doc = include_str!("docs/overview.md")]

extern crate self as windlass;

pub mod agent;
pub mod artefact;
mod clock;
pub mod context;
mod drive;
pub mod error;
pub mod event;
pub mod fleet;
pub mod guardrail;
pub mod hook;
mod journal;
mod lost_secrets;
pub mod model;
mod observe;
mod receipts;
mod redaction;
pub mod run;
mod secret_mask;
pub mod session;
pub mod store;
mod tasks;
pub mod testing;
pub mod tool;

pub mod prelude;
pub mod price;

#[doc(hidden)]
pub mod __private {
    pub use schemars;
    pub use serde;
    pub use serde_json;
}

pub use futures_util::future::BoxFuture;
pub use windlass_core as core;
pub use windlass_macros::{tool, tool_fn, toolbox};

/// Locks a mutex, also after a panic of another holder: what it guards is valid after every statement.
fn lock_unpoisoned<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
