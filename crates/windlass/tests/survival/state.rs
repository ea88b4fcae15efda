//! Changed programs and usage accounting: S54 and S57.

use std::time::Duration;

use serde_json::json;
use windlass::guardrail::{GuardrailVerdict, InputGuardrail};
use windlass::hook::{Hook, HookEvent};
use windlass::model::{ModelError, RetryAdvice};
use windlass::prelude::*;
use windlass::run::{CancelHandle, ModelRetryPolicy, RetriesExhausted};
use windlass::{
    core::failure::RunFailure,
    core::journal::CallStatus,
    core::usage::Usage,
    error::{ConfigError, RunError},
    tool_fn,
};

use crate::support::*;

fn gated_tool(name: &'static str, log: &TestLog) -> Tool {
    logging_tool(name, log).needs_approval()
}

/// Returns a paused run with two approved calls, of `kept` and of `gone`.
async fn approved_run(surface: RunSurface, log: &TestLog) -> (ScenarioRunner, PausedRun) {
    let calls = ScriptedResponse::call("a", "kept", json!({})).and_call("b", "gone", json!({ "n": 1 }));
    let agent = scripted_agent([calls, ScriptedResponse::text("bye")])
        .tools((gated_tool("kept", log), gated_tool("gone", log)));
    let stage = ScenarioRunner::new(surface, agent);
    let mut paused = stage.run_to_pause().await.into_paused();
    paused.approve(stage.call_path("a")).expect("it waits");
    paused.approve(stage.call_path("b")).expect("it waits");
    (stage, paused)
}

fn config_error(act: ScenarioRun) -> ConfigError {
    match act.into_error() {
        RunError::Config(error) => error,
        other => panic!("{other}"),
    }
}

async fn s54_a_tool_that_is_gone_is_named_and_nothing_runs() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let (stage, paused) = approved_run(surface, &log).await;
        let renamed = scripted_agent([ScriptedResponse::text("bye")])
            .tools((gated_tool("kept", &log), gated_tool("renamed", &log)));
        let error = config_error(stage.with_agent(renamed).resume_paused(paused.clone()).await);
        let want = ConfigError::ToolRemoved {
            tool: "gone".to_owned(),
            agent: "agent".into(),
            call: stage.call_path("b"),
        };
        assert_eq!(error, want, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
        // With both tools, the same run resumes.
        let act = stage.resume_paused(paused).await;
        assert_eq!(act.result().end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?}");
        assert_eq!(log.take(), ["kept a", "gone b"], "{surface:?}");
    }
}

async fn s54_arguments_that_do_not_fit_any_more_are_named_and_nothing_runs() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let (stage, paused) = approved_run(surface, &log).await;
        let noted = log.clone();
        let changed = tool_fn! {
            /// Takes other arguments by now.
            name = "gone",
            needs_approval = always,
            async |number: u8| -> Result<u8, ToolError> {
                noted.push("gone");
                Ok(number)
            }
        };
        let changed =
            scripted_agent([ScriptedResponse::text("bye")]).tools((gated_tool("kept", &log), changed));
        let want = ConfigError::ArgumentsNoLongerValid {
            tool: "gone".to_owned(),
            call: stage.call_path("b"),
            problems: "`number` is missing; `n` is not a known field; known are: number".to_owned(),
        };
        assert_eq!(config_error(stage.with_agent(changed).resume_paused(paused).await), want, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}

/// The removed tool belongs to a nested agent, and a sibling of that agent's call is ready to run.
async fn s54_a_tool_that_is_gone_deep_inside_keeps_everything_from_running() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let inside = |replies: Vec<ScriptedResponse>, tool: &'static str| {
            Agent::new("inside")
                .model(ScriptedModel::new(replies))
                .tools(gated_tool(tool, &log))
                .as_tool("inside", "An agent.")
        };
        let calls =
            ScriptedResponse::call("a", "kept", json!({})).and_call("x", "inside", json!({ "input": "go" }));
        let asks = inside(vec![ScriptedResponse::call("b", "gone", json!({}))], "gone");
        let stage =
            ScenarioRunner::new(surface, scripted_agent([calls]).tools((gated_tool("kept", &log), asks)));
        let mut paused = stage.run_to_pause().await.into_paused();
        paused.approve(stage.call_path("a")).expect("it waits");
        paused.approve("b").expect("it waits");
        let tools = (gated_tool("kept", &log), inside(vec![], "renamed"));
        let renamed = scripted_agent([]).tools(tools).hook(call_log_hook(&log));
        let error = config_error(stage.with_agent(renamed).resume_paused(paused).await);
        let path = format!("{}/b", stage.call_path("x"));
        let want = ConfigError::ToolRemoved {
            tool: "gone".to_owned(),
            agent: "inside".into(),
            call: path.as_str().into(),
        };
        assert_eq!(error, want, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}

