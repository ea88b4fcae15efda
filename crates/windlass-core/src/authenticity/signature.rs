//! Signatures of approvers: the message that is signed, and its parts in the journal. Signing and verifying need a
//! cryptographic library, and are not part of the core.

use serde::{Deserialize, Serialize};

use super::MacError;
use crate::id::{CallPath, RunId};
use crate::journal::DecisionRecorded;

crate::text_id! {
    /// The public key of an approver: `ed25519:` and 64 hex digits.
    ApproverKey
}

impl ApproverKey {
    /// Returns true if the text has the form of a public key.
    pub fn is_well_formed(&self) -> bool {
        let digits = self.as_str().strip_prefix("ed25519:").unwrap_or_default();
        digits.len() == 64 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    }
}

/// The signature of an approver under a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionSignature {
    /// Public key of the approver.
    pub key: ApproverKey,
    /// The 64 bytes of the signature in hex digits.
    pub value: String,
}

/// A decision with everything that an approver signs.
#[derive(Clone, Copy, Debug)]
pub struct SignedDecision<'a> {
    /// The run.
    pub run: &'a RunId,
    /// The call.
    pub path: &'a CallPath,
    /// Number of the hold that is decided: see [`crate::decision::PendingCall::attempt`].
    pub attempt: u32,
    /// The decision. Its revision, its signature and its MAC are not signed.
    pub decision: &'a DecisionRecorded,
}

impl SignedDecision<'_> {
    /// Returns the bytes that the holder of a key signs. Every part follows its length in eight bytes, so that different
    /// decisions never have the same bytes.
    pub fn message(&self, domain: &str, key: &ApproverKey) -> Vec<u8> {
        let DecisionRecorded { digest, decision, scope, decided_by, displayed, .. } = self.decision;
        let mut message = Vec::new();
        let mut part = |bytes: &[u8]| {
            message.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
            message.extend_from_slice(bytes);
        };
        part(b"windlass signature 1");
        part(b"decision");
        part(domain.as_bytes());
        part(key.as_str().as_bytes());
        part(self.run.as_str().as_bytes());
        part(&self.attempt.to_be_bytes());
        part(digest.as_bytes());
        part(json(decision).as_bytes());
        part(json(scope).as_bytes());
        part(json(decided_by).as_bytes());
        part(displayed.as_ref().map_or(&[][..], |displayed| displayed.as_bytes()));
        for call in self.path.parent_calls() {
            part(call.as_str().as_bytes());
        }
        part(self.path.call().as_str().as_bytes());
        message
    }
}

/// Returns the text of a part of a decision, as the journal has it.
fn json(part: &impl Serialize) -> String {
    // Decisions contain only text keys and finite numbers, so serialisation cannot fail.
    serde_json::to_string(part).unwrap_or_default()
}

/// The reason why a decision is not that of an approver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The decision has no signature.
    #[error("no approver has signed it")]
    Missing,
    /// The key is not that of an approver.
    #[error("it is signed with the key {0}, which is not that of an approver")]
    UnknownKey(ApproverKey),
    /// The signature is of an approver of another name.
    #[error("it is signed with the key of {0:?}")]
    OtherName(String),
    /// The signature is not that of the decision.
    #[error("the signature with the key of {0:?} does not match")]
    Mismatch(String),
    /// The signature is of an approver who does not decide about this call.
    #[error("{name:?} has signed it, and {} about this call", only_deciders(.deciders))]
    OtherDeciders {
        /// Name of the approver who signed.
        name: String,
        /// Names of the approvers who decide about the call.
        deciders: Vec<String>,
    },
    /// The call is not known, so that nobody can tell who decides about it.
    #[error("nobody can tell who decides about its call, which cannot be read")]
    UnknownCall,
}

fn only_deciders(names: &[String]) -> String {
    if names.is_empty() {
        "nobody decides".to_owned()
    } else {
        format!("only {} decides", names.join(" or "))
    }
}

/// The reason why a decision is forged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForgeryReason {
    /// No holder of a key of the store has made it.
    #[error(transparent)]
    Mac(#[from] MacError),
    /// No approver has signed it.
    #[error(transparent)]
    Signature(#[from] SignatureError),
}
