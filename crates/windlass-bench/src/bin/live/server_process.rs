//! The server process, which exits with its parent.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use windlass_realtime::testing::{LoopbackReply, LoopbackServer, tone};

use crate::LiveBenchError;

/// The argument with which the program runs as the server.
pub(crate) const SERVE_COMMAND: &str = "serve";

/// A running server process. Dropping it kills the process.
pub(crate) struct LiveServerProcess {
    pub(crate) address: String,
    child: Child,
    /// Standard input of the server; the server exits when it closes.
    _stdin: Option<ChildStdin>,
}

impl LiveServerProcess {
    pub(crate) fn start(seconds: u64) -> Result<Self, LiveBenchError> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([SERVE_COMMAND, &seconds.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let held = child.stdin.take();
        let mut address = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut address)?;
        }
        let address = format!("ws://{}/v1/realtime", address.trim());
        Ok(Self { address, child, _stdin: held })
    }
}

impl Drop for LiveServerProcess {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until the parent process closes standard input.
pub(crate) async fn serve_until_parent_exits(seconds: u64) -> Result<(), LiveBenchError> {
    let speech = tone(seconds * 1000);
    let server = LoopbackServer::with_reply_function(move |_| {
        LoopbackReply::speech("Here it comes.", speech.clone()).with_speed(1)
    });
    server.disable_recording();
    let (address, listening) = server.listen().await?;
    println!("{address}");
    std::io::stdout().flush()?;
    let gone = tokio::task::spawn_blocking(|| std::io::stdin().lock().read_line(&mut String::new()));
    let _ = gone.await;
    listening.abort();
    Ok(())
}
