//! The built-in table of static word vectors: no weights to download, no model to run.
//!
//! The vector of a text is the sum of the vectors of its words. `assets/README.md` documents the origin of the
//! table.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::{EmbedError, Embedder, EmbeddingPurpose};
use crate::text::{compose_text, fold_char, is_stop_word};

const TABLE_BYTES: &[u8] = include_bytes!("../../assets/words.bin");
const MAGIC: &[u8] = b"WLWT0001";
const EMBEDDER_NAME: &str = "windlass-words-2";
/// Minimum share of a text's words that are English words of the table, and not only composed of its pieces.
const MIN_KNOWN_SHARE: f32 = 0.6;
/// Maximum length in bytes of a word that is looked up.
const MAX_WORD_BYTES: usize = 48;

/// A table of static vectors of English words and word pieces. It ignores context, so it is less accurate than a
/// sentence model and a thousand times faster. A text of which fewer than 60 % of the words are English words of the
/// table gets a zero vector: the pieces cover every text in Latin letters, but mean nothing in other languages.
#[derive(Clone)]
pub struct WordVectorTable {
    piece_rows: Arc<HashMap<&'static str, u32>>,
    scales: Arc<Vec<f32>>,
    values: &'static [u8],
    dimensions: usize,
}

impl WordVectorTable {
    /// Returns the table, which is parsed once per process on first use.
    pub fn shared() -> Result<Self, EmbedError> {
        static SHARED: OnceLock<Option<WordVectorTable>> = OnceLock::new();
        SHARED
            .get_or_init(|| Self::parse(TABLE_BYTES))
            .clone()
            .ok_or_else(|| EmbedError::new(EMBEDDER_NAME, "the built-in table is malformed"))
    }

    fn parse(bytes: &'static [u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let mut number = || -> Option<usize> {
            let (four, after) = rest.split_first_chunk::<4>()?;
            rest = after;
            usize::try_from(u32::from_le_bytes(*four)).ok()
        };
        let (dimensions, rows, names) = (number()?, number()?, number()?);
        let (names, rest) = rest.split_at_checked(names)?;
        let (scales, values) = rest.split_at_checked(rows * 4)?;
        let names = std::str::from_utf8(names).ok()?;
        let words: HashMap<&str, u32> = names.split('\n').zip(0..).collect();
        let scales: Vec<f32> =
            scales.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
        let whole = words.len() == rows && values.len() == rows * dimensions;
        whole.then(|| Self { piece_rows: Arc::new(words), scales: Arc::new(scales), values, dimensions })
    }

    /// Adds the vectors of a word's pieces (greedy longest match) to `sum`. Returns the number of pieces; 0 if the table
    /// does not cover the word.
    fn add_word(&self, word: &str, sum: &mut [f32]) -> usize {
        let mut rows = [0u32; MAX_WORD_BYTES];
        let mut count = 0;
        let mut from = 0;
        let mut piece = String::with_capacity(MAX_WORD_BYTES + 1);
        while from < word.len() {
            let found =
                (from + 1..=word.len()).rev().filter(|end| word.is_char_boundary(*end)).find_map(|end| {
                    piece.clear();
                    if from > 0 {
                        piece.push('#');
                    }
                    piece.push_str(&word[from..end]);
                    self.piece_rows.get(piece.as_str()).map(|row| (*row, end))
                });
            // A word with an unknown piece is unknown.
            let Some((row, end)) = found else { return 0 };
            rows[count] = row;
            count += 1;
            from = end;
        }
        for row in &rows[..count] {
            let row = *row as usize;
            let scale = self.scales[row];
            let values = &self.values[row * self.dimensions..][..self.dimensions];
            for (sum, value) in sum.iter_mut().zip(values) {
                *sum += f32::from(value.cast_signed()) * scale;
            }
        }
        count
    }
}

impl Embedder for WordVectorTable {
    fn name(&self) -> &str {
        EMBEDDER_NAME
    }

    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn fusion_weight(&self) -> f32 {
        0.25
    }

    fn embed(&self, texts: &[&str], _: EmbeddingPurpose) -> Result<Vec<Vec<f32>>, EmbedError> {
        let embed = |text: &&str| {
            let mut sum = vec![0f32; self.dimensions];
            let mut word = String::new();
            let mut is_ascii = true;
            let (mut known, mut all) = (0.0f32, 0.0f32);
            for c in compose_text(text).chars().chain([' ']) {
                if c.is_alphanumeric() && word.len() <= MAX_WORD_BYTES {
                    fold_char(c, &mut word);
                    is_ascii &= c.is_ascii();
                } else if !word.is_empty() {
                    if word.len() <= MAX_WORD_BYTES && !is_stop_word(&word) {
                        all += 1.0;
                        let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
                        match self.add_word(&word, &mut sum) {
                            _ if is_number => all -= 1.0,
                            // English has no accents, but other languages without them have words of the table.
                            1 if is_ascii && word.len() > 2 => known += 1.0,
                            2 if is_ascii && word.len() > 6 => known += 0.5,
                            _ => {}
                        }
                    }
                    word.clear();
                    is_ascii = true;
                }
            }
            // A few known names in a text of another language do not represent its meaning.
            if known < MIN_KNOWN_SHARE * all { vec![0.0; self.dimensions] } else { sum }
        };
        Ok(texts.iter().map(embed).collect())
    }
}

impl std::fmt::Debug for WordVectorTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WordVectorTable").field("pieces", &self.piece_rows.len()).finish_non_exhaustive()
    }
}
