//! Rows of dispatch and of failures, in live sessions: the calls of an answer, and what becomes of each.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde_json::Value;
use windlass::guardrail::{ToolInputGuardrail, ToolOutputGuardrail, ToolVerdict};
use windlass::hook::{Hook, Moment};
use windlass::prelude::*;
use windlass::{Effect, Failure, How, IntoTools, OnFailure};
use windlass_realtime::testing::Reply;
use windlass_realtime::{CloseReason, LiveEvent, Realtime};

use crate::support::*;

fn nothing() -> Value {
    json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false })
}

/// A tool that waits as long as it is told, and writes down when it begins and ends.
fn wait(name: &'static str, log: &Log) -> Tool {
    let log = log.clone();
    let schema = json!({
        "type": "object",
        "properties": { "ms": { "type": "integer" }, "key": { "type": "string" } },
        "required": ["ms", "key"],
        "additionalProperties": false,
    });
    Tool::dynamic(name, "Waits.", schema, move |ctx: ToolContext, arguments: Value| {
        let log = log.clone();
        async move {
            log.push(format!("start {}", ctx.call_id()));
            tokio::time::sleep(Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0))).await;
            log.push(format!("end {}", ctx.call_id()));
            Ok::<_, ToolError>(format!("{} done", ctx.call_id()))
        }
    })
}

fn ms(ms: u64, key: &str) -> String {
    json!({ "ms": ms, "key": key }).to_string()
}

fn middle(fails: Tool, log: &Log) -> (impl IntoTools<()>, Reply) {
    let reply =
        Reply::call("a", "wait", ms(5, "")).and_call("b", "fails", "{}").and_call("c", "wait", ms(5, ""));
    ((wait("wait", log), fails), reply)
}

fn settled(seen: &[LiveEvent]) -> Vec<(String, How)> {
    let settled = |event: &LiveEvent| match event {
        LiveEvent::CallSettled { call, how, .. } => Some((call.to_string(), how.clone())),
        _ => None,
    };
    seen.iter().filter_map(settled).collect()
}

#[tokio::test(start_paused = true)]
async fn s01_calls_overlap_and_outputs_are_in_the_models_order() {
    let log = Log::default();
    let reply = Reply::call("a", "wait", ms(300, "")).and_call("b", "wait", ms(50, "")).and_call(
        "c",
        "wait",
        ms(100, ""),
    );
    let played = Played::new(wait("wait", &log), reply, |realtime| realtime).await;
    assert_eq!(log.take(), ["start a", "start b", "start c", "end b", "end c", "end a"]);
    assert_eq!(played.told(), ["a: a done", "b: b done", "c: c done"]);
    let order: Vec<String> = settled(&played.seen).into_iter().map(|(call, _)| call).collect();
    assert_eq!(order, ["b", "c", "a"]);
}

#[tokio::test(start_paused = true)]
async fn s02_never_more_bodies_at_once_than_the_limit() {
    let (now, most): (Arc<AtomicU32>, Arc<AtomicU32>) = (Arc::default(), Arc::default());
    let (inside, highest) = (now.clone(), most.clone());
    let busy = Tool::dynamic("busy", "Is busy.", nothing(), move |_, _| {
        let (inside, highest) = (inside.clone(), highest.clone());
        async move {
            highest.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ToolError>("done")
        }
    });
    let reply =
        (0..9).fold(Reply::default(), |reply, call| reply.and_call(&format!("c{call}"), "busy", "{}"));
    let played = Played::new(busy, reply, |realtime| realtime.concurrency(3)).await;
    assert_eq!((most.load(Ordering::SeqCst), played.told().len()), (3, 9));
}

#[tokio::test(start_paused = true)]
async fn s03_one_after_another_where_that_is_wanted() {
    let log = Log::default();
    let reply = Reply::call("a", "wait", ms(30, "")).and_call("b", "wait", ms(5, ""));
    Played::new(wait("wait", &log), reply, |realtime| realtime.concurrency(1)).await;
    assert_eq!(log.take(), ["start a", "end a", "start b", "end b"]);
}