async fn s54_a_rejected_call_needs_no_tool() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let replies = [ScriptedResponse::call("a", "gone", json!({})), ScriptedResponse::text("bye")];
        let stage = ScenarioRunner::new(surface, scripted_agent(replies).tools(gated_tool("gone", &log)));
        let mut paused = stage.run_to_pause().await.into_paused();
        paused.reject(stage.call_path("a")).expect("it waits");
        let act =
            stage.with_agent(scripted_agent([ScriptedResponse::text("bye")])).resume_paused(paused).await;
        assert_eq!(act.call_statuses(), [("a".to_owned(), CallStatus::Rejected)], "{surface:?}");
        assert_eq!(act.result().end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?}");
    }
}

async fn s54_a_tool_switched_off_while_paused_does_not_run() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let (stage, paused) = approved_run(surface, &log).await;
        let off = scripted_agent([ScriptedResponse::text("bye")])
            .tools((gated_tool("kept", &log), gated_tool("gone", &log).enabled(false)));
        let act = stage.with_agent(off).resume_paused(paused).await;
        let outputs =
            ["output a done", "output b Tool 'gone' not found. The tools are: kept.", "assistant: bye"];
        assert_eq!(act.result().items[2..], outputs, "{surface:?}");
        assert_eq!(log.take(), ["kept a"], "{surface:?}");
    }
}

async fn s54_an_agent_that_is_gone_is_named() {
    let log = TestLog::default();
    let second = Agent::new("second")
        .model(ScriptedModel::new([
            ScriptedResponse::call("a", "gated", json!({})),
            ScriptedResponse::text("bye"),
        ]))
        .tools(gated_tool("gated", &log));
    let first =
        scripted_agent([ScriptedResponse::call("h", "transfer_to_second", json!({}))]).handoff(&second);
    let mut paused = first.run("go").await.expect("it pauses").into_paused().expect("it pauses");
    paused.approve("a").expect("it waits");
    let error = scripted_agent([]).resume(paused).await.expect_err("there is no such agent");
    let want = ConfigError::UnknownAgent { agent: "second".into() };
    assert!(matches!(&error, RunError::Config(found) if *found == want), "{error}");
    assert_eq!(log.take(), [""; 0]);
}

fn expected_usage(requests: u64, unknown: u64, input: u64, output: u64) -> Usage {
    Usage {
        requests,
        unknown_requests: unknown,
        ..Usage { input_tokens: input, output_tokens: output, ..Usage::default() }
    }
}

fn with_usage(reply: ScriptedResponse, input: u64, output: u64) -> ScriptedResponse {
    reply.usage(Some(Usage::of_tokens(input, output)))
}

// One thread: the clock decides which of its waits ends first.
#[tokio::test(start_paused = true)]
async fn s57_a_request_that_was_cancelled_is_of_unknown_cost() {
    for surface in RunSurface::ALL {
        let asked = TestLog::default();
        let noted = asked.clone();
        let replies = [
            with_usage(ScriptedResponse::call("a", "effect", json!({})), 100, 7),
            with_usage(ScriptedResponse::text("bye"), 200, 9).delayed_by(Duration::from_secs(30)),
        ];
        let agent = scripted_agent(replies)
            .tools(logging_tool("effect", &TestLog::default()))
            .dynamic_instructions(move |_| {
                noted.push("asked");
                async { String::new() }
            });
        let stage = ScenarioRunner::new(surface, agent).configure_runs(move |run| {
            let (asked, cancel) = (asked.clone(), run.cancel_handle());
            tokio::spawn(async move {
                wait_until(|| asked.count("asked") == 2).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
                CancelHandle::cancel(&cancel);
            });
            run
        });
        let act = stage.run_to_pause().await;
        assert_eq!(act.result().end, ScenarioEnd::Cancelled, "{surface:?}");
        assert_eq!(act.usage(), expected_usage(2, 1, 100, 7), "{surface:?}");
    }
}

