//! Runs of a session that another process resumes or cancels while they wait for a person.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use windlass::core::id::RunId;
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::prelude::*;
use windlass::run::RunResult;
use windlass::store::{MemoryStore, load_paused};
use windlass_realtime::testing::LoopbackReply;
use windlass_realtime::{MemoryJournal, RealtimeError, RealtimeEvent, RealtimeEvents, ToolCallMode};

use crate::support::*;

fn gated_agent(runs: &Arc<AtomicU32>) -> Agent {
    Agent::new("desk").tools(counting_tool("gated", runs).needs_approval())
}

/// Waits until a call is held and its run is paused in the store, and returns the run.
async fn paused_run(events: &mut RealtimeEvents) -> RunId {
    let seen = events_until(events, |event| matches!(event, RealtimeEvent::CallHeld { .. })).await;
    let Some(RealtimeEvent::CallHeld { run, .. }) = seen.last() else { panic!("{seen:?}") };
    tokio::time::sleep(Duration::from_secs(1)).await;
    run.clone()
}

/// Cancels a run as an operator does who has only the store.
async fn cancel_run(store: &Arc<MemoryStore>, run: &RunId) {
    let agent: Agent = Agent::new("desk").model(ScriptedModel::new([]));
    let builder = agent.recover(run.clone(), store.clone());
    builder.cancel_handle().cancel();
    let ended = builder.await.expect("is cancelled");
    assert!(matches!(ended, RunResult::Cancelled(_)), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_another_process_executes_has_its_result() {
    let (runs, store) = (Arc::default(), Arc::new(MemoryStore::default()));
    let server = loopback_server([LoopbackReply::call("a", "gated", "{}")]);
    let (session, mut events) = start_session(builder_with_store(gated_agent(&runs), &server, &store)).await;
    session.send_text("Go").await.expect("is there");
    let run = paused_run(&mut events).await;
    let mut paused = load_paused(&*store, &run).await.expect("is stored");
    paused.approve("a").expect("waits");
    let other = gated_agent(&runs).model(ScriptedModel::new([ScriptedResponse::text("written elsewhere")]));
    let ended = other.resume(paused).store(store.clone()).await.expect("is driven elsewhere");
    assert!(matches!(ended, RunResult::Finished(_)), "{ended:?}");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!((run_count(&runs), sent_outputs(&server, "a")), (1, vec!["run 1".to_owned()]));
    assert_eq!(session.held_calls().await.expect("is there"), []);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_another_process_is_still_executing_is_waited_for() {
    let (ended, store) = (Arc::default(), Arc::new(MemoryStore::default()));
    let agent = || {
        let slow = slow_tool("slow", Duration::from_secs(120), &ended).needs_approval();
        Agent::new("desk").tools(slow)
    };
    let server = loopback_server([LoopbackReply::call("a", "slow", "{}")]);
    let (session, mut events) = start_session(builder_with_store(agent(), &server, &store)).await;
    session.send_text("Go").await.expect("is there");
    let run = paused_run(&mut events).await;
    let mut paused = load_paused(&*store, &run).await.expect("is stored");
    paused.approve("a").expect("waits");
    let other = agent().model(ScriptedModel::new([ScriptedResponse::text("written elsewhere")]));
    let elsewhere = tokio::spawn(async move { other.resume(paused).store(store).await.is_ok() });
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(sent_outputs(&server, "a"), Vec::<String>::new(), "nothing is said before it is known");
    assert!(elsewhere.await.expect("does not panic"), "the other driver keeps the run");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((run_count(&ended), sent_outputs(&server, "a")), (1, vec!["done".to_owned()]));
    assert!(!session.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_another_process_cancels_has_its_outputs_and_holds_nothing_back() {
    let (runs, store) = (Arc::default(), Arc::new(MemoryStore::default()));
    let server = loopback_server([LoopbackReply::call("a", "gated", "{}")]);
    let builder =
        builder_with_store(gated_agent(&runs), &server, &store).tool_call_mode(ToolCallMode::Blocking);
    let (session, mut events) = start_session(builder).await;
    session.send_text("Go").await.expect("is there");
    let run = paused_run(&mut events).await;
    cancel_run(&store, &run).await;
    let is_failed =
        |event: &RealtimeEvent| matches!(event, RealtimeEvent::Error(RealtimeError::CallsFailed { .. }));
    let seen = events_until(&mut events, is_failed).await;
    assert_eq!(count_events(&seen, "CallReleased"), 1, "{:?}", event_names(&seen));
    turn_events(&mut events).await;
    assert_eq!((run_count(&runs), sent_outputs(&server, "a").len()), (0, 1));
    assert_eq!(session.held_calls().await.expect("is there"), []);
    session.send_text("Are you there?").await.expect("is there");
    turn_events(&mut events).await;
    assert!(!session.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_cancelled_while_no_process_lived_holds_nothing_back() {
    let (runs, store, journal) = (Arc::default(), Arc::new(MemoryStore::default()), MemoryJournal::default());
    let first = loopback_server([LoopbackReply::call("a", "gated", "{}")]);
    let builder = |server| {
        builder_with_store(gated_agent(&runs), server, &store)
            .journal(journal.clone())
            .tool_call_mode(ToolCallMode::Blocking)
    };
    let (session, mut events) = start_session(builder(&first)).await;
    session.send_text("Go").await.expect("is there");
    let run = paused_run(&mut events).await;
    session.detach().await;
    cancel_run(&store, &run).await;
    let second = loopback_server([]);
    let session = builder(&second).resume().await.expect("resumes");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((run_count(&runs), sent_outputs(&second, "a").len()), (0, 1));
    session.send_text("Are you there?").await.expect("is there");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let history = session.history().await.expect("is there");
    let last = history.items().last().map(|item| item.text());
    assert_eq!(last, Some("You said: Are you there?".to_owned()));
}
