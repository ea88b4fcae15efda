//! State: S54 and S57.

use std::time::Duration;

use serde_json::json;
use windlass::guardrail::{InputGuardrail, Verdict};
use windlass::hook::{Hook, Moment};
use windlass::model::{ModelError, RetryAdvice};
use windlass::prelude::*;
use windlass::run::{CancelHandle, ModelRetry};
use windlass::{ConfigError, Failure, How, RunError, Usage, tool_fn};

use crate::support::*;

fn gated(name: &'static str, log: &Log) -> Tool {
    effect(name, log).approve_always()
}

/// Two approved calls of `kept` and `gone`, for an agent that may not have both tools any more.
async fn approved(surface: Surface, log: &Log) -> (Stage, Paused) {
    let calls = Reply::call("a", "kept", json!({})).and_call("b", "gone", json!({ "n": 1 }));
    let agent = agent([calls, Reply::text("bye")]).tools((gated("kept", log), gated("gone", log)));
    let stage = Stage::new(surface, agent);
    let mut paused = stage.play().await.paused();
    paused.approve(stage.path("a")).expect("it waits");
    paused.approve(stage.path("b")).expect("it waits");
    (stage, paused)
}

fn config_error(act: Act) -> ConfigError {
    match act.error() {
        RunError::Config(error) => error,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn s54_a_tool_that_is_gone_is_named_and_nothing_runs() {
    for surface in Surface::ALL {
        let log = Log::default();
        let (stage, paused) = approved(surface, &log).await;
        let renamed = agent([Reply::text("bye")]).tools((gated("kept", &log), gated("renamed", &log)));
        let error = config_error(stage.recast(renamed).go_on(paused.clone()).await);
        let want =
            ConfigError::ToolGone { tool: "gone".to_owned(), agent: "agent".into(), call: stage.path("b") };
        assert_eq!(error, want, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
        // With its tools, the same run goes on.
        let act = stage.go_on(paused).await;
        assert_eq!(act.played().end, Ended::Finished("bye".to_owned()), "{surface:?}");
        assert_eq!(log.take(), ["kept a", "gone b"], "{surface:?}");
    }
}

#[tokio::test]
async fn s54_arguments_that_do_not_fit_any_more_are_named_and_nothing_runs() {
    for surface in Surface::ALL {
        let log = Log::default();
        let (stage, paused) = approved(surface, &log).await;
        let noted = log.clone();
        let changed = tool_fn! {
            /// Takes other arguments by now.
            name = "gone",
            approve = always,
            async |number: u8| -> Result<u8, ToolError> {
                noted.push("gone");
                Ok(number)
            }
        };
        let changed = agent([Reply::text("bye")]).tools((gated("kept", &log), changed));
        let want = ConfigError::ArgumentsGone {
            tool: "gone".to_owned(),
            call: stage.path("b"),
            problems: "`number` is missing; `n` is not a known field; known are: number".to_owned(),
        };
        assert_eq!(config_error(stage.recast(changed).go_on(paused).await), want, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}

/// It is a tool of an agent inside a call, and a sibling of that call is ready to run.
#[tokio::test]
async fn s54_a_tool_that_is_gone_deep_inside_keeps_everything_from_running() {
    for surface in Surface::ALL {
        let log = Log::default();
        let inside = |replies: Vec<Reply>, tool: &'static str| {
            Agent::new("inside")
                .model(ScriptedModel::new(replies))
                .tools(gated(tool, &log))
                .as_tool("inside", "An agent.")
        };
        let calls = Reply::call("a", "kept", json!({})).and_call("x", "inside", json!({ "input": "go" }));
        let asks = inside(vec![Reply::call("b", "gone", json!({}))], "gone");
        let stage = Stage::new(surface, agent([calls]).tools((gated("kept", &log), asks)));
        let mut paused = stage.play().await.paused();
        paused.approve(stage.path("a")).expect("it waits");
        paused.approve("b").expect("it waits");
        let tools = (gated("kept", &log), inside(vec![], "renamed"));
        let renamed = agent([]).tools(tools).hook(call_log(&log));
        let error = config_error(stage.recast(renamed).go_on(paused).await);
        let path = format!("{}/b", stage.path("x"));
        let want = ConfigError::ToolGone {
            tool: "gone".to_owned(),
            agent: "inside".into(),
            call: path.as_str().into(),
        };
        assert_eq!(error, want, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}

#[tokio::test]
async fn s54_a_rejected_call_needs_no_tool() {
    for surface in Surface::ALL {
        let log = Log::default();
        let replies = [Reply::call("a", "gone", json!({})), Reply::text("bye")];
        let stage = Stage::new(surface, agent(replies).tools(gated("gone", &log)));
        let mut paused = stage.play().await.paused();
        paused.reject(stage.path("a")).expect("it waits");
        let act = stage.recast(agent([Reply::text("bye")])).go_on(paused).await;
        assert_eq!(act.hows(), [("a".to_owned(), How::Rejected)], "{surface:?}");
        assert_eq!(act.played().end, Ended::Finished("bye".to_owned()), "{surface:?}");
    }
}

#[tokio::test]
async fn s54_a_tool_switched_off_while_paused_does_not_run() {
    for surface in Surface::ALL {
        let log = Log::default();
        let (stage, paused) = approved(surface, &log).await;
        let off =
            agent([Reply::text("bye")]).tools((gated("kept", &log), gated("gone", &log).enabled(false)));
        let act = stage.recast(off).go_on(paused).await;
        let outputs =
            ["output a done", "output b Tool 'gone' not found. The tools are: kept.", "assistant: bye"];
        assert_eq!(act.played().said[2..], outputs, "{surface:?}");
        assert_eq!(log.take(), ["kept a"], "{surface:?}");
    }
}

#[tokio::test]
async fn s54_an_agent_that_is_gone_is_named() {
    let log = Log::default();
    let second = Agent::new("second")
        .model(ScriptedModel::new([Reply::call("a", "gated", json!({})), Reply::text("bye")]))
        .tools(gated("gated", &log));
    let first = agent([Reply::call("h", "transfer_to_second", json!({}))]).handoff(&second);
    let mut paused = first.run("go").await.expect("it pauses").paused().expect("it pauses");
    paused.approve("a").expect("it waits");
    let error = agent([]).resume(paused).await.expect_err("there is no such agent");
    let want = ConfigError::UnknownAgent { agent: "second".into() };
    assert!(matches!(&error, RunError::Config(found) if *found == want), "{error}");
    assert_eq!(log.take(), [""; 0]);
}

fn cost(requests: u64, unknown: u64, input: u64, output: u64) -> Usage {
    Usage { requests, unknown, ..Usage { input_tokens: input, output_tokens: output, ..Usage::default() } }
}

fn priced(reply: Reply, input: u64, output: u64) -> Reply {
    reply.usage(Some(Usage::tokens(input, output)))
}

#[tokio::test(start_paused = true)]
async fn s57_a_request_that_was_cancelled_is_of_unknown_cost() {
    for surface in Surface::ALL {
        let asked = Log::default();
        let noted = asked.clone();
        let replies = [
            priced(Reply::call("a", "effect", json!({})), 100, 7),
            priced(Reply::text("bye"), 200, 9).after(Duration::from_secs(30)),
        ];
        let agent = agent(replies).tools(effect("effect", &Log::default())).instructions_from(move |_| {
            noted.push("asked");
            async { String::new() }
        });
        let stage = Stage::new(surface, agent).configure(move |run| {
            let (asked, cancel) = (asked.clone(), run.cancel_handle());
            tokio::spawn(async move {
                until(|| asked.count("asked") == 2).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
                CancelHandle::now(&cancel);
            });
            run
        });
        let act = stage.play().await;
        assert_eq!(act.played().end, Ended::Cancelled, "{surface:?}");
        assert_eq!(act.usage(), cost(2, 1, 100, 7), "{surface:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s57_a_request_that_a_guardrail_cut_off_is_of_unknown_cost() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        let trips = InputGuardrail::new("trips", |_, _| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(Verdict::Trip)
        });
        let replies = [priced(Reply::text("bye"), 200, 9).after(Duration::from_secs(30))];
        let act = Stage::new(surface, agent(replies).input_guardrail(trips)).play().await;
        let failure = Failure::InputGuardrail { guardrail: "trips".to_owned() };
        assert_eq!(act.played().end, Ended::Failed(failure), "{surface:?}");
        assert_eq!(act.usage(), cost(1, 1, 0, 0), "{surface:?}");
    }
}

/// The answer was there, and what it cost is known, though nobody is to see it.
#[tokio::test(start_paused = true)]
async fn s57_an_answer_that_a_guardrail_took_back_was_paid_for() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        let trips = InputGuardrail::new("trips", |_, _| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(Verdict::Trip)
        });
        let replies = [priced(Reply::text("bye"), 200, 9)];
        let act = Stage::new(surface, agent(replies).input_guardrail(trips)).play().await;
        let failure = Failure::InputGuardrail { guardrail: "trips".to_owned() };
        assert_eq!(act.played(), Played { end: Ended::Failed(failure), said: vec![] }, "{surface:?}");
        assert_eq!(act.usage(), cost(1, 0, 200, 9), "{surface:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s57_failed_requests_count_and_are_of_unknown_cost() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        let busy = || Reply::error(ModelError::new("busy").retry(RetryAdvice::Safe));
        let replies = [busy(), busy(), priced(Reply::text("bye"), 30, 3)];
        let act = Stage::new(surface, agent(replies)).play().await;
        assert_eq!(act.played(), finished("bye", &["assistant: bye"]), "{surface:?}");
        assert_eq!(act.usage(), cost(3, 2, 30, 3), "{surface:?}");

        let replies = [priced(Reply::call("a", "effect", json!({})), 30, 3), busy(), busy()];
        let stage = Stage::new(surface, agent(replies).tools(effect("effect", &Log::default())));
        let twice = ModelRetry { attempts: 2, ..ModelRetry::default() };
        let act = stage.configure(move |run| run.model_retry(twice)).play().await;
        let failure = Failure::Model { message: "busy".to_owned() };
        assert_eq!(act.played().end, Ended::Failed(failure), "{surface:?}");
        assert_eq!(act.usage(), cost(3, 2, 30, 3), "{surface:?}");
    }
}

#[tokio::test]
async fn s57_what_a_provider_does_not_say_is_not_nothing() {
    for surface in Surface::ALL {
        let replies = [Reply::call("a", "effect", json!({})).usage(None), priced(Reply::text("bye"), 5, 2)];
        let act = Stage::new(surface, agent(replies).tools(effect("effect", &Log::default()))).play().await;
        assert_eq!(act.usage(), cost(2, 1, 5, 2), "{surface:?}");
    }
}

#[tokio::test]
async fn s57_a_resumed_run_costs_what_it_did_before_and_after() {
    for surface in Surface::ALL {
        let inside = Agent::new("inside")
            .model(ScriptedModel::new([
                priced(Reply::call("i", "gated", json!({})), 1000, 100),
                priced(Reply::text("inside done"), 2000, 200),
            ]))
            .tools(gated("gated", &Log::default()));
        let replies = [
            priced(Reply::call("x", "inside", json!({ "input": "go" })), 10, 1),
            priced(Reply::text("bye"), 20, 2),
        ];
        let stage = Stage::new(surface, agent(replies).tools(inside.as_tool("inside", "An agent.")));
        let act = stage.play().await;
        assert_eq!(act.usage(), cost(1, 0, 10, 1), "{surface:?}");
        let mut paused = act.paused();
        paused.approve("i").expect("it waits");
        let act = stage.go_on(paused).await;
        assert_eq!(act.usage(), cost(2, 0, 30, 3), "{surface:?}");
        // With what was inside of it, and around it.
        let around = if stage.within().is_empty() { cost(4, 0, 3030, 303) } else { cost(6, 0, 3050, 313) };
        let outcome = act.outcome.expect("it finishes");
        assert_eq!(*outcome.record().usage(), around, "{surface:?}");
        let again = Paused::from_text(&outcome.record().to_text()).expect("can be read");
        assert_eq!(again.record().usage(), outcome.record().usage(), "{surface:?}");
    }
}

/// A hook does not like the answer.
#[tokio::test]
async fn s57_an_answer_that_a_hook_refused_was_paid_for() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        let log = Log::default();
        let hook = Hook::new(|moment: Moment| async move {
            match moment {
                Moment::ModelAnswered { .. } => Err("no".into()),
                _ => Ok(()),
            }
        });
        let replies = [priced(Reply::call("a", "effect", json!({})), 40, 4)];
        let act = Stage::new(surface, agent(replies).tools(effect("effect", &log)).hook(hook)).play().await;
        let failure = Failure::Hook { hook: "model_answered".to_owned(), message: "no".to_owned() };
        assert_eq!(act.played(), Played { end: Ended::Failed(failure), said: vec![] }, "{surface:?}");
        assert_eq!(act.usage(), cost(1, 0, 40, 4), "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}

/// A refused answer was paid for, too.
#[tokio::test]
async fn s57_an_answer_that_could_not_be_used_was_paid_for() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        let replies = [priced(Reply::call("", "effect", json!({})), 40, 4)];
        let act = Stage::new(surface, agent(replies).tools(effect("effect", &Log::default()))).play().await;
        assert!(matches!(act.played().end, Ended::Failed(Failure::Misbehaviour(_))), "{surface:?}");
        assert_eq!(act.usage(), cost(1, 0, 40, 4), "{surface:?}");
    }
}
