//! Tests of journal inspection over the golden files.

use std::sync::Arc;

use super::*;
use crate::golden::{GOLDEN_FILES, golden_records, golden_text};
use crate::{
    canonical::Digest,
    decision::{Decision, DecisionScope},
    id::RunId,
    idempotency::CallKey,
    item::ReasoningItem,
    journal::{
        CallSettled, CallStarted, CallStatus, HashChain, JournalFormatError, JournalLine, ModelResponded,
        RunStarted, decode_journal, encode_journal,
    },
    plan::{CallDisposition, ResolvedTool, ResponsePlan, ToolLookup, plan_response},
    run::{ApplyError, CallEffect, CallProgress, TurnSchedule},
    tool::{ToolEffect, ToolKey},
    usage::Usage,
};

fn fork_golden(
    records: &[JournalRecord],
    at: u64,
    change: ForkChange,
) -> Result<Vec<JournalRecord>, ForkError> {
    fork(records, at, "fork".into(), change)
}

fn replay_run(records: &[JournalRecord]) -> Run {
    Run::replay(records).expect("it replays").run
}

/// Returns the name of the first effect of each call that can go on.
fn call_actions(run: &Run) -> Vec<String> {
    if run.next() != RunAction::AdvanceCalls {
        return vec![];
    }
    let name = |effect: &CallEffect| match effect {
        CallEffect::EvaluateApprovalRule { .. } => "gate",
        CallEffect::Hold(_) => "hold",
        CallEffect::Start(_) => "run",
        CallEffect::RunBody(_) => "go on",
        CallEffect::ReportInvalidArguments { .. } => "invalid",
        CallEffect::RunOutputGuardrails { .. } => "check",
        CallEffect::Settle(_) => "settle",
        CallEffect::Reconcile => "doubt",
        other => panic!("a call begins with {other:?}"),
    };
    let mut schedule = TurnSchedule::new(run, usize::MAX);
    let ready = std::iter::from_fn(|| schedule.begin_call(run));
    ready
        .map(|(_, call)| format!("{} {call}", name(&run.next_effect(&call, &CallProgress::default()))))
        .collect()
}

fn assistant_says(text: &str) -> ForkChange {
    let items = vec![Arc::new(Item::assistant(text))];
    ForkChange::ModelResponse(Box::new(model_responded("desk", items)))
}

fn model_responded(agent: &str, items: Vec<Arc<Item>>) -> ModelResponded {
    let lookup = |call: &crate::item::ToolCall| {
        ToolLookup::Tool(ResolvedTool {
            sources: Default::default(),
            key: ToolKey::for_call(call),
            body: crate::plan::BodyKind::Function,
            effect: ToolEffect::Once,
            approval_policy: crate::tool::ApprovalPolicy::NotRequired,
            conflict_key: None,
            arguments: Ok(call.arguments.as_str().into()),
        })
    };
    let before = Run::start(RunStarted::new("run".into(), agent.into()));
    let ResponsePlan { items, calls, duplicate_calls: repeated, context_sources } =
        plan_response(items, &agent.into(), &before, lookup).expect("it can be planned");
    let (agent, usage) = (agent.into(), Usage::default());
    let after = crate::journal::ToolUsePolicyKind::RunModelAgain;
    ModelResponded {
        agent,
        items,
        calls,
        duplicate_calls: repeated,
        context_sources,
        tool_use_policy: after,
        usage,
        response_id: None,
        request_id: None,
        model: None,
        attempts: 1,
        requested_at: None,
        requested: Default::default(),
        finish_reason: None,
        active_ms: 0,
    }
}

