//! Failures: S11 to S13, S16 to S19.

use std::time::Duration;

use serde_json::json;
use windlass::agent::ToolUsePolicy;
use windlass::core::journal::{CallSettled, JournalEntry};
use windlass::guardrail::{
    GuardrailVerdict, InputGuardrail, OutputGuardrail, ToolGuardrailVerdict, ToolInputGuardrail,
    ToolOutputGuardrail,
};
use windlass::hook::{Hook, HookEvent};
use windlass::prelude::*;
use windlass::{
    core::failure::RunFailure, core::journal::CallStatus, event::RunEventKind, tool::OnFailure, tool_fn,
};

use crate::support::*;

const FAILED: &str = "An error occurred while running the tool. Please try again.";

/// Runs a call of `tool` between two calls that succeed.
async fn run_middle_call(surface: RunSurface, tool: Tool) -> ScenarioRun {
    let log = TestLog::default();
    let calls = ScriptedResponse::call("a", "effect", json!({}))
        .and_call("b", tool.name(), json!({}))
        .and_call("c", "effect", json!({}));
    let agent =
        scripted_agent([calls, ScriptedResponse::text("bye")]).tools((logging_tool("effect", &log), tool));
    let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
    assert_eq!(log.take(), ["effect a", "effect c"], "{surface:?}");
    act
}

/// Returns the middle call's output, and asserts that the run and the other calls succeed.
async fn middle_output(surface: RunSurface, tool: Tool) -> String {
    let mut played = run_middle_call(surface, tool).await.result();
    assert_eq!(played.end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?}");
    let output = played.items.remove(4);
    assert_eq!(played.items[3..], ["output a done", "output c done", "assistant: bye"], "{surface:?}");
    output
}

async fn s11_a_failure_in_the_middle_takes_nothing_from_the_others() {
    for surface in RunSurface::ALL {
        let fails = any_object_tool("fails", |_, _| async { Err(ToolError::visible("no stock")) });
        assert_eq!(
            middle_output(surface, fails).await,
            format!("output b {FAILED} Error: no stock"),
            "{surface:?}"
        );
        // A hidden error does not reach the model.
        let fails =
            any_object_tool("fails", |_, _| async { Err(ToolError::hidden("db at 10.0.0.7 is down")) });
        assert_eq!(middle_output(surface, fails).await, format!("output b {FAILED}"), "{surface:?}");
        // The model is not invited to repeat a call that may have taken effect.
        let fails =
            any_object_tool("fails", |_, _| async { Err(ToolError::effect_unknown("the line broke")) });
        assert_eq!(
            middle_output(surface, fails).await,
            "output b The call ended without a result, and it is not known whether it took effect. Do not repeat it \
             without checking. Error: the line broke",
            "{surface:?}"
        );
    }
}

async fn s12_a_body_that_panics_is_that_calls_failure() {
    for surface in RunSurface::ALL {
        let at_once =
            any_object_tool("panics", |_, _| -> std::future::Ready<_> { panic!("a test panics here") });
        let later = any_object_tool("panics", |_, _| async {
            tokio::task::yield_now().await;
            panic!("a test panics here")
        });
        let on_a_thread = blocking_tool("panics", |_, _| panic!("a test panics here"));
        let with_no_words = any_object_tool("panics", |_, _| async { std::panic::panic_any(7) });
        let overflows = tool_fn! {
            /// Adds one.
            name = "panics",
            #[allow(arithmetic_overflow)]
            async |#[default = 255] number: u8| -> Result<u8, ToolError> { Ok(number + 1) }
        };
        for panics in [at_once, later, on_a_thread, with_no_words, overflows] {
            assert_eq!(middle_output(surface, panics).await, format!("output b {FAILED}"), "{surface:?}");
        }
    }
}

async fn s12_a_result_that_panics_while_it_is_written_is_that_calls_failure() {
    /// A value that panics when it is serialised.
    struct PanickingValue;
    impl serde::Serialize for PanickingValue {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("a test panics here")
        }
    }
    for surface in RunSurface::ALL {
        let panics = Tool::dynamic("panics", "A tool.", json!({ "type": "object" }), |_, _| async {
            Ok::<_, ToolError>(PanickingValue)
        });
        assert_eq!(
            middle_output(surface, panics.non_strict()).await,
            format!("output b {FAILED}"),
            "{surface:?}"
        );
    }
}

