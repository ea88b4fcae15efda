//! Differences in the calls beside a call that fails the run.

use serde_json::Value;

use super::super::pair::{
    OutcomePair, ScriptedCall, guardrail_verdicts, is_call_line, line_call, lines, list_items, text,
};

/// Output of an executed call whose output guardrail stopped the run.
const WITHHELD_OUTPUT: &str = "The call was executed. Its output was withheld by an output guardrail.";

/// A call of a turn in which another call failed the run.
struct SiblingCall {
    id: String,
    name: String,
    /// Agent that the call asks; empty for a function.
    agent: String,
    /// Keys of the context that the body sets.
    keys: Vec<String>,
    can_fail_run: bool,
    /// A call after it in the model's order failed the run.
    is_earlier: bool,
    /// A call before it in the model's order failed the run.
    is_later: bool,
}

/// Returns the log lines of a call.
fn call_log(outcome: &Value, id: &str, name: &str) -> Vec<String> {
    let shared = format!("{id}@{name}");
    let is_own = |line: &&str| line.rsplit(' ').next().is_some_and(|last| last == id || last == shared);
    lines(&outcome["log"]).filter(is_own).map(str::to_owned).collect()
}

/// Removes the log lines of a call.
fn forget_call_log(outcome: &mut Value, id: &str, name: &str) {
    let shared = format!("{id}@{name}");
    if let Some(log) = outcome["log"].as_array_mut() {
        log.retain(|line| {
            let last = text(line).rsplit(' ').next().unwrap_or_default();
            last != id && last != shared
        });
    }
}

fn has_line(log: &[String], kind: &str) -> bool {
    log.iter().any(|line| line.starts_with(kind))
}

/// Returns true if the definition of the call's tool lets a call fail the run.
fn can_fail_run(call: &ScriptedCall<'_>) -> bool {
    call.tool["on_failure"] == "propagate"
        || call.tool["on_timeout"] == "raise_exception"
        || guardrail_verdicts(call).any(|then| then == "raise")
        || has_raising_output_guardrail(call.tool)
}

fn has_raising_output_guardrail(tool: &Value) -> bool {
    list_items(&tool["output_guardrails"]).any(|guardrail| guardrail["then"] == "raise")
}

/// Returns the siblings of all calls that failed a run: the main run, or that of a nested agent.
fn siblings(pair: &OutcomePair) -> Vec<SiblingCall> {
    let has_failed = pair.reference["status"] == "failed" && pair.windlass["status"] == "failed";
    let mut found = Vec::new();
    for (agent, spec) in pair.scenario["agents"].as_object().into_iter().flatten() {
        if !has_failed && !pair.is_nested_agent(agent) {
            continue;
        }
        let requests = list_items(&pair.windlass["model_calls"]);
        let answers = requests.filter(|call| call["agent"] == agent.as_str()).count();
        for step in list_items(&spec["script"]).take(answers) {
            let calls: Vec<ScriptedCall<'_>> =
                list_items(&step["calls"]).map(|call| pair.scripted_call(call)).collect();
            // The call that failed the run has the same log in both, and no end.
            let is_failure = |call: &ScriptedCall<'_>| {
                let log = call_log(&pair.windlass, call.id, call.name);
                can_fail_run(call)
                    && !log.is_empty()
                    && !has_line(&log, "tool end ")
                    && (!has_line(&log, "done ") || has_raising_output_guardrail(call.tool))
                    && log == call_log(&pair.reference, call.id, call.name)
            };
            let first = calls.iter().position(is_failure);
            let last = calls.iter().rposition(is_failure);
            let (Some(first), Some(last)) = (first, last) else { continue };
            found.extend(calls.iter().enumerate().map(|(at, call)| {
                let does = call.tool["does_for"].get(call.id).unwrap_or(&call.tool["does"]);
                SiblingCall {
                    id: call.id.to_owned(),
                    name: call.name.to_owned(),
                    agent: text(&call.tool["agent"]).to_owned(),
                    keys: does["set"].as_object().into_iter().flat_map(|keys| keys.keys().cloned()).collect(),
                    can_fail_run: can_fail_run(call),
                    is_earlier: at < last,
                    is_later: at > first,
                }
            }));
        }
    }
    found
}

