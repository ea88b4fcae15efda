//! Three defects that were reproduced in another implementation. Each test fails on that behaviour.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::guardrail::{GuardrailVerdict, OutputGuardrail};
use windlass::prelude::*;
use windlass_realtime::settings::{RealtimeSettings, ServerVad, TurnDetection};
use windlass_realtime::testing::{FaultTrigger, LoopbackReply, WireFault, tone};
use windlass_realtime::{GuardrailFollowUp, RealtimeEvent, RealtimeSessionBuilder};

use crate::support::*;

/// The defect: a response shorter than the threshold was never checked by a guardrail, and all of it was heard.
#[tokio::test(start_paused = true)]
async fn short_answers_are_checked() {
    let looks = Arc::new(AtomicU32::new(0));
    let counting = looks.clone();
    let objects = OutputGuardrail::new("objects", move |_, _| {
        counting.fetch_add(1, Ordering::Relaxed);
        async { Ok(GuardrailVerdict::Tripwire) }
    });
    let server = loopback_server([LoopbackReply::message("Okay, I will stop talking.").with_speed(1)]);
    let agent = Agent::new("guide").output_guardrail(objects);
    let (session, mut events) = start_session(
        RealtimeSessionBuilder::new(agent, server.client_model())
            .guardrail_follow_up(GuardrailFollowUp::NoMessage),
    )
    .await;
    session.send_text("Stop").await.expect("is there");
    let seen = turn_events(&mut events).await;
    assert_eq!(
        (run_count(&looks), count_events(&seen, "GuardrailTripped")),
        (1, 1),
        "{:?}",
        event_names(&seen)
    );
}

/// The defect: the user's turn started a response while the response to a tool's result was being requested.
/// The provider rejected the request because a response was active; the other response was taken for the
/// requested one, and the result was never spoken.
#[tokio::test(start_paused = true)]
async fn the_result_of_a_tool_is_spoken_though_a_turn_of_the_user_comes_first() {
    let ended = Arc::default();
    let server = loopback_server([
        LoopbackReply::call("c1", "slow", "{}"),
        // The user's own turn, which starts at the same moment and does not know the result.
        LoopbackReply::message("One moment, please.").with_speed(1),
    ]);
    let agent = Agent::new("desk").tools(slow_tool("slow", Duration::from_millis(1900), &ended));
    let settings = RealtimeSettings {
        turn_detection: TurnDetection::ServerVad(ServerVad::default()),
        ..RealtimeSettings::default()
    };
    // The start event of the user's turn is late, so the request crosses it on the wire.
    server.inject_fault(
        WireFault::delay_event(FaultTrigger::on_send("response.created"), Duration::from_millis(700))
            .after_occurrences(1),
    );
    server.inject_fault(WireFault::delay_event(
        FaultTrigger::on_send("input_audio_buffer.speech_started"),
        Duration::from_millis(650),
    ));
    let (session, mut events) =
        start_session(RealtimeSessionBuilder::new(agent, server.client_model()).settings(settings)).await;
    session.send_text("Look it up").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallStarted { .. })).await;
    let mut speech = tone(1000);
    speech.extend(vec![0; 24 * 700]);
    for piece in speech.chunks(480) {
        session.send_audio(windlass_realtime::audio::AudioFormat::Pcm24k.encode(piece)).expect("is there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    session.close().await;
    remaining_events(events).await;
    let refused = server
        .wire_log()
        .iter()
        .filter(|seen| seen.event["error"]["code"] == "conversation_already_has_active_response")
        .count();
    let report = session.close().await;
    let last = report.history.items().last().map(|item| item.text());
    assert_eq!(last, Some("The result is done".to_owned()), "{refused} questions were refused");
    assert_eq!(sent_outputs(&server, "c1"), ["done"]);
}

/// The defect: after an interruption the history kept the whole response, of which the user had heard the
/// start.
#[tokio::test(start_paused = true)]
async fn history_does_not_keep_what_was_never_heard() {
    let story =
        "Long ago, in a harbour far away, an old sailor told the longest story that anybody had ever heard.";
    let server = loopback_server([LoopbackReply::message(story)]);
    let (session, mut events) = connect_agent(Agent::new("guide"), &server).await;
    session.send_text("Tell me a story").await.expect("is there");
    turn_events(&mut events).await;
    // All six seconds have been received, and one and a half have been heard.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    session.interrupt().await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::AudioInterrupted { .. })).await;
    let history = session.history().await.expect("is there");
    let kept = history.items()[1].text();
    assert_eq!(kept, "Long ago, in a harbour");
    let export = history.to_items();
    assert!(!format!("{export:?}").contains("sailor"));
}
