//! Applying a unified diff of one file. What it takes away and what stands around it must be there, word by
//! word; line numbers are only where to look first, for models miscount.

use crate::text::cut;

/// How much of a line is repeated in a message.
const SHOWN: usize = 80;

enum Line<'a> {
    Keep(&'a str),
    Take(&'a str),
    Add(&'a str),
}

#[derive(Default)]
struct Hunk<'a> {
    /// Where it should begin, counted from 0.
    at: usize,
    lines: Vec<Line<'a>>,
    /// The last line that is added ends without a newline.
    open_end: bool,
}

pub(super) fn apply(before: &str, diff: &str) -> Result<String, String> {
    let hunks = parse(diff)?;
    let lines: Vec<&str> = before.split_inclusive('\n').collect();
    let newline = if lines.first().is_some_and(|line| line.ends_with("\r\n")) { "\r\n" } else { "\n" };
    let mut after = String::with_capacity(before.len() + diff.len());
    let mut next = 0;
    // How far the places that were found are from those that were written.
    let mut drift = 0isize;
    for (number, hunk) in hunks.iter().enumerate() {
        let start = locate(hunk, &lines, next, drift).map_err(|why| format!("hunk {}: {why}", number + 1))?;
        drift = start.cast_signed() - hunk.at.cast_signed();
        for line in &lines[next..start] {
            push(&mut after, line, newline);
        }
        next = start;
        for line in &hunk.lines {
            match line {
                Line::Keep(_) => {
                    push(&mut after, lines[next], newline);
                    next += 1;
                }
                Line::Take(_) => next += 1,
                Line::Add(text) => {
                    push(&mut after, text, newline);
                    after.push_str(newline);
                }
            }
        }
        if hunk.open_end && next == lines.len() && after.ends_with(newline) {
            after.truncate(after.len() - newline.len());
        }
    }
    for line in &lines[next..] {
        push(&mut after, line, newline);
    }
    Ok(after)
}

/// A line begins on a line of its own, also after one that had no end.
fn push(after: &mut String, line: &str, newline: &str) {
    if !after.is_empty() && !after.ends_with('\n') {
        after.push_str(newline);
    }
    after.push_str(line);
}

fn parse(diff: &str) -> Result<Vec<Hunk<'_>>, String> {
    let mut hunks: Vec<Hunk<'_>> = Vec::new();
    for line in diff.trim_end_matches('\n').lines() {
        if let Some(rest) = line.strip_prefix("@@") {
            hunks.push(Hunk { at: first_line(rest), ..Hunk::default() });
            continue;
        }
        // What stands before the first hunk is for people.
        let Some(hunk) = hunks.last_mut() else { continue };
        if line.starts_with("diff --git ") {
            return Err("the diff changes several files, and may change one".into());
        }
        match line.as_bytes().first() {
            // Blank lines often lose the space that marks them.
            None => hunk.lines.push(Line::Keep("")),
            Some(b' ') => hunk.lines.push(Line::Keep(&line[1..])),
            Some(b'-') => hunk.lines.push(Line::Take(&line[1..])),
            Some(b'+') => hunk.lines.push(Line::Add(&line[1..])),
            Some(b'\\') => hunk.open_end = matches!(hunk.lines.last(), Some(Line::Add(_))),
            Some(_) => {
                return Err(format!(
                    "a line of the diff begins with neither a space, `-` nor `+`: {:?}",
                    cut(line, SHOWN)
                ));
            }
        }
    }
    if hunks.is_empty() {
        return Err("the diff has no hunk: each begins with a line such as `@@ -3,4 +3,5 @@`".into());
    }
    Ok(hunks)
}

/// From ` -3,4 +3,5 @@` to 2. An insertion, `-3,0`, comes after its line.
fn first_line(header: &str) -> usize {
    let old = header.split_whitespace().find_map(|word| word.strip_prefix('-')).unwrap_or("1");
    let (line, count) = old.split_once(',').unwrap_or((old, "1"));
    let line: usize = line.parse().unwrap_or(1);
    if count == "0" { line } else { line.saturating_sub(1) }
}

fn locate(hunk: &Hunk<'_>, lines: &[&str], from: usize, drift: isize) -> Result<usize, String> {
    let wanted: Vec<&str> = hunk
        .lines
        .iter()
        .filter_map(|line| match line {
            Line::Keep(text) | Line::Take(text) => Some(*text),
            Line::Add(_) => None,
        })
        .collect();
    let first = hunk.at.saturating_add_signed(drift);
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
        (None, _) => Err(format!("its lines are not there: {:?}", cut(wanted[0], SHOWN))),
    }
}

#[cfg(test)]
#[path = "unified_tests.rs"]
mod tests;
