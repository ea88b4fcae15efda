//! The computer tool in runs: its safety checks, its limits and its outputs.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/paper.rs"]
mod paper;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use paper::{
    PIXEL, RecordingComputer, agent_with_tool, call_with_safety_check, click_action, computer_call,
    image_count, output_of,
};
use serde_json::json;
use windlass::core::{
    item::{ContentPart, OutputContent},
    journal::JournalEntry,
    plan::CallDisposition,
    tool::ToolEffect,
};
use windlass::model::ScriptedResponse;
use windlass::store::{MemoryStore, Store};
use windlass_computer::{
    ActionVerdict, ComputerAction, ComputerTool, SafetyCheckDecision, ScreenRecording,
    keep_recent_screenshots,
};

#[tokio::test]
async fn actions_happen_in_order_and_a_picture_follows() {
    let paper = RecordingComputer::default();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone()));
    let actions = json!([
        click_action(10, 20), { "type": "type", "text": "hello" }, { "type": "keypress", "keys": ["CTRL", "s"] },
        { "type": "drag", "path": [{ "x": 1, "y": 1 }, { "x": 2, "y": 2 }] },
        { "type": "scroll", "x": 1, "y": 1, "scroll_x": 0, "scroll_y": 50 },
    ]);
    let anthropic =
        ScriptedResponse::call("c2", "computer", json!({ "action": "double_click", "coordinate": [3, 4] }));
    let (agent_with_tool, model) =
        agent_with_tool(&tool, [computer_call("c1", actions), anthropic, ScriptedResponse::text("done")]);
    let outcome = agent_with_tool.run("go").await.expect("the run ends");
    assert_eq!(
        paper.operations(),
        ["click (10, 20) 1", "type hello", "keys Control+s", "drag 2", "scroll 0 50", "click (3, 4) 2"]
    );
    assert_eq!(image_count(&model.requests()[2].input), 2, "one picture for each call");
    assert!(output_of(&outcome, "c1").text().contains("a note"));
}

#[tokio::test]
async fn looking_is_pure_and_acting_is_once() {
    let tool = ComputerTool::with_computer(Arc::new(RecordingComputer::default()));
    let look = json!([{ "type": "screenshot" }, { "type": "wait", "ms": 1 }]);
    let both = json!([{ "type": "screenshot" }, click_action(1, 1)]);
    let (agent_with_tool, _) = agent_with_tool(
        &tool,
        [computer_call("c1", look), computer_call("c2", both), ScriptedResponse::text("done")],
    );
    let outcome = agent_with_tool.run("go").await.expect("the run ends");
    let planned = outcome.record().journal().iter().filter_map(|record| match &record.entry {
        JournalEntry::ModelResponded(answered) => answered.calls.first().map(|call| call.disposition.clone()),
        _ => None,
    });
    let effects: Vec<_> = planned
        .filter_map(|work| match work {
            CallDisposition::Execute { effect, .. } => Some(effect),
            _ => None,
        })
        .collect();
    assert_eq!(effects, [ToolEffect::Pure, ToolEffect::Once]);
}

#[tokio::test]
async fn what_is_outside_the_screen_or_over_the_limit_does_not_happen() {
    let paper = RecordingComputer::default();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone())).max_actions(2);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let replies = [
        computer_call("c1", json!([click_action(1, 1), click_action(100, 1)])),
        computer_call("c2", json!([click_action(1, 1)])),
        computer_call("c3", json!([click_action(2, 2), click_action(3, 3)])),
        computer_call("c4", json!([{ "type": "screenshot" }])),
        computer_call("c5", json!([click_action(4, 4)])),
        ScriptedResponse::text("done"),
    ];
    let (agent_with_tool, _) = agent_with_tool(&tool, replies);
    let outcome = agent_with_tool.run("go").store(store).await.expect("the run ends");
    assert_eq!(paper.operations(), ["click (1, 1) 1", "click (4, 4) 1"]);
    let outside = output_of(&outcome, "c1").text().into_owned();
    assert!(outside.contains("`actions[1]`") && outside.contains("100 by 50"), "{outside}");
    let over = output_of(&outcome, "c3").text().into_owned();
    assert!(over.contains("may take 2 actions and has taken 1"), "{over}");
}

