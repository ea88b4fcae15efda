//! Conversion of a schema to the strict form that OpenAI requires for `strict: true` and other providers
//! accept.
//!
//! In the strict form every object is closed and all its fields are required; optional fields become nullable.
//! A schema that cannot be expressed is refused with all reasons, because silently dropping a rule would leave
//! the author relying on a rule that the model never received.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{SchemaViolation, describe_violations, resolve_reference};

/// Maximum nesting depth of a schema. Providers' limits are lower.
const MAX_STRICT_DEPTH: usize = 32;
/// Keywords for definitions: the current one and that of older drafts.
const DEFINITION_KEYWORDS: [&str; 2] = ["$defs", "definitions"];
/// Formats that the strict form supports.
const STRICT_FORMATS: [&str; 9] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

type SchemaObject = Map<String, Value>;

/// A schema that has no strict form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the schema has no strict form: {}", describe_violations(violations))]
pub struct StrictSchemaError {
    /// All reasons: the place in the schema (`#/properties/tags`), the problem and the remedy.
    pub violations: Vec<SchemaViolation>,
    /// The places of the violations that are maps: objects whose keys are not known.
    pub map_places: Vec<String>,
}

impl StrictSchemaError {
    /// Returns true if the schema has no strict form only because it contains maps.
    pub fn has_only_maps(&self) -> bool {
        self.violations.len() == self.map_places.len()
    }
}

/// Converts a schema to its strict form.
///
/// # Errors
///
/// Returns [`StrictSchemaError`] with every reason if the schema has no strict form.
pub fn to_strict(schema: Value) -> Result<Value, StrictSchemaError> {
    let mut work = StrictConverter {
        root: &schema,
        violations: Vec::new(),
        map_places: Vec::new(),
        pending_definitions: BTreeSet::new(),
        inlined_references: Vec::new(),
    };
    let mut out = work.convert_root();
    let mut done = BTreeSet::new();
    while let Some((container, name)) = work.pending_definitions.pop_first() {
        if !done.insert((container, name.clone())) {
            continue;
        }
        let path = format!("#/{container}/{}", escape_pointer(&name));
        let definition = resolve_reference(&schema, &path).unwrap_or(&Value::Null);
        work.inlined_references.push(path.clone());
        let converted = work.convert(definition, &path, 0);
        work.inlined_references.clear();
        let definitions = out.entry(container).or_insert_with(|| json!({}));
        if let Some(definitions) = definitions.as_object_mut() {
            definitions.insert(name, converted);
        }
    }
    if work.violations.is_empty() {
        Ok(Value::Object(out))
    } else {
        Err(StrictSchemaError { violations: work.violations, map_places: work.map_places })
    }
}

struct StrictConverter<'a> {
    root: &'a Value,
    violations: Vec<SchemaViolation>,
    map_places: Vec<String>,
    /// Definitions that the result refers to and that are still to be converted.
    pending_definitions: BTreeSet<(&'static str, String)>,
    /// References that are being inlined, to stop recursion.
    inlined_references: Vec<String>,
}

