//! A virtual X server (Xvfb) that does not outlive this process.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::computer::ComputerError;

/// Shell script that starts the server. Xvfb writes its display number to file descriptor 3, which is our
/// pipe. The shell waits until our other pipe closes, for whatever reason, and then kills the server.
const LAUNCH_SCRIPT: &str = r#"Xvfb -displayfd 3 -screen 0 "$1x24" -nolisten tcp 3>&1 >/dev/null 2>&1 </dev/null & server=$!
exec >&-; read -r _; kill "$server" 2>/dev/null; wait "$server""#;

/// Timeout for the server to start and to exit.
const START_STOP_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct VirtualDisplay {
    child: Child,
    display_name: String,
}

impl VirtualDisplay {
    pub(super) async fn start(width: u32, height: u32) -> Result<Self, ComputerError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| folder.join("Xvfb").is_file()) {
            return Err(ComputerError::Missing {
                what: "Xvfb".to_owned(),
                hint:
                    "install it (Debian, Ubuntu: apt-get install xvfb), or use a display that is there with \
                       `DesktopOptions::Existing`"
                        .to_owned(),
            });
        }
        let failed = |why: String| ComputerError::Failed(format!("Xvfb did not start: {why}"));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", LAUNCH_SCRIPT, "sh", &format!("{width}x{height}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let Some(output) = child.stdout.take() else { return Err(failed("it has no pipe".to_owned())) };
        let mut number = String::new();
        let mut output = BufReader::new(output);
        let told = tokio::time::timeout(START_STOP_TIMEOUT, output.read_line(&mut number)).await;
        match told {
            Ok(Ok(1..)) => Ok(Self { child, display_name: format!(":{}", number.trim()) }),
            Ok(_) => Err(failed("it exited at once".to_owned())),
            Err(_) => Err(failed("it timed out".to_owned())),
        }
    }

    pub(super) fn display_name(&self) -> &str {
        &self.display_name
    }

    pub(super) async fn stop(mut self) {
        drop(self.child.stdin.take());
        if tokio::time::timeout(START_STOP_TIMEOUT, self.child.wait()).await.is_err() {
            tracing::warn!(display = self.display_name, "the virtual display (Xvfb) did not exit in time");
        }
    }
}