/// Returns an agent, and the agents that it asks.
fn agents_below(pair: &OutcomePair, agent: &str) -> Vec<String> {
    let mut found: Vec<String> = vec![agent.to_owned()];
    let mut at = 0;
    while let Some(name) = found.get(at).cloned() {
        at += 1;
        for tool in lines(&pair.scenario["agents"][&name]["tools"]) {
            let asked = text(&pair.scenario["tools"][tool]["agent"]);
            if !asked.is_empty() && !found.iter().any(|known| known == asked) {
                found.push(asked.to_owned());
            }
        }
    }
    found
}

/// Removes what a nested agent, and the agents that it asks, did on one side only, because they got further there:
/// on Windlass or on the reference.
fn forget_nested_surplus(pair: &mut OutcomePair, agent: &str, is_windlass_further: bool) {
    for agent in agents_below(pair, agent) {
        let spec = &pair.scenario["agents"][&agent];
        let calls: Vec<(String, String)> = list_items(&spec["script"])
            .flat_map(|step| list_items(&step["calls"]))
            .map(|call| (text(&call["id"]).to_owned(), text(&call["name"]).to_owned()))
            .collect();
        let guardrails: Vec<String> = list_items(&spec["input_guardrails"])
            .chain(list_items(&spec["output_guardrails"]))
            .map(|guardrail| format!("guardrail {}", text(&guardrail["name"])))
            .collect();
        let (further, nearer) = match is_windlass_further {
            true => (&mut pair.windlass, &mut pair.reference),
            false => (&mut pair.reference, &mut pair.windlass),
        };
        let requests = |outcome: &Value| -> Vec<Value> {
            let calls = list_items(&outcome["model_calls"]);
            calls.filter(|call| call["agent"] == agent.as_str()).cloned().collect()
        };
        let (more, fewer) = (requests(further), requests(nearer));
        if more.starts_with(&fewer)
            && let Some(calls) = further["model_calls"].as_array_mut()
        {
            let mut at = 0;
            calls.retain(|call| {
                let is_own = call["agent"] == agent.as_str();
                at += usize::from(is_own);
                !is_own || at <= fewer.len()
            });
            let surplus = (more.len() - fewer.len()) as u64;
            let count = |outcome: &Value| outcome["usage"]["requests"].as_u64().unwrap_or_default();
            if surplus > 0 && count(further) == count(nearer) + surplus {
                further["usage"] = nearer["usage"].clone();
            }
        }
        for (id, name) in calls {
            let (more, fewer) = (call_log(further, &id, &name), call_log(nearer, &id, &name));
            if more != fewer && has_got_further(&more, &fewer) {
                for outcome in [&mut *further, &mut *nearer] {
                    forget_call_log(outcome, &id, &name);
                    outcome["peak_concurrency"] = Value::Null;
                }
            }
        }
        for line in guardrails {
            let count = |outcome: &Value| lines(&outcome["log"]).filter(|other| *other == line).count();
            let surplus = count(further).saturating_sub(count(nearer));
            for _ in 0..surplus {
                if let Some(log) = further["log"].as_array_mut()
                    && let Some(at) = log.iter().rposition(|other| *other == line.as_str())
                {
                    log.remove(at);
                }
            }
        }
    }
}

/// Returns true if one log of a call has every line of the other, except that its body was stopped there.
fn has_got_further(more: &[String], fewer: &[String]) -> bool {
    let count = |log: &[String], line: &String| log.iter().filter(|other| *other == line).count();
    let mut kept = fewer.iter().filter(|line| !line.starts_with("cancelled "));
    kept.all(|line| count(fewer, line) <= count(more, line))
}

