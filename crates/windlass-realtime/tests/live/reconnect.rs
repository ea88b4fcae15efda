//! A lost connection is made again, with what was said; a session is resumed from its journal.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use windlass::MemoryStore;
use windlass::core::Role;
use windlass::prelude::*;
use windlass_realtime::testing::{Fault, Loopback, Moment, Reply};
use windlass_realtime::{
    CloseReason, FolderJournal, ItemId, LiveError, LiveEvent, MemoryJournal, Part, Realtime, Reconnect,
};

use crate::support::*;

fn guide() -> Agent {
    Agent::new("guide")
}

fn told(server: &Loopback, connection: u64) -> Vec<String> {
    let seen = server.seen();
    let created = seen
        .iter()
        .filter(|seen| seen.connection == connection && seen.event["type"] == "conversation.item.create");
    created
        .map(|seen| {
            let item = &seen.event["item"];
            let text =
                item["content"][0]["text"].as_str().or(item["output"].as_str()).or(item["name"].as_str());
            format!(
                "{}: {}",
                item["role"].as_str().or(item["type"].as_str()).unwrap_or_default(),
                text.unwrap_or_default()
            )
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn what_was_said_is_told_again_and_the_question_is_asked_again() {
    for fault in [
        Fault::vanish(Moment::receiving("response.create")).after(1),
        Fault::close(Moment::receiving("response.create"), 1001).after(1),
        Fault::vanish(Moment::sending("response.created")).after(1),
    ] {
        let server = server([Reply::say("One."), Reply::say("Two."), Reply::say("Two.")]);
        server.fault(fault);
        server.refuse_connections(0);
        let (session, mut events) = connected(guide(), &server).await;
        session.say("First").await.expect("is there");
        turn(&mut events).await;
        // It is heard to its end.
        tokio::time::sleep(Duration::from_secs(5)).await;
        server.refuse_connections(2);
        session.say("Second").await.expect("is there");
        let seen = until(&mut events, |event| matches!(event, LiveEvent::Reconnected { .. })).await;
        assert!(matches!(seen.last(), Some(LiveEvent::Reconnected { attempts: 3 })), "{seen:?}");
        let seen = until(&mut events, |event| {
            matches!(
                event,
                LiveEvent::TurnEnded { status: windlass_realtime::model::ResponseStatus::Completed, .. }
            )
        })
        .await;
        assert_eq!(count(&seen, "Error"), 0, "{seen:?}");
        assert_eq!(told(&server, 2), ["user: First", "assistant: One.", "user: Second"]);
        assert_eq!(session.metrics().await.expect("is there").reconnects, 1);
        let history = session.history().await.expect("is there");
        assert_eq!(history.items().last().map(|item| item.text()), Some("Two.".to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_falls_silent_is_found_out() {
    let server = server([Reply::say("One.")]);
    let model = server.model().keep_alive(Duration::from_secs(20));
    let (session, mut events) = enter(Realtime::new(guide(), model)).await;
    server.fault(Fault::fall_silent(Moment::receiving("conversation.item.create")));
    session.say("First").await.expect("is there");
    // The server answers pings, so it is the answer that does not come.
    let seen = until(&mut events, |event| matches!(event, LiveEvent::Error(_))).await;
    assert!(matches!(seen.last(), Some(LiveEvent::Error(LiveError::NoAnswer))));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stalls_is_given_up() {
    let server = server([Reply::stall(), Reply::say("Here I am.")]);
    let (session, mut events) = connected(guide(), &server).await;
    session.say("First").await.expect("is there");
    let seen = turn(&mut events).await;
    assert_eq!(count(&seen, "Error"), 1, "{seen:?}");
    assert_eq!(server.said(Some("response.cancel")).len(), 1);
    session.say("Hello?").await.expect("is there");
    let seen = turn(&mut events).await;
    assert_eq!(count(&seen, "Error"), 0);
    // The end of an answer gets lost: it is given up, and the next one begins.
    let server = self::server([Reply::say("One."), Reply::say("Two.")]);
    server.fault(Fault::drop_event(Moment::sending("response.done")));
    let (session, mut events) = connected(guide(), &server).await;
    session.say("First").await.expect("is there");
    turn(&mut events).await;
    session.say("Second").await.expect("is there");
    turn(&mut events).await;
}

#[tokio::test(start_paused = true)]
async fn strange_events_harm_nobody() {
    let server = server([Reply::say("One.")]);
    server.fault(Fault::insert(
        Moment::sending("response.created"),
        serde_json::json!({ "type": "moon.rising", "phase": 3 }),
    ));
    server.fault(Fault::insert(
        Moment::sending("response.done"),
        serde_json::json!({ "type": "response.output_audio.delta", "delta": 7 }),
    ));
    server.fault(Fault::insert(Moment::sending("response.output_audio.done"), serde_json::json!([1, 2])));
    server.fault(Fault::repeat(Moment::sending("response.done")));
    server.fault(Fault::repeat(Moment::sending("response.output_item.done")));
    server.fault(Fault::delay(
        Moment::sending("response.output_audio_transcript.done"),
        Duration::from_secs(1),
    ));
    server.fault(Fault::delay(Moment::sending("conversation.item.added"), Duration::from_secs(2)));
    let (session, mut events) = connected(guide(), &server).await;
    session.say("First").await.expect("is there");
    tokio::time::sleep(Duration::from_secs(10)).await;
    session.close().await;
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        seen.push(event);
    }
    assert_eq!(
        (count(&seen, "TurnEnded"), count(&seen, "Unknown"), count(&seen, "Error")),
        (1, 3, 0),
        "{:?}",
        named(&seen)
    );
}

#[tokio::test(start_paused = true)]
async fn trying_again_ends_somewhere() {
    let server = server([]);
    let policy = Reconnect { attempts: 4, base: Duration::from_millis(100), longest: Duration::from_secs(1) };
    let (session, events) = enter(Realtime::new(guide(), server.model()).reconnect(policy)).await;
    server.fault(Fault::vanish(Moment::receiving("conversation.item.create")));
    server.refuse_connections(100);
    session.say("First").await.expect("is there");
    assert!(matches!(session.closed().await.reason, CloseReason::Lost(_)));
    let seen = rest(events).await;
    assert_eq!(count(&seen, "Disconnected"), 2, "{seen:?}");
    // A goodbye that says it is of no use is not argued with.
    let server = self::server([]);
    let (session, _) = connected(guide(), &server).await;
    server.fault(Fault::close(Moment::receiving("conversation.item.create"), 1008));
    session.say("First").await.expect("is there");
    assert!(matches!(session.closed().await.reason, CloseReason::Lost(_)));
    assert_eq!(server.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn history_is_edited_item_by_item() {
    let server = server([]);
    let (session, mut events) = connected(guide(), &server).await;
    let text = |text: &str| vec![Part::text(text)];
    let one = session.insert_item(Role::User, text("one"), None).await.expect("is there").expect("is made");
    let three =
        session.insert_item(Role::User, text("three"), None).await.expect("is there").expect("is made");
    session.insert_item(Role::Assistant, text("two"), Some(one.clone())).await.expect("is there");
    session.replace_item(&three, Role::User, text("four")).await.expect("is there").expect("was there");
    assert!(session.delete_item(&one).await.expect("is there"));
    assert!(!session.delete_item(&one).await.expect("is there"));
    let said: Vec<String> =
        session.history().await.expect("is there").items().iter().map(|item| item.text()).collect();
    assert_eq!(said, ["two", "four"]);
    session.say("Go").await.expect("is there");
    let seen = turn(&mut events).await;
    assert_eq!(count(&seen, "Error"), 0, "{seen:?}");
    let report = session.close().await;
    let items = report.history.to_items();
    assert_eq!(items.len(), 4);
    // What was said can be taken in by a session of runs.
    let kept = Session::in_memory("talk");
    let healed = kept.import(items.into_iter().map(Arc::new).collect()).await.expect("is taken");
    assert!(healed.answered.is_empty() && healed.orphaned.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_session_is_resumed_from_its_journal() {
    let folder = tempfile::tempdir().expect("a folder");
    for in_folder in [false, true] {
        let (runs, store) = (Arc::default(), Arc::new(MemoryStore::default()));
        let memory = MemoryJournal::default();
        let agent = guide().tools((counted("gated", &runs).approve_always(), counted("free", &runs)));
        let realtime = |server: &Loopback| {
            let realtime =
                Realtime::new(agent.clone(), server.model()).session_id("talk").store(store.clone());
            match in_folder {
                true => realtime.journal(FolderJournal::new(folder.path())),
                false => realtime.journal(memory.clone()),
            }
        };
        let first =
            server([Reply::call("a", "gated", "{}").and_call("b", "free", "{}"), Reply::say("Waiting.")]);
        assert!(realtime(&first).resume().await.is_err(), "there is nothing to resume yet");
        let (session, mut events) = enter(realtime(&first)).await;
        session.say("Go").await.expect("is there");
        turn(&mut events).await;
        turn(&mut events).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let report = session.leave().await;
        assert_eq!((report.reason.clone(), report.held.len()), (CloseReason::Left, 1), "{report:?}");
        // Elsewhere, later.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let second = server([Reply::say("Thank you.")]);
        let session = realtime(&second).resume().await.expect("resumes");
        let mut events = session.events();
        until(&mut events, |event| matches!(event, LiveEvent::CallHeld { .. })).await;
        assert_eq!(
            told(&second, 1),
            [
                "user: Go",
                "function_call: gated",
                "function_call: free",
                "function_call_output: run 1",
                "assistant: Waiting."
            ]
        );
        session.approve("a").await.expect("is there").expect("waits");
        turn(&mut events).await;
        assert_eq!((ran(&runs), output_of(&second, "a")), (2, vec!["run 2".to_owned()]));
        let report = session.close().await;
        let said: Vec<String> = report.history.items().iter().map(|item| item.text()).collect();
        assert_eq!(said, ["Go", "", "", "run 1", "Waiting.", "run 2", "Thank you."]);
        let ids: BTreeSet<&ItemId> = report.history.items().iter().map(|item| &item.id).collect();
        assert_eq!(ids.len(), said.len(), "ids of one life are not used again in another");
    }
}

#[tokio::test(start_paused = true)]
async fn two_processes_do_not_go_on_with_one_session() {
    let journal = MemoryJournal::default();
    let server = server([]);
    let realtime = || Realtime::new(guide(), server.model()).session_id("talk").journal(journal.clone());
    let (first, mut events) = enter(realtime()).await;
    first.say("Go").await.expect("is there");
    turn(&mut events).await;
    let second = realtime().resume().await.expect("resumes");
    // The first finds out as soon as it has something to write down, and ends before it does anything else.
    first.say("And?").await.expect("is there");
    assert!(matches!(first.closed().await.reason, CloseReason::Journal(_)));
    assert!(!second.is_closed());
}
