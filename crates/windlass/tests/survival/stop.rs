//! Cancellation: S20 to S23.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::core::run::Run;
use windlass::prelude::*;
use windlass::run::{CancelHandle, OnStreamDrop, PendingApprovals, RunSettlement};
use windlass::{
    core::journal::{CallEndedLate, CallStatus, JournalEntry},
    core::tool::ToolEffect,
    event::RunEventKind,
    run::RunBuilder,
    store::MemoryStore,
};

use crate::support::*;

/// Cancels a run as soon as `is_time` returns true.
fn cancel_when(
    run: RunBuilder,
    is_time: impl Fn() -> bool + Send + 'static,
    act: fn(&CancelHandle),
) -> RunBuilder {
    let cancel = run.cancel_handle();
    tokio::spawn(async move {
        wait_until(is_time).await;
        act(&cancel);
    });
    run
}

fn settlement_of(act: &ScenarioRun) -> &RunSettlement {
    match &act.outcome {
        Ok(RunResult::Cancelled(cancelled)) => &cancelled.settlement,
        other => panic!("it was cancelled: {other:?}"),
    }
}

fn call_ids(calls: &[&str]) -> Vec<windlass::core::id::CallId> {
    calls.iter().map(|call| (*call).into()).collect()
}

async fn s20_cancel_while_the_model_answers_starts_nothing() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let asked = TestLog::default();
        let noted = asked.clone();
        let replies = [
            ScriptedResponse::call("a", "effect", json!({})),
            ScriptedResponse::call("b", "effect", json!({})).delayed_by(Duration::from_secs(30)),
        ];
        let agent =
            scripted_agent(replies).tools(logging_tool("effect", &log)).dynamic_instructions(move |_| {
                noted.push("asked");
                async { String::new() }
            });
        let stage = ScenarioRunner::new(surface, agent).configure_runs(move |run| {
            let asked = asked.clone();
            cancel_when(run, move || asked.count("asked") == 2, CancelHandle::cancel)
        });
        let act = stage.run_to_pause().await;
        let said = owned_lines(&["call a effect {}", "output a done"]);
        assert_eq!(act.result(), ScenarioResult { end: ScenarioEnd::Cancelled, items: said }, "{surface:?}");
        assert_eq!(log.take(), ["effect a"], "{surface:?}");
    }
}

/// A watcher cancels at each event in turn: no body starts that was not announced before.
async fn s20_a_watcher_that_cancels_on_what_it_sees_is_in_time() {
    for surface in [RunSurface::Streamed, RunSurface::Nested] {
        for buffer in [1, 256] {
            for stop_at in 0.. {
                let log = TestLog::default();
                let calls = ScriptedResponse::text("on it").and_call("a", "effect", json!({})).and_call(
                    "b",
                    "effect",
                    json!({}),
                );
                let replies = [
                    calls.in_chunks_of(1),
                    ScriptedResponse::call("c", "effect", json!({})),
                    ScriptedResponse::text("bye"),
                ];
                let stage =
                    ScenarioRunner::new(surface, scripted_agent(replies).tools(logging_tool("effect", &log)));
                let mut stream = stage.build_run().event_buffer_size(buffer).stream();
                let (mut seen, mut starts, mut ran_too_soon) = (0, 0, false);
                while let Some(event) = stream.next().await {
                    if matches!(&event.kind, RunEventKind::CallStarted { tool, .. } if tool.name() == "effect")
                    {
                        starts += 1;
                    }
                    if seen == stop_at {
                        stream.cancel_handle().cancel();
                        ran_too_soon = log.lines().len() > starts;
                    }
                    seen += 1;
                }
                let outcome = stream.result().await.expect("it settles");
                assert_outputs_complete(outcome.record().state());
                if seen <= stop_at {
                    assert_eq!(log.take(), ["effect a", "effect b", "effect c"]);
                    break;
                }
                if starts == 0 {
                    assert_eq!(log.take(), [""; 0], "{surface:?} {buffer} {stop_at}");
                }
                // The last turn's call belongs to a response that came after the cancellation, unless more than
                // two calls had started.
                assert!(starts > 2 || log.count("effect c") == 0, "{surface:?} {buffer} {stop_at}");
                assert!(!ran_too_soon || buffer > 1, "{surface:?} {buffer} {stop_at}");
            }
        }
    }
}

