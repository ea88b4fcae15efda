//! A saved run: its journal as lines, chained so that a changed line is found.
//!
//! The first line says `windlass` and the version of the format. Every other line is a record: the hash of the
//! chain up to and with it, a space, and the record as JSON. The hash is SHA-256, in hex, over the hash of the
//! line before (the first line itself, for the first record), a newline, and the record's own text. Stores keep
//! the same lines, so that what is exported is what was written.

use crate::canonical::Digest;
use crate::entry::Record;
use crate::run::ReplayError;

/// The version that this crate writes. It reads this one and every one before it.
pub const FORMAT_VERSION: u32 = 1;

const MAGIC: &str = "windlass";

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The hash of the chain up to and with this line.
    pub hash: Digest,
    /// The record as JSON.
    pub body: String,
}

/// The end of a chain of lines: what the next one is hashed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    head: Digest,
}

/// Why a text, or the lines of a store, are not a saved run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// It is not one at all.
    #[error("this is not a saved run: it does not begin with `windlass` and a version")]
    NotASavedRun,
    /// It was written by a newer version of Windlass.
    #[error("this run was saved in format {found}, and this version reads formats up to {FORMAT_VERSION}")]
    TooNew {
        /// The format's version.
        found: u32,
    },
    /// A line was changed, or lines are missing before it.
    #[error("record {seq} is not what was written: its hash does not fit")]
    Changed {
        /// Which record.
        seq: u64,
    },
    /// A line cannot be read.
    #[error("record {seq} cannot be read: {why}")]
    Unreadable {
        /// Which record.
        seq: u64,
        /// Why not.
        why: String,
    },
    /// The lines are what was written, and do not add up to a run.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

impl SavedError {
    /// The first record that is bad, where it is a record that is.
    pub fn seq(&self) -> Option<u64> {
        match self {
            Self::Changed { seq } | Self::Unreadable { seq, .. } => Some(*seq),
            Self::Replay(ReplayError::Illegal { seq, .. }) => Some(*seq),
            Self::Replay(ReplayError::Gap { expected, .. }) => Some(*expected),
            Self::Replay(ReplayError::NoStart) => Some(0),
            Self::Replay(ReplayError::Empty) | Self::NotASavedRun | Self::TooNew { .. } => None,
        }
    }
}

impl Default for Chain {
    fn default() -> Self {
        Self::of_version(FORMAT_VERSION)
    }
}

impl Chain {
    /// The beginning of a chain in this version of the format.
    pub fn of_version(version: u32) -> Self {
        Self { head: Digest::of(&first_line(version)) }
    }

    /// The chain that ends with `head`.
    pub fn at(head: Digest) -> Self {
        Self { head }
    }

    /// The hash of the last line.
    pub fn head(&self) -> Digest {
        self.head
    }

    /// Adds a record.
    pub fn add(&mut self, record: &Record) -> Line {
        // Entries hold text keys and finite numbers only, so they always print.
        let body = serde_json::to_string(record).unwrap_or_default();
        self.head = self.after(&body);
        Line { hash: self.head, body }
    }

    /// Goes on by a line, if it is what was written.
    pub fn follow(&mut self, seq: u64, line: &Line) -> Result<(), SavedError> {
        if self.after(&line.body) != line.hash {
            return Err(SavedError::Changed { seq });
        }
        self.head = line.hash;
        Ok(())
    }

    /// Reads a line back, if it is what was written.
    pub fn read(&mut self, seq: u64, line: &Line) -> Result<Record, SavedError> {
        self.follow(seq, line)?;
        serde_json::from_str(&line.body)
            .map_err(|error| SavedError::Unreadable { seq, why: error.to_string() })
    }

    fn after(&self, body: &str) -> Digest {
        self.head.followed_by(body)
    }
}

/// Reads the lines of a whole journal.
pub fn read_lines<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Result<Vec<Record>, SavedError> {
    let mut chain = Chain::default();
    lines.into_iter().enumerate().map(|(seq, line)| chain.read(seq as u64, line)).collect()
}

/// Writes a journal as the text of a saved run.
pub fn to_text(records: &[Record]) -> String {
    let mut chain = Chain::default();
    lines_to_text(records.iter().map(|record| chain.add(record)))
}

/// Writes the lines of a whole journal as the text of a saved run.
pub fn lines_to_text(lines: impl IntoIterator<Item = Line>) -> String {
    let mut text = first_line(FORMAT_VERSION);
    for line in lines {
        text.push('\n');
        text.push_str(&line.hash.to_string());
        text.push(' ');
        text.push_str(&line.body);
    }
    text.push('\n');
    text
}

/// Reads the text of a saved run. Whatever does not fit is named, and nothing is guessed.
pub fn from_text(text: &str) -> Result<Vec<Record>, SavedError> {
    let (mut chain, lines) = lines_of(text)?;
    lines.enumerate().map(|(seq, line)| chain.read(seq as u64, &line?)).collect()
}

/// The lines of a saved run, and the beginning of the chain that they must form.
pub(crate) fn lines_of(
    text: &str,
) -> Result<(Chain, impl Iterator<Item = Result<Line, SavedError>>), SavedError> {
    let mut lines = text.lines();
    let chain = Chain::of_version(version_in(lines.next().unwrap_or_default())?);
    let lines = lines.filter(|line| !line.is_empty()).enumerate();
    Ok((chain, lines.map(|(seq, line)| line_of(seq as u64, line))))
}

fn line_of(seq: u64, line: &str) -> Result<Line, SavedError> {
    let unreadable = |why: &str| SavedError::Unreadable { seq, why: why.to_owned() };
    let (hash, body) = line.split_once(' ').ok_or_else(|| unreadable("there is no hash in front of it"))?;
    let hash = hash.parse().map_err(|why: String| unreadable(&why))?;
    Ok(Line { hash, body: body.to_owned() })
}

fn first_line(version: u32) -> String {
    format!("{MAGIC} {version}")
}

/// The version that a first line says, where this crate reads it.
fn version_in(line: &str) -> Result<u32, SavedError> {
    let digits = line.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(' ')).unwrap_or_default();
    let found = digits.parse().map_err(|_| SavedError::NotASavedRun)?;
    if first_line(found) != line || found == 0 {
        return Err(SavedError::NotASavedRun);
    }
    if found > FORMAT_VERSION { Err(SavedError::TooNew { found }) } else { Ok(found) }
}

#[cfg(test)]
#[path = "saved_tests.rs"]
mod tests;
