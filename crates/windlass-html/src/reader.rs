//! The iterator over the tokens of a page: skipped elements, line numbers, the text budget, and the recovery from an
//! attribute value that is not closed.

use html5gum::{State, Tokenizer};

use crate::emitter::{HtmlEmitter, HtmlInput, HtmlTag, RawToken, RawTokenKind, TagForm};

/// Elements without visible text.
const SKIPPED_ELEMENTS: [&str; 7] = ["script", "style", "template", "noscript", "svg", "math", "iframe"];

/// Maximum number of times that the tokeniser is restarted after an unfinished tag. There are two kinds of quotes,
/// and each can be left open once; the bound keeps the work linear whatever the input is.
const MAX_RESTARTS: u8 = 2;

/// A text or a tag of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HtmlToken {
    /// Line of the tag or of the first visible character of the text, counted from 1.
    pub line: u32,
    /// The text or the tag.
    pub kind: HtmlTokenKind,
}

/// The content of an [`HtmlToken`]. Element names are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HtmlTokenKind {
    /// Visible text. Character references are decoded, and each run of white space is one space, also in `<pre>`.
    Text(String),
    /// The start of an element.
    OpenTag(String),
    /// The end of an element.
    CloseTag(String),
}

/// An iterator over the visible text and the tags of a page, in order.
///
/// The page is tokenised as the HTML standard prescribes, with one deviation: if the page ends inside a quoted
/// attribute value, the tag ends at the first `>` of the value, so that a missing quote does not hide the rest of
/// the page; so does a tag with more than 256 attributes. Comments, attributes and doctypes are not reported; neither are the elements `script`, `style`,
/// `template`, `noscript`, `svg`, `math` and `iframe` with their content.
#[derive(Debug)]
pub struct HtmlReader<'a> {
    page: &'a str,
    tokenizer: Tokenizer<HtmlInput<'a>, HtmlEmitter>,
    /// Offset of the tokeniser's input in the page.
    input_start: usize,
    restarts_left: u8,
    lines: LineCounter,
    skipped: Option<SkippedElement>,
    text_left: usize,
    is_truncated: bool,
}

/// The skipped element that the reader is in.
#[derive(Debug)]
struct SkippedElement {
    name: String,
    /// Number of open elements of this name.
    depth: usize,
}

impl<'a> HtmlReader<'a> {
    /// Creates a reader of a page.
    pub fn new(page: &'a str) -> Self {
        let (input, emitter) = HtmlInput::inside(page, "");
        Self {
            page,
            tokenizer: Tokenizer::new_with_emitter(input, emitter),
            input_start: 0,
            restarts_left: MAX_RESTARTS,
            lines: LineCounter { offset: 0, line: 1 },
            skipped: None,
            text_left: usize::MAX,
            is_truncated: false,
        }
    }

    /// Sets the maximum number of bytes of text that the reader returns; it ends there.
    #[must_use]
    pub fn max_text_bytes(mut self, bytes: usize) -> Self {
        self.text_left = bytes;
        self
    }

    /// Returns true if the reader ended before the end of the page because of its maximum of text.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    fn read_text(&mut self, offset: usize, raw: &str) -> Option<HtmlToken> {
        if self.skipped.is_some() {
            return None;
        }
        let mut text = collapse_white_space(raw);
        if text.len() > self.text_left {
            self.is_truncated = true;
            text.truncate(text.floor_char_boundary(self.text_left));
            if text.is_empty() {
                return None;
            }
        }
        self.text_left -= text.len();
        let source = self.page.get(offset..).unwrap_or_default();
        let white = source.len() - source.trim_start().len();
        Some(HtmlToken {
            line: self.lines.line_at(self.page, offset + white),
            kind: HtmlTokenKind::Text(text),
        })
    }

    fn read_tag(&mut self, offset: usize, tag: HtmlTag) -> Option<HtmlToken> {
        if let Some(element) = &mut self.skipped {
            if element.name == tag.name {
                match tag.form {
                    TagForm::Open => element.depth += 1,
                    TagForm::SelfClosing => {}
                    TagForm::Close => element.depth -= 1,
                }
                if element.depth == 0 {
                    self.skipped = None;
                }
            }
            return None;
        }
        if SKIPPED_ELEMENTS.contains(&tag.name.as_str()) {
            if tag.form == TagForm::Open {
                self.skipped = Some(SkippedElement { name: tag.name, depth: 1 });
            }
            return None;
        }
        let kind = match tag.form {
            TagForm::Open | TagForm::SelfClosing => HtmlTokenKind::OpenTag(tag.name),
            TagForm::Close => HtmlTokenKind::CloseTag(tag.name),
        };
        Some(HtmlToken { line: self.lines.line_at(self.page, offset), kind })
    }

    /// Ends an unfinished tag at the first `>` of its last attribute value, or of the tag if it has none, and tokenises the
    /// rest of the page.
    fn recover_tag(&mut self, offset: usize, tag: HtmlTag, last_value: Option<usize>) -> Option<HtmlToken> {
        let value = last_value.map_or(offset, |value| self.input_start + value);
        let rest = self.page.get(value..)?;
        let resume = value + rest.find('>')? + 1;
        self.restarts_left = self.restarts_left.checked_sub(1)?;
        let (input, emitter) = HtmlInput::inside(&self.page[resume..], &tag.name);
        self.tokenizer = Tokenizer::new_with_emitter(input, emitter);
        self.tokenizer.set_state(tag.content_state().unwrap_or(State::Data));
        self.input_start = resume;
        self.read_tag(offset, tag)
    }
}

impl Iterator for HtmlReader<'_> {
    type Item = HtmlToken;

    fn next(&mut self) -> Option<HtmlToken> {
        while !self.is_truncated {
            let Ok(RawToken { offset, kind }) = self.tokenizer.next()?;
            let offset = self.input_start + offset;
            let token = match kind {
                RawTokenKind::Text(raw) => self.read_text(offset, &raw),
                RawTokenKind::Tag(tag) => self.read_tag(offset, tag),
                RawTokenKind::UnfinishedTag { tag, last_value } => self.recover_tag(offset, tag, last_value),
            };
            if token.is_some() {
                return token;
            }
        }
        None
    }
}

/// Replaces each run of white space with one space.
fn collapse_white_space(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    for c in raw.chars() {
        if !c.is_whitespace() {
            text.push(c);
        } else if !text.ends_with(' ') {
            text.push(' ');
        }
    }
    text
}

/// Counts lines up to offsets that only grow.
#[derive(Debug)]
struct LineCounter {
    offset: usize,
    line: u32,
}

impl LineCounter {
    fn line_at(&mut self, page: &str, offset: usize) -> u32 {
        if let Some(passed) = page.as_bytes().get(self.offset..offset) {
            let breaks = passed.iter().filter(|byte| **byte == b'\n').count();
            self.line = self.line.saturating_add(u32::try_from(breaks).unwrap_or(u32::MAX));
            self.offset = offset;
        }
        self.line
    }
}
