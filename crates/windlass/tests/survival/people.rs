//! Human in the loop: S39 to S44.

use std::sync::Arc;

use serde_json::json;
use windlass::core::{
    decision::{Decision, DecisionScope, HoldReason},
    id::CallPath,
    journal::{DecisionRecorded, JournalEntry, JournalRecord, encode_journal},
    plan::call_digest,
    run::ApplyError,
    tool::ToolKey,
};
use windlass::prelude::*;
use windlass::{
    core::decision::PendingCall, core::journal::CallStatus, error::DecisionError, event::RunEventKind,
};

use crate::support::*;

fn gated_tool(log: &TestLog) -> Tool {
    logging_tool("gated", log).needs_approval()
}

async fn s39_what_needs_nobody_runs_now_and_the_rest_runs_once() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let calls = ScriptedResponse::call("a", "effect", json!({}))
            .and_call("b", "gated", json!({ "cents": 100 }))
            .and_call("c", "effect", json!({}));
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")])
            .tools((logging_tool("effect", &log), gated_tool(&log)));
        let stage = ScenarioRunner::new(surface, agent);
        let act = stage.run_to_pause().await;
        let calls = ["call a effect {}", r#"call b gated {"cents":100}"#, "call c effect {}"];
        let said = [&calls[..], &["output a done", "output c done"]].concat();
        assert_eq!(
            act.result(),
            ScenarioResult { end: ScenarioEnd::Paused(owned_lines(&["b"])), items: owned_lines(&said) },
            "{surface:?}"
        );
        assert_eq!(log.take(), ["effect a", "effect c"], "{surface:?}");
        let mut paused = act.into_paused();
        let want = PendingCall {
            path: stage.call_path("b"),
            agent: "agent".into(),
            tool: ToolKey::bare("gated"),
            arguments: r#"{"cents":100}"#.to_owned(),
            reason: HoldReason::Approval,
            attempt: 0,
            digest: call_digest(&ToolKey::bare("gated"), r#"{"cents":100}"#),
            expires_at: None,
            max_approval_scope: DecisionScope::ToolForRun,
            last_driver_seen: None,
            context_sources: Default::default(),
            posted: None,
        };
        assert_eq!(paused.pending_calls(), [want], "{surface:?}");
        paused.approve(stage.call_path("b")).expect("it waits");
        let act = stage.resume_paused(paused).await;
        let said =
            [&calls[..], &["output a done", "output b done", "output c done", "assistant: bye"]].concat();
        assert_eq!(act.result(), finished_result("bye", &said), "{surface:?}");
        assert_eq!(log.take(), ["gated b"], "{surface:?}");
    }
}

async fn s40_several_wait_together_and_each_is_told_its_own_reason() {
    for surface in RunSurface::ALL {
        // Every order, decided together and one by one.
        for order in [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]] {
            for at_once in [true, false] {
                let log = TestLog::default();
                let calls = ["a", "b", "c"].iter().fold(ScriptedResponse::items([]), |calls, call| {
                    calls.and_call(call, "gated", json!({ "for": call }))
                });
                let stage = ScenarioRunner::new(
                    surface,
                    scripted_agent([calls, ScriptedResponse::text("bye")]).tools(gated_tool(&log)),
                );
                let mut act = stage.run_to_pause().await;
                assert_eq!(
                    act.result().end,
                    ScenarioEnd::Paused(owned_lines(&["a", "b", "c"])),
                    "{surface:?}"
                );
                let mut paused = act.into_paused();
                for (at, call) in order.into_iter().enumerate() {
                    match call {
                        "b" => paused.approve(stage.call_path("b")),
                        other => paused.reject_because(stage.call_path(other), format!("not {other}")),
                    }
                    .expect("it waits");
                    if !at_once && at < 2 {
                        act = stage.resume_paused(paused).await;
                        let mut left: Vec<&str> = order[at + 1..].to_vec();
                        left.sort_unstable();
                        assert_eq!(act.result().end, ScenarioEnd::Paused(owned_lines(&left)), "{surface:?}");
                        paused = act.into_paused();
                    }
                }
                let act = stage.resume_paused(paused).await;
                let outputs = ["output a not a", "output b done", "output c not c", "assistant: bye"];
                assert_eq!(act.result().items[3..], outputs, "{surface:?} {order:?} {at_once}");
                assert_eq!(log.take(), ["gated b"], "{surface:?} {order:?} {at_once}");
            }
        }
    }
}

