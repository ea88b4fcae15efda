//! Guardrails look at what is said: now and then, and always at the end.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::guardrail::{OutputGuardrail, Verdict};
use windlass::prelude::*;
use windlass_realtime::testing::Reply;
use windlass_realtime::{AudioRelease, FollowUp, LiveError, LiveEvent, OnGuardrailFailure, Realtime};

use crate::support::*;

type Looks = Arc<Mutex<Vec<String>>>;

/// Objects to a word, and remembers what it saw.
fn against(word: &'static str, looks: &Looks) -> OutputGuardrail {
    let looks = looks.clone();
    OutputGuardrail::new(&format!("no {word}"), move |_, text: Arc<str>| {
        looks.lock().expect("is not poisoned").push(text.to_string());
        let verdict = if text.contains(word) { Verdict::Trip } else { Verdict::Pass };
        async move { Ok(verdict) }
    })
}

fn seen(looks: &Looks) -> Vec<usize> {
    looks.lock().expect("is not poisoned").iter().map(|text| text.chars().count()).collect()
}

fn guide() -> Agent {
    Agent::new("guide")
}

#[tokio::test(start_paused = true)]
async fn they_look_when_enough_was_said_and_at_the_end() {
    let looks = Looks::default();
    let server = server([Reply::say("word ".repeat(50)).paced(1), Reply::say("Short.")]);
    let (session, mut events) =
        connected(guide().output_guardrail(against("nothing", &looks)), &server).await;
    session.say("Go").await.expect("is there");
    turn(&mut events).await;
    let lengths = seen(&looks);
    // Two thresholds of a hundred letters, and the end at 250.
    assert_eq!(lengths.len(), 3, "{lengths:?}");
    assert!(lengths[0] >= 100 && lengths[0] < 110 && lengths[1] >= 200 && lengths[1] < 210, "{lengths:?}");
    assert_eq!(lengths[2], 250);
    session.say("Again").await.expect("is there");
    turn(&mut events).await;
    assert_eq!(seen(&looks).last(), Some(&6));
    let metrics = session.metrics().await.expect("is there");
    assert_eq!(metrics.trips, 0);
}

#[tokio::test(start_paused = true)]
async fn a_trip_is_marked_told_stopped_and_followed_up_in_this_order() {
    let looks = Looks::default();
    let server =
        server([Reply::say(format!("secret {}", "word ".repeat(60))).paced(1), Reply::say("Sorry.")]);
    let agent = guide().output_guardrail(against("secret", &looks));
    let (session, mut events) = connected(agent, &server).await;
    session.say("Go").await.expect("is there");
    let first = turn(&mut events).await;
    let second = turn(&mut events).await;
    let order: Vec<String> = named(&first)
        .into_iter()
        .chain(named(&second))
        .filter(|name| {
            ["GuardrailTripped", "AudioInterrupted", "TurnEnded", "TurnStarted"].contains(&name.as_str())
        })
        .collect();
    assert_eq!(
        order,
        ["TurnStarted", "GuardrailTripped", "AudioInterrupted", "TurnEnded", "TurnStarted", "TurnEnded"]
    );
    let trip = first.iter().position(|event| matches!(event, LiveEvent::GuardrailTripped { .. }));
    let after = &first[trip.expect("tripped")..];
    assert_eq!(count(after, "Audio"), 0, "speech came after the trip");
    assert_eq!(
        (server.said(Some("response.cancel")).len(), server.said(Some("response.create")).len()),
        (1, 2)
    );
    let told = server.said(Some("conversation.item.create"));
    let told: Vec<&str> =
        told.iter().filter_map(|event| event["item"]["content"][0]["text"].as_str()).collect();
    assert_eq!(told, ["Go", "guardrail triggered: no secret"]);
    one_at_a_time(&server);
    assert_eq!(session.metrics().await.expect("is there").trips, 1);
}

