//! The sandbox helper: a process between the program and the command.
//!
//! Its standard input is a socket to the program. **Invariant:** when the socket is closed, for any reason,
//! the helper kills the command and its descendants.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, setrlimit};

use super::protected_files::ProtectedFiles;
use super::protocol::{ConfinementLevel, ConfinementReport, HelperReport, SandboxGap, SandboxedCommand};
use super::scratch::ScratchFolder;
use super::{ResourceLimits, SandboxRequirement, confine, descriptors, kill};
use crate::files::{WorkspacePath, WorkspaceRoot};

/// Executes one command and returns the exit code of the helper process.
pub(super) fn run_helper() -> i32 {
    if descriptors::close_inherited().is_err() {
        return 1;
    }
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
    let protected = ProtectedFiles::find(&order.root, &order.protected, order.git_access);
    let mut gaps = Vec::new();
    // This process has one thread up to here, which the namespaces need.
    if !protected.is_complete || mount_protected(&protected).is_err() {
        gaps.push(SandboxGap::ProtectedFiles);
    }
    let group = enter_memory_group(&order.resource_limits);
    gaps.extend(group.is_none().then_some(SandboxGap::SharedMemory));
    let started = start_command(order, own.path(), gaps);
    if let Some(group) = &group {
        group.leave();
    }
    let (mut child, confined) = match started {
        Ok(started) => started,
        Err(why) => return HelperReport::Failed { reason: why },
    };
    let process_group = child.id().cast_signed();
    let group_id = Pid::from_raw(process_group);
    if send_report(reports, &HelperReport::Started { process_group, confinement: confined }).is_err() {
        kill::kill_all(group_id);
    }
    std::thread::spawn(move || {
        let mut line = line;
        // The program sends nothing more, so this read returns when the socket is closed.
        line.read_line(&mut String::new()).ok();
        kill::kill_all(group_id);
    });
    let status = child.wait();
    kill::kill_all(group_id);
    drop(group);
    let undone = protected.restore();
    match status {
        Ok(status) => HelperReport::Ended { exit_code: status.code(), signal: status.signal(), undone },
        Err(error) => HelperReport::Failed { reason: format!("the end of the command was lost: {error}") },
    }
}

fn send_report(reports: &mut UnixStream, report: &HelperReport) -> std::io::Result<()> {
    let mut text = serde_json::to_string(report)?;
    text.push('\n');
    reports.write_all(text.as_bytes())
}

#[cfg(target_os = "linux")]
fn mount_protected(protected: &ProtectedFiles) -> Result<(), String> {
    let (read_only, pinned) = protected.mounts();
    super::mounts::protect_paths(&read_only, &pinned)
}

#[cfg(not(target_os = "linux"))]
fn mount_protected(_: &ProtectedFiles) -> Result<(), String> {
    Err("this platform has no mount namespaces".into())
}

#[cfg(target_os = "linux")]
fn enter_memory_group(uses: &ResourceLimits) -> Option<super::memory_group::MemoryGroup> {
    super::memory_group::MemoryGroup::enter(uses.memory_bytes).ok()
}

#[cfg(not(target_os = "linux"))]
fn enter_memory_group(_: &ResourceLimits) -> Option<NoMemoryGroup> {
    None
}

/// The control group of platforms that have none.
#[cfg(not(target_os = "linux"))]
enum NoMemoryGroup {}

#[cfg(not(target_os = "linux"))]
impl NoMemoryGroup {
    fn leave(&self) {}
}

fn start_command(
    order: &SandboxedCommand,
    own: &Path,
    mut gaps: Vec<SandboxGap>,
) -> Result<(Child, ConfinementReport), String> {
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
            gaps.extend(confine::confine_thread(order, &[own])?);
            let confined = ConfinementReport::of_gaps(gaps);
            if confined.level == ConfinementLevel::None && order.requirement == SandboxRequirement::Required {
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
