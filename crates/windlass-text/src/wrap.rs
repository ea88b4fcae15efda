//! Widths and wrapping, in terminal columns.

use unicode_width::UnicodeWidthChar;

use crate::SafeText;

/// Returns the width of a character in columns.
pub fn char_width(letter: char) -> usize {
    letter.width().unwrap_or(0)
}

/// Returns the width of a text in columns, as the sum of its characters.
pub fn text_width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

impl SafeText {
    /// Returns the width in columns.
    pub fn width(&self) -> usize {
        text_width(&self.0)
    }

    /// Breaks the text into lines of at most `width` columns. Nothing is left out: the lines together are the text.
    pub fn wrap(&self, width: usize) -> Vec<Self> {
        self.wrap_after(width, width)
    }

    /// Breaks the text as [`SafeText::wrap`] does, with only `room` columns for the first line, which may be empty.
    pub fn wrap_after(&self, room: usize, width: usize) -> Vec<Self> {
        let mut lines = Vec::new();
        let mut line = String::new();
        let (mut room, mut used) = (room, 0);
        for letter in self.0.chars() {
            let columns = char_width(letter);
            // A character that is wider than the line has a line to itself.
            if used + columns > room && (used > 0 || room < width) {
                lines.push(Self(std::mem::take(&mut line)));
                (room, used) = (width, 0);
            }
            line.push(letter);
            used += columns;
        }
        lines.push(Self(line));
        lines
    }

    /// Cuts the text to `width` columns; an ellipsis stands for the rest.
    #[must_use]
    pub fn truncate(&self, width: usize) -> Self {
        if self.width() <= width {
            return self.clone();
        }
        let mut cut = String::new();
        let mut used = 0;
        for letter in self.0.chars() {
            let columns = char_width(letter);
            if used + columns + 1 > width {
                break;
            }
            used += columns;
            cut.push(letter);
        }
        cut.push('…');
        Self(cut)
    }

    /// Pads the text with spaces to `width` columns.
    #[must_use]
    pub fn pad(&self, width: usize) -> Self {
        let missing = width.saturating_sub(self.width());
        Self(format!("{}{}", self.0, " ".repeat(missing)))
    }
}
