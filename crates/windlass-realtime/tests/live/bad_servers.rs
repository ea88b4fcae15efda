//! Servers that loop, refuse, renumber, forget or never finish: a session stays within its bounds, keeps its
//! configuration, and gives every call its output.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::guardrail::{GuardrailVerdict, OutputGuardrail};
use windlass::prelude::*;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::model::ResponseStatus;
use windlass_realtime::settings::{RealtimeSettings, ServerVad, TurnDetection};
use windlass_realtime::testing::{FaultTrigger, LoopbackReply, LoopbackServer, WireFault, tone};
use windlass_realtime::{
    CloseReason, RealtimeError, RealtimeEvent, RealtimeSession, RealtimeSessionBuilder, ReconnectPolicy,
    SessionRequestError, SessionStartError,
};

use crate::support::*;

fn guide_agent() -> Agent {
    Agent::new("guide").instructions("Guide.")
}

/// Returns the instructions of the configurations that were sent, with their connections.
fn sent_instructions(server: &LoopbackServer) -> Vec<(u64, String)> {
    let is_it = |seen: &windlass_realtime::testing::WireRecord| seen.event["type"] == "session.update";
    let told = |seen: windlass_realtime::testing::WireRecord| {
        let instructions = seen.event["session"]["instructions"].as_str().unwrap_or_default().to_owned();
        (seen.connection, instructions)
    };
    server.wire_log().into_iter().filter(is_it).map(told).collect()
}

fn speech_settings() -> RealtimeSettings {
    RealtimeSettings {
        turn_detection: TurnDetection::ServerVad(ServerVad::default()),
        ..RealtimeSettings::default()
    }
}

