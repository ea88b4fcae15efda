//! Servers whose acknowledgements, refusals and errors are ambiguous: the session's agent and the provider's configuration
//! stay the same, or the session ends.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use windlass::prelude::*;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::settings::{RealtimeSettings, ServerVad, TurnDetection};
use windlass_realtime::testing::{FaultTrigger, LoopbackReply, LoopbackServer, WireFault, tone};
use windlass_realtime::{
    CloseReason, RealtimeError, RealtimeEvent, RealtimeSession, RealtimeSessionBuilder, SessionRequestError,
};

use crate::support::*;

fn named_agent(name: &str) -> Agent {
    Agent::new(name).instructions(format!("I am {name}."))
}

/// A server whose answers are the instructions that it has.
fn honest_server() -> LoopbackServer {
    LoopbackServer::with_reply_function(|said| {
        LoopbackReply::message(said.session["instructions"].as_str().unwrap_or_default())
    })
}

fn acknowledgement_of(agent: &str) -> Value {
    json!({ "type": "session.updated", "session": {
        "type": "realtime", "instructions": format!("I am {agent}."), "tools": [],
    } })
}

/// An error that names no event.
fn anonymous_error(parameter: Option<&str>) -> Value {
    json!({ "type": "error", "error": {
        "type": "server_error", "code": "server_error", "message": "something went wrong", "param": parameter,
        "event_id": null,
    } })
}

/// The acknowledgement of the first agent's configuration is repeated while the third agent's is in flight, which the
/// server refuses.
#[tokio::test(start_paused = true)]
async fn an_old_acknowledgement_confirms_no_new_configuration() {
    let server = honest_server();
    let (session, mut events) = connect_agent(named_agent("first"), &server).await;
    session.update_agent(named_agent("second")).await.expect("changes");
    server.inject_fault(WireFault::reject_event("session.update", "invalid_value"));
    server.inject_fault(WireFault::insert_event(FaultTrigger::on_send("error"), acknowledgement_of("first")));
    let refused = session.update_agent(named_agent("third")).await;
    assert!(matches!(refused, Err(SessionRequestError::AgentChange { .. })), "{refused:?}");
    session.send_text("Who are you?").await.expect("is there");
    let seen = turn_events(&mut events).await;
    assert!(
        matches!(seen.last(), Some(RealtimeEvent::TurnEnded { agent, .. }) if agent.as_str() == "second"),
        "{:?}",
        event_names(&seen)
    );
    let history = session.history().await.expect("is there");
    assert_eq!(history.items().last().map(|item| item.text()), Some("I am second.".to_owned()));
}

/// Two configurations that an acknowledgement cannot tell apart: the acknowledgement of the one is repeated, and then the
/// other is refused. The session does not go on with an agent whose configuration the provider does not have.
#[tokio::test(start_paused = true)]
async fn a_refusal_after_an_acknowledgement_ends_the_session() {
    let server = honest_server();
    let (session, _events) = connect_agent(named_agent("first"), &server).await;
    server.inject_fault(WireFault::reject_event("session.update", "invalid_value"));
    server.inject_fault(WireFault::insert_event(FaultTrigger::on_send("error"), acknowledgement_of("first")));
    let settings = windlass::model::ModelSettings { max_tokens: Some(10), ..Default::default() };
    let twin = Agent::new("twin").instructions("I am first.").model_settings(settings);
    let _ = session.update_agent(twin).await;
    let closed = tokio::time::timeout(Duration::from_secs(60), session.wait_closed()).await.expect("ends");
    assert!(matches!(&closed.reason, CloseReason::ConfigurationRejected(_)), "{:?}", closed.reason);
    assert_eq!(server.client_events(Some("response.create")).len(), 0);
}

/// An error about something else arrives while a change is in flight, which the server then applies: the session takes it
/// for a refusal, so it restores the configuration of the agent that stays.
#[tokio::test(start_paused = true)]
async fn an_error_about_something_else_does_not_part_agent_and_configuration() {
    let server = honest_server();
    let (session, mut events) = connect_agent(named_agent("first"), &server).await;
    server.inject_fault(WireFault::insert_event(
        FaultTrigger::on_receive("session.update"),
        anonymous_error(None),
    ));
    let changed = session.update_agent(named_agent("second")).await;
    for _ in 0..2 {
        session.send_text("Who are you?").await.expect("is there");
        let seen = turn_events(&mut events).await;
        let Some(RealtimeEvent::TurnEnded { agent, .. }) = seen.last() else { panic!("{seen:?}") };
        assert_eq!(changed.is_ok(), agent.as_str() == "second");
        let history = session.history().await.expect("is there");
        assert_eq!(history.items().last().map(|item| item.text()), Some(format!("I am {agent}.")));
    }
}

