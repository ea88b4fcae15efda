//! Failures: S11 to S13, S16 to S19.

use std::time::Duration;

use serde_json::json;
use windlass::agent::ToolUse;
use windlass::core::{CallSettled, Entry};
use windlass::guardrail::{
    InputGuardrail, OutputGuardrail, ToolInputGuardrail, ToolOutputGuardrail, ToolVerdict, Verdict,
};
use windlass::hook::{Hook, Moment};
use windlass::prelude::*;
use windlass::{EventKind, Failure, How, OnFailure, tool_fn};

use crate::support::*;

const FAILED: &str = "An error occurred while running the tool. Please try again.";

/// A call of `tool` between two that succeed.
async fn middle(surface: Surface, tool: Tool) -> Act {
    let log = Log::default();
    let calls = Reply::call("a", "effect", json!({})).and_call("b", tool.name(), json!({})).and_call(
        "c",
        "effect",
        json!({}),
    );
    let agent = agent([calls, Reply::text("bye")]).tools((effect("effect", &log), tool));
    let act = Stage::new(surface, agent).play().await;
    assert_eq!(log.take(), ["effect a", "effect c"], "{surface:?}");
    act
}

/// The middle call's output, where the run went on and the others are kept.
async fn told(surface: Surface, tool: Tool) -> String {
    let mut played = middle(surface, tool).await.played();
    assert_eq!(played.end, Ended::Finished("bye".to_owned()), "{surface:?}");
    let output = played.said.remove(4);
    assert_eq!(played.said[3..], ["output a done", "output c done", "assistant: bye"], "{surface:?}");
    output
}

#[tokio::test]
async fn s11_a_failure_in_the_middle_takes_nothing_from_the_others() {
    for surface in Surface::ALL {
        let fails = tool("fails", |_, _| async { Err(ToolError::tell("no stock")) });
        assert_eq!(told(surface, fails).await, format!("output b {FAILED} Error: no stock"), "{surface:?}");
        // What was not written for the model does not reach it.
        let fails = tool("fails", |_, _| async { Err(ToolError::hidden("db at 10.0.0.7 is down")) });
        assert_eq!(told(surface, fails).await, format!("output b {FAILED}"), "{surface:?}");
    }
}

#[tokio::test]
async fn s12_a_body_that_panics_is_that_calls_failure() {
    for surface in Surface::ALL {
        let at_once = tool("panics", |_, _| -> std::future::Ready<_> { panic!("a test panics here") });
        let later = tool("panics", |_, _| async {
            tokio::task::yield_now().await;
            panic!("a test panics here")
        });
        let on_a_thread = blocking_tool("panics", |_, _| panic!("a test panics here"));
        let with_no_words = tool("panics", |_, _| async { std::panic::panic_any(7) });
        let overflows = tool_fn! {
            /// Adds one.
            name = "panics",
            #[allow(arithmetic_overflow)]
            async |#[default = 255] number: u8| -> Result<u8, ToolError> { Ok(number + 1) }
        };
        for panics in [at_once, later, on_a_thread, with_no_words, overflows] {
            assert_eq!(told(surface, panics).await, format!("output b {FAILED}"), "{surface:?}");
        }
    }
}

#[tokio::test]
async fn s12_a_result_that_panics_while_it_is_written_is_that_calls_failure() {
    struct Unprintable;
    impl serde::Serialize for Unprintable {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("a test panics here")
        }
    }
    for surface in Surface::ALL {
        let panics = Tool::dynamic("panics", "A tool.", json!({ "type": "object" }), |_, _| async {
            Ok::<_, ToolError>(Unprintable)
        });
        assert_eq!(told(surface, panics.non_strict()).await, format!("output b {FAILED}"), "{surface:?}");
    }
}

