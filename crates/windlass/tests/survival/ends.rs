//! Every call ends exactly once: S4.

use std::time::Duration;

use serde_json::json;
use windlass::prelude::*;
use windlass::{core::tool::ToolEffect, tool::OnFailure};

use crate::support::*;

/// Creates an agent that makes one call for every status, and two that wait for approval.
fn every_end(log: &TestLog) -> Agent {
    let calls = ScriptedResponse::call("ok", "effect", json!({}))
        .and_call("fails", "fails", json!({}))
        .and_call("panics", "panics", json!({}))
        .and_call("late", "late", json!({}))
        .and_call("first", "shared", json!({}))
        .and_call("receipt", "shared", json!({}))
        .and_call("missing", "nothing", json!({}))
        .and_raw_call("invalid", "effect", "not JSON")
        .and_call("yes", "gated", json!({ "n": 1 }))
        .and_call("no", "gated", json!({ "n": 2 }));
    let late = any_object_tool("late", |_, _| std::future::pending()).timeout(Duration::from_millis(5));
    let panics = any_object_tool("panics", |_, _| async { panic!("a test panics here") });
    let tools = (
        logging_tool("effect", log),
        any_object_tool("fails", |_, _| async { Err(ToolError::visible("no")) }),
        panics,
        late,
        logging_tool("shared", log).effect(ToolEffect::Idempotent),
        logging_tool("gated", log).needs_approval(),
    );
    scripted_agent([calls, ScriptedResponse::text("bye")]).tools(tools)
}

async fn s04_every_call_that_started_ends_once_however_it_ends() {
    for surface in RunSurface::ALL {
        let told = TestLog::default();
        let stage = ScenarioRunner::new(surface, every_end(&TestLog::default()).hook(call_log_hook(&told)));
        let first = stage.run_to_pause().await;
        assert_eq!(first.result().end, ScenarioEnd::Paused(owned_lines(&["yes", "no"])), "{surface:?}");
        let mut events = call_event_lines(&first.events);
        let mut paused = first.into_paused();
        paused.approve(stage.call_path("yes")).expect("it waits");
        paused.reject(stage.call_path("no")).expect("it waits");
        let last = stage.resume_paused(paused).await;
        events.extend(call_event_lines(&last.events).0);
        assert_eq!(last.result().end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?}");

        let path = |call: &str| stage.call_path(call).to_string();
        let mut want: Vec<String> = [
            ("ok", "Succeeded"),
            ("fails", "Failed"),
            ("panics", "Failed"),
            ("late", "TimedOut"),
            ("first", "Succeeded"),
            ("invalid", "InvalidArguments"),
            ("yes", "Succeeded"),
        ]
        .into_iter()
        .flat_map(|(call, how)| [format!("start {}", path(call)), format!("end {} {how}", path(call))])
        .collect();
        want.sort();
        let mut hooked = told.take();
        hooked.sort();
        assert_eq!(hooked, want, "{surface:?}");
        if surface == RunSurface::Streamed {
            // Watchers also receive the end of calls that never started.
            want.extend(owned_lines(&[
                "end receipt Deduplicated",
                "end missing UnknownTool",
                "end no Rejected",
            ]));
            want.sort();
            events.sort();
            assert_eq!(events, want);
        }
    }
}

// One thread: the clock decides which of its waits ends first.
#[tokio::test(start_paused = true)]
async fn s04_every_call_that_started_ends_once_where_the_run_fails() {
    for surface in RunSurface::ALL {
        let told = TestLog::default();
        let fatal = any_object_tool("fatal", |_, _| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Err(ToolError::visible("over"))
        });
        let calls = ScriptedResponse::call("done", "wait", json!({ "ms": 1 }))
            .and_call("fatal", "fatal", json!({}))
            .and_call("running", "wait", json!({ "ms": 500 }));
        let tools = (slow_tool("wait", &TestLog::default()), fatal.on_failure(OnFailure::FailRun));
        let agent = scripted_agent([calls]).tools(tools).hook(call_log_hook(&told));
        let stage = ScenarioRunner::new(surface, agent);
        let act = stage.run_to_pause().await;
        let path = |call: &str| stage.call_path(call).to_string();
        let mut want: Vec<String> =
            ["done", "fatal", "running"].map(|call| format!("start {}", path(call))).into();
        let ends = [("done", "Succeeded"), ("fatal", "Failed"), ("running", "Cancelled")];
        want.extend(ends.map(|(call, how)| format!("end {} {how}", path(call))));
        assert_eq!(told.take(), want, "{surface:?}");
        if surface == RunSurface::Streamed {
            assert_eq!(call_event_lines(&act.events), want);
        }
    }
}

