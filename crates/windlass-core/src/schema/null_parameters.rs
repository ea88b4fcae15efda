//! Canonical arguments without the optional parameters that are null, at every depth.
//!
//! A model that must mention every parameter writes null for those that it leaves out. A null is left out where the schema
//! knows the parameter, and where its absence stands for no other value. Two calls that mean different things must never
//! become equal, so a null stays wherever it may help to choose between the alternatives of a schema.

use std::borrow::Cow;
use std::cell::Cell;

use serde_json::{Map, Value};

use super::resolve_reference;
use crate::canonical::scan::CanonicalText;

/// Maximum number of schemas that are read for one call. Past it, nulls stay.
const MAX_SCHEMAS: u32 = 10_000;
/// Maximum number of references and alternatives between a place and a schema that applies to it.
const MAX_SCHEMA_DEPTH: u32 = 32;

type Rules = Map<String, Value>;

/// Returns canonical arguments without the parameters whose null says no more than their absence.
///
/// That is a parameter that the schema knows at its place (through `properties`, `$ref`, `allOf`, `items`, `prefixItems`,
/// `additionalProperties`, `patternProperties`, and the alternative of `anyOf` or `oneOf` that applies), and that is
/// required or has no other default than null. Elements of arrays, values of maps and unknown parameters stay.
///
/// Alternatives are told apart by the type of the value, by constants, and by required parameters. Where that leaves
/// several, or where a required parameter may tell them apart, its null stays.
pub fn without_null_parameters<'a>(arguments: &'a str, schema: &Value) -> Cow<'a, str> {
    if !arguments.contains(":null") {
        return Cow::Borrowed(arguments);
    }
    let walk =
        SchemaWalk { text: CanonicalText(arguments), root: schema, schemas_left: Cell::new(MAX_SCHEMAS) };
    let mut kept = String::with_capacity(arguments.len());
    walk.copy_value(0, &walk.place([schema], 0), &mut kept);
    Cow::Owned(kept)
}

/// The schemas that apply at a place of the arguments.
#[derive(Default)]
struct SchemaPlace<'s> {
    /// They apply in any case.
    certain: Vec<&'s Rules>,
    /// They may apply: alternatives that the value does not choose between.
    possible: Vec<&'s Rules>,
    /// Parameters that choose between alternatives.
    choosing: Vec<&'s str>,
}

struct SchemaWalk<'a, 's> {
    text: CanonicalText<'a>,
    root: &'s Value,
    schemas_left: Cell<u32>,
}

impl<'a, 's> SchemaWalk<'a, 's> {
    /// Copies the value at a position without the null parameters, and returns its end.
    fn copy_value(&self, at: usize, place: &SchemaPlace<'s>, kept: &mut String) -> usize {
        let end = self.text.value_end(at);
        let value = self.text.slice(at, end);
        match self.text.byte_at(at) {
            _ if place.certain.is_empty() || !value.contains(":null") => kept.push_str(value),
            b'{' => self.copy_object(at, place, kept),
            b'[' => self.copy_array(at, place, kept),
            _ => kept.push_str(value),
        }
        end
    }

    fn copy_object(&self, at: usize, place: &SchemaPlace<'s>, kept: &mut String) {
        kept.push('{');
        let mut is_first = true;
        for (name_at, name, value_at) in self.members(at) {
            let schemas = place.certain.iter().flat_map(|rules| parameter_schemas(rules, &name));
            let inner = self.place(schemas, value_at);
            let is_null = self.text.value_at(value_at) == "null";
            if is_null && place.is_absence(&name, &inner) && self.schemas_left.get() > 0 {
                continue;
            }
            if !is_first {
                kept.push(',');
            }
            is_first = false;
            kept.push_str(self.text.slice(name_at, value_at));
            self.copy_value(value_at, &inner, kept);
        }
        kept.push('}');
    }

    fn copy_array(&self, at: usize, place: &SchemaPlace<'s>, kept: &mut String) {
        kept.push('[');
        let mut at = at + 1;
        for index in 0.. {
            let schemas = place.certain.iter().filter_map(|rules| element_schema(rules, index));
            at = self.copy_value(at, &self.place(schemas, at), kept);
            if self.text.byte_at(at) != b',' {
                break;
            }
            kept.push(',');
            at += 1;
        }
        kept.push(']');
    }

