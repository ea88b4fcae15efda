//! Decryption of files that anybody may open: the standard security handler with an empty user password.

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256};
use md5::Md5;
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::object::{PdfDictionary, PdfObject};

/// The padding of passwords; an empty password is all padding.
const PADDING: [u8; 32] = [
    0x28, 0xbf, 0x4e, 0x5e, 0x4e, 0x75, 0x8a, 0x41, 0x64, 0x00, 0x4e, 0x56, 0xff, 0xfa, 0x01, 0x08, 0x2e,
    0x2e, 0x00, 0xb6, 0xd0, 0x68, 0x3e, 0x80, 0x2f, 0x0c, 0xa9, 0xfe, 0x64, 0x53, 0x69, 0x7a,
];

/// The cipher of a file's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamCipher {
    Identity,
    Rc4,
    /// AES with a key for each object.
    AesV2,
    /// AES with the key of the file.
    AesV3,
}

/// The key of an encrypted file.
pub(super) struct PdfDecryption {
    key: Vec<u8>,
    cipher: StreamCipher,
    /// False if metadata streams are not encrypted.
    encrypts_metadata: bool,
}

/// The entries of an encryption dictionary, resolved.
pub(super) struct EncryptionEntries<'a> {
    pub(super) dict: &'a PdfDictionary,
    /// First string of the trailer's `ID`.
    pub(super) file_id: &'a [u8],
    /// Method of the crypt filter that streams name; absent in versions without crypt filters.
    pub(super) stream_method: Option<&'a str>,
}

impl PdfDecryption {
    /// Derives the key of a file from the empty password.
    ///
    /// # Errors
    ///
    /// Returns the reason for the report if the file needs a password or another security handler.
    pub(super) fn open(entries: &EncryptionEntries<'_>) -> Result<Self, String> {
        let dict = entries.dict;
        if dict.name_value("Filter") != Some("Standard") {
            return Err("it is encrypted by a security handler that is not known".to_owned());
        }
        let (version, revision) = (integer(dict, "V", 0), integer(dict, "R", 2));
        let encrypts_metadata = dict.get("EncryptMetadata") != Some(&PdfObject::Bool(false));
        let cipher = match (version, entries.stream_method) {
            (1 | 2, _) => StreamCipher::Rc4,
            (4 | 5, Some("V2")) => StreamCipher::Rc4,
            (4 | 5, Some("AESV2")) => StreamCipher::AesV2,
            (4 | 5, Some("AESV3")) => StreamCipher::AesV3,
            (4 | 5, None | Some("None")) => StreamCipher::Identity,
            _ => return Err(format!("it is encrypted by a method that is not known (version {version})")),
        };
        let locked = || "it is encrypted with a password".to_owned();
        let key = if revision >= 5 {
            derive_key_256(dict, revision).ok_or_else(locked)?
        } else {
            let bits =
                if version == 1 { 40 } else { integer(dict, "Length", if version == 4 { 128 } else { 40 }) };
            let length = usize::try_from(bits / 8).unwrap_or(5).clamp(5, 16);
            derive_key(entries, revision, length, encrypts_metadata).ok_or_else(locked)?
        };
        Ok(Self { key, cipher, encrypts_metadata })
    }

    /// Returns the decrypted data of the stream of an object.
    pub(super) fn decrypt(&self, dict: &PdfDictionary, number: u32, generation: u32, data: &[u8]) -> Vec<u8> {
        let kind = dict.name_value("Type");
        if kind == Some("XRef") || (kind == Some("Metadata") && !self.encrypts_metadata) {
            return data.to_vec();
        }
        match self.cipher {
            StreamCipher::Identity => data.to_vec(),
            StreamCipher::Rc4 => rc4(&self.object_key(number, generation, b""), data),
            StreamCipher::AesV2 => {
                match Aes128::new_from_slice(&self.object_key(number, generation, b"sAlT")) {
                    Ok(aes) => decrypt_cbc(&aes, data),
                    Err(_) => Vec::new(),
                }
            }
            StreamCipher::AesV3 => match Aes256::new_from_slice(&self.key) {
                Ok(aes) => decrypt_cbc(&aes, data),
                Err(_) => Vec::new(),
            },
        }
    }

    fn object_key(&self, number: u32, generation: u32, salt: &[u8]) -> Vec<u8> {
        let digest = Md5::new()
            .chain_update(&self.key)
            .chain_update(&number.to_le_bytes()[..3])
            .chain_update(&generation.to_le_bytes()[..2])
            .chain_update(salt)
            .finalize();
        digest[..(self.key.len() + 5).min(16)].to_vec()
    }
}

fn integer(dict: &PdfDictionary, key: &str, otherwise: i64) -> i64 {
    match dict.get(key) {
        Some(PdfObject::Number(number)) => *number as i64,
        _ => otherwise,
    }
}

fn string<'a>(dict: &'a PdfDictionary, key: &str) -> Option<&'a [u8]> {
    match dict.get(key) {
        Some(PdfObject::String(bytes)) => Some(bytes),
        _ => None,
    }
}

