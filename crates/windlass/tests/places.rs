//! Placement of tool bodies: in a task of their own, or inline in the run's task if their tool opted in.
//!
//! The clock is paused unless a body advances it, so the measured poll times do not depend on the machine. The tests of
//! blocking bodies run on real threads.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::Id;
use windlass::core::id::CallId;
use windlass::core::journal::{CallStatus, JournalEntry};
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::{
    agent::Agent,
    event::RunEventKind,
    run::RunResult,
    tool::{Tool, ToolContext, ToolError},
};

/// Number of quick calls before the tested call.
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
async fn bodies_have_a_task_of_their_own_however_quick_they_are() {
    let seen = TaskIdLog::default();
    let (id, outcome) = run_in_task(warmed_up_agent(noting_tool(&seen), &["nothing"])).await;
    assert_eq!(outcome.output_text().expect("the run finished"), "bye");
    assert!(seen.lock().expect("nobody panics with it").iter().all(|one| *one != id));
}

#[tokio::test(start_paused = true)]
async fn inline_bodies_run_in_the_task_of_their_run() {
    let seen = TaskIdLog::default();
    let (id, outcome) = run_in_task(warmed_up_agent(noting_tool(&seen).inline(), &["nothing"])).await;
    assert_eq!(outcome.output_text().expect("the run finished"), "bye");
    assert!(seen.lock().expect("nobody panics with it").iter().all(|one| *one == id));
}

