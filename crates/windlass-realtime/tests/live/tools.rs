//! Tool calls of a realtime session use the same pipeline as those of every run, and each is executed once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail, ToolOutputGuardrail};
use windlass::prelude::*;
use windlass::{core::journal::CallStatus, core::tool::ToolEffect, store::MemoryStore, tool::OnFailure};
use windlass_realtime::testing::{FaultTrigger, LoopbackReply, LoopbackServer, WireFault};
use windlass_realtime::{
    CloseReason, RealtimeError, RealtimeEvent, RealtimeItemKind, RealtimeSessionBuilder, ToolCallMode,
};

use crate::support::*;

fn desk_agent(tools: impl windlass::tool::IntoTools<()>) -> Agent {
    Agent::new("desk").tools(tools)
}

#[tokio::test(start_paused = true)]
async fn a_call_runs_and_its_result_is_spoken() {
    let runs = Arc::default();
    let server = loopback_server([LoopbackReply::call("c1", "look", "{}")]);
    let (session, mut events) = connect_agent(desk_agent(counting_tool("look", &runs)), &server).await;
    session.send_text("Look").await.expect("is there");
    turn_events(&mut events).await;
    let seen = turn_events(&mut events).await;
    let order: Vec<String> = event_names(&seen)
        .into_iter()
        .filter(|name| name.starts_with("Call") || name.starts_with("Turn"))
        .collect();
    assert_eq!(order, ["CallStarted", "CallSettled", "TurnStarted", "TurnEnded"]);
    assert_eq!(sent_outputs(&server, "c1"), ["run 1"]);
    assert_eq!(server.client_events(Some("response.create")).len(), 2);
    let history = session.history().await.expect("is there");
    assert_eq!(history.items().last().map(|item| item.text()), Some("The result is run 1".to_owned()));
    assert_one_response_at_a_time(&server);
}

