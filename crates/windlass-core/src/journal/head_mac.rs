//! MACs of the journal: every decision of a store with keys has the MAC of the chain up to and including its record.
//!
//! The MAC is the last field of the decision, and the decision the last field of its line. The MAC is made of the chain
//! hash that the line would have without it, so it vouches for the decision and for all records before it.

use super::{HashChain, JournalEntry, JournalFormatError, JournalLine, JournalRecord};
use crate::authenticity::{ForgeryReason, MacError, MacKeyring, MacMessage, MessageMac};
use crate::id::RunId;

/// A decision in a journal that no holder of a key has made, or no approver signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgedDecision {
    /// Description of the decision: what it says, about which call, in whose name.
    pub description: String,
    /// The reason why it is not authentic.
    pub reason: ForgeryReason,
}

impl HashChain {
    /// Appends a record, and returns its line. A decision without a MAC gets one; one that has a MAC keeps it.
    pub fn append_authentic(
        &mut self,
        run: &RunId,
        record: &mut JournalRecord,
        keys: Option<&MacKeyring>,
    ) -> JournalLine {
        if let (Some(keys), Some(None)) = (keys, record.entry.decision_mac()) {
            let head = Self::from_head(self.head()).append(record).hash;
            let mac = keys.authenticate(&MacMessage::JournalHead { run, seq: record.seq, head: &head });
            record.entry.set_decision_mac(Some(mac));
        }
        self.append(record)
    }

    /// Verifies a line, parses its record and, if there are keys, verifies the MAC of a decision.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`HashChain::read_record`], and [`JournalFormatError::ForgedDecision`].
    pub fn read_authentic(
        &mut self,
        run: &RunId,
        seq: u64,
        line: &JournalLine,
        keys: Option<&MacKeyring>,
    ) -> Result<JournalRecord, JournalFormatError> {
        let before = *self;
        let record = self.read_record(seq, line)?;
        if let Some(keys) = keys {
            before.verify_decision(run, &record, &line.body, keys)?;
        }
        Ok(record)
    }

    /// Verifies the MAC of a record that follows this chain, if it is a decision. `body` is the text of its line.
    ///
    /// # Errors
    ///
    /// Returns [`JournalFormatError::ForgedDecision`] if it is not authentic.
    pub fn verify_decision(
        &self,
        run: &RunId,
        record: &JournalRecord,
        body: &str,
        keys: &MacKeyring,
    ) -> Result<(), JournalFormatError> {
        let Some(mac) = record.entry.decision_mac() else { return Ok(()) };
        let head = match mac {
            Some(mac) => body_without_mac(body, mac).map(|body| self.next_hash(&body)),
            None => Some(self.next_hash(body)),
        };
        let verified = match (head, mac) {
            (Some(head), mac) => {
                keys.verify(&MacMessage::JournalHead { run, seq: record.seq, head: &head }, mac)
            }
            (None, Some(mac)) => Err(MacError::Mismatch(mac.key.clone())),
            (None, None) => Err(MacError::Missing),
        };
        verified.map_err(|reason| JournalFormatError::forged_decision(record, reason.into()))
    }
}

impl JournalFormatError {
    /// Creates the error for a record with a forged decision.
    pub fn forged_decision(record: &JournalRecord, reason: ForgeryReason) -> Self {
        let forged = Box::new(ForgedDecision { description: describe_decision(record), reason });
        Self::ForgedDecision { seq: record.seq, forged }
    }
}

/// Adds the missing MACs to the decisions of a journal whose records follow `chain`, and returns the lines.
pub fn authenticate_records(
    mut chain: HashChain,
    run: &RunId,
    records: &mut [JournalRecord],
    keys: Option<&MacKeyring>,
) -> Vec<JournalLine> {
    records.iter_mut().map(|record| chain.append_authentic(run, record, keys)).collect()
}

/// Returns the text of a line as it was before its decision got the MAC.
fn body_without_mac(body: &str, mac: &MessageMac) -> Option<String> {
    // MACs contain only text, so serialisation cannot fail.
    let mac = serde_json::to_string(mac).unwrap_or_default();
    let rest = body.strip_suffix(&format!(",\"mac\":{mac}}}}}"))?;
    Some(format!("{rest}}}}}"))
}

fn describe_decision(record: &JournalRecord) -> String {
    match &record.entry {
        JournalEntry::DecisionRecorded(decided) => {
            let by = decided.decided_by.as_deref().unwrap_or("somebody");
            format!("{} of call `{}` in the name of {by:?}", decided.decision.describe(), decided.call)
        }
        JournalEntry::DecisionRevoked(revoked) => {
            format!("the end of a standing decision about `{}`", revoked.tool)
        }
        _ => "a record".to_owned(),
    }
}

#[cfg(test)]
#[path = "head_mac_tests.rs"]
mod tests;
