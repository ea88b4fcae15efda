//! Windlass: a runtime for AI agents that act.

extern crate self as windlass;

pub mod agent;
mod artefact;
mod clock;
mod drive;
mod error;
mod event;
pub mod guardrail;
pub mod hook;
pub mod model;
pub mod run;
mod session;
pub mod store;
pub mod tool;

pub mod prelude;

#[doc(hidden)]
pub mod __private {
    pub use schemars;
    pub use serde;
    pub use serde_json;
}

pub use windlass_core as core;
pub use windlass_macros::{tool, tool_fn, toolbox};
pub use windlass_core::{Effect, Failure, How, Item, OutputContent, Pending, Usage};

pub use agent::Agent;
pub use artefact::read_output;
pub use error::{ConfigError, DecideError, FailedRun, RestoreError, RunError, StoreError};
pub use event::{Event, EventKind};
pub use run::{Outcome, Paused, RunBuilder, RunStream};
pub use session::{MemorySessions, Session, SessionStore};
pub use store::{MemoryStore, Store};
pub use tool::{IntoTool, IntoTools, OnFailure, OnTimeout, RunContext, Tool, ToolContext, ToolError};
