//! Text extraction: from the bytes of a file to text with its structure (split points, lines, pages and headings).

mod html;
mod line_based;
mod outline;
mod pdf;

use std::path::Path;

pub(crate) use outline::HeadingOutline;

/// The format that a file is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DocumentFormat {
    /// Plain text: split at paragraphs.
    Text,
    /// Markdown: split at headings and paragraphs, but not inside fenced blocks.
    Markdown,
    /// HTML: tags are removed; split at headings and block elements.
    Html,
    /// PDF: split at pages and paragraphs.
    Pdf,
    /// Source code: split after blank lines before an unindented line.
    Code,
}

/// The text of a file with its structure.
#[derive(Debug, Default)]
pub(crate) struct ExtractedText {
    pub(crate) text: String,
    /// Split points in ascending order.
    pub(crate) split_points: Vec<SplitPoint>,
    /// The headings of the file.
    pub(crate) outline: HeadingOutline,
    /// Parts of the file that were skipped, with the reason.
    pub(crate) warnings: Vec<String>,
}

/// A position at which the text may be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitPoint {
    pub(crate) offset: usize,
    /// Line, counted from 1; 0 in formats without lines.
    pub(crate) line: u32,
    /// Page, counted from 1; 0 in formats without pages.
    pub(crate) page: u32,
    /// Number of the heading in the outline; 0 before the first heading.
    pub(crate) heading: u32,
    pub(crate) strength: SplitStrength,
}

/// The suitability of a split point; greater is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SplitStrength {
    /// Between words.
    Word,
    /// Between sentences or lines.
    Line,
    /// Between paragraphs, block elements or unindented blocks of code.
    Block,
    /// Before a heading.
    Section,
}

/// The resource limits of extracting one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtractionBudget {
    /// Maximum number of bytes of extracted text.
    pub(crate) text_bytes: usize,
    /// Maximum total number of decompressed bytes.
    pub(crate) inflated_bytes: usize,
}

impl DocumentFormat {
    /// Returns the format of a path's extension; `None` if the extension is unknown.
    pub fn from_path(path: &Path) -> Option<Self> {
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

    /// Detects the format from the content; `None` if it is neither text nor a known format.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
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

    /// Returns the name that the index stores.
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

/// Extracts the text of a file. The error is the reason for the report.
pub(crate) fn extract_text(
    kind: DocumentFormat,
    bytes: &[u8],
    budget: ExtractionBudget,
) -> Result<ExtractedText, String> {
    let found = match kind {
        DocumentFormat::Pdf => pdf::extract_pdf(bytes, budget)?,
        DocumentFormat::Html => html::extract_html(&decode_text(bytes)?, budget),
        DocumentFormat::Text | DocumentFormat::Markdown | DocumentFormat::Code => {
            line_based::extract_lines(kind, decode_text(bytes)?, budget)
        }
    };
    if found.text.trim().is_empty() {
        return Err(match found.warnings.first() {
            Some(note) => format!("there is no text in it: {note}"),
            None => "there is no text in it".to_owned(),
        });
    }
    Ok(found)
}

/// Decodes UTF-8, UTF-16 with a byte order mark, or UTF-8 with some invalid bytes, which are read as Latin-1.
fn decode_text(bytes: &[u8]) -> Result<String, String> {
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
        // Invalid bytes are most often Latin-1.
        Err(_) => Ok(bytes.utf8_chunks().fold(String::with_capacity(bytes.len()), |mut text, chunk| {
            text.push_str(chunk.valid());
            text.extend(chunk.invalid().iter().map(|byte| char::from(*byte)));
            text
        })),
    }
}

/// Returns true if the bytes look like text: no NUL bytes, and few control characters and invalid bytes.
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
    // Compressed data can lack NUL bytes, but much of it is invalid UTF-8.
    let start = &bytes[..bytes.len().min(65_536)];
    let bad: usize = start.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    bad * 5 <= start.len()
}
