//! Keys and keyrings: one key makes new MACs, earlier ones verify those that they made.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::message::{MacError, MacMessage, MessageMac};
use crate::canonical::Digest;

crate::text_id! {
    /// The id of a key: sixteen hex digits that are derived from its secret.
    MacKeyId
}

/// First line of a keyring as text.
const HEADER: &str = "windlass keys 1";

/// A secret key of 32 bytes.
#[derive(Clone)]
pub struct MacKey {
    id: MacKeyId,
    /// The state of the MAC after it has read the secret.
    keyed: Hmac<Sha256>,
}

/// Shows the id and not the secret.
impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MacKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl MacKey {
    /// Creates a key from its secret, which must be random.
    pub fn from_bytes(secret: [u8; 32]) -> Self {
        let id = Digest::of_parts(&["windlass key id", &Digest::from_bytes(secret).to_string()]);
        // Both have 32 bytes.
        let keyed = Hmac::new(&padded(&secret).into());
        Self { id: MacKeyId::new(id.short_hex()), keyed }
    }

    /// Returns the id of the key. It says nothing about the secret.
    pub fn id(&self) -> &MacKeyId {
        &self.id
    }
}

/// Returns the secret as a block of the hash function: HMAC fills a shorter key with zeros.
fn padded(secret: &[u8; 32]) -> [u8; 64] {
    let mut block = [0; 64];
    block[..32].copy_from_slice(secret);
    block
}

/// The keys of a store: a current one, which makes new MACs, and earlier ones, which only verify.
#[derive(Clone, Debug)]
pub struct MacKeyring {
    domain: Arc<str>,
    current: MacKey,
    earlier: Vec<MacKey>,
}

/// The reason why a text is not a keyring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyringError {
    /// The text does not begin with the header of a keyring.
    #[error("it does not begin with `{HEADER}`")]
    MissingHeader,
    /// A line is not a key.
    #[error("line {line} is not a key of 64 hex digits")]
    InvalidKey {
        /// Number of the line, from 1.
        line: usize,
    },
    /// There is no key.
    #[error("it has no key")]
    NoKey,
}

impl MacKeyring {
    /// Creates a keyring with one key.
    pub fn new(current: MacKey) -> Self {
        Self { domain: "".into(), current, earlier: Vec::new() }
    }

    /// Adds a key that made MACs before the current one. It makes no new ones.
    #[must_use]
    pub fn with_earlier(mut self, key: MacKey) -> Self {
        self.earlier.push(key);
        self
    }

    /// Sets the domain, such as `production`. A MAC of one domain is not valid in another, although the key is the same.
    #[must_use]
    pub fn with_domain(mut self, domain: impl Into<Arc<str>>) -> Self {
        self.domain = domain.into();
        self
    }

    /// Reads a keyring from its text: the line `windlass keys 1`, then a key of 64 hex digits on each line. The last one is
    /// the current key, so a key is rotated by adding a line. Empty lines, and those that begin with `#`, are ignored.
    ///
    /// # Errors
    ///
    /// Returns an error that does not quote the text.
    pub fn from_text(text: &str) -> Result<Self, KeyringError> {
        let mut lines = (1..).zip(text.lines().map(str::trim));
        if lines.next().is_none_or(|(_, first)| first != HEADER) {
            return Err(KeyringError::MissingHeader);
        }
        let mut keys = Vec::new();
        for (line, text) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let secret: Digest = text.parse().map_err(|_| KeyringError::InvalidKey { line })?;
            keys.push(MacKey::from_bytes(*secret.as_bytes()));
        }
        let current = keys.pop().ok_or(KeyringError::NoKey)?;
        Ok(Self { earlier: keys, ..Self::new(current) })
    }

    /// Returns the text of a keyring with these secrets, the current one last.
    pub fn text_of_secrets(secrets: &[[u8; 32]]) -> String {
        let lines = secrets.iter().map(|secret| format!("{}\n", Digest::from_bytes(*secret)));
        std::iter::once(format!("{HEADER}\n")).chain(lines).collect()
    }

    /// Returns the id of the key that makes new MACs.
    pub fn current_id(&self) -> &MacKeyId {
        self.current.id()
    }

    /// Returns the ids of the keys that only verify, oldest first.
    pub fn earlier_ids(&self) -> impl Iterator<Item = &MacKeyId> {
        self.earlier.iter().map(MacKey::id)
    }

    /// Makes the MAC of a message with the current key.
    pub fn authenticate(&self, message: &MacMessage<'_>) -> MessageMac {
        let MacKey { id, keyed } = &self.current;
        let mut mac = keyed.clone();
        message.write_to(&self.domain, id, |bytes| mac.update(bytes));
        let tag: [u8; 32] = mac.finalize().into_bytes().into();
        MessageMac { key: id.clone(), tag: Digest::from_bytes(tag) }
    }

    /// Verifies the MAC of a message with the key that it names, in constant time.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no MAC, its key is not in the keyring, or it is not the MAC of this message.
    pub fn verify(&self, message: &MacMessage<'_>, mac: Option<&MessageMac>) -> Result<(), MacError> {
        let MessageMac { key: named, tag } = mac.ok_or(MacError::Missing)?;
        let known = std::iter::once(&self.current).chain(&self.earlier).find(|key| key.id == *named);
        let MacKey { id, keyed } = known.ok_or_else(|| MacError::UnknownKey(named.clone()))?;
        let mut mac = keyed.clone();
        message.write_to(&self.domain, id, |bytes| mac.update(bytes));
        mac.verify_slice(tag.as_bytes()).map_err(|_| MacError::Mismatch(named.clone()))
    }
}
