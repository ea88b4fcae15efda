//! Application of a unified diff to one file.
//!
//! Removed lines and context lines must match exactly. Line numbers are only the first position to try, because
//! models miscount.

use crate::text::truncate;

/// Maximum number of bytes of a line that a message quotes.
const MAX_QUOTED_BYTES: usize = 80;

/// Maximum line number of a hunk; larger ones count as this.
const MAX_LINE_NUMBER: usize = 1 << 30;

enum DiffLine<'a> {
    Keep(&'a str),
    Remove(&'a str),
    Add(&'a str),
}

#[derive(Default)]
struct DiffHunk<'a> {
    /// The stated index of its first line, from 0.
    start_index: usize,
    lines: Vec<DiffLine<'a>>,
    /// True if the last added line has no final newline.
    no_final_newline: bool,
}

pub(super) fn apply(before: &str, diff: &str) -> Result<String, String> {
    let hunks = parse_hunks(diff)?;
    let lines: Vec<&str> = before.split_inclusive('\n').collect();
    let newline = if lines.first().is_some_and(|line| line.ends_with("\r\n")) { "\r\n" } else { "\n" };
    let mut after = String::with_capacity(before.len() + diff.len());
    let mut next = 0;
    // The offset of the last hunk's actual position from its stated one.
    let mut drift = 0isize;
    for (number, hunk) in hunks.iter().enumerate() {
        let start =
            locate_hunk(hunk, &lines, next, drift).map_err(|why| format!("hunk {}: {why}", number + 1))?;
        drift = start.cast_signed() - hunk.start_index.cast_signed();
        for line in &lines[next..start] {
            push_line(&mut after, line, newline);
        }
        next = start;
        for line in &hunk.lines {
            match line {
                DiffLine::Keep(_) => {
                    push_line(&mut after, lines[next], newline);
                    next += 1;
                }
                DiffLine::Remove(_) => next += 1,
                DiffLine::Add(text) => {
                    push_line(&mut after, text, newline);
                    after.push_str(newline);
                }
            }
        }
        if hunk.no_final_newline && next == lines.len() && after.ends_with(newline) {
            after.truncate(after.len() - newline.len());
        }
    }
    for line in &lines[next..] {
        push_line(&mut after, line, newline);
    }
    Ok(after)
}

/// Appends a line, terminating the previous one first if it has no newline.
fn push_line(after: &mut String, line: &str, newline: &str) {
    if !after.is_empty() && !after.ends_with('\n') {
        after.push_str(newline);
    }
    after.push_str(line);
}

fn parse_hunks(diff: &str) -> Result<Vec<DiffHunk<'_>>, String> {
    let mut hunks: Vec<DiffHunk<'_>> = Vec::new();
    for line in diff.trim_end_matches('\n').lines() {
        if let Some(rest) = line.strip_prefix("@@") {
            hunks.push(DiffHunk { start_index: first_line_index(rest), ..DiffHunk::default() });
            continue;
        }
        // Lines before the first hunk are a header without effect.
        let Some(hunk) = hunks.last_mut() else { continue };
        if line.starts_with("diff --git ") {
            return Err("the diff changes several files, and may change one".into());
        }
        match line.as_bytes().first() {
            // Models often drop the leading space of a blank context line.
            None => hunk.lines.push(DiffLine::Keep("")),
            Some(b' ') => hunk.lines.push(DiffLine::Keep(&line[1..])),
            Some(b'-') => hunk.lines.push(DiffLine::Remove(&line[1..])),
            Some(b'+') => hunk.lines.push(DiffLine::Add(&line[1..])),
            Some(b'\\') => hunk.no_final_newline = matches!(hunk.lines.last(), Some(DiffLine::Add(_))),
            Some(_) => {
                return Err(format!(
                    "a line of the diff begins with neither a space, `-` nor `+`: {:?}",
                    truncate(line, MAX_QUOTED_BYTES)
                ));
            }
        }
    }
    if hunks.is_empty() {
        return Err("the diff has no hunk: each begins with a line such as `@@ -3,4 +3,5 @@`".into());
    }
    Ok(hunks)
}

/// Returns the zero-based start index of a hunk header: 2 for ` -3,4 +3,5 @@`. A pure insertion, `-3,0`,
/// starts after its line.
fn first_line_index(header: &str) -> usize {
    let old = header.split_whitespace().find_map(|word| word.strip_prefix('-')).unwrap_or("1");
    let (line, count) = old.split_once(',').unwrap_or((old, "1"));
    // A number that no file has would overflow the sums below.
    let line = line.parse().unwrap_or(1).min(MAX_LINE_NUMBER);
    if count == "0" { line } else { line.saturating_sub(1) }
}

fn locate_hunk(hunk: &DiffHunk<'_>, lines: &[&str], from: usize, drift: isize) -> Result<usize, String> {
    let wanted: Vec<&str> = hunk
        .lines
        .iter()
        .filter_map(|line| match line {
            DiffLine::Keep(text) | DiffLine::Remove(text) => Some(*text),
            DiffLine::Add(_) => None,
        })
        .collect();
    let first = hunk.start_index.saturating_add_signed(drift);
    if wanted.is_empty() {
        return if (from..=lines.len()).contains(&first) {
            Ok(first)
        } else {
            Err("it only adds lines, and its line number is not in the file".into())
        };
    }
    let fits = |start: usize| {
        lines.get(start..start + wanted.len()).is_some_and(|there| {
            there
                .iter()
                .zip(&wanted)
                .all(|(line, wanted)| line.trim_end_matches(['\r', '\n']) == wanted.trim_end_matches('\r'))
        })
    };
    if first >= from && fits(first) {
        return Ok(first);
    }
    let last = lines.len().saturating_sub(wanted.len());
    let mut places = (from..=last).filter(|start| fits(*start));
    match (places.next(), places.next()) {
        (Some(start), None) => Ok(start),
        (Some(_), Some(_)) => {
            Err("its lines are there more than once, so give more of what is around them".into())
        }
        (None, _) => Err(format!("its lines are not there: {:?}", truncate(wanted[0], MAX_QUOTED_BYTES))),
    }
}

#[cfg(test)]
#[path = "unified_tests.rs"]
mod tests;
