//! Duplicate calls and idempotency: S26 to S30, S36 and S37.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use windlass::core::{canonical::Digest, plan::ModelProtocolError};
use windlass::guardrail::{ToolGuardrailVerdict, ToolOutputGuardrail};
use windlass::prelude::*;
use windlass::{
    core::failure::RunFailure, core::journal::CallStatus, core::tool::ToolEffect, store::MemoryStore, tool_fn,
};

use crate::support::*;

/// Creates an idempotent tool whose body sleeps and counts its executions.
fn charge_tool(bodies: &Arc<AtomicUsize>) -> Tool {
    let bodies = bodies.clone();
    let charge = any_object_tool("charge", move |_, _| {
        let number = bodies.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(format!("charge {number}"))
        }
    });
    charge.effect(ToolEffect::Idempotent)
}

fn owned_statuses(of: &[(&str, CallStatus)]) -> Vec<(String, CallStatus)> {
    of.iter().map(|(call, how)| ((*call).to_owned(), how.clone())).collect()
}

async fn s26_two_identical_calls_in_one_turn_run_one_body() {
    for surface in RunSurface::ALL {
        for limit in [1, 2, 10] {
            let bodies = Arc::default();
            let calls = ScriptedResponse::call("a", "charge", json!({ "order": 7, "cents": 100 }))
                .and_raw_call("b", "charge", r#"{ "cents": 1e2, "order": 7 }"#)
                .and_call("c", "charge", json!({ "order": 8, "cents": 100 }));
            let agent = scripted_agent([calls, ScriptedResponse::text("bye")]).tools(charge_tool(&bodies));
            let act = ScenarioRunner::new(surface, agent)
                .configure_runs(move |run| run.max_concurrent_calls(limit))
                .run_to_pause()
                .await;
            assert_eq!(bodies.load(Ordering::SeqCst), 2, "{surface:?} {limit}");
            let mut ends = act.call_statuses();
            ends.sort_by(|a, b| a.0.cmp(&b.0));
            let want = owned_statuses(&[
                ("a", CallStatus::Succeeded),
                ("b", CallStatus::Deduplicated),
                ("c", CallStatus::Succeeded),
            ]);
            assert_eq!(ends, want, "{surface:?} {limit}");
            // The bodies number themselves in the order in which they run.
            let is_swapped = has_worker_threads() && act.result().items[3] == "output a charge 2";
            let [first, second] = if is_swapped { [2, 1] } else { [1, 2] };
            let outputs = [
                format!("output a charge {first}"),
                format!("output b charge {first}"),
                format!("output c charge {second}"),
                "assistant: bye".to_owned(),
            ];
            assert_eq!(act.result().items[3..], outputs, "{surface:?} {limit}");
        }
    }
}

async fn s26_where_the_first_fails_the_second_runs() {
    for surface in RunSurface::ALL {
        let bodies = Arc::new(AtomicUsize::new(0));
        let counted = bodies.clone();
        let flaky = any_object_tool("charge", move |_, _| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                if number == 0 { Err(ToolError::visible("busy")) } else { Ok("charged".to_owned()) }
            }
        });
        let calls = ["a", "b", "c"]
            .iter()
            .fold(ScriptedResponse::items([]), |calls, call| calls.and_call(call, "charge", json!({})));
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")])
            .tools(flaky.effect(ToolEffect::Idempotent));
        let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
        // The order of the two waiting calls is not specified.
        let mut ends: Vec<CallStatus> = act.call_statuses().0.into_iter().map(|(_, how)| how).collect();
        ends.sort_by_key(|how| format!("{how:?}"));
        assert_eq!(
            ends,
            [CallStatus::Deduplicated, CallStatus::Failed, CallStatus::Succeeded],
            "{surface:?}"
        );
        assert_eq!(bodies.load(Ordering::SeqCst), 2, "{surface:?}");
    }
}