/// Returns a decision about `call`, as an approver would send it for these arguments.
fn sent_decision(call: &str, arguments: &str, decision: Decision) -> DecisionRecorded {
    let digest = call_digest(&ToolKey::bare("gated"), arguments);
    let scope = DecisionScope::ThisCall;
    let (decided_by, displayed, posted_revision) = (None, None, 0);
    DecisionRecorded {
        call: call.into(),
        digest,
        decision,
        scope,
        decided_by,
        displayed,
        posted_revision,
        signature: None,
        mac: None,
    }
}

fn with_entry(
    records: &[JournalRecord],
    within: &[windlass::core::id::CallId],
    entry: JournalEntry,
) -> Vec<JournalRecord> {
    let mut records = records.to_vec();
    let at = records.last().expect("a journal is never empty").at;
    records.push(JournalRecord { seq: records.len() as u64, at, path: within.to_vec(), entry });
    records
}

async fn s41_a_decision_about_other_arguments_does_not_count() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let replies =
            [ScriptedResponse::call("a", "gated", json!({ "cents": 100 })), ScriptedResponse::text("bye")];
        let stage = ScenarioRunner::new(surface, scripted_agent(replies).tools(gated_tool(&log)));
        let paused = stage.run_to_pause().await.into_paused();
        let records = paused.record().journal();
        let other = JournalEntry::DecisionRecorded(sent_decision("a", r#"{"cents":99}"#, Decision::Approve));
        let error = PausedRun::from_records(with_entry(records, &stage.parent_calls(), other))
            .expect_err("it is refused");
        let why = ApplyError::DigestMismatch("a".into());
        assert_eq!(
            error,
            windlass::core::run::ReplayError::InvalidRecord { seq: records.len() as u64, error: why },
            "{surface:?}"
        );
        // Another spelling of the same arguments has the same digest.
        let same = JournalEntry::DecisionRecorded(sent_decision("a", r#"{"cents":100}"#, Decision::Approve));
        let paused =
            PausedRun::from_records(with_entry(records, &stage.parent_calls(), same)).expect("it counts");
        assert_eq!(paused.pending_calls(), [], "{surface:?}");
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}

/// The saved text is modified after the decision: it contains other arguments.
async fn s41_arguments_that_changed_under_a_decision_do_not_run() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let replies =
            [ScriptedResponse::call("a", "gated", json!({ "cents": 100 })), ScriptedResponse::text("bye")];
        let stage = ScenarioRunner::new(surface, scripted_agent(replies).tools(gated_tool(&log)));
        let mut paused = stage.run_to_pause().await.into_paused();
        paused.approve(stage.call_path("a")).expect("it waits");
        let mut records = paused.record().journal().to_vec();
        for record in &mut records {
            if let JournalEntry::ModelResponded(answered) = &mut record.entry
                && record.path == stage.parent_calls()
            {
                answered.items[0] =
                    Arc::new(windlass::core::item::Item::call("a", "gated", r#"{"cents":90000}"#));
            }
        }
        let forged = encode_journal(&records);
        let end = match PausedRun::from_text(&forged) {
            Ok(paused) => stage
                .resume_paused(paused)
                .await
                .outcome
                .map(|outcome| outcome.output_text().expect("the run finished").to_owned()),
            Err(error) => Err(windlass::error::RunError::Replay(match error {
                windlass::error::RestoreError::Replay(error) => error,
                other => panic!("{other}"),
            })),
        };
        let error = end.expect_err("nothing runs");
        assert!(error.to_string().contains("call `"), "{error}");
        assert_eq!(log.take(), [""; 0], "{surface:?}: {error}");
    }
}

async fn s42_the_last_decision_counts() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let calls = ScriptedResponse::call("a", "gated", json!({})).and_call("b", "gated", json!({}));
        let stage = ScenarioRunner::new(
            surface,
            scripted_agent([calls, ScriptedResponse::text("bye")]).tools(gated_tool(&log)),
        );
        let mut paused = stage.run_to_pause().await.into_paused();
        paused.approve(stage.call_path("a")).expect("it waits");
        paused.approve(stage.call_path("a")).expect("said again");
        paused.reject_because(stage.call_path("b"), "no").expect("it waits");
        paused.reject_because(stage.call_path("b"), "no").expect("said again");
        // Nothing has started, so a different decision replaces the one before.
        paused.reject(stage.call_path("a")).expect("it is corrected");
        paused.approve(stage.call_path("a")).expect("and again");
        paused.approve(stage.call_path("b")).expect("it is corrected");
        paused.reject_because(stage.call_path("b"), "why").expect("and again");
        let act = stage.resume_paused(paused).await;
        assert_eq!(
            act.result().items[2..],
            ["output a done", "output b why", "assistant: bye"],
            "{surface:?}"
        );
        assert_eq!(log.take(), ["gated a"], "{surface:?}");
    }
}

async fn s42_the_same_decision_from_two_processes_is_one() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let replies = [ScriptedResponse::call("a", "gated", json!({})), ScriptedResponse::text("bye")];
        let stage = ScenarioRunner::new(surface, scripted_agent(replies).tools(gated_tool(&log)));
        let text = stage.run_to_pause().await.into_paused().to_text();
        let mut one = PausedRun::from_text(&text).expect("can be read");
        one.decide_as("one");
        one.approve(stage.call_path("a")).expect("it waits");
        let both = with_entry(
            one.record().journal(),
            &stage.parent_calls(),
            JournalEntry::DecisionRecorded(DecisionRecorded {
                decided_by: Some("other".to_owned()),
                ..sent_decision("a", "{}", Decision::Approve)
            }),
        );
        let act = stage.resume_paused(PausedRun::from_records(both).expect("the second says the same")).await;
        assert_eq!(act.result().end, ScenarioEnd::Finished("bye".to_owned()), "{surface:?}");
        assert_eq!(
            (log.take_in_order(), act.started_calls()),
            (owned_lines(&["gated a"]), owned_lines(&["a"])),
            "{surface:?}"
        );
    }
}

