//! A run that stops waits for all its parts until one deadline: no stage and no call makes the wait longer.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;
use windlass::error::RunError;
use windlass::hook::{Hook, HookEvent};
use windlass::prelude::*;
use windlass::tool::OnFailure;

/// Drain timeout of the runs, in simulated time.
const DRAIN: Duration = Duration::from_secs(10);

fn tool<Fut>(name: &str, body: impl Fn(ToolContext, Value) -> Fut + Send + Sync + 'static) -> Tool
where
    Fut: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    Tool::dynamic(name, "A tool.", json!({ "type": "object" }), body).non_strict()
}

/// A hook that does not return from the events that `hangs` names, and counts the ends of calls.
fn hanging_hook(hangs: &'static [&'static str], ends: &Arc<AtomicUsize>) -> Hook {
    let ends = ends.clone();
    Hook::new(move |event: HookEvent| {
        let (name, ends) = (event.name(), ends.clone());
        async move {
            if name == "call_ended" {
                ends.fetch_add(1, Ordering::SeqCst);
            }
            if hangs.contains(&name) {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    })
}

/// Cancels a run when `begun` was notified, and returns the simulated time that it then takes.
async fn time_to_cancel(run: windlass::run::RunBuilder, begun: &Notify) -> Duration {
    let handle = run.cancel_handle();
    let driven = tokio::spawn(run.drain_timeout(DRAIN).into_future());
    begun.notified().await;
    let since = Instant::now();
    handle.cancel();
    let result = driven.await.expect("it does not panic").expect("it settles");
    assert!(matches!(result, RunResult::Cancelled(_)), "{result:?}");
    since.elapsed()
}

/// The progress hook takes all of the time, and the end hook has none left.
#[tokio::test(start_paused = true)]
async fn the_stages_of_a_call_share_one_drain() {
    let (begun, ends) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let started = begun.clone();
    let body = tool("work", move |ctx, _| {
        let started = started.clone();
        async move {
            ctx.report_progress(json!(1));
            tokio::time::sleep(Duration::from_millis(1)).await;
            started.notify_one();
            std::future::pending().await
        }
    });
    let agent = Agent::new("desk")
        .model(ScriptedModel::new([ScriptedResponse::call("a", "work", json!({}))]))
        .hook(hanging_hook(&["call_progress", "call_ended"], &ends))
        .tool(body);
    let took = time_to_cancel(agent.run("go"), &begun).await;
    assert!(took >= DRAIN && took < DRAIN + Duration::from_secs(1), "{took:?}");
    assert_eq!(ends.load(Ordering::SeqCst), 1);
}

/// Twenty agents wait for approvals, and no end hook returns.
#[tokio::test(start_paused = true)]
async fn the_calls_of_a_run_share_one_drain() {
    const COUNT: usize = 20;
    let (begun, ends) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let model = ScriptedModel::from_fn(|_| ScriptedResponse::call("p", "pay", json!({})));
    let pay = tool("pay", |_, _| async { Ok("paid".to_owned()) }).needs_approval();
    let clerk = Agent::new("clerk").model(model).tool(pay);
    let started = begun.clone();
    let works = tool("work", move |_, _| {
        let started = started.clone();
        async move {
            // The agents have come to their approvals by then.
            tokio::time::sleep(Duration::from_secs(1)).await;
            started.notify_one();
            std::future::pending().await
        }
    });
    let mut calls = ScriptedResponse::call("w", "work", json!({}));
    for number in 0..COUNT {
        calls = calls.and_call(&format!("a{number}"), "ask", json!({ "input": "go" }));
    }
    let desk = Agent::new("desk").model(ScriptedModel::new([calls])).tool(works);
    let desk = desk.tool(clerk.as_tool("ask", "Asks.")).hook(hanging_hook(&["call_ended"], &ends));
    let took = time_to_cancel(desk.run("go"), &begun).await;
    assert!(took < DRAIN + Duration::from_secs(1), "{took:?}");
    assert_eq!(ends.load(Ordering::SeqCst), COUNT + 1);
}

/// Each of the three ways to stop calls computes an instant from the timeout.
#[tokio::test(start_paused = true)]
async fn a_drain_without_a_limit_stops_calls() {
    let begun = Arc::new(Notify::new());
    let agent = |names: &[&str]| {
        let started = begun.clone();
        let works = tool("work", move |_, _| {
            started.notify_one();
            std::future::pending()
        });
        let slow = tool("slow", |_, _| std::future::pending()).timeout(Duration::from_secs(1));
        let fails =
            tool("fail", |_, _| async { Err(ToolError::hidden("no")) }).on_failure(OnFailure::FailRun);
        let empty = ScriptedResponse::items([]);
        let calls = names.iter().fold(empty, |calls, name| calls.and_call(name, name, json!({})));
        let model = ScriptedModel::new([calls, ScriptedResponse::text("bye")]);
        Agent::new("desk").model(model).tool(works).tool(slow).tool(fails)
    };
    let run = |names: &[&str]| agent(names).run("go").drain_timeout(Duration::MAX);
    let timed_out = run(&["slow"]).await.expect("it ends");
    assert_eq!(timed_out.output_text(), Ok("bye"));
    let cancelled = run(&["work"]);
    let handle = cancelled.cancel_handle();
    let (result, ()) = tokio::join!(cancelled, async {
        begun.notified().await;
        handle.cancel();
    });
    let result = result.expect("it settles");
    assert!(matches!(result, RunResult::Cancelled(_)), "{result:?}");
    let failed = run(&["fail", "work"]).await.expect_err("it fails");
    assert!(matches!(failed, RunError::Failed(_)), "{failed:?}");
}
