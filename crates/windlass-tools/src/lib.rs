//! Built-in tools for [Windlass](windlass) agents: files of a workspace, sandboxed commands, web pages, and
//! questions to a person.
//!
//! ```
//! use windlass::prelude::*;
//! use windlass_tools::Workspace;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # std::fs::write(folder.path().join("notes.txt"), "Buy rope.\n")?;
//! # let folder = folder.path();
//! let workspace = Workspace::new(folder)?;
//! let model = ScriptedModel::new([
//!     ScriptedResponse::call("c1", "read_file", json!({ "path": "notes.txt" })),
//!     ScriptedResponse::text("You need rope."),
//! ]);
//! let agent = Agent::new("clerk").model(model.clone()).tools(workspace.read_only_tools());
//!
//! assert_eq!(agent.run("What do I need?").await?.output_text()?, "You need rope.");
//! assert!(model.requests()[1].input_text()[2].ends_with("lines 1 to 1 of 1\nBuy rope.\n"));
//! # Ok(()) }
//! ```
//!
//! | tool | effect | approval |
//! | --- | --- | --- |
//! | `read_file`, `list_files`, `search_files` | pure | never |
//! | `write_file`, `patch_file` | once; reconciled from the disk after a crash | always, unless [`Workspace::approve_writes`] changes it |
//! | `run_command` | once; reconciled by a person after a crash | always, unless [`Workspace::approve_commands`] changes it |
//! | `git_commit` | once; reconciled by a person after a crash | as `run_command` |
//! | `load_skill`, `read_skill_file` ([`Skills`]) | pure | never |
//! | `run_skill_script` | once; reconciled by a person after a crash | as `run_command` |
//! | `fetch_url` ([`WebFetcher`]) | pure | always, unless [`WebFetcher::approve`] changes it |
//! | `ask_person` ([`ask_person`]) | pure; the question is journalled | none; the tool itself asks a person |
//!
//! Messages for the model contain only paths of the workspace, and say how to correct the call.

#![cfg(unix)]

mod ask;
mod command;
mod edit;
mod error;
mod files;
mod find;
mod git;
mod policy;
mod protection;
mod read;
pub mod sandbox;
mod skills;
mod text;
pub mod tool_policy;
#[cfg(feature = "fetch")]
mod web;
mod workspace;

pub use ask::ask_person;
pub use edit::{FileChange, FileDiff};
pub use error::{SkillError, ToolRefusal, WorkspaceError};
pub use policy::{BuiltInApprovalPolicy, ToolLimits};
pub use sandbox::Sandbox;
pub use skills::{Skill, Skills};
pub use tool_policy::ToolPolicy;
#[cfg(feature = "fetch")]
pub use web::WebFetcher;
#[cfg(feature = "fetch")]
pub use windlass_net as net;
pub use workspace::Workspace;

/// Returns the conflict key of a path: calls of one model response with the same key run in the model's order.
fn conflict_key(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    format!("file {}", parts.join("/"))
}
