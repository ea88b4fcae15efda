//! A test terminal: runs the command on a pseudo-terminal, sends keys, and emulates the screen.

#![allow(dead_code, reason = "each test file uses only some helpers")]

use std::io::{Read, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pty_process::Size;
use pty_process::blocking::{Command, open};

/// Timeout after which a test fails; no test is expected to reach it.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The command on a pseudo-terminal.
pub(crate) struct PtyScreen {
    child: Child,
    keys: std::fs::File,
    changes: Receiver<()>,
    parser: Arc<Mutex<vt100::Parser>>,
    /// Everything that was written to the terminal.
    written: Arc<Mutex<Vec<u8>>>,
    /// Time without a change after which a test fails.
    timeout: Duration,
}

impl PtyScreen {
    /// Starts the command in a folder, on a terminal with this many rows and columns.
    pub(crate) fn start(folder: impl AsRef<Path>, rows: u16, columns: u16, words: &[&str]) -> Self {
        Self::start_with(folder, rows, columns, words, &[])
    }

    /// Starts the command with additional environment variables.
    pub(crate) fn start_with(
        folder: impl AsRef<Path>,
        rows: u16,
        columns: u16,
        words: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let command = terminal_command(folder.as_ref(), words).envs(variables.iter().copied());
        Self::spawn(command, rows, columns, TEST_TIMEOUT)
    }

    /// Starts the command for a test that waits longer than others without a change of the screen.
    pub(crate) fn start_with_timeout(
        folder: impl AsRef<Path>,
        rows: u16,
        columns: u16,
        words: &[&str],
        timeout: Duration,
    ) -> Self {
        Self::spawn(terminal_command(folder.as_ref(), words), rows, columns, timeout)
    }

    /// Starts a shell in a folder that has only these environment variables. A prompt ends each command, with its exit
    /// code. Builds may show nothing for a long time, so `timeout` is the caller's.
    pub(crate) fn start_shell(
        folder: &Path,
        rows: u16,
        columns: u16,
        variables: &[(&str, String)],
        timeout: Duration,
    ) -> Self {
        let command = Command::new("/bin/bash")
            .args(["--noprofile", "--norc"])
            .current_dir(folder)
            .env_clear()
            .env("TERM", "xterm-256color")
            .env("PS1", "[exit $?] ")
            .envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
        Self::spawn(command, rows, columns, timeout)
    }

    fn spawn(command: Command, rows: u16, columns: u16, timeout: Duration) -> Self {
        let (pty, pts) = open().expect("there are pseudo-terminals");
        pty.resize(Size::new(rows, columns)).expect("it can be sized");
        let child = command.spawn(pts).expect("it starts");
        let terminal: std::os::fd::OwnedFd = pty.into();
        let keys = std::fs::File::from(terminal);
        let mut output = keys.try_clone().expect("it can be read beside being written");
        let sized = |count| NonZero::new(count).expect("a terminal has some");
        let parser = Arc::new(Mutex::new(vt100::Parser::new(sized(rows), sized(columns), 0)));
        let (changed, changes) = channel();
        let screen = parser.clone();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let kept = written.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading ends when the program exits and its terminal closes.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                kept.lock().expect("nobody panics with it").extend_from_slice(&bytes[..count]);
                screen.lock().expect("nobody panics with it").process(&bytes[..count]);
                if changed.send(()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, changes, parser, written, timeout }
    }

    /// Waits until the screen contains a text.
    pub(crate) fn wait_for(&mut self, text: &str) {
        self.wait_until(&format!("{text:?}"), |screen| screen.contains(text));
    }

    /// Waits until the terminal asks a question and nobody has answered it. A decision ignores keys that were typed
    /// before its prompt, so an answered prompt higher up on the screen is not enough.
    pub(crate) fn wait_for_question(&mut self, text: &str) {
        self.wait_until(&format!("the open question {text:?}"), |screen| is_open_question(screen, text));
    }

    /// Waits until the screen changes.
    pub(crate) fn wait_for_change(&mut self) {
        if self.changes.recv_timeout(self.timeout).is_err() {
            panic!("the screen does not change:\n{}", self.screen_text());
        }
    }

    /// Waits until the last line of the screen is an empty prompt of a chat.
    pub(crate) fn wait_for_prompt(&mut self) {
        self.wait_until("an empty prompt at its end", |screen| screen.ends_with("\n›"));
    }

    /// Types keys.
    pub(crate) fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("it takes keys");
    }

    /// Changes the size of the terminal.
    pub(crate) fn resize(&mut self, rows: u16, columns: u16) {
        let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let sized = |count| NonZero::new(count).expect("a terminal has some");
        // The program learns of it at once, and what it draws then belongs on the screen of the new size.
        let mut parser = self.parser.lock().expect("nobody panics with it");
        parser.screen_mut().set_size(sized(rows), sized(columns));
        rustix::termios::tcsetwinsize(&self.keys, size).expect("it can be sized");
    }

    /// Returns the rows of the screen down to the last one with text, each without trailing blanks. A line that the
    /// terminal wrapped is several rows.
    pub(crate) fn screen_rows(&self) -> Vec<String> {
        let parser = self.parser.lock().expect("nobody panics with it");
        let screen = parser.screen();
        let rows = screen.rows(0, screen.size().1.get());
        let mut rows: Vec<String> = rows.map(|row| row.trim_end().to_owned()).collect();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    /// Returns what was written to the terminal, which stays readable after the process has exited.
    pub(crate) fn written(&self) -> Arc<Mutex<Vec<u8>>> {
        self.written.clone()
    }

    /// Waits until the screen ends with these rows.
    pub(crate) fn wait_for_last_rows(&mut self, expected: &[String]) {
        while !self.screen_rows().ends_with(expected) {
            if self.changes.recv_timeout(self.timeout).is_err() && !self.screen_rows().ends_with(expected) {
                panic!("the screen does not end with {expected:?}:\n{:?}", self.screen_rows());
            }
        }
    }

    /// Waits until the screen is as a condition requires.
    fn wait_until(&mut self, what: &str, is_met: impl Fn(&str) -> bool) {
        while !is_met(&self.screen_text()) {
            if self.changes.recv_timeout(self.timeout).is_err() && !is_met(&self.screen_text()) {
                panic!("the screen does not show {what}:\n{}", self.screen_text());
            }
        }
    }

    /// Returns true if the terminal shows what is typed, and gives lines as a whole: its usual mode.
    pub(crate) fn is_in_usual_mode(&self) -> bool {
        use rustix::termios::LocalModes;
        let mode = rustix::termios::tcgetattr(&self.keys).expect("it is a terminal").local_modes;
        mode.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    /// Returns the process id.
    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process with SIGKILL and returns the last screen.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().expect("it is there");
        self.wait_for_exit().1
    }

    /// Waits for the process to exit; returns its exit status and the last screen.
    pub(crate) fn wait_for_exit(mut self) -> (ExitStatus, String) {
        loop {
            match self.changes.recv_timeout(self.timeout) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.child.kill().expect("it is there");
                    panic!("the command does not end:\n{}", self.screen_text());
                }
            }
        }
        let status = self.child.wait().expect("it ended");
        (status, self.screen_text())
    }

    /// Returns the contents of the screen, without trailing blanks.
    pub(crate) fn screen_text(&self) -> String {
        let contents = self.parser.lock().expect("nobody panics with it").screen().contents();
        let lines: Vec<&str> = contents.lines().map(str::trim_end).collect();
        lines.join("\n").trim_end().to_owned()
    }
}

