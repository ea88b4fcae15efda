//! The life of a call in places where it is easily forgotten: inside a nested agent, on worker threads, under the limit of
//! one agent, after a timeout, and in the tools of a source.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;
use windlass::agent::Handoff;
use windlass::core::{
    decision::{Decision, DecisionScope},
    failure::RunFailure,
    journal::{CallStatus, JournalEntry, JournalRecord},
    tool::ToolEffect,
};
use windlass::error::RunError;
use windlass::event::RunEventKind;
use windlass::guardrail::{ToolGuardrailVerdict, ToolOutputGuardrail};
use windlass::hook::{Hook, HookEvent};
use windlass::prelude::*;
use windlass::run::RunStream;
use windlass::store::{MemoryStore, post_decision};
use windlass::tool::{OnFailure, SourcedTools, ToolSource, ToolSourceRequest};

/// Time after which a test counts as stuck.
const STUCK: Duration = Duration::from_secs(60);

fn tool<Fut>(name: &str, body: impl Fn(ToolContext, Value) -> Fut + Send + Sync + 'static) -> Tool
where
    Fut: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    Tool::dynamic(name, "A tool.", json!({ "type": "object" }), body).non_strict()
}

fn calls(names: &[(&str, &str)]) -> ScriptedResponse {
    names.iter().fold(ScriptedResponse::items([]), |response, (id, name)| {
        response.and_call(id, name, json!({ "input": "go" }))
    })
}

/// Returns the calls that settled, with their status.
fn statuses(records: &[JournalRecord]) -> Vec<(String, CallStatus)> {
    let settled = records.iter().filter_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some((settled.call.to_string(), settled.status.clone())),
        _ => None,
    });
    settled.collect()
}

