//! The command as a child process.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::Value;

use crate::support::{TestProject, windlass_command};

/// A running `windlass talk`, which is killed at the end of the test.
pub(crate) struct TalkProcess {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The first object that it printed.
    pub(crate) greeting: Value,
}

impl TalkProcess {
    /// Starts the command and waits for its address.
    pub(crate) fn start(project: &TestProject, words: &[&str]) -> Self {
        let words: Vec<&str> = ["talk", ".", "--json", "--no-open"].iter().chain(words).copied().collect();
        let mut child = windlass_command(&project.folder(), &words)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("there is a pipe"));
        let mut process = Self { child, output, greeting: Value::Null };
        process.greeting = process.next_line();
        assert_eq!(process.greeting["type"], "talk", "{}", process.greeting);
        process
    }

    pub(crate) fn url(&self) -> &str {
        self.greeting["url"].as_str().expect("an address")
    }

    fn next_line(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it prints");
        serde_json::from_str(&line).expect("it is an object")
    }

    /// Returns the first object of this type that it prints.
    pub(crate) fn expect(&mut self, kind: &str) -> Value {
        loop {
            let line = self.next_line();
            if line["type"] == kind {
                return line;
            }
        }
    }

    /// Kills the process, as a crash does.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Stops the process as a service manager does, and returns the exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        assert_eq!(self.expect("end")["reason"], "Detached");
        self.child.wait().expect("it ends").code()
    }

    /// Presses Ctrl-C, and returns the exit code.
    pub(crate) fn interrupt(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
        assert_eq!(self.expect("end")["reason"], "Closed");
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for TalkProcess {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
