//! The arguments of a call as a person reads them before a decision: all of them, and nothing ambiguous.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::SafeText;
use crate::characters::CombiningState;

/// An argument as it is displayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentText {
    /// The name: bare if it is an ordinary identifier, and a literal if it is not.
    pub name: SafeText,
    /// The value. A string is a literal, so that nothing in it is ambiguous; a line break in it is shown as `\n` and also
    /// breaks the line.
    pub lines: Vec<SafeText>,
}

/// Formats the fields of a JSON object, in their order. Returns `None` if the text is not an object.
pub fn format_arguments(json: &str) -> Option<Vec<ArgumentText>> {
    let ObjectFields(fields) = serde_json::from_str(json).ok()?;
    let format = |(name, value): (String, Box<RawValue>)| ArgumentText {
        name: format_name(&name),
        lines: format_value(value.get()),
    };
    Some(fields.into_iter().map(format).collect())
}

/// Escapes a line of a diff. A tab is shown as an arrow, because a diff is full of them.
///
/// Files have backslashes of their own, which stay as they are, except in front of a hidden character and of what looks
/// like one: these are doubled, so that an escape with an odd number of backslashes is a character of the file, and one
/// with an even number is text of the file.
pub fn format_diff_line(line: &str) -> SafeText {
    let parts: Vec<String> = line.split('\t').map(escape_source).collect();
    SafeText(parts.join("→   "))
}

fn escape_source(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut state = CombiningState::default();
    let mut backslashes = 0;
    for (place, letter) in text.char_indices() {
        let is_shown = state.admit(letter);
        if !is_shown || text[place..].starts_with("u{") {
            out.extend(std::iter::repeat_n('\\', backslashes));
        }
        if is_shown {
            out.push(letter);
        } else {
            out.extend(letter.escape_unicode());
        }
        backslashes = if letter == '\\' { backslashes + 1 } else { 0 };
    }
    out
}

fn format_name(name: &str) -> SafeText {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    if !name.is_empty() && name.chars().all(is_plain) {
        SafeText::from_line(name)
    } else {
        SafeText::quote(name)
    }
}

/// Formats a JSON value: a string as a literal, anything else as JSON.
fn format_value(json: &str) -> Vec<SafeText> {
    let Ok(text) = serde_json::from_str::<String>(json) else { return vec![SafeText::from_json(json)] };
    let mut lines: Vec<SafeText> = text.split_inclusive('\n').map(SafeText::quote_inner).collect();
    match lines.as_mut_slice() {
        [] => return vec![SafeText::quote("")],
        [first, ..] => first.0.insert(0, '"'),
    }
    if let Some(last) = lines.last_mut() {
        last.0.push('"');
    }
    lines
}

/// The fields of a JSON object in their order, with values as they were written.
struct ObjectFields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for ObjectFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = ObjectFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ObjectFields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(ObjectFields(fields))
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::{format_arguments, format_diff_line};

    fn shown(json: &str) -> Vec<(String, Vec<String>)> {
        let arguments = format_arguments(json).unwrap();
        let texts = |lines: &[crate::SafeText]| lines.iter().map(ToString::to_string).collect();
        arguments.iter().map(|one| (one.name.to_string(), texts(&one.lines))).collect()
    }

    #[test]
    fn strings_are_literals_and_break_at_their_line_breaks() {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            shown(r#"{"b":"one\ntwo\u001b","a":[1,"x"],"c":"","d":"end\n"}"#),
            [
                ("b".to_owned(), lines(&[r#""one\n"#, r#"two\u{1b}""#])),
                ("a".to_owned(), lines(&[r#"[1,"x"]"#])),
                ("c".to_owned(), lines(&[r#""""#])),
                ("d".to_owned(), lines(&[r#""end\n""#])),
            ]
        );
    }

    #[test]
    fn names_that_are_no_identifiers_are_literals() {
        assert_eq!(shown("{\"a b\":1,\"\":2,\"x\\u202e\":3}")[0].0, "\"a b\"");
        assert_eq!(shown("{\"\":2}")[0].0, "\"\"");
        assert_eq!(shown("{\"x\\u202e\":3}")[0].0, "\"x\\u{202e}\"");
        assert!(format_arguments("[1]").is_none());
    }

    #[test]
    fn tabs_of_a_diff_are_arrows() {
        assert_eq!(format_diff_line("+\tx\u{1b}").to_string(), "+→   x\\u{1b}");
    }

    /// A source file may have an escape as text, where a person would take a hidden character for it.
    #[test]
    fn a_hidden_character_is_told_from_its_escape_in_the_text() {
        let lines = [
            "+a = \"\u{202e}\"",
            r#"+a = "\u{202e}""#,
            r#"+a = "\\u{202e}""#,
            "+a = \"\\\u{202e}\"",
            "+a = \"\\\\\u{202e}\"",
            "+a = \"\r\"",
            r#"+a = "\r""#,
            r#"+a = "\u{d}""#,
        ];
        let shown: std::collections::BTreeSet<String> =
            lines.iter().map(|line| format_diff_line(line).to_string()).collect();
        assert_eq!(shown.len(), lines.len(), "{shown:?}");
        // Ordinary source text is shown as it is.
        for line in [r#"+let path = "C:\temp\new\r\n";"#, r"+\d+\w{2}"] {
            assert_eq!(format_diff_line(line).to_string(), line);
        }
    }
}
