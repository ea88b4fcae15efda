//! Time, over the golden files: they are what journals look like.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::golden::{GOLDEN, golden, golden_text};
use crate::{
    Answered, CallSettled, CallStarted, Chain, Decision, Digest, FoundTool, How, Line, Lookup, Plan, Reach,
    Reasoning, RunId, SavedError, Step, ToolKey, Usage, from_text, plan, to_text,
};

fn fork_of(records: &[Record], at: u64, change: Change) -> Result<Vec<Record>, ForkError> {
    fork(records, at, "fork".into(), change)
}

fn replayed(records: &[Record]) -> Run {
    Run::replay(records).expect("it replays").run
}

/// What the machine asks to do with each call.
fn steps_of(run: &Run) -> Vec<String> {
    let Next::Calls(steps) = run.next() else { return vec![] };
    let name = |step: &Step| match step {
        Step::Gate(_) => "gate",
        Step::Run(_) => "run",
        Step::Invalid(_) => "invalid",
        Step::Settle(_) => "settle",
        Step::Doubt(_) => "doubt",
    };
    steps.iter().map(|step| format!("{} {}", name(step), step.call())).collect()
}

fn says(text: &str) -> Change {
    let items = vec![Arc::new(Item::assistant(text))];
    Change::Answer(Box::new(answered("desk", items)))
}

fn answered(agent: &str, items: Vec<Arc<Item>>) -> Answered {
    let lookup = |call: &crate::Call| {
        Lookup::Tool(FoundTool {
            key: ToolKey::of_call(call),
            body: crate::BodyKind::Function,
            effect: crate::Effect::Once,
            gate: crate::Gate::Open,
            conflict: None,
            receipt: None,
            arguments: Ok(call.arguments.as_str().into()),
        })
    };
    let seen = crate::CallMap::default();
    let Plan { items, calls, repeated } =
        plan(items, &agent.into(), &seen, lookup).expect("it can be planned");
    let (agent, usage) = (agent.into(), Usage::default());
    let after = crate::AfterTools::RunAgain;
    Answered { agent, items, calls, repeated, after, usage, response_id: None, request_id: None, model: None }
}

#[test]
fn a_run_can_be_seen_as_it_stood() {
    for (name, _) in GOLDEN {
        let records = golden(name);
        for record in &records {
            let run = at(&records, record.seq).expect("every record has a state");
            assert_eq!(run, replayed(&records[..=record.seq as usize]), "{name} at {}", record.seq);
        }
    }
    let records = golden("paused");
    assert_eq!(at(&records, 2).expect("it is there").pending().len(), 0);
    assert_eq!(at(&records, 4).expect("it is there").pending().len(), 2);
    let beyond = at(&records, 6).expect_err("it has six records");
    assert_eq!(beyond.to_string(), "there is no record 6: the journal has 6, numbered from 0");
}

#[test]
fn every_record_is_told_in_one_line() {
    for (name, _) in GOLDEN {
        let records = golden(name);
        let told = steps(&records);
        assert_eq!(told.len(), records.len());
        for (line, record) in told.iter().zip(&records) {
            assert_eq!((line.seq, line.at, &line.path), (record.seq, record.at, &record.path));
            assert!(!line.text.contains('\n') && line.text.chars().count() < 500, "{line}");
            assert_ne!(line.agent, "?", "{line}");
        }
    }
    let told: Vec<String> = steps(&golden("nested")).iter().map(StepLine::to_string).collect();
    assert_eq!(
        told,
        [
            "   0  office: began: “Is anything open?”",
            "   1  office: turn 1: the model calls `books` (c1)",
            "   2  office: call c1 of `books` starts",
            "   3  c1/clerk: began: “Settle invoice 9.”",
            "   4  c1/clerk: turn 1: the model calls `pay` (p1)",
            "   5  c1/clerk: call p1 of `pay` waits for approval",
        ]
    );
    let told = steps(&golden("handoffs"));
    assert_eq!(
        told[5].to_string(),
        "   5  desk: call h1 of `transfer_to_billing` passes control to `billing`, which sees a filtered history"
    );
    assert_eq!(told[6].agent, "billing");
    assert!(
        steps(&golden("forked"))[0]
            .text
            .starts_with("began as a fork of run `run-finished` at record 7: “What")
    );
}