#[test]
fn a_run_can_be_seen_as_it_stood() {
    for (name, _) in GOLDEN_FILES {
        let records = golden_records(name);
        for record in &records {
            let run = run_at(&records, record.seq).expect("every record has a state");
            assert_eq!(run, replay_run(&records[..=record.seq as usize]), "{name} at {}", record.seq);
        }
    }
    let records = golden_records("paused");
    assert_eq!(run_at(&records, 2).expect("it is there").pending_calls().len(), 0);
    assert_eq!(run_at(&records, 4).expect("it is there").pending_calls().len(), 2);
    let beyond = run_at(&records, 6).expect_err("it has six records");
    assert_eq!(beyond.to_string(), "there is no record 6: the journal has 6, numbered from 0");
}

#[test]
fn every_record_is_told_in_one_line() {
    for (name, _) in GOLDEN_FILES {
        let records = golden_records(name);
        let told = step_lines(&records);
        assert_eq!(told.len(), records.len());
        for (line, record) in told.iter().zip(&records) {
            assert_eq!((line.seq, line.at, &line.path), (record.seq, record.at, &record.path));
            assert!(!line.text.contains('\n') && line.text.chars().count() < 500, "{line}");
            assert_ne!(line.agent, "?", "{line}");
        }
    }
    let told: Vec<String> = step_lines(&golden_records("nested")).iter().map(StepLine::to_string).collect();
    assert_eq!(
        told,
        [
            "   0  office: started: “Is anything open?”",
            "   1  office: turn 1: the model calls `books` (c1)",
            "   2  office: call c1 of `books` starts",
            "   3  c1/clerk: started: “Settle invoice 9.”",
            "   4  c1/clerk: turn 1: the model calls `pay` (p1)",
            "   5  c1/clerk: call p1 of `pay` waits for approval",
        ]
    );
    let told = step_lines(&golden_records("handoffs"));
    assert_eq!(
        told[5].to_string(),
        "   5  desk: call h1 of `transfer_to_billing` passes control to `billing`, which sees a filtered history"
    );
    assert_eq!(told[6].agent, "billing");
    assert!(
        step_lines(&golden_records("forked"))[0]
            .text
            .starts_with("started as a fork of run `run-finished` at record 7: “What")
    );
}

#[test]
fn what_was_withheld_is_told_without_its_words() {
    let told: Vec<String> = step_lines(&golden_records("statuses")).iter().map(StepLine::to_string).collect();
    let line = |words: &str| {
        let found = told.iter().filter(|line| line.contains(words)).count();
        assert_eq!(found, 1, "{words}: {told:#?}");
    };
    line("call checked of `look` ends, with its output withheld");
    line("call checked of `look` succeeded: “seen”");
    line("call blocked of `look` was executed, with its output withheld: “Output withheld.”");
    line("call left of `look` ended late: “at last”");
    line("call left2 of `look` failed late, with its output withheld");
    let told: Vec<String> = step_lines(&golden_records("items")).iter().map(StepLine::to_string).collect();
    assert!(told.iter().any(|line| line.ends_with("desk: the next request is filtered")), "{told:#?}");
    let told: Vec<String> = step_lines(&golden_records("failures")).iter().map(StepLine::to_string).collect();
    let ends = "call x1 of `look` failed, which ends the run: “broken”";
    assert!(told.iter().any(|line| line.ends_with(ends)), "{told:#?}");
}

#[test]
fn a_fork_goes_on_with_what_was_withheld() {
    let records = golden_records("statuses");
    let ended = |record: &&JournalRecord| matches!(&record.entry, JournalEntry::CallBodyEnded(ended) if ended.call == "checked");
    let at = records.iter().find(ended).expect("its body ended").seq;
    let run = replay_run(&fork_golden(&records, at, ForkChange::Unchanged).expect("it fits"));
    assert!(call_actions(&run).contains(&"check checked".to_owned()), "{:?}", call_actions(&run));
    let other = |how| ForkChange::CallOutput { call: "checked".into(), status: how, output: "other".into() };
    let fork = fork_golden(&records, at, other(CallStatus::Succeeded)).expect("it has no output yet");
    assert!(!call_actions(&replay_run(&fork)).contains(&"check checked".to_owned()));
    let otherwise = fork_golden(&records, at, other(CallStatus::Failed)).expect_err("its body succeeded");
    assert!(otherwise.to_string().ends_with("its body ended otherwise"), "{otherwise}");
}

