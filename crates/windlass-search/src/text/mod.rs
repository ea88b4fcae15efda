//! From text to the terms that are looked up: words, parts of identifiers, stems.

mod stem;
#[cfg(test)]
mod stem_tests;
mod tokens;

pub(crate) use stem::stem;
pub(crate) use tokens::{Analyser, Term, fold, is_stop_word};
