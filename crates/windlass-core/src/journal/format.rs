//! The journal format: hash-chained lines that make changes detectable.
//!
//! Every record is a line of JSON with a chain hash: SHA-256 over the 32 bytes of the previous line's hash (for the
//! first record, the hash of the header line) and the record's text. A store keeps each line with its hash. A text has
//! a header line, the lines without their hashes, and the last hash, which all others can be derived from.
//!
//! If the run refers to items of a session, these items are between the header and the records, so that the text can be
//! opened without the session: for each item a line with the word `history`, a space and the item as JSON. The first
//! record has the digest of these items.
//!
//! The text of a paused run may end with sealed lines and a MAC, which are no records: see
//! [`super::append_sealed_outputs`] and [`super::append_text_mac`].

use std::sync::Arc;

use crate::canonical::Digest;
use crate::item::Item;
use crate::journal::head_mac::ForgedDecision;
use crate::journal::json_buffer::write_json;
use crate::journal::record_body::{ParsedBody, RecordBody};
use crate::journal::{JournalEntry, JournalRecord, RunStarted};
use crate::run::ReplayError;

/// Version that this crate writes. It reads this version and all earlier ones.
pub const FORMAT_VERSION: u32 = 1;

/// Bytes that are reserved for a record.
const TYPICAL_RECORD_LEN: usize = 192;

const MAGIC: &str = "windlass";

/// Start of a line that holds a withheld output. It follows the records and is no record.
pub(super) const SEALED_PREFIX: &str = "sealed ";
/// Start of the line after the records. The hash of the last record follows.
pub(super) const HEAD_PREFIX: &str = "head ";
/// Start of the line with the MAC of the text. It follows the records and is no record.
pub(super) const MAC_PREFIX: &str = "mac ";
/// Start of a line with a stored picture or file. It follows the records and is no record.
pub(super) const MEDIA_PREFIX: &str = "media ";
/// Start of a line with an item of the session that the run refers to.
const HISTORY_PREFIX: &str = "history ";

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
    /// The text does not end with the hash of its last record.
    #[error("the saved run is cut off: it does not end with its hash")]
    MissingHead,
    /// The text was changed, or lines are missing.
    #[error("the saved run is not what was written: its hash does not match")]
    HeadMismatch,
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
    /// A decision is not authentic: no holder of a key has made it, or the records before it were changed.
    #[error("record {seq} is forged, or a record before it was changed: {}: {}", .forged.description, .forged.reason)]
    ForgedDecision {
        /// The record's sequence number.
        seq: u64,
        /// The decision.
        forged: Box<ForgedDecision>,
    },
    /// A sealed line does not open, or its output is not the one that the journal says is withheld.
    #[error("sealed line {index} does not belong to this run")]
    InvalidSealedOutput {
        /// Index of the sealed line.
        index: usize,
    },
    /// The lines are intact, but their records cannot be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