#[test]
fn the_exact_input_of_a_turn_can_be_seen() {
    let records = golden_records("finished");
    let first = turn_input(&records, &[], 1).expect("the model was asked");
    assert_eq!((first.agent.as_str(), first.items.len(), first.response_seq), ("desk", 3, Some(2)));
    let second = turn_input(&records, &[], 2).expect("the model was asked twice");
    assert_eq!((second.items.len(), second.response_seq), (9, Some(8)));
    assert_eq!(second.items.last(), Some(&Arc::new(Item::user("Be brief."))), "with what came in between");
    let nobody = turn_input(&records, &[], 3).expect_err("it was not asked again");
    assert_eq!(nobody.to_string(), "there is no turn 3: the model was asked for 2, numbered from 1");
    assert_eq!(turn_input(&records, &[], 0), Err(InspectError::NoSuchTurn { turn: 0, turns: 2 }));

    let records = golden_records("handoffs");
    let filtered = turn_input(&records, &[], 2).expect("the model was asked");
    assert_eq!((filtered.agent.as_str(), filtered.items.len()), ("billing", 1));

    let records = golden_records("nested");
    let inner = turn_input(&records, &["c1".into()], 1).expect("the nested model was asked");
    assert_eq!(inner.agent, "clerk");
    assert_eq!(inner.items, [Arc::new(Item::user("Settle invoice 9."))]);
    let nobody = turn_input(&records, &["c9".into()], 1).expect_err("no agent is there");
    assert_eq!(nobody.to_string(), "no agent ran inside call `c9`");

    let due = turn_input(&golden_records("forked"), &[], 2).expect("the model is to be asked");
    assert_eq!((due.items.len(), due.response_seq), (9, None));
}

#[test]
fn a_fork_goes_on_from_any_record() {
    for (name, _) in GOLDEN_FILES {
        let records = golden_records(name);
        for record in &records {
            let fork = fork_golden(&records, record.seq, ForkChange::Unchanged).expect("any record will do");
            let (run, before) = (replay_run(&fork), run_at(&records, record.seq).expect("it is there"));
            assert_eq!(run.next(), before.next(), "{name} at {}", record.seq);
            assert_eq!(call_actions(&run), call_actions(&before), "{name} at {}", record.seq);
            assert_eq!(run.withheld_calls(), before.withheld_calls(), "{name} at {}", record.seq);
            assert_eq!(run.history(), before.history());
            assert_eq!(run.id(), &RunId::from("fork"));
            let origin = fork_origin(&fork).expect("a fork says where it comes from");
            assert_eq!((&origin.run, origin.seq), (before.id(), record.seq));
            for call in before.calls_in_flight() {
                // A call that a receipt answers never started.
                let has_key = before.call_key(&call).is_some();
                assert!(has_key || !before.is_call_running(&call), "{name} at {}: {call}", record.seq);
                // Once it is known that the call had no effect, the fork makes a call of its own.
                let is_open = before.is_call_running(&call)
                    || before.pending_calls().iter().any(|pending| *pending.path.call() == call)
                    || before.withheld_calls().iter().any(|path| *path.call() == call);
                let kept = before.call_key(&call).filter(|_| is_open);
                assert_eq!(run.call_key(&call), kept, "{name} at {}: {call}", record.seq);
            }
            assert_eq!(run.session(), None, "a session has one story");
            let again = decode_journal(&encode_journal(&fork)).expect("a fork can be saved");
            assert_eq!(again, fork);
        }
    }
}