/// Watches a stream to its end, and acts on each settled call.
async fn watch_settled(stream: &mut RunStream, mut on_settled: impl FnMut(&str)) {
    let watching = async {
        while let Some(event) = stream.next().await {
            if let RunEventKind::CallSettled { call, .. } = &event.kind {
                on_settled(call.as_str());
            }
        }
    };
    tokio::time::timeout(STUCK, watching).await.expect("the run ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_inside_an_agent_begins_its_call_while_a_sibling_of_the_agent_runs() {
    let (store, paid) = (Arc::new(MemoryStore::default()), Arc::new(Notify::new()));
    let (signal, signalled) = (paid.clone(), paid.clone());
    let pay = tool("pay", move |_, _| {
        signal.notify_one();
        async { Ok("paid".to_owned()) }
    });
    // The sibling ends only when the approved call has run.
    let wait = tool("wait", move |_, _| {
        let paid = signalled.clone();
        async move {
            paid.notified().await;
            Ok("waited".to_owned())
        }
    });
    let inner = Agent::new("clerk")
        .model(ScriptedModel::new([calls(&[("p", "pay")]), ScriptedResponse::text("ok")]))
        .tool(pay.needs_approval());
    let outer = Agent::new("desk")
        .model(ScriptedModel::new([calls(&[("a", "ask"), ("w", "wait")]), ScriptedResponse::text("bye")]))
        .tool(inner.as_tool("ask", "Asks the clerk."))
        .tool(wait);
    let mut stream = outer.run("go").run_id("run").store(store.clone()).stream();
    let watching = async {
        while let Some(event) = stream.next().await {
            if matches!(event.kind, RunEventKind::CallHeld(_)) {
                let scope = DecisionScope::ThisCall;
                post_decision(&*store, &"run".into(), "a/p", Decision::Approve, scope, "ann")
                    .await
                    .expect("it is posted");
            }
        }
    };
    tokio::time::timeout(STUCK, watching).await.expect("the approved call runs beside its agent's sibling");
    let result = stream.result().await.expect("it ends");
    assert_eq!(result.output_text().expect("it finished"), "bye");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_inside_an_agent_begins_its_call_while_a_sibling_inside_the_agent_runs() {
    let (store, paid) = (Arc::new(MemoryStore::default()), Arc::new(Notify::new()));
    let (signal, signalled) = (paid.clone(), paid.clone());
    let pay = tool("pay", move |_, _| {
        signal.notify_one();
        async { Ok("paid".to_owned()) }
    });
    // No call of the outer run ends before the approved call has run.
    let wait = tool("wait", move |_, _| {
        let paid = signalled.clone();
        async move {
            paid.notified().await;
            Ok("waited".to_owned())
        }
    });
    let inner = Agent::new("clerk")
        .model(ScriptedModel::new([calls(&[("p", "pay"), ("w", "wait")]), ScriptedResponse::text("ok")]))
        .tools((pay.needs_approval(), wait));
    let outer = Agent::new("desk")
        .model(ScriptedModel::new([calls(&[("a", "ask")]), ScriptedResponse::text("bye")]))
        .tool(inner.as_tool("ask", "Asks the clerk."));
    let mut stream = outer.run("go").run_id("run").store(store.clone()).stream();
    let watching = async {
        while let Some(event) = stream.next().await {
            if matches!(event.kind, RunEventKind::CallHeld(_)) {
                let scope = DecisionScope::ThisCall;
                post_decision(&*store, &"run".into(), "a/p", Decision::Approve, scope, "ann")
                    .await
                    .expect("it is posted");
            }
        }
    };
    tokio::time::timeout(STUCK, watching).await.expect("the approved call runs beside its sibling");
    let result = stream.result().await.expect("it ends");
    assert_eq!(result.output_text().expect("it finished"), "bye");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_work_of_a_nested_agent_is_kept_when_the_run_fails_during_its_output_guardrail() {
    for order in [["a", "f"], ["f", "a"]] {
        let (is_checking, may_pass) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (checking, pass) = (is_checking.clone(), may_pass.clone());
        let guardrail = ToolOutputGuardrail::new("slow", move |_, _| {
            let (checking, pass) = (checking.clone(), pass.clone());
            async move {
                checking.notify_one();
                pass.notified().await;
                Ok(ToolGuardrailVerdict::Allow)
            }
        });
        let pay = tool("pay", |_, _| async { Ok("paid".to_owned()) }).output_guardrail(guardrail);
        let fail = tool("fail", move |_, _| {
            let is_checking = is_checking.clone();
            async move {
                is_checking.notified().await;
                Err(ToolError::visible("over"))
            }
        });
        let inner = Agent::new("clerk")
            .model(ScriptedModel::new([calls(&[("p", "pay")]), ScriptedResponse::text("ok")]))
            .tool(pay);
        let response = calls(&order.map(|id| (id, if id == "a" { "ask" } else { "fail" })));
        let outer = Agent::new("desk")
            .model(ScriptedModel::new([response, ScriptedResponse::text("bye")]))
            .tool(inner.as_tool("ask", "Asks the clerk."))
            .tool(fail.on_failure(OnFailure::FailRun));
        let mut stream = outer.run("go").drain_timeout(STUCK).stream();
        watch_settled(&mut stream, |call| {
            if call == "f" {
                may_pass.notify_one();
            }
        })
        .await;
        let Err(RunError::Failed(failed)) = stream.result().await else { panic!("the run fails") };
        let settled = statuses(failed.record.journal());
        assert!(settled.contains(&("p".to_owned(), CallStatus::Succeeded)), "{order:?}: {settled:?}");
    }
}

/// The failures happen in the reverse order of the calls, each after the one before it has settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn of_failures_one_after_another_the_first_in_order_is_reported_on_many_threads() {
    let gates: Arc<[Notify; 3]> = Arc::new([Notify::new(), Notify::new(), Notify::new()]);
    let waits = gates.clone();
    let fail = tool("fail", move |ctx, _| {
        let gates = waits.clone();
        async move {
            let place = "abc".find(ctx.call_id()).expect("one of three");
            gates[place].notified().await;
            Err(ToolError::visible(ctx.call_id().to_owned()))
        }
    });
    let agent = Agent::new("desk")
        .model(ScriptedModel::new([calls(&[("a", "fail"), ("b", "fail"), ("c", "fail")])]))
        .tool(fail.on_failure(OnFailure::FailRun));
    let mut stream = agent.run("go").drain_timeout(STUCK).stream();
    gates[2].notify_one();
    watch_settled(&mut stream, |call| match call {
        "c" => gates[1].notify_one(),
        "b" => gates[0].notify_one(),
        _ => {}
    })
    .await;
    let Err(RunError::Failed(failed)) = stream.result().await else { panic!("the run fails") };
    let RunFailure::ToolFailed { message, .. } = &failed.failure else { panic!("{:?}", failed.failure) };
    assert_eq!(message, "a");
}

#[tokio::test]
async fn invalid_arguments_that_fail_the_run_announce_no_sibling_without_a_body() {
    for is_nested in [false, true] {
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, bodies) = (log.clone(), Arc::new(AtomicUsize::new(0)));
        let hook = Hook::new(move |event: HookEvent| {
            let line = match &event {
                HookEvent::CallStarted { ctx, .. } => Some(format!("start {}", ctx.call_id())),
                HookEvent::CallEnded { ctx, .. } => Some(format!("end {}", ctx.call_id())),
                _ => None,
            };
            seen.lock().expect("a log").extend(line);
            std::future::ready(Ok(()))
        });
        let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"], "additionalProperties": false });
        let strict = Tool::dynamic("strict", "Strict.", schema, |_: ToolContext, _: Value| async {
            Ok::<_, ToolError>("never")
        })
        .on_failure(OnFailure::FailRun);
        let counted = bodies.clone();
        let good = tool("good", move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok("done".to_owned()) }
        });
        let agent = Agent::new("desk")
            .model(ScriptedModel::new([calls(&[("bad", "strict"), ("x", "good"), ("y", "good")])]))
            .tool(strict)
            .tool(good)
            .hook(hook);
        if is_nested {
            let outer = Agent::new("outer")
                .model(ScriptedModel::new([calls(&[("a", "ask")]), ScriptedResponse::text("bye")]))
                .tool(agent.as_tool("ask", "Asks."));
            outer.run("go").await.expect("the nested failure is the call's");
        } else {
            let failed = agent.run("go").await;
            assert!(matches!(failed, Err(RunError::Failed(_))), "{failed:?}");
        }
        let log = log.lock().expect("a log").clone();
        let starts = ["x", "y"].map(|call| log.contains(&format!("start {call}")));
        let ends = ["x", "y"].map(|call| log.contains(&format!("end {call}")));
        assert_eq!(starts, ends, "every start has its end: {log:?}");
        let started = starts.into_iter().filter(|has_started| *has_started).count();
        assert_eq!(started, bodies.load(Ordering::SeqCst), "every start has its body: {log:?}");
    }
}

