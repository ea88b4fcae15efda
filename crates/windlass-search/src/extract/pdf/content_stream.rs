//! Interpreter of content streams, restricted to the operators that show text.

use std::collections::BTreeMap;

use super::font::PdfFont;
use super::object::{PdfDictionary, PdfObject, PdfObjectParser};
use super::page_text::{PageTextBuilder, PlacedGlyph};
use super::{PdfDocument, PdfPage};

/// Maximum number of objects and operators that the interpreter reads per page.
const MAX_OPERATIONS: usize = 2_000_000;
/// Maximum number of bytes of text per page.
const MAX_PAGE_TEXT_BYTES: usize = 4 << 20;
/// Maximum nesting depth of form XObjects.
const MAX_FORM_DEPTH: usize = 6;

/// The text of a page.
pub(super) struct PdfPageText {
    pub(super) text: String,
    /// True if the file maps some glyphs to no character.
    pub(super) has_unmapped_glyphs: bool,
}

/// Interprets the content streams of a page and returns its text.
pub(super) fn extract_page_text(
    document: &PdfDocument<'_>,
    page: &PdfPage<'_>,
) -> Result<PdfPageText, String> {
    let mut program = Vec::new();
    match document.resolve_key(page.dict, "Contents") {
        PdfObject::Array(parts) => {
            for part in parts.iter().take(10_000) {
                program.extend(document.decode_stream(document.resolve(part))?);
                program.push(b'\n');
            }
        }
        PdfObject::Null => {}
        one => program = document.decode_stream(one)?,
    }
    let mut writer = PdfContentInterpreter {
        document,
        output: PageTextBuilder::default(),
        has_unmapped_glyphs: false,
        fonts: BTreeMap::new(),
        operation_count: 0,
    };
    writer.run_content(&program, page.resources, IDENTITY_MATRIX, 0)?;
    Ok(PdfPageText { text: writer.output.finish(), has_unmapped_glyphs: writer.has_unmapped_glyphs })
}

/// An affine transformation as PDF writes it: `[a b c d e f]`.
type TransformMatrix = [f64; 6];

const IDENTITY_MATRIX: TransformMatrix = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0];

/// Multiplies two transformations.
fn multiply(left: &TransformMatrix, right: &TransformMatrix) -> TransformMatrix {
    let [a, b, c, d, e, f] = *left;
    let [g, h, i, j, k, l] = *right;
    [a * g + b * i, a * h + b * j, c * g + d * i, c * h + d * j, e * g + f * i + k, e * h + f * j + l]
}

/// The graphics and text state of the interpreter.
#[derive(Clone)]
struct PdfGraphicsState {
    font_key: Option<u64>,
    font_size: f64,
    leading: f64,
    char_spacing: f64,
    word_spacing: f64,
    horizontal_scale: f64,
    transform: TransformMatrix,
}

/// The interpreter of a page's content streams.
struct PdfContentInterpreter<'a> {
    document: &'a PdfDocument<'a>,
    output: PageTextBuilder,
    has_unmapped_glyphs: bool,
    fonts: BTreeMap<u64, PdfFont>,
    operation_count: usize,
}