#[test]
fn nested_agents_are_renamed_with_the_run() {
    let fork = fork_golden(&golden_records("nested"), 5, ForkChange::Unchanged).expect("it fits");
    let JournalEntry::RunStarted(inner) = &fork[3].entry else { panic!("a nested agent begins there") };
    assert_eq!(inner.run, "fork/c1");
    assert_eq!(inner.origin, None, "the outermost run says where it comes from");
}

#[test]
fn a_fork_does_not_run_a_call_again_that_must_not_happen_twice() {
    let records = golden_records("crashed");
    let fork = fork_golden(&records, 4, ForkChange::Unchanged).expect("it fits");
    assert_eq!(call_actions(&replay_run(&fork)), ["run c1", "run c2", "doubt c3"], "c4 follows c3");
    // The fork is made between the start of a call and its settlement, so the call took effect in the original
    // run.
    let records = golden_records("decisions");
    let settled = settlement_seq(&records, &"c2".into()).expect("it settled");
    let fork = fork_golden(&records, settled - 1, ForkChange::Unchanged).expect("it fits");
    assert!(
        call_actions(&replay_run(&fork)).contains(&"doubt c2".to_owned()),
        "{:?}",
        replay_run(&fork).next()
    );
    let nested = golden_records("failures");
    for record in &nested {
        let run = replay_run(&fork_golden(&nested, record.seq, ForkChange::Unchanged).expect("it fits"));
        assert!(
            !call_actions(&run).contains(&"doubt c0".to_owned()),
            "an agent is gone on with, not doubted"
        );
    }
}

#[test]
fn a_fork_with_another_answer() {
    let records = golden_records("finished");
    let other = fork_golden(&records, 8, assistant_says("I do not know.")).expect("the answer is replaced");
    assert_eq!(other.len(), 9);
    assert!(
        matches!(replay_run(&other).next(), RunAction::Finish(candidate) if candidate.output == "I do not know.")
    );
    let appended =
        fork_golden(&records, 7, assistant_says("I do not know.")).expect("the model is asked there");
    let answer = |records: &[JournalRecord]| records.last().map(|record| record.entry.clone());
    assert_eq!(answer(&appended), answer(&other), "after the last output comes the same");
    let early = fork_golden(&records, 1, assistant_says("Ask me tomorrow."))
        .expect("a failure of the model is replaced too");
    assert_eq!(early.len(), 2);

    let items = vec![
        Arc::new(Item::Reasoning(ReasoningItem {
            summary: String::new(),
            item_id: None,
            raw: true.into(),
            origin: None,
        })),
        Arc::new(Item::call("n1", "pay", "{}")),
    ];
    let with_calls = ForkChange::ModelResponse(Box::new(model_responded("desk", items)));
    let fork = fork_golden(&records, 8, with_calls).expect("an answer may have calls");
    assert_eq!(call_actions(&replay_run(&fork)), ["run n1"]);

    let misplaced = fork_golden(&records, 4, assistant_says("too early")).expect_err("calls are open");
    assert_eq!(
        misplaced.to_string(),
        "the change does not fit the run after record 4: `model_responded` does not fit here: the model was not asked"
    );
    let nested = golden_records("nested");
    let inner = ModelResponded {
        agent: "clerk".into(),
        ..model_responded("clerk", vec![Arc::new(Item::assistant("Paid."))])
    };
    let fork = fork_golden(&nested, 4, ForkChange::ModelResponse(Box::new(inner)))
        .expect("a nested answer can be another");
    assert_eq!(fork[4].path, nested[4].path);
}