#[tokio::test(start_paused = true)]
async fn several_outputs_become_one_answer() {
    let runs = Arc::default();
    let replies =
        [LoopbackReply::call("a", "look", "{}").and_call("b", "look", "{}").and_call("c", "look", "{}")];
    let server = loopback_server(replies);
    let (session, mut events) = connect_agent(desk_agent(counting_tool("look", &runs)), &server).await;
    session.send_text("Look").await.expect("is there");
    turn_events(&mut events).await;
    turn_events(&mut events).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(server.client_events(Some("response.create")).len(), 2);
    let outputs: Vec<_> = ["a", "b", "c"].iter().flat_map(|call| sent_outputs(&server, call)).collect();
    assert_eq!(outputs.len(), 3);
    // The outputs are in the model's order.
    let created: Vec<_> = server
        .client_events(Some("conversation.item.create"))
        .iter()
        .filter_map(|event| event["item"]["call_id"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(created, ["a", "b", "c"]);
    assert_eq!(run_count(&runs), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_id_belongs_to_its_answer_and_in_it_to_one_call() {
    let runs = Arc::default();
    let server = loopback_server([
        LoopbackReply::call("c1", "look", "{}"),
        LoopbackReply::call("c1", "look", "{}"),
        LoopbackReply::call("c1", "look", "{}").and_call("c1", "look", "{\"other\":1}"),
    ]);
    let (session, mut events) = connect_agent(desk_agent(counting_tool("look", &runs)), &server).await;
    session.send_text("Look").await.expect("is there");
    // Each answer makes a call of its own, though the provider numbers them from one again.
    let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::Error(_))).await;
    let reused = RealtimeError::CallIdReused { call: "c1".into() };
    assert_eq!(seen.last(), Some(&RealtimeEvent::Error(reused)));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(run_count(&runs), 3);
    assert_eq!(sent_outputs(&server, "c1"), ["run 1", "run 2", "run 3"], "the provider knows them by its id");
    let report = session.close().await;
    let calls: Vec<String> = report
        .history
        .items()
        .iter()
        .filter_map(|item| match &item.kind {
            RealtimeItemKind::Output { call, text } => Some(format!("{call}: {text}")),
            _ => None,
        })
        .collect();
    assert_eq!(calls, ["c1: run 1", "c1.2: run 2", "c1.3: run 3"]);
}

#[tokio::test(start_paused = true)]
async fn arguments_missing_tools_failures_and_timeouts_are_told_to_the_model() {
    let ended = Arc::default();
    let runs = Arc::default();
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let fails = Tool::dynamic("fails", "Fails.", schema.clone(), |_, _| async {
        Err::<String, _>(ToolError::visible("no luck"))
    });
    let panics = Tool::dynamic("panics", "Panics.", schema, |_, _| async {
        if true {
            panic!("oh no");
        }
        Ok::<_, ToolError>(String::new())
    });
    let late = slow_tool("late", Duration::from_secs(60), &ended)
        .timeout(Duration::from_secs(1))
        .effect(ToolEffect::Pure);
    let reply = LoopbackReply::call("a", "nothing", "{}")
        .and_call("b", "look", "not json")
        .and_call("c", "fails", "{}")
        .and_call("d", "panics", "{}")
        .and_call("e", "late", "{}")
        .and_call("f", "look", "{}");
    let server = loopback_server([reply]);
    let (session, mut events) =
        connect_agent(desk_agent((fails, panics, late, counting_tool("look", &runs))), &server).await;
    session.send_text("Go").await.expect("is there");
    while sent_outputs(&server, "e").is_empty() {
        turn_events(&mut events).await;
    }
    let told: Vec<String> =
        ["a", "b", "c", "d", "e", "f"].iter().flat_map(|call| sent_outputs(&server, call)).collect();
    assert_eq!(told.len(), 6, "{told:?}");
    assert!(told[0].contains("not found"), "{told:?}");
    assert!(told[1].contains("JSON") || told[1].contains("arguments"), "{told:?}");
    assert!(told[2].contains("no luck"), "{told:?}");
    assert_eq!(told[5], "run 1");
    assert_eq!(run_count(&ended), 0);
}

#[tokio::test(start_paused = true)]
async fn approvals_are_asked_given_refused_and_stand() {
    let runs = Arc::default();
    let server = loopback_server([
        LoopbackReply::call("a", "gated", "{}").and_call("b", "free", "{}"),
        LoopbackReply::message("Waiting."),
        LoopbackReply::message("Thank you."),
        LoopbackReply::call("c", "gated", "{}"),
        LoopbackReply::message("Fine."),
        LoopbackReply::call("d", "gated", "{}"),
    ]);
    let agent = desk_agent((counting_tool("gated", &runs).needs_approval(), counting_tool("free", &runs)));
    let store = Arc::new(MemoryStore::default());
    let realtime =
        RealtimeSessionBuilder::new(agent, server.client_model()).store(store.clone()).session_id("talk");
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Go").await.expect("is there");
    let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::CallHeld { .. })).await;
    assert!(count_events(&seen, "CallStarted") <= 1, "{:?}", event_names(&seen));
    // The sibling call was not blocked.
    turn_events(&mut events).await;
    assert_eq!((sent_outputs(&server, "b").len(), sent_outputs(&server, "a").len()), (1, 0));
    // A call that does not exist cannot be decided.
    assert_decision_rejected(session.approve("nobody").await);
    assert_eq!(session.pending_calls().await.expect("is there").len(), 1);
    session.reject("a", Some("not today".to_owned())).await.expect("waits");
    turn_events(&mut events).await;
    assert_eq!(sent_outputs(&server, "a"), ["not today"]);
    assert_eq!(run_count(&runs), 1);
    session.send_text("Again").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallHeld { .. })).await;
    session.approve_always("c").await.expect("waits");
    events_until(&mut events, |event| {
        matches!(event, RealtimeEvent::CallSettled { status: CallStatus::Succeeded, .. })
    })
    .await;
    turn_events(&mut events).await;
    session.send_text("And again").await.expect("is there");
    let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::CallSettled { .. })).await;
    assert_eq!(count_events(&seen, "CallHeld"), 0, "{:?}", event_names(&seen));
    assert_eq!(run_count(&runs), 3);
    // The calls of each response are executed by their own run in the store, with its own journal.
    let runs = windlass::store::Store::list_runs(&*store, &windlass::store::RunQuery::default())
        .await
        .expect("is there");
    assert_eq!(runs.len(), 3);
    assert!(runs.iter().all(|run| run.run.as_str().starts_with("talk/resp_")), "{runs:?}");
}

#[tokio::test(start_paused = true)]
async fn an_approval_that_nobody_gives_is_refused_in_time() {
    let runs = Arc::default();
    let server = loopback_server([LoopbackReply::call("a", "gated", "{}")]);
    let agent = desk_agent(counting_tool("gated", &runs).needs_approval());
    let realtime = RealtimeSessionBuilder::new(agent, server.client_model())
        .approvals_expire_after(Duration::from_millis(20));
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Go").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallSettled { .. })).await;
    assert_eq!(run_count(&runs), 0);
    assert_eq!(session.pending_calls().await.expect("is there"), []);
}

