//! Agent changes: a handoff and a request of the application have the same effects, or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::testing::{FaultTrigger, LoopbackReply, WireFault};
use windlass_realtime::{AgentChangeCause, RealtimeError, RealtimeEvent, SessionClosed, SessionRequestError};

use crate::support::*;

fn counting_instructions(agent: Agent, asked: &Arc<AtomicU32>) -> Agent {
    let asked = asked.clone();
    agent.dynamic_instructions(move |_| {
        let time = asked.fetch_add(1, Ordering::Relaxed) + 1;
        async move { format!("asked {time}") }
    })
}

#[tokio::test(start_paused = true)]
async fn a_handoff_and_an_update_change_the_same_things() {
    let (asked, runs): (Arc<AtomicU32>, Arc<AtomicU32>) = (Arc::default(), Arc::default());
    let billing = counting_instructions(Agent::new("billing").tools(counting_tool("refund", &runs)), &asked);
    let front = Agent::new("front").instructions("Greet.").handoff(&billing);
    let mut updates = Vec::new();
    for by_model in [true, false] {
        let server = loopback_server([
            LoopbackReply::call("h", "transfer_to_billing", "{}"),
            LoopbackReply::message("Billing here."),
        ]);
        let (session, mut events) = connect_agent(front.clone(), &server).await;
        let cause = if by_model {
            session.send_text("Money").await.expect("is there");
            AgentChangeCause::Handoff("h".into())
        } else {
            session.update_agent(billing.clone()).await.expect("changes");
            AgentChangeCause::Application
        };
        let seen =
            events_until(&mut events, |event| matches!(event, RealtimeEvent::AgentChanged { .. })).await;
        let changed = RealtimeEvent::AgentChanged { from: "front".into(), to: "billing".into(), cause };
        assert_eq!(seen.last(), Some(&changed));
        if by_model {
            // The response that handed over is the first agent's, and the next one is the second's.
            assert!(seen.iter().any(
                |event| matches!(event, RealtimeEvent::TurnEnded { agent, .. } if agent.as_str() == "front")
            ));
            let seen = turn_events(&mut events).await;
            assert!(
                matches!(seen.last(), Some(RealtimeEvent::TurnEnded { agent, .. }) if agent.as_str() == "billing")
            );
            assert_eq!(sent_outputs(&server, "h"), ["{\"assistant\": \"billing\"}"]);
        }
        let sent = server.client_events(Some("session.update"));
        assert_eq!(sent.len(), 2);
        updates.push(sent[1]["session"].clone());
        assert_one_response_at_a_time(&server);
    }
    // Instructions are resolved once per change, and the configurations differ in the instructions only.
    assert_eq!(run_count(&asked), 2);
    assert_eq!(
        (updates[0]["instructions"].as_str(), updates[1]["instructions"].as_str()),
        (Some("asked 1"), Some("asked 2"))
    );
    assert_eq!(updates[0]["tools"], updates[1]["tools"]);
    assert_eq!(updates[0]["tools"][0]["name"], "refund");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_fails_leaves_the_agent_before_whole() {
    let runs = Arc::default();
    let broken = Agent::new("broken").dynamic_instructions(|_| async { panic!("nothing to say") });
    let twice = Agent::new("twice").tools((counting_tool("a", &runs), counting_tool("a", &runs)));
    let fine = Agent::new("fine");
    let front = Agent::new("front")
        .tools(counting_tool("look", &runs))
        .handoff(&broken)
        .handoff(&twice)
        .handoff(&fine);
    // The agent cannot be resolved; the provider rejects it; the provider does not acknowledge it.
    for (target, fault) in [
        ("broken", None),
        ("twice", None),
        ("fine", Some(WireFault::reject_event("session.update", "invalid_value"))),
        ("fine", Some(WireFault::drop_event(FaultTrigger::on_receive("session.update")))),
    ] {
        let server = loopback_server([
            LoopbackReply::call("h", &format!("transfer_to_{target}"), "{}"),
            LoopbackReply::call("c", "look", "{}"),
        ]);
        let (session, mut events) = connect_agent(front.clone(), &server).await;
        let before = run_count(&runs);
        fault.into_iter().for_each(|fault| server.inject_fault(fault));
        session.send_text("Go").await.expect("is there");
        let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::Error(_))).await;
        assert!(
            matches!(seen.last(), Some(RealtimeEvent::Error(RealtimeError::AgentChangeFailed { to, .. })) if to.as_str() == target),
            "{seen:?}"
        );
        assert_eq!(count_events(&seen, "AgentChanged"), 0);
        // The model gets the error, the old agent responds, and its tools are still offered.
        let seen = turn_events(&mut events).await;
        assert!(
            matches!(seen.last(), Some(RealtimeEvent::TurnEnded { agent, .. }) if agent.as_str() == "front"),
            "{target}"
        );
        turn_events(&mut events).await;
        assert_eq!(run_count(&runs), before + 1, "{target}");
        assert!(sent_outputs(&server, "h")[0].contains("did not work"));
        assert_one_response_at_a_time(&server);
    }
    let server = loopback_server([]);
    let (session, _events) = connect_agent(front, &server).await;
    server.inject_fault(WireFault::reject_event("session.update", "invalid_value"));
    let refused = session.update_agent(fine).await.expect_err("it is refused");
    let SessionRequestError::AgentChange { agent, message } = &refused else { panic!("{refused:?}") };
    assert_eq!(agent.as_str(), "fine");
    assert!(message.contains("as the test wants it"), "{refused}");
    session.close().await;
    let ended = session.update_agent(Agent::new("late")).await;
    assert_eq!(ended, Err(SessionRequestError::Closed(SessionClosed)));
}

