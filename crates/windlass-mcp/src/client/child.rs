//! MCP servers that run as child processes.
//!
//! **Invariant:** a server and its descendants do not outlive this process, even if this process is killed.
//!
//! Each server has a watchdog: a shell that leads the server's process group and reads from a pipe whose
//! other end only this process holds. When the pipe is closed, by this process or by its exit, the watchdog
//! kills the process group: the server and every process that it started.
//!
//! A process that left the group with `setsid` is found by a mark in its environment, which it inherited from the
//! server. (On systems without `/proc`, and for a process that also cleared its environment, only the group counts.)

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{self, ChildStdin, ChildStdout, Command};
use tokio_util::sync::CancellationToken;

use crate::config::{EnvironmentInheritance, StdioTransportConfig};

/// Time a server has to exit after its input is closed, and again after SIGTERM.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// Maximum wait for the rest of a server's standard error after a failed start.
const STDERR_DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of last lines of a server's standard error that are kept.
const STDERR_TAIL_LINES: usize = 20;
/// Maximum length of a kept line, in bytes.
const MAX_STDERR_LINE: u64 = 512;

/// Environment variables that every server inherits; none of them holds a secret.
const INHERITED_VARIABLES: [&str; 16] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "TEMP",
    "TMP",
    "SYSTEMROOT",
    "APPDATA",
    "XDG_CACHE_HOME",
];

/// Environment variable whose value marks a server and its descendants.
const MARK_VARIABLE: &str = "WINDLASS_MCP_PROCESS";

/// The watchdog's shell script: it sends SIGTERM to the group for every input line, and SIGKILL at the end of
/// input, first to the marked processes outside the group. The mark is its only argument. A process may fork while the
/// others are looked up, so that they are looked up several times.
const WATCHDOG_SCRIPT: &str = r#"trap '' TERM INT HUP
while read -r word; do kill -TERM 0; done
for round in 1 2 3 4 5 6 7 8; do
    found=$(grep -lsF -- "$0" /proc/[0-9]*/environ)
    [ -n "$found" ] || break
    for file in $found; do id=${file#/proc/}; kill -KILL "${id%/environ}"; done
done
kill -KILL 0"#;

/// Number of servers that this process has started, for their marks.
static STARTED_SERVERS: AtomicU64 = AtomicU64::new(0);

/// A running server process and its watchdog.
pub(super) struct ServerProcess {
    process: process::Child,
    watchdog: Option<GroupWatchdog>,
    stderr: StderrTail,
}

/// The watchdog process of a server's process group.
struct GroupWatchdog {
    process: process::Child,
    pipe: ChildStdin,
}

/// The last lines of a server's standard error.
#[derive(Clone, Default)]
pub(super) struct StderrTail {
    lines: Arc<Mutex<VecDeque<String>>>,
    closed: CancellationToken,
}

/// Starts a server and returns its process, its standard output and its standard input.
pub(super) fn spawn_server(
    config: &StdioTransportConfig,
) -> std::io::Result<(ServerProcess, ChildStdout, ChildStdin)> {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let number = STARTED_SERVERS.fetch_add(1, Ordering::Relaxed);
    let mark = format!("{}-{number}-{}", std::process::id(), since_epoch.as_nanos());
    let keeper = GroupWatchdog::spawn(&mark);
    let mut command = Command::new(&config.command);
    command.args(&config.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    if config.inheritance == EnvironmentInheritance::AllowList {
        command.env_clear();
        command.envs(INHERITED_VARIABLES.iter().filter_map(|&name| Some((name, std::env::var_os(name)?))));
    }
    command.envs(&config.env).env(MARK_VARIABLE, &mark);
    if let Some(folder) = &config.cwd {
        command.current_dir(folder);
    }
    #[cfg(unix)]
    command.process_group(keeper.as_ref().and_then(GroupWatchdog::group_id).unwrap_or(0));
    let mut child = command.spawn()?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(std::io::Error::other("the child has no input or no output"));
    };
    let said = StderrTail::default();
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(said.clone().read_stderr(stderr));
    }
    Ok((ServerProcess { process: child, watchdog: keeper, stderr: said }, output, input))
}

impl ServerProcess {
    /// Returns the tail of the server's standard error.
    pub(super) fn stderr_tail(&self) -> StderrTail {
        self.stderr.clone()
    }

    /// Returns the process ids of the server and its watchdog.
    pub(super) fn process_ids(&self) -> Vec<u32> {
        let keeper = self.watchdog.as_ref().and_then(|keeper| keeper.process.id());
        self.process.id().into_iter().chain(keeper).collect()
    }

    /// Stops the server after its input is closed: waits for it to exit, then sends SIGTERM, then SIGKILL.
    pub(super) async fn shut_down(mut self) {
        if tokio::time::timeout(SHUTDOWN_GRACE, self.process.wait()).await.is_err() {
            if let Some(keeper) = &mut self.watchdog
                && keeper.pipe.write_all(b"end\n").await.is_ok()
            {
                let _gone = tokio::time::timeout(SHUTDOWN_GRACE, self.process.wait()).await;
            }
            let killed = self.process.start_kill();
            tracing::debug!(?killed, "a server did not end by itself");
        }
        // Closing the pipe makes the watchdog kill the processes that the server left behind.
        if let Some(GroupWatchdog { mut process, pipe }) = self.watchdog.take() {
            drop(pipe);
            let _gone = tokio::time::timeout(SHUTDOWN_GRACE, process.wait()).await;
        }
        let _gone = tokio::time::timeout(SHUTDOWN_GRACE, self.process.wait()).await;
    }
}

impl GroupWatchdog {
    #[cfg(unix)]
    fn spawn(mark: &str) -> Option<Self> {
        let mark = format!("{MARK_VARIABLE}={mark}");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", WATCHDOG_SCRIPT, &mark]).env_clear().process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = match command.spawn() {
            Ok(process) => process,
            Err(error) => {
                tracing::warn!(%error, "/bin/sh cannot be started; processes that an MCP server starts may outlive it");
                return None;
            }
        };
        let pipe = process.stdin.take()?;
        Some(Self { process, pipe })
    }

    #[cfg(not(unix))]
    fn spawn(_mark: &str) -> Option<Self> {
        None
    }

    #[cfg(unix)]
    fn group_id(&self) -> Option<i32> {
        self.process.id().and_then(|id| i32::try_from(id).ok())
    }
}

impl StderrTail {
    /// Returns the lines, joined by newlines.
    pub(super) fn text(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Returns the lines after waiting, within a bound, for the server to close its standard error.
    pub(super) async fn text_at_exit(&self) -> String {
        let _ended = tokio::time::timeout(STDERR_DRAIN_TIMEOUT, self.closed.cancelled()).await;
        self.text()
    }

    async fn read_stderr(self, stderr: process::ChildStderr) {
        let _ended = self.closed.clone().drop_guard();
        let mut stderr = BufReader::new(stderr);
        let mut line = Vec::new();
        loop {
            line.clear();
            // A long line is read in pieces, which bounds the memory that a server can use.
            match (&mut stderr).take(MAX_STDERR_LINE).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
                    if lines.len() == STDERR_TAIL_LINES {
                        lines.pop_front();
                    }
                    lines.push_back(text);
                }
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
#[path = "child_tests.rs"]
mod tests;
