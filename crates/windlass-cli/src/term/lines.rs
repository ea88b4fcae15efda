//! Text in lines: cut, filled up, laid out, and drawn again in place.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::Term;

/// How long the value of a field may be on one line.
const LONGEST_VALUE: usize = 60;

/// Arguments that say what a call is about. They come first where a line may be cut.
const TELLING: [&str; 7] = ["path", "file", "program", "shell", "url", "query", "to"];

/// Lines at the bottom of the screen that are drawn again in place.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    drawn: usize,
}

impl Lines {
    /// Draws these lines in place of those before. Each must fit the width.
    pub(crate) fn draw(&mut self, term: &Term, lines: &[String]) {
        let mut text = self.back();
        for line in lines {
            let _written = writeln!(text, "{line}\x1b[K");
        }
        self.drawn = lines.len();
        if !text.is_empty() {
            term.note_piece(&text);
        }
    }

    /// Takes the lines away, so that what is written next stands in their place.
    pub(crate) fn clear(&mut self, term: &Term) {
        let text = self.back();
        self.drawn = 0;
        if !text.is_empty() {
            term.note_piece(&text);
        }
    }

    fn back(&self) -> String {
        if self.drawn == 0 { String::new() } else { format!("\x1b[{}A\r\x1b[J", self.drawn) }
    }
}

/// The beginning of a text, no wider than so many columns.
pub(crate) fn clip(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut clipped = String::new();
    let mut used = 0;
    for letter in text.chars() {
        let wide = letter.width().unwrap_or(0);
        if used + wide + 1 > width {
            break;
        }
        used += wide;
        clipped.push(letter);
    }
    clipped.push('…');
    clipped
}

/// A text that is so many columns wide, or wider.
pub(crate) fn pad(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.width());
    format!("{text}{}", " ".repeat(missing))
}

/// A text on one line, with nothing in it that a terminal would take for an order.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }));
    }
    line
}

/// Arguments on one line, to be read and not to be parsed: `path: notes.md, lines: 3`.
pub(crate) fn fields(arguments: &str) -> String {
    match serde_json::from_str(arguments) {
        Ok(Value::Object(fields)) => {
            let mut named: Vec<(&String, &Value)> = fields.iter().collect();
            named.sort_by_key(|(name, _)| !TELLING.contains(&name.as_str()));
            let fields = named.iter().map(|(name, value)| format!("{name}: {}", short(value)));
            fields.collect::<Vec<_>>().join(", ")
        }
        Ok(value) => short(&value),
        Err(_) => clip(&one_line(arguments), LONGEST_VALUE),
    }
}

fn short(value: &Value) -> String {
    let text = match value {
        Value::String(text) => one_line(text),
        other => one_line(&other.to_string()),
    };
    clip(&text, LONGEST_VALUE)
}

/// So many of something.
pub(crate) fn count(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// How long something took.
pub(crate) fn time(took: Duration) -> String {
    match took.as_millis() {
        millis @ 0..1_000 => format!("{millis} ms"),
        millis @ 1_000..60_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        millis => format!("{} min {} s", millis / 60_000, millis % 60_000 / 1_000),
    }
}
