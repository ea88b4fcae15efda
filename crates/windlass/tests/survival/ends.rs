//! However a call ends, it ends once: S4.

use std::time::Duration;

use serde_json::json;
use windlass::prelude::*;
use windlass::{Effect, OnFailure};

use crate::support::*;

/// A call of each kind of end, and one that waits for a person.
fn every_end(log: &Log) -> Agent {
    let calls = Reply::call("ok", "effect", json!({}))
        .and_call("fails", "fails", json!({}))
        .and_call("panics", "panics", json!({}))
        .and_call("late", "late", json!({}))
        .and_call("first", "shared", json!({}))
        .and_call("receipt", "shared", json!({}))
        .and_call("missing", "nothing", json!({}))
        .and_raw_call("invalid", "effect", "not JSON")
        .and_call("yes", "gated", json!({ "n": 1 }))
        .and_call("no", "gated", json!({ "n": 2 }));
    let late = tool("late", |_, _| std::future::pending()).timeout(Duration::from_millis(5));
    let panics = tool("panics", |_, _| async { panic!("a test panics here") });
    let tools = (
        effect("effect", log),
        tool("fails", |_, _| async { Err(ToolError::tell("no")) }),
        panics,
        late,
        effect("shared", log).effect(Effect::Idempotent),
        effect("gated", log).approve_always(),
    );
    agent([calls, Reply::text("bye")]).tools(tools)
}

#[tokio::test(start_paused = true)]
async fn s04_every_call_that_started_ends_once_however_it_ends() {
    for surface in Surface::ALL {
        let told = Log::default();
        let stage = Stage::new(surface, every_end(&Log::default()).hook(call_log(&told)));
        let first = stage.play().await;
        assert_eq!(first.played().end, Ended::Paused(lines(&["yes", "no"])), "{surface:?}");
        let mut events = call_events(&first.events);
        let mut paused = first.paused();
        paused.approve(stage.path("yes")).expect("it waits");
        paused.reject(stage.path("no")).expect("it waits");
        let last = stage.go_on(paused).await;
        events.extend(call_events(&last.events));
        assert_eq!(last.played().end, Ended::Finished("bye".to_owned()), "{surface:?}");

        let path = |call: &str| stage.path(call).to_string();
        let mut want: Vec<String> = [
            ("ok", "Succeeded"),
            ("fails", "Failed"),
            ("panics", "Failed"),
            ("late", "TimedOut"),
            ("first", "Succeeded"),
            ("invalid", "Invalid"),
            ("yes", "Succeeded"),
        ]
        .into_iter()
        .flat_map(|(call, how)| [format!("start {}", path(call)), format!("end {} {how}", path(call))])
        .collect();
        want.sort();
        let mut hooked = told.take();
        hooked.sort();
        assert_eq!(hooked, want, "{surface:?}");
        if surface == Surface::Streamed {
            // Watchers are told of the end of calls that never started, too.
            want.extend(lines(&["end receipt Receipt", "end missing Missing", "end no Rejected"]));
            want.sort();
            events.sort();
            assert_eq!(events, want);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s04_every_call_that_started_ends_once_where_the_run_fails() {
    for surface in Surface::ALL {
        let told = Log::default();
        let fatal = tool("fatal", |_, _| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Err(ToolError::tell("over"))
        });
        let calls = Reply::call("done", "wait", json!({ "ms": 1 }))
            .and_call("fatal", "fatal", json!({}))
            .and_call("running", "wait", json!({ "ms": 500 }));
        let tools = (slow("wait", &Log::default()), fatal.on_failure(OnFailure::Fail));
        let agent = agent([calls]).tools(tools).hook(call_log(&told));
        let stage = Stage::new(surface, agent);
        let act = stage.play().await;
        let path = |call: &str| stage.path(call).to_string();
        let mut want: Vec<String> =
            ["done", "fatal", "running"].map(|call| format!("start {}", path(call))).into();
        let ends = [("done", "Succeeded"), ("fatal", "Failed"), ("running", "Cancelled")];
        want.extend(ends.map(|(call, how)| format!("end {} {how}", path(call))));
        assert_eq!(told.take(), want, "{surface:?}");
        if surface == Surface::Streamed {
            assert_eq!(call_events(&act.events), want);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s04_every_call_that_started_ends_once_where_the_run_is_cancelled() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        let told = Log::default();
        let calls = Reply::call("done", "wait", json!({ "ms": 1 }))
            .and_call("running", "wait", json!({ "ms": 500 }))
            .and_call("queued", "wait", json!({ "ms": 500 }));
        let agent = agent([calls]).tools(slow("wait", &Log::default())).hook(call_log(&told));
        let stage = Stage::new(surface, agent).configure(|run| {
            let cancel = run.cancel_handle();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                cancel.now();
            });
            run.concurrency(2)
        });
        let act = stage.play().await;
        assert_eq!(act.played().end, Ended::Cancelled, "{surface:?}");
        let path = |call: &str| stage.path(call).to_string();
        let want = [
            format!("start {}", path("done")),
            format!("start {}", path("running")),
            format!("end {} Succeeded", path("done")),
            format!("end {} Cancelled", path("running")),
        ];
        // The one in the queue may not have started, so it need not end.
        let mut started = told.take();
        started.retain(|line| !line.contains("queued"));
        assert_eq!(started, want, "{surface:?}");
        if surface == Surface::Streamed {
            assert_eq!(
                call_events(&act.events).iter().filter(|line| line.starts_with("end running")).count(),
                1
            );
        }
    }
}

/// An agent inside a call waits for a person when a sibling of that call ends the run.
#[tokio::test(start_paused = true)]
async fn s04_an_agent_that_waits_ends_once_where_the_run_fails() {
    for surface in Surface::ALL {
        let told = Log::default();
        let waits = Agent::new("waits")
            .model(ScriptedModel::new([Reply::call("gated", "gated", json!({}))]))
            .tools(effect("gated", &Log::default()).approve_always());
        let fatal = tool("fatal", |_, _| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Err(ToolError::tell("over"))
        });
        let calls =
            Reply::call("waits", "waits", json!({ "input": "go" })).and_call("fatal", "fatal", json!({}));
        let tools = (waits.as_tool("waits", "An agent."), fatal.on_failure(OnFailure::Fail));
        let agent = agent([calls]).tools(tools).hook(call_log(&told));
        let stage = Stage::new(surface, agent);
        let act = stage.play().await;
        let path = |call: &str| stage.path(call).to_string();
        let want = [
            format!("start {}", path("waits")),
            format!("start {}", path("fatal")),
            format!("end {} Failed", path("fatal")),
            format!("end {} Cancelled", path("waits")),
        ];
        assert_eq!(told.take(), want, "{surface:?}");
        if surface == Surface::Streamed {
            assert_eq!(call_events(&act.events), want);
        }
    }
}

