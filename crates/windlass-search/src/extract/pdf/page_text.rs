//! The text of a page: glyphs become words and lines by their places.
//!
//! Invariant: the text of a line is in reading order. Glyphs of a line with right-to-left letters are sorted by their
//! place and then reversed, because files have them in either order.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::compose;

/// Minimum distance between words, as a share of the height of a glyph. The spaces of a tight justified line are this
/// narrow, and corrections between letters are narrower.
const WORD_GAP: f64 = 0.1;

/// A glyph on the page.
#[derive(Clone, Debug)]
pub(super) struct PlacedGlyph {
    pub(super) text: String,
    pub(super) start_x: f64,
    pub(super) end_x: f64,
    pub(super) y: f64,
    pub(super) height: f64,
}

/// A page's text under construction.
#[derive(Default)]
pub(super) struct PageTextBuilder {
    text: String,
    /// Length of the text before the current line.
    line_start: usize,
    /// Glyphs of the current line, if it has right-to-left letters or may get some.
    line: Vec<PlacedGlyph>,
    last: Option<PlacedGlyph>,
    /// An accent whose letter has not been shown yet.
    accent: Option<PlacedGlyph>,
}

impl PageTextBuilder {
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Adds a glyph.
    pub(super) fn push(&mut self, mut glyph: PlacedGlyph) {
        if let Some(accent) = self.accent.take() {
            match combine(&accent, &glyph) {
                Some(text) => glyph.text = text,
                None => self.place(accent),
            }
        }
        if combining_mark(&glyph.text).is_some() {
            // Some producers show the accent after its letter.
            let letter = self.last.as_ref().filter(|last| self.text.ends_with(&last.text));
            if let Some((text, length)) =
                letter.and_then(|last| Some((combine(&glyph, last)?, last.text.len())))
            {
                self.text.truncate(self.text.len() - length);
                self.text.push_str(&text);
                for place in self.line.last_mut().into_iter().chain(&mut self.last) {
                    place.text.clone_from(&text);
                }
                return;
            }
            self.accent = Some(glyph);
            return;
        }
        self.place(glyph);
    }

    /// Returns the text.
    pub(super) fn finish(mut self) -> String {
        if let Some(accent) = self.accent.take() {
            self.place(accent);
        }
        self.finish_line();
        self.text
    }

    fn place(&mut self, glyph: PlacedGlyph) {
        self.separate(&glyph);
        self.text.push_str(&glyph.text);
        self.line.push(glyph.clone());
        self.last = Some(glyph);
    }

    /// Appends the separator before a glyph by its distance from the last one: nothing, a space, a line break or a
    /// blank line.
    fn separate(&mut self, glyph: &PlacedGlyph) {
        let Some(last) = &self.last else { return };
        let height = glyph.height.max(last.height);
        let down = (last.y - glyph.y).abs();
        if down > 0.6 * height {
            let is_near = down < 1.8 * height;
            self.finish_line();
            let before = self.text.strip_suffix(['-', '\u{2010}']);
            if is_near && before.is_some_and(|before| before.ends_with(char::is_alphabetic)) {
                // The word is hyphenated across lines.
                self.text.pop();
            } else {
                self.text.truncate(self.text.trim_end_matches(' ').len());
                self.text.push_str(if is_near { "\n" } else { "\n\n" });
            }
            self.line_start = self.text.len();
            return;
        }
        let right = glyph.start_x - last.end_x;
        let left = last.start_x - glyph.end_x;
        let is_apart = if is_right_to_left(&glyph.text) || is_right_to_left(&last.text) {
            right.max(left) > WORD_GAP * height
        } else {
            right > WORD_GAP * height || -right > 2.0 * height
        };
        if is_apart && !self.text.ends_with([' ', '\n']) {
            self.text.push(' ');
        }
    }

    /// Puts the glyphs of a line with right-to-left letters into reading order.
    fn finish_line(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        if !line.iter().any(|glyph| is_right_to_left(&glyph.text)) {
            return;
        }
        line.sort_by(|left, right| left.start_x.total_cmp(&right.start_x));
        let mut pieces: Vec<String> = Vec::with_capacity(line.len());
        let mut last: Option<&PlacedGlyph> = None;
        for glyph in &line {
            let is_apart = last
                .is_some_and(|last| glyph.start_x - last.end_x > WORD_GAP * glyph.height.max(last.height));
            if is_apart && glyph.text != " " && pieces.last().is_some_and(|last| last != " ") {
                pieces.push(" ".to_owned());
            }
            pieces.push(plain_letters(&glyph.text));
            last = Some(glyph);
        }
        let letters = |is_counted: fn(&str) -> bool| pieces.iter().filter(|piece| is_counted(piece)).count();
        let is_mostly_rtl = letters(is_right_to_left) * 2 >= letters(is_left_to_right);
        reverse_runs(&mut pieces, is_mostly_rtl);
        self.text.truncate(self.line_start);
        pieces.iter().for_each(|piece| self.text.push_str(piece));
    }
}

