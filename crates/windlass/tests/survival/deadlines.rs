//! Deadlines: S14 and S15.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::journal::{CallEndedLate, JournalEntry, JournalRecord};
use windlass::core::tool::ToolEffect;
use windlass::prelude::*;
use windlass::{core::failure::RunFailure, core::journal::CallStatus, store::MemoryStore, tool::OnTimeout};

use crate::support::*;

/// A guard whose destructor blocks and then logs how it ended.
struct BlockingDropGuard(ThreadLatch, TestLog);

impl Drop for BlockingDropGuard {
    fn drop(&mut self) {
        self.1.push(self.0.wait().map_or_else(str::to_owned, |()| "let go".to_owned()));
    }
}

/// A subscriber that collects all log events of the process.
#[derive(Default)]
struct LogCollector(Mutex<Vec<String>>);

impl LogCollector {
    fn install() -> &'static Self {
        static WARNINGS: OnceLock<&'static LogCollector> = OnceLock::new();
        WARNINGS.get_or_init(|| {
            let warnings: &'static Self = Box::leak(Box::default());
            tracing::subscriber::set_global_default(warnings).expect("no other test sets it");
            warnings
        })
    }

    fn contains(&self, part: &str) -> bool {
        self.0.lock().expect("no logger panics").iter().any(|line| line.contains(part))
    }
}

/// A visitor that formats the fields of a log event.
struct LogLineVisitor(String);

impl tracing::field::Visit for LogLineVisitor {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl tracing::Subscriber for &'static LogCollector {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = LogLineVisitor(String::new());
        event.record(&mut line);
        self.0.lock().expect("no logger panics").push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn s14_a_deadline_holds_where_the_clean_up_does_not_end() {
    let warnings = LogCollector::install();
    for surface in RunSurface::ALL {
        let (latch, log) = (ThreadLatch::default(), TestLog::default());
        let (held, noted) = (latch.clone(), log.clone());
        let stuck = any_object_tool("stuck", move |_, _| {
            let guard = BlockingDropGuard(held.clone(), noted.clone());
            async move {
                let _guard = guard;
                std::future::pending().await
            }
        });
        let call = format!("stuck-{surface:?}");
        let calls = ScriptedResponse::call(&call, "stuck", json!({})).and_call("b", "effect", json!({}));
        // Long enough for the body to start.
        let tools = (stuck.timeout(Duration::from_secs(1)), logging_tool("effect", &TestLog::default()));
        let stage =
            ScenarioRunner::new(surface, scripted_agent([calls, ScriptedResponse::text("bye")]).tools(tools));
        let act =
            stage.configure_runs(|run| run.drain_timeout(Duration::from_millis(5))).run_to_pause().await;
        // The run has ended while its body still cleans up.
        assert_eq!(log.take(), [""; 0], "{surface:?}");
        let outputs = [
            &format!("output {call} Tool 'stuck' timed out after 1 seconds."),
            "output b done",
            "assistant: bye",
        ];
        assert_eq!(act.result().items[2..], outputs, "{surface:?}");
        latch.open();
        wait_until(|| warnings.contains(&call)).await;
        assert_eq!(log.take(), ["let go"], "{surface:?}");
    }
}

// One thread: the clock decides which of its waits ends first.
#[tokio::test(start_paused = true)]
async fn s14_a_timeout_that_ends_the_run_lets_the_others_settle() {
    for surface in RunSurface::ALL {
        let late = any_object_tool("late", |_, _| std::future::pending());
        let late = late.timeout(Duration::from_millis(1500)).on_timeout(OnTimeout::FailRun);
        let log = TestLog::default();
        let calls = ScriptedResponse::call("a", "wait", json!({ "ms": 1 }))
            .and_call("b", "late", json!({}))
            .and_call("c", "wait", json!({ "ms": 5000 }));
        let act =
            ScenarioRunner::new(surface, scripted_agent([calls]).tools((late, slow_tool("wait", &log))))
                .run_to_pause()
                .await;
        let failure =
            RunFailure::ToolTimeout { tool: "late".to_owned(), call: "b".into(), seconds: "1.5".to_owned() };
        assert_eq!(act.result().end, ScenarioEnd::Failed(failure), "{surface:?}");
        let hows = [("a", CallStatus::Succeeded), ("b", CallStatus::TimedOut), ("c", CallStatus::Cancelled)];
        assert_eq!(act.call_statuses(), hows.map(|(call, how)| (call.to_owned(), how)), "{surface:?}");
        assert_eq!(log.take(), ["start a", "start c", "end a"], "{surface:?}");
    }
}

/// A nested agent is the body of its call and shares that call's deadline. The deadline stops its own calls
/// too; time spent waiting for a person does not count.
// One thread: the clock decides which of its waits ends first.
#[tokio::test(start_paused = true)]
async fn s14_an_agent_inside_a_call_has_a_deadline_too() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let replies = [
            ScriptedResponse::call("i", "wait", json!({ "ms": 5000 })),
            ScriptedResponse::text("inside done"),
        ];
        let inside = Agent::new("inside").model(ScriptedModel::new(replies)).tools(slow_tool("wait", &log));
        let inside = inside.as_tool("inside", "An agent.").timeout(Duration::from_millis(1500));
        let calls = ScriptedResponse::call("a", "inside", json!({ "input": "go" })).and_call(
            "b",
            "wait",
            json!({ "ms": 3000 }),
        );
        let agent =
            scripted_agent([calls, ScriptedResponse::text("bye")]).tools((inside, slow_tool("wait", &log)));
        let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
        let outputs =
            ["output a Tool 'inside' timed out after 1.5 seconds.", "output b b done", "assistant: bye"];
        assert_eq!(act.result().items[2..], outputs, "{surface:?}");
        assert_eq!(act.call_statuses()[0], ("a".to_owned(), CallStatus::TimedOut), "{surface:?}");
        assert_eq!(log.count("end i"), 0, "{surface:?}");
    }
}