async fn start_speaking(session: &RealtimeSession) {
    for chunk in tone(300).chunks(480) {
        session.send_audio(AudioFormat::Pcm24k.encode(chunk)).expect("is there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The server drops the connection at every request: the session neither reconnects nor asks without end.
#[tokio::test(start_paused = true)]
async fn a_server_that_dies_at_every_request_is_left_after_a_bound() {
    let server = loopback_server([]);
    let (session, events) = connect_agent(guide_agent(), &server).await;
    server.inject_fault(WireFault::drop_connection(FaultTrigger::on_receive("response.create")).repeated());
    session.send_text("First").await.expect("is there");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(server.client_events(Some("response.create")).len(), 3, "one demand is asked for three times");
    for number in 0..20 {
        if session.send_text(format!("again {number}")).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let report = session.wait_closed().await;
    assert!(matches!(&report.reason, CloseReason::ConnectionLost(_)), "{:?}", report.reason);
    assert!(server.connection_count() <= 7, "{} connections", server.connection_count());
    let seen = remaining_events(events).await;
    let is_given_up = |event: &RealtimeEvent| {
        matches!(event, RealtimeEvent::Error(RealtimeError::ResponseAbandoned { attempts: 3, .. }))
    };
    assert!(seen.iter().any(is_given_up), "{:?}", event_names(&seen));
}

/// Connections that succeed and are lost at once count within the window, and each attempt waits longer.
#[tokio::test(start_paused = true)]
async fn connections_that_succeed_and_die_count_within_the_window() {
    let server = loopback_server([]);
    let policy = ReconnectPolicy { max_attempts: 4, ..ReconnectPolicy::default() };
    let (session, events) = start_session(
        RealtimeSessionBuilder::new(guide_agent(), server.client_model()).reconnect_policy(policy),
    )
    .await;
    server.inject_fault(
        WireFault::drop_connection(FaultTrigger::on_send("session.updated")).after_occurrences(0).repeated(),
    );
    let began = tokio::time::Instant::now();
    server.drop_connections();
    assert!(matches!(session.wait_closed().await.reason, CloseReason::ConnectionLost(_)));
    assert_eq!(server.connection_count(), 5);
    // 200, 400, 800 and 1,600 ms on the simulated clock.
    assert_eq!(began.elapsed().as_millis() / 100, 30);
    remaining_events(events).await;
    // Outside the window, attempts are forgotten.
    let server = loopback_server([]);
    let (session, _events) = start_session(
        RealtimeSessionBuilder::new(guide_agent(), server.client_model()).reconnect_policy(policy),
    )
    .await;
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_secs(30)).await;
        server.drop_connections();
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!session.is_closed());
}

/// The acknowledgement of a change is lost, and that of the configuration before it comes late: neither is taken for the
/// other.
#[tokio::test(start_paused = true)]
async fn an_acknowledgement_is_taken_for_its_own_configuration_only() {
    let back = Agent::new("back").instructions("Back.");
    // The change is never handled, and the restored configuration is acknowledged: the change has failed.
    let server = loopback_server([]);
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    server.inject_fault(WireFault::drop_event(FaultTrigger::on_receive("session.update")));
    let refused = session.update_agent(back.clone()).await;
    assert!(matches!(refused, Err(SessionRequestError::AgentChange { .. })), "{refused:?}");
    // The next change is refused, while an acknowledgement of the restored configuration comes late.
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.inject_fault(WireFault::duplicate_event(FaultTrigger::on_send("session.updated")));
    server.inject_fault(WireFault::reject_event("session.update", "invalid_value"));
    let other = Agent::new("other").instructions("Other.");
    let refused = session.update_agent(other.clone()).await;
    assert!(matches!(refused, Err(SessionRequestError::AgentChange { .. })), "{refused:?}");
    // A change whose acknowledgement is delayed beyond the timeout fails, and its late acknowledgement changes nothing.
    server.clear_faults();
    server.inject_fault(WireFault::delay_event(
        FaultTrigger::on_send("session.updated"),
        Duration::from_millis(10_500),
    ));
    let refused = session.update_agent(back.clone()).await;
    assert!(matches!(refused, Err(SessionRequestError::AgentChange { .. })), "{refused:?}");
    // Before that acknowledgement comes, another change is on its way, which the server forgets.
    server.inject_fault(WireFault::drop_event(FaultTrigger::on_receive("session.update")));
    let refused = session.update_agent(other).await;
    assert!(matches!(refused, Err(SessionRequestError::AgentChange { .. })), "{refused:?}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    session.send_text("Who are you?").await.expect("is there");
    let seen = turn_events(&mut events).await;
    assert!(
        matches!(seen.last(), Some(RealtimeEvent::TurnEnded { agent, .. }) if agent.as_str() == "guide"),
        "{:?}",
        event_names(&seen)
    );
    assert_eq!(count_events(&seen, "AgentChanged"), 0);
    let last = sent_instructions(&server).pop();
    assert_eq!(last, Some((1, "Guide.".to_owned())), "the model has the current agent's configuration");
    session.update_agent(back).await.expect("changes");
}

/// Between a change that was not acknowledged and the restored configuration, nothing is asked.
#[tokio::test(start_paused = true)]
async fn nothing_is_asked_while_the_configuration_is_not_certain() {
    // The server says which instructions it has.
    let server = LoopbackServer::with_reply_function(|said| {
        LoopbackReply::message(said.session["instructions"].as_str().unwrap_or_default())
    });
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    // The model applies the change, but its acknowledgement is lost, and so is the restored configuration.
    server.inject_fault(WireFault::drop_event(FaultTrigger::on_send("session.updated")));
    server
        .inject_fault(WireFault::drop_event(FaultTrigger::on_receive("session.update")).after_occurrences(1));
    let refused = session.update_agent(Agent::new("back").instructions("Back.")).await;
    assert!(matches!(refused, Err(SessionRequestError::AgentChange { .. })), "{refused:?}");
    session.send_text("Who are you?").await.expect("is there");
    turn_events(&mut events).await;
    let history = session.history().await.expect("is there");
    assert_eq!(history.items().last().map(|item| item.text()), Some("Guide.".to_owned()));
}

/// A provider keeps the fields that an update does not mention: those of the agent before are reset.
#[tokio::test(start_paused = true)]
async fn nothing_of_the_agent_before_stays_in_the_configuration() {
    let settings = windlass::model::ModelSettings {
        tool_choice: Some(windlass::model::ToolChoice::Required),
        max_tokens: Some(100),
        ..Default::default()
    };
    let server = loopback_server([]);
    let (session, _events) = connect_agent(guide_agent().model_settings(settings), &server).await;
    session.update_agent(Agent::new("plain")).await.expect("changes");
    let sent = server.client_events(Some("session.update"));
    let session = &sent[1]["session"];
    assert_eq!(session["instructions"], "");
    assert_eq!((&session["tool_choice"], &session["max_output_tokens"]), (&json!("auto"), &json!("inf")));
}

/// After a reconnection, a refused configuration ends the session, as it does at entry.
#[tokio::test(start_paused = true)]
async fn a_model_that_refuses_the_configuration_after_a_reconnect_is_not_talked_to() {
    let server = loopback_server([LoopbackReply::message("One.")]);
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    session.send_text("First").await.expect("is there");
    turn_events(&mut events).await;
    server.inject_fault(WireFault::reject_event("session.update", "invalid_value"));
    server.drop_connections();
    let report = session.wait_closed().await;
    assert!(matches!(&report.reason, CloseReason::ConfigurationRejected(_)), "{:?}", report.reason);
    let on_new = server.wire_log().into_iter().filter(|seen| seen.connection == 2);
    assert_eq!(on_new.filter(|seen| seen.event["type"] == "response.create").count(), 0);
    assert_eq!(count_events(&remaining_events(events).await, "Reconnected"), 0);
    // The same refusal at entry.
    let server = loopback_server([]);
    server.inject_fault(WireFault::reject_event("session.update", "invalid_value"));
    let refused = RealtimeSessionBuilder::new(guide_agent(), server.client_model()).connect().await;
    assert!(matches!(refused, Err(SessionStartError::ConfigurationRejected(_))), "{refused:?}");
}

/// After a reconnection, a configuration that is not acknowledged is not believed: the session connects once more.
#[tokio::test(start_paused = true)]
async fn a_configuration_that_is_not_acknowledged_after_a_reconnect_is_sent_on_another_connection() {
    let server = loopback_server([]);
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    server.inject_fault(WireFault::drop_event(FaultTrigger::on_send("session.updated")));
    server.drop_connections();
    session.send_text("Hello?").await.expect("is there");
    let changed = session.update_agent(Agent::new("back").instructions("Back.")).await;
    changed.expect("changes");
    turn_events(&mut events).await;
    assert_eq!(server.connection_count(), 3);
    let asked = server.wire_log().into_iter().find(|seen| seen.event["type"] == "response.create");
    assert_eq!(asked.map(|seen| seen.connection), Some(3));
}

/// A response that the server starts before it has the configuration is cut off and not played.
#[tokio::test(start_paused = true)]
async fn an_answer_without_the_configuration_is_cut_off() {
    let server = loopback_server([LoopbackReply::message("One.")]);
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    server.inject_fault(WireFault::insert_event(
        FaultTrigger::on_receive("session.update"),
        json!({ "type": "response.created", "response": { "id": "resp_rogue", "status": "in_progress" } }),
    ));
    server.inject_fault(WireFault::insert_event(
        FaultTrigger::on_send("session.updated"),
        json!({
            "type": "response.output_text.delta", "response_id": "resp_rogue", "item_id": "rogue",
            "output_index": 0, "content_index": 0, "delta": "I am somebody else.",
        }),
    ));
    server.drop_connections();
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    session.send_text("Hello?").await.expect("is there");
    let seen = turn_events(&mut events).await;
    assert!(matches!(seen.last(), Some(RealtimeEvent::TurnEnded { status: ResponseStatus::Completed, .. })));
    assert_eq!(server.client_events(Some("response.cancel"))[0]["response_id"], "resp_rogue");
    let said = session.close().await.history.items().iter().map(|item| item.text()).collect::<String>();
    assert!(!said.contains("somebody else"), "{said}");
}

/// The user is muted in the middle of a word, or the audio is cleared: the server never says that the speech ended.
#[tokio::test(start_paused = true)]
async fn speech_that_never_ends_holds_nothing_back_for_long_or_in_silence() {
    // Muted: after two seconds without audio.
    let server = loopback_server([]);
    let builder =
        RealtimeSessionBuilder::new(guide_agent(), server.client_model()).settings(speech_settings());
    let (session, mut events) = start_session(builder).await;
    start_speaking(&session).await;
    session.send_text("Typed").await.expect("is there");
    let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::ResponseHeld)).await;
    assert_eq!(count_events(&seen, "SpeechStarted"), 1);
    let began = tokio::time::Instant::now();
    turn_events(&mut events).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());

    // Audio goes on, so that only the bound of the session ends the wait.
    let server = loopback_server([]);
    let builder = RealtimeSessionBuilder::new(guide_agent(), server.client_model())
        .settings(speech_settings())
        .speech_hold(Duration::from_secs(4));
    let (session, mut events) = start_session(builder).await;
    start_speaking(&session).await;
    session.send_text("Typed").await.expect("is there");
    let began = tokio::time::Instant::now();
    let talking = async {
        loop {
            start_speaking(&session).await;
        }
    };
    tokio::select! {
        _ = turn_events(&mut events) => {}
        () = talking => {}
    }
    assert_eq!(began.elapsed().as_secs(), 4);

    // The server says again and again that the user starts to speak.
    let server = loopback_server([]);
    let started = json!({
        "type": "input_audio_buffer.speech_started", "event_id": "event_again", "audio_start_ms": 0,
        "item_id": "item_again",
    });
    let trigger = FaultTrigger::on_send("conversation.item.added");
    server.inject_fault(WireFault::insert_event(trigger, started).repeated());
    let builder = RealtimeSessionBuilder::new(guide_agent(), server.client_model())
        .settings(speech_settings())
        .speech_hold(Duration::from_secs(4));
    let (session, mut events) = start_session(builder).await;
    start_speaking(&session).await;
    session.send_text("Typed").await.expect("is there");
    let began = tokio::time::Instant::now();
    let typing = async {
        for _ in 0..60 {
            start_speaking(&session).await;
            session.send_text("Typed again").await.expect("is there");
        }
    };
    tokio::select! {
        _ = turn_events(&mut events) => {}
        () = typing => {}
    }
    assert_eq!(began.elapsed().as_secs(), 4);

    // Cleared, and forced: at once.
    for force in [false, true] {
        let server = loopback_server([]);
        let builder =
            RealtimeSessionBuilder::new(guide_agent(), server.client_model()).settings(speech_settings());
        let (session, mut events) = start_session(builder).await;
        start_speaking(&session).await;
        session.send_text("Typed").await.expect("is there");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::ResponseHeld)).await;
        let began = tokio::time::Instant::now();
        match force {
            true => session.force_response().await.expect("is there"),
            false => session.clear_audio().await.expect("is there"),
        }
        turn_events(&mut events).await;
        assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    }
}