async fn s12_a_guardrail_that_panics_is_that_calls_failure() {
    const UNCHECKED: &str = "output b The call was stopped by a check that could not be completed.";
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let before =
            ToolInputGuardrail::new("panics", |_| -> std::future::Ready<_> { panic!("a test panics here") });
        let guarded = logging_tool("guarded", &log).input_guardrail(before);
        assert_eq!(middle_output(surface, guarded).await, UNCHECKED, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
        let after = ToolOutputGuardrail::new("panics", |_, _| async { panic!("a test panics here") });
        let guarded = logging_tool("guarded", &log).output_guardrail(after);
        assert_eq!(middle_output(surface, guarded).await, UNCHECKED, "{surface:?}");
        assert_eq!(log.take(), ["guarded b"], "{surface:?}");
    }
}

async fn s12_a_failure_text_that_panics_is_that_calls_failure() {
    for surface in RunSurface::ALL {
        let fails = any_object_tool("fails", |_, _| async { Err(ToolError::visible("no stock")) })
            .on_failure(OnFailure::custom_message(|_, _| panic!("a test panics here")));
        assert_eq!(middle_output(surface, fails).await, format!("output b {FAILED}"), "{surface:?}");
    }
}

async fn s12_a_conflict_rule_that_panics_takes_nothing_from_the_others() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let conflicts = logging_tool("conflicts", &log)
            .conflict_key(|_: &serde_json::Value| panic!("a test panics here"));
        assert_eq!(middle_output(surface, conflicts).await, "output b done", "{surface:?}");
    }
}

async fn s12_an_approval_rule_that_panics_asks() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let at_once = logging_tool("gated", &log)
            .needs_approval_if(|_: &serde_json::Value| panic!("a test panics here"));
        let later = logging_tool("gated", &log)
            .needs_approval_if_async(|_, _: &serde_json::Value| async { panic!("a test panics here") });
        for gated in [at_once, later] {
            let act = run_middle_call(surface, gated).await;
            assert_eq!(act.result().end, ScenarioEnd::Paused(owned_lines(&["b"])), "{surface:?}");
            assert_eq!(log.take(), [""; 0], "{surface:?}");
        }
    }
}

/// A nested agent is the body of its call.
async fn s12_an_agent_that_panics_inside_a_call_is_that_calls_failure() {
    for surface in RunSurface::ALL {
        let at_first = Agent::new("inside").dynamic_instructions(|_| async { panic!("a test panics here") });
        let later = Agent::new("inside")
            .tool_use_policy(ToolUsePolicy::custom_function(|_, _| async { panic!("a test panics here") }));
        for inside in [at_first, later] {
            let replies =
                [ScriptedResponse::call("i", "effect", json!({})), ScriptedResponse::text("inside done")];
            let inside =
                inside.model(ScriptedModel::new(replies)).tools(logging_tool("effect", &TestLog::default()));
            let log = TestLog::default();
            let calls = ScriptedResponse::call("a", "inside", json!({ "input": "go" })).and_call(
                "b",
                "effect",
                json!({}),
            );
            let tools = (inside.as_tool("inside", "An agent."), logging_tool("effect", &log));
            let act = ScenarioRunner::new(
                surface,
                scripted_agent([calls, ScriptedResponse::text("bye")]).tools(tools),
            )
            .run_to_pause()
            .await;
            let outputs = [&format!("output a {FAILED}"), "output b done", "assistant: bye"];
            assert_eq!(act.result().items[2..], outputs, "{surface:?}");
            assert_eq!(log.take(), ["effect b"], "{surface:?}");
        }
    }
}

/// The point and the kind of a hook's failure.
#[derive(Clone, Copy)]
enum HookFault {
    ErrorBefore,
    PanicBefore,
    ErrorAfter,
    PanicAfter,
}

