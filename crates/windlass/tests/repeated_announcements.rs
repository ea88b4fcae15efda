//! After a crash the next driver delivers the events and hook events again that the process before may not have
//! delivered: marked, with the number of their record.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::sync::Notify;
use windlass::agent::Handoff;
use windlass::core::id::{CallPath, RunId};
use windlass::core::journal::{JournalEntry, JournalRecord};
use windlass::event::{EventReplay, RunEvent, RunEventKind};
use windlass::hook::{Hook, HookEvent};
use windlass::prelude::*;
use windlass::run::{RunBuilder, RunStream};
use windlass::store::{MemoryStore, ObservableStore, Store, fork_run};

const LEASE: Duration = Duration::from_millis(20);

/// Runs a process: everything in it ends when its future does.
fn run_process<T>(process: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime starts").block_on(process)
}

fn tool(name: &str) -> Tool {
    let schema = json!({ "type": "object", "properties": { "input": { "type": "string" } } });
    let answer = format!("{name} is done");
    let body = move |_: ToolContext, _: Value| {
        let answer = answer.clone();
        async move { Ok::<_, ToolError>(answer) }
    };
    Tool::dynamic(name, "A tool.", schema, body).non_strict()
}

fn model(responses: impl IntoIterator<Item = ScriptedResponse>) -> ScriptedModel {
    ScriptedModel::new(responses)
}

fn call(id: &str, tool: &str) -> ScriptedResponse {
    ScriptedResponse::call(id, tool, json!({ "input": id }))
}

type HookLog = Arc<Mutex<Vec<String>>>;

/// Creates a hook that notes what it is told of.
fn noting_hook(log: &HookLog) -> Hook {
    let log = log.clone();
    Hook::new(move |event: HookEvent| {
        let note = match &event {
            HookEvent::CallStarted { ctx, is_repeated } => {
                Some(format!("start {}{}", ctx.call_path(), mark(*is_repeated)))
            }
            HookEvent::CallEnded { ctx, status, output, info, is_repeated, .. } => Some(format!(
                "end {} {} {status:?} “{}” after {} attempts, record {}{}",
                ctx.call_path(),
                ctx.arguments(),
                output.text(),
                info.attempts,
                info.seq,
                mark(*is_repeated)
            )),
            HookEvent::HandedOff { ctx, to, seq, is_repeated } => {
                Some(format!("handoff {} {to}, record {seq}{}", ctx.agent(), mark(*is_repeated)))
            }
            _ => None,
        };
        log.lock().expect("no panic").extend(note);
        async { Ok(()) }
    })
}

fn mark(is_repeated: bool) -> &'static str {
    if is_repeated { " (again)" } else { "" }
}

fn take_log(log: &HookLog) -> Vec<String> {
    std::mem::take(&mut *log.lock().expect("no panic"))
}

/// Creates a hook in which the process is killed, at the first event that `is_deadly`.
fn deadly_hook(killed: &Arc<Notify>, is_deadly: impl Fn(&HookEvent) -> bool + Send + Sync + 'static) -> Hook {
    let killed = killed.clone();
    Hook::new(move |event: HookEvent| {
        let killed = is_deadly(&event).then(|| killed.clone());
        async move {
            if let Some(killed) = killed {
                killed.notify_one();
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    })
}

fn ends(call: &'static str) -> impl Fn(&HookEvent) -> bool + Send + Sync {
    move |event| matches!(event, HookEvent::CallEnded { ctx, .. } if ctx.call_id() == call)
}

/// Drives a run in a process that is killed in a hook, and returns the events that its watcher received.
fn drive_until_killed(
    start: impl FnOnce() -> RunBuilder<()>,
    is_deadly: impl Fn(&HookEvent) -> bool + Send + Sync + 'static,
) -> Vec<RunEvent> {
    run_process(async {
        let killed = Arc::new(Notify::new());
        let mut stream = start().hook(deadly_hook(&killed, is_deadly)).lease_duration(LEASE).stream();
        let mut events = Vec::new();
        loop {
            tokio::select! {
                biased;
                event = stream.next() => events.push(event.expect("it goes on until it is killed")),
                () = killed.notified() => break,
            }
        }
        while let Some(Some(event)) = stream.next().now_or_never() {
            events.push(event);
        }
        events
    })
}

async fn take_events(stream: &mut RunStream) -> Vec<RunEvent> {
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event);
    }
    events
}

fn settled(event: &RunEvent) -> Option<(String, u64, bool)> {
    match &event.kind {
        RunEventKind::CallSettled { call, info, .. } => {
            assert_eq!(info.seq, event.seq);
            Some((CallPath::new(&event.path, call.clone()).to_string(), event.seq, event.is_repeated))
        }
        _ => None,
    }
}

/// Returns the sequence number of the settlement of a call.
fn settlement_of(records: &[JournalRecord], call: &str) -> u64 {
    let is_it = |record: &&JournalRecord| matches!(&record.entry, JournalEntry::CallSettled(settled) if settled.call.as_str() == call);
    records.iter().find(is_it).expect("it settled").seq
}

