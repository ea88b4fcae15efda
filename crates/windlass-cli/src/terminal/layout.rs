//! Text layout: truncation, padding, formatting, and lines that are redrawn in place.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::Terminal;

/// Maximum width of an argument's value on one line.
const MAX_VALUE_WIDTH: usize = 60;

/// Arguments that identify the subject of a call. They come first, because a line may be truncated.
const PRIORITY_ARGUMENTS: [&str; 7] = ["path", "file", "program", "shell", "url", "query", "to"];

/// Lines at the bottom of the screen that are redrawn in place.
#[derive(Debug, Default)]
pub(crate) struct LiveLines {
    drawn_count: usize,
}

impl LiveLines {
    /// Draws these lines in place of the previous ones. Each must fit the width.
    pub(crate) fn draw(&mut self, term: &Terminal, lines: &[String]) {
        let mut text = self.erase_sequence();
        for line in lines {
            let _written = writeln!(text, "{line}\x1b[K");
        }
        self.drawn_count = lines.len();
        if !text.is_empty() {
            term.eprint_text(&text);
        }
    }

    /// Erases the lines, so that the next output takes their place.
    pub(crate) fn clear(&mut self, term: &Terminal) {
        let text = self.erase_sequence();
        self.drawn_count = 0;
        if !text.is_empty() {
            term.eprint_text(&text);
        }
    }

    fn erase_sequence(&self) -> String {
        if self.drawn_count == 0 { String::new() } else { format!("\x1b[{}A\r\x1b[J", self.drawn_count) }
    }
}

/// Truncates a text to a width in columns.
pub(crate) fn truncate_to_width(text: &str, width: usize) -> String {
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

/// Pads a text with spaces to a width in columns.
pub(crate) fn pad_to_width(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.width());
    format!("{text}{}", " ".repeat(missing))
}

/// Joins a text into one line and replaces control characters, which a terminal would interpret.
pub(crate) fn to_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }));
    }
    line
}

/// Formats arguments on one line for people: `path: notes.md, lines: 3`.
pub(crate) fn format_arguments(arguments: &str) -> String {
    match serde_json::from_str(arguments) {
        Ok(Value::Object(fields)) => {
            let mut named: Vec<(&String, &Value)> = fields.iter().collect();
            named.sort_by_key(|(name, _)| !PRIORITY_ARGUMENTS.contains(&name.as_str()));
            let fields = named.iter().map(|(name, value)| format!("{name}: {}", format_value(value)));
            fields.collect::<Vec<_>>().join(", ")
        }
        Ok(value) => format_value(&value),
        Err(_) => truncate_to_width(&to_one_line(arguments), MAX_VALUE_WIDTH),
    }
}

fn format_value(value: &Value) -> String {
    let text = match value {
        Value::String(text) => to_one_line(text),
        other => to_one_line(&other.to_string()),
    };
    truncate_to_width(&text, MAX_VALUE_WIDTH)
}

/// Formats a number with its noun, in the singular or plural.
pub(crate) fn pluralise(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// Formats a duration.
pub(crate) fn format_duration(took: Duration) -> String {
    match took.as_millis() {
        millis @ 0..1_000 => format!("{millis} ms"),
        millis @ 1_000..60_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        millis => format!("{} min {} s", millis / 60_000, millis % 60_000 / 1_000),
    }
}