#[test]
fn the_exact_input_of_a_turn_can_be_seen() {
    let records = golden("finished");
    let first = input_at(&records, &[], 1).expect("the model was asked");
    assert_eq!((first.agent.as_str(), first.items.len(), first.answer), ("desk", 3, Some(2)));
    let second = input_at(&records, &[], 2).expect("the model was asked twice");
    assert_eq!((second.items.len(), second.answer), (9, Some(8)));
    assert_eq!(second.items.last(), Some(&Arc::new(Item::user("Be brief."))), "with what came in between");
    let nobody = input_at(&records, &[], 3).expect_err("it was not asked again");
    assert_eq!(nobody.to_string(), "there is no turn 3: the model was asked for 2, numbered from 1");
    assert_eq!(input_at(&records, &[], 0), Err(TimeError::NoSuchTurn { turn: 0, turns: 2 }));

    let records = golden("handoffs");
    let filtered = input_at(&records, &[], 2).expect("the model was asked");
    assert_eq!((filtered.agent.as_str(), filtered.items.len()), ("billing", 1));

    let records = golden("nested");
    let inner = input_at(&records, &["c1".into()], 1).expect("the nested model was asked");
    assert_eq!(inner.agent, "clerk");
    assert_eq!(inner.items, [Arc::new(Item::user("Settle invoice 9."))]);
    let nobody = input_at(&records, &["c9".into()], 1).expect_err("no agent is there");
    assert_eq!(nobody.to_string(), "no agent ran inside call `c9`");

    let due = input_at(&golden("forked"), &[], 2).expect("the model is to be asked");
    assert_eq!((due.items.len(), due.answer), (9, None));
}

#[test]
fn a_fork_goes_on_from_any_record() {
    for (name, _) in GOLDEN {
        let records = golden(name);
        for record in &records {
            let fork = fork_of(&records, record.seq, Change::None).expect("any record will do");
            let (run, before) = (replayed(&fork), at(&records, record.seq).expect("it is there"));
            assert_eq!(run.next(), before.next(), "{name} at {}", record.seq);
            assert_eq!(run.history(), before.history());
            assert_eq!(run.id(), &RunId::from("fork"));
            let origin = origin(&fork).expect("a fork says where it comes from");
            assert_eq!((&origin.run, origin.seq), (before.id(), record.seq));
            assert!(origin.under_way.keys().eq(before.begun().iter().collect::<BTreeSet<_>>()), "{name}");
            assert!(origin.under_way.values().all(|run| run == before.id()), "{name}");
            assert_eq!(run.session(), None, "a session has one story");
            let again = from_text(&to_text(&fork)).expect("a fork can be saved");
            assert_eq!(again, fork);
        }
    }
}

#[test]
fn nested_agents_are_renamed_with_the_run() {
    let fork = fork_of(&golden("nested"), 5, Change::None).expect("it fits");
    let Entry::Started(inner) = &fork[3].entry else { panic!("a nested agent begins there") };
    assert_eq!(inner.run, "fork/c1");
    assert_eq!(inner.origin, None, "the outermost run says where it comes from");
}

#[test]
fn a_fork_does_not_run_a_call_again_that_must_not_happen_twice() {
    let records = golden("crashed");
    let fork = fork_of(&records, 4, Change::None).expect("it fits");
    assert_eq!(steps_of(&replayed(&fork)), ["run c1", "run c2", "doubt c3", "run c4"]);
    // A fork between the start of a call and the settlement that came: the call took effect in the other run.
    let records = golden("decisions");
    let settled = settlement_of(&records, &"c2".into()).expect("it settled");
    let fork = fork_of(&records, settled - 1, Change::None).expect("it fits");
    assert!(steps_of(&replayed(&fork)).contains(&"doubt c2".to_owned()), "{:?}", replayed(&fork).next());
    let nested = golden("failures");
    for record in &nested {
        let run = replayed(&fork_of(&nested, record.seq, Change::None).expect("it fits"));
        assert!(!steps_of(&run).contains(&"doubt c0".to_owned()), "an agent is gone on with, not doubted");
    }
}

