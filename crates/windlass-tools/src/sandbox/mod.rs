//! The sandbox of commands: file access, network, environment and resource limits.
//!
//! The program does not start a command itself. A helper process does: either the program started again with
//! one argument ([`main_if_asked`]), or another program ([`Sandbox::helper`]). The helper confines the
//! command, and kills all its descendants when the command ends, when it times out, and when the program
//! exits or is killed.
//!
//! | mechanism | restrictions |
//! | --- | --- |
//! | Landlock | files: the workspace and a private temporary folder are writable, the system's programs and libraries readable, everything else inaccessible; TCP connections; signals to processes outside |
//! | seccomp | Unix sockets by path and by abstract name, UDP and every other socket (with [`NetworkAccess::Allowed`]: all but those of the internet); key rings; `io_uring` |
//! | mount namespace | protected files of the workspace are read-only: Git's folders and attributes, `agent.toml`, `.mcp.json`, a run store, instruction files |
//! | process namespace | a command sees its own processes only, and all of them end together with it |
//! | control group | the memory of the whole command, shared mappings included |
//! | capabilities | all are dropped, except those over files, which Landlock bounds |
//! | everywhere | the environment, by an allow-list; inherited descriptors; CPU time, memory, file sizes and open files; number of processes, except for the superuser; time; output |
//!
//! A machine that lacks a mechanism is reported: the output of every command has the level of confinement and the
//! [`SandboxGap`]s, from the restrictions that were applied to it. Without mount namespaces, and for
//! protected files beyond the limits of a command, changes are undone when the command ends: a file has its old text
//! again, or is renamed.

mod confine;
mod descriptors;
mod executable;
mod helper;
mod kept_file;
mod kill;
#[cfg(target_os = "linux")]
mod memory_group;
#[cfg(target_os = "linux")]
mod mounts;
mod protected_files;
mod protected_search;
mod protocol;
mod run;
mod scratch;
#[cfg(target_os = "linux")]
mod syscall_filter;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use windlass::tool::Tool;

pub use confine::confinement_support;
use executable::HelperExecutable;
pub(crate) use protected_files::GitAccess;
pub(crate) use protocol::SandboxedCommand;
pub use protocol::{ConfinementLevel, ConfinementReport, SandboxGap};
pub(crate) use run::run_sandboxed;

/// The command-line argument that starts a program as the helper.
const HELPER_ARGUMENT: &str = "__windlass_sandbox";
/// The second argument, which starts the helper as the supervisor of a command.
const SUPERVISOR_ARGUMENT: &str = "supervisor";

/// True once the program has called [`main_if_asked`], so that it can serve as its own helper.
static HELPER_ENTRY_CALLED: AtomicBool = AtomicBool::new(false);

/// Runs the sandbox helper if this process was started as one, and exits the process afterwards. Call it first in
/// `main`, before a runtime or a thread is started.
///
/// ```
/// windlass_tools::sandbox::main_if_asked();
/// // The program.
/// ```
pub fn main_if_asked() {
    HELPER_ENTRY_CALLED.store(true, Ordering::Relaxed);
    if std::env::args_os().nth(1).is_some_and(|word| word == HELPER_ARGUMENT) {
        let is_supervisor = std::env::args_os().nth(2).is_some_and(|word| word == SUPERVISOR_ARGUMENT);
        std::process::exit(if is_supervisor { helper::run_supervisor() } else { helper::run_helper() });
    }
    // Opened before any command runs.
    executable::open_own();
}

/// The settings of the sandbox in which commands run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    helper: Option<PathBuf>,
    pub(crate) readable: Vec<PathBuf>,
    pub(crate) writable: Vec<PathBuf>,
    pub(crate) kept_variables: Vec<String>,
    pub(crate) set_variables: Vec<(String, String)>,
    pub(crate) network: NetworkAccess,
    pub(crate) requirement: SandboxRequirement,
    pub(crate) resource_limits: ResourceLimits,
}

