//! The Markdown of an answer, rendered line by line while it arrives.
//!
//! Headings, lists, quotes, tables, code and emphasis are rendered. Everything else is shown as it is written. The
//! target of a link is always shown, because its text may claim another one.
//!
//! **Invariant:** only marks of Markdown are left out, and every piece of the text is escaped.

use windlass_text::SafeText;

use super::style::{StyledText, TextStyle, paint, styled};

/// Maximum number of rows of a table that is held back for its column widths. Longer tables are shown as they are
/// written.
const MAX_TABLE_ROWS: usize = 200;
/// Width of a horizontal rule, in columns.
const RULE_WIDTH: usize = 40;

/// The treatment of Markdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkdownMode {
    /// Marks become styles.
    Styled,
    /// Marks stay, because the terminal shows no styles. Lines are wrapped.
    Plain,
}

/// A renderer of one answer.
#[derive(Debug)]
pub(crate) struct MarkdownRenderer {
    mode: MarkdownMode,
    /// The unfinished line.
    line: String,
    /// The mark that ends the current block of code.
    fence: Option<String>,
    /// Rows of the current table.
    table: Vec<String>,
}

impl MarkdownRenderer {
    pub(crate) fn new(mode: MarkdownMode) -> Self {
        Self { mode, line: String::new(), fence: None, table: Vec::new() }
    }

    /// Adds a piece of the text. Returns the lines that are complete.
    pub(crate) fn push(&mut self, piece: &str, width: usize) -> Vec<StyledText> {
        let mut complete = Vec::new();
        for part in piece.split_inclusive('\n') {
            match part.strip_suffix('\n') {
                Some(end) => {
                    self.line.push_str(end);
                    let line = std::mem::take(&mut self.line);
                    self.end_line(line.strip_suffix('\r').unwrap_or(&line), width, &mut complete);
                }
                None => self.line.push_str(part),
            }
        }
        complete
    }

    /// Returns the lines that are not complete, as they look so far.
    pub(crate) fn preview(&self, width: usize) -> Vec<StyledText> {
        let mut lines: Vec<StyledText> = self
            .table
            .iter()
            .map(|row| StyledText::from(SafeText::from_prose(row).truncate(width)))
            .collect();
        if !self.line.is_empty() {
            lines.extend(self.render_line(&self.line, width));
        }
        lines
    }

    /// Ends the text. Returns its last lines.
    pub(crate) fn finish(&mut self, width: usize) -> Vec<StyledText> {
        let mut complete = Vec::new();
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.end_line(line.strip_suffix('\r').unwrap_or(&line), width, &mut complete);
        }
        self.end_table(width, &mut complete);
        self.fence = None;
        complete
    }

    fn end_line(&mut self, line: &str, width: usize, complete: &mut Vec<StyledText>) {
        if self.mode == MarkdownMode::Styled && self.fence.is_none() && line.trim_start().starts_with('|') {
            self.table.push(line.trim().to_owned());
            if self.table.len() >= MAX_TABLE_ROWS {
                self.end_table(width, complete);
            }
            return;
        }
        self.end_table(width, complete);
        let fence = fence_mark(line);
        match (&self.fence, fence) {
            (Some(open), Some((mark, ""))) if mark.starts_with(open.as_str()) => {
                self.fence = None;
                if self.mode == MarkdownMode::Plain {
                    complete.push(SafeText::from_prose(line).into());
                }
            }
            (None, Some((mark, language))) => {
                self.fence = Some(mark.to_owned());
                if self.mode == MarkdownMode::Plain {
                    complete.push(SafeText::from_prose(line).into());
                } else if !language.is_empty() {
                    complete.push(paint(TextStyle::Faint, styled!["  ", SafeText::from_prose(language)]));
                }
            }
            _ => complete.extend(self.render_line(line, width)),
        }
    }

    fn end_table(&mut self, width: usize, complete: &mut Vec<StyledText>) {
        let rows = std::mem::take(&mut self.table);
        if !rows.is_empty() {
            complete.extend(render_table(&rows, width));
        }
    }

    /// Renders a line outside tables.
    fn render_line(&self, line: &str, width: usize) -> Vec<StyledText> {
        if self.fence.is_some() {
            let code = paint(TextStyle::Code, SafeText::from_prose(line));
            return match self.mode {
                MarkdownMode::Styled => indent_lines(code.wrap(width.saturating_sub(2)), "  ", "  "),
                MarkdownMode::Plain => code.wrap(width),
            };
        }
        if self.mode == MarkdownMode::Plain {
            return StyledText::from(SafeText::from_prose(line.trim_end())).wrap_words(width);
        }
        let text = line.trim_start();
        let (line, text) = (line.trim_end(), text.trim_end());
        let indent = " ".repeat(line.len().saturating_sub(text.len()).min(width / 2));
        let marks = text.chars().take_while(|letter| *letter == '#').count();
        if let Some(heading) = text.get(marks..).and_then(|rest| rest.strip_prefix(' '))
            && (1..=6).contains(&marks)
        {
            return paint(TextStyle::Title, render_inline(heading.trim())).wrap_words(width);
        }
        if is_rule(text) {
            return vec![paint(TextStyle::Faint, "─".repeat(RULE_WIDTH.min(width)))];
        }
        if let Some(quoted) = text.strip_prefix('>') {
            let quoted = paint(TextStyle::Faint, render_inline(quoted.trim_start()));
            return indent_lines(quoted.wrap_words(width.saturating_sub(2)), "│ ", "│ ");
        }
        let (mark, rest) = list_mark(text).unwrap_or((String::new(), text));
        let first = format!("{indent}{mark}");
        let hanging = " ".repeat(first.chars().count());
        let room = width.saturating_sub(hanging.len()).max(1);
        indent_lines(render_inline(rest).wrap_words(room), &first, &hanging)
    }
}

