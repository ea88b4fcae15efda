//! The protocol between the program and its helper: messages of one JSON line each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::protected_files::GitAccess;
use super::{NetworkAccess, ResourceLimits};

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
    /// Protected paths beside those with protected names.
    pub(crate) protected: Vec<PathBuf>,
    pub(crate) git_access: GitAccess,
    pub(crate) network: NetworkAccess,
    /// True if the command is refused on a machine that cannot confine it.
    pub(crate) needs_confinement: bool,
    pub(crate) resource_limits: ResourceLimits,
}

/// A report of the helper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum HelperReport {
    /// The command runs as the leader of this process group.
    Started { process_group: i32, confinement: ConfinementReport },
    /// The command was not started, or its exit status is unknown.
    Failed { reason: String },
    /// The command and its descendants have ended. `undone` has a sentence about each change of a protected file.
    Ended { exit_code: Option<i32>, signal: Option<i32>, undone: Vec<String> },
}

/// A command for the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SupervisedCommand {
    pub(super) command: SandboxedCommand,
    /// The private temporary folder.
    pub(super) scratch: PathBuf,
    /// The restrictions that the helper could not apply.
    pub(super) gaps: Vec<SandboxGap>,
    /// Number of the user's threads.
    pub(super) thread_count: u64,
}

/// A report of the supervisor to the helper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SupervisorReport {
    /// The supervisor is confined, and starts the command now.
    Confined(ConfinementReport),
    /// The command was not started, or its exit status is unknown.
    Failed { reason: String },
    /// The command has ended.
    Ended { exit_code: Option<i32>, signal: Option<i32> },
}

/// The restrictions of a command that were applied, and those that were not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfinementReport {
    /// The degree of confinement.
    pub level: ConfinementLevel,
    /// The restrictions that this machine did not apply; empty if the level is full.
    pub open: Vec<SandboxGap>,
}

impl ConfinementReport {
    /// Creates the report of the restrictions that were not applied.
    pub(super) fn of_gaps(mut open: Vec<SandboxGap>) -> Self {
        open.sort_unstable();
        open.dedup();
        let level = match open.as_slice() {
            [] => ConfinementLevel::Full,
            gaps if gaps.contains(&SandboxGap::Files) => ConfinementLevel::None,
            _ => ConfinementLevel::Partial,
        };
        Self { level, open }
    }
}

/// The degree of confinement of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfinementLevel {
    /// Every restriction was applied.
    Full,
    /// Files are restricted, but another restriction was not applied.
    Partial,
    /// Files are not restricted: there is no Landlock. Resource limits, timeouts and the environment allow-list
    /// still apply.
    None,
}

/// A restriction that was not applied to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SandboxGap {
    /// Files outside the workspace can be read and written: there is no Landlock.
    Files,
    /// The kernel's Landlock is older, and does not restrict truncation, moves between folders, devices or signals.
    OlderLandlock,
    /// Unix sockets of daemons, UDP and other sockets can be used: there is no seccomp filter.
    Sockets,
    /// Protected files of the workspace can be changed while the command runs. A changed file has its old text again when
    /// it ends, or is renamed; not so the files of a `.windlass` folder, and instruction files of lower folders of which
    /// there are too many.
    ProtectedFiles,
    /// Processes that the command leaves behind are looked for and ended, and one that hides may outlive it: there is no
    /// process namespace.
    LeftProcesses,
    /// The command lines of all processes can be read: there is no process namespace, or its list cannot be mounted.
    ProcessList,
    /// Shared memory is not counted: there is no control group, and the limit is that of each process.
    SharedMemory,
}

impl std::fmt::Display for SandboxGap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Files => "files outside the workspace are not restricted (no Landlock)",
            Self::OlderLandlock => "signals, devices or moves of files are not restricted (older Landlock)",
            Self::Sockets => "Unix sockets and UDP are not restricted (no seccomp)",
            Self::ProtectedFiles => {
                "protected files can be changed while a command runs, and are restored or renamed afterwards (no mount namespace, \
                 or too many files)"
            }
            Self::LeftProcesses => "a process that hides may outlive its command (no process namespace)",
            Self::ProcessList => "the command lines of other processes can be read (no list of processes of its own)",
            Self::SharedMemory => "shared memory is not counted (no control group)",
        })
    }
}
