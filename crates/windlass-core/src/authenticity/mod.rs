//! Message authentication codes (MACs): they tell what was written by a holder of a key from what was written by
//! anybody who can write to the store.
//!
//! A hash chain shows that records belong together; whoever can write them can compute it anew. A MAC (HMAC-SHA-256)
//! needs a key that is not in the store. It is made of the kind of the message, the domain of the keyring, the id of the
//! key, the run and the position in it, so that a MAC of one message is not valid for any other.
//!
//! A signature (Ed25519) says which person decided: the private key stays with the approver, and neither the driver nor
//! the store has it. The core has the message that is signed, and no cryptography for it.
//!
//! Invariant: no function of this module returns or prints the secret of a key.

mod keyring;
mod message;
mod signature;

pub use keyring::{KeyringError, MacKey, MacKeyId, MacKeyring};
pub use message::{MacError, MacMessage, MessageMac};
pub use signature::{ApproverKey, DecisionSignature, ForgeryReason, SignatureError, SignedDecision};

#[cfg(test)]
#[path = "authenticity_tests.rs"]
mod tests;