#[tokio::test(start_paused = true)]
async fn an_inline_body_that_holds_the_thread_is_moved_to_a_task_of_its_own() {
    let seen = TaskIdLog::default();
    let agent = warmed_up_agent(noting_tool(&seen).inline(), &["hold", "nothing"]);
    let (id, outcome) = run_in_task(agent).await;
    assert_eq!(outcome.output_text().expect("the run finished"), "bye");
    assert!(call_statuses(&outcome).iter().all(|how| *how == CallStatus::Succeeded));
    let seen = seen.lock().expect("nobody panics with it");
    let [.., before, after, next] = seen.as_slice() else { panic!("three were noted") };
    assert_eq!(*before, id, "the tool is inline");
    assert_ne!(*after, id, "it had held the thread, and went on elsewhere");
    assert_eq!(*next, id, "the next body is inline again");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_hangs_on_no_body_in_the_task_of_the_run() {
    let seen = TaskIdLog::default();
    let (id, _) =
        run_in_task(warmed_up_agent(noting_tool(&seen).inline().timeout(Duration::from_secs(60)), &[])).await;
    assert!(seen.lock().expect("nobody panics with it").iter().all(|one| *one != id));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_task_of_the_run_is_that_calls_failure() {
    let seen = TaskIdLog::default();
    let (id, outcome) =
        run_in_task(warmed_up_agent(noting_tool(&seen).inline(), &["panic", "nothing"])).await;
    assert_eq!(outcome.output_text().expect("the run finished"), "bye");
    assert_eq!(call_statuses(&outcome)[WARM..], [CallStatus::Failed, CallStatus::Succeeded]);
    assert_eq!(seen.lock().expect("nobody panics with it")[WARM], id);
}

#[tokio::test(start_paused = true)]
async fn a_body_in_the_task_of_the_run_is_stopped_with_it_and_may_panic_as_it_is_dropped() {
    let seen = TaskIdLog::default();
    let run = warmed_up_agent(noting_tool(&seen).inline(), &["wait"]).run("go").unlimited_turns();
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
    let mut run = warmed_up_agent(noting_tool(&seen).inline(), &["wait"]).run("go").unlimited_turns();
    while seen.lock().expect("nobody panics with it").len() <= WARM {
        assert!(futures_util::poll!(&mut run).is_pending());
        tokio::task::yield_now().await;
    }
    drop(run);
}

/// Time after which a test of a blocking body counts as stuck. A thousand calls take a while on a busy machine.
const STUCK: Duration = Duration::from_secs(300);

/// Number of quick calls before a call that blocks.
const QUICK: usize = 1_000;

/// Creates an agent whose tool is quick `QUICK` times and then notifies, and blocks its thread until the sender is dropped,
/// beside a sibling call that returns at once.
fn agent_that_blocks() -> (Agent, Arc<Notify>, std::sync::mpsc::Sender<()>) {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let begun = Arc::new(Notify::new());
    let blocks = begun.clone();
    let blocked = Arc::new(Mutex::new(blocked));
    let schema =
        json!({ "type": "object", "properties": { "do": { "type": "string" } }, "required": ["do"] });
    let tool = Tool::dynamic("act", "Acts.", schema, move |_: ToolContext, arguments: Value| {
        let (blocked, blocks) = (blocked.clone(), blocks.clone());
        async move {
            if arguments["do"] == "block" {
                blocks.notify_one();
                let _dropped = blocked.lock().expect("nobody panics with it").recv();
            }
            Ok::<_, ToolError>("done")
        }
    });
    let quick = (0..QUICK)
        .map(|at| ScriptedResponse::call(&format!("c{at}"), "act", json!({ "do": at.to_string() })));
    let last = ScriptedResponse::call("blocks", "act", json!({ "do": "block" })).and_call(
        "sibling",
        "act",
        json!({ "do": "nothing" }),
    );
    let model = ScriptedModel::new(quick.chain([last, ScriptedResponse::text("bye")]));
    (Agent::new("hand").model(model).tools(tool), begun, release)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_was_quick_and_then_blocks_for_ever_holds_up_nobody() {
    let (agent, begun, release) = agent_that_blocks();
    let mut stream = agent.run("go").unlimited_turns().drain_timeout(Duration::from_millis(50)).stream();
    let cancel = stream.cancel_handle();
    let settles = async {
        while let Some(event) = stream.next().await {
            if matches!(&event.kind, RunEventKind::CallSettled { call, .. } if call.as_str() == "sibling") {
                break;
            }
        }
    };
    tokio::time::timeout(STUCK, settles).await.expect("the sibling settles and the stream goes on");
    tokio::time::timeout(STUCK, begun.notified()).await.expect("the other body blocks");
    cancel.cancel();
    let result = tokio::time::timeout(STUCK, stream.result()).await.expect("cancelling returns");
    let RunResult::Cancelled(cancelled) = result.expect("it settles") else { panic!("it was cancelled") };
    assert_eq!(cancelled.settlement.draining, [CallId::new("blocks")], "{:?}", cancelled.settlement);
    drop(release);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_around_a_run_elapses_while_a_body_blocks() {
    let (agent, begun, release) = agent_that_blocks();
    // The timeout and the run share a task, so a body in that task would hold up both.
    let run = tokio::spawn(async move {
        let mut run = pin!(agent.run("go").unlimited_turns().into_future());
        tokio::select! {
            _ = &mut run => panic!("the run ends before its body blocks"),
            () = begun.notified() => {}
        }
        tokio::time::timeout(Duration::from_millis(200), run).await.is_err()
    });
    let elapsed = tokio::time::timeout(STUCK, run).await.expect("the caller's timeout elapses");
    assert!(elapsed.expect("it does not panic"), "the body blocks until it is released");
    drop(release);
}

/// The body wakes its idle run, in the poll in which it blocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_wakes_its_run_and_then_blocks_holds_up_nobody() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let schema = json!({ "type": "object" });
    let tool = Tool::dynamic("act", "Acts.", schema, move |ctx: ToolContext, _: Value| {
        let blocked = blocked.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            ctx.report_progress("I block now.");
            let _dropped = blocked.lock().expect("nobody panics with it").recv();
            Ok::<_, ToolError>("done")
        }
    });
    let model = ScriptedModel::new([ScriptedResponse::call("blocks", "act", json!({}))]);
    let run = Agent::new("hand").model(model).tool(tool).run("go").drain_timeout(Duration::from_millis(50));
    let mut stream = run.stream();
    let progress = async {
        while let Some(event) = stream.next().await {
            if matches!(event.kind, RunEventKind::CallProgress { .. }) {
                break;
            }
        }
    };
    tokio::time::timeout(STUCK, progress).await.expect("the run is polled by the other thread");
    stream.cancel_handle().cancel();
    let result = tokio::time::timeout(STUCK, stream.result()).await.expect("cancelling returns");
    assert!(matches!(result, Ok(RunResult::Cancelled(_))), "{result:?}");
    drop(release);
}

/// A turn of so many calls that the driver yields between their starts. The bodies before the first yield wait, and the
/// last of them blocks, so nothing but the yield wakes the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_blocks_while_its_run_starts_others_holds_up_nobody() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let ended = Arc::new(AtomicUsize::new(0));
    let counted = ended.clone();
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let tool = Tool::dynamic("act", "Acts.", schema, move |_: ToolContext, arguments: Value| {
        let (blocked, counted) = (blocked.clone(), counted.clone());
        async move {
            match arguments["n"].as_u64() {
                Some(0..63) => std::future::pending().await,
                Some(63) => _ = blocked.lock().expect("nobody panics with it").recv(),
                _ => _ = counted.fetch_add(1, Ordering::SeqCst),
            }
            Ok::<_, ToolError>("done")
        }
    });
    let calls = (0..200).fold(ScriptedResponse::items([]), |reply, n| {
        reply.and_call(&format!("c{n}"), "act", json!({ "n": n }))
    });
    let agent = Agent::new("hand").model(ScriptedModel::new([calls])).tool(tool);
    let run = agent.run("go").drain_timeout(Duration::from_millis(50));
    let cancel = run.cancel_handle();
    let run = tokio::spawn(run);
    let others_end = async {
        while ended.load(Ordering::SeqCst) < 136 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(STUCK, others_end).await.expect("the other calls run");
    cancel.cancel();
    let result = tokio::time::timeout(STUCK, run).await.expect("cancelling returns").expect("no panic");
    assert!(matches!(result, Ok(RunResult::Cancelled(_))), "{result:?}");
    drop(release);
}

#[tokio::test]
async fn a_warning_names_the_tool_whose_async_body_blocked_its_thread() {
    let tool = Tool::dynamic("nap", "Naps.", json!({ "type": "object" }), |_: ToolContext, _: Value| async {
        std::thread::sleep(Duration::from_millis(150));
        Ok::<_, ToolError>("rested")
    });
    let model =
        ScriptedModel::new([ScriptedResponse::call("c1", "nap", json!({})), ScriptedResponse::text("bye")]);
    let mut stream = Agent::new("hand").model(model).tool(tool.non_strict()).run("go").stream();
    let mut warnings = Vec::new();
    while let Some(event) = stream.next().await {
        if let RunEventKind::Warning { message } = event.kind {
            warnings.push(message);
        }
    }
    let [warning] = warnings.as_slice() else { panic!("one warning: {warnings:?}") };
    assert!(warning.starts_with("the async body of tool `nap` blocked its thread for "), "{warning}");
}

/// Waits for the warning about a body that has not returned.
async fn until_unfinished_body_is_named(stream: &mut windlass::run::RunStream) {
    while let Some(event) = stream.next().await {
        if let RunEventKind::Warning { message } = event.kind
            && message.starts_with("the async body of tool `act` holds its thread for ")
        {
            return;
        }
    }
    panic!("no warning came before the body was released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warning_names_the_tool_whose_async_body_does_not_return() {
    let (agent, begun, release) = agent_that_blocks();
    let mut stream = agent.run("go").unlimited_turns().drain_timeout(Duration::from_millis(50)).stream();
    let named = until_unfinished_body_is_named(&mut stream);
    tokio::time::timeout(STUCK, named).await.expect("the warning comes while the body blocks");
    begun.notified().await;
    drop(release);
    assert!(stream.result().await.expect("it ends").output_text().is_ok());
}

/// The only thread of the runtime is held, so nothing on it could notice.
#[test]
fn a_warning_names_the_tool_whose_async_body_holds_the_only_thread() {
    for is_inline in [false, true] {
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        let (hand_over, handed_over) = std::sync::mpsc::channel();
        let running = std::thread::spawn(move || {
            let schema = json!({ "type": "object" });
            let tool = Tool::dynamic("act", "Acts.", schema, move |_: ToolContext, _: Value| {
                let blocked = blocked.clone();
                async move {
                    let _dropped = blocked.lock().expect("nobody panics with it").recv();
                    Ok::<_, ToolError>("done")
                }
            });
            let tool = if is_inline { tool.non_strict().inline() } else { tool.non_strict() };
            let calls = ScriptedResponse::call("blocks", "act", json!({}));
            let model = ScriptedModel::new([calls, ScriptedResponse::text("bye")]);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let stream = Agent::new("hand").model(model).tool(tool).run("go").stream();
                let (ended, is_ended) = tokio::sync::oneshot::channel::<()>();
                hand_over.send((stream, ended)).expect("the test waits for it");
                _ = is_ended.await;
            });
        });
        let (mut stream, ended) = handed_over.recv().expect("the run starts");
        let watching = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        watching.block_on(async {
            let named = until_unfinished_body_is_named(&mut stream);
            tokio::time::timeout(STUCK, named).await.expect("the warning comes while the body blocks");
            drop(release);
            let result = tokio::time::timeout(STUCK, stream.result()).await.expect("it ends");
            assert!(result.expect("it ends").output_text().is_ok());
        });
        drop(ended);
        running.join().expect("it does not panic");
    }
}
