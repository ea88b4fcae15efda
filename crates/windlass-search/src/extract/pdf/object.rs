//! PDF objects and their parser.

use std::collections::BTreeMap;

use super::{MAX_DEPTH, find_bytes};

/// A PDF object, or an operator of a content stream.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PdfObject {
    Null,
    Bool(bool),
    Number(f64),
    Name(String),
    String(Vec<u8>),
    Array(Vec<Self>),
    Dictionary(PdfDictionary),
    Reference(u32),
    /// A stream: its dictionary, and the byte range of its encoded data in the file.
    Stream {
        dict: PdfDictionary,
        start: usize,
        end: usize,
    },
    /// An operator or keyword of a content stream.
    Operator(String),
}

/// A PDF dictionary.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PdfDictionary(BTreeMap<String, PdfObject>);

impl PdfDictionary {
    pub(super) fn get(&self, key: &str) -> Option<&PdfObject> {
        self.0.get(key)
    }

    /// Returns a dictionary with the same keys and other values.
    pub(super) fn map_values(&self, value: impl Fn(&PdfObject) -> PdfObject) -> Self {
        Self(self.0.iter().map(|(key, object)| (key.clone(), value(object))).collect())
    }

    /// Returns the value of a key if it is a name object.
    pub(super) fn name_value(&self, key: &str) -> Option<&str> {
        match self.0.get(key) {
            Some(PdfObject::Name(name)) => Some(name),
            _ => None,
        }
    }
}

impl PdfObject {
    pub(super) fn as_dict(&self) -> Option<&PdfDictionary> {
        match self {
            Self::Dictionary(dict) | Self::Stream { dict, .. } => Some(dict),
            _ => None,
        }
    }
}

/// Returns the object number and the generation that precede the keyword `obj` at `at`.
pub(super) fn object_number_before(bytes: &[u8], at: usize) -> Option<(u32, u32)> {
    let digits = |end: usize| -> Option<(usize, usize)> {
        let spaced = bytes[..end].iter().rposition(|byte| !is_whitespace(*byte))? + 1;
        let length = bytes[..spaced].iter().rev().take(10).take_while(|byte| byte.is_ascii_digit()).count();
        (length > 0).then_some((spaced - length, spaced))
    };
    let (generation, generation_end) = digits(at)?;
    let (from, to) = digits(generation)?;
    if to == generation {
        return None;
    }
    let number = |range: std::ops::Range<usize>| std::str::from_utf8(&bytes[range]).ok()?.parse().ok();
    Some((number(from..to)?, number(generation..generation_end)?))
}

/// A parser that reads objects sequentially from bytes.
pub(super) struct PdfObjectParser<'a> {
    bytes: &'a [u8],
    pub(super) position: usize,
}

