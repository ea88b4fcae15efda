//! The sandbox helper: the processes between the program and the command.
//!
//! The helper finds the protected files, enters the namespaces, and starts itself again as the *supervisor*, which
//! confines itself, starts the command and waits for it. In a process namespace the supervisor is the first process, so
//! that the kernel ends every process of the command together with it.
//!
//! The helper's standard input is a socket to the program, the supervisor's one to the helper. **Invariant:** when the
//! helper's socket is closed, for any reason, the helper kills the supervisor, the command and its descendants.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Resource, Rlimit, WaitOptions, setrlimit};

use super::protected_files::{MountState, ProtectedFiles, ProtectionLimits};
use super::protocol::{
    ConfinementLevel, ConfinementReport, HelperReport, SandboxGap, SandboxedCommand, SupervisedCommand,
    SupervisorReport,
};
use super::scratch::ScratchFolder;
use super::{HELPER_ARGUMENT, ResourceLimits, SUPERVISOR_ARGUMENT, confine, descriptors, kill};
use crate::files::{WorkspacePath, WorkspaceRoot};

/// Maximum size of a report of the supervisor, in bytes. The command could write one, but has no influence on the first.
const MAX_REPORT_BYTES: u64 = 64 * 1024;

/// Executes one command and returns the exit code of the helper process.
pub(super) fn run_helper() -> i32 {
    if descriptors::close_inherited().is_err() {
        return 1;
    }
    // A new session detaches the command from the terminal, and keeps Ctrl-C for the program.
    rustix::process::setsid().ok();
    let Some(mut line) = stdin_socket() else { return 1 };
    let Ok(mut reports) = line.get_ref().try_clone() else { return 1 };
    let report = match read_line(&mut line) {
        Ok(order) => serve_command(order, line.get_ref(), &mut reports),
        Err(error) => {
            HelperReport::Failed { reason: format!("the helper was not told what to run: {error}") }
        }
    };
    i32::from(send_line(&mut reports, &report).is_err())
}

fn stdin_socket() -> Option<BufReader<UnixStream>> {
    std::io::stdin().as_fd().try_clone_to_owned().ok().map(UnixStream::from).map(BufReader::new)
}

