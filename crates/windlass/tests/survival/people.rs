//! People: S39 to S44.

use std::sync::Arc;

use serde_json::json;
use windlass::core::{
    CallPath, Decided, Decision, Entry, HoldReason, Illegal, Reach, Record, ToolKey, call_digest, to_text,
};
use windlass::prelude::*;
use windlass::{DecideError, EventKind, How, Pending};

use crate::support::*;

fn gated(log: &Log) -> Tool {
    effect("gated", log).approve_always()
}

#[tokio::test]
async fn s39_what_needs_nobody_runs_now_and_the_rest_runs_once() {
    for surface in Surface::ALL {
        let log = Log::default();
        let calls = Reply::call("a", "effect", json!({}))
            .and_call("b", "gated", json!({ "cents": 100 }))
            .and_call("c", "effect", json!({}));
        let agent = agent([calls, Reply::text("bye")]).tools((effect("effect", &log), gated(&log)));
        let stage = Stage::new(surface, agent);
        let act = stage.play().await;
        let calls = ["call a effect {}", r#"call b gated {"cents":100}"#, "call c effect {}"];
        let said = [&calls[..], &["output a done", "output c done"]].concat();
        assert_eq!(
            act.played(),
            Played { end: Ended::Paused(lines(&["b"])), said: lines(&said) },
            "{surface:?}"
        );
        assert_eq!(log.take(), ["effect a", "effect c"], "{surface:?}");
        let mut paused = act.paused();
        let want = Pending {
            path: stage.path("b"),
            agent: "agent".into(),
            tool: ToolKey::bare("gated"),
            arguments: r#"{"cents":100}"#.to_owned(),
            reason: HoldReason::Approval,
            attempt: 0,
            digest: call_digest(&ToolKey::bare("gated"), r#"{"cents":100}"#),
            expires: None,
            reach: Reach::Always,
        };
        assert_eq!(paused.pending(), [want], "{surface:?}");
        paused.approve(stage.path("b")).expect("it waits");
        let act = stage.go_on(paused).await;
        let said =
            [&calls[..], &["output a done", "output b done", "output c done", "assistant: bye"]].concat();
        assert_eq!(act.played(), finished("bye", &said), "{surface:?}");
        assert_eq!(log.take(), ["gated b"], "{surface:?}");
    }
}

#[tokio::test]
async fn s40_several_wait_together_and_each_is_told_its_own_reason() {
    for surface in Surface::ALL {
        // In each order, at once and one after the other.
        for order in [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]] {
            for at_once in [true, false] {
                let log = Log::default();
                let calls = ["a", "b", "c"].iter().fold(Reply::items([]), |calls, call| {
                    calls.and_call(call, "gated", json!({ "for": call }))
                });
                let stage = Stage::new(surface, agent([calls, Reply::text("bye")]).tools(gated(&log)));
                let mut act = stage.play().await;
                assert_eq!(act.played().end, Ended::Paused(lines(&["a", "b", "c"])), "{surface:?}");
                let mut paused = act.paused();
                for (at, call) in order.into_iter().enumerate() {
                    match call {
                        "b" => paused.approve(stage.path("b")),
                        other => paused.reject_because(stage.path(other), format!("not {other}")),
                    }
                    .expect("it waits");
                    if !at_once && at < 2 {
                        act = stage.go_on(paused).await;
                        let mut left: Vec<&str> = order[at + 1..].to_vec();
                        left.sort_unstable();
                        assert_eq!(act.played().end, Ended::Paused(lines(&left)), "{surface:?}");
                        paused = act.paused();
                    }
                }
                let act = stage.go_on(paused).await;
                let outputs = ["output a not a", "output b done", "output c not c", "assistant: bye"];
                assert_eq!(act.played().said[3..], outputs, "{surface:?} {order:?} {at_once}");
                assert_eq!(log.take(), ["gated b"], "{surface:?} {order:?} {at_once}");
            }
        }
    }
}

/// A decision about `call` as somebody would have sent it, from what they were shown.
fn decided(call: &str, arguments: &str, decision: Decision) -> Decided {
    let digest = call_digest(&ToolKey::bare("gated"), arguments);
    Decided { call: call.into(), digest, decision, reach: Reach::Call, by: None }
}

fn with_entry(records: &[Record], within: &[windlass::core::CallId], entry: Entry) -> Vec<Record> {
    let mut records = records.to_vec();
    let at = records.last().expect("a journal is never empty").at;
    records.push(Record { seq: records.len() as u64, at, path: within.to_vec(), entry });
    records
}

#[tokio::test]
async fn s41_a_decision_about_other_arguments_does_not_count() {
    for surface in Surface::ALL {
        let log = Log::default();
        let replies = [Reply::call("a", "gated", json!({ "cents": 100 })), Reply::text("bye")];
        let stage = Stage::new(surface, agent(replies).tools(gated(&log)));
        let paused = stage.play().await.paused();
        let records = paused.record().journal();
        let other = Entry::Decided(decided("a", r#"{"cents":99}"#, Decision::Approve));
        let error =
            Paused::from_records(with_entry(records, &stage.within(), other)).expect_err("it is refused");
        let why = Illegal::NotCovered("a".into());
        assert_eq!(
            error,
            windlass::core::ReplayError::Illegal { seq: records.len() as u64, why },
            "{surface:?}"
        );
        // The same arguments in another spelling are what was shown.
        let same = Entry::Decided(decided("a", r#"{"cents":100}"#, Decision::Approve));
        let paused = Paused::from_records(with_entry(records, &stage.within(), same)).expect("it counts");
        assert_eq!(paused.pending(), [], "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}

/// Somebody writes other arguments into the text of a run after it was decided about.
#[tokio::test]
async fn s41_arguments_that_changed_under_a_decision_do_not_run() {
    for surface in Surface::ALL {
        let log = Log::default();
        let replies = [Reply::call("a", "gated", json!({ "cents": 100 })), Reply::text("bye")];
        let stage = Stage::new(surface, agent(replies).tools(gated(&log)));
        let mut paused = stage.play().await.paused();
        paused.approve(stage.path("a")).expect("it waits");
        let mut records = paused.record().journal().to_vec();
        for record in &mut records {
            if let Entry::Answered(answered) = &mut record.entry
                && record.path == stage.within()
            {
                answered.items[0] = Arc::new(windlass::Item::call("a", "gated", r#"{"cents":90000}"#));
            }
        }
        let forged = to_text(&records);
        let end = match Paused::from_text(&forged) {
            Ok(paused) => stage.go_on(paused).await.outcome.map(|outcome| outcome.text().to_owned()),
            Err(error) => Err(windlass::RunError::Replay(match error {
                windlass::RestoreError::Replay(error) => error,
                other => panic!("{other}"),
            })),
        };
        let error = end.expect_err("nothing runs");
        assert!(error.to_string().contains("call `"), "{error}");
        assert_eq!(log.take(), [""; 0], "{surface:?}: {error}");
    }
}

#[tokio::test]
async fn s42_the_same_decision_twice_is_one() {
    for surface in Surface::ALL {
        let log = Log::default();
        let calls = Reply::call("a", "gated", json!({})).and_call("b", "gated", json!({}));
        let stage = Stage::new(surface, agent([calls, Reply::text("bye")]).tools(gated(&log)));
        let mut paused = stage.play().await.paused();
        paused.approve(stage.path("a")).expect("it waits");
        paused.approve(stage.path("a")).expect("said again");
        paused.reject_because(stage.path("b"), "no").expect("it waits");
        paused.reject_because(stage.path("b"), "no").expect("said again");
        // A different one is not.
        let otherwise = |call: &str| Err(DecideError::Illegal(Illegal::AlreadyDecided(call.into())));
        assert_eq!(paused.reject(stage.path("a")), otherwise("a"), "{surface:?}");
        assert_eq!(paused.approve(stage.path("b")), otherwise("b"), "{surface:?}");
        assert_eq!(paused.reject_because(stage.path("b"), "why"), otherwise("b"), "{surface:?}");
        let act = stage.go_on(paused).await;
        assert_eq!(act.played().said[2..], ["output a done", "output b no", "assistant: bye"], "{surface:?}");
        assert_eq!(log.take(), ["gated a"], "{surface:?}");
    }
}

#[tokio::test]
async fn s42_the_same_decision_from_two_processes_is_one() {
    for surface in Surface::ALL {
        let log = Log::default();
        let replies = [Reply::call("a", "gated", json!({})), Reply::text("bye")];
        let stage = Stage::new(surface, agent(replies).tools(gated(&log)));
        let text = stage.play().await.paused().to_text();
        let mut one = Paused::from_text(&text).expect("can be read");
        one.decide_as("one");
        one.approve(stage.path("a")).expect("it waits");
        let both = with_entry(
            one.record().journal(),
            &stage.within(),
            Entry::Decided(Decided { by: Some("other".to_owned()), ..decided("a", "{}", Decision::Approve) }),
        );
        let act = stage.go_on(Paused::from_records(both).expect("the second says the same")).await;
        assert_eq!(act.played().end, Ended::Finished("bye".to_owned()), "{surface:?}");
        assert_eq!((log.take(), act.started()), (lines(&["gated a"]), lines(&["a"])), "{surface:?}");
    }
}

/// The request was not written down when its driver was lost; the decision comes all the same.
#[tokio::test]
async fn s42_a_decision_before_its_request_counts() {
    for surface in [Surface::Resumed, Surface::NestedResumed] {
        for decision in [Decision::Approve, Decision::Reject { message: Some("no".to_owned()) }] {
            let log = Log::default();
            let replies = [Reply::call("a", "gated", json!({})), Reply::text("bye")];
            let stage = Stage::new(surface, agent(replies).tools(gated(&log)));
            let mut paused = stage.lost().await;
            assert_eq!(paused.pending(), [], "{surface:?}");
            paused.decide(stage.path("a"), decision.clone(), Reach::Call).expect("it counts");
            let act = stage.go_on(paused).await;
            let (output, bodies) = match decision {
                Decision::Approve => ("output a done", lines(&["gated a"])),
                _ => ("output a no", Vec::new()),
            };
            assert_eq!(act.played().said[1..], [output, "assistant: bye"], "{surface:?}");
            assert_eq!(log.take(), bodies, "{surface:?}");
            assert!(
                !act.entries().iter().any(|entry| matches!(entry, Entry::Held(_))),
                "nobody is asked again"
            );
        }
    }
}

/// The process ends at every record after the decision.
#[tokio::test(start_paused = true)]
async fn s43_a_crash_after_the_decision_runs_the_call_once() {
    for surface in Surface::ALL {
        let script = || [Reply::call("a", "gated", json!({})), Reply::text("bye")];
        let log = Log::default();
        let whole = Stage::new(surface, agent(script()).tools(gated(&log)));
        let mut paused = whole.play().await.paused();
        paused.approve(whole.path("a")).expect("it waits");
        let decided = paused.record().journal().len();
        let records = whole.go_on(paused).await.journal().to_vec();
        assert_eq!(log.take(), ["gated a"], "{surface:?}");
        for length in decided..=records.len() {
            let was_started = records[..length]
                .iter()
                .any(|record| record.path == whole.within() && matches!(record.entry, Entry::CallStarted(_)));
            let stage = whole.recast(agent([Reply::text("bye")]).tools(gated(&log)));
            let paused = Paused::from_records(records[..length].to_vec()).expect("a prefix adds up");
            let act = stage.go_on(paused).await;
            let ran = log.take();
            match act.played().end {
                // It may have happened: nobody does it again unasked.
                Ended::Paused(waiting) => {
                    assert_eq!(
                        (waiting, ran, was_started),
                        (lines(&["a"]), vec![], true),
                        "{surface:?} {length}"
                    );
                }
                Ended::Finished(output) => {
                    let want = if was_started { vec![] } else { lines(&["gated a"]) };
                    assert_eq!((output.as_str(), ran), ("bye", want), "{surface:?} {length}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// `depth` agents inside one another; the innermost makes a gated call, each time under the same call id.
fn deep(depth: usize, log: &Log) -> Agent {
    let name = format!("agent-{depth}");
    if depth == 0 {
        let replies = [Reply::call("gated", "gated", json!({ "n": 1 })), Reply::text("done 0")];
        return Agent::new(name).model(ScriptedModel::new(replies)).tools(gated(log));
    }
    let replies =
        [Reply::call("down", "down", json!({ "input": "go" })), Reply::text(format!("done {depth}"))];
    let down = deep(depth - 1, log).as_tool("down", "An agent.");
    Agent::new(name).model(ScriptedModel::new(replies)).tools(down)
}

#[tokio::test]
async fn s44_an_approval_three_agents_deep_is_answered_at_the_top() {
    for surface in Surface::ALL {
        let log = Log::default();
        let stage = Stage::new(surface, deep(3, &log));
        let act = stage.play().await;
        let path = CallPath::from(format!("{}/down/down/gated", stage.path("down")).as_str());
        if surface == Surface::Streamed {
            let held: Vec<_> =
                act.events.iter().filter(|event| matches!(event.kind, EventKind::Held(_))).collect();
            let EventKind::Held(pending) = &held[0].kind else { panic!("it was just found") };
            assert_eq!((held.len(), &pending.path), (1, &path));
        }
        let mut paused = act.paused();
        let waiting: Vec<_> = paused
            .pending()
            .iter()
            .map(|pending| (pending.path.clone(), pending.agent.to_string()))
            .collect();
        assert_eq!(waiting, [(path.clone(), "agent-0".to_owned())], "{surface:?}");
        // The id alone means only one call, and is enough.
        paused.approve("gated").expect("it waits");
        let act = stage.go_on(paused).await;
        let said = [r#"call down down {"input":"go"}"#, "output down done 2", "assistant: done 3"];
        assert_eq!(act.played(), finished("done 3", &said), "{surface:?}");
        assert_eq!(log.take(), ["gated gated"], "{surface:?}");
    }
}

/// Two agents side by side and the one around them make calls with the same id.
#[tokio::test]
async fn s44_the_states_of_siblings_stay_apart() {
    for surface in Surface::ALL {
        let log = Log::default();
        let sibling = |name: &str| {
            let replies =
                [Reply::call("c", "gated", json!({ "by": name })), Reply::text(format!("{name} done"))];
            let agent = Agent::new(name).model(ScriptedModel::new(replies)).tools(gated(&log));
            agent.as_tool(name, "An agent.")
        };
        let calls = Reply::call("x", "left", json!({ "input": "go" }))
            .and_call("y", "right", json!({ "input": "go" }))
            .and_call("c", "gated", json!({ "by": "top" }));
        let agent =
            agent([calls, Reply::text("bye")]).tools((sibling("left"), sibling("right"), gated(&log)));
        let stage = Stage::new(surface, agent);
        let act = stage.play().await;
        let place = |path: &str| {
            CallPath::new(&[&stage.within()[..], CallPath::from(path).within()].concat(), "c".into())
        };
        let want = [
            (place("x/c"), r#"{"by":"left"}"#.to_owned()),
            (place("y/c"), r#"{"by":"right"}"#.to_owned()),
            (place("c"), r#"{"by":"top"}"#.to_owned()),
        ];
        if surface == Surface::Streamed {
            let mut held: Vec<_> = act
                .events
                .iter()
                .filter_map(|event| match &event.kind {
                    EventKind::Held(pending) => Some((pending.path.clone(), pending.arguments.clone())),
                    _ => None,
                })
                .collect();
            held.sort();
            let mut want = want.to_vec();
            want.sort();
            assert_eq!(held, want);
        }
        let mut paused = act.paused();
        let shown = |paused: &Paused| -> Vec<_> {
            paused.pending().into_iter().map(|pending| (pending.path, pending.arguments)).collect()
        };
        assert_eq!(shown(&paused), want, "{surface:?}");
        if stage.within().is_empty() {
            paused.reject("c").expect("the run's own call is meant");
        } else {
            assert_eq!(paused.approve("c"), Err(DecideError::Ambiguous("c".into())), "{surface:?}");
            paused.reject(stage.path("c")).expect("it waits");
        }
        paused.approve(place("y/c")).expect("it waits");
        let act = stage.go_on(paused).await;
        assert_eq!(log.take(), ["gated c"], "{surface:?}");
        let mut paused = act.paused();
        assert_eq!(shown(&paused), want[..1], "{surface:?}");
        paused.reject_because(place("x/c"), "not left").expect("it waits");
        let act = stage.go_on(paused).await;
        let outputs = [
            "output x left done",
            "output y right done",
            "output c Tool execution was not approved.",
            "assistant: bye",
        ];
        assert_eq!(act.played().said[3..], outputs, "{surface:?}");
        assert_eq!(act.hows().iter().filter(|(_, how)| *how == How::Succeeded).count(), 2, "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}