#[tokio::test(start_paused = true)]
async fn several_that_object_at_once_are_one_trip() {
    let (one, two) = (Looks::default(), Looks::default());
    // Both take their time, so that several looks are under way when the first objects.
    let slowly = |name: &'static str, looks: &Looks| {
        let looks = looks.clone();
        OutputGuardrail::new(name, move |_, text: Arc<str>| {
            looks.lock().expect("is not poisoned").push(text.to_string());
            async move {
                tokio::time::sleep(Duration::from_millis(900)).await;
                Ok(if text.contains("word") { Verdict::Trip } else { Verdict::Pass })
            }
        })
    };
    let server = server([Reply::say("word ".repeat(100)).paced(30), Reply::say("Sorry.")]);
    let agent = guide().output_guardrail(slowly("a", &one)).output_guardrail(slowly("b", &two));
    let realtime =
        Realtime::new(agent, server.model()).debounce(50).follow_up(FollowUp::Say("Stop that.".into()));
    let (session, mut events) = enter(realtime).await;
    session.say("Go").await.expect("is there");
    let seen = until(&mut events, |event| matches!(event, LiveEvent::GuardrailTripped { .. })).await;
    assert!(
        matches!(seen.last(), Some(LiveEvent::GuardrailTripped { guardrails, .. }) if guardrails.len() == 2)
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    session.close().await;
    let all = rest(events).await;
    assert_eq!(count(&all, "GuardrailTripped"), 0, "{:?}", named(&all));
    let told = server.said(Some("conversation.item.create"));
    let stops = told.iter().filter(|event| event["item"]["content"][0]["text"] == "Stop that.").count();
    assert!(one.lock().expect("is not poisoned").len() > 3);
    assert_eq!(stops, 1);
    one_at_a_time(&server);
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_panics_or_hangs_is_told_of_and_the_session_goes_on() {
    let fails = OutputGuardrail::new("fails", |_, _| async { Err("no idea".into()) });
    let panics = OutputGuardrail::new("panics", |_, _| async { panic!("oh no") });
    for (guardrail, policy, trips) in [
        (fails.clone(), OnGuardrailFailure::Skip, 0),
        (panics, OnGuardrailFailure::Skip, 0),
        (fails, OnGuardrailFailure::Trip, 1),
    ] {
        let server = server([Reply::say("Hello."), Reply::say("Hello again.")]);
        let realtime = Realtime::new(guide().output_guardrail(guardrail), server.model())
            .on_guardrail_failure(policy)
            .follow_up(FollowUp::Nothing);
        let (session, mut events) = enter(realtime).await;
        session.say("Hi").await.expect("is there");
        let seen = turn(&mut events).await;
        let told = |event: &LiveEvent| matches!(event, LiveEvent::Error(LiveError::Guardrail { .. }));
        assert_eq!(seen.iter().filter(|event| told(event)).count(), 1, "{:?}", named(&seen));
        assert_eq!(count(&seen, "GuardrailTripped"), trips);
        session.say("And?").await.expect("is there");
        turn(&mut events).await;
    }
    let hangs = OutputGuardrail::new("hangs", |_, _| std::future::pending());
    let server = server([Reply::say("Hello.")]);
    let realtime = Realtime::new(guide().output_guardrail(hangs), server.model())
        .guardrail_timeout(Duration::from_secs(1));
    let (session, mut events) = enter(realtime).await;
    session.say("Hi").await.expect("is there");
    let seen = turn(&mut events).await;
    assert_eq!(count(&seen, "Error"), 1, "{:?}", named(&seen));
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_is_stopped_when_the_session_closes() {
    let stopped = Arc::new(AtomicU32::new(0));
    struct OnDrop(Arc<AtomicU32>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let counting = stopped.clone();
    let hangs = OutputGuardrail::new("hangs", move |_, _| {
        let guard = OnDrop(counting.clone());
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    });
    let server = server([Reply::say("Hello.")]);
    let (session, mut events) = connected(guide().output_guardrail(hangs), &server).await;
    session.say("Hi").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::AudioEnded { .. })).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    session.close().await;
    assert_eq!(ran(&stopped), 1);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_the_last_look_and_do_not_run_where_it_objects() {
    let (runs, looks) = (Arc::default(), Looks::default());
    let server = server([Reply::say("A secret.").and_call("c1", "look", "{}"), Reply::say("Sorry.")]);
    let agent = guide().tools(counted("look", &runs)).output_guardrail(against("secret", &looks));
    let (session, mut events) = connected(agent, &server).await;
    session.say("Go").await.expect("is there");
    turn(&mut events).await;
    turn(&mut events).await;
    assert_eq!(ran(&runs), 0);
    assert_eq!(output_of(&server, "c1").len(), 1, "the call has its output all the same");
}

#[tokio::test(start_paused = true)]
async fn speech_can_be_held_until_it_was_looked_at() {
    let looks = Looks::default();
    let server = server([Reply::say("A secret."), Reply::say("Hello."), Reply::say("Hello.")]);
    let agent = guide().output_guardrail(against("secret", &looks));
    let realtime = Realtime::new(agent, server.model()).audio_release(AudioRelease::Checked);
    let (session, mut events) = enter(realtime).await;
    session.say("Go").await.expect("is there");
    let first = turn(&mut events).await;
    assert_eq!((count(&first, "Audio"), count(&first, "GuardrailTripped")), (0, 1), "{:?}", named(&first));
    let second = turn(&mut events).await;
    assert!(count(&second, "Audio") > 0, "{:?}", named(&second));
}

#[tokio::test(start_paused = true)]
async fn one_that_objects_too_late_stops_what_plays_and_leaves_the_newer_answer_alone() {
    let late = OutputGuardrail::new("late", |_, text: Arc<str>| async move {
        if !text.contains("old") {
            return Ok(Verdict::Pass);
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(Verdict::Trip)
    });
    let server = server([
        Reply::say(
            "the old answer, which is rather a long one to listen to, so it plays on for quite some time",
        ),
        Reply::say("the new answer is long too, so that it is still under way").paced(1),
    ]);
    let (session, mut events) = connected(guide().output_guardrail(late), &server).await;
    session.say("One").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::AudioEnded { .. })).await;
    session.say("Two").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::GuardrailTripped { .. })).await;
    let seen = turn(&mut events).await;
    assert!(count(&seen, "AudioInterrupted") <= 1, "{:?}", named(&seen));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.said(Some("response.cancel")).len(), 0);
    let told = server.said(Some("conversation.item.create"));
    assert_eq!(told.len(), 2, "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_always_objected_to_is_not_argued_with_for_ever() {
    let objects = OutputGuardrail::new("objects", |_, _| async { Ok(Verdict::Trip) });
    let server = server([]);
    let (session, events) = connected(guide().output_guardrail(objects), &server).await;
    session.say("Hi").await.expect("is there");
    tokio::time::sleep(Duration::from_secs(600)).await;
    session.close().await;
    assert_eq!(count(&rest(events).await, "GuardrailTripped"), 4);
    assert_eq!(server.said(Some("response.create")).len(), 4);
}
