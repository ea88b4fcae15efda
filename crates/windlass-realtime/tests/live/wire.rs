//! What the provider tells and is told beside speech and calls, and journals that were written by earlier versions.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use windlass::core::Role;
use windlass::prelude::*;
use windlass::{MemoryStore, StoreErrorKind};
use windlass_realtime::model::{ModelEvent, ResponseStatus};
use windlass_realtime::openai::Reader;
use windlass_realtime::settings::{LiveSettings, MeaningDetection, ServerTurns, TurnDetection};
use windlass_realtime::testing::{Fault, Moment, Reply};
use windlass_realtime::{
    Answer, FolderJournal, LIVE_FORMAT, LiveEntry, LiveError, LiveEvent, LiveJournal, LiveRecord,
    MemoryJournal, Part, Realtime,
};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn limits_silence_and_what_is_heard_piece_by_piece_are_told() {
    let server = server([Reply::say("One.")]);
    let before = |event: serde_json::Value| {
        server.fault(Fault::insert(Moment::sending("response.created"), event));
    };
    let transcription = "conversation.item.input_audio_transcription";
    before(
        json!({ "type": format!("{transcription}.delta"), "item_id": "i", "content_index": 0, "delta": "Hel" }),
    );
    let (session, mut events) = connected(Agent::new("guide"), &server).await;
    session.say("First").await.expect("is there");
    let seen = turn(&mut events).await;
    let heard = LiveEvent::Heard { item: "i".into(), delta: "Hel".to_owned() };
    assert!(seen.contains(&heard), "{:?}", named(&seen));
    before(
        json!({ "type": "input_audio_buffer.timeout_triggered", "item_id": "i", "audio_start_ms": 0, "audio_end_ms": 1 }),
    );
    session.say("Second").await.expect("is there");
    let seen = turn(&mut events).await;
    assert!(seen.contains(&LiveEvent::IdleTimeout), "{:?}", named(&seen));
    let error = json!({ "type": "transcription_error", "code": "audio", "message": "too noisy" });
    before(
        json!({ "type": format!("{transcription}.failed"), "item_id": "i", "content_index": 0, "error": error }),
    );
    session.say("Third").await.expect("is there");
    let seen = turn(&mut events).await;
    let is_told = |event: &LiveEvent| matches!(event, LiveEvent::Error(LiveError::Provider { message, .. }) if message.contains("too noisy"));
    assert!(seen.iter().any(is_told), "{seen:?}");
    session.close().await;
    let seen = rest(events).await;
    assert!(count(&seen, "RateLimits") > 0, "{:?}", named(&seen));
}

#[test]
fn answers_that_are_not_whole_say_why() {
    let ended = |status: &str, details: serde_json::Value| {
        let response = json!({ "id": "r", "status": status, "status_details": details, "output": [] });
        let read =
            Reader::default().read(&json!({ "type": "response.done", "response": response }).to_string());
        match read {
            Some(ModelEvent::ResponseEnded { status, .. }) => status,
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
    let turns = TurnDetection::Meaning(MeaningDetection {
        turns: ServerTurns { answers: true, interrupts: false },
        eagerness: Some("high".to_owned()),
    });
    let settings = LiveSettings { turns, ..LiveSettings::default() };
    let server = server([Reply::say("A windlass.")]);
    let (session, mut events) =
        enter(Realtime::new(Agent::new("guide"), server.model()).settings(settings)).await;
    let picture = Part::Image { url: "data:image/png;base64,iVBORw0KGgo=".to_owned() };
    session
        .message(Role::User, vec![Part::text("What is it?"), picture], Answer::Wanted)
        .await
        .expect("is there");
    turn(&mut events).await;
    let configured = &server.said(Some("session.update"))[0]["session"]["audio"]["input"]["turn_detection"];
    let expected = json!({
        "type": "semantic_vad", "eagerness": "high", "create_response": true, "interrupt_response": false,
    });
    assert_eq!(*configured, expected);
    let content = &server.said(Some("conversation.item.create"))[0]["item"]["content"];
    assert_eq!(content[1]["type"], "input_image");
    assert_eq!(content[1]["image_url"], "data:image/png;base64,iVBORw0KGgo=");
}

#[tokio::test(start_paused = true)]
async fn an_interruption_is_counted_and_timed_and_what_comes_late_is_not_passed_on() {
    let story = "Once upon a time there was a windlass that hauled a heavy load up a steep hill.";
    let server = server([Reply::say(story).paced(1)]);
    // The provider goes on speaking for a while.
    server.fault(Fault::drop_event(Moment::receiving("response.cancel")));
    let (session, mut events) = connected(Agent::new("guide"), &server).await;
    session.say("Go").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::Audio(_))).await;
    session.interrupt().await.expect("is there");
    let seen = turn(&mut events).await;
    let cut = named(&seen).iter().position(|name| name == "AudioInterrupted").expect("it is told");
    assert_eq!(count(&seen[cut..], "Audio"), 0);
    let metrics = session.metrics().await.expect("is there");
    assert_eq!((metrics.turns, metrics.interruptions), (1, 1));
    assert!(metrics.suppressed_output > 0 && metrics.longest_interruption.is_some(), "{metrics:?}");
}

