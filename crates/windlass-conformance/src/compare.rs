//! Finds the differences between two outcomes. The scenario format defines equality:
//!
//! - log lines of different calls may come in any order; lines of one call, and lines without a call, keep
//!   their order;
//! - adjacent outputs are compared in the model's call order;
//! - a default failure message may contain more text than the reference's;
//! - an error is compared by kind, and an approval by call.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Prefix of the reference's default failure message.
const FAILURE_PREFIX: &str = "An error occurred while running the tool. Please try again.";

/// Keys that are compared verbatim.
const VERBATIM_KEYS: [&str; 7] =
    ["status", "final_output", "last_agent", "usage", "events", "context", "peak_concurrency"];

/// A key with different values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutcomeDifference {
    /// Name of the key.
    pub key: &'static str,
    /// Expected value, as JSON.
    pub expected: String,
    /// Actual value, as JSON.
    pub actual: String,
}

/// Returns the keys in which an outcome differs from the expected one.
pub fn outcome_differences(expected: &Value, actual: &Value) -> Vec<OutcomeDifference> {
    let pairs = comparable_fields(expected).into_iter().zip(comparable_fields(actual));
    pairs
        .filter(|((_, want), (_, got))| !is_equal_json(want, got))
        .map(|((key, want), (_, got))| OutcomeDifference {
            key,
            expected: want.to_string(),
            actual: got.to_string(),
        })
        .collect()
}

/// Returns the comparable fields of an outcome: always the same keys, in the same order.
fn comparable_fields(outcome: &Value) -> Vec<(&'static str, Value)> {
    let mut shown: Vec<_> = VERBATIM_KEYS.into_iter().map(|key| (key, outcome[key].clone())).collect();
    let rounds =
        as_list(&outcome["rounds"]).iter().map(|round| sorted_call_ids(as_list(round).iter())).collect();
    let model_calls = as_list(&outcome["model_calls"]).iter().map(ordered_model_call).collect();
    let session = match &outcome["session"] {
        Value::Null => Value::Null,
        session => ordered_lines(session),
    };
    shown.extend([
        ("error", outcome["error"]["kind"].clone()),
        ("items", ordered_items(outcome)),
        (
            "approvals",
            sorted_call_ids(as_list(&outcome["items"]).iter().filter(|item| item["type"] == "approval")),
        ),
        ("pending", sorted_call_ids(as_list(&outcome["pending"]).iter())),
        ("rounds", rounds),
        ("model_calls", model_calls),
        ("log", group_log_by_call(&outcome["log"])),
        ("session", session),
    ]);
    shown.into_iter().map(|(key, value)| (key, trim_failure_text(value))).collect()
}

/// Returns the sorted ids of calls.
fn sorted_call_ids<'a>(entries: impl Iterator<Item = &'a Value>) -> Value {
    let mut ids: Vec<&str> = entries.map(|entry| as_text(&entry["id"])).collect();
    ids.sort_unstable();
    ids.into()
}

/// Returns the items without approvals, with outputs in the model's call order.
fn ordered_items(outcome: &Value) -> Value {
    let entries = as_list(&outcome["items"]);
    let is_call = |entry: &&Value| entry["type"] == "call" || entry["type"] == "handoff_call";
    let calls = entries.iter().filter(is_call).map(|entry| as_text(&entry["id"]));
    let entries = entries.iter().filter(|entry| entry["type"] != "approval");
    sort_outputs_by_call(entries, |entry| (entry["type"] == "output").then(|| as_text(&entry["id"])), calls)
}

/// Returns a model request with its input in the model's call order.
fn ordered_model_call(call: &Value) -> Value {
    let mut call = call.clone();
    if let Value::Object(fields) = &mut call {
        let input = ordered_lines(fields.get("input").unwrap_or(&Value::Null));
        fields.insert("input".into(), input);
    }
    call
}

/// Returns history lines with outputs in the model's call order.
fn ordered_lines(entries: &Value) -> Value {
    let entries = as_list(entries);
    let calls = entries.iter().filter_map(|entry| call_in_line(as_text(entry), "call "));
    sort_outputs_by_call(entries.iter(), |entry| call_in_line(as_text(entry), "output "), calls)
}

/// Returns the call id after the first word of a line, if that word is `kind`.
fn call_in_line<'a>(line: &'a str, kind: &str) -> Option<&'a str> {
    line.strip_prefix(kind)?.split(' ').next()
}

/// Sorts adjacent outputs into the model's call order. Outputs of unknown calls come last.
fn sort_outputs_by_call<'a>(
    entries: impl Iterator<Item = &'a Value>,
    output_of: impl Fn(&'a Value) -> Option<&'a str>,
    calls: impl Iterator<Item = &'a str>,
) -> Value {
    let mut rank: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, call) in calls.enumerate() {
        rank.entry(call).or_insert(at);
    }
    // The sort is stable, so two entries of one call keep their order.
    let place = |call: &str| rank.get(call).copied().unwrap_or(rank.len());
    let mut ordered: Vec<Value> = Vec::new();
    let mut together: Vec<(usize, Value)> = Vec::new();
    for entry in entries {
        if let Some(call) = output_of(entry) {
            together.push((place(call), entry.clone()));
            continue;
        }
        flush_outputs(&mut together, &mut ordered);
        ordered.push(entry.clone());
    }
    flush_outputs(&mut together, &mut ordered);
    ordered.into()
}

fn flush_outputs(together: &mut Vec<(usize, Value)>, ordered: &mut Vec<Value>) {
    together.sort_by_key(|(place, _)| *place);
    ordered.extend(together.drain(..).map(|(_, entry)| entry));
}

/// Groups the log by call. Lines without a call have the empty name.
fn group_log_by_call(log: &Value) -> Value {
    let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for line in as_list(log).iter().map(as_text) {
        let words: Vec<&str> = line.split(' ').collect();
        let call = match words[..] {
            ["start" | "done" | "cancelled" | "input" | "output" | "approval", ..]
            | ["tool", "start" | "end", ..] => words.last().copied(),
            _ => None,
        };
        found.entry(call.unwrap_or_default().to_owned()).or_default().push(line);
    }
    found.into_iter().map(|(call, lines)| (call, Value::from(lines))).collect::<Map<_, _>>().into()
}

/// Truncates a default failure message after the text that the reference has.
pub(crate) fn trim_failure_text(value: Value) -> Value {
    match value {
        Value::String(mut text) => {
            if let Some(at) = text.find(FAILURE_PREFIX) {
                text.truncate(at + FAILURE_PREFIX.len());
            }
            text.into()
        }
        Value::Array(items) => items.into_iter().map(trim_failure_text).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (key, trim_failure_text(value))).collect()
        }
        other => other,
    }
}

/// Returns true if two values are equal. Numbers are compared by value: `1` equals `1.0`.
fn is_equal_json(want: &Value, got: &Value) -> bool {
    match (want, got) {
        (Value::Number(want), Value::Number(got)) => want == got || want.as_f64() == got.as_f64(),
        (Value::Array(want), Value::Array(got)) => {
            want.len() == got.len() && want.iter().zip(got).all(|(want, got)| is_equal_json(want, got))
        }
        (Value::Object(want), Value::Object(got)) => {
            want.len() == got.len()
                && want.iter().all(|(key, want)| got.get(key).is_some_and(|got| is_equal_json(want, got)))
        }
        (want, got) => want == got,
    }
}

fn as_list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn as_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
