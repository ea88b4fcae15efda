//! Splitting of text into pieces before byte pairs are merged. The rules are those of llama.cpp, written by hand: they
//! take time linear in the text, and no text is left out.

use std::sync::OnceLock;

/// The rules of a family of tokenisers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitRules {
    /// True if every digit is split off before all else, so that the rest is in separate texts.
    is_digit_first: bool,
    style: SplitStyle,
    /// True if a piece that is a token as a whole is not merged from its bytes.
    pub(crate) takes_whole_pieces: bool,
    /// True if prompts begin with the token for the beginning, unless the file says otherwise.
    pub(crate) adds_beginning: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SplitStyle {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Llama3 { max_digits: usize },
}

/// The names that are known, for errors.
const KNOWN_NAMES: &str = "gpt-2, smollm, starcoder, refact, command-r, codeshell, qwen2, stablelm2, deepseek-r1-qwen, \
                           llama-bpe, llama3, llama-v3, falcon3, pixtral";

impl SplitRules {
    /// Returns the rules of a name in a GGUF file.
    pub(crate) fn from_name(name: &str) -> Result<Self, String> {
        let plain = Self {
            is_digit_first: false,
            style: SplitStyle::Gpt2,
            takes_whole_pieces: false,
            adds_beginning: false,
        };
        Ok(match name {
            "gpt-2" => plain,
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => {
                Self { is_digit_first: true, ..plain }
            }
            "qwen2" | "stablelm2" | "deepseek-r1-qwen" => {
                Self { style: SplitStyle::Llama3 { max_digits: 1 }, ..plain }
            }
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" => Self {
                style: SplitStyle::Llama3 { max_digits: 3 },
                takes_whole_pieces: true,
                adds_beginning: true,
                ..plain
            },
            "" => {
                return Err(
                    "the file does not name its pre-tokeniser; convert it again with a current llama.cpp"
                        .to_owned(),
                );
            }
            other => return Err(format!("its pre-tokeniser is `{other}`; these are known: {KNOWN_NAMES}")),
        })
    }

    /// Calls `piece` with every piece of a text, until it returns false.
    pub(crate) fn split<'a>(self, text: &'a str, mut piece: impl FnMut(&'a str) -> bool) {
        if !self.is_digit_first {
            self.style.split(text, &mut piece);
            return;
        }
        let mut rest = text;
        while let Some(at) = rest.find(char::is_numeric) {
            let end = at + rest[at..].chars().next().map_or(1, char::len_utf8);
            if !self.style.split(&rest[..at], &mut piece) || !piece(&rest[at..end]) {
                return;
            }
            rest = &rest[end..];
        }
        self.style.split(rest, &mut piece);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharKind {
    Letter,
    Number,
    Space,
    Other,
}

fn kind_of(letter: char) -> CharKind {
    if is_letter(letter) {
        CharKind::Letter
    } else if letter.is_numeric() {
        CharKind::Number
    } else if letter.is_whitespace() {
        CharKind::Space
    } else {
        CharKind::Other
    }
}

/// Returns true for characters of the general category L. `char::is_alphabetic` also has marks and numbers.
fn is_letter(letter: char) -> bool {
    static RANGES: OnceLock<Vec<(char, char)>> = OnceLock::new();
    if letter.is_ascii() {
        return letter.is_ascii_alphabetic();
    }
    let ranges = RANGES.get_or_init(|| {
        let parsed = regex_syntax::Parser::new().parse(r"\p{L}");
        match parsed.map(regex_syntax::hir::Hir::into_kind) {
            Ok(regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class))) => {
                class.iter().map(|range| (range.start(), range.end())).collect()
            }
            _ => Vec::new(),
        }
    });
    let after = ranges.partition_point(|(start, _)| *start <= letter);
    after.checked_sub(1).is_some_and(|at| letter <= ranges[at].1)
}

impl SplitStyle {
    /// Calls `piece` with every piece of a text, until it returns false. Returns false if it did.
    fn split<'a>(self, text: &'a str, piece: &mut impl FnMut(&'a str) -> bool) -> bool {
        let mut rest = text;
        while !rest.is_empty() {
            let length = match self {
                Self::Gpt2 => gpt2_piece(rest),
                Self::Llama3 { max_digits } => llama3_piece(rest, max_digits),
            };
            let (first, after) = rest.split_at(length);
            if !piece(first) {
                return false;
            }
            rest = after;
        }
        true
    }
}

fn kind_at(text: &str, at: usize) -> Option<CharKind> {
    text[at..].chars().next().map(kind_of)
}

/// Returns the end of the characters of one kind that begin at `from`.
fn end_of(text: &str, from: usize, kind: CharKind) -> usize {
    text[from..]
        .char_indices()
        .find(|(_, letter)| kind_of(*letter) != kind)
        .map_or(text.len(), |(at, _)| from + at)
}

fn contraction(text: &str, ignore_case: bool) -> Option<usize> {
    let rest = text.strip_prefix('\'')?;
    let found = ["s", "t", "m", "d", "re", "ve", "ll"].into_iter().find(|word| {
        rest.get(..word.len())
            .is_some_and(|start| start == *word || (ignore_case && start.eq_ignore_ascii_case(word)))
    });
    found.map(|word| 1 + word.len())
}

/// Returns the length of a run of white space that ends before the last of several spaces, if more text follows.
fn space_piece(text: &str) -> usize {
    let end = end_of(text, 0, CharKind::Space);
    let last = text[..end].char_indices().next_back().map_or(0, |(at, _)| at);
    if end < text.len() && last > 0 { last } else { end }
}

fn gpt2_piece(text: &str) -> usize {
    if let Some(length) = contraction(text, false) {
        return length;
    }
    let after_space = usize::from(text.starts_with(' '));
    match kind_at(text, after_space) {
        Some(kind @ (CharKind::Letter | CharKind::Number | CharKind::Other)) => {
            end_of(text, after_space, kind)
        }
        Some(CharKind::Space) | None => space_piece(text),
    }
}

fn llama3_piece(text: &str, max_digits: usize) -> usize {
    if let Some(length) = contraction(text, true) {
        return length;
    }
    let Some(first) = text.chars().next() else { return 0 };
    let (kind, width) = (kind_of(first), first.len_utf8());
    let is_line_end = |letter: char| matches!(letter, '\r' | '\n');
    if kind == CharKind::Letter {
        return end_of(text, width, CharKind::Letter);
    }
    if !is_line_end(first) && kind != CharKind::Number && kind_at(text, width) == Some(CharKind::Letter) {
        return end_of(text, width, CharKind::Letter);
    }
    if kind == CharKind::Number {
        let digits = text.char_indices().take_while(|(_, letter)| kind_of(*letter) == CharKind::Number);
        return digits.take(max_digits).last().map_or(width, |(at, letter)| at + letter.len_utf8());
    }
    let after_space = usize::from(first == ' ');
    if kind_at(text, after_space) == Some(CharKind::Other) {
        let end = end_of(text, after_space, CharKind::Other);
        return text[end..].find(|letter| !is_line_end(letter)).map_or(text.len(), |length| end + length);
    }
    let end = end_of(text, 0, CharKind::Space);
    match text[..end].rfind(is_line_end) {
        Some(at) => at + 1,
        None => space_piece(text),
    }
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
