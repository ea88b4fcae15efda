//! Escaping of text that arrives in pieces.

use crate::characters::{CombiningState, is_emoji_base, push_escape};

/// Escapes prose that arrives in pieces, such as the streamed answer of a model. Line breaks stay line breaks, and
/// an emoji keeps its variation selector. A character that is split from its neighbours by the end of a piece is
/// treated as if it were not.
#[derive(Clone, Debug, Default)]
pub struct StreamEscaper {
    state: CombiningState,
    previous: Option<char>,
    has_carriage_return: bool,
}

impl StreamEscaper {
    /// Returns the escaped form of the next piece.
    pub fn escape(&mut self, piece: &str) -> String {
        let mut out = String::with_capacity(piece.len());
        for letter in piece.chars() {
            if std::mem::take(&mut self.has_carriage_return) && letter != '\n' {
                out.push_str("\\r");
            }
            let is_selected_emoji = letter == '\u{fe0f}' && self.previous.is_some_and(is_emoji_base);
            let is_keycap = letter == '\u{20e3}' && self.previous == Some('\u{fe0f}');
            let is_shown = self.state.admit(letter);
            match letter {
                '\n' => out.push('\n'),
                '\t' => out.push_str("    "),
                '\u{a0}' | '\u{202f}' => out.push(' '),
                // A carriage return is part of a line end only if a line feed follows.
                '\r' => self.has_carriage_return = true,
                _ if is_shown || is_selected_emoji || is_keycap => out.push(letter),
                _ => push_escape(&mut out, letter),
            }
            self.previous = Some(letter).filter(|_| is_shown || is_selected_emoji);
        }
        out
    }

    /// Ends the text; returns the escaped form of its last characters.
    pub fn finish(&mut self) -> &'static str {
        let pending = std::mem::take(self).has_carriage_return;
        if pending { "\\r" } else { "" }
    }
}
