//! A runtime for AI agents that act. Every tool call is planned, guarded, approved, executed and journalled, so
//! that a run can wait for a person, be killed, be moved to another machine, and go on without doing anything
//! twice.
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
//!     Reply::call("c1", "weather", json!({ "city": "Oslo" })),
//!     Reply::text("Take an umbrella."),
//! ]);
//! let agent = Agent::new("guide").instructions("Help the traveller.").model(model).tools((weather,));
//!
//! assert_eq!(agent.run("What should I pack for Oslo?").await?.text(), "Take an umbrella.");
//! # Ok(()) }
//! ```
#![doc = include_str!("docs/overview.md")]

extern crate self as windlass;

pub mod agent;
mod artefact;
mod clock;
mod drive;
pub mod error;
mod event;
pub mod guardrail;
pub mod hook;
pub mod model;
pub mod run;
pub mod session;
pub mod store;
pub mod testing;
pub mod tool;

pub mod prelude;

#[doc(hidden)]
pub mod __private {
    pub use schemars;
    pub use serde;
    pub use serde_json;
}

pub use windlass_core as core;
pub use windlass_core::{Effect, Failure, How, Item, OutputContent, Pending, Usage};
pub use windlass_macros::{tool, tool_fn, toolbox};

pub use agent::Agent;
pub use artefact::{fetch_media, read_output};
pub use error::{ConfigError, DecideError, FailedRun, RestoreError, RunError, StoreError, StoreErrorKind};
pub use event::{Event, EventKind};
pub use run::{Outcome, Paused, RunBuilder, RunStream};
pub use session::{Session, SessionStore};
#[cfg(feature = "sqlite")]
pub use store::SqliteStore;
pub use store::{MemoryStore, Store};
pub use tool::{IntoTool, IntoTools, OnFailure, OnTimeout, RunContext, Tool, ToolContext, ToolError};

/// The samples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// The samples of the guide compile and run.
#[cfg(doctest)]
mod guide {
    macro_rules! pages {
        ($($name:ident $page:literal)*) => {
            $(#[doc = include_str!(concat!("../../../docs/guide/", $page))]
            pub struct $name;)*
        };
    }
    pages! {
        Quickstart "quickstart.md"
        Tools "tools.md"
        Running "running.md"
        Results "results.md"
        Streaming "streaming.md"
        Approvals "approvals.md"
        Guardrails "guardrails.md"
        Handoffs "handoffs.md"
        Sessions "sessions.md"
        Testing "testing.md"
        Guarantees "guarantees.md"
        Troubleshooting "troubleshooting.md"
    }
}