async fn s27_the_same_call_in_a_later_turn_and_after_a_pause_runs_no_body() {
    for surface in RunSurface::ALL {
        let (bodies, log) = (Arc::default(), TestLog::default());
        let replies = [
            ScriptedResponse::call("a", "charge", json!({ "order": 7 })),
            ScriptedResponse::call("b", "charge", json!({ "order": 7 })).and_call("wait", "gated", json!({})),
            ScriptedResponse::call("c", "charge", json!({ "order": 7 })),
            ScriptedResponse::text("bye"),
        ];
        let agent = scripted_agent(replies)
            .tools((charge_tool(&bodies), logging_tool("gated", &log).needs_approval()));
        let stage = ScenarioRunner::new(surface, agent);
        let mut paused = stage.run_to_pause().await.into_paused();
        paused.approve(stage.call_path("wait")).expect("it waits");
        let act = stage.resume_paused(paused).await;
        let want = [
            ("a", CallStatus::Succeeded),
            ("b", CallStatus::Deduplicated),
            ("wait", CallStatus::Succeeded),
            ("c", CallStatus::Deduplicated),
        ];
        assert_eq!(act.call_statuses(), owned_statuses(&want), "{surface:?}");
        assert_eq!(bodies.load(Ordering::SeqCst), 1, "{surface:?}");
        assert_eq!(act.result().end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?}");
    }
}

/// An identical call that was running when its driver was lost runs once more, with the same idempotency key. On one thread
/// only: the clock decides that the driver is lost before the body returns.
#[tokio::test(start_paused = true)]
async fn s27_the_same_call_after_a_crash_runs_one_more_body_at_most() {
    let (bodies, store) = (Arc::default(), Arc::new(MemoryStore::default()));
    let calls = ScriptedResponse::call("a", "charge", json!({})).and_call("b", "charge", json!({}));
    let agent = scripted_agent([calls, ScriptedResponse::text("bye")]).tools(charge_tool(&bodies));
    let run = agent.run("go").run_id("run").store(store.clone());
    let lost = tokio::time::timeout(Duration::from_millis(2), run).await;
    assert!(lost.is_err());
    let paused = PausedRun::from_records(stored_records(&*store, "run").await).expect("the journal adds up");
    let outcome = agent.resume(paused).await.expect("it finishes");
    let outputs: Vec<String> = outcome.record().run_items()[2..]
        .iter()
        .map(|item| windlass::model::describe_item(&item.item))
        .collect();
    assert_eq!(outputs, ["output a charge 2", "output b charge 2", "assistant: bye"]);
    assert_eq!(bodies.load(Ordering::SeqCst), 2);
}

async fn s27_the_same_call_of_one_nested_agent_runs_no_body_and_that_of_another_does() {
    for surface in RunSurface::ALL {
        let (bodies, own_bodies) = (Arc::default(), Arc::default());
        let charge = || ScriptedResponse::call("a", "charge", json!({}));
        let inner = Agent::new("inside")
            .model(ScriptedModel::new([
                charge(),
                ScriptedResponse::text("inside done"),
                charge(),
                ScriptedResponse::text("inside done"),
            ]))
            .tools(charge_tool(&bodies));
        let replies = [
            // The nested agent runs twice, beside the same call of the agent's own tool.
            ScriptedResponse::call("x", "inside", json!({ "input": "go" })).and_call(
                "a",
                "charge",
                json!({}),
            ),
            ScriptedResponse::call("y", "inside", json!({ "input": "go" })).and_call(
                "b",
                "charge",
                json!({}),
            ),
            ScriptedResponse::text("bye"),
        ];
        let agent =
            scripted_agent(replies).tools((inner.as_tool("inside", "An agent."), charge_tool(&own_bodies)));
        let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
        assert_eq!(act.result().end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?}");
        let counts = (bodies.load(Ordering::SeqCst), own_bodies.load(Ordering::SeqCst));
        assert_eq!(counts, (1, 1), "{surface:?}");
    }
}

/// Creates an idempotent tool with a default argument.
fn spell_tool(bodies: &Arc<AtomicUsize>) -> Tool {
    let bodies = bodies.clone();
    tool_fn! {
        /// Takes anything.
        name = "spell",
        effect = idempotent,
        strict = false,
        async |#[default] x: serde_json::Value, #[default = 3] days: u8| -> Result<String, ToolError> {
            bodies.fetch_add(1, Ordering::SeqCst);
            Ok(format!("{x} {days}"))
        }
    }
}

