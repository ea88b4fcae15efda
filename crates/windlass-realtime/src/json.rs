//! Merging of JSON values.

use serde_json::Value;

/// Merges `over` into `value`: objects field by field, recursively, and other values by replacement. The fields
/// named in `replaced` are replaced as a whole.
pub(crate) fn merge_json(value: &mut Value, over: &Value, replaced: &[&str]) {
    match (value, over) {
        (Value::Object(known), Value::Object(over)) => {
            for (key, new) in over {
                let known = known.entry(key.as_str()).or_insert(Value::Null);
                match replaced.contains(&key.as_str()) {
                    true => *known = new.clone(),
                    false => merge_json(known, new, replaced),
                }
            }
        }
        (value, new) => *value = new.clone(),
    }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
