//! Dispatch and order: S1 to S3, S5 to S7, S9.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::sync::Barrier;
use windlass::core::{journal::JournalEntry, plan::ModelProtocolError, run::RunItemKind};
use windlass::prelude::*;
use windlass::run::OnUnknownTool;
use windlass::{
    core::failure::RunFailure,
    core::item::Item,
    core::journal::CallStatus,
    event::{RunEvent, RunEventKind},
};

use crate::support::*;

async fn s01_calls_overlap_and_outputs_keep_the_models_order() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let calls = ScriptedResponse::call("a", "wait", json!({ "ms": 300 }))
            .and_call("b", "wait", json!({ "ms": 50 }))
            .and_call("c", "wait", json!({ "ms": 100 }));
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")]).tools(slow_tool("wait", &log));
        let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
        let said = [
            r#"call a wait {"ms":300}"#,
            r#"call b wait {"ms":50}"#,
            r#"call c wait {"ms":100}"#,
            "output a a done",
            "output b b done",
            "output c c done",
            "assistant: bye",
        ];
        assert_eq!(act.result(), finished_result("bye", &said), "{surface:?}");
        assert_eq!(log.take(), ["start a", "start b", "start c", "end b", "end c", "end a"], "{surface:?}");
        if surface == RunSurface::Streamed {
            let ends = ["end b Succeeded", "end c Succeeded", "end a Succeeded"];
            let all = [["start a", "start b", "start c"], ends].concat();
            assert_eq!(call_event_lines(&act.events), all);
            assert_eq!(shown_outputs(&act.events), ["a", "b", "c"]);
        }
    }
}

/// Returns the calls whose outputs watchers received as items, in order.
fn shown_outputs(events: &[RunEvent]) -> Vec<String> {
    let outputs = events.iter().filter_map(|event| match &event.kind {
        RunEventKind::Item(produced) if produced.kind == RunItemKind::CallOutput => match &*produced.item {
            Item::Output(output) => Some(output.call.to_string()),
            _ => None,
        },
        _ => None,
    });
    outputs.collect()
}

/// Counts the running bodies and their maximum.
#[derive(Default)]
struct ConcurrencyMeter {
    current: AtomicUsize,
    peak: AtomicUsize,
}

impl ConcurrencyMeter {
    fn enter(&self) {
        let now = self.current.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.current.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn s02_never_more_bodies_at_once_than_the_limit() {
    for surface in RunSurface::ALL {
        let meter = Arc::new(ConcurrencyMeter::default());
        // Every body waits for two others, so fewer than three at once would never end.
        let three = Arc::new(Barrier::new(3));
        let (counted, met) = (meter.clone(), three.clone());
        let quick = any_object_tool("async", move |_, _| {
            let (meter, three) = (counted.clone(), met.clone());
            async move {
                meter.enter();
                three.wait().await;
                meter.leave();
                Ok("done".to_owned())
            }
        });
        let counted = meter.clone();
        let thread = blocking_tool("blocking", move |_, _| {
            counted.enter();
            tokio::runtime::Handle::current().block_on(three.wait());
            counted.leave();
            Ok("done".to_owned())
        });
        let calls = (1..=9).fold(ScriptedResponse::items([]), |reply, number| {
            reply.and_call(
                &format!("c{number}"),
                if number % 2 == 0 { "async" } else { "blocking" },
                json!({}),
            )
        });
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")]).tools((quick, thread));
        let act = ScenarioRunner::new(surface, agent)
            .configure_runs(|run| run.max_concurrent_calls(3))
            .run_to_pause()
            .await;
        assert_eq!(act.result().end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?}");
        assert_eq!(meter.peak.load(Ordering::SeqCst), 3, "{surface:?}");
        assert_eq!(
            act.started_calls(),
            (1..=9).map(|number| format!("c{number}")).collect::<Vec<_>>(),
            "{surface:?}"
        );
    }
}

async fn s02_a_tools_own_limit_holds_over_all_runs() {
    let meter = Arc::new(ConcurrencyMeter::default());
    let counted = meter.clone();
    let limited = any_object_tool("limited", move |_, _| {
        let meter = counted.clone();
        async move {
            meter.enter();
            tokio::time::sleep(Duration::from_millis(10)).await;
            meter.leave();
            Ok("done".to_owned())
        }
    });
    let limited = limited.max_concurrent_calls(2);
    let runs = (0..4).map(|_| {
        let calls = ScriptedResponse::call("a", "limited", json!({})).and_call("b", "limited", json!({}));
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")]).tools(limited.clone());
        async move {
            agent.run("go").await.map(|outcome| outcome.output_text().expect("the run finished").to_owned())
        }
    });
    let ends: Vec<_> =
        with_timeout(futures_util::future::join_all(runs)).await.into_iter().flatten().collect();
    assert_eq!(ends, ["bye"; 4]);
    assert_eq!(meter.peak.load(Ordering::SeqCst), 2);
}

async fn s03_sequential_calls_never_overlap() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let calls = ScriptedResponse::call("a", "wait", json!({ "ms": 30 }))
            .and_call("b", "wait", json!({ "ms": 20 }))
            .and_call("c", "wait", json!({ "ms": 10 }));
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")]).tools(slow_tool("wait", &log));
        let act = ScenarioRunner::new(surface, agent)
            .configure_runs(|run| run.sequential_calls())
            .run_to_pause()
            .await;
        assert_eq!(
            log.take_in_order(),
            ["start a", "end a", "start b", "end b", "start c", "end c"],
            "{surface:?}"
        );
        let mut order = act.entries();
        order.retain(|entry| matches!(entry, JournalEntry::CallStarted(_) | JournalEntry::CallSettled(_)));
        let order: Vec<String> = order.iter().map(entry_label).collect();
        let want = ["started a", "settled a", "started b", "settled b", "started c", "settled c"];
        assert_eq!(order, want, "{surface:?}");
    }
}

