//! Forms made from a JSON Schema: for edited arguments and for answers to questions.
//!
//! Every field has the path of its value. The script builds the value from the fields, and the server checks it again. What a
//! field cannot show faithfully is edited as JSON.

use maud::{Markup, html};
use serde_json::Value;
use windlass_text::SafeText;

use super::markup::line;

/// Depth of objects up to which they have fields of their own.
const MAX_DEPTH: usize = 4;

/// Renders the fields of a value. `id` identifies the form on its page.
pub(super) fn fields(id: &str, label: &str, schema: Option<&Value>, value: &Value) -> Markup {
    let empty = Value::Null;
    let root = schema.unwrap_or(&empty);
    FormWriter { id, root }.field(label, root, value, &mut Vec::new())
}

struct FormWriter<'a> {
    id: &'a str,
    root: &'a Value,
}

/// The widget of a field.
enum FieldKind {
    Text,
    Choice(Vec<String>),
    Number { step: &'static str },
    Boolean,
    Object,
    Json,
}

impl FormWriter<'_> {
    fn field(&self, label: &str, schema: &Value, value: &Value, path: &mut Vec<String>) -> Markup {
        let (schema, is_nullable) = self.resolve(schema);
        match field_kind(schema, value, is_nullable, path.len()) {
            FieldKind::Object => self.object(label, schema, value, path),
            kind => self.single(label, schema, value, path, &kind, is_nullable),
        }
    }

    fn object(&self, label: &str, schema: &Value, value: &Value, path: &mut Vec<String>) -> Markup {
        let properties = schema["properties"].as_object();
        let mut names: Vec<(String, Value)> =
            properties.into_iter().flatten().map(|(name, schema)| (name.clone(), schema.clone())).collect();
        // Arguments that the schema does not name are kept.
        for name in value.as_object().into_iter().flat_map(|object| object.keys()) {
            if !names.iter().any(|(known, _)| known == name) {
                names.push((name.clone(), Value::Null));
            }
        }
        let within = |path: &mut Vec<String>| {
            let fields: Vec<Markup> = names
                .iter()
                .map(|(name, schema)| {
                    path.push(name.clone());
                    let given = value.get(name.as_str()).unwrap_or(&Value::Null);
                    let field = self.field(name, schema, given, path);
                    path.pop();
                    field
                })
                .collect();
            html! { @for field in &fields { (field) } }
        };
        if path.is_empty() {
            return within(path);
        }
        html! { fieldset { legend { (line(label)) } (within(path)) } }
    }

    fn single(
        &self,
        label: &str,
        schema: &Value,
        value: &Value,
        path: &[String],
        kind: &FieldKind,
        is_nullable: bool,
    ) -> Markup {
        let id = format!(
            "{}-f{}",
            self.id,
            path.iter().map(|part| format!("-{}", plain(part))).collect::<String>()
        );
        let place = serde_json::to_string(path).unwrap_or_default();
        let nullable = is_nullable.then_some("1");
        let text = value.as_str().unwrap_or_default();
        html! {
            label for=(id) {
                (line(label))
                @if let Some(text) = schema["description"].as_str() { span.dim { " " (line(text)) } }
                @if is_nullable && !matches!(kind, FieldKind::Json) { span.dim { " (empty: none)" } }
            }
            @match kind {
                FieldKind::Text => {
                    textarea id=(id) data-path=(place) data-kind="string" data-nullable=[nullable] required[self.is_required(path, is_nullable)]
                        rows=(text.lines().count().clamp(1, 8)) { "\n" (text) }
                }
                FieldKind::Choice(values) => {
                    select id=(id) data-path=(place) data-kind="string" data-nullable=[nullable] {
                        @if is_nullable { option value="" selected[value.is_null()] { "none" } }
                        @for option in values { option value=(option) selected[value.as_str() == Some(option)] { (SafeText::from_line(option).as_str()) } }
                    }
                }
                FieldKind::Number { step } => {
                    input id=(id) data-path=(place) data-kind="number" data-nullable=[nullable] type="number" step=(step)
                        min=[schema["minimum"].as_f64()] max=[schema["maximum"].as_f64()] value=(if value.is_null() { String::new() } else { value.to_string() });
                }
                FieldKind::Boolean if is_nullable => {
                    select id=(id) data-path=(place) data-kind="json" {
                        @for (option, name, known) in [("null", "none", None), ("true", "yes", Some(true)), ("false", "no", Some(false))] { option value=(option) selected[value.as_bool() == known] { (name) } }
                    }
                }
                FieldKind::Boolean => {
                    input id=(id) data-path=(place) data-kind="boolean" type="checkbox" checked[value == &Value::Bool(true)];
                }
                FieldKind::Object | FieldKind::Json => {
                    textarea.mono id=(id) data-path=(place) data-kind="json" rows="2" { "\n" (SafeText::from_json(&value.to_string()).as_str()) }
                }
            }
        }
    }

    /// An answer that is one text must not be left empty by accident.
    fn is_required(&self, path: &[String], is_nullable: bool) -> bool {
        path.is_empty() && !is_nullable
    }

