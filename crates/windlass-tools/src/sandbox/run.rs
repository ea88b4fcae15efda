//! Execution of a command through the helper, on the program's side.

use std::io::Read;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use super::Sandbox;
use super::protocol::{ConfinementReport, HelperReport, SandboxedCommand};
use crate::text::HeadTailBuffer;

/// Maximum time for the helper to kill the command and its descendants.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for the helper to kill a command that has timed out and to undo its changes of protected files, of which
/// there may be as many as the command liked.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);
/// Sentence for the model if the changes are not undone in that time.
const STILL_RESTORING: &str = "protected files are still being checked, and changed ones restored or renamed";

/// The exit status and the output of a command.
pub(crate) struct SandboxedExit {
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) timed_out: bool,
    pub(crate) confinement: ConfinementReport,
    /// A sentence about each change of a protected file that was undone.
    pub(crate) undone: Vec<String>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command until it ends or times out.
///
/// # Errors
///
/// Returns the reason if the helper or the command cannot be started.
///
/// # Cancel safety
///
/// Dropping the future kills the command and its descendants, and blocks for a bounded time until they are gone.
pub(crate) async fn run_sandboxed(
    sandbox: &Sandbox,
    mut order: SandboxedCommand,
    time: Duration,
    output_bytes: usize,
) -> Result<SandboxedExit, String> {
    let writable: Vec<&Path> =
        std::iter::once(order.root.as_path()).chain(order.writable.iter().map(PathBuf::as_path)).collect();
    let environment = sandbox.command_environment(&writable, order.git_access);
    let executable = sandbox.helper_executable(&writable)?;
    order.environment = environment;
    let (ours, theirs) = UnixStream::pair().map_err(|error| helper_error(&error))?;
    let mut helper = Command::new(executable.exec_path())
        .arg(super::HELPER_ARGUMENT)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| helper_error(&error))?;
    drop(executable);
    let (Some(stdout), Some(stderr)) = (helper.stdout.take(), helper.stderr.take()) else {
        return Err("the command's output cannot be read".into());
    };
    let line = HelperSocket::new(ours).map_err(|error| helper_error(&error))?;
    let (mut reports, mut to_helper) = async_stream(&line)?.into_split();
    let mut text =
        serde_json::to_vec(&order).map_err(|error| format!("it cannot be written down: {error}"))?;
    text.push(b'\n');
    // A helper that does not read its input ends without a report, which is handled below.
    to_helper.write_all(&text).await.ok();

    let mut told = ReportedStatus::default();
    let (mut out, mut err) = (HeadTailBuffer::new(output_bytes), HeadTailBuffer::new(output_bytes));
    let mut timed_out = false;
    {
        let all = async {
            tokio::join!(
                read_reports(&mut reports, &mut told),
                drain_output(stdout, &mut out),
                drain_output(stderr, &mut err)
            )
        };
        tokio::pin!(all);
        if tokio::time::timeout(time, &mut all).await.is_err() {
            timed_out = true;
            line.close();
            tokio::time::timeout(RESTORE_TIMEOUT, &mut all).await.ok();
        }
    }
    drop(line);
    // If the helper has not ended in time, tokio reaps it later.
    tokio::time::timeout(SHUTDOWN_TIMEOUT, helper.wait()).await.ok();
    if timed_out && !told.has_ended {
        told.undone.push(STILL_RESTORING.to_owned());
    }
    if let Some(why) = told.failure {
        return Err(why);
    }
    let Some(confined) = told.confinement else {
        return Err("the helper ended before it began: is it a program that calls \
             windlass_tools::sandbox::main_if_asked()?"
            .into());
    };
    Ok(SandboxedExit {
        exit_code: told.exit_code,
        signal: told.signal,
        timed_out,
        confinement: confined,
        undone: told.undone,
        stdout: out.into_text(),
        stderr: err.into_text(),
    })
}

fn helper_error(error: &std::io::Error) -> String {
    format!("the helper cannot be started: {}", error.kind())
}

fn async_stream(line: &HelperSocket) -> Result<tokio::net::UnixStream, String> {
    let stream = line.0.try_clone().map_err(|error| helper_error(&error))?;
    tokio::net::UnixStream::from_std(stream).map_err(|error| helper_error(&error))
}

/// The state of a command, accumulated from the helper's reports.
#[derive(Default)]
struct ReportedStatus {
    confinement: Option<ConfinementReport>,
    undone: Vec<String>,
    process_group: Option<i32>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    failure: Option<String>,
    has_ended: bool,
}

async fn read_reports(reports: &mut tokio::net::unix::OwnedReadHalf, told: &mut ReportedStatus) {
    let mut lines = BufReader::new(reports).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(HelperReport::Started { process_group: group, confinement: confined }) => {
                (told.process_group, told.confinement) = (Some(group), Some(confined));
            }
            Ok(HelperReport::Failed { reason: why }) => told.failure = Some(why),
            Ok(HelperReport::Ended { exit_code: code, signal, undone }) => {
                (told.exit_code, told.signal, told.has_ended) = (code, signal, true);
                told.undone = undone;
            }
            Err(_) => told.failure = Some("the helper said something that was not understood".into()),
        }
    }
    // The helper was killed before the command ended, so its process group is killed here.
    if let (false, Some(group)) =
        (told.has_ended, told.process_group.and_then(rustix::process::Pid::from_raw))
    {
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
    }
}

/// Reads an output to its end, so that the command never blocks on a full pipe; the buffer keeps a bounded part.
async fn drain_output(mut from: impl AsyncRead + Unpin, into: &mut HeadTailBuffer) {
    let mut room = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut room).await {
        into.push(&room[..count]);
    }
}

/// The socket to the helper. Closing it kills the command.
struct HelperSocket(UnixStream);

impl HelperSocket {
    fn new(stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }

    fn close(&self) {
        self.0.shutdown(Shutdown::Write).ok();
    }
}

impl Drop for HelperSocket {
    /// Blocks, within a bound, until the helper has killed all descendants, so that cancelling a run
    /// guarantees it. This takes milliseconds, and no time if the command has already ended.
    fn drop(&mut self) {
        self.close();
        let waits =
            self.0.set_nonblocking(false).and_then(|()| self.0.set_read_timeout(Some(SHUTDOWN_TIMEOUT)));
        let mut room = [0; 1024];
        while waits.is_ok() && matches!(self.0.read(&mut room), Ok(1..)) {}
    }
}