#[tokio::test(start_paused = true)]
async fn tool_guardrails_keep_a_call_from_running_and_an_output_from_being_told() {
    let runs = Arc::default();
    let refusing = ToolInputGuardrail::new("no", |_| async {
        Ok(ToolGuardrailVerdict::RejectCall("not with me".to_owned()))
    });
    let hiding = ToolOutputGuardrail::new("hide", |_, _| async {
        Ok(ToolGuardrailVerdict::RejectCall("hidden".to_owned()))
    });
    let tools = (
        counting_tool("kept", &runs).input_guardrail(refusing),
        counting_tool("told", &runs).output_guardrail(hiding),
    );
    let server = loopback_server([LoopbackReply::call("a", "kept", "{}").and_call("b", "told", "{}")]);
    let (session, mut events) = connect_agent(desk_agent(tools), &server).await;
    session.send_text("Go").await.expect("is there");
    turn_events(&mut events).await;
    turn_events(&mut events).await;
    assert_eq!(
        (sent_outputs(&server, "a"), sent_outputs(&server, "b")),
        (vec!["not with me".to_owned()], vec!["hidden".to_owned()])
    );
    assert_eq!(run_count(&runs), 1);
}

#[tokio::test(start_paused = true)]
async fn identical_idempotent_calls_run_once_in_the_whole_session() {
    let runs = Arc::default();
    let server =
        loopback_server([LoopbackReply::call("a", "look", "{}"), LoopbackReply::call("b", "look", "{}")]);
    let (session, mut events) =
        connect_agent(desk_agent(counting_tool("look", &runs).effect(ToolEffect::Idempotent)), &server).await;
    session.send_text("Look").await.expect("is there");
    for _ in 0..3 {
        turn_events(&mut events).await;
    }
    assert_eq!(
        (sent_outputs(&server, "a"), sent_outputs(&server, "b")),
        (vec!["run 1".to_owned()], vec!["run 1".to_owned()])
    );
    assert_eq!(run_count(&runs), 1);
}