#[test]
fn the_end_of_a_call_is_announced_again_after_a_crash_in_its_hook() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let observable = Arc::new(ObservableStore::new(inner));
    let store: Arc<dyn Store> = observable.clone();
    let agent = || {
        Agent::new("desk")
            .model(model([call("c1", "look"), ScriptedResponse::text("Done.")]))
            .tool(tool("look"))
    };
    let mut first =
        drive_until_killed(|| agent().run("go").run_id("killed").store(store.clone()), ends("c1"));
    assert!(first.iter().all(|event| !event.is_repeated));

    let log = HookLog::default();
    let (again, records, subscribed) = run_process(async {
        let agent = agent().model(model([ScriptedResponse::text("Done.")]));
        let mut stream = agent.recover("killed", store).hook(noting_hook(&log)).stream();
        let again = take_events(&mut stream).await;
        let records = stream.result().await.expect("it finishes").record().journal().to_vec();
        let mut subscription = observable.subscribe("killed", 0);
        let mut subscribed = Vec::new();
        while subscribed.len() < records.len() {
            subscribed.push(subscription.next().await.expect("it goes on").expect("it can be read"));
        }
        (again, records, subscribed)
    });
    let seq = settlement_of(&records, "c1");
    assert_eq!(
        take_log(&log),
        [format!(
            "end c1 {{\"input\":\"c1\"}} Succeeded “look is done” after 1 attempts, record {seq} (again)"
        )]
    );
    assert_eq!(again.iter().filter_map(settled).collect::<Vec<_>>(), [("c1".to_owned(), seq, true)]);

    // A watcher that leaves out what it has of the same record has the events of a run without a crash, and so has a
    // subscriber to the records.
    let replayed = EventReplay::events_of(&records).expect("they are the records of a run");
    let known = first.iter().map(|event| event.seq).max().expect("there are events");
    first.extend(again.into_iter().skip(1).filter(|event| !event.is_repeated || event.seq > known));
    let is_delta = |kind: &RunEventKind| {
        matches!(kind, RunEventKind::TextDelta { .. } | RunEventKind::ArgumentsDelta { .. })
    };
    first.retain(|event| !is_delta(&event.kind));
    assert_eq!(first, replayed);
    assert_eq!(EventReplay::events_of(&subscribed).expect("they are the records of a run"), replayed);
}

#[test]
fn the_ends_inside_a_nested_agent_are_announced_again() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let agent = || {
        let clerk = Agent::new("clerk")
            .model(model([
                call("n1", "look").and_call("n2", "sign", json!({})),
                ScriptedResponse::text("Signed."),
            ]))
            .tools((tool("look"), tool("sign").needs_approval()));
        Agent::new("desk")
            .model(model([call("c", "clerk"), ScriptedResponse::text("Done.")]))
            .tool(clerk.as_tool("clerk", "Asks the clerk."))
    };
    drive_until_killed(|| agent().run("go").run_id("nested").store(store.clone()), ends("n1"));

    let log = HookLog::default();
    let (again, records) = run_process(async {
        let mut stream = agent().recover("nested", store).hook(noting_hook(&log)).stream();
        let again = take_events(&mut stream).await;
        let RunResult::Paused(paused) = stream.result().await.expect("it pauses") else {
            panic!("it pauses")
        };
        (again, paused.record().journal().to_vec())
    });
    let seq = settlement_of(&records, "n1");
    assert_eq!(
        take_log(&log),
        [format!(
            "end c/n1 {{\"input\":\"n1\"}} Succeeded “look is done” after 1 attempts, record {seq} (again)"
        )]
    );
    assert_eq!(again.iter().filter_map(settled).collect::<Vec<_>>(), [("c/n1".to_owned(), seq, true)]);
    let held = |event: &RunEvent| matches!(event.kind, RunEventKind::CallHeld(_)) && event.is_repeated;
    assert_eq!(again.iter().filter(|event| held(event)).count(), 1, "{again:#?}");
}

