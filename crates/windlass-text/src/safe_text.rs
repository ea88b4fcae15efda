//! Text that is safe to show.

use std::fmt;

use crate::characters::{CombiningState, is_hidden, push_escape};

/// Text in which every hidden character is a visible escape.
///
/// It is created from untrusted text by escaping, and never by assertion.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SafeText(pub(crate) String);

impl SafeText {
    /// Escapes a text for one line. Line breaks are escaped too.
    pub fn from_line(text: &str) -> Self {
        let mut out = String::with_capacity(text.len());
        let mut state = CombiningState::default();
        for letter in text.chars() {
            if state.admit(letter) {
                out.push(letter);
            } else {
                push_escape(&mut out, letter);
            }
        }
        Self(out)
    }

    /// Escapes a text line by line: each line of the text is an element, without its line end.
    pub fn from_lines(text: &str) -> Vec<Self> {
        text.split('\n').map(|line| Self::from_line(line.strip_suffix('\r').unwrap_or(line))).collect()
    }

    /// Collapses white space to single spaces and escapes the rest, for summaries on one line.
    pub fn from_words(text: &str) -> Self {
        let words: Vec<&str> = text.split([' ', '\n', '\r', '\t']).filter(|word| !word.is_empty()).collect();
        Self::from_line(&words.join(" "))
    }

    /// Escapes a line of prose as [`StreamEscaper`](crate::StreamEscaper) does: tabs and special spaces become spaces,
    /// and an emoji keeps its variation selector. Line breaks are escaped.
    pub fn from_prose(text: &str) -> Self {
        let mut escaper = crate::StreamEscaper::default();
        let mut out = escaper.escape(text).replace('\n', "\\n");
        out.push_str(escaper.finish());
        Self(out)
    }

    /// Writes a text as a string literal in double quotes. The literal is unambiguous: two different texts have
    /// two different literals, because backslashes and quotes are escaped too.
    pub fn quote(text: &str) -> Self {
        Self(format!("\"{}\"", Self::quote_inner(text)))
    }

    /// Writes a text as [`SafeText::quote`] does, without the quotes around it.
    pub fn quote_inner(text: &str) -> Self {
        let mut out = String::with_capacity(text.len());
        let mut state = CombiningState::default();
        for letter in text.chars() {
            let is_shown = state.admit(letter);
            match letter {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                _ if is_shown => out.push(letter),
                _ => push_escape(&mut out, letter),
            }
        }
        Self(out)
    }

    /// Writes a JSON text with every hidden character as a JSON escape. The value of the JSON text is unchanged.
    pub fn from_json(json: &str) -> Self {
        Self(escape_json(json))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the text is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends another safe text.
    ///
    /// A mark at the start of a safe text is escaped already, so that it cannot combine with the end of another.
    pub fn push(&mut self, other: &Self) {
        self.0.push_str(&other.0);
    }
}

impl fmt::Display for SafeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for SafeText {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Escapes the hidden characters of a JSON text, other than its line breaks, as `\uXXXX`. The result has the same
/// value.
pub fn escape_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut state = CombiningState::default();
    for letter in json.chars() {
        if state.admit(letter) || (letter == '\n' && is_hidden(letter)) {
            out.push(letter);
            continue;
        }
        let mut units = [0; 2];
        for unit in letter.encode_utf16(&mut units) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    }
    out
}
