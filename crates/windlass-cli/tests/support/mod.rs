//! Helpers for the tests of the command: agents in folders, the command without a terminal, and golden files.

#![allow(dead_code, reason = "each test file uses only some helpers")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// An agent in a temporary folder, with a scripted model. The store is beside the folder of the agent.
pub(crate) struct TestProject(tempfile::TempDir);

impl TestProject {
    /// Creates the agent; `more` is appended to its agent file.
    pub(crate) fn new(more: &str, answers: &str) -> Self {
        let place = tempfile::tempdir().expect("there is room");
        let folder = place.path().join("work");
        std::fs::create_dir(&folder).expect("it can be made");
        let agent = format!("name = \"helper\"\nmodel = \"scripted:answers.toml\"\n{more}\n");
        std::fs::write(folder.join("agent.toml"), agent).expect("it can be written");
        std::fs::write(folder.join("answers.toml"), answers).expect("it can be written");
        Self(place)
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.0.path().join("work")
    }

    /// Returns the user's state folder of the tests.
    pub(crate) fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Returns the digest that `windlass show` prints for the first pending call of a run.
    pub(crate) fn digest_of(&self, run: &str) -> String {
        let shown = self.run_windlass(&["show", run, "--json"]);
        shown.json_lines()[0]["pending"][0]["digest"].as_str().expect("a call is pending").to_owned()
    }

    /// Runs the command without a terminal.
    pub(crate) fn run_windlass(&self, words: &[&str]) -> CommandOutput {
        CommandOutput::from_output(windlass_command(&self.folder(), words).output().expect("it runs"))
    }
}

/// Returns the command without a terminal, in a folder.
pub(crate) fn windlass_command(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command
        .args(words)
        .current_dir(folder)
        .stdin(std::process::Stdio::null())
        .env("USER", "ann")
        .env("XDG_STATE_HOME", state_beside(folder))
        .env_remove("CARGO")
        .env_remove("COLUMNS")
        .env_remove("WINDLASS_STORE")
        .env_remove("OPENAI_API_KEY")
        .env_remove("OPENAI_BASE_URL")
        .env_remove("ANTHROPIC_API_KEY");
    command
}

/// Returns the state folder beside the folder that a command runs in.
pub(crate) fn state_beside(folder: &Path) -> PathBuf {
    folder.parent().expect("it is in a temporary folder").join("state")
}

/// The exit code and the output of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl CommandOutput {
    pub(crate) fn from_output(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("it is text"),
            stderr: String::from_utf8(output.stderr).expect("it is text"),
        }
    }

    /// Parses standard output as JSON, one object per line.
    pub(crate) fn json_lines(&self) -> Vec<serde_json::Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect()
    }
}

/// Compares a screen with a golden file. `WINDLASS_BLESS=1` rewrites the file.
pub(crate) fn assert_golden(name: &str, shown: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let shown = mask_volatile(shown) + "\n";
    if std::env::var_os("WINDLASS_BLESS").is_some() {
        std::fs::write(&path, &shown).expect("it can be written");
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(shown, wanted, "left: what was shown; right: {}", path.display());
}

/// Masks the volatile parts of a screen: durations, times, process ids, hashes and spinner frames.
fn mask_volatile(shown: &str) -> String {
    let lines: Vec<String> = shown.lines().map(mask_line).collect();
    lines.join("\n")
}

fn mask_line(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let mut masked: Vec<String> = Vec::new();
    for (place, word) in words.iter().enumerate() {
        let next = words.get(place + 1).copied().unwrap_or_default();
        let before = place.checked_sub(1).and_then(|place| words.get(place)).copied().unwrap_or_default();
        let is_number = word.starts_with(|letter: char| letter.is_ascii_digit());
        let is_hash = word.len() >= 32 && word.chars().all(|letter| letter.is_ascii_hexdigit());
        let is_time = is_number && word.contains('T') && word.trim_end_matches('.').ends_with('Z');
        masked.push(match *word {
            _ if is_time => "TIME.".to_owned(),
            number if is_number && ["ms", "s"].contains(&next.trim_end_matches([',', ';'])) => {
                let _ = number;
                "T".to_owned()
            }
            "ms" if masked.last().is_some_and(|last| last == "T") => "s".to_owned(),
            number if is_number && before == "process" => {
                let _ = number;
                "P".to_owned()
            }
            spinner
                if spinner.chars().all(|letter| ('\u{2800}'..='\u{28ff}').contains(&letter))
                    && !spinner.is_empty() =>
            {
                "⠿".to_owned()
            }
            _ if is_hash => "HASH".to_owned(),
            other => other.to_owned(),
        });
    }
    masked.join(" ")
}