#[test]
fn a_fork_with_another_answer() {
    let records = golden("finished");
    let other = fork_of(&records, 8, says("I do not know.")).expect("the answer is replaced");
    assert_eq!(other.len(), 9);
    assert!(
        matches!(replayed(&other).next(), Next::Finish(candidate) if candidate.output == "I do not know.")
    );
    let appended = fork_of(&records, 7, says("I do not know.")).expect("the model is asked there");
    let answer = |records: &[Record]| records.last().map(|record| record.entry.clone());
    assert_eq!(answer(&appended), answer(&other), "after the last output comes the same");
    let early =
        fork_of(&records, 1, says("Ask me tomorrow.")).expect("a failure of the model is replaced too");
    assert_eq!(early.len(), 2);

    let items = vec![
        Arc::new(Item::Reasoning(Reasoning { summary: String::new(), item_id: None, raw: true.into() })),
        Arc::new(Item::call("n1", "pay", "{}")),
    ];
    let with_calls = Change::Answer(Box::new(answered("desk", items)));
    let fork = fork_of(&records, 8, with_calls).expect("an answer may have calls");
    assert_eq!(steps_of(&replayed(&fork)), ["run n1"]);

    let misplaced = fork_of(&records, 4, says("too early")).expect_err("calls are open");
    assert_eq!(
        misplaced.to_string(),
        "the change does not fit the run after record 4: `answered` does not fit here: the model was not asked"
    );
    let nested = golden("nested");
    let inner =
        Answered { agent: "clerk".into(), ..answered("clerk", vec![Arc::new(Item::assistant("Paid."))]) };
    let fork = fork_of(&nested, 4, Change::Answer(Box::new(inner))).expect("a nested answer can be another");
    assert_eq!(fork[4].path, nested[4].path);
}

#[test]
fn a_fork_with_another_output() {
    let records = golden("finished");
    let other = |how, output: &str| Change::Output { call: "c2".into(), how, output: output.into() };
    let fork = fork_of(&records, 5, other(How::Failed, "no such file")).expect("the settlement is replaced");
    assert_eq!(fork.len(), 6);
    assert_eq!(steps_of(&replayed(&fork)), ["run c1"], "its sibling had started, and only looks");
    let appended = fork_of(&records, 4, other(How::Succeeded, "nothing")).expect("it was running");
    assert_eq!((appended.len(), appended[5].at), (6, records[4].at));
    let settled = fork_of(&records, 6, other(How::Succeeded, "twice")).expect_err("it has an output there");
    assert!(settled.to_string().ends_with("call `c2` has its output already"), "{settled}");
    let early =
        fork_of(&records, 2, other(How::Succeeded, "never ran")).expect_err("it has not started there");
    assert!(early.to_string().ends_with("the call never started"), "{early}");

    let nested = golden("failures");
    let settled = settlement_of(&nested, &"c0".into()).expect("it settled");
    let change = Change::Output { call: "c0".into(), how: How::Succeeded, output: "All is well.".into() };
    let fork = fork_of(&nested, settled, change).expect("a nested agent's output can be another");
    assert_eq!(fork.len() as u64, settled + 1);
}

#[test]
fn a_fork_with_another_decision() {
    let decide = |call: &str, decision| Change::Decide {
        call: call.into(),
        decision,
        reach: Reach::Call,
        by: Some("cleo".to_owned()),
    };
    let records = golden("decisions");
    let approved =
        records.iter().position(|record| matches!(record.entry, Entry::Decided(_))).expect("there is one");
    let change = decide("c1", Decision::Reject { message: None });
    let fork = fork_of(&records, approved as u64, change).expect("the decision is replaced");
    assert_eq!(fork.len(), approved + 1);
    let change = decide("c1", Decision::Reject { message: None });
    let contradiction = fork_of(&records, approved as u64 + 1, change).expect_err("it was approved by then");
    assert!(contradiction.to_string().ends_with("call `c1` was decided otherwise before"), "{contradiction}");

    let nested = golden("nested");
    let fork = fork_of(&nested, 5, decide("c1/p1", Decision::Approve)).expect("it waits");
    assert!(replayed(&fork).pending().is_empty());
    let unknown = fork_of(&nested, 5, decide("c1/p9", Decision::Approve)).expect_err("there is no such call");
    assert!(unknown.to_string().ends_with("there is no open call `p9`"), "{unknown}");
}

