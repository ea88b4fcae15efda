//! The text analyser. Documents and queries are analysed by the same rules, so that equal text yields equal terms.

use std::borrow::Cow;
use std::collections::HashMap;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::stem;

/// Maximum length of a term in bytes; longer terms, such as a line of base64, are truncated.
const MAX_TERM_BYTES: usize = 64;
/// Maximum number of cached stems.
const MAX_CACHED_STEMS: usize = 100_000;

/// The kind of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TermKind {
    /// A content word, stemmed.
    Word,
    /// A stop word. It is indexed, but searched only if a query has no other terms.
    StopWord,
    /// A whole identifier, whose parts are also emitted as words.
    Identifier,
    /// A single character inside a run of a script without spaces, whose pairs are also emitted as words. It is
    /// indexed, but searched only if a query has it alone.
    Character,
}

impl TermKind {
    /// Returns true if the term takes a position of its own in the text; otherwise it has the position of the word
    /// that follows.
    pub(crate) fn has_own_position(self) -> bool {
        matches!(self, Self::Word | Self::StopWord)
    }
}

/// Returns the text in its composed form (NFC), in which equal text has equal characters.
pub(crate) fn compose_text(text: &str) -> Cow<'_, str> {
    match is_nfc_quick(text.chars()) {
        IsNormalized::Yes => Cow::Borrowed(text),
        _ => Cow::Owned(text.nfc().collect()),
    }
}

/// A text analyser that emits the terms of a text in order. It caches stems, because stemming dominates its cost.
#[derive(Default)]
pub(crate) struct TextAnalyser {
    /// Cached stems, by word; `None` for stop words.
    stem_cache: HashMap<String, Option<String>>,
    run_buffer: Vec<char>,
    word_buffer: String,
}

impl TextAnalyser {
    /// Calls `take` with every term of a text and its kind.
    pub(crate) fn analyse(&mut self, text: &str, take: &mut dyn FnMut(&str, TermKind)) {
        let text = &*compose_text(text);
        let mut run = std::mem::take(&mut self.run_buffer);
        let mut script = ScriptClass::Separator;
        for c in text.chars().chain([' ']) {
            let next = ScriptClass::of_char(c);
            if next == ScriptClass::CombiningMark {
                continue;
            }
            if next != script && !run.is_empty() {
                self.emit_run(&run, script, take);
                run.clear();
            }
            script = next;
            match next {
                ScriptClass::Separator | ScriptClass::CombiningMark => {}
                // An overlong run is emitted in parts, so that the cost stays linear in its length.
                ScriptClass::Letters | ScriptClass::Unspaced if run.len() < 4 * MAX_TERM_BYTES => run.push(c),
                ScriptClass::Letters | ScriptClass::Unspaced => {
                    self.emit_run(&run, next, take);
                    run.clear();
                    run.push(c);
                }
            }
        }
        run.clear();
        self.run_buffer = run;
    }

    fn emit_run(&mut self, run: &[char], script: ScriptClass, take: &mut dyn FnMut(&str, TermKind)) {
        match script {
            ScriptClass::Unspaced => emit_bigrams(run, take),
            _ => self.emit_words(run, take),
        }
    }

    fn emit_words(&mut self, run: &[char], take: &mut dyn FnMut(&str, TermKind)) {
        let cuts = split_identifier(run);
        if cuts.len() > 1 {
            let mut whole = std::mem::take(&mut self.word_buffer);
            whole.clear();
            run.iter().for_each(|c| fold_char(*c, &mut whole));
            truncate_term(&mut whole);
            take(&whole, TermKind::Identifier);
            self.word_buffer = whole;
        }
        for part in cuts {
            let mut word = std::mem::take(&mut self.word_buffer);
            word.clear();
            part.iter().for_each(|c| fold_char(*c, &mut word));
            truncate_term(&mut word);
            if !word.is_empty() {
                self.emit_stem(&word, take);
            }
            self.word_buffer = word;
        }
    }

