//! Text layout: formatting of arguments, numbers and durations, and lines that are redrawn in place.

use std::time::Duration;

use serde_json::Value;
use windlass_text::SafeText;

use super::{StyledText, Terminal};

/// Maximum width of an argument's value in a summary.
const MAX_VALUE_WIDTH: usize = 60;

/// Arguments that identify the subject of a call. They come first, because a line may be truncated.
const PRIORITY_ARGUMENTS: [&str; 7] = ["path", "file", "program", "shell", "url", "query", "to"];

/// Lines at the bottom of the screen that are redrawn in place.
#[derive(Debug, Default)]
pub(crate) struct LiveLines {
    /// Widths of the lines on the screen.
    drawn_widths: Vec<usize>,
}

impl LiveLines {
    /// Draws these lines in place of the previous ones. Each must fit the width.
    pub(crate) fn draw(&mut self, term: &Terminal, lines: &[StyledText]) {
        term.redraw_lines(self.row_count(term), lines);
        self.drawn_widths = lines.iter().map(StyledText::width).collect();
    }

    /// Erases the lines, so that the next output takes their place.
    pub(crate) fn clear(&mut self, term: &Terminal) {
        term.redraw_lines(self.row_count(term), &[]);
        self.drawn_widths.clear();
    }

    /// Returns the number of rows that the lines occupy. A terminal that became narrower has broken some of them.
    fn row_count(&self, term: &Terminal) -> usize {
        let width = term.width();
        self.drawn_widths.iter().map(|drawn| drawn.div_ceil(width).max(1)).sum()
    }
}

/// Summarises arguments on one line: `path: notes.md, lines: 3`. Long values are truncated, so a summary is
/// never what a person decides about.
pub(crate) fn summarize_arguments(arguments: &str) -> SafeText {
    join_arguments(arguments, |value| value.truncate(MAX_VALUE_WIDTH))
}

/// Formats arguments on one line as [`summarize_arguments`] does, and leaves nothing out.
pub(crate) fn format_arguments(arguments: &str) -> SafeText {
    join_arguments(arguments, |value| value)
}

fn join_arguments(arguments: &str, shorten: impl Fn(SafeText) -> SafeText) -> SafeText {
    let format_value = |value: &Value| match value {
        Value::String(text) => shorten(SafeText::from_words(text)),
        other => shorten(SafeText::from_json(&other.to_string())),
    };
    match serde_json::from_str(arguments) {
        Ok(Value::Object(fields)) => {
            let mut named: Vec<(&String, &Value)> = fields.iter().collect();
            named.sort_by_key(|(name, _)| !PRIORITY_ARGUMENTS.contains(&name.as_str()));
            let fields = named.iter().map(|(name, value)| {
                format!("{}: {}", shorten(SafeText::from_words(name)), format_value(value))
            });
            SafeText::from_line(&fields.collect::<Vec<_>>().join(", "))
        }
        Ok(value) => format_value(&value),
        Err(_) => shorten(SafeText::from_words(arguments)),
    }
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
