//! Differences in cancelled runs.

use serde_json::Value;

use super::super::pair::{OutcomePair, is_cancelled, lines, list_items, object_values, text};

/// The run was cancelled by the last event before a pause. In the reference the pause comes first, and the
/// person's decisions resume the cancelled run.
pub(super) fn cancelled_pause(pair: &mut OutcomePair) {
    let paused = |outcome: &Value| {
        list_items(&outcome["rounds"]).count() + usize::from(outcome["status"] == "interrupted")
    };
    let run = &pair.scenario["run"];
    if run["cancel_mode"] == "immediate"
        && lines(&pair.windlass["events"]).next_back() == run["cancel_on"].as_str()
        && is_cancelled(&pair.windlass)
        && paused(&pair.reference) > paused(&pair.windlass)
    {
        pair.forget_longer();
    }
}

/// The run was cancelled by the last event before its end. In the reference the end hook may still run.
pub(super) fn cancelled_before_end_hook(pair: &mut OutcomePair) {
    let run = &pair.scenario["run"];
    let count =
        |outcome: &Value| lines(&outcome["log"]).filter(|line| line.starts_with("agent end ")).count();
    if run["cancel_mode"] == "immediate"
        && lines(&pair.windlass["events"]).next_back() == run["cancel_on"].as_str()
        && count(&pair.reference) == count(&pair.windlass) + 1
        && let Some(log) = pair.reference["log"].as_array_mut()
        && let Some(at) = log.iter().rposition(|line| text(line).starts_with("agent end "))
    {
        log.remove(at);
    }
}

/// The run was cancelled by the event of a handoff. In the reference the agent before the handoff stays the last one while
/// a concurrent input guardrail runs.
pub(super) fn cancelled_at_handoff(pair: &mut OutcomePair) {
    let run = &pair.scenario["run"];
    let last_agent = |outcome: &Value| text(&outcome["last_agent"]).to_owned();
    let (before, after) = (last_agent(&pair.reference), last_agent(&pair.windlass));
    let has_guardrail = list_items(&pair.scenario["agents"][&before]["input_guardrails"])
        .into_iter()
        .any(|guardrail| guardrail["parallel"] != false);
    if run["cancel_mode"] == "immediate"
        && run["cancel_on"] == "handoff_occured"
        && lines(&pair.windlass["events"]).next_back() == Some("handoff_occured")
        && lines(&pair.windlass["log"]).next_back() == Some(format!("handoff {before} {after}").as_str())
        && has_guardrail
    {
        pair.forget(&["last_agent"]);
    }
}

/// The run had failed when its consumer saw the last event and cancelled it. The reference then hides the failure.
pub(super) fn failure_before_cancel(pair: &mut OutcomePair) {
    let run = &pair.scenario["run"];
    let can_fail_run = |tool: &Value| {
        let guardrails = list_items(&tool["input_guardrails"]).chain(list_items(&tool["output_guardrails"]));
        tool["on_failure"] == "propagate"
            || tool["on_timeout"] == "raise_exception"
            || guardrails.into_iter().any(|guardrail| guardrail["then"] == "raise")
    };
    let was_cancelled =
        lines(&pair.reference["events"]).any(|event| Some(event) == run["cancel_on"].as_str());
    if !object_values(&pair.scenario["tools"]).any(can_fail_run)
        || run["cancel_mode"] != "immediate"
        || pair.windlass["status"] != "failed"
        || pair.reference["status"] == "failed"
        || !was_cancelled
    {
        return;
    }
    if pair.scenario["input"].as_array().is_some_and(|inputs| inputs.len() > 1) {
        // The reference continues with the next run.
        pair.forget_longer();
    } else if is_cancelled(&pair.reference) {
        let keys = ["status", "last_agent", "usage", "events", "error", "items", "session", "final_output"];
        pair.forget(&keys);
    }
}

/// The run was cancelled at its first event. In the reference it depends on the session's storage how far the
/// run gets before the consumer sees that event.
pub(super) fn cancel_at_first_event(pair: &mut OutcomePair) {
    let run = &pair.scenario["run"];
    let first = format!("agent {}", text(&pair.scenario["start"]));
    if run["stream"] != true || run["cancel_on"] != first.as_str() {
        return;
    }
    let has_asked = lines(&pair.reference["log"]).any(|line| line.starts_with("llm start "));
    if run["cancel_mode"] == "immediate" && !has_asked {
        pair.forget(&["log"]);
    } else if run["session"] == true && pair.reference["usage"]["requests"] == 0 {
        pair.forget_longer();
    }
}
