//! Running a command through the helper, from the program's side.

use std::io::Read;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use super::Sandbox;
use super::order::{Confinement, Order, Report};
use crate::text::Ends;

/// How long the helper has to end all that there is, once it was told to.
const TO_END: Duration = Duration::from_secs(5);

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) timed_out: bool,
    pub(crate) confined: Confinement,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end, or to the end of its time. When this is dropped, the command and its descendants
/// are gone.
pub(crate) async fn run(
    sandbox: &Sandbox,
    mut order: Order,
    time: Duration,
    output_bytes: usize,
) -> Result<Ended, String> {
    order.environment = sandbox.environment();
    let (program, args) = sandbox.program()?;
    let (ours, theirs) = UnixStream::pair().map_err(|error| failed(&error))?;
    let mut helper = Command::new(program)
        .args(args)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    let (Some(stdout), Some(stderr)) = (helper.stdout.take(), helper.stderr.take()) else {
        return Err("the command's output cannot be read".into());
    };
    let line = Line::new(ours).map_err(|error| failed(&error))?;
    let (mut reports, mut to_helper) = tokio_line(&line)?.into_split();
    let mut text =
        serde_json::to_vec(&order).map_err(|error| format!("it cannot be written down: {error}"))?;
    text.push(b'\n');
    // A helper that does not listen is heard of below: it ends without a word.
    to_helper.write_all(&text).await.ok();

    let mut told = Told::default();
    let (mut out, mut err) = (Ends::new(output_bytes), Ends::new(output_bytes));
    let mut timed_out = false;
    {
        let all = async {
            tokio::join!(listen(&mut reports, &mut told), drain(stdout, &mut out), drain(stderr, &mut err))
        };
        tokio::pin!(all);
        if tokio::time::timeout(time, &mut all).await.is_err() {
            timed_out = true;
            line.end();
            tokio::time::timeout(TO_END, &mut all).await.ok();
        }
    }
    drop(line);
    // It has ended, or was left: then somebody else reaps it.
    tokio::time::timeout(TO_END, helper.wait()).await.ok();
    if let Some(why) = told.failed {
        return Err(why);
    }
    let Some(confined) = told.confined else {
        return Err("the helper ended before it began: is it a program that calls \
             windlass_tools::sandbox::main_if_asked()?"
            .into());
    };
    Ok(Ended {
        code: told.code,
        signal: told.signal,
        timed_out,
        confined,
        stdout: out.into_text(),
        stderr: err.into_text(),
    })
}

fn failed(error: &std::io::Error) -> String {
    format!("the helper cannot be started: {}", error.kind())
}

fn tokio_line(line: &Line) -> Result<tokio::net::UnixStream, String> {
    let stream = line.0.try_clone().map_err(|error| failed(&error))?;
    tokio::net::UnixStream::from_std(stream).map_err(|error| failed(&error))
}

/// What the helper told.
#[derive(Default)]
struct Told {
    confined: Option<Confinement>,
    group: Option<i32>,
    code: Option<i32>,
    signal: Option<i32>,
    failed: Option<String>,
    ended: bool,
}

async fn listen(reports: &mut tokio::net::unix::OwnedReadHalf, told: &mut Told) {
    let mut lines = BufReader::new(reports).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(Report::Started { group, confined }) => {
                (told.group, told.confined) = (Some(group), Some(confined));
            }
            Ok(Report::Failed { why }) => told.failed = Some(why),
            Ok(Report::Ended { code, signal }) => {
                (told.code, told.signal, told.ended) = (code, signal, true);
            }
            Err(_) => told.failed = Some("the helper said something that was not understood".into()),
        }
    }
    // Somebody ended the helper itself. What it watched over must not stay.
    if let (false, Some(group)) = (told.ended, told.group.and_then(rustix::process::Pid::from_raw)) {
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
    }
}

/// Reads to the end, so that the command never waits for room, and keeps what there is room for.
async fn drain(mut from: impl AsyncRead + Unpin, into: &mut Ends) {
    let mut room = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut room).await {
        into.push(&room[..count]);
    }
}

/// The line to the helper. Its end is the command's end.
struct Line(UnixStream);

impl Line {
    fn new(stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }

    fn end(&self) {
        self.0.shutdown(Shutdown::Write).ok();
    }
}

impl Drop for Line {
    /// Waits, within a bound, until the helper has ended everything: whoever cancels a run may count on it.
    /// This takes milliseconds; where the command has ended already, none.
    fn drop(&mut self) {
        self.end();
        let waits = self.0.set_nonblocking(false).and_then(|()| self.0.set_read_timeout(Some(TO_END)));
        let mut room = [0; 1024];
        while waits.is_ok() && matches!(self.0.read(&mut room), Ok(1..)) {}
    }
}
