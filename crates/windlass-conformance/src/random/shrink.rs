//! Shrinks a failing scenario: it drops one part after the other as long as the scenario still fails.

use serde_json::Value;

/// Keys without which a scenario, a call or a guardrail has no meaning.
const REQUIRED_KEYS: [&str; 20] = [
    "name",
    "params",
    "args",
    "does",
    "sleep_ms",
    "agents",
    "tools",
    "start",
    "input",
    "id",
    "script",
    "when",
    "then",
    "trips_on",
    "kind",
    "agent",
    "arg",
    "above",
    "settle_ms",
    "run",
];

/// Returns the smallest scenario that still fails: no single part of it can be dropped.
pub fn shrink_scenario(scenario: &Value, mut is_failing: impl FnMut(&Value) -> bool) -> Value {
    let mut smallest = scenario.clone();
    loop {
        let mut paths = Vec::new();
        collect_removable(&smallest, &mut Vec::new(), &mut paths);
        // Large parts first: outer paths are shorter.
        paths.sort_by_key(Vec::len);
        let before = smallest.clone();
        for path in paths {
            let mut smaller = smallest.clone();
            if remove_part(&mut smaller, &path) && is_failing(&smaller) {
                smallest = smaller;
            }
        }
        if smallest == before {
            return smallest;
        }
    }
}

/// A step from a value to one of its parts.
#[derive(Clone, Debug)]
enum PathStep {
    Field(String),
    Element(usize),
}

fn collect_removable(value: &Value, path: &mut Vec<PathStep>, found: &mut Vec<Vec<PathStep>>) {
    match value {
        Value::Object(fields) => {
            for (key, part) in fields {
                path.push(PathStep::Field(key.clone()));
                if !REQUIRED_KEYS.contains(&key.as_str()) && key != "does_for" {
                    found.push(path.clone());
                }
                // A call and its tool stay in agreement about parameters and delays.
                if !["params", "args", "does_for"].contains(&key.as_str()) {
                    collect_removable(part, path, found);
                }
                path.pop();
            }
        }
        Value::Array(items) => {
            // From the end, because a removal moves the later elements.
            for (at, part) in items.iter().enumerate().rev() {
                path.push(PathStep::Element(at));
                found.push(path.clone());
                collect_removable(part, path, found);
                path.pop();
            }
        }
        _ => {}
    }
}

/// Removes the part at a path. Returns false if there is no such part.
fn remove_part(value: &mut Value, path: &[PathStep]) -> bool {
    match (value, path) {
        (Value::Object(fields), [PathStep::Field(key)]) => fields.remove(key).is_some(),
        (Value::Array(items), [PathStep::Element(at)]) => {
            let exists = *at < items.len();
            if exists {
                items.remove(*at);
            }
            exists
        }
        (Value::Object(fields), [PathStep::Field(key), rest @ ..]) => {
            fields.get_mut(key).is_some_and(|part| remove_part(part, rest))
        }
        (Value::Array(items), [PathStep::Element(at), rest @ ..]) => {
            items.get_mut(*at).is_some_and(|part| remove_part(part, rest))
        }
        _ => false,
    }
}