/// The access of commands to the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkAccess {
    /// Sockets are refused.
    #[default]
    Denied,
    /// Sockets of the internet are permitted: TCP and UDP.
    Allowed,
}

/// The treatment of commands on a machine that cannot confine them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxRequirement {
    /// Every command requires approval, each time and whatever a policy allows: nothing runs both unasked and unconfined.
    #[default]
    AskIfUnconfined,
    /// Commands run without confinement, and their output says so.
    BestEffort,
    /// Commands are refused.
    Required,
}

/// The resource limits (`setrlimit`) of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Maximum CPU time of each process, in seconds.
    pub cpu_seconds: u64,
    /// Maximum memory of the command, in bytes: of all its processes together where there is a control group, and
    /// the writable memory of each process everywhere.
    pub memory_bytes: u64,
    /// Maximum size of a written file, in bytes.
    pub file_size_bytes: u64,
    /// Maximum number of open files of each process.
    pub open_files: u64,
    /// Maximum number of processes and threads beyond those that the user already has. It does not bind the
    /// superuser.
    pub processes: u64,
}

impl SandboxRequirement {
    /// Returns true if every command requires approval on a machine with this support.
    fn needs_approval(self, support: ConfinementLevel) -> bool {
        match self {
            Self::AskIfUnconfined => support == ConfinementLevel::None,
            Self::BestEffort | Self::Required => false,
        }
    }

    /// Returns true if a command on a machine with this support runs only if it is confined.
    fn needs_confinement(self, support: ConfinementLevel) -> bool {
        match self {
            // Nobody was asked, so what the machine can do it must do.
            Self::AskIfUnconfined => support != ConfinementLevel::None,
            Self::BestEffort => false,
            Self::Required => true,
        }
    }
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self {
            cpu_seconds: 300,
            memory_bytes: 4 * 1024 * 1024 * 1024,
            file_size_bytes: 1024 * 1024 * 1024,
            open_files: 1024,
            processes: 256,
        }
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        let keep = ["PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"].map(str::to_owned).to_vec();
        Self {
            helper: None,
            readable: Vec::new(),
            writable: Vec::new(),
            kept_variables: keep,
            set_variables: Vec::new(),
            network: NetworkAccess::default(),
            requirement: SandboxRequirement::default(),
            resource_limits: ResourceLimits::default(),
        }
    }
}

impl Sandbox {
    /// Sets another program as the helper: one that calls [`main_if_asked`], such as `windlass-sandbox`.
    #[must_use]
    pub fn helper(mut self, program: impl Into<PathBuf>) -> Self {
        self.helper = Some(program.into());
        self
    }

    /// Lets commands read and execute files beneath a path.
    #[must_use]
    pub fn allow_read(mut self, path: impl Into<PathBuf>) -> Self {
        self.readable.push(path.into());
        self
    }

    /// Lets commands read, write and execute files beneath a path.
    #[must_use]
    pub fn allow_write(mut self, path: impl Into<PathBuf>) -> Self {
        self.writable.push(path.into());
        self
    }

    /// Lets commands inherit a variable of this program's environment. By default they inherit `PATH`, the locale
    /// and the time zone.
    #[must_use]
    pub fn keep_variable(mut self, name: impl Into<String>) -> Self {
        self.kept_variables.push(name.into());
        self
    }

