//! Handoffs: the configuration first, then the output and the request; an answer belongs to the agent whose
//! configuration it was requested with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::agent::Handoff;
use windlass::prelude::*;
use windlass_realtime::RealtimeEvent;
use windlass_realtime::testing::{FaultTrigger, LoopbackReply, LoopbackServer, WireFault};

use crate::support::*;

/// Returns the client's events in short: the type, and the call of an output or the instructions of a configuration.
fn client_steps(server: &LoopbackServer) -> Vec<String> {
    let step = |event: serde_json::Value| {
        let item = &event["item"];
        match event["type"].as_str().unwrap_or_default() {
            "session.update" => {
                format!("configure {}", event["session"]["instructions"].as_str().unwrap_or(""))
            }
            "conversation.item.create" if item["type"] == "function_call_output" => {
                format!("output {}", item["call_id"].as_str().unwrap_or_default())
            }
            "conversation.item.create" => "message".to_owned(),
            "response.create" => "request".to_owned(),
            other => other.to_owned(),
        }
    };
    server.client_events(None).into_iter().map(step).collect()
}

fn answering_agents(seen: &[RealtimeEvent]) -> Vec<String> {
    let agent = |event: &RealtimeEvent| match event {
        RealtimeEvent::TurnEnded { agent, .. } => Some(agent.to_string()),
        _ => None,
    };
    seen.iter().filter_map(agent).collect()
}

#[tokio::test(start_paused = true)]
async fn beside_a_call_the_configuration_comes_before_the_request() {
    for slow in [false, true] {
        let runs = Arc::default();
        let look = match slow {
            true => slow_tool("look", Duration::from_secs(5), &runs),
            false => counting_tool("look", &runs),
        };
        let billing = Agent::new("billing").instructions("Billing.");
        let front = Agent::new("front").instructions("Front.").tools(look).handoff(&billing);
        let server = loopback_server([
            LoopbackReply::call("c", "look", "{}").and_call("h", "transfer_to_billing", "{}"),
            LoopbackReply::message("Billing here."),
            LoopbackReply::message("Here is the result."),
        ]);
        // Acknowledgements take a while.
        server.inject_fault(
            WireFault::delay_event(FaultTrigger::on_send("session.updated"), Duration::from_millis(300))
                .after_occurrences(1),
        );
        let (session, mut events) = connect_agent(front, &server).await;
        session.send_text("Money").await.expect("is there");
        let mut seen = turn_events(&mut events).await;
        seen.extend(turn_events(&mut events).await);
        if slow {
            // The handoff does not wait for the slow call.
            assert_eq!(run_count(&runs), 0);
            seen.extend(turn_events(&mut events).await);
        }
        let steps = client_steps(&server);
        let at = |step: &str| steps.iter().position(|known| known == step);
        let second_request = steps.iter().enumerate().filter(|(_, step)| *step == "request").nth(1);
        let second_request = second_request.map(|(place, _)| place);
        assert!(at("configure Billing.") < at("output h"), "{steps:?}");
        assert!(at("output h") < second_request, "{steps:?}");
        let agents = answering_agents(&seen);
        assert_eq!(
            (agents[0].as_str(), &agents[1..]),
            ("front", &vec!["billing".to_owned(); agents.len() - 1][..])
        );
        assert_one_response_at_a_time(&server);
    }
}

/// The start of a response is reported after the agent has changed: it is the first agent's all the same.
#[tokio::test(start_paused = true)]
async fn an_answer_belongs_to_the_agent_that_asked_for_it() {
    let second = Agent::new("second").instructions("Second.");
    let server =
        loopback_server([LoopbackReply::message("I am the first.").with_delay(Duration::from_secs(3))]);
    server.inject_fault(WireFault::delay_event(
        FaultTrigger::on_send("response.created"),
        Duration::from_secs(2),
    ));
    let (session, mut events) = connect_agent(Agent::new("first").instructions("First."), &server).await;
    session.send_text("Who are you?").await.expect("is there");
    session.update_agent(second).await.expect("changes");
    let seen = turn_events(&mut events).await;
    assert_eq!(answering_agents(&seen), ["first"]);
    // The change waited for the start of the response.
    let names = event_names(&seen);
    let at = |name: &str| names.iter().position(|known| known == name);
    assert!(at("TurnStarted") < at("AgentChanged"), "{names:?}");
    let history = session.history().await.expect("is there");
    let by = history.items().last().and_then(|item| item.agent.clone()).map(|agent| agent.to_string());
    assert_eq!(by.as_deref(), Some("first"));
}

/// A handoff that was switched off after it was offered does not happen; the rule may be asynchronous.
#[tokio::test(start_paused = true)]
async fn a_handoff_that_was_switched_off_meanwhile_does_not_happen() {
    let is_on = Arc::new(AtomicU32::new(1));
    for is_async in [false, true] {
        is_on.store(1, Ordering::SeqCst);
        let rule = is_on.clone();
        let handoff = Handoff::to(Agent::new("billing").instructions("Billing."));
        let handoff = match is_async {
            false => handoff.enabled_if(move |_| rule.load(Ordering::SeqCst) == 1),
            true => handoff.enabled_if_async(move |_| {
                let rule = rule.clone();
                async move {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    rule.load(Ordering::SeqCst) == 1
                }
            }),
        };
        let front = Agent::new("front").instructions("Front.").handoff(handoff);
        let server = loopback_server([
            LoopbackReply::call("h", "transfer_to_billing", "{}").with_delay(Duration::from_secs(1)),
            LoopbackReply::message("I stay."),
            LoopbackReply::call("h", "transfer_to_billing", "{}"),
        ]);
        let (session, mut events) = connect_agent(front, &server).await;
        session.send_text("Money").await.expect("is there");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::TurnStarted { .. })).await;
        is_on.store(0, Ordering::SeqCst);
        let mut seen = turn_events(&mut events).await;
        seen.extend(turn_events(&mut events).await);
        assert_eq!(count_events(&seen, "AgentChanged"), 0);
        assert_eq!(answering_agents(&seen), ["front", "front"]);
        assert!(sent_outputs(&server, "h")[0].contains("not found"), "{:?}", sent_outputs(&server, "h"));
        // Switched on again, it happens.
        is_on.store(1, Ordering::SeqCst);
        session.send_text("Money").await.expect("is there");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::AgentChanged { .. })).await;
    }
}

/// A rule that panics when it is asked again fails the handoff, and the session goes on.
#[tokio::test(start_paused = true)]
async fn a_rule_that_panics_fails_the_handoff_and_not_the_session() {
    let is_on = Arc::new(AtomicU32::new(1));
    let rule = is_on.clone();
    let handoff = Handoff::to(Agent::new("billing").instructions("Billing."))
        .enabled_if(move |_| rule.load(Ordering::SeqCst) == 1 || panic!("no rule today"));
    let server = loopback_server([
        LoopbackReply::call("h", "transfer_to_billing", "{}").with_delay(Duration::from_secs(1)),
        LoopbackReply::message("I stay."),
    ]);
    let (session, mut events) = connect_agent(Agent::new("front").handoff(handoff), &server).await;
    session.send_text("Money").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::TurnStarted { .. })).await;
    is_on.store(0, Ordering::SeqCst);
    let mut seen = turn_events(&mut events).await;
    seen.extend(turn_events(&mut events).await);
    assert_eq!(answering_agents(&seen), ["front", "front"]);
    assert_eq!(sent_outputs(&server, "h").len(), 1);
    assert!(!session.is_closed());
}