#[test]
fn a_fork_with_another_output() {
    let records = golden_records("finished");
    let other =
        |how, output: &str| ForkChange::CallOutput { call: "c2".into(), status: how, output: output.into() };
    let fork = fork_golden(&records, 5, other(CallStatus::Failed, "no such file"))
        .expect("the settlement is replaced");
    assert_eq!(fork.len(), 6);
    assert_eq!(call_actions(&replay_run(&fork)), ["run c1"], "its sibling had started, and only looks");
    let appended = fork_golden(&records, 4, other(CallStatus::Succeeded, "nothing")).expect("it was running");
    assert_eq!((appended.len(), appended[5].at), (6, records[4].at));
    let settled =
        fork_golden(&records, 6, other(CallStatus::Succeeded, "twice")).expect_err("it has an output there");
    assert!(settled.to_string().ends_with("call `c2` has already settled"), "{settled}");
    let early = fork_golden(&records, 2, other(CallStatus::Succeeded, "never ran"))
        .expect_err("it has not started there");
    assert!(early.to_string().ends_with("the call never started"), "{early}");

    let nested = golden_records("failures");
    let settled = settlement_seq(&nested, &"c0".into()).expect("it settled");
    let change = ForkChange::CallOutput {
        call: "c0".into(),
        status: CallStatus::Succeeded,
        output: "All is well.".into(),
    };
    let fork = fork_golden(&nested, settled, change).expect("a nested agent's output can be another");
    assert_eq!(fork.len() as u64, settled + 1);
}

#[test]
fn a_fork_with_another_decision() {
    let decide = |call: &str, decision| ForkChange::CallDecision {
        call: call.into(),
        decision,
        scope: DecisionScope::ThisCall,
        decided_by: Some("cleo".to_owned()),
    };
    let records = golden_records("decisions");
    let approved = records
        .iter()
        .position(|record| matches!(record.entry, JournalEntry::DecisionRecorded(_)))
        .expect("there is one");
    let change = decide("c1", Decision::Reject { message: None });
    let fork = fork_golden(&records, approved as u64, change).expect("the decision is replaced");
    assert_eq!(fork.len(), approved + 1);
    let change = decide("c1", Decision::Reject { message: None });
    let fork = fork_golden(&records, approved as u64 + 1, change).expect("the decision is corrected");
    assert_eq!(fork.len(), approved + 3);
    let started = records
        .iter()
        .position(
            |record| matches!(&record.entry, JournalEntry::CallStarted(started) if started.call == "c1"),
        )
        .expect("it started");
    let change = decide("c1", Decision::Reject { message: None });
    let contradiction = fork_golden(&records, started as u64, change).expect_err("it has started by then");
    assert!(
        contradiction.to_string().ends_with("a different decision about call `c1` was already recorded"),
        "{contradiction}"
    );

    let nested = golden_records("nested");
    let fork = fork_golden(&nested, 5, decide("c1/p1", Decision::Approve)).expect("it waits");
    assert!(replay_run(&fork).pending_calls().is_empty());
    let unknown =
        fork_golden(&nested, 5, decide("c1/p9", Decision::Approve)).expect_err("there is no such call");
    assert!(unknown.to_string().ends_with("there is no open call `p9`"), "{unknown}");
}

#[test]
fn a_fork_has_an_id_of_its_own_and_a_beginning() {
    let records = golden_records("paused");
    let same = fork(&records, 2, "run-paused".into(), ForkChange::Unchanged);
    assert_eq!(same, Err(ForkError::SameRunId("run-paused".into())));
    assert!(matches!(
        fork_golden(&records, 99, ForkChange::Unchanged),
        Err(ForkError::Inspect(InspectError::NoSuchRecord { .. }))
    ));
    assert!(matches!(
        fork_golden(&[], 0, ForkChange::Unchanged),
        Err(ForkError::Inspect(InspectError::NoSuchRecord { .. }))
    ));
    let twice = fork(
        &fork_golden(&records, 5, ForkChange::Unchanged).expect("it fits"),
        3,
        "fork-2".into(),
        ForkChange::Unchanged,
    );
    let twice = twice.expect("a fork can be forked");
    let origin = fork_origin(&twice).expect("it says where it comes from");
    assert_eq!((&origin.run, origin.seq), (&"fork".into(), 3));
}