#[tokio::test]
async fn s12_a_guardrail_that_panics_is_that_calls_failure() {
    const UNCHECKED: &str = "output b The call was stopped by a check that could not be completed.";
    for surface in Surface::ALL {
        let log = Log::default();
        let before =
            ToolInputGuardrail::new("panics", |_| -> std::future::Ready<_> { panic!("a test panics here") });
        let guarded = effect("guarded", &log).input_guardrail(before);
        assert_eq!(told(surface, guarded).await, UNCHECKED, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
        let after = ToolOutputGuardrail::new("panics", |_, _| async { panic!("a test panics here") });
        let guarded = effect("guarded", &log).output_guardrail(after);
        assert_eq!(told(surface, guarded).await, UNCHECKED, "{surface:?}");
        assert_eq!(log.take(), ["guarded b"], "{surface:?}");
    }
}

#[tokio::test]
async fn s12_a_failure_text_that_panics_is_that_calls_failure() {
    for surface in Surface::ALL {
        let fails = tool("fails", |_, _| async { Err(ToolError::tell("no stock")) })
            .on_failure(OnFailure::say(|_, _| panic!("a test panics here")));
        assert_eq!(told(surface, fails).await, format!("output b {FAILED}"), "{surface:?}");
    }
}

#[tokio::test]
async fn s12_a_conflict_rule_that_panics_takes_nothing_from_the_others() {
    for surface in Surface::ALL {
        let log = Log::default();
        let conflicts =
            effect("conflicts", &log).conflict(|_: &serde_json::Value| panic!("a test panics here"));
        assert_eq!(told(surface, conflicts).await, "output b done", "{surface:?}");
    }
}

#[tokio::test]
async fn s12_an_approval_rule_that_panics_asks() {
    for surface in Surface::ALL {
        let log = Log::default();
        let at_once = effect("gated", &log).approve_if(|_: &serde_json::Value| panic!("a test panics here"));
        let later = effect("gated", &log)
            .approve_when(|_, _: &serde_json::Value| async { panic!("a test panics here") });
        for gated in [at_once, later] {
            let act = middle(surface, gated).await;
            assert_eq!(act.played().end, Ended::Paused(lines(&["b"])), "{surface:?}");
            assert_eq!(log.take(), [""; 0], "{surface:?}");
        }
    }
}

/// An agent inside a call is that call's body.
#[tokio::test]
async fn s12_an_agent_that_panics_inside_a_call_is_that_calls_failure() {
    for surface in Surface::ALL {
        let at_first = Agent::new("inside").instructions_from(|_| async { panic!("a test panics here") });
        let later =
            Agent::new("inside").tool_use(ToolUse::judge(|_, _| async { panic!("a test panics here") }));
        for inside in [at_first, later] {
            let replies = [Reply::call("i", "effect", json!({})), Reply::text("inside done")];
            let inside = inside.model(ScriptedModel::new(replies)).tools(effect("effect", &Log::default()));
            let log = Log::default();
            let calls =
                Reply::call("a", "inside", json!({ "input": "go" })).and_call("b", "effect", json!({}));
            let tools = (inside.as_tool("inside", "An agent."), effect("effect", &log));
            let act = Stage::new(surface, agent([calls, Reply::text("bye")]).tools(tools)).play().await;
            let outputs = [&format!("output a {FAILED}"), "output b done", "assistant: bye"];
            assert_eq!(act.played().said[2..], outputs, "{surface:?}");
            assert_eq!(log.take(), ["effect b"], "{surface:?}");
        }
    }
}

/// Where a hook fails, and how.
#[derive(Clone, Copy)]
enum Trouble {
    ErrorBefore,
    PanicBefore,
    ErrorAfter,
    PanicAfter,
}

fn troubled_hook(trouble: Trouble) -> Hook {
    Hook::new(move |moment: Moment| async move {
        match (moment, trouble) {
            (Moment::CallStarted { ctx }, Trouble::ErrorBefore) if ctx.call_id() == "b" => Err("no".into()),
            (Moment::CallStarted { ctx }, Trouble::PanicBefore) if ctx.call_id() == "b" => {
                panic!("a test panics here")
            }
            (Moment::CallEnded { ctx, .. }, Trouble::ErrorAfter) if ctx.call_id() == "b" => Err("no".into()),
            (Moment::CallEnded { ctx, .. }, Trouble::PanicAfter) if ctx.call_id() == "b" => {
                panic!("a test panics here")
            }
            _ => Ok(()),
        }
    })
}

#[tokio::test]
async fn s16_a_hook_that_fails_before_the_body_fails_that_call_closed() {
    for surface in Surface::ALL {
        for trouble in [Trouble::ErrorBefore, Trouble::PanicBefore] {
            let log = Log::default();
            let calls = Reply::call("a", "effect", json!({})).and_call("b", "effect", json!({}));
            let agent =
                agent([calls, Reply::text("bye")]).tools(effect("effect", &log)).hook(troubled_hook(trouble));
            let act = Stage::new(surface, agent).play().await;
            let outputs = ["output a done", &format!("output b {FAILED}"), "assistant: bye"];
            assert_eq!(act.played().said[2..], outputs, "{surface:?}");
            assert_eq!(log.take(), ["effect a"], "{surface:?}");
        }
    }
}

#[tokio::test]
async fn s16_a_hook_that_fails_after_the_body_changes_nothing() {
    for surface in Surface::ALL {
        for trouble in [Trouble::ErrorAfter, Trouble::PanicAfter] {
            let log = Log::default();
            let calls = Reply::call("a", "effect", json!({})).and_call("b", "effect", json!({}));
            let agent =
                agent([calls, Reply::text("bye")]).tools(effect("effect", &log)).hook(troubled_hook(trouble));
            let act = Stage::new(surface, agent).play().await;
            assert_eq!(
                act.played().said[2..],
                ["output a done", "output b done", "assistant: bye"],
                "{surface:?}"
            );
            let hows = [("a".to_owned(), How::Succeeded), ("b".to_owned(), How::Succeeded)];
            assert_eq!(act.hows(), hows, "{surface:?}");
            if surface == Surface::Streamed {
                let warned = act.events.iter().any(|event| {
                    matches!(&event.kind, EventKind::Warning { message } if message.starts_with("hook `call_ended` failed"))
                });
                assert!(warned);
            }
        }
    }
}

#[tokio::test]
async fn s17_a_guardrail_of_a_tool_that_fails_fails_closed() {
    const UNCHECKED: &str = "output b The call was stopped by a check that could not be completed.";
    for surface in Surface::ALL {
        let log = Log::default();
        let before = ToolInputGuardrail::new("down", |_| async { Err::<ToolVerdict, _>("secret".into()) });
        let act = middle(surface, effect("guarded", &log).input_guardrail(before)).await;
        assert_eq!(act.played().said[4], UNCHECKED, "{surface:?}");
        assert_eq!(act.hows().iter().find(|(call, _)| call == "b"), Some(&("b".to_owned(), How::Guarded)));
        assert_eq!((log.take(), act.started()), (vec![], lines(&["a", "c"])), "{surface:?}");
        // Of what the body gave, nothing is shown.
        let after = ToolOutputGuardrail::new("down", |_, _| async { Err::<ToolVerdict, _>("secret".into()) });
        let act = middle(surface, effect("guarded", &log).output_guardrail(after)).await;
        assert_eq!(act.played().said[4], UNCHECKED, "{surface:?}");
        assert_eq!(log.take(), ["guarded b"], "{surface:?}");
    }
}

#[tokio::test]
async fn s17_a_guardrail_of_the_input_that_fails_fails_closed() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        for panics in [false, true] {
            for first in [false, true] {
                let log = Log::default();
                let guardrail = InputGuardrail::new("down", move |_, _| async move {
                    assert!(!panics, "a test panics here");
                    Err::<Verdict, _>("no answer".into())
                });
                let guardrail = if first { guardrail.first() } else { guardrail };
                let replies = [Reply::call("a", "effect", json!({})), Reply::text("bye")];
                let agent = agent(replies).tools(effect("effect", &log)).input_guardrail(guardrail);
                let act = Stage::new(surface, agent).play().await;
                let message = if panics { "it panicked: a test panics here" } else { "no answer" }.to_owned();
                let failure = Failure::GuardrailFailed { guardrail: "down".to_owned(), message };
                let want = Played { end: Ended::Failed(failure), said: Vec::new() };
                assert_eq!(act.played(), want, "{surface:?}");
                assert_eq!(log.take(), [""; 0], "{surface:?}");
            }
        }
    }
}

