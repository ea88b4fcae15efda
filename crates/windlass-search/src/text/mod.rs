//! Text analysis: tokenisation, splitting of identifiers, stop words and stemming.

mod analyser;
mod stem;
#[cfg(test)]
mod stem_tests;

pub(crate) use analyser::{TermKind, TextAnalyser, compose_text, fold_char, is_stop_word};
pub(crate) use stem::stem;