/// Counts the bodies that run at once.
#[derive(Clone, Default)]
struct BodyCount(Arc<(AtomicUsize, AtomicUsize)>);

impl BodyCount {
    fn tool(&self, name: &str) -> Tool {
        let count = self.clone();
        tool(name, move |_, _| {
            let (now, most) = (count.0.0.fetch_add(1, Ordering::SeqCst) + 1, count.clone());
            most.0.1.fetch_max(now, Ordering::SeqCst);
            async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                most.0.0.fetch_sub(1, Ordering::SeqCst);
                Ok("done".to_owned())
            }
        })
    }

    fn most(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn each_agent_of_a_run_has_its_own_limit_of_concurrent_calls() {
    let [first, second, third, nested] = std::array::from_fn(|_| BodyCount::default());
    let three = || calls(&[("x", "work"), ("y", "work"), ("z", "work")]);
    let bye = || ScriptedResponse::text("bye");
    let model = |responses: Vec<ScriptedResponse>| ScriptedModel::new(responses);
    let clerk = Agent::new("clerk").model(model(vec![three(), bye()])).tool(nested.tool("work"));
    let last =
        Agent::new("last").model(model(vec![calls(&[("l", "work"), ("m", "work"), ("n", "work")]), bye()]));
    let last = last.tool(third.tool("work")).max_concurrent_calls(2);
    let middle = Agent::new("middle")
        .model(model(vec![
            calls(&[("d", "work"), ("e", "work"), ("f", "work")]),
            ScriptedResponse::call("h2", "transfer_to_last", json!({})),
        ]))
        .tool(second.tool("work"))
        .handoff(last);
    let agent = Agent::new("front")
        .model(model(vec![
            calls(&[("x", "work"), ("y", "work"), ("z", "work"), ("a", "ask")]),
            ScriptedResponse::call("h1", "transfer_to_middle", json!({})),
        ]))
        .tool(first.tool("work"))
        .tool(clerk.as_tool("ask", "Asks the clerk."))
        .sequential_calls()
        .handoff(middle);
    let result = agent.run("go").await.expect("it ends");
    assert_eq!(result.output_text().expect("it finished"), "bye");
    assert_eq!([first.most(), second.most(), third.most(), nested.most()], [1, 3, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_retried_where_a_second_execution_does_no_harm() {
    let declared: fn(Tool, ToolEffect) -> Tool = |tool, effect| tool.effect(effect);
    let by_rule: fn(Tool, ToolEffect) -> Tool =
        |tool, effect| tool.effect_by_arguments(move |_: &Value| effect);
    for (effect, want, attempts, with_effect) in [
        (ToolEffect::Pure, CallStatus::Succeeded, 2, declared),
        (ToolEffect::Idempotent, CallStatus::Succeeded, 2, declared),
        (ToolEffect::Once, CallStatus::TimedOut, 1, declared),
        (ToolEffect::Pure, CallStatus::Succeeded, 2, by_rule),
        (ToolEffect::Idempotent, CallStatus::Succeeded, 2, by_rule),
        (ToolEffect::Once, CallStatus::TimedOut, 1, by_rule),
    ] {
        let (bodies, running) = (Arc::new(AtomicUsize::new(0)), Arc::new(()));
        let (counted, alive) = (bodies.clone(), running.clone());
        let fetch = tool("fetch", move |_, _| {
            let (number, alive) = (counted.fetch_add(1, Ordering::SeqCst), alive.clone());
            async move {
                // Two owners are this test and its tool; a third is the one body.
                assert_eq!(Arc::strong_count(&alive), 3, "the body before has ended");
                if number == 0 {
                    tokio::time::sleep(Duration::from_secs(3600)).await;
                }
                Ok("done".to_owned())
            }
        });
        let fetch = with_effect(fetch, effect);
        let fetch = fetch.timeout(Duration::from_secs(1)).retry(3, Duration::from_millis(10));
        let agent = Agent::new("desk")
            .model(ScriptedModel::new([calls(&[("a", "fetch")]), ScriptedResponse::text("bye")]))
            .tool(fetch);
        let result = agent.run("go").await.expect("it ends");
        assert_eq!(statuses(result.record().journal()), [("a".to_owned(), want)], "{effect:?}");
        assert_eq!(bodies.load(Ordering::SeqCst), attempts, "{effect:?}");
        drop(running);
    }
}

/// A body that waits for a thread at its deadline has not begun: it never does, and is not in doubt.
#[test]
fn a_blocking_body_that_gets_no_thread_before_its_deadline_never_begins() {
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let occupied = tokio::task::spawn_blocking(move || gate.recv_timeout(STUCK));
        let bodies = Arc::new(AtomicUsize::new(0));
        let counted = bodies.clone();
        let body = move |_: ToolContext, _: Value| {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ToolError>("done")
        };
        let late = Tool::dynamic_blocking("late", "A tool.", json!({ "type": "object" }), body).non_strict();
        let agent = Agent::new("desk")
            .model(ScriptedModel::new([calls(&[("a", "late")]), ScriptedResponse::text("bye")]))
            .tool(late.timeout(Duration::from_millis(20)));
        let result = agent.run("go").await.expect("it ends");
        assert_eq!(statuses(result.record().journal()), [("a".to_owned(), CallStatus::TimedOut)]);
        release.send(()).expect("the thread waits");
        occupied.await.expect("it does not panic").expect("it was let go");
        // The thread is free now, and what waited for it is gone.
        tokio::task::spawn_blocking(|| ()).await.expect("it does not panic");
        assert_eq!(bodies.load(Ordering::SeqCst), 0);
    });
}

/// A source with one tool that is switched on and one that is switched off.
struct HalfOpenSource;

impl ToolSource<()> for HalfOpenSource {
    fn list_tools<'a>(
        &'a self,
        _: ToolSourceRequest<'a, ()>,
    ) -> BoxFuture<'a, Result<SourcedTools<()>, String>> {
        let open = tool("open", |_, _| async { Ok("open".to_owned()) });
        let shut = tool("shut", |_, _| async { Ok("shut".to_owned()) }).enabled_if(|_| false);
        let tools = vec![Arc::new(open), Arc::new(shut)];
        async { Ok(SourcedTools { tools: tools.into(), warnings: Vec::new().into() }) }.boxed()
    }
}

