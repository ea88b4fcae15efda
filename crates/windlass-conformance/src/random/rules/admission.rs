//! Differences in the admission of calls: arguments, approvals, decisions and pauses.

use serde_json::Value;

use super::super::pair::{
    ArgumentValidity, OutcomePair, ScriptedCall, argument_validity, is_approval_asked, lines, list_items,
    object_values, text,
};
use crate::compare::outcome_differences;

/// The reference ran a call with unknown keys, or requested approval for it. Windlass answered with the violation.
pub(super) fn strict_arguments(pair: &mut OutcomePair) {
    let is_started = |outcome: &Value, call: &ScriptedCall<'_>| {
        let start = format!("start {} {}", call.name, call.id);
        lines(&outcome["log"]).any(|line| line.starts_with(&start))
            || list_items(&outcome["model_calls"]).any(|request| request["agent"] == call.tool["agent"])
            || is_approval_asked(outcome, call.id)
    };
    let forks = pair.calls_like(|call| {
        argument_validity(call) == ArgumentValidity::UnknownKeys
            && !call.tool.is_null()
            && is_started(&pair.reference, call)
            && (call.tool["kind"] == "agent" || !is_started(&pair.windlass, call))
    });
    if !forks.is_empty() {
        pair.forget_from(&forks);
    }
}

/// The reference requested approval for a call with invalid arguments, and Windlass did not.
pub(super) fn unusable_not_asked(pair: &mut OutcomePair) {
    let forks = pair.calls_like(|call| {
        argument_validity(call) != ArgumentValidity::Valid
            && is_approval_asked(&pair.reference, call.id)
            && !is_approval_asked(&pair.windlass, call.id)
    });
    if !forks.is_empty() {
        pair.forget_from(&forks);
    }
}

/// Windlass evaluated the rule for a call that omits an optional argument, and the reference did not.
pub(super) fn rule_is_asked(pair: &mut OutcomePair) {
    let is_checked = |outcome: &Value, id: &str| {
        lines(&outcome["log"]).any(|line| line.strip_prefix("approval check ") == Some(id))
    };
    let forks = pair.calls_like(|call| {
        call.tool["approval"].is_object()
            && call.tool["params"]["s"] == "string?"
            && call.args.get("s").is_none()
            && is_checked(&pair.windlass, call.id)
            && !is_checked(&pair.reference, call.id)
    });
    if !forks.is_empty() {
        pair.forget_from(&forks);
    }
}

/// A standing decision and a decision about one call concern the same tool in the same pause.
pub(super) fn decision_stands(pair: &mut OutcomePair) {
    let tool_of = |id: &str| pair.calls().find(|call| call.id == id).map(|call| call.name.to_owned());
    let decided = |decision: &Value, key: &str| -> Vec<String> {
        let ids: Vec<String> = match &decision[key] {
            Value::Array(ids) => ids.iter().map(|id| text(id).to_owned()).collect(),
            Value::Object(fields) => fields.keys().cloned().collect(),
            _ => Vec::new(),
        };
        ids
    };
    let rounds = list_items(&pair.windlass["rounds"]).zip(list_items(&pair.scenario["decisions"]));
    let mut forks = Vec::new();
    // The reference keeps approved calls of nested agents waiting, and later standing decisions reach them.
    let mut waiting: Vec<String> = Vec::new();
    for (round, decision) in rounds {
        let is_pending = |id: &String| list_items(round).any(|item| item["id"] == id.as_str());
        let tools = |keys: [&str; 2]| -> Vec<String> {
            let ids = keys.into_iter().flat_map(|key| decided(decision, key)).filter(is_pending);
            ids.filter_map(|id| tool_of(&id)).collect()
        };
        let (single, standing) = (tools(["approve", "reject"]), tools(["always", "never"]));
        let mut is_fork = standing.iter().any(|tool| single.contains(tool) || waiting.contains(tool));
        let nested =
            decided(decision, "approve").into_iter().filter(|id| is_pending(id) && pair.is_nested_call(id));
        waiting.extend(nested.filter_map(|id| tool_of(&id)));
        let (always, never) = (tools(["always", "always"]), tools(["never", "never"]));
        is_fork |= always.iter().any(|tool| never.contains(tool));
        if is_fork {
            forks.extend(list_items(round).map(|item| text(&item["id"]).to_owned()));
        }
    }
    if !forks.is_empty() {
        pair.forget_from(&forks);
    }
}

/// A call of the run and a call of a nested agent have the same id, and a person decided it. The reference refuses the
/// decision.
pub(super) fn decided_by_path(pair: &mut OutcomePair) {
    let refusal = "Cannot apply approval because the same tool invocation identity belongs to both";
    if text(&pair.reference["error"]["message"]).starts_with(refusal) {
        let repeated = pair.repeated_ids();
        pair.forget_from(&repeated);
    }
}

/// The reference refuses to resume a serialised run whose agent has output guardrails, after the first turn.
pub(super) fn resumes_with_output_guardrails(pair: &mut OutcomePair) {
    let refusal = "Cannot resume a serialized approval checkpoint with output guardrails";
    if text(&pair.reference["error"]["message"]).starts_with(refusal) {
        // The refused resume is that of its last pause.
        let last = list_items(&pair.reference["rounds"]).next_back();
        let pending: Vec<String> =
            last.into_iter().flat_map(list_items).map(|item| text(&item["id"]).to_owned()).collect();
        pair.forget_from(&pending);
    }
}