fn entry_label(entry: &JournalEntry) -> String {
    match entry {
        JournalEntry::CallStarted(started) => format!("started {}", started.call),
        JournalEntry::CallSettled(settled) => format!("settled {}", settled.call),
        other => format!("{other:?}"),
    }
}

async fn s05_a_blocking_body_holds_up_nobody() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (release, released) = (std::sync::Mutex::new(release), std::sync::Mutex::new(released));
        let noted = log.clone();
        let blocked = blocking_tool("blocked", move |_, _| {
            let released = released.lock().expect("one call").recv_timeout(Duration::from_secs(20));
            released.map_err(|_| ToolError::visible("nobody else could run"))?;
            noted.push("released");
            Ok("done".to_owned())
        });
        let noted = log.clone();
        // It needs the timer and the runtime while the other body blocks.
        let sibling = any_object_tool("sibling", move |_, _| {
            let (noted, release) = (noted.clone(), release.lock().expect("one call").clone());
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                noted.push("timer");
                release.send(()).map_err(|_| ToolError::visible("too late"))?;
                Ok("done".to_owned())
            }
        });
        let calls = ScriptedResponse::call("a", "blocked", json!({})).and_call("b", "sibling", json!({}));
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")]).tools((blocked, sibling));
        let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
        let succeeded = ["output a done", "output b done", "assistant: bye"];
        assert_eq!(act.result().items[2..], succeeded, "{surface:?}");
        assert_eq!(log.take_in_order(), ["timer", "released"], "{surface:?}");
    }
}

async fn s05_the_stream_goes_on_beside_a_blocking_body() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let blocked = blocking_tool("blocked", move |_, _| {
        let released = released.lock().expect("one call").recv_timeout(Duration::from_secs(20));
        released.map(|()| "done".to_owned()).map_err(|_| ToolError::visible("nobody watched"))
    });
    let log = TestLog::default();
    let calls = ScriptedResponse::call("a", "blocked", json!({})).and_call("b", "quick", json!({}));
    let agent =
        scripted_agent([calls, ScriptedResponse::text("bye")]).tools((blocked, logging_tool("quick", &log)));
    let mut stream = agent.run("go").stream();
    let mut settled = Vec::new();
    while let Some(event) = stream.next().await {
        if let RunEventKind::CallSettled { call, status, .. } = event.kind {
            settled.push((call.to_string(), status));
            // Only the watcher's progress lets the body end.
            let _ended = release.send(());
        }
    }
    assert_eq!(settled, [("b".to_owned(), CallStatus::Succeeded), ("a".to_owned(), CallStatus::Succeeded)]);
}

fn file_tool(name: &'static str, log: &TestLog) -> Tool {
    slow_tool(name, log).conflict_key(|arguments: &serde_json::Value| arguments["file"].to_string())
}

