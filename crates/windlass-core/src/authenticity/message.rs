//! The messages that a MAC can vouch for, and their encoding.

use serde::{Deserialize, Serialize};

use super::MacKeyId;
use crate::canonical::Digest;
use crate::id::{CallPath, RunId};

/// A MAC and the key that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageMac {
    /// Id of the key.
    pub key: MacKeyId,
    /// The 32 bytes of the MAC.
    pub tag: Digest,
}

/// A message with everything that makes it different from all others.
#[derive(Clone, Copy, Debug)]
pub enum MacMessage<'a> {
    /// The journal of a run up to and including a decision.
    JournalHead {
        /// The run.
        run: &'a RunId,
        /// Sequence number of the decision's record.
        seq: u64,
        /// Chain hash of the record without its MAC.
        head: &'a Digest,
    },
    /// A snapshot of a run.
    Snapshot {
        /// The run.
        run: &'a RunId,
        /// Number of records that it covers.
        record_count: u64,
        /// Chain hash of the last of them.
        head: &'a Digest,
        /// Digest of the encoded state.
        body: &'a Digest,
    },
    /// A decision that is posted for a run.
    PostedDecision {
        /// The run.
        run: &'a RunId,
        /// The call.
        path: &'a CallPath,
        /// Number of the hold that it decides.
        attempt: u32,
        /// Digest of the posted decision without its MAC.
        body: &'a Digest,
    },
    /// The text of a paused run.
    PausedRun {
        /// The run.
        run: &'a RunId,
        /// Number of records.
        record_count: u64,
        /// Chain hash of the last record.
        head: &'a Digest,
        /// Digest of the sealed lines.
        sealed: &'a Digest,
    },
    /// An artefact that a program trusts when it reads it again.
    Artefact {
        /// The run, or what the runs of one conversation have in common.
        scope: &'a str,
        /// Name of the artefact.
        name: &'a str,
        /// Digest of its content.
        body: &'a Digest,
    },
}

/// The reason why a MAC does not vouch for a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MacError {
    /// There is no MAC.
    #[error("it has no MAC")]
    Missing,
    /// The keyring does not have the key.
    #[error("its MAC was made with the key {0}, which is not in the keyring")]
    UnknownKey(MacKeyId),
    /// The MAC is not that of the message.
    #[error("its MAC of the key {0} does not match")]
    Mismatch(MacKeyId),
}

impl MacMessage<'_> {
    /// Writes the message. Every part follows its length in eight bytes, so that different messages never have the same
    /// bytes.
    pub(super) fn write_to(&self, domain: &str, key: &MacKeyId, mut write: impl FnMut(&[u8])) {
        let mut part = |bytes: &[u8]| {
            write(&(bytes.len() as u64).to_be_bytes());
            write(bytes);
        };
        part(b"windlass mac 1");
        part(self.kind().as_bytes());
        part(domain.as_bytes());
        part(key.as_str().as_bytes());
        match self {
            Self::JournalHead { run, seq, head } => {
                part(run.as_str().as_bytes());
                part(&seq.to_be_bytes());
                part(head.as_bytes());
            }
            Self::Snapshot { run, record_count, head, body } => {
                part(run.as_str().as_bytes());
                part(&record_count.to_be_bytes());
                part(head.as_bytes());
                part(body.as_bytes());
            }
            Self::PostedDecision { run, path, attempt, body } => {
                part(run.as_str().as_bytes());
                part(&attempt.to_be_bytes());
                part(body.as_bytes());
                for call in path.parent_calls() {
                    part(call.as_str().as_bytes());
                }
                part(path.call().as_str().as_bytes());
            }
            Self::PausedRun { run, record_count, head, sealed } => {
                part(run.as_str().as_bytes());
                part(&record_count.to_be_bytes());
                part(head.as_bytes());
                part(sealed.as_bytes());
            }
            Self::Artefact { scope, name, body } => {
                part(scope.as_bytes());
                part(name.as_bytes());
                part(body.as_bytes());
            }
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::JournalHead { .. } => "journal head",
            Self::Snapshot { .. } => "snapshot",
            Self::PostedDecision { .. } => "posted decision",
            Self::PausedRun { .. } => "paused run",
            Self::Artefact { .. } => "artefact",
        }
    }
}
