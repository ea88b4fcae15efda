//! Differences in the history that a session keeps.

use serde_json::Value;

use super::super::pair::{
    OutcomePair, guardrail_verdicts, has_all_lines, is_call_line, is_cancelled, line_call, lines, list_items,
    object_values, text,
};

/// Outputs of a call that was stopped by a cancellation: before a body with effects had started, and after.
const STOPPED_CALL_OUTPUTS: [&str; 2] = [
    "The call was stopped before it finished.",
    "The call ended without a result, and it is not known whether it took effect. Do not repeat it without checking.",
];

/// The reference stored a turn that still waits for a person: at the end, or before the message of the next run.
pub(super) fn whole_turns(pair: &mut OutcomePair) {
    let stored: Vec<String> = lines(&pair.reference["session"]).map(str::to_owned).collect();
    let is_paused = pair.reference["status"] == "interrupted";
    let mut kept: Vec<String> = Vec::new();
    let (mut open_calls, mut open_texts): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for line in stored.iter().cloned() {
        if line.starts_with("user: ") {
            let dropped = kept.split_off(open_turn_start(&kept));
            open_texts.extend(dropped.iter().filter(|line| !is_call_line(line)).cloned());
            open_calls.extend(dropped.iter().map(|line| line_call(line).to_owned()));
        }
        kept.push(line);
    }
    // The next run sees the executed calls of the turn that waits.
    for call in pair.reference["model_calls"].as_array_mut().into_iter().flatten() {
        let input: Vec<String> = lines(&call["input"]).map(str::to_owned).collect();
        let last_user = input.iter().rposition(|line| line.starts_with("user: ")).unwrap_or_default();
        let is_open = |line: &str| match is_call_line(line) {
            true => open_calls.iter().any(|open| open == line_call(line)),
            false => open_texts.iter().any(|open| open == line),
        };
        let seen = input.iter().enumerate().filter(|(at, line)| *at > last_user || !is_open(line));
        call["input"] = seen.map(|(_, line)| line.clone()).collect();
    }
    if is_paused {
        kept.truncate(open_turn_start(&kept));
    }
    if kept.len() < stored.len() {
        pair.reference["session"] = kept.into();
    }
}

/// Returns the position of the last turn if one of its calls has no output, or else the number of lines.
pub(super) fn open_turn_start(stored: &[String]) -> usize {
    let before_outputs = stored.iter().rposition(|line| !line.starts_with("output ")).map_or(0, |at| at + 1);
    let before_calls =
        stored[..before_outputs].iter().rposition(|line| !line.starts_with("call ")).map_or(0, |at| at + 1);
    let outputs = &stored[before_outputs..];
    let has_output = |call: &String| outputs.iter().any(|output| line_call(output) == line_call(call));
    if stored[before_calls..before_outputs].iter().all(has_output) {
        return stored.len();
    }
    let has_text = before_calls > 0 && stored[before_calls - 1].starts_with("assistant: ");
    before_calls - usize::from(has_text)
}

/// A resumed run failed or was cancelled. The reference left calls without outputs in the session, or lost the
/// outputs of executed calls.
pub(super) fn no_dangling_calls(pair: &mut OutcomePair) {
    let has_ended_early = pair.windlass["status"] == "failed" || is_cancelled(&pair.windlass);
    let has_paused = list_items(&pair.windlass["rounds"]).next().is_some();
    if !has_ended_early || !(has_paused || is_cancelled(&pair.windlass)) {
        return;
    }
    let unanswered: Vec<String> = {
        let output_of = |id: &Value| {
            list_items(&pair.reference["items"]).any(|item| item["type"] == "output" && item["id"] == *id)
        };
        let calls = list_items(&pair.reference["items"]).filter(|item| item["type"] == "call");
        calls.filter(|call| !output_of(&call["id"])).map(|call| text(&call["id"]).to_owned()).collect()
    };
    // Windlass answers the calls that were stopped.
    if let Some(items) = pair.windlass["items"].as_array_mut() {
        items.retain(|item| {
            item["type"] != "output"
                || STOPPED_CALL_OUTPUTS.iter().all(|stopped| item["output"] != *stopped)
                || !unanswered.iter().any(|id| item["id"] == id.as_str())
        });
    }
    if pair.reference["session"].is_null() {
        return;
    }
    let stored: Vec<String> = lines(&pair.reference["session"]).map(str::to_owned).collect();
    let has_output = |call: &str| {
        stored.iter().any(|line| line.starts_with("output ") && line_call(line) == line_call(call))
    };
    let is_stored = |line: &str| lines(&pair.windlass["session"]).any(|known| known == line);
    let unknown: Vec<&str> = stored
        .iter()
        .filter(|line| {
            line.starts_with("output ") && line.contains(" Tool '") && line.ends_with("' not found.")
        })
        .map(|line| line_call(line))
        .collect();
    let is_unknown = |line: &str| is_call_line(line) && unknown.contains(&line_call(line));
    let kept: Vec<String> = stored
        .iter()
        .enumerate()
        .filter(|(at, line)| match line.starts_with("assistant: ") {
            // The text belongs to the turn of the calls after it.
            true => is_stored(line) || stored.get(at + 1).is_none_or(|next| !next.starts_with("call ")),
            // Nothing was executed for an unknown tool.
            false if is_unknown(line) => is_stored(line),
            false => !line.starts_with("call ") || has_output(line),
        })
        .map(|(_, line)| line.clone())
        .collect();
    pair.reference["session"] = kept.into();
    // Windlass has the calls that were executed, and their outputs, in addition.
    if has_all_lines(&pair.windlass["session"], &pair.reference["session"]) {
        let known: Vec<String> = lines(&pair.reference["session"]).map(str::to_owned).collect();
        let is_kept =
            |line: &Value| !is_call_line(text(line)) || known.iter().any(|known| known == text(line));
        if let Some(stored) = pair.windlass["session"].as_array_mut() {
            stored.retain(is_kept);
        }
    }
}

