//! Protocol events other than speech and calls, and journals written by earlier versions.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use windlass::core::item::Role;
use windlass::prelude::*;
use windlass::{error::StoreErrorKind, store::MemoryStore};
use windlass_realtime::model::{ModalityTokens, RealtimeModelEvent, RealtimeUsage, ResponseStatus};
use windlass_realtime::openai::RealtimeEventDecoder;
use windlass_realtime::settings::{RealtimeSettings, SemanticVad, ServerTurnActions, TurnDetection};
use windlass_realtime::testing::{FaultTrigger, LoopbackReply, WireFault};
use windlass_realtime::{
    FolderJournal, ItemId, MemoryJournal, REALTIME_JOURNAL_FORMAT, RealtimeContentPart, RealtimeEntry,
    RealtimeError, RealtimeEvent, RealtimeItem, RealtimeJournal, RealtimeSessionBuilder, ReplayedSession,
    RespondWhen,
};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn limits_silence_and_what_is_heard_piece_by_piece_are_told() {
    let server = loopback_server([LoopbackReply::message("One.")]);
    let before = |event: serde_json::Value| {
        server.inject_fault(WireFault::insert_event(FaultTrigger::on_send("response.created"), event));
    };
    let transcription = "conversation.item.input_audio_transcription";
    before(
        json!({ "type": format!("{transcription}.delta"), "item_id": "i", "content_index": 0, "delta": "Hel" }),
    );
    let (session, mut events) = connect_agent(Agent::new("guide"), &server).await;
    session.send_text("First").await.expect("is there");
    let seen = turn_events(&mut events).await;
    let heard = RealtimeEvent::InputTranscriptDelta { item: "i".into(), delta: "Hel".to_owned() };
    assert!(seen.contains(&heard), "{:?}", event_names(&seen));
    before(
        json!({ "type": "input_audio_buffer.timeout_triggered", "item_id": "i", "audio_start_ms": 0, "audio_end_ms": 1 }),
    );
    session.send_text("Second").await.expect("is there");
    let seen = turn_events(&mut events).await;
    assert!(seen.contains(&RealtimeEvent::IdleTimeout), "{:?}", event_names(&seen));
    let error = json!({ "type": "transcription_error", "code": "audio", "message": "too noisy" });
    before(
        json!({ "type": format!("{transcription}.failed"), "item_id": "i", "content_index": 0, "error": error }),
    );
    session.send_text("Third").await.expect("is there");
    let seen = turn_events(&mut events).await;
    let is_told = |event: &RealtimeEvent| matches!(event, RealtimeEvent::Error(RealtimeError::Provider { message, .. }) if message.contains("too noisy"));
    assert!(seen.iter().any(is_told), "{seen:?}");
    session.close().await;
    let seen = remaining_events(events).await;
    assert!(count_events(&seen, "RateLimits") > 0, "{:?}", event_names(&seen));
}