#[tokio::test]
async fn a_run_acts_no_faster_than_it_may() {
    let paper = RecordingComputer::default();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone())).max_actions_per_minute(2);
    let two = json!([click_action(1, 1), click_action(2, 2)]);
    let look = json!([{ "type": "screenshot" }]);
    let replies = [
        computer_call("c1", two),
        computer_call("c2", json!([click_action(3, 3)])),
        computer_call("c3", look),
        ScriptedResponse::text("done"),
    ];
    let (agent_with_tool, _) = agent_with_tool(&tool, replies);
    let outcome = agent_with_tool.run("go").await.expect("the run ends");
    assert_eq!(paper.operations().len(), 2);
    let fast = output_of(&outcome, "c2").text().into_owned();
    assert!(fast.contains("2 actions in a minute") && fast.contains("Wait"), "{fast}");
    assert!(matches!(output_of(&outcome, "c3"), OutputContent::Parts(_)), "looking does not count");
}

#[tokio::test]
async fn the_application_sees_every_action_before_it_happens() {
    let paper = RecordingComputer::default();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (told, drawn) = (seen.clone(), paper.clone());
    let tool = ComputerTool::with_computer(Arc::new(paper.clone())).review_actions(move |proposed| {
        let so_far = drawn.operations().len();
        told.lock().expect("no panic").push(format!(
            "{} {}/{} after {so_far}, {} taken, {} in a minute",
            proposed.action,
            proposed.index,
            proposed.call_len,
            proposed.actions_taken,
            proposed.actions_last_minute
        ));
        async move {
            match proposed.action {
                ComputerAction::TypeText { text } if text == "secret" => {
                    ActionVerdict::Refuse("no secrets".to_owned())
                }
                ComputerAction::TypeText { text } if text == "panic" => panic!("the check fails"),
                _ => ActionVerdict::Allow,
            }
        }
    });
    let replies = [
        computer_call("c1", json!([click_action(1, 2), { "type": "screenshot" }])),
        computer_call("c2", json!([click_action(3, 4), { "type": "type", "text": "secret" }])),
        computer_call("c3", json!([{ "type": "type", "text": "panic" }])),
        ScriptedResponse::text("done"),
    ];
    let (agent_with_tool, _) = agent_with_tool(&tool, replies);
    let outcome = agent_with_tool.run("go").await.expect("the run ends");
    assert_eq!(paper.operations(), ["click (1, 2) 1"], "one refusal withholds the whole call");
    assert_eq!(
        *seen.lock().expect("no panic"),
        [
            "click at (1, 2) 0/2 after 0, 0 taken, 0 in a minute",
            "screenshot 1/2 after 0, 0 taken, 0 in a minute",
            "click at (3, 4) 0/2 after 1, 1 taken, 1 in a minute",
            "type 6 characters 1/2 after 1, 1 taken, 1 in a minute",
            "type 5 characters 0/1 after 1, 1 taken, 1 in a minute",
        ]
    );
    assert!(output_of(&outcome, "c2").text().contains("no secrets"));
}

#[tokio::test]
async fn safety_checks_need_the_application_or_a_person() {
    // Nobody can acknowledge the check: the run pauses, and nothing is executed.
    let paper = RecordingComputer::default();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone()));
    let (first, model) =
        agent_with_tool(&tool, [call_with_safety_check("c1"), ScriptedResponse::text("done")]);
    let mut paused = first.run("go").await.expect("the run pauses").into_paused().expect("it waits");
    assert!(paper.operations().is_empty());
    paused.approve("c1").expect("a person approves");
    let outcome = first.resume(paused).await.expect("the run ends");
    assert_eq!(paper.operations(), ["click (1, 2) 1"]);
    let OutputContent::Parts(parts) = output_of(&outcome, "c1") else { panic!("parts") };
    let acknowledged = parts.iter().find_map(|part| match part {
        ContentPart::Unknown(carried) => Some((carried.kind.as_str(), carried.raw[0]["id"].clone())),
        _ => None,
    });
    assert_eq!(acknowledged, Some(("acknowledged_safety_checks", json!("sc1"))));
    assert_eq!(model.requests().len(), 2);

    // A person rejects the call.
    let (second, _) = agent_with_tool(&tool, [call_with_safety_check("c1"), ScriptedResponse::text("done")]);
    let mut paused = second.run("go").await.expect("the run pauses").into_paused().expect("it waits");
    paused.reject("c1").expect("a person rejects");
    second.resume(paused).await.expect("the run ends");
    assert_eq!(paper.operations().len(), 1);

    // The application acknowledges the check, or refuses it.
    for (acknowledges, clicks) in [(true, 2), (false, 2)] {
        let tool = tool.clone().on_safety_check(move |check| async move {
            assert_eq!(check.code.as_deref(), Some("malicious_instructions"));
            match acknowledges {
                true => SafetyCheckDecision::Acknowledged,
                false => SafetyCheckDecision::Refused("too risky".to_owned()),
            }
        });
        let (agent_with_tool, _) =
            agent_with_tool(&tool, [call_with_safety_check("c1"), ScriptedResponse::text("done")]);
        let outcome = agent_with_tool.run("go").await.expect("the run ends");
        assert_eq!(paper.operations().len(), clicks);
        assert_eq!(output_of(&outcome, "c1").text().contains("too risky"), !acknowledges);
    }
}