/// A call failed the run. The reference started calls after it in the model's order, and stopped them.
pub(super) fn no_start_after_failure(pair: &mut OutcomePair) {
    for call in siblings(pair).into_iter().filter(|call| call.is_later) {
        let ours = call_log(&pair.windlass, &call.id, &call.name);
        let theirs = call_log(&pair.reference, &call.id, &call.name);
        let is_unstarted = !has_line(&ours, "start ") && !has_line(&ours, "tool start ");
        // A call whose arguments are invalid ends without a body.
        let is_executed =
            has_line(&theirs, "done ") || (has_line(&theirs, "start ") && has_line(&theirs, "tool end "));
        if ours == theirs || !is_unstarted || is_executed || !has_got_further(&theirs, &ours) {
            continue;
        }
        forget_call_log(&mut pair.reference, &call.id, &call.name);
        forget_call_log(&mut pair.windlass, &call.id, &call.name);
        if has_line(&theirs, "start ") {
            pair.forget(&["peak_concurrency"]);
        } else if let Some(stored) = pair.reference["session"].as_array_mut() {
            // No body ran: the reference stored what is wrong with the arguments.
            stored.retain(|line| !(is_call_line(text(line)) && line_call(text(line)) == call.id));
        }
        if !call.agent.is_empty() {
            forget_nested_surplus(pair, &call.agent, false);
        }
    }
}

/// A call failed the run. The reference stopped the calls before it in the model's order; on Windlass they ran on
/// until the drain ended.
pub(super) fn earlier_siblings_run_on(pair: &mut OutcomePair) {
    for call in siblings(pair).into_iter().filter(|call| call.is_earlier) {
        let ours = call_log(&pair.windlass, &call.id, &call.name);
        let theirs = call_log(&pair.reference, &call.id, &call.name);
        if !has_got_further(&ours, &theirs) {
            continue;
        }
        if !call.agent.is_empty() {
            forget_nested_surplus(pair, &call.agent, true);
        }
        if ours == theirs {
            continue;
        }
        forget_call_log(&mut pair.reference, &call.id, &call.name);
        forget_call_log(&mut pair.windlass, &call.id, &call.name);
        if has_line(&ours, "start ") && !has_line(&theirs, "start ") {
            pair.forget(&["peak_concurrency"]);
        }
        // It has ended: its effects and its output are on Windlass only.
        if !has_line(&ours, "cancelled ") {
            for outcome in [&mut pair.reference, &mut pair.windlass] {
                if let Some(context) = outcome["context"].as_object_mut() {
                    context.retain(|key, _| !call.keys.contains(key));
                }
            }
        }
        forget_extra_history(pair, &call.id);
        if call.can_fail_run && !has_line(&ours, "tool end ") {
            pair.reference["error"] = pair.windlass["error"].clone();
        }
    }
}

/// Removes a call from the session of Windlass if the reference's session does not have it.
fn forget_extra_history(pair: &mut OutcomePair, id: &str) {
    let is_own = |line: &str| is_call_line(line) && line_call(line) == id;
    if !lines(&pair.reference["session"]).any(is_own) {
        pair.forget_stored_calls(is_own);
    }
}

/// An output guardrail of a tool stopped the run. The reference does not store the executed call.
pub(super) fn withheld_output_kept(pair: &mut OutcomePair) {
    let is_withheld = |id: &str| {
        let output = format!("output {id} {WITHHELD_OUTPUT}");
        lines(&pair.windlass["session"]).any(|line| line == output)
    };
    let withheld: Vec<String> = pair
        .calls()
        .filter(|call| has_raising_output_guardrail(call.tool) && is_withheld(call.id))
        .map(|call| call.id.to_owned())
        .collect();
    if pair.reference["status"] == "failed" && pair.windlass["status"] == "failed" {
        for id in withheld {
            forget_extra_history(pair, &id);
            forget_turn_text(pair, &id);
        }
    }
}

