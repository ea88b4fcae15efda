//! Placement of tool bodies: inline in the run's task once their tool is known to be quick, otherwise in a task
//! of their own.
//!
//! The clock is paused unless a body advances it, so the measured poll times do not depend on the machine.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::Id;
use windlass::core::journal::{CallStatus, JournalEntry};
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::{
    agent::Agent,
    run::RunResult,
    tool::{Tool, ToolContext, ToolError},
};

/// Number of quick calls before the tested call; more than the driver requires.
const WARM: usize = 8;

/// The task id of a body at each poll.
type TaskIdLog = Arc<Mutex<Vec<Option<Id>>>>;

fn note_task(seen: &TaskIdLog) {
    seen.lock().expect("nobody panics with it").push(tokio::task::try_id());
}

/// Creates a tool that records its task id and acts as its argument says.
fn noting_tool(seen: &TaskIdLog) -> Tool {
    let seen = seen.clone();
    let schema =
        json!({ "type": "object", "properties": { "do": { "type": "string" } }, "required": ["do"] });
    Tool::dynamic("act", "Acts.", schema, move |_: ToolContext, arguments: Value| {
        let seen = seen.clone();
        async move {
            note_task(&seen);
            match arguments["do"].as_str() {
                Some("panic") => panic!("a test panics here"),
                Some("hold") => {
                    tokio::time::advance(Duration::from_secs(1)).await;
                    note_task(&seen);
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

/// A value that panics when it is dropped.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("a test panics here");
    }
}

/// Creates an agent that makes `WARM` quick calls and then the given ones.
fn warmed_up_agent(tool: Tool, then: &[&str]) -> Agent {
    let quick = (0..WARM).map(|_| "nothing");
    let replies = quick.chain(then.iter().copied()).enumerate();
    let replies =
        replies.map(|(at, what)| ScriptedResponse::call(&format!("c{at}"), "act", json!({ "do": what })));
    let model = ScriptedModel::new(replies.chain([ScriptedResponse::text("bye")]));
    Agent::new("hand").model(model).tools(tool)
}

/// Runs the agent in a new task and returns the task's id and the outcome.
async fn run_in_task(agent: Agent) -> (Option<Id>, RunResult) {
    let run = tokio::spawn(async move { (tokio::task::try_id(), agent.run("go").unlimited_turns().await) });
    let (id, outcome) = run.await.expect("the run does not panic");
    (id, outcome.expect("the run ends"))
}

fn call_statuses(outcome: &RunResult) -> Vec<CallStatus> {
    let records = outcome.record().journal().iter();
    let settled = records.filter_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some(settled.status.clone()),
        _ => None,
    });
    settled.collect()
}

#[tokio::test(start_paused = true)]
async fn bodies_that_give_the_thread_back_quickly_come_to_run_in_the_task_of_their_run() {
    let seen = TaskIdLog::default();
    let (id, outcome) = run_in_task(warmed_up_agent(noting_tool(&seen), &["nothing"])).await;
    assert_eq!(outcome.output_text().expect("the run finished"), "bye");
    let seen = seen.lock().expect("nobody panics with it");
    assert_ne!(seen.first(), Some(&id), "nothing is known of the tool yet");
    assert_eq!(seen.last(), Some(&id), "it was quick {WARM} times");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_holds_the_thread_is_moved_to_a_task_of_its_own_and_so_are_those_after_it() {
    let seen = TaskIdLog::default();
    let (id, outcome) = run_in_task(warmed_up_agent(noting_tool(&seen), &["hold", "nothing"])).await;
    assert_eq!(outcome.output_text().expect("the run finished"), "bye");
    assert!(call_statuses(&outcome).iter().all(|how| *how == CallStatus::Succeeded));
    let seen = seen.lock().expect("nobody panics with it");
    let [.., before, after, next] = seen.as_slice() else { panic!("three were noted") };
    assert_eq!(*before, id, "the tool was trusted");
    assert_ne!(*after, id, "it had held the thread, and went on elsewhere");
    assert_ne!(*next, id, "the tool has to earn it again");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_hangs_on_no_body_in_the_task_of_the_run() {
    let seen = TaskIdLog::default();
    let (id, _) =
        run_in_task(warmed_up_agent(noting_tool(&seen).timeout(Duration::from_secs(60)), &[])).await;
    assert!(seen.lock().expect("nobody panics with it").iter().all(|one| *one != id));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_task_of_the_run_is_that_calls_failure() {
    let seen = TaskIdLog::default();
    let (id, outcome) = run_in_task(warmed_up_agent(noting_tool(&seen), &["panic", "nothing"])).await;
    assert_eq!(outcome.output_text().expect("the run finished"), "bye");
    assert_eq!(call_statuses(&outcome)[WARM..], [CallStatus::Failed, CallStatus::Succeeded]);
    assert_eq!(seen.lock().expect("nobody panics with it")[WARM], id);
}

#[tokio::test(start_paused = true)]
async fn a_body_in_the_task_of_the_run_is_stopped_with_it_and_may_panic_as_it_is_dropped() {
    let seen = TaskIdLog::default();
    let run = warmed_up_agent(noting_tool(&seen), &["wait"]).run("go").unlimited_turns();
    let cancel = run.cancel_handle();
    let run = tokio::spawn(run);
    while seen.lock().expect("nobody panics with it").len() <= WARM {
        tokio::task::yield_now().await;
    }
    assert_eq!(seen.lock().expect("nobody panics with it")[WARM], Some(run.id()));
    cancel.cancel();
    let outcome = run.await.expect("the run does not panic").expect("the run ends");
    assert!(matches!(outcome, RunResult::Cancelled(_)), "{outcome:?}");
    assert!(!matches!(call_statuses(&outcome)[WARM], CallStatus::Succeeded));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_run_drops_the_body_in_its_task_whose_panic_stays_there() {
    let seen = TaskIdLog::default();
    let mut run = warmed_up_agent(noting_tool(&seen), &["wait"]).run("go").unlimited_turns();
    while seen.lock().expect("nobody panics with it").len() <= WARM {
        assert!(futures_util::poll!(&mut run).is_pending());
        tokio::task::yield_now().await;
    }
    drop(run);
}
