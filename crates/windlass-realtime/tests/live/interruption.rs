//! Who is interrupted stops, and what was not heard was not said.

use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::settings::{LiveSettings, ServerTurns, SilenceDetection, TurnDetection};
use windlass_realtime::testing::{Reply, tone};
use windlass_realtime::{ItemStatus, LiveEvent, LiveSession, Part, PlaybackSource, Realtime};

use crate::support::*;

fn guide() -> Agent {
    Agent::new("guide")
}

fn by_silence(turns: ServerTurns) -> LiveSettings {
    LiveSettings {
        turns: TurnDetection::Silence(SilenceDetection { turns, ..SilenceDetection::default() }),
        ..LiveSettings::default()
    }
}

/// Speaks for so long, in pieces of 20 ms as a microphone gives them.
async fn speak(session: &LiveSession, samples: &[i16], format: AudioFormat) {
    for piece in samples.chunks(format.rate() as usize / 50) {
        session.hear(format.encode(piece)).expect("is there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const STORY: &str =
    "Once upon a time there was a windlass that hauled a heavy load up a steep hill, turn by turn.";

#[tokio::test(start_paused = true)]
async fn speech_is_heard_answered_and_interrupts() {
    let server = server([Reply::say(STORY).paced(2), Reply::say("Yes?")]);
    let realtime = Realtime::new(guide(), server.model()).settings(by_silence(ServerTurns::default()));
    let (session, mut events) = enter(realtime).await;
    speak(&session, &tone(800), AudioFormat::Pcm24k).await;
    speak(&session, &vec![0; 24 * 600], AudioFormat::Pcm24k).await;
    let seen = until(&mut events, |event| matches!(event, LiveEvent::Audio(_))).await;
    let order: Vec<String> =
        named(&seen).into_iter().filter(|name| name.starts_with("Speech") || name == "TurnStarted").collect();
    assert_eq!(order, ["SpeechStarted", "SpeechStopped", "TurnStarted"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    speak(&session, &tone(500), AudioFormat::Pcm24k).await;
    let seen = turn(&mut events).await;
    assert_eq!(count(&seen, "AudioInterrupted"), 1, "{:?}", named(&seen));
    let cut =
        seen.iter().position(|event| matches!(event, LiveEvent::AudioInterrupted { .. })).expect("is there");
    assert_eq!(count(&seen[cut..], "Audio"), 0, "speech of an interrupted answer is passed on");
    let truncated = server.said(Some("conversation.item.truncate"));
    assert_eq!(truncated.len(), 1);
    let heard = truncated[0]["audio_end_ms"].as_u64().expect("a number");
    assert!((1900..3200).contains(&heard), "{heard}");
    assert_eq!(count(&seen, "Error"), 0, "{seen:?}");
    // The server stopped it by itself, and was not told to.
    assert_eq!(server.said(Some("response.cancel")).len(), 0);
    let history = session.history().await.expect("is there");
    let item = history.items().iter().find(|item| item.status == ItemStatus::Interrupted).expect("is there");
    let text = item.text();
    assert!(STORY.starts_with(&text) && text.len() < STORY.len() && text.len() > 20, "{text:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_stop_by_itself_is_told_to() {
    let server = server([Reply::say(STORY).paced(4)]);
    let turns = ServerTurns { answers: true, interrupts: false };
    let (session, mut events) =
        enter(Realtime::new(guide(), server.model()).settings(by_silence(turns))).await;
    session.say("Go").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::Audio(_))).await;
    speak(&session, &tone(300), AudioFormat::Pcm24k).await;
    let seen = turn(&mut events).await;
    assert_eq!(count(&seen, "AudioInterrupted"), 1, "{:?}", named(&seen));
    assert_eq!(server.said(Some("response.cancel")).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn speaking_when_nothing_plays_interrupts_nothing() {
    let server = server([Reply::say("Hi.")]);
    let realtime = Realtime::new(guide(), server.model()).settings(by_silence(ServerTurns::default()));
    let (session, mut events) = enter(realtime).await;
    session.say("Go").await.expect("is there");
    turn(&mut events).await;
    // It has been heard to its end.
    tokio::time::sleep(Duration::from_secs(10)).await;
    for _ in 0..3 {
        speak(&session, &tone(200), AudioFormat::Pcm24k).await;
        speak(&session, &vec![0; 24 * 600], AudioFormat::Pcm24k).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    session.close().await;
    let seen = rest(events).await;
    assert_eq!((count(&seen, "AudioInterrupted"), count(&seen, "Error")), (0, 0), "{:?}", named(&seen));
    assert_eq!(server.said(Some("conversation.item.truncate")).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_application_interrupts_at_what_it_has_played() {
    let server = server([Reply::say(STORY)]);
    let realtime = Realtime::new(guide(), server.model()).playback(PlaybackSource::Reported);
    let (session, mut events) = enter(realtime).await;
    session.say("Go").await.expect("is there");
    let seen = until(&mut events, |event| matches!(event, LiveEvent::TurnEnded { .. })).await;
    let Some(LiveEvent::Audio(chunk)) = seen.iter().find(|event| matches!(event, LiveEvent::Audio(_))) else {
        panic!("there is speech");
    };
    session.played(&chunk.item, chunk.content, 1234).await.expect("is there");
    // More than there is counts as what there is.
    session.interrupt().await.expect("is there");
    let seen = until(&mut events, |event| matches!(event, LiveEvent::AudioInterrupted { .. })).await;
    assert!(matches!(seen.last(), Some(LiveEvent::AudioInterrupted { heard_ms: 1234, .. })));
    session.interrupt().await.expect("is there");
    let history = session.history().await.expect("is there");
    let windlass_realtime::LiveItemKind::Message { parts, .. } = &history.items()[1].kind else {
        panic!("a message")
    };
    let Part::Audio { transcript: Some(text), heard_ms: Some(1234) } = &parts[0] else { panic!("{parts:?}") };
    assert_eq!(text, "Once upon a time");
    assert_eq!(server.said(Some("conversation.item.truncate")).len(), 1);
    // The answer was over, so there was nothing to cancel.
    assert_eq!(server.said(Some("response.cancel")).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_heard_is_never_more_than_what_came() {
    let server = server([Reply::say("Hello.").after(Duration::from_secs(1)), Reply::say("Good.")]);
    let realtime = Realtime::new(guide(), server.model()).playback(PlaybackSource::Reported);
    let (session, mut events) = enter(realtime).await;
    session.say("Go").await.expect("is there");
    let seen = until(&mut events, |event| matches!(event, LiveEvent::Audio(_))).await;
    let Some(LiveEvent::Audio(chunk)) = seen.last() else { panic!("there is speech") };
    session.played(&chunk.item, chunk.content, 999_999).await.expect("is there");
    session.interrupt().await.expect("is there");
    turn(&mut events).await;
    session.close().await;
    let seen = rest(events).await;
    assert_eq!(count(&seen, "Error"), 0, "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn the_application_takes_turns_where_it_wants_to() {
    let settings = LiveSettings { turns: TurnDetection::Application, ..LiveSettings::default() };
    let server = server([Reply::say("I heard you.")]);
    let (session, mut events) = enter(Realtime::new(guide(), server.model()).settings(settings)).await;
    speak(&session, &tone(500), AudioFormat::Pcm24k).await;
    session.commit_audio().await.expect("is there");
    turn(&mut events).await;
    let history = session.history().await.expect("is there");
    let said: Vec<String> = history.items().iter().map(|item| item.text()).collect();
    assert_eq!(said, ["500 ms of speech", "I heard you."]);
    // Too little to be a message: the provider objects, and the session goes on.
    session.clear_audio().await.expect("is there");
    session.commit_audio().await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::Error(_))).await;
}

#[tokio::test(start_paused = true)]
async fn telephones_are_understood() {
    for format in [AudioFormat::Ulaw, AudioFormat::Alaw] {
        let settings = LiveSettings {
            input_format: format,
            output_format: format,
            ..by_silence(ServerTurns::default())
        };
        let server = server([Reply::say("Hello.")]);
        let (session, mut events) = enter(Realtime::new(guide(), server.model()).settings(settings)).await;
        let speech = windlass_realtime::audio::resample(&tone(600), 24_000, 8_000);
        speak(&session, &speech, format).await;
        speak(&session, &vec![0; 8 * 600], format).await;
        let seen = turn(&mut events).await;
        let bytes: usize = seen
            .iter()
            .filter_map(|event| match event {
                LiveEvent::Audio(chunk) => Some(chunk.bytes.len()),
                _ => None,
            })
            .sum();
        assert_eq!(format.millis(bytes as u64), 6 * 60);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_connection_loses_the_oldest_audio_and_says_how_much() {
    let server = server([]);
    let (session, _events) = enter(Realtime::new(guide(), server.model()).audio_buffer(4)).await;
    for _ in 0..2000 {
        let _ = session.hear(vec![0; 960]);
    }
    let metrics = session.metrics().await.expect("is there");
    assert!(metrics.dropped_input > 0, "{metrics:?}");
    assert!(!session.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_slow_watcher_loses_the_oldest_speech_and_nothing_else() {
    let server = server([Reply::say(STORY.repeat(4))]);
    let (session, mut events) = enter(Realtime::new(guide(), server.model()).event_buffer(64)).await;
    let mut other = session.events();
    session.say("Go").await.expect("is there");
    turn(&mut other).await;
    let seen = turn(&mut events).await;
    let Some(LiveEvent::Lagged { audio, .. }) = seen.first() else { panic!("{:?}", named(&seen)) };
    assert!(*audio > 0);
    assert!(session.metrics().await.expect("is there").dropped_output > 0);
}
