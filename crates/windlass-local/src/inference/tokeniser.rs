//! A byte-level BPE tokeniser, read from the metadata of a GGUF file.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::io::{Read, Seek};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::inference::gguf::GgufFile;
use crate::inference::split::SplitRules;

/// Token types in GGUF files.
const UNKNOWN_TOKEN: i128 = 2;
const CONTROL_TOKEN: i128 = 3;
const USER_DEFINED_TOKEN: i128 = 4;
const UNUSED_TOKEN: i128 = 5;

/// A byte-level BPE tokeniser.
pub(crate) struct GgufTokeniser {
    /// The bytes of every token. Those of a control token are its name, which is not text.
    tokens: Vec<Vec<u8>>,
    ids: HashMap<Vec<u8>, u32>,
    /// The rank of each merge and the token that it gives; lower ranks merge first.
    merge_ranks: HashMap<(u32, u32), (u32, u32)>,
    /// The token of each byte.
    byte_tokens: [u32; 256],
    /// Tokens that only a template can write, by their names.
    control_tokens: HashMap<String, u32>,
    /// The ids of those tokens.
    control_ids: HashSet<u32>,
    /// Tokens of white space that are matched in text before it is split.
    space_tokens: HashMap<String, u32>,
    /// The byte lengths of the tokens that are matched as a whole, the longest first.
    matched_lengths: Vec<usize>,
    /// The first characters of the control tokens.
    control_starts: HashSet<char>,
    rules: SplitRules,
    beginning: Option<u32>,
    adds_beginning: bool,
    longest_token: usize,
    pub(crate) end: u32,
}

/// A text that cannot become a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EncodeError {
    /// It has at least this many tokens, more than the limit.
    TooLong(usize),
    /// The caller no longer waits.
    Cancelled,
}

/// A rendered prompt in which text from outside the template cannot contain a control token.
///
/// Every place of the text at which a control token could begin is followed by the mark, a character that occurs nowhere
/// else. The template can trim and join such text as usual; the mark is removed when the prompt is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextMark(char);

impl TextMark {
    /// Returns a mark that occurs in none of the texts: a noncharacter of Unicode or a character for private use.
    pub(crate) fn absent_from<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let is_candidate =
            |letter: &char| matches!(letter, '\u{fdd0}'..='\u{fdef}' | '\u{f0000}'..='\u{10fffd}');
        let used: HashSet<char> = texts.flat_map(str::chars).filter(is_candidate).collect();
        let mut candidates = ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{10fffd}');
        Self(candidates.find(|letter| !used.contains(letter)).unwrap_or('\u{fdd0}'))
    }
}

/// Stands for a byte that the vocabulary lacks. Like llama.cpp, the tokeniser leaves it out.
const NO_TOKEN: u32 = u32::MAX;

/// Number of steps between two looks at the cancellation flag.
const STEPS_BETWEEN_LOOKS: usize = 4096;

