//! Output guardrails check the transcript at intervals, and always at the end of a response.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::guardrail::{GuardrailVerdict, OutputGuardrail};
use windlass::prelude::*;
use windlass_realtime::testing::LoopbackReply;
use windlass_realtime::{
    AudioRelease, GuardrailFailurePolicy, GuardrailFollowUp, RealtimeError, RealtimeEvent,
    RealtimeSessionBuilder,
};

use crate::support::*;

type CheckedTexts = Arc<Mutex<Vec<String>>>;

/// Creates a guardrail that forbids a word and records the texts it checked.
pub(crate) fn forbid_word(word: &'static str, looks: &CheckedTexts) -> OutputGuardrail {
    let looks = looks.clone();
    OutputGuardrail::new(&format!("no {word}"), move |_, text: Arc<str>| {
        looks.lock().expect("is not poisoned").push(text.to_string());
        let verdict = if text.contains(word) { GuardrailVerdict::Tripwire } else { GuardrailVerdict::Pass };
        async move { Ok(verdict) }
    })
}

fn checked_lengths(looks: &CheckedTexts) -> Vec<usize> {
    looks.lock().expect("is not poisoned").iter().map(|text| text.chars().count()).collect()
}

fn guide_agent() -> Agent {
    Agent::new("guide")
}

#[tokio::test(start_paused = true)]
async fn they_look_when_enough_was_said_and_at_the_end() {
    let looks = CheckedTexts::default();
    let server = loopback_server([
        LoopbackReply::message("word ".repeat(50)).with_speed(1),
        LoopbackReply::message("Short."),
    ]);
    let (session, mut events) =
        connect_agent(guide_agent().output_guardrail(forbid_word("nothing", &looks)), &server).await;
    session.send_text("Go").await.expect("is there");
    turn_events(&mut events).await;
    let lengths = checked_lengths(&looks);
    // Two checks at the thresholds of 100 characters, and one at the end at 250.
    assert_eq!(lengths.len(), 3, "{lengths:?}");
    assert!(lengths[0] >= 100 && lengths[0] < 110 && lengths[1] >= 200 && lengths[1] < 210, "{lengths:?}");
    assert_eq!(lengths[2], 250);
    session.send_text("Again").await.expect("is there");
    turn_events(&mut events).await;
    assert_eq!(checked_lengths(&looks).last(), Some(&6));
    let metrics = session.metrics().await.expect("is there");
    assert_eq!(metrics.guardrail_trips, 0);
}

#[tokio::test(start_paused = true)]
async fn a_trip_is_marked_told_stopped_and_followed_up_in_this_order() {
    let looks = CheckedTexts::default();
    let server = loopback_server([
        LoopbackReply::message(format!("secret {}", "word ".repeat(60))).with_speed(1),
        LoopbackReply::message("Sorry."),
    ]);
    let agent = guide_agent().output_guardrail(forbid_word("secret", &looks));
    let (session, mut events) = connect_agent(agent, &server).await;
    session.send_text("Go").await.expect("is there");
    let first = turn_events(&mut events).await;
    let second = turn_events(&mut events).await;
    let order: Vec<String> = event_names(&first)
        .into_iter()
        .chain(event_names(&second))
        .filter(|name| {
            ["GuardrailTripped", "AudioInterrupted", "TurnEnded", "TurnStarted"].contains(&name.as_str())
        })
        .collect();
    assert_eq!(
        order,
        ["TurnStarted", "GuardrailTripped", "AudioInterrupted", "TurnEnded", "TurnStarted", "TurnEnded"]
    );
    let trip = first.iter().position(|event| matches!(event, RealtimeEvent::GuardrailTripped { .. }));
    let after = &first[trip.expect("tripped")..];
    assert_eq!(count_events(after, "Audio"), 0, "speech came after the trip");
    assert_eq!(
        (
            server.client_events(Some("response.cancel")).len(),
            server.client_events(Some("response.create")).len()
        ),
        (1, 2)
    );
    let told = server.client_events(Some("conversation.item.create"));
    let told: Vec<&str> =
        told.iter().filter_map(|event| event["item"]["content"][0]["text"].as_str()).collect();
    assert_eq!(told, ["Go", "guardrail triggered: no secret"]);
    assert_one_response_at_a_time(&server);
    assert_eq!(session.metrics().await.expect("is there").guardrail_trips, 1);
}

