//! Calls go through the same pipeline as everywhere, and each is made once.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use windlass::guardrail::{ToolInputGuardrail, ToolOutputGuardrail, ToolVerdict};
use windlass::prelude::*;
use windlass::{Effect, How, MemoryStore, OnFailure};
use windlass_realtime::testing::{Fault, Moment, Reply};
use windlass_realtime::{CloseReason, LiveError, LiveEvent, Realtime, ToolMode};

use crate::support::*;

fn desk(tools: impl windlass::IntoTools<()>) -> Agent {
    Agent::new("desk").tools(tools)
}

#[tokio::test(start_paused = true)]
async fn a_call_runs_and_its_result_is_spoken() {
    let runs = Arc::default();
    let server = server([Reply::call("c1", "look", "{}")]);
    let (session, mut events) = connected(desk(counted("look", &runs)), &server).await;
    session.say("Look").await.expect("is there");
    turn(&mut events).await;
    let seen = turn(&mut events).await;
    let order: Vec<String> = named(&seen)
        .into_iter()
        .filter(|name| name.starts_with("Call") || name.starts_with("Turn"))
        .collect();
    assert_eq!(order, ["CallStarted", "CallSettled", "TurnStarted", "TurnEnded"]);
    assert_eq!(output_of(&server, "c1"), ["run 1"]);
    assert_eq!(server.said(Some("response.create")).len(), 2);
    let history = session.history().await.expect("is there");
    assert_eq!(history.items().last().map(|item| item.text()), Some("The result is run 1".to_owned()));
    one_at_a_time(&server);
}