/// An approved call in a nested agent failed the nested run. The reference asks for the same call again.
pub(super) fn nested_failure_not_asked_again(pair: &mut OutcomePair) {
    let rounds = |outcome: &Value, id: &str| {
        let rounds = list_items(&outcome["rounds"]).chain([&outcome["pending"]]);
        rounds.filter(|round| list_items(round).any(|item| item["id"] == id)).count()
    };
    let is_executed = |id: &str| {
        lines(&pair.reference["log"])
            .any(|line| line.starts_with("start ") && line.ends_with(&format!(" {id}")))
    };
    // It also asks again if it cannot restore the nested run, because of its output guardrails.
    let is_guarded = |tool: &Value| {
        let agent = &pair.scenario["agents"][text(&tool["agent"])];
        list_items(&agent["output_guardrails"]).next().is_some()
    };
    let has_guarded = object_values(&pair.scenario["tools"]).any(is_guarded);
    let forks = pair.calls_like(|call| {
        rounds(&pair.reference, call.id) > rounds(&pair.windlass, call.id)
            && pair.is_nested_call(call.id)
            && (is_executed(call.id) || has_guarded)
    });
    if !forks.is_empty() {
        pair.forget_from(&forks);
    }
}

/// A person approved some of the calls that wait in a nested agent. The reference executes them when the others
/// are decided too.
pub(super) fn nested_approved_alone(pair: &mut OutcomePair) {
    let nested: Vec<String> =
        object_values(&pair.scenario["tools"]).map(|tool| text(&tool["agent"]).to_owned()).collect();
    let decided: Vec<String> = list_items(&pair.windlass["rounds"])
        .flat_map(list_items)
        .map(|item| text(&item["id"]).to_owned())
        .filter(|id| pair.is_nested_call(id))
        .collect();
    // The bodies of different pauses do not overlap on Windlass.
    if !decided.is_empty() && list_items(&pair.windlass["rounds"]).count() > 1 {
        pair.forget(&["peak_concurrency"]);
    }
    let rounds = list_items(&pair.windlass["rounds"]).zip(list_items(&pair.scenario["decisions"]));
    let is_partial = rounds.into_iter().any(|(round, decision)| {
        list_items(round).any(|item| {
            let id = text(&item["id"]);
            let is_listed = |key: &str| lines(&decision[key]).any(|listed| listed == id);
            !["approve", "always", "never"].into_iter().any(is_listed) && decision["reject"].get(id).is_none()
        })
    });
    if !is_partial {
        return;
    }
    let logged: Vec<String> = lines(&pair.reference["log"]).map(str::to_owned).collect();
    let is_early = |line: &str| {
        let id = line.rsplit(' ').next().unwrap_or_default();
        pair.is_nested_call(id) && !logged.iter().any(|logged| logged == line)
    };
    let early: Vec<String> =
        lines(&pair.windlass["log"]).filter(|line| is_early(line)).map(str::to_owned).collect();
    let has_early = !decided.is_empty() && !early.is_empty();
    if has_early {
        for outcome in [&mut pair.reference, &mut pair.windlass] {
            if let Some(calls) = outcome["model_calls"].as_array_mut() {
                calls.retain(|call| !nested.iter().any(|name| call["agent"] == name.as_str()));
            }
        }
        pair.forget(&["peak_concurrency", "usage"]);
    }
    if let Some(log) = pair.windlass["log"].as_array_mut() {
        log.retain(|line| !has_early || !early.iter().any(|early| early == text(line)));
    }
    // What follows an early call can change everything after it.
    let key_differs = |key: &str| {
        outcome_differences(&pair.reference, &pair.windlass).iter().any(|difference| difference.key == key)
    };
    if has_early && ["rounds", "pending", "items"].into_iter().any(key_differs) {
        pair.forget_from(&decided);
    } else if has_early {
        pair.forget(&["context"]);
    }
}

/// Output of a handoff beside another one.
const SURPLUS_HANDOFF_OUTPUT: &str = "Multiple handoffs detected, ignoring this one.";

/// A model requested two handoffs beside a call that waits for a person. Windlass answers the surplus handoff
/// before the pause, the reference after it.
pub(super) fn surplus_handoff_first(pair: &mut OutcomePair) {
    let is_handoff = |call: &&Value| text(&call["name"]).starts_with("transfer_to_");
    let steps = object_values(&pair.scenario["agents"]).flat_map(|agent| list_items(&agent["script"]));
    let has_surplus = steps.into_iter().any(|step| list_items(&step["calls"]).filter(is_handoff).count() > 1);
    let is_paused =
        list_items(&pair.windlass["rounds"]).next().is_some() || pair.windlass["status"] == "interrupted";
    let sorted = |events: &Value| {
        let mut events: Vec<String> = lines(events).map(str::to_owned).collect();
        events.sort();
        events
    };
    if has_surplus && pair.windlass["status"] == "interrupted" {
        for outcome in [&mut pair.reference, &mut pair.windlass] {
            if let Some(items) = outcome["items"].as_array_mut() {
                items.retain(|item| item["output"] != SURPLUS_HANDOFF_OUTPUT);
            }
        }
    }
    let mut ours = sorted(&pair.windlass["events"]);
    for event in sorted(&pair.reference["events"]) {
        match ours.iter().position(|our| *our == event) {
            Some(at) => drop(ours.remove(at)),
            None => return,
        }
    }
    if has_surplus && is_paused && ours.iter().all(|event| event == "tool_output") {
        pair.forget(&["events"]);
    }
}
