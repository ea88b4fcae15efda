//! The journal format: hash-chained lines that make changes detectable.
//!
//! The first line is `windlass` and the format version. Every other line is a record: its chain hash, a space,
//! and the record as JSON. The chain hash is SHA-256, in hex, over the previous line's hash (for the first
//! record, the hash of the first line), a newline, and the record's text. Stores keep the same lines, so an
//! export is byte for byte what was written.

use crate::canonical::Digest;
use crate::journal::JournalRecord;
use crate::run::ReplayError;

/// Version that this crate writes. It reads this version and all earlier ones.
pub const FORMAT_VERSION: u32 = 1;

const MAGIC: &str = "windlass";

/// A record in its stored form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalLine {
    /// Chain hash up to and including this line.
    pub hash: Digest,
    /// The record as JSON text.
    pub body: String,
}

/// The end of a hash chain, to which the next line is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashChain {
    head: Digest,
}

/// The reason why a text or the lines of a store are not a valid journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalFormatError {
    /// The text does not start with a format header.
    #[error("this is not a saved run: it does not begin with `windlass` and a version")]
    MissingHeader,
    /// The journal was written by a newer version of Windlass.
    #[error("this run was saved in format {version}, and this version reads formats up to {FORMAT_VERSION}")]
    UnsupportedVersion {
        /// The format version that was found.
        version: u32,
    },
    /// A line was changed, or lines before it are missing.
    #[error("record {seq} is not what was written: its hash does not match")]
    HashMismatch {
        /// The record's sequence number.
        seq: u64,
    },
    /// A line cannot be parsed.
    #[error("record {seq} cannot be read: {reason}")]
    MalformedRecord {
        /// The record's sequence number.
        seq: u64,
        /// The parser's message.
        reason: String,
    },
    /// The lines are intact, but their records cannot be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

impl JournalFormatError {
    /// Returns the sequence number of the first invalid record, if the error concerns a record.
    pub fn first_bad_seq(&self) -> Option<u64> {
        match self {
            Self::HashMismatch { seq } | Self::MalformedRecord { seq, .. } => Some(*seq),
            Self::Replay(ReplayError::InvalidRecord { seq, .. }) => Some(*seq),
            Self::Replay(ReplayError::SequenceGap { expected, .. }) => Some(*expected),
            Self::Replay(ReplayError::MissingRunStarted) => Some(0),
            Self::Replay(ReplayError::EmptyJournal)
            | Self::MissingHeader
            | Self::UnsupportedVersion { .. } => None,
        }
    }
}

impl Default for HashChain {
    fn default() -> Self {
        Self::for_version(FORMAT_VERSION)
    }
}

impl HashChain {
    /// Creates an empty chain for a format version.
    pub fn for_version(version: u32) -> Self {
        Self { head: Digest::of_text(&header_line(version)) }
    }

    /// Creates the chain that ends with the hash `head`.
    pub fn from_head(head: Digest) -> Self {
        Self { head }
    }

    /// Returns the hash of the last line.
    pub fn head(&self) -> Digest {
        self.head
    }

    /// Appends a record and returns its line.
    pub fn append(&mut self, record: &JournalRecord) -> JournalLine {
        // Entries contain only text keys and finite numbers, so serialisation cannot fail.
        let body = serde_json::to_string(record).unwrap_or_default();
        self.head = self.next_hash(&body);
        JournalLine { hash: self.head, body }
    }

    /// Verifies that a line continues the chain, and advances the chain.
    ///
    /// # Errors
    ///
    /// Returns [`JournalFormatError::HashMismatch`] if it does not; the chain is unchanged.
    pub fn verify_line(&mut self, seq: u64, line: &JournalLine) -> Result<(), JournalFormatError> {
        if self.next_hash(&line.body) != line.hash {
            return Err(JournalFormatError::HashMismatch { seq });
        }
        self.head = line.hash;
        Ok(())
    }

    /// Verifies a line and parses its record.
    ///
    /// # Errors
    ///
    /// Returns [`JournalFormatError`] if the hash does not match or the record cannot be parsed.
    pub fn read_record(&mut self, seq: u64, line: &JournalLine) -> Result<JournalRecord, JournalFormatError> {
        self.verify_line(seq, line)?;
        serde_json::from_str(&line.body)
            .map_err(|error| JournalFormatError::MalformedRecord { seq, reason: error.to_string() })
    }

    fn next_hash(&self, body: &str) -> Digest {
        self.head.chain(body)
    }
}

/// Verifies and parses the lines of a whole journal.
///
/// # Errors
///
/// Returns [`JournalFormatError`] for the first line that is invalid.
pub fn decode_lines<'a>(
    lines: impl IntoIterator<Item = &'a JournalLine>,
) -> Result<Vec<JournalRecord>, JournalFormatError> {
    let mut chain = HashChain::default();
    lines.into_iter().enumerate().map(|(seq, line)| chain.read_record(seq as u64, line)).collect()
}

/// Encodes a journal as text.
pub fn encode_journal(records: &[JournalRecord]) -> String {
    let mut chain = HashChain::default();
    encode_lines(records.iter().map(|record| chain.append(record)))
}

/// Encodes the lines of a whole journal as text.
pub fn encode_lines(lines: impl IntoIterator<Item = JournalLine>) -> String {
    let mut text = header_line(FORMAT_VERSION);
    for line in lines {
        text.push('\n');
        text.push_str(&line.hash.to_string());
        text.push(' ');
        text.push_str(&line.body);
    }
    text.push('\n');
    text
}

/// Decodes the text of a journal.
///
/// # Errors
///
/// Returns [`JournalFormatError`] for an invalid header or for the first line that is invalid.
pub fn decode_journal(text: &str) -> Result<Vec<JournalRecord>, JournalFormatError> {
    let (mut chain, lines) = parse_lines(text)?;
    lines.enumerate().map(|(seq, line)| chain.read_record(seq as u64, &line?)).collect()
}

/// Returns the lines of a journal text, and the empty chain that they must continue.
pub(crate) fn parse_lines(
    text: &str,
) -> Result<(HashChain, impl Iterator<Item = Result<JournalLine, JournalFormatError>>), JournalFormatError> {
    let mut lines = text.lines();
    let chain = HashChain::for_version(parse_version(lines.next().unwrap_or_default())?);
    let lines = lines.filter(|line| !line.is_empty()).enumerate();
    Ok((chain, lines.map(|(seq, line)| parse_line(seq as u64, line))))
}

fn parse_line(seq: u64, line: &str) -> Result<JournalLine, JournalFormatError> {
    let unreadable = |why: &str| JournalFormatError::MalformedRecord { seq, reason: why.to_owned() };
    let (hash, body) = line.split_once(' ').ok_or_else(|| unreadable("there is no hash in front of it"))?;
    let hash = hash.parse().map_err(|why: String| unreadable(&why))?;
    Ok(JournalLine { hash, body: body.to_owned() })
}

fn header_line(version: u32) -> String {
    format!("{MAGIC} {version}")
}

/// Parses the version in a header line, and checks that this crate supports it.
fn parse_version(line: &str) -> Result<u32, JournalFormatError> {
    let digits = line.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(' ')).unwrap_or_default();
    let found = digits.parse().map_err(|_| JournalFormatError::MissingHeader)?;
    if header_line(found) != line || found == 0 {
        return Err(JournalFormatError::MissingHeader);
    }
    if found > FORMAT_VERSION {
        Err(JournalFormatError::UnsupportedVersion { version: found })
    } else {
        Ok(found)
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
