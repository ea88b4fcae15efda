//! Dispatch and order: S1 to S3, S5 to S7, S9.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::sync::Barrier;
use windlass::core::{Entry, Misbehaviour, Part};
use windlass::prelude::*;
use windlass::run::MissingTool;
use windlass::{Event, EventKind, Failure, How, Item};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn s01_calls_overlap_and_outputs_keep_the_models_order() {
    for surface in Surface::ALL {
        let log = Log::default();
        let calls = Reply::call("a", "wait", json!({ "ms": 300 }))
            .and_call("b", "wait", json!({ "ms": 50 }))
            .and_call("c", "wait", json!({ "ms": 100 }));
        let agent = agent([calls, Reply::text("bye")]).tools(slow("wait", &log));
        let act = Stage::new(surface, agent).play().await;
        let said = [
            r#"call a wait {"ms":300}"#,
            r#"call b wait {"ms":50}"#,
            r#"call c wait {"ms":100}"#,
            "output a a done",
            "output b b done",
            "output c c done",
            "assistant: bye",
        ];
        assert_eq!(act.played(), finished("bye", &said), "{surface:?}");
        assert_eq!(log.take(), ["start a", "start b", "start c", "end b", "end c", "end a"], "{surface:?}");
        if surface == Surface::Streamed {
            let ends = ["end b Succeeded", "end c Succeeded", "end a Succeeded"];
            assert_eq!(call_events(&act.events)[3..], ends);
            assert_eq!(shown_outputs(&act.events), ["a", "b", "c"]);
        }
    }
}

/// The calls whose outputs watchers were shown as items, in order.
fn shown_outputs(events: &[Event]) -> Vec<String> {
    let outputs = events.iter().filter_map(|event| match &event.kind {
        EventKind::Item(produced) if produced.part == Part::Output => match &*produced.item {
            Item::Output(output) => Some(output.call.to_string()),
            _ => None,
        },
        _ => None,
    });
    outputs.collect()
}