impl GgufTokeniser {
    pub(crate) fn from_gguf<R: Read + Seek>(file: &GgufFile<R>) -> Result<Self, String> {
        let full = |name: &str| format!("tokenizer.ggml.{name}");
        match file.text(&full("model")) {
            Some("gpt2") => {}
            Some("llama") => {
                return Err(
                    "its tokeniser is SentencePiece (`llama`), which cannot be read; choose a file with a \
                            byte-level one (`gpt2`)"
                        .to_owned(),
                );
            }
            Some(other) => return Err(format!("its tokeniser is `{other}`; only `gpt2` can be read")),
            None => return Err("the file has no tokeniser".to_owned()),
        }
        let rules = SplitRules::from_name(file.text(&full("pre")).unwrap_or_default())?;
        let words = file.texts(&full("tokens"))?;
        let kinds = file.integers(&full("token_type"));
        let letters = byte_letters();
        let plain = |word: &str| -> Option<Vec<u8>> {
            word.chars().map(|letter| letters.get(&letter).copied()).collect()
        };
        let mut tokens = Vec::with_capacity(words.len());
        let mut ids = HashMap::with_capacity(words.len());
        let (mut control_tokens, mut control_ids, mut space_tokens) =
            (HashMap::new(), HashSet::new(), HashMap::new());
        for (at, word) in words.iter().enumerate() {
            let id = u32::try_from(at).map_err(|error| error.to_string())?;
            match kinds.get(at) {
                Some(&USER_DEFINED_TOKEN) if word.chars().all(char::is_whitespace) && !word.is_empty() => {
                    space_tokens.insert((*word).to_owned(), id);
                    tokens.push(word.as_bytes().to_vec());
                }
                Some(&(UNKNOWN_TOKEN | CONTROL_TOKEN | USER_DEFINED_TOKEN | UNUSED_TOKEN)) => {
                    control_ids.insert(id);
                    if !word.is_empty() {
                        control_tokens.insert((*word).to_owned(), id);
                    }
                    tokens.push(word.as_bytes().to_vec());
                }
                _ => {
                    let bytes = plain(word).unwrap_or_else(|| word.as_bytes().to_vec());
                    ids.entry(bytes.clone()).or_insert(id);
                    tokens.push(bytes);
                }
            }
        }
        let mut merge_ranks = HashMap::new();
        for (rank, merge) in file.texts(&full("merges"))?.iter().enumerate() {
            let rank = u32::try_from(rank).map_err(|error| error.to_string())?;
            let Some((left, right)) = merge.split_once(' ') else {
                return Err(format!("its merge {rank} is not a pair: `{merge}`"));
            };
            let (Some(left), Some(right)) = (plain(left), plain(right)) else { continue };
            let both = [left.as_slice(), &right].concat();
            if let (Some(left), Some(right), Some(both)) = (ids.get(&left), ids.get(&right), ids.get(&both)) {
                merge_ranks.entry((*left, *right)).or_insert((rank, *both));
            }
        }
        let mut byte_tokens = [NO_TOKEN; 256];
        for (byte, token) in (0..=255_u8).zip(&mut byte_tokens) {
            match ids.get([byte].as_slice()) {
                Some(id) => *token = *id,
                // Some vocabularies lack control characters.
                None if (b' '..=b'~').contains(&byte) => {
                    return Err(format!("its vocabulary has no token for the byte {byte}"));
                }
                None => {}
            }
        }
        let known_id = |name: &str| {
            let id = file.integer(&full(name)).and_then(|id| u32::try_from(id).ok());
            id.filter(|id| (*id as usize) < tokens.len())
        };
        let beginning = known_id("bos_token_id");
        let end = known_id("eos_token_id").ok_or("the file does not name its token for the end")?;
        let adds_beginning = file.flag(&full("add_bos_token")).unwrap_or(rules.adds_beginning);
        let matched = control_tokens.keys().chain(space_tokens.keys());
        let lengths: HashSet<usize> = matched.map(String::len).collect();
        let mut matched_lengths: Vec<usize> = lengths.into_iter().collect();
        matched_lengths.sort_unstable_by_key(|length| Reverse(*length));
        let control_starts = control_tokens.keys().filter_map(|name| name.chars().next()).collect();
        let longest_token = tokens.iter().map(Vec::len).max().unwrap_or(1).max(1);
        Ok(Self {
            tokens,
            ids,
            merge_ranks,
            byte_tokens,
            control_tokens,
            control_ids,
            space_tokens,
            matched_lengths,
            control_starts,
            rules,
            beginning,
            adds_beginning,
            longest_token,
            end,
        })
    }

    /// Returns the number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the bytes of a token; those of a control token are its name.
    pub(crate) fn token_bytes(&self, token: u32) -> &[u8] {
        self.tokens.get(token as usize).map_or(&[], Vec::as_slice)
    }