/// An error about some item arrives while the output of a call is not confirmed: the output is told once.
#[tokio::test(start_paused = true)]
async fn an_error_about_something_else_does_not_repeat_an_output() {
    let runs = Arc::default();
    let server = loopback_server([LoopbackReply::call("c1", "look", "{}")]);
    let agent = named_agent("desk").tools(counting_tool("look", &runs));
    let (session, mut events) = connect_agent(agent, &server).await;
    server.inject_fault(
        WireFault::insert_event(
            FaultTrigger::on_receive("conversation.item.create"),
            anonymous_error(Some("item")),
        )
        .after_occurrences(1),
    );
    session.send_text("Look").await.expect("is there");
    turn_events(&mut events).await;
    turn_events(&mut events).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let report = session.close().await;
    assert_eq!((run_count(&runs), sent_outputs(&server, "c1")), (1, vec!["run 1".to_owned()]));
    assert_eq!(report.history.items().last().map(|item| item.text()), Some("The result is run 1".to_owned()));
}

/// On a new connection, the server gives its message the id of an old one, and announces it before the response says that
/// the message is its own: the old message stays.
#[tokio::test(start_paused = true)]
async fn a_restarted_id_that_is_announced_early_replaces_nothing() {
    let server = loopback_server([LoopbackReply::message("The old message.")]);
    let (session, mut events) = connect_agent(named_agent("guide"), &server).await;
    session.send_text("First").await.expect("is there");
    turn_events(&mut events).await;
    let history = session.history().await.expect("is there");
    let old = history.items().last().expect("is there").id.to_string();
    tokio::time::sleep(Duration::from_secs(30)).await;
    server.drop_connections();
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    let item = |status: &str, text: &str| {
        let content = json!([{ "type": "output_audio", "transcript": text }]);
        json!({ "id": old, "type": "message", "role": "assistant", "status": status, "content": content })
    };
    let part = json!({ "response_id": "resp_new", "item_id": old, "output_index": 0, "content_index": 0 });
    let with = |kind: &str, key: &str, value: Value| {
        let mut event = part.clone();
        (event["type"], event[key]) = (kind.into(), value);
        event
    };
    let rogue = [
        json!({ "type": "response.created", "response": { "id": "resp_new", "status": "in_progress" } }),
        json!({ "type": "conversation.item.added", "item": item("in_progress", "") }),
        with("response.output_item.added", "item", item("in_progress", "")),
        with("response.output_audio_transcript.done", "transcript", "The new message.".into()),
        with("response.output_item.done", "item", item("completed", "The new message.")),
        json!({ "type": "conversation.item.done", "item": item("completed", "The new message.") }),
        json!({ "type": "response.done", "response": { "id": "resp_new", "status": "completed", "output": [] } }),
    ];
    let retrieve = json!({ "type": "conversation.item.retrieve", "item_id": "nothing" });
    for event in rogue {
        let trigger = FaultTrigger::on_receive("conversation.item.retrieve");
        server.inject_fault(WireFault::insert_event(trigger, event));
        session.send_raw(retrieve.clone()).await.expect("is there");
    }
    turn_events(&mut events).await;
    let said: Vec<String> = session.close().await.history.items().iter().map(|item| item.text()).collect();
    assert_eq!(said, ["First", "The old message.", "The new message."]);
}