// One thread: the clock decides which of its waits ends first.
#[tokio::test(start_paused = true)]
async fn s14_the_time_that_a_person_takes_is_not_an_agents() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let replies =
            [ScriptedResponse::call("i", "gated", json!({})), ScriptedResponse::text("inside done")];
        let gated = logging_tool("gated", &log).needs_approval();
        let inside = Agent::new("inside").model(ScriptedModel::new(replies)).tools(gated);
        let inside = inside.as_tool("inside", "An agent.").timeout(Duration::from_millis(1500));
        let calls = ScriptedResponse::call("a", "inside", json!({ "input": "go" })).and_call(
            "b",
            "wait",
            json!({ "ms": 3000 }),
        );
        let stage = ScenarioRunner::new(
            surface,
            scripted_agent([calls, ScriptedResponse::text("bye")]).tools((inside, slow_tool("wait", &log))),
        );
        let mut paused = stage.run_to_pause().await.into_paused();
        paused.approve("i").expect("it waits");
        let act = stage.resume_paused(paused).await;
        let outputs = ["output a inside done", "output b b done", "assistant: bye"];
        assert_eq!(act.result().items[2..], outputs, "{surface:?}");
    }
}

/// Creates a blocking tool that does not end before the latch opens.
fn stuck_blocking_tool(latch: &ThreadLatch) -> Tool {
    let held = latch.clone();
    let stuck = blocking_tool("stuck", move |ctx, _| {
        held.wait().map_err(ToolError::visible)?;
        Ok(format!("late, {}", if ctx.is_cancelled() { "asked to stop" } else { "not asked" }))
    });
    // Long enough for the body to start; a body that has not started is dropped.
    stuck.timeout(Duration::from_secs(1))
}

/// Creates a tool that opens the latch and waits until the store has recorded the late end.
fn release_tool(latch: &ThreadLatch, store: &Arc<MemoryStore>) -> Tool {
    let (latch, store) = (latch.clone(), store.clone());
    any_object_tool("release", move |_, _| {
        let (latch, store) = (latch.clone(), store.clone());
        async move {
            latch.open();
            while late_end_entries(&stored_records(&*store, "run").await).is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok("done".to_owned())
        }
    })
}

fn late_end_entries(records: &[JournalRecord]) -> Vec<CallEndedLate> {
    let late = records.iter().filter_map(|record| match &record.entry {
        JournalEntry::CallEndedLate(late) => Some(late.clone()),
        _ => None,
    });
    late.collect()
}

async fn s15_a_blocking_body_past_its_deadline_is_in_doubt_and_its_end_is_recorded() {
    for surface in RunSurface::ALL {
        let (latch, store) = (ThreadLatch::default(), Arc::new(MemoryStore::default()));
        let replies = [
            ScriptedResponse::call("a", "stuck", json!({})),
            ScriptedResponse::call("b", "release", json!({})),
            ScriptedResponse::text("bye"),
        ];
        let agent =
            scripted_agent(replies).tools((stuck_blocking_tool(&latch), release_tool(&latch, &store)));
        let kept = store.clone();
        let stage = ScenarioRunner::new(surface, agent)
            .configure_runs(move |run| run.run_id("run").store(kept.clone()));
        let act = stage.run_to_pause().await;
        let told =
            "Tool 'stuck' timed out after 1 seconds. It could not be stopped and may still take effect.";
        let said = [
            "call a stuck {}",
            &format!("output a {told}"),
            "call b release {}",
            "output b done",
            "assistant: bye",
        ];
        assert_eq!(act.result(), finished_result("bye", &said), "{surface:?}");
        assert_eq!(act.call_statuses()[0], ("a".to_owned(), CallStatus::TimedOutStillRunning), "{surface:?}");
        let late = CallEndedLate {
            call: "a".into(),
            status: CallStatus::Succeeded,
            output: Some("late, asked to stop".into()),
        };
        assert_eq!(late_end_entries(act.journal()), [late], "{surface:?}");
    }
}

