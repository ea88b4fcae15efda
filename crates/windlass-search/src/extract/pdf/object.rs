//! The objects that PDF files are made of.

use std::collections::BTreeMap;

use super::{DEEPEST, find};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Object {
    Null,
    Bool(bool),
    Number(f64),
    Name(String),
    Text(Vec<u8>),
    List(Vec<Self>),
    Dict(Dict),
    Reference(u32),
    /// What a stream is, and which bytes of the file it has.
    Stream {
        dict: Dict,
        from: usize,
        to: usize,
    },
    /// A word of a page's program.
    Operator(String),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Dict(BTreeMap<String, Object>);

impl Dict {
    pub(super) fn get(&self, key: &str) -> Option<&Object> {
        self.0.get(key)
    }

    pub(super) fn name(&self, key: &str) -> Option<&str> {
        match self.0.get(key) {
            Some(Object::Name(name)) => Some(name),
            _ => None,
        }
    }
}

impl Object {
    pub(super) fn as_dict(&self) -> Option<&Dict> {
        match self {
            Self::Dict(dict) | Self::Stream { dict, .. } => Some(dict),
            _ => None,
        }
    }
}

/// The object's number that stands before `obj`.
pub(super) fn number_before(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = |end: usize| -> Option<(usize, usize)> {
        let spaced = bytes[..end].iter().rposition(|byte| !is_space(*byte))? + 1;
        let length = bytes[..spaced].iter().rev().take(10).take_while(|byte| byte.is_ascii_digit()).count();
        (length > 0).then_some((spaced - length, spaced))
    };
    let (generation, _) = digits(at)?;
    let (from, to) = digits(generation)?;
    if to == generation {
        return None;
    }
    std::str::from_utf8(&bytes[from..to]).ok()?.parse().ok()
}

/// Reads objects from bytes, one after another.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at: at.min(bytes.len()) }
    }

    /// An object of the file, which may be a stream.
    pub(super) fn object_at_top(&mut self) -> Option<Object> {
        let object = self.object(0)?;
        let Object::Dict(dict) = object else { return Some(object) };
        self.skip_space();
        if !self.rest().starts_with(b"stream") {
            return Some(Object::Dict(dict));
        }
        let mut from = self.at + 6;
        if self.bytes.get(from) == Some(&b'\r') {
            from += 1;
        }
        if self.bytes.get(from) == Some(&b'\n') {
            from += 1;
        }
        let to = self.end_of_stream(&dict, from);
        self.at = to;
        Some(Object::Stream { dict, from: from.min(to), to })
    }

    /// The length that is given, if the stream ends there; otherwise where it does end.
    fn end_of_stream(&self, dict: &Dict, from: usize) -> usize {
        if let Some(Object::Number(length)) = dict.get("Length") {
            let end = from.saturating_add(length.clamp(0.0, 4e9) as usize);
            let after = self.bytes.get(end..).map(|rest| &rest[..rest.len().min(20)]);
            if after.is_some_and(|after| after.trim_ascii_start().starts_with(b"endstream")) {
                return end;
            }
        }
        find(self.bytes, b"endstream", from.min(self.bytes.len())).unwrap_or(self.bytes.len())
    }

    /// The next object; `None` at the end.
    pub(super) fn object(&mut self, depth: usize) -> Option<Object> {
        self.skip_space();
        let byte = *self.bytes.get(self.at)?;
        if depth > DEEPEST {
            self.at = self.bytes.len();
            return None;
        }
        match byte {
            b'/' => Some(Object::Name(self.name())),
            b'(' => Some(Object::Text(self.text())),
            b'<' if self.rest().starts_with(b"<<") => {
                self.at += 2;
                Some(Object::Dict(self.dict(depth)))
            }
            b'<' => Some(Object::Text(self.hex())),
            b'[' => {
                self.at += 1;
                Some(Object::List(self.list(depth)))
            }
            b'+' | b'-' | b'.' | b'0'..=b'9' => Some(self.number_or_reference()),
            b']' | b'>' | b')' | b'{' | b'}' => {
                self.at += 1;
                Some(Object::Operator(char::from(byte).to_string()))
            }
            _ => Some(self.word()),
        }
    }

    /// The next whole number.
    pub(super) fn whole(&mut self) -> Option<usize> {
        self.skip_space();
        let length = self.rest().iter().take(10).take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&self.rest()[..length]).ok()?.parse().ok()?;
        self.at += length;
        Some(number)
    }

    /// Goes past the data of a picture in a page's program.
    pub(super) fn skip_picture(&mut self) {
        let mut from = self.at;
        while let Some(end) = find(self.bytes, b"EI", from) {
            from = end + 2;
            let before = end.checked_sub(1).and_then(|at| self.bytes.get(at));
            let after = self.bytes.get(end + 2);
            if before.is_some_and(|byte| is_space(*byte)) && after.is_none_or(|byte| is_space(*byte)) {
                self.at = end + 2;
                return;
            }
        }
        self.at = self.bytes.len();
    }

    fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    fn skip_space(&mut self) {
        while let Some(byte) = self.bytes.get(self.at) {
            if is_space(*byte) {
                self.at += 1;
            } else if *byte == b'%' {
                let line = self.rest().iter().position(|byte| matches!(byte, b'\r' | b'\n'));
                self.at += line.unwrap_or(self.rest().len());
            } else {
                return;
            }
        }
    }

    fn name(&mut self) -> String {
        self.at += 1;
        let length = self.rest().iter().take(256).take_while(|byte| is_regular(**byte)).count();
        let raw = &self.rest()[..length];
        self.at += length;
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

    fn text(&mut self) -> Vec<u8> {
        self.at += 1;
        let mut out = Vec::new();
        let mut open = 1;
        while let Some(byte) = self.next() {
            match byte {
                b'(' => open += 1,
                b')' => {
                    open -= 1;
                    if open == 0 {
                        break;
                    }
                }
                b'\\' => {
                    self.escaped(&mut out);
                    continue;
                }
                _ => {}
            }
            out.push(byte);
        }
        out
    }

    fn escaped(&mut self, out: &mut Vec<u8>) {
        let Some(byte) = self.next() else { return };
        match byte {
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'\r' => {
                if self.bytes.get(self.at) == Some(&b'\n') {
                    self.at += 1;
                }
            }
            b'\n' => {}
            b'0'..=b'7' => {
                let mut code = u32::from(byte - b'0');
                for _ in 0..2 {
                    match self.bytes.get(self.at) {
                        Some(digit @ b'0'..=b'7') => {
                            code = code * 8 + u32::from(digit - b'0');
                            self.at += 1;
                        }
                        _ => break,
                    }
                }
                out.push(code.to_le_bytes()[0]);
            }
            other => out.push(other),
        }
    }

    fn next(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn hex(&mut self) -> Vec<u8> {
        self.at += 1;
        let mut out = Vec::new();
        let mut half: Option<u8> = None;
        while let Some(byte) = self.next() {
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

    fn dict(&mut self, depth: usize) -> Dict {
        let mut dict = BTreeMap::new();
        loop {
            self.skip_space();
            if self.rest().starts_with(b">>") {
                self.at += 2;
                break;
            }
            match self.object(depth + 1) {
                Some(Object::Name(key)) => match self.object(depth + 1) {
                    Some(value) => _ = dict.insert(key, value),
                    None => break,
                },
                // A dictionary that was cut off.
                Some(Object::Operator(word)) if word == "endobj" || word == "stream" => {
                    self.at -= word.len();
                    break;
                }
                Some(_) => {}
                None => break,
            }
        }
        Dict(dict)
    }

    fn list(&mut self, depth: usize) -> Vec<Object> {
        let mut list = Vec::new();
        loop {
            self.skip_space();
            if self.rest().first() == Some(&b']') {
                self.at += 1;
                break;
            }
            match self.object(depth + 1) {
                Some(Object::Operator(word)) if word == "endobj" => break,
                Some(object) => list.push(object),
                None => break,
            }
        }
        list
    }

    fn number_or_reference(&mut self) -> Object {
        let before = self.at;
        let number = self.number();
        let is_whole = self.bytes[before..self.at].iter().all(u8::is_ascii_digit);
        if is_whole && self.at - before <= 8 {
            let mut ahead = Self { bytes: self.bytes, at: self.at };
            if ahead.whole().is_some() {
                ahead.skip_space();
                let is_end = ahead.bytes.get(ahead.at + 1).is_none_or(|byte| !is_regular(*byte));
                if ahead.rest().first() == Some(&b'R') && is_end {
                    self.at = ahead.at + 1;
                    return Object::Reference(number as u32);
                }
            }
        }
        Object::Number(number)
    }

    fn number(&mut self) -> f64 {
        let is_part = |byte: &&u8| matches!(byte, b'+' | b'-' | b'.' | b'0'..=b'9');
        let length = self.rest().iter().take(64).take_while(is_part).count().max(1);
        let text = std::str::from_utf8(&self.rest()[..length]).unwrap_or_default();
        self.at += length;
        text.parse().unwrap_or_else(|_| {
            // Some writers put signs where they do not belong.
            let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
            sign * text
                .trim_start_matches(['-', '+'])
                .split('-')
                .next()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0.0)
        })
    }

    fn word(&mut self) -> Object {
        let length = self.rest().iter().take(128).take_while(|byte| is_regular(**byte)).count().max(1);
        let word = String::from_utf8_lossy(&self.rest()[..length]).into_owned();
        self.at += length;
        match word.as_str() {
            "null" => Object::Null,
            "true" => Object::Bool(true),
            "false" => Object::Bool(false),
            _ => Object::Operator(word),
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, 0 | 9 | 10 | 12 | 13 | 32)
}

fn is_regular(byte: u8) -> bool {
    !is_space(byte) && !matches!(byte, b'(' | b')' | b'<' | b'>' | b'[' | b']' | b'{' | b'}' | b'/' | b'%')
}