impl JournalFormatError {
    /// Returns the sequence number of the first invalid record, if the error concerns a record.
    pub fn first_bad_seq(&self) -> Option<u64> {
        match self {
            Self::HashMismatch { seq }
            | Self::MalformedRecord { seq, .. }
            | Self::ForgedDecision { seq, .. } => Some(*seq),
            Self::Replay(ReplayError::InvalidRecord { seq, .. }) => Some(*seq),
            Self::Replay(ReplayError::SequenceGap { expected, .. }) => Some(*expected),
            Self::Replay(ReplayError::MissingRunStarted | ReplayError::History(_)) => Some(0),
            Self::Replay(ReplayError::EmptyJournal)
            | Self::MissingHeader
            | Self::InvalidSealedOutput { .. }
            | Self::MissingHead
            | Self::HeadMismatch
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
        let mut body = Vec::with_capacity(TYPICAL_RECORD_LEN);
        write_json(&mut body, &RecordBody(record));
        // JSON is UTF-8.
        let body = String::from_utf8(body).unwrap_or_default();
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
        decode_record(seq, &line.body)
    }

    pub(super) fn next_hash(&self, body: &str) -> Digest {
        self.head.chain(body.as_bytes())
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

/// Decodes the text of one line. The hash chain is not verified.
///
/// # Errors
///
/// Returns [`JournalFormatError::MalformedRecord`] if the text is not a record.
pub fn decode_record(seq: u64, body: &str) -> Result<JournalRecord, JournalFormatError> {
    let parsed: ParsedBody = serde_json::from_str(body)
        .map_err(|error| JournalFormatError::MalformedRecord { seq, reason: error.to_string() })?;
    Ok(parsed.into_record(seq))
}

/// Encodes a journal as text, with the items of the session that its run refers to.
pub fn encode_journal(records: &[JournalRecord]) -> String {
    let started = records.first().and_then(start_of);
    let history = started.filter(|started| started.history.reference().is_some());
    let items = history.and_then(|started| started.history.items().ok()).unwrap_or_default();
    encode_text(items, [], records)
}

/// Encodes the lines of a whole journal as text.
pub fn encode_lines(lines: impl IntoIterator<Item = JournalLine>) -> String {
    encode_text(&[], lines, &[])
}

/// Encodes a journal as text: the items of the session that its run refers to, if it does, its first lines, and the
/// records after them.
pub fn encode_text(
    history: &[Arc<Item>],
    lines: impl IntoIterator<Item = JournalLine>,
    records: &[JournalRecord],
) -> String {
    let mut text = Vec::with_capacity(TYPICAL_RECORD_LEN * (records.len() + 1));
    text.extend_from_slice(header_line(FORMAT_VERSION).as_bytes());
    for item in history {
        text.push(b'\n');
        text.extend_from_slice(HISTORY_PREFIX.as_bytes());
        // Items contain only text keys and finite numbers, so serialisation cannot fail.
        write_json(&mut text, &**item);
    }
    let mut chain = HashChain::default();
    for line in lines {
        text.push(b'\n');
        text.extend_from_slice(line.body.as_bytes());
        chain.head = line.hash;
    }
    for record in records {
        text.push(b'\n');
        let start = text.len();
        // Entries contain only text keys and finite numbers, so serialisation cannot fail.
        write_json(&mut text, &RecordBody(record));
        chain.head = chain.head.chain(&text[start..]);
    }
    text.extend_from_slice(format!("\n{HEAD_PREFIX}{}\n", chain.head).as_bytes());
    // JSON is UTF-8.
    String::from_utf8(text).unwrap_or_default()
}

/// Decodes the text of a journal.
///
/// # Errors
///
/// Returns [`JournalFormatError`] if the header or the hash is wrong, for the first record that is invalid, or if the text
/// lacks the items of the session that the run refers to.
pub fn decode_journal(text: &str) -> Result<Vec<JournalRecord>, JournalFormatError> {
    let EncodedJournal { history, bodies, .. } = parse_text(text)?;
    let read = bodies.iter().enumerate().map(|(seq, body)| decode_record(seq as u64, body));
    let mut records = read.collect::<Result<Vec<_>, _>>()?;
    resolve_history(&mut records, history)?;
    Ok(records)
}

/// Sets the items of the session that the start of a run refers to.
///
/// # Errors
///
/// Returns [`ReplayError::History`] if they are missing, or not those that the run started with.
pub fn resolve_history(records: &mut [JournalRecord], items: Vec<Arc<Item>>) -> Result<(), ReplayError> {
    let Some(JournalRecord { entry: JournalEntry::RunStarted(started), .. }) = records.first_mut() else {
        return Ok(());
    };
    Ok(started.history.resolve(items)?)
}

/// Returns the start of a run.
fn start_of(record: &JournalRecord) -> Option<&RunStarted> {
    match &record.entry {
        JournalEntry::RunStarted(started) => Some(started),
        _ => None,
    }
}

/// The parts of a journal text.
pub(crate) struct EncodedJournal<'a> {
    /// The end of the hash chain.
    pub(crate) chain: HashChain,
    /// The items of the session that the run refers to.
    pub(crate) history: Vec<Arc<Item>>,
    /// The texts of the records.
    pub(crate) bodies: Vec<&'a str>,
}

/// Parses the text of a journal, and verifies its header and its hash.
pub(crate) fn parse_text(text: &str) -> Result<EncodedJournal<'_>, JournalFormatError> {
    let is_addition =
        |line: &str| [SEALED_PREFIX, MAC_PREFIX, MEDIA_PREFIX].iter().any(|prefix| line.starts_with(prefix));
    let is_record = |line: &&str| !line.is_empty() && !is_addition(line);
    let mut lines = text.split('\n').filter(is_record);
    let mut chain = HashChain::for_version(parse_version(lines.next().unwrap_or_default())?);
    let mut lines = lines.peekable();
    let mut history = Vec::new();
    while let Some(item) = lines.peek().and_then(|line| line.strip_prefix(HISTORY_PREFIX)) {
        history.push(serde_json::from_str(item).map_err(|error| JournalFormatError::MalformedRecord {
            seq: 0,
            reason: format!("item {} of its history cannot be read: {error}", history.len()),
        })?);
        lines.next();
    }
    let mut bodies: Vec<&str> = lines.collect();
    let head =
        bodies.pop().and_then(|last| last.strip_prefix(HEAD_PREFIX)).and_then(|head| head.parse().ok());
    let head: Digest = head.ok_or(JournalFormatError::MissingHead)?;
    for body in &bodies {
        chain.head = chain.next_hash(body);
    }
    if chain.head == head {
        Ok(EncodedJournal { chain, history, bodies })
    } else {
        Err(JournalFormatError::HeadMismatch)
    }
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
