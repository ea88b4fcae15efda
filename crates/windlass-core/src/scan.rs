//! Finding one's way in JSON text without reading it: where strings and values end.

/// A one in every byte, and the highest bit of every byte.
const ONES: u64 = u64::MAX / 255;
pub(crate) const HIGH: u64 = ONES << 7;

/// How many bytes stand for themselves in a string, from the first on. None where nothing ends them.
#[inline]
pub(crate) fn plain_len(bytes: &[u8]) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let ends = ends_plain(u64::from_le_bytes(*word));
        if ends != 0 {
            return Some(at * 8 + ends.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' '))?;
    Some(words.len() * 8 + at)
}

/// The same of eight bytes, where one of them ends them.
#[inline]
pub(crate) fn plain_head(bytes: [u8; 8]) -> Option<usize> {
    let ends = ends_plain(u64::from_le_bytes(bytes));
    (ends != 0).then(|| ends.trailing_zeros() as usize / 8)
}

/// The lowest bit that is set is in the first byte that stands for more than itself in a string, or may not be in one.
#[inline]
fn ends_plain(word: u64) -> u64 {
    let below = |word: u64, byte: u8| word.wrapping_sub(ONES * u64::from(byte)) & !word;
    // With this bit turned, a quote comes right after what is below a space, and a space after it.
    let quote_or_control = below(word ^ (ONES * 2), b'"' - 1);
    (quote_or_control | below(word ^ (ONES * u64::from(b'\\')), 1)) & HIGH
}

/// Canonical text, which needs no check of its own: a place in it is the number of bytes before it. Places that
/// other text leads to are wrong, and never outside of it.
#[derive(Clone, Copy)]
pub(crate) struct Canonical<'a>(pub(crate) &'a str);

impl<'a> Canonical<'a> {
    /// The byte at a place; none is zero.
    #[inline]
    pub(crate) fn byte(self, at: usize) -> u8 {
        self.0.as_bytes().get(at).copied().unwrap_or_default()
    }

    /// Whether this is what stands there.
    pub(crate) fn is_at(self, at: usize, text: &[u8]) -> bool {
        self.0.as_bytes().get(at..).is_some_and(|rest| rest.starts_with(text))
    }

    /// The eight bytes from a place on; the first is the lowest, and none are zero.
    #[inline]
    pub(crate) fn word(self, at: usize) -> u64 {
        let rest = self.0.as_bytes().get(at..).unwrap_or_default();
        match rest.first_chunk::<8>() {
            Some(word) => u64::from_le_bytes(*word),
            None => rest.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte)),
        }
    }

    pub(crate) fn between(self, from: usize, until: usize) -> &'a str {
        self.0.get(from..until).unwrap_or_default()
    }

    /// The value that begins here.
    pub(crate) fn value(self, at: usize) -> &'a str {
        self.between(at, self.value_end(at))
    }

    /// What stands between the quotes of the string that begins here.
    pub(crate) fn string(self, at: usize) -> &'a str {
        self.between(at + 1, self.string_end(at) - 1)
    }

    /// Where the value that begins here ends.
    pub(crate) fn value_end(self, at: usize) -> usize {
        match self.byte(at) {
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

    /// Where the string whose first quote is here ends, the last quote included.
    #[inline]
    pub(crate) fn string_end(self, at: usize) -> usize {
        let ends = ends_plain(self.word(at + 1));
        let end = at + 1 + ends.trailing_zeros() as usize / 8;
        if ends != 0 && self.byte(end) == b'"' { end + 1 } else { self.long_string_end(at) }
    }

    fn long_string_end(self, at: usize) -> usize {
        let mut at = at + 1;
        loop {
            let rest = self.0.as_bytes().get(at..).unwrap_or_default();
            let Some(plain) = plain_len(rest) else { return self.0.len() };
            if rest[plain] != b'\\' {
                return at + plain + 1;
            }
            at += plain + 2;
        }
    }

    fn nested_end(self, at: usize) -> usize {
        let (mut at, mut depth) = (at, 0usize);
        loop {
            match self.byte(at) {
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