    fn emit_stem(&mut self, word: &str, take: &mut dyn FnMut(&str, TermKind)) {
        if let Some(known) = self.stem_cache.get(word) {
            match known {
                Some(stem) => take(stem, TermKind::Word),
                None => take(word, TermKind::StopWord),
            }
            return;
        }
        let stem = if is_stop_word(word) { None } else { Some(stem(word)) };
        match &stem {
            Some(stem) => take(stem, TermKind::Word),
            None => take(word, TermKind::StopWord),
        }
        if self.stem_cache.len() >= MAX_CACHED_STEMS {
            self.stem_cache.clear();
        }
        self.stem_cache.insert(word.to_owned(), stem);
    }
}

/// The class of a character in tokenisation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScriptClass {
    Letters,
    /// A character of a script without spaces between words, such as Chinese or Thai.
    Unspaced,
    /// A combining mark, which is ignored.
    CombiningMark,
    Separator,
}

impl ScriptClass {
    fn of_char(c: char) -> Self {
        if c.is_ascii_alphanumeric() || c == '_' {
            return Self::Letters;
        }
        if c.is_ascii() {
            return Self::Separator;
        }
        match c {
            '\u{300}'..='\u{36f}' | '\u{64b}'..='\u{652}' | '\u{670}' | '\u{640}' | '\u{ad}' | '\u{200d}' => {
                Self::CombiningMark
            }
            '\u{e00}'..='\u{eff}'
            | '\u{1000}'..='\u{109f}'
            | '\u{1780}'..='\u{17ff}'
            | '\u{3040}'..='\u{30ff}'
            | '\u{3400}'..='\u{4dbf}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{ac00}'..='\u{d7af}'
            | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{3ffff}' => Self::Unspaced,
            _ if c.is_alphanumeric() => Self::Letters,
            _ => Self::Separator,
        }
    }
}

/// Emits character bigrams, which stand in for words in scripts without spaces, and the single characters.
fn emit_bigrams(run: &[char], take: &mut dyn FnMut(&str, TermKind)) {
    let mut text = String::new();
    if let [one] = run {
        text.push(*one);
        take(&text, TermKind::Word);
        return;
    }
    let emit_character = |c: char, take: &mut dyn FnMut(&str, TermKind)| {
        if is_ideograph(c) {
            take(c.encode_utf8(&mut [0; 4]), TermKind::Character);
        }
    };
    for pair in run.windows(2) {
        emit_character(pair[0], take);
        text.clear();
        text.extend(pair);
        take(&text, TermKind::Word);
    }
    run.last().into_iter().for_each(|last| emit_character(*last, take));
}

/// Returns true for characters that can be a word of their own: Chinese characters, kana and Hangul syllables.
fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Splits an identifier into its parts: `snake_case`, `camelCase` and `HTTPServer` have two each. A plain word
/// has one.
fn split_identifier(run: &[char]) -> Vec<&[char]> {
    let mut found = Vec::new();
    let mut from = 0;
    for at in 0..run.len() {
        if run[at] == '_' {
            found.push(&run[from..at]);
            from = at + 1;
        } else if at > from && run[at].is_uppercase() {
            let after_lower = run[at - 1].is_lowercase();
            let before_lower =
                run[at - 1].is_uppercase() && run.get(at + 1).is_some_and(|next| next.is_lowercase());
            if after_lower || before_lower {
                found.push(&run[from..at]);
                from = at;
            }
        }
    }
    found.push(&run[from..]);
    found.retain(|part| !part.is_empty());
    found
}

/// Truncates a term to the maximum length at a character boundary.
fn truncate_term(word: &mut String) {
    if word.len() > MAX_TERM_BYTES {
        let mut end = MAX_TERM_BYTES;
        while !word.is_char_boundary(end) {
            end -= 1;
        }
        word.truncate(end);
    }
}

