//! The end of a session keeps what happened before it.

use std::sync::Arc;
use std::time::Duration;

use windlass::core::id::CallId;
use windlass::prelude::*;
use windlass::store::MemoryStore;
use windlass_realtime::model::ResponseStatus;
use windlass_realtime::testing::LoopbackReply;
use windlass_realtime::{
    CloseReport, MemoryJournal, RealtimeEvent, RealtimeHistory, RealtimeItemKind, RealtimeItemStatus,
    RealtimeJournal, ReplayedSession, ToolCallMode,
};

use crate::support::*;

/// Returns the output of each call of a conversation that has one.
fn call_outputs(history: &RealtimeHistory) -> Vec<(String, String)> {
    let output = |item: &windlass_realtime::RealtimeItem| match &item.kind {
        RealtimeItemKind::Output { call, text } => Some((call.to_string(), text.clone())),
        _ => None,
    };
    history.items().iter().filter_map(output).collect()
}

async fn journalled_history(journal: &MemoryJournal) -> RealtimeHistory {
    let entries = RealtimeJournal::load(journal, &"talk".into()).await.expect("is read");
    ReplayedSession::replay(&entries).expect("is valid").history
}

/// Asserts that the report, the journal and the events have the same outputs.
async fn assert_same_outputs(report: &CloseReport, journal: &MemoryJournal, events: &[RealtimeEvent]) {
    let outputs = call_outputs(&report.history);
    assert_eq!(call_outputs(&journalled_history(journal).await), outputs);
    let text = format!("{events:?}");
    for (call, _) in outputs {
        let added = format!("kind: Output {{ call: CallId(\"{call}\")");
        assert!(text.contains(&added), "no event for the output of `{call}`: {:?}", event_names(events));
    }
}

/// A call settles just before the end, and its sibling never does.
#[tokio::test(start_paused = true)]
async fn outputs_that_settle_while_the_session_ends_are_kept() {
    let (quick, secret, stuck) = (Arc::default(), Arc::default(), Arc::default());
    let (store, journal) = (Arc::new(MemoryStore::default()), MemoryJournal::default());
    let reply =
        LoopbackReply::call("a", "quick", "{}").and_call("b", "stuck", "{}").and_call("c", "hidden", "{}");
    let server = loopback_server([reply]);
    let agent = Agent::new("desk").tools((
        counting_tool("quick", &quick),
        slow_tool("stuck", Duration::from_secs(600), &stuck),
        counting_tool("hidden", &secret).secret_output(),
    ));
    let realtime = builder_with_store(agent, &server, &store).journal(journal.clone());
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Go").await.expect("is there");
    for _ in 0..2 {
        events_until(&mut events, |event| matches!(event, RealtimeEvent::CallSettled { .. })).await;
    }
    let report = session.close().await;
    let seen = remaining_events(events).await;
    let outputs = call_outputs(&report.history);
    assert!(outputs.contains(&("a".to_owned(), "run 1".to_owned())), "{outputs:?}");
    assert!(outputs.contains(&("c".to_owned(), "run 1".to_owned())), "the model's output: {outputs:?}");
    assert_eq!(report.in_doubt, [CallId::from("b")]);
    assert_eq!(outputs.len(), 3, "{outputs:?}");
    let kept = call_outputs(&journalled_history(&journal).await);
    let hidden = |(call, text): &(String, String)| match call.as_str() {
        "c" => (call.clone(), "[secret]".to_owned()),
        _ => (call.clone(), text.clone()),
    };
    assert_eq!(kept, outputs.iter().map(hidden).collect::<Vec<_>>());
    assert_eq!(count_events(&seen, "Closed"), 1);
    assert_eq!(format!("{seen:?}").matches("kind: Output").count(), 3, "{:?}", event_names(&seen));
}

/// Calls that wait for those of the response before were never started.
#[tokio::test(start_paused = true)]
async fn calls_that_never_started_have_an_output() {
    let (looks, stuck) = (Arc::default(), Arc::default());
    let (store, journal) = (Arc::new(MemoryStore::default()), MemoryJournal::default());
    let server =
        loopback_server([LoopbackReply::call("a", "stuck", "{}"), LoopbackReply::call("b", "look", "{}")]);
    let agent = Agent::new("desk").tools((
        counting_tool("look", &looks),
        slow_tool("stuck", Duration::from_secs(600), &stuck).effect(windlass::core::tool::ToolEffect::Pure),
    ));
    let realtime = builder_with_store(agent, &server, &store)
        .journal(journal.clone())
        .settings(windlass_realtime::settings::RealtimeSettings {
            turn_detection: windlass_realtime::settings::TurnDetection::ServerVad(Default::default()),
            ..Default::default()
        })
        .tool_call_mode(ToolCallMode::Blocking);
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Go").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallStarted { .. })).await;
    // The server answers speech by itself, whatever runs.
    for audio in [windlass_realtime::testing::tone(500), vec![0; 24 * 600]] {
        for piece in audio.chunks(480) {
            session
                .send_audio(windlass_realtime::audio::AudioFormat::Pcm24k.encode(piece))
                .expect("is there");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    events_until(&mut events, |event| {
        matches!(event, RealtimeEvent::HistoryChanged(change) if format!("{change:?}").contains("\"look\""))
    })
    .await;
    let report = session.close().await;
    let seen = remaining_events(events).await;
    assert_eq!(run_count(&looks), 0);
    assert_eq!(report.stopped, [CallId::from("a"), CallId::from("b")]);
    let outputs = call_outputs(&report.history);
    assert_eq!(outputs.len(), 2, "{outputs:?}");
    assert!(outputs.iter().all(|(_, text)| text.contains("stopped") || text.contains("session ended")));
    assert_same_outputs(&report, &journal, &seen).await;
}

/// A response that is under way ends with the session, at the part that was heard.
#[tokio::test(start_paused = true)]
async fn a_response_that_is_under_way_ends_with_the_session() {
    let (runs, journal) = (Arc::default(), MemoryJournal::default());
    let store = Arc::new(MemoryStore::default());
    let story = "Once upon a time there was a windlass that hauled a heavy load up a steep hill.";
    let server = loopback_server([LoopbackReply::call("a", "look", "{}").and_message(story).with_speed(1)]);
    let agent = Agent::new("desk").tools(counting_tool("look", &runs));
    let realtime =
        builder_with_store(agent, &server, &store).journal(journal.clone()).max_concurrent_calls(1);
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Go").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Audio(_))).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let report = session.close().await;
    let seen = remaining_events(events).await;
    let ends = |event: &&RealtimeEvent| {
        matches!(event, RealtimeEvent::TurnEnded { status: ResponseStatus::Unknown, .. })
    };
    assert_eq!(seen.iter().filter(ends).count(), 1, "{:?}", event_names(&seen));
    assert_eq!(run_count(&runs), 0, "the response was not complete");
    let history = journalled_history(&journal).await;
    assert_eq!(history, report.history);
    let cut = history.items().iter().find(|item| item.status == RealtimeItemStatus::Interrupted);
    let said = cut.map(|item| item.text()).unwrap_or_default();
    assert!(!said.is_empty() && said.len() < story.len() && story.starts_with(&said), "{said:?}");
    assert_same_outputs(&report, &journal, &seen).await;
    assert_eq!(call_outputs(&report.history).len(), 1);
}
