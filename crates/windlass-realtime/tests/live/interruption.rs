//! Interruptions: an interrupted model stops, and unheard speech is removed from the history.

use std::sync::Arc;
use std::time::Duration;

use windlass::guardrail::{GuardrailVerdict, OutputGuardrail};
use windlass::prelude::*;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::settings::{RealtimeSettings, ServerTurnActions, ServerVad, TurnDetection};
use windlass_realtime::testing::{FaultTrigger, LoopbackReply, WireFault, tone};
use windlass_realtime::{
    AudioRelease, PlaybackSource, RealtimeContentPart, RealtimeEvent, RealtimeItemStatus, RealtimeSession,
    RealtimeSessionBuilder,
};

use crate::support::*;

fn guide_agent() -> Agent {
    Agent::new("guide")
}

fn server_vad_settings(turns: ServerTurnActions) -> RealtimeSettings {
    RealtimeSettings {
        turn_detection: TurnDetection::ServerVad(ServerVad { server_actions: turns, ..ServerVad::default() }),
        ..RealtimeSettings::default()
    }
}

/// Sends speech in real time, in chunks of 20 ms like a microphone.
async fn send_speech(session: &RealtimeSession, samples: &[i16], format: AudioFormat) {
    for piece in samples.chunks(format.sample_rate() as usize / 50) {
        session.send_audio(format.encode(piece)).expect("is there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const STORY: &str =
    "Once upon a time there was a windlass that hauled a heavy load up a steep hill, turn by turn.";

#[tokio::test(start_paused = true)]
async fn speech_is_heard_answered_and_interrupts() {
    let server =
        loopback_server([LoopbackReply::message(STORY).with_speed(2), LoopbackReply::message("Yes?")]);
    let realtime = RealtimeSessionBuilder::new(guide_agent(), server.client_model())
        .settings(server_vad_settings(ServerTurnActions::default()));
    let (session, mut events) = start_session(realtime).await;
    send_speech(&session, &tone(800), AudioFormat::Pcm24k).await;
    send_speech(&session, &vec![0; 24 * 600], AudioFormat::Pcm24k).await;
    let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::Audio(_))).await;
    let order: Vec<String> = event_names(&seen)
        .into_iter()
        .filter(|name| name.starts_with("Speech") || name == "TurnStarted")
        .collect();
    assert_eq!(order, ["SpeechStarted", "SpeechStopped", "TurnStarted"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    send_speech(&session, &tone(500), AudioFormat::Pcm24k).await;
    let seen = turn_events(&mut events).await;
    assert_eq!(count_events(&seen, "AudioInterrupted"), 1, "{:?}", event_names(&seen));
    let cut = seen
        .iter()
        .position(|event| matches!(event, RealtimeEvent::AudioInterrupted { .. }))
        .expect("is there");
    assert_eq!(count_events(&seen[cut..], "Audio"), 0, "speech of an interrupted answer is passed on");
    let truncated = server.client_events(Some("conversation.item.truncate"));
    assert_eq!(truncated.len(), 1);
    let heard = truncated[0]["audio_end_ms"].as_u64().expect("a number");
    assert!((1900..3200).contains(&heard), "{heard}");
    assert_eq!(count_events(&seen, "Error"), 0, "{seen:?}");
    // The server cancelled the response by itself; the session sent no cancel.
    assert_eq!(server.client_events(Some("response.cancel")).len(), 0);
    let history = session.history().await.expect("is there");
    let item =
        history.items().iter().find(|item| item.status == RealtimeItemStatus::Interrupted).expect("is there");
    let text = item.text();
    assert!(STORY.starts_with(&text) && text.len() < STORY.len() && text.len() > 20, "{text:?}");
}

/// Speech that waits for its guardrails has not been heard: it is dropped when the user speaks.
#[tokio::test(start_paused = true)]
async fn speech_that_was_interrupted_before_its_release_is_never_played() {
    let server =
        loopback_server([LoopbackReply::message(STORY).with_speed(2), LoopbackReply::message("Yes?")]);
    let passes = OutputGuardrail::new("passes", |_, _| async { Ok(GuardrailVerdict::Pass) });
    let realtime = RealtimeSessionBuilder::new(guide_agent().output_guardrail(passes), server.client_model())
        .settings(server_vad_settings(ServerTurnActions::default()))
        .guardrail_debounce(10_000)
        .audio_release(AudioRelease::AfterGuardrails);
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Go").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::OutputTextDelta { .. })).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    send_speech(&session, &tone(500), AudioFormat::Pcm24k).await;
    let seen = turn_events(&mut events).await;
    assert_eq!(count_events(&seen, "Audio"), 0, "{:?}", event_names(&seen));
    let cut = |event: &&RealtimeEvent| matches!(event, RealtimeEvent::AudioInterrupted { heard_ms: 0, .. });
    assert_eq!(seen.iter().filter(cut).count(), 1, "{:?}", event_names(&seen));
    let truncated = server.client_events(Some("conversation.item.truncate"));
    assert_eq!(truncated.iter().map(|event| event["audio_end_ms"].as_u64()).collect::<Vec<_>>(), [Some(0)]);
    let history = session.history().await.expect("is there");
    let cut = history.items().iter().find(|item| item.status == RealtimeItemStatus::Interrupted);
    assert_eq!(cut.map(|item| item.text()), Some(String::new()), "nothing of it was heard");
    // The next response is heard.
    send_speech(&session, &vec![0; 24 * 600], AudioFormat::Pcm24k).await;
    let seen = turn_events(&mut events).await;
    assert!(count_events(&seen, "Audio") > 0, "{:?}", event_names(&seen));
}

/// Late speech of a response that was stopped before its first word is not played, so it counts neither as heard nor as
/// still playing.
#[tokio::test(start_paused = true)]
async fn speech_that_is_never_played_does_not_delay_the_next_answer() {
    let server =
        loopback_server([LoopbackReply::message(STORY).with_speed(10), LoopbackReply::message(STORY)]);
    server.inject_fault(WireFault::drop_event(FaultTrigger::on_receive("response.cancel")));
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    session.send_text("Go").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::TurnStarted { .. })).await;
    session.interrupt().await.expect("is there");
    let seen = turn_events(&mut events).await;
    assert_eq!((count_events(&seen, "Audio"), count_events(&seen, "AudioInterrupted")), (0, 0), "{seen:?}");
    session.send_text("Again").await.expect("is there");
    turn_events(&mut events).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    session.interrupt().await.expect("is there");
    let seen =
        events_until(&mut events, |event| matches!(event, RealtimeEvent::AudioInterrupted { .. })).await;
    let Some(RealtimeEvent::AudioInterrupted { heard_ms, .. }) = seen.last() else { panic!("{seen:?}") };
    assert!((1900..2200).contains(heard_ms), "{heard_ms}");
    let truncated = server.client_events(Some("conversation.item.truncate"));
    let heard: Vec<Option<u64>> = truncated.iter().map(|event| event["audio_end_ms"].as_u64()).collect();
    assert_eq!(heard, [Some(0), Some(*heard_ms)]);
    let history = session.history().await.expect("is there");
    let spoken: Vec<String> = history
        .items()
        .iter()
        .filter(|item| item.status == RealtimeItemStatus::Interrupted)
        .map(|item| item.text())
        .collect();
    assert_eq!(spoken.len(), 2, "{spoken:?}");
    assert!(spoken[0].is_empty() && spoken[1].starts_with("Once upon"), "{spoken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_stop_by_itself_is_told_to() {
    let server = loopback_server([LoopbackReply::message(STORY).with_speed(4)]);
    let turns = ServerTurnActions { create_response: true, interrupt_response: false };
    let (session, mut events) = start_session(
        RealtimeSessionBuilder::new(guide_agent(), server.client_model())
            .settings(server_vad_settings(turns)),
    )
    .await;
    session.send_text("Go").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Audio(_))).await;
    send_speech(&session, &tone(300), AudioFormat::Pcm24k).await;
    let seen = turn_events(&mut events).await;
    assert_eq!(count_events(&seen, "AudioInterrupted"), 1, "{:?}", event_names(&seen));
    assert_eq!(server.client_events(Some("response.cancel")).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn speaking_when_nothing_plays_interrupts_nothing() {
    let server = loopback_server([LoopbackReply::message("Hi.")]);
    let realtime = RealtimeSessionBuilder::new(guide_agent(), server.client_model())
        .settings(server_vad_settings(ServerTurnActions::default()));
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Go").await.expect("is there");
    turn_events(&mut events).await;
    // The response has been heard to its end.
    tokio::time::sleep(Duration::from_secs(10)).await;
    for _ in 0..3 {
        send_speech(&session, &tone(200), AudioFormat::Pcm24k).await;
        send_speech(&session, &vec![0; 24 * 600], AudioFormat::Pcm24k).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    session.close().await;
    let seen = remaining_events(events).await;
    assert_eq!(
        (count_events(&seen, "AudioInterrupted"), count_events(&seen, "Error")),
        (0, 0),
        "{:?}",
        event_names(&seen)
    );
    assert_eq!(server.client_events(Some("conversation.item.truncate")).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_application_interrupts_at_what_it_has_played() {
    let server = loopback_server([LoopbackReply::message(STORY)]);
    let realtime = RealtimeSessionBuilder::new(guide_agent(), server.client_model())
        .playback_source(PlaybackSource::Reported);
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Go").await.expect("is there");
    let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::TurnEnded { .. })).await;
    let Some(RealtimeEvent::Audio(chunk)) =
        seen.iter().find(|event| matches!(event, RealtimeEvent::Audio(_)))
    else {
        panic!("there is speech");
    };
    session.report_played(&chunk.item, chunk.content_index, 1234).await.expect("is there");
    // A reported position beyond the received speech counts as its end.
    session.interrupt().await.expect("is there");
    let seen =
        events_until(&mut events, |event| matches!(event, RealtimeEvent::AudioInterrupted { .. })).await;
    assert!(matches!(seen.last(), Some(RealtimeEvent::AudioInterrupted { heard_ms: 1234, .. })));
    session.interrupt().await.expect("is there");
    let history = session.history().await.expect("is there");
    let windlass_realtime::RealtimeItemKind::Message { parts, .. } = &history.items()[1].kind else {
        panic!("a message")
    };
    let RealtimeContentPart::Audio { transcript: Some(text), heard_ms: Some(1234) } = &parts[0] else {
        panic!("{parts:?}")
    };
    assert_eq!(text, "Once upon a time");
    assert_eq!(server.client_events(Some("conversation.item.truncate")).len(), 1);
    // The response had ended, so there was nothing to cancel.
    assert_eq!(server.client_events(Some("response.cancel")).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_heard_is_never_more_than_what_came() {
    let server = loopback_server([
        LoopbackReply::message("Hello.").with_delay(Duration::from_secs(1)),
        LoopbackReply::message("Good."),
    ]);
    let realtime = RealtimeSessionBuilder::new(guide_agent(), server.client_model())
        .playback_source(PlaybackSource::Reported);
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Go").await.expect("is there");
    let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::Audio(_))).await;
    let Some(RealtimeEvent::Audio(chunk)) = seen.last() else { panic!("there is speech") };
    session.report_played(&chunk.item, chunk.content_index, 999_999).await.expect("is there");
    session.interrupt().await.expect("is there");
    turn_events(&mut events).await;
    session.close().await;
    let seen = remaining_events(events).await;
    assert_eq!(count_events(&seen, "Error"), 0, "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn the_application_takes_turns_where_it_wants_to() {
    let settings =
        RealtimeSettings { turn_detection: TurnDetection::Application, ..RealtimeSettings::default() };
    let server = loopback_server([LoopbackReply::message("I heard you.")]);
    let (session, mut events) =
        start_session(RealtimeSessionBuilder::new(guide_agent(), server.client_model()).settings(settings))
            .await;
    send_speech(&session, &tone(500), AudioFormat::Pcm24k).await;
    session.commit_audio().await.expect("is there");
    turn_events(&mut events).await;
    let history = session.history().await.expect("is there");
    let said: Vec<String> = history.items().iter().map(|item| item.text()).collect();
    assert_eq!(said, ["500 ms of speech", "I heard you."]);
    // Too little audio for a message: the provider rejects it, and the session goes on.
    session.clear_audio().await.expect("is there");
    session.commit_audio().await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Error(_))).await;
}

#[tokio::test(start_paused = true)]
async fn telephones_are_understood() {
    for format in [AudioFormat::Ulaw, AudioFormat::Alaw] {
        let settings = RealtimeSettings {
            input_audio_format: Some(format),
            output_audio_format: Some(format),
            ..server_vad_settings(ServerTurnActions::default())
        };
        let server = loopback_server([LoopbackReply::message("Hello.")]);
        let (session, mut events) = start_session(
            RealtimeSessionBuilder::new(guide_agent(), server.client_model()).settings(settings),
        )
        .await;
        let speech = windlass_realtime::audio::resample(&tone(600), 24_000, 8_000);
        send_speech(&session, &speech, format).await;
        send_speech(&session, &vec![0; 8 * 600], format).await;
        let seen = turn_events(&mut events).await;
        let bytes: usize = seen
            .iter()
            .filter_map(|event| match event {
                RealtimeEvent::Audio(chunk) => Some(chunk.bytes.len()),
                _ => None,
            })
            .sum();
        assert_eq!(format.duration_ms(bytes as u64), 6 * 60);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_connection_loses_the_oldest_audio_and_says_how_much() {
    let server = loopback_server([]);
    let (session, _events) =
        start_session(RealtimeSessionBuilder::new(guide_agent(), server.client_model()).audio_buffer(4))
            .await;
    for _ in 0..2000 {
        let _ = session.send_audio(vec![0; 960]);
    }
    let metrics = session.metrics().await.expect("is there");
    assert!(metrics.dropped_input_chunks > 0, "{metrics:?}");
    assert!(!session.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_slow_watcher_loses_the_oldest_speech_and_nothing_else() {
    let server = loopback_server([LoopbackReply::message(STORY.repeat(4))]);
    let (session, mut events) =
        start_session(RealtimeSessionBuilder::new(guide_agent(), server.client_model()).event_buffer(64))
            .await;
    let mut other = session.events();
    session.send_text("Go").await.expect("is there");
    turn_events(&mut other).await;
    let seen = turn_events(&mut events).await;
    let Some(RealtimeEvent::Lagged { dropped_audio, .. }) = seen.first() else {
        panic!("{:?}", event_names(&seen))
    };
    assert!(*dropped_audio > 0);
    assert!(session.metrics().await.expect("is there").dropped_output_chunks > 0);
}

/// Calls that wait for the end of their response are not made if somebody stops the response, whether its end is reported
/// or not.
#[tokio::test(start_paused = true)]
async fn calls_of_a_stopped_response_do_not_run_if_its_end_is_lost() {
    type Loss = fn() -> WireFault;
    let losses: [Loss; 2] = [
        || WireFault::drop_event(FaultTrigger::on_send("response.done")),
        || WireFault::drop_connection(FaultTrigger::on_receive("response.cancel")),
    ];
    for (place, loss) in losses.into_iter().enumerate() {
        let runs = Arc::default();
        let reply = LoopbackReply::call("c1", "look", "{}").and_message(STORY).with_speed(1);
        let server = loopback_server([reply]);
        server.inject_fault(loss());
        let agent = guide_agent().tools(counting_tool("look", &runs));
        let builder = RealtimeSessionBuilder::new(agent, server.client_model()).max_concurrent_calls(1);
        let (session, mut events) = start_session(builder).await;
        session.send_text("Go").await.expect("is there");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::Audio(_))).await;
        session.interrupt().await.expect("is there");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(run_count(&runs), 0, "{place}");
        let history = session.history().await.expect("is there");
        let output = history.call_output(&"c1".into()).map(|item| item.text()).unwrap_or_default();
        assert!(output.contains("not made"), "{place}: {output}");
    }
}