/// Removes the text of a call's turn from the session of Windlass if the reference's session does not have it.
fn forget_turn_text(pair: &mut OutcomePair, id: &str) {
    let steps = pair.scenario["agents"].as_object().into_iter().flatten();
    let mut steps = steps.flat_map(|(_, agent)| list_items(&agent["script"]));
    let turn = steps.rfind(|step| list_items(&step["calls"]).any(|call| call["id"] == id));
    let Some(said) = turn.and_then(|step| step["text"].as_str()) else { return };
    let said = format!("assistant: {said}");
    let is_known = lines(&pair.reference["session"]).any(|line| line == said);
    if let Some(stored) = pair.windlass["session"].as_array_mut().filter(|_| !is_known) {
        stored.retain(|line| *line != said.as_str());
    }
}

/// A run failed in a turn in which bodies had started: the failed one, or one that was stopped with it. The reference does
/// not store these calls.
pub(super) fn started_calls_kept(pair: &mut OutcomePair) {
    let has_failed = pair.reference["status"] == "failed" && pair.windlass["status"] == "failed";
    // An earlier run of a session may have failed, too.
    let has_runs = pair.scenario["input"].as_array().is_some_and(|inputs| inputs.len() > 1);
    if !(has_failed || has_runs) || pair.reference["session"].is_null() {
        return;
    }
    let has_line_of = |outcome: &Value, kind: &str, id: &str| {
        lines(&outcome["session"]).any(|line| line.starts_with(kind) && line_call(line) == id)
    };
    let was_asked =
        |agent: &Value| list_items(&pair.windlass["model_calls"]).any(|call| call["agent"] == *agent);
    let is_kept = |call: &ScriptedCall<'_>| {
        let has_started = match &call.tool["agent"] {
            Value::Null => has_line(&call_log(&pair.windlass, call.id, call.name), "start "),
            agent => was_asked(agent),
        };
        has_started
            && ["call ", "output "].iter().all(|kind| {
                has_line_of(&pair.windlass, kind, call.id) && !has_line_of(&pair.reference, kind, call.id)
            })
    };
    let kept: Vec<String> = pair.calls().filter(is_kept).map(|call| call.id.to_owned()).collect();
    let is_of_kept = |line: &str| is_call_line(line) && kept.iter().any(|id| id == line_call(line));
    // The next run on the session sees them.
    for call in pair.windlass["model_calls"].as_array_mut().into_iter().flatten() {
        if let Some(input) = call["input"].as_array_mut() {
            let last_user =
                input.iter().rposition(|line| text(line).starts_with("user: ")).unwrap_or_default();
            let mut at = 0;
            input.retain(|line| {
                at += 1;
                at > last_user + 1 || !is_of_kept(text(line))
            });
        }
    }
    for id in kept {
        forget_extra_history(pair, &id);
        forget_turn_text(pair, &id);
    }
}

/// A run with a limit of concurrent bodies asked a nested agent. In the reference every agent has its own limit. On
/// Windlass a call may still wait for its permit when another one fails the run.
pub(super) fn limit_covers_nested(pair: &mut OutcomePair) {
    let limit = pair.scenario["run"]["concurrency"].as_u64();
    let peak = |outcome: &Value| outcome["peak_concurrency"].as_u64();
    let was_asked = |request: &Value| pair.is_nested_agent(text(&request["agent"]));
    let (Some(limit), Some(ours), Some(theirs)) = (limit, peak(&pair.windlass), peak(&pair.reference)) else {
        return;
    };
    if theirs <= limit || ours > limit || !list_items(&pair.reference["model_calls"]).any(was_asked) {
        return;
    }
    pair.forget(&["peak_concurrency"]);
    // A nested agent whose calls had to wait is not as far when the run fails.
    for call in siblings(pair).into_iter().filter(|call| !call.agent.is_empty()) {
        forget_nested_surplus(pair, &call.agent, false);
    }
    for call in siblings(pair).into_iter().filter(|call| call.is_later && call.agent.is_empty()) {
        let ours = call_log(&pair.windlass, &call.id, &call.name);
        let theirs = call_log(&pair.reference, &call.id, &call.name);
        if pair.is_nested_call(&call.id) && !has_line(&ours, "start ") && has_line(&theirs, "start ") {
            forget_call_log(&mut pair.reference, &call.id, &call.name);
            forget_call_log(&mut pair.windlass, &call.id, &call.name);
        }
    }
}