impl<'a> PdfObjectParser<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, position: at.min(bytes.len()) }
    }

    /// Parses the body of an indirect object, which may be a stream.
    pub(super) fn parse_indirect_object(&mut self) -> Option<PdfObject> {
        let object = self.parse_object(0)?;
        let PdfObject::Dictionary(dict) = object else { return Some(object) };
        self.skip_whitespace();
        if !self.remaining().starts_with(b"stream") {
            return Some(PdfObject::Dictionary(dict));
        }
        let mut from = self.position + 6;
        if self.bytes.get(from) == Some(&b'\r') {
            from += 1;
        }
        if self.bytes.get(from) == Some(&b'\n') {
            from += 1;
        }
        let to = self.find_stream_end(&dict, from);
        self.position = to;
        Some(PdfObject::Stream { dict, start: from.min(to), end: to })
    }

    /// Returns the end of a stream: by its `Length` if `endstream` follows there, else by searching for
    /// `endstream`.
    fn find_stream_end(&self, dict: &PdfDictionary, from: usize) -> usize {
        if let Some(PdfObject::Number(length)) = dict.get("Length") {
            let end = from.saturating_add(length.clamp(0.0, 4e9) as usize);
            let after = self.bytes.get(end..).map(|rest| &rest[..rest.len().min(20)]);
            if after.is_some_and(|after| after.trim_ascii_start().starts_with(b"endstream")) {
                return end;
            }
        }
        find_bytes(self.bytes, b"endstream", from.min(self.bytes.len())).unwrap_or(self.bytes.len())
    }

    /// Parses the next object; `None` at the end of the input or if the nesting is too deep.
    pub(super) fn parse_object(&mut self, depth: usize) -> Option<PdfObject> {
        self.skip_whitespace();
        let byte = *self.bytes.get(self.position)?;
        if depth > MAX_DEPTH {
            self.position = self.bytes.len();
            return None;
        }
        match byte {
            b'/' => Some(PdfObject::Name(self.parse_name())),
            b'(' => Some(PdfObject::String(self.parse_literal_string())),
            b'<' if self.remaining().starts_with(b"<<") => {
                self.position += 2;
                Some(PdfObject::Dictionary(self.parse_dictionary(depth)))
            }
            b'<' => Some(PdfObject::String(self.parse_hex_string())),
            b'[' => {
                self.position += 1;
                Some(PdfObject::Array(self.parse_array(depth)))
            }
            b'+' | b'-' | b'.' | b'0'..=b'9' => Some(self.parse_number_or_reference()),
            b']' | b'>' | b')' | b'{' | b'}' => {
                self.position += 1;
                Some(PdfObject::Operator(char::from(byte).to_string()))
            }
            _ => Some(self.parse_keyword()),
        }
    }

    /// Parses the next unsigned integer.
    pub(super) fn parse_unsigned(&mut self) -> Option<usize> {
        self.skip_whitespace();
        let length = self.remaining().iter().take(10).take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&self.remaining()[..length]).ok()?.parse().ok()?;
        self.position += length;
        Some(number)
    }

    /// Skips the data of an inline image in a content stream.
    pub(super) fn skip_inline_image(&mut self) {
        let mut from = self.position;
        while let Some(end) = find_bytes(self.bytes, b"EI", from) {
            from = end + 2;
            let before = end.checked_sub(1).and_then(|at| self.bytes.get(at));
            let after = self.bytes.get(end + 2);
            if before.is_some_and(|byte| is_whitespace(*byte))
                && after.is_none_or(|byte| is_whitespace(*byte))
            {
                self.position = end + 2;
                return;
            }
        }
        self.position = self.bytes.len();
    }

    fn remaining(&self) -> &'a [u8] {
        &self.bytes[self.position..]
    }

    fn skip_whitespace(&mut self) {
        while let Some(byte) = self.bytes.get(self.position) {
            if is_whitespace(*byte) {
                self.position += 1;
            } else if *byte == b'%' {
                let line = self.remaining().iter().position(|byte| matches!(byte, b'\r' | b'\n'));
                self.position += line.unwrap_or(self.remaining().len());
            } else {
                return;
            }
        }
    }

    fn parse_name(&mut self) -> String {
        self.position += 1;
        let length = self.remaining().iter().take(256).take_while(|byte| is_regular(**byte)).count();
        let raw = &self.remaining()[..length];
        self.position += length;
        let mut name = Vec::with_capacity(length);
        let mut at = 0;
        while at < raw.len() {
            let code = (raw[at] == b'#').then(|| raw.get(at + 1..at + 3)).flatten();
            match code
                .and_then(|two| std::str::from_utf8(two).ok())
                .and_then(|two| u8::from_str_radix(two, 16).ok())
            {
                Some(byte) => {
                    name.push(byte);
                    at += 3;
                }
                None => {
                    name.push(raw[at]);
                    at += 1;
                }
            }
        }
        String::from_utf8_lossy(&name).into_owned()
    }

    fn parse_literal_string(&mut self) -> Vec<u8> {
        self.position += 1;
        let mut out = Vec::new();
        let mut open = 1;
        while let Some(byte) = self.next_byte() {
            match byte {
                b'(' => open += 1,
                b')' => {
                    open -= 1;
                    if open == 0 {
                        break;
                    }
                }
                b'\\' => {
                    self.parse_escape(&mut out);
                    continue;
                }
                _ => {}
            }
            out.push(byte);
        }
        out
    }

    fn parse_escape(&mut self, out: &mut Vec<u8>) {
        let Some(byte) = self.next_byte() else { return };
        match byte {
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'\r' => {
                if self.bytes.get(self.position) == Some(&b'\n') {
                    self.position += 1;
                }
            }
            b'\n' => {}
            b'0'..=b'7' => {
                let mut code = u32::from(byte - b'0');
                for _ in 0..2 {
                    match self.bytes.get(self.position) {
                        Some(digit @ b'0'..=b'7') => {
                            code = code * 8 + u32::from(digit - b'0');
                            self.position += 1;
                        }
                        _ => break,
                    }
                }
                out.push(code.to_le_bytes()[0]);
            }
            other => out.push(other),
        }
    }

    fn next_byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.position)?;
        self.position += 1;
        Some(byte)
    }

    fn parse_hex_string(&mut self) -> Vec<u8> {
        self.position += 1;
        let mut out = Vec::new();
        let mut half: Option<u8> = None;
        while let Some(byte) = self.next_byte() {
            let value = match byte {
                b'>' => break,
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                b'A'..=b'F' => byte - b'A' + 10,
                _ => continue,
            };
            match half.take() {
                Some(high) => out.push(high << 4 | value),
                None => half = Some(value),
            }
        }
        out.extend(half.map(|high| high << 4));
        out
    }

    fn parse_dictionary(&mut self, depth: usize) -> PdfDictionary {
        let mut dict = BTreeMap::new();
        loop {
            self.skip_whitespace();
            if self.remaining().starts_with(b">>") {
                self.position += 2;
                break;
            }
            match self.parse_object(depth + 1) {
                Some(PdfObject::Name(key)) => match self.parse_object(depth + 1) {
                    Some(value) => _ = dict.insert(key, value),
                    None => break,
                },
                // The dictionary is truncated.
                Some(PdfObject::Operator(word)) if word == "endobj" || word == "stream" => {
                    self.position -= word.len();
                    break;
                }
                Some(_) => {}
                None => break,
            }
        }
        PdfDictionary(dict)
    }

    fn parse_array(&mut self, depth: usize) -> Vec<PdfObject> {
        let mut list = Vec::new();
        loop {
            self.skip_whitespace();
            if self.remaining().first() == Some(&b']') {
                self.position += 1;
                break;
            }
            match self.parse_object(depth + 1) {
                Some(PdfObject::Operator(word)) if word == "endobj" => break,
                Some(object) => list.push(object),
                None => break,
            }
        }
        list
    }

    fn parse_number_or_reference(&mut self) -> PdfObject {
        let before = self.position;
        let number = self.parse_number();
        let is_whole = self.bytes[before..self.position].iter().all(u8::is_ascii_digit);
        if is_whole && self.position - before <= 8 {
            let mut ahead = Self { bytes: self.bytes, position: self.position };
            if ahead.parse_unsigned().is_some() {
                ahead.skip_whitespace();
                let is_end = ahead.bytes.get(ahead.position + 1).is_none_or(|byte| !is_regular(*byte));
                if ahead.remaining().first() == Some(&b'R') && is_end {
                    self.position = ahead.position + 1;
                    return PdfObject::Reference(number as u32);
                }
            }
        }
        PdfObject::Number(number)
    }

    fn parse_number(&mut self) -> f64 {
        let is_part = |byte: &&u8| matches!(byte, b'+' | b'-' | b'.' | b'0'..=b'9');
        let length = self.remaining().iter().take(64).take_while(is_part).count().max(1);
        let text = std::str::from_utf8(&self.remaining()[..length]).unwrap_or_default();
        self.position += length;
        text.parse().unwrap_or_else(|_| {
            // Some PDF producers write misplaced signs.
            let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
            sign * text
                .trim_start_matches(['-', '+'])
                .split('-')
                .next()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0.0)
        })
    }

    fn parse_keyword(&mut self) -> PdfObject {
        let length = self.remaining().iter().take(128).take_while(|byte| is_regular(**byte)).count().max(1);
        let word = String::from_utf8_lossy(&self.remaining()[..length]).into_owned();
        self.position += length;
        match word.as_str() {
            "null" => PdfObject::Null,
            "true" => PdfObject::Bool(true),
            "false" => PdfObject::Bool(false),
            _ => PdfObject::Operator(word),
        }
    }
}

fn is_whitespace(byte: u8) -> bool {
    matches!(byte, 0 | 9 | 10 | 12 | 13 | 32)
}

fn is_regular(byte: u8) -> bool {
    !is_whitespace(byte)
        && !matches!(byte, b'(' | b')' | b'<' | b'>' | b'[' | b']' | b'{' | b'}' | b'/' | b'%')
}
