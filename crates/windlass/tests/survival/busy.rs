//! Cancelling settles whatever the application is busy with: S21.

use std::future::{IntoFuture, pending};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agent::{Handoff, ToolUse};
use windlass::guardrail::{InputGuardrail, OutputGuardrail, ToolInputGuardrail, ToolOutputGuardrail};
use windlass::hook::{Hook, Moment};
use windlass::model::{ModelError, RetryAdvice};
use windlass::prelude::*;
use windlass::run::ModelRetry;
use windlass::{Effect, MemoryStore, RunBuilder};

use crate::support::*;

const HOUR: Duration = Duration::from_secs(3600);

/// An agent that makes a call and is done.
fn plain() -> Agent {
    agent([Reply::call("a", "effect", json!({})), Reply::text("bye")])
}

fn with(tool: Tool) -> Agent {
    plain().tools(tool)
}

fn quick() -> Tool {
    effect("effect", &Log::default())
}

/// A hook that never comes back from one kind of moment.
fn stuck_at(name: &'static str) -> Hook {
    Hook::new(
        move |moment: Moment| async move { if moment.name() == name { pending().await } else { Ok(()) } },
    )
}

/// Agents, each of which never comes back from something.
fn stuck_agents() -> Vec<(&'static str, Agent)> {
    let second = Agent::new("second").model(ScriptedModel::new([Reply::text("bye")]));
    let hands_over = || agent([Reply::call("h", "transfer_to_second", json!({}))]);
    let twins = Reply::call("a", "effect", json!({})).and_call("b", "effect", json!({}));
    let stuck = || tool("effect", |_, _| pending());
    let flaky = tool("effect", |_, _| async { Err(ToolError::tell("busy")) }).retry(3, HOUR);
    vec![
        ("the model", agent([Reply::text("bye").after(HOUR)])),
        ("instructions", plain().instructions_from(|_| pending())),
        ("enabled", with(quick().enabled_when(|_| pending()))),
        (
            "input guardrail, first",
            plain().input_guardrail(InputGuardrail::new("g", |_, _| pending()).first()),
        ),
        ("input guardrail", with(quick()).input_guardrail(InputGuardrail::new("g", |_, _| pending()))),
        ("output guardrail", with(quick()).output_guardrail(OutputGuardrail::new("g", |_, _| pending()))),
        ("agent_started", with(quick()).hook(stuck_at("agent_started"))),
        ("model_asked", with(quick()).hook(stuck_at("model_asked"))),
        ("model_answered", with(quick()).hook(stuck_at("model_answered"))),
        ("call_started", with(quick()).hook(stuck_at("call_started"))),
        ("call_ended", with(quick()).hook(stuck_at("call_ended"))),
        ("agent_ended", with(quick()).hook(stuck_at("agent_ended"))),
        ("handed_off", hands_over().handoff(&second).hook(stuck_at("handed_off"))),
        ("handoff", hands_over().handoff(Handoff::to(&second).on_handoff(|_| pending()))),
        ("approval rule", with(quick().approve_when(|_, _: &Value| pending()))),
        ("tool input guardrail", with(quick().input_guardrail(ToolInputGuardrail::new("g", |_| pending())))),
        (
            "tool output guardrail",
            with(quick().output_guardrail(ToolOutputGuardrail::new("g", |_, _| pending()))),
        ),
        ("body", with(stuck())),
        ("twin", agent([twins]).tools(stuck().effect(Effect::Idempotent))),
        ("retry", with(flaky)),
        ("judge", with(quick()).tool_use(ToolUse::judge(|_, _| pending()))),
    ]
}

type Configure = fn(RunBuilder) -> RunBuilder;

/// Runs, each of which never comes back from something.
fn stuck_runs() -> Vec<(&'static str, Agent, Configure)> {
    let busy = ModelError::new("busy").retry(RetryAdvice::After(HOUR));
    vec![
        ("input filter", plain(), |run| run.input_filter(|_, _| pending())),
        ("layer", with(quick()), |run| run.around_calls(|_, _| pending())),
        ("failure handler", with(quick()), |run| run.max_turns(1).on_failure(|_, _| pending())),
        ("model retry", agent([Reply::error(busy)]), |run| {
            run.model_retry(ModelRetry { longest: HOUR, ..ModelRetry::default() })
        }),
        ("run's guardrail", with(quick()), |run| {
            run.input_guardrail(InputGuardrail::new("g", |_, _| pending()).first())
        }),
        ("run's hook", with(quick()), |run| run.hook(stuck_at("call_ended"))),
    ]
}