#[tokio::test]
async fn a_tool_of_a_source_that_is_switched_off_is_neither_offered_nor_run() {
    let model = ScriptedModel::new([calls(&[("a", "shut")]), ScriptedResponse::text("bye")]);
    let agent = Agent::new("desk").model(model.clone()).tool_source(HalfOpenSource);
    let result = agent.run("go").await.expect("it ends");
    assert_eq!(statuses(result.record().journal()), [("a".to_owned(), CallStatus::UnknownTool)]);
    let requests = model.requests();
    assert_eq!(requests[0].tools, ["open"]);
    assert_eq!(
        requests[1].input_text().pop().as_deref(),
        Some("output a Tool 'shut' not found. The tools are: open.")
    );
}

#[tokio::test]
async fn a_filter_at_a_handoff_cannot_break_the_pairs() {
    for skipped in 0..5 {
        let look = tool("look", |_, _| async { Ok("seen".to_owned()) });
        let second = ScriptedModel::new([ScriptedResponse::text("bye")]);
        let watch = Agent::new("watch").model(second.clone());
        let handoff =
            Handoff::to(&watch).filter_history(move |items| items.into_iter().skip(skipped).collect());
        let first = ScriptedModel::new([
            calls(&[("a", "look"), ("b", "look")]),
            ScriptedResponse::call("h", "transfer_to_watch", json!({})),
        ]);
        let agent = Agent::new("desk").model(first).tool(look).handoff(handoff);
        agent.run("go").await.expect("it ends");
        let input = second.requests()[0].input_text();
        let ids = |kind: &str| -> Vec<String> {
            let of_kind = input.iter().filter_map(|line| line.strip_prefix(kind));
            of_kind.filter_map(|rest| rest.split(' ').next()).map(str::to_owned).collect()
        };
        assert_eq!(ids("call "), ids("output "), "{skipped} items are left out: {input:?}");
        assert_eq!(ids("call ").iter().any(|id| id == "a"), skipped < 2, "{skipped} items: {input:?}");
    }
}