/// On a new connection, the server starts a response before it has the configuration: its items are deleted from the
/// provider's conversation, so that no call of it waits for an output.
#[tokio::test(start_paused = true)]
async fn nothing_of_an_answer_without_the_configuration_stays_at_the_provider() {
    let server = loopback_server([LoopbackReply::message("One.")]);
    let (session, mut events) = connect_agent(named_agent("guide"), &server).await;
    let call = json!({
        "id": "rogue_call", "type": "function_call", "status": "completed", "name": "look", "call_id": "r1",
        "arguments": "{}",
    });
    let rogue = [
        json!({ "type": "response.created", "response": { "id": "rogue", "status": "in_progress" } }),
        json!({ "type": "response.output_item.done", "response_id": "rogue", "output_index": 0, "item": call }),
        json!({ "type": "conversation.item.done", "item": call }),
        json!({ "type": "response.done", "response": { "id": "rogue", "status": "cancelled", "output": [call] } }),
    ];
    // The configuration of the new connection is late, and the rogue response comes before it.
    server.inject_fault(WireFault::delay_event(
        FaultTrigger::on_send("session.updated"),
        Duration::from_secs(5),
    ));
    server.drop_connections();
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Disconnected { .. })).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    for event in rogue {
        let trigger = FaultTrigger::on_receive("conversation.item.retrieve");
        server.inject_fault(WireFault::insert_event(trigger, event));
        let retrieve = json!({ "type": "conversation.item.retrieve", "item_id": "nothing" });
        session.send_raw(retrieve).await.expect("is there");
    }
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    session.send_text("Hello?").await.expect("is there");
    turn_events(&mut events).await;
    let deleted = server.client_events(Some("conversation.item.delete"));
    assert_eq!(deleted.iter().map(|event| event["item_id"].clone()).collect::<Vec<_>>(), ["rogue_call"]);
    let said: Vec<String> = session.close().await.history.items().iter().map(|item| item.text()).collect();
    assert_eq!(said, ["Hello?", "One."]);
}

