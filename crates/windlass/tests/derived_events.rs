//! Events are derived from the journal: a live run, its hooks and a replay of its records give the same sequence.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agent::Handoff;
use windlass::core::id::CallPath;
use windlass::core::journal::{CallStatus, JournalRecord};
use windlass::core::tool::ToolEffect;
use windlass::event::{EventReplay, RunEvent, RunEventKind};
use windlass::hook::{CallInfo, Hook, HookEvent};
use windlass::prelude::*;
use windlass::run::RunStream;
use windlass::store::{MemoryStore, Store};

fn tool<Fut>(name: &str, body: impl Fn(ToolContext, Value) -> Fut + Send + Sync + 'static) -> Tool
where
    Fut: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    let schema = json!({ "type": "object", "properties": { "input": { "type": "string" } } });
    Tool::dynamic(name, "A tool.", schema, body).non_strict()
}

fn slow_tool(name: &str, delay: u64) -> Tool {
    let answer = format!("{name} is done");
    tool(name, move |_, _| {
        let answer = answer.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            Ok(answer)
        }
    })
}

/// Creates a tool whose first attempts fail.
fn flaky_tool(name: &str, failures: u32) -> Tool {
    let attempts = Arc::new(AtomicU32::new(0));
    let flaky = tool(name, move |_, _| {
        let attempt = attempts.fetch_add(1, Ordering::SeqCst);
        async move { if attempt < failures { Err(ToolError::visible("busy")) } else { Ok("at last".to_owned()) } }
    });
    flaky.retry(failures + 1, Duration::from_millis(3))
}

type EndLog = Arc<Mutex<Vec<(String, CallStatus, CallInfo)>>>;

/// Creates a hook that notes the end of every call, with its path.
fn end_hook(log: &EndLog) -> Hook {
    let log = log.clone();
    Hook::new(move |event: HookEvent| {
        if let HookEvent::CallEnded { ctx, status, info, .. } = event {
            log.lock().expect("no panic").push((ctx.call_path().to_string(), status, (*info).clone()));
        }
        async { Ok(()) }
    })
}

/// Creates an agent with parallel calls, a nested agent, approvals, retries, invalid arguments and a handoff.
fn desk() -> Agent {
    let clerk = Agent::new("clerk")
        .model(ScriptedModel::new([
            ScriptedResponse::call("n1", "look", json!({ "input": "a" })).and_call(
                "n2",
                "sign",
                json!({ "input": "b" }),
            ),
            ScriptedResponse::text("The clerk is done."),
        ]))
        .tools((slow_tool("look", 4), slow_tool("sign", 2).needs_approval()));
    let billing = Agent::new("billing").model(ScriptedModel::new([ScriptedResponse::text("Good bye.")]));
    let first = ScriptedResponse::call("c1", "slow", json!({ "input": "1" }))
        .and_call("c2", "quick", json!({ "input": "2" }))
        .and_call("c3", "flaky", json!({ "input": "3" }))
        .and_call("c4", "quick", json!({ "input": 4 }))
        .and_call("c5", "clerk", json!({ "input": "5" }))
        .and_call("c6", "pay", json!({ "input": "6" }))
        .and_call("c7", "nothing", json!({}));
    let second = ScriptedResponse::call("d1", "transfer_to_billing", json!({})).and_call(
        "d2",
        "quick",
        json!({ "input": "again" }),
    );
    Agent::new("desk")
        .model(ScriptedModel::new([first, second]))
        .tools((slow_tool("slow", 20), slow_tool("quick", 1), flaky_tool("flaky", 2)))
        .tool(slow_tool("pay", 3).needs_approval())
        .tool(clerk.as_tool("clerk", "Asks the clerk."))
        .handoff(Handoff::to(billing))
}

fn is_derived(event: &RunEvent) -> bool {
    match &event.kind {
        RunEventKind::AgentUpdated { .. }
        | RunEventKind::Item(_)
        | RunEventKind::CallHeld(_)
        | RunEventKind::CallStarted { .. }
        | RunEventKind::CallSettled { .. }
        | RunEventKind::ModelResponded(_)
        | RunEventKind::ModelRetryScheduled { .. } => true,
        RunEventKind::TextDelta { .. }
        | RunEventKind::ReasoningDelta { .. }
        | RunEventKind::ArgumentsDelta { .. }
        | RunEventKind::CallProgress { .. }
        | RunEventKind::Warning { .. } => false,
        other => panic!("{other:?} is new"),
    }
}

/// Returns the events of a stream that have records, until it ends.
async fn take_derived(stream: &mut RunStream) -> Vec<RunEvent> {
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        if is_derived(&event) {
            events.push(event);
        }
    }
    events
}

