//! Message authentication codes (MACs): they tell what was written by a holder of a key from what was written by
//! anybody who can write to the store.
//!
//! A hash chain shows that records belong together; whoever can write them can compute it anew. A MAC (HMAC-SHA-256)
//! needs a key that is not in the store. It is made of the kind of the message, the domain of the keyring, the id of the
//! key, the run and the position in it, so that a MAC of one message is not valid for any other.
//!
//! Invariant: no function of this module returns or prints the secret of a key.

mod keyring;
mod message;

pub use keyring::{KeyringError, MacKey, MacKeyId, MacKeyring};
pub use message::{MacError, MacMessage, MessageMac};

#[cfg(test)]
#[path = "authenticity_tests.rs"]
mod tests;
