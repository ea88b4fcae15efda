//! The reference SDK in a Python process: it plays scenarios in simulated time.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// Longest time for one scenario. Simulated time needs milliseconds, so only a hanging process takes longer.
const PLAY_TIMEOUT: Duration = Duration::from_secs(600);

/// Returns the Python interpreter that has the reference SDK, or the reason why there is none.
///
/// # Errors
/// Returns a sentence if the interpreter does not start, or lacks the SDK.
pub fn find_reference_python() -> Result<PathBuf, String> {
    let python =
        std::env::var_os("WINDLASS_REFERENCE_PYTHON").map_or_else(|| "python3".into(), PathBuf::from);
    let check = "import importlib.metadata as m, sys; sys.exit(m.version('openai-agents') != '0.24.0')";
    let ran = Command::new(&python).args(["-c", check]).stderr(Stdio::null()).status();
    match ran {
        Ok(status) if status.success() => Ok(python),
        Ok(_) => {
            Err(format!("`{}` has no openai-agents 0.24.0; set WINDLASS_REFERENCE_PYTHON", python.display()))
        }
        Err(error) => Err(format!("`{}` does not start: {error}", python.display())),
    }
}

/// A process that plays scenarios on the reference.
pub struct ReferenceProcess {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<io::Result<String>>,
}

impl ReferenceProcess {
    /// Starts the process.
    ///
    /// # Errors
    /// Returns an error if Python does not start.
    pub fn start(python: &Path) -> io::Result<Self> {
        let player = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/reference.py");
        let mut child = Command::new(python)
            .arg(player)
            .arg("--simulated")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (requests, output) = (child.stdin.take(), child.stdout.take());
        let (Some(requests), Some(output)) = (requests, output) else {
            return Err(io::Error::other("the process has no pipes"));
        };
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, requests, answers })
    }

    /// Plays a scenario and returns its outcome.
    ///
    /// # Errors
    /// Returns an error if the process hangs or ends, or if the reference cannot play the scenario.
    pub fn play(&mut self, scenario: &Value) -> io::Result<Value> {
        writeln!(self.requests, "{scenario}")?;
        self.requests.flush()?;
        let answer = self.answers.recv_timeout(PLAY_TIMEOUT).map_err(io::Error::other)??;
        let outcome: Value = serde_json::from_str(&answer)?;
        match outcome["unplayable"].as_str() {
            Some(reason) => Err(io::Error::other(format!("the reference cannot play it: {reason}"))),
            None => Ok(outcome),
        }
    }
}

impl Drop for ReferenceProcess {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}
