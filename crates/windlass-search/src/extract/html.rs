//! The text of a page: tags are read as far as they say where blocks, headings and hidden parts are.

use super::lines::{Headings, floor, split};
use super::{Budget, Cut, Extracted, Strength};

/// What is between these tags is not text.
const UNSEEN: [&str; 8] = ["script", "style", "template", "noscript", "svg", "head", "iframe", "math"];
/// Tags that begin or end a block.
const BLOCKS: [&str; 34] = [
    "address",
    "article",
    "aside",
    "blockquote",
    "br",
    "caption",
    "dd",
    "details",
    "div",
    "dl",
    "dt",
    "fieldset",
    "figcaption",
    "figure",
    "footer",
    "form",
    "header",
    "hr",
    "li",
    "main",
    "nav",
    "ol",
    "p",
    "pre",
    "section",
    "summary",
    "table",
    "tbody",
    "td",
    "tfoot",
    "th",
    "thead",
    "tr",
    "ul",
];

pub(super) fn extract(page: &str, budget: Budget) -> Extracted {
    let mut reader = Reader::default();
    let mut rest = page;
    let mut line = 1;
    while let Some(at) = rest.find('<') {
        reader.text(&rest[..at], line);
        line += count_lines(&rest[..at]);
        let tag = &rest[at..];
        let length = tag_length(tag);
        let whole = &tag[..length];
        rest = &tag[length..];
        let line_of_tag = line;
        line += count_lines(whole);
        let Some((name, closes)) = name_of(whole) else {
            // A bare `<` is text.
            if length == 1 {
                reader.text("<", line_of_tag);
            }
            continue;
        };
        if !closes && name == "title" {
            let inside = until_closed(rest, "title");
            reader.title(&rest[..inside], line_of_tag);
        } else if !closes && UNSEEN.contains(&name.as_str()) && name != "head" && !whole.ends_with("/>") {
            let skipped = until_closed(rest, &name);
            line += count_lines(&rest[..skipped]);
            rest = &rest[skipped..];
            continue;
        }
        reader.tag(&name, closes);
        if reader.found.text.len() > budget.text {
            reader.found.notes.push(format!("only its first {} bytes of text were read", budget.text));
            rest = "";
        }
    }
    reader.text(rest, line);
    reader.end_block();
    reader.found
}

#[derive(Default)]
struct Reader {
    found: Extracted,
    headings: Headings,
    block: String,
    block_line: u32,
    /// The level of the heading that is being read.
    heading: Option<usize>,
    in_title: bool,
}

impl Reader {
    fn text(&mut self, raw: &str, line: u32) {
        if raw.trim().is_empty() {
            if !raw.is_empty() && !self.block.is_empty() {
                self.space();
            }
            return;
        }
        // The title was taken when its tag was read.
        if self.in_title {
            return;
        }
        if self.block.is_empty() {
            let before = raw.len() - raw.trim_start().len();
            self.block_line = line + count_lines(&raw[..before]);
        }
        let text = entities(raw);
        if text.starts_with(char::is_whitespace) && !self.block.is_empty() {
            self.space();
        }
        let mut words = text.split_whitespace();
        if let Some(first) = words.next() {
            self.block.push_str(first);
        }
        for word in words {
            self.block.push(' ');
            self.block.push_str(word);
        }
        if text.ends_with(char::is_whitespace) {
            self.space();
        }
    }

    fn space(&mut self) {
        if !self.block.ends_with(' ') {
            self.block.push(' ');
        }
    }

    fn title(&mut self, raw: &str, line: u32) {
        let title = entities(raw).split_whitespace().collect::<Vec<_>>().join(" ");
        if !title.is_empty() {
            self.block_line = line;
            self.block = title;
            self.end_block();
        }
        self.in_title = true;
    }

