//! The visible text of HTML pages.
//!
//! [`HtmlReader`] is an iterator over the text and the tags of a page. It builds no tree and does not correct the
//! nesting of elements. [`ElementLayout`] tells how an element separates the text around it.
//!
//! **Invariant:** pages are untrusted. For any input the reader does not panic, takes time linear in the length of
//! the page, and returns text of at most about the same length.
//!
//! ```
//! use windlass_html::{ElementLayout, HtmlReader, HtmlTokenKind};
//!
//! let page = "<title>Tides</title>\n<p>High at <b>six</b> &amp; noon.<script>track()</script></p>";
//! let mut lines = Vec::new();
//! let mut line = String::new();
//! for token in HtmlReader::new(page) {
//!     match token.kind {
//!         HtmlTokenKind::Text(text) => line.push_str(&text),
//!         HtmlTokenKind::OpenTag(name) | HtmlTokenKind::CloseTag(name) => {
//!             if ElementLayout::of(&name) == ElementLayout::Block && !line.trim().is_empty() {
//!                 lines.push(std::mem::take(&mut line));
//!             }
//!         }
//!     }
//! }
//! assert_eq!(lines, ["Tides", " High at six & noon."]);
//! ```

mod emitter;
mod layout;
mod reader;

pub use layout::ElementLayout;
pub use reader::{HtmlReader, HtmlToken, HtmlTokenKind};

// The samples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeSamples;
