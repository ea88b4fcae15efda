//! Text becomes pieces of words, as BERT's own tokeniser for lower-case English has it.

use std::collections::HashMap;

use crate::text::fold;

/// Longer words are one unknown piece.
const LONGEST: usize = 100;

pub(super) struct WordPieces {
    ids: HashMap<String, u32>,
    unknown: u32,
    begin: u32,
    end: u32,
}

/// A text in pieces.
#[derive(Default)]
pub(super) struct Pieces {
    pub(super) ids: Vec<u32>,
    /// How many words it has, how many pieces they are, and how many of them are not known.
    words: usize,
    pieces: usize,
    unknown: usize,
}

impl Pieces {
    /// Whether the vocabulary was made for such texts. Those of another script are spelt letter by letter, or not known
    /// at all, and what a network makes of that means nothing.
    pub(super) fn are_readable(&self) -> bool {
        self.pieces * 2 <= self.words * 7 && self.unknown * 2 <= self.words
    }
}

impl WordPieces {
    /// A vocabulary: one piece a line, in the order of their ids.
    pub(super) fn read(lines: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(lines).map_err(|_| "its `vocab.txt` is not UTF-8".to_owned())?;
        let ids: HashMap<String, u32> =
            text.lines().zip(0..).map(|(piece, id)| (piece.trim_end().to_owned(), id)).collect();
        let special =
            |piece: &str| ids.get(piece).copied().ok_or_else(|| format!("its `vocab.txt` has no `{piece}`"));
        let (unknown, begin, end) = (special("[UNK]")?, special("[CLS]")?, special("[SEP]")?);
        Ok(Self { unknown, begin, end, ids })
    }

    pub(super) fn len(&self) -> usize {
        self.ids.values().max().map_or(0, |last| *last as usize + 1)
    }

    /// The pieces of a text, at most so many.
    pub(super) fn pieces(&self, text: &str, most: usize) -> Pieces {
        let mut found = Pieces::default();
        let mut word = String::new();
        for c in text.chars().chain([' ']) {
            if found.ids.len() >= most {
                break;
            }
            match Class::of(c) {
                Class::Word => lower(c, &mut word),
                Class::Nothing => {}
                class => {
                    self.add_word(&word, &mut found);
                    word.clear();
                    if class == Class::Alone {
                        lower(c, &mut word);
                        if c.is_alphanumeric() {
                            self.add_word(&word, &mut found);
                        } else {
                            self.add(&word, &mut found.ids);
                        }
                        word.clear();
                    }
                }
            }
        }
        found.ids.truncate(most);
        found
    }

    /// The same with what stands before and after every text.
    pub(super) fn framed(&self, ids: &[u32]) -> Vec<u32> {
        [&[self.begin], ids, &[self.end]].concat()
    }

    fn add_word(&self, word: &str, found: &mut Pieces) {
        let before = found.ids.len();
        self.add(word, &mut found.ids);
        let added = &found.ids[before..];
        found.words += usize::from(!word.is_empty());
        found.pieces += added.len();
        found.unknown += usize::from(added == [self.unknown]);
    }

    /// Longest pieces first; a word of which a part is not known is not known.
    fn add(&self, word: &str, found: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let before = found.len();
        if word.chars().count() > LONGEST {
            found.push(self.unknown);
            return;
        }
        let mut from = 0;
        let mut piece = String::new();
        while from < word.len() {
            let ends = (from + 1..=word.len()).rev().filter(|end| word.is_char_boundary(*end));
            let mut ends = ends.map(|end| {
                piece.clear();
                if from > 0 {
                    piece.push_str("##");
                }
                piece.push_str(&word[from..end]);
                (end, self.ids.get(&piece).copied())
            });
            let Some((end, Some(id))) = ends.find(|(_, id)| id.is_some()) else {
                found.truncate(before);
                found.push(self.unknown);
                return;
            };
            found.push(id);
            from = end;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Word,
    Space,
    /// A word of its own.
    Alone,
    Nothing,
}

impl Class {
    fn of(c: char) -> Self {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' => Self::Word,
            _ if c.is_whitespace() => Self::Space,
            '\0' | '\u{fffd}' => Self::Nothing,
            _ if c.is_control() => Self::Nothing,
            _ if c.is_ascii() => Self::Alone,
            '\u{4e00}'..='\u{9fff}'
            | '\u{3400}'..='\u{4dbf}'
            | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{2fa1f}' => Self::Alone,
            '\u{300}'..='\u{36f}' => Self::Nothing,
            _ if c.is_alphanumeric() => Self::Word,
            _ => Self::Alone,
        }
    }
}

/// Lower case, without accents. Letters that are no letter with an accent stay what they are.
fn lower(c: char, into: &mut String) {
    match c {
        'Æ' | 'æ' | 'Ø' | 'ø' | 'Œ' | 'œ' | 'ß' | 'Đ' | 'đ' | 'Ð' | 'ð' | 'Ł' | 'ł' | 'ı' => {
            into.extend(c.to_lowercase());
        }
        _ => fold(c, into),
    }
}