    /// Follows references and takes `null` out of the alternatives.
    fn resolve<'s>(&'s self, schema: &'s Value) -> (&'s Value, bool) {
        let (mut schema, mut is_nullable) = (schema, false);
        for _ in 0..16 {
            if let Some(place) = schema["$ref"].as_str().and_then(|text| text.strip_prefix('#')) {
                match self.root.pointer(place) {
                    Some(found) => schema = found,
                    None => break,
                }
                continue;
            }
            let parts = ["anyOf", "oneOf"].iter().find_map(|word| schema[*word].as_array());
            let Some(parts) = parts else { break };
            let others: Vec<&Value> = parts.iter().filter(|part| part["type"] != "null").collect();
            match others.as_slice() {
                [only] if parts.len() == 2 => {
                    is_nullable = true;
                    schema = only;
                }
                _ => break,
            }
        }
        let has_null = schema["type"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "null"));
        (schema, is_nullable || has_null)
    }
}

/// Chooses the widget of a field. A value that it would not show as it is becomes JSON.
fn field_kind(schema: &Value, value: &Value, is_nullable: bool, depth: usize) -> FieldKind {
    let declared = match &schema["type"] {
        Value::String(kind) => Some(kind.as_str()),
        Value::Array(kinds) => {
            let mut others = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            others.next().filter(|_| others.next().is_none())
        }
        _ => None,
    };
    let kind = declared.unwrap_or(match value {
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
        Value::Object(_) if depth == 0 => "object",
        _ => "json",
    });
    let written = value.to_string();
    // A field would show a hidden character as nothing; as JSON it is an escape.
    let is_plain = SafeText::from_json(&written).as_str() == written;
    // An empty field of a nullable text stands for none.
    let is_text =
        value.is_null() || value.as_str().is_some_and(|text| is_plain && !(is_nullable && text.is_empty()));
    match kind {
        "string" if is_text => enum_values(schema).map_or(FieldKind::Text, FieldKind::Choice),
        "integer" if value.is_null() || value.is_i64() || value.is_u64() => FieldKind::Number { step: "1" },
        "number" if value.is_null() || value.is_number() => FieldKind::Number { step: "any" },
        "boolean" if value.is_null() || value.is_boolean() => FieldKind::Boolean,
        "object" if depth < MAX_DEPTH && !is_nullable && (value.is_object() || value.is_null()) => {
            match schema["properties"].is_object() || (depth == 0 && value.is_object()) {
                true => FieldKind::Object,
                false => FieldKind::Json,
            }
        }
        _ => FieldKind::Json,
    }
}

fn enum_values(schema: &Value) -> Option<Vec<String>> {
    let values = schema["enum"].as_array()?.iter().filter(|value| !value.is_null());
    values.map(|value| value.as_str().map(str::to_owned)).collect()
}

/// Writes a name so that it can be part of an id, different names differently.
fn plain(name: &str) -> String {
    let escape = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' => letter.to_string(),
        other => format!("_{:x}_", u32::from(other)),
    };
    name.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form(schema: &Value, value: &Value) -> String {
        fields("form", "Your answer", Some(schema), value).into_string()
    }

    #[test]
    fn hidden_characters_of_a_choice_are_visible() {
        let schema = json!({ "type": "string", "enum": ["pay", "do not\u{202e} pay"] });
        let shown = form(&schema, &json!("pay"));
        assert!(shown.contains(r">do not\u{202e} pay</option>"), "{shown}");
        // The value that is chosen stays as it is.
        assert!(shown.contains("value=\"do not\u{202e} pay\""), "{shown}");
    }

    #[test]
    fn optional_nested_and_referenced_values_have_fields_of_their_own() {
        let schema = json!({
            "type": "object",
            "properties": {
                "note": { "type": ["string", "null"] },
                "limit": { "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "null" }] },
                "to": { "$ref": "#/$defs/Payee" },
            },
            "$defs": { "Payee": { "type": "object", "properties": {
                "name": { "type": "string" }, "kind": { "type": "string", "enum": ["firm", "person"] } } } },
        });
        let shown = form(
            &schema,
            &json!({ "note": null, "limit": 7, "to": { "name": "Ropeworks", "kind": "firm" } }),
        );
        for part in [
            r#"data-path="[&quot;note&quot;]" data-kind="string" data-nullable="1""#,
            r#"data-path="[&quot;limit&quot;]" data-kind="number" data-nullable="1" type="number" step="1" min="1" value="7""#,
            r#"<fieldset><legend>to</legend>"#,
            r#"data-path="[&quot;to&quot;,&quot;name&quot;]" data-kind="string""#,
            r#"<option value="firm" selected>firm</option>"#,
        ] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
        assert!(!shown.contains("data-kind=\"json\""), "{shown}");
    }

    #[test]
    fn values_that_a_field_would_not_show_are_edited_as_json() {
        let schema = json!({ "type": "object", "properties": {
            "text": { "type": "string" }, "empty": { "type": ["string", "null"] }, "count": { "type": "integer" }, "list": { "type": "array" } } });
        let shown = form(
            &schema,
            &json!({ "text": "a\u{202e}b", "empty": "", "count": 1.5, "list": [1], "other": true }),
        );
        assert_eq!(shown.matches("data-kind=\"json\"").count(), 4, "{shown}");
        assert!(shown.contains(r"a\u202eb"), "{shown}");
        assert!(shown.contains("data-path=\"[&quot;other&quot;]\" data-kind=\"boolean\""), "{shown}");
    }

    #[test]
    fn different_names_have_different_ids() {
        let shown = form(&json!({}), &json!({ "a b": 1, "a-b": 2, "a_b": 3 }));
        let ids: std::collections::BTreeSet<&str> =
            shown.split("id=\"").skip(1).filter_map(|part| part.split('"').next()).collect();
        assert_eq!(ids.len(), 3, "{shown}");
    }
}
