//! Says where two outcomes differ. What counts as the same is the format's to say, not ours:
//!
//! - the order of log lines of different calls is free; of one call, and of lines without a call, it is not;
//! - outputs that stand together are compared in the order in which the model called;
//! - a default failure message may say more than the reference's;
//! - of an error the kind counts, and of an approval the call.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// How the reference's default failure message begins.
const FAILED: &str = "An error occurred while running the tool. Please try again.";

/// What is compared as it is.
const PLAIN: [&str; 7] =
    ["status", "final_output", "last_agent", "usage", "events", "context", "peak_concurrency"];

/// One key whose values are not the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which key.
    pub key: &'static str,
    /// What should have come, as JSON.
    pub expected: String,
    /// What came, as JSON.
    pub actual: String,
}

/// The keys in which an outcome differs from the expected one; none where it does not.
pub fn differences(expected: &Value, actual: &Value) -> Vec<Difference> {
    let pairs = view(expected).into_iter().zip(view(actual));
    pairs
        .filter(|((_, want), (_, got))| !is_same(want, got))
        .map(|((key, want), (_, got))| Difference {
            key,
            expected: want.to_string(),
            actual: got.to_string(),
        })
        .collect()
}

/// An outcome as it is compared: always the same keys, in the same order.
fn view(outcome: &Value) -> Vec<(&'static str, Value)> {
    let mut shown: Vec<_> = PLAIN.into_iter().map(|key| (key, outcome[key].clone())).collect();
    let rounds = list(&outcome["rounds"]).iter().map(|round| ids(list(round).iter())).collect();
    let model_calls = list(&outcome["model_calls"]).iter().map(model_call).collect();
    let session = match &outcome["session"] {
        Value::Null => Value::Null,
        session => lines(session),
    };
    shown.extend([
        ("error", outcome["error"]["kind"].clone()),
        ("items", items(outcome)),
        ("approvals", ids(list(&outcome["items"]).iter().filter(|item| item["type"] == "approval"))),
        ("pending", ids(list(&outcome["pending"]).iter())),
        ("rounds", rounds),
        ("model_calls", model_calls),
        ("log", by_call(&outcome["log"])),
        ("session", session),
    ]);
    shown.into_iter().map(|(key, value)| (key, soften(value))).collect()
}

/// The ids of calls, sorted.
fn ids<'a>(entries: impl Iterator<Item = &'a Value>) -> Value {
    let mut ids: Vec<&str> = entries.map(|entry| text(&entry["id"])).collect();
    ids.sort_unstable();
    ids.into()
}

/// The items without approvals, outputs in the model's order.
fn items(outcome: &Value) -> Value {
    let entries = list(&outcome["items"]);
    let is_call = |entry: &&Value| entry["type"] == "call" || entry["type"] == "handoff_call";
    let calls = entries.iter().filter(is_call).map(|entry| text(&entry["id"]));
    let entries = entries.iter().filter(|entry| entry["type"] != "approval");
    model_order(entries, |entry| (entry["type"] == "output").then(|| text(&entry["id"])), calls)
}

/// A request with its input in the model's order.
fn model_call(call: &Value) -> Value {
    let mut call = call.clone();
    if let Value::Object(fields) = &mut call {
        let input = lines(fields.get("input").unwrap_or(&Value::Null));
        fields.insert("input".into(), input);
    }
    call
}

/// History as lines, outputs in the model's order.
fn lines(entries: &Value) -> Value {
    let entries = list(entries);
    let calls = entries.iter().filter_map(|entry| named(text(entry), "call "));
    model_order(entries.iter(), |entry| named(text(entry), "output "), calls)
}

/// The call that a line names behind its first word, where that word is `kind`.
fn named<'a>(line: &'a str, kind: &str) -> Option<&'a str> {
    line.strip_prefix(kind)?.split(' ').next()
}

/// Outputs that stand together, put into the order in which the model called. Those of unknown calls come last.
fn model_order<'a>(
    entries: impl Iterator<Item = &'a Value>,
    output_of: impl Fn(&'a Value) -> Option<&'a str>,
    calls: impl Iterator<Item = &'a str>,
) -> Value {
    let mut rank: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, call) in calls.enumerate() {
        rank.entry(call).or_insert(at);
    }
    // Two entries of one call keep their order, for the sort is stable.
    let place = |call: &str| rank.get(call).copied().unwrap_or(rank.len());
    let mut ordered: Vec<Value> = Vec::new();
    let mut together: Vec<(usize, Value)> = Vec::new();
    for entry in entries {
        if let Some(call) = output_of(entry) {
            together.push((place(call), entry.clone()));
            continue;
        }
        put(&mut together, &mut ordered);
        ordered.push(entry.clone());
    }
    put(&mut together, &mut ordered);
    ordered.into()
}

fn put(together: &mut Vec<(usize, Value)>, ordered: &mut Vec<Value>) {
    together.sort_by_key(|(place, _)| *place);
    ordered.extend(together.drain(..).map(|(_, entry)| entry));
}

/// The log by call, with the lines that have no call under the empty name.
fn by_call(log: &Value) -> Value {
    let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for line in list(log).iter().map(text) {
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

/// A default failure message may say more than the reference's: what it says more is cut.
fn soften(value: Value) -> Value {
    match value {
        Value::String(mut text) => {
            if let Some(at) = text.find(FAILED) {
                text.truncate(at + FAILED.len());
            }
            text.into()
        }
        Value::Array(items) => items.into_iter().map(soften).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, soften(value))).collect(),
        other => other,
    }
}

/// Whether two values are the same. Numbers are where their values are: `1` and `1.0` do not differ.
fn is_same(want: &Value, got: &Value) -> bool {
    match (want, got) {
        (Value::Number(want), Value::Number(got)) => want == got || want.as_f64() == got.as_f64(),
        (Value::Array(want), Value::Array(got)) => {
            want.len() == got.len() && want.iter().zip(got).all(|(want, got)| is_same(want, got))
        }
        (Value::Object(want), Value::Object(got)) => {
            want.len() == got.len()
                && want.iter().all(|(key, want)| got.get(key).is_some_and(|got| is_same(want, got)))
        }
        (want, got) => want == got,
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
