//! English words reduced to their stems, after Porter's second algorithm (Snowball's `english`).
//!
//! Words with anything but `a` to `z` in them are left as they are: what another language makes of its endings is not
//! known here, and a stem that is wrong in the same way on both sides still finds itself.

/// The stem of a word in lower case.
pub(crate) fn stem(word: &str) -> String {
    if word.len() < 3 || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return word.to_owned();
    }
    if let Some(known) = exception(word) {
        return known.to_owned();
    }
    let mut stemmer = Stemmer::of(word);
    stemmer.plural();
    if matches!(
        &*stemmer.text(),
        "inning" | "outing" | "canning" | "herring" | "earring" | "proceed" | "exceed" | "succeed"
    ) {
        return stemmer.text();
    }
    stemmer.past();
    stemmer.final_y();
    stemmer.long_suffixes();
    stemmer.shorter_suffixes();
    stemmer.residue();
    stemmer.last_letter();
    stemmer.text().to_ascii_lowercase()
}

fn exception(word: &str) -> Option<&'static str> {
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

struct Stemmer {
    /// The word; a `y` that is a consonant is written `Y`.
    word: Vec<u8>,
    /// Where the first region begins: after the first consonant that follows a vowel.
    r1: usize,
    /// The same again, within the first.
    r2: usize,
}

fn is_vowel(byte: u8) -> bool {
    matches!(byte, b'a' | b'e' | b'i' | b'o' | b'u' | b'y')
}

impl Stemmer {
    fn of(word: &str) -> Self {
        let mut bytes = word.as_bytes().to_vec();
        for at in 0..bytes.len() {
            if bytes[at] == b'y' && (at == 0 || is_vowel(bytes[at - 1])) {
                bytes[at] = b'Y';
            }
        }
        let r1 = ["gener", "commun", "arsen", "past", "univers", "later", "emerg", "organ", "inter"]
            .iter()
            .find(|start| word.starts_with(**start))
            .map_or_else(|| region(&bytes, 0), |start| start.len());
        let r2 = region(&bytes, r1);
        Self { word: bytes, r1, r2 }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.word).into_owned()
    }

    fn ends(&self, suffix: &str) -> bool {
        self.word.ends_with(suffix.as_bytes())
    }

    /// Whether a suffix lies in the region that begins at `from`.
    fn within(&self, suffix: &str, from: usize) -> bool {
        self.word.len() >= from + suffix.len()
    }

    fn has_vowel_before(&self, cut: usize) -> bool {
        self.word[..self.word.len() - cut].iter().any(|byte| is_vowel(*byte))
    }

    fn replace(&mut self, suffix: &str, with: &str) {
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

    fn plural(&mut self) {
        if self.ends("sses") {
            self.replace("sses", "ss");
        } else if self.ends("ied") || self.ends("ies") {
            let with = if self.word.len() > 4 { "i" } else { "ie" };
            self.replace("ies", with);
        } else if self.ends("s") && !self.ends("us") && !self.ends("ss") && self.word.len() > 2 {
            // A vowel somewhere, and not right before the `s`.
            if self.word[..self.word.len() - 2].iter().any(|byte| is_vowel(*byte)) {
                self.replace("s", "");
            }
        }
    }

    fn past(&mut self) {
        for suffix in ["eedly", "eed"] {
            if self.ends(suffix) {
                if self.within(suffix, self.r1) {
                    self.replace(suffix, "ee");
                }
                return;
            }
        }
        for suffix in ["ingly", "edly", "ing", "ed"] {
            if self.ends(suffix) {
                if self.has_vowel_before(suffix.len()) {
                    self.replace(suffix, "");
                    self.mend();
                }
                return;
            }
        }
    }

    /// What a word needs after its `-ed` or `-ing` is gone.
    fn mend(&mut self) {
        if self.ends("at") || self.ends("bl") || self.ends("iz") {
            self.word.push(b'e');
        } else if let [.., a, b] = *self.word.as_slice()
            && a == b
            && matches!(b, b'b' | b'd' | b'f' | b'g' | b'm' | b'n' | b'p' | b'r' | b't')
        {
            // Not where nothing but a vowel stands before: `add`, `egg`, `off`.
            if !matches!(*self.word.as_slice(), [b'a' | b'e' | b'o', _, _]) {
                self.word.pop();
            }
        } else if self.is_short() {
            self.word.push(b'e');
        }
    }

    fn final_y(&mut self) {
        if let [.., before, b'y' | b'Y'] = *self.word.as_slice()
            && !is_vowel(before)
            && self.word.len() > 2
        {
            self.replace("y", "i");
        }
    }

    fn long_suffixes(&mut self) {
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
            if self.ends(suffix) {
                if self.within(suffix, self.r1) {
                    self.replace(suffix, with);
                }
                return;
            }
        }
        if self.ends("ogi") {
            if self.within("ogi", self.r1) && self.ends("logi") {
                self.replace("ogi", "og");
            }
        } else if self.ends("li") && self.within("li", self.r1) {
            let before = self.word.get(self.word.len().wrapping_sub(3)).copied();
            if before.is_some_and(|byte| b"cdeghkmnrt".contains(&byte)) {
                self.replace("li", "");
            }
        }
    }

    fn shorter_suffixes(&mut self) {
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
            if self.ends(suffix) {
                if self.within(suffix, self.r1) {
                    self.replace(suffix, with);
                }
                return;
            }
        }
        if self.ends("ative") && self.within("ative", self.r2) {
            self.replace("ative", "");
        }
    }

    fn residue(&mut self) {
        const SUFFIXES: [&str; 17] = [
            "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive",
            "ize", "al", "er", "ic",
        ];
        for suffix in SUFFIXES {
            if self.ends(suffix) {
                if self.within(suffix, self.r2) {
                    self.replace(suffix, "");
                }
                return;
            }
        }
        if (self.ends("sion") || self.ends("tion")) && self.within("ion", self.r2) {
            self.replace("ion", "");
        }
    }

    fn last_letter(&mut self) {
        if self.ends("e") {
            let in_r2 = self.within("e", self.r2);
            let in_r1 = self.within("e", self.r1);
            self.word.pop();
            if !(in_r2 || in_r1 && !self.ends_in_short_syllable()) {
                self.word.push(b'e');
            }
        } else if self.ends("ll") && self.within("l", self.r2) {
            self.word.pop();
        }
    }
}

/// Where the region begins that follows the first consonant after a vowel, looked for from `from` on.
fn region(word: &[u8], from: usize) -> usize {
    let mut at = from;
    while at + 1 < word.len() {
        if is_vowel(word[at]) && !is_vowel(word[at + 1]) {
            return at + 2;
        }
        at += 1;
    }
    word.len()
}
