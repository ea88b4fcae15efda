//! Splitting of extracted text into chunks: at structural boundaries, within a token limit, with overlap.

use serde::{Deserialize, Serialize};

use crate::extract::{ExtractedText, SplitPoint, SplitStrength};

/// The size and overlap of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkingOptions {
    /// Maximum number of tokens in a chunk. Tokens are estimated: one per short word, more for long words.
    pub max_tokens: usize,
    /// Number of tokens that a chunk repeats from the end of its predecessor; at most half of `max_tokens`.
    pub overlap_tokens: usize,
}

impl Default for ChunkingOptions {
    /// Returns 400 tokens with an overlap of 80: about a page, short enough to read a result quickly.
    fn default() -> Self {
        Self { max_tokens: 400, overlap_tokens: 80 }
    }
}

impl ChunkingOptions {
    /// Returns the default of the hosted service: 800 tokens with an overlap of 400.
    pub fn hosted_default() -> Self {
        Self { max_tokens: 800, overlap_tokens: 400 }
    }

    /// Returns the options if they are valid: 100 to 4,096 tokens, at most half of them as overlap.
    pub(crate) fn validated(self) -> Result<Self, String> {
        if !(100..=4096).contains(&self.max_tokens) {
            return Err(format!("a chunk has 100 to 4096 tokens, not {}", self.max_tokens));
        }
        if self.overlap_tokens > self.max_tokens / 2 {
            return Err(format!(
                "chunks overlap by half of their {} tokens at most, not by {}",
                self.max_tokens, self.overlap_tokens
            ));
        }
        Ok(self)
    }
}

/// The location of a chunk in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkLocation {
    /// First line, counted from 1; 0 in formats without lines, such as PDF.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first_line: u32,
    /// Last line, counted from 1; 0 in formats without lines.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub last_line: u32,
    /// Page on which the chunk starts, counted from 1; 0 in formats without pages.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub page: u32,
    /// Path of the enclosing headings, such as `Install > On Linux`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub heading: String,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl std::fmt::Display for ChunkLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.page, self.first_line) {
            (0, 0) => write!(f, "{}", self.heading)?,
            (0, line) if line == self.last_line => write!(f, "line {line}")?,
            (0, line) => write!(f, "lines {line} to {}", self.last_line)?,
            (page, _) => write!(f, "page {page}")?,
        }
        if !self.heading.is_empty() && (self.page, self.first_line) != (0, 0) {
            write!(f, ", {}", self.heading)?;
        }
        Ok(())
    }
}

/// A chunk of a file: a slice of its extracted text with its location.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextChunk<'a> {
    pub(crate) text: &'a str,
    pub(crate) location: ChunkLocation,
}

/// Splits a text into chunks.
pub(crate) fn split_into_chunks(from: &ExtractedText, chunking: ChunkingOptions) -> Vec<TextChunk<'_>> {
    let cuts = &from.split_points;
    let end_of = |at: usize| cuts.get(at + 1).map_or(from.text.len(), |next| next.offset);
    let sizes: Vec<usize> = cuts
        .iter()
        .enumerate()
        .map(|(at, cut)| estimate_tokens(&from.text[cut.offset..end_of(at)]))
        .collect();
    let mut found = Vec::new();
    let mut first = 0;
    while first < cuts.len() {
        let mut size = 0;
        let mut next = first;
        while next < cuts.len() && (next == first || size + sizes[next] <= chunking.max_tokens) {
            // A new section starts a new chunk, unless the current chunk is still short.
            if next > first
                && cuts[next].strength == SplitStrength::Section
                && size * 4 >= chunking.max_tokens
            {
                break;
            }
            size += sizes[next];
            next += 1;
        }
        let stops_at_section = cuts.get(next).is_none_or(|cut| cut.strength == SplitStrength::Section);
        if !stops_at_section {
            next = choose_chunk_end(cuts, &sizes, first, next);
        }
        let text = from.text[cuts[first].offset..end_of(next - 1)].trim_end();
        if !text.trim().is_empty() {
            found.push(TextChunk { text, location: locate_chunk(from, &cuts[first], text) });
        }
        if next >= cuts.len() {
            break;
        }
        first = if stops_at_section {
            next
        } else {
            next_chunk_start(&sizes, first, next, chunking.overlap_tokens)
        };
    }
    found
}

/// Returns the strongest split point in the second half of the text that fits into the chunk.
fn choose_chunk_end(cuts: &[SplitPoint], sizes: &[usize], first: usize, next: usize) -> usize {
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

/// Returns the split point at which the next chunk starts: within the overlap, but after the start of this chunk.
fn next_chunk_start(sizes: &[usize], first: usize, next: usize, overlap: usize) -> usize {
    let mut begin = next;
    let mut repeated = 0;
    while begin > first + 1 && repeated + sizes[begin - 1] <= overlap {
        begin -= 1;
        repeated += sizes[begin];
    }
    begin
}

fn locate_chunk(from: &ExtractedText, cut: &SplitPoint, text: &str) -> ChunkLocation {
    let heading = from.outline.path(cut.heading);
    let lines = u32::try_from(text.trim_start_matches('\n').matches('\n').count()).unwrap_or(u32::MAX);
    let last_line = if cut.line == 0 || cut.page > 0 { 0 } else { cut.line.saturating_add(lines) };
    ChunkLocation { first_line: cut.line, last_line, page: cut.page, heading }
}

/// Estimates the number of tokens in a text.
pub(crate) fn estimate_tokens(text: &str) -> usize {
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