/// Returns the first character of an output that is neither visible nor a control sequence of the command itself, with
/// the text after it. An emulated screen does not have it: a terminal swallows what hides.
pub(crate) fn foreign_character(written: &Mutex<Vec<u8>>) -> Option<String> {
    let written = written.lock().expect("nobody panics with it");
    let Ok(text) = std::str::from_utf8(&written) else { return Some("bytes that are no text".to_owned()) };
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("\u{1b}[") {
            let end = after.find(|letter: char| !letter.is_ascii_digit() && letter != ';');
            let (parameters, end) = after.split_at(end.unwrap_or(after.len()));
            // Colours, the erasure of lines, the cursor up to the first of the live lines, and pasting.
            let is_own =
                end.starts_with(['m', 'J', 'K']) || (end.starts_with('A') && !parameters.contains(';'));
            let is_mode = ["?2004h", "?2004l"].iter().find(|mode| after.starts_with(**mode));
            match (is_own, is_mode) {
                (true, _) => rest = &end[1..],
                (false, Some(mode)) => rest = &after[mode.len()..],
                (false, None) => return Some(rest.escape_debug().take(80).collect()),
            }
            continue;
        }
        let is_line_end = matches!(letter, '\r' | '\n');
        if !is_line_end && (letter.is_control() || windlass_text::is_hidden(letter)) {
            return Some(rest.escape_debug().take(80).collect());
        }
        rest = &rest[letter.len_utf8()..];
    }
    None
}

fn terminal_command(folder: &Path, words: &[&str]) -> Command {
    Command::new(env!("CARGO_BIN_EXE_windlass"))
        .args(words)
        .current_dir(folder)
        .env("TERM", "xterm-256color")
        .env("USER", "ann")
        .env("XDG_STATE_HOME", folder.parent().expect("it is in a temporary folder").join("state"))
        .env_remove("NO_COLOR")
        .env_remove("COLUMNS")
        .env_remove("CARGO")
        .env_remove("WINDLASS_STORE")
        .env_remove("VISUAL")
        .env_remove("EDITOR")
}

/// Returns true if the last thing on the screen is a prompt with this text and without an answer.
fn is_open_question(screen: &str, text: &str) -> bool {
    let Some(start) = screen.rfind(text) else { return false };
    let prompt = &screen[start..];
    prompt.ends_with('›') && prompt.matches('›').count() == 1
}
