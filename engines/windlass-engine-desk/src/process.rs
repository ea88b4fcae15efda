//! Processes that a test starts and kills.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A process that is killed when the value is dropped.
pub struct ChildProcess {
    child: Child,
}

impl ChildProcess {
    /// Starts a command. Its output goes to a file.
    ///
    /// # Panics
    ///
    /// Panics if it does not start.
    pub fn start(command: &mut Command, log: &std::path::Path) -> Self {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("the log opens");
        let errors = log.try_clone().expect("it is cloned");
        let command = command.stdin(Stdio::null()).stdout(log).stderr(errors);
        Self { child: command.spawn().expect("the process starts") }
    }

    /// Starts a test of this binary as a process of its own.
    pub fn start_test(name: &str, variables: &[(&str, String)], log: &std::path::Path) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        Self::start(&mut command, log)
    }

    /// Kills the process as `kill -9` does, and waits for its end.
    pub fn kill(mut self) {
        self.end();
    }

    /// Returns true if the process has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    fn end(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns a port of this machine that nobody listens on.
///
/// # Panics
///
/// Panics if there is none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Returns true if somebody listens on a port of this machine.
pub fn is_listening(port: u16) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok()
}

/// Says on standard error that something was not shown.
///
/// # Panics
///
/// Panics if standard error is closed.
pub fn say_not_shown(what: &str) {
    writeln!(std::io::stderr(), "not shown: {what}").expect("stderr");
}
