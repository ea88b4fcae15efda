//! Canonical JSON and digests: one rule for when two argument texts are the same.
//!
//! The rule is RFC 8785 (keys sorted by UTF-16 units, no white space, shortest numbers, minimal escapes)
//! with one exception: integers keep all their digits, because rounding them to a double would let one
//! decision cover two amounts. So `1e2`, `100` and `100.0` are the same, and `1`, `true` and `"1"` are not.
//! Nothing is filled in: arguments that spell a default out are others than those that leave it out.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Writes `value` in canonical form.
pub fn canonical(value: &Value) -> String {
    let mut out = String::with_capacity(64);
    write_value(value, &mut out);
    out
}

/// A SHA-256 over canonical text, written as lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of some text.
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// The digest of several texts, kept apart so that no two lists collide.
    pub fn of_parts(parts: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        Self(hash.finalize().into())
    }

    /// The digest of several lines, joined by newlines: a form that any other program can make too.
    pub(crate) fn of_lines(lines: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for (at, line) in lines.iter().enumerate() {
            if at > 0 {
                hash.update(b"\n");
            }
            hash.update(line.as_bytes());
        }
        Self(hash.finalize().into())
    }

    /// The first sixteen hex digits: enough to tell things apart on a screen.
    pub fn short(&self) -> String {
        self.to_string()[..16].to_owned()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0u8; 64];
        for (at, byte) in self.0.iter().enumerate() {
            text[at * 2] = HEX[usize::from(byte >> 4)];
            text[at * 2 + 1] = HEX[usize::from(byte & 15)];
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", self.short())
    }
}

impl std::str::FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("a digest has 64 lower-case hex digits, this is `{text}`");
        if text.len() != 64 || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(wrong());
        }
        let mut bytes = [0u8; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
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
            // The map may be sorted already or keep insertion order, as features of serde_json decide.
            fields.sort_by(|a, b| utf16_order(a.0, b.0));
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

pub(crate) fn utf16_order(a: &str, b: &str) -> Ordering {
    // The order of bytes is that of characters. That of UTF-16 units differs only where characters that are written
    // with surrogates (first byte 0xf0 and above) meet the last ones that are not (0xee and 0xef).
    match a.bytes().zip(b.bytes()).find(|(a, b)| a != b) {
        None => a.len().cmp(&b.len()),
        Some((a, b)) if a < 0xee || b < 0xee => a.cmp(&b),
        Some(_) => a.encode_utf16().cmp(b.encode_utf16()),
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

/// ECMAScript's shortest form: plain digits from 1e-6 up to 1e21, an exponent beyond.
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