/// A call of the run and a call of a nested agent timed out at the same instant, because they have the same tool.
pub(super) fn timeout_tie(pair: &mut OutcomePair) {
    if !pair.has_same_failure() || pair.reference["error"]["kind"] != "ToolTimeoutError" {
        return;
    }
    let has_fatal_timeout =
        pair.calls().any(|call| call.tool["on_timeout"] == "raise_exception" && pair.is_nested_call(call.id));
    if !has_fatal_timeout {
        return;
    }
    let nested: Vec<String> =
        pair.calls().filter(|call| call.tool["kind"] == "agent").map(|call| call.id.to_owned()).collect();
    for outcome in [&mut pair.reference, &mut pair.windlass] {
        if let Some(stored) = outcome["session"].as_array_mut() {
            stored.retain(|line| {
                let line = text(line);
                !is_call_line(line) || !nested.iter().any(|id| id == line_call(line))
            });
        }
    }
}

/// A sibling switched a tool off while a call of it waited. The reference executes the call, and Windlass answers
/// it as the call of an unknown tool.
pub(super) fn enabled_before_body(pair: &mut OutcomePair) {
    let sets_off = |call: &ScriptedCall<'_>, key: &str| {
        let does = call.tool["does_for"].get(call.id).unwrap_or(&call.tool["does"]);
        does["set"][key] == false
    };
    let is_switched_off = |call: &ScriptedCall<'_>| {
        let key = call.tool["enabled"]["context"].as_str();
        key.is_some_and(|key| pair.calls().any(|other| sets_off(&other, key)))
            && !has_line(&call_log(&pair.windlass, call.id, call.name), "start ")
            && has_line(&call_log(&pair.reference, call.id, call.name), "start ")
    };
    let is_answered = |call: &ScriptedCall<'_>| {
        let answer = format!("Tool '{}' not found.", call.name);
        list_items(&pair.windlass["items"]).any(|item| {
            item["type"] == "output" && item["id"] == call.id && item["output"] == answer.as_str()
        })
    };
    let is_fatal = |call: &ScriptedCall<'_>| {
        let error = &pair.windlass["error"];
        error["kind"] == "ModelBehaviorError"
            && text(&error["message"]).starts_with(&format!("the model called `{}`,", call.name))
    };
    let forks = pair.calls_like(|call| is_switched_off(call) && is_fatal(call));
    if !forks.is_empty() {
        pair.forget_from(&forks);
        return;
    }
    let found: Vec<(String, String)> = pair
        .calls()
        .filter(|call| is_switched_off(call) && is_answered(call))
        .map(|call| (call.id.to_owned(), call.name.to_owned()))
        .collect();
    for (id, name) in found {
        forget_call_log(&mut pair.reference, &id, &name);
        forget_call_log(&mut pair.windlass, &id, &name);
        let prefix = format!("output {id} ");
        for outcome in [&mut pair.reference, &mut pair.windlass] {
            for item in outcome["items"].as_array_mut().into_iter().flatten() {
                if item["type"] == "output" && item["id"] == id.as_str() {
                    item["output"] = Value::Null;
                }
            }
            for call in outcome["model_calls"].as_array_mut().into_iter().flatten() {
                cut_outputs(&mut call["input"], &prefix);
            }
            cut_outputs(&mut outcome["session"], &prefix);
        }
    }
}

/// Cuts the text from the outputs of a call in a history.
fn cut_outputs(history: &mut Value, prefix: &str) {
    for line in history.as_array_mut().into_iter().flatten() {
        if text(line).starts_with(prefix) {
            *line = prefix.into();
        }
    }
}
