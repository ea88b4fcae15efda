//! Agents change by handoff and by the application in the same way, or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::testing::{Fault, Moment, Reply};
use windlass_realtime::{ChangeCause, LiveError, LiveEvent};

use crate::support::*;

fn counting_instructions(agent: Agent, asked: &Arc<AtomicU32>) -> Agent {
    let asked = asked.clone();
    agent.instructions_from(move |_| {
        let time = asked.fetch_add(1, Ordering::Relaxed) + 1;
        async move { format!("asked {time}") }
    })
}

#[tokio::test(start_paused = true)]
async fn a_handoff_and_an_update_change_the_same_things() {
    let (asked, runs): (Arc<AtomicU32>, Arc<AtomicU32>) = (Arc::default(), Arc::default());
    let billing = counting_instructions(Agent::new("billing").tools(counted("refund", &runs)), &asked);
    let front = Agent::new("front").instructions("Greet.").handoff(&billing);
    let mut updates = Vec::new();
    for by_model in [true, false] {
        let server = server([Reply::call("h", "transfer_to_billing", "{}"), Reply::say("Billing here.")]);
        let (session, mut events) = connected(front.clone(), &server).await;
        let cause = if by_model {
            session.say("Money").await.expect("is there");
            ChangeCause::Handoff("h".into())
        } else {
            session.update_agent(billing.clone()).await.expect("is there").expect("changes");
            ChangeCause::Application
        };
        let seen = until(&mut events, |event| matches!(event, LiveEvent::AgentChanged { .. })).await;
        let changed = LiveEvent::AgentChanged { from: "front".into(), to: "billing".into(), cause };
        assert_eq!(seen.last(), Some(&changed));
        if by_model {
            // The answer that handed over was the first agent's, the one that follows is the second's.
            assert!(seen.iter().any(
                |event| matches!(event, LiveEvent::TurnEnded { agent, .. } if agent.as_str() == "front")
            ));
            let seen = turn(&mut events).await;
            assert!(
                matches!(seen.last(), Some(LiveEvent::TurnEnded { agent, .. }) if agent.as_str() == "billing")
            );
            assert_eq!(output_of(&server, "h"), ["{\"assistant\": \"billing\"}"]);
        }
        let sent = server.said(Some("session.update"));
        assert_eq!(sent.len(), 2);
        updates.push(sent[1]["session"].clone());
        one_at_a_time(&server);
    }
    // One question for each change, and the same configuration but for what it was told.
    assert_eq!(ran(&asked), 2);
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
    let broken = Agent::new("broken").instructions_from(|_| async { panic!("nothing to say") });
    let twice = Agent::new("twice").tools((counted("a", &runs), counted("a", &runs)));
    let fine = Agent::new("fine");
    let front =
        Agent::new("front").tools(counted("look", &runs)).handoff(&broken).handoff(&twice).handoff(&fine);
    // It cannot be resolved; the provider refuses it; the provider says nothing of it.
    for (target, fault) in [
        ("broken", None),
        ("twice", None),
        ("fine", Some(Fault::refuse("session.update", "invalid_value"))),
        ("fine", Some(Fault::drop_event(Moment::receiving("session.update")))),
    ] {
        let server = server([
            Reply::call("h", &format!("transfer_to_{target}"), "{}"),
            Reply::call("c", "look", "{}"),
        ]);
        let (session, mut events) = connected(front.clone(), &server).await;
        let before = ran(&runs);
        fault.into_iter().for_each(|fault| server.fault(fault));
        session.say("Go").await.expect("is there");
        let seen = until(&mut events, |event| matches!(event, LiveEvent::Error(_))).await;
        assert!(
            matches!(seen.last(), Some(LiveEvent::Error(LiveError::AgentNotChanged { to, .. })) if to.as_str() == target),
            "{seen:?}"
        );
        assert_eq!(count(&seen, "AgentChanged"), 0);
        // The model is told, the old agent answers, and its tools are there.
        let seen = turn(&mut events).await;
        assert!(
            matches!(seen.last(), Some(LiveEvent::TurnEnded { agent, .. }) if agent.as_str() == "front"),
            "{target}"
        );
        turn(&mut events).await;
        assert_eq!(ran(&runs), before + 1, "{target}");
        assert!(output_of(&server, "h")[0].contains("did not work"));
        one_at_a_time(&server);
    }
    let server = server([]);
    let (session, _events) = connected(front, &server).await;
    server.fault(Fault::refuse("session.update", "invalid_value"));
    let refused = session.update_agent(fine).await.expect("is there");
    assert!(refused.is_err_and(|why| why.contains("as the test wants it")));
}

#[tokio::test(start_paused = true)]
async fn a_call_keeps_the_agent_that_it_was_made_under() {
    let (old, new): (Arc<AtomicU32>, Arc<AtomicU32>) = (Arc::default(), Arc::default());
    let first = Agent::new("first").tools(counted("look", &old).approve_always());
    let second = Agent::new("second").tools(counted("look", &new));
    let server = server([Reply::call("c1", "look", "{}"), Reply::say("Waiting.")]);
    let (session, mut events) = connected(first, &server).await;
    session.say("Look").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::CallHeld { .. })).await;
    session.update_agent(second).await.expect("is there").expect("changes");
    session.approve("c1").await.expect("is there").expect("waits");
    let seen = until(&mut events, |event| matches!(event, LiveEvent::CallSettled { .. })).await;
    assert!(matches!(seen.last(), Some(LiveEvent::CallSettled { agent, .. }) if agent.as_str() == "first"));
    assert_eq!((ran(&old), ran(&new)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn very_many_changes_keep_what_is_needed_and_forget_the_rest() {
    let (old, new): (Arc<AtomicU32>, Arc<AtomicU32>) = (Arc::default(), Arc::default());
    let first = Agent::new("first").tools(counted("look", &old).approve_always());
    let server = server([Reply::call("c1", "look", "{}"), Reply::say("Waiting.")]);
    let (session, mut events) = connected(first, &server).await;
    session.say("Look").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::CallHeld { .. })).await;
    let mut held_by_one = None;
    for _ in 0..300 {
        let other = Agent::new("other").tools(counted("look", &new));
        session.update_agent(other).await.expect("is there").expect("changes");
        until(&mut events, |event| matches!(event, LiveEvent::AgentChanged { .. })).await;
        held_by_one.get_or_insert(Arc::strong_count(&new) - 1);
    }
    let (held, by_one) = (Arc::strong_count(&new) - 1, held_by_one.expect("agents changed"));
    assert!(held < 200 * by_one, "{held} are held, {by_one} by each agent");
    session.approve("c1").await.expect("is there").expect("waits");
    until(&mut events, |event| matches!(event, LiveEvent::CallSettled { .. })).await;
    assert_eq!((ran(&old), ran(&new)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_was_switched_off_meanwhile_does_not_run() {
    let (runs, on) = (Arc::default(), Arc::new(AtomicU32::new(1)));
    let switch = on.clone();
    let tool = counted("look", &runs).enabled_if(move |_| switch.load(Ordering::Relaxed) == 1);
    let server = server([Reply::call("c1", "look", "{}").after(Duration::from_secs(1))]);
    let (session, mut events) = connected(Agent::new("desk").tools(tool), &server).await;
    session.say("Look").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::TurnStarted { .. })).await;
    on.store(0, Ordering::Relaxed);
    turn(&mut events).await;
    turn(&mut events).await;
    assert_eq!(ran(&runs), 0);
    assert!(output_of(&server, "c1")[0].contains("not found"));
}
