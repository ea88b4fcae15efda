//! The table of word vectors that comes with the crate: no weights to fetch, no model to run.
//!
//! A text's vector is the sum of those of its words. What the table was made from, and how, stands in
//! `assets/README.md`.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::{EmbedError, Embedder, Purpose};
use crate::text::{fold, is_stop_word};

const TABLE: &[u8] = include_bytes!("../../assets/words.bin");
const MAGIC: &[u8] = b"WLWT0001";
const NAME: &str = "windlass-words-2";
/// The longest word that is looked for in pieces.
const LONGEST: usize = 48;

/// A table of vectors of English words and pieces of words. It knows no context, so it is weaker than a model and a
/// thousand times faster. Words of other scripts are not in it: texts of which it knows less than half have no vector.
#[derive(Clone)]
pub struct WordTable {
    words: Arc<HashMap<&'static str, u32>>,
    scales: Arc<Vec<f32>>,
    values: &'static [u8],
    dimensions: usize,
}

impl WordTable {
    /// The table. It is read once for each process, when it is first needed.
    pub fn shared() -> Result<Self, EmbedError> {
        static SHARED: OnceLock<Option<WordTable>> = OnceLock::new();
        SHARED
            .get_or_init(|| Self::read(TABLE))
            .clone()
            .ok_or_else(|| EmbedError::new(NAME, "the table that comes with the crate cannot be read"))
    }

    fn read(bytes: &'static [u8]) -> Option<Self> {
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
        whole.then(|| Self { words: Arc::new(words), scales: Arc::new(scales), values, dimensions })
    }

    /// Adds the vectors of a word's pieces, longest first. Says whether it is known.
    fn add(&self, word: &str, sum: &mut [f32]) -> bool {
        let mut rows = [0u32; LONGEST];
        let mut count = 0;
        let mut from = 0;
        let mut piece = String::with_capacity(LONGEST + 1);
        while from < word.len() {
            let found =
                (from + 1..=word.len()).rev().filter(|end| word.is_char_boundary(*end)).find_map(|end| {
                    piece.clear();
                    if from > 0 {
                        piece.push('#');
                    }
                    piece.push_str(&word[from..end]);
                    self.words.get(piece.as_str()).map(|row| (*row, end))
                });
            // A word of which a part is not known is not known.
            let Some((row, end)) = found else { return false };
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
        true
    }
}

impl Embedder for WordTable {
    fn name(&self) -> &str {
        NAME
    }

    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn weight(&self) -> f32 {
        0.25
    }

    fn embed(&self, texts: &[&str], _: Purpose) -> Result<Vec<Vec<f32>>, EmbedError> {
        let embed = |text: &&str| {
            let mut sum = vec![0f32; self.dimensions];
            let mut word = String::new();
            let (mut known, mut all) = (0, 0);
            for c in text.chars().chain([' ']) {
                if c.is_alphanumeric() && word.len() <= LONGEST {
                    fold(c, &mut word);
                } else if !word.is_empty() {
                    if word.len() <= LONGEST && !is_stop_word(&word) {
                        all += 1;
                        known += usize::from(self.add(&word, &mut sum));
                    }
                    word.clear();
                }
            }
            // A few names in a text of another language say nothing of what it means.
            if known * 2 < all { vec![0.0; self.dimensions] } else { sum }
        };
        Ok(texts.iter().map(embed).collect())
    }
}

impl std::fmt::Debug for WordTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WordTable").field("words", &self.words.len()).finish_non_exhaustive()
    }
}
