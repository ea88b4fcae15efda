//! Three defects that were reproduced in another implementation. Each of these tests fails on its behaviour.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::guardrail::{OutputGuardrail, Verdict};
use windlass::prelude::*;
use windlass_realtime::settings::{LiveSettings, SilenceDetection, TurnDetection};
use windlass_realtime::testing::{Fault, Moment, Reply, tone};
use windlass_realtime::{FollowUp, LiveEvent, Realtime};

use crate::support::*;

/// There: an answer shorter than the threshold was never shown to a guardrail, and all of it was heard.
#[tokio::test(start_paused = true)]
async fn short_answers_are_checked() {
    let looks = Arc::new(AtomicU32::new(0));
    let counting = looks.clone();
    let objects = OutputGuardrail::new("objects", move |_, _| {
        counting.fetch_add(1, Ordering::Relaxed);
        async { Ok(Verdict::Trip) }
    });
    let server = server([Reply::say("Okay, I will stop talking.").paced(1)]);
    let agent = Agent::new("guide").output_guardrail(objects);
    let (session, mut events) =
        enter(Realtime::new(agent, server.model()).follow_up(FollowUp::Nothing)).await;
    session.say("Stop").await.expect("is there");
    let seen = turn(&mut events).await;
    assert_eq!((ran(&looks), count(&seen, "GuardrailTripped")), (1, 1), "{:?}", named(&seen));
}

/// There: a turn of the user began while the answer to a tool's result was being asked for. The provider said that an
/// answer is under way; the other answer was taken for the one that was asked for, and the result was never spoken.
#[tokio::test(start_paused = true)]
async fn the_result_of_a_tool_is_spoken_though_a_turn_of_the_user_comes_first() {
    let ended = Arc::default();
    let server = server([
        Reply::call("c1", "slow", "{}"),
        // The user's own turn, which begins at the same moment, and knows nothing of the result.
        Reply::say("One moment, please.").paced(1),
    ]);
    let agent = Agent::new("desk").tools(slow("slow", Duration::from_millis(1900), &ended));
    let settings = LiveSettings {
        turns: TurnDetection::Silence(SilenceDetection::default()),
        ..LiveSettings::default()
    };
    // The provider's word that the user's turn has begun is late, so the question crosses it on the way.
    server.fault(Fault::delay(Moment::sending("response.created"), Duration::from_millis(700)).after(1));
    server.fault(Fault::delay(
        Moment::sending("input_audio_buffer.speech_started"),
        Duration::from_millis(650),
    ));
    let (session, mut events) = enter(Realtime::new(agent, server.model()).settings(settings)).await;
    session.say("Look it up").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::CallStarted { .. })).await;
    let mut speech = tone(1000);
    speech.extend(vec![0; 24 * 700]);
    for piece in speech.chunks(480) {
        session.hear(windlass_realtime::audio::AudioFormat::Pcm24k.encode(piece)).expect("is there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    session.close().await;
    rest(events).await;
    let refused = server
        .seen()
        .iter()
        .filter(|seen| seen.event["error"]["code"] == "conversation_already_has_active_response")
        .count();
    let report = session.close().await;
    let last = report.history.items().last().map(|item| item.text());
    assert_eq!(last, Some("The result is done".to_owned()), "{refused} questions were refused");
    assert_eq!(output_of(&server, "c1"), ["done"]);
}

/// There: after an interruption the history kept the whole answer, of which the user had heard the beginning.
#[tokio::test(start_paused = true)]
async fn history_does_not_keep_what_was_never_heard() {
    let story =
        "Long ago, in a harbour far away, an old sailor told the longest story that anybody had ever heard.";
    let server = server([Reply::say(story)]);
    let (session, mut events) = connected(Agent::new("guide"), &server).await;
    session.say("Tell me a story").await.expect("is there");
    turn(&mut events).await;
    // All of it has come; a second and a half of its six have been heard.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    session.interrupt().await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::AudioInterrupted { .. })).await;
    let history = session.history().await.expect("is there");
    let kept = history.items()[1].text();
    assert_eq!(kept, "Long ago, in a harbour");
    let export = history.to_items();
    assert!(!format!("{export:?}").contains("sailor"));
}