#[tokio::test]
async fn a_decision_for_good_does_not_cover_the_safety_checks_of_later_calls() {
    let paper = RecordingComputer::default();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone())).approve_if(|_| true);
    let plain = |id: &str| computer_call(id, json!([click_action(1, 1)]));
    let (agent_with_tool, _) = agent_with_tool(
        &tool,
        [
            plain("c1"),
            plain("c2"),
            call_with_safety_check("c3"),
            call_with_safety_check("c4"),
            ScriptedResponse::text("done"),
        ],
    );
    let mut paused =
        agent_with_tool.run("go").await.expect("the run pauses").into_paused().expect("it waits");
    paused.approve_always("c1").expect("a person approves for good");
    let mut paused =
        agent_with_tool.resume(paused).await.expect("the run pauses").into_paused().expect("it waits");
    assert_eq!(paper.operations().len(), 2, "what has no warning is covered");
    assert_eq!(paused.pending_calls()[0].call().as_str(), "c3");
    paused.approve_always("c3").expect("what else the tool asks about may still be approved for good");
    let mut paused =
        agent_with_tool.resume(paused).await.expect("the run pauses").into_paused().expect("it waits");
    assert_eq!(paper.operations().len(), 3, "the next warning is asked about again");
    paused.reject("c4").expect("a person rejects");
    agent_with_tool.resume(paused).await.expect("the run ends");
    assert_eq!(paper.operations().len(), 3);
}

#[tokio::test]
async fn a_person_decides_where_the_rule_says_so() {
    let paper = RecordingComputer::default();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone()))
        .approve_if(|actions| actions.iter().any(|action| matches!(action, ComputerAction::TypeText { .. })));
    let typing = json!([{ "type": "type", "text": "hello" }]);
    let (agent_with_tool, _) = agent_with_tool(
        &tool,
        [
            computer_call("c1", json!([click_action(1, 1)])),
            computer_call("c2", typing),
            ScriptedResponse::text("done"),
        ],
    );
    let mut paused =
        agent_with_tool.run("go").await.expect("the run pauses").into_paused().expect("it waits");
    assert_eq!(paper.operations(), ["click (1, 1) 1"]);
    paused.approve("c2").expect("a person approves");
    agent_with_tool.resume(paused).await.expect("the run ends");
    assert_eq!(paper.operations().len(), 2);
}

#[tokio::test]
async fn a_failure_says_how_far_it_came_and_shows_the_screen() {
    let paper = RecordingComputer::default();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone()));
    let actions = json!([click_action(1, 1), { "type": "type", "text": "fail" }, click_action(2, 2)]);
    let (agent_with_tool, model) =
        agent_with_tool(&tool, [computer_call("c1", actions), ScriptedResponse::text("done")]);
    let outcome = agent_with_tool.run("go").await.expect("the run ends");
    assert_eq!(paper.operations(), ["click (1, 1) 1"]);
    let text = output_of(&outcome, "c1").text().into_owned();
    assert!(text.contains("`actions[1]` (type) failed: the keyboard is stuck; the 1 before it"), "{text}");
    assert_eq!(image_count(&model.requests()[1].input), 1);
}

#[tokio::test]
async fn what_was_to_follow_an_action_that_failed_does_not_happen() {
    let one = |action: &serde_json::Value| json!({ "actions": [action] });
    for first in [json!({ "type": "type", "text": "fail" }), click_action(500, 1)] {
        let paper = RecordingComputer::default();
        let tool = ComputerTool::with_computer(Arc::new(paper.clone()));
        let turn = ScriptedResponse::call("c1", "computer", one(&first))
            .and_call("c2", "computer", one(&click_action(1, 1)))
            .and_call("c3", "computer", one(&json!({ "type": "screenshot" })));
        let (agent_with_tool, _) = agent_with_tool(
            &tool,
            [turn, computer_call("c4", json!([click_action(2, 2)])), ScriptedResponse::text("done")],
        );
        let outcome = agent_with_tool.run("go").await.expect("the run ends");
        assert_eq!(paper.operations(), ["click (2, 2) 1"], "the next turn is a new plan");
        assert!(output_of(&outcome, "c2").text().contains("an earlier action"), "{first}");
        assert!(matches!(output_of(&outcome, "c3"), OutputContent::Parts(_)), "looking is not held back");
    }
}

