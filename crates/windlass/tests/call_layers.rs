//! Call layers wrap every body, blocking ones included.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::item::OutputContent;
use windlass::core::journal::{CallStatus, JournalEntry};
use windlass::prelude::*;

/// Adds one, on the async runtime.
#[tool(effect = pure)]
async fn add_async(n: u32) -> u32 {
    n + 1
}

/// Adds one, on a blocking thread.
#[tool(effect = pure)]
fn add_blocking(n: u32) -> u32 {
    n + 1
}

/// Panics on a blocking thread.
#[tool(effect = pure)]
fn fails() -> u32 {
    panic!("a test panics here")
}

#[tokio::test]
async fn layers_are_around_async_and_blocking_bodies() {
    let calls = ScriptedResponse::call("a", "add_async", json!({ "n": 1 }))
        .and_call("b", "add_blocking", json!({ "n": 2 }))
        .and_call("c", "fails", json!({}));
    let model = ScriptedModel::new([calls, ScriptedResponse::text("bye")]);
    let agent = Agent::new("adder").model(model.clone()).tools((add_async, add_blocking, fails));
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = seen.clone();
    let run = agent.run("go").call_layer(move |ctx: ToolContext, next| {
        log.lock().expect("nobody panics with it").push(ctx.call_id().to_owned());
        async move { next.run().await.map(|output| OutputContent::from(format!("<{}>", output.text()))) }
    });
    let result = run.await.expect("it ends");
    let mut seen = seen.lock().expect("nobody panics with it").clone();
    seen.sort();
    assert_eq!(seen, ["a", "b", "c"]);
    let outputs = model.requests()[1].input_text();
    assert!(outputs.contains(&"output a <2>".to_owned()), "{outputs:?}");
    assert!(outputs.contains(&"output b <3>".to_owned()), "{outputs:?}");
    let statuses = result.record().journal().iter().filter_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some((settled.call.as_str(), settled.status.clone())),
        _ => None,
    });
    let failed = statuses.filter(|(_, status)| *status == CallStatus::Failed);
    assert_eq!(failed.map(|(call, _)| call).collect::<Vec<_>>(), ["c"]);
}

/// A run is cancelled between the start of a call and its body. The body inside the layer never begins, so nobody waits
/// for it and the record does not call it draining.
#[tokio::test(start_paused = true)]
async fn a_body_inside_a_layer_that_has_not_begun_ends_with_its_run() {
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = begun.clone();
    let pay = Tool::dynamic_blocking(
        "pay",
        "Pays.",
        json!({ "type": "object" }),
        move |_: ToolContext, _: Value| {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ToolError>("paid")
        },
    );
    let model = ScriptedModel::new([ScriptedResponse::call("a", "pay", json!({}))]);
    let agent = Agent::new("till").model(model).tools(pay.non_strict());
    let run = agent.run("go").call_layer(|_: ToolContext, next| async move { next.run().await });
    let handle = run.cancel_handle();
    let since = tokio::time::Instant::now();
    let mut stream = run.drain_timeout(Duration::from_secs(3600)).stream();
    while let Some(event) = stream.next().await {
        if matches!(event.kind, RunEventKind::CallStarted { .. }) {
            handle.cancel();
        }
    }
    let result = stream.result().await.expect("it settles");
    let RunResult::Cancelled(cancelled) = result else { panic!("it is cancelled: {result:?}") };
    let settlement = &cancelled.settlement;
    assert_eq!((settlement.draining.len(), begun.load(Ordering::SeqCst)), (0, 0), "{settlement:?}");
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
}
