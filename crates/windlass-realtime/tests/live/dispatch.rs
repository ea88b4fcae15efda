//! Dispatch and failure scenarios in realtime sessions: the calls of a response and the status of each.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde_json::Value;
use windlass::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail, ToolOutputGuardrail};
use windlass::hook::{Hook, HookEvent};
use windlass::prelude::*;
use windlass::{
    core::failure::RunFailure,
    core::journal::CallStatus,
    core::tool::ToolEffect,
    tool::{IntoTools, OnFailure},
};
use windlass_realtime::testing::LoopbackReply;
use windlass_realtime::{CloseReason, RealtimeEvent, RealtimeSessionBuilder};

use crate::support::*;

fn empty_schema() -> Value {
    json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false })
}

/// Creates a tool that waits for the requested time and logs its start and end.
fn waiting_tool(name: &'static str, log: &EventLog) -> Tool {
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

fn wait_arguments(ms: u64, key: &str) -> String {
    json!({ "ms": ms, "key": key }).to_string()
}

fn failing_middle_call(fails: Tool, log: &EventLog) -> (impl IntoTools<()>, LoopbackReply) {
    let reply = LoopbackReply::call("a", "wait", wait_arguments(5, ""))
        .and_call("b", "fails", "{}")
        .and_call("c", "wait", wait_arguments(5, ""));
    ((waiting_tool("wait", log), fails), reply)
}

fn settled_calls(seen: &[RealtimeEvent]) -> Vec<(String, CallStatus)> {
    let settled = |event: &RealtimeEvent| match event {
        RealtimeEvent::CallSettled { call, status: how, .. } => Some((call.to_string(), how.clone())),
        _ => None,
    };
    seen.iter().filter_map(settled).collect()
}

#[tokio::test(start_paused = true)]
async fn s01_calls_overlap_and_a_fast_output_is_not_held_up_by_a_slow_sibling() {
    let log = EventLog::default();
    let reply = LoopbackReply::call("a", "wait", wait_arguments(300, ""))
        .and_call("b", "wait", wait_arguments(50, ""))
        .and_call("c", "wait", wait_arguments(100, ""));
    let played = PlayedCalls::new(waiting_tool("wait", &log), reply, |realtime| realtime).await;
    assert_eq!(log.take_events(), ["start a", "start b", "start c", "end b", "end c", "end a"]);
    // Outputs that settle within a short time are sent together, in the model's order; others as they come.
    assert_eq!(played.outputs_sent(), ["b: b done", "c: c done", "a: a done"]);
    let order: Vec<String> = settled_calls(&played.events).into_iter().map(|(call, _)| call).collect();
    assert_eq!(order, ["b", "c", "a"]);
}

#[tokio::test(start_paused = true)]
async fn s02_never_more_bodies_at_once_than_the_limit() {
    let (now, most): (Arc<AtomicU32>, Arc<AtomicU32>) = (Arc::default(), Arc::default());
    let (inside, highest) = (now.clone(), most.clone());
    let busy = Tool::dynamic("busy", "Is busy.", empty_schema(), move |_, _| {
        let (inside, highest) = (inside.clone(), highest.clone());
        async move {
            highest.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ToolError>("done")
        }
    });
    let reply = (0..9)
        .fold(LoopbackReply::default(), |reply, call| reply.and_call(&format!("c{call}"), "busy", "{}"));
    let played = PlayedCalls::new(busy, reply, |realtime| realtime.max_concurrent_calls(3)).await;
    assert_eq!((most.load(Ordering::SeqCst), played.outputs_sent().len()), (3, 9));
}

#[tokio::test(start_paused = true)]
async fn s03_one_after_another_where_that_is_wanted() {
    let log = EventLog::default();
    let reply =
        LoopbackReply::call("a", "wait", wait_arguments(30, "")).and_call("b", "wait", wait_arguments(5, ""));
    PlayedCalls::new(waiting_tool("wait", &log), reply, |realtime| realtime.max_concurrent_calls(1)).await;
    assert_eq!(log.take_events(), ["start a", "end a", "start b", "end b"]);
}

#[tokio::test(start_paused = true)]
async fn s04_every_call_that_started_ends_once_however_it_ends() {
    let log = EventLog::default();
    let fails = Tool::dynamic("fails", "Fails.", empty_schema(), |_, _| async {
        Err::<String, _>(ToolError::visible("no luck"))
    });
    let late = waiting_tool("late", &log).timeout(Duration::from_millis(10)).effect(ToolEffect::Pure);
    let twin = waiting_tool("twin", &log).effect(ToolEffect::Idempotent);
    let reply = LoopbackReply::call("a", "wait", wait_arguments(5, ""))
        .and_call("b", "fails", "{}")
        .and_call("c", "late", wait_arguments(5000, ""))
        .and_call("d", "twin", wait_arguments(5, ""))
        .and_call("e", "twin", wait_arguments(5, ""));
    let played =
        PlayedCalls::new((waiting_tool("wait", &log), fails, late, twin), reply, |realtime| realtime).await;
    let mut ends = settled_calls(&played.events);
    ends.sort_by(|one, other| one.0.cmp(&other.0));
    let hows = [
        CallStatus::Succeeded,
        CallStatus::Failed,
        CallStatus::TimedOut,
        CallStatus::Succeeded,
        CallStatus::Deduplicated,
    ];
    let expected: Vec<_> = ["a", "b", "c", "d", "e"].map(str::to_owned).into_iter().zip(hows).collect();
    assert_eq!(ends, expected);
}

/// Blocking bodies run on their own threads: the conversation goes on, and the body continues only when it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s05_a_blocking_body_holds_nobody_up() {
    let (let_go, held) = mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let blocks = Tool::dynamic_blocking("blocks", "Blocks.", empty_schema(), move |_, _| {
        let held = held.lock().map_err(|_| ToolError::visible("poisoned"))?;
        held.recv_timeout(Duration::from_secs(60)).map_err(|_| ToolError::visible("nobody let go"))?;
        Ok::<_, ToolError>("free")
    });
    let server = loopback_server([LoopbackReply::call("a", "blocks", "{}"), LoopbackReply::message("Here.")]);
    let (session, mut events) = connect_agent(Agent::new("desk").tools(blocks), &server).await;
    session.send_text("Go").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallStarted { .. })).await;
    session.send_text("Are you there?").await.expect("is there");
    let seen = turn_events(&mut events).await;
    assert!(count_events(&seen, "Audio") > 0);
    assert_eq!(sent_outputs(&server, "a"), Vec::<String>::new());
    let_go.send(()).expect("it waits");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallSettled { .. })).await;
    turn_events(&mut events).await;
    assert_eq!(sent_outputs(&server, "a"), ["free"]);
    session.close().await;
}

