//! The outside world: a file to which tools append what they do. It knows nothing of Windlass.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file.
#[derive(Clone, Debug)]
pub struct Ledger {
    path: PathBuf,
}

/// One thing that was done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deed {
    /// The tool that did it.
    pub tool: String,
    /// The call that it was done for: the run, and the path of the call.
    pub call: String,
    /// The idempotency key that the tool was given.
    pub key: String,
}

impl Ledger {
    /// The ledger in a file.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Does something, for good: the line is on the disk when this returns.
    pub fn does(&self, deed: &Deed) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        file.write_all(format!("{} {} {}\n", deed.tool, deed.call, deed.key).as_bytes())?;
        file.sync_data()
    }

    /// Everything that was done.
    pub fn deeds(&self) -> io::Result<Vec<Deed>> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        Ok(text
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ').map(str::to_owned);
                Some(Deed { tool: words.next()?, call: words.next()?, key: words.next()? })
            })
            .collect())
    }

    /// Whether something was done for a call.
    pub fn has(&self, call: &str) -> io::Result<bool> {
        Ok(self.deeds()?.iter().any(|deed| deed.call == call))
    }
}
