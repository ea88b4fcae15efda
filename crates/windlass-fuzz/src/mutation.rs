//! Derivation of inputs from a corpus.

use crate::input_rng::InputRng;

/// Texts that decoders of many formats treat specially.
const COMMON_WORDS: [&[u8]; 20] = [
    b"0",
    b"-1",
    b"1e308",
    b"18446744073709551615",
    b"9223372036854775808",
    b"4294967296",
    b"null",
    b"true",
    b"\"",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\r\n",
    b"\0",
    b"\xff\xfe",
    b"\xe2\x80\xae",
    b"\x1b[2J",
];

/// Derives an input: one of the corpus, changed in up to eight places.
pub(crate) fn mutate(rng: &mut InputRng, corpus: &[Vec<u8>], words: &[Vec<u8>], max_bytes: usize) -> Vec<u8> {
    let mut bytes = corpus[rng.below(corpus.len())].clone();
    for _ in 0..=rng.below(8) {
        change(rng, &mut bytes, corpus, words, max_bytes);
    }
    bytes.truncate(max_bytes);
    bytes
}

fn change(rng: &mut InputRng, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[Vec<u8>], max_bytes: usize) {
    let at = rng.below(bytes.len() + 1);
    let rest = bytes.len() - at;
    match rng.below(10) {
        // One bit, or one byte.
        0 | 1 if rest > 0 => bytes[at] ^= 1 << rng.below(8),
        2 if rest > 0 => bytes[at] = u8::try_from(rng.below(256)).unwrap_or_default(),
        3 => bytes.truncate(at),
        4 => _ = bytes.drain(at..at + rng.below(rest.min(64) + 1)),
        // A word of the format.
        5 | 6 => {
            let word = match rng.below(words.len() + COMMON_WORDS.len()) {
                place if place < words.len() => words[place].as_slice(),
                place => COMMON_WORDS[place - words.len()],
            };
            bytes.splice(at..at, word.iter().copied());
        }
        // A part of another input.
        7 => {
            let other = &corpus[rng.below(corpus.len())];
            let from = rng.below(other.len() + 1);
            let to = from + rng.below(other.len() - from + 1);
            bytes.splice(at..at, other[from..to].iter().copied());
        }
        // A part many times, for nesting and for bombs.
        8 => {
            let part = bytes[at..at + rng.below(rest.min(32) + 1)].to_vec();
            let room = max_bytes.saturating_sub(bytes.len()) / part.len().max(1);
            let times = rng.below(room.min(4_096) + 1);
            bytes.splice(at..at, part.repeat(times));
        }
        // A part moved elsewhere.
        _ => {
            let part: Vec<u8> = bytes.drain(at..at + rng.below(rest.min(128) + 1)).collect();
            let to = rng.below(bytes.len() + 1);
            bytes.splice(to..to, part);
        }
    }
}
