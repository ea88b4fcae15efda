//! A session owns its resources and releases all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::testing::{FaultTrigger, LoopbackReply, WireFault};
use windlass_realtime::{
    CloseReason, RealtimeContentPart, RealtimeEvent, RealtimeSessionBuilder, ReconnectPolicy, RespondWhen,
    SessionStartError,
};

use crate::support::*;

fn plain_agent() -> Agent {
    Agent::new("guide").instructions("Be brief.")
}

#[tokio::test(start_paused = true)]
async fn setting_up_does_nothing() {
    let server = loopback_server([]);
    let asked = Arc::new(AtomicU32::new(0));
    let counting = asked.clone();
    let agent = plain_agent().dynamic_instructions(move |_| {
        counting.fetch_add(1, Ordering::Relaxed);
        async { String::new() }
    });
    let realtime = RealtimeSessionBuilder::new(agent, server.client_model()).guardrail_debounce(10);
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(realtime);
    assert_eq!((server.connection_count(), run_count(&asked)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_message_is_answered_with_speech_and_words() {
    let server = loopback_server([LoopbackReply::message("Hello there.")]);
    let (session, mut events) = connect_agent(plain_agent(), &server).await;
    session.send_text("Hi").await.expect("is there");
    let seen = turn_events(&mut events).await;
    assert_eq!(count_events(&seen, "TurnStarted"), 1);
    assert!(count_events(&seen, "Audio") >= 7, "{:?}", event_names(&seen));
    let history = session.history().await.expect("is there");
    let said: Vec<String> = history.items().iter().map(|item| item.text()).collect();
    assert_eq!(said, ["Hi", "Hello there."]);
    let metrics = session.metrics().await.expect("is there");
    assert_eq!((metrics.turns, metrics.usage.total.requests, metrics.dropped_input_chunks), (1, 1, 0));
    assert!(metrics.last_time_to_first_audio.is_some());
    let report = session.close().await;
    assert_eq!(report.reason, CloseReason::Closed);
    assert_eq!(report.close_error, None);
    let first = &server.client_events(None)[0];
    assert_eq!(
        (first["type"].as_str(), first["session"]["instructions"].as_str()),
        (Some("session.update"), Some("Be brief."))
    );
}

#[tokio::test(start_paused = true)]
async fn entry_fails_before_it_connects_where_the_agent_cannot_be_resolved() {
    // 1. instructions that panic; 2. two tools with one name; 3. a handoff to an unknown agent.
    let runs = Arc::default();
    let panics = plain_agent().dynamic_instructions(|_| async { panic!("no instructions today") });
    let twice = plain_agent().tools((counting_tool("a", &runs), counting_tool("a", &runs)));
    let nobody = plain_agent().handoff(windlass::agent::Handoff::to_named("nobody"));
    for agent in [panics, twice, nobody] {
        let server = loopback_server([]);
        let error = RealtimeSessionBuilder::new(agent, server.client_model())
            .connect()
            .await
            .expect_err("cannot begin");
        assert!(matches!(error, SessionStartError::InvalidConfig(_)), "{error}");
        assert_eq!(server.connection_count(), 0);
    }
    let never = plain_agent().dynamic_instructions(|_| std::future::pending());
    let server = loopback_server([]);
    let error =
        RealtimeSessionBuilder::new(never, server.client_model()).connect().await.expect_err("cannot begin");
    assert!(matches!(error, SessionStartError::ResolveTimeout(_)), "{error}");
    assert_eq!(server.connection_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn entry_fails_and_leaves_nothing_where_the_connection_does() {
    let server = loopback_server([]);
    server.refuse_connections(1);
    let error = RealtimeSessionBuilder::new(plain_agent(), server.client_model())
        .connect()
        .await
        .expect_err("nobody is let in");
    assert!(matches!(error, SessionStartError::ConnectFailed(_)), "{error}");
    // The configuration is rejected after the connection was made.
    server.inject_fault(WireFault::reject_event("session.update", "invalid_value"));
    let error = RealtimeSessionBuilder::new(plain_agent(), server.client_model())
        .connect()
        .await
        .expect_err("is refused");
    assert!(
        matches!(&error, SessionStartError::ConfigurationRejected(why) if why.contains("as the test wants it")),
        "{error}"
    );
    // The configuration is never acknowledged.
    server.inject_fault(WireFault::drop_event(FaultTrigger::on_receive("session.update")));
    let error = RealtimeSessionBuilder::new(plain_agent(), server.client_model())
        .connect()
        .await
        .expect_err("is not answered");
    assert!(matches!(error, SessionStartError::ConfigurationRejected(_)), "{error}");
    // The connection is lost before the acknowledgement.
    server.inject_fault(WireFault::drop_connection(FaultTrigger::on_receive("session.update")));
    let error = RealtimeSessionBuilder::new(plain_agent(), server.client_model())
        .connect()
        .await
        .expect_err("is gone");
    assert!(matches!(error, SessionStartError::ConfigurationRejected(_)), "{error}");
    let metrics = tokio::runtime::Handle::current().metrics();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(metrics.num_alive_tasks(), 0, "tasks are left");
}

#[tokio::test(start_paused = true)]
async fn close_wakes_everybody_after_what_is_queued() {
    let server = loopback_server([]);
    let (session, first) = connect_agent(plain_agent(), &server).await;
    let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(remaining_events(session.events()))).collect();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let (role, parts) = (windlass::core::item::Role::User, vec![RealtimeContentPart::text("Hi")]);
    session.send_message(role, parts, RespondWhen::Later).await.expect("is there");
    let history = session.history().await.expect("is there");
    assert_eq!(history.items().len(), 1);
    session.close().await;
    for watcher in waiting {
        let seen = watcher.await.expect("ends");
        assert_eq!(event_names(&seen).last().map(String::as_str), Some("Closed"));
        assert_eq!(count_events(&seen, "HistoryChanged"), 1, "{:?}", event_names(&seen));
    }
    // This subscriber has not read any event until now, and has all of them.
    let seen = remaining_events(first).await;
    assert_eq!(event_names(&seen)[..2], ["Connected", "HistoryChanged"]);
    // A later subscriber finds the stream ended.
    assert_eq!(session.events().next().await, None);
    assert!(session.send_text("late").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn close_is_one_close_however_often_and_from_wherever() {
    let server = loopback_server([]);
    let (session, events) = connect_agent(plain_agent(), &server).await;
    let closers: Vec<_> = (0..8)
        .map(|_| {
            let session = session.clone();
            tokio::spawn(async move { session.close().await })
        })
        .collect();
    // One waiting caller gives up; the others are not affected.
    let impatient = tokio::time::timeout(Duration::ZERO, session.close()).await;
    drop(impatient);
    let report = session.close().await;
    for closer in closers {
        assert!(Arc::ptr_eq(&closer.await.expect("ends"), &report));
    }
    assert!(Arc::ptr_eq(&session.close().await, &report));
    assert_eq!(count_events(&remaining_events(events).await, "Closed"), 1);
    let metrics = tokio::runtime::Handle::current().metrics();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(metrics.num_alive_tasks(), 0, "tasks are left");
}

#[tokio::test(start_paused = true)]
async fn a_tool_can_close_the_session_that_it_runs_in() {
    let server = loopback_server([LoopbackReply::call("c1", "hang_up", "{}")]);
    let handle: Arc<std::sync::OnceLock<windlass_realtime::RealtimeSession>> = Arc::default();
    let inside = handle.clone();
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let hang_up = Tool::dynamic("hang_up", "Hangs up.", schema, move |_, _| {
        let session = inside.get().cloned();
        async move {
            if let Some(session) = session {
                session.close().await;
            }
            Ok::<_, ToolError>("hung up")
        }
    });
    let (session, events) = connect_agent(plain_agent().tools(hang_up), &server).await;
    assert!(handle.set(session.clone()).is_ok());
    session.send_text("Bye").await.expect("is there");
    let report = session.wait_closed().await;
    assert_eq!(report.reason, CloseReason::Closed);
    assert_eq!(report.in_doubt.len(), 1, "{report:?}");
    assert_eq!(sent_outputs(&server, "c1"), Vec::<String>::new());
    assert_eq!(event_names(&remaining_events(events).await).last().map(String::as_str), Some("Closed"));
}

#[tokio::test(start_paused = true)]
async fn calls_under_way_are_settled_within_a_bound_and_send_nothing_late() {
    let ended = Arc::default();
    let server = loopback_server([LoopbackReply::call("c1", "slow", "{}")]);
    let (session, mut events) =
        connect_agent(plain_agent().tools(slow_tool("slow", Duration::from_secs(60), &ended)), &server).await;
    session.send_text("Go").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallStarted { .. })).await;
    let began = tokio::time::Instant::now();
    let report = session.close().await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(report.in_doubt.len(), 1, "{report:?}");
    let seen = remaining_events(events).await;
    assert_eq!(count_events(&seen, "CallSettled"), 1, "{:?}", event_names(&seen));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(run_count(&ended), 0);
    assert_eq!(sent_outputs(&server, "c1"), Vec::<String>::new());
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_closes_the_session() {
    let server = loopback_server([]);
    let (session, events) = connect_agent(plain_agent(), &server).await;
    drop(session);
    assert_eq!(event_names(&remaining_events(events).await).last().map(String::as_str), Some("Closed"));
}

#[tokio::test(start_paused = true)]
async fn a_goodbye_that_nobody_answers_is_not_waited_for_long() {
    let server = loopback_server([]);
    let (session, mut events) = connect_agent(plain_agent(), &server).await;
    server.inject_fault(WireFault::stop_sending(FaultTrigger::on_receive("conversation.item.create")));
    session.send_text("Hi").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::HistoryChanged(_))).await;
    let began = tokio::time::Instant::now();
    session.close().await;
    assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_other_side_is_the_end_of_the_session() {
    // An orderly close ends the session; a permanent loss is reported as an error.
    let server = loopback_server([]);
    let (session, events) = connect_agent(plain_agent(), &server).await;
    server.inject_fault(WireFault::close_connection(
        FaultTrigger::on_receive("conversation.item.create"),
        1000,
    ));
    session.send_text("Hi").await.expect("is there");
    assert_eq!(session.wait_closed().await.reason, CloseReason::ClosedByProvider);
    remaining_events(events).await;
    let fatal = RealtimeSessionBuilder::new(plain_agent(), server.client_model())
        .reconnect_policy(ReconnectPolicy { max_attempts: 0, ..ReconnectPolicy::default() });
    let (session, events) = start_session(fatal).await;
    server.inject_fault(WireFault::drop_connection(FaultTrigger::on_receive("conversation.item.create")));
    session.send_text("Hi").await.expect("is there");
    assert!(matches!(session.wait_closed().await.reason, CloseReason::ConnectionLost(_)));
    let seen = remaining_events(events).await;
    assert_eq!(count_events(&seen, "Disconnected"), 1, "{:?}", event_names(&seen));
}
