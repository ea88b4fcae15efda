//! Extraction of text from PDF files, page by page.
//!
//! PDF files are untrusted input, and existing parsers panic, recurse or decompress without limit on malicious
//! files. This parser reads only what text extraction needs. Invariant: the work on a file is bounded by one budget of
//! steps, which every loop spends from; the decoded data by another, which every filter spends from; and every
//! recursion by a depth.

mod content_stream;
mod encoding;
mod font;
mod object;
mod page_text;
mod security;
mod stream_filters;

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use self::object::{PdfDictionary, PdfObject, PdfObjectParser};
use self::security::{EncryptionEntries, PdfDecryption};
use super::line_based::add_splits_within_line;
use super::{ExtractedText, ExtractionBudget, SplitPoint, SplitStrength};

/// Maximum number of objects in a file.
const MAX_OBJECTS: usize = 300_000;
const MAX_PAGES: usize = 20_000;
/// Maximum nesting depth of objects, page trees and references.
const MAX_DEPTH: usize = 32;

pub(super) fn extract_pdf(bytes: &[u8], budget: ExtractionBudget) -> Result<ExtractedText, String> {
    let document = PdfDocument::parse(bytes, budget)?;
    let pages = document.collect_pages();
    if pages.is_empty() {
        return Err("no pages were found in it".to_owned());
    }
    let mut found = ExtractedText::default();
    let mut unreadable = 0;
    for (at, page) in pages.iter().enumerate() {
        let text = match content_stream::extract_page_text(&document, page) {
            Ok(read) => {
                unreadable += usize::from(read.has_unmapped_glyphs);
                read.text
            }
            Err(why) => {
                found.warnings.push(format!("page {}: {why}", at + 1));
                if document.is_budget_exhausted() {
                    break;
                }
                continue;
            }
        };
        add_page(&mut found, &text, u32::try_from(at + 1).unwrap_or(u32::MAX));
        if found.text.len() > budget.text_bytes {
            found.warnings.push(format!("only its first {} pages were read", at + 1));
            break;
        }
    }
    if unreadable > 0 {
        found.warnings.push(format!("{unreadable} pages have glyphs that the file maps to no character"));
    }
    if found.text.trim().is_empty() && found.warnings.is_empty() {
        found.warnings.push("its pages are images or empty".to_owned());
    }
    Ok(found)
}

/// Appends the text of a page with its split points.
fn add_page(found: &mut ExtractedText, text: &str, page: u32) {
    let mut after_blank = true;
    for row in text.split_inclusive('\n') {
        if row.trim().is_empty() {
            after_blank = true;
            continue;
        }
        let strength = if after_blank { SplitStrength::Block } else { SplitStrength::Line };
        let cut = SplitPoint { offset: found.text.len(), line: 0, page, heading: 0, strength };
        found.split_points.push(cut);
        add_splits_within_line(row, cut, &mut found.split_points);
        found.text.push_str(row);
        after_blank = false;
    }
    if !found.text.is_empty() && !found.text.ends_with('\n') {
        found.text.push('\n');
    }
}

/// The objects of a PDF file.
struct PdfDocument<'a> {
    bytes: &'a [u8],
    objects: BTreeMap<u32, PdfObject>,
    root: Option<PdfObject>,
    /// Object number and generation of each stream, by the start of its data; filled if the file is encrypted.
    stream_ids: BTreeMap<usize, (u32, u32)>,
    decryption: Option<PdfDecryption>,
    /// Decompression budget in bytes, and the remainder of it.
    inflate_budget: usize,
    inflate_remaining: Cell<usize>,
    /// Remaining steps of work.
    steps_remaining: Cell<usize>,
}