async fn s06_conflicting_calls_keep_their_order_and_others_overlap() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let calls = ScriptedResponse::call("write-a", "write", json!({ "file": "a", "ms": 50 }))
            .and_call("read-a", "read", json!({ "file": "a", "ms": 1 }))
            .and_call("write-b", "write", json!({ "file": "b", "ms": 10 }))
            .and_call("read-b", "read", json!({ "file": "b", "ms": 1 }));
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")])
            .tools((file_tool("write", &log), file_tool("read", &log)));
        let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
        let want = [
            "start write-a",
            "start write-b",
            "end write-b",
            "start read-b",
            "end read-b",
            "end write-a",
            "start read-a",
            "end read-a",
        ];
        let lines = log.take();
        for file in ["-a", "-b"] {
            let of_file: Vec<String> = lines.iter().filter(|line| line.ends_with(file)).cloned().collect();
            let order = ["start write", "end write", "start read", "end read"];
            assert_eq!(of_file, order.map(|line| format!("{line}{file}")), "{surface:?}");
        }
        assert_eq!(lines, want, "{surface:?}");
        assert_eq!(act.result().end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?}");
    }
}

/// A call that waits for its predecessor has no running body, and does not count against the limit.
async fn s06_a_call_that_waits_its_turn_does_not_count_against_the_limit() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let calls = ScriptedResponse::call("write-a", "write", json!({ "file": "a", "ms": 50 }))
            .and_call("read-a", "read", json!({ "file": "a", "ms": 1 }))
            .and_call("write-b", "write", json!({ "file": "b", "ms": 10 }));
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")])
            .tools((file_tool("write", &log), file_tool("read", &log)));
        ScenarioRunner::new(surface, agent)
            .configure_runs(|run| run.max_concurrent_calls(2))
            .run_to_pause()
            .await;
        let want =
            ["start write-a", "start write-b", "end write-b", "end write-a", "start read-a", "end read-a"];
        assert_eq!(log.take(), want, "{surface:?}");
    }
}

async fn s06_a_call_behind_one_that_waits_for_a_person_waits_too() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let calls = ScriptedResponse::call("write-a", "write", json!({ "file": "a" }))
            .and_call("read-a", "read", json!({ "file": "a" }))
            .and_call("read-b", "read", json!({ "file": "b" }));
        let write = file_tool("write", &log).needs_approval();
        let agent =
            scripted_agent([calls, ScriptedResponse::text("bye")]).tools((write, file_tool("read", &log)));
        let stage = ScenarioRunner::new(surface, agent);
        let act = stage.run_to_pause().await;
        assert_eq!(act.result().end, ScenarioEnd::Paused(owned_lines(&["write-a"])), "{surface:?}");
        assert_eq!(log.take(), ["start read-b", "end read-b"], "{surface:?}");
        let mut paused = act.into_paused();
        paused.approve(stage.call_path("write-a")).expect("it waits");
        let act = stage.resume_paused(paused).await;
        assert_eq!(act.result().end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?}");
        assert_eq!(
            log.take_in_order(),
            ["start write-a", "end write-a", "start read-a", "end read-a"],
            "{surface:?}"
        );
    }
}

async fn s07_an_unknown_or_disabled_tool_is_answered_with_the_tools_there_are() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let calls = ScriptedResponse::call("a", "effect", json!({}))
            .and_call("b", "efect", json!({}))
            .and_call("c", "off", json!({}))
            .and_call("d", "other", json!({}));
        let tools = (
            logging_tool("effect", &log),
            logging_tool("off", &log).enabled(false),
            logging_tool("other", &log),
        );
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")]).tools(tools);
        let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
        let outputs = [
            "output a done",
            "output b Tool 'efect' not found. The tools are: effect, other.",
            "output c Tool 'off' not found. The tools are: effect, other.",
            "output d done",
            "assistant: bye",
        ];
        assert_eq!(act.result().items[4..], outputs, "{surface:?}");
        assert_eq!(log.take(), ["effect a", "other d"], "{surface:?}");
        assert_eq!(act.started_calls(), ["a", "d"], "{surface:?}");
    }
}

async fn s07_a_tool_switched_off_while_the_model_thought_does_not_run() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        let log = TestLog::default();
        let asked = Arc::new(AtomicBool::new(false));
        let off = logging_tool("off", &log).enabled_if(move |_| !asked.swap(true, Ordering::SeqCst));
        let calls = ScriptedResponse::call("a", "off", json!({})).and_call("b", "effect", json!({}));
        let agent =
            scripted_agent([calls, ScriptedResponse::text("bye")]).tools((off, logging_tool("effect", &log)));
        let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
        assert_eq!(log.take(), ["effect b"], "{surface:?}");
        assert_eq!(
            act.call_statuses(),
            [("a".to_owned(), CallStatus::UnknownTool), ("b".to_owned(), CallStatus::Succeeded)],
            "{surface:?}"
        );
    }
}