/// A cancelled run has a complete turn in the session, which the reference dropped; or a run failed in a turn whose
/// output may be final and is guarded, and the reference dropped the executed calls.
pub(super) fn done_work_kept(pair: &mut OutcomePair) {
    let may_stop = |agent: &Value| {
        list_items(&agent["output_guardrails"]).next().is_some()
            && !agent["tool_use_behavior"].is_null()
            && agent["tool_use_behavior"] != "run_llm_again"
    };
    let is_withheld = pair.has_same_failure() && object_values(&pair.scenario["agents"]).any(may_stop);
    let is_cut = pair.scenario["run"]["cancel_mode"] == "immediate";
    if !(is_cut || is_withheld) || pair.reference["session"].is_null() {
        return;
    }
    let reference: Vec<String> = lines(&pair.reference["session"]).map(str::to_owned).collect();
    let windlass: Vec<String> = lines(&pair.windlass["session"]).map(str::to_owned).collect();
    let is_extra = |line: &str| !line.starts_with("user: ") && !reference.iter().any(|known| known == line);
    let has_output = |call: &String| {
        windlass.iter().any(|line| line.starts_with("output ") && line_call(line) == line_call(call))
    };
    let extra_calls: Vec<&String> =
        windlass.iter().filter(|line| line.starts_with("call ") && is_extra(line)).collect();
    if !extra_calls.is_empty() && extra_calls.into_iter().all(has_output) {
        let inputs = pair.windlass["model_calls"].as_array_mut().into_iter().flatten();
        for input in inputs.filter_map(|call| call["input"].as_array_mut()) {
            let last_user =
                input.iter().rposition(|line| text(line).starts_with("user: ")).unwrap_or_default();
            let mut at = 0;
            input.retain(|line| {
                at += 1;
                at > last_user + 1 || !is_extra(text(line))
            });
        }
        if let Some(stored) = pair.windlass["session"].as_array_mut() {
            stored.retain(|line| !is_extra(text(line)));
        }
    }
}

/// A guardrail refused a call in the turn in which the run failed. The reference does not store such a call.
pub(super) fn refused_call_kept(pair: &mut OutcomePair) {
    if !pair.has_same_failure() {
        return;
    }
    let refused: Vec<String> = pair
        .calls()
        .filter(|call| guardrail_verdicts(call).any(|then| then.is_object()))
        .map(|call| call.id.to_owned())
        .collect();
    let stored: Vec<String> = lines(&pair.reference["session"]).map(str::to_owned).collect();
    pair.forget_stored_calls(|line| {
        is_call_line(line)
            && !stored.iter().any(|other| other == line)
            && refused.iter().any(|id| id == line_call(line))
    });
}

