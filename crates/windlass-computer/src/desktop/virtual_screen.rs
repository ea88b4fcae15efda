//! An X server that nobody sees, and that does not outlive us.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::computer::ComputerError;

/// The server tells its number on descriptor 3, which is our pipe. The shell waits for our other pipe to close, in
/// whatever way, and then ends the server.
const SHELL: &str = r#"Xvfb -displayfd 3 -screen 0 "$1x24" -nolisten tcp 3>&1 >/dev/null 2>&1 </dev/null & server=$!
exec >&-; read -r _; kill "$server" 2>/dev/null; wait "$server""#;

/// How long the server may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct VirtualScreen {
    child: Child,
    name: String,
}

impl VirtualScreen {
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
        command.args(["-c", SHELL, "sh", &format!("{width}x{height}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let Some(output) = child.stdout.take() else { return Err(failed("it has no pipe".to_owned())) };
        let mut number = String::new();
        let mut output = BufReader::new(output);
        let told = tokio::time::timeout(PATIENCE, output.read_line(&mut number)).await;
        match told {
            Ok(Ok(1..)) => Ok(Self { child, name: format!(":{}", number.trim()) }),
            Ok(_) => Err(failed("it ended at once".to_owned())),
            Err(_) => Err(failed("it takes too long".to_owned())),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) async fn end(mut self) {
        drop(self.child.stdin.take());
        if tokio::time::timeout(PATIENCE, self.child.wait()).await.is_err() {
            tracing::warn!(display = self.name, "a virtual screen does not end");
        }
    }
}