// One thread: the clock decides which bodies end before the drain does.
#[tokio::test]
async fn s21_every_call_has_an_output_and_nothing_changes_afterwards() {
    for surface in RunSurface::ALL {
        let (log, latch, store) =
            (TestLog::default(), ThreadLatch::default(), Arc::new(MemoryStore::default()));
        let noted = log.clone();
        let waits = any_object_tool("waits", move |ctx, _| {
            noted.push(format!("waits {}", ctx.call_id()));
            std::future::pending()
        });
        let (noted, held) = (log.clone(), latch.clone());
        let stubborn = blocking_tool("stubborn", move |ctx, _| {
            noted.push(format!("stubborn {}", ctx.call_id()));
            held.wait().map_err(ToolError::visible)?;
            noted.push("stubborn ended");
            Ok("done".to_owned())
        });
        let calls = ScriptedResponse::call("done", "effect", json!({}))
            .and_call("once", "waits", json!({}))
            .and_call("pure", "reads", json!({}))
            .and_call("stubborn", "stubborn", json!({}))
            .and_call("queued", "effect", json!({}));
        let noted = log.clone();
        let reads = any_object_tool("reads", move |ctx, _| {
            noted.push(format!("reads {}", ctx.call_id()));
            std::future::pending()
        });
        let tools = (logging_tool("effect", &log), waits, stubborn, reads.effect(ToolEffect::Pure));
        let (told, kept) = (log.clone(), store.clone());
        let stage =
            ScenarioRunner::new(surface, scripted_agent([calls]).tools(tools)).configure_runs(move |run| {
                let told = told.clone();
                let run = run.run_id("run").store(kept.clone()).drain_timeout(Duration::from_millis(5));
                // Four of the five calls have started: the limit of three counts running calls, and one has
                // finished.
                cancel_when(
                    run.max_concurrent_calls(3),
                    move || told.lines().len() == 4,
                    CancelHandle::cancel,
                )
            });
        let act = stage.run_to_pause().await;
        let want = ScenarioResult {
            end: ScenarioEnd::Cancelled,
            items: owned_lines(&[
                "call done effect {}",
                "call once waits {}",
                "call pure reads {}",
                "call stubborn stubborn {}",
                "call queued effect {}",
                "output done done",
                "output once The call ended without a result, and it is not known whether it took effect. Do not repeat it without checking.",
                "output pure The call was stopped before it finished.",
                "output stubborn The call ended without a result, and it is not known whether it took effect. Do not repeat it without checking.",
                "output queued The call was stopped before it finished.",
            ]),
        };
        assert_eq!(act.result(), want, "{surface:?}");
        assert_eq!(act.started_calls(), ["done", "once", "pure", "stubborn"], "{surface:?}");
        if matches!(surface, RunSurface::Blocking | RunSurface::Streamed | RunSurface::Resumed) {
            let want = RunSettlement {
                finished: call_ids(&["done"]),
                stopped: call_ids(&["pure", "queued"]),
                in_doubt: call_ids(&["once", "stubborn"]),
                draining: call_ids(&["stubborn"]),
            };
            assert_eq!(*settlement_of(&act), want, "{surface:?}");
        } else {
            // Calls of a nested agent are reported as the call that contains it.
            let (in_doubt, draining) = (call_ids(&["outer"]), call_ids(&["outer"]));
            assert_eq!(
                *settlement_of(&act),
                RunSettlement { in_doubt, draining, ..RunSettlement::default() },
                "{surface:?}"
            );
        }
        let settled = stored_records(&*store, "run").await;
        latch.open();
        // The late end of the body that could not be stopped is all that follows.
        let look = async {
            loop {
                let mut after = stored_records(&*store, "run").await;
                if after.len() > settled.len() {
                    assert_eq!(after.drain(..settled.len()).collect::<Vec<_>>(), settled, "{surface:?}");
                    return after;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let after =
            tokio::time::timeout(Duration::from_secs(60), look).await.expect("the late end is recorded");
        let [late] = &after[..] else { panic!("{surface:?}: {after:?}") };
        let ended = CallEndedLate {
            call: "stubborn".into(),
            status: CallStatus::Succeeded,
            output: Some("done".into()),
        };
        assert_eq!(late.entry, JournalEntry::CallEndedLate(ended), "{surface:?}");
        assert_eq!(log.count("effect queued"), 0, "{surface:?}");
    }
}

async fn s21_a_call_behind_another_does_not_start_after_the_cancel() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let file = |name| slow_tool(name, &log).conflict_key(|_: &serde_json::Value| "file".to_owned());
        let calls = ScriptedResponse::call("write", "write", json!({ "ms": 500 })).and_call(
            "read",
            "read",
            json!({}),
        );
        let agent = scripted_agent([calls]).tools((file("write"), file("read"))).hook(call_log_hook(&log));
        let told = log.clone();
        let stage = ScenarioRunner::new(surface, agent).configure_runs(move |run| {
            let told = told.clone();
            cancel_when(run, move || told.lines().len() == 2, CancelHandle::cancel)
        });
        let act = stage.run_to_pause().await;
        assert_eq!(act.result().end, ScenarioEnd::Cancelled, "{surface:?}");
        assert_eq!(act.started_calls(), ["write"], "{surface:?}");
        let path = stage.call_path("write");
        assert_eq!(
            log.take(),
            [format!("start {path}"), "start write".to_owned(), format!("end {path} Cancelled")]
        );
        if !matches!(surface, RunSurface::Nested | RunSurface::NestedResumed) {
            let want = RunSettlement {
                in_doubt: call_ids(&["write"]),
                stopped: call_ids(&["read"]),
                ..RunSettlement::default()
            };
            assert_eq!(*settlement_of(&act), want, "{surface:?}");
        }
    }
}

async fn s21_after_the_turn_means_that_the_turn_settles() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Resumed] {
        let log = TestLog::default();
        let calls = ScriptedResponse::call("a", "wait", json!({ "ms": 1000 })).and_call(
            "b",
            "wait",
            json!({ "ms": 10 }),
        );
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")]).tools(slow_tool("wait", &log));
        let told = log.clone();
        let stage = ScenarioRunner::new(surface, agent).configure_runs(move |run| {
            let told = told.clone();
            cancel_when(run, move || told.lines().len() == 2, CancelHandle::cancel_after_turn)
        });
        let act = stage.run_to_pause().await;
        let said = owned_lines(&[
            r#"call a wait {"ms":1000}"#,
            r#"call b wait {"ms":10}"#,
            "output a a done",
            "output b b done",
        ]);
        assert_eq!(act.result(), ScenarioResult { end: ScenarioEnd::Cancelled, items: said }, "{surface:?}");
        let finished = RunSettlement { finished: call_ids(&["a", "b"]), ..RunSettlement::default() };
        assert_eq!(*settlement_of(&act), finished, "{surface:?}");
    }
}

