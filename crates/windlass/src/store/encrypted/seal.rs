//! Encryption keys, and values that are sealed with them.
//!
//! Invariant: a sealed value opens only at its place: the place is authenticated with the value. The same value at the same
//! place is sealed alike, so that a store still recognises a repeated request; that two values are equal is all that a
//! reader without the key learns.

use std::fmt;

use data_encoding::BASE64_NOPAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use windlass_core::canonical::Digest;

use crate::error::{StoreError, StoreErrorKind};

/// Beginning of a sealed value.
const MARK: &str = "windlass-sealed:1:";
/// First line of the keys as text.
const HEADER: &str = "windlass encryption keys 1";

/// The keys with which a store is encrypted: a current one, which seals, and earlier ones, which only open.
#[derive(Clone)]
pub struct EncryptionKeys {
    /// The current one is the last.
    keys: Vec<EncryptionKey>,
}

/// Shows the ids and not the secrets.
impl fmt::Debug for EncryptionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| &key.id)).finish()
    }
}

/// The reason why a text is not a list of encryption keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncryptionKeyError {
    /// The text does not begin with the header.
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

#[derive(Clone)]
struct EncryptionKey {
    id: String,
    cipher: LessSafeKey,
    nonces: hmac::Key,
}

impl EncryptionKey {
    /// Derives the keys of the cipher and of the nonces from a secret, which must be random.
    fn from_secret(secret: [u8; 32]) -> Option<Self> {
        let derive = |purpose: &str| {
            let root = hmac::Key::new(hmac::HMAC_SHA256, &secret);
            hmac::sign(&root, format!("windlass {purpose}").as_bytes())
        };
        let id = Digest::of_bytes(derive("key id").as_ref()).short_hex();
        let cipher = UnboundKey::new(&AES_256_GCM, derive("cipher").as_ref()).ok()?;
        let nonces = hmac::Key::new(hmac::HMAC_SHA256, derive("nonces").as_ref());
        Some(Self { id, cipher: LessSafeKey::new(cipher), nonces })
    }

    /// Returns the nonce of a value at a place. It is derived from both, so no nonce stands for two values.
    fn nonce(&self, place: &str, value: &[u8]) -> [u8; NONCE_LEN] {
        let mut signed = hmac::Context::with_key(&self.nonces);
        signed.update(&(place.len() as u64).to_be_bytes());
        signed.update(place.as_bytes());
        signed.update(value);
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&signed.sign().as_ref()[..NONCE_LEN]);
        nonce
    }
}

impl EncryptionKeys {
    /// Reads keys from their text: the line `windlass encryption keys 1`, then a key of 64 hex digits on each line. The last
    /// one is the current key, and the others open what they have sealed. Empty lines, and those that begin with `#`,
    /// are
    /// ignored.
    ///
    /// A key is rotated in two steps, so that no process meets a value whose key it does not have: add the new key
    /// before the last one in every process, and then make it the last one.
    ///
    /// # Errors
    ///
    /// Returns an error that does not quote the text.
    pub fn from_text(text: &str) -> Result<Self, EncryptionKeyError> {
        let mut lines = (1..).zip(text.lines().map(str::trim));
        if lines.next().is_none_or(|(_, first)| first != HEADER) {
            return Err(EncryptionKeyError::MissingHeader);
        }
        let keys =
            lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(line, text)| {
                let secret: Digest = text.parse().map_err(|_| EncryptionKeyError::InvalidKey { line })?;
                EncryptionKey::from_secret(*secret.as_bytes()).ok_or(EncryptionKeyError::InvalidKey { line })
            });
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(EncryptionKeyError::NoKey) } else { Ok(Self { keys }) }
    }

    /// Returns the text of keys with these secrets, the current one last.
    pub fn text_of_secrets(secrets: &[[u8; 32]]) -> String {
        let lines = secrets.iter().map(|secret| format!("{}\n", Digest::from_bytes(*secret)));
        std::iter::once(format!("{HEADER}\n")).chain(lines).collect()
    }

    /// Returns the ids of the keys, the current one last. An id says nothing about its key.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| key.id.as_str())
    }

    /// Seals bytes for a place with the current key.
    pub(super) fn seal(&self, place: &str, value: &[u8]) -> Result<String, StoreError> {
        let failed = || StoreError::new("a value cannot be encrypted");
        let key = self.keys.last().ok_or_else(failed)?;
        let nonce = key.nonce(place, value);
        let mut sealed = Vec::with_capacity(NONCE_LEN + value.len() + AES_256_GCM.tag_len());
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(value);
        let (nonce, place) = (Nonce::assume_unique_for_key(nonce), Aad::from(place.as_bytes()));
        let tag = key.cipher.seal_in_place_separate_tag(nonce, place, &mut sealed[NONCE_LEN..]);
        sealed.extend_from_slice(tag.map_err(|_| failed())?.as_ref());
        Ok(format!("{MARK}{}:{}", key.id, BASE64_NOPAD.encode(&sealed)))
    }

    /// Opens bytes that were sealed for a place. Bytes without a seal were written before the store was encrypted, and are
    /// returned as they are.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::UnknownKey`] if the key is not given.
    pub(super) fn open(&self, place: &str, value: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        let Some(sealed) = value.strip_prefix(MARK.as_bytes()) else { return Ok(value) };
        let unreadable =
            |why: &str| StoreError::with_kind(StoreErrorKind::Corrupt, format!("an encrypted value {why}"));
        let sealed = std::str::from_utf8(sealed).ok().and_then(|sealed| sealed.split_once(':'));
        let (id, sealed) = sealed.ok_or_else(|| unreadable("is cut off"))?;
        let key = self.keys.iter().find(|key| key.id == id).ok_or_else(|| {
            let message = format!("an encrypted value was sealed with the key `{id}`, which is not given");
            StoreError::with_kind(StoreErrorKind::UnknownKey, message)
        })?;
        let mut sealed = BASE64_NOPAD.decode(sealed.as_bytes()).map_err(|_| unreadable("is damaged"))?;
        if sealed.len() < NONCE_LEN {
            return Err(unreadable("is cut off"));
        }
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&sealed[..NONCE_LEN]);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = key.cipher.open_within(nonce, Aad::from(place.as_bytes()), &mut sealed, NONCE_LEN..);
        Ok(opened.map_err(|_| unreadable("is not the one that was written here"))?.to_vec())
    }

    pub(super) fn seal_text(&self, place: &str, text: &str) -> Result<String, StoreError> {
        self.seal(place, text.as_bytes())
    }

    pub(super) fn open_text(&self, place: &str, text: String) -> Result<String, StoreError> {
        if !text.starts_with(MARK) {
            return Ok(text);
        }
        String::from_utf8(self.open(place, text.into_bytes())?)
            .map_err(|_| StoreError::with_kind(StoreErrorKind::Corrupt, "an encrypted text is not UTF-8"))
    }
}
