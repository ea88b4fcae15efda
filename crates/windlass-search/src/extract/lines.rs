//! Text whose lines are its structure: plain text, Markdown and source code. What is given back is the text itself,
//! so that places in it are places in the file.

use super::{Budget, Cut, Extracted, Kind, Strength};

/// How far apart cuts are at most, in bytes, so that the longest line can be cut too.
const STRIDE: usize = 400;

pub(super) fn extract(kind: Kind, mut text: String, budget: Budget) -> Extracted {
    let mut found = Extracted::default();
    if text.len() > budget.text {
        let end = floor(&text, budget.text);
        found.notes.push(format!("only its first {end} bytes were read"));
        text.truncate(end);
    }
    let mut headings = Headings::default();
    let mut fence: Option<&str> = None;
    let mut after_blank = true;
    let mut at = 0;
    for (line, row) in (1..).zip(text.split_inclusive('\n')) {
        let bare = row.trim();
        let heading = if kind == Kind::Markdown && fence.is_none() { heading(row) } else { None };
        let strength = if heading.is_some() {
            Strength::Section
        } else if after_blank
            && (kind != Kind::Code || !row.starts_with([' ', '\t', '}', ')']))
            && fence.is_none()
        {
            Strength::Block
        } else {
            Strength::Line
        };
        if let Some((level, title)) = heading {
            headings.enter(level, title, &mut found.headings);
        }
        if !bare.is_empty() {
            let cut = Cut { at, line, page: 0, heading: headings.current, strength };
            found.cuts.push(cut);
            split(row, cut, &mut found.cuts);
        }
        if kind == Kind::Markdown {
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

/// Adds cuts inside of a line: after sentences, and after words where a sentence is long.
pub(super) fn split(row: &str, first: Cut, cuts: &mut Vec<Cut>) {
    if row.len() <= STRIDE {
        return;
    }
    let mut from = 0;
    while row.len() - from > STRIDE {
        let end = floor(row, from + STRIDE);
        let window = &row[from..end];
        let sentence = window
            .rmatch_indices(['.', '!', '?', '。'])
            .map(|(at, mark)| at + mark.len())
            .find(|at| *at > 40 && window[*at..].starts_with(|c: char| c.is_whitespace() || !c.is_ascii()));
        let (next, strength) = match sentence {
            Some(at) => (from + at, Strength::Line),
            None => match window.rfind(char::is_whitespace) {
                Some(at) if at > 40 => (from + at, Strength::Word),
                _ => (end.max(from + 1), Strength::Word),
            },
        };
        cuts.push(Cut { at: first.at + next, strength, ..first });
        from = next;
    }
}

/// The headings that a place stands under.
#[derive(Default)]
pub(super) struct Headings {
    open: Vec<(usize, String)>,
    pub(super) current: u32,
}

impl Headings {
    pub(super) fn enter(&mut self, level: usize, title: &str, all: &mut Vec<String>) {
        self.open.retain(|(above, _)| *above < level);
        let mut title = title.to_owned();
        title.truncate(floor(&title, 200));
        self.open.push((level, title));
        let path = self.open.iter().map(|(_, title)| title.as_str()).collect::<Vec<_>>().join(" > ");
        all.push(path);
        self.current = u32::try_from(all.len()).unwrap_or(u32::MAX);
    }
}

fn heading(row: &str) -> Option<(usize, &str)> {
    let rest = row.trim_start_matches('#');
    let level = row.len() - rest.len();
    let title = rest.strip_prefix([' ', '\t'])?.trim().trim_end_matches('#').trim_end();
    ((1..=6).contains(&level) && !title.is_empty()).then_some((level, title))
}

/// The last boundary of a character at or before `at`.
pub(super) fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
