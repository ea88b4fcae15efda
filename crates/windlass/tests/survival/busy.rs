//! Cancellation settles a run regardless of the application code that it waits for: S21.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agent::{Handoff, ToolUsePolicy};
use windlass::guardrail::{InputGuardrail, OutputGuardrail, ToolInputGuardrail, ToolOutputGuardrail};
use windlass::hook::{Hook, HookEvent};
use windlass::model::{ModelError, RetryAdvice};
use windlass::prelude::*;
use windlass::run::ModelRetryPolicy;
use windlass::{
    core::journal::{JournalEntry, JournalRecord},
    core::tool::ToolEffect,
    run::RunBuilder,
    store::MemoryStore,
};

use crate::support::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Creates an agent that makes one call and finishes.
fn one_call_agent() -> Agent {
    scripted_agent([ScriptedResponse::call("a", "effect", json!({})), ScriptedResponse::text("bye")])
}

fn agent_with(tool: Tool) -> Agent {
    one_call_agent().tools(tool)
}

fn quick_tool() -> Tool {
    logging_tool("effect", &TestLog::default())
}

/// Creates a hook that never returns from one kind of event.
fn hook_stuck_at(name: &'static str) -> Hook {
    Hook::new(
        move |moment: HookEvent| async move { if moment.name() == name { pending().await } else { Ok(()) } },
    )
}

/// Returns agents, each with one callback that never returns.
fn stuck_agents() -> Vec<(&'static str, Agent)> {
    let second = Agent::new("second").model(ScriptedModel::new([ScriptedResponse::text("bye")]));
    let hands_over = || scripted_agent([ScriptedResponse::call("h", "transfer_to_second", json!({}))]);
    let twins = ScriptedResponse::call("a", "effect", json!({})).and_call("b", "effect", json!({}));
    let stuck = || any_object_tool("effect", |_, _| pending());
    let flaky = any_object_tool("effect", |_, _| async { Err(ToolError::visible("busy")) }).retry(3, HOUR);
    vec![
        ("the model", scripted_agent([ScriptedResponse::text("bye").delayed_by(HOUR)])),
        ("instructions", one_call_agent().dynamic_instructions(|_| pending())),
        ("enabled", agent_with(quick_tool().enabled_if_async(|_| pending()))),
        (
            "input guardrail, first",
            one_call_agent().input_guardrail(InputGuardrail::new("g", |_, _| pending()).blocking()),
        ),
        (
            "input guardrail",
            agent_with(quick_tool()).input_guardrail(InputGuardrail::new("g", |_, _| pending())),
        ),
        (
            "output guardrail",
            agent_with(quick_tool()).output_guardrail(OutputGuardrail::new("g", |_, _| pending())),
        ),
        ("agent_started", agent_with(quick_tool()).hook(hook_stuck_at("agent_started"))),
        ("model_request_started", agent_with(quick_tool()).hook(hook_stuck_at("model_request_started"))),
        ("model_responded", agent_with(quick_tool()).hook(hook_stuck_at("model_responded"))),
        ("call_started", agent_with(quick_tool()).hook(hook_stuck_at("call_started"))),
        ("call_ended", agent_with(quick_tool()).hook(hook_stuck_at("call_ended"))),
        ("agent_ended", agent_with(quick_tool()).hook(hook_stuck_at("agent_ended"))),
        ("handed_off", hands_over().handoff(&second).hook(hook_stuck_at("handed_off"))),
        ("handoff", hands_over().handoff(Handoff::to(&second).on_handoff(|_| pending()))),
        ("approval rule", agent_with(quick_tool().needs_approval_if_async(|_, _: &Value| pending()))),
        (
            "tool input guardrail",
            agent_with(quick_tool().input_guardrail(ToolInputGuardrail::new("g", |_| pending()))),
        ),
        (
            "tool output guardrail",
            agent_with(quick_tool().output_guardrail(ToolOutputGuardrail::new("g", |_, _| pending()))),
        ),
        ("body", agent_with(stuck())),
        ("twin", scripted_agent([twins]).tools(stuck().effect(ToolEffect::Idempotent))),
        ("retry", agent_with(flaky)),
        ("judge", agent_with(quick_tool()).tool_use_policy(ToolUsePolicy::custom_function(|_, _| pending()))),
    ]
}

/// A function that configures a run.
type ConfigureRunFn = fn(RunBuilder) -> RunBuilder;

/// Returns run configurations, each with one callback that never returns.
fn stuck_runs() -> Vec<(&'static str, Agent, ConfigureRunFn)> {
    let busy = ModelError::new("busy").with_retry_advice(RetryAdvice::After(HOUR));
    vec![
        ("input filter", one_call_agent(), |run| run.input_filter(|_, _| pending())),
        ("layer", agent_with(quick_tool()), |run| run.call_layer(|_, _| pending())),
        ("failure handler", agent_with(quick_tool()), |run| run.max_turns(1).on_failure(|_, _| pending())),
        ("model retry", scripted_agent([ScriptedResponse::error(busy)]), |run| {
            run.model_retry(ModelRetryPolicy { max_provider_delay: HOUR, ..ModelRetryPolicy::default() })
        }),
        ("run's guardrail", agent_with(quick_tool()), |run| {
            run.input_guardrail(InputGuardrail::new("g", |_, _| pending()).blocking())
        }),
        ("run's hook", agent_with(quick_tool()), |run| run.hook(hook_stuck_at("call_ended"))),
    ]
}

