//! Canonical JSON and digests: the definition of equality for tool-call arguments.
//!
//! The canonical form is RFC 8785 (keys sorted by UTF-16 units, no white space, shortest numbers, minimal
//! escapes) with one exception: integers keep all their digits, because rounding them to a double would let one
//! decision cover two amounts. `1e2`, `100` and `100.0` are therefore equal; `1`, `true` and `"1"` are not.
//! Defaults are not filled in: arguments that state a default differ from arguments that omit it.

mod canonicalize;
pub(crate) mod scan;

use std::cmp::Ordering;
use std::fmt;

pub use canonicalize::{canonical_text, with_canonical_text};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Returns `value` as canonical JSON text.
pub fn canonical_json(value: &Value) -> String {
    let mut out = String::with_capacity(64);
    write_value(value, &mut out);
    out
}

/// The two hex digits of each byte.
const HEX_PAIRS: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < pairs.len() {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Marks a byte that is no lower-case hex digit. It is above all digits.
const NOT_HEX: u8 = 16;

/// The value of each byte as a lower-case hex digit.
const HEX_VALUES: [u8; 256] = {
    let mut values = [NOT_HEX; 256];
    let mut byte = 0u8;
    while byte < 16 {
        values[HEX_PAIRS[byte as usize][1] as usize] = byte;
        byte += 1;
    }
    values
};

/// A SHA-256 digest, displayed as lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of `text`.
    pub fn of_text(text: &str) -> Self {
        Self::of_bytes(text.as_bytes())
    }

    /// Returns the digest of `bytes`.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Creates a digest from its 32 bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes of the digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the digest of several texts. Each text is preceded by its length, so that different lists never
    /// produce the same input.
    pub fn of_parts(parts: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        Self(hash.finalize().into())
    }

    /// Returns the digest of the 32 bytes of this digest, followed by `text`.
    pub(crate) fn chain(&self, text: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(text);
        Self(hash.finalize().into())
    }

    pub(crate) fn to_hex(self) -> [u8; 64] {
        let mut text = [0u8; 64];
        for (byte, digits) in self.0.iter().zip(text.as_chunks_mut::<2>().0) {
            *digits = HEX_PAIRS[usize::from(*byte)];
        }
        text
    }

    /// Returns the first sixteen hex digits, for display.
    pub fn short_hex(&self) -> String {
        self.to_string()[..16].to_owned()
    }
}

/// A hasher of texts and numbers, each text preceded by its length in four bytes.
#[derive(Default)]
pub(crate) struct ShortPartsHasher(Sha256);

impl ShortPartsHasher {
    pub(crate) fn add_text(&mut self, text: &str) {
        self.add_number(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.0.update(text.as_bytes());
    }

    pub(crate) fn add_number(&mut self, number: u32) {
        self.0.update(number.to_be_bytes());
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.to_hex()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", self.short_hex())
    }
}

impl std::str::FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (mut bytes, mut all_values) = ([0u8; 32], 0);
        for (byte, [high, low]) in bytes.iter_mut().zip(text.as_bytes().as_chunks::<2>().0) {
            let (high, low) = (HEX_VALUES[usize::from(*high)], HEX_VALUES[usize::from(*low)]);
            all_values |= high | low;
            *byte = (high << 4) | low;
        }
        match text.len() == 64 && all_values < NOT_HEX {
            true => Ok(Self(bytes)),
            false => Err(format!("a digest has 64 lower-case hex digits, this is `{text}`")),
        }
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let hex = self.to_hex();
        serializer.serialize_str(std::str::from_utf8(&hex).map_err(ser::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(HexDigits)
    }
}

/// A visitor that parses hex digits without copying the text.
struct HexDigits;

impl de::Visitor<'_> for HexDigits {
    type Value = Digest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("64 lower-case hex digits")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Digest, E> {
        text.parse().map_err(de::Error::custom)
    }
}

fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_value(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut fields: Vec<(&String, &Value)> = map.iter().collect();
            // `serde_json` maps are sorted or keep insertion order depending on its features, so the keys are
            // sorted here.
            fields.sort_by(|a, b| cmp_utf16(a.0.as_bytes(), b.0.as_bytes()));
            out.push('{');
            for (at, (key, value)) in fields.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_text(key, out);
                out.push(':');
                write_value(value, out);
            }
            out.push('}');
        }
    }
}

/// Compares two UTF-8 keys by their UTF-16 units.
pub(crate) fn cmp_utf16(a: &[u8], b: &[u8]) -> Ordering {
    // Byte order equals character order. UTF-16 order differs only between characters that need surrogates
    // (first byte 0xf0 and above) and the characters just below them (first byte 0xee or 0xef).
    match a.iter().zip(b).find(|(a, b)| a != b) {
        None => a.len().cmp(&b.len()),
        Some((a, b)) if *a < 0xee || *b < 0xee => a.cmp(b),
        Some(_) => {
            let units = |key| String::from_utf8_lossy(key).encode_utf16().collect::<Vec<_>>();
            units(a).cmp(&units(b))
        }
    }
}

pub(crate) fn write_number(number: &serde_json::Number, out: &mut String) {
    use fmt::Write;
    let written = if let Some(whole) = number.as_i64() {
        write!(out, "{whole}")
    } else if let Some(whole) = number.as_u64() {
        write!(out, "{whole}")
    } else {
        write_double(number.as_f64().unwrap_or(0.0), out)
    };
    debug_assert!(written.is_ok(), "writing to a string does not fail");
}

/// Writes a double in ECMAScript's shortest form: plain digits from 1e-6 up to 1e21, an exponent otherwise.
fn write_double(value: f64, out: &mut String) -> fmt::Result {
    use fmt::Write;
    if value == 0.0 {
        return out.write_str("0");
    }
    let magnitude = value.abs();
    if (1e-6..1e21).contains(&magnitude) {
        return write!(out, "{value}");
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, exponent)) if !exponent.starts_with('-') => write!(out, "{digits}e+{exponent}"),
        _ => out.write_str(&text),
    }
}

pub(crate) fn write_text(text: &str, out: &mut String) {
    use fmt::Write;
    out.push('"');
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            0x08 => "\\b",
            0x09 => "\\t",
            0x0a => "\\n",
            0x0c => "\\f",
            0x0d => "\\r",
            0x00..=0x1f => "",
            _ => continue,
        };
        out.push_str(&text[plain..at]);
        plain = at + 1;
        if escape.is_empty() {
            let written = write!(out, "\\u{byte:04x}");
            debug_assert!(written.is_ok(), "writing to a string does not fail");
        } else {
            out.push_str(escape);
        }
    }
    out.push_str(&text[plain..]);
    out.push('"');
}

#[cfg(test)]
#[path = "canonical_tests.rs"]
mod tests;
