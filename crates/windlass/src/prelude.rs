//! What most programs need: `use windlass::prelude::*;`.

pub use crate::agent::Agent;
pub use crate::event::EventKind;
pub use crate::model::{Reply, ScriptedModel};
pub use crate::run::{Outcome, Paused};
pub use crate::session::Session;
pub use crate::tool::{RunContext, Tool, ToolContext, ToolError};
pub use serde_json::json;
pub use windlass_macros::{tool, tool_fn, toolbox};