async fn s07_nothing_runs_where_an_unknown_tool_ends_the_run() {
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        let log = TestLog::default();
        let calls = ScriptedResponse::call("a", "effect", json!({})).and_call("b", "efect", json!({}));
        let agent = scripted_agent([calls]).tools(logging_tool("effect", &log));
        let act = ScenarioRunner::new(surface, agent)
            .configure_runs(|run| run.on_unknown_tool(OnUnknownTool::FailRun))
            .run_to_pause()
            .await;
        let missing = ModelProtocolError::UnknownTool {
            name: "efect".to_owned(),
            agent: "agent".into(),
            available_tools: vec!["effect".to_owned()],
        };
        let want = ScenarioResult {
            end: ScenarioEnd::Failed(RunFailure::ModelProtocolError(missing)),
            items: Vec::new(),
        };
        assert_eq!(act.result(), want, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}

async fn s09_the_same_call_id_twice_in_one_answer_runs_once() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        // The second spelling is equivalent.
        let calls = ScriptedResponse::call("a", "effect", json!({ "x": 1, "y": 2 })).and_raw_call(
            "a",
            "effect",
            r#"{ "y":2.0, "x":1 }"#,
        );
        let agent =
            scripted_agent([calls, ScriptedResponse::text("bye")]).tools(logging_tool("effect", &log));
        let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
        let said = [r#"call a effect {"x":1,"y":2}"#, "output a done", "assistant: bye"];
        assert_eq!(act.result(), finished_result("bye", &said), "{surface:?}");
        assert_eq!(log.take(), ["effect a"], "{surface:?}");
    }
}

async fn s09_the_same_call_again_in_a_later_turn_is_not_run_again() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let call = || ScriptedResponse::call("a", "effect", json!({}));
        let both = call().and_call("b", "effect", json!({}));
        let agent = scripted_agent([call(), call(), both, ScriptedResponse::text("bye")])
            .tools(logging_tool("effect", &log));
        let act = ScenarioRunner::new(surface, agent).run_to_pause().await;
        let said =
            ["call a effect {}", "output a done", "call b effect {}", "output b done", "assistant: bye"];
        assert_eq!(act.result(), finished_result("bye", &said), "{surface:?}");
        assert_eq!(log.take(), ["effect a", "effect b"], "{surface:?}");
    }
}

async fn s09_another_payload_under_a_known_id_is_the_models_error() {
    let reused = || {
        let reused = ModelProtocolError::ReusedCallId { call: "a".into(), name: "effect".to_owned() };
        ScenarioEnd::Failed(RunFailure::ModelProtocolError(reused))
    };
    for surface in [RunSurface::Blocking, RunSurface::Streamed, RunSurface::Nested] {
        let log = TestLog::default();
        let calls = ScriptedResponse::call("b", "effect", json!({}))
            .and_call("a", "effect", json!({ "x": 1 }))
            .and_call("a", "effect", json!({ "x": 2 }));
        let act = ScenarioRunner::new(surface, scripted_agent([calls]).tools(logging_tool("effect", &log)))
            .run_to_pause()
            .await;
        assert_eq!(act.result(), ScenarioResult { end: reused(), items: Vec::new() }, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let first = ScriptedResponse::call("a", "effect", json!({ "x": 1 }));
        let second =
            ScriptedResponse::call("b", "effect", json!({})).and_call("a", "effect", json!({ "x": true }));
        let act =
            ScenarioRunner::new(surface, scripted_agent([first, second]).tools(logging_tool("effect", &log)))
                .run_to_pause()
                .await;
        let said = owned_lines(&[r#"call a effect {"x":1}"#, "output a done"]);
        assert_eq!(act.result(), ScenarioResult { end: reused(), items: said }, "{surface:?}");
        assert_eq!(log.take(), ["effect a"], "{surface:?}");
    }
}

on_both_runtimes! {
    paused_clock:
        s01_calls_overlap_and_outputs_keep_the_models_order,
        s02_a_tools_own_limit_holds_over_all_runs,
        s03_sequential_calls_never_overlap,
        s06_conflicting_calls_keep_their_order_and_others_overlap,
        s06_a_call_that_waits_its_turn_does_not_count_against_the_limit,
        s06_a_call_behind_one_that_waits_for_a_person_waits_too;
    real_clock:
        s02_never_more_bodies_at_once_than_the_limit,
        s05_a_blocking_body_holds_up_nobody,
        s05_the_stream_goes_on_beside_a_blocking_body,
        s07_an_unknown_or_disabled_tool_is_answered_with_the_tools_there_are,
        s07_a_tool_switched_off_while_the_model_thought_does_not_run,
        s07_nothing_runs_where_an_unknown_tool_ends_the_run,
        s09_the_same_call_id_twice_in_one_answer_runs_once,
        s09_the_same_call_again_in_a_later_turn_is_not_run_again,
        s09_another_payload_under_a_known_id_is_the_models_error;
}
