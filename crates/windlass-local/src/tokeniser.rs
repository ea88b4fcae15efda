//! A byte-level BPE tokeniser, read from the metadata of a GGUF file.

use std::collections::HashMap;

use candle_core::quantized::gguf_file::{Content, Value};
use fancy_regex::Regex;
use toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};

/// Token types that GGUF files give to special tokens, which do not stand for text.
const CONTROL_TOKEN_TYPE: u64 = 3;
const USER_DEFINED_TOKEN_TYPE: u64 = 4;

/// A byte-level BPE tokeniser.
pub(crate) struct GgufTokeniser {
    trie: TokTrie,
    ids: HashMap<Vec<u8>, TokenId>,
    /// The rank of each merge and the token that it gives; lower ranks merge first.
    merge_ranks: HashMap<(TokenId, TokenId), (usize, TokenId)>,
    /// The special tokens with their text, the longest first.
    special_tokens: Vec<(String, TokenId)>,
    pre_tokeniser: Regex,
    pub(crate) eos: TokenId,
}

impl GgufTokeniser {
    pub(crate) fn from_gguf(content: &Content) -> Result<Self, String> {
        let field = |name: &str| {
            let full = format!("tokenizer.ggml.{name}");
            content.metadata.get(&full).ok_or_else(|| format!("the file has no `{full}`"))
        };
        let model = as_text(field("model")?)?;
        if model != "gpt2" {
            return Err(format!("its tokens are of the kind `{model}`, and only `gpt2` can be read"));
        }
        let words = as_texts(field("tokens")?)?;
        let kinds: Vec<u64> = match field("token_type") {
            Ok(Value::Array(kinds)) => kinds.iter().map(as_number).collect(),
            _ => Vec::new(),
        };
        let is_special =
            |at: usize| matches!(kinds.get(at), Some(&CONTROL_TOKEN_TYPE | &USER_DEFINED_TOKEN_TYPE));
        let letters = byte_letters();
        let (mut bytes, mut ids, mut special) = (Vec::new(), HashMap::new(), Vec::new());
        for (at, word) in words.iter().enumerate() {
            let id = TokenId::try_from(at).map_err(|error| error.to_string())?;
            if is_special(at) {
                // The marker tells the trie that the token is not text.
                let marked: Vec<u8> =
                    [TokTrie::SPECIAL_TOKEN_MARKER].into_iter().chain(word.bytes()).collect();
                bytes.push(marked);
                special.push((word.clone(), id));
                continue;
            }
            let plain: Option<Vec<u8>> = word.chars().map(|letter| letters.get(&letter).copied()).collect();
            let plain = plain.unwrap_or_else(|| word.as_bytes().to_vec());
            ids.entry(plain.clone()).or_insert(id);
            bytes.push(plain);
        }
        special.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        let ranks = parse_merges(&as_texts(field("merges")?)?, &letters, &ids)?;
        let eos = TokenId::try_from(as_number(field("eos_token_id")?)).map_err(|error| error.to_string())?;
        let count = u32::try_from(bytes.len()).map_err(|error| error.to_string())?;
        let trie = TokTrie::from(&TokRxInfo::new(count, eos), &bytes);
        let pieces = Regex::new(pre_tokeniser_pattern(field("pre").and_then(as_text).unwrap_or_default()))
            .map_err(|error| error.to_string())?;
        Ok(Self { trie, ids, merge_ranks: ranks, special_tokens: special, pre_tokeniser: pieces, eos })
    }

