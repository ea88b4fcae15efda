//! Deadlines: S14 and S15.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::json;
use windlass::core::{CallEndedLate, Entry, Record};
use windlass::prelude::*;
use windlass::{Failure, How, MemoryStore, OnTimeout};

use crate::support::*;

/// A guard whose clean-up blocks, and says how it ended.
struct Stuck(Latch, Log);

impl Drop for Stuck {
    fn drop(&mut self) {
        self.1.push(self.0.wait().map_or_else(str::to_owned, |()| "let go".to_owned()));
    }
}

/// Everything that is logged in this process.
#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl Warnings {
    fn collected() -> &'static Self {
        static WARNINGS: OnceLock<&'static Warnings> = OnceLock::new();
        WARNINGS.get_or_init(|| {
            let warnings: &'static Self = Box::leak(Box::default());
            tracing::subscriber::set_global_default(warnings).expect("no other test sets it");
            warnings
        })
    }

    fn has(&self, part: &str) -> bool {
        self.0.lock().expect("no logger panics").iter().any(|line| line.contains(part))
    }
}

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl tracing::Subscriber for &'static Warnings {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().expect("no logger panics").push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn s14_a_deadline_holds_where_the_clean_up_does_not_end() {
    let warnings = Warnings::collected();
    for surface in Surface::ALL {
        let (latch, log) = (Latch::default(), Log::default());
        let (held, noted) = (latch.clone(), log.clone());
        let stuck = tool("stuck", move |_, _| {
            let guard = Stuck(held.clone(), noted.clone());
            async move {
                let _guard = guard;
                std::future::pending().await
            }
        });
        let call = format!("stuck-{surface:?}");
        let calls = Reply::call(&call, "stuck", json!({})).and_call("b", "effect", json!({}));
        // Long enough for the body to have begun.
        let tools = (stuck.timeout(Duration::from_millis(250)), effect("effect", &Log::default()));
        let stage = Stage::new(surface, agent([calls, Reply::text("bye")]).tools(tools));
        let act = stage.configure(|run| run.drain(Duration::from_millis(5))).play().await;
        // The run is over, and its body still cleans up.
        assert_eq!(log.take(), [""; 0], "{surface:?}");
        let outputs = [
            &format!("output {call} Tool 'stuck' timed out after 0.25 seconds."),
            "output b done",
            "assistant: bye",
        ];
        assert_eq!(act.played().said[2..], outputs, "{surface:?}");
        latch.open();
        until(|| warnings.has(&call)).await;
        assert_eq!(log.take(), ["let go"], "{surface:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s14_a_timeout_that_ends_the_run_lets_the_others_settle() {
    for surface in Surface::ALL {
        let late = tool("late", |_, _| std::future::pending());
        let late = late.timeout(Duration::from_millis(1500)).on_timeout(OnTimeout::Fail);
        let log = Log::default();
        let calls = Reply::call("a", "wait", json!({ "ms": 1 })).and_call("b", "late", json!({})).and_call(
            "c",
            "wait",
            json!({ "ms": 5000 }),
        );
        let act = Stage::new(surface, agent([calls]).tools((late, slow("wait", &log)))).play().await;
        let failure =
            Failure::ToolTimeout { tool: "late".to_owned(), call: "b".into(), seconds: "1.5".to_owned() };
        assert_eq!(act.played().end, Ended::Failed(failure), "{surface:?}");
        let hows = [("a", How::Succeeded), ("b", How::TimedOut), ("c", How::Cancelled)];
        assert_eq!(act.hows(), hows.map(|(call, how)| (call.to_owned(), how)), "{surface:?}");
        assert_eq!(log.take(), ["start a", "start c", "end a"], "{surface:?}");
    }
}

/// An agent is the body of the call that it is in, and has that call's time. What it does inside is stopped with it;
/// what a person takes is not its time.
#[tokio::test(start_paused = true)]
async fn s14_an_agent_inside_a_call_has_a_deadline_too() {
    for surface in Surface::ALL {
        let log = Log::default();
        let replies = [Reply::call("i", "wait", json!({ "ms": 5000 })), Reply::text("inside done")];
        let inside = Agent::new("inside").model(ScriptedModel::new(replies)).tools(slow("wait", &log));
        let inside = inside.as_tool("inside", "An agent.").timeout(Duration::from_millis(1500));
        let calls =
            Reply::call("a", "inside", json!({ "input": "go" })).and_call("b", "wait", json!({ "ms": 3000 }));
        let agent = agent([calls, Reply::text("bye")]).tools((inside, slow("wait", &log)));
        let act = Stage::new(surface, agent).play().await;
        let outputs =
            ["output a Tool 'inside' timed out after 1.5 seconds.", "output b b done", "assistant: bye"];
        assert_eq!(act.played().said[2..], outputs, "{surface:?}");
        assert_eq!(act.hows()[0], ("a".to_owned(), How::TimedOut), "{surface:?}");
        assert_eq!(log.count("end i"), 0, "{surface:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s14_the_time_that_a_person_takes_is_not_an_agents() {
    for surface in Surface::ALL {
        let log = Log::default();
        let replies = [Reply::call("i", "gated", json!({})), Reply::text("inside done")];
        let gated = effect("gated", &log).approve_always();
        let inside = Agent::new("inside").model(ScriptedModel::new(replies)).tools(gated);
        let inside = inside.as_tool("inside", "An agent.").timeout(Duration::from_millis(1500));
        let calls =
            Reply::call("a", "inside", json!({ "input": "go" })).and_call("b", "wait", json!({ "ms": 3000 }));
        let stage =
            Stage::new(surface, agent([calls, Reply::text("bye")]).tools((inside, slow("wait", &log))));
        let mut paused = stage.play().await.paused();
        paused.approve("i").expect("it waits");
        let act = stage.go_on(paused).await;
        let outputs = ["output a inside done", "output b b done", "assistant: bye"];
        assert_eq!(act.played().said[2..], outputs, "{surface:?}");
    }
}

/// A blocking tool that does not end before it is let go.
fn stuck_thread(latch: &Latch) -> Tool {
    let held = latch.clone();
    let stuck = blocking_tool("stuck", move |ctx, _| {
        held.wait().map_err(ToolError::tell)?;
        Ok(format!("late, {}", if ctx.is_cancelled() { "asked to stop" } else { "not asked" }))
    });
    // Long enough for the body to have begun: one that has not is dropped.
    stuck.timeout(Duration::from_millis(250))
}

/// A tool that lets the other go, and waits until the store has what came of it.
fn release(latch: &Latch, store: &Arc<MemoryStore>) -> Tool {
    let (latch, store) = (latch.clone(), store.clone());
    tool("release", move |_, _| {
        let (latch, store) = (latch.clone(), store.clone());
        async move {
            latch.open();
            while late_ends(&stored(&*store, "run").await).is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok("done".to_owned())
        }
    })
}

fn late_ends(records: &[Record]) -> Vec<CallEndedLate> {
    let late = records.iter().filter_map(|record| match &record.entry {
        Entry::CallEndedLate(late) => Some(late.clone()),
        _ => None,
    });
    late.collect()
}

#[tokio::test]
async fn s15_a_blocking_body_past_its_deadline_is_in_doubt_and_its_end_is_recorded() {
    for surface in Surface::ALL {
        let (latch, store) = (Latch::default(), Arc::new(MemoryStore::default()));
        let replies = [
            Reply::call("a", "stuck", json!({})),
            Reply::call("b", "release", json!({})),
            Reply::text("bye"),
        ];
        let agent = agent(replies).tools((stuck_thread(&latch), release(&latch, &store)));
        let kept = store.clone();
        let stage = Stage::new(surface, agent).configure(move |run| run.run_id("run").store(kept.clone()));
        let act = stage.play().await;
        let told =
            "Tool 'stuck' timed out after 0.25 seconds. It could not be stopped and may still take effect.";
        let said = [
            "call a stuck {}",
            &format!("output a {told}"),
            "call b release {}",
            "output b done",
            "assistant: bye",
        ];
        assert_eq!(act.played(), finished("bye", &said), "{surface:?}");
        assert_eq!(act.hows()[0], ("a".to_owned(), How::LeftRunning), "{surface:?}");
        let late = CallEndedLate { call: "a".into(), result: Ok("late, asked to stop".into()) };
        assert_eq!(late_ends(act.journal()), [late], "{surface:?}");
    }
}

/// The agent whose call it was has ended by then; the journal must still add up.
#[tokio::test]
async fn s15_an_end_that_is_later_than_its_agents_can_be_replayed() {
    let (latch, store) = (Latch::default(), Arc::new(MemoryStore::default()));
    let inner = Agent::new("inner")
        .model(ScriptedModel::new([Reply::call("a", "stuck", json!({})), Reply::text("inner done")]))
        .tools(stuck_thread(&latch));
    let replies = [
        Reply::call("x", "inner", json!({ "input": "go" })),
        Reply::call("y", "release", json!({})),
        Reply::call("z", "gated", json!({})),
        Reply::text("bye"),
    ];
    let log = Log::default();
    let tools = (
        inner.as_tool("inner", "An agent."),
        release(&latch, &store),
        effect("gated", &log).approve_always(),
    );
    let agent = agent(replies).tools(tools);
    let outcome = within(async { agent.run("go").run_id("run").store(store.clone()).await }).await;
    let mut paused = through_text(&outcome.expect("it pauses").paused().expect("it pauses"));
    let late = CallEndedLate { call: "a".into(), result: Ok("late, asked to stop".into()) };
    assert_eq!(late_ends(paused.record().journal()), [late]);
    paused.approve("z").expect("it waits");
    assert_eq!(agent.resume(paused).await.expect("it finishes").text(), "bye");
}