// One thread: the clock decides which of its waits ends first.
#[tokio::test(start_paused = true)]
async fn s04_every_call_that_started_ends_once_where_the_run_is_cancelled() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        let told = TestLog::default();
        let calls = ScriptedResponse::call("done", "wait", json!({ "ms": 1 }))
            .and_call("running", "wait", json!({ "ms": 500 }))
            .and_call("queued", "wait", json!({ "ms": 500 }));
        let agent =
            scripted_agent([calls]).tools(slow_tool("wait", &TestLog::default())).hook(call_log_hook(&told));
        let stage = ScenarioRunner::new(surface, agent).configure_runs(|run| {
            let cancel = run.cancel_handle();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                cancel.cancel();
            });
            run.max_concurrent_calls(2)
        });
        let act = stage.run_to_pause().await;
        assert_eq!(act.result().end, ScenarioEnd::Cancelled, "{surface:?}");
        let path = |call: &str| stage.call_path(call).to_string();
        let want = [
            format!("start {}", path("done")),
            format!("start {}", path("running")),
            format!("end {} Succeeded", path("done")),
            format!("end {} Cancelled", path("running")),
        ];
        // The queued call may not have started, so it need not end.
        let mut started = told.take();
        started.retain(|line| !line.contains("queued"));
        assert_eq!(started, want, "{surface:?}");
        if surface == RunSurface::Streamed {
            assert_eq!(
                call_event_lines(&act.events).iter().filter(|line| line.starts_with("end running")).count(),
                1
            );
        }
    }
}

/// A nested agent waits for approval when a sibling call fails the run.
// One thread: the clock decides which of its waits ends first.
#[tokio::test(start_paused = true)]
async fn s04_an_agent_that_waits_ends_once_where_the_run_fails() {
    for surface in RunSurface::ALL {
        let told = TestLog::default();
        let waits = Agent::new("waits")
            .model(ScriptedModel::new([ScriptedResponse::call("gated", "gated", json!({}))]))
            .tools(logging_tool("gated", &TestLog::default()).needs_approval());
        let fatal = any_object_tool("fatal", |_, _| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Err(ToolError::visible("over"))
        });
        let calls = ScriptedResponse::call("waits", "waits", json!({ "input": "go" })).and_call(
            "fatal",
            "fatal",
            json!({}),
        );
        let tools = (waits.as_tool("waits", "An agent."), fatal.on_failure(OnFailure::FailRun));
        let agent = scripted_agent([calls]).tools(tools).hook(call_log_hook(&told));
        let stage = ScenarioRunner::new(surface, agent);
        let act = stage.run_to_pause().await;
        let path = |call: &str| stage.call_path(call).to_string();
        let want = [
            format!("start {}", path("waits")),
            format!("start {}", path("fatal")),
            format!("end {} Failed", path("fatal")),
            format!("end {} Cancelled", path("waits")),
        ];
        assert_eq!(told.take(), want, "{surface:?}");
        if surface == RunSurface::Streamed {
            assert_eq!(call_event_lines(&act.events), want);
        }
    }
}

/// The same, when the run is cancelled while only the approval is open.
async fn s04_an_agent_that_waits_ends_once_where_the_run_is_cancelled() {
    let told = TestLog::default();
    let waits = Agent::new("waits")
        .model(ScriptedModel::new([ScriptedResponse::call("gated", "gated", json!({}))]))
        .tools(logging_tool("gated", &TestLog::default()).needs_approval());
    let calls = ScriptedResponse::call("waits", "waits", json!({ "input": "go" }));
    let agent = scripted_agent([calls]).tools(waits.as_tool("waits", "An agent.")).hook(call_log_hook(&told));
    let paused = agent.run("go").await.expect("pauses").into_paused().expect("pauses");
    let resumed = agent.resume(paused);
    resumed.cancel_handle().cancel();
    let (outcome, events) = watch_run(resumed).await;
    assert!(matches!(outcome, Ok(RunResult::Cancelled(_))), "{outcome:?}");
    assert_eq!(told.take(), ["start waits", "end waits Cancelled"]);
    assert_eq!(call_event_lines(&events), ["end waits Cancelled"]);
}

/// Watchers of a run receive the calls of nested agents, with their paths.
async fn s04_watchers_are_told_of_calls_inside_agents() {
    let told = TestLog::default();
    let calls = ScriptedResponse::call("ok", "effect", json!({}))
        .and_call("fails", "fails", json!({}))
        .and_call("late", "late", json!({}));
    let tools = (
        logging_tool("effect", &TestLog::default()),
        any_object_tool("fails", |_, _| async { Err(ToolError::visible("no")) }),
        any_object_tool("late", |_, _| std::future::pending()).timeout(Duration::from_millis(5)),
    );
    let agent =
        scripted_agent([calls, ScriptedResponse::text("bye")]).tools(tools).hook(call_log_hook(&told));
    let (outcome, events) = watch_run(ScenarioRunner::new(RunSurface::Nested, agent).build_run()).await;
    assert_eq!(outcome.expect("it finishes").output_text().expect("the run finished"), "outer done");
    let inside = told.take();
    assert_eq!(inside.len(), 6);
    let around = [owned_lines(&["start outer"]), inside.0, owned_lines(&["end outer Succeeded"])].concat();
    assert_eq!(call_event_lines(&events), around);
}

on_both_runtimes! {
    paused_clock:
        s04_every_call_that_started_ends_once_however_it_ends,
        s04_an_agent_that_waits_ends_once_where_the_run_is_cancelled,
        s04_watchers_are_told_of_calls_inside_agents;
}
