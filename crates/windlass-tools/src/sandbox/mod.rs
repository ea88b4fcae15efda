//! How commands are restricted: what they may read and write, what they are told, and how much they may use.
//!
//! A command is not started by the program itself but by a small helper in between, which is the program started
//! again with one argument ([`main_if_asked`]), or another program ([`Sandbox::helper`]). The helper takes the
//! restrictions upon the command, watches over it, and ends all of its descendants when the command ends, when
//! its time is over, and when the program that asked for it is gone, however that came about.
//!
//! | | what is restricted |
//! | --- | --- |
//! | Linux with Landlock | files: the workspace and a folder of its own can be written, the system's programs and libraries read, nothing else; TCP connections; signals to processes outside; on newer kernels, sockets that stand among files |
//! | Linux | the rights of the superuser, but for those over files |
//! | everywhere | the environment, which is an allow-list; processor time, memory, sizes and numbers of files; numbers of processes, but not the superuser's; time; output |
//!
//! What is not: UDP; on older kernels, sockets of daemons among files; what a command does inside the workspace,
//! so a store of runs that stands there can be changed by it; and, without Landlock, files. [`support`] says what
//! this machine can do.

mod confine;
mod helper;
mod kill;
mod order;
mod run;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

pub use confine::support;
pub use order::Confinement;
pub(crate) use order::Order;
pub(crate) use run::run;

/// The argument that makes a program the helper.
const ASKED: &str = "__windlass_sandbox";

/// Whether this program would understand the argument.
static UNDERSTOOD: AtomicBool = AtomicBool::new(false);

/// Makes this process the helper, if it was started as one, and does not return then. Call it first in `main`,
/// before a runtime or a thread is there.
///
/// ```
/// windlass_tools::sandbox::main_if_asked();
/// // The program.
/// ```
pub fn main_if_asked() {
    UNDERSTOOD.store(true, Ordering::Relaxed);
    if std::env::args_os().nth(1).is_some_and(|word| word == ASKED) {
        std::process::exit(helper::main());
    }
}

/// How commands are restricted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    helper: Option<(PathBuf, Vec<OsString>)>,
    pub(crate) read: Vec<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
    pub(crate) keep: Vec<String>,
    pub(crate) set: Vec<(String, String)>,
    pub(crate) network: Network,
    pub(crate) need: Need,
    pub(crate) uses: Uses,
}

/// Whether commands may make TCP connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// They may not, where the kernel can see to that.
    #[default]
    Closed,
    /// They may.
    Open,
}

/// Whether commands may run where the kernel cannot restrict them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Need {
    /// They may, and the answer says so.
    #[default]
    WherePossible,
    /// They may not.
    Required,
}

/// How much a command may use. Each is a limit of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uses {
    /// Processor time of each process, in seconds.
    pub cpu_seconds: u64,
    /// Memory of each process, in bytes.
    pub memory: u64,
    /// The longest file that it writes, in bytes.
    pub file_size: u64,
    /// How many files each process has open.
    pub open_files: u64,
    /// How many processes and threads more than the user has now. It does not bind the superuser.
    pub processes: u64,
}

impl Default for Uses {
    fn default() -> Self {
        Self {
            cpu_seconds: 300,
            memory: 4 * 1024 * 1024 * 1024,
            file_size: 1024 * 1024 * 1024,
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
            read: Vec::new(),
            write: Vec::new(),
            keep,
            set: Vec::new(),
            network: Network::default(),
            need: Need::default(),
            uses: Uses::default(),
        }
    }
}

impl Sandbox {
    /// Another program as the helper: one that calls [`main_if_asked`], such as `windlass-sandbox`.
    #[must_use]
    pub fn helper(mut self, program: impl Into<PathBuf>) -> Self {
        self.helper = Some((program.into(), vec![ASKED.into()]));
        self
    }

    /// Lets commands read and run what is beneath a path.
    #[must_use]
    pub fn may_read(mut self, path: impl Into<PathBuf>) -> Self {
        self.read.push(path.into());
        self
    }

    /// Lets commands write what is beneath a path.
    #[must_use]
    pub fn may_write(mut self, path: impl Into<PathBuf>) -> Self {
        self.write.push(path.into());
        self
    }

    /// Lets commands see a variable of this program's environment. Without this they see `PATH`, the language
    /// and the time zone.
    #[must_use]
    pub fn keep_variable(mut self, name: impl Into<String>) -> Self {
        self.keep.push(name.into());
        self
    }

    /// Sets a variable for commands.
    #[must_use]
    pub fn set_variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set.push((name.into(), value.into()));
        self
    }

    /// Whether commands may make TCP connections.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// Whether commands may run where the kernel cannot restrict them.
    #[must_use]
    pub fn need(mut self, need: Need) -> Self {
        self.need = need;
        self
    }

    /// How much a command may use.
    #[must_use]
    pub fn uses(mut self, uses: Uses) -> Self {
        self.uses = uses;
        self
    }

    /// The helper and its arguments.
    fn program(&self) -> Result<(PathBuf, Vec<OsString>), String> {
        match &self.helper {
            Some(helper) => Ok(helper.clone()),
            // A program that does not know the argument would start itself, and do so again.
            None if !UNDERSTOOD.load(Ordering::Relaxed) => {
                Err("this program cannot restrict commands: it must \
                 call windlass_tools::sandbox::main_if_asked() first in main, or name a helper with \
                 Sandbox::helper"
                    .into())
            }
            None => std::env::current_exe()
                .map(|program| (program, vec![ASKED.into()]))
                .map_err(|error| format!("this program cannot find itself: {error}")),
        }
    }

    /// What a command sees of the environment.
    fn environment(&self) -> Vec<(String, String)> {
        let kept = self.keep.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
        kept.chain(self.set.iter().cloned()).collect()
    }
}