/// The end of a response with calls is lost with its connection: the call runs once, and its output is on the new
/// connection.
#[tokio::test(start_paused = true)]
async fn a_call_whose_answer_never_ends_gets_its_output() {
    let passes = OutputGuardrail::new("passes", |_, _| async { Ok(GuardrailVerdict::Pass) });
    for agent in [guide_agent(), guide_agent().output_guardrail(passes)] {
        for fault in [
            WireFault::drop_connection(FaultTrigger::on_send("response.done")),
            WireFault::drop_event(FaultTrigger::on_send("response.done")),
            WireFault::half_close(FaultTrigger::on_send("response.done")),
        ] {
            let runs = Arc::default();
            let server = loopback_server([LoopbackReply::call("c1", "look", "{}")]);
            server.inject_fault(fault);
            let (session, _events) =
                connect_agent(agent.clone().tools(counting_tool("look", &runs)), &server).await;
            session.send_text("Look").await.expect("is there");
            tokio::time::sleep(Duration::from_secs(120)).await;
            let report = session.close().await;
            assert_eq!(run_count(&runs), 1);
            let last = report.history.items().last().map(|item| item.text());
            assert_eq!(last, Some("The result is run 1".to_owned()), "{:?}", report.history);
            let connection = server.connection_count();
            let told = |kind: &str| {
                let log = server.wire_log();
                let on_last = log.iter().filter(|seen| seen.connection == connection);
                on_last
                    .filter(|seen| {
                        seen.event["item"]["type"] == kind && seen.event["type"] == "conversation.item.create"
                    })
                    .count()
            };
            if connection > 1 {
                assert_eq!((told("function_call"), told("function_call_output")), (1, 1));
            }
        }
    }
}

