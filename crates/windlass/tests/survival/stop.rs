//! Stopping: S20 to S23.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::core::Run;
use windlass::prelude::*;
use windlass::run::{Approvals, CancelHandle, OnDrop, Settlement};
use windlass::{Effect, EventKind, How, MemoryStore, RunBuilder};

use crate::support::*;

/// Cancels a run once `is_time` says so.
fn cancelled_when(
    run: RunBuilder,
    is_time: impl Fn() -> bool + Send + 'static,
    act: fn(&CancelHandle),
) -> RunBuilder {
    let cancel = run.cancel_handle();
    tokio::spawn(async move {
        until(is_time).await;
        act(&cancel);
    });
    run
}

fn settlement(act: &Act) -> &Settlement {
    match &act.outcome {
        Ok(Outcome::Cancelled(cancelled)) => &cancelled.settlement,
        other => panic!("it was cancelled: {other:?}"),
    }
}

fn ids(calls: &[&str]) -> Vec<windlass::core::CallId> {
    calls.iter().map(|call| (*call).into()).collect()
}

#[tokio::test(start_paused = true)]
async fn s20_cancel_while_the_model_answers_starts_nothing() {
    for surface in Surface::ALL {
        let log = Log::default();
        let asked = Log::default();
        let noted = asked.clone();
        let replies = [
            Reply::call("a", "effect", json!({})),
            Reply::call("b", "effect", json!({})).after(Duration::from_secs(30)),
        ];
        let agent = agent(replies).tools(effect("effect", &log)).instructions_from(move |_| {
            noted.push("asked");
            async { String::new() }
        });
        let stage = Stage::new(surface, agent).configure(move |run| {
            let asked = asked.clone();
            cancelled_when(run, move || asked.count("asked") == 2, CancelHandle::now)
        });
        let act = stage.play().await;
        let said = lines(&["call a effect {}", "output a done"]);
        assert_eq!(act.played(), Played { end: Ended::Cancelled, said }, "{surface:?}");
        assert_eq!(log.take(), ["effect a"], "{surface:?}");
    }
}

/// A watcher cancels at each event in turn: no body starts of which it had not been told before.
#[tokio::test(start_paused = true)]
async fn s20_a_watcher_that_cancels_on_what_it_sees_is_in_time() {
    for surface in [Surface::Streamed, Surface::Nested] {
        for buffer in [1, 256] {
            for stop_at in 0.. {
                let log = Log::default();
                let calls = Reply::text("on it").and_call("a", "effect", json!({})).and_call(
                    "b",
                    "effect",
                    json!({}),
                );
                let replies =
                    [calls.in_chunks_of(1), Reply::call("c", "effect", json!({})), Reply::text("bye")];
                let stage = Stage::new(surface, agent(replies).tools(effect("effect", &log)));
                let mut stream = stage.run().event_buffer(buffer).stream();
                let (mut seen, mut starts, mut ran_too_soon) = (0, 0, false);
                while let Some(event) = stream.next().await {
                    if matches!(&event.kind, EventKind::CallStarted { tool, .. } if tool.name() == "effect") {
                        starts += 1;
                    }
                    if seen == stop_at {
                        stream.cancel().now();
                        ran_too_soon = log.lines().len() > starts;
                    }
                    seen += 1;
                }
                let outcome = stream.outcome().await.expect("it settles");
                assert_whole(outcome.record().state());
                if seen <= stop_at {
                    assert_eq!(log.take(), ["effect a", "effect b", "effect c"]);
                    break;
                }
                if starts == 0 {
                    assert_eq!(log.take(), [""; 0], "{surface:?} {buffer} {stop_at}");
                }
                // The last turn's call is of an answer that came after the cancel, where two had started.
                assert!(starts > 2 || log.count("effect c") == 0, "{surface:?} {buffer} {stop_at}");
                assert!(!ran_too_soon || buffer > 1, "{surface:?} {buffer} {stop_at}");
            }
        }
    }
}

