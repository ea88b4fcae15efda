//! The link to the tokeniser: [`HtmlEmitter`] collects the text and the tags that `html5gum` recognises, with their
//! offsets. Attributes, comments and doctypes are dropped as they are read.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use html5gum::{Emitter, Error, Readable, Reader, State, StringReader, naive_next_state};

/// Maximum number of attributes of a tag. The tokeniser calls itself for each attribute in double quotes, so that a tag
/// with thousands of them would exhaust the stack.
const MAX_ATTRIBUTES: usize = 256;

/// The input of the tokeniser. It ends early in a tag with too many attributes.
#[derive(Debug)]
pub(crate) struct HtmlInput<'a> {
    page: StringReader<'a>,
    has_ended: Arc<AtomicBool>,
}

impl<'a> HtmlInput<'a> {
    /// Creates the input and its emitter, for the content of the named element.
    pub(crate) fn inside(page: &'a str, element: &str) -> (Self, HtmlEmitter) {
        let has_ended = Arc::new(AtomicBool::new(false));
        let emitter = HtmlEmitter {
            last_open_tag: element.as_bytes().to_vec(),
            has_ended: has_ended.clone(),
            ..HtmlEmitter::default()
        };
        (Self { page: page.to_reader(), has_ended }, emitter)
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }
}

impl Reader for HtmlInput<'_> {
    type Error = Infallible;

    fn read_byte(&mut self) -> Result<Option<u8>, Infallible> {
        if self.has_ended() { Ok(None) } else { self.page.read_byte() }
    }

    fn try_read_string(&mut self, text: &[u8], case_sensitive: bool) -> Result<bool, Infallible> {
        if self.has_ended() { Ok(false) } else { self.page.try_read_string(text, case_sensitive) }
    }

    fn read_until<'b>(
        &'b mut self,
        needle: &[u8],
        room: &'b mut [u8; 4],
    ) -> Result<Option<&'b [u8]>, Infallible> {
        if self.has_ended() { Ok(None) } else { self.page.read_until(needle, room) }
    }
}

/// A token with its offset in the input of the tokeniser.
#[derive(Debug)]
pub(crate) struct RawToken {
    pub(crate) offset: usize,
    pub(crate) kind: RawTokenKind,
}

#[derive(Debug)]
pub(crate) enum RawTokenKind {
    /// Text with decoded character references.
    Text(String),
    Tag(HtmlTag),
    /// A tag that the input ends in.
    UnfinishedTag {
        tag: HtmlTag,
        /// Offset of the start of the tag's last attribute value.
        last_value: Option<usize>,
    },
}

/// A tag without its attributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct HtmlTag {
    /// The name in lower case.
    pub(crate) name: String,
    pub(crate) form: TagForm,
}

/// The form of a tag: `<a>`, `<a/>` or `</a>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TagForm {
    #[default]
    Open,
    SelfClosing,
    Close,
}

impl HtmlTag {
    /// Returns the state in which the content of the element is tokenised; `None` for markup. XHTML writes empty
    /// elements as `<title/>`, so a self-closing tag has no content.
    pub(crate) fn content_state(&self) -> Option<State> {
        if self.form == TagForm::Open { naive_next_state(self.name.as_bytes()) } else { None }
    }
}

#[derive(Debug, Default)]
pub(crate) struct HtmlEmitter {
    tokens: VecDeque<RawToken>,
    /// Offset of the next byte to read.
    position: usize,
    text: Vec<u8>,
    text_start: usize,
    tag_name: Vec<u8>,
    tag_form: TagForm,
    tag_start: usize,
    last_value: Option<usize>,
    last_open_tag: Vec<u8>,
    attribute_count: usize,
    /// Ends the input: see [`HtmlInput`].
    has_ended: Arc<AtomicBool>,
}

impl HtmlEmitter {
    fn start_tag(&mut self, form: TagForm) {
        self.tag_name.clear();
        self.tag_form = form;
        self.last_value = None;
        self.attribute_count = 0;
    }

