//! Differences in the guardrails of agents.

use serde_json::Value;

use super::super::pair::{OutcomePair, has_all_lines, line_call, lines, list_items, object_values, text};

/// Output of a call whose result an output guardrail withheld.
const WITHHELD_OUTPUT: &str = "Output withheld by an output guardrail.";

/// An input guardrail that runs concurrently with the model ended the run. The reference had gone further.
pub(super) fn guards_first(pair: &mut OutcomePair) {
    let is_concurrent = |agent: &Value| {
        list_items(&agent["input_guardrails"]).any(|guardrail| guardrail["parallel"] != false)
    };
    // The model may have failed in the reference, because it was asked before the verdict.
    let kind = &pair.windlass["error"]["kind"];
    let is_guardrail_failure = kind == "InputGuardrailTripwireTriggered" || kind == "Boom";
    if pair.reference["status"] == "failed"
        && is_guardrail_failure
        && object_values(&pair.scenario["agents"]).any(is_concurrent)
        && has_all_lines(&pair.reference["log"], &pair.windlass["log"])
    {
        pair.forget(&["error", "log", "model_calls", "session", "events", "context", "peak_concurrency"]);
    }
}

/// A concurrent input guardrail ended the run of a nested agent. The reference had started calls there.
pub(super) fn nested_guards_first(pair: &mut OutcomePair) {
    let is_nested = |name: &str| object_values(&pair.scenario["tools"]).any(|tool| tool["agent"] == name);
    let agents = pair.scenario["agents"].as_object().into_iter().flatten().filter(|(name, agent)| {
        is_nested(name)
            && list_items(&agent["input_guardrails"])
                .any(|guardrail| guardrail["parallel"] != false && !guardrail["sleep_ms"].is_null())
    });
    let mut ids = Vec::new();
    let mut names = Vec::new();
    for (name, agent) in agents {
        for call in list_items(&agent["script"]).flat_map(|step| list_items(&step["calls"])) {
            ids.push(format!("{}@{}", text(&call["id"]), text(&call["name"])));
            ids.push(text(&call["id"]).to_owned());
        }
        names.push(name.clone());
    }
    // An id that a call outside has too does not tell which one a line is about.
    let mut ambiguous = Vec::new();
    for (name, agent) in pair.scenario["agents"].as_object().into_iter().flatten() {
        if names.contains(name) {
            continue;
        }
        for call in list_items(&agent["script"]).flat_map(|step| list_items(&step["calls"])) {
            let named = format!("{}@{}", text(&call["id"]), text(&call["name"]));
            let is_twin = ids.contains(&named);
            for id in [text(&call["id"]).to_owned(), named] {
                ids.retain(|inner| *inner != id);
                if is_twin {
                    ambiguous.push(id);
                }
            }
        }
    }
    // A nested agent whose guardrail takes time starts its calls later on Windlass.
    if !names.is_empty()
        && list_items(&pair.windlass["model_calls"])
            .any(|call| names.iter().any(|name| call["agent"] == name.as_str()))
    {
        pair.forget(&["peak_concurrency"]);
    }
    let has_id = |line: &str, ids: &[String]| {
        line.rsplit(' ').next().is_some_and(|id| ids.iter().any(|known| known == id))
    };
    let is_inner = |line: &str| has_id(line, &ids);
    let count = |outcome: &Value| lines(&outcome["log"]).filter(|line| is_inner(line)).count();
    // Of a call that the nested agent and another one have, the surplus of the reference is the nested agent's: each line
    // at most as often as the nested agent was asked.
    let mut surplus: Vec<String> =
        lines(&pair.reference["log"]).filter(|line| has_id(line, &ambiguous)).map(str::to_owned).collect();
    for line in lines(&pair.windlass["log"]) {
        if let Some(at) = surplus.iter().position(|other| other == line) {
            surplus.swap_remove(at);
        }
    }
    let asked = list_items(&pair.reference["model_calls"])
        .filter(|call| names.iter().any(|name| call["agent"] == name.as_str()))
        .count();
    if surplus.iter().any(|line| surplus.iter().filter(|other| *other == line).count() > asked) {
        surplus.clear();
    }
    if surplus.is_empty() && count(&pair.reference) <= count(&pair.windlass) {
        return;
    }
    for outcome in [&mut pair.reference, &mut pair.windlass] {
        if let Some(log) = outcome["log"].as_array_mut() {
            log.retain(|line| !is_inner(text(line)));
        }
        if let Some(calls) = outcome["model_calls"].as_array_mut() {
            calls.retain(|call| !names.iter().any(|name| call["agent"] == name.as_str()));
        }
    }
    if let Some(log) = pair.reference["log"].as_array_mut() {
        log.retain(|line| match surplus.iter().position(|other| other == text(line)) {
            Some(at) => {
                surplus.swap_remove(at);
                false
            }
            None => true,
        });
    }
    pair.forget(&["peak_concurrency", "context"]);
}