/// The driver was lost before it recorded the approval request; the decision still applies.
async fn s42_a_decision_before_its_request_counts() {
    for surface in [RunSurface::Resumed, RunSurface::NestedResumed] {
        for decision in [Decision::Approve, Decision::Reject { message: Some("no".to_owned()) }] {
            let log = TestLog::default();
            let replies = [ScriptedResponse::call("a", "gated", json!({})), ScriptedResponse::text("bye")];
            let stage = ScenarioRunner::new(surface, scripted_agent(replies).tools(gated_tool(&log)));
            let mut paused = stage.lose_first_driver().await;
            assert_eq!(paused.pending_calls(), [], "{surface:?}");
            paused
                .decide(stage.call_path("a"), decision.clone(), DecisionScope::ThisCall)
                .expect("it counts");
            let act = stage.resume_paused(paused).await;
            let (output, bodies) = match decision {
                Decision::Approve => ("output a done", owned_lines(&["gated a"])),
                _ => ("output a no", Vec::new()),
            };
            assert_eq!(act.result().items[1..], [output, "assistant: bye"], "{surface:?}");
            assert_eq!(log.take(), bodies, "{surface:?}");
            assert!(
                !act.entries().iter().any(|entry| matches!(entry, JournalEntry::CallHeld(_))),
                "nobody is asked again"
            );
        }
    }
}