#[tokio::test]
async fn what_was_to_follow_an_action_that_a_person_rejected_does_not_happen() {
    let paper = RecordingComputer::default();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone()))
        .approve_if(|actions| actions.iter().any(|action| matches!(action, ComputerAction::TypeText { .. })));
    let one = |action: serde_json::Value| json!({ "actions": [action] });
    let turn = ScriptedResponse::call("c1", "computer", one(click_action(1, 1)))
        .and_call("c2", "computer", one(json!({ "type": "type", "text": "all of it" })))
        .and_call("c3", "computer", one(json!({ "type": "keypress", "keys": ["ENTER"] })))
        // A call that can no longer run does not wait for approval.
        .and_call("c4", "computer", one(json!({ "type": "type", "text": "yes" })));
    let (agent_with_tool, _) = agent_with_tool(&tool, [turn, ScriptedResponse::text("done")]);
    let mut paused =
        agent_with_tool.run("go").await.expect("the run pauses").into_paused().expect("it waits");
    assert_eq!(paused.pending_calls().len(), 1);
    paused.reject("c2").expect("a person rejects");
    let outcome = agent_with_tool.resume(paused).await.expect("the run ends");
    assert_eq!(outcome.output_text().expect("the run finished"), "done");
    assert_eq!(paper.operations(), ["click (1, 1) 1"]);
    for call in ["c3", "c4"] {
        assert!(output_of(&outcome, call).text().contains("an earlier action"), "{call}");
    }
}

#[tokio::test]
async fn an_action_that_does_not_end_is_given_up() {
    let paper = RecordingComputer { hangs: true, ..RecordingComputer::default() };
    let tool = ComputerTool::with_computer(Arc::new(paper.clone())).action_timeout(Duration::from_millis(50));
    let look = json!([{ "type": "screenshot" }]);
    let (agent_with_tool, model) = agent_with_tool(
        &tool,
        [
            computer_call("c1", look),
            computer_call("c2", json!([click_action(1, 1)])),
            ScriptedResponse::text("done"),
        ],
    );
    let outcome = agent_with_tool.run("go").await.expect("the run ends");
    assert!(output_of(&outcome, "c2").text().contains("did not answer within"));
    assert_eq!(image_count(&model.requests()[2].input), 2, "the last good picture is shown again");
}

#[tokio::test]
async fn pictures_are_kept_once_and_the_model_sees_the_newest() {
    let tool = ComputerTool::with_computer(Arc::new(RecordingComputer::default()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let look = |id: &str| computer_call(id, json!([{ "type": "screenshot" }]));
    let (agent_with_tool, model) = agent_with_tool(
        &tool,
        [look("c1"), look("c2"), look("c3"), look("c4"), ScriptedResponse::text("done")],
    );
    let run = agent_with_tool.run("go").store(store.clone()).input_filter(keep_recent_screenshots(2));
    let outcome = run.await.expect("the run ends");
    let shown: Vec<_> = model.requests().iter().map(|request| image_count(&request.input)).collect();
    assert_eq!(
        shown,
        [0, 1, 2, 3, 2],
        "older ones are dropped in blocks, so that the prompt's beginning stays"
    );
    assert!(!outcome.record().to_text().contains(PIXEL), "the journal names pictures");
    let film = ScreenRecording::from_journal(outcome.record().journal(), Some(&*store))
        .await
        .expect("the store answers");
    assert_eq!(film.frames.len(), 4, "the journal keeps them all");
    assert!(film.frames.iter().all(|frame| frame.screenshot.is_some()));
    let page = film.to_html("A <film>");
    assert_eq!(page.matches("<img").count(), 4);
    assert!(page.contains("A &lt;film&gt;") && page.contains("screenshot"));
}

/// The default limit of turns is for conversations; a run on a screen takes dozens of them.
#[tokio::test]
async fn a_run_on_a_screen_may_take_more_turns_than_others() {
    let tool = || ComputerTool::with_computer(Arc::new(RecordingComputer::default()));
    let (agent, _) = agent_with_tool(
        &tool(),
        (0..40)
            .map(|turn| computer_call(&format!("c{turn}"), json!([click_action(1, turn)])))
            .chain([ScriptedResponse::text("ok")]),
    );
    let outcome = agent.run("go").await.expect("40 turns are within the limit");
    assert_eq!(outcome.output_text().expect("it finishes"), "ok");
    let (agent, _) = agent_with_tool(
        &tool(),
        (0..40).map(|turn| computer_call(&format!("c{turn}"), json!([click_action(1, turn)]))),
    );
    let error = agent.run("go").max_turns(3).await.expect_err("a limit that is set counts");
    assert!(error.to_string().contains('3'), "{error}");
}