#[tokio::test(start_paused = true)]
async fn several_that_object_at_once_are_one_trip() {
    let (one, two) = (CheckedTexts::default(), CheckedTexts::default());
    // Both are slow, so that several checks are in progress when the first one trips.
    let slowly = |name: &'static str, looks: &CheckedTexts| {
        let looks = looks.clone();
        OutputGuardrail::new(name, move |_, text: Arc<str>| {
            looks.lock().expect("is not poisoned").push(text.to_string());
            async move {
                tokio::time::sleep(Duration::from_millis(900)).await;
                Ok(if text.contains("word") { GuardrailVerdict::Tripwire } else { GuardrailVerdict::Pass })
            }
        })
    };
    let server = loopback_server([
        LoopbackReply::message("word ".repeat(100)).with_speed(30),
        LoopbackReply::message("Sorry."),
    ]);
    let agent = guide_agent().output_guardrail(slowly("a", &one)).output_guardrail(slowly("b", &two));
    let realtime = RealtimeSessionBuilder::new(agent, server.client_model())
        .guardrail_debounce(50)
        .guardrail_follow_up(GuardrailFollowUp::CustomMessage("Stop that.".into()));
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Go").await.expect("is there");
    let seen =
        events_until(&mut events, |event| matches!(event, RealtimeEvent::GuardrailTripped { .. })).await;
    assert!(
        matches!(seen.last(), Some(RealtimeEvent::GuardrailTripped { guardrails, .. }) if guardrails.len() == 2)
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    session.close().await;
    let all = remaining_events(events).await;
    assert_eq!(count_events(&all, "GuardrailTripped"), 0, "{:?}", event_names(&all));
    let told = server.client_events(Some("conversation.item.create"));
    let stops = told.iter().filter(|event| event["item"]["content"][0]["text"] == "Stop that.").count();
    assert!(one.lock().expect("is not poisoned").len() > 3);
    assert_eq!(stops, 1);
    assert_one_response_at_a_time(&server);
}

