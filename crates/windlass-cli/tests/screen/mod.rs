//! A terminal for a test: a program of ours on a pseudo-terminal, keys as a person presses them, and the screen as a
//! person sees it.

use std::io::{Read, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pty_process::Size;
use pty_process::blocking::{Command, open};

/// How long anything may take before a test is given up. Nothing is expected to.
const GUARD: Duration = Duration::from_secs(120);

/// A program on a terminal of its own.
pub(crate) struct Screen {
    child: Child,
    keys: std::fs::File,
    changes: Receiver<()>,
    parser: Arc<Mutex<vt100::Parser>>,
}

impl Screen {
    /// Starts the command in a folder, on a terminal of this many rows and columns.
    pub(crate) fn start(folder: &Path, rows: u16, columns: u16, words: &[&str]) -> Self {
        let (pty, pts) = open().expect("there are pseudo-terminals");
        pty.resize(Size::new(rows, columns)).expect("it can be sized");
        let command = Command::new(env!("CARGO_BIN_EXE_windlass"))
            .args(words)
            .current_dir(folder)
            .env("TERM", "xterm-256color")
            .env("USER", "ann")
            .env_remove("NO_COLOR")
            .env_remove("COLUMNS")
            .env_remove("CARGO")
            .env_remove("WINDLASS_STORE");
        let child = command.spawn(pts).expect("it starts");
        let terminal: std::os::fd::OwnedFd = pty.into();
        let keys = std::fs::File::from(terminal);
        let mut output = keys.try_clone().expect("it can be read beside being written");
        let sized = |count| NonZero::new(count).expect("a terminal has some");
        let parser = Arc::new(Mutex::new(vt100::Parser::new(sized(rows), sized(columns), 0)));
        let (changed, changes) = channel();
        let screen = parser.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of the program is the end of its terminal.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                screen.lock().expect("nobody panics with it").process(&bytes[..count]);
                if changed.send(()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, changes, parser }
    }

    /// Waits until the screen shows a text.
    pub(crate) fn wait_for(&mut self, text: &str) {
        while !self.shown().contains(text) {
            if self.changes.recv_timeout(GUARD).is_err() && !self.shown().contains(text) {
                panic!("the screen does not show {text:?}:\n{}", self.shown());
            }
        }
    }

    /// Types a text.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("it takes keys");
    }

    /// The process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, as nothing can be prepared for.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().expect("it is there");
        self.end().1
    }

    /// Waits for the end. Gives what the shell would be told, and the last screen.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        while self.changes.recv_timeout(GUARD).is_ok() {}
        let status = self.child.wait().expect("it ended");
        (status, self.shown())
    }

    /// What a person sees, without the blank ends of lines and of the screen.
    pub(crate) fn shown(&self) -> String {
        let contents = self.parser.lock().expect("nobody panics with it").screen().contents();
        let lines: Vec<&str> = contents.lines().map(str::trim_end).collect();
        lines.join("\n").trim_end().to_owned()
    }
}