fn faulty_hook(trouble: HookFault) -> Hook {
    Hook::new(move |moment: HookEvent| async move {
        match (moment, trouble) {
            (HookEvent::CallStarted { ctx, .. }, HookFault::ErrorBefore) if ctx.call_id() == "b" => {
                Err("no".into())
            }
            (HookEvent::CallStarted { ctx, .. }, HookFault::PanicBefore) if ctx.call_id() == "b" => {
                panic!("a test panics here")
            }
            (HookEvent::CallEnded { ctx, .. }, HookFault::ErrorAfter) if ctx.call_id() == "b" => {
                Err("no".into())
            }
            (HookEvent::CallEnded { ctx, .. }, HookFault::PanicAfter) if ctx.call_id() == "b" => {
                panic!("a test panics here")
            }
            _ => Ok(()),
        }
    })
}

async fn s16_a_hook_that_fails_before_the_body_fails_that_call_closed() {
    for surface in RunSurface::ALL {
        for trouble in [HookFault::ErrorBefore, HookFault::PanicBefore] {
            let log = TestLog::default();
            let calls = ScriptedResponse::call("a", "effect", json!({})).and_call("b", "effect", json!({}));
            let agent = scripted_agent([calls, ScriptedResponse::text("bye")])
                .tools(logging_tool("effect", &log))
                .hook(faulty_hook(trouble));
            let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
            let outputs = ["output a done", &format!("output b {FAILED}"), "assistant: bye"];
            assert_eq!(act.result().items[2..], outputs, "{surface:?}");
            assert_eq!(log.take(), ["effect a"], "{surface:?}");
        }
    }
}

async fn s16_a_hook_that_fails_after_the_body_changes_nothing() {
    for surface in RunSurface::ALL {
        for trouble in [HookFault::ErrorAfter, HookFault::PanicAfter] {
            let log = TestLog::default();
            let calls = ScriptedResponse::call("a", "effect", json!({})).and_call("b", "effect", json!({}));
            let agent = scripted_agent([calls, ScriptedResponse::text("bye")])
                .tools(logging_tool("effect", &log))
                .hook(faulty_hook(trouble));
            let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
            assert_eq!(
                act.result().items[2..],
                ["output a done", "output b done", "assistant: bye"],
                "{surface:?}"
            );
            let hows = [("a".to_owned(), CallStatus::Succeeded), ("b".to_owned(), CallStatus::Succeeded)];
            assert_eq!(act.call_statuses(), hows, "{surface:?}");
            if surface == RunSurface::Streamed {
                let warned = act.events.iter().any(|event| {
                    matches!(&event.kind, RunEventKind::Warning { message } if message.starts_with("hook `call_ended` failed"))
                });
                assert!(warned);
            }
        }
    }
}

async fn s17_a_guardrail_of_a_tool_that_fails_fails_closed() {
    const UNCHECKED: &str = "output b The call was stopped by a check that could not be completed.";
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let before =
            ToolInputGuardrail::new("down", |_| async { Err::<ToolGuardrailVerdict, _>("secret".into()) });
        let act = run_middle_call(surface, logging_tool("guarded", &log).input_guardrail(before)).await;
        assert_eq!(act.result().items[4], UNCHECKED, "{surface:?}");
        assert_eq!(
            act.call_statuses().iter().find(|(call, _)| call == "b"),
            Some(&("b".to_owned(), CallStatus::BlockedByGuardrail))
        );
        assert_eq!(
            (log.take_in_order(), act.started_calls()),
            (vec![], owned_lines(&["a", "c"])),
            "{surface:?}"
        );
        // Nothing of the body's output is shown.
        let after = ToolOutputGuardrail::new("down", |_, _| async {
            Err::<ToolGuardrailVerdict, _>("secret".into())
        });
        let act = run_middle_call(surface, logging_tool("guarded", &log).output_guardrail(after)).await;
        assert_eq!(act.result().items[4], UNCHECKED, "{surface:?}");
        assert_eq!(log.take(), ["guarded b"], "{surface:?}");
    }
}

async fn s17_a_guardrail_of_the_input_that_fails_fails_closed() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        for panics in [false, true] {
            for first in [false, true] {
                let log = TestLog::default();
                let guardrail = InputGuardrail::new("down", move |_, _| async move {
                    assert!(!panics, "a test panics here");
                    Err::<GuardrailVerdict, _>("no answer".into())
                });
                let guardrail = if first { guardrail.blocking() } else { guardrail };
                let replies =
                    [ScriptedResponse::call("a", "effect", json!({})), ScriptedResponse::text("bye")];
                let agent =
                    scripted_agent(replies).tools(logging_tool("effect", &log)).input_guardrail(guardrail);
                let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
                let message = if panics { "it panicked: a test panics here" } else { "no answer" }.to_owned();
                let failure = RunFailure::GuardrailFailed { guardrail: "down".to_owned(), message };
                let want = ScenarioResult { end: ScenarioEnd::Failed(failure), items: Vec::new() };
                assert_eq!(act.result(), want, "{surface:?}");
                assert_eq!(log.take(), [""; 0], "{surface:?}");
            }
        }
    }
}

