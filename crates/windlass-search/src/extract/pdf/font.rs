//! What the bytes of a text mean in a font: letters, and how wide they are.

use std::collections::BTreeMap;

use super::Document;
use super::glyph::{letter_of_name, mac_roman, win_ansi};
use super::object::{Dict, Object, Reader};

/// A map from codes to text is not read beyond this many entries.
const MOST_ENTRIES: usize = 70_000;

/// A font, as far as text needs it.
#[derive(Default)]
pub(super) struct Font {
    /// Two bytes make a letter.
    wide: bool,
    to_text: BTreeMap<u32, String>,
    /// What codes mean where there is no map, for fonts of one byte.
    letters: Vec<Option<char>>,
    widths: BTreeMap<u32, f64>,
    usual_width: f64,
}

/// A letter of a text.
pub(super) struct Shown {
    pub(super) text: Option<String>,
    /// In parts of the font's size.
    pub(super) width: f64,
    pub(super) is_space: bool,
}

impl Font {
    pub(super) fn read(document: &Document<'_>, dict: &Dict) -> Self {
        let wide = dict.name("Subtype") == Some("Type0");
        let mut font = Self { wide, usual_width: if wide { 1.0 } else { 0.5 }, ..Self::default() };
        let map = document.get(dict, "ToUnicode");
        if matches!(map, Object::Stream { .. })
            && let Ok(data) = document.data(map)
        {
            font.read_map(&data);
        }
        if wide {
            if let Object::List(below) = document.get(dict, "DescendantFonts")
                && let Some(below) = below.first().and_then(|object| document.resolve(object).as_dict())
            {
                font.read_wide_widths(document, below);
            }
        } else {
            font.read_letters(document, dict);
            font.read_widths(document, dict);
        }
        font
    }

    pub(super) fn show(&self, bytes: &[u8]) -> Vec<Shown> {
        let step = if self.wide { 2 } else { 1 };
        bytes
            .chunks(step)
            .map(|code| {
                let code = code.iter().fold(0u32, |code, byte| code << 8 | u32::from(*byte));
                let text = self.to_text.get(&code).cloned().or_else(|| {
                    let letter = self.letters.get(usize::try_from(code).ok()?).copied().flatten()?;
                    Some(ligature(letter).map_or_else(|| letter.to_string(), str::to_owned))
                });
                let width = self.widths.get(&code).copied().unwrap_or(self.usual_width);
                Shown { text, width, is_space: code == 32 && !self.wide }
            })
            .collect()
    }

    /// A map from codes to text, in the small language that such maps are written in.
    fn read_map(&mut self, data: &[u8]) {
        let mut reader = Reader::new(data, 0);
        let mut stack: Vec<Object> = Vec::new();
        while let Some(object) = reader.object(0) {
            let Object::Operator(word) = &object else {
                if stack.len() < MOST_ENTRIES {
                    stack.push(object);
                }
                continue;
            };
            match word.as_str() {
                "endbfchar" => {
                    for pair in stack.chunks(2) {
                        if let [Object::Text(code), Object::Text(text)] = pair {
                            self.add(number(code), utf_16(text));
                        }
                    }
                }
                "endbfrange" => {
                    for three in stack.chunks(3) {
                        self.add_range(three);
                    }
                }
                _ => {}
            }
            stack.clear();
        }
    }

    fn add_range(&mut self, range: &[Object]) {
        let [Object::Text(first), Object::Text(last), target] = range else { return };
        let (first, last) = (number(first), number(last));
        match target {
            Object::Text(text) => {
                let mut text = utf_16(text);
                for code in first..=last.min(first.saturating_add(0xffff)) {
                    self.add(code, text.clone());
                    let Some(end) = text.pop() else { return };
                    let Some(next) = char::from_u32(u32::from(end) + 1) else { return };
                    text.push(next);
                }
            }
            Object::List(texts) => {
                for (code, text) in (first..=last).zip(texts) {
                    if let Object::Text(text) = text {
                        self.add(code, utf_16(text));
                    }
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, code: u32, text: String) {
        if self.to_text.len() < MOST_ENTRIES && !text.is_empty() && text != "\0" {
            self.to_text.insert(code, text);
        }
    }

    fn read_letters(&mut self, document: &Document<'_>, dict: &Dict) {
        let encoding = document.get(dict, "Encoding");
        let base = match encoding {
            Object::Name(name) => Some(name.as_str()),
            other => other.as_dict().and_then(|dict| dict.name("BaseEncoding")),
        };
        let table = if base == Some("MacRomanEncoding") { mac_roman } else { win_ansi };
        self.letters = (0..=255).map(table).collect();
        let Some(differences) = encoding.as_dict().map(|dict| document.get(dict, "Differences")) else {
            return;
        };
        let Object::List(differences) = differences else { return };
        let mut code = 0usize;
        for object in differences {
            match object {
                Object::Number(number) => code = number.clamp(0.0, 255.0) as usize,
                Object::Name(name) => {
                    if let Some(letter) = self.letters.get_mut(code) {
                        *letter = letter_of_name(name);
                    }
                    code += 1;
                }
                _ => {}
            }
        }
    }

    fn read_widths(&mut self, document: &Document<'_>, dict: &Dict) {
        let first = document.number(dict.get("FirstChar")).unwrap_or(0.0);
        let Object::List(widths) = document.get(dict, "Widths") else { return };
        let first = first.clamp(0.0, 255.0) as u32;
        for (code, width) in (first..256).zip(widths) {
            if let Some(width) = document.number(Some(width)) {
                self.widths.insert(code, width / 1000.0);
            }
        }
    }

    fn read_wide_widths(&mut self, document: &Document<'_>, dict: &Dict) {
        if let Some(usual) = document.number(dict.get("DW")) {
            self.usual_width = usual / 1000.0;
        }
        let Object::List(list) = document.get(dict, "W") else { return };
        let code =
            |object: &Object| document.number(Some(object)).map(|code| code.clamp(0.0, 65_535.0) as u32);
        let mut at = 0;
        while let Some(first) = list.get(at).and_then(code) {
            match list.get(at + 1).map(|object| document.resolve(object)) {
                Some(Object::List(widths)) => {
                    for (code, width) in (first..=65_535).zip(widths) {
                        if let Some(width) = document.number(Some(width)) {
                            self.widths.insert(code, width / 1000.0);
                        }
                    }
                    at += 2;
                }
                Some(Object::Number(_)) => {
                    let last = list.get(at + 1).and_then(code).unwrap_or(first);
                    if let Some(width) = document.number(list.get(at + 2)) {
                        for code in first..=last {
                            self.widths.insert(code, width / 1000.0);
                        }
                    }
                    at += 3;
                }
                _ => return,
            }
        }
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn utf_16(bytes: &[u8]) -> String {
    if let [one] = bytes {
        return char::from(*one).to_string();
    }
    let units = bytes.chunks_exact(2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let text: String = char::decode_utf16(units).filter_map(Result::ok).collect();
    match text.chars().next().and_then(ligature) {
        Some(letters) if text.chars().count() == 1 => letters.to_owned(),
        _ => text,
    }
}

/// The letters that are drawn as one.
fn ligature(letter: char) -> Option<&'static str> {
    Some(match letter {
        'ﬀ' => "ff",
        'ﬁ' => "fi",
        'ﬂ' => "fl",
        'ﬃ' => "ffi",
        'ﬄ' => "ffl",
        'ﬆ' => "st",
        _ => return None,
    })
}