    fn tag(&mut self, name: &str, closes: bool) {
        if name == "title" {
            self.in_title = !closes;
            return;
        }
        let level = match name.as_bytes() {
            [b'h', digit @ b'1'..=b'6'] => Some(usize::from(digit - b'0')),
            _ => None,
        };
        if let Some(level) = level {
            if !closes {
                self.end_block();
                self.heading = Some(level);
            } else {
                self.end_block();
                self.heading = None;
            }
        } else if BLOCKS.binary_search(&name).is_ok() {
            // Cells of a row stay together.
            if matches!(name, "td" | "th") { self.space() } else { self.end_block() }
        }
    }

    fn end_block(&mut self) {
        let block = std::mem::take(&mut self.block);
        let block = block.trim();
        if block.is_empty() {
            return;
        }
        let mut strength = Strength::Block;
        if let Some(level) = self.heading {
            self.headings.enter(level, block, &mut self.found.headings);
            strength = Strength::Section;
        }
        let at = self.found.text.len();
        let cut = Cut { at, line: self.block_line, page: 0, heading: self.headings.current, strength };
        self.found.cuts.push(cut);
        split(block, cut, &mut self.found.cuts);
        self.found.text.push_str(block);
        self.found.text.push('\n');
    }
}

fn count_lines(text: &str) -> u32 {
    u32::try_from(text.bytes().filter(|byte| *byte == b'\n').count()).unwrap_or(u32::MAX)
}

/// How long a tag is, from its `<`. One that does not end is as long as the page, unless it is no tag at all.
fn tag_length(text: &str) -> usize {
    if let Some(rest) = text.strip_prefix("<!--") {
        return rest.find("-->").map_or(text.len(), |at| at + 7);
    }
    if !text[1..].starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '!' | '?')) {
        return 1;
    }
    let mut quote = None;
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (None, b'>') => return at + 1,
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), close) if open == close => quote = None,
            _ => {}
        }
    }
    // A quote that never ends: the tag ends where tags end.
    text.find('>').map_or(text.len(), |at| at + 1)
}

fn name_of(tag: &str) -> Option<(String, bool)> {
    let inside = tag.strip_prefix('<')?;
    let (inside, closes) = match inside.strip_prefix('/') {
        Some(inside) => (inside, true),
        None => (inside, false),
    };
    let end = inside.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(inside.len());
    let name = inside.get(..end.min(32))?.to_ascii_lowercase();
    (!name.is_empty()).then_some((name, closes))
}

/// Where the closing tag of `name` begins, or the end.
fn until_closed(text: &str, name: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find("</") {
        let at = from + at;
        let after = &text.as_bytes()[at + 2..];
        if after.len() >= name.len() && after[..name.len()].eq_ignore_ascii_case(name.as_bytes()) {
            return at;
        }
        from = at + 2;
    }
    text.len()
}

fn entities(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest[..floor(rest, 12)].find(';');
        match end.and_then(|end| entity(&rest[1..end]).map(|c| (c, end))) {
            Some((c, end)) => {
                out.push(c);
                rest = &rest[end + 1..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

fn entity(name: &str) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        return char::from_u32(code).filter(|c| *c != '\0');
    }
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => ' ',
        "mdash" => '—',
        "ndash" => '–',
        "hellip" => '…',
        "lsquo" => '‘',
        "rsquo" => '’',
        "ldquo" => '“',
        "rdquo" => '”',
        "copy" => '©',
        "reg" => '®',
        "trade" => '™',
        "deg" => '°',
        "times" => '×',
        "euro" => '€',
        "pound" => '£',
        "sect" => '§',
        "laquo" => '«',
        "raquo" => '»',
        "auml" => 'ä',
        "ouml" => 'ö',
        "uuml" => 'ü',
        "Auml" => 'Ä',
        "Ouml" => 'Ö',
        "Uuml" => 'Ü',
        "szlig" => 'ß',
        "eacute" => 'é',
        "egrave" => 'è',
        "agrave" => 'à',
        "ccedil" => 'ç',
        "ntilde" => 'ñ',
        "oslash" => 'ø',
        "aring" => 'å',
        _ => return None,
    })
}
