//! Nothing twice: S26 to S30, S36 and S37.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use windlass::core::{Digest, Misbehaviour};
use windlass::guardrail::{ToolOutputGuardrail, ToolVerdict};
use windlass::prelude::*;
use windlass::{Effect, Failure, How, MemoryStore, tool_fn};

use crate::support::*;

/// An idempotent tool whose body takes a while and counts its executions.
fn charge(bodies: &Arc<AtomicUsize>) -> Tool {
    let bodies = bodies.clone();
    let charge = tool("charge", move |_, _| {
        let number = bodies.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(format!("charge {number}"))
        }
    });
    charge.effect(Effect::Idempotent)
}

fn hows(of: &[(&str, How)]) -> Vec<(String, How)> {
    of.iter().map(|(call, how)| ((*call).to_owned(), how.clone())).collect()
}

#[tokio::test(start_paused = true)]
async fn s26_two_identical_calls_in_one_turn_run_one_body() {
    for surface in Surface::ALL {
        for limit in [1, 2, 10] {
            let bodies = Arc::default();
            let calls = Reply::call("a", "charge", json!({ "order": 7, "cents": 100 }))
                .and_raw_call("b", "charge", r#"{ "cents": 1e2, "order": 7 }"#)
                .and_call("c", "charge", json!({ "order": 8, "cents": 100 }));
            let agent = agent([calls, Reply::text("bye")]).tools(charge(&bodies));
            let act = Stage::new(surface, agent).configure(move |run| run.concurrency(limit)).play().await;
            assert_eq!(bodies.load(Ordering::SeqCst), 2, "{surface:?} {limit}");
            let mut ends = act.hows();
            ends.sort_by(|a, b| a.0.cmp(&b.0));
            let want = hows(&[("a", How::Succeeded), ("b", How::Receipt), ("c", How::Succeeded)]);
            assert_eq!(ends, want, "{surface:?} {limit}");
            let outputs = ["output a charge 1", "output b charge 1", "output c charge 2", "assistant: bye"];
            assert_eq!(act.played().said[3..], outputs, "{surface:?} {limit}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s26_where_the_first_fails_the_second_runs() {
    for surface in Surface::ALL {
        let bodies = Arc::new(AtomicUsize::new(0));
        let counted = bodies.clone();
        let flaky = tool("charge", move |_, _| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                if number == 0 { Err(ToolError::tell("busy")) } else { Ok("charged".to_owned()) }
            }
        });
        let calls = ["a", "b", "c"]
            .iter()
            .fold(Reply::items([]), |calls, call| calls.and_call(call, "charge", json!({})));
        let agent = agent([calls, Reply::text("bye")]).tools(flaky.effect(Effect::Idempotent));
        let act = Stage::new(surface, agent).play().await;
        // Which of the two that waited goes first is not said.
        let mut ends: Vec<How> = act.hows().into_iter().map(|(_, how)| how).collect();
        ends.sort_by_key(|how| format!("{how:?}"));
        assert_eq!(ends, [How::Failed, How::Receipt, How::Succeeded], "{surface:?}");
        assert_eq!(bodies.load(Ordering::SeqCst), 2, "{surface:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s27_the_same_call_in_a_later_turn_and_after_a_pause_runs_no_body() {
    for surface in Surface::ALL {
        let (bodies, log) = (Arc::default(), Log::default());
        let replies = [
            Reply::call("a", "charge", json!({ "order": 7 })),
            Reply::call("b", "charge", json!({ "order": 7 })).and_call("wait", "gated", json!({})),
            Reply::call("c", "charge", json!({ "order": 7 })),
            Reply::text("bye"),
        ];
        let agent = agent(replies).tools((charge(&bodies), effect("gated", &log).approve_always()));
        let stage = Stage::new(surface, agent);
        let mut paused = stage.play().await.paused();
        paused.approve(stage.path("wait")).expect("it waits");
        let act = stage.go_on(paused).await;
        let want =
            [("a", How::Succeeded), ("b", How::Receipt), ("wait", How::Succeeded), ("c", How::Receipt)];
        assert_eq!(act.hows(), hows(&want), "{surface:?}");
        assert_eq!(bodies.load(Ordering::SeqCst), 1, "{surface:?}");
        assert_eq!(act.played().end, Ended::Finished("bye".to_owned()), "{surface:?}");
    }
}

/// A twin that was running when its driver was lost runs again, with the same key, and once.
#[tokio::test(start_paused = true)]
async fn s27_the_same_call_after_a_crash_runs_one_more_body_at_most() {
    let (bodies, store) = (Arc::default(), Arc::new(MemoryStore::default()));
    let calls = Reply::call("a", "charge", json!({})).and_call("b", "charge", json!({}));
    let agent = agent([calls, Reply::text("bye")]).tools(charge(&bodies));
    let run = agent.run("go").run_id("run").store(store.clone());
    let lost = tokio::time::timeout(Duration::from_millis(2), async { run.await }).await;
    assert!(lost.is_err());
    let paused = Paused::from_records(stored(&*store, "run").await).expect("the journal adds up");
    let outcome = agent.resume(paused).await.expect("it finishes");
    let outputs: Vec<String> =
        outcome.record().items()[2..].iter().map(|item| windlass::model::item_line(&item.item)).collect();
    assert_eq!(outputs, ["output a charge 2", "output b charge 2", "assistant: bye"]);
    assert_eq!(bodies.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn s27_the_same_call_in_an_agent_inside_a_call_runs_no_body() {
    for surface in Surface::ALL {
        let bodies = Arc::default();
        let inner = Agent::new("inside")
            .model(ScriptedModel::new([Reply::call("a", "charge", json!({})), Reply::text("inside done")]))
            .tools(charge(&bodies));
        let replies = [
            // The agent inside and the agent itself make the same call at the same time.
            Reply::call("x", "inside", json!({ "input": "go" })).and_call("a", "charge", json!({})),
            Reply::call("b", "charge", json!({})),
            Reply::text("bye"),
        ];
        let agent = agent(replies).tools((inner.as_tool("inside", "An agent."), charge(&bodies)));
        let act = Stage::new(surface, agent).play().await;
        assert_eq!(act.played().end, Ended::Finished("bye".to_owned()), "{surface:?}");
        assert_eq!(bodies.load(Ordering::SeqCst), 1, "{surface:?}");
    }
}

/// A tool with a default.
fn spell(bodies: &Arc<AtomicUsize>) -> Tool {
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

/// What two spellings of the arguments are to receipts, to repeated call ids and to decisions.
async fn spelt(surface: Surface, one: &str, other: &str) -> [bool; 3] {
    let bodies = Arc::default();
    let calls = Reply::items([]).and_raw_call("a", "spell", one).and_raw_call("b", "spell", other);
    let twins = Stage::new(surface, agent([calls, Reply::text("bye")]).tools(spell(&bodies))).play().await;
    assert_eq!(twins.played().end, Ended::Finished("bye".to_owned()));
    let one_body = bodies.load(Ordering::SeqCst) == 1;

    let replies = [
        Reply::items([]).and_raw_call("a", "spell", one),
        Reply::items([]).and_raw_call("a", "spell", other),
        Reply::text("bye"),
    ];
    let again = Stage::new(surface, agent(replies).tools(spell(&bodies))).play().await;
    let one_call = match again.played().end {
        Ended::Finished(_) => true,
        Ended::Failed(Failure::Misbehaviour(Misbehaviour::ReusedCallId { .. })) => false,
        other => panic!("{other:?}"),
    };

    let calls = Reply::items([]).and_raw_call("a", "spell", one).and_raw_call("b", "spell", other);
    let gated = Stage::new(surface, agent([calls]).tools(spell(&bodies).approve_always())).play().await;
    let digests: Vec<Digest> = gated.paused().pending().iter().map(|pending| pending.digest).collect();
    [one_body, one_call, digests[0] == digests[1]]
}

#[tokio::test(start_paused = true)]
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
        // What is written out is part of the call, be it the default.
        (r#"{"x":1}"#, r#"{"x":1,"days":3}"#),
        (r#"{"days":3}"#, r#"{"days":3,"x":null}"#),
    ];
    for surface in Surface::ALL {
        for (one, other) in same {
            assert_eq!(spelt(surface, one, other).await, [true; 3], "{surface:?}: {one} and {other}");
        }
        for (one, other) in different {
            assert_eq!(spelt(surface, one, other).await, [false; 3], "{surface:?}: {one} and {other}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s29_a_body_that_changes_its_arguments_changes_nothing_else() {
    for surface in Surface::ALL {
        let seen = Log::default();
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
            Reply::call("a", "sorts", json!({ "list": [3, 1] })),
            Reply::call("b", "sorts", json!({ "list": [3, 1] })),
            Reply::text("bye"),
        ];
        let act = Stage::new(surface, agent(replies).tools(sorts)).play().await;
        let said = [
            r#"call a sorts {"list":[3,1]}"#,
            "output a [1, 3, 9]",
            r#"call b sorts {"list":[3,1]}"#,
            "output b [1, 3, 9]",
            "assistant: bye",
        ];
        assert_eq!(act.played(), finished("bye", &said), "{surface:?}");
        assert_eq!(seen.take(), [r#"{"list":[3,1]}"#], "{surface:?}");
    }
}

/// An identical call in a second turn, after a first that did not succeed.
async fn second(surface: Surface, charge: Tool, arguments: &str) -> Vec<(String, How)> {
    let replies = [
        Reply::items([]).and_raw_call("a", "charge", arguments),
        Reply::items([]).and_raw_call("b", "charge", arguments),
        Reply::text("bye"),
    ];
    let act = Stage::new(surface, agent(replies).tools(charge.effect(Effect::Idempotent))).play().await;
    assert_eq!(act.played().end, Ended::Finished("bye".to_owned()), "{surface:?}");
    act.hows()
}

#[tokio::test(start_paused = true)]
async fn s30_only_success_leaves_a_receipt() {
    for surface in Surface::ALL {
        let fails = tool("charge", |_, _| async { Err(ToolError::tell("no")) });
        let want = hows(&[("a", How::Failed), ("b", How::Failed)]);
        assert_eq!(second(surface, fails, "{}").await, want, "{surface:?}");

        let panics = tool("charge", |_, _| async { panic!("a test panics here") });
        assert_eq!(second(surface, panics, "{}").await, want, "{surface:?}");

        let late = tool("charge", |_, _| std::future::pending()).timeout(Duration::from_millis(1));
        let want = hows(&[("a", How::TimedOut), ("b", How::TimedOut)]);
        assert_eq!(second(surface, late, "{}").await, want, "{surface:?}");

        let guard = ToolOutputGuardrail::new("no", |_, _| async { Ok(ToolVerdict::Reject("no".to_owned())) });
        let guarded = tool("charge", |_, _| async { Ok("secret".to_owned()) }).output_guardrail(guard);
        let want = hows(&[("a", How::Guarded), ("b", How::Guarded)]);
        assert_eq!(second(surface, guarded, "{}").await, want, "{surface:?}");

        let unread = tool("charge", |_, _| async { Ok("done".to_owned()) });
        let want = hows(&[("a", How::Invalid), ("b", How::Invalid)]);
        assert_eq!(second(surface, unread, "[]").await, want, "{surface:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s30_a_rejected_or_held_call_leaves_no_receipt() {
    for surface in Surface::ALL {
        let bodies = Arc::default();
        let both = Reply::call("a", "charge", json!({})).and_call("b", "charge", json!({}));
        let replies = [both, Reply::call("c", "charge", json!({})), Reply::text("bye")];
        let stage = Stage::new(surface, agent(replies).tools(charge(&bodies).approve_always()));
        let act = stage.play().await;
        assert_eq!(act.played().end, Ended::Paused(lines(&["a", "b"])), "{surface:?}");
        let mut paused = act.paused();
        paused.reject(stage.path("a")).expect("it waits");
        let act = stage.go_on(paused).await;
        assert_eq!(act.played().end, Ended::Paused(lines(&["b"])), "{surface:?}");
        let mut paused = act.paused();
        paused.reject(stage.path("b")).expect("it waits");
        let act = stage.go_on(paused).await;
        assert_eq!(act.played().end, Ended::Paused(lines(&["c"])), "{surface:?}");
        assert_eq!(act.hows(), hows(&[("a", How::Rejected), ("b", How::Rejected)]), "{surface:?}");
        assert_eq!(bodies.load(Ordering::SeqCst), 0, "{surface:?}");
    }
}

/// The result of arguments that a person changed is no answer to a call with those of the model.
#[tokio::test(start_paused = true)]
async fn s30_changed_arguments_leave_no_receipt_for_the_models() {
    for surface in Surface::ALL {
        let bodies = Arc::default();
        let replies = [
            Reply::call("a", "charge", json!({ "cents": 900 })),
            Reply::call("b", "charge", json!({ "cents": 900 })),
            Reply::text("bye"),
        ];
        let stage = Stage::new(surface, agent(replies).tools(charge(&bodies).approve_always()));
        let mut paused = stage.play().await.paused();
        paused.approve_edited(stage.path("a"), r#"{"cents":1}"#).expect("it waits");
        let act = stage.go_on(paused).await;
        assert_eq!(act.played().end, Ended::Paused(lines(&["b"])), "{surface:?}");
        assert_eq!(act.hows(), hows(&[("a", How::Succeeded)]), "{surface:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s36_the_idempotency_key_is_the_same_in_every_attempt() {
    for surface in Surface::ALL {
        for effect in [Effect::Once, Effect::Idempotent, Effect::Pure] {
            let keys = Log::default();
            let noted = keys.clone();
            let flaky = tool("charge", move |ctx, _| {
                noted.push(ctx.idempotency_key());
                let is_last = noted.lines().len() % 3 == 0;
                async move { if is_last { Ok("done".to_owned()) } else { Err(ToolError::tell("busy")) } }
            });
            let flaky = flaky.effect(effect).retry(3, Duration::from_millis(10));
            let replies = [
                Reply::call("a", "charge", json!({ "order": 7 })),
                Reply::call("b", "charge", json!({ "order": 8 })),
                Reply::text("bye"),
            ];
            let act = Stage::new(surface, agent(replies).tools(flaky)).play().await;
            assert_eq!(act.started(), ["a", "a", "a", "b", "b", "b"], "{surface:?} {effect:?}");
            let keys = keys.take();
            assert_eq!((&keys[0], &keys[3]), (&keys[1], &keys[4]), "{surface:?} {effect:?}");
            assert_eq!((&keys[1], &keys[4]), (&keys[2], &keys[5]), "{surface:?} {effect:?}");
            assert_ne!(keys[0], keys[3], "{surface:?} {effect:?}");
            assert!(keys[0].len() == 35 && keys[0].starts_with("wl-"), "{}", keys[0]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s36_the_idempotency_key_survives_the_process() {
    for surface in [Surface::Blocking, Surface::Nested] {
        for effect in [Effect::Once, Effect::Idempotent, Effect::Pure] {
            let (keys, store) = (Log::default(), Arc::new(MemoryStore::default()));
            let noted = keys.clone();
            let charge = tool("charge", move |ctx, _| {
                noted.push(ctx.idempotency_key());
                let is_lost = noted.lines().len() == 1;
                async move { if is_lost { std::future::pending().await } else { Ok("done".to_owned()) } }
            });
            let replies = [Reply::call("a", "charge", json!({})), Reply::text("bye")];
            let stage = Stage::new(surface, agent(replies).tools(charge.effect(effect)));
            let run = stage.run().run_id("run").store(store.clone());
            assert!(tokio::time::timeout(Duration::from_millis(5), async { run.await }).await.is_err());
            let mut paused = Paused::from_records(stored(&*store, "run").await).expect("the journal adds up");
            if effect == Effect::Once {
                paused = stage.go_on(paused).await.paused();
                paused.it_did_not_happen(stage.path("a")).expect("it is in doubt");
            }
            let act = stage.go_on(paused).await;
            assert_eq!(act.played().end, Ended::Finished("bye".to_owned()), "{surface:?} {effect:?}");
            let keys = keys.take();
            assert_eq!(keys, [keys[0].clone(), keys[0].clone()], "{surface:?} {effect:?}");
        }
    }
}

#[tokio::test]
async fn s37_a_saved_run_resumed_twice_is_two_runs() {
    for surface in Surface::ALL {
        let log = Log::default();
        let script = || [Reply::call("a", "gated", json!({})), Reply::text("bye")];
        let make = |replies: Vec<Reply>| agent(replies).tools(effect("gated", &log).approve_always());
        let stage = Stage::new(surface, make(script().into()));
        let text = stage.play().await.paused().to_text();
        let before = text.clone();
        let mut ends = Vec::new();
        for _ in 0..2 {
            let mut paused = Paused::from_text(&text).expect("can be read");
            paused.approve(stage.path("a")).expect("it waits, each time");
            let again = stage.recast(make(vec![Reply::text("bye")]));
            ends.push(again.go_on(paused).await.played());
        }
        let want = || finished("bye", &["call a gated {}", "output a done", "assistant: bye"]);
        assert_eq!(ends, [want(), want()], "{surface:?}");
        assert_eq!(log.take(), ["gated a", "gated a"], "{surface:?}");
        assert_eq!(text, before, "{surface:?}");
        // What one of them decided, the other does not know of.
        let untouched = Paused::from_text(&text).expect("can be read");
        assert_eq!(untouched.pending().len(), 1, "{surface:?}");
    }
}