/// A call that was never complete is not replayed: nobody would give it an output.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_never_complete_is_forgotten() {
    let runs = Arc::default();
    let server = loopback_server([LoopbackReply::call("c1", "look", "{}"), LoopbackReply::message("Well.")]);
    server.inject_fault(WireFault::drop_connection(FaultTrigger::on_send(
        "response.function_call_arguments.delta",
    )));
    let (session, mut events) =
        connect_agent(guide_agent().tools(counting_tool("look", &runs)), &server).await;
    session.send_text("Look").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    turn_events(&mut events).await;
    let report = session.close().await;
    assert_eq!(run_count(&runs), 0);
    let said: Vec<String> = report.history.items().iter().map(|item| item.text()).collect();
    assert_eq!(said, ["Look", "Well."]);
}

/// Ids restart on each connection and in each answer: the session hears, runs and answers all the same.
#[tokio::test(start_paused = true)]
async fn ids_that_restart_do_not_make_the_session_deaf() {
    let runs = Arc::default();
    let server = LoopbackServer::with_reply_function(|said| match said.new_call_outputs().as_slice() {
        [] => LoopbackReply::message("Let me see.").and_call("call_1", "look", "{}"),
        outputs => LoopbackReply::message(outputs.join(", ")),
    })
    .with_restarting_ids();
    let (session, mut events) =
        connect_agent(guide_agent().tools(counting_tool("look", &runs)), &server).await;
    for number in 1..=3 {
        session.send_text(format!("question {number}")).await.expect("is there");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::CallSettled { .. })).await;
        let seen = turn_events(&mut events).await;
        assert_eq!(count_events(&seen, "Error"), 0, "{:?}", event_names(&seen));
        tokio::time::sleep(Duration::from_secs(10)).await;
        server.drop_connections();
        events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    }
    assert_eq!(run_count(&runs), 3);
    let said: Vec<String> = session.close().await.history.items().iter().map(|item| item.text()).collect();
    let turn = |number: u32| {
        [format!("question {number}"), "Let me see.".to_owned(), String::new()]
            .into_iter()
            .chain([format!("run {number}"), format!("run {number}")])
    };
    assert_eq!(said, (1..=3).flat_map(turn).collect::<Vec<_>>());
}

