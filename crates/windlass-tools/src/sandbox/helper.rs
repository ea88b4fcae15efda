//! The helper: a process between the program and the command.
//!
//! Its standard input is a socket to the program. When that ends, however it ends, so does the command.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, setrlimit};

use super::order::{Confinement, Order, Report};
use super::{Need, Uses, confine, kill};
use crate::files::{Place, Root};

/// Serves one order. Gives the code that the process ends with.
pub(super) fn main() -> i32 {
    // A session of its own: a command has no terminal to ask at or to type into, and Ctrl-C is the program's affair.
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
        Ok(order) => serve(&order, line, &mut reports),
        Err(error) => Report::Failed { why: format!("the helper was not told what to run: {error}") },
    };
    i32::from(tell(&mut reports, &report).is_err())
}

fn serve(order: &Order, line: BufReader<UnixStream>, reports: &mut UnixStream) -> Report {
    let own = match OwnFolder::new() {
        Ok(own) => own,
        Err(error) => return Report::Failed { why: format!("no folder for temporary files: {error}") },
    };
    let (child, confined) = match start(order, &own.0) {
        Ok(started) => started,
        Err(why) => return Report::Failed { why },
    };
    let mut child = child;
    let group = Pid::from_raw(child.id().cast_signed());
    if tell(reports, &Report::Started { group: child.id().cast_signed(), confined }).is_err() {
        kill::all(group);
    }
    std::thread::spawn(move || {
        let mut line = line;
        // Nothing more is ever said: this waits for the end of the line.
        line.read_line(&mut String::new()).ok();
        kill::all(group);
    });
    let status = child.wait();
    kill::all(group);
    match status {
        Ok(status) => Report::Ended { code: status.code(), signal: status.signal() },
        Err(error) => Report::Failed { why: format!("the end of the command was lost: {error}") },
    }
}

fn tell(reports: &mut UnixStream, report: &Report) -> std::io::Result<()> {
    let mut text = serde_json::to_string(report)?;
    text.push('\n');
    reports.write_all(text.as_bytes())
}

fn start(order: &Order, own: &Path) -> Result<(Child, Confinement), String> {
    // Descendants whose parents end become this process's children, so that none is lost.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| format!("descendants cannot be watched: {error}"))?;
    enter(order)?;
    limit(&order.uses);
    let mut command = Command::new(&order.program);
    command
        .args(&order.args)
        .env_clear()
        .envs(order.environment.iter().map(|(name, value)| (name, value)))
        .env("HOME", own)
        .env("TMPDIR", own)
        .stdin(Stdio::null())
        .process_group(0);
    // Restrictions are those of a thread, so this process itself stays free to watch over the command.
    std::thread::scope(|threads| {
        let restricted = threads.spawn(|| {
            let confined = confine::this_thread(order, &[own])?;
            if confined == Confinement::None && order.need == Need::Required {
                return Err(
                    "this machine cannot restrict commands, and they must be: a kernel with Landlock is \
                     needed"
                        .into(),
                );
            }
            let child = command.spawn().map_err(|error| not_started(order, &error))?;
            Ok((child, confined))
        });
        restricted.join().unwrap_or_else(|_| Err("the helper failed".into()))
    })
}

/// Goes to the folder, which is beneath the workspace at this moment and stays the same one.
fn enter(order: &Order) -> Result<(), String> {
    let root = Root::open(&order.root).map_err(|error| format!("the workspace is gone: {}", error.kind()))?;
    let place = Place::read(&order.folder, root.path()).map_err(|refusal| refusal.to_string())?;
    let folder = root.open_folder(&place).map_err(|refusal| refusal.to_string())?;
    rustix::process::fchdir(folder).map_err(|error| format!("`{place}` cannot be entered: {error}"))
}

fn not_started(order: &Order, error: &std::io::Error) -> String {
    let program = &order.program;
    match error.kind() {
        // Also where a folder of `PATH` cannot be read: the system then speaks of rights.
        std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied if !is_there(order) => {
            format!("there is no program `{program}`")
        }
        kind => format!("`{program}` cannot be started: {kind}"),
    }
}

fn is_there(order: &Order) -> bool {
    if order.program.contains('/') {
        return Path::new(&order.program).exists();
    }
    let path = order.environment.iter().find(|(name, _)| name == "PATH").map_or("", |(_, value)| value);
    std::env::split_paths(path).any(|folder| folder.join(&order.program).exists())
}

fn limit(uses: &Uses) {
    let processes = processes_of_user().saturating_add(uses.processes);
    let limits = [
        (Resource::Cpu, uses.cpu_seconds),
        // Reserved room costs nothing, and some programs reserve a lot; this counts what can be written.
        (Resource::Data, uses.memory),
        (Resource::Fsize, uses.file_size),
        (Resource::Nofile, uses.open_files),
        (Resource::Nproc, processes),
        (Resource::Core, 0),
    ];
    for (resource, most) in limits {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        // What is lower already stays so.
        setrlimit(resource, limit).ok();
    }
}

/// The limit counts all threads of the user, so what is there already is added to it.
fn processes_of_user() -> u64 {
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

/// A folder for the command's temporary files and what it believes to be its home. It goes with the command.
struct OwnFolder(PathBuf);

impl OwnFolder {
    fn new() -> std::io::Result<Self> {
        let name = format!("windlass-command-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Left by another process with this number, which is gone.
        std::fs::remove_dir_all(&path).ok();
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