/// Appends a character in its folded form: lower case, without accents.
pub(crate) fn fold_char(c: char, into: &mut String) {
    if c.is_ascii() {
        into.push(c.to_ascii_lowercase());
        return;
    }
    for lower in c.to_lowercase() {
        match lower {
            'à'..='å' | 'ā' | 'ă' | 'ą' => into.push('a'),
            'æ' => into.push_str("ae"),
            'ç' | 'ć' | 'ĉ' | 'ċ' | 'č' => into.push('c'),
            'ď' | 'đ' | 'ð' => into.push('d'),
            'è'..='ë' | 'ē' | 'ĕ' | 'ė' | 'ę' | 'ě' => into.push('e'),
            'ĝ' | 'ğ' | 'ġ' | 'ģ' => into.push('g'),
            'ì'..='ï' | 'ĩ' | 'ī' | 'ĭ' | 'į' | 'ı' => into.push('i'),
            'ķ' => into.push('k'),
            'ĺ' | 'ļ' | 'ľ' | 'ŀ' | 'ł' => into.push('l'),
            'ñ' | 'ń' | 'ņ' | 'ň' => into.push('n'),
            'ò'..='ö' | 'ø' | 'ō' | 'ŏ' | 'ő' => into.push('o'),
            'œ' => into.push_str("oe"),
            'ŕ' | 'ŗ' | 'ř' => into.push('r'),
            'ś' | 'ŝ' | 'ş' | 'š' | 'ș' => into.push('s'),
            'ß' => into.push_str("ss"),
            'ţ' | 'ť' | 'ŧ' | 'ț' => into.push('t'),
            'ù'..='ü' | 'ũ' | 'ū' | 'ŭ' | 'ů' | 'ű' | 'ų' => into.push('u'),
            'ý' | 'ÿ' => into.push('y'),
            'ź' | 'ż' | 'ž' => into.push('z'),
            'أ' | 'إ' | 'آ' => into.push('ا'),
            'ى' => into.push('ي'),
            'ё' => into.push('е'),
            // Full-width forms of ASCII characters.
            '\u{ff10}'..='\u{ff5e}' => {
                let plain = char::from_u32(u32::from(lower) - 0xfee0).unwrap_or(lower);
                into.push(plain.to_ascii_lowercase());
            }
            '\u{300}'..='\u{36f}' => {}
            _ => into.push(lower),
        }
    }
}

/// Returns true if the word is an English stop word.
pub(crate) fn is_stop_word(word: &str) -> bool {
    word.len() <= 6 && STOP_WORDS.binary_search(&word).is_ok()
}

/// English stop words, sorted for binary search.
const STOP_WORDS: [&str; 74] = [
    "a", "about", "also", "am", "an", "and", "any", "are", "as", "at", "be", "been", "being", "but", "by",
    "can", "could", "did", "do", "does", "for", "from", "had", "has", "have", "he", "her", "his", "how", "i",
    "if", "in", "into", "is", "it", "its", "me", "my", "no", "not", "of", "on", "or", "our", "she", "should",
    "so", "such", "than", "that", "the", "their", "them", "then", "there", "these", "they", "this", "to",
    "us", "was", "we", "were", "what", "when", "where", "which", "who", "why", "will", "with", "would",
    "you", "your",
];

#[cfg(test)]
mod tests {
    use super::{TermKind, TextAnalyser};

    fn terms(text: &str) -> Vec<(String, TermKind)> {
        let mut found = Vec::new();
        TextAnalyser::default().analyse(text, &mut |term, kind| found.push((term.to_owned(), kind)));
        found
    }

    #[test]
    fn composed_and_decomposed_text_has_the_same_terms() {
        // Vietnamese, Korean, French and Japanese with a voicing mark.
        for (composed, decomposed) in [
            ("tiếng", "tie\u{302}\u{301}ng"),
            ("한국", "\u{1112}\u{1161}\u{11ab}\u{1100}\u{116e}\u{11a8}"),
            ("élève", "e\u{301}le\u{300}ve"),
            ("ガス", "カ\u{3099}ス"),
        ] {
            assert_eq!(terms(composed), terms(decomposed), "{composed}");
        }
    }

    #[test]
    fn characters_inside_a_run_are_terms() {
        let term = |text: &str, kind| (text.to_owned(), kind);
        assert_eq!(
            terms("放水泵"),
            [
                term("放", TermKind::Character),
                term("放水", TermKind::Word),
                term("水", TermKind::Character),
                term("水泵", TermKind::Word),
                term("泵", TermKind::Character),
            ]
        );
        assert_eq!(terms("水"), [term("水", TermKind::Word)]);
    }
}
