//! The WordPiece tokeniser of uncased BERT models.

use std::collections::HashMap;

use crate::text::fold_char;

/// Maximum length of a word in characters; a longer word becomes one unknown token.
const MAX_WORD_CHARS: usize = 100;

/// A WordPiece tokeniser with its vocabulary.
pub(super) struct WordPieceTokeniser {
    piece_ids: HashMap<String, u32>,
    unknown_id: u32,
    cls_id: u32,
    sep_id: u32,
}

/// The tokens of a text.
#[derive(Default)]
pub(super) struct WordPieceSequence {
    pub(super) token_ids: Vec<u32>,
    /// Number of words, of the pieces that they were split into, and of words that are unknown.
    word_count: usize,
    piece_count: usize,
    unknown_count: usize,
}

impl WordPieceSequence {
    /// Returns true if the vocabulary covers the text. A text in another script is split into single letters or
    /// unknown tokens, whose embedding is meaningless.
    pub(super) fn has_vocabulary_coverage(&self) -> bool {
        self.piece_count * 2 <= self.word_count * 7 && self.unknown_count * 2 <= self.word_count
    }
}

impl WordPieceTokeniser {
    /// Parses a vocabulary: one piece per line, in the order of the ids.
    pub(super) fn parse_vocabulary(lines: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(lines).map_err(|_| "its `vocab.txt` is not UTF-8".to_owned())?;
        let ids: HashMap<String, u32> =
            text.lines().zip(0..).map(|(piece, id)| (piece.trim_end().to_owned(), id)).collect();
        let special =
            |piece: &str| ids.get(piece).copied().ok_or_else(|| format!("its `vocab.txt` has no `{piece}`"));
        let (unknown, begin, end) = (special("[UNK]")?, special("[CLS]")?, special("[SEP]")?);
        Ok(Self { unknown_id: unknown, cls_id: begin, sep_id: end, piece_ids: ids })
    }

    pub(super) fn vocabulary_size(&self) -> usize {
        self.piece_ids.values().max().map_or(0, |last| *last as usize + 1)
    }

    /// Splits a text into at most `most` tokens.
    pub(super) fn tokenise(&self, text: &str, most: usize) -> WordPieceSequence {
        let mut found = WordPieceSequence::default();
        let mut word = String::new();
        for c in text.chars().chain([' ']) {
            if found.token_ids.len() >= most {
                break;
            }
            match CharacterClass::of_char(c) {
                CharacterClass::Word => push_lowercase(c, &mut word),
                CharacterClass::Ignored => {}
                class => {
                    self.push_word(&word, &mut found);
                    word.clear();
                    if class == CharacterClass::Standalone {
                        push_lowercase(c, &mut word);
                        if c.is_alphanumeric() {
                            self.push_word(&word, &mut found);
                        } else {
                            self.push_pieces(&word, &mut found.token_ids);
                        }
                        word.clear();
                    }
                }
            }
        }
        found.token_ids.truncate(most);
        found
    }

    /// Returns the ids between the special tokens `[CLS]` and `[SEP]`.
    pub(super) fn add_special_tokens(&self, ids: &[u32]) -> Vec<u32> {
        [&[self.cls_id], ids, &[self.sep_id]].concat()
    }

    fn push_word(&self, word: &str, found: &mut WordPieceSequence) {
        let before = found.token_ids.len();
        self.push_pieces(word, &mut found.token_ids);
        let added = &found.token_ids[before..];
        found.word_count += usize::from(!word.is_empty());
        found.piece_count += added.len();
        found.unknown_count += usize::from(added == [self.unknown_id]);
    }

    /// Appends the pieces of a word by greedy longest match; a word with an unknown piece becomes one unknown
    /// token.
    fn push_pieces(&self, word: &str, found: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let before = found.len();
        if word.chars().count() > MAX_WORD_CHARS {
            found.push(self.unknown_id);
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
                (end, self.piece_ids.get(&piece).copied())
            });
            let Some((end, Some(id))) = ends.find(|(_, id)| id.is_some()) else {
                found.truncate(before);
                found.push(self.unknown_id);
                return;
            };
            found.push(id);
            from = end;
        }
    }
}

/// The class of a character in pre-tokenisation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CharacterClass {
    Word,
    Whitespace,
    /// A character that is a word by itself: punctuation and CJK ideographs.
    Standalone,
    Ignored,
}

impl CharacterClass {
    fn of_char(c: char) -> Self {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' => Self::Word,
            _ if c.is_whitespace() => Self::Whitespace,
            '\0' | '\u{fffd}' => Self::Ignored,
            _ if c.is_control() => Self::Ignored,
            _ if c.is_ascii() => Self::Standalone,
            '\u{4e00}'..='\u{9fff}'
            | '\u{3400}'..='\u{4dbf}'
            | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{2fa1f}' => Self::Standalone,
            '\u{300}'..='\u{36f}' => Self::Ignored,
            _ if c.is_alphanumeric() => Self::Word,
            _ => Self::Standalone,
        }
    }
}

/// Appends a character in lower case without accents. Letters that are not a base letter plus an accent are kept.
fn push_lowercase(c: char, into: &mut String) {
    match c {
        'Æ' | 'æ' | 'Ø' | 'ø' | 'Œ' | 'œ' | 'ß' | 'Đ' | 'đ' | 'Ð' | 'ð' | 'Ł' | 'ł' | 'ı' => {
            into.extend(c.to_lowercase());
        }
        _ => fold_char(c, into),
    }
}
