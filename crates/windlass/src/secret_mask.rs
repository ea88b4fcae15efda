//! The values of secret arguments, masked in every text that repeats them.
//!
//! Invariant: a value that was added is masked from then on, in all runs that share the mask.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::lock_unpoisoned;
use crate::redaction::{REDACTED, for_each_at};

/// Shortest secret in bytes that is masked in other texts. A shorter one would be found everywhere.
const MIN_MASKED_BYTES: usize = 6;
/// Fields of entries and items whose values are free: nothing in them is an identifier of ours.
const FREE_FIELDS: [&str; 3] = ["raw", "fields", "value"];
/// Fields of entries and items that name something. Nothing is masked in them: a call keeps its id.
const IDENTIFIER_FIELDS: [&str; 31] = [
    "type",
    "kind",
    "id",
    "call",
    "call_id",
    "key",
    "digest",
    "path",
    "agent",
    "to",
    "from",
    "run",
    "session",
    "item_id",
    "response_id",
    "request_id",
    "previous_response_id",
    "name",
    "namespace",
    "server",
    "model",
    "origin",
    "status",
    "media_type",
    "scope",
    "effect",
    "approval_policy",
    "receipt_digest",
    "output_digest",
    "predecessor",
    "guardrail",
];

/// The values to mask. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct SecretMask {
    shared: Arc<MaskedValues>,
}

#[derive(Default)]
struct MaskedValues {
    has_values: AtomicBool,
    /// Values of secret arguments, as they are and as they are escaped in JSON.
    values: Mutex<BTreeSet<String>>,
}

impl SecretMask {
    /// Returns true if there is a value to mask.
    pub(crate) fn has_values(&self) -> bool {
        self.shared.has_values.load(Ordering::Relaxed)
    }

    /// Adds the values of these fields of a call's arguments.
    pub(crate) fn add_values(&self, arguments: &str, fields: &[Arc<str>]) {
        let mut value: Value = serde_json::from_str(arguments).unwrap_or_default();
        let mut values = BTreeSet::new();
        for field in fields {
            for_each_at(&mut value, field, &mut |held| collect_values(held, &mut values));
        }
        if !values.is_empty() {
            lock_unpoisoned(&self.shared.values).append(&mut values);
            self.shared.has_values.store(true, Ordering::Relaxed);
        }
    }

    /// Returns a text in which the values are masked.
    pub(crate) fn mask_text(&self, text: String) -> String {
        if !self.has_values() {
            return text;
        }
        mask_values_in(&text, &lock_unpoisoned(&self.shared.values)).unwrap_or(text)
    }

    /// Returns a JSON value in which the values are masked.
    pub(crate) fn mask_json(&self, mut value: Value) -> Value {
        if self.has_values() {
            mask_free(&mut value, &lock_unpoisoned(&self.shared.values));
        }
        value
    }

    /// Returns a serialisable value in which the values are masked.
    pub(crate) fn mask_value<T: Serialize + DeserializeOwned>(&self, value: T) -> T {
        if !self.has_values() {
            return value;
        }
        let Ok(mut json) = serde_json::to_value(&value) else { return value };
        if !mask_strings(&mut json, &lock_unpoisoned(&self.shared.values)) {
            return value;
        }
        if let Ok(masked) = serde_json::from_value(json) {
            return masked;
        }
        // A secret may be a word of the format. The others are masked.
        let known = lock_unpoisoned(&self.shared.values).clone();
        known.into_iter().rev().fold(value, |kept, one| {
            let Ok(mut json) = serde_json::to_value(&kept) else { return kept };
            mask_strings(&mut json, &BTreeSet::from([one]));
            serde_json::from_value(json).unwrap_or(kept)
        })
    }
}

/// Adds the texts of a secret value.
fn collect_values(held: &Value, values: &mut BTreeSet<String>) {
    match held {
        Value::Array(held) => held.iter().for_each(|held| collect_values(held, values)),
        Value::Object(held) => held.values().for_each(|held| collect_values(held, values)),
        Value::Null | Value::Bool(_) => {}
        Value::String(_) | Value::Number(_) => {
            let json = held.to_string();
            let escaped = json.trim_matches('"').to_owned();
            let plain = held.as_str().map_or_else(|| escaped.clone(), str::to_owned);
            let is_long = |text: &String| text.len() >= MIN_MASKED_BYTES && text != REDACTED;
            values.extend([plain, escaped].into_iter().filter(is_long));
        }
    }
}

/// Returns the text with all values masked, or `None` if it has none. A value that contains another one is masked first.
fn mask_values_in(text: &str, values: &BTreeSet<String>) -> Option<String> {
    let mut found: Vec<&String> = values.iter().filter(|value| text.contains(value.as_str())).collect();
    found.sort_by_key(|value| std::cmp::Reverse(value.len()));
    if found.is_empty() {
        return None;
    }
    Some(found.into_iter().fold(text.to_owned(), |text, value| text.replace(value.as_str(), REDACTED)))
}

/// Masks the strings of a JSON value, except identifiers. Returns true if one was changed.
fn mask_strings(value: &mut Value, values: &BTreeSet<String>) -> bool {
    match value {
        Value::String(text) => match mask_values_in(text, values) {
            Some(masked) => {
                *text = masked;
                true
            }
            None => false,
        },
        Value::Array(held) => held.iter_mut().fold(false, |is_any, held| mask_strings(held, values) | is_any),
        Value::Object(fields) => fields.iter_mut().fold(false, |is_any, (name, held)| {
            let name = name.as_str();
            let is_changed = if FREE_FIELDS.contains(&name) {
                mask_free(held, values)
            } else {
                !(IDENTIFIER_FIELDS.contains(&name) && held.is_string()) && mask_strings(held, values)
            };
            is_changed | is_any
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Masks a free value: its texts, the names of its fields, and numbers that are a secret. Returns true if it was changed.
fn mask_free(value: &mut Value, values: &BTreeSet<String>) -> bool {
    match value {
        Value::String(_) => mask_strings(value, values),
        Value::Number(number) if values.contains(&number.to_string()) => {
            *value = REDACTED.into();
            true
        }
        Value::Array(held) => held.iter_mut().fold(false, |is_any, held| mask_free(held, values) | is_any),
        Value::Object(fields) => {
            let mut is_any = fields.values_mut().fold(false, |is_any, held| mask_free(held, values) | is_any);
            let names: Vec<(String, String)> = fields
                .keys()
                .filter_map(|name| Some((name.clone(), mask_values_in(name, values)?)))
                .collect();
            for (name, masked) in names {
                if let Some(held) = fields.remove(&name) {
                    fields.insert(masked, held);
                    is_any = true;
                }
            }
            is_any
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use windlass_core::item::{Item, OpaqueItem};

    use super::*;

    #[test]
    fn free_values_have_no_identifiers() {
        let mask = SecretMask::default();
        mask.add_values(r#"{"a":"sk-canary","b":4111111111}"#, &["a".into(), "b".into()]);
        let free = json!({ "key": "sk-canary", "to": [{ "id": 4111111111_u64 }], "sk-canary": 7 });
        let masked = json!({ "key": "[secret]", "to": [{ "id": "[secret]" }], "[secret]": 7 });
        assert_eq!(mask.mask_json(free.clone()), masked);
        let item = |raw| Item::HostedTool(OpaqueItem::new("sk-canary", raw));
        assert_eq!(mask.mask_value(item(free)), item(masked));
        let call = Item::call("sk-canary", "pay", "{}");
        assert_eq!(mask.mask_value(call.clone()), call);
    }
}
