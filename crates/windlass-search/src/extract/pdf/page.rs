//! A page's program, carried out as far as it shows text.

use std::collections::BTreeMap;

use super::font::Font;
use super::object::{Dict, Object, Reader};
use super::{Document, Page};

/// A page's program is not followed beyond this many steps.
const MOST_STEPS: usize = 2_000_000;
/// A page does not have more text than this.
const MOST_TEXT: usize = 4 << 20;
/// How deep forms may be inside of forms.
const DEEPEST_FORM: usize = 6;

/// The text of a page.
#[derive(Default)]
pub(super) struct Read {
    pub(super) text: String,
    /// Some letters have no meaning that the file tells.
    pub(super) has_unknown_letters: bool,
}

pub(super) fn text_of(document: &Document<'_>, page: &Page<'_>) -> Result<Read, String> {
    let mut program = Vec::new();
    match document.get(page.dict, "Contents") {
        Object::List(parts) => {
            for part in parts.iter().take(10_000) {
                program.extend(document.data(document.resolve(part))?);
                program.push(b'\n');
            }
        }
        Object::Null => {}
        one => program = document.data(one)?,
    }
    let mut writer = Writer { document, out: Read::default(), fonts: BTreeMap::new(), at: None, steps: 0 };
    writer.run(&program, page.resources, 0)?;
    Ok(writer.out)
}

/// A matrix: how places in a text become places on the page.
type Matrix = [f64; 6];

const SAME: Matrix = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0];

fn times(left: &Matrix, right: &Matrix) -> Matrix {
    let [a, b, c, d, e, f] = *left;
    let [g, h, i, j, k, l] = *right;
    [a * g + b * i, a * h + b * j, c * g + d * i, c * h + d * j, e * g + f * i + k, e * h + f * j + l]
}

/// What a page's program has set.
#[derive(Clone)]
struct State {
    font: Option<u64>,
    size: f64,
    leading: f64,
    letter_space: f64,
    word_space: f64,
    scale: f64,
    page: Matrix,
}

struct Writer<'a> {
    document: &'a Document<'a>,
    out: Read,
    fonts: BTreeMap<u64, Font>,
    /// Where the last letter ended, and how large it was.
    at: Option<(f64, f64, f64)>,
    steps: usize,
}

