//! JSON Schemas of servers: passed to the model unchanged, and used for validation if they can be resolved.

use std::sync::Arc;

use serde_json::Value;

/// Maximum number of nodes of a schema that are visited.
const MAX_STEPS: usize = 100_000;

/// Returns the schema if arguments can be validated against it, or a schema that accepts everything.
///
/// A schema with a dangling or external `$ref` is not used for validation: references out of the schema are never
/// followed, and the server validates its arguments too.
pub(crate) fn checkable_schema(schema: &Arc<Value>) -> Arc<Value> {
    let mut waiting = vec![&**schema];
    for _ in 0..MAX_STEPS {
        let Some(part) = waiting.pop() else { return schema.clone() };
        match part {
            Value::Object(rules) => {
                if let Some(target) = rules.get("$ref") {
                    let target = target.as_str().and_then(|target| schema.pointer(target.strip_prefix('#')?));
                    if target.is_none() {
                        return Arc::new(Value::Bool(true));
                    }
                }
                waiting.extend(rules.values());
            }
            Value::Array(parts) => waiting.extend(parts),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    Arc::new(Value::Bool(true))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_leads_nowhere_is_not_checked() {
        let whole = Arc::new(json!({ "$defs": { "a": {} }, "properties": { "x": { "$ref": "#/$defs/a" } } }));
        assert!(Arc::ptr_eq(&checkable_schema(&whole), &whole));
        for target in ["#/$defs/gone", "#anchor", "https://example.org/schema.json", "other.json#/a"] {
            let broken = Arc::new(json!({ "properties": { "x": [{ "$ref": target }] } }));
            assert_eq!(*checkable_schema(&broken), Value::Bool(true), "{target}");
        }
        assert_eq!(*checkable_schema(&Arc::new(json!({ "$ref": 7 }))), Value::Bool(true));
    }
}