#[test]
fn answers_that_are_not_whole_say_why() {
    let ended = |status: &str, details: serde_json::Value| {
        let response = json!({ "id": "r", "status": status, "status_details": details, "output": [] });
        let read = RealtimeEventDecoder::default()
            .decode(&json!({ "type": "response.done", "response": response }).to_string());
        match read {
            Some(RealtimeModelEvent::ResponseEnded { status, .. }) => status,
            other => panic!("{other:?}"),
        }
    };
    let error = json!({ "type": "server_error", "code": "overloaded", "message": "come back later" });
    let failed = ended("failed", json!({ "type": "failed", "error": error }));
    assert!(matches!(&failed, ResponseStatus::Failed { code, .. } if code == "overloaded"), "{failed:?}");
    let cut = ended("incomplete", json!({ "type": "incomplete", "reason": "max_output_tokens" }));
    assert_eq!(cut, ResponseStatus::Incomplete { reason: "max_output_tokens".to_owned() });
    assert_eq!(ended("cancelled", json!({ "reason": "turn_detected" })), ResponseStatus::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn pictures_and_turns_by_meaning_reach_the_model() {
    let turns = TurnDetection::SemanticVad(SemanticVad {
        server_actions: ServerTurnActions { create_response: true, interrupt_response: false },
        eagerness: Some("high".to_owned()),
    });
    let settings = RealtimeSettings { turn_detection: turns, ..RealtimeSettings::default() };
    let server = loopback_server([LoopbackReply::message("A windlass.")]);
    let (session, mut events) = start_session(
        RealtimeSessionBuilder::new(Agent::new("guide"), server.client_model()).settings(settings),
    )
    .await;
    let picture = RealtimeContentPart::Image { url: "data:image/png;base64,iVBORw0KGgo=".to_owned() };
    session
        .send_message(Role::User, vec![RealtimeContentPart::text("What is it?"), picture], RespondWhen::Now)
        .await
        .expect("is there");
    turn_events(&mut events).await;
    let configured =
        &server.client_events(Some("session.update"))[0]["session"]["audio"]["input"]["turn_detection"];
    let expected = json!({
        "type": "semantic_vad", "eagerness": "high", "create_response": true, "interrupt_response": false,
    });
    assert_eq!(*configured, expected);
    let content = &server.client_events(Some("conversation.item.create"))[0]["item"]["content"];
    assert_eq!(content[1]["type"], "input_image");
    assert_eq!(content[1]["image_url"], "data:image/png;base64,iVBORw0KGgo=");
}

#[tokio::test(start_paused = true)]
async fn an_interruption_is_counted_and_timed_and_what_comes_late_is_not_passed_on() {
    let story = "Once upon a time there was a windlass that hauled a heavy load up a steep hill.";
    let server = loopback_server([LoopbackReply::message(story).with_speed(1)]);
    // The provider keeps sending speech for a while.
    server.inject_fault(WireFault::drop_event(FaultTrigger::on_receive("response.cancel")));
    let (session, mut events) = connect_agent(Agent::new("guide"), &server).await;
    session.send_text("Go").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Audio(_))).await;
    session.interrupt().await.expect("is there");
    let seen = turn_events(&mut events).await;
    let cut = event_names(&seen).iter().position(|name| name == "AudioInterrupted").expect("it is told");
    assert_eq!(count_events(&seen[cut..], "Audio"), 0);
    let metrics = session.metrics().await.expect("is there");
    assert_eq!((metrics.turns, metrics.interruptions), (1, 1));
    assert!(
        metrics.suppressed_output_chunks > 0 && metrics.longest_interruption_latency.is_some(),
        "{metrics:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn outputs_are_sent_again_when_the_application_asks_and_raw_words_pass() {
    let runs = Arc::default();
    let server = loopback_server([LoopbackReply::call("c1", "look", "{}")]);
    server.inject_fault(
        WireFault::reject_event("conversation.item.create", "server_error").after_occurrences(1),
    );
    let (session, mut events) =
        connect_agent(Agent::new("desk").tools(counting_tool("look", &runs)), &server).await;
    session.send_text("Look").await.expect("is there");
    events_until(&mut events, |event| {
        matches!(event, RealtimeEvent::Error(RealtimeError::OutputRejected { .. }))
    })
    .await;
    turn_events(&mut events).await;
    session.resend_outputs().await.expect("is there");
    turn_events(&mut events).await;
    assert_eq!((run_count(&runs), sent_outputs(&server, "c1").len()), (1, 2));
    session.send_raw(json!({ "type": "input_audio_buffer.clear" })).await.expect("is there");
    session.metrics().await.expect("is there");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.client_events(Some("input_audio_buffer.clear")).len(), 1);
}

fn fixture_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/session_v1.jsonl")
}

fn gated_agent(runs: &Arc<std::sync::atomic::AtomicU32>) -> Agent {
    Agent::new("desk").tools((counting_tool("gated", runs).needs_approval(), counting_tool("free", runs)))
}

