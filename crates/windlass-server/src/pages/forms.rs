//! Forms made from a JSON Schema: for edited arguments and for answers to questions.
//!
//! Every field has the path of its value. The script builds the value from the fields, and the server checks it again.
//! What a field cannot show faithfully is edited as JSON. The field of an optional value that is absent is marked:
//! unless somebody changes it, the value stays absent.

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
    FormWriter { id, root }.field(label, root, GivenValue { value, is_absent: false }, &mut Vec::new())
}

/// Returns true if a script reads every number of a value as it is. Its numbers are doubles, which skip integers above
/// this size.
pub(super) fn has_exact_numbers(value: &Value) -> bool {
    const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;
    match value {
        Value::Number(number) => number.as_f64().is_some_and(|number| number.abs() <= MAX_SAFE_INTEGER),
        Value::Array(values) => values.iter().all(has_exact_numbers),
        Value::Object(members) => members.values().all(has_exact_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

/// The value of a field.
#[derive(Clone, Copy)]
struct GivenValue<'a> {
    value: &'a Value,
    /// True if the value is optional and absent.
    is_absent: bool,
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
    fn field(&self, label: &str, schema: &Value, given: GivenValue<'_>, path: &mut Vec<String>) -> Markup {
        let (schema, is_nullable) = self.resolve(schema);
        match field_kind(schema, given.value, is_nullable, path.len()) {
            FieldKind::Object => self.object(label, schema, given, path),
            kind => self.single(label, schema, given, path, &kind, is_nullable),
        }
    }

    fn object(&self, label: &str, schema: &Value, given: GivenValue<'_>, path: &mut Vec<String>) -> Markup {
        let value = given.value;
        let required = schema["required"].as_array();
        let is_required =
            |name: &str| required.is_some_and(|names| names.iter().any(|required| required == name));
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
                    let member = value.get(name.as_str());
                    let is_absent = given.is_absent || (member.is_none() && !is_required(name));
                    let member = GivenValue { value: member.unwrap_or(&Value::Null), is_absent };
                    let field = self.field(name, schema, member, path);
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
        GivenValue { value, is_absent }: GivenValue<'_>,
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
        let (nullable, absent) = (is_nullable.then_some("1"), is_absent.then_some("1"));
        let hint = match (kind, is_absent, is_nullable) {
            (_, true, _) => Some("(unchanged: not given)"),
            (FieldKind::Json, false, _) | (_, false, false) => None,
            (_, false, true) => Some("(empty: none)"),
        };
        let text = value.as_str().unwrap_or_default();
        html! {
            label for=(id) {
                (line(label))
                @if let Some(text) = schema["description"].as_str() { span.dim { " " (line(text)) } }
                @if let Some(hint) = hint { span.dim { " " (hint) } }
            }
            @match kind {
                FieldKind::Text => {
                    textarea id=(id) data-path=(place) data-kind="string" data-nullable=[nullable] data-absent=[absent] required[self.is_required(path, is_nullable)]
                        rows=(text.lines().count().clamp(1, 8)) { "\n" (text) }
                }
                FieldKind::Choice(values) => {
                    select id=(id) data-path=(place) data-kind="string" data-nullable=[nullable] data-absent=[absent] {
                        @if is_absent { option value="" selected { "not given" } }
                        @else if is_nullable { option value="" selected[value.is_null()] { "none" } }
                        @for option in values { option value=(option) selected[value.as_str() == Some(option)] { (SafeText::from_line(option).as_str()) } }
                    }
                }
                FieldKind::Number { step } => {
                    input id=(id) data-path=(place) data-kind="number" data-nullable=[nullable] data-absent=[absent] type="number" step=(step)
                        min=[schema["minimum"].as_f64()] max=[schema["maximum"].as_f64()] value=(if value.is_null() { String::new() } else { value.to_string() });
                }
                FieldKind::Boolean if is_absent => {
                    select id=(id) data-path=(place) data-kind="json" data-absent="1" {
                        option value="" selected { "not given" }
                        @if is_nullable { option value="null" { "none" } }
                        option value="true" { "yes" }
                        option value="false" { "no" }
                    }
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
                    textarea.mono id=(id) data-path=(place) data-kind="json" data-absent=[absent] rows="2" {
                        "\n" @if !is_absent { (SafeText::from_json(&value.to_string()).as_str()) }
                    }
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
    fn an_optional_value_that_is_absent_stays_absent_unless_it_is_changed() {
        let schema = json!({ "type": "object", "required": ["to", "note"], "properties": {
            "to": { "type": "string" }, "note": { "type": "string" }, "memo": { "type": "string" },
            "dry_run": { "type": "boolean" }, "force": { "type": ["boolean", "null"] }, "count": { "type": "integer" },
            "kind": { "type": "string", "enum": ["a", "b"] }, "list": { "type": "array" },
            "inner": { "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] } } });
        let shown = form(&schema, &json!({ "to": "Ropeworks" }));
        assert_eq!(shown.matches("data-path").count(), 9, "{shown}");
        assert_eq!(shown.matches("data-absent=\"1\"").count(), 7, "{shown}");
        for name in ["to", "note"] {
            let part = format!("data-path=\"[&quot;{name}&quot;]\" data-kind=\"string\" rows");
            assert!(shown.contains(&part), "`{name}` is given or required: {shown}");
        }
        // Each of them can be given the value that a field without a value would have.
        assert_eq!(shown.matches("<option value=\"\" selected>not given</option>").count(), 3, "{shown}");
        assert!(!shown.contains("checkbox") && !shown.contains(">null<"), "{shown}");
    }

    #[test]
    fn numbers_that_a_script_would_change_are_known() {
        for exact in ["9007199254740991", "-9007199254740991", "1.5", "[1,{\"a\":null}]"] {
            assert!(has_exact_numbers(&serde_json::from_str(exact).unwrap()), "{exact}");
        }
        for changed in ["9007199254740993", "1e300", "-9007199254740993", "[{\"a\":18446744073709551615}]"] {
            assert!(!has_exact_numbers(&serde_json::from_str(changed).unwrap()), "{changed}");
        }
    }

    #[test]
    fn different_names_have_different_ids() {
        let shown = form(&json!({}), &json!({ "a b": 1, "a-b": 2, "a_b": 3 }));
        let ids: std::collections::BTreeSet<&str> =
            shown.split("id=\"").skip(1).filter_map(|part| part.split('"').next()).collect();
        assert_eq!(ids.len(), 3, "{shown}");
    }
}