/// Speaks a question, which the server answers by itself.
async fn speak(session: &RealtimeSession) {
    let mut speech = tone(300);
    speech.extend(vec![0; 24 * 700]);
    for chunk in speech.chunks(2400) {
        session.send_audio(AudioFormat::Pcm24k.encode(chunk)).expect("is there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A session whose user speaks while the change to the second agent is in flight. The server has the second agent's
/// configuration then, answers by itself, and calls a tool that both agents have.
async fn speak_during_change(
    faults: Vec<WireFault>,
    is_start_lost: bool,
) -> (Result<(), SessionRequestError>, Vec<RealtimeEvent>, u32, LoopbackServer) {
    let server = LoopbackServer::with_reply_function(|said| {
        let instructions = said.session["instructions"].as_str().unwrap_or_default();
        let reply = LoopbackReply::message(instructions);
        let has_output = said.items.iter().any(|item| item["type"] == "function_call_output");
        match instructions == "I am second." && !has_output {
            true => reply.and_call("c1", "look", "{}"),
            false => reply,
        }
    });
    let runs = Arc::default();
    let settings = RealtimeSettings {
        turn_detection: TurnDetection::ServerVad(ServerVad::default()),
        ..RealtimeSettings::default()
    };
    let agent = |name: &str| named_agent(name).tools(counting_tool("look", &runs));
    let builder = RealtimeSessionBuilder::new(agent("first"), server.client_model()).settings(settings);
    let (session, mut events) = start_session(builder).await;
    faults.into_iter().for_each(|fault| server.inject_fault(fault));
    if is_start_lost {
        server.inject_fault(WireFault::drop_event(FaultTrigger::on_send("response.created")));
    }
    let (changed, ()) = tokio::join!(session.update_agent(agent("second")), speak(&session));
    let mut seen = turn_events(&mut events).await;
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_secs(60), events.next()).await {
        seen.push(event);
    }
    for item in session.close().await.history.items() {
        if let Some(agent) = &item.agent
            && !item.text().is_empty()
        {
            assert_eq!(item.text(), format!("I am {agent}."));
        }
    }
    (changed, seen, run_count(&runs), server)
}

fn turn_agents(events: &[RealtimeEvent]) -> Vec<&str> {
    let mut agents = Vec::new();
    for event in events {
        if let RealtimeEvent::TurnEnded { agent, .. } = event {
            agents.push(agent.as_str());
        }
    }
    agents
}

/// The acknowledgement of a change is lost, and the server answers with the configuration that nobody confirmed: the
/// answer is nobody's, none of its calls runs, and the user gets an answer of the agent that stays.
#[tokio::test(start_paused = true)]
async fn an_answer_with_an_unconfirmed_configuration_is_nobodys() {
    for is_start_lost in [false, true] {
        let lost = WireFault::drop_event(FaultTrigger::on_send("session.updated"));
        let (changed, seen, runs, server) = speak_during_change(vec![lost], is_start_lost).await;
        assert!(matches!(changed, Err(SessionRequestError::AgentChange { .. })), "{changed:?}");
        let is_cut = |event: &RealtimeEvent| {
            matches!(event, RealtimeEvent::Error(RealtimeError::ResponseUnconfigured { .. }))
        };
        assert_eq!(seen.iter().filter(|event| is_cut(event)).count(), 1, "{:?}", event_names(&seen));
        assert_eq!((runs, turn_agents(&seen)), (0, vec!["first"]), "{:?}", event_names(&seen));
        assert_eq!(server.client_events(Some("response.create")).len(), 1);
        assert_one_response_at_a_time(&server);
    }
}

/// An item of such an answer that comes after its end is nobody's either, and the provider does not keep it.
#[tokio::test(start_paused = true)]
async fn a_late_item_of_an_answer_that_is_nobodys_is_deleted() {
    let lost = WireFault::drop_event(FaultTrigger::on_send("session.updated"));
    let late = |kind: &str| WireFault::delay_event(FaultTrigger::on_send(kind), Duration::from_secs(30));
    let faults = vec![lost, late("response.output_item.added"), late("response.output_item.done")];
    let (_, seen, _, server) = speak_during_change(faults, false).await;
    let is_cut = |event: &RealtimeEvent| {
        matches!(event, RealtimeEvent::Error(RealtimeError::ResponseUnconfigured { .. }))
    };
    assert!(seen.iter().any(is_cut), "{:?}", event_names(&seen));
    let log = server.wire_log();
    let answer = log.iter().find(|seen| seen.event["type"] == "response.created").expect("it answers");
    let response = &answer.event["response"]["id"];
    let items = log.iter().filter(|seen| {
        seen.event["type"] == "response.output_item.added" && seen.event["response_id"] == *response
    });
    let deleted = server.client_events(Some("conversation.item.delete"));
    for item in items {
        let id = &item.event["item"]["id"];
        assert_eq!(deleted.iter().filter(|event| event["item_id"] == *id).count(), 1, "{id}");
    }
}

/// The acknowledgement of a change is late, and the server answers before it: the user gets one answer, of the agent
/// that was confirmed, and the call runs once.
#[tokio::test(start_paused = true)]
async fn an_answer_before_a_late_acknowledgement_is_asked_for_again() {
    let late = WireFault::delay_event(FaultTrigger::on_send("session.updated"), Duration::from_secs(4));
    let (changed, seen, runs, server) = speak_during_change(vec![late], false).await;
    assert!(changed.is_ok(), "{changed:?}");
    assert_eq!((runs, turn_agents(&seen)), (1, vec!["second", "second"]), "{:?}", event_names(&seen));
    assert_one_response_at_a_time(&server);
}

/// An answer that nobody asked for starts before the requested one: a change of the agent waits until the requested one
/// has started, so that no configuration comes between a request and its answer.
#[tokio::test(start_paused = true)]
async fn a_change_waits_for_a_requested_answer_behind_another() {
    let slow = LoopbackReply::message("I am first.").with_delay(Duration::from_secs(3));
    let server = loopback_server([slow]);
    let (session, mut events) = connect_agent(named_agent("first"), &server).await;
    let rogue = json!({ "type": "response.created", "event_id": "event_rogue", "response": {
        "id": "resp_rogue", "object": "realtime.response", "status": "in_progress", "output": [],
    } });
    server.inject_fault(WireFault::insert_event(FaultTrigger::on_send("conversation.item.added"), rogue));
    let late = WireFault::delay_event(FaultTrigger::on_send("response.created"), Duration::from_secs(2));
    server.inject_fault(late);
    session.send_text("Hello?").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::TurnStarted { .. })).await;
    session.update_agent(named_agent("second")).await.expect("is changed");
    let log = server.wire_log();
    let place = |kind: &str| log.iter().rposition(|seen| seen.event["type"] == kind);
    assert!(place("response.created") > place("response.create"), "the requested answer has started");
    assert!(place("session.update") > place("response.created"), "the change waits for it");
}