    fn current_tag(&self) -> HtmlTag {
        HtmlTag { name: String::from_utf8_lossy(&self.tag_name).into_owned(), form: self.tag_form }
    }

    /// Pushes the text before the current markup.
    fn flush_text(&mut self) {
        if !self.text.is_empty() {
            let text = String::from_utf8_lossy(&self.text).into_owned();
            self.text.clear();
            self.tokens.push_back(RawToken { offset: self.text_start, kind: RawTokenKind::Text(text) });
        }
    }

    /// Notes the end of markup: the next text starts there.
    fn end_markup(&mut self) {
        self.text_start = self.position;
    }
}

impl Emitter for HtmlEmitter {
    type Token = RawToken;

    fn set_last_start_tag(&mut self, name: Option<&[u8]>) {
        self.last_open_tag = name.unwrap_or_default().to_vec();
    }

    fn emit_eof(&mut self) {
        self.flush_text();
    }

    fn emit_error(&mut self, error: Error) {
        if error == Error::EofInTag {
            self.flush_text();
            let kind = RawTokenKind::UnfinishedTag { tag: self.current_tag(), last_value: self.last_value };
            self.tokens.push_back(RawToken { offset: self.tag_start, kind });
        }
    }

    fn pop_token(&mut self) -> Option<RawToken> {
        self.tokens.pop_front()
    }

    fn emit_string(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
    }

    fn start_open_tag(&mut self) {
        self.tag_start = self.position.saturating_sub(1);
    }

    fn init_start_tag(&mut self) {
        self.start_tag(TagForm::Open);
    }

    fn init_end_tag(&mut self) {
        self.start_tag(TagForm::Close);
    }

    fn set_self_closing(&mut self) {
        if self.tag_form == TagForm::Open {
            self.tag_form = TagForm::SelfClosing;
        }
    }

    fn push_tag_name(&mut self, name: &[u8]) {
        self.tag_name.extend_from_slice(name);
    }

    fn emit_current_tag(&mut self) -> Option<State> {
        self.flush_text();
        let tag = self.current_tag();
        if tag.form != TagForm::Close {
            self.last_open_tag.clone_from(&self.tag_name);
        }
        let state = tag.content_state();
        self.tokens.push_back(RawToken { offset: self.tag_start, kind: RawTokenKind::Tag(tag) });
        self.end_markup();
        state
    }

    fn current_is_appropriate_end_tag_token(&mut self) -> bool {
        self.tag_form == TagForm::Close && !self.tag_name.is_empty() && self.tag_name == self.last_open_tag
    }

    fn init_comment(&mut self) {
        self.flush_text();
    }

    fn emit_current_comment(&mut self) {
        self.end_markup();
    }

    fn init_doctype(&mut self) {
        self.flush_text();
    }

    fn emit_current_doctype(&mut self) {
        self.end_markup();
    }

    fn init_attribute_value(&mut self) {
        self.last_value = Some(self.position);
    }

    fn move_position(&mut self, by: isize) {
        self.position = self.position.saturating_add_signed(by);
    }

    fn init_attribute(&mut self) {
        self.attribute_count += 1;
        if self.attribute_count > MAX_ATTRIBUTES {
            self.has_ended.store(true, Ordering::Relaxed);
        }
    }

    fn push_attribute_name(&mut self, _: &[u8]) {}
    fn push_attribute_value(&mut self, _: &[u8]) {}
    fn push_comment(&mut self, _: &[u8]) {}
    fn set_force_quirks(&mut self) {}
    fn push_doctype_name(&mut self, _: &[u8]) {}
    fn set_doctype_public_identifier(&mut self, _: &[u8]) {}
    fn set_doctype_system_identifier(&mut self, _: &[u8]) {}
    fn push_doctype_public_identifier(&mut self, _: &[u8]) {}
    fn push_doctype_system_identifier(&mut self, _: &[u8]) {}
}
