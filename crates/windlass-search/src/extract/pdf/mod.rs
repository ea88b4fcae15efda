//! The text of PDF files, read page by page.
//!
//! Files of this kind come from anywhere, and the parsers that there are panic, recurse or inflate without limit on
//! those that were made to hurt. This one reads what text needs and nothing else. Every loop is bounded by the bytes
//! that are there, every stream by a budget, every nesting by a depth.

mod font;
mod glyph;
mod object;
mod page;
mod stream;

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use self::object::{Dict, Object, Reader};
use super::lines::split;
use super::{Budget, Cut, Extracted, Strength};

/// More objects than this are in no file that people read.
const MOST_OBJECTS: usize = 300_000;
const MOST_PAGES: usize = 20_000;
/// How deep pages, forms and references may be nested.
const DEEPEST: usize = 32;

pub(super) fn extract(bytes: &[u8], budget: Budget) -> Result<Extracted, String> {
    let document = Document::read(bytes, budget)?;
    let pages = document.pages();
    if pages.is_empty() {
        return Err("it has no pages that can be found".to_owned());
    }
    let mut found = Extracted::default();
    let mut unreadable = 0;
    for (at, page) in pages.iter().enumerate() {
        let text = match page::text_of(&document, page) {
            Ok(read) => {
                unreadable += usize::from(read.has_unknown_letters);
                read.text
            }
            Err(why) => {
                found.notes.push(format!("page {}: {why}", at + 1));
                if document.is_spent() {
                    break;
                }
                continue;
            }
        };
        add_page(&mut found, &text, u32::try_from(at + 1).unwrap_or(u32::MAX));
        if found.text.len() > budget.text {
            found.notes.push(format!("only its first {} pages were read", at + 1));
            break;
        }
    }
    if unreadable > 0 {
        found.notes.push(format!("{unreadable} pages have letters that the file gives no meaning"));
    }
    if found.text.trim().is_empty() && found.notes.is_empty() {
        found.notes.push("its pages are pictures, or empty".to_owned());
    }
    Ok(found)
}

fn add_page(found: &mut Extracted, text: &str, page: u32) {
    let mut after_blank = true;
    for row in text.split_inclusive('\n') {
        if row.trim().is_empty() {
            after_blank = true;
            continue;
        }
        let strength = if after_blank { Strength::Block } else { Strength::Line };
        let cut = Cut { at: found.text.len(), line: 0, page, heading: 0, strength };
        found.cuts.push(cut);
        split(row, cut, &mut found.cuts);
        found.text.push_str(row);
        after_blank = false;
    }
    if !found.text.is_empty() && !found.text.ends_with('\n') {
        found.text.push('\n');
    }
}

/// A file's objects.
struct Document<'a> {
    bytes: &'a [u8],
    objects: BTreeMap<u32, Object>,
    root: Option<Object>,
    /// How much may be inflated, and how much of that is left.
    whole: usize,
    left: Cell<usize>,
}

impl<'a> Document<'a> {
    /// Reads all objects where they stand. The file's own table of places is not needed, and so need not be right.
    fn read(bytes: &'a [u8], budget: Budget) -> Result<Self, String> {
        if !bytes[..bytes.len().min(1024)].windows(5).any(|five| five == b"%PDF-") {
            return Err("it is not a PDF file".to_owned());
        }
        let mut document = Self {
            bytes,
            objects: BTreeMap::new(),
            root: None,
            whole: budget.inflated,
            left: Cell::new(budget.inflated),
        };
        let mut trailers: Vec<Dict> = Vec::new();
        let mut at = 0;
        while let Some(found) = find(bytes, b"obj", at) {
            at = found + 3;
            let Some(number) = object::number_before(bytes, found) else { continue };
            let mut reader = Reader::new(bytes, at);
            let Some(object) = reader.object_at_top() else { continue };
            at = reader.at.max(at);
            if let Object::Stream { dict, .. } = &object
                && dict.name("Type") == Some("XRef")
            {
                trailers.push(dict.clone());
            }
            document.objects.insert(number, object);
            if document.objects.len() > MOST_OBJECTS {
                return Err(format!("it has more than {MOST_OBJECTS} objects"));
            }
        }
        let mut at = 0;
        while let Some(found) = find(bytes, b"trailer", at) {
            at = found + 7;
            if let Some(Object::Dict(dict)) = Reader::new(bytes, at).object(0) {
                trailers.push(dict);
            }
        }
        if trailers.iter().any(|trailer| trailer.get("Encrypt").is_some_and(|object| *object != Object::Null))
        {
            return Err("it is encrypted".to_owned());
        }
        document.root = trailers.iter().rev().find_map(|trailer| trailer.get("Root").cloned());
        document.unpack()?;
        Ok(document)
    }