#[tokio::test]
async fn s17_a_guardrail_of_the_output_that_fails_fails_closed() {
    for surface in Surface::ALL {
        for panics in [false, true] {
            let guardrail = OutputGuardrail::new("down", move |_, _| async move {
                assert!(!panics, "a test panics here");
                Err::<Verdict, _>("no answer".into())
            });
            let replies = [Reply::call("a", "effect", json!({})), Reply::text("bye")];
            let agent = agent(replies).tools(effect("effect", &Log::default())).output_guardrail(guardrail);
            let act = Stage::new(surface, agent).play().await;
            let message = if panics { "it panicked: a test panics here" } else { "no answer" }.to_owned();
            let failure = Failure::GuardrailFailed { guardrail: "down".to_owned(), message };
            // The answer that nobody may see is not kept.
            let said = lines(&["call a effect {}", "output a done"]);
            assert_eq!(act.played(), Played { end: Ended::Failed(failure), said }, "{surface:?}");
        }
    }
}

#[tokio::test]
async fn s13_a_body_that_cancels_itself_is_that_calls_failure() {
    for surface in Surface::ALL {
        // A body sees its own cancellation as the error of a task that it waits for, or as a token's.
        let child = tool("cancels", |_, _| async {
            let task = tokio::spawn(std::future::pending::<String>());
            task.abort();
            Ok(task.await?)
        });
        assert_eq!(told(surface, child).await, format!("output b {FAILED}"), "{surface:?}");
        let elapsed = tool("cancels", |_, _| async {
            tokio::time::timeout(Duration::ZERO, std::future::pending::<()>()).await?;
            Ok("done".to_owned())
        });
        assert_eq!(told(surface, elapsed).await, format!("output b {FAILED}"), "{surface:?}");
    }
}

