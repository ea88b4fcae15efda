//! Tests of repeated call ids: a script of earlier turns and a response in, the plan or the error out.

use std::sync::Arc;

use super::{CallDisposition, ModelProtocolError, ToolLookup, plan_response};
use crate::item::{Item, ToolCall};
use crate::run::tests::bench::{look_up_tool, play_script};

const LOOKED: &str = "answer c1:look; start c1; settle c1 succeeded";

fn with_look(call: &ToolCall) -> ToolLookup {
    look_up_tool(call)
}

fn without_look(call: &ToolCall) -> ToolLookup {
    match call.name.as_str() {
        "look" => ToolLookup::UnknownTool { message: "no look".to_owned() },
        _ => look_up_tool(call),
    }
}

fn fails_without_look(call: &ToolCall) -> ToolLookup {
    match call.name.as_str() {
        "look" => ToolLookup::UnknownToolFatal { available_tools: vec!["pay".to_owned()] },
        _ => look_up_tool(call),
    }
}

/// Plans a response after a script. Returns its calls with their messages and the number of dropped calls, or the error.
fn plan_after(
    script: &str,
    calls: &[(&str, &str, &str)],
    lookup: fn(&ToolCall) -> ToolLookup,
) -> Result<(Vec<String>, u32), ModelProtocolError> {
    let run = play_script(script);
    let items = calls.iter().map(|(id, tool, arguments)| Arc::new(Item::call(*id, *tool, *arguments)));
    let plan = plan_response(items.collect(), &run.agent().clone(), &run, lookup)?;
    let ids = plan.items.iter().filter_map(|item| match &**item {
        Item::Call(call) => Some(&call.id),
        _ => None,
    });
    assert!(ids.eq(plan.calls.iter().map(|planned| &planned.call)), "a plan is of its items");
    let describe = |planned: &super::PlannedCall| match &planned.disposition {
        CallDisposition::UnknownTool { message } => format!("{}: {message}", planned.call),
        _ => planned.call.to_string(),
    };
    Ok((plan.calls.iter().map(describe).collect(), plan.duplicate_calls))
}

fn reused(call: &str, name: &str) -> ModelProtocolError {
    ModelProtocolError::ReusedCallId { call: call.into(), name: name.to_owned() }
}

#[test]
fn a_repeated_call_is_answered_once() {
    let again = &[("c1", "look", "{}")];
    assert_eq!(plan_after(LOOKED, again, with_look), Ok((vec![], 1)));
    assert_eq!(plan_after("", &[again[0], again[0]], with_look), Ok((vec!["c1".to_owned()], 1)));
    assert_eq!(plan_after("", &[again[0], again[0]], without_look), Ok((vec!["c1: no look".to_owned()], 1)));
}

#[test]
fn a_repeated_call_of_a_missing_tool_gets_the_configured_behaviour() {
    let again = &[("c1", "look", "{}")];
    assert_eq!(plan_after(LOOKED, again, without_look), Ok((vec!["c1~2: no look".to_owned()], 0)));
    let both = &[again[0], again[0], ("c1~2", "look", "{}")];
    let told = vec!["c1~2: no look".to_owned(), "c1~3: no look".to_owned()];
    let third = plan_after(LOOKED, &[("c1~2", "look", "{}"), again[0]], without_look);
    assert_eq!(third, Ok((vec!["c1~2: no look".to_owned(), "c1~3: no look".to_owned()], 0)));
    assert_eq!(plan_after(LOOKED, both, without_look).map(|planned| planned.1), Ok(1), "{told:?}");
    let missing = plan_after(LOOKED, again, fails_without_look);
    assert!(
        matches!(&missing, Err(ModelProtocolError::UnknownTool { name, .. }) if name == "look"),
        "{missing:?}"
    );
    // Other arguments under the id are another call, and that is reported first.
    let other = &[("c1", "look", r#"{"x":1}"#)];
    assert_eq!(plan_after(LOOKED, other, without_look), Err(reused("c1", "look")));
    assert_eq!(plan_after(LOOKED, other, fails_without_look), Err(reused("c1", "look")));
}

#[test]
fn another_agents_call_is_another_call() {
    let handed = "answer c1:look h1:to_billing; start c1; settle c1 succeeded; handoff h1 billing";
    assert_eq!(plan_after(handed, &[("c1", "look", "{}")], with_look), Err(reused("c1", "look")));
    let told = plan_after(handed, &[("c1", "look", "{}")], without_look);
    assert_eq!(told, Ok((vec!["c1~2: no look".to_owned()], 0)));
}

#[test]
fn a_handoff_does_not_answer_for_the_next_one() {
    let there_and_back = "answer h1:to_billing; handoff h1 billing; answer h2:to_desk; handoff h2 desk";
    let again = plan_after(there_and_back, &[("h1", "to_billing", "{}")], with_look);
    assert_eq!(again, Err(reused("h1", "to_billing")));
    // The agent that took over has no such handoff.
    let lookup = |call: &ToolCall| ToolLookup::UnknownTool { message: format!("no {}", call.name) };
    let there = plan_after("answer h1:to_billing; handoff h1 billing", &[("h1", "to_billing", "{}")], lookup);
    assert_eq!(there, Ok((vec!["h1~2: no to_billing".to_owned()], 0)));
}