    /// Returns the parameters of the object at a position: the position of the name, the name, the position of the value.
    fn members(&self, at: usize) -> impl Iterator<Item = (usize, String, usize)> {
        let (text, mut at) = (self.text, at + 1);
        std::iter::from_fn(move || {
            if text.byte_at(at) != b'"' {
                return None;
            }
            let (name_at, name_end) = (at, text.string_end(at));
            at = text.value_end(name_end + 1) + 1;
            let name = serde_json::from_str(text.slice(name_at, name_end)).unwrap_or_default();
            Some((name_at, name, name_end + 1))
        })
    }

    /// Collects the schemas that apply to the value at a position.
    fn place(&self, schemas: impl IntoIterator<Item = &'s Value>, at: usize) -> SchemaPlace<'s> {
        let mut place = SchemaPlace::default();
        for schema in schemas {
            self.add_schema(schema, at, &mut place, MAX_SCHEMA_DEPTH);
        }
        place
    }

    fn add_schema(&self, schema: &'s Value, at: usize, place: &mut SchemaPlace<'s>, depth: u32) {
        let parts = self.parts(schema, depth);
        for rules in &parts {
            place.certain.push(rules);
            for keyword in ["anyOf", "oneOf"] {
                let Some(alternatives) = rules.get(keyword).and_then(Value::as_array) else { continue };
                self.add_alternatives(alternatives, at, place, depth);
            }
        }
    }

    fn add_alternatives(
        &self,
        alternatives: &'s [Value],
        at: usize,
        place: &mut SchemaPlace<'s>,
        depth: u32,
    ) {
        let of_type =
            |schema: &&Value| self.parts(schema, depth).iter().all(|rules| self.has_type(rules, at));
        let of_type: Vec<&Value> = alternatives.iter().filter(of_type).collect();
        if of_type.len() > 1 {
            let parts = of_type.iter().flat_map(|schema| self.parts(schema, depth));
            place.choosing.extend(parts.flat_map(required_names));
        }
        let matches =
            |schema: &&Value| self.parts(schema, depth).iter().all(|rules| self.matches(rules, at, depth));
        let left: Vec<&Value> = of_type.into_iter().filter(matches).collect();
        match left[..] {
            [one] if depth > 0 => self.add_schema(one, at, place, depth - 1),
            _ => self.add_possible(&left, place, depth),
        }
    }

    /// Adds alternatives that the value does not choose between, with theirs.
    fn add_possible(&self, schemas: &[&'s Value], place: &mut SchemaPlace<'s>, depth: u32) {
        for rules in schemas.iter().flat_map(|schema| self.parts(schema, depth)) {
            place.possible.push(rules);
            for keyword in ["anyOf", "oneOf"] {
                let inner = rules.get(keyword).and_then(Value::as_array).into_iter().flatten();
                if let Some(depth) = depth.checked_sub(1) {
                    self.add_possible(&inner.collect::<Vec<_>>(), place, depth);
                }
            }
        }
    }

    /// Returns a schema with those that it refers to and consists of.
    fn parts(&self, schema: &'s Value, depth: u32) -> Vec<&'s Rules> {
        let mut parts = Vec::new();
        self.collect_parts(schema, &mut parts, depth);
        parts
    }

    fn collect_parts(&self, schema: &'s Value, parts: &mut Vec<&'s Rules>, depth: u32) {
        let (Some(rules), Some(left)) = (schema.as_object(), self.schemas_left.get().checked_sub(1)) else {
            return;
        };
        self.schemas_left.set(left);
        parts.push(rules);
        let Some(depth) = depth.checked_sub(1) else { return };
        let reference = rules.get("$ref").and_then(Value::as_str);
        if let Some(target) = reference.and_then(|reference| resolve_reference(self.root, reference)) {
            self.collect_parts(target, parts, depth);
        }
        for part in rules.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.collect_parts(part, parts, depth);
        }
    }

    /// True if the type of the value at a position is one of the schema's.
    fn has_type(&self, rules: &Rules, at: usize) -> bool {
        let is_type = |name: &Value| match name.as_str() {
            Some("object") => self.text.byte_at(at) == b'{',
            Some("array") => self.text.byte_at(at) == b'[',
            Some("string") => self.text.byte_at(at) == b'"',
            Some("boolean") => matches!(self.text.byte_at(at), b't' | b'f'),
            Some("null") => self.text.byte_at(at) == b'n',
            Some("integer" | "number") => matches!(self.text.byte_at(at), b'-' | b'0'..=b'9'),
            _ => true,
        };
        match rules.get("type") {
            Some(Value::Array(names)) => names.iter().any(is_type),
            Some(name) => is_type(name),
            None => self.text.byte_at(at) == b'{' || !rules.contains_key("properties"),
        }
    }

    /// True unless a constant or a required parameter of the schema excludes the value at a position.
    fn matches(&self, rules: &'s Rules, at: usize, depth: u32) -> bool {
        if !self.has_constant(rules, at) {
            return false;
        }
        if self.text.byte_at(at) != b'{' {
            return true;
        }
        let members: Vec<_> = self.members(at).collect();
        let known = rules.get("properties").and_then(Value::as_object);
        let parameters = known.into_iter().flat_map(|known| {
            let schema_of =
                |(_, name, value_at): &(usize, String, usize)| Some((known.get(name)?, *value_at));
            members.iter().filter_map(schema_of)
        });
        let mut parameters = parameters.flat_map(|(schema, value_at)| {
            self.parts(schema, depth).into_iter().map(move |rules| (rules, value_at))
        });
        parameters.all(|(rules, value_at)| self.has_constant(rules, value_at))
            && required_names(rules).all(|required| members.iter().any(|(_, name, _)| name == required))
    }

    /// True if the value at a position is a constant of the schema, or if the schema has none.
    fn has_constant(&self, rules: &Rules, at: usize) -> bool {
        let constants = rules.get("enum").and_then(Value::as_array);
        if !rules.contains_key("const") && constants.is_none() {
            return true;
        }
        let value: Value = serde_json::from_str(self.text.value_at(at)).unwrap_or_default();
        rules.get("const").is_none_or(|constant| *constant == value)
            && constants.is_none_or(|constants| constants.contains(&value))
    }
}

impl SchemaPlace<'_> {
    /// True if null as the value of a parameter says no more than that it is absent.
    fn is_absence(&self, name: &str, parameter: &SchemaPlace<'_>) -> bool {
        let knows = |rules: &&&Rules| {
            rules.get("properties").and_then(Value::as_object).is_some_and(|known| known.contains_key(name))
        };
        let is_required = || self.certain.iter().copied().flat_map(required_names).any(|one| one == name);
        let has_default = |rules: &&Rules| rules.get("default").is_some_and(|value| !value.is_null());
        self.certain.iter().any(|rules| knows(&rules))
            && !self.possible.iter().any(|rules| knows(&rules))
            && !self.choosing.contains(&name)
            && (is_required() || !parameter.certain.iter().any(has_default))
    }
}

fn required_names(rules: &Rules) -> impl Iterator<Item = &str> {
    rules.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Returns the schemas of a parameter: its own, or those of a map's values.
fn parameter_schemas<'s>(rules: &'s Rules, name: &str) -> Vec<&'s Value> {
    if let Some(own) = rules.get("properties").and_then(|known| known.get(name)) {
        return vec![own];
    }
    // Patterns are not read: several may not all apply.
    let patterns = rules.get("patternProperties").and_then(Value::as_object);
    let pattern =
        patterns.filter(|patterns| patterns.len() == 1).and_then(|patterns| patterns.values().next());
    pattern.into_iter().chain(rules.get("additionalProperties")).collect()
}

/// Returns the schema of an element of an array.
fn element_schema(rules: &Rules, index: usize) -> Option<&Value> {
    let items = rules.get("items");
    let leading = rules.get("prefixItems").or(items).and_then(Value::as_array);
    match leading.and_then(|leading| leading.get(index)) {
        Some(own) => Some(own),
        None if items.is_some_and(Value::is_array) => rules.get("additionalItems"),
        None => items,
    }
}

#[cfg(test)]
#[path = "null_parameters_tests.rs"]
mod tests;