#[tokio::test]
async fn s13_an_agent_inside_a_call_that_fails_is_that_calls_failure() {
    for surface in Surface::ALL {
        let inner = Agent::new("inside").model(ScriptedModel::new([]));
        let tool = inner.as_tool("inside", "An agent.");
        let log = Log::default();
        let calls = Reply::call("a", "effect", json!({})).and_call("b", "inside", json!({ "input": "go" }));
        let agent = agent([calls, Reply::text("bye")]).tools((effect("effect", &log), tool));
        let act = Stage::new(surface, agent).play().await;
        let outputs = ["output a done", &format!("output b {FAILED}"), "assistant: bye"];
        assert_eq!(act.played().said[2..], outputs, "{surface:?}");
    }
}

fn settled(act: &Act, call: &str) -> CallSettled {
    let found = act.entries().into_iter().find_map(|entry| match entry {
        Entry::CallSettled(settled) if settled.call == *call => Some(settled),
        _ => None,
    });
    found.expect("the call has its output")
}

#[tokio::test(start_paused = true)]
async fn s18_of_several_failures_that_end_the_run_the_first_in_order_is_reported() {
    for surface in Surface::ALL {
        let fatal = tool("fatal", |ctx, _| async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Err(ToolError::tell(format!("{} failed", ctx.call_id())))
        });
        // They fail at the same time, and the last one is looked at first where nothing keeps their order.
        let calls =
            (1..=5).fold(Reply::items([]), |reply, at| reply.and_call(&format!("c{at}"), "fatal", json!({})));
        let act = Stage::new(surface, agent([calls]).tools(fatal.on_failure(OnFailure::Fail))).play().await;
        let failure =
            Failure::Tool { tool: "fatal".to_owned(), call: "c1".into(), message: "c1 failed".to_owned() };
        assert_eq!(act.played().end, Ended::Failed(failure), "{surface:?}");
        for call in ["c1", "c2", "c3", "c4", "c5"] {
            let want = CallSettled {
                call: call.into(),
                how: How::Failed,
                output: format!("{FAILED} Error: {call} failed").into(),
                ends_run: true,
            };
            assert_eq!(settled(&act, call), want, "{surface:?}");
        }
    }
}

