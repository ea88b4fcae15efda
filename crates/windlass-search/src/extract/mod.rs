//! Text extraction: from the bytes of a file to text with its structure (split points, lines, pages and headings).

mod decode;
mod html;
mod line_based;
mod outline;
mod pdf;

#[cfg(test)]
mod fuzz_tests;

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
    /// Maximum number of steps of work on one PDF file.
    pub(crate) steps: usize,
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
        (decode::is_text(bytes) || has_utf16_mark(bytes)).then_some(Self::Text)
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
    let found = if kind == DocumentFormat::Pdf {
        pdf::extract_pdf(bytes, budget)?
    } else {
        let decoded = decode::decode_text(kind, bytes)?;
        let mut found = match kind {
            DocumentFormat::Html => html::extract_html(&decoded.text, budget),
            _ => line_based::extract_lines(kind, decoded.text, budget),
        };
        found.warnings.extend(decoded.warning);
        found
    };
    if found.text.trim().is_empty() {
        return Err(match found.warnings.first() {
            Some(note) => format!("there is no text in it: {note}"),
            None => "there is no text in it".to_owned(),
        });
    }
    Ok(found)
}

fn has_utf16_mark(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff])
}