/// The run failed before a concurrent input guardrail did. The reference reports the guardrail if the run is
/// streamed.
pub(super) fn failure_before_guardrail(pair: &mut OutcomePair) {
    let has_concurrent = |is_like: fn(&Value) -> bool| {
        object_values(&pair.scenario["agents"])
            .flat_map(|agent| list_items(&agent["input_guardrails"]))
            .any(|guardrail| guardrail["parallel"] != false && is_like(guardrail))
    };
    let reports_guardrail = match text(&pair.reference["error"]["kind"]) {
        "Boom" => has_concurrent(|guardrail| guardrail["raise"].is_string()),
        "InputGuardrailTripwireTriggered" => has_concurrent(|_| true),
        _ => false,
    };
    let has_failed = pair.reference["status"] == "failed" && pair.windlass["status"] == "failed";
    if pair.scenario["run"]["stream"] == true && has_failed && reports_guardrail && !pair.has_same_failure() {
        pair.forget(&["error"]);
    }
}

/// An input guardrail failed in a streamed run. The reference then does not store the user's message.
pub(super) fn failed_guardrail_keeps_input(pair: &mut OutcomePair) {
    let can_fail = object_values(&pair.scenario["agents"])
        .flat_map(|agent| list_items(&agent["input_guardrails"]))
        .any(|guardrail| guardrail["raise"].is_string());
    let last = lines(&pair.windlass["session"]).next_back().filter(|line| line.starts_with("user: "));
    if can_fail
        && pair.has_same_failure()
        && pair.reference["error"]["kind"] == "Boom"
        && pair.scenario["run"]["stream"] == true
        && let Some(last) = last.map(str::to_owned)
        && let Some(stored) = pair.reference["session"].as_array_mut()
        && stored.last().is_none_or(|line| *line != last.as_str())
    {
        stored.push(last.into());
    }
}

/// An output guardrail failed, and the reference stored the message that it should have checked.
pub(super) fn failed_guard_refuses(pair: &mut OutcomePair) {
    let can_fail = object_values(&pair.scenario["agents"])
        .flat_map(|agent| list_items(&agent["output_guardrails"]))
        .any(|guardrail| guardrail["raise"].is_string());
    if can_fail && pair.has_same_failure() && pair.reference["error"]["kind"] == "Boom" {
        let (Some(ours), Some(theirs)) =
            (pair.windlass["session"].as_array_mut(), pair.reference["session"].as_array_mut())
        else {
            return;
        };
        if theirs.last().is_some_and(|line| text(line).starts_with("assistant: ")) {
            theirs.pop();
        }
        // The output of a tool may be the final output.
        for (our, their) in ours.iter_mut().zip(theirs) {
            if text(our).ends_with(WITHHELD_OUTPUT) && line_call(text(our)) == line_call(text(their)) {
                *our = their.clone();
            }
        }
    }
}
