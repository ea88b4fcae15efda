//! The Porter2 stemmer for English (Snowball's `english`).
//!
//! Words with characters other than `a` to `z` are returned unchanged. A wrong stem does little harm, because
//! documents and queries are stemmed by the same rules.

/// Returns the stem of a lower-case word.
pub(crate) fn stem(word: &str) -> String {
    if word.len() < 3 || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return word.to_owned();
    }
    if let Some(known) = irregular_stem(word) {
        return known.to_owned();
    }
    let mut stemmer = EnglishStemmer::new(word);
    stemmer.step1a_plurals();
    if matches!(
        &*stemmer.to_text(),
        "inning" | "outing" | "canning" | "herring" | "earring" | "proceed" | "exceed" | "succeed"
    ) {
        return stemmer.to_text();
    }
    stemmer.step1b_past();
    stemmer.step1c_final_y();
    stemmer.step2_suffixes();
    stemmer.step3_suffixes();
    stemmer.step4_suffixes();
    stemmer.step5_final_letter();
    stemmer.to_text().to_ascii_lowercase()
}

/// Returns the stem of a word that the rules would stem wrongly.
fn irregular_stem(word: &str) -> Option<&'static str> {
    Some(match word {
        "skis" => "ski",
        "skies" => "sky",
        "dying" => "die",
        "lying" => "lie",
        "tying" => "tie",
        "idly" => "idl",
        "gently" => "gentl",
        "ugly" => "ugli",
        "early" => "earli",
        "only" => "onli",
        "singly" => "singl",
        "sky" => "sky",
        "news" => "news",
        "howe" => "howe",
        "atlas" => "atlas",
        "cosmos" => "cosmos",
        "bias" => "bias",
        "andes" => "andes",
        _ => return None,
    })
}

/// The state of the Porter2 algorithm for one word.
struct EnglishStemmer {
    /// The word; a `y` that acts as a consonant is stored as `Y`.
    word: Vec<u8>,
    /// Start of region R1: after the first consonant that follows a vowel.
    r1: usize,
    /// Start of region R2: the same rule applied within R1.
    r2: usize,
}

fn is_vowel(byte: u8) -> bool {
    matches!(byte, b'a' | b'e' | b'i' | b'o' | b'u' | b'y')
}

impl EnglishStemmer {
    fn new(word: &str) -> Self {
        let mut bytes = word.as_bytes().to_vec();
        for at in 0..bytes.len() {
            if bytes[at] == b'y' && (at == 0 || is_vowel(bytes[at - 1])) {
                bytes[at] = b'Y';
            }
        }
        let r1 = ["gener", "commun", "arsen", "past", "univers", "later", "emerg", "organ", "inter"]
            .iter()
            .find(|start| word.starts_with(**start))
            .map_or_else(|| region_start(&bytes, 0), |start| start.len());
        let r2 = region_start(&bytes, r1);
        Self { word: bytes, r1, r2 }
    }

    fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.word).into_owned()
    }

    fn ends_with(&self, suffix: &str) -> bool {
        self.word.ends_with(suffix.as_bytes())
    }

    /// Returns true if the suffix lies within the region that starts at `from`.
    fn is_in_region(&self, suffix: &str, from: usize) -> bool {
        self.word.len() >= from + suffix.len()
    }

    fn has_vowel_before(&self, cut: usize) -> bool {
        self.word[..self.word.len() - cut].iter().any(|byte| is_vowel(*byte))
    }

    fn replace_suffix(&mut self, suffix: &str, with: &str) {
        self.word.truncate(self.word.len() - suffix.len());
        self.word.extend_from_slice(with.as_bytes());
    }

    fn ends_in_short_syllable(&self) -> bool {
        match *self.word.as_slice() {
            [a, b] => is_vowel(a) && !is_vowel(b),
            [.., a, b, c] => !is_vowel(a) && is_vowel(b) && !is_vowel(c) && !matches!(c, b'w' | b'x' | b'Y'),
            _ => false,
        }
    }

    fn is_short(&self) -> bool {
        self.r1 >= self.word.len() && self.ends_in_short_syllable()
    }

    fn step1a_plurals(&mut self) {
        if self.ends_with("sses") {
            self.replace_suffix("sses", "ss");
        } else if self.ends_with("ied") || self.ends_with("ies") {
            let with = if self.word.len() > 4 { "i" } else { "ie" };
            self.replace_suffix("ies", with);
        } else if self.ends_with("s") && !self.ends_with("us") && !self.ends_with("ss") && self.word.len() > 2
        {
            // The word must have a vowel that is not directly before the `s`.
            if self.word[..self.word.len() - 2].iter().any(|byte| is_vowel(*byte)) {
                self.replace_suffix("s", "");
            }
        }
    }

    fn step1b_past(&mut self) {
        for suffix in ["eedly", "eed"] {
            if self.ends_with(suffix) {
                if self.is_in_region(suffix, self.r1) {
                    self.replace_suffix(suffix, "ee");
                }
                return;
            }
        }
        for suffix in ["ingly", "edly", "ing", "ed"] {
            if self.ends_with(suffix) {
                if self.has_vowel_before(suffix.len()) {
                    self.replace_suffix(suffix, "");
                    self.restore_ending();
                }
                return;
            }
        }
    }

    /// Restores the ending of a word after `-ed` or `-ing` was removed: adds an `e` or undoubles a consonant.
    fn restore_ending(&mut self) {
        if self.ends_with("at") || self.ends_with("bl") || self.ends_with("iz") {
            self.word.push(b'e');
        } else if let [.., a, b] = *self.word.as_slice()
            && a == b
            && matches!(b, b'b' | b'd' | b'f' | b'g' | b'm' | b'n' | b'p' | b'r' | b't')
        {
            // Except after a single initial vowel: `add`, `egg`, `off`.
            if !matches!(*self.word.as_slice(), [b'a' | b'e' | b'o', _, _]) {
                self.word.pop();
            }
        } else if self.is_short() {
            self.word.push(b'e');
        }
    }

    fn step1c_final_y(&mut self) {
        if let [.., before, b'y' | b'Y'] = *self.word.as_slice()
            && !is_vowel(before)
            && self.word.len() > 2
        {
            self.replace_suffix("y", "i");
        }
    }

    fn step2_suffixes(&mut self) {
        const RULES: [(&str, &str); 23] = [
            ("ization", "ize"),
            ("ational", "ate"),
            ("fulness", "ful"),
            ("ousness", "ous"),
            ("iveness", "ive"),
            ("tional", "tion"),
            ("biliti", "ble"),
            ("lessli", "less"),
            ("entli", "ent"),
            ("ogist", "og"),
            ("ation", "ate"),
            ("alism", "al"),
            ("aliti", "al"),
            ("ousli", "ous"),
            ("iviti", "ive"),
            ("fulli", "ful"),
            ("enci", "ence"),
            ("anci", "ance"),
            ("abli", "able"),
            ("izer", "ize"),
            ("ator", "ate"),
            ("alli", "al"),
            ("bli", "ble"),
        ];
        for (suffix, with) in RULES {
            if self.ends_with(suffix) {
                if self.is_in_region(suffix, self.r1) {
                    self.replace_suffix(suffix, with);
                }
                return;
            }
        }
        if self.ends_with("ogi") {
            if self.is_in_region("ogi", self.r1) && self.ends_with("logi") {
                self.replace_suffix("ogi", "og");
            }
        } else if self.ends_with("li") && self.is_in_region("li", self.r1) {
            let before = self.word.get(self.word.len().wrapping_sub(3)).copied();
            if before.is_some_and(|byte| b"cdeghkmnrt".contains(&byte)) {
                self.replace_suffix("li", "");
            }
        }
    }

    fn step3_suffixes(&mut self) {
        const RULES: [(&str, &str); 8] = [
            ("ational", "ate"),
            ("tional", "tion"),
            ("alize", "al"),
            ("icate", "ic"),
            ("iciti", "ic"),
            ("ical", "ic"),
            ("ness", ""),
            ("ful", ""),
        ];
        for (suffix, with) in RULES {
            if self.ends_with(suffix) {
                if self.is_in_region(suffix, self.r1) {
                    self.replace_suffix(suffix, with);
                }
                return;
            }
        }
        if self.ends_with("ative") && self.is_in_region("ative", self.r2) {
            self.replace_suffix("ative", "");
        }
    }

    fn step4_suffixes(&mut self) {
        const SUFFIXES: [&str; 17] = [
            "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive",
            "ize", "al", "er", "ic",
        ];
        for suffix in SUFFIXES {
            if self.ends_with(suffix) {
                if self.is_in_region(suffix, self.r2) {
                    self.replace_suffix(suffix, "");
                }
                return;
            }
        }
        if (self.ends_with("sion") || self.ends_with("tion")) && self.is_in_region("ion", self.r2) {
            self.replace_suffix("ion", "");
        }
    }

    fn step5_final_letter(&mut self) {
        if self.ends_with("e") {
            let in_r2 = self.is_in_region("e", self.r2);
            let in_r1 = self.is_in_region("e", self.r1);
            self.word.pop();
            if !(in_r2 || in_r1 && !self.ends_in_short_syllable()) {
                self.word.push(b'e');
            }
        } else if self.ends_with("ll") && self.is_in_region("l", self.r2) {
            self.word.pop();
        }
    }
}

/// Returns the start of the region after the first consonant that follows a vowel, searched from `from`.
fn region_start(word: &[u8], from: usize) -> usize {
    let mut at = from;
    while at + 1 < word.len() {
        if is_vowel(word[at]) && !is_vowel(word[at + 1]) {
            return at + 2;
        }
        at += 1;
    }
    word.len()
}