/// A fast result is told while its slow sibling runs, and tools start before the answer that calls them has ended.
#[tokio::test(start_paused = true)]
async fn calls_start_when_they_are_complete_and_a_fast_one_does_not_wait() {
    let (fast, slow) = (Arc::default(), Arc::default());
    let reply = LoopbackReply::call("a", "slow", "{}")
        .and_call("b", "fast", "{}")
        .and_message("While I wait, let me tell you a story that takes quite some time to tell.")
        .with_speed(1);
    let server = loopback_server([reply]);
    let tools = (
        slow_tool("slow", Duration::from_secs(60), &slow),
        slow_tool("fast", Duration::from_millis(100), &fast),
    );
    let (session, mut events) = connect_agent(guide_agent().tools(tools), &server).await;
    session.send_text("Go").await.expect("is there");
    let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::CallSettled { .. })).await;
    assert_eq!(count_events(&seen, "TurnEnded"), 0, "the answer is still under way");
    turn_events(&mut events).await;
    assert_eq!(sent_outputs(&server, "b"), ["done"]);
    // The fast result has its answer, while the slow one runs.
    turn_events(&mut events).await;
    assert_eq!((run_count(&fast), run_count(&slow)), (1, 0));
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallSettled { .. })).await;
    turn_events(&mut events).await;
    assert_eq!(sent_outputs(&server, "a"), ["done"]);
    assert_one_response_at_a_time(&server);
}

