//! Programs on a display, which do not outlive this process.

use std::path::PathBuf;
use std::process::Stdio;

use tokio::process::{Child, Command};

use crate::computer::ComputerError;

/// Shell script that starts a program in a process group of its own. When our pipe closes, for whatever reason,
/// the whole group is killed.
const LAUNCH_SCRIPT: &str = r#""$@" </dev/null >/dev/null 2>&1 & read -r _; kill -KILL 0"#;

/// A program to start on a desktop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesktopProgram {
    /// The program: a path, or a name on the `PATH`.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Environment variables to set; `DISPLAY` is set in any case.
    pub environment: Vec<(String, String)>,
}

impl DesktopProgram {
    /// Creates a program without arguments.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: Vec::new(), environment: Vec::new() }
    }

    /// Adds arguments.
    #[must_use]
    pub fn arguments<T: Into<String>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the path of the program.
    fn find(&self) -> Result<PathBuf, ComputerError> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let found = match self.program.components().count() {
            1 => std::env::split_paths(&folders)
                .map(|folder| folder.join(&self.program))
                .find(|path| path.is_file()),
            _ => Some(self.program.clone()).filter(|path| path.is_file()),
        };
        found.ok_or_else(|| ComputerError::Missing {
            what: self.program.display().to_string(),
            hint: "install it, or name its path in `DesktopProgram::program`".to_owned(),
        })
    }
}

/// A program that runs on a display. It is killed when this value is dropped.
pub(super) struct RunningProgram {
    child: Child,
}

impl RunningProgram {
    pub(super) fn start(program: &DesktopProgram, display: &str) -> Result<Self, ComputerError> {
        let path = program.find()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", LAUNCH_SCRIPT, "sh"]).arg(&path).args(&program.arguments);
        command.envs(program.environment.iter().map(|(name, value)| (name, value))).env("DISPLAY", display);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn().map_err(|error| {
            ComputerError::Failed(format!("`{}` could not be started: {error}", program.program.display()))
        })?;
        Ok(Self { child })
    }

    /// Kills the program and waits until it is gone.
    pub(super) async fn stop(mut self) {
        drop(self.child.stdin.take());
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), self.child.wait()).await;
    }
}
