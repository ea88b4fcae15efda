//! Text cut into pieces that are found and shown: where its structure says, within a size, with some overlap.

use serde::{Deserialize, Serialize};

use crate::extract::{Cut, Extracted, Strength};

/// How text is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunking {
    /// How many tokens a chunk has at most. Tokens are estimated: one for each short word, more for long ones.
    pub max_tokens: usize,
    /// How many tokens of one chunk the next one begins with. At most half of `max_tokens`.
    pub overlap_tokens: usize,
}

impl Default for Chunking {
    /// 400 tokens with an overlap of 80: about a page, so that a result can be read at a glance.
    fn default() -> Self {
        Self { max_tokens: 400, overlap_tokens: 80 }
    }
}

impl Chunking {
    /// What the hosted service does unless it is told otherwise: 800 tokens with an overlap of 400.
    pub fn hosted() -> Self {
        Self { max_tokens: 800, overlap_tokens: 400 }
    }

    /// The same within the limits: 100 to 4,096 tokens, and at most half of them as overlap.
    pub(crate) fn checked(self) -> Result<Self, String> {
        if !(100..=4096).contains(&self.max_tokens) {
            return Err(format!("a chunk has 100 to 4096 tokens, not {}", self.max_tokens));
        }
        if self.overlap_tokens * 2 > self.max_tokens {
            return Err(format!(
                "chunks overlap by half of their {} tokens at most, not by {}",
                self.max_tokens, self.overlap_tokens
            ));
        }
        Ok(self)
    }
}

/// Where in its file a chunk stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The first line, counted from 1. 0 where lines mean nothing, as in PDF files.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line: u32,
    /// The last line.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub last_line: u32,
    /// The page, counted from 1. 0 where there are no pages.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub page: u32,
    /// The headings that it stands under, such as `Install > On Linux`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub heading: String,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.page, self.line) {
            (0, 0) => write!(f, "{}", self.heading)?,
            (0, line) if line == self.last_line => write!(f, "line {line}")?,
            (0, line) => write!(f, "lines {line} to {}", self.last_line)?,
            (page, _) => write!(f, "page {page}")?,
        }
        if !self.heading.is_empty() && (self.page, self.line) != (0, 0) {
            write!(f, ", {}", self.heading)?;
        }
        Ok(())
    }
}

/// A piece of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk<'a> {
    pub(crate) text: &'a str,
    pub(crate) place: Place,
}

/// Cuts a text.
pub(crate) fn chunks(from: &Extracted, chunking: Chunking) -> Vec<Chunk<'_>> {
    let cuts = &from.cuts;
    let end_of = |at: usize| cuts.get(at + 1).map_or(from.text.len(), |next| next.at);
    let sizes: Vec<usize> =
        cuts.iter().enumerate().map(|(at, cut)| tokens(&from.text[cut.at..end_of(at)])).collect();
    let mut found = Vec::new();
    let mut first = 0;
    while first < cuts.len() {
        let mut size = 0;
        let mut next = first;
        while next < cuts.len() && (next == first || size + sizes[next] <= chunking.max_tokens) {
            // A new section begins a new chunk, unless the one before it is only a few lines.
            if next > first && cuts[next].strength == Strength::Section && size * 4 >= chunking.max_tokens {
                break;
            }
            size += sizes[next];
            next += 1;
        }
        let stops_at_section = cuts.get(next).is_none_or(|cut| cut.strength == Strength::Section);
        if !stops_at_section {
            next = better_end(cuts, &sizes, first, next);
        }
        let text = from.text[cuts[first].at..end_of(next - 1)].trim_end();
        if !text.trim().is_empty() {
            found.push(Chunk { text, place: place(from, &cuts[first], text) });
        }
        if next >= cuts.len() {
            break;
        }
        first = if stops_at_section { next } else { step_back(&sizes, first, next, chunking.overlap_tokens) };
    }
    found
}

/// The best place to stop in the second half of what fits.
fn better_end(cuts: &[Cut], sizes: &[usize], first: usize, next: usize) -> usize {
    let whole: usize = sizes[first..next].iter().sum();
    let mut before = whole;
    let mut best = next;
    for at in (first + 1..=next).rev() {
        if at < next {
            before -= sizes[at];
        }
        if before * 2 < whole {
            break;
        }
        if cuts.get(at).is_some_and(|cut| cut.strength > cuts[best].strength) {
            best = at;
        }
    }
    best
}

/// Where the next chunk begins, so that it repeats some of this one and still moves on.
fn step_back(sizes: &[usize], first: usize, next: usize, overlap: usize) -> usize {
    let mut begin = next;
    let mut repeated = 0;
    while begin > first + 1 && repeated + sizes[begin - 1] <= overlap {
        begin -= 1;
        repeated += sizes[begin];
    }
    begin
}

fn place(from: &Extracted, cut: &Cut, text: &str) -> Place {
    let heading = match cut.heading {
        0 => String::new(),
        at => from.headings.get(at as usize - 1).cloned().unwrap_or_default(),
    };
    let lines = u32::try_from(text.trim_start_matches('\n').matches('\n').count()).unwrap_or(u32::MAX);
    let last_line = if cut.line == 0 || cut.page > 0 { 0 } else { cut.line.saturating_add(lines) };
    Place { line: cut.line, last_line, page: cut.page, heading }
}

/// About how many tokens a text is.
pub(crate) fn tokens(text: &str) -> usize {
    let mut count = 0;
    let mut run = 0;
    for c in text.chars() {
        if c.is_alphanumeric() {
            if !c.is_ascii() && (c as u32) > 0x2e80 {
                count += 1;
            } else {
                if run % 6 == 0 {
                    count += 1;
                }
                run += 1;
            }
        } else {
            run = 0;
            if !c.is_whitespace() {
                count += 1;
            }
        }
    }
    count
}