/// A journal of the first version, as written then. It is never regenerated: `WINDLASS_BLESS` creates it only
/// if it is missing.
#[tokio::test(start_paused = true)]
async fn s53_a_session_of_the_first_version_opens_and_goes_on_and_a_newer_one_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("talk.jsonl");
    if !fixture_path().exists() && std::env::var_os("WINDLASS_BLESS").is_some() {
        let server = loopback_server([
            LoopbackReply::call("a", "gated", "{}").and_call("b", "free", "{}"),
            LoopbackReply::message("Waiting."),
        ]);
        let realtime = RealtimeSessionBuilder::new(gated_agent(&Arc::default()), server.client_model())
            .session_id("talk")
            .journal(FolderJournal::new(folder.path()));
        let (session, mut events) = start_session(realtime).await;
        session.send_text("Go").await.expect("is there");
        turn_events(&mut events).await;
        turn_events(&mut events).await;
        session.detach().await;
        std::fs::copy(&file, fixture_path()).expect("is written");
    }
    std::fs::copy(fixture_path(), &file).expect("there is one");
    let runs = Arc::default();
    let server = loopback_server([LoopbackReply::message("Thank you.")]);
    let session = RealtimeSessionBuilder::new(gated_agent(&runs), server.client_model())
        .session_id("talk")
        .store(Arc::new(MemoryStore::default()))
        .journal(FolderJournal::new(folder.path()))
        .resume()
        .await
        .expect("resumes");
    let mut events = session.events();
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallHeld { .. })).await;
    session.approve("a").await.expect("waits");
    turn_events(&mut events).await;
    let said: Vec<String> = session.close().await.history.items().iter().map(|item| item.text()).collect();
    assert_eq!(said[..5], ["Go", "", "", "run 1", "Waiting."]);
    assert_eq!(said.last().map(String::as_str), Some("Thank you."));

    let newer = RealtimeEntry::Opened { format: REALTIME_JOURNAL_FORMAT + 1, agent: "desk".into() };
    let refused = ReplayedSession::replay(std::slice::from_ref(&newer)).expect_err("it is too new");
    assert_eq!(refused.kind(), StoreErrorKind::UnsupportedVersion);
    assert!(refused.to_string().contains(&(REALTIME_JOURNAL_FORMAT + 1).to_string()), "{refused}");
    let journal = MemoryJournal::default();
    journal.append(&"talk".into(), 0, vec![newer]).await.expect("is written");
    let realtime = RealtimeSessionBuilder::new(gated_agent(&runs), server.client_model())
        .session_id("talk")
        .journal(journal);
    assert!(realtime.resume().await.is_err());
    assert_eq!(server.connection_count(), 1, "it did not come to a connection");
}

#[test]
fn absurd_numbers_of_tokens_add_up_to_the_largest_number() {
    let tokens = ModalityTokens { text: u64::MAX, audio: u64::MAX, image: u64::MAX };
    let absurd = RealtimeUsage { input: tokens, cached: tokens, output: tokens, ..RealtimeUsage::default() };
    let mut sum = absurd;
    sum.add(&absurd);
    assert_eq!((sum.input, sum.cached, sum.output), (tokens, tokens, tokens));
}

/// An item is journalled when it is complete, and later ones may be complete before.
#[test]
fn the_first_item_stays_the_first_if_it_is_complete_after_others() {
    let item = |id: &str, after: Option<&str>| RealtimeEntry::ItemChanged {
        item: RealtimeItem::message(id, Role::User, vec![RealtimeContentPart::text(id)]),
        after: after.map(ItemId::from),
        respond: RespondWhen::Now,
    };
    let entries = [item("b", Some("a")), item("c", Some("b")), item("a", None)];
    let history = ReplayedSession::replay(&entries).expect("is valid").history;
    let ids: Vec<&str> = history.items().iter().map(|item| item.id.as_str()).collect();
    assert_eq!(ids, ["a", "b", "c"]);
}