async fn assert_cancels(surface: RunSurface, name: &str, stage: &ScenarioRunner) {
    let run = stage.build_run();
    let cancel = run.cancel_handle();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(10)).await;
        cancel.cancel();
    });
    // Shorter than any of the callbacks, and longer than the drain.
    let settled = async {
        match surface {
            RunSurface::Streamed => watch_run(run).await.0,
            _ => run.await,
        }
    };
    let outcome = tokio::time::timeout(Duration::from_secs(5), settled).await;
    let outcome = outcome.unwrap_or_else(|_| panic!("{surface:?}: stuck in {name}")).expect("it settles");
    assert!(matches!(outcome, RunResult::Cancelled(_)), "{surface:?} {name}: {outcome:?}");
    assert_outputs_complete(outcome.record().state());
}

async fn s21_cancel_settles_whatever_the_application_is_busy_with() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        for (name, agent) in stuck_agents() {
            assert_cancels(surface, name, &ScenarioRunner::new(surface, agent)).await;
        }
    }
    for surface in [RunSurface::Blocking, RunSurface::Streamed] {
        for (name, agent, configure) in stuck_runs() {
            assert_cancels(surface, name, &ScenarioRunner::new(surface, agent).configure_runs(configure))
                .await;
        }
    }
}

/// A body of another run holds the tool's only concurrency permit.
async fn s21_cancel_settles_a_call_that_waits_for_its_tools_limit() {
    let held = TestLog::default();
    let noted = held.clone();
    let limited = any_object_tool("effect", move |_, _| {
        noted.push("held");
        pending()
    });
    let limited = limited.max_concurrent_calls(1);
    let first = agent_with(limited.clone());
    let holder = tokio::spawn(async move { first.run("go").await.map(drop) });
    wait_until(|| held.count("held") == 1).await;
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        assert_cancels(surface, "the limit", &ScenarioRunner::new(surface, agent_with(limited.clone())))
            .await;
    }
    holder.abort();
}

/// The reconcile function of the tool never returns.
async fn s21_cancel_settles_a_call_that_is_being_reconciled() {
    let store = Arc::new(MemoryStore::default());
    let stuck = any_object_tool("effect", |_, _| pending()).reconcile(|_| pending());
    let agent = agent_with(stuck);
    let run = agent.run("go").run_id("run").store(store.clone());
    lose_run(run, &*store, "run", |records| has_start(records, "a")).await;
    let paused = PausedRun::from_records(stored_records(&*store, "run").await).expect("the journal adds up");
    let run = agent.resume(paused);
    let cancel = run.cancel_handle();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(10)).await;
        cancel.cancel();
    });
    let outcome = with_timeout(run).await.expect("it settles");
    let RunResult::Cancelled(cancelled) = outcome else { panic!("{outcome:?}") };
    assert_outputs_complete(cancelled.record.state());
    assert_eq!(cancelled.settlement.in_doubt, ["a"]);
}

/// The driver was lost with a call in flight, and the rule that enables its tool never returns.
async fn s21_cancel_settles_a_run_whose_tools_cannot_be_found_out() {
    let store = Arc::new(MemoryStore::default());
    let agent = agent_with(any_object_tool("effect", |_, _| pending()));
    let run = agent.run("go").run_id("run").store(store.clone());
    lose_run(run, &*store, "run", |records| has_start(records, "a")).await;
    let paused = PausedRun::from_records(stored_records(&*store, "run").await).expect("the journal adds up");
    let stuck = Agent::new("agent").tools(quick_tool().enabled_if_async(|_| pending()));
    let run = stuck.resume(paused);
    run.cancel_handle().cancel();
    let outcome = with_timeout(run).await.expect("it settles");
    let RunResult::Cancelled(cancelled) = outcome else { panic!("{outcome:?}") };
    assert_outputs_complete(cancelled.record.state());
    assert_eq!(cancelled.settlement.in_doubt, ["a"]);
}

/// The reconcile function panics: the call stays in doubt, and the call beside it is unaffected.
async fn s12_a_reconcile_function_that_panics_leaves_the_call_in_doubt() {
    for at_once in [true, false] {
        let (log, store) = (TestLog::default(), Arc::new(MemoryStore::default()));
        let lost = any_object_tool("lost", |_, _| pending()).reconcile(move |_| {
            assert!(!at_once, "a test panics here");
            async { panic!("a test panics here") }
        });
        let calls = ScriptedResponse::call("a", "lost", json!({})).and_call("b", "gated", json!({}));
        let agent = scripted_agent([calls]).tools((lost, logging_tool("gated", &log).needs_approval()));
        let run = agent.run("go").run_id("run").store(store.clone());
        let is_held = |record: &JournalRecord| matches!(&record.entry, JournalEntry::CallHeld(_));
        lose_run(run, &*store, "run", |records| has_start(records, "a") && records.iter().any(is_held)).await;
        let mut paused =
            PausedRun::from_records(stored_records(&*store, "run").await).expect("the journal adds up");
        paused.approve("b").expect("it waits");
        let paused = agent.resume(paused).await.expect("it pauses").into_paused().expect("it pauses");
        let waits: Vec<String> =
            paused.pending_calls().iter().map(|pending| pending.path.to_string()).collect();
        assert_eq!((waits, log.take_in_order()), (owned_lines(&["a"]), owned_lines(&["gated b"])));
    }
}

on_both_runtimes! {
    paused_clock:
        s12_a_reconcile_function_that_panics_leaves_the_call_in_doubt,
        s21_cancel_settles_whatever_the_application_is_busy_with,
        s21_cancel_settles_a_call_that_waits_for_its_tools_limit,
        s21_cancel_settles_a_call_that_is_being_reconciled,
        s21_cancel_settles_a_run_whose_tools_cannot_be_found_out;
}