fn read_line<T: serde::de::DeserializeOwned>(line: &mut BufReader<UnixStream>) -> Result<T, String> {
    let mut text = String::new();
    line.read_line(&mut text).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

fn send_line(line: &mut UnixStream, message: &impl serde::Serialize) -> std::io::Result<()> {
    let mut text = serde_json::to_string(message)?;
    text.push('\n');
    line.write_all(text.as_bytes())
}

fn serve_command(order: SandboxedCommand, line: &UnixStream, reports: &mut UnixStream) -> HelperReport {
    let failed = |reason: String| HelperReport::Failed { reason };
    let own = match ScratchFolder::new() {
        Ok(own) => own,
        Err(error) => return failed(format!("no folder for temporary files: {error}")),
    };
    let limits = ProtectionLimits::default();
    let protected = ProtectedFiles::find(&order.root, &order.protected, order.git_access, own.path(), limits);
    let mut gaps = Vec::new();
    // This process has one thread, which the namespaces need.
    let namespaces = enter_namespaces();
    let mounts = if namespaces.has_mounts && mount_protected(&protected).is_ok() {
        MountState::Mounted
    } else {
        MountState::NotMounted
    };
    if mounts == MountState::NotMounted || !protected.is_complete {
        gaps.push(SandboxGap::ProtectedFiles);
    }
    if !namespaces.has_processes {
        gaps.push(SandboxGap::LeftProcesses);
    }
    // Without the right the supervisor reports the gap.
    #[cfg(target_os = "linux")]
    super::mounts::pass_mount_right_on().ok();
    let group = enter_memory_group(&order.resource_limits);
    gaps.extend(group.is_none().then_some(SandboxGap::SharedMemory));
    let started = SupervisorProcess::start(order, own.path(), gaps, namespaces.has_processes);
    if let Some(group) = &group {
        group.leave();
    }
    let mut supervisor = match started {
        Ok(supervisor) => supervisor,
        Err(reason) => return failed(reason),
    };
    let ended = supervisor.follow(line, reports);
    supervisor.kill();
    drop(group);
    let undone = protected.restore(mounts);
    match ended {
        Ok((exit_code, signal)) => HelperReport::Ended { exit_code, signal, undone },
        Err(reason) => failed(reason),
    }
}

/// The supervisor, as its parent sees it.
struct SupervisorProcess {
    child: Child,
    line: BufReader<std::io::Take<UnixStream>>,
    /// True if the kernel ends all processes of the command with the supervisor.
    is_first_process: bool,
}

impl SupervisorProcess {
    fn start(
        order: SandboxedCommand,
        own: &Path,
        gaps: Vec<SandboxGap>,
        is_first_process: bool,
    ) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("the command cannot be supervised: {error}");
        // As a subreaper this process adopts orphaned descendants, so that it can find and kill all of them.
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|error| format!("descendants cannot be watched: {error}"))?;
        let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
        let child = Command::new(super::executable::running_program().map_err(failed)?)
            .args([HELPER_ARGUMENT, SUPERVISOR_ARGUMENT])
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let message = SupervisedCommand {
            command: order,
            scratch: own.to_owned(),
            gaps,
            thread_count: count_user_threads(),
        };
        // A supervisor that does not read its input ends without a report, which is handled later.
        send_line(&mut ours, &message).ok();
        Ok(Self { child, line: BufReader::new(ours.take(MAX_REPORT_BYTES)), is_first_process })
    }

    /// Passes the start of the command on to the program, and waits for its end. Returns the exit code or the signal.
    fn follow(
        &mut self,
        program: &UnixStream,
        reports: &mut UnixStream,
    ) -> Result<(Option<i32>, Option<i32>), String> {
        let process_group = self.child.id().cast_signed();
        let lost = || "the helper failed before the command began".to_owned();
        match self.next_report(program) {
            Some(SupervisorReport::Confined(confinement)) => {
                send_line(reports, &HelperReport::Started { process_group, confinement }).ok();
            }
            Some(SupervisorReport::Failed { reason }) => return Err(reason),
            Some(SupervisorReport::Ended { .. }) | None => return Err(lost()),
        }
        match self.next_report(program) {
            Some(SupervisorReport::Ended { exit_code, signal }) => Ok((exit_code, signal)),
            Some(SupervisorReport::Failed { reason }) => Err(reason),
            // The supervisor was killed: because the program asked for it, or by the command.
            Some(SupervisorReport::Confined(_)) | None => {
                self.kill();
                let status =
                    self.child.wait().map_err(|error| format!("the end of the command was lost: {error}"))?;
                Ok((status.code(), status.signal()))
            }
        }
    }

    /// Returns the next report; `None` if the supervisor has ended, or if the program closed its socket.
    fn next_report(&mut self, program: &UnixStream) -> Option<SupervisorReport> {
        if self.line.buffer().is_empty()
            && !wait_for_input(self.line.get_ref().get_ref().as_fd(), program.as_fd())
        {
            return None;
        }
        let mut text = String::new();
        self.line.read_line(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Kills the supervisor, the command and its descendants, and waits until they are gone.
    fn kill(&mut self) {
        let supervisor = Pid::from_raw(self.child.id().cast_signed());
        if self.is_first_process {
            self.child.kill().ok();
            // The kernel lets the first process of a namespace end after all others.
            self.child.wait().ok();
        } else {
            kill::kill_all(supervisor);
        }
    }
}

/// Waits until the supervisor's socket has input or is closed, and returns true; returns false if the program's socket is
/// closed. The program sends nothing more, so that it becomes readable only then.
fn wait_for_input(supervisor: BorrowedFd<'_>, program: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        let mut sockets = [
            PollFd::from_borrowed_fd(supervisor, PollFlags::IN),
            PollFd::from_borrowed_fd(program, PollFlags::IN),
        ];
        match poll(&mut sockets, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return false,
            Ok(_) => {}
        }
        if !sockets[0].revents().is_empty() {
            return true;
        }
        if !sockets[1].revents().is_empty() {
            return false;
        }
    }
}

