//! The names that most programs need: `use windlass::prelude::*;`.

pub use crate::agent::Agent;
pub use crate::event::RunEventKind;
pub use crate::model::{ScriptedModel, ScriptedResponse};
pub use crate::run::{PausedRun, RunResult};
pub use crate::session::Session;
pub use crate::tool::{RunContext, Tool, ToolContext, ToolError};
pub use serde_json::json;
pub use windlass_macros::{tool, tool_fn, toolbox};