/// Applies the start of an attempt with a key.
fn start_call(run: &mut Run, call: &str, attempt: u32, key: &str) -> Result<(), ApplyError> {
    let key = CallKey { idempotency_key: key.into(), receipt_digest: None, generation: 0 };
    let started = CallStarted::new(call.into(), attempt, key, 1);
    run.apply(&JournalEntry::CallStarted(started)).map(|_| ())
}

#[test]
fn a_fork_renews_the_key_of_a_call_that_had_no_effect() {
    let records = golden_records("decisions");
    let is_confirmed = |record: &&JournalRecord| matches!(&record.entry, JournalEntry::DecisionRecorded(made) if made.decision == Decision::ConfirmNotExecuted);
    let confirmed = records.iter().find(is_confirmed).expect("c2 did not happen").seq;
    let mut origin = run_at(&records, confirmed).expect("it is there");
    assert!(origin.call_key(&"c2".into()).is_some() && !origin.has_inherited_key(&"c2".into()));
    let refused = start_call(&mut origin, "c2", 2, "wl-other").expect_err("a run has one key for a call");
    assert!(refused.to_string().contains("another idempotency key"), "{refused}");

    let fork = fork_golden(&records, confirmed, ForkChange::Unchanged).expect("any record will do");
    let mut forked = replay_run(&fork);
    assert_eq!(forked.call_key(&"c2".into()), None);
    start_call(&mut forked, "c2", 2, "wl-other").expect("it is a call of the fork");
    let renewed = forked.call_key(&"c2".into()).expect("it has started");
    assert_eq!(renewed.idempotency_key, "wl-other");
    assert!(start_call(&mut forked, "c2", 3, "wl-third").is_err(), "the fork has one key for it, too");

    // An idempotent call whose outcome is unknown keeps its key.
    let crashed = golden_records("crashed");
    let mut forked = replay_run(&fork_golden(&crashed, 4, ForkChange::Unchanged).expect("it fits"));
    let planned = forked.call_disposition(&"c2".into());
    let is_idempotent =
        matches!(planned, Some(CallDisposition::Execute { effect: ToolEffect::Idempotent, .. }));
    assert!(is_idempotent, "{planned:?}");
    assert!(start_call(&mut forked, "c2", 2, "wl-other").is_err(), "it may have happened under its key");
}

#[test]
fn calls_under_way_keep_their_recorded_keys_in_forks() {
    let approve = ForkChange::CallDecision {
        call: "c1/p1".into(),
        decision: Decision::Approve,
        scope: DecisionScope::ThisCall,
        decided_by: None,
    };
    let mut records = fork(&golden_records("nested"), 5, "first".into(), approve).expect("it waits");
    let add = |records: &mut Vec<JournalRecord>, entry| {
        let (seq, at) = (records.len() as u64, records[0].at);
        records.push(JournalRecord { seq, at, path: vec!["c1".into()], entry });
    };
    let key = CallKey { idempotency_key: "wl-p1".into(), receipt_digest: None, generation: 0 };
    add(&mut records, JournalEntry::CallStarted(CallStarted::new("p1".into(), 1, key.clone(), 1)));
    let begun = records.len() as u64 - 1;

    let fork_1 = fork(&records, begun, "second".into(), ForkChange::Unchanged).expect("any record will do");
    let fork_2 = fork(&fork_1, begun, "third".into(), ForkChange::Unchanged).expect("a fork can be forked");
    for (name, records) in [("second", &fork_1), ("third", &fork_2)] {
        let run = replay_run(records);
        let child = run.nested_run(&"c1".into()).expect("the agent is inside");
        assert_eq!(child.id().as_str(), format!("{name}/c1"));
        assert_eq!(child.call_key(&"p1".into()), Some(&key), "{name}");
        assert!(run.call_key(&"c1".into()).is_some(), "{name}");
    }

    add(
        &mut records,
        JournalEntry::CallSettled(CallSettled::new("p1".into(), CallStatus::Succeeded, "paid")),
    );
    let later =
        fork(&records, begun + 1, "fourth".into(), ForkChange::Unchanged).expect("any record will do");
    let later = replay_run(&later);
    let child = later.nested_run(&"c1".into()).expect("the agent is inside");
    assert_eq!(child.call_key(&"p1".into()), None, "what has ended is not gone on with");
}