/// The second fails at once; the first fails because it is asked to stop. The report does not depend on which
/// came first.
#[tokio::test]
async fn s18_a_failure_during_the_drain_counts_by_its_place() {
    for surface in Surface::ALL {
        let stubborn = blocking_tool("stubborn", |ctx, _| {
            while !ctx.is_cancelled() {
                std::thread::yield_now();
            }
            Err(ToolError::tell("stopped"))
        });
        let fatal = tool("fatal", |_, _| async { Err(ToolError::tell("over")) });
        let calls = Reply::call("a", "stubborn", json!({})).and_call("b", "fatal", json!({}));
        let tools = (stubborn.on_failure(OnFailure::Fail), fatal.on_failure(OnFailure::Fail));
        let stage = Stage::new(surface, agent([calls]).tools(tools));
        let act = stage.configure(|run| run.drain(Duration::from_secs(20))).play().await;
        let failure =
            Failure::Tool { tool: "stubborn".to_owned(), call: "a".into(), message: "stopped".to_owned() };
        assert_eq!(act.played().end, Ended::Failed(failure), "{surface:?}");
        assert_eq!(act.hows(), [("b".to_owned(), How::Failed), ("a".to_owned(), How::Failed)], "{surface:?}");
    }
}

/// Five megabytes of several lines.
fn long_text() -> String {
    "line one\nline two\r\n\u{0007}\n".repeat(250_000)
}

#[tokio::test]
async fn s19_an_errors_text_is_bounded_wherever_it_goes() {
    const BOUND: usize = 64 * 1024;
    let shown = || OnFailure::Show;
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        let tell = tool("fails", |_, _| async { Err(ToolError::tell(long_text())) });
        let show = tool("fails", |_, _| async { Err(ToolError::hidden(long_text())) }).on_failure(shown());
        let panics = tool("fails", |_, _| async { std::panic::resume_unwind(Box::new(long_text())) })
            .on_failure(shown());
        let says = tool("fails", |_, _| async { Err(ToolError::tell("no")) })
            .on_failure(OnFailure::say(|_, _| long_text()))
            .output_budget(4096);
        for fails in [tell, show, panics, says] {
            let act = middle(surface, fails).await;
            let output = settled(&act, "b").output.text().into_owned();
            // It is bounded, not mangled: lines stay lines.
            assert!(output.len() < 5 * 1024 && output.contains("line one\nline two\r\n"), "{surface:?}");
            let longest = act.events.iter().map(|event| format!("{:?}", event.kind).len()).max().unwrap_or(0);
            assert!(longest < BOUND, "an event of {longest} bytes");
            let text = windlass::core::to_text(act.journal());
            assert!(text.len() < BOUND, "a journal of {} bytes", text.len());
        }
    }
}

#[tokio::test]
async fn s19_a_failure_that_ends_the_run_is_bounded() {
    const BOUND: usize = 64 * 1024;
    let fatal = tool("fails", |_, _| async { Err(ToolError::tell(long_text())) }).on_failure(OnFailure::Fail);
    let hook = Hook::new(|moment: Moment| async move {
        match moment {
            Moment::ModelAnswered { .. } => Err(long_text().into()),
            _ => Ok(()),
        }
    });
    let guardrail = OutputGuardrail::new("down", |_, _| async { Err::<Verdict, _>(long_text().into()) });
    let input = InputGuardrail::new("down", |_, _| async { Err::<Verdict, _>(long_text().into()) });
    let model_error = windlass::model::ModelError::new(long_text());
    let agents = [
        agent([Reply::call("a", "fails", json!({}))]).tools(fatal),
        agent([Reply::text("bye")]).hook(hook),
        agent([Reply::text("bye")]).output_guardrail(guardrail),
        agent([Reply::text("bye")]).input_guardrail(input),
        agent([Reply::error(model_error)]),
    ];
    for agent in agents {
        for surface in [Surface::Blocking, Surface::Streamed] {
            let act = Stage::new(surface, agent.clone()).play().await;
            assert!(matches!(act.played().end, Ended::Failed(_)), "{surface:?}");
            let text = windlass::core::to_text(act.journal());
            assert!(text.len() < BOUND, "a journal of {} bytes", text.len());
            assert!(act.error().to_string().len() < BOUND);
        }
    }
}
