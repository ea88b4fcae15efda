//! Wording of violations: values, lists and types in words that a model can act on.

use std::borrow::Cow;
use std::fmt::{self, Display};

use serde_json::Value;

use crate::canonical::scan::CanonicalText;
use crate::canonical::{canonical_json, write_text};

/// Maximum number of characters of a value that are quoted.
pub(super) const MAX_QUOTED_CHARS: usize = 40;
/// Maximum number of alternatives that are named.
const MAX_NAMED_VALUES: usize = 30;

pub(super) fn type_phrase(name: &str) -> &str {
    match name {
        "boolean" => "true or false",
        "string" => "a string",
        "number" => "a number",
        "integer" => "an integer",
        "array" => "a list",
        "object" => "an object",
        other => other,
    }
}

pub(super) fn join_with_or(names: &[String]) -> impl Display {
    fmt::from_fn(|f| match names {
        [] => f.write_str("nothing"),
        [one] => f.write_str(one),
        [first @ .., last] => write!(f, "{} or {last}", first.join(", ")),
    })
}

pub(super) fn join_truncated(names: &[String]) -> impl Display {
    fmt::from_fn(|f| {
        f.write_str(&names[..names.len().min(MAX_NAMED_VALUES)].join(", "))?;
        match names.len().saturating_sub(MAX_NAMED_VALUES) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    })
}

/// Formats the value at a position with its type, as in `is the string "many"`.
pub(super) fn describe_value(text: CanonicalText<'_>, at: usize) -> impl Display {
    fmt::from_fn(move |f| match text.byte_at(at) {
        b'n' | b't' | b'f' => f.write_str(text.value_at(at)),
        b'"' => {
            f.write_str("the string ")?;
            f.write_str(&quote_text(&unescape_string(text.string_at(at))))
        }
        b'[' => write!(f, "a list of {}", array_len(text, at)),
        b'{' => f.write_str("an object"),
        _ => write!(f, "the number {}", truncate_text(text.value_at(at))),
    })
}

pub(super) fn quote_value(value: &Value) -> String {
    match value {
        Value::String(text) => quote_text(text),
        other => truncate_text(&canonical_json(other)).into_owned(),
    }
}

pub(super) fn quote_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(4 * MAX_QUOTED_CHARS) + 8);
    write_text(&truncate_text(text), &mut out);
    out
}

pub(super) fn truncate_text(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// Returns the unescaped content of a string in canonical text.
pub(super) fn unescape_string(string: &str) -> Cow<'_, str> {
    if string.bytes().any(|byte| byte == b'\\') {
        serde_json::from_str::<String>(&format!("\"{string}\"")).unwrap_or_default().into()
    } else {
        string.into()
    }
}

fn array_len(text: CanonicalText<'_>, at: usize) -> usize {
    let (mut at, mut count) = (at + 1, 0);
    while text.byte_at(at) != b']' && at < text.0.len() {
        at = text.value_end(at);
        at += usize::from(text.byte_at(at) == b',');
        count += 1;
    }
    count
}