#[tokio::test(start_paused = true)]
async fn outputs_are_sent_again_when_the_application_asks_and_raw_words_pass() {
    let runs = Arc::default();
    let server = server([Reply::call("c1", "look", "{}")]);
    server.fault(Fault::refuse("conversation.item.create", "server_error").after(1));
    let (session, mut events) = connected(Agent::new("desk").tools(counted("look", &runs)), &server).await;
    session.say("Look").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::Error(LiveError::OutputNotSent { .. }))).await;
    turn(&mut events).await;
    session.resend_outputs().await.expect("is there");
    turn(&mut events).await;
    assert_eq!((ran(&runs), output_of(&server, "c1").len()), (1, 2));
    session.raw(json!({ "type": "input_audio_buffer.clear" })).await.expect("is there");
    session.metrics().await.expect("is there");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.said(Some("input_audio_buffer.clear")).len(), 1);
}

/// On a connection that was made again nothing is said of the configuration, or it is refused: that is told, and agents
/// can change all the same.
#[tokio::test(start_paused = true)]
async fn a_configuration_that_is_not_acknowledged_after_a_reconnect_blocks_nobody() {
    for fault in [
        Fault::drop_event(Moment::sending("session.updated")),
        Fault::refuse("session.update", "invalid_value"),
    ] {
        let server = server([]);
        let (session, mut events) = connected(Agent::new("front"), &server).await;
        server.fault(fault);
        server.hang_up();
        until(&mut events, |event| matches!(event, LiveEvent::Reconnected { .. })).await;
        let changing = session.update_agent(Agent::new("back"));
        let changed = tokio::time::timeout(Duration::from_secs(120), changing).await.expect("it ends");
        changed.expect("is there").expect("changes");
        session.say("Hello?").await.expect("is there");
        let seen = turn(&mut events).await;
        assert!(count(&seen, "Error") > 0, "{:?}", named(&seen));
        assert!(
            matches!(seen.last(), Some(LiveEvent::TurnEnded { agent, .. }) if agent.as_str() == "back"),
            "{seen:?}"
        );
    }
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/session_v1.jsonl")
}

fn gated(runs: &Arc<std::sync::atomic::AtomicU32>) -> Agent {
    Agent::new("desk").tools((counted("gated", runs).approve_always(), counted("free", runs)))
}

/// A journal of the first version, as it was written then. It is never written anew: `WINDLASS_BLESS` makes it where it
/// is missing.
#[tokio::test(start_paused = true)]
async fn s53_a_session_of_the_first_version_opens_and_goes_on_and_a_newer_one_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("talk.jsonl");
    if !fixture().exists() && std::env::var_os("WINDLASS_BLESS").is_some() {
        let server =
            server([Reply::call("a", "gated", "{}").and_call("b", "free", "{}"), Reply::say("Waiting.")]);
        let realtime = Realtime::new(gated(&Arc::default()), server.model())
            .session_id("talk")
            .journal(FolderJournal::new(folder.path()));
        let (session, mut events) = enter(realtime).await;
        session.say("Go").await.expect("is there");
        turn(&mut events).await;
        turn(&mut events).await;
        session.leave().await;
        std::fs::copy(&file, fixture()).expect("is written");
    }
    std::fs::copy(fixture(), &file).expect("there is one");
    let runs = Arc::default();
    let server = server([Reply::say("Thank you.")]);
    let session = Realtime::new(gated(&runs), server.model())
        .session_id("talk")
        .store(Arc::new(MemoryStore::default()))
        .journal(FolderJournal::new(folder.path()))
        .resume()
        .await
        .expect("resumes");
    let mut events = session.events();
    until(&mut events, |event| matches!(event, LiveEvent::CallHeld { .. })).await;
    session.approve("a").await.expect("is there").expect("waits");
    turn(&mut events).await;
    let said: Vec<String> = session.close().await.history.items().iter().map(|item| item.text()).collect();
    assert_eq!(said[..5], ["Go", "", "", "run 1", "Waiting."]);
    assert_eq!(said.last().map(String::as_str), Some("Thank you."));

    let newer = LiveEntry::Opened { format: LIVE_FORMAT + 1, agent: "desk".into() };
    let refused = LiveRecord::replay(std::slice::from_ref(&newer)).expect_err("it is too new");
    assert_eq!(refused.kind(), StoreErrorKind::TooNew);
    assert!(refused.to_string().contains(&(LIVE_FORMAT + 1).to_string()), "{refused}");
    let journal = MemoryJournal::default();
    journal.append(&"talk".into(), 0, vec![newer]).await.expect("is written");
    let realtime = Realtime::new(gated(&runs), server.model()).session_id("talk").journal(journal);
    assert!(realtime.resume().await.is_err());
    assert_eq!(server.connections(), 1, "it did not come to a connection");
}