/// The same, where the run is cancelled when nothing but the person is waited for.
#[tokio::test(start_paused = true)]
async fn s04_an_agent_that_waits_ends_once_where_the_run_is_cancelled() {
    let told = Log::default();
    let waits = Agent::new("waits")
        .model(ScriptedModel::new([Reply::call("gated", "gated", json!({}))]))
        .tools(effect("gated", &Log::default()).approve_always());
    let calls = Reply::call("waits", "waits", json!({ "input": "go" }));
    let agent = agent([calls]).tools(waits.as_tool("waits", "An agent.")).hook(call_log(&told));
    let paused = agent.run("go").await.expect("pauses").paused().expect("pauses");
    let resumed = agent.resume(paused);
    resumed.cancel_handle().now();
    let (outcome, events) = watch(resumed).await;
    assert!(matches!(outcome, Ok(Outcome::Cancelled(_))), "{outcome:?}");
    assert_eq!(told.take(), ["start waits", "end waits Cancelled"]);
    assert_eq!(call_events(&events), ["end waits Cancelled"]);
}

/// Watchers of a run are told of the calls of agents inside it, by their paths.
#[tokio::test(start_paused = true)]
async fn s04_watchers_are_told_of_calls_inside_agents() {
    let told = Log::default();
    let calls = Reply::call("ok", "effect", json!({})).and_call("fails", "fails", json!({})).and_call(
        "late",
        "late",
        json!({}),
    );
    let tools = (
        effect("effect", &Log::default()),
        tool("fails", |_, _| async { Err(ToolError::tell("no")) }),
        tool("late", |_, _| std::future::pending()).timeout(Duration::from_millis(5)),
    );
    let agent = agent([calls, Reply::text("bye")]).tools(tools).hook(call_log(&told));
    let (outcome, events) = watch(Stage::new(Surface::Nested, agent).run()).await;
    assert_eq!(outcome.expect("it finishes").text(), "outer done");
    let inside = told.take();
    assert_eq!(inside.len(), 6);
    let around = [lines(&["start outer"]), inside, lines(&["end outer Succeeded"])].concat();
    assert_eq!(call_events(&events), around);
}
