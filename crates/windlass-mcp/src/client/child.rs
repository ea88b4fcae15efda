//! A server that is a child process, and the certainty that it does not outlive us.
//!
//! Beside every server stands a keeper: a shell that leads the server's process group and does nothing but read from
//! a pipe whose other end only this process has. When the pipe is closed, because we close it or because we are gone,
//! however that came about, the keeper kills the group: the server and whatever it has started.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{self, ChildStdin, ChildStdout, Command};
use tokio_util::sync::CancellationToken;

use crate::config::{Inherit, StdioConfig};

/// How long a server has to go by itself once its input is closed, and again once it was asked.
const GRACE: Duration = Duration::from_secs(2);
/// How long the last words of a server are waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How much of what a server last said on its standard error is kept.
const TAIL_LINES: usize = 20;
const LONGEST_LINE: u64 = 512;

/// What every program needs to find its way, and nothing that is a secret.
const BASICS: [&str; 16] = [
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

/// Lines on its input are requests to ask the group to end. The end of its input is the end of the group.
const KEEPER: &str = "trap '' TERM INT HUP; while read -r word; do kill -TERM 0; done; kill -KILL 0";

pub(super) struct Child {
    child: process::Child,
    keeper: Option<Keeper>,
    said: Tail,
}

struct Keeper {
    process: process::Child,
    pipe: ChildStdin,
}

/// The last lines of a server's standard error.
#[derive(Clone, Default)]
pub(super) struct Tail {
    lines: Arc<Mutex<VecDeque<String>>>,
    ended: CancellationToken,
}

/// Starts a server. Its input and output are for the protocol.
pub(super) fn spawn(config: &StdioConfig) -> std::io::Result<(Child, ChildStdout, ChildStdin)> {
    let keeper = Keeper::spawn();
    let mut command = Command::new(&config.command);
    command.args(&config.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    if config.inherit == Inherit::Basics {
        command.env_clear();
        command.envs(BASICS.iter().filter_map(|&name| Some((name, std::env::var_os(name)?))));
    }
    command.envs(&config.env);
    if let Some(folder) = &config.cwd {
        command.current_dir(folder);
    }
    #[cfg(unix)]
    command.process_group(keeper.as_ref().and_then(Keeper::group).unwrap_or(0));
    let mut child = command.spawn()?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(std::io::Error::other("the child has no input or no output"));
    };
    let said = Tail::default();
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(said.clone().follow(stderr));
    }
    Ok((Child { child, keeper, said }, output, input))
}

impl Child {
    /// What the server last said on its standard error.
    pub(super) fn said(&self) -> Tail {
        self.said.clone()
    }

    /// The server's process, and its keeper's.
    pub(super) fn processes(&self) -> Vec<u32> {
        let keeper = self.keeper.as_ref().and_then(|keeper| keeper.process.id());
        self.child.id().into_iter().chain(keeper).collect()
    }

    /// Ends the server, whose input is closed by now: it may go by itself, then it is asked, then it is killed.
    pub(super) async fn end(mut self) {
        if tokio::time::timeout(GRACE, self.child.wait()).await.is_err() {
            if let Some(keeper) = &mut self.keeper
                && keeper.pipe.write_all(b"end\n").await.is_ok()
            {
                let _gone = tokio::time::timeout(GRACE, self.child.wait()).await;
            }
            let killed = self.child.start_kill();
            tracing::debug!(?killed, "a server did not end by itself");
        }
        // What the server has left behind goes with the keeper.
        if let Some(Keeper { mut process, pipe }) = self.keeper.take() {
            drop(pipe);
            let _gone = tokio::time::timeout(GRACE, process.wait()).await;
        }
        let _gone = tokio::time::timeout(GRACE, self.child.wait()).await;
    }
}

impl Keeper {
    #[cfg(unix)]
    fn spawn() -> Option<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", KEEPER]).env_clear().process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = match command.spawn() {
            Ok(process) => process,
            Err(error) => {
                tracing::warn!(%error, "no shell is here, so what a server starts may outlive it");
                return None;
            }
        };
        let pipe = process.stdin.take()?;
        Some(Self { process, pipe })
    }

    #[cfg(not(unix))]
    fn spawn() -> Option<Self> {
        None
    }

    #[cfg(unix)]
    fn group(&self) -> Option<i32> {
        self.process.id().and_then(|id| i32::try_from(id).ok())
    }
}

impl Tail {
    /// The lines, as one text.
    pub(super) fn text(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// The same, of a server that did not come up: what it says last may still be on its way.
    pub(super) async fn last(&self) -> String {
        let _ended = tokio::time::timeout(LAST_WORDS, self.ended.cancelled()).await;
        self.text()
    }

    async fn follow(self, stderr: process::ChildStderr) {
        let _ended = self.ended.clone().drop_guard();
        let mut stderr = BufReader::new(stderr);
        let mut line = Vec::new();
        loop {
            line.clear();
            // A line that is too long is taken in pieces, so that no server fills our memory.
            match (&mut stderr).take(LONGEST_LINE).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
                    if lines.len() == TAIL_LINES {
                        lines.pop_front();
                    }
                    lines.push_back(text);
                }
            }
        }
    }
}