#[tokio::test(start_paused = true)]
async fn a_call_keeps_the_agent_that_it_was_made_under() {
    let (old, new): (Arc<AtomicU32>, Arc<AtomicU32>) = (Arc::default(), Arc::default());
    let first = Agent::new("first").tools(counting_tool("look", &old).needs_approval());
    let second = Agent::new("second").tools(counting_tool("look", &new));
    let server =
        loopback_server([LoopbackReply::call("c1", "look", "{}"), LoopbackReply::message("Waiting.")]);
    let (session, mut events) = connect_agent(first, &server).await;
    session.send_text("Look").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallHeld { .. })).await;
    session.update_agent(second).await.expect("changes");
    session.approve("c1").await.expect("waits");
    let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::CallSettled { .. })).await;
    assert!(
        matches!(seen.last(), Some(RealtimeEvent::CallSettled { agent, .. }) if agent.as_str() == "first")
    );
    assert_eq!((run_count(&old), run_count(&new)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn very_many_changes_keep_what_is_needed_and_forget_the_rest() {
    let (old, new): (Arc<AtomicU32>, Arc<AtomicU32>) = (Arc::default(), Arc::default());
    let first = Agent::new("first").tools(counting_tool("look", &old).needs_approval());
    let server =
        loopback_server([LoopbackReply::call("c1", "look", "{}"), LoopbackReply::message("Waiting.")]);
    let (session, mut events) = connect_agent(first, &server).await;
    session.send_text("Look").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallHeld { .. })).await;
    let mut held_by_one = None;
    for _ in 0..300 {
        let other = Agent::new("other").tools(counting_tool("look", &new));
        session.update_agent(other).await.expect("changes");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::AgentChanged { .. })).await;
        held_by_one.get_or_insert(Arc::strong_count(&new) - 1);
    }
    let (held, by_one) = (Arc::strong_count(&new) - 1, held_by_one.expect("agents changed"));
    assert!(held < 200 * by_one, "{held} are held, {by_one} by each agent");
    session.approve("c1").await.expect("waits");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallSettled { .. })).await;
    assert_eq!((run_count(&old), run_count(&new)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_was_switched_off_meanwhile_does_not_run() {
    let (runs, on) = (Arc::default(), Arc::new(AtomicU32::new(1)));
    let switch = on.clone();
    let tool = counting_tool("look", &runs).enabled_if(move |_| switch.load(Ordering::Relaxed) == 1);
    let server =
        loopback_server([LoopbackReply::call("c1", "look", "{}").with_delay(Duration::from_secs(1))]);
    let (session, mut events) = connect_agent(Agent::new("desk").tools(tool), &server).await;
    session.send_text("Look").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::TurnStarted { .. })).await;
    on.store(0, Ordering::Relaxed);
    turn_events(&mut events).await;
    turn_events(&mut events).await;
    assert_eq!(run_count(&runs), 0);
    assert!(sent_outputs(&server, "c1")[0].contains("not found"));
}

/// The agents are resolved at the same time, and applied in the order of the requests.
#[tokio::test(start_paused = true)]
async fn concurrent_updates_are_applied_in_the_order_of_the_requests() {
    let server = loopback_server([]);
    let (session, mut events) = connect_agent(Agent::new("first"), &server).await;
    let slow = Agent::new("slow").dynamic_instructions(|_| async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        "Slow.".to_owned()
    });
    let (one, other) = tokio::join!(session.update_agent(slow), session.update_agent(Agent::new("quick")));
    one.and(other).expect("both become current");
    let mut order = Vec::new();
    while let Some(event) = events.try_next() {
        if let RealtimeEvent::AgentChanged { to, .. } = event {
            order.push(to.to_string());
        }
    }
    assert_eq!(order, ["slow", "quick"]);
    // More changes at once than the session keeps are refused.
    let many = (0..100).map(|_| {
        session.update_agent(Agent::new("many").dynamic_instructions(|_| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            "Many.".to_owned()
        }))
    });
    let results = futures_util::future::join_all(many).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 64);
    assert!(results[99].as_ref().is_err_and(|error| error.to_string().contains("too many")), "{results:?}");
}