#[tokio::test(start_paused = true)]
async fn several_outputs_become_one_answer() {
    let runs = Arc::default();
    let replies = [Reply::call("a", "look", "{}").and_call("b", "look", "{}").and_call("c", "look", "{}")];
    let server = server(replies);
    let (session, mut events) = connected(desk(counted("look", &runs)), &server).await;
    session.say("Look").await.expect("is there");
    turn(&mut events).await;
    turn(&mut events).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(server.said(Some("response.create")).len(), 2);
    let outputs: Vec<_> = ["a", "b", "c"].iter().flat_map(|call| output_of(&server, call)).collect();
    assert_eq!(outputs.len(), 3);
    // Outputs stand in the model's order.
    let created: Vec<_> = server
        .said(Some("conversation.item.create"))
        .iter()
        .filter_map(|event| event["item"]["call_id"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(created, ["a", "b", "c"]);
    assert_eq!(ran(&runs), 3);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_call_runs_once_and_another_under_its_id_not_at_all() {
    let runs = Arc::default();
    let server = server([
        Reply::call("c1", "look", "{}"),
        Reply::call("c1", "look", "{}"),
        Reply::call("c1", "look", "{\"other\":1}"),
    ]);
    let (session, mut events) = connected(desk(counted("look", &runs)), &server).await;
    session.say("Look").await.expect("is there");
    // The first answer, then the one to its result, which repeats the call.
    turn(&mut events).await;
    turn(&mut events).await;
    session.say("Again").await.expect("is there");
    let seen = until(&mut events, |event| matches!(event, LiveEvent::Error(_))).await;
    let taken = LiveError::CallIdTaken { call: "c1".into() };
    assert_eq!(seen.last(), Some(&LiveEvent::Error(taken)));
    assert_eq!((ran(&runs), output_of(&server, "c1").len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn arguments_missing_tools_failures_and_timeouts_are_told_to_the_model() {
    let ended = Arc::default();
    let runs = Arc::default();
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let fails = Tool::dynamic("fails", "Fails.", schema.clone(), |_, _| async {
        Err::<String, _>(ToolError::tell("no luck"))
    });
    let panics = Tool::dynamic("panics", "Panics.", schema, |_, _| async {
        if true {
            panic!("oh no");
        }
        Ok::<_, ToolError>(String::new())
    });
    let late =
        slow("late", Duration::from_secs(60), &ended).timeout(Duration::from_secs(1)).effect(Effect::Pure);
    let reply = Reply::call("a", "nothing", "{}")
        .and_call("b", "look", "not json")
        .and_call("c", "fails", "{}")
        .and_call("d", "panics", "{}")
        .and_call("e", "late", "{}")
        .and_call("f", "look", "{}");
    let server = server([reply]);
    let (session, mut events) = connected(desk((fails, panics, late, counted("look", &runs))), &server).await;
    session.say("Go").await.expect("is there");
    turn(&mut events).await;
    turn(&mut events).await;
    let told: Vec<String> =
        ["a", "b", "c", "d", "e", "f"].iter().flat_map(|call| output_of(&server, call)).collect();
    assert_eq!(told.len(), 6, "{told:?}");
    assert!(told[0].contains("not found"), "{told:?}");
    assert!(told[1].contains("JSON") || told[1].contains("arguments"), "{told:?}");
    assert!(told[2].contains("no luck"), "{told:?}");
    assert_eq!(told[5], "run 1");
    assert_eq!(ran(&ended), 0);
}

#[tokio::test(start_paused = true)]
async fn approvals_are_asked_given_refused_and_stand() {
    let runs = Arc::default();
    let server = server([
        Reply::call("a", "gated", "{}").and_call("b", "free", "{}"),
        Reply::say("Waiting."),
        Reply::say("Thank you."),
        Reply::call("c", "gated", "{}"),
        Reply::say("Fine."),
        Reply::call("d", "gated", "{}"),
    ]);
    let agent = desk((counted("gated", &runs).approve_always(), counted("free", &runs)));
    let store = Arc::new(MemoryStore::default());
    let realtime = Realtime::new(agent, server.model()).store(store.clone()).session_id("talk");
    let (session, mut events) = enter(realtime).await;
    session.say("Go").await.expect("is there");
    let seen = until(&mut events, |event| matches!(event, LiveEvent::CallHeld { .. })).await;
    assert!(count(&seen, "CallStarted") <= 1, "{:?}", named(&seen));
    // The sibling was not held up.
    turn(&mut events).await;
    assert_eq!((output_of(&server, "b").len(), output_of(&server, "a").len()), (1, 0));
    // Nobody else's call can be decided about.
    assert!(session.approve("nobody").await.expect("is there").is_err());
    assert_eq!(session.pending().await.expect("is there").len(), 1);
    session.reject("a", Some("not today".to_owned())).await.expect("is there").expect("waits");
    turn(&mut events).await;
    assert_eq!(output_of(&server, "a"), ["not today"]);
    assert_eq!(ran(&runs), 1);
    session.say("Again").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::CallHeld { .. })).await;
    session.approve_always("c").await.expect("is there").expect("waits");
    until(&mut events, |event| matches!(event, LiveEvent::CallSettled { how: How::Succeeded, .. })).await;
    turn(&mut events).await;
    session.say("And again").await.expect("is there");
    let seen = until(&mut events, |event| matches!(event, LiveEvent::CallSettled { .. })).await;
    assert_eq!(count(&seen, "CallHeld"), 0, "{:?}", named(&seen));
    assert_eq!(ran(&runs), 3);
    // Each answer's calls are a run of their own, in the store, with its own journal.
    let runs = windlass::Store::runs(&*store).await.expect("is there");
    assert_eq!(runs.len(), 3);
    assert!(runs.iter().all(|run| run.run.as_str().starts_with("talk/resp_")), "{runs:?}");
}

#[tokio::test(start_paused = true)]
async fn an_approval_that_nobody_gives_is_refused_in_time() {
    let runs = Arc::default();
    let server = server([Reply::call("a", "gated", "{}")]);
    let agent = desk(counted("gated", &runs).approve_always());
    let realtime = Realtime::new(agent, server.model()).approvals_expire_after(Duration::from_millis(20));
    let (session, mut events) = enter(realtime).await;
    session.say("Go").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::CallSettled { .. })).await;
    assert_eq!(ran(&runs), 0);
    assert_eq!(session.pending().await.expect("is there"), []);
}

#[tokio::test(start_paused = true)]
async fn tool_guardrails_keep_a_call_from_running_and_an_output_from_being_told() {
    let runs = Arc::default();
    let refusing =
        ToolInputGuardrail::new("no", |_| async { Ok(ToolVerdict::Reject("not with me".to_owned())) });
    let hiding =
        ToolOutputGuardrail::new("hide", |_, _| async { Ok(ToolVerdict::Reject("hidden".to_owned())) });
    let tools =
        (counted("kept", &runs).input_guardrail(refusing), counted("told", &runs).output_guardrail(hiding));
    let server = server([Reply::call("a", "kept", "{}").and_call("b", "told", "{}")]);
    let (session, mut events) = connected(desk(tools), &server).await;
    session.say("Go").await.expect("is there");
    turn(&mut events).await;
    turn(&mut events).await;
    assert_eq!(
        (output_of(&server, "a"), output_of(&server, "b")),
        (vec!["not with me".to_owned()], vec!["hidden".to_owned()])
    );
    assert_eq!(ran(&runs), 1);
}

#[tokio::test(start_paused = true)]
async fn identical_idempotent_calls_run_once_in_the_whole_session() {
    let runs = Arc::default();
    let server = server([Reply::call("a", "look", "{}"), Reply::call("b", "look", "{}")]);
    let (session, mut events) =
        connected(desk(counted("look", &runs).effect(Effect::Idempotent)), &server).await;
    session.say("Look").await.expect("is there");
    for _ in 0..3 {
        turn(&mut events).await;
    }
    assert_eq!(
        (output_of(&server, "a"), output_of(&server, "b")),
        (vec!["run 1".to_owned()], vec!["run 1".to_owned()])
    );
    assert_eq!(ran(&runs), 1);
}

#[tokio::test(start_paused = true)]
async fn an_output_that_is_not_taken_is_kept_and_sent_again() {
    let runs = Arc::default();
    let server =
        server([Reply::call("c1", "look", "{}"), Reply::say("Hm."), Reply::call("c1", "look", "{}")]);
    server.fault(Fault::refuse("conversation.item.create", "server_error").after(1));
    let (session, mut events) = connected(desk(counted("look", &runs)), &server).await;
    session.say("Look").await.expect("is there");
    let seen = until(&mut events, |event| matches!(event, LiveEvent::Error(_))).await;
    assert!(matches!(seen.last(), Some(LiveEvent::Error(LiveError::OutputNotSent { .. }))));
    until(&mut events, |event| matches!(event, LiveEvent::TurnEnded { .. })).await;
    assert_eq!(output_of(&server, "c1").len(), 1);
    // The model asks again, under the same id: what is kept is sent, and nothing runs.
    session.say("Well?").await.expect("is there");
    turn(&mut events).await;
    turn(&mut events).await;
    assert_eq!((ran(&runs), output_of(&server, "c1")), (1, vec!["run 1".to_owned(), "run 1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn an_output_that_was_on_its_way_when_the_connection_went_is_sent_again() {
    let runs = Arc::default();
    let server = server([Reply::call("c1", "look", "{}")]);
    server.fault(Fault::vanish(Moment::receiving("conversation.item.create")).after(1));
    let (session, mut events) = connected(desk(counted("look", &runs)), &server).await;
    session.say("Look").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::Reconnected { .. })).await;
    turn(&mut events).await;
    assert_eq!(ran(&runs), 1);
    let history = session.history().await.expect("is there");
    assert_eq!(history.items().last().map(|item| item.text()), Some("The result is run 1".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ends_a_run_ends_the_session() {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let fatal = Tool::dynamic("fatal", "Fails.", schema, |_, _| async {
        Err::<String, _>(ToolError::tell("the end"))
    })
    .on_failure(OnFailure::Fail);
    let server = server([Reply::call("a", "fatal", "{}")]);
    let (session, events) = connected(desk(fatal), &server).await;
    session.say("Go").await.expect("is there");
    assert!(matches!(session.closed().await.reason, CloseReason::CallFailed(_)));
    let seen = rest(events).await;
    assert_eq!(count(&seen, "Error"), 1, "{:?}", named(&seen));
}

#[tokio::test(start_paused = true)]
async fn in_the_background_the_conversation_goes_on_and_in_line_it_waits() {
    for (mode, answers_meanwhile) in [(ToolMode::Background, 1), (ToolMode::InLine, 0)] {
        let ended: Arc<AtomicU32> = Arc::default();
        let server = server([Reply::call("c1", "slow", "{}")]);
        let agent = desk(slow("slow", Duration::from_secs(60), &ended));
        let (session, mut events) = enter(Realtime::new(agent, server.model()).tools(mode)).await;
        session.say("Go").await.expect("is there");
        until(&mut events, |event| matches!(event, LiveEvent::CallStarted { .. })).await;
        session.say("Are you there?").await.expect("is there");
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(server.said(Some("response.create")).len(), 1 + answers_meanwhile, "{mode:?}");
        until(&mut events, |event| matches!(event, LiveEvent::CallSettled { .. })).await;
        turn(&mut events).await;
        assert_eq!(output_of(&server, "c1"), ["done"]);
        one_at_a_time(&server);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_an_answer_that_was_cut_off_do_not_run() {
    let runs = Arc::default();
    let server = server([Reply::say("Let me see, that will take me a while to explain.")
        .and_call("c1", "look", "{}")
        .paced(1)]);
    let (session, mut events) = connected(desk(counted("look", &runs)), &server).await;
    session.say("Go").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::Audio(_))).await;
    session.interrupt().await.expect("is there");
    turn(&mut events).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(ran(&runs), 0);
}

#[tokio::test(start_paused = true)]
async fn several_approvals_are_answered_in_any_order_while_others_run() {
    let (runs, ended) = (Arc::default(), Arc::default());
    let server =
        server([Reply::call("a", "slow", "{}").and_call("b", "gated", "{}").and_call("c", "gated", "{}")]);
    let tools = (
        slow("slow", Duration::from_secs(20), &ended).approve_always(),
        counted("gated", &runs).approve_always(),
    );
    let (session, mut events) = connected(desk(tools), &server).await;
    session.say("Go").await.expect("is there");
    for _ in 0..3 {
        until(&mut events, |event| matches!(event, LiveEvent::CallHeld { .. })).await;
    }
    assert_eq!(session.pending().await.expect("is there").len(), 3);
    session.approve("a").await.expect("is there").expect("waits");
    until(&mut events, |event| matches!(event, LiveEvent::CallStarted { .. })).await;
    // The run is busy with the first, and the others can be decided about all the same, once each.
    session.reject("c", Some("no".to_owned())).await.expect("is there").expect("waits");
    assert!(session.approve("c").await.expect("is there").is_err());
    session.approve("b").await.expect("is there").expect("waits");
    assert_eq!(session.pending().await.expect("is there"), []);
    until(&mut events, |event| matches!(event, LiveEvent::TurnEnded { .. })).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((ran(&ended), ran(&runs)), (1, 1));
    assert_eq!(
        (output_of(&server, "b"), output_of(&server, "c")),
        (vec!["run 1".to_owned()], vec!["no".to_owned()])
    );
}
