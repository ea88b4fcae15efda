//! The protocol between the program and its helper: messages of one JSON line each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{NetworkAccess, ResourceLimits, SandboxRequirement};

/// A command with its sandbox settings, sent to the helper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SandboxedCommand {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    /// The workspace.
    pub(crate) root: PathBuf,
    /// The working directory, relative to the workspace.
    pub(crate) folder: String,
    pub(crate) readable: Vec<PathBuf>,
    pub(crate) writable: Vec<PathBuf>,
    pub(crate) network: NetworkAccess,
    pub(crate) requirement: SandboxRequirement,
    pub(crate) resource_limits: ResourceLimits,
}

/// A report of the helper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum HelperReport {
    /// The command runs as the leader of this process group.
    Started { process_group: i32, confinement: ConfinementLevel },
    /// The command was not started, or its exit status is unknown.
    Failed { reason: String },
    /// The command and its descendants have ended.
    Ended { exit_code: Option<i32>, signal: Option<i32> },
}

/// The degree of confinement that the kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfinementLevel {
    /// Files, TCP connections and signals.
    Full,
    /// Files, but not all of TCP connections and signals: the kernel is older.
    Partial,
    /// Nothing: there is no Landlock. Resource limits, timeouts and the environment allow-list still apply.
    None,
}