/// Confines itself, executes the command and returns the exit code of the supervisor process.
pub(super) fn run_supervisor() -> i32 {
    let Some(mut line) = stdin_socket() else { return 1 };
    let Ok(mut reports) = line.get_ref().try_clone() else { return 1 };
    let report = match read_line(&mut line) {
        Ok(supervised) => {
            supervise(&supervised, &mut reports).unwrap_or_else(|reason| SupervisorReport::Failed { reason })
        }
        Err(error) => {
            SupervisorReport::Failed { reason: format!("the helper was not told what to run: {error}") }
        }
    };
    i32::from(send_line(&mut reports, &report).is_err())
}

/// The namespaces that this machine let the helper enter.
struct EnteredNamespaces {
    has_mounts: bool,
    has_processes: bool,
}

#[cfg(target_os = "linux")]
fn enter_namespaces() -> EnteredNamespaces {
    use super::mounts::{NamespaceKind, enter_namespaces};
    match enter_namespaces() {
        Ok(NamespaceKind::MountsAndProcesses) => EnteredNamespaces { has_mounts: true, has_processes: true },
        Ok(NamespaceKind::Mounts) => EnteredNamespaces { has_mounts: true, has_processes: false },
        Err(_) => EnteredNamespaces { has_mounts: false, has_processes: false },
    }
}

#[cfg(not(target_os = "linux"))]
fn enter_namespaces() -> EnteredNamespaces {
    EnteredNamespaces { has_mounts: false, has_processes: false }
}

#[cfg(target_os = "linux")]
fn mount_protected(protected: &ProtectedFiles) -> Result<(), String> {
    super::mounts::protect_paths(&protected.read_only, &protected.pinned)
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

/// Confines this process, starts the command and waits for its end.
fn supervise(supervised: &SupervisedCommand, reports: &mut UnixStream) -> Result<SupervisorReport, String> {
    let SupervisedCommand { command: order, scratch, gaps, thread_count } = supervised;
    let mut gaps = gaps.clone();
    #[cfg(target_os = "linux")]
    gaps.extend(super::mounts::mount_own_processes().is_err().then_some(SandboxGap::ProcessList));
    #[cfg(not(target_os = "linux"))]
    gaps.push(SandboxGap::ProcessList);
    enter_folder(order)?;
    apply_resource_limits(&order.resource_limits, *thread_count);
    let mut command = Command::new(&order.program);
    command
        .args(&order.args)
        .env_clear()
        .envs(order.environment.iter().map(|(name, value)| (name, value)))
        .env("HOME", scratch)
        .env("TMPDIR", scratch)
        .stdin(Stdio::null());
    gaps.extend(confine::confine_thread(order, &[scratch.as_path()])?);
    let confinement = ConfinementReport::of_gaps(gaps);
    if confinement.level == ConfinementLevel::None && order.needs_confinement {
        return Err(
            "this machine cannot restrict commands, and they must be: a kernel with Landlock is needed"
                .into(),
        );
    }
    // Reported before the command runs, so that the command cannot.
    send_line(reports, &SupervisorReport::Confined(confinement)).map_err(|error| error.to_string())?;
    let child = command.spawn().map_err(|error| spawn_failure(order, &error))?;
    let status =
        wait_for_child(child).map_err(|error| format!("the end of the command was lost: {error}"))?;
    Ok(SupervisorReport::Ended { exit_code: status.code(), signal: status.signal() })
}

/// Waits for the end of a child, and reaps the orphans that the first process of a namespace adopts.
fn wait_for_child(mut child: Child) -> std::io::Result<ExitStatus> {
    if std::process::id() != 1 {
        return child.wait();
    }
    let pid = Pid::from_raw(child.id().cast_signed());
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if Some(ended) == pid => {
                return Ok(ExitStatus::from_raw(status.as_raw()));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
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

fn apply_resource_limits(uses: &ResourceLimits, thread_count: u64) {
    let processes = thread_count.saturating_add(uses.processes);
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