#[test]
fn a_fork_has_an_id_of_its_own_and_a_beginning() {
    let records = golden("paused");
    let same = fork(&records, 2, "run-paused".into(), Change::None);
    assert_eq!(same, Err(ForkError::SameRun("run-paused".into())));
    assert!(matches!(
        fork_of(&records, 99, Change::None),
        Err(ForkError::Time(TimeError::NoSuchRecord { .. }))
    ));
    assert!(matches!(fork_of(&[], 0, Change::None), Err(ForkError::Time(TimeError::NoSuchRecord { .. }))));
    let twice = fork(&fork_of(&records, 5, Change::None).expect("it fits"), 3, "fork-2".into(), Change::None);
    let twice = twice.expect("a fork can be forked");
    let origin = origin(&twice).expect("it says where it comes from");
    assert_eq!((&origin.run, origin.seq), (&"fork".into(), 3));
}

#[test]
fn calls_under_way_stay_known_by_the_name_of_the_run_that_began_them() {
    let approve =
        Change::Decide { call: "c1/p1".into(), decision: Decision::Approve, reach: Reach::Call, by: None };
    let mut records = fork(&golden("nested"), 5, "first".into(), approve).expect("it waits");
    let add = |records: &mut Vec<Record>, entry| {
        let (seq, at) = (records.len() as u64, records[0].at);
        records.push(Record { seq, at, path: vec!["c1".into()], entry });
    };
    add(&mut records, Entry::CallStarted(CallStarted { call: "p1".into(), attempt: 1 }));
    let begun = records.len() as u64 - 1;

    let fork_1 = fork(&records, begun, "second".into(), Change::None).expect("any record will do");
    let fork_2 = fork(&fork_1, begun, "third".into(), Change::None).expect("a fork can be forked");
    for (name, records) in [("second", &fork_1), ("third", &fork_2)] {
        let run = replayed(records);
        let child = run.child(&"c1".into()).expect("the agent is inside");
        assert_eq!(child.id().as_str(), format!("{name}/c1"));
        assert_eq!(child.inherited()["p1"], "first/c1", "{name}");
        assert_eq!(run.inherited()["c1"], "run-nested", "{name}");
    }

    add(&mut records, Entry::CallSettled(CallSettled::new("p1".into(), How::Succeeded, "paid")));
    let later = fork(&records, begun + 1, "fourth".into(), Change::None).expect("any record will do");
    let child = replayed(&later).child(&"c1".into()).map(|child| child.inherited().len());
    assert_eq!(child, Some(0), "what has ended is not gone on with");
}

#[test]
fn runs_are_compared() {
    let records = golden("finished");
    let same = diff(&records, &fork_of(&records, 9, Change::None).expect("it fits"));
    assert!(same.is_empty(), "ids, times, origins and sessions differ by nature");
    assert_eq!(same.to_string(), "both runs are the same, in 10 records\n");

    let parted = diff(&records, &golden("forked"));
    assert_eq!((parted.common, parted.first.len(), parted.second.len()), (7, 3, 1));
    let difference = parted.difference.as_ref().expect("both go on");
    assert_eq!(difference.seq, 7);
    assert_eq!(difference.fields[0].field, "output.text");
    assert_eq!(
        parted.to_string(),
        "the first 7 records are the same\n\
         record 7: `output.text` is \"Bo owes 5 €.\" in the first and \"Bo owes 7 €.\" in the second\n\
         the first run goes on:\n   \
            7  desk: call c1 of `look` succeeded: “Bo owes 5 €.”\n   \
            8  desk: turn 2: the model says “Bo: 5 €. Ada: nothing.”\n   \
            9  desk: finished: “Bo: 5 €. Ada: nothing.”\n\
         the second run goes on:\n   \
            7  desk: call c1 of `look` succeeded: “Bo owes 7 €.”\n"
    );

    let shorter = diff(&records[..4], &records);
    assert_eq!((shorter.common, shorter.difference.is_none(), shorter.first.len()), (4, true, 0));
    let strangers = diff(&golden("paused"), &golden("nested"));
    let fields: Vec<&str> =
        strangers.difference.iter().flat_map(|one| &one.fields).map(|one| one.field.as_str()).collect();
    assert_eq!((strangers.common, fields), (0, vec!["agent", "input[0].content[0].text"]));
    let kinds = diff(&golden("paused"), &fork_of(&golden("paused"), 1, Change::None).expect("it fits"));
    assert!(kinds.difference.is_none());
    let other_kind = fork_of(&records, 8, says("Other.")).expect("it fits");
    assert_eq!(diff(&other_kind, &records).common, 8);
    let nested = golden("nested");
    assert!(diff(&nested, &fork_of(&nested, 5, Change::None).expect("it fits")).is_empty());
}