async fn s21_after_the_turn_asked_before_the_first_one_lets_the_first_one_settle() {
    for is_asked_before_the_start in [true, false] {
        let log = TestLog::default();
        let calls = ScriptedResponse::call("a", "wait", json!({ "ms": 10 }));
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")]).tools(slow_tool("wait", &log));
        let run = agent.run("go");
        if is_asked_before_the_start {
            run.cancel_handle().cancel_after_turn();
        }
        let mut stream = run.stream();
        let _first_event = stream.next().await.expect("there is one");
        stream.cancel_handle().cancel_after_turn();
        let result = stream.result().await.expect("it settles");
        let RunResult::Cancelled(cancelled) = result else { panic!("{result:?} was not cancelled") };
        let finished = RunSettlement { finished: call_ids(&["a"]), ..RunSettlement::default() };
        assert_eq!(cancelled.settlement, finished);
        assert_eq!(cancelled.record.state().turn(), 1);
    }
}

/// Cancels while one call runs and another waits for approval.
async fn cancel_while_waiting(
    surface: RunSurface,
    act: fn(&CancelHandle),
) -> (ScenarioRunner, ScenarioRun, TestLog) {
    let log = TestLog::default();
    let calls =
        ScriptedResponse::call("gated", "gated", json!({})).and_call("slow", "wait", json!({ "ms": 500 }));
    let tools = (logging_tool("gated", &log).needs_approval(), slow_tool("wait", &log));
    let agent = scripted_agent([calls, ScriptedResponse::text("bye")]).tools(tools);
    let (told, once) = (log.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let stage = ScenarioRunner::new(surface, agent).configure_runs(move |run| {
        let told = told.clone();
        // The resumed run is not cancelled again.
        let is_first = !once.swap(true, std::sync::atomic::Ordering::SeqCst);
        cancel_when(run, move || is_first && told.count("start slow") == 1, act)
    });
    let act = stage.run_to_pause().await;
    (stage, act, log)
}

async fn s22_a_cancel_withdraws_what_waits_for_a_person() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        let (_, act, log) = cancel_while_waiting(surface, CancelHandle::cancel).await;
        let said = [
            "call gated gated {}",
            r#"call slow wait {"ms":500}"#,
            "output gated The call was stopped before it finished.",
            "output slow The call ended without a result, and it is not known whether it took effect. Do not repeat it without checking.",
        ];
        assert_eq!(
            act.result(),
            ScenarioResult { end: ScenarioEnd::Cancelled, items: owned_lines(&said) },
            "{surface:?}"
        );
        assert_eq!(log.take(), ["start slow"], "{surface:?}");
    }
}