/// Puts an indent before the first line and another before the others.
fn indent_lines(lines: Vec<StyledText>, first: &str, others: &str) -> Vec<StyledText> {
    let indented = lines.into_iter().enumerate().map(|(place, line)| {
        let indent = if place == 0 { first } else { others };
        styled![indent, line]
    });
    indented.collect()
}

/// Returns the mark of a fence and the text after it.
fn fence_mark(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let letter = line.chars().next().filter(|letter| ['`', '~'].contains(letter))?;
    let count = line.chars().take_while(|other| *other == letter).count();
    let (mark, language) = line.split_at_checked(count)?;
    // Code in a line of prose may begin with three marks too, and ends in the same line.
    (count >= 3 && !language.contains('`')).then_some((mark, language.trim()))
}

fn is_rule(text: &str) -> bool {
    let text = text.trim_end();
    ['-', '*', '_'].iter().any(|mark| text.len() >= 3 && text.chars().all(|letter| letter == *mark))
}

/// Splits the mark of a list item from its text.
fn list_mark(text: &str) -> Option<(String, &str)> {
    for bullet in ["- ", "* ", "+ "] {
        if let Some(rest) = text.strip_prefix(bullet) {
            return Some(match rest.split_at_checked(4) {
                Some(("[ ] ", rest)) => ("☐ ".to_owned(), rest),
                Some(("[x] " | "[X] ", rest)) => ("☑ ".to_owned(), rest),
                _ => ("• ".to_owned(), rest),
            });
        }
    }
    let digits = text.chars().take_while(char::is_ascii_digit).count();
    let (number, rest) = text.split_at_checked(digits).filter(|_| (1..=9).contains(&digits))?;
    let (point, rest) = rest.split_at_checked(2).filter(|(point, _)| [". ", ") "].contains(point))?;
    Some((format!("{number}{point}"), rest))
}

/// Renders the rows of a table in columns. A table that is too wide is shown as it is written.
fn render_table(rows: &[String], width: usize) -> Vec<StyledText> {
    let as_written = || {
        let rows = rows.iter().flat_map(|row| StyledText::from(SafeText::from_prose(row)).wrap_words(width));
        rows.collect()
    };
    let cells: Vec<Vec<StyledText>> =
        rows.iter().map(|row| split_cells(row).iter().map(|cell| render_inline(cell)).collect()).collect();
    let is_ruled = rows.get(1).is_some_and(|row| row.chars().all(|letter| "|-: ".contains(letter)));
    let column_count = cells.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..column_count)
        .map(|column| {
            let of_row = |(place, row): (usize, &Vec<StyledText>)| match row.get(column) {
                Some(cell) if place != 1 => cell.width(),
                _ => 0,
            };
            cells.iter().enumerate().map(of_row).max().unwrap_or(0)
        })
        .collect();
    let total = widths.iter().sum::<usize>() + 2 * column_count.saturating_sub(1);
    // A row with other cells than the first would be cut.
    if !is_ruled || total > width || cells.iter().any(|row| row.len() != column_count) {
        return as_written();
    }
    let mut lines = Vec::new();
    for (place, row) in cells.into_iter().enumerate() {
        if place == 1 {
            lines.push(paint(TextStyle::Faint, "─".repeat(total.max(1))));
            continue;
        }
        let mut line = StyledText::default();
        for (column, (cell, width)) in row.into_iter().zip(&widths).enumerate() {
            let missing = width.saturating_sub(cell.width());
            let cell = if place == 0 { paint(TextStyle::Strong, cell) } else { cell };
            let gap = if column + 1 == column_count { String::new() } else { " ".repeat(missing + 2) };
            line = line.with(cell).with(gap);
        }
        lines.push(line);
    }
    lines
}

