//! Where bodies run: in the run's own task once their tool has shown to be quick, else in tasks of their own.
//!
//! The clock stands still unless a body moves it, so what is quick and what is long does not depend on the machine.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::Id;
use windlass::core::{Entry, How};
use windlass::model::{Reply, ScriptedModel};
use windlass::{Agent, Outcome, Tool, ToolContext, ToolError};

/// How many calls of a tool are quick before it is trusted here; more than it takes.
const WARM: usize = 8;

/// Where a body was, each time it had the thread.
type Seen = Arc<Mutex<Vec<Option<Id>>>>;

fn here(seen: &Seen) {
    seen.lock().expect("nobody panics with it").push(tokio::task::try_id());
}

/// A tool that notes where it runs. What it does depends on its argument.
fn noting(seen: &Seen) -> Tool {
    let seen = seen.clone();
    let schema =
        json!({ "type": "object", "properties": { "do": { "type": "string" } }, "required": ["do"] });
    Tool::dynamic("act", "Acts.", schema, move |_: ToolContext, arguments: Value| {
        let seen = seen.clone();
        async move {
            here(&seen);
            match arguments["do"].as_str() {
                Some("panic") => panic!("a test panics here"),
                Some("hold") => {
                    tokio::time::advance(Duration::from_secs(1)).await;
                    here(&seen);
                }
                Some("wait") => {
                    let _fails = PanicsWhenDropped;
                    std::future::pending::<()>().await;
                }
                _ => {}
            }
            Ok::<_, ToolError>("done")
        }
    })
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("a test panics here");
    }
}

/// An agent that calls the tool so often without anything happening, and then with what is told.
fn agent(tool: Tool, then: &[&str]) -> Agent {
    let quick = (0..WARM).map(|_| "nothing");
    let replies = quick.chain(then.iter().copied()).enumerate();
    let replies = replies.map(|(at, what)| Reply::call(&format!("c{at}"), "act", json!({ "do": what })));
    let model = ScriptedModel::new(replies.chain([Reply::text("bye")]));
    Agent::new("hand").model(model).tools(tool)
}

/// Runs it in a task, and says which.
async fn run(agent: Agent) -> (Option<Id>, Outcome) {
    let run = tokio::spawn(async move { (tokio::task::try_id(), agent.run("go").unlimited_turns().await) });
    let (id, outcome) = run.await.expect("the run does not panic");
    (id, outcome.expect("the run ends"))
}

fn hows(outcome: &Outcome) -> Vec<How> {
    let records = outcome.record().journal().iter();
    let settled = records.filter_map(|record| match &record.entry {
        Entry::CallSettled(settled) => Some(settled.how.clone()),
        _ => None,
    });
    settled.collect()
}

#[tokio::test(start_paused = true)]
async fn bodies_that_give_the_thread_back_quickly_come_to_run_in_the_task_of_their_run() {
    let seen = Seen::default();
    let (id, outcome) = run(agent(noting(&seen), &["nothing"])).await;
    assert_eq!(outcome.text(), "bye");
    let seen = seen.lock().expect("nobody panics with it");
    assert_ne!(seen.first(), Some(&id), "nothing is known of the tool yet");
    assert_eq!(seen.last(), Some(&id), "it was quick {WARM} times");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_holds_the_thread_is_moved_to_a_task_of_its_own_and_so_are_those_after_it() {
    let seen = Seen::default();
    let (id, outcome) = run(agent(noting(&seen), &["hold", "nothing"])).await;
    assert_eq!(outcome.text(), "bye");
    assert!(hows(&outcome).iter().all(|how| *how == How::Succeeded));
    let seen = seen.lock().expect("nobody panics with it");
    let [.., before, after, next] = seen.as_slice() else { panic!("three were noted") };
    assert_eq!(*before, id, "the tool was trusted");
    assert_ne!(*after, id, "it had held the thread, and went on elsewhere");
    assert_ne!(*next, id, "the tool has to earn it again");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_hangs_on_no_body_in_the_task_of_the_run() {
    let seen = Seen::default();
    let (id, _) = run(agent(noting(&seen).timeout(Duration::from_secs(60)), &[])).await;
    assert!(seen.lock().expect("nobody panics with it").iter().all(|one| *one != id));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_task_of_the_run_is_that_calls_failure() {
    let seen = Seen::default();
    let (id, outcome) = run(agent(noting(&seen), &["panic", "nothing"])).await;
    assert_eq!(outcome.text(), "bye");
    assert_eq!(hows(&outcome)[WARM..], [How::Failed, How::Succeeded]);
    assert_eq!(seen.lock().expect("nobody panics with it")[WARM], id);
}

#[tokio::test(start_paused = true)]
async fn a_body_in_the_task_of_the_run_is_stopped_with_it_and_may_panic_as_it_is_dropped() {
    let seen = Seen::default();
    let run = agent(noting(&seen), &["wait"]).run("go").unlimited_turns();
    let cancel = run.cancel_handle();
    let run = tokio::spawn(run.into_future());
    while seen.lock().expect("nobody panics with it").len() <= WARM {
        tokio::task::yield_now().await;
    }
    assert_eq!(seen.lock().expect("nobody panics with it")[WARM], Some(run.id()));
    cancel.now();
    let outcome = run.await.expect("the run does not panic").expect("the run ends");
    assert!(matches!(outcome, Outcome::Cancelled(_)), "{outcome:?}");
    assert!(!matches!(hows(&outcome)[WARM], How::Succeeded));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_run_drops_the_body_in_its_task_whose_panic_stays_there() {
    let seen = Seen::default();
    let mut run = agent(noting(&seen), &["wait"]).run("go").unlimited_turns().into_future();
    while seen.lock().expect("nobody panics with it").len() <= WARM {
        assert!(futures_util::poll!(&mut run).is_pending());
        tokio::task::yield_now().await;
    }
    drop(run);
}
