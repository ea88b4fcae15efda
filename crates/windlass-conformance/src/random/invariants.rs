//! Properties of every outcome of Windlass, whatever the reference does.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::pair::{
    ArgumentValidity, OutcomePair, ScriptedCall, argument_validity, guardrail_verdicts, lines, list_items,
    text,
};

/// Returns the properties that an outcome violates, as sentences that begin with their subject.
pub fn violated_invariants(scenario: &Value, outcome: &Value) -> Vec<String> {
    let pair = OutcomePair::new(scenario.clone(), Value::Null, outcome.clone());
    let mut found = unpaired_history(outcome);
    found.extend(unpaired_items(outcome));
    found.extend(forgotten_calls(&pair));
    found.extend(forbidden_starts(&pair));
    found.extend(wrong_log_order(&pair));
    found.extend(exceeded_limits(&pair));
    found
}

/// Every call in a request or in the session has exactly one output, after it.
fn unpaired_history(outcome: &Value) -> Vec<String> {
    let requests = list_items(&outcome["model_calls"]).map(|call| ("request", &call["input"]));
    let mut found = Vec::new();
    for (place, history) in requests.chain([("session", &outcome["session"])]) {
        let mut open: BTreeMap<&str, usize> = BTreeMap::new();
        for line in lines(history) {
            let id = line.split(' ').nth(1).unwrap_or_default();
            if line.starts_with("call ") {
                *open.entry(id).or_default() += 1;
            } else if line.starts_with("output ") {
                match open.get_mut(id) {
                    Some(count) if *count > 0 => *count -= 1,
                    _ => found.push(format!("{place}: the output of `{id}` has no call before it")),
                }
            }
        }
        let open = open.into_iter().filter(|(_, count)| *count > 0);
        found.extend(open.map(|(id, _)| format!("{place}: the call `{id}` has no output")));
    }
    found
}

/// A call whose body has ended is in the session, whatever ended the run.
fn forgotten_calls(pair: &OutcomePair) -> Vec<String> {
    let session = &pair.windlass["session"];
    // The turn of a paused run is not in the session yet.
    if session.is_null() || pair.windlass["status"] == "interrupted" || has_abandoned_pause(pair) {
        return Vec::new();
    }
    let repeated = pair.repeated_ids();
    let is_stored =
        |kind: &str, id: &str| lines(session).any(|line| line.starts_with(&format!("{kind} {id} ")));
    pair.calls()
        // A blocking body may end after its run.
        .filter(|call| call.tool["sync"] != true && !pair.is_nested_call(call.id))
        .filter(|call| !repeated.iter().any(|id| id == call.id))
        .filter(|call| count_lines(pair, &format!("done {} {}", call.name, call.id)) > 0)
        .filter(|call| !is_stored("call", call.id) || !is_stored("output", call.id))
        .map(|call| format!("session: the executed call `{}` is missing", call.id))
        .collect()
}

/// Returns true if a run of several may have had no decisions left when it paused.
fn has_abandoned_pause(pair: &OutcomePair) -> bool {
    let (decisions, rounds) = (&pair.scenario["decisions"], &pair.windlass["rounds"]);
    list_items(decisions).count() <= list_items(rounds).count()
        && pair.scenario["input"].as_array().is_some_and(|inputs| inputs.len() > 1)
}

/// Every call of a run that completed has exactly one output.
fn unpaired_items(outcome: &Value) -> Vec<String> {
    let count = |kind: &str, id: &Value| {
        list_items(&outcome["items"]).filter(|item| item["type"] == kind && item["id"] == *id).count()
    };
    let calls = list_items(&outcome["items"]).filter(|item| item["type"] == "call");
    let is_completed = outcome["status"] == "completed";
    calls
        .filter(|call| {
            let (calls, outputs) = (count("call", &call["id"]), count("output", &call["id"]));
            outputs > calls || (is_completed && outputs < calls)
        })
        .map(|call| format!("items: the call {} does not have one output", call["id"]))
        .collect()
}

