//! A session owns what it acquires, and gives all of it back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::testing::{Fault, Moment, Reply};
use windlass_realtime::{Answer, CloseReason, EnterError, LiveEvent, Part, Realtime, Reconnect};

use crate::support::*;

fn plain() -> Agent {
    Agent::new("guide").instructions("Be brief.")
}

#[tokio::test(start_paused = true)]
async fn setting_up_does_nothing() {
    let server = server([]);
    let asked = Arc::new(AtomicU32::new(0));
    let counting = asked.clone();
    let agent = plain().instructions_from(move |_| {
        counting.fetch_add(1, Ordering::Relaxed);
        async { String::new() }
    });
    let realtime = Realtime::new(agent, server.model()).debounce(10);
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(realtime);
    assert_eq!((server.connections(), ran(&asked)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_message_is_answered_with_speech_and_words() {
    let server = server([Reply::say("Hello there.")]);
    let (session, mut events) = connected(plain(), &server).await;
    session.say("Hi").await.expect("is there");
    let seen = turn(&mut events).await;
    assert_eq!(count(&seen, "TurnStarted"), 1);
    assert!(count(&seen, "Audio") >= 7, "{:?}", named(&seen));
    let history = session.history().await.expect("is there");
    let said: Vec<String> = history.items().iter().map(|item| item.text()).collect();
    assert_eq!(said, ["Hi", "Hello there."]);
    let metrics = session.metrics().await.expect("is there");
    assert_eq!((metrics.turns, metrics.usage.requests, metrics.dropped_input), (1, 1, 0));
    assert!(metrics.last_to_first_audio.is_some());
    let report = session.close().await;
    assert_eq!(report.reason, CloseReason::Closed);
    assert_eq!(report.goodbye, None);
    let first = &server.said(None)[0];
    assert_eq!(
        (first["type"].as_str(), first["session"]["instructions"].as_str()),
        (Some("session.update"), Some("Be brief."))
    );
}

#[tokio::test(start_paused = true)]
async fn entry_fails_before_it_connects_where_the_agent_cannot_be_resolved() {
    // 1. instructions that panic; 2. two tools of one name; 3. a handoff to nobody.
    let runs = Arc::default();
    let panics = plain().instructions_from(|_| async { panic!("no instructions today") });
    let twice = plain().tools((counted("a", &runs), counted("a", &runs)));
    let nobody = plain().handoff(windlass::agent::Handoff::to_named("nobody"));
    for agent in [panics, twice, nobody] {
        let server = server([]);
        let error = Realtime::new(agent, server.model()).connect().await.expect_err("cannot begin");
        assert!(matches!(error, EnterError::Config(_)), "{error}");
        assert_eq!(server.connections(), 0);
    }
    let never = plain().instructions_from(|_| std::future::pending());
    let server = server([]);
    let error = Realtime::new(never, server.model()).connect().await.expect_err("cannot begin");
    assert!(matches!(error, EnterError::Slow(_)), "{error}");
    assert_eq!(server.connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn entry_fails_and_leaves_nothing_where_the_connection_does() {
    let server = server([]);
    server.refuse_connections(1);
    let error = Realtime::new(plain(), server.model()).connect().await.expect_err("nobody is let in");
    assert!(matches!(error, EnterError::Connect(_)), "{error}");
    // The configuration is refused, after the connection was made.
    server.fault(Fault::refuse("session.update", "invalid_value"));
    let error = Realtime::new(plain(), server.model()).connect().await.expect_err("is refused");
    assert!(matches!(&error, EnterError::Refused(why) if why.contains("as the test wants it")), "{error}");
    // It is never answered.
    server.fault(Fault::drop_event(Moment::receiving("session.update")));
    let error = Realtime::new(plain(), server.model()).connect().await.expect_err("is not answered");
    assert!(matches!(error, EnterError::Refused(_)), "{error}");
    // The connection goes in the middle of it.
    server.fault(Fault::vanish(Moment::receiving("session.update")));
    let error = Realtime::new(plain(), server.model()).connect().await.expect_err("is gone");
    assert!(matches!(error, EnterError::Refused(_)), "{error}");
    let metrics = tokio::runtime::Handle::current().metrics();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(metrics.num_alive_tasks(), 0, "tasks are left");
}

#[tokio::test(start_paused = true)]
async fn close_wakes_everybody_after_what_is_queued() {
    let server = server([]);
    let (session, first) = connected(plain(), &server).await;
    let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(rest(session.events()))).collect();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let (role, parts) = (windlass::core::Role::User, vec![Part::text("Hi")]);
    session.message(role, parts, Answer::NotYet).await.expect("is there");
    let history = session.history().await.expect("is there");
    assert_eq!(history.items().len(), 1);
    session.close().await;
    for watcher in waiting {
        let seen = watcher.await.expect("ends");
        assert_eq!(named(&seen).last().map(String::as_str), Some("Closed"));
        assert_eq!(count(&seen, "History"), 1, "{:?}", named(&seen));
    }
    // Nobody had looked at this one until now, and it has everything.
    let seen = rest(first).await;
    assert_eq!(named(&seen)[..2], ["Connected", "History"]);
    // Who comes afterwards finds the end.
    assert_eq!(session.events().next().await, None);
    assert!(session.say("late").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn close_is_one_close_however_often_and_from_wherever() {
    let server = server([]);
    let (session, events) = connected(plain(), &server).await;
    let closers: Vec<_> = (0..8)
        .map(|_| {
            let session = session.clone();
            tokio::spawn(async move { session.close().await })
        })
        .collect();
    // One of those who wait goes away; the others do not notice.
    let impatient = tokio::time::timeout(Duration::ZERO, session.close()).await;
    drop(impatient);
    let report = session.close().await;
    for closer in closers {
        assert!(Arc::ptr_eq(&closer.await.expect("ends"), &report));
    }
    assert!(Arc::ptr_eq(&session.close().await, &report));
    assert_eq!(count(&rest(events).await, "Closed"), 1);
    let metrics = tokio::runtime::Handle::current().metrics();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(metrics.num_alive_tasks(), 0, "tasks are left");
}

#[tokio::test(start_paused = true)]
async fn a_tool_can_close_the_session_that_it_runs_in() {
    let server = server([Reply::call("c1", "hang_up", "{}")]);
    let handle: Arc<std::sync::OnceLock<windlass_realtime::LiveSession>> = Arc::default();
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
    let (session, events) = connected(plain().tools(hang_up), &server).await;
    assert!(handle.set(session.clone()).is_ok());
    session.say("Bye").await.expect("is there");
    let report = session.closed().await;
    assert_eq!(report.reason, CloseReason::Closed);
    assert_eq!(report.in_doubt.len(), 1, "{report:?}");
    assert_eq!(output_of(&server, "c1"), Vec::<String>::new());
    assert_eq!(named(&rest(events).await).last().map(String::as_str), Some("Closed"));
}

#[tokio::test(start_paused = true)]
async fn calls_under_way_are_settled_within_a_bound_and_send_nothing_late() {
    let ended = Arc::default();
    let server = server([Reply::call("c1", "slow", "{}")]);
    let (session, mut events) =
        connected(plain().tools(slow("slow", Duration::from_secs(60), &ended)), &server).await;
    session.say("Go").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::CallStarted { .. })).await;
    let began = tokio::time::Instant::now();
    let report = session.close().await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(report.in_doubt.len(), 1, "{report:?}");
    let seen = rest(events).await;
    assert_eq!(count(&seen, "CallSettled"), 1, "{:?}", named(&seen));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(ran(&ended), 0);
    assert_eq!(output_of(&server, "c1"), Vec::<String>::new());
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_closes_the_session() {
    let server = server([]);
    let (session, events) = connected(plain(), &server).await;
    drop(session);
    assert_eq!(named(&rest(events).await).last().map(String::as_str), Some("Closed"));
}

#[tokio::test(start_paused = true)]
async fn a_goodbye_that_nobody_answers_is_not_waited_for_long() {
    let server = server([]);
    let (session, mut events) = connected(plain(), &server).await;
    server.fault(Fault::fall_silent(Moment::receiving("conversation.item.create")));
    session.say("Hi").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::History(_))).await;
    let began = tokio::time::Instant::now();
    session.close().await;
    assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_other_side_is_the_end_of_the_session() {
    // Said goodbye: an end. Gone for good: an error that is told.
    let server = server([]);
    let (session, events) = connected(plain(), &server).await;
    server.fault(Fault::close(Moment::receiving("conversation.item.create"), 1000));
    session.say("Hi").await.expect("is there");
    assert_eq!(session.closed().await.reason, CloseReason::Finished);
    rest(events).await;
    let fatal =
        Realtime::new(plain(), server.model()).reconnect(Reconnect { attempts: 0, ..Reconnect::default() });
    let (session, events) = enter(fatal).await;
    server.fault(Fault::vanish(Moment::receiving("conversation.item.create")));
    session.say("Hi").await.expect("is there");
    assert!(matches!(session.closed().await.reason, CloseReason::Lost(_)));
    let seen = rest(events).await;
    assert_eq!(count(&seen, "Disconnected"), 1, "{:?}", named(&seen));
}
