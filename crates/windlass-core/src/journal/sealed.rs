//! Sealed lines: withheld outputs that a run takes along when it moves as text.
//!
//! Invariant: a sealed line is no record. It is not part of the hash chain, and whoever reads, searches or exports the
//! journal never meets the output in it. The seal is a keystream from the hash of the last record, so that it opens only
//! together with the journal that it belongs to. It hides the output from people and indexes, and is no encryption: a
//! driver needs nothing but the text.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::format::{HEAD_PREFIX, JournalFormatError, SEALED_PREFIX, decode_journal};
use crate::canonical::Digest;
use crate::id::CallPath;
use crate::item::OutputContent;
use crate::run::Run;

/// A withheld output with its call.
#[derive(Serialize, Deserialize)]
struct SealedOutput {
    call: CallPath,
    output: OutputContent,
}

/// Appends withheld outputs to the text of a journal, one sealed line each.
pub fn append_sealed_outputs(text: &mut String, withheld: &BTreeMap<CallPath, OutputContent>) {
    let Some(head) = last_hash(text) else { return };
    for (call, output) in withheld {
        let sealed = SealedOutput { call: call.clone(), output: output.clone() };
        // Outputs contain only text keys and finite numbers, so serialisation cannot fail.
        let bytes = serde_json::to_vec(&sealed).unwrap_or_default();
        text.push_str(SEALED_PREFIX);
        for byte in apply_keystream(&head, bytes) {
            text.push_str(&format!("{byte:02x}"));
        }
        text.push('\n');
    }
}

/// Returns the withheld outputs in the sealed lines of a text. Each of them is the output whose digest the journal has.
///
/// # Errors
///
/// Returns [`JournalFormatError`] if the text is no journal, or a sealed line does not belong to it.
pub fn open_sealed_outputs(text: &str) -> Result<BTreeMap<CallPath, OutputContent>, JournalFormatError> {
    let sealed = text.lines().filter_map(|line| line.strip_prefix(SEALED_PREFIX));
    let sealed: Vec<&str> = sealed.collect();
    let Some(head) = last_hash(text).filter(|_| !sealed.is_empty()) else { return Ok(BTreeMap::new()) };
    let records = decode_journal(text)?;
    let run = Run::replay(&records)?.run;
    let mut opened = BTreeMap::new();
    for (index, line) in sealed.into_iter().enumerate() {
        let bytes = decode_hex(line).map(|bytes| apply_keystream(&head, bytes));
        let SealedOutput { call, output } = bytes
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .ok_or(JournalFormatError::InvalidSealedOutput { index })?;
        let recorded = run.at_path(call.parent_calls()).and_then(|run| run.withheld_output(call.call()));
        if recorded != Some(output.digest()) {
            return Err(JournalFormatError::InvalidSealedOutput { index });
        }
        opened.insert(call, output);
    }
    Ok(opened)
}

/// Returns the hash of the last record in a text.
fn last_hash(text: &str) -> Option<String> {
    text.lines().rev().find_map(|line| line.strip_prefix(HEAD_PREFIX)).map(str::to_owned)
}

fn apply_keystream(head: &str, mut bytes: Vec<u8>) -> Vec<u8> {
    for (block, chunk) in bytes.chunks_mut(32).enumerate() {
        let key = Digest::of_parts(&["withheld output", head, &block.to_string()]);
        for (byte, key) in chunk.iter_mut().zip(key.as_bytes()) {
            *byte ^= key;
        }
    }
    bytes
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
#[path = "sealed_tests.rs"]
mod tests;