    /// True for tokens that do not stand for text.
    pub(crate) fn is_control(&self, token: u32) -> bool {
        self.control_ids.contains(&token)
    }

    /// True if the vocabulary has a control token of this name.
    pub(crate) fn has_control_token(&self, name: &str) -> bool {
        self.control_tokens.contains_key(name)
    }

    /// Returns the name of the token for the beginning.
    pub(crate) fn beginning_name(&self) -> &str {
        self.beginning.map_or("", |token| str::from_utf8(self.token_bytes(token)).unwrap_or_default())
    }

    /// Returns the name of the token for the end.
    pub(crate) fn end_name(&self) -> &str {
        str::from_utf8(self.token_bytes(self.end)).unwrap_or_default()
    }

    /// Marks text from outside the template, so that no part of it becomes a control token.
    pub(crate) fn mark_text(&self, text: &str, mark: TextMark) -> String {
        let mut marked = String::with_capacity(text.len() + 8);
        // The start is marked too, because a template may end with the start of a control token. White space stays at
        // the edge, where a template trims it.
        if text.chars().next().is_some_and(|first| !first.is_whitespace()) {
            marked.push(mark.0);
        }
        for letter in text.chars() {
            marked.push(letter);
            if self.control_starts.contains(&letter) && !letter.is_whitespace() {
                marked.push(mark.0);
            }
        }
        marked
    }