async fn s17_a_guardrail_of_the_output_that_fails_fails_closed() {
    for surface in RunSurface::ALL {
        for panics in [false, true] {
            let guardrail = OutputGuardrail::new("down", move |_, _| async move {
                assert!(!panics, "a test panics here");
                Err::<GuardrailVerdict, _>("no answer".into())
            });
            let replies = [ScriptedResponse::call("a", "effect", json!({})), ScriptedResponse::text("bye")];
            let agent = scripted_agent(replies)
                .tools(logging_tool("effect", &TestLog::default()))
                .output_guardrail(guardrail);
            let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
            let message = if panics { "it panicked: a test panics here" } else { "no answer" }.to_owned();
            let failure = RunFailure::GuardrailFailed { guardrail: "down".to_owned(), message };
            // The rejected response is not kept.
            let said = owned_lines(&["call a effect {}", "output a done"]);
            assert_eq!(
                act.result(),
                ScenarioResult { end: ScenarioEnd::Failed(failure), items: said },
                "{surface:?}"
            );
        }
    }
}

async fn s13_a_body_that_cancels_itself_is_that_calls_failure() {
    for surface in RunSurface::ALL {
        // A body sees its own cancellation as the error of a task or of a timeout.
        let child = any_object_tool("cancels", |_, _| async {
            let task = tokio::spawn(std::future::pending::<String>());
            task.abort();
            Ok(task.await?)
        });
        assert_eq!(middle_output(surface, child).await, format!("output b {FAILED}"), "{surface:?}");
        let elapsed = any_object_tool("cancels", |_, _| async {
            tokio::time::timeout(Duration::ZERO, std::future::pending::<()>()).await?;
            Ok("done".to_owned())
        });
        assert_eq!(middle_output(surface, elapsed).await, format!("output b {FAILED}"), "{surface:?}");
    }
}

async fn s13_an_agent_inside_a_call_that_fails_is_that_calls_failure() {
    for surface in RunSurface::ALL {
        let inner = Agent::new("inside").model(ScriptedModel::new([]));
        let tool = inner.as_tool("inside", "An agent.");
        let log = TestLog::default();
        let calls = ScriptedResponse::call("a", "effect", json!({})).and_call(
            "b",
            "inside",
            json!({ "input": "go" }),
        );
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")])
            .tools((logging_tool("effect", &log), tool));
        let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
        let outputs = ["output a done", &format!("output b {FAILED}"), "assistant: bye"];
        assert_eq!(act.result().items[2..], outputs, "{surface:?}");
    }
}

fn settlement_entry(act: &ScenarioRun, call: &str) -> CallSettled {
    let found = act.entries().into_iter().find_map(|entry| match entry {
        JournalEntry::CallSettled(settled) if settled.call == *call => Some(settled),
        _ => None,
    });
    found.expect("the call has its output")
}

async fn s18_of_several_failures_that_end_the_run_the_first_in_order_is_reported() {
    for surface in RunSurface::ALL {
        let fatal = any_object_tool("fatal", |ctx, _| async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Err(ToolError::visible(format!("{} failed", ctx.call_id())))
        });
        // All calls fail at the same time; without ordering, the last one would be reported.
        let calls = (1..=5).fold(ScriptedResponse::items([]), |reply, at| {
            reply.and_call(&format!("c{at}"), "fatal", json!({}))
        });
        let act =
            ScenarioRunner::new(surface, scripted_agent([calls]).tools(fatal.on_failure(OnFailure::FailRun)))
                .configure_runs(|run| run.drain_timeout(Duration::from_secs(30)))
                .run_to_pause()
                .await;
        let failure = RunFailure::ToolFailed {
            tool: "fatal".to_owned(),
            call: "c1".into(),
            message: "c1 failed".to_owned(),
        };
        assert_eq!(act.result().end, ScenarioEnd::Failed(failure), "{surface:?}");
        if has_worker_threads() {
            // They do not fail at the same time there, and a call after one that failed is stopped.
            continue;
        }
        for call in ["c1", "c2", "c3", "c4", "c5"] {
            let want = CallSettled {
                call: call.into(),
                status: CallStatus::Failed,
                output: format!("{FAILED} Error: {call} failed").into(),
                is_output_redacted: false,
                guardrails: Vec::new(),
                run_failure: Some(Box::new(RunFailure::ToolFailed {
                    tool: "fatal".to_owned(),
                    call: call.into(),
                    message: format!("{call} failed"),
                })),
                active_ms: 0,
            };
            assert_eq!(settlement_entry(&act, call), want, "{surface:?}");
        }
    }
}