#[tokio::test(start_paused = true)]
async fn s04_every_call_that_started_ends_once_however_it_ends() {
    let log = Log::default();
    let fails = Tool::dynamic("fails", "Fails.", nothing(), |_, _| async {
        Err::<String, _>(ToolError::tell("no luck"))
    });
    let late = wait("late", &log).timeout(Duration::from_millis(10)).effect(Effect::Pure);
    let twin = wait("twin", &log).effect(Effect::Idempotent);
    let reply = Reply::call("a", "wait", ms(5, ""))
        .and_call("b", "fails", "{}")
        .and_call("c", "late", ms(5000, ""))
        .and_call("d", "twin", ms(5, ""))
        .and_call("e", "twin", ms(5, ""));
    let played = Played::new((wait("wait", &log), fails, late, twin), reply, |realtime| realtime).await;
    let mut ends = settled(&played.seen);
    ends.sort_by(|one, other| one.0.cmp(&other.0));
    let hows = [How::Succeeded, How::Failed, How::TimedOut, How::Succeeded, How::Receipt];
    let expected: Vec<_> = ["a", "b", "c", "d", "e"].map(str::to_owned).into_iter().zip(hows).collect();
    assert_eq!(ends, expected);
}

/// Blocking bodies have threads of their own: the conversation goes on, and the body goes on only when it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s05_a_blocking_body_holds_nobody_up() {
    let (let_go, held) = mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let blocks = Tool::dynamic_blocking("blocks", "Blocks.", nothing(), move |_, _| {
        let held = held.lock().map_err(|_| ToolError::tell("poisoned"))?;
        held.recv_timeout(Duration::from_secs(60)).map_err(|_| ToolError::tell("nobody let go"))?;
        Ok::<_, ToolError>("free")
    });
    let server = server([Reply::call("a", "blocks", "{}"), Reply::say("Here.")]);
    let (session, mut events) = connected(Agent::new("desk").tools(blocks), &server).await;
    session.say("Go").await.expect("is there");
    until(&mut events, |event| matches!(event, LiveEvent::CallStarted { .. })).await;
    session.say("Are you there?").await.expect("is there");
    let seen = turn(&mut events).await;
    assert!(count(&seen, "Audio") > 0);
    assert_eq!(output_of(&server, "a"), Vec::<String>::new());
    let_go.send(()).expect("it waits");
    until(&mut events, |event| matches!(event, LiveEvent::CallSettled { .. })).await;
    turn(&mut events).await;
    assert_eq!(output_of(&server, "a"), ["free"]);
    session.close().await;
}

