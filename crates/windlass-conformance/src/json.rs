//! JSON that keeps the order of its keys, and the reference's way of writing values.

use std::fmt::{self, Write};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// A JSON value whose objects keep the order in which they were written.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Whole(i64),
    /// Any other number.
    Double(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Self>),
    /// An object.
    Object(Vec<(String, Self)>),
}

impl Json {
    /// The value of a field.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The fields, where it is an object.
    pub fn fields(&self) -> &[(String, Self)] {
        match self {
            Self::Object(fields) => fields,
            _ => &[],
        }
    }

    /// The elements, where it is a list.
    pub fn list(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// The text, where it is text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A field's text.
    pub fn text_of(&self, key: &str) -> Option<&str> {
        self.get(key)?.text()
    }

    /// A field's whole number, where it is not negative.
    pub fn count_of(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Self::Whole(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// A field that is a switch, or a default.
    pub fn switch(&self, key: &str, default: bool) -> bool {
        match self.get(key) {
            Some(Self::Bool(switch)) => *switch,
            _ => default,
        }
    }

    /// As a value without order.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::from(*value),
            Self::Whole(value) => Value::from(*value),
            Self::Double(value) => Value::from(*value),
            Self::Text(value) => Value::from(value.as_str()),
            Self::List(items) => items.iter().map(Self::to_value).collect(),
            Self::Object(fields) => {
                fields.iter().map(|(key, value)| (key.clone(), value.to_value())).collect()
            }
        }
    }

    /// As the reference writes it, in JSON.
    pub fn write(&self, style: Style) -> String {
        let mut out = String::new();
        self.write_to(style, &mut out);
        out
    }

    fn write_to(&self, style: Style, out: &mut String) {
        let (comma, colon) = match style {
            Style::Compact => (",", ":"),
            Style::Spaced | Style::Python => (", ", ": "),
        };
        match self {
            Self::Null => out.push_str(if style == Style::Python { "None" } else { "null" }),
            Self::Bool(true) => out.push_str(if style == Style::Python { "True" } else { "true" }),
            Self::Bool(false) => out.push_str(if style == Style::Python { "False" } else { "false" }),
            Self::Whole(number) => out.push_str(&number.to_string()),
            Self::Double(number) => out.push_str(&python_float(*number)),
            Self::Text(text) if style == Style::Python => python_text(text, out),
            Self::Text(text) => json_text(text, style, out),
            Self::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push_str(comma);
                    }
                    item.write_to(style, out);
                }
                out.push(']');
            }
            Self::Object(fields) => {
                out.push('{');
                for (at, (key, value)) in fields.iter().enumerate() {
                    if at > 0 {
                        out.push_str(comma);
                    }
                    Self::Text(key.clone()).write_to(style, out);
                    out.push_str(colon);
                    value.write_to(style, out);
                }
                out.push('}');
            }
        }
    }
}

/// How a value is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Without spaces, every character as it is.
    Compact,
    /// With spaces, everything but ASCII escaped.
    Spaced,
    /// As Python shows values.
    Python,
}

/// Text as JSON writes it with everything but ASCII escaped.
pub fn ascii_text(text: &str) -> String {
    let mut out = String::new();
    json_text(text, Style::Spaced, &mut out);
    out
}

fn json_text(text: &str, style: Style, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => push_escape(u16::try_from(u32::from(control)).unwrap_or(0), out),
            plain if plain.is_ascii() || style == Style::Compact => out.push(plain),
            other => {
                let mut units = [0; 2];
                for unit in other.encode_utf16(&mut units) {
                    push_escape(*unit, out);
                }
            }
        }
    }
    out.push('"');
}

fn push_escape(unit: u16, out: &mut String) {
    let written = write!(out, "\\u{unit:04x}");
    debug_assert!(written.is_ok(), "writing to a string does not fail");
}

fn python_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            same if same == quote => {
                out.push('\\');
                out.push(same);
            }
            control if control < ' ' || control == '\u{7f}' => {
                let written = write!(out, "\\x{:02x}", u32::from(control));
                debug_assert!(written.is_ok(), "writing to a string does not fail");
            }
            plain => out.push(plain),
        }
    }
    out.push(quote);
}

/// A float as Python shows it.
pub fn python_float(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 || (1e-4..1e16).contains(&magnitude) {
        let text = value.to_string();
        if text.contains('.') { text } else { format!("{text}.0") }
    } else {
        let text = format!("{value:e}");
        match text.split_once('e') {
            Some((digits, exponent)) => {
                let (sign, exponent) = match exponent.strip_prefix('-') {
                    Some(exponent) => ('-', exponent),
                    None => ('+', exponent),
                };
                format!("{digits}e{sign}{exponent:0>2}")
            }
            None => text,
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Whole(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(i64::try_from(value).map_or(Json::Double(value as f64), Json::Whole))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Double(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut fields: Vec<(String, Json)> = Vec::new();
        while let Some((key, value)) = entries.next_entry::<String, Json>()? {
            // Of two equal keys the last counts, at the place of the first.
            match fields.iter_mut().find(|(known, _)| *known == key) {
                Some(known) => known.1 = value,
                None => fields.push((key, value)),
            }
        }
        Ok(Json::Object(fields))
    }
}