/// Returns if two spellings of the arguments are equal for receipts, for repeated call ids and for decisions.
async fn compare_spellings(surface: RunSurface, one: &str, other: &str) -> [bool; 3] {
    let bodies = Arc::default();
    let calls = ScriptedResponse::items([]).and_raw_call("a", "spell", one).and_raw_call("b", "spell", other);
    let twins = ScenarioRunner::new(
        surface,
        scripted_agent([calls, ScriptedResponse::text("bye")]).tools(spell_tool(&bodies)),
    )
    .run_to_pause()
    .await;
    assert_eq!(twins.result().end, ScenarioEnd::Finished("bye".to_owned()));
    let one_body = bodies.load(Ordering::SeqCst) == 1;

    let replies = [
        ScriptedResponse::items([]).and_raw_call("a", "spell", one),
        ScriptedResponse::items([]).and_raw_call("a", "spell", other),
        ScriptedResponse::text("bye"),
    ];
    let again =
        ScenarioRunner::new(surface, scripted_agent(replies).tools(spell_tool(&bodies))).run_to_pause().await;
    let one_call = match again.result().end {
        ScenarioEnd::Finished(_) => true,
        ScenarioEnd::Failed(RunFailure::ModelProtocolError(ModelProtocolError::ReusedCallId { .. })) => false,
        other => panic!("{other:?}"),
    };

    let calls = ScriptedResponse::items([]).and_raw_call("a", "spell", one).and_raw_call("b", "spell", other);
    let gated =
        ScenarioRunner::new(surface, scripted_agent([calls]).tools(spell_tool(&bodies).needs_approval()))
            .run_to_pause()
            .await;
    let digests: Vec<Digest> =
        gated.into_paused().pending_calls().iter().map(|pending| pending.digest).collect();
    [one_body, one_call, digests[0] == digests[1]]
}