    /// Reads the objects that are inside of others.
    fn unpack(&mut self) -> Result<(), String> {
        let packed: Vec<(Dict, Object)> = self
            .objects
            .values()
            .filter_map(|object| match object {
                Object::Stream { dict, .. } if dict.name("Type") == Some("ObjStm") => {
                    Some((dict.clone(), object.clone()))
                }
                _ => None,
            })
            .collect();
        for (dict, stream) in packed {
            let data = self.data(&stream)?;
            let first = self.number(dict.get("First")).unwrap_or(0.0);
            let count = self.number(dict.get("N")).unwrap_or(0.0);
            let (first, count) = (first.clamp(0.0, 1e9) as usize, count.clamp(0.0, 1e6) as usize);
            let mut header = Reader::new(&data, 0);
            for _ in 0..count {
                let (Some(number), Some(offset)) = (header.whole(), header.whole()) else { break };
                let Some(object) = Reader::new(&data, first.saturating_add(offset)).object(0) else {
                    continue;
                };
                if let Ok(number) = u32::try_from(number) {
                    self.objects.entry(number).or_insert(object);
                }
                if self.objects.len() > MOST_OBJECTS {
                    return Err(format!("it has more than {MOST_OBJECTS} objects"));
                }
            }
        }
        Ok(())
    }

    /// What a reference leads to.
    fn resolve<'b>(&'b self, object: &'b Object) -> &'b Object {
        let mut object = object;
        for _ in 0..DEEPEST {
            match object {
                Object::Reference(number) => match self.objects.get(number) {
                    Some(next) => object = next,
                    None => return &Object::Null,
                },
                other => return other,
            }
        }
        &Object::Null
    }

    fn get<'b>(&'b self, dict: &'b Dict, key: &str) -> &'b Object {
        dict.get(key).map_or(&Object::Null, |object| self.resolve(object))
    }

    fn dict<'b>(&'b self, dict: &'b Dict, key: &str) -> Option<&'b Dict> {
        self.get(dict, key).as_dict()
    }

    fn number(&self, object: Option<&Object>) -> Option<f64> {
        match self.resolve(object?) {
            Object::Number(number) => Some(*number),
            _ => None,
        }
    }

    fn is_spent(&self) -> bool {
        self.left.get() == 0
    }

    /// The pages in order, each with what it inherits.
    fn pages(&self) -> Vec<Page<'_>> {
        let mut pages = Vec::new();
        let root = self.root.as_ref().map(|root| self.resolve(root)).and_then(Object::as_dict);
        let root = root.or_else(|| {
            let mut dicts = self.objects.values().filter_map(Object::as_dict);
            dicts.find(|dict| dict.name("Type") == Some("Catalog"))
        });
        if let Some(tree) = root.and_then(|root| root.get("Pages")) {
            self.collect(tree, None, 0, &mut HashSet::new(), &mut pages);
        }
        if pages.is_empty() {
            for dict in self.objects.values().filter_map(Object::as_dict) {
                if dict.name("Type") == Some("Page") && pages.len() < MOST_PAGES {
                    pages.push(Page { dict, resources: self.dict(dict, "Resources") });
                }
            }
        }
        pages
    }

    fn collect<'b>(
        &'b self,
        node: &'b Object,
        inherited: Option<&'b Dict>,
        depth: usize,
        seen: &mut HashSet<u32>,
        pages: &mut Vec<Page<'b>>,
    ) {
        if depth > DEEPEST || pages.len() >= MOST_PAGES {
            return;
        }
        if let Object::Reference(number) = node
            && !seen.insert(*number)
        {
            return;
        }
        let Some(dict) = self.resolve(node).as_dict() else { return };
        let resources = self.dict(dict, "Resources").or(inherited);
        match self.get(dict, "Kids") {
            Object::List(kids) => {
                kids.iter().for_each(|kid| self.collect(kid, resources, depth + 1, seen, pages));
            }
            _ => pages.push(Page { dict, resources }),
        }
    }
}

struct Page<'a> {
    dict: &'a Dict,
    resources: Option<&'a Dict>,
}

fn find(bytes: &[u8], what: &[u8], from: usize) -> Option<usize> {
    let first = *what.first()?;
    let mut at = from;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| *byte == first)?;
        if bytes[at..].starts_with(what) {
            return Some(at);
        }
        at += 1;
    }
}