// One thread: the clock decides which of its waits ends first.
#[tokio::test(start_paused = true)]
async fn s57_a_request_that_a_guardrail_cut_off_is_of_unknown_cost() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        let trips = InputGuardrail::new("trips", |_, _| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(GuardrailVerdict::Tripwire)
        });
        let replies = [with_usage(ScriptedResponse::text("bye"), 200, 9).delayed_by(Duration::from_secs(30))];
        let act =
            ScenarioRunner::new(surface, scripted_agent(replies).input_guardrail(trips)).run_to_pause().await;
        let failure = RunFailure::InputGuardrailTripped { guardrail: "trips".to_owned() };
        assert_eq!(act.result().end, ScenarioEnd::Failed(failure), "{surface:?}");
        assert_eq!(act.usage(), expected_usage(1, 1, 0, 0), "{surface:?}");
    }
}

/// The response arrived and its usage is known, though the guardrail discarded it.
// One thread: the clock decides which of its waits ends first.
#[tokio::test(start_paused = true)]
async fn s57_an_answer_that_a_guardrail_took_back_was_paid_for() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        let trips = InputGuardrail::new("trips", |_, _| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(GuardrailVerdict::Tripwire)
        });
        let replies = [with_usage(ScriptedResponse::text("bye"), 200, 9)];
        let act =
            ScenarioRunner::new(surface, scripted_agent(replies).input_guardrail(trips)).run_to_pause().await;
        let failure = RunFailure::InputGuardrailTripped { guardrail: "trips".to_owned() };
        assert_eq!(
            act.result(),
            ScenarioResult { end: ScenarioEnd::Failed(failure), items: vec![] },
            "{surface:?}"
        );
        assert_eq!(act.usage(), expected_usage(1, 0, 200, 9), "{surface:?}");
    }
}

async fn s57_failed_requests_count_and_are_of_unknown_cost() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        let busy = || ScriptedResponse::error(ModelError::new("busy").with_retry_advice(RetryAdvice::Safe));
        let replies = [busy(), busy(), with_usage(ScriptedResponse::text("bye"), 30, 3)];
        let act = ScenarioRunner::new(surface, scripted_agent(replies)).run_to_pause().await;
        assert_eq!(act.result(), finished_result("bye", &["assistant: bye"]), "{surface:?}");
        assert_eq!(act.usage(), expected_usage(3, 2, 30, 3), "{surface:?}");

        let replies = [with_usage(ScriptedResponse::call("a", "effect", json!({})), 30, 3), busy(), busy()];
        let stage = ScenarioRunner::new(
            surface,
            scripted_agent(replies).tools(logging_tool("effect", &TestLog::default())),
        );
        let (max_attempts, when_exhausted) = (2, RetriesExhausted::Fail);
        let twice = ModelRetryPolicy { max_attempts, when_exhausted, ..ModelRetryPolicy::default() };
        let act = stage.configure_runs(move |run| run.model_retry(twice)).run_to_pause().await;
        let failure = RunFailure::ModelRequestFailed { message: "busy".to_owned() };
        assert_eq!(act.result().end, ScenarioEnd::Failed(failure), "{surface:?}");
        assert_eq!(act.usage(), expected_usage(3, 2, 30, 3), "{surface:?}");
    }
}

async fn s57_what_a_provider_does_not_say_is_not_nothing() {
    for surface in RunSurface::ALL {
        let replies = [
            ScriptedResponse::call("a", "effect", json!({})).usage(None),
            with_usage(ScriptedResponse::text("bye"), 5, 2),
        ];
        let act = ScenarioRunner::new(
            surface,
            scripted_agent(replies).tools(logging_tool("effect", &TestLog::default())),
        )
        .run_to_pause()
        .await;
        assert_eq!(act.usage(), expected_usage(2, 1, 5, 2), "{surface:?}");
    }
}