impl<'a> PdfDocument<'a> {
    /// Scans the file for objects. It ignores the cross-reference table, which may be missing or wrong.
    fn parse(bytes: &'a [u8], budget: ExtractionBudget) -> Result<Self, String> {
        if !bytes[..bytes.len().min(1024)].windows(5).any(|five| five == b"%PDF-") {
            return Err("it is not a PDF file".to_owned());
        }
        let mut document = Self {
            bytes,
            objects: BTreeMap::new(),
            root: None,
            stream_ids: BTreeMap::new(),
            decryption: None,
            inflate_budget: budget.inflated_bytes,
            inflate_remaining: Cell::new(budget.inflated_bytes),
            steps_remaining: Cell::new(budget.steps),
        };
        let mut trailers: Vec<PdfDictionary> = Vec::new();
        let mut at = 0;
        while let Some(found) = find_bytes(bytes, b"obj", at) {
            at = found + 3;
            let Some((number, generation)) = object::object_number_before(bytes, found) else { continue };
            let mut reader = PdfObjectParser::new(bytes, at);
            let Some(object) = reader.parse_indirect_object() else { continue };
            document.spend_steps(1)?;
            at = reader.position.max(at);
            if let PdfObject::Stream { dict, start, .. } = &object {
                document.stream_ids.insert(*start, (number, generation));
                if dict.name_value("Type") == Some("XRef") {
                    trailers.push(dict.clone());
                }
            }
            document.objects.insert(number, object);
            if document.objects.len() > MAX_OBJECTS {
                return Err(format!("it has more than {MAX_OBJECTS} objects"));
            }
        }
        let mut at = 0;
        while let Some(found) = find_bytes(bytes, b"trailer", at) {
            at = found + 7;
            let mut reader = PdfObjectParser::new(bytes, at);
            let object = reader.parse_object(0);
            document.spend_steps(reader.position - at)?;
            if let Some(PdfObject::Dictionary(dict)) = object {
                trailers.push(dict);
            }
        }
        document.decryption = document.open_decryption(&trailers)?;
        document.root = trailers.iter().rev().find_map(|trailer| trailer.get("Root").cloned());
        document.expand_object_streams()?;
        Ok(document)
    }

    /// Returns the key of an encrypted file; `None` if it is not encrypted.
    fn open_decryption(&self, trailers: &[PdfDictionary]) -> Result<Option<PdfDecryption>, String> {
        let encrypt = trailers.iter().filter_map(|trailer| trailer.get("Encrypt"));
        let Some(encrypt) = encrypt.rev().find(|object| **object != PdfObject::Null) else { return Ok(None) };
        let dict = self
            .resolve(encrypt)
            .as_dict()
            .ok_or("it is encrypted, and its encryption dictionary is missing")?;
        // The entries may be references, which the key derivation does not follow.
        let dict = &dict.map_values(|object| self.resolve(object).clone());
        let ids = trailers.iter().rev().map(|trailer| self.resolve_key(trailer, "ID"));
        let file_id = ids
            .filter_map(|ids| match ids {
                PdfObject::Array(ids) => match self.resolve(ids.first()?) {
                    PdfObject::String(bytes) => Some(bytes.as_slice()),
                    _ => None,
                },
                _ => None,
            })
            .next()
            .unwrap_or_default();
        let filter = dict.name_value("StmF").filter(|name| *name != "Identity");
        let stream_method = filter.and_then(|name| {
            let filters = self.resolve_dict(dict, "CF")?;
            self.resolve_dict(filters, name)?.name_value("CFM")
        });
        PdfDecryption::open(&EncryptionEntries { dict, file_id, stream_method }).map(Some)
    }

    /// Parses the objects inside object streams.
    fn expand_object_streams(&mut self) -> Result<(), String> {
        let packed: Vec<(PdfDictionary, PdfObject)> = self
            .objects
            .values()
            .filter_map(|object| match object {
                PdfObject::Stream { dict, .. } if dict.name_value("Type") == Some("ObjStm") => {
                    Some((dict.clone(), object.clone()))
                }
                _ => None,
            })
            .collect();
        for (dict, stream) in packed {
            let data = self.decode_stream(&stream)?;
            let first = self.resolve_number(dict.get("First")).unwrap_or(0.0);
            let count = self.resolve_number(dict.get("N")).unwrap_or(0.0);
            let (first, count) = (first.clamp(0.0, 1e9) as usize, count.clamp(0.0, 1e6) as usize);
            let mut header = PdfObjectParser::new(&data, 0);
            for _ in 0..count {
                let (Some(number), Some(offset)) = (header.parse_unsigned(), header.parse_unsigned()) else {
                    break;
                };
                let mut reader = PdfObjectParser::new(&data, first.saturating_add(offset));
                let start = reader.position;
                let object = reader.parse_object(0);
                // Every entry may name the same long object.
                self.spend_steps(1 + reader.position - start)?;
                let Some(object) = object else { continue };
                if let Ok(number) = u32::try_from(number) {
                    self.objects.entry(number).or_insert(object);
                }
                if self.objects.len() > MAX_OBJECTS {
                    return Err(format!("it has more than {MAX_OBJECTS} objects"));
                }
            }
        }
        Ok(())
    }

