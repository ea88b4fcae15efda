//! The tool in runs: what is asked before anything happens, and what is kept.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

#[path = "support/paper.rs"]
mod paper;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use paper::{PIXEL, Paper, agent, call, checked, click, output, pictures};
use serde_json::json;
use windlass::core::{Content, Effect, Entry, OutputContent, Work};
use windlass::model::Reply;
use windlass::store::{MemoryStore, Store};
use windlass_computer::{Acknowledgement, Action, ComputerTool, Film, Judged, recent_screenshots};

#[tokio::test]
async fn actions_happen_in_order_and_a_picture_follows() {
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone()));
    let actions = json!([
        click(10, 20), { "type": "type", "text": "hello" }, { "type": "keypress", "keys": ["CTRL", "s"] },
        { "type": "drag", "path": [{ "x": 1, "y": 1 }, { "x": 2, "y": 2 }] },
        { "type": "scroll", "x": 1, "y": 1, "scroll_x": 0, "scroll_y": 50 },
    ]);
    let anthropic = Reply::call("c2", "computer", json!({ "action": "double_click", "coordinate": [3, 4] }));
    let (agent, model) = agent(&tool, [call("c1", actions), anthropic, Reply::text("done")]);
    let outcome = agent.run("go").await.expect("the run ends");
    assert_eq!(
        paper.lines(),
        ["click (10, 20) 1", "type hello", "keys Control+s", "drag 2", "scroll 0 50", "click (3, 4) 2"]
    );
    assert_eq!(pictures(&model.requests()[2].input), 2, "one picture for each call");
    assert!(output(&outcome, "c1").text().contains("a note"));
}

#[tokio::test]
async fn looking_is_pure_and_acting_is_once() {
    let tool = ComputerTool::given(Arc::new(Paper::default()));
    let look = json!([{ "type": "screenshot" }, { "type": "wait", "ms": 1 }]);
    let both = json!([{ "type": "screenshot" }, click(1, 1)]);
    let (agent, _) = agent(&tool, [call("c1", look), call("c2", both), Reply::text("done")]);
    let outcome = agent.run("go").await.expect("the run ends");
    let planned = outcome.record().journal().iter().filter_map(|record| match &record.entry {
        Entry::Answered(answered) => answered.calls.first().map(|call| call.work.clone()),
        _ => None,
    });
    let effects: Vec<_> = planned
        .filter_map(|work| match work {
            Work::Body { effect, .. } => Some(effect),
            _ => None,
        })
        .collect();
    assert_eq!(effects, [Effect::Pure, Effect::Once]);
}

#[tokio::test]
async fn what_is_outside_the_screen_or_over_the_limit_does_not_happen() {
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone())).limit(2);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let replies = [
        call("c1", json!([click(1, 1), click(100, 1)])),
        call("c2", json!([click(1, 1)])),
        call("c3", json!([click(2, 2), click(3, 3)])),
        call("c4", json!([{ "type": "screenshot" }])),
        call("c5", json!([click(4, 4)])),
        Reply::text("done"),
    ];
    let (agent, _) = agent(&tool, replies);
    let outcome = agent.run("go").store(store).await.expect("the run ends");
    assert_eq!(paper.lines(), ["click (1, 1) 1", "click (4, 4) 1"]);
    let outside = output(&outcome, "c1").text().into_owned();
    assert!(outside.contains("`actions[1]`") && outside.contains("100 by 50"), "{outside}");
    let over = output(&outcome, "c3").text().into_owned();
    assert!(over.contains("may take 2 actions and has taken 1"), "{over}");
}

#[tokio::test]
async fn a_run_acts_no_faster_than_it_may() {
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone())).limit_per_minute(2);
    let two = json!([click(1, 1), click(2, 2)]);
    let look = json!([{ "type": "screenshot" }]);
    let replies = [call("c1", two), call("c2", json!([click(3, 3)])), call("c3", look), Reply::text("done")];
    let (agent, _) = agent(&tool, replies);
    let outcome = agent.run("go").await.expect("the run ends");
    assert_eq!(paper.lines().len(), 2);
    let fast = output(&outcome, "c2").text().into_owned();
    assert!(fast.contains("2 actions in a minute") && fast.contains("Wait"), "{fast}");
    assert!(matches!(output(&outcome, "c3"), OutputContent::Parts(_)), "looking does not count");
}

