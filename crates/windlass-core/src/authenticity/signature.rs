//! Signatures of approvers: the text that is signed, and the signature in a decision.
//!
//! This crate has no signature scheme: drivers sign and verify the text.

use serde::{Deserialize, Serialize};

use crate::canonical::Digest;
use crate::id::{CallPath, RunId};
use crate::journal::DecisionRecorded;

crate::text_id! {
    /// The public key of an approver: `ed25519:` and 64 hex digits.
    ApproverKey
}

/// The signature of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionSignature {
    /// The public key of the approver.
    pub key: ApproverKey,
    /// The Ed25519 signature in 128 hex digits.
    pub value: String,
}

/// A decision as an approver signs it.
#[derive(Clone, Copy, Debug)]
pub struct SignedDecision<'a> {
    /// The run.
    pub run: &'a RunId,
    /// The call.
    pub path: &'a CallPath,
    /// Number of the hold that is decided: see [`crate::decision::PendingCall::attempt`].
    pub attempt: u32,
    /// The decision. Its revision, signature and MAC are not signed.
    pub decision: &'a DecisionRecorded,
}

impl SignedDecision<'_> {
    /// Returns the digest that is signed. It is of everything that makes the decision different from all others, so a
    /// signature is not valid for another run, call or hold.
    pub fn digest(&self) -> Digest {
        let Self { run, path, attempt, decision } = self;
        let decided =
            DecisionRecorded { posted_revision: 0, signature: None, mac: None, ..(*decision).clone() };
        // Decisions contain only text keys and finite numbers, so serialisation cannot fail.
        let decided = serde_json::to_string(&decided).unwrap_or_default();
        let path = serde_json::to_string(path).unwrap_or_default();
        Digest::of_parts(&["windlass signed decision 1", run.as_str(), &path, &attempt.to_string(), &decided])
    }
}
