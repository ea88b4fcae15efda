//! Launch of a Chromium process that does not outlive this process.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use windlass_net::{NetworkBan, network_ban};

use super::private_network::{PrivateNetworkPolicy, host_of, resolver_rules};
use super::{AllowedSites, BrowserOptions, BrowserWindow, ThirdPartyPolicy};
use crate::computer::ComputerError;

/// Program names under which Chromium is searched on `PATH`.
const PROGRAM_NAMES: [&str; 5] =
    ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome-headless-shell"];

/// Maximum number of bytes of the browser's standard error that are kept.
const MAX_STDERR_BYTES: usize = 4096;

/// Timeout for the browser to exit after it was asked to close.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Shell script that starts the browser. The DevTools pipe uses file descriptors 3 and 4, which the script
/// redirects from the shell's own standard input and output. When our end of the pipe closes, the browser
/// exits and the script deletes its profile.
const LAUNCH_SCRIPT: &str =
    r#"profile=$1; shift; "$@" 3<&0 4>&1 </dev/null >/dev/null; code=$?; rm -rf -- "$profile"; exit $code"#;

/// Shell script that kills a browser without waiting for it. Files that the dying browser still writes are
/// deleted one second later.
const KILL_SCRIPT: &str = r#"kill -KILL -- "-$1"; (sleep 1; rm -rf -- "$2") </dev/null >/dev/null 2>&1 &"#;

/// A browser process and the directory of its profile.
pub(super) struct BrowserProcess {
    child: Child,
    process_group: Option<u32>,
    stderr_tail: Arc<Mutex<Vec<u8>>>,
    profile_dir: PathBuf,
}