#[tokio::test(start_paused = true)]
async fn an_output_that_is_not_taken_is_kept_and_sent_again() {
    let runs = Arc::default();
    let server = loopback_server([LoopbackReply::call("c1", "look", "{}"), LoopbackReply::message("Hm.")]);
    server.inject_fault(
        WireFault::reject_event("conversation.item.create", "server_error").after_occurrences(1),
    );
    let (session, mut events) = connect_agent(desk_agent(counting_tool("look", &runs)), &server).await;
    session.send_text("Look").await.expect("is there");
    let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::Error(_))).await;
    assert!(matches!(seen.last(), Some(RealtimeEvent::Error(RealtimeError::OutputRejected { .. }))));
    // Nobody asks for it: the session sends the output again, the model speaks it, and nothing runs again.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        (run_count(&runs), sent_outputs(&server, "c1")),
        (1, vec!["run 1".to_owned(), "run 1".to_owned()])
    );
    let report = session.close().await;
    assert_eq!(report.history.items().last().map(|item| item.text()), Some("The result is run 1".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_output_that_is_never_taken_is_sent_a_limited_number_of_times() {
    let runs = Arc::default();
    let server = loopback_server([LoopbackReply::call("c1", "look", "{}")]);
    server.inject_fault(
        WireFault::reject_event("conversation.item.create", "server_error").after_occurrences(1).repeated(),
    );
    let (session, _events) = connect_agent(desk_agent(counting_tool("look", &runs)), &server).await;
    session.send_text("Look").await.expect("is there");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((run_count(&runs), sent_outputs(&server, "c1").len()), (1, 4));
    server.clear_faults();
    session.resend_outputs().await.expect("is there");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!((run_count(&runs), sent_outputs(&server, "c1").len()), (1, 5));
    assert!(!session.is_closed());
}

#[tokio::test(start_paused = true)]
async fn an_output_that_was_on_its_way_when_the_connection_went_is_sent_again() {
    let runs = Arc::default();
    let server = loopback_server([LoopbackReply::call("c1", "look", "{}")]);
    server.inject_fault(
        WireFault::drop_connection(FaultTrigger::on_receive("conversation.item.create")).after_occurrences(1),
    );
    let (session, mut events) = connect_agent(desk_agent(counting_tool("look", &runs)), &server).await;
    session.send_text("Look").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    turn_events(&mut events).await;
    assert_eq!(run_count(&runs), 1);
    let history = session.history().await.expect("is there");
    assert_eq!(history.items().last().map(|item| item.text()), Some("The result is run 1".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ends_a_run_ends_the_session() {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let fatal = Tool::dynamic("fatal", "Fails.", schema, |_, _| async {
        Err::<String, _>(ToolError::visible("the end"))
    })
    .on_failure(OnFailure::FailRun);
    let server = loopback_server([LoopbackReply::call("a", "fatal", "{}")]);
    let (session, events) = connect_agent(desk_agent(fatal), &server).await;
    session.send_text("Go").await.expect("is there");
    assert!(matches!(session.wait_closed().await.reason, CloseReason::CallFailed(_)));
    let seen = remaining_events(events).await;
    assert_eq!(count_events(&seen, "Error"), 1, "{:?}", event_names(&seen));
}

#[tokio::test(start_paused = true)]
async fn in_the_background_the_conversation_goes_on_and_in_line_it_waits() {
    for (mode, answers_meanwhile) in [(ToolCallMode::Background, 1), (ToolCallMode::Blocking, 0)] {
        let ended: Arc<AtomicU32> = Arc::default();
        let server = loopback_server([LoopbackReply::call("c1", "slow", "{}")]);
        let agent = desk_agent(slow_tool("slow", Duration::from_secs(60), &ended));
        let (session, mut events) =
            start_session(RealtimeSessionBuilder::new(agent, server.client_model()).tool_call_mode(mode))
                .await;
        session.send_text("Go").await.expect("is there");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::CallStarted { .. })).await;
        session.send_text("Are you there?").await.expect("is there");
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(server.client_events(Some("response.create")).len(), 1 + answers_meanwhile, "{mode:?}");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::CallSettled { .. })).await;
        turn_events(&mut events).await;
        assert_eq!(sent_outputs(&server, "c1"), ["done"]);
        assert_one_response_at_a_time(&server);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_an_answer_that_was_cut_off_do_not_run() {
    let runs = Arc::default();
    let server =
        loopback_server([LoopbackReply::message("Let me see, that will take me a while to explain.")
            .and_call("c1", "look", "{}")
            .with_speed(1)]);
    let (session, mut events) = connect_agent(desk_agent(counting_tool("look", &runs)), &server).await;
    session.send_text("Go").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Audio(_))).await;
    session.interrupt().await.expect("is there");
    turn_events(&mut events).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(run_count(&runs), 0);
}

#[tokio::test(start_paused = true)]
async fn several_approvals_are_answered_in_any_order_while_others_run() {
    let (runs, ended) = (Arc::default(), Arc::default());
    let server = loopback_server([LoopbackReply::call("a", "slow", "{}")
        .and_call("b", "gated", "{}")
        .and_call("c", "gated", "{}")]);
    let tools = (
        slow_tool("slow", Duration::from_secs(20), &ended).needs_approval(),
        counting_tool("gated", &runs).needs_approval(),
    );
    let (session, mut events) = connect_agent(desk_agent(tools), &server).await;
    session.send_text("Go").await.expect("is there");
    for _ in 0..3 {
        events_until(&mut events, |event| matches!(event, RealtimeEvent::CallHeld { .. })).await;
    }
    assert_eq!(session.pending_calls().await.expect("is there").len(), 3);
    session.approve("a").await.expect("waits");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallStarted { .. })).await;
    // The run is busy with the first call; the others can still be decided, once each.
    session.reject("c", Some("no".to_owned())).await.expect("waits");
    assert_decision_rejected(session.approve("c").await);
    session.approve("b").await.expect("waits");
    assert_eq!(session.pending_calls().await.expect("is there"), []);
    events_until(&mut events, |event| matches!(event, RealtimeEvent::TurnEnded { .. })).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((run_count(&ended), run_count(&runs)), (1, 1));
    assert_eq!(
        (sent_outputs(&server, "b"), sent_outputs(&server, "c")),
        (vec!["run 1".to_owned()], vec!["no".to_owned()])
    );
}

/// A model that answers each output with another call is not asked for ever. An input of the user begins anew.
#[tokio::test(start_paused = true)]
async fn a_model_that_only_calls_is_asked_a_limited_number_of_times() {
    let (runs, count) = (Arc::default(), Arc::new(AtomicU32::new(0)));
    let server = LoopbackServer::with_reply_function(move |_| {
        LoopbackReply::call(&format!("c{}", count.fetch_add(1, Ordering::Relaxed)), "look", "{}")
    });
    let agent = Agent::new("desk").tools(counting_tool("look", &runs));
    let realtime = RealtimeSessionBuilder::new(agent, server.client_model()).max_call_rounds(5);
    let (session, mut events) = start_session(realtime).await;
    let is_limit = |event: &RealtimeEvent| {
        matches!(event, RealtimeEvent::Error(RealtimeError::CallLimitReached { limit: 5, .. }))
    };
    for round in 1..=2 {
        session.send_text("Go").await.expect("is there");
        events_until(&mut events, is_limit).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(run_count(&runs), 5 * round);
        assert_eq!(server.client_events(Some("response.create")).len() as u32, 6 * round);
    }
    assert!(sent_outputs(&server, "c5")[0].contains("not made"), "{:?}", sent_outputs(&server, "c5"));
    let report = session.close().await;
    assert_eq!(report.history.to_items().len(), 2 + 4 * 6, "each call has an output");
}
