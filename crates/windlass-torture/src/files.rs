//! Append-only files of JSON lines, and the places of all files of a round.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The folder of a round: one store, and everything that the processes of the round share.
#[derive(Clone, Debug)]
pub struct RoundFolder {
    path: PathBuf,
    /// The place of the process that looks, `worker0`; `torturer` for the torturer and the verdict.
    place: String,
}

impl RoundFolder {
    /// Names the folder of a round.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), place: "torturer".to_owned() }
    }

    /// Names the folder as a process sees it, by the name of the process: the place and a number, `worker0-3`.
    #[must_use]
    pub fn seen_by(&self, process: &str) -> Self {
        let place = process.rsplit_once('-').map_or(process, |(place, _)| place);
        Self { path: self.path.clone(), place: place.to_owned() }
    }

    /// Creates the folder and its parts.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn create(&self) -> io::Result<()> {
        for part in ["store", "databases", "ledger", "bank", "logs", "shim"] {
            std::fs::create_dir_all(self.path.join(part))?;
        }
        Ok(())
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the store. The fault injection affects files of this folder only.
    pub fn store(&self) -> PathBuf {
        self.path.join("store").join("torture.db")
    }

    /// Returns the path of the store of the sessions that are in another store than their runs.
    pub fn other_store(&self) -> PathBuf {
        self.path.join("store").join("sessions.db")
    }

    /// Returns the file with the address and the schema of the store, if it is in a database. Each place reaches the
    /// database by a network of its own.
    pub fn database(&self) -> PathBuf {
        self.path.join("databases").join(format!("{}.jsonl", self.place))
    }

    /// Returns the file of the changes that the decider made to sessions.
    pub fn session_edits(&self) -> PathBuf {
        self.path.join("session_edits.jsonl")
    }

    /// Returns the file of the orders: the runs, and the words that their user says.
    pub fn orders(&self) -> PathBuf {
        self.path.join("orders.jsonl")
    }

    /// Returns the file of the forks that the decider made.
    pub fn forks(&self) -> PathBuf {
        self.path.join("forks.jsonl")
    }

    /// Returns the file of the runs that ended, by the workers' own word. It is for scheduling, not for the verdict.
    pub fn ended(&self) -> PathBuf {
        self.path.join("ended.jsonl")
    }

    /// Returns the file of the input that the decider ordered while a driver had the run.
    pub fn ordered_inputs(&self) -> PathBuf {
        self.path.join("ordered_inputs.jsonl")
    }

    /// Returns the decider's log.
    pub fn decisions(&self) -> PathBuf {
        self.path.join("decisions.jsonl")
    }
}

/// Appends a value as one line. The line is on disk when this returns.
///
/// # Errors
/// Returns the error of the write or the sync.
pub fn append_line(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    write_line(&mut file, value)
}

/// Appends a value as one line to an open file, and syncs the file.
///
/// # Errors
/// Returns the error of the write or the sync.
pub fn write_line(file: &mut File, value: &impl Serialize) -> io::Result<()> {
    // The line break comes first: a line that a killed writer left incomplete cannot swallow this one.
    let line = format!("\n{}\n", serde_json::to_string(value).map_err(io::Error::other)?);
    file.write_all(line.as_bytes())?;
    file.sync_data()
}

/// Reads all complete lines; none if the file does not exist. A line that a killed writer left incomplete is skipped.
///
/// # Errors
/// Returns the error of the read.
pub fn read_lines<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
