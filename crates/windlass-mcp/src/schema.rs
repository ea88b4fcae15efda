//! Schemas of others: passed on as they are, and checked as far as they can be read.

use std::sync::Arc;

use serde_json::Value;

/// How much of a schema is looked at.
const STEPS: usize = 100_000;

/// The schema itself, where it can be checked here; otherwise one that fits everything, because the server checks its
/// arguments too, and a tool that can never be called is of no use. A reference that leads nowhere in the schema, or
/// out of it, is never followed.
pub(crate) fn checkable(schema: &Arc<Value>) -> Arc<Value> {
    let mut waiting = vec![&**schema];
    for _ in 0..STEPS {
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
        assert!(Arc::ptr_eq(&checkable(&whole), &whole));
        for target in ["#/$defs/gone", "#anchor", "https://example.org/schema.json", "other.json#/a"] {
            let broken = Arc::new(json!({ "properties": { "x": [{ "$ref": target }] } }));
            assert_eq!(*checkable(&broken), Value::Bool(true), "{target}");
        }
        assert_eq!(*checkable(&Arc::new(json!({ "$ref": 7 }))), Value::Bool(true));
    }
}
