//! JSON with ordered keys, and the reference's formats of values.

use std::fmt::{self, Write};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// A JSON value whose objects keep the order of their keys.
#[derive(Clone, Debug, PartialEq)]
pub enum OrderedJson {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Self>),
    /// An object.
    Object(Vec<(String, Self)>),
}

impl OrderedJson {
    /// Returns the value of a field.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Returns the fields of an object; empty for other values.
    pub fn object_fields(&self) -> &[(String, Self)] {
        match self {
            Self::Object(fields) => fields,
            _ => &[],
        }
    }

    /// Returns the elements of an array; empty for other values.
    pub fn list_items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// Returns the text of a string.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the text of a string field.
    pub fn text_field(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_text()
    }

    /// Returns the value of a non-negative integer field.
    pub fn count_field(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Self::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Returns the value of a boolean field, or the default.
    pub fn bool_field(&self, key: &str, default: bool) -> bool {
        match self.get(key) {
            Some(Self::Bool(switch)) => *switch,
            _ => default,
        }
    }

    /// Converts to a `serde_json::Value`, without key order.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::from(*value),
            Self::Integer(value) => Value::from(*value),
            Self::Float(value) => Value::from(*value),
            Self::Text(value) => Value::from(value.as_str()),
            Self::List(items) => items.iter().map(Self::to_value).collect(),
            Self::Object(fields) => {
                fields.iter().map(|(key, value)| (key.clone(), value.to_value())).collect()
            }
        }
    }

    /// Formats the value as the reference does.
    pub fn format_as(&self, style: JsonStyle) -> String {
        let mut out = String::new();
        self.format_into(style, &mut out);
        out
    }

    fn format_into(&self, style: JsonStyle, out: &mut String) {
        let (comma, colon) = match style {
            JsonStyle::Compact => (",", ":"),
            JsonStyle::SpacedAscii | JsonStyle::PythonRepr => (", ", ": "),
        };
        match self {
            Self::Null => out.push_str(if style == JsonStyle::PythonRepr { "None" } else { "null" }),
            Self::Bool(true) => out.push_str(if style == JsonStyle::PythonRepr { "True" } else { "true" }),
            Self::Bool(false) => out.push_str(if style == JsonStyle::PythonRepr { "False" } else { "false" }),
            Self::Integer(number) => out.push_str(&number.to_string()),
            Self::Float(number) => out.push_str(&python_float_text(*number)),
            Self::Text(text) if style == JsonStyle::PythonRepr => push_python_text(text, out),
            Self::Text(text) => push_json_text(text, style, out),
            Self::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push_str(comma);
                    }
                    item.format_into(style, out);
                }
                out.push(']');
            }
            Self::Object(fields) => {
                out.push('{');
                for (at, (key, value)) in fields.iter().enumerate() {
                    if at > 0 {
                        out.push_str(comma);
                    }
                    Self::Text(key.clone()).format_into(style, out);
                    out.push_str(colon);
                    value.format_into(style, out);
                }
                out.push('}');
            }
        }
    }
}

/// The output format of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum JsonStyle {
    /// No spaces, and no escapes for non-ASCII characters.
    Compact,
    /// With spaces, and with non-ASCII characters escaped.
    SpacedAscii,
    /// Python's `repr`.
    PythonRepr,
}

/// Returns text as a JSON string with non-ASCII characters escaped.
pub fn ascii_json_text(text: &str) -> String {
    let mut out = String::new();
    push_json_text(text, JsonStyle::SpacedAscii, &mut out);
    out
}

fn push_json_text(text: &str, style: JsonStyle, out: &mut String) {
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
            plain if plain.is_ascii() || style == JsonStyle::Compact => out.push(plain),
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

fn push_python_text(text: &str, out: &mut String) {
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

/// Returns a float in Python's notation.
pub fn python_float_text(value: f64) -> String {
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

impl<'de> Deserialize<'de> for OrderedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OrderedJsonVisitor)
    }
}

/// The visitor that deserialises ordered JSON.
struct OrderedJsonVisitor;

impl<'de> Visitor<'de> for OrderedJsonVisitor {
    type Value = OrderedJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<OrderedJson, E> {
        Ok(i64::try_from(value).map_or(OrderedJson::Float(value as f64), OrderedJson::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<OrderedJson, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(OrderedJson::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<OrderedJson, A::Error> {
        let mut fields: Vec<(String, OrderedJson)> = Vec::new();
        while let Some((key, value)) = entries.next_entry::<String, OrderedJson>()? {
            // A duplicate key replaces the value and keeps the first position.
            match fields.iter_mut().find(|(known, _)| *known == key) {
                Some(known) => known.1 = value,
                None => fields.push((key, value)),
            }
        }
        Ok(OrderedJson::Object(fields))
    }
}
