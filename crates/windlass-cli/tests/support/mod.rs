//! What the tests of the command share: agents in folders, the command without a terminal, and golden files.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// An agent in a folder of its own, with a script of answers.
pub(crate) struct Project(tempfile::TempDir);

impl Project {
    /// `more` goes into the agent's file.
    pub(crate) fn new(more: &str, answers: &str) -> Self {
        let folder = tempfile::tempdir().expect("there is room");
        let agent = format!("name = \"helper\"\nmodel = \"scripted:answers.toml\"\n{more}\n");
        std::fs::write(folder.path().join("agent.toml"), agent).expect("it can be written");
        std::fs::write(folder.path().join("answers.toml"), answers).expect("it can be written");
        Self(folder)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command, without a terminal.
    pub(crate) fn windlass(&self, words: &[&str]) -> Ran {
        Ran::of(command(self.folder(), words).output().expect("it runs"))
    }
}

/// The command, without a terminal, in a folder.
pub(crate) fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command
        .args(words)
        .current_dir(folder)
        .stdin(std::process::Stdio::null())
        .env("USER", "ann")
        .env_remove("CARGO")
        .env_remove("COLUMNS")
        .env_remove("WINDLASS_STORE")
        .env_remove("OPENAI_API_KEY")
        .env_remove("OPENAI_BASE_URL")
        .env_remove("ANTHROPIC_API_KEY");
    command
}

/// What came of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
    pub(crate) noted: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            said: String::from_utf8(output.stdout).expect("it is text"),
            noted: String::from_utf8(output.stderr).expect("it is text"),
        }
    }

    /// The objects that it said, one a line.
    pub(crate) fn objects(&self) -> Vec<serde_json::Value> {
        self.said.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect()
    }
}

/// Compares a screen with the file that says how it should look. `WINDLASS_BLESS=1` writes the file.
pub(crate) fn golden(name: &str, shown: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let shown = masked(shown) + "\n";
    if std::env::var_os("WINDLASS_BLESS").is_some() {
        std::fs::write(&path, &shown).expect("it can be written");
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(shown, wanted, "left: what was shown; right: {}", path.display());
}

/// What differs each time, masked: times, processes, hashes, folders of their own, frames of spinners.
fn masked(shown: &str) -> String {
    let lines: Vec<String> = shown.lines().map(masked_line).collect();
    lines.join("\n")
}

fn masked_line(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let mut masked: Vec<String> = Vec::new();
    for (place, word) in words.iter().enumerate() {
        let next = words.get(place + 1).copied().unwrap_or_default();
        let before = place.checked_sub(1).and_then(|place| words.get(place)).copied().unwrap_or_default();
        let is_number = word.starts_with(|letter: char| letter.is_ascii_digit());
        let is_hash = word.len() >= 32 && word.chars().all(|letter| letter.is_ascii_hexdigit());
        masked.push(match *word {
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