#[tokio::test]
async fn s21_every_call_has_an_output_and_nothing_changes_afterwards() {
    for surface in Surface::ALL {
        let (log, latch, store) = (Log::default(), Latch::default(), Arc::new(MemoryStore::default()));
        let noted = log.clone();
        let waits = tool("waits", move |ctx, _| {
            noted.push(format!("waits {}", ctx.call_id()));
            std::future::pending()
        });
        let (noted, held) = (log.clone(), latch.clone());
        let stubborn = blocking_tool("stubborn", move |ctx, _| {
            noted.push(format!("stubborn {}", ctx.call_id()));
            held.wait().map_err(ToolError::tell)?;
            noted.push("stubborn ended");
            Ok("done".to_owned())
        });
        let calls = Reply::call("done", "effect", json!({}))
            .and_call("once", "waits", json!({}))
            .and_call("pure", "reads", json!({}))
            .and_call("stubborn", "stubborn", json!({}))
            .and_call("queued", "effect", json!({}));
        let noted = log.clone();
        let reads = tool("reads", move |ctx, _| {
            noted.push(format!("reads {}", ctx.call_id()));
            std::future::pending()
        });
        let tools = (effect("effect", &log), waits, stubborn, reads.effect(Effect::Pure));
        let (told, kept) = (log.clone(), store.clone());
        let stage = Stage::new(surface, agent([calls]).tools(tools)).configure(move |run| {
            let told = told.clone();
            let run = run.run_id("run").store(kept.clone()).drain(Duration::from_millis(5));
            // Four of the five are under way: the limit counts calls, and one of them is done.
            cancelled_when(run.concurrency(3), move || told.lines().len() == 4, CancelHandle::now)
        });
        let act = stage.play().await;
        let want = Played {
            end: Ended::Cancelled,
            said: lines(&[
                "call done effect {}",
                "call once waits {}",
                "call pure reads {}",
                "call stubborn stubborn {}",
                "call queued effect {}",
                "output done done",
                "output once The call was stopped before it finished.",
                "output pure The call was stopped before it finished.",
                "output stubborn The call was stopped before it finished.",
                "output queued The call was stopped before it finished.",
            ]),
        };
        assert_eq!(act.played(), want, "{surface:?}");
        assert_eq!(act.started(), ["done", "once", "pure", "stubborn"], "{surface:?}");
        if matches!(surface, Surface::Blocking | Surface::Streamed | Surface::Resumed) {
            let want = Settlement {
                finished: ids(&["done"]),
                stopped: ids(&["pure", "queued"]),
                in_doubt: ids(&["once", "stubborn"]),
                draining: ids(&["stubborn"]),
            };
            assert_eq!(*settlement(&act), want, "{surface:?}");
        } else {
            // What is inside an agent is told of the call that it is in.
            let (in_doubt, draining) = (ids(&["outer"]), ids(&["outer"]));
            assert_eq!(
                *settlement(&act),
                Settlement { in_doubt, draining, ..Settlement::default() },
                "{surface:?}"
            );
        }
        let settled = stored(&*store, "run").await;
        latch.open();
        let told = log.clone();
        until(move || told.count("stubborn ended") == 1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(stored(&*store, "run").await, settled, "{surface:?}");
        assert_eq!(log.count("effect queued"), 0, "{surface:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s21_a_call_behind_another_does_not_start_after_the_cancel() {
    for surface in Surface::ALL {
        let log = Log::default();
        let file = |name| slow(name, &log).conflict(|_: &serde_json::Value| "file".to_owned());
        let calls = Reply::call("write", "write", json!({ "ms": 500 })).and_call("read", "read", json!({}));
        let agent = agent([calls]).tools((file("write"), file("read"))).hook(call_log(&log));
        let told = log.clone();
        let stage = Stage::new(surface, agent).configure(move |run| {
            let told = told.clone();
            cancelled_when(run, move || told.lines().len() == 2, CancelHandle::now)
        });
        let act = stage.play().await;
        assert_eq!(act.played().end, Ended::Cancelled, "{surface:?}");
        assert_eq!(act.started(), ["write"], "{surface:?}");
        let path = stage.path("write");
        assert_eq!(
            log.take(),
            [format!("start {path}"), "start write".to_owned(), format!("end {path} Cancelled")]
        );
        if !matches!(surface, Surface::Nested | Surface::NestedResumed) {
            let want =
                Settlement { in_doubt: ids(&["write"]), stopped: ids(&["read"]), ..Settlement::default() };
            assert_eq!(*settlement(&act), want, "{surface:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s21_after_the_turn_means_that_the_turn_settles() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Resumed] {
        let log = Log::default();
        let calls = Reply::call("a", "wait", json!({ "ms": 50 })).and_call("b", "wait", json!({ "ms": 10 }));
        let agent = agent([calls, Reply::text("bye")]).tools(slow("wait", &log));
        let told = log.clone();
        let stage = Stage::new(surface, agent).configure(move |run| {
            let told = told.clone();
            cancelled_when(run, move || told.lines().len() == 2, CancelHandle::after_turn)
        });
        let act = stage.play().await;
        let said = lines(&[
            r#"call a wait {"ms":50}"#,
            r#"call b wait {"ms":10}"#,
            "output a a done",
            "output b b done",
        ]);
        assert_eq!(act.played(), Played { end: Ended::Cancelled, said }, "{surface:?}");
        let finished = Settlement { finished: ids(&["a", "b"]), ..Settlement::default() };
        assert_eq!(*settlement(&act), finished, "{surface:?}");
    }
}

/// Cancelled while one call runs and another waits for a person.
async fn cancelled_while_waiting(surface: Surface, act: fn(&CancelHandle)) -> (Stage, Act, Log) {
    let log = Log::default();
    let calls = Reply::call("gated", "gated", json!({})).and_call("slow", "wait", json!({ "ms": 500 }));
    let tools = (effect("gated", &log).approve_always(), slow("wait", &log));
    let agent = agent([calls, Reply::text("bye")]).tools(tools);
    let (told, once) = (log.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let stage = Stage::new(surface, agent).configure(move |run| {
        let told = told.clone();
        // The run that goes on later is not cancelled again.
        let is_first = !once.swap(true, std::sync::atomic::Ordering::SeqCst);
        cancelled_when(run, move || is_first && told.count("start slow") == 1, act)
    });
    let act = stage.play().await;
    (stage, act, log)
}

#[tokio::test(start_paused = true)]
async fn s22_a_cancel_withdraws_what_waits_for_a_person() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        let (_, act, log) = cancelled_while_waiting(surface, CancelHandle::now).await;
        let said = [
            "call gated gated {}",
            r#"call slow wait {"ms":500}"#,
            "output gated The call was stopped before it finished.",
            "output slow The call was stopped before it finished.",
        ];
        assert_eq!(act.played(), Played { end: Ended::Cancelled, said: lines(&said) }, "{surface:?}");
        assert_eq!(log.take(), ["start slow"], "{surface:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s22_a_cancel_that_keeps_approvals_leaves_them_answerable() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        let keep: fn(&CancelHandle) = |cancel| cancel.now_with(Approvals::Keep);
        let (stage, act, log) = cancelled_while_waiting(surface, keep).await;
        assert_eq!(act.played().end, Ended::Paused(lines(&["gated"])), "{surface:?}");
        let mut paused = through_text(&act.paused());
        paused.approve(stage.path("gated")).expect("it still waits");
        let said = [
            "call gated gated {}",
            r#"call slow wait {"ms":500}"#,
            "output gated done",
            "output slow The call was stopped before it finished.",
            "assistant: bye",
        ];
        assert_eq!(stage.go_on(paused).await.played(), finished("bye", &said), "{surface:?}");
        assert_eq!(log.take(), ["start slow", "gated gated"], "{surface:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s22_a_run_that_only_waits_returns_at_once() {
    for surface in Surface::ALL {
        let log = Log::default();
        let agent = agent([Reply::call("gated", "gated", json!({})), Reply::text("bye")])
            .tools(effect("gated", &log).approve_always());
        let stage = Stage::new(surface, agent);
        let paused = stage.play().await.paused();
        let keeps =
            stage.recast_cancelled(|cancel| cancel.now_with(Approvals::Keep)).go_on(paused.clone()).await;
        assert_eq!(keeps.played().end, Ended::Paused(lines(&["gated"])), "{surface:?}");
        let withdraws = stage.recast_cancelled(CancelHandle::now).go_on(paused).await;
        assert_eq!(withdraws.played().end, Ended::Cancelled, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
        let mut paused = keeps.paused();
        paused.approve(stage.path("gated")).expect("it still waits");
        assert_eq!(stage.go_on(paused).await.played().end, Ended::Finished("bye".to_owned()), "{surface:?}");
        assert_eq!(log.take(), ["gated gated"], "{surface:?}");
    }
}

/// A run that is watched up to its first `CallStarted` and then let go.
async fn dropped(surface: Surface, policy: OnDrop) -> (Vec<windlass::core::Record>, Vec<String>) {
    let (log, store) = (Log::default(), Arc::new(MemoryStore::default()));
    let replies = [Reply::call("a", "wait", json!({ "ms": 20 })), Reply::text("bye")];
    let stage = Stage::new(surface, agent(replies).tools(slow("wait", &log)));
    let mut stream = stage.run().run_id("run").store(store.clone()).on_drop(policy).stream();
    while let Some(event) = stream.next().await {
        if matches!(&event.kind, EventKind::CallStarted { tool, .. } if tool.name() == "wait") {
            break;
        }
    }
    drop(stream);
    let records = within(async {
        loop {
            let records = stored(&*store, "run").await;
            if Run::replay(&records).expect("the journal adds up").run.end().is_some() {
                return records;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    (records.await, log.take())
}

#[tokio::test(start_paused = true)]
async fn s23_a_dropped_stream_cancels_the_run_and_its_journal_is_whole() {
    for surface in [Surface::Streamed, Surface::Nested] {
        let (records, log) = dropped(surface, OnDrop::Cancel).await;
        let run = Run::replay(&records).expect("the journal adds up").run;
        assert_eq!(run.end(), Some(&windlass::core::End::Cancelled), "{surface:?}");
        assert_whole(&run);
        assert_eq!(log.iter().filter(|line| *line == "end a").count(), 0, "{surface:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s23_a_dropped_stream_lets_the_run_go_on_where_it_was_told_to() {
    for surface in [Surface::Streamed, Surface::Nested] {
        let (records, log) = dropped(surface, OnDrop::GoOn).await;
        let run = Run::replay(&records).expect("the journal adds up").run;
        let output = if surface == Surface::Nested { "outer done" } else { "bye" };
        assert_eq!(run.end(), Some(&windlass::core::End::Finished(output.to_owned())), "{surface:?}");
        assert_whole(&run);
        assert_eq!(log, ["start a", "end a"], "{surface:?}");
    }
}

/// Whoever awaits a run may stop waiting, too. Nobody is there to settle it: it is as after a crash.
#[tokio::test(start_paused = true)]
async fn s23_a_dropped_future_leaves_a_journal_that_can_be_gone_on_with() {
    for surface in [Surface::Blocking, Surface::Nested] {
        let (log, store) = (Log::default(), Arc::new(MemoryStore::default()));
        let replies = [Reply::call("a", "wait", json!({ "ms": 20 })), Reply::text("bye")];
        let stage = Stage::new(surface, agent(replies).tools(slow("wait", &log)));
        let run = stage.run().run_id("run").store(store.clone()).into_future();
        let lost = tokio::time::timeout(Duration::from_millis(10), run).await;
        assert!(lost.is_err(), "{surface:?}");
        assert_eq!(log.take(), ["start a"], "{surface:?}");
        let paused = Paused::from_records(stored(&*store, "run").await).expect("the journal adds up");
        // It may have happened, so nobody does it again without being told to.
        let act = stage.go_on(paused).await;
        assert_eq!(act.played().end, Ended::Paused(lines(&["a"])), "{surface:?}");
        let mut paused = act.paused();
        paused.it_happened(stage.path("a"), "it did").expect("it is in doubt");
        let act = stage.go_on(paused).await;
        assert_eq!(act.hows(), [("a".to_owned(), How::Reconciled)], "{surface:?}");
        assert_eq!(act.played().said[1..], ["output a it did", "assistant: bye"], "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}