impl StrictConverter<'_> {
    fn add_violation(&mut self, path: &str, message: impl Into<String>) {
        self.violations.push(SchemaViolation { path: path.to_owned(), message: message.into() });
    }

    fn add_map(&mut self, path: &str, message: impl Into<String>) {
        self.map_places.push(path.to_owned());
        self.add_violation(path, message);
    }

    fn convert_root(&mut self) -> SchemaObject {
        let mut rules = self.root.clone();
        // A root that consists of a reference is replaced by its target.
        let mut seen = BTreeSet::new();
        while let Some(target) = rules.get("$ref").and_then(Value::as_str).map(str::to_owned) {
            if !seen.insert(target.clone()) {
                break;
            }
            match (resolve_reference(self.root, &target), rules) {
                (Some(Value::Object(target)), Value::Object(mut own)) => {
                    own.remove("$ref");
                    rules = Value::Object(self.merge_rules(target.clone(), own, "#"));
                }
                (_, own) => {
                    rules = own;
                    break;
                }
            }
        }
        match self.convert(&rules, "#", 0) {
            Value::Object(out) if out.get("type") == Some(&json!("object")) => out,
            _ => {
                let not_yet_said = self.violations.iter().all(|problem| problem.path != "#");
                if not_yet_said {
                    self.add_violation("#", "must be an object; put the value into a field of a struct");
                }
                SchemaObject::new()
            }
        }
    }

    fn convert(&mut self, schema: &Value, path: &str, depth: usize) -> Value {
        if depth > MAX_STRICT_DEPTH {
            self.add_violation(
                path,
                format!("is nested deeper than {MAX_STRICT_DEPTH} levels; make it flatter"),
            );
            return json!({});
        }
        let Value::Object(rules) = schema else {
            self.add_violation(path, untyped_schema_message(schema));
            return json!({});
        };
        let outer = self.inlined_references.len();
        let out = match self.flatten_references(rules.clone(), path) {
            FlattenedSchema::Converted(out) => out,
            FlattenedSchema::Flattened(rules) => self.convert_rules(rules, path, depth),
        };
        self.inlined_references.truncate(outer);
        out
    }

    /// Inlines references that have sibling keywords, and `allOf` with one member.
    fn flatten_references(&mut self, mut rules: SchemaObject, path: &str) -> FlattenedSchema {
        loop {
            rules.retain(|keyword, value| !is_annotation(keyword, value));
            if let Some(target) = rules.remove("$ref") {
                let reference = target.as_str().unwrap_or_default().to_owned();
                let Some(Value::Object(target)) = resolve_reference(self.root, &reference) else {
                    self.add_violation(path, format!("refers to `{reference}`, which is not in the schema"));
                    return FlattenedSchema::Converted(json!({}));
                };
                if rules.is_empty() {
                    return FlattenedSchema::Converted(self.keep_reference(&reference, path));
                }
                if self.inlined_references.contains(&reference) || reference == "#" {
                    return FlattenedSchema::Converted(
                        self.wrap_recursive_reference(&reference, rules, path),
                    );
                }
                self.inlined_references.push(reference);
                rules = self.merge_rules(target.clone(), rules, path);
            } else if let Some(parts) = rules.get("allOf").and_then(Value::as_array) {
                let [Value::Object(only)] = parts.as_slice() else {
                    self.add_violation(
                        path,
                        "has `allOf` with several parts; write one schema that holds them all",
                    );
                    return FlattenedSchema::Converted(json!({}));
                };
                let only = only.clone();
                rules.remove("allOf");
                rules = self.merge_rules(only, rules, path);
            } else {
                return FlattenedSchema::Flattened(rules);
            }
        }
    }

    fn keep_reference(&mut self, reference: &str, path: &str) -> Value {
        if reference != "#" {
            let found = DEFINITION_KEYWORDS.iter().find_map(|container| {
                let name = reference.strip_prefix("#/")?.strip_prefix(container)?.strip_prefix('/')?;
                (!name.contains('/')).then(|| (*container, name.replace("~1", "/").replace("~0", "~")))
            });
            match found {
                Some(found) => _ = self.pending_definitions.insert(found),
                None => {
                    self.add_violation(path, format!("refers to `{reference}`; refer to `#/$defs/…` instead"))
                }
            }
        }
        json!({ "$ref": reference })
    }

    /// Wraps a recursive reference in `anyOf`, because it cannot be inlined and must not have sibling keywords.
    fn wrap_recursive_reference(&mut self, reference: &str, siblings: SchemaObject, path: &str) -> Value {
        if let Some(keyword) =
            siblings.keys().find(|keyword| !matches!(keyword.as_str(), "description" | "default"))
        {
            let keyword = keyword.clone();
            self.add_violation(
                path,
                format!("has `{keyword}` beside a reference to itself; move it into the definition"),
            );
        }
        let mut out = siblings;
        out.insert("anyOf".to_owned(), json!([self.keep_reference(reference, path)]));
        Value::Object(out)
    }

    /// Merges two sets of rules. Annotations of `over` take precedence.
    fn merge_rules(&mut self, base: SchemaObject, over: SchemaObject, path: &str) -> SchemaObject {
        let mut out = base;
        for (keyword, value) in over {
            let Some(earlier) = out.get_mut(&keyword) else {
                out.insert(keyword, value);
                continue;
            };
            match (keyword.as_str(), earlier, value) {
                ("description" | "default" | "title", earlier, value) => *earlier = value,
                ("properties", Value::Object(earlier), Value::Object(value)) => {
                    for (name, schema) in value {
                        if earlier.get(&name).is_some_and(|earlier| *earlier != schema) {
                            self.add_violation(
                                path,
                                format!("says two things of `{name}`; keep one of them"),
                            );
                        }
                        earlier.insert(name, schema);
                    }
                }
                ("required", Value::Array(earlier), Value::Array(value)) => {
                    for name in value {
                        if !earlier.contains(&name) {
                            earlier.push(name);
                        }
                    }
                }
                ("additionalProperties" | "unevaluatedProperties", earlier, value) => {
                    // An object that either side closes stays closed.
                    if *earlier != json!(false) {
                        *earlier = value;
                    }
                }
                (_, earlier, value) if *earlier == value => {}
                _ => self.add_violation(path, format!("says two things with `{keyword}`; keep one of them")),
            }
        }
        out
    }

    fn convert_rules(&mut self, mut rules: SchemaObject, path: &str, depth: usize) -> Value {
        let nullable = rules.remove("nullable") == Some(json!(true));
        fold_into_description(&mut rules);
        let mut out = if rules.contains_key("anyOf") || rules.contains_key("oneOf") {
            self.convert_union(rules, path, depth)
        } else {
            self.convert_plain(rules, path, depth)
        };
        if nullable {
            out = self.make_nullable(out);
        }
        out
    }

    fn convert_union(&mut self, mut rules: SchemaObject, path: &str, depth: usize) -> Value {
        let keyword = if rules.contains_key("oneOf") { "oneOf" } else { "anyOf" };
        let branches = rules.remove(keyword).unwrap_or_default();
        if let Some(other) = rules.keys().find(|key| !matches!(key.as_str(), "description" | "default")) {
            let message = format!("has `{other}` beside `{keyword}`; put the union into a field of its own");
            self.add_violation(path, message);
        }
        let Value::Array(branches) = branches else {
            self.add_violation(path, format!("has `{keyword}` without a list of schemas"));
            return json!({});
        };
        let mut converted = Vec::with_capacity(branches.len());
        for (at, branch) in branches.iter().enumerate() {
            converted.push(self.convert(branch, &format!("{path}/{keyword}/{at}"), depth + 1));
        }
        rules.insert("anyOf".to_owned(), Value::Array(converted));
        Value::Object(rules)
    }

    fn convert_plain(&mut self, mut rules: SchemaObject, path: &str, depth: usize) -> Value {
        if !rules.contains_key("type") {
            match inferred_type(&rules) {
                Some(name) => _ = rules.insert("type".to_owned(), name),
                None => {
                    self.add_violation(path, untyped_schema_message(&Value::Bool(true)));
                    return json!({});
                }
            }
        }
        let is = |name: &str| match &rules["type"] {
            Value::Array(names) => names.iter().any(|one| one == name),
            one => one == name,
        };
        let (is_object, is_list) = (is("object"), is("array"));
        let mut out = SchemaObject::new();
        if is_object {
            self.convert_fields(&mut rules, &mut out, path, depth);
        }
        if is_list {
            match rules.remove("items") {
                Some(items) if !rules.contains_key("prefixItems") => {
                    let items = self.convert(&items, &format!("{path}/items"), depth + 1);
                    out.insert("items".to_owned(), items);
                }
                None if !rules.contains_key("prefixItems") => {
                    self.add_violation(path, "is a list of anything; say with `items` what it holds");
                }
                _ => {}
            }
        }
        for (keyword, value) in rules {
            match keyword.as_str() {
                "type" | "description" | "default" | "enum" | "const" | "pattern" | "format"
                | "multipleOf" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum"
                | "minLength" | "maxLength" | "minItems" | "maxItems" => _ = out.insert(keyword, value),
                "patternProperties" => self.add_map(path, unsupported_keyword_message("patternProperties")),
                other => self.add_violation(path, unsupported_keyword_message(other)),
            }
        }
        Value::Object(out)
    }

    fn convert_fields(&mut self, rules: &mut SchemaObject, out: &mut SchemaObject, path: &str, depth: usize) {
        let closed = match (rules.remove("additionalProperties"), rules.remove("unevaluatedProperties")) {
            (Some(Value::Bool(false)), None)
            | (None | Some(Value::Bool(false)), Some(Value::Bool(false))) => true,
            (None, None) => false,
            _ => {
                self.add_map(path, unsupported_keyword_message("additionalProperties"));
                true
            }
        };
        let fields = match rules.remove("properties") {
            Some(Value::Object(fields)) => fields,
            _ => SchemaObject::new(),
        };
        if fields.is_empty() && !closed && path != "#" {
            self.add_map(path, "is an object of anything; name its fields with `properties`");
        }
        let required = rules.remove("required").unwrap_or_default();
        let required: BTreeSet<&str> =
            required.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for name in required.iter().filter(|name| !fields.contains_key(**name)) {
            self.add_violation(path, format!("requires `{name}`, which is not among its `properties`"));
        }
        let mut converted = SchemaObject::new();
        for (name, schema) in fields {
            let mut field =
                self.convert(&schema, &format!("{path}/properties/{}", escape_pointer(&name)), depth + 1);
            // A field with a default is not made nullable, because its Rust type may not accept null.
            if !required.contains(name.as_str()) && field.get("default").is_none() {
                field = self.make_nullable(field);
            }
            converted.insert(name, field);
        }
        out.insert("required".to_owned(), converted.keys().cloned().collect());
        out.insert("properties".to_owned(), Value::Object(converted));
        out.insert("additionalProperties".to_owned(), Value::Bool(false));
    }

    fn make_nullable(&self, schema: Value) -> Value {
        if self.allows_null(&schema, 0) {
            return schema;
        }
        let Value::Object(mut rules) = schema else { return schema };
        if let Some(Value::Array(branches)) = rules.get_mut("anyOf") {
            branches.push(json!({ "type": "null" }));
            return Value::Object(rules);
        }
        let simple = rules.get("type").is_some_and(|name| name != "object") && !rules.contains_key("const");
        if simple {
            if let Some(names) = rules.get_mut("type") {
                match names {
                    Value::Array(names) => names.push(json!("null")),
                    one => *one = json!([one, "null"]),
                }
            }
            if let Some(Value::Array(values)) = rules.get_mut("enum") {
                values.push(Value::Null);
            }
            return Value::Object(rules);
        }
        let description = rules.remove("description");
        let mut out = SchemaObject::new();
        out.extend(description.map(|text| ("description".to_owned(), text)));
        out.insert("anyOf".to_owned(), json!([rules, { "type": "null" }]));
        Value::Object(out)
    }

    fn allows_null(&self, schema: &Value, depth: usize) -> bool {
        let Value::Object(rules) = schema else { return schema == &Value::Bool(true) };
        if depth > MAX_STRICT_DEPTH {
            return false;
        }
        if let Some(target) = rules.get("$ref").and_then(Value::as_str) {
            return resolve_reference(self.root, target)
                .is_some_and(|target| self.allows_null(target, depth + 1));
        }
        if let Some(Value::Array(branches)) = rules.get("anyOf").or_else(|| rules.get("oneOf")) {
            return branches.iter().any(|branch| self.allows_null(branch, depth + 1));
        }
        let null = json!("null");
        let typed = match rules.get("type") {
            Some(Value::Array(names)) => names.contains(&null),
            Some(name) => *name == null,
            None => true,
        };
        let listed = match (rules.get("enum"), rules.get("const")) {
            (Some(Value::Array(values)), _) => values.contains(&Value::Null),
            (_, Some(value)) => value.is_null(),
            _ => true,
        };
        typed && listed
    }
}