async fn s57_a_resumed_run_costs_what_it_did_before_and_after() {
    for surface in RunSurface::ALL {
        let inside = Agent::new("inside")
            .model(ScriptedModel::new([
                with_usage(ScriptedResponse::call("i", "gated", json!({})), 1000, 100),
                with_usage(ScriptedResponse::text("inside done"), 2000, 200),
            ]))
            .tools(gated_tool("gated", &TestLog::default()));
        let replies = [
            with_usage(ScriptedResponse::call("x", "inside", json!({ "input": "go" })), 10, 1),
            with_usage(ScriptedResponse::text("bye"), 20, 2),
        ];
        let stage = ScenarioRunner::new(
            surface,
            scripted_agent(replies).tools(inside.as_tool("inside", "An agent.")),
        );
        let act = stage.run_to_pause().await;
        assert_eq!(act.usage(), expected_usage(1, 0, 10, 1), "{surface:?}");
        let mut paused = act.into_paused();
        paused.approve("i").expect("it waits");
        let act = stage.resume_paused(paused).await;
        assert_eq!(act.usage(), expected_usage(2, 0, 30, 3), "{surface:?}");
        // The total includes the nested agent and the outer agent.
        let around = if stage.parent_calls().is_empty() {
            expected_usage(4, 0, 3030, 303)
        } else {
            expected_usage(6, 0, 3050, 313)
        };
        let outcome = act.outcome.expect("it finishes");
        assert_eq!(*outcome.record().usage(), around, "{surface:?}");
        let again = PausedRun::from_text(&outcome.record().to_text()).expect("can be read");
        assert_eq!(again.record().usage(), outcome.record().usage(), "{surface:?}");
    }
}

/// A hook rejects the response.
async fn s57_an_answer_that_a_hook_refused_was_paid_for() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        let log = TestLog::default();
        let hook = Hook::new(|moment: HookEvent| async move {
            match moment {
                HookEvent::ModelResponded { .. } => Err("no".into()),
                _ => Ok(()),
            }
        });
        let replies = [with_usage(ScriptedResponse::call("a", "effect", json!({})), 40, 4)];
        let act = ScenarioRunner::new(
            surface,
            scripted_agent(replies).tools(logging_tool("effect", &log)).hook(hook),
        )
        .run_to_pause()
        .await;
        let failure = RunFailure::HookFailed { hook: "model_responded".to_owned(), message: "no".to_owned() };
        assert_eq!(
            act.result(),
            ScenarioResult { end: ScenarioEnd::Failed(failure), items: vec![] },
            "{surface:?}"
        );
        assert_eq!(act.usage(), expected_usage(1, 0, 40, 4), "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}

/// A rejected response is counted, too.
async fn s57_an_answer_that_could_not_be_used_was_paid_for() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        let replies = [with_usage(ScriptedResponse::call("", "effect", json!({})), 40, 4)];
        let act = ScenarioRunner::new(
            surface,
            scripted_agent(replies).tools(logging_tool("effect", &TestLog::default())),
        )
        .run_to_pause()
        .await;
        assert!(
            matches!(act.result().end, ScenarioEnd::Failed(RunFailure::ModelProtocolError(_))),
            "{surface:?}"
        );
        assert_eq!(act.usage(), expected_usage(1, 0, 40, 4), "{surface:?}");
    }
}

on_both_runtimes! {
    paused_clock:
        s57_failed_requests_count_and_are_of_unknown_cost;
    real_clock:
        s54_a_tool_that_is_gone_is_named_and_nothing_runs,
        s54_arguments_that_do_not_fit_any_more_are_named_and_nothing_runs,
        s54_a_tool_that_is_gone_deep_inside_keeps_everything_from_running,
        s54_a_rejected_call_needs_no_tool,
        s54_a_tool_switched_off_while_paused_does_not_run,
        s54_an_agent_that_is_gone_is_named,
        s57_what_a_provider_does_not_say_is_not_nothing,
        s57_a_resumed_run_costs_what_it_did_before_and_after,
        s57_an_answer_that_a_hook_refused_was_paid_for,
        s57_an_answer_that_could_not_be_used_was_paid_for;
}