async fn s28_one_rule_says_everywhere_which_arguments_are_the_same() {
    let same = [
        (r#"{"x":1,"days":2}"#, r#"{"days":2,"x":1}"#),
        (r#"{"x":[1,2]}"#, "{\n\t\"x\" : [ 1,2 ]\r\n}"),
        (r#"{"x":1e2}"#, r#"{"x":100}"#),
        (r#"{"x":100.0}"#, r#"{"x":100}"#),
        (r#"{"x":-0.0}"#, r#"{"x":0}"#),
        (r#"{"x":"é/"}"#, r#"{"x":"\u00e9\/"}"#),
        (r#"{"x":1,"x":2}"#, r#"{"x":2}"#),
        ("", "{}"),
    ];
    let different = [
        (r#"{"x":1}"#, r#"{"x":true}"#),
        (r#"{"x":1}"#, r#"{"x":"1"}"#),
        (r#"{"x":true}"#, r#"{"x":"true"}"#),
        (r#"{"x":9007199254740992}"#, r#"{"x":9007199254740993}"#),
        (r#"{"x":0.1}"#, r#"{"x":0.10000000000000001e1}"#),
        (r#"{"x":[1,2]}"#, r#"{"x":[2,1]}"#),
        (r#"{"x":"e"}"#, r#"{"x":"E"}"#),
        // An explicit value is part of the call, even if it equals the default.
        (r#"{"x":1}"#, r#"{"x":1,"days":3}"#),
    ];
    // For receipts and keys, null is the same as the absence of an optional parameter. Decisions are about the text.
    let same_effect = [(r#"{"days":3}"#, r#"{"days":3,"x":null}"#)];
    for surface in RunSurface::ALL {
        for (one, other) in same {
            assert_eq!(
                compare_spellings(surface, one, other).await,
                [true; 3],
                "{surface:?}: {one} and {other}"
            );
        }
        for (one, other) in same_effect {
            assert_eq!(
                compare_spellings(surface, one, other).await,
                [true, false, false],
                "{surface:?}: {one} and {other}"
            );
        }
        for (one, other) in different {
            assert_eq!(
                compare_spellings(surface, one, other).await,
                [false; 3],
                "{surface:?}: {one} and {other}"
            );
        }
    }
}

async fn s29_a_body_that_changes_its_arguments_changes_nothing_else() {
    for surface in RunSurface::ALL {
        let seen = TestLog::default();
        let noted = seen.clone();
        let sorts = tool_fn! {
            /// Sorts a list, in place.
            name = "sorts",
            effect = idempotent,
            async |ctx: &ToolContext, mut list: Vec<u8>| -> Result<String, ToolError> {
                let key = ctx.idempotency_key();
                list.sort_unstable();
                list.push(9);
                assert_eq!(ctx.idempotency_key(), key);
                noted.push(ctx.arguments());
                Ok(format!("{list:?}"))
            }
        };
        let replies = [
            ScriptedResponse::call("a", "sorts", json!({ "list": [3, 1] })),
            ScriptedResponse::call("b", "sorts", json!({ "list": [3, 1] })),
            ScriptedResponse::text("bye"),
        ];
        let act = ScenarioRunner::new(surface, scripted_agent(replies).tools(sorts)).run_to_pause().await;
        let said = [
            r#"call a sorts {"list":[3,1]}"#,
            "output a [1, 3, 9]",
            r#"call b sorts {"list":[3,1]}"#,
            "output b [1, 3, 9]",
            "assistant: bye",
        ];
        assert_eq!(act.result(), finished_result("bye", &said), "{surface:?}");
        assert_eq!(seen.take(), [r#"{"list":[3,1]}"#], "{surface:?}");
    }
}

/// Runs the same call in two turns, the first without success, and returns both statuses.
async fn statuses_of_repeat(surface: RunSurface, charge: Tool, arguments: &str) -> Vec<(String, CallStatus)> {
    let replies = [
        ScriptedResponse::items([]).and_raw_call("a", "charge", arguments),
        ScriptedResponse::items([]).and_raw_call("b", "charge", arguments),
        ScriptedResponse::text("bye"),
    ];
    let act =
        ScenarioRunner::new(surface, scripted_agent(replies).tools(charge.effect(ToolEffect::Idempotent)))
            .run_to_pause()
            .await;
    assert_eq!(act.result().end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?}");
    act.call_statuses().0
}

async fn s30_only_success_leaves_a_receipt() {
    for surface in RunSurface::ALL {
        let fails = any_object_tool("charge", |_, _| async { Err(ToolError::visible("no")) });
        let want = owned_statuses(&[("a", CallStatus::Failed), ("b", CallStatus::Failed)]);
        assert_eq!(statuses_of_repeat(surface, fails, "{}").await, want, "{surface:?}");

        let panics = any_object_tool("charge", |_, _| async { panic!("a test panics here") });
        assert_eq!(statuses_of_repeat(surface, panics, "{}").await, want, "{surface:?}");

        let late = any_object_tool("charge", |_, _| std::future::pending()).timeout(Duration::from_millis(1));
        let want = owned_statuses(&[("a", CallStatus::TimedOut), ("b", CallStatus::TimedOut)]);
        assert_eq!(statuses_of_repeat(surface, late, "{}").await, want, "{surface:?}");

        let guard = ToolOutputGuardrail::new("no", |_, _| async {
            Ok(ToolGuardrailVerdict::RejectCall("no".to_owned()))
        });
        let guarded =
            any_object_tool("charge", |_, _| async { Ok("secret".to_owned()) }).output_guardrail(guard);
        let want = owned_statuses(&[("a", CallStatus::OutputWithheld), ("b", CallStatus::OutputWithheld)]);
        assert_eq!(statuses_of_repeat(surface, guarded, "{}").await, want, "{surface:?}");

        let unread = any_object_tool("charge", |_, _| async { Ok("done".to_owned()) });
        let want =
            owned_statuses(&[("a", CallStatus::InvalidArguments), ("b", CallStatus::InvalidArguments)]);
        assert_eq!(statuses_of_repeat(surface, unread, "[]").await, want, "{surface:?}");
    }
}

async fn s30_a_rejected_or_held_call_leaves_no_receipt() {
    for surface in RunSurface::ALL {
        let bodies = Arc::default();
        let both = ScriptedResponse::call("a", "charge", json!({})).and_call("b", "charge", json!({}));
        let replies = [both, ScriptedResponse::call("c", "charge", json!({})), ScriptedResponse::text("bye")];
        let stage = ScenarioRunner::new(
            surface,
            scripted_agent(replies).tools(charge_tool(&bodies).needs_approval()),
        );
        let act = stage.run_to_pause().await;
        assert_eq!(act.result().end, ScenarioEnd::Paused(owned_lines(&["a", "b"])), "{surface:?}");
        let mut paused = act.into_paused();
        paused.reject(stage.call_path("a")).expect("it waits");
        let act = stage.resume_paused(paused).await;
        assert_eq!(act.result().end, ScenarioEnd::Paused(owned_lines(&["b"])), "{surface:?}");
        let mut paused = act.into_paused();
        paused.reject(stage.call_path("b")).expect("it waits");
        let act = stage.resume_paused(paused).await;
        assert_eq!(act.result().end, ScenarioEnd::Paused(owned_lines(&["c"])), "{surface:?}");
        assert_eq!(
            act.call_statuses(),
            owned_statuses(&[("a", CallStatus::Rejected), ("b", CallStatus::Rejected)]),
            "{surface:?}"
        );
        assert_eq!(bodies.load(Ordering::SeqCst), 0, "{surface:?}");
    }
}

/// The result of edited arguments is no receipt for the model's arguments.
async fn s30_changed_arguments_leave_no_receipt_for_the_models() {
    for surface in RunSurface::ALL {
        let bodies = Arc::default();
        let replies = [
            ScriptedResponse::call("a", "charge", json!({ "cents": 900 })),
            ScriptedResponse::call("b", "charge", json!({ "cents": 900 })),
            ScriptedResponse::text("bye"),
        ];
        let stage = ScenarioRunner::new(
            surface,
            scripted_agent(replies).tools(charge_tool(&bodies).needs_approval()),
        );
        let mut paused = stage.run_to_pause().await.into_paused();
        paused.approve_edited(stage.call_path("a"), r#"{"cents":1}"#).expect("it waits");
        let act = stage.resume_paused(paused).await;
        assert_eq!(act.result().end, ScenarioEnd::Paused(owned_lines(&["b"])), "{surface:?}");
        assert_eq!(act.call_statuses(), owned_statuses(&[("a", CallStatus::Succeeded)]), "{surface:?}");
    }
}

async fn s36_the_idempotency_key_is_the_same_in_every_attempt() {
    for surface in RunSurface::ALL {
        for effect in [ToolEffect::Once, ToolEffect::Idempotent, ToolEffect::Pure] {
            let keys = TestLog::default();
            let noted = keys.clone();
            let flaky = any_object_tool("charge", move |ctx, _| {
                noted.push(ctx.idempotency_key());
                let is_last = noted.lines().len() % 3 == 0;
                async move { if is_last { Ok("done".to_owned()) } else { Err(ToolError::visible("busy")) } }
            });
            let flaky = flaky.effect(effect).retry(3, Duration::from_millis(10));
            let replies = [
                ScriptedResponse::call("a", "charge", json!({ "order": 7 })),
                ScriptedResponse::call("b", "charge", json!({ "order": 8 })),
                ScriptedResponse::text("bye"),
            ];
            let act = ScenarioRunner::new(surface, scripted_agent(replies).tools(flaky)).run_to_pause().await;
            assert_eq!(act.started_calls(), ["a", "a", "a", "b", "b", "b"], "{surface:?} {effect:?}");
            let keys = keys.take();
            assert_eq!((&keys[0], &keys[3]), (&keys[1], &keys[4]), "{surface:?} {effect:?}");
            assert_eq!((&keys[1], &keys[4]), (&keys[2], &keys[5]), "{surface:?} {effect:?}");
            assert_ne!(keys[0], keys[3], "{surface:?} {effect:?}");
            assert!(keys[0].len() == 35 && keys[0].starts_with("wl-"), "{}", keys[0]);
        }
    }
}

async fn s36_the_idempotency_key_survives_the_process() {
    for surface in [RunSurface::Blocking, RunSurface::Nested] {
        for effect in [ToolEffect::Once, ToolEffect::Idempotent, ToolEffect::Pure] {
            let (keys, store) = (TestLog::default(), Arc::new(MemoryStore::default()));
            let noted = keys.clone();
            let charge = any_object_tool("charge", move |ctx, _| {
                noted.push(ctx.idempotency_key());
                let is_lost = noted.lines().len() == 1;
                async move { if is_lost { std::future::pending().await } else { Ok("done".to_owned()) } }
            });
            let replies = [ScriptedResponse::call("a", "charge", json!({})), ScriptedResponse::text("bye")];
            let stage = ScenarioRunner::new(surface, scripted_agent(replies).tools(charge.effect(effect)));
            let run = stage.build_run().run_id("run").store(store.clone());
            lose_run(run, &*store, "run", |_| keys.lines().len() == 1).await;
            let mut paused =
                PausedRun::from_records(stored_records(&*store, "run").await).expect("the journal adds up");
            if effect == ToolEffect::Once {
                paused = stage.resume_paused(paused).await.into_paused();
                paused.confirm_not_executed(stage.call_path("a")).expect("it is in doubt");
            }
            let act = stage.resume_paused(paused).await;
            assert_eq!(act.result().end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?} {effect:?}");
            let keys = keys.take();
            assert_eq!(keys, [keys[0].clone(), keys[0].clone()], "{surface:?} {effect:?}");
        }
    }
}

async fn s37_a_saved_run_resumed_twice_is_two_runs() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let script = || [ScriptedResponse::call("a", "gated", json!({})), ScriptedResponse::text("bye")];
        let make = |replies: Vec<ScriptedResponse>| {
            scripted_agent(replies).tools(logging_tool("gated", &log).needs_approval())
        };
        let stage = ScenarioRunner::new(surface, make(script().into()));
        let text = stage.run_to_pause().await.into_paused().to_text();
        let before = text.clone();
        let mut ends = Vec::new();
        for _ in 0..2 {
            let mut paused = PausedRun::from_text(&text).expect("can be read");
            paused.approve(stage.call_path("a")).expect("it waits, each time");
            let again = stage.with_agent(make(vec![ScriptedResponse::text("bye")]));
            ends.push(again.resume_paused(paused).await.result());
        }
        let want = || finished_result("bye", &["call a gated {}", "output a done", "assistant: bye"]);
        assert_eq!(ends, [want(), want()], "{surface:?}");
        assert_eq!(log.take(), ["gated a", "gated a"], "{surface:?}");
        assert_eq!(text, before, "{surface:?}");
        // A decision in one copy does not affect the other.
        let untouched = PausedRun::from_text(&text).expect("can be read");
        assert_eq!(untouched.pending_calls().len(), 1, "{surface:?}");
    }
}

on_both_runtimes! {
    paused_clock:
        s26_two_identical_calls_in_one_turn_run_one_body,
        s26_where_the_first_fails_the_second_runs,
        s27_the_same_call_in_a_later_turn_and_after_a_pause_runs_no_body,
        s27_the_same_call_of_one_nested_agent_runs_no_body_and_that_of_another_does,
        s28_one_rule_says_everywhere_which_arguments_are_the_same,
        s29_a_body_that_changes_its_arguments_changes_nothing_else,
        s30_only_success_leaves_a_receipt,
        s30_a_rejected_or_held_call_leaves_no_receipt,
        s30_changed_arguments_leave_no_receipt_for_the_models,
        s36_the_idempotency_key_is_the_same_in_every_attempt,
        s36_the_idempotency_key_survives_the_process;
    real_clock:
        s37_a_saved_run_resumed_twice_is_two_runs;
}