async fn s22_a_cancel_that_keeps_approvals_leaves_them_answerable() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        let keep: fn(&CancelHandle) = |cancel| cancel.cancel_with(PendingApprovals::Keep);
        let (stage, act, log) = cancel_while_waiting(surface, keep).await;
        assert_eq!(act.result().end, ScenarioEnd::Paused(owned_lines(&["gated"])), "{surface:?}");
        let mut paused = round_trip(&act.into_paused());
        paused.approve(stage.call_path("gated")).expect("it still waits");
        // The run goes on, so that its model is not told of a stop: the call that was stopped may have taken effect.
        let doubtful = stage.resume_paused(paused).await;
        assert_eq!(doubtful.result().end, ScenarioEnd::Paused(owned_lines(&["slow"])), "{surface:?}");
        let mut paused = round_trip(&doubtful.into_paused());
        paused.confirm_executed(stage.call_path("slow"), "it had happened").expect("it is in doubt");
        let said = [
            "call gated gated {}",
            r#"call slow wait {"ms":500}"#,
            "output gated done",
            "output slow it had happened",
            "assistant: bye",
        ];
        assert_eq!(stage.resume_paused(paused).await.result(), finished_result("bye", &said), "{surface:?}");
        assert_eq!(log.take(), ["start slow", "gated gated"], "{surface:?}");
    }
}

async fn s22_a_run_that_only_waits_returns_at_once() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let agent = scripted_agent([
            ScriptedResponse::call("gated", "gated", json!({})),
            ScriptedResponse::text("bye"),
        ])
        .tools(logging_tool("gated", &log).needs_approval());
        let stage = ScenarioRunner::new(surface, agent);
        let paused = stage.run_to_pause().await.into_paused();
        let keeps = stage
            .with_cancelled_runs(|cancel| cancel.cancel_with(PendingApprovals::Keep))
            .resume_paused(paused.clone())
            .await;
        assert_eq!(keeps.result().end, ScenarioEnd::Paused(owned_lines(&["gated"])), "{surface:?}");
        let withdraws = stage.with_cancelled_runs(CancelHandle::cancel).resume_paused(paused).await;
        assert_eq!(withdraws.result().end, ScenarioEnd::Cancelled, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
        let mut paused = keeps.into_paused();
        paused.approve(stage.call_path("gated")).expect("it still waits");
        assert_eq!(
            stage.resume_paused(paused).await.result().end,
            ScenarioEnd::Finished("bye".to_owned()),
            "{surface:?}"
        );
        assert_eq!(log.take(), ["gated gated"], "{surface:?}");
    }
}

