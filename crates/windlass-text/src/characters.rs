//! The characters that a person cannot see, or that change how other characters are shown.

use unicode_width::UnicodeWidthChar;

/// Number of combining marks that may follow one letter. More of them pile up over the lines above and below.
pub(crate) const MAX_COMBINING_MARKS: usize = 4;

/// Characters that are hidden, as inclusive ranges in ascending order, beside the control characters: format
/// characters, default-ignorable code points, separators other than the space, overlays that strike out a letter,
/// private use, and noncharacters.
const HIDDEN_RANGES: [(u32, u32); 46] = [
    (0x00a0, 0x00a0),     // no-break space
    (0x00ad, 0x00ad),     // soft hyphen
    (0x0334, 0x0338),     // overlays that strike out a letter
    (0x034f, 0x034f),     // combining grapheme joiner
    (0x0600, 0x0605),     // Arabic number signs, which enclose what follows
    (0x061c, 0x061c),     // Arabic letter mark
    (0x06dd, 0x06dd),     // Arabic end of ayah
    (0x070f, 0x070f),     // Syriac abbreviation mark
    (0x0890, 0x0891),     // Arabic pound and piastre marks
    (0x08e2, 0x08e2),     // Arabic disputed end of ayah
    (0x115f, 0x1160),     // Hangul fillers
    (0x1680, 0x1680),     // Ogham space
    (0x17b4, 0x17b5),     // Khmer inherent vowels
    (0x180b, 0x180f),     // Mongolian variation selectors
    (0x2000, 0x200f),     // spaces, zero-width characters, direction marks
    (0x2028, 0x202f),     // separators, embeddings, overrides
    (0x205f, 0x206f),     // invisible operators, isolates
    (0x20d2, 0x20d3),     // overlays
    (0x20d8, 0x20da),     // overlays
    (0x20dd, 0x20e0),     // enclosing marks
    (0x20e2, 0x20e6),     // enclosing marks and overlays
    (0x20ea, 0x20eb),     // overlays
    (0x2800, 0x2800),     // Braille blank
    (0x3000, 0x3000),     // ideographic space
    (0x3164, 0x3164),     // Hangul filler
    (0xd7fc, 0xf8ff),     // unassigned, surrogates, private use
    (0xfdd0, 0xfdef),     // noncharacters
    (0xfe00, 0xfe0f),     // variation selectors
    (0xfeff, 0xfeff),     // byte order mark
    (0xffa0, 0xffa0),     // half-width Hangul filler
    (0xfff0, 0xfffb),     // unassigned, interlinear annotation
    (0xfffe, 0xffff),     // noncharacters
    (0x110bd, 0x110bd),   // Kaithi number sign
    (0x110cd, 0x110cd),   // Kaithi number sign above
    (0x13430, 0x1345f),   // Egyptian hieroglyph format controls
    (0x16fe4, 0x16fe4),   // Khitan filler
    (0x1bca0, 0x1bca3),   // shorthand format controls
    (0x1d159, 0x1d159),   // null note head
    (0x1d173, 0x1d17a),   // musical format controls
    (0x1fffe, 0x1ffff),   // noncharacters
    (0x2fffe, 0x2ffff),   // noncharacters
    (0x323b0, 0xdffff),   // unassigned planes
    (0xe0000, 0xe0fff),   // tags, variation selectors
    (0xe1000, 0xeffff),   // unassigned
    (0xf0000, 0xfffff),   // private use
    (0x100000, 0x10ffff), // private use
];

/// Returns true if a person cannot see the character, or if it changes how other characters are shown: control
/// characters, bidirectional controls, zero-width and other invisible characters, spaces other than U+0020,
/// variation selectors, tags, overlays, private use and noncharacters.
pub fn is_hidden(letter: char) -> bool {
    if letter.is_control() {
        return true;
    }
    let code = u32::from(letter);
    if code < 0xa0 {
        return false;
    }
    let at = HIDDEN_RANGES.partition_point(|(_, last)| *last < code);
    HIDDEN_RANGES.get(at).is_some_and(|(first, _)| *first <= code)
}

/// Returns true for a mark that is drawn over the character before it.
pub(crate) fn is_combining(letter: char) -> bool {
    letter.width() == Some(0)
}

/// Returns true for a character that an emoji variation selector may follow in prose.
pub(crate) fn is_emoji_base(letter: char) -> bool {
    matches!(letter, '#' | '*' | '0'..='9' | '©' | '®' | '\u{203c}' | '\u{2049}' | '\u{2122}' | '\u{2139}')
        || matches!(letter, '\u{2190}'..='\u{2bff}' | '\u{3030}' | '\u{303d}' | '\u{1f000}'..='\u{1faff}')
}

/// Appends the escape of a character.
pub(crate) fn push_escape(out: &mut String, letter: char) {
    match letter {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        _ => out.extend(letter.escape_unicode()),
    }
}

/// The number of combining marks since the last letter, which decides whether another one may be shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CombiningState {
    has_letter: bool,
    marks: usize,
}

impl CombiningState {
    /// Notes the next character of the text; returns true if it may be shown as it is.
    pub(crate) fn admit(&mut self, letter: char) -> bool {
        if is_hidden(letter) {
            *self = Self::default();
            return false;
        }
        if is_combining(letter) {
            self.marks += 1;
            return self.has_letter && self.marks <= MAX_COMBINING_MARKS;
        }
        *self = Self { has_letter: letter.is_alphanumeric(), marks: 0 };
        true
    }
}