#[test]
fn a_driver_that_leaves_a_paused_run_has_announced_everything() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let agent = |responses: Vec<ScriptedResponse>| {
        Agent::new("desk").model(model(responses)).tools((tool("look"), tool("sign").needs_approval()))
    };
    let log = HookLog::default();
    run_process(async {
        let first = vec![call("a", "look").and_call("b", "sign", json!({ "input": "b" }))];
        let run = agent(first).run("go").run_id("left").store(store.clone()).hook(noting_hook(&log));
        assert!(matches!(run.await.expect("it pauses"), RunResult::Paused(_)));
    });
    assert_eq!(take_log(&log).len(), 2, "the start and the end of the first call");
    // A second driver has nothing to announce.
    let repeated = run_process(async {
        let run = agent(Vec::new()).recover("left", store.clone()).hook(noting_hook(&log));
        let mut stream = run.stream();
        let events = take_events(&mut stream).await;
        assert!(matches!(stream.result().await.expect("it pauses"), RunResult::Paused(_)));
        events.into_iter().filter(|event| event.is_repeated).count()
    });
    assert_eq!((repeated, take_log(&log)), (0, Vec::new()));
    // A third one is killed after the second call has settled, and a fourth announces that call alone.
    run_process(async {
        let mut paused =
            windlass::store::load_paused(&*store, &RunId::new("left")).await.expect("it is there");
        paused.approve("b").expect("it waits");
        let killed = Arc::new(Notify::new());
        let run = agent(Vec::new()).resume(paused).store(store.clone()).lease_duration(LEASE);
        let run = run.hook(deadly_hook(&killed, ends("b"))).into_future();
        tokio::select! {
            ended = run => panic!("it is killed first: {ended:?}"),
            () = killed.notified() => {}
        }
    });
    run_process(async {
        let last = agent(vec![ScriptedResponse::text("Done.")]);
        last.recover("left", store.clone()).hook(noting_hook(&log)).await.expect("it finishes");
    });
    let told = take_log(&log);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("end b ") && told[0].ends_with(" (again)"), "{told:?}");
}

#[test]
fn a_handoff_and_a_repeated_start_are_marked() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let agent = |responses: Vec<ScriptedResponse>, billing: Vec<ScriptedResponse>| {
        let billing = Agent::new("billing").model(model(billing)).tool(tool("look"));
        Agent::new("desk").model(model(responses)).handoff(Handoff::to(billing))
    };
    let first = || agent(vec![ScriptedResponse::call("h", "transfer_to_billing", json!({}))], Vec::new());
    let is_handoff = |event: &HookEvent| matches!(event, HookEvent::HandedOff { .. });
    drive_until_killed(|| first().run("go").run_id("handed").store(store.clone()), is_handoff);

    // The process is killed again, before the body of a call that its tool may repeat.
    let log = HookLog::default();
    let second = || agent(Vec::new(), vec![call("c", "look")]).recover("handed", store.clone());
    let is_start = |event: &HookEvent| matches!(event, HookEvent::CallStarted { .. });
    drive_until_killed(|| second().hook(noting_hook(&log)), is_start);
    let told = take_log(&log);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].starts_with("handoff desk billing, record ") && told[0].ends_with(" (again)"),
        "{told:?}"
    );
    assert_eq!(told[1], "start c");

    let records = run_process(async {
        let last = agent(Vec::new(), vec![ScriptedResponse::text("Done.")]);
        let mut paused =
            windlass::store::load_paused(&*store, &RunId::new("handed")).await.expect("it is there");
        assert!(paused.pending_calls().is_empty());
        let run = last.recover("handed", store.clone()).hook(noting_hook(&log));
        let RunResult::Paused(held) = run.await.expect("it pauses") else { panic!("the call is in doubt") };
        paused = held;
        paused.confirm_not_executed("c").expect("it is in doubt");
        let run = last.resume(paused).store(store.clone()).hook(noting_hook(&log));
        run.await.expect("it finishes").record().journal().to_vec()
    });
    let seq = settlement_of(&records, "c");
    assert_eq!(
        take_log(&log),
        [
            "start c (again)".to_owned(),
            format!("end c {{\"input\":\"c\"}} Succeeded “look is done” after 2 attempts, record {seq}")
        ]
    );
}

#[test]
fn a_tool_that_is_gone_leads_to_a_warning_and_a_fork_repeats_nothing() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let agent = Agent::new("desk").model(model([call("c1", "look")])).tool(tool("look"));
    drive_until_killed(|| agent.run("go").run_id("gone").store(store.clone()), ends("c1"));

    let log = HookLog::default();
    run_process(async {
        let last = store.load_journal(&RunId::new("gone"), 0).await.expect("it is there").len() as u64 - 1;
        let change = windlass::core::inspect::ForkChange::Unchanged;
        fork_run(&*store, &RunId::new("gone"), last, RunId::new("fork"), change).await.expect("it forks");
        let without = Agent::new("desk")
            .model(model([ScriptedResponse::text("The fork is done."), ScriptedResponse::text("Done.")]));
        without.recover("fork", store.clone()).hook(noting_hook(&log)).await.expect("it finishes");
        let mut stream = without.recover("gone", store.clone()).hook(noting_hook(&log)).stream();
        let events = take_events(&mut stream).await;
        stream.result().await.expect("it finishes");
        let is_warning = |event: &RunEvent| matches!(&event.kind, RunEventKind::Warning { message } if message.contains("a hook could not be notified again"));
        assert_eq!(events.iter().filter(|event| is_warning(event)).count(), 1, "{events:#?}");
        assert_eq!(events.iter().filter_map(settled).map(|(_, _, again)| again).collect::<Vec<_>>(), [true]);
    });
    assert_eq!(take_log(&log), Vec::<String>::new());
}