    /// Encodes a rendered prompt. It takes time proportional to the text, up to `max_tokens` tokens.
    ///
    /// # Errors
    ///
    /// Returns an error if the prompt is longer than `max_tokens`, or if `stop` was set.
    pub(crate) fn encode(
        &self,
        prompt: &str,
        mark: TextMark,
        max_tokens: usize,
        stop: &AtomicBool,
    ) -> Result<Vec<u32>, EncodeError> {
        // No token stands for more bytes than the longest, so a text that is far too long is refused unread.
        let marks = prompt.matches(mark.0).count() * mark.0.len_utf8();
        let fewest = (prompt.len() - marks) / self.longest_token;
        if fewest > max_tokens {
            return Err(EncodeError::TooLong(fewest));
        }
        let mut tokens = Vec::new();
        let (mut text_start, mut at) = (0, 0);
        while at < prompt.len() {
            match self.control_token_at(&prompt[at..]) {
                Some((length, token)) => {
                    self.encode_text(&prompt[text_start..at], mark, max_tokens, stop, &mut tokens)?;
                    tokens.push(token);
                    at += length;
                    text_start = at;
                }
                None => at += prompt[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        self.encode_text(&prompt[text_start..], mark, max_tokens, stop, &mut tokens)?;
        if let Some(beginning) = self.beginning
            && self.adds_beginning
            && tokens.first() != Some(&beginning)
        {
            tokens.insert(0, beginning);
        }
        if tokens.len() > max_tokens {
            return Err(EncodeError::TooLong(tokens.len()));
        }
        Ok(tokens)
    }

    fn control_token_at(&self, text: &str) -> Option<(usize, u32)> {
        let first = text.chars().next()?;
        let may_be_space = first.is_whitespace() && !self.space_tokens.is_empty();
        if !self.control_starts.contains(&first) && !may_be_space {
            return None;
        }
        let starts = self.matched_lengths.iter().filter_map(|length| text.get(..*length));
        let mut found = starts.filter_map(|start| {
            let token = self.control_tokens.get(start).or_else(|| self.space_tokens.get(start));
            token.map(|token| (start.len(), *token))
        });
        found.next()
    }

    fn encode_text(
        &self,
        text: &str,
        mark: TextMark,
        max_tokens: usize,
        stop: &AtomicBool,
        tokens: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        if text.is_empty() {
            return Ok(());
        }
        let unmarked;
        let text = if text.contains(mark.0) {
            unmarked = text.replace(mark.0, "");
            &unmarked
        } else {
            text
        };
        let (mut result, mut pieces) = (Ok(()), 0_usize);
        self.rules.split(text, |piece| {
            pieces += 1;
            if pieces.is_multiple_of(STEPS_BETWEEN_LOOKS) && stop.load(Ordering::Relaxed) {
                result = Err(EncodeError::Cancelled);
            } else if tokens.len() > max_tokens {
                result = Err(EncodeError::TooLong(tokens.len()));
            } else {
                result = self.encode_piece(piece.as_bytes(), stop, tokens);
            }
            result.is_ok()
        });
        result
    }

    /// Encodes text without looking for control tokens.
    pub(crate) fn encode_plain(&self, text: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        let never = AtomicBool::new(false);
        self.rules.split(text, |piece| self.encode_piece(piece.as_bytes(), &never, &mut tokens).is_ok());
        tokens
    }

    /// Merges adjacent pairs, the lowest rank first and the leftmost of the same rank, until none can be merged.
    fn encode_piece(
        &self,
        bytes: &[u8],
        stop: &AtomicBool,
        tokens: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        if self.rules.takes_whole_pieces
            && let Some(token) = self.ids.get(bytes)
        {
            tokens.push(*token);
            return Ok(());
        }
        let mut parts: Vec<u32> = bytes.iter().map(|byte| self.byte_tokens[usize::from(*byte)]).collect();
        if parts.len() < 2 {
            tokens.extend(parts.into_iter().filter(|token| *token != NO_TOKEN));
            return Ok(());
        }
        // The parts are a linked list. A part that was merged into the one before it is marked as gone.
        let count = parts.len();
        let mut is_gone = vec![false; count];
        let mut next: Vec<usize> = (1..=count).collect();
        let mut previous: Vec<usize> = (0..count).map(|at| at.wrapping_sub(1)).collect();
        let mut candidates = BinaryHeap::new();
        let offer = |candidates: &mut BinaryHeap<_>, parts: &[u32], left: usize, right: usize| {
            if let Some((rank, merged)) = self.merge_ranks.get(&(parts[left], parts[right])) {
                candidates.push(Reverse((*rank, left, right, parts[left], parts[right], *merged)));
            }
        };
        for left in 0..count - 1 {
            offer(&mut candidates, &parts, left, left + 1);
        }
        let mut steps = 0_usize;
        while let Some(Reverse((_, left, right, left_token, right_token, merged))) = candidates.pop() {
            steps += 1;
            if steps.is_multiple_of(STEPS_BETWEEN_LOOKS) && stop.load(Ordering::Relaxed) {
                return Err(EncodeError::Cancelled);
            }
            let is_stale = is_gone[left]
                || is_gone[right]
                || next[left] != right
                || parts[left] != left_token
                || parts[right] != right_token;
            if is_stale {
                continue;
            }
            parts[left] = merged;
            is_gone[right] = true;
            next[left] = next[right];
            if next[left] < count {
                previous[next[left]] = left;
                offer(&mut candidates, &parts, left, next[left]);
            }
            if previous[left] < count {
                offer(&mut candidates, &parts, previous[left], left);
            }
        }
        let kept = parts.iter().zip(&is_gone).filter(|(token, is_gone)| !**is_gone && **token != NO_TOKEN);
        tokens.extend(kept.map(|(token, _)| *token));
        Ok(())
    }
}

/// Returns the bytes for which the characters of byte-level BPE vocabularies stand.
pub(crate) fn byte_letters() -> HashMap<char, u8> {
    let mut letters = HashMap::with_capacity(256);
    let mut next = 256_u32;
    for byte in 0..=255_u8 {
        let has_own = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let letter = if has_own {
            char::from(byte)
        } else {
            let letter = char::from_u32(next).unwrap_or_default();
            next += 1;
            letter
        };
        letters.insert(letter, byte);
    }
    letters
}

#[cfg(test)]
#[path = "tokeniser_tests.rs"]
mod tests;