/// Returns the path of Chromium.
///
/// # Errors
///
/// Returns [`ComputerError::Missing`] with installation advice if it was not found.
pub(super) fn find_chromium(options: &BrowserOptions) -> Result<PathBuf, ComputerError> {
    if let Some(path) = &options.program {
        return if path.is_file() {
            Ok(path.clone())
        } else {
            Err(missing_browser(&path.display().to_string()))
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = PROGRAM_NAMES.iter().find_map(|name| {
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
    });
    found.ok_or_else(|| missing_browser("Chromium"))
}

fn missing_browser(what: &str) -> ComputerError {
    ComputerError::Missing {
        what: what.to_owned(),
        hint: "install it (Debian, Ubuntu: apt-get install chromium), or say where it is with \
               `BrowserOptions::program`"
            .to_owned(),
    }
}

pub(super) fn spawn_browser(
    program: &Path,
    options: &BrowserOptions,
) -> Result<(BrowserProcess, ChildStdin, ChildStdout), ComputerError> {
    let failed = |what: &str, error: std::io::Error| ComputerError::Failed(format!("{what}: {error}"));
    let profile = tempfile::Builder::new()
        .prefix("windlass-browser-")
        .tempdir()
        .map_err(|error| failed("a folder for the browser's profile could not be made", error))?
        .keep();
    let mut command = Command::new("/bin/sh");
    command
        .arg("-c")
        .arg(LAUNCH_SCRIPT)
        .arg("sh")
        .arg(&profile)
        .arg(program)
        .args(command_line_flags(options, &profile));
    if let BrowserWindow::Visible { display: Some(display) } = &options.window {
        command.env("DISPLAY", display);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The browser gets its own process group, so that all of its processes can be killed together.
    command.process_group(0).kill_on_drop(true);
    let spawned = command.spawn();
    let mut child = spawned.map_err(|error| failed("the browser could not be started", error))?;
    let (Some(input), Some(output), Some(errors)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(ComputerError::Failed("the browser has no pipes".to_owned()));
    };
    let said = Arc::<Mutex<Vec<u8>>>::default();
    tokio::spawn(keep_stderr_tail(errors, said.clone()));
    let group = child.id();
    Ok((
        BrowserProcess { child, process_group: group, stderr_tail: said, profile_dir: profile },
        input,
        output,
    ))
}

fn command_line_flags(options: &BrowserOptions, profile: &Path) -> Vec<String> {
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
        "--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication,Prerender2,NetworkTimeServiceQuerying",
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
    if options.window == BrowserWindow::Headless {
        flags.push("--headless".to_owned());
    }
    if runs_as_root() {
        // Chromium's sandbox does not work for root.
        flags.push("--no-sandbox".to_owned());
    }
    if let Some(proxy) = &options.proxy {
        flags.push(format!("--proxy-server={proxy}"));
        // Chromium would not use the proxy for this machine's own addresses.
        flags.push("--proxy-bypass-list=<-loopback>".to_owned());
    }
    if let Some(locale) = &options.locale {
        flags.push(format!("--lang={locale}"));
    }
    flags.extend(options.extra_flags.iter().cloned());
    // Chromium uses the last of repeated flags, so the application's flags cannot override these.
    let is_closed = options.third_party == ThirdPartyPolicy::BlockAll;
    match (options.allowed_sites.host_resolver_rules(), options.private_networks) {
        (Some(rules), _) if is_closed => {
            flags.push(format!("--host-resolver-rules={rules}"));
            flags.push("--force-webrtc-ip-handling-policy=disable_non_proxied_udp".to_owned());
        }
        (listed, PrivateNetworkPolicy::Deny) => {
            let mut rules = resolver_rules();
            // Listed hosts may be private.
            if let Some((_, exclusions)) = listed.as_deref().and_then(|listed| listed.split_once(", ")) {
                rules.push_str(", ");
                rules.push_str(exclusions);
            }
            if let Some(proxy) = options.proxy.as_deref().and_then(host_of) {
                rules.push_str(&format!(", EXCLUDE {proxy}"));
            }
            flags.push(format!("--host-resolver-rules={rules}"));
        }
        (_, PrivateNetworkPolicy::Allow) => {}
    }
    if let Some(ban) = network_ban() {
        flags.push(format!("--host-resolver-rules={}", banned_resolver_rules(ban, options)));
    }
    flags.push("about:blank".to_owned());
    flags
}

/// Returns the resolver rules under a ban on network connections: they block all hosts but those of this machine that
/// both the ban and the options admit, sockets and workers included.
fn banned_resolver_rules(ban: NetworkBan, options: &BrowserOptions) -> String {
    let mut hosts: Vec<&str> = match &options.allowed_sites {
        AllowedSites::Any => Vec::new(),
        AllowedSites::Only(hosts) => hosts.iter().map(|host| without_port(host)).collect(),
    };
    if options.private_networks == PrivateNetworkPolicy::Allow
        && options.third_party != ThirdPartyPolicy::BlockAll
    {
        hosts.extend(["localhost", "127.0.0.1", "[::1]"]);
    }
    let admitted = hosts.into_iter().filter(|host| ban.admits_host(host));
    admitted.fold("MAP * ~NOTFOUND".to_owned(), |rules, host| format!("{rules}, EXCLUDE {host}"))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Returns true if the effective user is root. It reads `/proc`, because the system call would need unsafe
/// code.
fn runs_as_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.and_then(|line| line.split_whitespace().nth(1)).is_some_and(|effective| effective == "0")
}

async fn keep_stderr_tail(mut errors: impl tokio::io::AsyncRead + Unpin, said: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = errors.read(&mut buffer).await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(&buffer[..read]);
        let over = said.len().saturating_sub(MAX_STDERR_BYTES);
        said.drain(..over);
    }
}

impl BrowserProcess {
    /// Returns the end of the browser's standard error, for the operator.
    pub(super) fn stderr_text(&self) -> String {
        let said = self.stderr_tail.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).trim().to_owned()
    }

    /// Waits for the browser to exit and kills it after a timeout.
    pub(super) async fn wait_or_kill(mut self) {
        if tokio::time::timeout(EXIT_TIMEOUT, self.child.wait()).await.is_err() {
            self.kill_group();
            let _ = tokio::time::timeout(EXIT_TIMEOUT, self.child.wait()).await;
        }
        self.process_group = None;
        let _ = std::fs::remove_dir_all(&self.profile_dir);
    }

    /// Returns the id of the process group, which is the process id of the shell around the browser.
    pub(super) fn process_group_id(&self) -> Option<u32> {
        self.process_group
    }

    fn kill_group(&self) {
        if let Some(group) = self.process_group {
            run_shell_script("kill -KILL -- \"-$1\"", &group.to_string(), &self.profile_dir);
        }
    }
}

/// Runs a shell script, because the standard library has no safe way to signal a process group.
fn run_shell_script(script: &str, group: &str, profile: &Path) {
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", script, "sh", group]).arg(profile).stdin(Stdio::null()).stdout(Stdio::null());
    if let Err(error) = command.stderr(Stdio::null()).status() {
        tracing::warn!(%error, "the browser could not be killed");
    }
}

impl Drop for BrowserProcess {
    fn drop(&mut self) {
        // Drop cannot wait for the browser to close, so it kills it.
        if self.process_group.is_some() {
            let group = self.process_group.unwrap_or_default().to_string();
            run_shell_script(KILL_SCRIPT, &group, &self.profile_dir);
        }
    }
}