/// Derives and verifies the key of revisions 2 to 4 (algorithms 2, 4 and 5 of the standard).
fn derive_key(
    entries: &EncryptionEntries<'_>,
    revision: i64,
    length: usize,
    encrypts_metadata: bool,
) -> Option<Vec<u8>> {
    let permissions = integer(entries.dict, "P", 0) as u32;
    let mut hash = Md5::new()
        .chain_update(PADDING)
        .chain_update(string(entries.dict, "O")?.get(..32)?)
        .chain_update(permissions.to_le_bytes())
        .chain_update(entries.file_id);
    if revision >= 4 && !encrypts_metadata {
        hash.update([0xff; 4]);
    }
    let mut key: [u8; 16] = hash.finalize().into();
    if revision >= 3 {
        for _ in 0..50 {
            key = Md5::digest(&key[..length]).into();
        }
    }
    let key = key[..length].to_vec();
    let user = string(entries.dict, "U")?;
    let is_right = if revision == 2 {
        rc4(&key, &PADDING) == user.get(..32)?
    } else {
        let digest = Md5::new().chain_update(PADDING).chain_update(entries.file_id).finalize();
        let mut check = digest.to_vec();
        for round in 0..20u8 {
            let key: Vec<u8> = key.iter().map(|byte| byte ^ round).collect();
            check = rc4(&key, &check);
        }
        check == user.get(..16)?
    };
    is_right.then_some(key)
}

/// Derives and verifies the key of revisions 5 and 6 (algorithm 2.A).
fn derive_key_256(dict: &PdfDictionary, revision: i64) -> Option<Vec<u8>> {
    let user = string(dict, "U")?;
    let (check, salt, key_salt) = (user.get(..32)?, user.get(32..40)?, user.get(40..48)?);
    if hash_password(salt, revision)? != check {
        return None;
    }
    let intermediate = hash_password(key_salt, revision)?;
    let aes = Aes256::new_from_slice(&intermediate).ok()?;
    // There is no initialisation vector and no padding.
    let sealed = [&[0; 16], string(dict, "UE")?.get(..32)?].concat();
    Some(decrypt_blocks(&aes, &sealed))
}

/// Hashes the empty password with a salt (algorithm 2.B).
fn hash_password(salt: &[u8], revision: i64) -> Option<Vec<u8>> {
    let mut key = Sha256::digest(salt).to_vec();
    if revision < 6 {
        return Some(key);
    }
    let mut round = 0;
    loop {
        let mut data = key.repeat(64);
        let aes = Aes128::new_from_slice(key.get(..16)?).ok()?;
        let mut last: [u8; 16] = key.get(16..32)?.try_into().ok()?;
        for block in data.chunks_exact_mut(16) {
            for (byte, mask) in block.iter_mut().zip(last) {
                *byte ^= mask;
            }
            let mut sealed = <[u8; 16]>::try_from(&*block).ok()?.into();
            aes.encrypt_block(&mut sealed);
            last = sealed.into();
            block.copy_from_slice(&last);
        }
        let sum: u32 = data.get(..16)?.iter().map(|byte| u32::from(*byte)).sum();
        key = match sum % 3 {
            0 => Sha256::digest(&data).to_vec(),
            1 => Sha384::digest(&data).to_vec(),
            _ => Sha512::digest(&data).to_vec(),
        };
        round += 1;
        if round >= 64 && i32::from(*data.last()?) <= round - 32 {
            break;
        }
    }
    key.truncate(32);
    Some(key)
}

/// Decrypts data whose first block is the initialisation vector, and removes its padding.
fn decrypt_cbc(aes: &impl BlockCipherDecrypt<BlockSize = aes::cipher::consts::U16>, data: &[u8]) -> Vec<u8> {
    let mut out = decrypt_blocks(aes, data);
    let padding = usize::from(out.last().copied().unwrap_or(0));
    if (1..=16).contains(&padding) && padding <= out.len() {
        out.truncate(out.len() - padding);
    }
    out
}

fn decrypt_blocks(
    aes: &impl BlockCipherDecrypt<BlockSize = aes::cipher::consts::U16>,
    data: &[u8],
) -> Vec<u8> {
    let blocks = data.as_chunks::<16>().0;
    let mut out = Vec::with_capacity(data.len());
    for pair in blocks.windows(2) {
        let mut block = pair[1].into();
        aes.decrypt_block(&mut block);
        out.extend(block.iter().zip(pair[0]).map(|(byte, mask)| byte ^ mask));
    }
    out
}

fn rc4(key: &[u8], data: &[u8]) -> Vec<u8> {
    let mut state: [u8; 256] = std::array::from_fn(|at| at.to_le_bytes()[0]);
    let mut other = 0u8;
    for at in 0..256 {
        other = other.wrapping_add(state[at]).wrapping_add(key[at % key.len().max(1)]);
        state.swap(at, usize::from(other));
    }
    let (mut one, mut other) = (0u8, 0u8);
    data.iter()
        .map(|byte| {
            one = one.wrapping_add(1);
            other = other.wrapping_add(state[usize::from(one)]);
            state.swap(usize::from(one), usize::from(other));
            byte ^ state[usize::from(state[usize::from(one)].wrapping_add(state[usize::from(other)]))]
        })
        .collect()
}
