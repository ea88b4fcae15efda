//! Untrusted text made safe to show to a person.
//!
//! Text from a model, a tool, a server or a file is untrusted: a control sequence can overwrite the line that a
//! person reads, and an invisible character can hide what a person approves. [`SafeText`] is text in which every
//! such character is a visible escape. Code that shows text takes a `SafeText`, so that no other text is shown.
//!
//! **Invariant:** a `SafeText` contains no control character, no bidirectional control, no invisible character,
//! and no combining mark without a letter before it. Prose may have the variation selector of an emoji.

mod arguments;
mod characters;
mod safe_text;
mod stream;
pub mod testing;
mod utc_time;
mod wrap;

pub use arguments::{ArgumentText, format_arguments, format_diff_line};
pub use characters::is_hidden;
pub use safe_text::{SafeText, escape_json};
pub use stream::StreamEscaper;
pub use utc_time::format_utc_time;
pub use wrap::{char_width, text_width};
