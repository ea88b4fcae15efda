//! Sessions on a call that exists at the provider: its conversation outlives their connections.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use windlass::prelude::*;
use windlass_realtime::testing::{LoopbackReply, LoopbackServer, WireSender, tone};
use windlass_realtime::{
    MemoryJournal, RealtimeEvent, RealtimeItem, RealtimeItemKind, RealtimeItemStatus, RealtimeSessionBuilder,
};

use crate::support::*;

fn calling_server(replies: impl IntoIterator<Item = LoopbackReply>) -> LoopbackServer {
    LoopbackServer::new(replies).with_kept_conversation()
}

fn call_builder(agent: Agent, server: &LoopbackServer) -> RealtimeSessionBuilder {
    RealtimeSessionBuilder::new(agent, server.client_model().attach_call("rtc_1"))
}

/// Returns the client's events of one type on one connection.
fn sent_on(server: &LoopbackServer, connection: u64, kind: &str) -> Vec<Value> {
    let log = server.wire_log().into_iter();
    let is_it = |seen: &windlass_realtime::testing::WireRecord| {
        seen.connection == connection && seen.sender == WireSender::Client && seen.event["type"] == kind
    };
    log.filter(is_it).map(|seen| seen.event).collect()
}

fn is_reconnected(event: &RealtimeEvent) -> bool {
    matches!(event, RealtimeEvent::Reconnected { .. })
}

fn texts(items: &[RealtimeItem]) -> Vec<(String, RealtimeItemStatus)> {
    items.iter().map(|item| (item.text(), item.status)).collect()
}

/// The call has what was said, so only the output that it does not have is sent.
#[tokio::test(start_paused = true)]
async fn a_call_is_not_told_again_what_it_has() {
    let ended = Arc::default();
    let server = calling_server([LoopbackReply::message("One."), LoopbackReply::call("c1", "slow", "{}")]);
    let agent = Agent::new("desk").tools(slow_tool("slow", Duration::from_secs(5), &ended));
    let (session, mut events) = start_session(call_builder(agent, &server)).await;
    session.send_text("First").await.expect("is there");
    turn_events(&mut events).await;
    session.send_text("Second").await.expect("is there");
    turn_events(&mut events).await;
    server.drop_connections();
    let mut seen = events_until(&mut events, is_reconnected).await;
    seen.extend(turn_events(&mut events).await);
    let created = sent_on(&server, 2, "conversation.item.create");
    let created: Vec<_> =
        created.iter().map(|event| (&event["item"]["type"], &event["item"]["call_id"])).collect();
    assert_eq!(created, [(&json!("function_call_output"), &json!("c1"))]);
    let count = |kind: &str| sent_on(&server, 2, kind).len();
    assert_eq!((count("session.update"), count("response.create")), (1, 1));
    assert_eq!((run_count(&ended), count_events(&seen, "Error")), (1, 0), "{:?}", event_names(&seen));
    let history = session.history().await.expect("is there");
    assert_eq!(history.items().last().map(RealtimeItem::text).as_deref(), Some("The result is done"));
}

/// The caller hears an answer to its end, whether the session is connected or not.
#[tokio::test(start_paused = true)]
async fn an_answer_that_a_caller_hears_is_neither_cut_nor_requested_again() {
    for has_time_to_end in [false, true] {
        let server = calling_server([LoopbackReply::speech("A long tale", tone(20_000)).with_speed(1)]);
        let (session, mut events) = start_session(call_builder(Agent::new("desk"), &server)).await;
        session.send_text("Tell").await.expect("is there");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::Audio(_))).await;
        // The attempt that hangs takes ten seconds; two of them, and the answer has ended meanwhile.
        server.stall_connections(if has_time_to_end { 2 } else { 0 });
        server.drop_connections();
        let seen = events_until(&mut events, is_reconnected).await;
        assert_eq!(count_events(&seen, "AudioInterrupted"), 0, "{:?}", event_names(&seen));
        tokio::time::sleep(Duration::from_secs(30)).await;
        for kind in
            ["conversation.item.create", "conversation.item.truncate", "response.create", "response.cancel"]
        {
            assert_eq!(sent_on(&server, 2, kind), Vec::<Value>::new(), "{kind}");
        }
        let history = session.history().await.expect("is there");
        let said = texts(history.items());
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(said[1].1, RealtimeItemStatus::Completed);
        assert!(has_time_to_end || said[1].0 == "A long tale", "{said:?}");
        session.send_text("And now?").await.expect("is there");
        turn_events(&mut events).await;
        let history = session.history().await.expect("is there");
        assert_eq!(history.items().last().map(RealtimeItem::text).as_deref(), Some("You said: And now?"));
    }
}

/// Requests that the application makes while the connection is lost are sent when it is back.
#[tokio::test(start_paused = true)]
async fn what_was_done_while_the_connection_was_lost_is_sent() {
    let server = calling_server([LoopbackReply::message("One.")]);
    let (session, mut events) = start_session(call_builder(Agent::new("desk"), &server)).await;
    let first = session.send_text("First").await.expect("is there");
    turn_events(&mut events).await;
    server.refuse_connections(2);
    server.drop_connections();
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Disconnected { .. })).await;
    session.send_text("Meanwhile").await.expect("is there");
    assert!(session.delete_item(&first).await.expect("is there"));
    events_until(&mut events, is_reconnected).await;
    turn_events(&mut events).await;
    let created = sent_on(&server, 2, "conversation.item.create");
    assert_eq!((created.len(), &created[0]["item"]["content"][0]["text"]), (1, &json!("Meanwhile")));
    assert_eq!(sent_on(&server, 2, "conversation.item.delete")[0]["item_id"], first.as_str());
    let history = session.history().await.expect("is there");
    let said: Vec<String> = history.items().iter().map(RealtimeItem::text).collect();
    assert_eq!(said, ["One.", "Meanwhile", "You said: Meanwhile"]);
}

/// Another process that attaches to the call sends what the model has not answered, and nothing else.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_resumed_on_its_call_sends_what_is_not_answered() {
    let server = calling_server([LoopbackReply::message("One.")]);
    let journal = MemoryJournal::default();
    let builder = || call_builder(Agent::new("desk"), &server).session_id("talk").journal(journal.clone());
    let (session, mut events) = start_session(builder()).await;
    session.send_text("First").await.expect("is there");
    turn_events(&mut events).await;
    server.refuse_connections(u64::MAX);
    server.drop_connections();
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Disconnected { .. })).await;
    session.send_text("Second").await.expect("is there");
    session.detach().await;
    server.refuse_connections(0);
    let session = builder().resume().await.expect("is resumed");
    let mut events = session.events();
    turn_events(&mut events).await;
    let created = sent_on(&server, 2, "conversation.item.create");
    assert_eq!((created.len(), &created[0]["item"]["content"][0]["text"]), (1, &json!("Second")));
    let history = session.history().await.expect("is there");
    // A lost connection sends nothing of the earlier process either.
    server.drop_connections();
    events_until(&mut events, is_reconnected).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(sent_on(&server, 3, "conversation.item.create"), Vec::<Value>::new());
    let is_message = |item: &&RealtimeItem| matches!(item.kind, RealtimeItemKind::Message { .. });
    assert_eq!(history.items().iter().filter(is_message).count(), 4);
}