/// A model repeated the id of a handoff, of another agent's call, or of a call whose tool the agent does not have. Windlass
/// refused the response, or told the model of the unknown tool under another id.
pub(super) fn reused_id_refused(pair: &mut OutcomePair) {
    let repeated = pair.repeated_ids();
    let agents = pair.scenario["agents"].as_object().into_iter().flatten();
    let is_reused = agents.into_iter().any(|(_, agent)| {
        let calls = list_items(&agent["script"]).flat_map(|step| list_items(&step["calls"]));
        let is_offered = |name: &str| {
            let tool = &pair.scenario["tools"][name];
            let is_enabled = tool["enabled"].is_null() || tool["enabled"] == true;
            is_enabled && lines(&agent["tools"]).any(|own| own == name)
        };
        calls
            .filter(|call| repeated.iter().any(|id| call["id"] == id.as_str()))
            .any(|call| !is_offered(text(&call["name"])))
    });
    let is_refused = text(&pair.windlass["error"]["message"]).contains("again for another call");
    let is_renamed_line = |line: &str| line.starts_with("call ") && line_call(line).contains('~');
    // The items are those of the last run of a session.
    let is_renamed = list_items(&pair.windlass["items"]).any(|item| text(&item["id"]).contains('~'))
        || list_items(&pair.windlass["model_calls"]).any(|call| lines(&call["input"]).any(is_renamed_line))
        || lines(&pair.windlass["session"]).any(is_renamed_line);
    // The refused call is also in the script of another agent of the run.
    let makes_refused = |agent: &Value| {
        let mut calls = list_items(&agent["script"]).flat_map(|step| list_items(&step["calls"]));
        calls.any(|call| {
            let refused = format!("the model used call id `{}` again for another call", text(&call["id"]));
            text(&pair.windlass["error"]["message"]).starts_with(&refused)
        })
    };
    let agents = pair.scenario["agents"].as_object().into_iter().flatten();
    let makers = agents.filter(|(name, agent)| !pair.is_nested_agent(name) && makes_refused(agent));
    let is_of_another = makers.count() > 1;
    // Until then, one of them did all that the other did.
    let has_same_begin = pair.is_windlass_ahead() || pair.is_reference_ahead();
    if has_same_begin && (is_of_another || (is_reused && (is_refused || is_renamed))) {
        pair.forget_longer();
        return;
    }
    // Both fail the run, the reference because of the id, and before the end hook of the request.
    let is_unknown = pair.calls().any(|call| {
        repeated.iter().any(|id| id == call.id)
            && text(&pair.windlass["error"]["message"])
                .starts_with(&format!("the model called `{}`,", call.name))
    });
    let refusals = ["Model reused a tool call ID", "Model reused a completed tool call ID"];
    let names_id = refusals.iter().any(|why| text(&pair.reference["error"]["message"]).starts_with(why));
    if is_reused && is_unknown && names_id && pair.has_same_failure() {
        pair.forget(&["log"]);
    }
    // Another call of the response failed the run, by its error or its timeout.
    let fails_run = |call: &Value| {
        text(&pair.windlass["error"]["message"]).starts_with(&format!("tool `{}` ", text(&call["name"])))
    };
    let steps = pair.scenario["agents"].as_object().into_iter().flatten();
    let is_failed_beside = steps.flat_map(|(_, agent)| list_items(&agent["script"])).any(|step| {
        list_items(&step["calls"]).any(|call| repeated.iter().any(|id| call["id"] == id.as_str()))
            && list_items(&step["calls"]).any(fails_run)
    });
    // The model would have been told of the unknown tool, but the run failed or had no turn left.
    if is_reused
        && names_id
        && pair.scenario["run"]["tool_not_found"] == "return_error_to_model"
        && (pair.windlass["error"]["kind"] == "MaxTurnsExceeded" || is_failed_beside)
        && pair.windlass["model_calls"] == pair.reference["model_calls"]
        && has_all_lines(&pair.windlass["log"], &pair.reference["log"])
    {
        // The other calls of the response were executed.
        pair.forget(&["error", "log", "events", "context", "peak_concurrency"]);
    }
}

/// Two runs of a session use the same call id. The reference merges the calls in the input of the model.
pub(super) fn ids_per_run(pair: &mut OutcomePair) {
    if pair.scenario["input"].as_array().is_none_or(|inputs| inputs.len() < 2) {
        return;
    }
    let repeated = pair.repeated_ids();
    for outcome in [&mut pair.reference, &mut pair.windlass] {
        for call in outcome["model_calls"].as_array_mut().into_iter().flatten() {
            if let Some(input) = call["input"].as_array_mut() {
                input.retain(|line| {
                    let line = text(line);
                    !is_call_line(line) || !repeated.iter().any(|id| id == line_call(line))
                });
            }
        }
    }
}