/// The process crashes after every record from the decision on.
async fn s43_a_crash_after_the_decision_runs_the_call_once() {
    for surface in RunSurface::ALL {
        let script = || [ScriptedResponse::call("a", "gated", json!({})), ScriptedResponse::text("bye")];
        let log = TestLog::default();
        let whole = ScenarioRunner::new(surface, scripted_agent(script()).tools(gated_tool(&log)));
        let mut paused = whole.run_to_pause().await.into_paused();
        paused.approve(whole.call_path("a")).expect("it waits");
        let decided = paused.record().journal().len();
        let records = whole.resume_paused(paused).await.journal().to_vec();
        assert_eq!(log.take(), ["gated a"], "{surface:?}");
        for length in decided..=records.len() {
            let was_started = records[..length].iter().any(|record| {
                record.path == whole.parent_calls() && matches!(record.entry, JournalEntry::CallStarted(_))
            });
            let stage =
                whole.with_agent(scripted_agent([ScriptedResponse::text("bye")]).tools(gated_tool(&log)));
            let paused = PausedRun::from_records(records[..length].to_vec()).expect("a prefix adds up");
            let act = stage.resume_paused(paused).await;
            let ran = log.take_in_order();
            match act.result().end {
                // The call may have taken effect, so it does not run again without a decision.
                ScenarioEnd::Paused(waiting) => {
                    assert_eq!(
                        (waiting, ran, was_started),
                        (owned_lines(&["a"]), vec![], true),
                        "{surface:?} {length}"
                    );
                }
                ScenarioEnd::Finished(output) => {
                    let want = if was_started { vec![] } else { owned_lines(&["gated a"]) };
                    assert_eq!((output.as_str(), ran), ("bye", want), "{surface:?} {length}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Creates `depth` nested agents; the innermost makes a call that needs approval, and all levels use the same
/// call id.
fn nested_agents(depth: usize, log: &TestLog) -> Agent {
    let name = format!("agent-{depth}");
    if depth == 0 {
        let replies =
            [ScriptedResponse::call("gated", "gated", json!({ "n": 1 })), ScriptedResponse::text("done 0")];
        return Agent::new(name).model(ScriptedModel::new(replies)).tools(gated_tool(log));
    }
    let replies = [
        ScriptedResponse::call("down", "down", json!({ "input": "go" })),
        ScriptedResponse::text(format!("done {depth}")),
    ];
    let down = nested_agents(depth - 1, log).as_tool("down", "An agent.");
    Agent::new(name).model(ScriptedModel::new(replies)).tools(down)
}

async fn s44_an_approval_three_agents_deep_is_answered_at_the_top() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let stage = ScenarioRunner::new(surface, nested_agents(3, &log));
        let act = stage.run_to_pause().await;
        let path = CallPath::from(format!("{}/down/down/gated", stage.call_path("down")).as_str());
        if surface == RunSurface::Streamed {
            let held: Vec<_> =
                act.events.iter().filter(|event| matches!(event.kind, RunEventKind::CallHeld(_))).collect();
            let RunEventKind::CallHeld(pending) = &held[0].kind else { panic!("it was just found") };
            assert_eq!((held.len(), &pending.path), (1, &path));
        }
        let mut paused = act.into_paused();
        let waiting: Vec<_> = paused
            .pending_calls()
            .iter()
            .map(|pending| (pending.path.clone(), pending.agent.to_string()))
            .collect();
        assert_eq!(waiting, [(path.clone(), "agent-0".to_owned())], "{surface:?}");
        // The id alone is unambiguous here.
        paused.approve("gated").expect("it waits");
        let act = stage.resume_paused(paused).await;
        let said = [r#"call down down {"input":"go"}"#, "output down done 2", "assistant: done 3"];
        assert_eq!(act.result(), finished_result("done 3", &said), "{surface:?}");
        assert_eq!(log.take(), ["gated gated"], "{surface:?}");
    }
}

/// Two sibling agents and their parent make calls with the same id.
async fn s44_the_states_of_siblings_stay_apart() {
    for surface in RunSurface::ALL {
        let log = TestLog::default();
        let sibling = |name: &str| {
            let replies = [
                ScriptedResponse::call("c", "gated", json!({ "by": name })),
                ScriptedResponse::text(format!("{name} done")),
            ];
            let agent = Agent::new(name).model(ScriptedModel::new(replies)).tools(gated_tool(&log));
            agent.as_tool(name, "An agent.")
        };
        let calls = ScriptedResponse::call("x", "left", json!({ "input": "go" }))
            .and_call("y", "right", json!({ "input": "go" }))
            .and_call("c", "gated", json!({ "by": "top" }));
        let agent = scripted_agent([calls, ScriptedResponse::text("bye")]).tools((
            sibling("left"),
            sibling("right"),
            gated_tool(&log),
        ));
        let stage = ScenarioRunner::new(surface, agent);
        let act = stage.run_to_pause().await;
        let place = |path: &str| {
            CallPath::new(
                &[&stage.parent_calls()[..], CallPath::from(path).parent_calls()].concat(),
                "c".into(),
            )
        };
        let want = [
            (place("x/c"), r#"{"by":"left"}"#.to_owned()),
            (place("y/c"), r#"{"by":"right"}"#.to_owned()),
            (place("c"), r#"{"by":"top"}"#.to_owned()),
        ];
        if surface == RunSurface::Streamed {
            let mut held: Vec<_> = act
                .events
                .iter()
                .filter_map(|event| match &event.kind {
                    RunEventKind::CallHeld(pending) => {
                        Some((pending.path.clone(), pending.arguments.clone()))
                    }
                    _ => None,
                })
                .collect();
            held.sort();
            let mut want = want.to_vec();
            want.sort();
            assert_eq!(held, want);
        }
        let mut paused = act.into_paused();
        let shown = |paused: &PausedRun| -> Vec<_> {
            paused.pending_calls().into_iter().map(|pending| (pending.path, pending.arguments)).collect()
        };
        assert_eq!(shown(&paused), want, "{surface:?}");
        if stage.parent_calls().is_empty() {
            paused.reject("c").expect("the run's own call is meant");
        } else {
            assert_eq!(paused.approve("c"), Err(DecisionError::AmbiguousCall("c".into())), "{surface:?}");
            paused.reject(stage.call_path("c")).expect("it waits");
        }
        paused.approve(place("y/c")).expect("it waits");
        let act = stage.resume_paused(paused).await;
        assert_eq!(log.take(), ["gated c"], "{surface:?}");
        let mut paused = act.into_paused();
        assert_eq!(shown(&paused), want[..1], "{surface:?}");
        paused.reject_because(place("x/c"), "not left").expect("it waits");
        let act = stage.resume_paused(paused).await;
        let outputs = [
            "output x left done",
            "output y right done",
            "output c Tool execution was not approved.",
            "assistant: bye",
        ];
        assert_eq!(act.result().items[3..], outputs, "{surface:?}");
        assert_eq!(
            act.call_statuses().iter().filter(|(_, how)| *how == CallStatus::Succeeded).count(),
            2,
            "{surface:?}"
        );
        assert_eq!(log.take(), [""; 0], "{surface:?}");
    }
}

on_both_runtimes! {
    paused_clock:
        s43_a_crash_after_the_decision_runs_the_call_once;
    real_clock:
        s39_what_needs_nobody_runs_now_and_the_rest_runs_once,
        s40_several_wait_together_and_each_is_told_its_own_reason,
        s41_a_decision_about_other_arguments_does_not_count,
        s41_arguments_that_changed_under_a_decision_do_not_run,
        s42_the_last_decision_counts,
        s42_the_same_decision_from_two_processes_is_one,
        s42_a_decision_before_its_request_counts,
        s44_an_approval_three_agents_deep_is_answered_at_the_top,
        s44_the_states_of_siblings_stay_apart;
}
