//! Fonts: decoding of string bytes to characters and glyph widths.

use std::collections::BTreeMap;

use super::PdfDocument;
use super::encoding::{char_for_glyph_name, mac_roman, win_ansi};
use super::object::{PdfDictionary, PdfObject, PdfObjectParser};

/// Maximum number of entries of a `ToUnicode` map.
const MAX_MAP_ENTRIES: usize = 70_000;
/// Maximum number of characters that one code maps to; a longer text is cut. Ligatures have three.
const MAX_CODE_CHARS: usize = 16;
/// Steps of the work budget that one mapping costs.
const MAPPING_STEPS: usize = 16;

/// The parts of a font that text extraction needs.
#[derive(Default)]
pub(super) struct PdfFont {
    /// True if a character code has two bytes (a composite font).
    is_two_byte: bool,
    to_unicode: BTreeMap<u32, String>,
    /// Characters by code for fonts with one-byte codes; used if the `ToUnicode` map has no entry.
    encoding: Vec<Option<char>>,
    widths: BTreeMap<u32, f64>,
    default_width: f64,
}

/// A decoded glyph of a string.
pub(super) struct PdfGlyph {
    pub(super) text: Option<String>,
    /// Width as a fraction of the font size.
    pub(super) width: f64,
    pub(super) is_space: bool,
}

impl PdfFont {
    pub(super) fn load(document: &PdfDocument<'_>, dict: &PdfDictionary) -> Self {
        let wide = dict.name_value("Subtype") == Some("Type0");
        let mut font =
            Self { is_two_byte: wide, default_width: if wide { 1.0 } else { 0.5 }, ..Self::default() };
        let map = document.resolve_key(dict, "ToUnicode");
        if matches!(map, PdfObject::Stream { .. })
            && let Ok(data) = document.decode_stream(map)
        {
            // Mappings beyond the budget are left out, and the page is reported by its next step.
            font.parse_to_unicode(document, &data).ok();
        }
        if wide {
            if let PdfObject::Array(below) = document.resolve_key(dict, "DescendantFonts")
                && let Some(below) = below.first().and_then(|object| document.resolve(object).as_dict())
            {
                font.load_cid_widths(document, below);
            }
        } else {
            font.load_encoding(document, dict);
            font.load_standard_widths(dict);
            font.load_widths(document, dict);
        }
        font
    }

    pub(super) fn decode_glyphs(&self, bytes: &[u8]) -> Vec<PdfGlyph> {
        let step = if self.is_two_byte { 2 } else { 1 };
        bytes
            .chunks(step)
            .map(|code| {
                let code = code.iter().fold(0u32, |code, byte| code << 8 | u32::from(*byte));
                let text = self.to_unicode.get(&code).cloned().or_else(|| {
                    let letter = self.encoding.get(usize::try_from(code).ok()?).copied().flatten()?;
                    Some(expand_ligature(letter).map_or_else(|| letter.to_string(), str::to_owned))
                });
                let width = self.widths.get(&code).copied().unwrap_or(self.default_width);
                PdfGlyph { text, width, is_space: code == 32 && !self.is_two_byte }
            })
            .collect()
    }

    /// Parses a `ToUnicode` CMap.
    ///
    /// # Errors
    ///
    /// Returns the reason if the work budget is exhausted.
    fn parse_to_unicode(&mut self, document: &PdfDocument<'_>, data: &[u8]) -> Result<(), String> {
        let mut reader = PdfObjectParser::new(data, 0);
        let mut stack: Vec<PdfObject> = Vec::new();
        while let Some(object) = reader.parse_object(0) {
            let PdfObject::Operator(word) = &object else {
                if stack.len() < MAX_MAP_ENTRIES {
                    stack.push(object);
                }
                continue;
            };
            match word.as_str() {
                "endbfchar" => {
                    for pair in stack.chunks(2) {
                        if let [PdfObject::String(code), PdfObject::String(text)] = pair {
                            document.spend_steps(MAPPING_STEPS)?;
                            self.add_mapping(code_from_bytes(code), decode_utf16(text));
                        }
                    }
                }
                "endbfrange" => {
                    for three in stack.chunks(3) {
                        self.add_mapping_range(document, three)?;
                    }
                }
                _ => {}
            }
            stack.clear();
        }
        Ok(())
    }