/// An error that names no event is matched with the one command that it can mean, and does not wait out a timeout.
#[tokio::test(start_paused = true)]
async fn errors_without_an_event_id_are_matched_or_told_at_once() {
    let server = loopback_server([]);
    server.inject_fault(WireFault::reject_anonymously("session.update", "invalid_value"));
    let began = tokio::time::Instant::now();
    let refused = RealtimeSessionBuilder::new(guide_agent(), server.client_model()).connect().await;
    assert!(
        matches!(&refused, Err(SessionStartError::ConfigurationRejected(why)) if why.contains("as the test")),
        "{refused:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());

    let server = loopback_server([]);
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    let began = tokio::time::Instant::now();
    server.inject_fault(WireFault::reject_anonymously("session.update", "invalid_value"));
    let refused = session.update_agent(Agent::new("back")).await;
    assert!(matches!(refused, Err(SessionRequestError::AgentChange { .. })), "{refused:?}");
    server.inject_fault(WireFault::reject_anonymously("response.create", "server_error"));
    session.send_text("Hello?").await.expect("is there");
    events_until(&mut events, |event| {
        matches!(event, RealtimeEvent::Error(RealtimeError::Provider { code, .. }) if code == "server_error")
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// A connection that is lost after the first sound of an answer: the question is asked again.
#[tokio::test(start_paused = true)]
async fn an_answer_that_the_connection_cut_off_is_asked_for_again() {
    let server = loopback_server([
        LoopbackReply::message("Once upon a time.").with_speed(1),
        LoopbackReply::message("Again."),
    ]);
    server.inject_fault(
        WireFault::drop_connection(FaultTrigger::on_send("response.output_audio.delta")).after_occurrences(1),
    );
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    session.send_text("Tell me").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    turn_events(&mut events).await;
    assert_eq!(server.client_events(Some("response.create")).len(), 2);
    // An answer that was complete but for its end event is not asked for again.
    let server = loopback_server([LoopbackReply::message("Once.")]);
    server.inject_fault(WireFault::drop_connection(FaultTrigger::on_send("response.done")));
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    session.send_text("Tell me").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.client_events(Some("response.create")).len(), 1);
    // Neither is one that the user had cut off.
    let server = loopback_server([LoopbackReply::message("Once upon a time there was.").with_speed(1)]);
    server.inject_fault(WireFault::drop_connection(FaultTrigger::on_receive("response.cancel")));
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    session.send_text("Tell me").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Audio(_))).await;
    session.interrupt().await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.client_events(Some("response.create")).len(), 1);
}