#[test]
fn runs_are_compared() {
    let records = golden_records("finished");
    let same = diff_runs(&records, &fork_golden(&records, 9, ForkChange::Unchanged).expect("it fits"));
    assert!(same.is_empty(), "ids, times, origins and sessions differ by nature");
    assert_eq!(same.to_string(), "both runs are the same, in 10 records\n");

    let parted = diff_runs(&records, &golden_records("forked"));
    assert_eq!((parted.common_records, parted.first_steps.len(), parted.second_steps.len()), (7, 3, 1));
    let difference = parted.first_difference.as_ref().expect("both go on");
    assert_eq!(difference.seq, 7);
    assert_eq!(difference.fields[0].field, "output");
    assert_eq!(
        parted.to_string(),
        "the first 7 records are the same\n\
         record 7: `output` is \"Bo owes 5 €.\" in the first and \"Bo owes 7 €.\" in the second\n\
         the first run goes on:\n   \
            7  desk: call c1 of `look` succeeded: “Bo owes 5 €.”\n   \
            8  desk: turn 2: the model says “Bo: 5 €. Ada: nothing.”\n   \
            9  desk: finished: “Bo: 5 €. Ada: nothing.”\n\
         the second run goes on:\n   \
            7  desk: call c1 of `look` succeeded: “Bo owes 7 €.”\n"
    );

    let shorter = diff_runs(&records[..4], &records);
    assert_eq!(
        (shorter.common_records, shorter.first_difference.is_none(), shorter.first_steps.len()),
        (4, true, 0)
    );
    let strangers = diff_runs(&golden_records("paused"), &golden_records("nested"));
    let fields: Vec<&str> =
        strangers.first_difference.iter().flat_map(|one| &one.fields).map(|one| one.field.as_str()).collect();
    assert_eq!((strangers.common_records, fields), (0, vec!["agent", "input[0].content[0].text"]));
    let kinds = diff_runs(
        &golden_records("paused"),
        &fork_golden(&golden_records("paused"), 1, ForkChange::Unchanged).expect("it fits"),
    );
    assert!(kinds.first_difference.is_none());
    let other_kind = fork_golden(&records, 8, assistant_says("Other.")).expect("it fits");
    assert_eq!(diff_runs(&other_kind, &records).common_records, 8);
    let nested = golden_records("nested");
    assert!(diff_runs(&nested, &fork_golden(&nested, 5, ForkChange::Unchanged).expect("it fits")).is_empty());
}

#[test]
fn different_happenings_are_told_by_their_kind() {
    let paused = golden_records("paused");
    let change =
        ForkChange::CallOutput { call: "c1".into(), status: CallStatus::Failed, output: "gone".into() };
    let fork = fork_golden(&paused, 2, change).expect("it was running");
    let parted = diff_runs(&paused, &fork);
    let words: Vec<String> =
        parted.first_difference.iter().flat_map(|one| &one.fields).map(|one| one.to_string()).collect();
    assert_eq!(words, ["`type` is \"call_held\" in the first and \"call_settled\" in the second"]);
}

