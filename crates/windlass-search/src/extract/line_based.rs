//! Extraction of line-based formats: plain text, Markdown and source code.
//!
//! Invariant: the extracted text is the file's text unchanged, so its lines are the lines of the file.

use super::{DocumentFormat, ExtractedText, ExtractionBudget, SplitPoint, SplitStrength};

/// Maximum distance of split points in bytes, so that a long line can be split as well.
const MAX_SPLIT_DISTANCE: usize = 400;

pub(super) fn extract_lines(
    kind: DocumentFormat,
    mut text: String,
    budget: ExtractionBudget,
) -> ExtractedText {
    let mut found = ExtractedText::default();
    if text.len() > budget.text_bytes {
        let end = text.floor_char_boundary(budget.text_bytes);
        found.warnings.push(format!("only its first {end} bytes were read"));
        text.truncate(end);
    }
    let mut fence: Option<&str> = None;
    let mut after_blank = true;
    let mut at = 0;
    for (line, row) in (1..).zip(text.split_inclusive('\n')) {
        let bare = row.trim();
        let heading =
            if kind == DocumentFormat::Markdown && fence.is_none() { parse_heading(row) } else { None };
        let strength = if heading.is_some() {
            SplitStrength::Section
        } else if after_blank
            && (kind != DocumentFormat::Code || !row.starts_with([' ', '\t', '}', ')']))
            && fence.is_none()
        {
            SplitStrength::Block
        } else {
            SplitStrength::Line
        };
        if let Some((level, title)) = heading {
            found.outline.enter_heading(level, title);
        }
        if !bare.is_empty() {
            let cut = SplitPoint { offset: at, line, page: 0, heading: found.outline.current(), strength };
            found.split_points.push(cut);
            add_splits_within_line(row, cut, &mut found.split_points);
        }
        if kind == DocumentFormat::Markdown {
            match fence {
                None => fence = ["```", "~~~"].into_iter().find(|mark| bare.starts_with(mark)),
                Some(mark) if bare.starts_with(mark) => fence = None,
                Some(_) => {}
            }
        }
        after_blank = bare.is_empty();
        at += row.len();
    }
    found.text = text;
    found
}

/// Adds split points within a long line: after sentences, or after words if a sentence is too long.
pub(super) fn add_splits_within_line(row: &str, first: SplitPoint, cuts: &mut Vec<SplitPoint>) {
    if row.len() <= MAX_SPLIT_DISTANCE {
        return;
    }
    let mut from = 0;
    while row.len() - from > MAX_SPLIT_DISTANCE {
        let end = row.floor_char_boundary(from + MAX_SPLIT_DISTANCE);
        let window = &row[from..end];
        let sentence = window
            .rmatch_indices(['.', '!', '?', '。'])
            .map(|(at, mark)| at + mark.len())
            .find(|at| *at > 40 && window[*at..].starts_with(|c: char| c.is_whitespace() || !c.is_ascii()));
        let (next, strength) = match sentence {
            Some(at) => (from + at, SplitStrength::Line),
            None => match window.rfind(char::is_whitespace) {
                Some(at) if at > 40 => (from + at, SplitStrength::Word),
                _ => (end.max(from + 1), SplitStrength::Word),
            },
        };
        cuts.push(SplitPoint { offset: first.offset + next, strength, ..first });
        from = next;
    }
}

/// Parses a Markdown heading into its level and title.
fn parse_heading(row: &str) -> Option<(u8, &str)> {
    let rest = row.trim_start_matches('#');
    let level = u8::try_from(row.len() - rest.len()).ok()?;
    let title = rest.strip_prefix([' ', '\t'])?.trim().trim_end_matches('#').trim_end();
    ((1..=6).contains(&level) && !title.is_empty()).then_some((level, title))
}
