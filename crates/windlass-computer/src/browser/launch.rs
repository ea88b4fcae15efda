//! Starting a Chromium that does not outlive us.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{BrowserOptions, Elsewhere, Window};
use crate::computer::ComputerError;

/// What a Chromium is called.
const NAMES: [&str; 5] =
    ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome-headless-shell"];

/// How much of what a browser says about itself is kept.
const SAID: usize = 4096;

/// How long a browser may take to end when it is asked to.
const ENDING: Duration = Duration::from_secs(5);

/// The browser speaks on descriptors 3 and 4, which are the shell's own input and output: so no descriptor has to be
/// placed by hand. When our end of the pipe closes, the browser ends, and the shell puts its profile away.
const SHELL: &str =
    r#"profile=$1; shift; "$@" 3<&0 4>&1 </dev/null >/dev/null; code=$?; rm -rf -- "$profile"; exit $code"#;

/// Ends a browser that nobody waits for. What it still writes while it dies is put away a little later.
const GIVE_UP: &str = r#"kill -KILL -- "-$1"; (sleep 1; rm -rf -- "$2") </dev/null >/dev/null 2>&1 &"#;

/// A browser's process, and where its profile is.
pub(super) struct Process {
    child: Child,
    group: Option<u32>,
    said: Arc<Mutex<Vec<u8>>>,
    profile: PathBuf,
}

/// Where Chromium is, or what to do about it.
pub(super) fn find(options: &BrowserOptions) -> Result<PathBuf, ComputerError> {
    if let Some(path) = &options.program {
        return if path.is_file() { Ok(path.clone()) } else { Err(missing(&path.display().to_string())) };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = NAMES.iter().find_map(|name| {
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
    });
    found.ok_or_else(|| missing("Chromium"))
}

fn missing(what: &str) -> ComputerError {
    ComputerError::Missing {
        what: what.to_owned(),
        hint: "install it (Debian, Ubuntu: apt-get install chromium), or say where it is with \
               `BrowserOptions::program`"
            .to_owned(),
    }
}

pub(super) fn start(
    program: &Path,
    options: &BrowserOptions,
) -> Result<(Process, ChildStdin, ChildStdout), ComputerError> {
    let failed = |what: &str, error: std::io::Error| ComputerError::Failed(format!("{what}: {error}"));
    let profile = tempfile::Builder::new()
        .prefix("windlass-browser-")
        .tempdir()
        .map_err(|error| failed("a folder for the browser's profile could not be made", error))?
        .keep();
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(SHELL).arg("sh").arg(&profile).arg(program).args(flags(options, &profile));
    if let Window::Shown { display: Some(display) } = &options.window {
        command.env("DISPLAY", display);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own, so that all of it can be ended where it does not end by itself.
    command.process_group(0).kill_on_drop(true);
    let spawned = command.spawn();
    let mut child = spawned.map_err(|error| failed("the browser could not be started", error))?;
    let (Some(input), Some(output), Some(errors)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(ComputerError::Failed("the browser has no pipes".to_owned()));
    };
    let said = Arc::<Mutex<Vec<u8>>>::default();
    tokio::spawn(keep_last(errors, said.clone()));
    let group = child.id();
    Ok((Process { child, group, said, profile }, input, output))
}

fn flags(options: &BrowserOptions, profile: &Path) -> Vec<String> {
    let mut flags: Vec<String> = [
        "--remote-debugging-pipe",
        "--no-first-run",
        "--no-default-browser-check",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-default-apps",
        "--disable-extensions",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication,Prerender2",
        "--disable-session-crashed-bubble",
        "--disable-search-engine-choice-screen",
        "--force-device-scale-factor=1",
        "--metrics-recording-only",
        "--mute-audio",
        "--password-store=basic",
        "--use-mock-keychain",
    ]
    .map(str::to_owned)
    .to_vec();
    flags.push(format!("--user-data-dir={}", profile.display()));
    flags.push(format!("--window-size={},{}", options.width, options.height));
    if options.window == Window::Headless {
        flags.push("--headless".to_owned());
    }
    if runs_as_root() {
        // Chromium refuses to sandbox itself for root.
        flags.push("--no-sandbox".to_owned());
    }
    flags.extend(options.flags.iter().cloned());
    // Of flags that are given twice the last one counts, so these cannot be undone by those above.
    if let (Elsewhere::Nothing, Some(rules)) = (options.elsewhere, options.sites.host_rules()) {
        flags.push(format!("--host-resolver-rules={rules}"));
        flags.push("--force-webrtc-ip-handling-policy=disable_non_proxied_udp".to_owned());
    }
    flags.push("about:blank".to_owned());
    flags
}

/// Whether this process is root's, without asking the system in ways that are not safe.
fn runs_as_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.and_then(|line| line.split_whitespace().nth(1)).is_some_and(|effective| effective == "0")
}

async fn keep_last(mut errors: impl tokio::io::AsyncRead + Unpin, said: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = errors.read(&mut buffer).await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(&buffer[..read]);
        let over = said.len().saturating_sub(SAID);
        said.drain(..over);
    }
}

impl Process {
    /// What the browser said last, for the operator.
    pub(super) fn said(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).trim().to_owned()
    }

    /// Waits for the browser to end; one that does not is made to.
    pub(super) async fn end(mut self) {
        if tokio::time::timeout(ENDING, self.child.wait()).await.is_err() {
            self.kill_group();
            let _ = tokio::time::timeout(ENDING, self.child.wait()).await;
        }
        self.group = None;
        let _ = std::fs::remove_dir_all(&self.profile);
    }

    /// The process number of the shell around the browser, for tests of what is left behind.
    pub(super) fn id(&self) -> Option<u32> {
        self.group
    }

    fn kill_group(&self) {
        if let Some(group) = self.group {
            shell("kill -KILL -- \"-$1\"", &group.to_string(), &self.profile);
        }
    }
}

/// Asks a shell, for what the standard library has no safe way to.
fn shell(script: &str, group: &str, profile: &Path) {
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", script, "sh", group]).arg(profile).stdin(Stdio::null()).stdout(Stdio::null());
    if let Err(error) = command.stderr(Stdio::null()).status() {
        tracing::warn!(%error, "a browser could not be ended");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Whoever drops a browser without closing it has no time to wait for it.
        if self.group.is_some() {
            let group = self.group.unwrap_or_default().to_string();
            shell(GIVE_UP, &group, &self.profile);
        }
    }
}