    /// Encodes a prompt. The text of a special token becomes that token.
    pub(crate) fn encode(&self, text: &str) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let next = self
                .special_tokens
                .iter()
                .filter_map(|(word, id)| rest.find(word.as_str()).map(|at| (at, word.len(), *id)))
                .min_by_key(|(at, length, _)| (*at, std::cmp::Reverse(*length)));
            let (plain, special) = match next {
                Some((at, length, id)) => (&rest[..at], Some((at + length, id))),
                None => (rest, None),
            };
            self.encode_plain(plain, &mut tokens);
            match special {
                Some((end, id)) => {
                    tokens.push(id);
                    rest = &rest[end..];
                }
                None => rest = "",
            }
        }
        tokens
    }

    /// Encodes text without recognising special tokens.
    pub(crate) fn encode_plain(&self, text: &str, tokens: &mut Vec<TokenId>) {
        for piece in self.pre_tokeniser.find_iter(text).flatten() {
            self.merge_pairs(piece.as_str().as_bytes(), tokens);
        }
    }

    /// Merges adjacent pairs, the lowest rank first, until none can be merged.
    fn merge_pairs(&self, bytes: &[u8], tokens: &mut Vec<TokenId>) {
        let mut parts: Vec<TokenId> =
            bytes.iter().filter_map(|byte| self.ids.get(&vec![*byte]).copied()).collect();
        loop {
            let pairs = parts.windows(2).enumerate();
            let ranked = pairs.filter_map(|(at, pair)| {
                self.merge_ranks.get(&(pair[0], pair[1])).map(|(rank, merged)| (*rank, at, *merged))
            });
            let Some((_, at, merged)) = ranked.min() else { break };
            parts[at] = merged;
            parts.remove(at + 1);
        }
        tokens.extend(parts);
    }

    pub(crate) fn token_bytes(&self, token: TokenId) -> Vec<u8> {
        self.trie.decode(&[token])
    }

    /// Returns the text of a special token.
    pub(crate) fn special_text(&self, token: TokenId) -> Option<&str> {
        self.special_tokens.iter().find(|(_, id)| *id == token).map(|(word, _)| word.as_str())
    }
}

impl TokenizerEnv for GgufTokeniser {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let mut tokens = Vec::new();
            self.encode_plain(text, &mut tokens);
            tokens
        })
    }
}

fn parse_merges(
    merges: &[String],
    letters: &HashMap<char, u8>,
    ids: &HashMap<Vec<u8>, TokenId>,
) -> Result<HashMap<(TokenId, TokenId), (usize, TokenId)>, String> {
    let plain = |word: &str| -> Option<Vec<u8>> {
        word.chars().map(|letter| letters.get(&letter).copied()).collect()
    };
    let mut ranks = HashMap::with_capacity(merges.len());
    for (rank, merge) in merges.iter().enumerate() {
        let Some((left, right)) = merge.split_once(' ') else {
            return Err(format!("merge {rank} is not a pair: `{merge}`"));
        };
        let (Some(left), Some(right)) = (plain(left), plain(right)) else { continue };
        let both = [left.clone(), right.clone()].concat();
        if let (Some(left), Some(right), Some(both)) = (ids.get(&left), ids.get(&right), ids.get(&both)) {
            ranks.entry((*left, *right)).or_insert((rank, *both));
        }
    }
    Ok(ranks)
}

/// Returns the regular expression that splits text before merging. `pre` is the name in the GGUF file.
fn pre_tokeniser_pattern(pre: &str) -> &'static str {
    match pre {
        "smollm" => r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        "qwen2" => {
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        "llama-bpe" | "llama3" => {
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        _ => r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    }
}

/// Returns the characters that stand for the 256 bytes in byte-level BPE vocabularies.
fn byte_letters() -> HashMap<char, u8> {
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

fn as_text(value: &Value) -> Result<&str, String> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(format!("{other:?} is no text")),
    }
}

fn as_texts(value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::Array(values) => values.iter().map(|value| as_text(value).map(str::to_owned)).collect(),
        other => Err(format!("{other:?} is no list")),
    }
}

fn as_number(value: &Value) -> u64 {
    match value {
        Value::U8(number) => u64::from(*number),
        Value::U16(number) => u64::from(*number),
        Value::U32(number) => u64::from(*number),
        Value::U64(number) => *number,
        Value::I32(number) => u64::try_from(*number).unwrap_or_default(),
        Value::I64(number) => u64::try_from(*number).unwrap_or_default(),
        _ => 0,
    }
}
