//! How problems are put: values, lists and types in words that a model can act on.

use std::borrow::Cow;
use std::fmt::{self, Display};

use serde_json::Value;

use crate::canonical::{canonical, write_text};
use crate::scan::Canonical;

/// How much of a value is quoted.
pub(super) const QUOTED: usize = 40;
/// How many alternatives are named.
const NAMED: usize = 30;

pub(super) fn type_words(name: &str) -> &str {
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

pub(super) fn either(names: &[String]) -> impl Display {
    fmt::from_fn(|f| match names {
        [] => f.write_str("nothing"),
        [one] => f.write_str(one),
        [first @ .., last] => write!(f, "{} or {last}", first.join(", ")),
    })
}

pub(super) fn enumerated(names: &[String]) -> impl Display {
    fmt::from_fn(|f| {
        f.write_str(&names[..names.len().min(NAMED)].join(", "))?;
        match names.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    })
}

/// A value of canonical text with its kind, as in `is the string "many"`.
pub(super) fn shown(text: Canonical<'_>, at: usize) -> impl Display {
    fmt::from_fn(move |f| match text.byte(at) {
        b'n' | b't' | b'f' => f.write_str(text.value(at)),
        b'"' => {
            f.write_str("the string ")?;
            f.write_str(&quoted(&plain(text.string(at))))
        }
        b'[' => write!(f, "a list of {}", length(text, at)),
        b'{' => f.write_str("an object"),
        _ => write!(f, "the number {}", cut(text.value(at))),
    })
}

pub(super) fn brief(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => cut(&canonical(other)).into_owned(),
    }
}

pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(4 * QUOTED) + 8);
    write_text(&cut(text), &mut out);
    out
}

pub(super) fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// What a string of canonical text says.
pub(super) fn plain(string: &str) -> Cow<'_, str> {
    if string.bytes().any(|byte| byte == b'\\') {
        serde_json::from_str::<String>(&format!("\"{string}\"")).unwrap_or_default().into()
    } else {
        string.into()
    }
}

fn length(text: Canonical<'_>, at: usize) -> usize {
    let (mut at, mut count) = (at + 1, 0);
    while text.byte(at) != b']' && at < text.0.len() {
        at = text.value_end(at);
        at += usize::from(text.byte(at) == b',');
        count += 1;
    }
    count
}