/// One that trips does not wait for another that hangs, and is not forgotten with it.
#[tokio::test(start_paused = true)]
async fn one_that_trips_beside_one_that_hangs_trips_at_once() {
    let hangs = OutputGuardrail::new("hangs", |_, _| std::future::pending());
    let trips = OutputGuardrail::new("trips", |_, _| async { Ok(GuardrailVerdict::Tripwire) });
    let server = loopback_server([LoopbackReply::message("Hello.")]);
    let agent = guide_agent().output_guardrail(hangs).output_guardrail(trips);
    let realtime = RealtimeSessionBuilder::new(agent, server.client_model())
        .guardrail_timeout(Duration::from_secs(60))
        .guardrail_follow_up(GuardrailFollowUp::NoMessage);
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Hi").await.expect("is there");
    let began = tokio::time::Instant::now();
    let seen = turn_events(&mut events).await;
    let tripped: Vec<&[String]> = seen
        .iter()
        .filter_map(|event| match event {
            RealtimeEvent::GuardrailTripped { guardrails, .. } => Some(guardrails.as_slice()),
            _ => None,
        })
        .collect();
    assert_eq!(tripped, [["trips".to_owned()]]);
    // The clock of the test is paused.
    assert!(began.elapsed() < Duration::from_secs(30), "the trip waited for {:?}", began.elapsed());
    assert_eq!(count_events(&seen, "Error"), 0, "{:?}", event_names(&seen));
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_panics_or_hangs_is_told_of_and_the_session_goes_on() {
    let fails = OutputGuardrail::new("fails", |_, _| async { Err("no idea".into()) });
    let panics = OutputGuardrail::new("panics", |_, _| async { panic!("oh no") });
    for (guardrail, policy, trips) in [
        (fails.clone(), GuardrailFailurePolicy::Skip, 0),
        (panics, GuardrailFailurePolicy::Skip, 0),
        (fails, GuardrailFailurePolicy::Trip, 1),
    ] {
        let server =
            loopback_server([LoopbackReply::message("Hello."), LoopbackReply::message("Hello again.")]);
        let realtime =
            RealtimeSessionBuilder::new(guide_agent().output_guardrail(guardrail), server.client_model())
                .guardrail_failure_policy(policy)
                .guardrail_follow_up(GuardrailFollowUp::NoMessage);
        let (session, mut events) = start_session(realtime).await;
        session.send_text("Hi").await.expect("is there");
        let seen = turn_events(&mut events).await;
        let told = |event: &RealtimeEvent| {
            matches!(event, RealtimeEvent::Error(RealtimeError::GuardrailFailed { .. }))
        };
        assert_eq!(seen.iter().filter(|event| told(event)).count(), 1, "{:?}", event_names(&seen));
        assert_eq!(count_events(&seen, "GuardrailTripped"), trips);
        session.send_text("And?").await.expect("is there");
        turn_events(&mut events).await;
    }
    let hangs = OutputGuardrail::new("hangs", |_, _| std::future::pending());
    let server = loopback_server([LoopbackReply::message("Hello.")]);
    let realtime = RealtimeSessionBuilder::new(guide_agent().output_guardrail(hangs), server.client_model())
        .guardrail_timeout(Duration::from_secs(1));
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Hi").await.expect("is there");
    let seen = turn_events(&mut events).await;
    assert_eq!(count_events(&seen, "Error"), 1, "{:?}", event_names(&seen));
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_is_stopped_when_the_session_closes() {
    let stopped = Arc::new(AtomicU32::new(0));
    struct DropRecorder(Arc<AtomicU32>);
    impl Drop for DropRecorder {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let counting = stopped.clone();
    let hangs = OutputGuardrail::new("hangs", move |_, _| {
        let guard = DropRecorder(counting.clone());
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    });
    let server = loopback_server([LoopbackReply::message("Hello.")]);
    let (session, mut events) = connect_agent(guide_agent().output_guardrail(hangs), &server).await;
    session.send_text("Hi").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::AudioEnded { .. })).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    session.close().await;
    assert_eq!(run_count(&stopped), 1);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_the_last_look_and_do_not_run_where_it_objects() {
    let (runs, looks) = (Arc::default(), CheckedTexts::default());
    let server = loopback_server([
        LoopbackReply::message("A secret.").and_call("c1", "look", "{}"),
        LoopbackReply::message("Sorry."),
    ]);
    let agent =
        guide_agent().tools(counting_tool("look", &runs)).output_guardrail(forbid_word("secret", &looks));
    let (session, mut events) = connect_agent(agent, &server).await;
    session.send_text("Go").await.expect("is there");
    turn_events(&mut events).await;
    turn_events(&mut events).await;
    assert_eq!(run_count(&runs), 0);
    assert_eq!(sent_outputs(&server, "c1").len(), 1, "the call has its output all the same");
}

#[tokio::test(start_paused = true)]
async fn speech_can_be_held_until_it_was_looked_at() {
    let looks = CheckedTexts::default();
    let server = loopback_server([
        LoopbackReply::message("A secret."),
        LoopbackReply::message("Hello."),
        LoopbackReply::message("Hello."),
    ]);
    let agent = guide_agent().output_guardrail(forbid_word("secret", &looks));
    let realtime = RealtimeSessionBuilder::new(agent, server.client_model())
        .audio_release(AudioRelease::AfterGuardrails);
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Go").await.expect("is there");
    let first = turn_events(&mut events).await;
    assert_eq!(
        (count_events(&first, "Audio"), count_events(&first, "GuardrailTripped")),
        (0, 1),
        "{:?}",
        event_names(&first)
    );
    let second = turn_events(&mut events).await;
    assert!(count_events(&second, "Audio") > 0, "{:?}", event_names(&second));
}

#[tokio::test(start_paused = true)]
async fn one_that_objects_too_late_stops_what_plays_and_leaves_the_newer_answer_alone() {
    let late = OutputGuardrail::new("late", |_, text: Arc<str>| async move {
        if !text.contains("old") {
            return Ok(GuardrailVerdict::Pass);
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(GuardrailVerdict::Tripwire)
    });
    let server = loopback_server([
        LoopbackReply::message(
            "the old answer, which is rather a long one to listen to, so it plays on for quite some time",
        ),
        LoopbackReply::message("the new answer is long too, so that it is still under way").with_speed(1),
    ]);
    let (session, mut events) = connect_agent(guide_agent().output_guardrail(late), &server).await;
    session.send_text("One").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::AudioEnded { .. })).await;
    session.send_text("Two").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::GuardrailTripped { .. })).await;
    let seen = turn_events(&mut events).await;
    assert!(count_events(&seen, "AudioInterrupted") <= 1, "{:?}", event_names(&seen));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.client_events(Some("response.cancel")).len(), 0);
    let told = server.client_events(Some("conversation.item.create"));
    assert_eq!(told.len(), 2, "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_always_objected_to_is_not_argued_with_for_ever() {
    let objects = OutputGuardrail::new("objects", |_, _| async { Ok(GuardrailVerdict::Tripwire) });
    let server = loopback_server([]);
    let (session, events) = connect_agent(guide_agent().output_guardrail(objects), &server).await;
    session.send_text("Hi").await.expect("is there");
    tokio::time::sleep(Duration::from_secs(600)).await;
    session.close().await;
    assert_eq!(count_events(&remaining_events(events).await, "GuardrailTripped"), 4);
    assert_eq!(server.client_events(Some("response.create")).len(), 4);
}