enum FlattenedSchema {
    Converted(Value),
    Flattened(SchemaObject),
}

/// Returns true if the keyword is an annotation that does not constrain values and can be dropped.
fn is_annotation(keyword: &str, value: &Value) -> bool {
    match keyword {
        "$schema" | "$id" | "$anchor" | "$comment" | "$defs" | "definitions" | "title" | "deprecated"
        | "readOnly" | "writeOnly" => true,
        "default" => value.is_null(),
        _ => keyword.starts_with("x-"),
    }
}

/// Moves formats that the strict form does not support, and examples, into the description.
fn fold_into_description(rules: &mut SchemaObject) {
    let mut notes = Vec::new();
    if let Some(format) = rules.get("format").and_then(Value::as_str).map(str::to_owned)
        && !STRICT_FORMATS.contains(&format.as_str())
    {
        rules.remove("format");
        // Number formats such as `int32` and `double` describe storage and are dropped.
        let of_number = |name: &Value| name == "integer" || name == "number";
        let is_number = match rules.get("type") {
            Some(Value::Array(names)) => names.iter().any(of_number),
            Some(name) => of_number(name),
            None => false,
        };
        if !is_number {
            notes.push(format!("(format: {format})"));
        }
    }
    if let Some(Value::Array(examples)) = rules.remove("examples") {
        let examples: Vec<String> = examples.iter().map(ToString::to_string).collect();
        notes.push(format!("(for example: {})", examples.join(", ")));
    }
    if notes.is_empty() {
        return;
    }
    let own = rules.get("description").and_then(Value::as_str).map(str::to_owned);
    let text = own.into_iter().chain(notes).collect::<Vec<_>>().join(" ");
    rules.insert("description".to_owned(), Value::String(text));
}