/// Plays the whole conversation, with a pause whose decisions are made on the saved text, and returns the live events
/// and the records.
async fn play(store: Option<Arc<dyn Store>>, log: &EndLog) -> (Vec<RunEvent>, Vec<JournalRecord>) {
    let agent = desk();
    let mut run = agent.run("go").run_id("derived").hook(end_hook(log));
    if let Some(store) = &store {
        run = run.store(store.clone());
    }
    let mut stream = run.stream();
    let mut events = take_derived(&mut stream).await;
    let RunResult::Paused(paused) = stream.result().await.expect("it pauses") else { panic!("it pauses") };
    let mut paused = PausedRun::from_text(&paused.to_text()).expect("it was saved");
    paused.approve("c6").expect("it waits");
    paused.approve(CallPath::new(&["c5".into()], "n2".into())).expect("it waits");
    let mut resumed = agent.resume(paused).hook(end_hook(log));
    if let Some(store) = store {
        resumed = resumed.store(store);
    }
    let mut stream = resumed.stream();
    let rest = take_derived(&mut stream).await;
    // A stream begins with the current agent.
    let [RunEvent { kind: RunEventKind::AgentUpdated { agent }, .. }, rest @ ..] = rest.as_slice() else {
        panic!("{rest:?}");
    };
    assert_eq!(agent.as_str(), "desk");
    events.extend_from_slice(rest);
    let result = stream.result().await.expect("it finishes");
    assert_eq!(result.output_text().expect("it finished"), "Good bye.");
    (events, result.record().journal().to_vec())
}

#[tokio::test(start_paused = true)]
async fn a_replay_gives_the_events_of_the_live_run() {
    let stores: [Option<Arc<dyn Store>>; 2] = [None, Some(Arc::new(MemoryStore::default()))];
    for store in stores {
        let log = EndLog::default();
        let (live, records) = play(store, &log).await;
        let replayed = EventReplay::events_of(&records).expect("they are the records of a run");
        assert_eq!(replayed.len(), live.len(), "{replayed:#?}\n{live:#?}");
        for (replayed, live) in replayed.iter().zip(&live) {
            assert_eq!(replayed, live);
        }
        assert!(live.is_sorted_by_key(|event| event.seq), "they come in the order of their records");
        assert!(live.iter().all(|event| !event.is_repeated));
        let starts = live.iter().filter(|event| matches!(event.kind, RunEventKind::CallStarted { .. }));
        assert_eq!(
            starts.count(),
            9,
            "one for every call that runs or has invalid arguments, not one for an attempt"
        );

        // Hooks are told of the same ends. Calls that never ran have none.
        let mut ends: Vec<_> = live
            .iter()
            .filter_map(|event| match &event.kind {
                RunEventKind::CallSettled { call, status, info, .. }
                    if *status != CallStatus::UnknownTool =>
                {
                    let path = CallPath::new(&event.path, call.clone());
                    Some((path.to_string(), status.clone(), (**info).clone()))
                }
                _ => None,
            })
            .collect();
        let mut hooked = log.lock().expect("no panic").clone();
        ends.sort_by_key(|(_, _, info)| info.seq);
        hooked.sort_by_key(|(_, _, info)| info.seq);
        assert_eq!(hooked, ends);
        let flaky = ends.iter().find(|(path, ..)| path == "c3").expect("it settled");
        assert_eq!(flaky.2.attempts, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_comes_later_gets_the_same_events() {
    let (live, records) = play(None, &EndLog::default()).await;
    for from in 0..records.len() as u64 {
        let mut replay = EventReplay::default();
        let mut late = Vec::new();
        for record in &records {
            let events = replay.next_events(record).expect("it is the next");
            late.extend(events.into_iter().filter(|event| event.seq >= from));
        }
        let expected: Vec<_> = live.iter().filter(|event| event.seq >= from).cloned().collect();
        assert_eq!(late, expected, "from {from}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_starts_again_after_a_crash_is_marked() {
    const LEASE: Duration = Duration::from_millis(20);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let attempts = Arc::new(AtomicU32::new(0));
    let pay = tool("pay", move |_, _| {
        let is_first = attempts.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                std::future::pending::<()>().await;
            }
            Ok("paid".to_owned())
        }
    });
    let first = ScriptedResponse::call("q", "quick", json!({ "input": "1" })).and_call(
        "p",
        "pay",
        json!({ "input": "2" }),
    );
    let agent = Agent::new("desk")
        .model(ScriptedModel::new([first, ScriptedResponse::text("Done.")]))
        .tools((pay.effect(ToolEffect::Idempotent), slow_tool("quick", 1)));
    let run = agent.run("go").run_id("crashed").store(store.clone()).lease_duration(LEASE);
    tokio::time::timeout(Duration::from_millis(10), run).await.expect_err("it waits for ever");
    std::thread::sleep(LEASE * 10);
    let mut stream = agent.recover("crashed", store).stream();
    let live = take_derived(&mut stream).await;
    let result = stream.result().await.expect("it finishes");
    let records = result.record().journal();
    let replayed = EventReplay::events_of(records).expect("they are the records of a run");
    let starts: Vec<_> = live
        .iter()
        .filter_map(|event| match &event.kind {
            RunEventKind::CallStarted { call, .. } => Some((call.to_string(), event.is_repeated)),
            _ => None,
        })
        .collect();
    assert_eq!(starts, [("p".to_owned(), true)]);
    // The stream begins with the current agent. Then comes the settlement of the other call, again, and the events of the
    // records that this process wrote.
    let from = live[1].seq;
    let mut expected: Vec<_> = replayed.iter().filter(|event| event.seq >= from).cloned().collect();
    assert!(matches!(&expected[0].kind, RunEventKind::CallSettled { call, .. } if call.as_str() == "q"));
    expected[0].is_repeated = true;
    assert_eq!(&live[1..], expected);
}