/// The nested agent has ended by then; the journal must still replay.
async fn s15_an_end_that_is_later_than_its_agents_can_be_replayed() {
    let (latch, store) = (ThreadLatch::default(), Arc::new(MemoryStore::default()));
    let inner = Agent::new("inner")
        .model(ScriptedModel::new([
            ScriptedResponse::call("a", "stuck", json!({})),
            ScriptedResponse::text("inner done"),
        ]))
        .tools(stuck_blocking_tool(&latch));
    let replies = [
        ScriptedResponse::call("x", "inner", json!({ "input": "go" })),
        ScriptedResponse::call("y", "release", json!({})),
        ScriptedResponse::call("z", "gated", json!({})),
        ScriptedResponse::text("bye"),
    ];
    let log = TestLog::default();
    let tools = (
        inner.as_tool("inner", "An agent."),
        release_tool(&latch, &store),
        logging_tool("gated", &log).needs_approval(),
    );
    let agent = scripted_agent(replies).tools(tools);
    let outcome = with_timeout(async { agent.run("go").run_id("run").store(store.clone()).await }).await;
    let mut paused = round_trip(&outcome.expect("it pauses").into_paused().expect("it pauses"));
    let late = CallEndedLate {
        call: "a".into(),
        status: CallStatus::Succeeded,
        output: Some("late, asked to stop".into()),
    };
    assert_eq!(late_end_entries(paused.record().journal()), [late]);
    paused.approve("z").expect("it waits");
    assert_eq!(
        agent.resume(paused).await.expect("it finishes").output_text().expect("the run finished"),
        "bye"
    );
}

on_both_runtimes! {
    real_clock:
        s15_a_blocking_body_past_its_deadline_is_in_doubt_and_its_end_is_recorded,
        s15_an_end_that_is_later_than_its_agents_can_be_replayed;
}

/// An async body that blocks its thread cannot be aborted, so it is in doubt like a blocking one, and not tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn s15_an_async_body_that_blocks_past_its_deadline_is_in_doubt_and_is_not_tried_again() {
    for effect in [ToolEffect::Once, ToolEffect::Idempotent, ToolEffect::Pure] {
        let (latch, log, store) =
            (ThreadLatch::default(), TestLog::default(), Arc::new(MemoryStore::default()));
        let (held, noted) = (latch.clone(), log.clone());
        let stuck = Tool::dynamic(
            "stuck",
            "A tool.",
            json!({ "type": "object" }),
            move |_: ToolContext, _: Value| {
                let (held, noted) = (held.clone(), noted.clone());
                async move {
                    noted.push("began");
                    held.wait().map(|()| "late").map_err(ToolError::visible)
                }
            },
        );
        // Long enough for the body to start.
        let stuck = stuck.non_strict().effect(effect).timeout(Duration::from_secs(1));
        let stuck = stuck.retry(3, Duration::from_millis(1));
        let replies = [
            ScriptedResponse::call("a", "stuck", json!({})),
            ScriptedResponse::call("b", "release", json!({})),
            ScriptedResponse::text("bye"),
        ];
        let agent = scripted_agent(replies).tools((stuck, release_tool(&latch, &store)));
        let run = agent.run("go").run_id("run").store(store.clone()).drain_timeout(Duration::from_millis(5));
        let result = with_timeout(run.into_future()).await.expect("it ends");
        let told =
            "Tool 'stuck' timed out after 1 seconds. It could not be stopped and may still take effect.";
        let settled = result.record().journal().iter().find_map(|record| match &record.entry {
            JournalEntry::CallSettled(settled) => {
                Some((settled.status.clone(), settled.output.text().into_owned()))
            }
            _ => None,
        });
        assert_eq!(settled, Some((CallStatus::TimedOutStillRunning, told.to_owned())), "{effect:?}");
        assert_eq!(log.take(), ["began"], "{effect:?}");
        let late =
            CallEndedLate { call: "a".into(), status: CallStatus::Succeeded, output: Some("late".into()) };
        assert_eq!(late_end_entries(&stored_records(&*store, "run").await), [late], "{effect:?}");
    }
}

/// The next attempt begins after the one before has ended, and one whose destructors still run has not.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn s14_no_attempt_begins_while_the_one_before_still_cleans_up() {
    let (latch, log) = (ThreadLatch::default(), TestLog::default());
    let (held, noted) = (latch.clone(), log.clone());
    let stuck = any_object_tool("stuck", move |_, _| {
        noted.push("began");
        let guard = BlockingDropGuard(held.clone(), noted.clone());
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    });
    // Long enough for the body to start.
    let stuck = stuck.effect(ToolEffect::Pure).timeout(Duration::from_secs(1));
    let stuck = stuck.retry(3, Duration::from_millis(1));
    let replies = [ScriptedResponse::call("a", "stuck", json!({})), ScriptedResponse::text("bye")];
    let run = scripted_agent(replies).tools(stuck).run("go").drain_timeout(Duration::from_millis(5));
    let result = with_timeout(run.into_future()).await.expect("it ends");
    assert_eq!(result.output_text(), Ok("bye"));
    assert_eq!(log.take(), ["began"]);
    latch.open();
    wait_until(|| log.take() == ["let go"]).await;
}