/// How many bodies run now, and how many ran at once at most.
#[derive(Default)]
struct Meter {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Meter {
    fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn s02_never_more_bodies_at_once_than_the_limit() {
    for surface in Surface::ALL {
        let meter = Arc::new(Meter::default());
        // Nobody leaves before three are in: fewer than three at once would never end.
        let three = Arc::new(Barrier::new(3));
        let (counted, met) = (meter.clone(), three.clone());
        let quick = tool("async", move |_, _| {
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
        let calls = (1..=9).fold(Reply::items([]), |reply, number| {
            reply.and_call(
                &format!("c{number}"),
                if number % 2 == 0 { "async" } else { "blocking" },
                json!({}),
            )
        });
        let agent = agent([calls, Reply::text("bye")]).tools((quick, thread));
        let act = Stage::new(surface, agent).configure(|run| run.concurrency(3)).play().await;
        assert_eq!(act.played().end, Ended::Finished("bye".to_owned()), "{surface:?}");
        assert_eq!(meter.most.load(Ordering::SeqCst), 3, "{surface:?}");
        assert_eq!(
            act.started(),
            (1..=9).map(|number| format!("c{number}")).collect::<Vec<_>>(),
            "{surface:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn s02_a_tools_own_limit_holds_over_all_runs() {
    let meter = Arc::new(Meter::default());
    let counted = meter.clone();
    let limited = tool("limited", move |_, _| {
        let meter = counted.clone();
        async move {
            meter.enter();
            tokio::time::sleep(Duration::from_millis(10)).await;
            meter.leave();
            Ok("done".to_owned())
        }
    });
    let limited = limited.concurrency(2);
    let runs = (0..4).map(|_| {
        let calls = Reply::call("a", "limited", json!({})).and_call("b", "limited", json!({}));
        let agent = agent([calls, Reply::text("bye")]).tools(limited.clone());
        async move { agent.run("go").await.map(|outcome| outcome.text().to_owned()) }
    });
    let ends: Vec<_> = within(futures_util::future::join_all(runs)).await.into_iter().flatten().collect();
    assert_eq!(ends, ["bye"; 4]);
    assert_eq!(meter.most.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn s03_sequential_calls_never_overlap() {
    for surface in Surface::ALL {
        let log = Log::default();
        let calls = Reply::call("a", "wait", json!({ "ms": 30 }))
            .and_call("b", "wait", json!({ "ms": 20 }))
            .and_call("c", "wait", json!({ "ms": 10 }));
        let agent = agent([calls, Reply::text("bye")]).tools(slow("wait", &log));
        let act = Stage::new(surface, agent).configure(|run| run.sequential()).play().await;
        assert_eq!(log.take(), ["start a", "end a", "start b", "end b", "start c", "end c"], "{surface:?}");
        let mut order = act.entries();
        order.retain(|entry| matches!(entry, Entry::CallStarted(_) | Entry::CallSettled(_)));
        let order: Vec<String> = order.iter().map(moved).collect();
        let want = ["started a", "settled a", "started b", "settled b", "started c", "settled c"];
        assert_eq!(order, want, "{surface:?}");
    }
}

fn moved(entry: &Entry) -> String {
    match entry {
        Entry::CallStarted(started) => format!("started {}", started.call),
        Entry::CallSettled(settled) => format!("settled {}", settled.call),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn s05_a_blocking_body_holds_up_nobody() {
    for surface in Surface::ALL {
        let log = Log::default();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (release, released) = (std::sync::Mutex::new(release), std::sync::Mutex::new(released));
        let noted = log.clone();
        let blocked = blocking_tool("blocked", move |_, _| {
            let released = released.lock().expect("one call").recv_timeout(Duration::from_secs(20));
            released.map_err(|_| ToolError::tell("nobody else could run"))?;
            noted.push("released");
            Ok("done".to_owned())
        });
        let noted = log.clone();
        // It needs the timer, and the runtime, while the other body blocks.
        let sibling = tool("sibling", move |_, _| {
            let (noted, release) = (noted.clone(), release.lock().expect("one call").clone());
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                noted.push("timer");
                release.send(()).map_err(|_| ToolError::tell("too late"))?;
                Ok("done".to_owned())
            }
        });
        let calls = Reply::call("a", "blocked", json!({})).and_call("b", "sibling", json!({}));
        let agent = agent([calls, Reply::text("bye")]).tools((blocked, sibling));
        let act = Stage::new(surface, agent).play().await;
        let succeeded = ["output a done", "output b done", "assistant: bye"];
        assert_eq!(act.played().said[2..], succeeded, "{surface:?}");
        assert_eq!(log.take(), ["timer", "released"], "{surface:?}");
    }
}

#[tokio::test]
async fn s05_the_stream_goes_on_beside_a_blocking_body() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let blocked = blocking_tool("blocked", move |_, _| {
        let released = released.lock().expect("one call").recv_timeout(Duration::from_secs(20));
        released.map(|()| "done".to_owned()).map_err(|_| ToolError::tell("nobody watched"))
    });
    let log = Log::default();
    let calls = Reply::call("a", "blocked", json!({})).and_call("b", "quick", json!({}));
    let agent = agent([calls, Reply::text("bye")]).tools((blocked, effect("quick", &log)));
    let mut stream = agent.run("go").stream();
    let mut settled = Vec::new();
    while let Some(event) = stream.next().await {
        if let EventKind::CallSettled { call, how, .. } = event.kind {
            settled.push((call.to_string(), how));
            // Only what the watcher sees lets the body end.
            let _ended = release.send(());
        }
    }
    assert_eq!(settled, [("b".to_owned(), How::Succeeded), ("a".to_owned(), How::Succeeded)]);
}

fn file_tool(name: &'static str, log: &Log) -> Tool {
    slow(name, log).conflict(|arguments: &serde_json::Value| arguments["file"].to_string())
}

#[tokio::test(start_paused = true)]
async fn s06_conflicting_calls_keep_their_order_and_others_overlap() {
    for surface in Surface::ALL {
        let log = Log::default();
        let calls = Reply::call("write-a", "write", json!({ "file": "a", "ms": 50 }))
            .and_call("read-a", "read", json!({ "file": "a", "ms": 1 }))
            .and_call("write-b", "write", json!({ "file": "b", "ms": 10 }))
            .and_call("read-b", "read", json!({ "file": "b", "ms": 1 }));
        let agent =
            agent([calls, Reply::text("bye")]).tools((file_tool("write", &log), file_tool("read", &log)));
        let act = Stage::new(surface, agent).play().await;
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
        assert_eq!(log.take(), want, "{surface:?}");
        assert_eq!(act.played().end, Ended::Finished("bye".to_owned()), "{surface:?}");
    }
}

/// A call that waits for another's end has no body yet, and takes nobody's place.
#[tokio::test(start_paused = true)]
async fn s06_a_call_that_waits_its_turn_does_not_count_against_the_limit() {
    for surface in Surface::ALL {
        let log = Log::default();
        let calls = Reply::call("write-a", "write", json!({ "file": "a", "ms": 50 }))
            .and_call("read-a", "read", json!({ "file": "a", "ms": 1 }))
            .and_call("write-b", "write", json!({ "file": "b", "ms": 10 }));
        let agent =
            agent([calls, Reply::text("bye")]).tools((file_tool("write", &log), file_tool("read", &log)));
        Stage::new(surface, agent).configure(|run| run.concurrency(2)).play().await;
        let want =
            ["start write-a", "start write-b", "end write-b", "end write-a", "start read-a", "end read-a"];
        assert_eq!(log.take(), want, "{surface:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s06_a_call_behind_one_that_waits_for_a_person_waits_too() {
    for surface in Surface::ALL {
        let log = Log::default();
        let calls = Reply::call("write-a", "write", json!({ "file": "a" }))
            .and_call("read-a", "read", json!({ "file": "a" }))
            .and_call("read-b", "read", json!({ "file": "b" }));
        let write = file_tool("write", &log).approve_always();
        let agent = agent([calls, Reply::text("bye")]).tools((write, file_tool("read", &log)));
        let stage = Stage::new(surface, agent);
        let act = stage.play().await;
        assert_eq!(act.played().end, Ended::Paused(lines(&["write-a"])), "{surface:?}");
        assert_eq!(log.take(), ["start read-b", "end read-b"], "{surface:?}");
        let mut paused = act.paused();
        paused.approve(stage.path("write-a")).expect("it waits");
        let act = stage.go_on(paused).await;
        assert_eq!(act.played().end, Ended::Finished("bye".to_owned()), "{surface:?}");
        assert_eq!(log.take(), ["start write-a", "end write-a", "start read-a", "end read-a"], "{surface:?}");
    }
}

#[tokio::test]
async fn s07_an_unknown_or_disabled_tool_is_answered_with_the_tools_there_are() {
    for surface in Surface::ALL {
        let log = Log::default();
        let calls = Reply::call("a", "effect", json!({}))
            .and_call("b", "efect", json!({}))
            .and_call("c", "off", json!({}))
            .and_call("d", "other", json!({}));
        let tools = (effect("effect", &log), effect("off", &log).enabled(false), effect("other", &log));
        let agent = agent([calls, Reply::text("bye")]).tools(tools);
        let act = Stage::new(surface, agent).play().await;
        let outputs = [
            "output a done",
            "output b Tool 'efect' not found. The tools are: effect, other.",
            "output c Tool 'off' not found. The tools are: effect, other.",
            "output d done",
            "assistant: bye",
        ];
        assert_eq!(act.played().said[4..], outputs, "{surface:?}");
        assert_eq!(log.take(), ["effect a", "other d"], "{surface:?}");
        assert_eq!(act.started(), ["a", "d"], "{surface:?}");
    }
}

#[tokio::test]
async fn s07_a_tool_switched_off_while_the_model_thought_does_not_run() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        let log = Log::default();
        let asked = Arc::new(AtomicBool::new(false));
        let off = effect("off", &log).enabled_if(move |_| !asked.swap(true, Ordering::SeqCst));
        let calls = Reply::call("a", "off", json!({})).and_call("b", "effect", json!({}));
        let agent = agent([calls, Reply::text("bye")]).tools((off, effect("effect", &log)));
        let act = Stage::new(surface, agent).play().await;
        assert_eq!(log.take(), ["effect b"], "{surface:?}");
        assert_eq!(
            act.hows(),
            [("a".to_owned(), How::Missing), ("b".to_owned(), How::Succeeded)],
            "{surface:?}"
        );
    }
}

#[tokio::test]
async fn s07_nothing_runs_where_an_unknown_tool_ends_the_run() {
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        let log = Log::default();
        let calls = Reply::call("a", "effect", json!({})).and_call("b", "efect", json!({}));
        let agent = agent([calls]).tools(effect("effect", &log));
        let act =
            Stage::new(surface, agent).configure(|run| run.missing_tool(MissingTool::Fail)).play().await;
        let missing = Misbehaviour::MissingTool {
            name: "efect".to_owned(),
            agent: "agent".into(),
            offered: vec!["effect".to_owned()],
        };
        let want = Played { end: Ended::Failed(Failure::Misbehaviour(missing)), said: Vec::new() };
        assert_eq!(act.played(), want, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}

#[tokio::test]
async fn s09_the_same_call_id_twice_in_one_answer_runs_once() {
    for surface in Surface::ALL {
        let log = Log::default();
        // The second spelling means the same.
        let calls = Reply::call("a", "effect", json!({ "x": 1, "y": 2 })).and_raw_call(
            "a",
            "effect",
            r#"{ "y":2.0, "x":1 }"#,
        );
        let agent = agent([calls, Reply::text("bye")]).tools(effect("effect", &log));
        let act = Stage::new(surface, agent).play().await;
        let said = [r#"call a effect {"x":1,"y":2}"#, "output a done", "assistant: bye"];
        assert_eq!(act.played(), finished("bye", &said), "{surface:?}");
        assert_eq!(log.take(), ["effect a"], "{surface:?}");
    }
}

#[tokio::test]
async fn s09_the_same_call_again_in_a_later_turn_is_not_run_again() {
    for surface in Surface::ALL {
        let log = Log::default();
        let call = || Reply::call("a", "effect", json!({}));
        let both = call().and_call("b", "effect", json!({}));
        let agent = agent([call(), call(), both, Reply::text("bye")]).tools(effect("effect", &log));
        let act = Stage::new(surface, agent).play().await;
        let said =
            ["call a effect {}", "output a done", "call b effect {}", "output b done", "assistant: bye"];
        assert_eq!(act.played(), finished("bye", &said), "{surface:?}");
        assert_eq!(log.take(), ["effect a", "effect b"], "{surface:?}");
    }
}

#[tokio::test]
async fn s09_another_payload_under_a_known_id_is_the_models_error() {
    let reused = || {
        let reused = Misbehaviour::ReusedCallId { call: "a".into(), name: "effect".to_owned() };
        Ended::Failed(Failure::Misbehaviour(reused))
    };
    for surface in [Surface::Blocking, Surface::Streamed, Surface::Nested] {
        let log = Log::default();
        let calls = Reply::call("b", "effect", json!({}))
            .and_call("a", "effect", json!({ "x": 1 }))
            .and_call("a", "effect", json!({ "x": 2 }));
        let act = Stage::new(surface, agent([calls]).tools(effect("effect", &log))).play().await;
        assert_eq!(act.played(), Played { end: reused(), said: Vec::new() }, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
    for surface in Surface::ALL {
        let log = Log::default();
        let first = Reply::call("a", "effect", json!({ "x": 1 }));
        let second = Reply::call("b", "effect", json!({})).and_call("a", "effect", json!({ "x": true }));
        let act = Stage::new(surface, agent([first, second]).tools(effect("effect", &log))).play().await;
        let said = lines(&[r#"call a effect {"x":1}"#, "output a done"]);
        assert_eq!(act.played(), Played { end: reused(), said }, "{surface:?}");
        assert_eq!(log.take(), ["effect a"], "{surface:?}");
    }
}
