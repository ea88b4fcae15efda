//! The sandbox helper: a process between the program and the command.
//!
//! Its standard input is a socket to the program. **Invariant:** when the socket is closed, for any reason,
//! the helper kills the command and its descendants.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, setrlimit};

use super::protocol::{ConfinementLevel, HelperReport, SandboxedCommand};
use super::{ResourceLimits, SandboxRequirement, confine, kill};
use crate::files::{WorkspacePath, WorkspaceRoot};

/// Executes one command and returns the exit code of the helper process.
pub(super) fn run_helper() -> i32 {
    // A new session detaches the command from the terminal, and keeps Ctrl-C for the program.
    rustix::process::setsid().ok();
    let Some(line) = std::io::stdin().as_fd().try_clone_to_owned().ok().map(UnixStream::from) else {
        return 1;
    };
    let Ok(mut reports) = line.try_clone() else { return 1 };
    let mut line = BufReader::new(line);
    let mut order = String::new();
    let read = line.read_line(&mut order).map_err(|error| error.to_string());
    let order = read.and_then(|_| serde_json::from_str(&order).map_err(|error| error.to_string()));
    let report = match order {
        Ok(order) => serve_command(&order, line, &mut reports),
        Err(error) => {
            HelperReport::Failed { reason: format!("the helper was not told what to run: {error}") }
        }
    };
    i32::from(send_report(&mut reports, &report).is_err())
}

fn serve_command(
    order: &SandboxedCommand,
    line: BufReader<UnixStream>,
    reports: &mut UnixStream,
) -> HelperReport {
    let own = match ScratchFolder::new() {
        Ok(own) => own,
        Err(error) => {
            return HelperReport::Failed { reason: format!("no folder for temporary files: {error}") };
        }
    };
    let (child, confined) = match start_command(order, &own.0) {
        Ok(started) => started,
        Err(why) => return HelperReport::Failed { reason: why },
    };
    let mut child = child;
    let group = Pid::from_raw(child.id().cast_signed());
    if send_report(
        reports,
        &HelperReport::Started { process_group: child.id().cast_signed(), confinement: confined },
    )
    .is_err()
    {
        kill::kill_all(group);
    }
    std::thread::spawn(move || {
        let mut line = line;
        // The program sends nothing more, so this read returns when the socket is closed.
        line.read_line(&mut String::new()).ok();
        kill::kill_all(group);
    });
    let status = child.wait();
    kill::kill_all(group);
    match status {
        Ok(status) => HelperReport::Ended { exit_code: status.code(), signal: status.signal() },
        Err(error) => HelperReport::Failed { reason: format!("the end of the command was lost: {error}") },
    }
}

fn send_report(reports: &mut UnixStream, report: &HelperReport) -> std::io::Result<()> {
    let mut text = serde_json::to_string(report)?;
    text.push('\n');
    reports.write_all(text.as_bytes())
}

fn start_command(order: &SandboxedCommand, own: &Path) -> Result<(Child, ConfinementLevel), String> {
    // As a subreaper this process adopts orphaned descendants, so that it can find and kill all of them.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| format!("descendants cannot be watched: {error}"))?;
    enter_folder(order)?;
    apply_resource_limits(&order.resource_limits);
    let mut command = Command::new(&order.program);
    command
        .args(&order.args)
        .env_clear()
        .envs(order.environment.iter().map(|(name, value)| (name, value)))
        .env("HOME", own)
        .env("TMPDIR", own)
        .stdin(Stdio::null())
        .process_group(0);
    // Landlock confines a single thread and its children, so the helper's main thread stays unconfined.
    std::thread::scope(|threads| {
        let restricted = threads.spawn(|| {
            let confined = confine::confine_thread(order, &[own])?;
            if confined == ConfinementLevel::None && order.requirement == SandboxRequirement::Required {
                return Err(
                    "this machine cannot restrict commands, and they must be: a kernel with Landlock is \
                     needed"
                        .into(),
                );
            }
            let child = command.spawn().map_err(|error| spawn_failure(order, &error))?;
            Ok((child, confined))
        });
        restricted.join().unwrap_or_else(|_| Err("the helper failed".into()))
    })
}

/// Changes the working directory to the command's folder through an open descriptor, so that a concurrent rename
/// cannot redirect it out of the workspace.
fn enter_folder(order: &SandboxedCommand) -> Result<(), String> {
    let root = WorkspaceRoot::open(&order.root)
        .map_err(|error| format!("the workspace is gone: {}", error.kind()))?;
    let place = WorkspacePath::parse(&order.folder, root.path()).map_err(|refusal| refusal.to_string())?;
    let folder = root.open_folder(&place).map_err(|refusal| refusal.to_string())?;
    rustix::process::fchdir(folder).map_err(|error| format!("`{place}` cannot be entered: {error}"))
}

fn spawn_failure(order: &SandboxedCommand, error: &std::io::Error) -> String {
    let program = &order.program;
    match error.kind() {
        // An unreadable folder of `PATH` makes the system report a missing program as a permission error.
        std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied if !is_program_present(order) => {
            format!("there is no program `{program}`")
        }
        kind => format!("`{program}` cannot be started: {kind}"),
    }
}

fn is_program_present(order: &SandboxedCommand) -> bool {
    if order.program.contains('/') {
        return Path::new(&order.program).exists();
    }
    let path = order.environment.iter().find(|(name, _)| name == "PATH").map_or("", |(_, value)| value);
    std::env::split_paths(path).any(|folder| folder.join(&order.program).exists())
}

fn apply_resource_limits(uses: &ResourceLimits) {
    let processes = count_user_threads().saturating_add(uses.processes);
    let limits = [
        (Resource::Cpu, uses.cpu_seconds),
        // RLIMIT_DATA counts writable memory; RLIMIT_AS would count reservations, which some programs make
        // generously.
        (Resource::Data, uses.memory_bytes),
        (Resource::Fsize, uses.file_size_bytes),
        (Resource::Nofile, uses.open_files),
        (Resource::Nproc, processes),
        (Resource::Core, 0),
    ];
    for (resource, most) in limits {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        // A limit that is already lower cannot be raised; the error is ignored and the lower limit stays.
        setrlimit(resource, limit).ok();
    }
}

/// Returns the number of the user's threads. RLIMIT_NPROC counts all of them, so the configured limit is
/// added to it.
fn count_user_threads() -> u64 {
    let me = rustix::process::getuid().as_raw();
    let threads = |status: String| -> Option<u64> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let user: u32 = field("Uid:")?.split_whitespace().next()?.parse().ok()?;
        if user == me { field("Threads:")?.trim().parse().ok() } else { None }
    };
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| threads(std::fs::read_to_string(entry.path().join("status")).ok()?))
        .sum()
}

/// The command's private temporary folder, which is also its `HOME`; removed on drop.
struct ScratchFolder(PathBuf);

impl ScratchFolder {
    fn new() -> std::io::Result<Self> {
        let name = format!("windlass-command-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A leftover of an earlier process with the same process id.
        std::fs::remove_dir_all(&path).ok();
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
