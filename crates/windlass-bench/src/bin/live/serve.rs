//! The server, in a process that ends with the one that started it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use windlass_realtime::testing::{Loopback, Reply, tone};

use crate::Failure;

/// What tells the program to be the server.
pub(crate) const WORD: &str = "serve";

/// A server that runs.
pub(crate) struct Server {
    pub(crate) address: String,
    child: Child,
    /// When this closes, however that comes about, the server ends.
    _held: Option<ChildStdin>,
}

impl Server {
    pub(crate) fn start(seconds: u64) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([WORD, &seconds.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let held = child.stdin.take();
        let mut address = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut address)?;
        }
        let address = format!("ws://{}/v1/realtime", address.trim());
        Ok(Self { address, child, _held: held })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until whoever started this is gone.
pub(crate) async fn serve(seconds: u64) -> Result<(), Failure> {
    let speech = tone(seconds * 1000);
    let server = Loopback::thinking(move |_| Reply::speak("Here it comes.", speech.clone()).paced(1));
    server.forget_all();
    let (address, listening) = server.listen().await?;
    println!("{address}");
    std::io::stdout().flush()?;
    let gone = tokio::task::spawn_blocking(|| std::io::stdin().lock().read_line(&mut String::new()));
    let _ = gone.await;
    listening.abort();
    Ok(())
}
