//! Built-in tools for [Windlass](windlass) agents: files of a workspace, commands in a restricted child, pages
//! of the web, questions to a person.
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
//!     Reply::call("c1", "read_file", json!({ "path": "notes.txt" })),
//!     Reply::text("You need rope."),
//! ]);
//! let agent = Agent::new("clerk").model(model.clone()).tools(workspace.reading_tools());
//!
//! assert_eq!(agent.run("What do I need?").await?.text(), "You need rope.");
//! assert!(model.requests()[1].input_text()[2].ends_with("lines 1 to 1 of 1\nBuy rope.\n"));
//! # Ok(()) }
//! ```
//!
//! | tool | effect | a person is asked |
//! | --- | --- | --- |
//! | `read_file`, `list_files`, `search_files` | pure | never |
//! | `write_file`, `patch_file` | once; after a crash the disk is asked what happened | always, or as [`Workspace::approve_writes`] says |
//! | `run_command` | once; after a crash a person says what happened | always, or as [`Workspace::approve_commands`] says |
//! | `fetch_url` ([`Web`]) | pure | always, or as [`Web::approve`] says |
//! | `ask_person` ([`ask_person`]) | pure; the question stands in the journal | it is a question to a person |
//!
//! What the model is told names paths of the workspace only, and says what to do.

#![cfg(unix)]

mod ask;
mod command;
mod edit;
mod error;
mod files;
mod find;
mod policy;
mod read;
pub mod sandbox;
mod text;
#[cfg(feature = "fetch")]
mod web;
mod workspace;

pub use ask::ask_person;
pub use edit::{Change, Diff};
pub use error::{Refusal, WorkspaceError};
pub use policy::{Approve, Limits};
pub use sandbox::Sandbox;
#[cfg(feature = "fetch")]
pub use web::Web;
pub use workspace::Workspace;

/// Calls of one answer that name the same file keep the model's order.
fn conflict_key(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    format!("file {}", parts.join("/"))
}

/// The samples of the guide compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/built-in-tools.md")]
pub struct BuiltInTools;
