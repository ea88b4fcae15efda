//! A kit for tests of programs that show untrusted text: the characters that hide or imitate something, and the inverse
//! of a literal.

/// Characters that hide text, move a cursor, change the direction of a line, or join what stands before them, and ordinary
/// ones that become part of an escape or of such a sequence.
pub const HOSTILE_CHARACTERS: &[char] = &[
    '\0',
    '\u{7}',
    '\u{8}',
    '\t',
    '\n',
    '\r',
    '\u{1b}',
    '\u{7f}',
    '\u{9b}',
    '\u{a0}',
    '\u{ad}',
    '\u{301}',
    '\u{336}',
    '\u{338}',
    '\u{3164}',
    '\u{200b}',
    '\u{200d}',
    '\u{200f}',
    '\u{2028}',
    '\u{202e}',
    '\u{2066}',
    '\u{2069}',
    '\u{20e3}',
    '\u{fe0f}',
    '\u{feff}',
    '\u{e0041}',
    '\u{e0101}',
    '\u{1100}',
    '\u{1f1e6}',
    '中',
    '❤',
    '│',
    '┊',
    '\\',
    '"',
    ' ',
    '1',
    'e',
];

/// Reads a literal of [`SafeText::quote`](crate::SafeText::quote) back. Returns `None` if the text is no such literal.
pub fn unquote(literal: &str) -> Option<String> {
    let inner = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::new();
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => return None,
            '\\' => text.push(read_escape(&mut letters)?),
            plain => text.push(plain),
        }
    }
    Some(text)
}

/// Reads the rest of an escape after its backslash.
fn read_escape(letters: &mut std::str::Chars<'_>) -> Option<char> {
    match letters.next()? {
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        'u' => {
            let (hex, rest) = letters.as_str().strip_prefix('{')?.split_once('}')?;
            *letters = rest.chars();
            char::from_u32(u32::from_str_radix(hex, 16).ok()?)
        }
        same @ ('\\' | '"') => Some(same),
        _ => None,
    }
}