/// The second call fails at once. The first runs on until the drain ends, and fails because it is asked to stop: that is
/// no failure of the run.
async fn s18_a_call_that_was_stopped_is_no_failure() {
    for surface in RunSurface::ALL {
        let stubborn = blocking_tool("stubborn", |ctx, _| {
            while !ctx.is_cancelled() {
                std::thread::yield_now();
            }
            Err(ToolError::visible("stopped"))
        });
        let fatal = any_object_tool("fatal", |_, _| async { Err(ToolError::visible("over")) });
        let calls = ScriptedResponse::call("a", "stubborn", json!({})).and_call("b", "fatal", json!({}));
        let tools = (stubborn.on_failure(OnFailure::FailRun), fatal.on_failure(OnFailure::FailRun));
        let stage = ScenarioRunner::new(surface, scripted_agent([calls]).tools(tools));
        let act = stage.run_to_pause().await;
        let failure =
            RunFailure::ToolFailed { tool: "fatal".to_owned(), call: "b".into(), message: "over".to_owned() };
        assert_eq!(act.result().end, ScenarioEnd::Failed(failure), "{surface:?}");
        let statuses = [("b".to_owned(), CallStatus::Failed), ("a".to_owned(), CallStatus::Failed)];
        assert_eq!(act.call_statuses(), statuses, "{surface:?}");
    }
}

/// The third call fails at once, the first by itself during the drain. The report does not depend on the order of the
/// failures, and the call between them keeps its result.
// One thread: the clock decides which of its waits ends first.
#[tokio::test(start_paused = true)]
async fn s18_a_failure_during_the_drain_counts_by_its_place() {
    for surface in RunSurface::ALL {
        let slow = any_object_tool("slow", |_, _| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Err::<String, _>(ToolError::visible("later"))
        });
        let useful = any_object_tool("useful", |_, _| async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok("done".to_owned())
        });
        let fatal = any_object_tool("fatal", |_, _| async { Err(ToolError::visible("over")) });
        let calls = ScriptedResponse::call("a", "slow", json!({}))
            .and_call("b", "useful", json!({}))
            .and_call("c", "fatal", json!({}));
        let tools = (slow.on_failure(OnFailure::FailRun), useful, fatal.on_failure(OnFailure::FailRun));
        let act = ScenarioRunner::new(surface, scripted_agent([calls]).tools(tools)).run_to_pause().await;
        let failure =
            RunFailure::ToolFailed { tool: "slow".to_owned(), call: "a".into(), message: "later".to_owned() };
        assert_eq!(act.result().end, ScenarioEnd::Failed(failure), "{surface:?}");
        let statuses = [
            ("c".to_owned(), CallStatus::Failed),
            ("b".to_owned(), CallStatus::Succeeded),
            ("a".to_owned(), CallStatus::Failed),
        ];
        assert_eq!(act.call_statuses(), statuses, "{surface:?}");
    }
}

/// Returns several megabytes of text with several lines.
fn long_text() -> String {
    "line one\nline two\r\n\u{0007}\n".repeat(250_000)
}