/// Splits a row of a table into its cells. A bar after a backslash belongs to its cell.
fn split_cells(row: &str) -> Vec<String> {
    let row = row.strip_prefix('|').unwrap_or(row);
    let row = row.strip_suffix('|').filter(|rest| !rest.ends_with('\\')).unwrap_or(row);
    let mut cells = vec![String::new()];
    let mut previous = ' ';
    for letter in row.chars() {
        match cells.last_mut() {
            Some(cell) if letter == '|' && previous == '\\' => {
                cell.pop();
                cell.push('|');
            }
            Some(_) if letter == '|' => cells.push(String::new()),
            Some(cell) => cell.push(letter),
            None => {}
        }
        previous = letter;
    }
    cells.iter().map(|cell| cell.trim().to_owned()).collect()
}

/// Renders emphasis, code and links within a line.
fn render_inline(text: &str) -> StyledText {
    let mut out = StyledText::default();
    let mut plain = String::new();
    let mut rest = text;
    let mut previous = ' ';
    while let Some(letter) = rest.chars().next() {
        let found = match letter {
            '\\' => escaped_letter(rest),
            '`' => code_span(rest),
            '*' | '_' => emphasis_span(rest, previous),
            '[' | '!' => link_span(rest),
            _ => None,
        };
        match found {
            Some((span, after)) => {
                out = out.with(SafeText::from_prose(&std::mem::take(&mut plain))).with(span);
                previous = rest[..rest.len() - after.len()].chars().next_back().unwrap_or(' ');
                rest = after;
            }
            None => {
                plain.push(letter);
                previous = letter;
                rest = &rest[letter.len_utf8()..];
            }
        }
    }
    out.with(SafeText::from_prose(&plain))
}

/// A rendered span and the text after it.
type InlineSpan<'a> = Option<(StyledText, &'a str)>;

fn escaped_letter(text: &str) -> InlineSpan<'_> {
    let mut letters = text.strip_prefix('\\')?.chars();
    let letter = letters.next().filter(char::is_ascii_punctuation)?;
    Some((SafeText::from_prose(&letter.to_string()).into(), letters.as_str()))
}

fn code_span(text: &str) -> InlineSpan<'_> {
    let count = text.chars().take_while(|letter| *letter == '`').count();
    let (mark, rest) = text.split_at_checked(count)?;
    let end = rest.match_indices(mark).find(|(at, _)| {
        let is_mark = |letter: Option<char>| letter == Some('`');
        !is_mark(rest[at + count..].chars().next()) && !is_mark(rest[..*at].chars().next_back())
    })?;
    let code = rest.get(..end.0)?;
    let trimmed =
        code.strip_prefix(' ').and_then(|code| code.strip_suffix(' ')).filter(|code| !code.trim().is_empty());
    let code = SafeText::from_prose(trimmed.unwrap_or(code));
    Some((paint(TextStyle::Code, code), rest.get(end.0 + count..)?))
}

fn emphasis_span(text: &str, previous: char) -> InlineSpan<'_> {
    let letter = text.chars().next()?;
    let count = text.chars().take_while(|other| *other == letter).count().min(2);
    let (mark, rest) = text.split_at_checked(count)?;
    // An underscore within a word, as in `max_tokens`, is not a mark.
    if letter == '_' && previous.is_alphanumeric() || rest.starts_with([' ', letter]) {
        return None;
    }
    let (end, _) = rest.match_indices(mark).find(|(at, _)| {
        let (before, after) = (&rest[..*at], &rest[at + count..]);
        let follows_word = letter == '_' && after.starts_with(char::is_alphanumeric);
        let is_longer = after.starts_with(letter) || before.ends_with(letter);
        !before.is_empty() && !before.ends_with([' ', '\\']) && !follows_word && !is_longer
    })?;
    let style = if count == 2 { TextStyle::Strong } else { TextStyle::Emphasis };
    Some((paint(style, render_inline(rest.get(..end)?)), rest.get(end + count..)?))
}

/// Renders a link as its text and its target.
fn link_span(text: &str) -> InlineSpan<'_> {
    let rest = text.strip_prefix('!').unwrap_or(text).strip_prefix('[')?;
    let (label, rest) = rest.split_once("](")?;
    let (target, rest) = rest.split_once(')')?;
    if label.contains('[') || target.contains(' ') {
        return None;
    }
    let target_text = paint(TextStyle::Faint, SafeText::from_prose(&format!(" ({target})")));
    let span = if label == target || label.is_empty() {
        SafeText::from_prose(target).into()
    } else {
        render_inline(label).with(target_text)
    };
    Some((span, rest))
}

#[cfg(test)]
#[path = "markdown_tests.rs"]
mod tests;