#[test]
fn what_was_decided_is_told() {
    let verified = verify_text(golden_text("decisions")).expect("it is what was written");
    let told: Vec<String> = verified.decisions.iter().map(AuditedDecision::to_string).collect();
    assert_eq!(
        told,
        [
            "record 9: call c1 of `pay` by `desk` is approved, by ann (the tool requires approval)",
            "record 10: call c2 of `pay` by `desk` is approved with other arguments, {\"cents\":20,\"to\":\"Bo\"}, by ann (the tool requires approval)",
            "record 11: call c3 of `pay` by `desk` is rejected (the tool requires approval)",
            "record 12: call c4 of `pay` by `desk` is rejected with “Too much.”, by bob (the tool requires approval)",
            "record 13: call c5 of `pay` by `desk` is approved, by ann (the tool requires approval)",
            "record 14: call s1 of `send` by `desk` is approved, as a standing decision, by bob (the tool's rule)",
            "record 21: call c1 of `pay` by `desk` is confirmed as executed, with “1 paid”, by ann (it was in doubt)",
            "record 22: call c2 of `pay` by `desk` is confirmed as not executed, by ann (it was in doubt)",
            "record 23: call c5 of `pay` by `desk` is marked as having an unknown outcome (it was in doubt)",
            "record 32: call s2 of `send` by `desk` ran without a request for approval (the standing decision of record 14)",
            "record 35: calls of `send` by `desk` are no longer covered (the standing decision of record 14)",
            "record 36: call s3 of `send` by `desk` ran without a request for approval (the standing decision of record 14)",
            "record 39: call s4 of `send` by `desk` ran without a request for approval (the tool's rule)",
        ]
    );
    assert_eq!(
        verified.decisions[9].decided_by.as_deref(),
        Some("bob"),
        "whoever decided for good decided this too"
    );
}

#[test]
fn the_first_bad_record_is_named() {
    let records = golden_records("paused");
    let mut chain = HashChain::default();
    let lines: Vec<JournalLine> = records.iter().map(|record| chain.append(record)).collect();
    let verified = verify_lines(&lines).expect("it is what was written");
    assert_eq!((verified.records.len(), verified.head_hash), (6, chain.head()));
    for at in 0..lines.len() {
        let mut changed = lines.clone();
        changed[at].body = changed[at].body.replace("\"at\":1", "\"at\":2");
        assert_eq!(verify_lines(&changed).expect_err("it was changed").first_bad_seq(), Some(at as u64));
        let mut forged = lines.clone();
        forged[at].hash = Digest::of_text("something");
        assert_eq!(verify_lines(&forged).expect_err("it was forged").first_bad_seq(), Some(at as u64));
    }
    for at in 0..lines.len() - 1 {
        let mut missing = lines.clone();
        missing.remove(at);
        assert_eq!(verify_lines(&missing).expect_err("one is missing").first_bad_seq(), Some(at as u64));
    }
    let cut = verify_lines(&lines[..4]).expect("a prefix is a journal");
    assert_ne!(cut.head_hash, verified.head_hash, "whoever noted the head finds out");
    assert!(matches!(verify_lines(&[]), Err(JournalFormatError::Replay(ReplayError::EmptyJournal))));
}

#[test]
fn lines_that_do_not_add_up_are_found_though_their_hashes_fit() {
    let mut records = golden_records("paused");
    records.swap(2, 5);
    (records[2].seq, records[5].seq) = (2, 5);
    let error = verify_text(&encode_journal(&records)).expect_err("an output without a start");
    assert_eq!(error.first_bad_seq(), Some(2));
    assert_eq!(
        error.to_string(),
        "record 2 does not fit: `call_settled` does not fit here: the call never started"
    );
    let changed = encode_journal(&records).replacen("\"at\":1790000001000", "\"at\":1790000001001", 1);
    assert!(matches!(verify_text(&changed), Err(JournalFormatError::HeadMismatch)), "the hash comes first");
}

#[test]
fn a_decision_is_described_in_full() {
    let long = format!("{}\u{1b}[2K\nthe end", "too much ".repeat(40));
    let message = steps::describe_decision(
        &Decision::Reject { message: Some(long) },
        DecisionScope::ThisCall,
        Some("ann"),
    );
    let expected = format!("rejected with “{}\\u{{1b}}[2K\\nthe end”, by ann", "too much ".repeat(40));
    assert_eq!(message, expected);
}