async fn cancelled(surface: Surface, name: &str, stage: &Stage) {
    let run = stage.run();
    let cancel = run.cancel_handle();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(10)).await;
        cancel.now();
    });
    // Less than any of them takes, and longer than the drain.
    let settled = async {
        match surface {
            Surface::Streamed => watch(run).await.0,
            _ => run.into_future().await,
        }
    };
    let outcome = tokio::time::timeout(Duration::from_secs(5), settled).await;
    let outcome = outcome.unwrap_or_else(|_| panic!("{surface:?}: stuck in {name}")).expect("it settles");
    assert!(matches!(outcome, Outcome::Cancelled(_)), "{surface:?} {name}: {outcome:?}");
    assert_whole(outcome.record().state());
}

#[tokio::test(start_paused = true)]
async fn s21_cancel_settles_whatever_the_application_is_busy_with() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        for (name, agent) in stuck_agents() {
            cancelled(surface, name, &Stage::new(surface, agent)).await;
        }
    }
    for surface in [Surface::Blocking, Surface::Streamed] {
        for (name, agent, configure) in stuck_runs() {
            cancelled(surface, name, &Stage::new(surface, agent).configure(configure)).await;
        }
    }
}

/// A body of another run has the tool's only place.
#[tokio::test(start_paused = true)]
async fn s21_cancel_settles_a_call_that_waits_for_its_tools_limit() {
    let limited = tool("effect", |_, _| pending()).concurrency(1);
    let first = with(limited.clone());
    let holder = tokio::spawn(async move { first.run("go").await.map(drop) });
    tokio::time::sleep(Duration::from_millis(1)).await;
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        cancelled(surface, "the limit", &Stage::new(surface, with(limited.clone()))).await;
    }
    holder.abort();
}

/// A tool is asked what became of a call, and does not say.
#[tokio::test(start_paused = true)]
async fn s21_cancel_settles_a_call_that_is_being_reconciled() {
    let store = Arc::new(MemoryStore::default());
    let stuck = tool("effect", |_, _| pending()).reconcile(|_| pending());
    let agent = with(stuck);
    let run = agent.run("go").run_id("run").store(store.clone());
    assert!(tokio::time::timeout(Duration::from_millis(5), run.into_future()).await.is_err());
    let paused = Paused::from_records(stored(&*store, "run").await).expect("the journal adds up");
    let run = agent.resume(paused);
    let cancel = run.cancel_handle();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(10)).await;
        cancel.now();
    });
    let outcome = within(run.into_future()).await.expect("it settles");
    let Outcome::Cancelled(cancelled) = outcome else { panic!("{outcome:?}") };
    assert_whole(cancelled.record.state());
    assert_eq!(cancelled.settlement.in_doubt, ["a"]);
}

/// The run was lost with a call under way, and whether its tool is there cannot be found out.
#[tokio::test(start_paused = true)]
async fn s21_cancel_settles_a_run_whose_tools_cannot_be_found_out() {
    let store = Arc::new(MemoryStore::default());
    let agent = with(tool("effect", |_, _| pending()));
    let run = agent.run("go").run_id("run").store(store.clone());
    assert!(tokio::time::timeout(Duration::from_millis(5), run.into_future()).await.is_err());
    let paused = Paused::from_records(stored(&*store, "run").await).expect("the journal adds up");
    let stuck = Agent::new("agent").tools(quick().enabled_when(|_| pending()));
    let run = stuck.resume(paused);
    run.cancel_handle().now();
    let outcome = within(run.into_future()).await.expect("it settles");
    let Outcome::Cancelled(cancelled) = outcome else { panic!("{outcome:?}") };
    assert_whole(cancelled.record.state());
    assert_eq!(cancelled.settlement.in_doubt, ["a"]);
}

/// A tool fails to say what became of a call: a person must, and the call beside it is not harmed.
#[tokio::test(start_paused = true)]
async fn s12_a_reconcile_function_that_panics_leaves_the_call_in_doubt() {
    for at_once in [true, false] {
        let (log, store) = (Log::default(), Arc::new(MemoryStore::default()));
        let lost = tool("lost", |_, _| pending()).reconcile(move |_| {
            assert!(!at_once, "a test panics here");
            async { panic!("a test panics here") }
        });
        let calls = Reply::call("a", "lost", json!({})).and_call("b", "gated", json!({}));
        let agent = agent([calls]).tools((lost, effect("gated", &log).approve_always()));
        let run = agent.run("go").run_id("run").store(store.clone());
        assert!(tokio::time::timeout(Duration::from_millis(5), run.into_future()).await.is_err());
        let mut paused = Paused::from_records(stored(&*store, "run").await).expect("the journal adds up");
        paused.approve("b").expect("it waits");
        let paused = agent.resume(paused).await.expect("it pauses").paused().expect("it pauses");
        let waits: Vec<String> = paused.pending().iter().map(|pending| pending.path.to_string()).collect();
        assert_eq!((waits, log.take()), (lines(&["a"]), lines(&["gated b"])));
    }
}
