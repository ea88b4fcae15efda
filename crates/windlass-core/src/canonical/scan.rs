//! Navigation in JSON text without parsing: finds the ends of strings and values.

/// Masks with the lowest and with the highest bit of every byte set.
const LOW_BITS: u64 = u64::MAX / 255;
pub(crate) const HIGH_BITS: u64 = LOW_BITS << 7;

/// Returns the number of leading bytes that stand for themselves in a JSON string; `None` if no byte ends them.
#[inline]
pub(crate) fn plain_prefix_len(bytes: &[u8]) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let ends = plain_end_mask(u64::from_le_bytes(*word));
        if ends != 0 {
            return Some(at * 8 + ends.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' '))?;
    Some(words.len() * 8 + at)
}

/// Returns the same for eight bytes; `None` if all eight stand for themselves.
#[inline]
pub(crate) fn plain_prefix_len_of_word(bytes: [u8; 8]) -> Option<usize> {
    let ends = plain_end_mask(u64::from_le_bytes(bytes));
    (ends != 0).then(|| ends.trailing_zeros() as usize / 8)
}

/// Returns a mask whose lowest set bit is in the first byte that is a quote, a backslash or a control
/// character.
#[inline]
fn plain_end_mask(word: u64) -> u64 {
    let below = |word: u64, byte: u8| word.wrapping_sub(LOW_BITS * u64::from(byte)) & !word;
    // Flipping bit 1 maps the quote to the value directly above the control characters, and the space above the
    // quote.
    let quote_or_control = below(word ^ (LOW_BITS * 2), b'"' - 1);
    (quote_or_control | below(word ^ (LOW_BITS * u64::from(b'\\')), 1)) & HIGH_BITS
}

/// Canonical JSON text, which is trusted to be valid. Positions are byte offsets. For text that is not
/// canonical, positions are wrong but never out of bounds.
#[derive(Clone, Copy)]
pub(crate) struct CanonicalText<'a>(pub(crate) &'a str);

impl<'a> CanonicalText<'a> {
    /// Returns the byte at a position; 0 past the end.
    #[inline]
    pub(crate) fn byte_at(self, at: usize) -> u8 {
        self.0.as_bytes().get(at).copied().unwrap_or_default()
    }

    /// Returns true if the text at a position starts with `text`.
    pub(crate) fn starts_with_at(self, at: usize, text: &[u8]) -> bool {
        self.0.as_bytes().get(at..).is_some_and(|rest| rest.starts_with(text))
    }

    /// Returns the eight bytes at a position, the first in the lowest byte; bytes past the end are 0.
    #[inline]
    pub(crate) fn word_at(self, at: usize) -> u64 {
        let rest = self.0.as_bytes().get(at..).unwrap_or_default();
        match rest.first_chunk::<8>() {
            Some(word) => u64::from_le_bytes(*word),
            None => rest.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte)),
        }
    }

    pub(crate) fn slice(self, from: usize, until: usize) -> &'a str {
        self.0.get(from..until).unwrap_or_default()
    }

    /// Returns the value that starts at a position.
    pub(crate) fn value_at(self, at: usize) -> &'a str {
        self.slice(at, self.value_end(at))
    }

    /// Returns the text between the quotes of the string that starts at a position.
    pub(crate) fn string_at(self, at: usize) -> &'a str {
        self.slice(at + 1, self.string_end(at) - 1)
    }

    /// Returns the end of the value that starts at a position.
    pub(crate) fn value_end(self, at: usize) -> usize {
        match self.byte_at(at) {
            b'"' => self.string_end(at),
            b'{' | b'[' => self.nested_end(at),
            b't' | b'n' => at + 4,
            b'f' => at + 5,
            _ => {
                let rest = self.0.as_bytes().get(at..).unwrap_or_default();
                at + rest
                    .iter()
                    .position(|byte| matches!(byte, b',' | b'}' | b']'))
                    .unwrap_or(rest.len())
                    .max(1)
            }
        }
    }

    /// Returns the end of the string that starts at a position, including its closing quote.
    #[inline]
    pub(crate) fn string_end(self, at: usize) -> usize {
        let ends = plain_end_mask(self.word_at(at + 1));
        let end = at + 1 + ends.trailing_zeros() as usize / 8;
        if ends != 0 && self.byte_at(end) == b'"' { end + 1 } else { self.long_string_end(at) }
    }

    fn long_string_end(self, at: usize) -> usize {
        let mut at = at + 1;
        loop {
            let rest = self.0.as_bytes().get(at..).unwrap_or_default();
            let Some(plain) = plain_prefix_len(rest) else { return self.0.len() };
            if rest[plain] != b'\\' {
                return at + plain + 1;
            }
            at += plain + 2;
        }
    }

    fn nested_end(self, at: usize) -> usize {
        let (mut at, mut depth) = (at, 0usize);
        loop {
            match self.byte_at(at) {
                b'"' => {
                    at = self.string_end(at);
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                0 => return self.0.len(),
                _ => {}
            }
            at += 1;
            if depth == 0 {
                return at;
            }
        }
    }
}