#[test]
fn different_happenings_are_told_by_their_kind() {
    let paused = golden("paused");
    let change = Change::Output { call: "c1".into(), how: How::Failed, output: "gone".into() };
    let fork = fork_of(&paused, 2, change).expect("it was running");
    let parted = diff(&paused, &fork);
    let words: Vec<String> =
        parted.difference.iter().flat_map(|one| &one.fields).map(|one| one.to_string()).collect();
    assert_eq!(words, ["`type` is \"held\" in the first and \"call_settled\" in the second"]);
}

#[test]
fn what_was_decided_is_told() {
    let verified = verify_text(golden_text("decisions")).expect("it is what was written");
    let told: Vec<String> = verified.decisions.iter().map(Ruling::to_string).collect();
    assert_eq!(
        told,
        [
            "record 9: call c1 of `pay` by `desk` is approved, by ann (the tool always asks)",
            "record 10: call c2 of `pay` by `desk` is approved with other arguments, {\"cents\":20,\"to\":\"Bo\"}, by ann (the tool always asks)",
            "record 11: call c3 of `pay` by `desk` is rejected (the tool always asks)",
            "record 12: call c4 of `pay` by `desk` is rejected with “Too much.”, by bob (the tool always asks)",
            "record 13: call c5 of `pay` by `desk` is approved, by ann (the tool always asks)",
            "record 14: call s1 of `send` by `desk` is approved, for good, by bob (the tool's rule)",
            "record 21: call c1 of `pay` by `desk` is said to have happened, with “1 paid”, by ann (it was in doubt)",
            "record 22: call c2 of `pay` by `desk` is said not to have happened, by ann (it was in doubt)",
            "record 23: call c5 of `pay` by `desk` is said to be unknown to anybody (it was in doubt)",
            "record 32: call s2 of `send` by `desk` ran without a question (the decision for good of record 14)",
            "record 35: calls of `send` by `desk` are asked about again (the decision for good of record 14)",
            "record 36: call s3 of `send` by `desk` ran without a question (the decision for good of record 14)",
            "record 39: call s4 of `send` by `desk` ran without a question (the tool's rule)",
        ]
    );
    assert_eq!(verified.decisions[9].by.as_deref(), Some("bob"), "whoever decided for good decided this too");
}

#[test]
fn the_first_bad_record_is_named() {
    let records = golden("paused");
    let mut chain = Chain::default();
    let lines: Vec<Line> = records.iter().map(|record| chain.add(record)).collect();
    let verified = verify(&lines).expect("it is what was written");
    assert_eq!((verified.records.len(), verified.head), (6, chain.head()));
    for at in 0..lines.len() {
        let mut changed = lines.clone();
        changed[at].body = changed[at].body.replace("\"at\":1", "\"at\":2");
        assert_eq!(verify(&changed).expect_err("it was changed").seq(), Some(at as u64));
        let mut forged = lines.clone();
        forged[at].hash = Digest::of("something");
        assert_eq!(verify(&forged).expect_err("it was forged").seq(), Some(at as u64));
    }
    for at in 0..lines.len() - 1 {
        let mut missing = lines.clone();
        missing.remove(at);
        assert_eq!(verify(&missing).expect_err("one is missing").seq(), Some(at as u64));
    }
    let cut = verify(&lines[..4]).expect("a prefix is a journal");
    assert_ne!(cut.head, verified.head, "whoever noted the head finds out");
    assert!(matches!(verify(&[]), Err(SavedError::Replay(ReplayError::Empty))));
}

#[test]
fn lines_that_do_not_add_up_are_found_though_their_hashes_fit() {
    let mut records = golden("paused");
    records.swap(2, 5);
    (records[2].seq, records[5].seq) = (2, 5);
    let error = verify_text(&to_text(&records)).expect_err("an output without a start");
    assert_eq!(error.seq(), Some(2));
    assert_eq!(
        error.to_string(),
        "record 2 does not fit: `call_settled` does not fit here: the call never started"
    );
    let changed = to_text(&records).replacen("\"at\":1790000001000", "\"at\":1790000001001", 1);
    assert_eq!(verify_text(&changed).expect_err("two are bad").seq(), Some(2), "the first of both");
}