/// A body starts only if its call is valid, enabled, allowed by its guardrails and approved, and only once.
fn forbidden_starts(pair: &OutcomePair) -> Vec<String> {
    let (granted, denied, standing) = decided_calls(pair);
    let mut found = Vec::new();
    for call in pair.calls() {
        // A repeated id stands for several calls.
        if pair.calls().filter(|other| other.id == call.id).count() > 1 {
            continue;
        }
        let starts = count_lines(pair, &format!("start {} {}", call.name, call.id));
        if starts == 0 {
            continue;
        }
        let mut refuse = |reason: &str| found.push(format!("start: `{}` started although {reason}", call.id));
        if starts > 1 {
            refuse("it had started before");
        }
        if argument_validity(&call) != ArgumentValidity::Valid {
            refuse("its arguments are invalid");
        }
        if call.tool["enabled"] == false {
            refuse("its tool is disabled");
        }
        if guardrail_verdicts(&call).any(|then| *then != "allow") {
            refuse("an input guardrail refused it");
        }
        if denied.contains(call.id) {
            refuse("a person rejected it");
        }
        if needs_approval(&call) && !granted.contains(call.id) && !standing.contains(call.name) {
            refuse("nobody approved it");
        }
    }
    found
}

fn needs_approval(call: &ScriptedCall<'_>) -> bool {
    let rule = &call.tool["approval"];
    let argument = call.args.get(text(&rule["arg"])).and_then(Value::as_f64).unwrap_or_default();
    *rule == true || rule["above"].as_f64().is_some_and(|limit| argument > limit)
}

/// Returns the calls that a person approved and rejected, and the tools with a standing approval.
fn decided_calls(pair: &OutcomePair) -> (BTreeSet<String>, BTreeSet<String>, BTreeSet<String>) {
    let (mut granted, mut denied, mut standing) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let rounds = list_items(&pair.windlass["rounds"]).zip(list_items(&pair.scenario["decisions"]));
    for (round, decision) in rounds {
        for pending in list_items(round) {
            let id = text(&pending["id"]);
            let has = |key: &str| lines(&decision[key]).any(|listed| listed == id);
            if has("approve") || has("always") {
                granted.insert(id.to_owned());
            } else if has("never") || decision["reject"].get(id).is_some() {
                denied.insert(id.to_owned());
            }
            if !has("approve") && has("always") {
                standing.insert(text(&pending["name"]).to_owned());
            }
        }
    }
    (granted, denied, standing)
}

/// The end of a body follows its start, and the end hook of a call its start hook.
fn wrong_log_order(pair: &OutcomePair) -> Vec<String> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for line in lines(&pair.windlass["log"]) {
        let begin = match line.split_once(' ') {
            Some(("done" | "cancelled", rest)) => format!("start {rest}"),
            Some(("tool", rest)) if rest.starts_with("end ") => line.replacen("tool end", "tool start", 1),
            _ => {
                *seen.entry(line).or_default() += 1;
                continue;
            }
        };
        match seen.get_mut(begin.as_str()) {
            Some(count) if *count > 0 => *count -= 1,
            _ => found.push(format!("log: `{line}` has no `{begin}` before it")),
        }
    }
    found
}

/// A run keeps its limits: of turns, and of concurrent bodies.
fn exceeded_limits(pair: &OutcomePair) -> Vec<String> {
    let mut found = Vec::new();
    let run = &pair.scenario["run"];
    let runs = pair.scenario["input"].as_array().map_or(1, Vec::len) as u64;
    let turns = lines(&pair.windlass["log"]).filter(|line| line.starts_with("llm start ")).count() as u64;
    let max_turns = run["max_turns"].as_u64().unwrap_or(10);
    if turns > max_turns * runs {
        found.push(format!("turns: {turns} in {runs} runs of at most {max_turns}"));
    }
    let peak = pair.windlass["peak_concurrency"].as_u64().unwrap_or_default();
    if let Some(limit) = run["concurrency"].as_u64()
        && peak > limit
    {
        found.push(format!("concurrency: {peak} bodies, of at most {limit}"));
    }
    found
}

fn count_lines(pair: &OutcomePair, line: &str) -> usize {
    lines(&pair.windlass["log"]).filter(|other| *other == line).count()
}