#[tokio::test]
async fn the_application_sees_every_action_before_it_happens() {
    let paper = Paper::default();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (told, drawn) = (seen.clone(), paper.clone());
    let tool = ComputerTool::given(Arc::new(paper.clone())).judge(move |proposed| {
        let so_far = drawn.lines().len();
        told.lock().expect("no panic").push(format!(
            "{} {}/{} after {so_far}, {} taken, {} in a minute",
            proposed.action, proposed.place, proposed.of, proposed.taken, proposed.last_minute
        ));
        async move {
            match proposed.action {
                Action::Type { text } if text == "secret" => Judged::Refuse("no secrets".to_owned()),
                Action::Type { text } if text == "panic" => panic!("the check fails"),
                _ => Judged::Allow,
            }
        }
    });
    let replies = [
        call("c1", json!([click(1, 2), { "type": "screenshot" }])),
        call("c2", json!([click(3, 4), { "type": "type", "text": "secret" }])),
        call("c3", json!([{ "type": "type", "text": "panic" }])),
        Reply::text("done"),
    ];
    let (agent, _) = agent(&tool, replies);
    let outcome = agent.run("go").await.expect("the run ends");
    assert_eq!(paper.lines(), ["click (1, 2) 1"], "one refusal withholds the whole call");
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
    assert!(output(&outcome, "c2").text().contains("no secrets"));
}

#[tokio::test]
async fn safety_checks_need_the_application_or_a_person() {
    // Nobody is there to say: the run waits, and nothing happens.
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone()));
    let (first, model) = agent(&tool, [checked("c1"), Reply::text("done")]);
    let mut paused = first.run("go").await.expect("the run pauses").paused().expect("it waits");
    assert!(paper.lines().is_empty());
    paused.approve("c1").expect("a person approves");
    let outcome = first.resume(paused).await.expect("the run ends");
    assert_eq!(paper.lines(), ["click (1, 2) 1"]);
    let OutputContent::Parts(parts) = output(&outcome, "c1") else { panic!("parts") };
    let acknowledged = parts.iter().find_map(|part| match part {
        Content::Unknown(carried) => Some((carried.kind.as_str(), carried.raw[0]["id"].clone())),
        _ => None,
    });
    assert_eq!(acknowledged, Some(("acknowledged_safety_checks", json!("sc1"))));
    assert_eq!(model.requests().len(), 2);

    // A person rejects.
    let (second, _) = agent(&tool, [checked("c1"), Reply::text("done")]);
    let mut paused = second.run("go").await.expect("the run pauses").paused().expect("it waits");
    paused.reject("c1").expect("a person rejects");
    second.resume(paused).await.expect("the run ends");
    assert_eq!(paper.lines().len(), 1);

    // The application acknowledges, or refuses.
    for (acknowledges, clicks) in [(true, 2), (false, 2)] {
        let tool = tool.clone().acknowledge(move |check| async move {
            assert_eq!(check.code.as_deref(), Some("malicious_instructions"));
            match acknowledges {
                true => Acknowledgement::Acknowledged,
                false => Acknowledgement::Refused("too risky".to_owned()),
            }
        });
        let (agent, _) = agent(&tool, [checked("c1"), Reply::text("done")]);
        let outcome = agent.run("go").await.expect("the run ends");
        assert_eq!(paper.lines().len(), clicks);
        assert_eq!(output(&outcome, "c1").text().contains("too risky"), !acknowledges);
    }
}

#[tokio::test]
async fn a_decision_for_good_does_not_cover_the_safety_checks_of_later_calls() {
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone())).approve_if(|_| true);
    let plain = |id: &str| call(id, json!([click(1, 1)]));
    let (agent, _) =
        agent(&tool, [plain("c1"), plain("c2"), checked("c3"), checked("c4"), Reply::text("done")]);
    let mut paused = agent.run("go").await.expect("the run pauses").paused().expect("it waits");
    paused.approve_always("c1").expect("a person approves for good");
    let mut paused = agent.resume(paused).await.expect("the run pauses").paused().expect("it waits");
    assert_eq!(paper.lines().len(), 2, "what has no warning is covered");
    assert_eq!(paused.pending()[0].call().as_str(), "c3");
    paused.approve_always("c3").expect("what else the tool asks about may still be approved for good");
    let mut paused = agent.resume(paused).await.expect("the run pauses").paused().expect("it waits");
    assert_eq!(paper.lines().len(), 3, "the next warning is asked about again");
    paused.reject("c4").expect("a person rejects");
    agent.resume(paused).await.expect("the run ends");
    assert_eq!(paper.lines().len(), 3);
}

#[tokio::test]
async fn a_person_decides_where_the_rule_says_so() {
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone()))
        .approve_if(|actions| actions.iter().any(|action| matches!(action, Action::Type { .. })));
    let typing = json!([{ "type": "type", "text": "hello" }]);
    let (agent, _) =
        agent(&tool, [call("c1", json!([click(1, 1)])), call("c2", typing), Reply::text("done")]);
    let mut paused = agent.run("go").await.expect("the run pauses").paused().expect("it waits");
    assert_eq!(paper.lines(), ["click (1, 1) 1"]);
    paused.approve("c2").expect("a person approves");
    agent.resume(paused).await.expect("the run ends");
    assert_eq!(paper.lines().len(), 2);
}