    fn add_mapping_range(&mut self, document: &PdfDocument<'_>, range: &[PdfObject]) -> Result<(), String> {
        let [PdfObject::String(first), PdfObject::String(last), target] = range else { return Ok(()) };
        let (first, last) = (code_from_bytes(first), code_from_bytes(last));
        match target {
            PdfObject::String(text) => {
                let mut text = decode_utf16(text);
                for code in first..=last.min(first.saturating_add(0xffff)) {
                    document.spend_steps(MAPPING_STEPS)?;
                    self.add_mapping(code, text.clone());
                    let Some(end) = text.pop() else { return Ok(()) };
                    let Some(next) = char::from_u32(u32::from(end) + 1) else { return Ok(()) };
                    text.push(next);
                }
            }
            PdfObject::Array(texts) => {
                for (code, text) in (first..=last).zip(texts) {
                    document.spend_steps(MAPPING_STEPS)?;
                    if let PdfObject::String(text) = text {
                        self.add_mapping(code, decode_utf16(text));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn add_mapping(&mut self, code: u32, text: String) {
        if self.to_unicode.len() < MAX_MAP_ENTRIES && !text.is_empty() && text != "\0" {
            self.to_unicode.insert(code, text);
        }
    }

    /// Loads the encoding of a simple font: a base encoding with `Differences`.
    fn load_encoding(&mut self, document: &PdfDocument<'_>, dict: &PdfDictionary) {
        let encoding = document.resolve_key(dict, "Encoding");
        let base = match encoding {
            PdfObject::Name(name) => Some(name.as_str()),
            other => other.as_dict().and_then(|dict| dict.name_value("BaseEncoding")),
        };
        let table = if base == Some("MacRomanEncoding") { mac_roman } else { win_ansi };
        self.encoding = (0..=255).map(table).collect();
        let Some(differences) = encoding.as_dict().map(|dict| document.resolve_key(dict, "Differences"))
        else {
            return;
        };
        let PdfObject::Array(differences) = differences else { return };
        let mut code = 0usize;
        for object in differences {
            match object {
                PdfObject::Number(number) => code = number.clamp(0.0, 255.0) as usize,
                PdfObject::Name(name) => {
                    if let Some(letter) = self.encoding.get_mut(code) {
                        *letter = char_for_glyph_name(name);
                    }
                    code += 1;
                }
                _ => {}
            }
        }
    }

    /// Loads the widths of the standard fonts, which files may leave out.
    fn load_standard_widths(&mut self, dict: &PdfDictionary) {
        let name = dict.name_value("BaseFont").unwrap_or_default();
        let widths = if name.contains("Courier") {
            self.default_width = 0.6;
            return;
        } else if name.contains("Times") {
            &TIMES_WIDTHS
        } else if name.contains("Helvetica") || name.contains("Arial") {
            &HELVETICA_WIDTHS
        } else {
            return;
        };
        self.widths.extend((32..).zip(widths).map(|(code, width)| (code, f64::from(*width) / 1000.0)));
    }

    fn load_widths(&mut self, document: &PdfDocument<'_>, dict: &PdfDictionary) {
        // Glyphs of a Type 3 font have a coordinate system of their own.
        let scale = match document.resolve_key(dict, "FontMatrix") {
            PdfObject::Array(matrix) if dict.name_value("Subtype") == Some("Type3") => {
                document.resolve_number(matrix.first()).map_or(0.001, f64::abs)
            }
            _ => 0.001,
        };
        let descriptor = document.resolve_dict(dict, "FontDescriptor");
        let missing =
            descriptor.and_then(|descriptor| document.resolve_number(descriptor.get("MissingWidth")));
        if let Some(missing) = missing.filter(|missing| *missing > 0.0) {
            self.default_width = missing * scale;
        }
        let first = document.resolve_number(dict.get("FirstChar")).unwrap_or(0.0);
        let PdfObject::Array(widths) = document.resolve_key(dict, "Widths") else { return };
        let first = first.clamp(0.0, 255.0) as u32;
        for (code, width) in (first..256).zip(widths) {
            if let Some(width) = document.resolve_number(Some(width)) {
                self.widths.insert(code, width * scale);
            }
        }
    }

    /// Loads the widths of a composite font (`DW` and `W`).
    fn load_cid_widths(&mut self, document: &PdfDocument<'_>, dict: &PdfDictionary) {
        if let Some(usual) = document.resolve_number(dict.get("DW")) {
            self.default_width = usual / 1000.0;
        }
        let PdfObject::Array(list) = document.resolve_key(dict, "W") else { return };
        let code = |object: &PdfObject| {
            document.resolve_number(Some(object)).map(|code| code.clamp(0.0, 65_535.0) as u32)
        };
        let mut at = 0;
        while let Some(first) = list.get(at).and_then(code) {
            match list.get(at + 1).map(|object| document.resolve(object)) {
                Some(PdfObject::Array(widths)) => {
                    for (code, width) in (first..=65_535).zip(widths) {
                        if document.spend_steps(MAPPING_STEPS).is_err() {
                            return;
                        }
                        if let Some(width) = document.resolve_number(Some(width)) {
                            self.widths.insert(code, width / 1000.0);
                        }
                    }
                    at += 2;
                }
                Some(PdfObject::Number(_)) => {
                    let last = list.get(at + 1).and_then(code).unwrap_or(first);
                    if let Some(width) = document.resolve_number(list.get(at + 2)) {
                        for code in first..=last {
                            if document.spend_steps(MAPPING_STEPS).is_err() {
                                return;
                            }
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

/// Widths of Helvetica and Times from code 32, in thousandths of the font size.
const HELVETICA_WIDTHS: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556,
    556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278,
    500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469,
    556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500,
    278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];
const TIMES_WIDTHS: [u16; 95] = [
    250, 333, 408, 500, 500, 833, 778, 180, 333, 333, 500, 564, 250, 333, 250, 278, 500, 500, 500, 500, 500,
    500, 500, 500, 500, 500, 278, 278, 564, 564, 564, 444, 921, 722, 667, 667, 722, 611, 556, 722, 722, 333,
    389, 722, 611, 889, 722, 722, 556, 722, 667, 556, 611, 722, 722, 944, 722, 722, 611, 333, 278, 333, 469,
    500, 333, 444, 500, 444, 500, 444, 333, 500, 500, 278, 278, 500, 278, 778, 500, 500, 500, 500, 333, 389,
    278, 500, 500, 722, 500, 500, 444, 480, 200, 480, 541,
];

fn code_from_bytes(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn decode_utf16(bytes: &[u8]) -> String {
    if let [one] = bytes {
        return char::from(*one).to_string();
    }
    let units = bytes.chunks_exact(2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let text: String = char::decode_utf16(units).filter_map(Result::ok).take(MAX_CODE_CHARS).collect();
    match text.chars().next().and_then(expand_ligature) {
        Some(letters) if text.chars().count() == 1 => letters.to_owned(),
        _ => text,
    }
}

/// Returns the letters of a typographic ligature.
fn expand_ligature(letter: char) -> Option<&'static str> {
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
