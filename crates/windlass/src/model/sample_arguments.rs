//! Sample arguments: the smallest value that a JSON Schema accepts, for models that call tools without a script.

use serde_json::{Map, Value, json};

/// Maximum depth of a sample, so that a recursive schema ends.
const MAX_DEPTH: usize = 12;

/// Returns a value that a schema accepts: required properties only, null where it is allowed, the first of several choices, the lower bound of a
/// number. Patterns of texts are not satisfied.
pub(super) fn sample_value(schema: &Value) -> Value {
    sample_at(schema, schema, 0)
}

fn sample_at(root: &Value, schema: &Value, depth: usize) -> Value {
    if depth > MAX_DEPTH {
        return Value::Null;
    }
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        let target = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return target.map_or(Value::Null, |target| sample_at(root, target, depth + 1));
    }
    for word in ["const", "default"] {
        if let Some(value) = schema.get(word) {
            return value.clone();
        }
    }
    if accepts_null(schema) {
        return Value::Null;
    }
    let first_of = |word: &str| schema.get(word).and_then(Value::as_array).and_then(|values| values.first());
    if let Some(value) = first_of("enum") {
        return value.clone();
    }
    for word in ["anyOf", "oneOf", "allOf"] {
        if let Some(choice) = first_of(word) {
            return sample_at(root, choice, depth + 1);
        }
    }
    let kind =
        schema.get("type").and_then(Value::as_str).or_else(|| first_of("type").and_then(Value::as_str));
    match kind {
        Some("object") => sample_object(root, schema, depth),
        Some("array") => {
            let count = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0).min(100);
            let item = schema.get("items").unwrap_or(&Value::Null);
            (0..count).map(|_| sample_at(root, item, depth + 1)).collect()
        }
        Some("string") => {
            let shortest = schema.get("minLength").and_then(Value::as_u64).unwrap_or(1).clamp(1, 10_000);
            Value::String("a".repeat(usize::try_from(shortest).unwrap_or(1)))
        }
        Some("integer" | "number") => sample_number(schema),
        Some("boolean") => Value::Bool(false),
        _ if schema.get("properties").is_some() => sample_object(root, schema, depth),
        _ => Value::Null,
    }
}

/// Returns true if a schema names null among its types or choices. Optional parameters do in the strict form.
fn accepts_null(schema: &Value) -> bool {
    let is_null = |schema: &Value| schema.get("type").and_then(Value::as_str) == Some("null");
    let choices = ["anyOf", "oneOf"].iter().filter_map(|word| schema.get(*word)?.as_array());
    let types = schema.get("type").and_then(Value::as_array);
    choices.flatten().any(is_null) || types.into_iter().flatten().any(|name| name == "null")
}

fn sample_object(root: &Value, schema: &Value, depth: usize) -> Value {
    let required = schema.get("required").and_then(Value::as_array);
    let mut object = Map::new();
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        let property = schema.get("properties").and_then(|all| all.get(name)).unwrap_or(&Value::Null);
        object.insert(name.to_owned(), sample_at(root, property, depth + 1));
    }
    Value::Object(object)
}

fn sample_number(schema: &Value) -> Value {
    if let Some(least) = schema.get("minimum") {
        return least.clone();
    }
    if let Some(bound) = schema.get("exclusiveMinimum").and_then(Value::as_i64) {
        return json!(bound.saturating_add(1));
    }
    match schema.get("maximum").and_then(Value::as_i64) {
        Some(most) if most < 0 => json!(most),
        _ => json!(0),
    }
}