#[tokio::test]
async fn a_failure_says_how_far_it_came_and_shows_the_screen() {
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone()));
    let actions = json!([click(1, 1), { "type": "type", "text": "fail" }, click(2, 2)]);
    let (agent, model) = agent(&tool, [call("c1", actions), Reply::text("done")]);
    let outcome = agent.run("go").await.expect("the run ends");
    assert_eq!(paper.lines(), ["click (1, 1) 1"]);
    let text = output(&outcome, "c1").text().into_owned();
    assert!(text.contains("`actions[1]` (type) failed: the keyboard is stuck; the 1 before it"), "{text}");
    assert_eq!(pictures(&model.requests()[1].input), 1);
}

#[tokio::test]
async fn what_was_to_follow_an_action_that_failed_does_not_happen() {
    let one = |action: &serde_json::Value| json!({ "actions": [action] });
    for first in [json!({ "type": "type", "text": "fail" }), click(500, 1)] {
        let paper = Paper::default();
        let tool = ComputerTool::given(Arc::new(paper.clone()));
        let turn = Reply::call("c1", "computer", one(&first))
            .and_call("c2", "computer", one(&click(1, 1)))
            .and_call("c3", "computer", one(&json!({ "type": "screenshot" })));
        let (agent, _) = agent(&tool, [turn, call("c4", json!([click(2, 2)])), Reply::text("done")]);
        let outcome = agent.run("go").await.expect("the run ends");
        assert_eq!(paper.lines(), ["click (2, 2) 1"], "the next turn is a new plan");
        assert!(output(&outcome, "c2").text().contains("an earlier action"), "{first}");
        assert!(matches!(output(&outcome, "c3"), OutputContent::Parts(_)), "looking is not held back");
    }
}

#[tokio::test]
async fn what_was_to_follow_an_action_that_a_person_rejected_does_not_happen() {
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone()))
        .approve_if(|actions| actions.iter().any(|action| matches!(action, Action::Type { .. })));
    let one = |action: serde_json::Value| json!({ "actions": [action] });
    let turn = Reply::call("c1", "computer", one(click(1, 1)))
        .and_call("c2", "computer", one(json!({ "type": "type", "text": "all of it" })))
        .and_call("c3", "computer", one(json!({ "type": "keypress", "keys": ["ENTER"] })))
        // Nobody is asked about what cannot happen any more.
        .and_call("c4", "computer", one(json!({ "type": "type", "text": "yes" })));
    let (agent, _) = agent(&tool, [turn, Reply::text("done")]);
    let mut paused = agent.run("go").await.expect("the run pauses").paused().expect("it waits");
    assert_eq!(paused.pending().len(), 1);
    paused.reject("c2").expect("a person rejects");
    let outcome = agent.resume(paused).await.expect("the run ends");
    assert_eq!(outcome.text(), "done");
    assert_eq!(paper.lines(), ["click (1, 1) 1"]);
    for call in ["c3", "c4"] {
        assert!(output(&outcome, call).text().contains("an earlier action"), "{call}");
    }
}

#[tokio::test]
async fn an_action_that_does_not_end_is_given_up() {
    let paper = Paper { hangs: true, ..Paper::default() };
    let tool = ComputerTool::given(Arc::new(paper.clone())).within(Duration::from_millis(50));
    let look = json!([{ "type": "screenshot" }]);
    let (agent, model) =
        agent(&tool, [call("c1", look), call("c2", json!([click(1, 1)])), Reply::text("done")]);
    let outcome = agent.run("go").await.expect("the run ends");
    assert!(output(&outcome, "c2").text().contains("did not answer within"));
    assert_eq!(pictures(&model.requests()[2].input), 2, "the last good picture is shown again");
}

#[tokio::test]
async fn pictures_are_kept_once_and_the_model_sees_the_newest() {
    let tool = ComputerTool::given(Arc::new(Paper::default()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let look = |id: &str| call(id, json!([{ "type": "screenshot" }]));
    let (agent, model) = agent(&tool, [look("c1"), look("c2"), look("c3"), look("c4"), Reply::text("done")]);
    let run = agent.run("go").store(store.clone()).input_filter(recent_screenshots(2));
    let outcome = run.await.expect("the run ends");
    let shown: Vec<_> = model.requests().iter().map(|request| pictures(&request.input)).collect();
    assert_eq!(shown, [0, 1, 2, 2, 2]);
    assert!(!outcome.record().to_text().contains(PIXEL), "the journal names pictures");
    let film = Film::of(outcome.record().journal(), Some(&*store)).await.expect("the store answers");
    assert_eq!(film.frames.len(), 4, "the journal keeps them all");
    assert!(film.frames.iter().all(|frame| frame.picture.is_some()));
    let page = film.to_html("A <film>");
    assert_eq!(page.matches("<img").count(), 4);
    assert!(page.contains("A &lt;film&gt;") && page.contains("screenshot"));
}
