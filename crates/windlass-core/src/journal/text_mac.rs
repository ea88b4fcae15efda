//! The MAC of a journal text: a line after the head with the word `mac`, the id of the key and the MAC in hex digits.
//!
//! It vouches for all records and for the sealed lines.

use super::format::{HEAD_PREFIX, MAC_PREFIX, SEALED_PREFIX};
use crate::authenticity::{MacError, MacKeyId, MacKeyring, MacMessage, MessageMac};
use crate::canonical::Digest;
use crate::id::RunId;

/// Appends the MAC to the text of a run, which has its sealed lines already.
pub fn append_text_mac(text: &mut String, run: &RunId, record_count: u64, keys: &MacKeyring) {
    let Some(head) = head_of(text) else { return };
    let sealed = sealed_digest(text);
    let message = MacMessage::PausedRun { run, record_count, head: &head, sealed: &sealed };
    let MessageMac { key, tag } = keys.authenticate(&message);
    text.push_str(&format!("{MAC_PREFIX}{key} {tag}\n"));
}

/// Verifies the MAC of the text of a run, and returns the id of the key that made it.
///
/// # Errors
///
/// Returns an error if the text has no MAC, its key is not in the keyring, or it is not the MAC of this text.
pub fn verify_text_mac(
    text: &str,
    run: &RunId,
    record_count: u64,
    keys: &MacKeyring,
) -> Result<MacKeyId, MacError> {
    let mac = text.split('\n').rev().find_map(|line| line.strip_prefix(MAC_PREFIX)).map(parse_mac);
    let mac = mac.ok_or(MacError::Missing)?;
    let head = head_of(text).ok_or(MacError::Missing)?;
    let sealed = sealed_digest(text);
    keys.verify(&MacMessage::PausedRun { run, record_count, head: &head, sealed: &sealed }, Some(&mac))?;
    Ok(mac.key)
}

/// Parses the id of a key and a MAC. Digits that are no MAC become one that matches nothing.
fn parse_mac(text: &str) -> MessageMac {
    let (key, tag) = text.split_once(' ').unwrap_or((text, ""));
    let tag = tag.parse().unwrap_or_else(|_| Digest::from_bytes([0; 32]));
    MessageMac { key: MacKeyId::new(key), tag }
}

fn head_of(text: &str) -> Option<Digest> {
    text.split('\n').rev().find_map(|line| line.strip_prefix(HEAD_PREFIX)).and_then(|head| head.parse().ok())
}

fn sealed_digest(text: &str) -> Digest {
    let sealed: Vec<&str> = text.split('\n').filter(|line| line.starts_with(SEALED_PREFIX)).collect();
    Digest::of_parts(&sealed)
}