impl PdfContentInterpreter<'_> {
    fn run_content(
        &mut self,
        program: &[u8],
        resources: Option<&PdfDictionary>,
        transform: TransformMatrix,
        depth: usize,
    ) -> Result<(), String> {
        let mut reader = PdfObjectParser::new(program, 0);
        let mut stack: Vec<PdfObject> = Vec::new();
        let mut state = PdfGraphicsState {
            font_key: None,
            font_size: 1.0,
            leading: 0.0,
            char_spacing: 0.0,
            word_spacing: 0.0,
            horizontal_scale: 1.0,
            transform,
        };
        let mut saved: Vec<PdfGraphicsState> = Vec::new();
        let (mut text, mut line) = (IDENTITY_MATRIX, IDENTITY_MATRIX);
        let mut before = 0;
        while let Some(object) = reader.parse_object(0) {
            self.operation_count += 1;
            self.document.spend_steps(reader.position.saturating_sub(before).max(1))?;
            before = reader.position;
            if self.operation_count > MAX_OPERATIONS {
                return Err("its content stream is too long".to_owned());
            }
            if self.output.len() > MAX_PAGE_TEXT_BYTES {
                return Ok(());
            }
            let PdfObject::Operator(word) = &object else {
                if stack.len() < 512 {
                    stack.push(object);
                }
                continue;
            };
            let number =
                |from_end: usize| match stack.len().checked_sub(from_end).and_then(|at| stack.get(at)) {
                    Some(PdfObject::Number(number)) => *number,
                    _ => 0.0,
                };
            match word.as_str() {
                "q" if saved.len() < 64 => saved.push(state.clone()),
                "Q" => {
                    if let Some(before) = saved.pop() {
                        state = before;
                    }
                }
                "cm" => {
                    let by = [number(6), number(5), number(4), number(3), number(2), number(1)];
                    state.transform = multiply(&by, &state.transform);
                }
                "BT" => (text, line) = (IDENTITY_MATRIX, IDENTITY_MATRIX),
                "Tf" => {
                    state.font_size = number(1);
                    if let Some(PdfObject::Name(name)) =
                        stack.len().checked_sub(2).and_then(|at| stack.get(at))
                    {
                        state.font_key = self.load_font(resources, name);
                    }
                }
                "Tc" => state.char_spacing = number(1),
                "Tw" => state.word_spacing = number(1),
                "Tz" => state.horizontal_scale = number(1) / 100.0,
                "TL" => state.leading = number(1),
                "Td" | "TD" => {
                    if word == "TD" {
                        state.leading = -number(1);
                    }
                    line = multiply(&[1.0, 0.0, 0.0, 1.0, number(2), number(1)], &line);
                    text = line;
                }
                "Tm" => {
                    line = [number(6), number(5), number(4), number(3), number(2), number(1)];
                    text = line;
                }
                "T*" | "'" | "\"" => {
                    if word == "\"" {
                        state.word_spacing = number(3);
                        state.char_spacing = number(2);
                    }
                    line = multiply(&[1.0, 0.0, 0.0, 1.0, 0.0, -state.leading], &line);
                    text = line;
                    if word != "T*"
                        && let Some(PdfObject::String(bytes)) = stack.last()
                    {
                        self.show_text(bytes, &state, &mut text);
                    }
                }
                "Tj" => {
                    if let Some(PdfObject::String(bytes)) = stack.last() {
                        self.show_text(bytes, &state, &mut text);
                    }
                }
                "TJ" => {
                    if let Some(PdfObject::Array(parts)) = stack.last() {
                        for part in parts {
                            match part {
                                PdfObject::String(bytes) => self.show_text(bytes, &state, &mut text),
                                PdfObject::Number(back) => {
                                    let by = -back / 1000.0 * state.font_size * state.horizontal_scale;
                                    text = multiply(&[1.0, 0.0, 0.0, 1.0, by, 0.0], &text);
                                }
                                _ => {}
                            }
                        }
                    }
                }
                "Do" if depth < MAX_FORM_DEPTH => {
                    if let Some(PdfObject::Name(name)) = stack.last() {
                        self.run_form(resources, name, &state.transform, depth)?;
                    }
                }
                "ID" => reader.skip_inline_image(),
                _ => {}
            }
            stack.clear();
        }
        Ok(())
    }

    /// Returns the key of a font resource, which is loaded on first use.
    fn load_font(&mut self, resources: Option<&PdfDictionary>, name: &str) -> Option<u64> {
        let fonts = self.document.resolve_dict(resources?, "Font")?;
        let object = fonts.get(name)?;
        let dict = self.document.resolve(object).as_dict()?;
        // The dictionary's address identifies the font while the document is borrowed.
        let key = std::ptr::from_ref(dict).addr() as u64;
        if !self.fonts.contains_key(&key) {
            self.fonts.insert(key, PdfFont::load(self.document, dict));
        }
        Some(key)
    }

    /// Interprets a form XObject.
    fn run_form(
        &mut self,
        resources: Option<&PdfDictionary>,
        name: &str,
        transform: &TransformMatrix,
        depth: usize,
    ) -> Result<(), String> {
        let Some(forms) = resources.and_then(|resources| self.document.resolve_dict(resources, "XObject"))
        else {
            return Ok(());
        };
        let Some(form) = forms.get(name).map(|object| self.document.resolve(object)) else { return Ok(()) };
        let Some(dict) = form.as_dict().filter(|dict| dict.name_value("Subtype") == Some("Form")) else {
            return Ok(());
        };
        let program = self.document.decode_stream(form)?;
        let transform = match self.document.resolve_key(dict, "Matrix") {
            PdfObject::Array(matrix) if matrix.len() == 6 => {
                let matrix: [f64; 6] =
                    std::array::from_fn(|at| self.document.resolve_number(matrix.get(at)).unwrap_or(0.0));
                multiply(&matrix, transform)
            }
            _ => *transform,
        };
        let resources = self.document.resolve_dict(dict, "Resources").or(resources);
        self.run_content(&program, resources, transform, depth + 1)
    }

    /// Appends the text of a shown string, and advances the text matrix.
    fn show_text(&mut self, bytes: &[u8], state: &PdfGraphicsState, text: &mut TransformMatrix) {
        let Some(font) = state.font_key.and_then(|key| self.fonts.get(&key)) else { return };
        for shown in font.decode_glyphs(bytes) {
            if self.output.len() > MAX_PAGE_TEXT_BYTES {
                return;
            }
            let place = multiply(text, &state.transform);
            let height = (state.font_size * (place[2].powi(2) + place[3].powi(2)).sqrt()).abs().max(0.1);
            let mut by = shown.width * state.font_size + state.char_spacing;
            if shown.is_space {
                by += state.word_spacing;
            }
            *text = multiply(&[1.0, 0.0, 0.0, 1.0, by * state.horizontal_scale, 0.0], text);
            let end = multiply(text, &state.transform);
            match shown.text {
                Some(letters) => {
                    let text: String = letters.chars().filter(|c| !c.is_control()).collect();
                    if !text.is_empty() {
                        let (start_x, end_x) = (place[4].min(end[4]), place[4].max(end[4]));
                        self.output.push(PlacedGlyph { text, start_x, end_x, y: place[5], height });
                    }
                }
                None => self.has_unmapped_glyphs = true,
            }
        }
    }
}