/// Reorders pieces from left-to-right places to reading order. In a right-to-left line, runs of left-to-right letters
/// and digits keep their order; in a left-to-right line, runs of right-to-left letters are reversed.
fn reverse_runs(pieces: &mut [String], is_line_rtl: bool) {
    if is_line_rtl {
        pieces.reverse();
    }
    let is_foreign =
        |piece: &str| if is_line_rtl { is_left_to_right(piece) } else { is_right_to_left(piece) };
    let is_native = |piece: &str| if is_line_rtl { is_right_to_left(piece) } else { is_left_to_right(piece) };
    let mut at = 0;
    while at < pieces.len() {
        if !is_foreign(&pieces[at]) {
            at += 1;
            continue;
        }
        // The run ends with the last foreign piece before a native one.
        let mut end = at + 1;
        let mut next = end;
        while next < pieces.len() && !is_native(&pieces[next]) {
            if is_foreign(&pieces[next]) {
                end = next + 1;
            }
            next += 1;
        }
        pieces[at..end].reverse();
        at = end;
    }
}

/// Returns true if the text has a letter of a script that is written from right to left.
fn is_right_to_left(text: &str) -> bool {
    text.chars().any(|c| {
        matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{feff}' | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}')
            && !is_arabic_digit(c)
    })
}

fn is_left_to_right(text: &str) -> bool {
    text.chars()
        .any(|c| is_arabic_digit(c) || (c.is_alphanumeric() && !is_right_to_left(c.encode_utf8(&mut [0; 4]))))
}

fn is_arabic_digit(c: char) -> bool {
    matches!(c, '\u{660}'..='\u{669}' | '\u{6f0}'..='\u{6f9}')
}

/// Returns the letters of Arabic and Hebrew presentation forms.
fn plain_letters(text: &str) -> String {
    let is_form = |c: char| matches!(c, '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}');
    if text.contains(is_form) { text.nfkc().collect() } else { text.to_owned() }
}

/// Returns the text of an accent and a letter that overlap; `None` if they stand apart or have no common form.
fn combine(accent: &PlacedGlyph, letter: &PlacedGlyph) -> Option<String> {
    let mark = combining_mark(&accent.text)?;
    let middle = f64::midpoint(accent.start_x, accent.end_x);
    let margin = 0.1 * letter.height;
    let is_over = middle > letter.start_x - margin && middle < letter.end_x + margin;
    if !is_over || (accent.y - letter.y).abs() > letter.height {
        return None;
    }
    let mut letters = letter.text.chars();
    let (Some(base), None) = (letters.next(), letters.next()) else { return None };
    let base = match base {
        'ı' => 'i',
        'ȷ' => 'j',
        other => other,
    };
    if !base.is_alphabetic() {
        return None;
    }
    Some(compose(base, mark).map_or_else(|| format!("{base}{mark}"), String::from))
}

/// Returns the combining mark of a text that is a single spacing accent.
fn combining_mark(text: &str) -> Option<char> {
    let mut chars = text.chars();
    let (Some(accent), None) = (chars.next(), chars.next()) else { return None };
    Some(match accent {
        '`' | '\u{2cb}' => '\u{300}',
        '´' | '\u{2ca}' => '\u{301}',
        'ˆ' | '^' => '\u{302}',
        '˜' | '~' => '\u{303}',
        '¯' | 'ˉ' => '\u{304}',
        '˘' => '\u{306}',
        '˙' => '\u{307}',
        '¨' => '\u{308}',
        '˚' => '\u{30a}',
        '˝' => '\u{30b}',
        'ˇ' => '\u{30c}',
        '¸' => '\u{327}',
        '˛' => '\u{328}',
        '\u{300}'..='\u{30c}' | '\u{327}' | '\u{328}' => accent,
        _ => return None,
    })
}