/// Drops the stream at the first `CallStarted` and returns the final records and the log.
async fn drop_stream(
    surface: RunSurface,
    policy: OnStreamDrop,
) -> (Vec<windlass::core::journal::JournalRecord>, Vec<String>) {
    let (log, store) = (TestLog::default(), Arc::new(MemoryStore::default()));
    let replies = [ScriptedResponse::call("a", "wait", json!({ "ms": 20 })), ScriptedResponse::text("bye")];
    let stage = ScenarioRunner::new(surface, scripted_agent(replies).tools(slow_tool("wait", &log)));
    let mut stream = stage.build_run().run_id("run").store(store.clone()).on_stream_drop(policy).stream();
    while let Some(event) = stream.next().await {
        if matches!(&event.kind, RunEventKind::CallStarted { tool, .. } if tool.name() == "wait") {
            break;
        }
    }
    drop(stream);
    let records = with_timeout(async {
        loop {
            let records = stored_records(&*store, "run").await;
            if Run::replay(&records).expect("the journal adds up").run.outcome().is_some() {
                return records;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    (records.await, log.take_in_order())
}

async fn s23_a_dropped_stream_cancels_the_run_and_its_journal_is_whole() {
    for surface in [RunSurface::Streamed, RunSurface::Nested] {
        let (records, log) = drop_stream(surface, OnStreamDrop::CancelRun).await;
        let run = Run::replay(&records).expect("the journal adds up").run;
        assert_eq!(run.outcome(), Some(&windlass::core::run::RunEnd::Cancelled), "{surface:?}");
        assert_outputs_complete(&run);
        assert_eq!(log.iter().filter(|line| *line == "end a").count(), 0, "{surface:?}");
    }
}

async fn s23_a_dropped_stream_lets_the_run_go_on_where_it_was_told_to() {
    for surface in [RunSurface::Streamed, RunSurface::Nested] {
        let (records, log) = drop_stream(surface, OnStreamDrop::ContinueRun).await;
        let run = Run::replay(&records).expect("the journal adds up").run;
        let output = if surface == RunSurface::Nested { "outer done" } else { "bye" };
        assert_eq!(
            run.outcome(),
            Some(&windlass::core::run::RunEnd::Finished(output.to_owned())),
            "{surface:?}"
        );
        assert_outputs_complete(&run);
        assert_eq!(log, ["start a", "end a"], "{surface:?}");
    }
}

/// Dropping the future leaves the run as after a crash, because nobody settles it.
async fn s23_a_dropped_future_leaves_a_journal_that_can_be_gone_on_with() {
    for surface in [RunSurface::Blocking, RunSurface::Nested] {
        let (log, store) = (TestLog::default(), Arc::new(MemoryStore::default()));
        let replies =
            [ScriptedResponse::call("a", "wait", json!({ "ms": 60_000 })), ScriptedResponse::text("bye")];
        let stage = ScenarioRunner::new(surface, scripted_agent(replies).tools(slow_tool("wait", &log)));
        let run = stage.build_run().run_id("run").store(store.clone());
        lose_run(run, &*store, "run", |_| log.count("start a") == 1).await;
        assert_eq!(log.take(), ["start a"], "{surface:?}");
        let paused =
            PausedRun::from_records(stored_records(&*store, "run").await).expect("the journal adds up");
        // The call may have taken effect, so it does not run again without a decision.
        let act = stage.resume_paused(paused).await;
        assert_eq!(act.result().end, ScenarioEnd::Paused(owned_lines(&["a"])), "{surface:?}");
        let mut paused = act.into_paused();
        paused.confirm_executed(stage.call_path("a"), "it did").expect("it is in doubt");
        let act = stage.resume_paused(paused).await;
        assert_eq!(act.call_statuses(), [("a".to_owned(), CallStatus::Reconciled)], "{surface:?}");
        assert_eq!(act.result().items[1..], ["output a it did", "assistant: bye"], "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}

on_both_runtimes! {
    paused_clock:
        s20_cancel_while_the_model_answers_starts_nothing,
        s20_a_watcher_that_cancels_on_what_it_sees_is_in_time,
        s21_a_call_behind_another_does_not_start_after_the_cancel,
        s21_after_the_turn_means_that_the_turn_settles,
        s21_after_the_turn_asked_before_the_first_one_lets_the_first_one_settle,
        s22_a_cancel_withdraws_what_waits_for_a_person,
        s22_a_cancel_that_keeps_approvals_leaves_them_answerable,
        s22_a_run_that_only_waits_returns_at_once,
        s23_a_dropped_future_leaves_a_journal_that_can_be_gone_on_with,
        s23_a_dropped_stream_cancels_the_run_and_its_journal_is_whole,
        s23_a_dropped_stream_lets_the_run_go_on_where_it_was_told_to;
}