async fn s19_an_errors_text_is_bounded_wherever_it_goes() {
    const BOUND: usize = 64 * 1024;
    let shown = || OnFailure::ShowError;
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        let tell = any_object_tool("fails", |_, _| async { Err(ToolError::visible(long_text())) });
        let show = any_object_tool("fails", |_, _| async { Err(ToolError::hidden(long_text())) })
            .on_failure(shown());
        let panics =
            any_object_tool("fails", |_, _| async { std::panic::resume_unwind(Box::new(long_text())) })
                .on_failure(shown());
        let says = any_object_tool("fails", |_, _| async { Err(ToolError::visible("no")) })
            .on_failure(OnFailure::custom_message(|_, _| long_text()))
            .max_output_bytes(4096);
        for fails in [tell, show, panics, says] {
            let act = run_middle_call(surface, fails).await;
            let output = settlement_entry(&act, "b").output.text().into_owned();
            // The text is truncated and keeps its line breaks.
            assert!(output.len() < 5 * 1024 && output.contains("line one\nline two\r\n"), "{surface:?}");
            let longest = act.events.iter().map(|event| format!("{:?}", event.kind).len()).max().unwrap_or(0);
            assert!(longest < BOUND, "an event of {longest} bytes");
            let text = windlass::core::journal::encode_journal(act.journal());
            assert!(text.len() < BOUND, "a journal of {} bytes", text.len());
        }
    }
}

async fn s19_a_failure_that_ends_the_run_is_bounded() {
    const BOUND: usize = 64 * 1024;
    let fatal = any_object_tool("fails", |_, _| async { Err(ToolError::visible(long_text())) })
        .on_failure(OnFailure::FailRun);
    let hook = Hook::new(|moment: HookEvent| async move {
        match moment {
            HookEvent::ModelResponded { .. } => Err(long_text().into()),
            _ => Ok(()),
        }
    });
    let guardrail =
        OutputGuardrail::new("down", |_, _| async { Err::<GuardrailVerdict, _>(long_text().into()) });
    let input = InputGuardrail::new("down", |_, _| async { Err::<GuardrailVerdict, _>(long_text().into()) });
    let model_error = windlass::model::ModelError::new(long_text());
    let agents = [
        scripted_agent([ScriptedResponse::call("a", "fails", json!({}))]).tools(fatal),
        scripted_agent([ScriptedResponse::text("bye")]).hook(hook),
        scripted_agent([ScriptedResponse::text("bye")]).output_guardrail(guardrail),
        scripted_agent([ScriptedResponse::text("bye")]).input_guardrail(input),
        scripted_agent([ScriptedResponse::error(model_error)]),
    ];
    for agent in agents {
        for surface in [RunSurface::Blocking, RunSurface::Streamed] {
            let act = ScenarioRunner::new(surface, agent.clone()).run_to_pause().await;
            assert!(matches!(act.result().end, ScenarioEnd::Failed(_)), "{surface:?}");
            let text = windlass::core::journal::encode_journal(act.journal());
            assert!(text.len() < BOUND, "a journal of {} bytes", text.len());
            assert!(act.into_error().to_string().len() < BOUND);
        }
    }
}

on_both_runtimes! {
    paused_clock:
        s18_of_several_failures_that_end_the_run_the_first_in_order_is_reported;
    real_clock:
        s11_a_failure_in_the_middle_takes_nothing_from_the_others,
        s12_a_body_that_panics_is_that_calls_failure,
        s12_a_result_that_panics_while_it_is_written_is_that_calls_failure,
        s12_a_guardrail_that_panics_is_that_calls_failure,
        s12_a_failure_text_that_panics_is_that_calls_failure,
        s12_a_conflict_rule_that_panics_takes_nothing_from_the_others,
        s12_an_approval_rule_that_panics_asks,
        s12_an_agent_that_panics_inside_a_call_is_that_calls_failure,
        s16_a_hook_that_fails_before_the_body_fails_that_call_closed,
        s16_a_hook_that_fails_after_the_body_changes_nothing,
        s17_a_guardrail_of_a_tool_that_fails_fails_closed,
        s17_a_guardrail_of_the_input_that_fails_fails_closed,
        s17_a_guardrail_of_the_output_that_fails_fails_closed,
        s13_a_body_that_cancels_itself_is_that_calls_failure,
        s13_an_agent_inside_a_call_that_fails_is_that_calls_failure,
        s18_a_call_that_was_stopped_is_no_failure,
        s19_an_errors_text_is_bounded_wherever_it_goes,
        s19_a_failure_that_ends_the_run_is_bounded;
}
