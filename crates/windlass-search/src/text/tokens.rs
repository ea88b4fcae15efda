//! Words. One rule for what is stored and for what is asked, so that what is written alike is found.

use std::collections::HashMap;

use super::stem;

/// Terms are cut to this many bytes: a line of base64 is one word, and nobody asks for it.
const LONGEST: usize = 64;
/// How many stems are remembered at once.
const REMEMBERED: usize = 100_000;

/// What kind of term a word became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// A word that means something.
    Word,
    /// A word that every text has. It is stored, and asked for only where a question has nothing else.
    Stop,
    /// A whole identifier, whose parts are words of their own.
    Whole,
}

/// Gives every term of a text, in order. Remembers stems, which most of the time goes into.
#[derive(Default)]
pub(crate) struct Analyser {
    /// What words become; `None` for those that every text has.
    stems: HashMap<String, Option<String>>,
    run: Vec<char>,
    word: String,
}

impl Analyser {
    /// Calls `take` with every term of a text.
    pub(crate) fn analyse(&mut self, text: &str, take: &mut dyn FnMut(&str, Term)) {
        let mut run = std::mem::take(&mut self.run);
        let mut script = Script::Other;
        for c in text.chars().chain([' ']) {
            let next = Script::of(c);
            if next == Script::Mark {
                continue;
            }
            if next != script && !run.is_empty() {
                self.emit(&run, script, take);
                run.clear();
            }
            script = next;
            match next {
                Script::Other | Script::Mark => {}
                // A word that never ends is cut into pieces, so that its cost is that of its length.
                Script::Letters | Script::Dense if run.len() < 4 * LONGEST => run.push(c),
                Script::Letters | Script::Dense => {
                    self.emit(&run, next, take);
                    run.clear();
                    run.push(c);
                }
            }
        }
        run.clear();
        self.run = run;
    }

    fn emit(&mut self, run: &[char], script: Script, take: &mut dyn FnMut(&str, Term)) {
        match script {
            Script::Dense => pairs(run, take),
            _ => self.emit_word(run, take),
        }
    }

    fn emit_word(&mut self, run: &[char], take: &mut dyn FnMut(&str, Term)) {
        let cuts = parts(run);
        if cuts.len() > 1 {
            let mut whole = std::mem::take(&mut self.word);
            whole.clear();
            run.iter().for_each(|c| fold(*c, &mut whole));
            cut(&mut whole);
            take(&whole, Term::Whole);
            self.word = whole;
        }
        for part in cuts {
            let mut word = std::mem::take(&mut self.word);
            word.clear();
            part.iter().for_each(|c| fold(*c, &mut word));
            cut(&mut word);
            if !word.is_empty() {
                self.take_word(&word, take);
            }
            self.word = word;
        }
    }

    fn take_word(&mut self, word: &str, take: &mut dyn FnMut(&str, Term)) {
        if let Some(known) = self.stems.get(word) {
            match known {
                Some(stem) => take(stem, Term::Word),
                None => take(word, Term::Stop),
            }
            return;
        }
        let stem = if is_stop_word(word) { None } else { Some(stem(word)) };
        match &stem {
            Some(stem) => take(stem, Term::Word),
            None => take(word, Term::Stop),
        }
        if self.stems.len() >= REMEMBERED {
            self.stems.clear();
        }
        self.stems.insert(word.to_owned(), stem);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Script {
    Letters,
    /// Written without spaces between words.
    Dense,
    /// A mark that belongs to the letter before it and is not looked up.
    Mark,
    Other,
}

impl Script {
    fn of(c: char) -> Self {
        if c.is_ascii_alphanumeric() || c == '_' {
            return Self::Letters;
        }
        if c.is_ascii() {
            return Self::Other;
        }
        match c {
            '\u{300}'..='\u{36f}' | '\u{64b}'..='\u{652}' | '\u{670}' | '\u{640}' | '\u{ad}' | '\u{200d}' => {
                Self::Mark
            }
            '\u{e00}'..='\u{eff}'
            | '\u{1000}'..='\u{109f}'
            | '\u{1780}'..='\u{17ff}'
            | '\u{3040}'..='\u{30ff}'
            | '\u{3400}'..='\u{4dbf}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{ac00}'..='\u{d7af}'
            | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{3ffff}' => Self::Dense,
            _ if c.is_alphanumeric() => Self::Letters,
            _ => Self::Other,
        }
    }
}

/// Pairs of neighbours stand for the words that nobody told apart.
fn pairs(run: &[char], take: &mut dyn FnMut(&str, Term)) {
    let mut text = String::new();
    if let [one] = run {
        text.push(*one);
        take(&text, Term::Word);
    }
    for pair in run.windows(2) {
        text.clear();
        text.extend(pair);
        take(&text, Term::Word);
    }
}

/// The parts of an identifier: `snake_case`, `camelCase` and `HTTPServer` are two words each. A word is one part.
fn parts(run: &[char]) -> Vec<&[char]> {
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

fn cut(word: &mut String) {
    if word.len() > LONGEST {
        let mut end = LONGEST;
        while !word.is_char_boundary(end) {
            end -= 1;
        }
        word.truncate(end);
    }
}

/// Writes a letter in the form in which it is compared: lower case, without accents.
pub(crate) fn fold(c: char, into: &mut String) {
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
            // Full-width forms of ASCII.
            '\u{ff10}'..='\u{ff5e}' => {
                let plain = char::from_u32(u32::from(lower) - 0xfee0).unwrap_or(lower);
                into.push(plain.to_ascii_lowercase());
            }
            '\u{300}'..='\u{36f}' => {}
            _ => into.push(lower),
        }
    }
}

/// Whether a word is one that every English text has.
pub(crate) fn is_stop_word(word: &str) -> bool {
    word.len() <= 6 && STOP_WORDS.binary_search(&word).is_ok()
}

/// Sorted, so that they can be looked up.
const STOP_WORDS: [&str; 74] = [
    "a", "about", "also", "am", "an", "and", "any", "are", "as", "at", "be", "been", "being", "but", "by",
    "can", "could", "did", "do", "does", "for", "from", "had", "has", "have", "he", "her", "his", "how", "i",
    "if", "in", "into", "is", "it", "its", "me", "my", "no", "not", "of", "on", "or", "our", "she", "should",
    "so", "such", "than", "that", "the", "their", "them", "then", "there", "these", "they", "this", "to",
    "us", "was", "we", "were", "what", "when", "where", "which", "who", "why", "will", "with", "would",
    "you", "your",
];