#[tokio::test(start_paused = true)]
async fn s06_calls_of_one_key_keep_their_order() {
    let log = EventLog::default();
    let key = |arguments: &Value| arguments["key"].to_string();
    let reply = LoopbackReply::call("write", "wait", wait_arguments(50, "A"))
        .and_call("read", "wait", wait_arguments(5, "A"))
        .and_call("other", "wait", wait_arguments(5, "B"));
    PlayedCalls::new(waiting_tool("wait", &log).conflict_key(key), reply, |realtime| realtime).await;
    let log = log.take_events();
    let at = |what: &str| log.iter().position(|known| known == what);
    assert!(at("start read") > at("end write"), "{log:?}");
    assert!(at("end other") < at("end write"), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn s07_a_tool_that_is_not_there_is_answered_with_those_that_are() {
    let log = EventLog::default();
    let off = waiting_tool("off", &log).enabled(false);
    let reply = LoopbackReply::call("a", "wait", wait_arguments(1, ""))
        .and_call("b", "gone", "{}")
        .and_call("c", "off", "{}");
    let played = PlayedCalls::new((waiting_tool("wait", &log), off), reply, |realtime| realtime).await;
    let told = played.outputs_sent();
    assert_eq!((told.len(), told[0].as_str()), (3, "a: a done"), "{told:?}");
    for told in &told[1..] {
        assert!(told.contains("not found") && told.contains("wait"), "{told}");
    }
}

#[tokio::test(start_paused = true)]
async fn s08_arguments_that_do_not_fit_are_named_by_their_path_and_not_seen() {
    let log = EventLog::default();
    let deep = format!("{{\"ms\":{}1{},\"key\":\"\"}}", "[".repeat(10_000), "]".repeat(10_000));
    let long = format!("{{\"ms\":1,\"key\":\"\",\"extra\":\"{}\"}}", "x".repeat(2 * 1024 * 1024));
    let bad = ["not json", "{\"ms\":\"soon\",\"key\":7}", "{}", "null", "[]", &deep, &long];
    let mut reply = LoopbackReply::default();
    for (place, arguments) in bad.iter().enumerate() {
        reply = reply.and_call(&format!("c{place}"), "wait", *arguments);
    }
    let played = PlayedCalls::new(waiting_tool("wait", &log), reply, |realtime| realtime).await;
    let told = played.outputs_sent();
    assert_eq!((told.len(), log.take_events().len()), (bad.len(), 0), "{told:?}");
    assert!(told[1].contains("ms") && told[1].contains("key"), "{}", told[1]);
    assert!(told[2].contains("ms") && told[2].contains("key"), "{}", told[2]);
    assert!(told.iter().all(|told| told.len() < 16 * 1024));
}

#[tokio::test(start_paused = true)]
async fn s09_the_same_id_twice_in_one_answer_is_one_call() {
    let runs = Arc::default();
    let reply = LoopbackReply::call("a", "look", "{}").and_call("a", "look", "{}");
    let played = PlayedCalls::new(counting_tool("look", &runs), reply, |realtime| realtime).await;
    assert_eq!((run_count(&runs), played.outputs_sent()), (1, vec!["a: run 1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn s10_an_answer_with_many_calls_is_answered_whole() {
    let runs = Arc::default();
    let calls = (0..150).map(|call| format!("c{call}"));
    let reply = calls.fold(LoopbackReply::default(), |reply, call| reply.and_call(&call, "look", "{}"));
    let played =
        PlayedCalls::new(counting_tool("look", &runs), reply, |realtime| realtime.max_concurrent_calls(16))
            .await;
    let told = played.outputs_sent();
    assert_eq!((run_count(&runs), told.len()), (150, 150));
    assert!(told.iter().enumerate().all(|(place, told)| told.starts_with(&format!("c{place}: "))));
}

#[tokio::test(start_paused = true)]
async fn s11_s12_s13_one_that_fails_panics_or_cancels_itself_is_that_calls_failure() {
    let fails = Tool::dynamic("fails", "Fails.", empty_schema(), |_, _| async {
        Err::<String, _>(ToolError::visible("no luck"))
    });
    let panics = Tool::dynamic("fails", "Panics.", empty_schema(), |_, _| async {
        if true {
            panic!("oh no");
        }
        Ok::<_, ToolError>(String::new())
    });
    let cancels = Tool::dynamic("fails", "Cancels itself.", empty_schema(), |_, _| async {
        let task = tokio::spawn(std::future::pending::<String>());
        task.abort();
        Ok::<_, ToolError>(task.await?)
    });
    for tool in [fails, panics, cancels] {
        let log = EventLog::default();
        let (tools, reply) = failing_middle_call(tool, &log);
        let played = PlayedCalls::new(tools, reply, |realtime| realtime).await;
        let told = played.outputs_sent();
        assert_eq!((told[0].as_str(), told[2].as_str()), ("a: a done", "c: c done"));
        assert!(settled_calls(&played.events).contains(&("b".to_owned(), CallStatus::Failed)), "{told:?}");
        assert!(!played.session.is_closed());
    }
}

/// A blocking body that exceeds its deadline cannot be cancelled; the output says that it may still take
/// effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s14_s15_a_deadline_holds_for_a_body_that_cannot_be_stopped() {
    let (let_go, held) = mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let stuck = Tool::dynamic_blocking("stuck", "Is stuck.", empty_schema(), move |_, _| {
        let held = held.lock().map_err(|_| ToolError::visible("poisoned"))?;
        let _ = held.recv_timeout(Duration::from_secs(60));
        Ok::<_, ToolError>("late")
    })
    .timeout(Duration::from_millis(250));
    let realtime = |realtime: RealtimeSessionBuilder| realtime.drain_timeout(Duration::from_millis(5));
    let played = PlayedCalls::new(stuck, LoopbackReply::call("a", "stuck", "{}"), realtime).await;
    assert!(played.outputs_sent()[0].contains("may still take effect"), "{:?}", played.outputs_sent());
    assert_eq!(settled_calls(&played.events), [("a".to_owned(), CallStatus::TimedOutStillRunning)]);
    played.session.close().await;
    let_go.send(()).expect("it waits still");
}

#[tokio::test(start_paused = true)]
async fn s16_s17_hooks_and_tool_guardrails_that_fail_fail_closed_before_and_change_nothing_after() {
    let before = Hook::new(|moment: HookEvent| async move {
        match moment {
            HookEvent::CallStarted { ctx, .. } if ctx.call_id() == "b" => Err("no".into()),
            _ => Ok(()),
        }
    });
    let after = Hook::new(|moment: HookEvent| async move {
        match moment {
            HookEvent::CallEnded { .. } => Err("no".into()),
            _ => Ok(()),
        }
    });
    for (hook, ran_b) in [(before, 0), (after, 1)] {
        let (log, runs) = (EventLog::default(), Arc::default());
        let (tools, reply) = failing_middle_call(counting_tool("fails", &runs), &log);
        let played = PlayedCalls::new(tools, reply, |realtime| realtime.hook(hook)).await;
        assert_eq!((run_count(&runs), played.outputs_sent().len()), (ran_b, 3));
        assert_eq!(played.outputs_sent()[2], "c: c done");
    }
    let down =
        || ToolInputGuardrail::new("down", |_| async { Err::<ToolGuardrailVerdict, _>("it is down".into()) });
    let runs = Arc::default();
    let guarded = counting_tool("look", &runs).input_guardrail(down());
    let played = PlayedCalls::new(guarded, LoopbackReply::call("a", "look", "{}"), |realtime| realtime).await;
    assert_eq!(run_count(&runs), 0, "{:?}", played.outputs_sent());
    let blind = ToolOutputGuardrail::new("blind", |_, _| async {
        Err::<ToolGuardrailVerdict, _>("it is down".into())
    });
    let watched = counting_tool("look", &runs).output_guardrail(blind);
    let server = loopback_server([LoopbackReply::call("a", "look", "{}")]);
    let (session, mut events) = connect_agent(Agent::new("desk").tools(watched), &server).await;
    session.send_text("Go").await.expect("is there");
    events_until(&mut events, |event| {
        matches!(
            event,
            RealtimeEvent::CallSettled { .. } | RealtimeEvent::Closed(_) | RealtimeEvent::Error(_)
        )
    })
    .await;
    assert!(
        sent_outputs(&server, "a").iter().all(|told| !told.contains("run 1")),
        "what nobody checked is told"
    );
}

#[tokio::test(start_paused = true)]
async fn s18_of_several_failures_that_end_the_session_the_first_in_order_is_reported() {
    let fatal = |name: &'static str, takes: u64| {
        Tool::dynamic(name, "Fails.", empty_schema(), move |_, _| async move {
            tokio::time::sleep(Duration::from_millis(takes)).await;
            Err::<String, _>(ToolError::visible(format!("{name} failed")))
        })
        .on_failure(OnFailure::FailRun)
    };
    let server = loopback_server([LoopbackReply::call("a", "one", "{}").and_call("b", "two", "{}")]);
    let agent = Agent::new("desk").tools((fatal("one", 5), fatal("two", 5)));
    let (session, _events) = connect_agent(agent, &server).await;
    session.send_text("Go").await.expect("is there");
    let report = session.wait_closed().await;
    let CloseReason::CallFailed(RunFailure::ToolFailed { tool, .. }) = &report.reason else {
        panic!("{report:?}")
    };
    assert_eq!(tool, "one");
}

#[tokio::test(start_paused = true)]
async fn s19_s56_long_texts_are_cut_wherever_they_go() {
    let long = || "é".repeat(1024 * 1024);
    let fails = Tool::dynamic("fails", "Fails.", empty_schema(), move |_, _| async move {
        Err::<String, _>(ToolError::visible(long()))
    });
    let says =
        Tool::dynamic(
            "says",
            "Says much.",
            empty_schema(),
            move |_, _| async move { Ok::<_, ToolError>(long()) },
        )
        .max_output_bytes(1000);
    let reply = LoopbackReply::call("a", "fails", "{}").and_call("b", "says", "{}");
    let played = PlayedCalls::new((fails, says), reply, |realtime| realtime).await;
    assert!(played.outputs_sent().iter().all(|told| told.len() < 16 * 1024));
    assert!(played.outputs_sent()[1].contains("cut: "), "{}", played.outputs_sent()[1]);
    let longest = played.events.iter().map(|event| format!("{event:?}").len()).max().unwrap_or_default();
    assert!(longest < 64 * 1024, "an event of {longest} bytes");
}
