//! Reconnection with the conversation so far, and resumption from the journal.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::item::Role;
use windlass::guardrail::{GuardrailVerdict, OutputGuardrail};
use windlass::prelude::*;
use windlass::store::MemoryStore;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::settings::{InputTranscription, RealtimeSettings, ServerVad, TurnDetection};
use windlass_realtime::testing::{
    FaultTrigger, LoopbackReply, LoopbackServer, WireFault, find_wire_violations, tone,
};
use windlass_realtime::{
    CloseReason, FolderJournal, GuardrailFollowUp, ItemId, MemoryJournal, RealtimeContentPart, RealtimeError,
    RealtimeEvent, RealtimeEvents, RealtimeItem, RealtimeItemKind, RealtimeSession, RealtimeSessionBuilder,
    ReconnectPolicy,
};

use crate::support::*;

fn guide_agent() -> Agent {
    Agent::new("guide")
}

fn sent_items(server: &LoopbackServer, connection: u64) -> Vec<String> {
    let seen = server.wire_log();
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
        WireFault::drop_connection(FaultTrigger::on_receive("response.create")).after_occurrences(1),
        WireFault::close_connection(FaultTrigger::on_receive("response.create"), 1001).after_occurrences(1),
        WireFault::drop_connection(FaultTrigger::on_send("response.created")).after_occurrences(1),
    ] {
        let server = loopback_server([
            LoopbackReply::message("One."),
            LoopbackReply::message("Two."),
            LoopbackReply::message("Two."),
        ]);
        server.inject_fault(fault);
        server.refuse_connections(0);
        let (session, mut events) = connect_agent(guide_agent(), &server).await;
        session.send_text("First").await.expect("is there");
        turn_events(&mut events).await;
        // The response is heard to its end.
        tokio::time::sleep(Duration::from_secs(5)).await;
        server.refuse_connections(2);
        session.send_text("Second").await.expect("is there");
        let seen =
            events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
        assert!(matches!(seen.last(), Some(RealtimeEvent::Reconnected { attempts: 3 })), "{seen:?}");
        let seen = events_until(&mut events, |event| {
            matches!(
                event,
                RealtimeEvent::TurnEnded { status: windlass_realtime::model::ResponseStatus::Completed, .. }
            )
        })
        .await;
        assert_eq!(count_events(&seen, "Error"), 0, "{seen:?}");
        assert_eq!(sent_items(&server, 2), ["user: First", "assistant: One.", "user: Second"]);
        assert_eq!(session.metrics().await.expect("is there").reconnects, 1);
        let history = session.history().await.expect("is there");
        assert_eq!(history.items().last().map(|item| item.text()), Some("Two.".to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_falls_silent_is_found_out() {
    let server = loopback_server([LoopbackReply::message("One.")]);
    let model = server.client_model().pings(Duration::from_secs(20), Some(Duration::from_secs(20)));
    let (session, mut events) = start_session(RealtimeSessionBuilder::new(guide_agent(), model)).await;
    server.inject_fault(WireFault::stop_sending(FaultTrigger::on_receive("conversation.item.create")));
    session.send_text("First").await.expect("is there");
    // The server answers pings, so it is the response that stalls.
    let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::Error(_))).await;
    assert!(matches!(seen.last(), Some(RealtimeEvent::Error(RealtimeError::ResponseNotStarted))));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stalls_is_given_up() {
    let server = loopback_server([LoopbackReply::stalled(), LoopbackReply::message("Here I am.")]);
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    session.send_text("First").await.expect("is there");
    let seen = turn_events(&mut events).await;
    assert_eq!(count_events(&seen, "Error"), 1, "{seen:?}");
    assert_eq!(server.client_events(Some("response.cancel")).len(), 1);
    session.send_text("Hello?").await.expect("is there");
    let seen = turn_events(&mut events).await;
    assert_eq!(count_events(&seen, "Error"), 0);
    // The end event of a response is lost: the response is abandoned, and the next one starts.
    let server = loopback_server([LoopbackReply::message("One."), LoopbackReply::message("Two.")]);
    server.inject_fault(WireFault::drop_event(FaultTrigger::on_send("response.done")));
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    session.send_text("First").await.expect("is there");
    turn_events(&mut events).await;
    session.send_text("Second").await.expect("is there");
    turn_events(&mut events).await;
}

#[tokio::test(start_paused = true)]
async fn strange_events_harm_nobody() {
    let server = loopback_server([LoopbackReply::message("One.")]);
    server.inject_fault(WireFault::insert_event(
        FaultTrigger::on_send("response.created"),
        serde_json::json!({ "type": "moon.rising", "phase": 3 }),
    ));
    server.inject_fault(WireFault::insert_event(
        FaultTrigger::on_send("response.done"),
        serde_json::json!({ "type": "response.output_audio.delta", "delta": 7 }),
    ));
    server.inject_fault(WireFault::insert_event(
        FaultTrigger::on_send("response.output_audio.done"),
        serde_json::json!([1, 2]),
    ));
    server.inject_fault(WireFault::duplicate_event(FaultTrigger::on_send("response.done")));
    server.inject_fault(WireFault::duplicate_event(FaultTrigger::on_send("response.output_item.done")));
    server.inject_fault(WireFault::delay_event(
        FaultTrigger::on_send("response.output_audio_transcript.done"),
        Duration::from_secs(1),
    ));
    server.inject_fault(WireFault::delay_event(
        FaultTrigger::on_send("conversation.item.added"),
        Duration::from_secs(2),
    ));
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    session.send_text("First").await.expect("is there");
    tokio::time::sleep(Duration::from_secs(10)).await;
    session.close().await;
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        seen.push(event);
    }
    assert_eq!(
        (count_events(&seen, "TurnEnded"), count_events(&seen, "Unknown"), count_events(&seen, "Error")),
        (1, 3, 0),
        "{:?}",
        event_names(&seen)
    );
}

/// A guardrail checks a response after its end, and the connection may be lost and replaced meanwhile. The calls of the
/// response are then sent on the new connection before their outputs, under ids that nothing there uses.
#[tokio::test(start_paused = true)]
async fn calls_that_a_guardrail_held_back_are_told_on_the_new_connection() {
    for verdict in [GuardrailVerdict::Pass, GuardrailVerdict::Tripwire] {
        let runs = Arc::default();
        let server = loopback_server([
            LoopbackReply::message("Let me see.").and_call("a", "count", "{}"),
            LoopbackReply::message("Meanwhile.").and_call("a", "count", "{}"),
        ])
        .with_restarting_ids();
        server.inject_fault(WireFault::drop_connection(FaultTrigger::on_send("response.done")));
        let guardrail = OutputGuardrail::new("slow", move |_, _| async move {
            tokio::time::sleep(Duration::from_secs(8)).await;
            Ok(verdict)
        });
        let agent = guide_agent().tools(counting_tool("count", &runs)).output_guardrail(guardrail);
        let realtime = RealtimeSessionBuilder::new(agent, server.client_model())
            .guardrail_follow_up(GuardrailFollowUp::NoMessage);
        let (session, mut events) = start_session(realtime).await;
        session.send_text("First").await.expect("is there");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
        // The provider numbers the items of this response as those of the lost connection.
        session.send_text("Second").await.expect("is there");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::TurnStarted { .. })).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(find_wire_violations(&server.wire_log()), Vec::<String>::new());
        let sent = sent_items(&server, 2);
        let place = |item: &str| sent.iter().position(|known| known.starts_with(item));
        assert!(place("function_call: count").is_some(), "{sent:?}");
        assert!(place("function_call: count") < place("function_call_output"), "{sent:?}");
        let history = session.close().await.history.clone();
        let calls = history.items().iter().filter(|item| matches!(item.kind, RealtimeItemKind::Call { .. }));
        assert_eq!(calls.count(), 2, "{history:?}");
        assert_eq!(history.items().iter().filter(|item| item.text() == "Meanwhile.").count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn trying_again_ends_somewhere() {
    let server = loopback_server([]);
    let policy = ReconnectPolicy {
        max_attempts: 4,
        window: Duration::from_secs(60),
        initial_delay: Duration::from_millis(100),
        max_delay: Duration::from_secs(1),
    };
    let (session, events) = start_session(
        RealtimeSessionBuilder::new(guide_agent(), server.client_model()).reconnect_policy(policy),
    )
    .await;
    server.inject_fault(WireFault::drop_connection(FaultTrigger::on_receive("conversation.item.create")));
    server.refuse_connections(100);
    session.send_text("First").await.expect("is there");
    assert!(matches!(session.wait_closed().await.reason, CloseReason::ConnectionLost(_)));
    let seen = remaining_events(events).await;
    assert_eq!(count_events(&seen, "Disconnected"), 2, "{seen:?}");
    // A close code for a permanent error is not retried.
    let server = loopback_server([]);
    let (session, _) = connect_agent(guide_agent(), &server).await;
    server.inject_fault(WireFault::close_connection(
        FaultTrigger::on_receive("conversation.item.create"),
        1008,
    ));
    session.send_text("First").await.expect("is there");
    assert!(matches!(session.wait_closed().await.reason, CloseReason::ConnectionLost(_)));
    assert_eq!(server.connection_count(), 1);
}

/// Attempts that take longer than the window divided by their number are bounded too: a network that swallows every
/// packet, and a server that never acknowledges a configuration.
#[tokio::test(start_paused = true)]
async fn slow_attempts_end_somewhere() {
    let connect = |server: &LoopbackServer| {
        start_session(RealtimeSessionBuilder::new(guide_agent(), server.client_model()))
    };
    let attempts = ReconnectPolicy::default().max_attempts;
    let server = loopback_server([]);
    let (session, _) = connect(&server).await;
    server.stall_connections(u64::MAX);
    server.drop_connections();
    let ended = tokio::time::timeout(Duration::from_secs(600), session.wait_closed()).await;
    let report = ended.expect("the session ends");
    assert!(matches!(report.reason, CloseReason::ConnectionLost(_)), "{:?}", report.reason);
    assert_eq!(server.stalled_count(), u64::from(attempts));

    let server = loopback_server([]);
    let (session, _) = connect(&server).await;
    session.send_text("First").await.expect("is there");
    tokio::time::sleep(Duration::from_secs(30)).await;
    server.inject_fault(WireFault::drop_event(FaultTrigger::on_send("session.updated")).repeated());
    server.drop_connections();
    let ended = tokio::time::timeout(Duration::from_secs(600), session.wait_closed()).await;
    let report = ended.expect("the session ends");
    assert!(matches!(report.reason, CloseReason::ConnectionLost(_)), "{:?}", report.reason);
    assert_eq!(server.connection_count(), 1 + u64::from(attempts), "the history is sent so often");
    // An acknowledgement in between starts the count again.
    let server = loopback_server([]);
    let (session, _) = connect(&server).await;
    for _ in 0..4 {
        let lost = WireFault::drop_event(FaultTrigger::on_send("session.updated"));
        (0..4).for_each(|_| server.inject_fault(lost.clone()));
        server.drop_connections();
        tokio::time::sleep(Duration::from_secs(120)).await;
    }
    assert!(!session.is_closed());
}

/// A window that is shorter than the delays holds all attempts all the same.
#[tokio::test(start_paused = true)]
async fn a_short_window_bounds_attempts_too() {
    let delay = Duration::from_millis(300);
    for (window, delay) in [(Duration::ZERO, Duration::ZERO), (Duration::from_secs(1), delay)] {
        let policy = ReconnectPolicy { max_attempts: 5, window, initial_delay: delay, max_delay: delay };
        for is_refused in [true, false] {
            let server = loopback_server([]);
            let builder = RealtimeSessionBuilder::new(guide_agent(), server.client_model());
            let (session, _) = start_session(builder.reconnect_policy(policy)).await;
            if is_refused {
                server.refuse_connections(1000);
            } else {
                server.inject_fault(
                    WireFault::drop_connection(FaultTrigger::on_receive("conversation.item.create"))
                        .repeated(),
                );
                session.send_text("First").await.expect("is there");
            }
            server.drop_connections();
            let ended = tokio::time::timeout(Duration::from_secs(600), session.wait_closed()).await;
            let report = ended.expect("the session ends");
            assert!(matches!(report.reason, CloseReason::ConnectionLost(_)), "{:?}", report.reason);
            assert!(server.connection_count() <= 6, "{} connections", server.connection_count());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn history_is_edited_item_by_item() {
    let server = loopback_server([]);
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    let text = |text: &str| vec![RealtimeContentPart::text(text)];
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
    session.send_text("Go").await.expect("is there");
    let seen = turn_events(&mut events).await;
    assert_eq!(count_events(&seen, "Error"), 0, "{seen:?}");
    let report = session.close().await;
    let items = report.history.to_items();
    assert_eq!(items.len(), 4);
    // The conversation can be stored in a session of runs.
    let kept = Session::in_memory("talk");
    let healed = kept.import(items.into_iter().map(Arc::new).collect()).await.expect("is taken");
    assert!(healed.answered_calls.is_empty() && healed.orphaned_outputs.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_session_is_resumed_from_its_journal() {
    let folder = tempfile::tempdir().expect("a folder");
    for in_folder in [false, true] {
        let (runs, store) = (Arc::default(), Arc::new(MemoryStore::default()));
        let memory = MemoryJournal::default();
        let agent = guide_agent()
            .tools((counting_tool("gated", &runs).needs_approval(), counting_tool("free", &runs)));
        let realtime = |server: &LoopbackServer| {
            let realtime = RealtimeSessionBuilder::new(agent.clone(), server.client_model())
                .session_id("talk")
                .store(store.clone());
            match in_folder {
                true => realtime.journal(FolderJournal::new(folder.path())),
                false => realtime.journal(memory.clone()),
            }
        };
        let first = loopback_server([
            LoopbackReply::call("a", "gated", "{}").and_call("b", "free", "{}"),
            LoopbackReply::message("Waiting."),
        ]);
        assert!(realtime(&first).resume().await.is_err(), "there is nothing to resume yet");
        let (session, mut events) = start_session(realtime(&first)).await;
        session.send_text("Go").await.expect("is there");
        turn_events(&mut events).await;
        turn_events(&mut events).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let report = session.detach().await;
        assert_eq!(
            (report.reason.clone(), report.awaiting_decision.len()),
            (CloseReason::Detached, 1),
            "{report:?}"
        );
        // Later, in another process.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let second = loopback_server([LoopbackReply::message("Thank you.")]);
        let session = realtime(&second).resume().await.expect("resumes");
        let mut events = session.events();
        events_until(&mut events, |event| matches!(event, RealtimeEvent::CallHeld { .. })).await;
        assert_eq!(
            sent_items(&second, 1),
            [
                "user: Go",
                "function_call: gated",
                "function_call: free",
                "function_call_output: run 1",
                "assistant: Waiting."
            ]
        );
        session.approve("a").await.expect("waits");
        turn_events(&mut events).await;
        assert_eq!((run_count(&runs), sent_outputs(&second, "a")), (2, vec!["run 2".to_owned()]));
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
    let server = loopback_server([]);
    let realtime = || {
        RealtimeSessionBuilder::new(guide_agent(), server.client_model())
            .session_id("talk")
            .journal(journal.clone())
    };
    let (first, mut events) = start_session(realtime()).await;
    first.send_text("Go").await.expect("is there");
    turn_events(&mut events).await;
    let second = realtime().resume().await.expect("resumes");
    // The first process finds out at its next journal append, and ends before it does anything else.
    first.send_text("And?").await.expect("is there");
    assert!(matches!(first.wait_closed().await.reason, CloseReason::JournalFailed(_)));
    assert!(!second.is_closed());
}

/// Connects a session whose server answers speech by itself, and speaks to it for a while.
async fn speak(server: &LoopbackServer, has_transcripts: bool) -> (RealtimeSession, RealtimeEvents) {
    let settings = RealtimeSettings {
        turn_detection: TurnDetection::ServerVad(ServerVad::default()),
        input_transcription: has_transcripts.then(InputTranscription::default),
        ..RealtimeSettings::default()
    };
    let realtime = RealtimeSessionBuilder::new(guide_agent(), server.client_model()).settings(settings);
    let (session, events) = start_session(realtime).await;
    for audio in [tone(500), vec![0; 24 * 600]] {
        for piece in audio.chunks(2400) {
            session.send_audio(AudioFormat::Pcm24k.encode(piece)).expect("is there");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    (session, events)
}

#[tokio::test(start_paused = true)]
async fn a_spoken_question_is_answered_after_a_loss_before_its_answer_began() {
    let server = loopback_server([]);
    server.inject_fault(WireFault::drop_connection(FaultTrigger::on_send("response.created")));
    let (session, mut events) = speak(&server, true).await;
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    turn_events(&mut events).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.client_events(Some("response.create")).len(), 1);
    let history = session.history().await.expect("is there");
    let said: Vec<String> = history.items().iter().map(RealtimeItem::text).collect();
    let [asked, answered] = said.as_slice() else { panic!("{said:?}") };
    assert!(asked.ends_with("ms of speech") && *answered == format!("You said: {asked}"), "{said:?}");
    // The answer has begun, so a later loss demands nothing.
    server.drop_connections();
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.client_events(Some("response.create")).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn speech_that_cannot_be_sent_again_is_reported_as_lost() {
    let server = loopback_server([]);
    server.inject_fault(WireFault::drop_connection(FaultTrigger::on_send("response.created")));
    let (_session, mut events) = speak(&server, false).await;
    let is_lost =
        |event: &RealtimeEvent| matches!(event, RealtimeEvent::Error(RealtimeError::SpeechLost { .. }));
    events_until(&mut events, is_lost).await;
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.client_events(Some("response.create")).len(), 0);
}