fn inferred_type(rules: &SchemaObject) -> Option<Value> {
    if rules.contains_key("properties") {
        return Some(json!("object"));
    }
    if rules.contains_key("items") || rules.contains_key("prefixItems") {
        return Some(json!("array"));
    }
    let constant = rules.get("const").map(std::slice::from_ref);
    let values = constant.or_else(|| rules.get("enum")?.as_array().map(Vec::as_slice))?;
    let mut names = BTreeSet::new();
    for value in values {
        names.insert(match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) | Value::Object(_) => return None,
        });
    }
    match names.len() {
        0 => None,
        1 => names.pop_first().map(|name| json!(name)),
        _ => Some(json!(names)),
    }
}

fn untyped_schema_message(schema: &Value) -> &'static str {
    match schema {
        Value::Bool(true) => "allows any value; give it a type",
        Value::Bool(false) => "allows no value; leave it out",
        _ => "is not a schema",
    }
}

fn unsupported_keyword_message(keyword: &str) -> String {
    let advice = match keyword {
        "additionalProperties"
        | "patternProperties"
        | "propertyNames"
        | "minProperties"
        | "maxProperties" => "an open map has no strict form; use a list of entries with a key and a value",
        "prefixItems" => "a tuple has no strict form; use a struct with named fields",
        "uniqueItems" => "a set has no strict form; use a list and ignore what repeats",
        "not" | "if" | "then" | "else" | "dependentRequired" | "dependentSchemas" | "dependencies" => {
            "a condition has no strict form; check it in the tool"
        }
        _ => "it has no strict form; leave it out",
    };
    format!("has `{keyword}`: {advice}, or make the tool non-strict")
}

fn escape_pointer(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
#[path = "strict_tests.rs"]
mod tests;