impl Writer<'_> {
    fn run(&mut self, program: &[u8], resources: Option<&Dict>, depth: usize) -> Result<(), String> {
        let mut reader = Reader::new(program, 0);
        let mut stack: Vec<Object> = Vec::new();
        let mut state = State {
            font: None,
            size: 1.0,
            leading: 0.0,
            letter_space: 0.0,
            word_space: 0.0,
            scale: 1.0,
            page: SAME,
        };
        let mut saved: Vec<State> = Vec::new();
        let (mut text, mut line) = (SAME, SAME);
        while let Some(object) = reader.object(0) {
            self.steps += 1;
            if self.steps > MOST_STEPS {
                return Err("it is longer than any page that people read".to_owned());
            }
            if self.out.text.len() > MOST_TEXT {
                return Ok(());
            }
            let Object::Operator(word) = &object else {
                if stack.len() < 512 {
                    stack.push(object);
                }
                continue;
            };
            let number =
                |from_end: usize| match stack.len().checked_sub(from_end).and_then(|at| stack.get(at)) {
                    Some(Object::Number(number)) => *number,
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
                    state.page = times(&by, &state.page);
                }
                "BT" => (text, line) = (SAME, SAME),
                "Tf" => {
                    state.size = number(1);
                    if let Some(Object::Name(name)) = stack.len().checked_sub(2).and_then(|at| stack.get(at))
                    {
                        state.font = self.font(resources, name);
                    }
                }
                "Tc" => state.letter_space = number(1),
                "Tw" => state.word_space = number(1),
                "Tz" => state.scale = number(1) / 100.0,
                "TL" => state.leading = number(1),
                "Td" | "TD" => {
                    if word == "TD" {
                        state.leading = -number(1);
                    }
                    line = times(&[1.0, 0.0, 0.0, 1.0, number(2), number(1)], &line);
                    text = line;
                }
                "Tm" => {
                    line = [number(6), number(5), number(4), number(3), number(2), number(1)];
                    text = line;
                }
                "T*" | "'" | "\"" => {
                    if word == "\"" {
                        state.word_space = number(3);
                        state.letter_space = number(2);
                    }
                    line = times(&[1.0, 0.0, 0.0, 1.0, 0.0, -state.leading], &line);
                    text = line;
                    if word != "T*"
                        && let Some(Object::Text(bytes)) = stack.last()
                    {
                        self.show(bytes, &state, &mut text);
                    }
                }
                "Tj" => {
                    if let Some(Object::Text(bytes)) = stack.last() {
                        self.show(bytes, &state, &mut text);
                    }
                }
                "TJ" => {
                    if let Some(Object::List(parts)) = stack.last() {
                        for part in parts {
                            match part {
                                Object::Text(bytes) => self.show(bytes, &state, &mut text),
                                Object::Number(back) => {
                                    let by = -back / 1000.0 * state.size * state.scale;
                                    text = times(&[1.0, 0.0, 0.0, 1.0, by, 0.0], &text);
                                }
                                _ => {}
                            }
                        }
                    }
                }
                "Do" if depth < DEEPEST_FORM => {
                    if let Some(Object::Name(name)) = stack.last() {
                        self.form(resources, name, depth)?;
                    }
                }
                "ID" => reader.skip_picture(),
                _ => {}
            }
            stack.clear();
        }
        Ok(())
    }

    /// A font of the page, read once.
    fn font(&mut self, resources: Option<&Dict>, name: &str) -> Option<u64> {
        let fonts = self.document.dict(resources?, "Font")?;
        let object = fonts.get(name)?;
        let dict = self.document.resolve(object).as_dict()?;
        // Where it stands in memory tells one font from another, while the document is there.
        let key = std::ptr::from_ref(dict).addr() as u64;
        if !self.fonts.contains_key(&key) {
            self.fonts.insert(key, Font::read(self.document, dict));
        }
        Some(key)
    }

    fn form(&mut self, resources: Option<&Dict>, name: &str, depth: usize) -> Result<(), String> {
        let Some(forms) = resources.and_then(|resources| self.document.dict(resources, "XObject")) else {
            return Ok(());
        };
        let Some(form) = forms.get(name).map(|object| self.document.resolve(object)) else { return Ok(()) };
        let Some(dict) = form.as_dict().filter(|dict| dict.name("Subtype") == Some("Form")) else {
            return Ok(());
        };
        let program = self.document.data(form)?;
        self.run(&program, self.document.dict(dict, "Resources").or(resources), depth + 1)
    }

    fn show(&mut self, bytes: &[u8], state: &State, text: &mut Matrix) {
        let Some(font) = state.font.and_then(|key| self.fonts.get(&key)) else { return };
        for shown in font.show(bytes) {
            let place = times(text, &state.page);
            let height = (state.size * (place[2].powi(2) + place[3].powi(2)).sqrt()).abs().max(0.1);
            let mut by = shown.width * state.size + state.letter_space;
            if shown.is_space {
                by += state.word_space;
            }
            *text = times(&[1.0, 0.0, 0.0, 1.0, by * state.scale, 0.0], text);
            let end = times(text, &state.page);
            match shown.text {
                Some(letters) => {
                    separate(&mut self.out.text, self.at, place[4], place[5], height);
                    let clean = letters.chars().filter(|c| !c.is_control());
                    self.out.text.extend(clean);
                    self.at = Some((end[4], end[5], height));
                }
                None => self.out.has_unknown_letters = true,
            }
        }
    }
}

/// Writes what is between two letters: nothing, a space, a new line or an empty line.
fn separate(out: &mut String, last: Option<(f64, f64, f64)>, x: f64, y: f64, height: f64) {
    let Some((last_x, last_y, last_height)) = last else { return };
    let height = height.max(last_height);
    let down = (last_y - y).abs();
    if down > 0.6 * height {
        if out.ends_with('-') && down < 1.8 * height && out[..out.len() - 1].ends_with(char::is_alphabetic) {
            // A word that goes on in the next line.
            out.pop();
            return;
        }
        while out.ends_with(' ') {
            out.pop();
        }
        out.push_str(if down > 1.8 * height { "\n\n" } else { "\n" });
    } else if (x - last_x > 0.18 * height || last_x - x > 2.0 * height) && !out.ends_with([' ', '\n']) {
        out.push(' ');
    }
}