    /// Sets an environment variable for commands.
    #[must_use]
    pub fn set_variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set_variables.push((name.into(), value.into()));
        self
    }

    /// Sets the access to the network. Default: denied.
    #[must_use]
    pub fn network(mut self, network: NetworkAccess) -> Self {
        self.network = network;
        self
    }

    /// Sets the treatment of commands on a machine that cannot confine them. Default: a person is asked about each.
    #[must_use]
    pub fn requirement(mut self, need: SandboxRequirement) -> Self {
        self.requirement = need;
        self
    }

    /// Sets the resource limits.
    #[must_use]
    pub fn resource_limits(mut self, uses: ResourceLimits) -> Self {
        self.resource_limits = uses;
        self
    }

    /// Returns the tool of commands with the approvals that the sandbox requires on this machine.
    pub(crate) fn apply_to<C: Send + Sync + 'static>(&self, tool: Tool<C>) -> Tool<C> {
        match self.requirement.needs_approval(known_support()) {
            true => tool.needs_approval_each_time(),
            false => tool,
        }
    }

    /// Returns true if a command must not run without confinement.
    pub(crate) fn needs_confinement(&self) -> bool {
        self.requirement.needs_confinement(known_support())
    }

    /// Opens the executable of the helper. `writable` are the folders in which commands may write.
    ///
    /// # Errors
    ///
    /// Returns the reason if no helper is set and this program has not called [`main_if_asked`], or if a command
    /// could replace the executable.
    fn helper_executable(&self, writable: &[&Path]) -> Result<HelperExecutable, String> {
        match &self.helper {
            Some(program) => HelperExecutable::of_program(program, writable),
            // A program that ignores the argument would run its own `main` again, and start itself recursively.
            None if !HELPER_ENTRY_CALLED.load(Ordering::Relaxed) => {
                Err("this program cannot restrict commands: it must \
                 call windlass_tools::sandbox::main_if_asked() first in main, or name a helper with \
                 Sandbox::helper"
                    .into())
            }
            None => HelperExecutable::own(writable),
        }
    }

    /// Returns the environment of a command. `writable` are the folders in which commands may write.
    fn command_environment(&self, writable: &[&Path], git: GitAccess) -> Vec<(String, String)> {
        let inherited =
            self.kept_variables.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
        let inherited = inherited.map(|(name, value)| match name.as_str() {
            "PATH" => (name, search_path(&value, writable)),
            _ => (name, value),
        });
        // The application may put a folder of the workspace into the path on purpose; the folders of Git stay closed.
        let is_trusted = git == GitAccess::ReadOnly;
        let set = self.set_variables.iter().cloned().map(|(name, value)| match name.as_str() {
            "PATH" => (name, search_path(&value, if is_trusted { &[] } else { writable })),
            _ => (name, value),
        });
        inherited.chain(set).collect()
    }
}

/// Returns the confinement that this machine supports, which is tried once.
fn known_support() -> ConfinementLevel {
    static SUPPORT: OnceLock<ConfinementLevel> = OnceLock::new();
    *SUPPORT.get_or_init(confinement_support)
}

/// Returns a search path without the folders in which a command could plant a program under any name: relative folders,
/// and those in which commands may write.
fn search_path(path: &str, writable: &[&Path]) -> String {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let writable: Vec<PathBuf> = writable.iter().map(|folder| real(folder)).collect();
    let is_writable = |folder: &str| writable.iter().any(|open| real(Path::new(folder)).starts_with(open));
    let kept: Vec<&str> =
        path.split(':').filter(|folder| folder.starts_with('/') && !is_writable(folder)).collect();
    // An empty path would stand for the current folder.
    if kept.is_empty() { "/usr/bin:/bin".to_owned() } else { kept.join(":") }
}

#[cfg(test)]
mod tests {
    use super::{ConfinementLevel, SandboxRequirement};

    #[test]
    fn no_command_is_both_unasked_and_unconfined_by_default() {
        let default = SandboxRequirement::default();
        for support in [ConfinementLevel::Full, ConfinementLevel::Partial, ConfinementLevel::None] {
            assert!(default.needs_approval(support) || default.needs_confinement(support), "{support:?}");
            assert!(!default.needs_approval(support) || support == ConfinementLevel::None, "{support:?}");
            assert!(SandboxRequirement::Required.needs_confinement(support), "{support:?}");
            assert!(!SandboxRequirement::BestEffort.needs_confinement(support), "{support:?}");
        }
    }
}
