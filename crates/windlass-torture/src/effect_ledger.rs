//! The outside world: a file to which tools append their effects. It is independent of Windlass.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A ledger file of effects.
#[derive(Clone, Debug)]
pub struct EffectLedger {
    path: PathBuf,
}

/// One effect in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LedgerEntry {
    /// Tool that caused the effect.
    pub tool: String,
    /// Call that caused the effect: the run id and the path of the call.
    pub call: String,
    /// Idempotency key of the call.
    pub key: String,
}

impl EffectLedger {
    /// Creates a ledger in a file.
    pub fn in_file(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends an effect. The line is on disk when this returns.
    ///
    /// # Errors
    /// Returns the error of the write or the sync.
    pub fn append_entry(&self, deed: &LedgerEntry) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        file.write_all(format!("{} {} {}\n", deed.tool, deed.call, deed.key).as_bytes())?;
        file.sync_data()
    }

    /// Returns all effects in order; none if the file does not exist.
    ///
    /// # Errors
    /// Returns the error of the read.
    pub fn load_entries(&self) -> io::Result<Vec<LedgerEntry>> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        Ok(text
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ').map(str::to_owned);
                Some(LedgerEntry { tool: words.next()?, call: words.next()?, key: words.next()? })
            })
            .collect())
    }

    /// Returns true if a call has an effect in the ledger.
    ///
    /// # Errors
    /// Returns the error of the read.
    pub fn contains_call(&self, call: &str) -> io::Result<bool> {
        Ok(self.load_entries()?.iter().any(|deed| deed.call == call))
    }
}