/// The longest durations are settings like any other.
#[tokio::test(start_paused = true)]
async fn any_duration_is_a_setting() {
    for long in [Duration::MAX, Duration::from_secs(u64::MAX / 4), Duration::ZERO] {
        let runs = Arc::default();
        let server = loopback_server([LoopbackReply::call("c1", "look", "{}")]);
        let model = server.client_model().pings(long, Some(long));
        let policy = ReconnectPolicy { max_attempts: 3, window: long, initial_delay: long, max_delay: long };
        let builder = RealtimeSessionBuilder::new(guide_agent().tools(counting_tool("look", &runs)), model)
            .guardrail_timeout(long)
            .drain_timeout(long.min(Duration::from_secs(1)))
            .response_timeouts(long, long)
            .speech_hold(long)
            .approvals_expire_after(long)
            .lease_duration(long)
            .close_timeout(long)
            .reconnect_policy(policy);
        let builder = if long.is_zero() { builder } else { builder.ready_timeout(long) };
        let (session, mut events) = start_session(builder).await;
        session.send_text("Go").await.expect("is there");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::TurnEnded { .. })).await;
        session.close().await;
        assert!(run_count(&runs) <= 1);
    }
}

/// A session that ends in an orderly way completes the closing handshake, also if the server has more to say.
#[tokio::test]
async fn the_server_sees_an_orderly_close() {
    use futures_util::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::Message;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("listens");
    let address = listener.local_addr().expect("has one");
    let closed = Arc::new(AtomicU32::new(0));
    let seen_code = closed.clone();
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("accepts");
        let mut socket = tokio_tungstenite::accept_async(stream).await.expect("upgrades");
        let updated =
            json!({ "type": "session.updated", "session": { "instructions": "Guide.", "tools": [] } });
        while let Some(Ok(message)) = socket.next().await {
            match message {
                Message::Text(text) if text.contains("session.update") => {
                    socket.send(Message::text(updated.to_string())).await.expect("sends");
                }
                Message::Text(_) => {
                    // More than the client will have read when it closes.
                    for _ in 0..200 {
                        let event = json!({ "type": "moon.rising", "padding": "x".repeat(4096) });
                        socket.send(Message::text(event.to_string())).await.expect("sends");
                    }
                }
                Message::Close(frame) => {
                    let code = frame.map_or(0, |frame| u16::from(frame.code));
                    seen_code.store(u32::from(code), Ordering::SeqCst);
                    // The reply, and then the client ends the connection.
                    while socket.next().await.is_some() {}
                    return true;
                }
                _ => {}
            }
        }
        false
    });
    let model = windlass_realtime::openai::OpenAiRealtime::with_url(format!("ws://{address}/v1/realtime"));
    // This test runs in real time, on machines that may be busy.
    let long = Duration::from_secs(300);
    let builder = RealtimeSessionBuilder::new(guide_agent(), model).ready_timeout(long).close_timeout(long);
    let session = builder.connect().await.expect("connects");
    session.send_text("Hello").await.expect("is there");
    let report = session.close().await;
    assert_eq!(report.close_error, None);
    let is_orderly = tokio::time::timeout(long, serving).await.expect("ends");
    assert!(is_orderly.expect("does not panic"), "the connection was reset");
    assert_eq!(closed.load(Ordering::SeqCst), 1000);
}

/// An output is rejected just before the connection is lost: the session waits for the new one without spinning.
#[tokio::test(start_paused = true)]
async fn an_output_that_was_rejected_before_a_loss_is_sent_on_the_new_connection() {
    let runs = Arc::default();
    let server = loopback_server([LoopbackReply::call("c1", "look", "{}")]);
    server.inject_fault(
        WireFault::reject_event("conversation.item.create", "server_error").after_occurrences(1),
    );
    let (session, mut events) =
        connect_agent(guide_agent().tools(counting_tool("look", &runs)), &server).await;
    session.send_text("Look").await.expect("is there");
    events_until(&mut events, |event| {
        matches!(event, RealtimeEvent::Error(RealtimeError::OutputRejected { .. }))
    })
    .await;
    server.refuse_connections(4);
    server.drop_connections();
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let report = session.close().await;
    assert_eq!(run_count(&runs), 1);
    assert_eq!(report.history.items().last().map(|item| item.text()), Some("The result is run 1".to_owned()));
}
