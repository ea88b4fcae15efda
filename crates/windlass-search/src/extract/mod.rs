//! From the bytes of a file to text with its structure: where parts begin, on which line or page, under which heading.

mod html;
mod lines;
mod pdf;

use std::path::Path;

/// What a file is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Paragraphs.
    Text,
    /// Headings, paragraphs and fenced blocks.
    Markdown,
    /// Tags are left out; headings and blocks are kept.
    Html,
    /// Pages.
    Pdf,
    /// Source code: cut where something begins at the margin.
    Code,
}

/// Text with its structure.
#[derive(Debug, Default)]
pub(crate) struct Extracted {
    pub(crate) text: String,
    /// Where the text may be cut, in order. The first is at 0 unless there is no text.
    pub(crate) cuts: Vec<Cut>,
    /// Heading paths, such as `Install > On Linux`.
    pub(crate) headings: Vec<String>,
    /// What was left out and why, though the rest was read.
    pub(crate) notes: Vec<String>,
}

/// A place where text may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) at: usize,
    /// Counted from 1; 0 where lines mean nothing.
    pub(crate) line: u32,
    /// Counted from 1; 0 where there are no pages.
    pub(crate) page: u32,
    /// Into the headings, counted from 1; 0 before the first.
    pub(crate) heading: u32,
    pub(crate) strength: Strength,
}

/// How good a place is for a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Strength {
    /// Between words.
    Word,
    /// Between sentences or lines.
    Line,
    /// Between paragraphs, or where something begins at the margin.
    Block,
    /// Before a heading.
    Section,
}

/// How much work one file may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// How many bytes of text may come out of a file.
    pub(crate) text: usize,
    /// How many bytes compressed parts may become, all together.
    pub(crate) inflated: usize,
}

impl Kind {
    /// What a path's ending says, if it is known.
    pub fn of_path(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        Some(match ending.as_str() {
            "md" | "markdown" | "mdx" | "mdown" => Self::Markdown,
            "html" | "htm" | "xhtml" => Self::Html,
            "pdf" => Self::Pdf,
            "txt" | "text" | "log" | "csv" | "tsv" | "rst" | "adoc" | "org" | "tex" | "srt" | "vtt" => {
                Self::Text
            }
            "rs" | "py" | "js" | "mjs" | "cjs" | "ts" | "tsx" | "jsx" | "go" | "java" | "kt" | "kts"
            | "scala" | "c" | "h" | "cc" | "cpp" | "cxx" | "hpp" | "hh" | "cs" | "fs" | "swift" | "m"
            | "mm" | "rb" | "php" | "pl" | "pm" | "lua" | "r" | "jl" | "ex" | "exs" | "erl" | "hs" | "ml"
            | "mli" | "clj" | "el" | "lisp" | "sh" | "bash" | "zsh" | "fish" | "ps1" | "bat" | "sql"
            | "graphql" | "proto" | "thrift" | "toml" | "yaml" | "yml" | "json" | "jsonl" | "ini" | "cfg"
            | "conf" | "env" | "xml" | "css" | "scss" | "less" | "vue" | "svelte" | "dart" | "zig"
            | "nim" | "v" | "asm" | "s" | "cmake" | "gradle" | "tf" | "nix" => Self::Code,
            _ => return None,
        })
    }

    /// What bytes look like, for files whose name says nothing.
    pub fn of_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(b"%PDF-") {
            return Some(Self::Pdf);
        }
        let start = &bytes[..bytes.len().min(1024)];
        let start = String::from_utf8_lossy(start).trim_start().to_ascii_lowercase();
        if start.starts_with("<!doctype html") || start.starts_with("<html") {
            return Some(Self::Html);
        }
        is_text(bytes).then_some(Self::Text)
    }

    /// The name by which it is known in the index.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Markdown => "markdown",
            Self::Html => "html",
            Self::Pdf => "pdf",
            Self::Code => "code",
        }
    }
}

/// Reads a file's bytes. An error is a reason for the report.
pub(crate) fn extract(kind: Kind, bytes: &[u8], budget: Budget) -> Result<Extracted, String> {
    let found = match kind {
        Kind::Pdf => pdf::extract(bytes, budget)?,
        Kind::Html => html::extract(&decode(bytes)?, budget),
        Kind::Text | Kind::Markdown | Kind::Code => lines::extract(kind, decode(bytes)?, budget),
    };
    if found.text.trim().is_empty() {
        return Err(match found.notes.first() {
            Some(note) => format!("there is no text in it: {note}"),
            None => "there is no text in it".to_owned(),
        });
    }
    Ok(found)
}

/// Text in UTF-8, in UTF-16 with its mark, or in UTF-8 with a few bytes that are not.
fn decode(bytes: &[u8]) -> Result<String, String> {
    let wide = |pair: fn([u8; 2]) -> u16| {
        let units = bytes[2..].chunks_exact(2).map(|two| pair([two[0], two[1]]));
        char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect::<String>()
    };
    if bytes.starts_with(&[0xff, 0xfe]) {
        return Ok(wide(u16::from_le_bytes));
    }
    if bytes.starts_with(&[0xfe, 0xff]) {
        return Ok(wide(u16::from_be_bytes));
    }
    let bytes = bytes.strip_prefix(&[0xef, 0xbb, 0xbf]).unwrap_or(bytes);
    if !is_text(bytes) {
        return Err("it is not text".to_owned());
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        // Most of what is not UTF-8 is the Latin alphabet in one byte each.
        Err(_) => Ok(bytes.utf8_chunks().fold(String::with_capacity(bytes.len()), |mut text, chunk| {
            text.push_str(chunk.valid());
            text.extend(chunk.invalid().iter().map(|byte| char::from(*byte)));
            text
        })),
    }
}

/// Whether bytes are text, mostly: no zeros, and few control characters.
fn is_text(bytes: &[u8]) -> bool {
    let step = (bytes.len() / 65_536).max(1);
    let mut seen = 0usize;
    let mut odd = 0usize;
    for byte in bytes[..bytes.len().min(8192)].iter().chain(bytes.iter().step_by(step)) {
        seen += 1;
        match byte {
            0 => return false,
            0x01..=0x08 | 0x0e..=0x1a | 0x1c..=0x1f | 0x7f => odd += 1,
            _ => {}
        }
    }
    if odd * 20 > seen {
        return false;
    }
    // Compressed data has no zeros for long stretches, and it is nowhere near UTF-8.
    let start = &bytes[..bytes.len().min(65_536)];
    let bad: usize = start.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    bad * 5 <= start.len()
}