    /// Follows references to the object; returns null if it is missing or the chain is too long.
    fn resolve<'b>(&'b self, object: &'b PdfObject) -> &'b PdfObject {
        let mut object = object;
        for _ in 0..MAX_DEPTH {
            match object {
                PdfObject::Reference(number) => match self.objects.get(number) {
                    Some(next) => object = next,
                    None => return &PdfObject::Null,
                },
                other => return other,
            }
        }
        &PdfObject::Null
    }

    fn resolve_key<'b>(&'b self, dict: &'b PdfDictionary, key: &str) -> &'b PdfObject {
        dict.get(key).map_or(&PdfObject::Null, |object| self.resolve(object))
    }

    fn resolve_dict<'b>(&'b self, dict: &'b PdfDictionary, key: &str) -> Option<&'b PdfDictionary> {
        self.resolve_key(dict, key).as_dict()
    }

    fn resolve_number(&self, object: Option<&PdfObject>) -> Option<f64> {
        match self.resolve(object?) {
            PdfObject::Number(number) => Some(*number),
            _ => None,
        }
    }

    fn is_budget_exhausted(&self) -> bool {
        self.inflate_remaining.get() == 0 || self.steps_remaining.get() == 0
    }

    /// Spends steps of the work budget.
    ///
    /// # Errors
    ///
    /// Returns the reason if the budget is exhausted.
    fn spend_steps(&self, steps: usize) -> Result<(), String> {
        match self.steps_remaining.get().checked_sub(steps) {
            Some(rest) => {
                self.steps_remaining.set(rest);
                Ok(())
            }
            None => {
                self.steps_remaining.set(0);
                Err("it takes too much work to read".to_owned())
            }
        }
    }

    /// Spends decoded bytes of the decompression budget.
    ///
    /// # Errors
    ///
    /// Returns the reason if the budget is exhausted.
    fn spend_decoded(&self, bytes: usize) -> Result<(), String> {
        let rest = self.inflate_remaining.get().checked_sub(bytes);
        self.inflate_remaining.set(rest.unwrap_or(0));
        rest.map(drop).ok_or_else(|| format!("it unpacks to more than {} MB", self.inflate_budget >> 20))
    }

    /// Returns the pages in order, with their inherited resources.
    fn collect_pages(&self) -> Vec<PdfPage<'_>> {
        let mut pages = Vec::new();
        let root = self.root.as_ref().map(|root| self.resolve(root)).and_then(PdfObject::as_dict);
        let root = root.or_else(|| {
            let mut dicts = self.objects.values().filter_map(PdfObject::as_dict);
            dicts.find(|dict| dict.name_value("Type") == Some("Catalog"))
        });
        if let Some(tree) = root.and_then(|root| root.get("Pages")) {
            self.walk_page_tree(tree, None, 0, &mut HashSet::new(), &mut pages);
        }
        if pages.is_empty() {
            for dict in self.objects.values().filter_map(PdfObject::as_dict) {
                if dict.name_value("Type") == Some("Page") && pages.len() < MAX_PAGES {
                    pages.push(PdfPage { dict, resources: self.resolve_dict(dict, "Resources") });
                }
            }
        }
        pages
    }

    /// Appends the pages of a page tree node; a node that was visited before is skipped.
    fn walk_page_tree<'b>(
        &'b self,
        node: &'b PdfObject,
        inherited: Option<&'b PdfDictionary>,
        depth: usize,
        seen: &mut HashSet<u32>,
        pages: &mut Vec<PdfPage<'b>>,
    ) {
        if depth > MAX_DEPTH || pages.len() >= MAX_PAGES {
            return;
        }
        if let PdfObject::Reference(number) = node
            && !seen.insert(*number)
        {
            return;
        }
        let Some(dict) = self.resolve(node).as_dict() else { return };
        let resources = self.resolve_dict(dict, "Resources").or(inherited);
        match self.resolve_key(dict, "Kids") {
            PdfObject::Array(kids) => {
                kids.iter().for_each(|kid| self.walk_page_tree(kid, resources, depth + 1, seen, pages));
            }
            _ => pages.push(PdfPage { dict, resources }),
        }
    }
}

/// A page dictionary with its resources, inherited ones included.
struct PdfPage<'a> {
    dict: &'a PdfDictionary,
    resources: Option<&'a PdfDictionary>,
}

/// Returns the offset of the first occurrence of `what` at or after `from`.
fn find_bytes(bytes: &[u8], what: &[u8], from: usize) -> Option<usize> {
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