#[tokio::test(start_paused = true)]
async fn s06_calls_of_one_key_keep_their_order() {
    let log = Log::default();
    let key = |arguments: &Value| arguments["key"].to_string();
    let reply = Reply::call("write", "wait", ms(50, "A")).and_call("read", "wait", ms(5, "A")).and_call(
        "other",
        "wait",
        ms(5, "B"),
    );
    Played::new(wait("wait", &log).conflict(key), reply, |realtime| realtime).await;
    let log = log.take();
    let at = |what: &str| log.iter().position(|known| known == what);
    assert!(at("start read") > at("end write"), "{log:?}");
    assert!(at("end other") < at("end write"), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn s07_a_tool_that_is_not_there_is_answered_with_those_that_are() {
    let log = Log::default();
    let off = wait("off", &log).enabled(false);
    let reply = Reply::call("a", "wait", ms(1, "")).and_call("b", "gone", "{}").and_call("c", "off", "{}");
    let played = Played::new((wait("wait", &log), off), reply, |realtime| realtime).await;
    let told = played.told();
    assert_eq!((told.len(), told[0].as_str()), (3, "a: a done"), "{told:?}");
    for told in &told[1..] {
        assert!(told.contains("not found") && told.contains("wait"), "{told}");
    }
}

#[tokio::test(start_paused = true)]
async fn s08_arguments_that_do_not_fit_are_named_by_their_path_and_not_seen() {
    let log = Log::default();
    let deep = format!("{{\"ms\":{}1{},\"key\":\"\"}}", "[".repeat(10_000), "]".repeat(10_000));
    let long = format!("{{\"ms\":1,\"key\":\"\",\"extra\":\"{}\"}}", "x".repeat(2 * 1024 * 1024));
    let bad = ["not json", "{\"ms\":\"soon\",\"key\":7}", "{}", "null", "[]", &deep, &long];
    let mut reply = Reply::default();
    for (place, arguments) in bad.iter().enumerate() {
        reply = reply.and_call(&format!("c{place}"), "wait", *arguments);
    }
    let played = Played::new(wait("wait", &log), reply, |realtime| realtime).await;
    let told = played.told();
    assert_eq!((told.len(), log.take().len()), (bad.len(), 0), "{told:?}");
    assert!(told[1].contains("ms") && told[1].contains("key"), "{}", told[1]);
    assert!(told[2].contains("ms") && told[2].contains("key"), "{}", told[2]);
    assert!(told.iter().all(|told| told.len() < 16 * 1024));
}

#[tokio::test(start_paused = true)]
async fn s09_the_same_id_twice_in_one_answer_is_one_call() {
    let runs = Arc::default();
    let reply = Reply::call("a", "look", "{}").and_call("a", "look", "{}");
    let played = Played::new(counted("look", &runs), reply, |realtime| realtime).await;
    assert_eq!((ran(&runs), played.told()), (1, vec!["a: run 1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn s10_an_answer_with_many_calls_is_answered_whole() {
    let runs = Arc::default();
    let calls = (0..150).map(|call| format!("c{call}"));
    let reply = calls.fold(Reply::default(), |reply, call| reply.and_call(&call, "look", "{}"));
    let played = Played::new(counted("look", &runs), reply, |realtime| realtime.concurrency(16)).await;
    let told = played.told();
    assert_eq!((ran(&runs), told.len()), (150, 150));
    assert!(told.iter().enumerate().all(|(place, told)| told.starts_with(&format!("c{place}: "))));
}

#[tokio::test(start_paused = true)]
async fn s11_s12_s13_one_that_fails_panics_or_cancels_itself_is_that_calls_failure() {
    let fails = Tool::dynamic("fails", "Fails.", nothing(), |_, _| async {
        Err::<String, _>(ToolError::tell("no luck"))
    });
    let panics = Tool::dynamic("fails", "Panics.", nothing(), |_, _| async {
        if true {
            panic!("oh no");
        }
        Ok::<_, ToolError>(String::new())
    });
    let cancels = Tool::dynamic("fails", "Cancels itself.", nothing(), |_, _| async {
        let task = tokio::spawn(std::future::pending::<String>());
        task.abort();
        Ok::<_, ToolError>(task.await?)
    });
    for tool in [fails, panics, cancels] {
        let log = Log::default();
        let (tools, reply) = middle(tool, &log);
        let played = Played::new(tools, reply, |realtime| realtime).await;
        let told = played.told();
        assert_eq!((told[0].as_str(), told[2].as_str()), ("a: a done", "c: c done"));
        assert!(settled(&played.seen).contains(&("b".to_owned(), How::Failed)), "{told:?}");
        assert!(!played.session.is_closed());
    }
}

/// A blocking body that outlives its deadline cannot be stopped: the model is told that it may still take effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s14_s15_a_deadline_holds_for_a_body_that_cannot_be_stopped() {
    let (let_go, held) = mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let stuck = Tool::dynamic_blocking("stuck", "Is stuck.", nothing(), move |_, _| {
        let held = held.lock().map_err(|_| ToolError::tell("poisoned"))?;
        let _ = held.recv_timeout(Duration::from_secs(60));
        Ok::<_, ToolError>("late")
    })
    .timeout(Duration::from_millis(250));
    let realtime = |realtime: Realtime| realtime.drain(Duration::from_millis(5));
    let played = Played::new(stuck, Reply::call("a", "stuck", "{}"), realtime).await;
    assert!(played.told()[0].contains("may still take effect"), "{:?}", played.told());
    assert_eq!(settled(&played.seen), [("a".to_owned(), How::LeftRunning)]);
    played.session.close().await;
    let_go.send(()).expect("it waits still");
}

#[tokio::test(start_paused = true)]
async fn s16_s17_hooks_and_tool_guardrails_that_fail_fail_closed_before_and_change_nothing_after() {
    let before = Hook::new(|moment: Moment| async move {
        match moment {
            Moment::CallStarted { ctx } if ctx.call_id() == "b" => Err("no".into()),
            _ => Ok(()),
        }
    });
    let after = Hook::new(|moment: Moment| async move {
        match moment {
            Moment::CallEnded { .. } => Err("no".into()),
            _ => Ok(()),
        }
    });
    for (hook, ran_b) in [(before, 0), (after, 1)] {
        let (log, runs) = (Log::default(), Arc::default());
        let (tools, reply) = middle(counted("fails", &runs), &log);
        let played = Played::new(tools, reply, |realtime| realtime.hook(hook)).await;
        assert_eq!((ran(&runs), played.told().len()), (ran_b, 3));
        assert_eq!(played.told()[2], "c: c done");
    }
    let down = || ToolInputGuardrail::new("down", |_| async { Err::<ToolVerdict, _>("it is down".into()) });
    let runs = Arc::default();
    let guarded = counted("look", &runs).input_guardrail(down());
    let played = Played::new(guarded, Reply::call("a", "look", "{}"), |realtime| realtime).await;
    assert_eq!(ran(&runs), 0, "{:?}", played.told());
    let blind =
        ToolOutputGuardrail::new("blind", |_, _| async { Err::<ToolVerdict, _>("it is down".into()) });
    let watched = counted("look", &runs).output_guardrail(blind);
    let server = server([Reply::call("a", "look", "{}")]);
    let (session, mut events) = connected(Agent::new("desk").tools(watched), &server).await;
    session.say("Go").await.expect("is there");
    until(&mut events, |event| {
        matches!(event, LiveEvent::CallSettled { .. } | LiveEvent::Closed(_) | LiveEvent::Error(_))
    })
    .await;
    assert!(
        output_of(&server, "a").iter().all(|told| !told.contains("run 1")),
        "what nobody checked is told"
    );
}

#[tokio::test(start_paused = true)]
async fn s18_of_several_failures_that_end_the_session_the_first_in_order_is_reported() {
    let fatal = |name: &'static str, takes: u64| {
        Tool::dynamic(name, "Fails.", nothing(), move |_, _| async move {
            tokio::time::sleep(Duration::from_millis(takes)).await;
            Err::<String, _>(ToolError::tell(format!("{name} failed")))
        })
        .on_failure(OnFailure::Fail)
    };
    let server = server([Reply::call("a", "one", "{}").and_call("b", "two", "{}")]);
    let agent = Agent::new("desk").tools((fatal("one", 5), fatal("two", 5)));
    let (session, _events) = connected(agent, &server).await;
    session.say("Go").await.expect("is there");
    let report = session.closed().await;
    let CloseReason::CallFailed(Failure::Tool { tool, .. }) = &report.reason else { panic!("{report:?}") };
    assert_eq!(tool, "one");
}

#[tokio::test(start_paused = true)]
async fn s19_s56_long_texts_are_cut_wherever_they_go() {
    let long = || "é".repeat(1024 * 1024);
    let fails = Tool::dynamic("fails", "Fails.", nothing(), move |_, _| async move {
        Err::<String, _>(ToolError::tell(long()))
    });
    let says =
        Tool::dynamic("says", "Says much.", nothing(), move |_, _| async move { Ok::<_, ToolError>(long()) })
            .output_budget(1000);
    let reply = Reply::call("a", "fails", "{}").and_call("b", "says", "{}");
    let played = Played::new((fails, says), reply, |realtime| realtime).await;
    assert!(played.told().iter().all(|told| told.len() < 16 * 1024));
    assert!(played.told()[1].contains("cut: "), "{}", played.told()[1]);
    let longest = played.seen.iter().map(|event| format!("{event:?}").len()).max().unwrap_or_default();
    assert!(longest < 64 * 1024, "an event of {longest} bytes");
}
