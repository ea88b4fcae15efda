//! Tests of refused entries: a refused entry changes nothing.

use std::sync::Arc;

use super::bench::{RunBench, STATUS_NAMES, refusal_message};
use crate::item::Item;
use crate::journal::{CallStatus, JournalEntry, ModelResponded};
use crate::run::ApplyError;

#[test]
fn entries_belong_to_their_moment() {
    let model = "the model was not asked";
    let (no_handoff, no_judge) = ("no handoff is due", "nothing is judged");
    let no_output = "no output of the model is to be accepted";
    let cases = [
        ("answer c1:look", "say", "model_responded", model),
        ("answer c1:look", "answer c2:look", "model_responded", model),
        ("answer c1:look", "refused", "response_rejected", model),
        ("answer c1:look", "failed_model", "model_request_failed", model),
        ("say", "answer c1:look", "model_responded", model),
        ("say", "filter_input 0 1", "model_input_filtered", model),
        ("answer c1:look", "filter_input 0 1", "model_input_filtered", model),
        ("", "filter_input 0 2", "model_input_filtered", "it names items that the history lacks"),
        ("", "filter_input 1 0", "model_input_filtered", "it names items that the history lacks"),
        ("answer c1:look", "end_body c1 succeeded", "call_body_ended", "no body gave this result"),
        ("answer c1:look!", "end_body c1 failed", "call_body_ended", "no body gave this result"),
        ("answer c1:pay; hold c1", "end_body c1 succeeded", "call_body_ended", "no body gave this result"),
        (
            "answer c1:pay; hold c1; approve c1",
            "end_body c1 succeeded",
            "call_body_ended",
            "no body gave this result",
        ),
        (
            "answer c1:pay; hold c1; reject c1",
            "end_body c1 succeeded",
            "call_body_ended",
            "no body gave this result",
        ),
        (
            "answer c1:look; start c1; end_body c1 succeeded",
            "end_body c1 succeeded",
            "call_body_ended",
            "no body gave this result",
        ),
        ("answer c1:look; start c1; end_body c1 succeeded", "hold c1", "call_held", "the call has gone on"),
        ("answer c1:look; start c1; end_body c1 succeeded", "doubt c1", "call_held", "the call has gone on"),
        ("answer c1:look; start c1; end_body c1 succeeded", "ask c1", "call_held", "the call has gone on"),
        ("answer c1:look", "ask c1", "call_held", "the call has gone on"),
        ("answer c1:books; start c1; c1/ nest", "ask c1", "call_held", "the call has gone on"),
        ("answer h1:to_billing", "say", "model_responded", model),
        ("judge c1:look; start c1; settle c1 succeeded", "say", "model_responded", model),
        ("", "handoff h1 billing", "handoff_recorded", no_handoff),
        ("say", "handoff h1 billing", "handoff_recorded", no_handoff),
        ("answer c1:look h1:to_billing", "handoff h1 billing", "handoff_recorded", no_handoff),
        ("answer h1:to_billing", "handoff h1 desk", "handoff_recorded", "another handoff is due"),
        ("answer h1:to_billing", "handoff h2 billing", "handoff_recorded", "another handoff is due"),
        ("", "reject_output", "output_rejected", no_output),
        ("answer c1:look", "reject_output", "output_rejected", no_output),
        ("say; reject_output", "reject_output", "output_rejected", no_output),
        ("answer h1:to_billing", "settle h1 succeeded", "call_settled", "the call is a handoff"),
        ("answer c1:look h1:to_billing", "settle h1 missing", "call_settled", "the handoff is not due"),
        ("", "went_on", "turn_continued", no_judge),
        ("answer c1:look", "went_on", "turn_continued", no_judge),
        ("answer c1:look; start c1; settle c1 succeeded", "went_on", "turn_continued", no_judge),
        ("answer c1:look", "finish", "run_finished", "calls are open"),
        ("answer c1:pay; hold c1", "finish", "run_finished", "calls are open"),
        ("answer h1:to_billing", "finish", "run_finished", "calls are open"),
        ("", "started", "run_started", "the run has begun"),
        ("answer c1:look", "c1/ nest", "run_started", "the call runs no agent"),
        ("answer c1:look; start c1", "c1/ nest", "run_started", "the call runs no agent"),
        ("answer c1:books", "c1/ nest", "run_started", "the call runs no agent"),
        (
            "answer c1:books c2:look; start c1; settle c1 failed",
            "c1/ nest",
            "run_started",
            "the call runs no agent",
        ),
        ("answer c1:books; start c1; c1/ nest", "c1/ nest", "run_started", "the run has begun"),
        ("answer c1:look; start c1", "hold c1", "call_held", "the call has gone on"),
        ("answer c1:look", "doubt c1", "call_held", "the call has gone on"),
        ("answer c1:pay; hold c1", "hold c1", "call_held", "the call has gone on"),
        ("answer c1:pay; hold c1; reject c1", "hold c1", "call_held", "the call has gone on"),
        ("answer c1:look!", "hold c1", "call_held", "the call has no body"),
        ("answer c1:nothing", "hold c1", "call_held", "the call has no body"),
        ("answer c1:look h1:to_billing", "hold h1", "call_held", "the call has no body"),
    ];
    for (script, entry, kind, why) in cases {
        assert_eq!(
            refusal_message(script, entry),
            format!("`{kind}` does not fit here: {why}"),
            "{script}, then {entry}"
        );
    }
}

#[test]
fn only_open_calls_can_be_moved() {
    for entry in ["start c9", "settle c9 failed", "end_body c9 failed", "hold c9", "doubt c9", "approve c9"] {
        for state in ["", "answer c1:look", "say", "answer h1:to_billing"] {
            assert_eq!(refusal_message(state, entry), "there is no open call `c9`", "{state}, then {entry}");
        }
    }
    let settled = "answer c1:look c2:look; start c1; settle c1 succeeded";
    for entry in [
        "start c1",
        "start c1 2",
        "end_body c1 succeeded",
        "settle c1 succeeded",
        "settle c1 failed",
        "hold c1",
    ] {
        assert_eq!(refusal_message(settled, entry), "call `c1` has already settled", "{entry}");
    }
    assert_eq!(
        refusal_message("answer c1:look", "c1/ say"),
        "there is no open call `c1`",
        "no agent runs in it"
    );
    assert_eq!(refusal_message("", "c1/ say"), "there is no open call `c1`");
}

#[test]
fn attempts_are_counted() {
    let another = "call `c1` may not start: another attempt is due";
    assert_eq!(refusal_message("answer c1:look", "start c1 2"), another);
    assert_eq!(refusal_message("answer c1:look", "start c1 0"), another);
    assert_eq!(refusal_message("answer c1:look; start c1", "start c1 1"), another);
    assert_eq!(refusal_message("answer c1:look; start c1", "start c1 3"), another);
    assert_eq!(
        refusal_message("answer c1:transfer; start c1; doubt c1; did_not_happen c1", "start c1 1"),
        another
    );
    RunBench::from_script("answer c1:look; start c1; start c1 2; start c1 3; settle c1 failed");
}

#[test]
fn a_call_does_not_overtake_the_one_it_follows() {
    let before = "call `c2` may not start: the call that it follows has not settled";
    let waits = [
        "",
        "start c1",
        "start c1; end_body c1 succeeded",
        "start c1; doubt c1",
        "start c1; doubt c1; unknown c1",
    ];
    for then in waits {
        assert_eq!(
            refusal_message(&format!("answer c1:transfer c2:transfer; {then}"), "start c2"),
            before,
            "{then}"
        );
    }
    RunBench::from_script("answer c1:transfer c2:transfer; start c1; settle c1 failed; start c2");
}

#[test]
fn a_call_settles_in_ways_that_it_can_have_come_to() {
    use CallStatus::*;
    let ran = [
        Succeeded,
        Failed,
        TimedOut,
        TimedOutStillRunning,
        InvalidArguments,
        UnknownTool,
        SurplusHandoff,
        BlockedByGuardrail,
        Deduplicated,
        Cancelled,
        Reconciled,
    ];
    let never_ran =
        [Failed, InvalidArguments, UnknownTool, SurplusHandoff, BlockedByGuardrail, Deduplicated, Cancelled];
    let cases: [(&str, &[CallStatus]); 17] = [
        ("answer c1:look; start c1", &ran),
        ("answer c1:pay; hold c1; approve c1; start c1", &ran),
        ("answer c1:look", &never_ran),
        ("answer c1:pay", &never_ran),
        ("answer c1:look!", &never_ran),
        ("answer c1:nothing", &never_ran),
        ("answer c1:pay; hold c1; approve c1", &never_ran),
        ("answer c1:pay; hold c1", &[Cancelled]),
        ("answer c1:pay; hold c1; reject c1", &[Rejected, Cancelled]),
        ("answer c1:transfer; start c1; doubt c1", &[Cancelled]),
        ("answer c1:transfer; start c1; doubt c1; happened c1", &[Reconciled, Cancelled]),
        ("answer c1:look c2:to_billing; start c1; settle c1 failed", &[]),
        ("answer c1:look; start c1; end_body c1 succeeded", &[Succeeded, OutputWithheld]),
        ("answer c1:look; start c1; end_body c1 failed", &[Failed, OutputWithheld]),
        ("answer c1:look; start c1; end_body c1 timed_out", &[TimedOut, OutputWithheld]),
        ("answer c1:print; end_body c1 receipt", &[Deduplicated, OutputWithheld]),
        (
            "answer c1:transfer; start c1; doubt c1; happened c1; end_body c1 reconciled",
            &[Reconciled, OutputWithheld],
        ),
    ];
    for (script, ways) in cases {
        for (word, how) in STATUS_NAMES {
            let fits = RunBench::from_script(script).try_line(&format!("settle c1 {word}")).is_ok();
            assert_eq!(fits, ways.contains(&how), "{script}, then {word}");
            if !fits {
                refusal_message(script, &format!("settle c1 {word}"));
            }
        }
    }
    let handoff = "`call_settled` does not fit here: the call is a handoff";
    assert_eq!(refusal_message("answer c1:look h1:to_billing", "settle h1 succeeded"), handoff);
    assert_eq!(refusal_message("answer h1:to_billing", "settle h1 cancelled"), handoff);
}

#[test]
fn an_answer_is_planned_so_that_every_call_gets_one_output() {
    let planned = |script: &str, line: &str, change: fn(&mut ModelResponded)| {
        let mut bench = RunBench::from_script(script);
        let mut other = RunBench::from_script(script);
        other.try_line(line).expect("the plan as it is fits");
        let Some(JournalEntry::ModelResponded(mut answered)) = other.records.pop().map(|record| record.entry)
        else {
            panic!("`{line}` is an answer");
        };
        change(&mut answered);
        let before = bench.run.clone();
        let refused = bench.try_record(vec![], JournalEntry::ModelResponded(answered));
        assert_eq!(bench.run, before);
        match refused {
            Err(ApplyError::UnexpectedEntry { entry: "model_responded", reason: why }) => why,
            other => panic!("{other:?}"),
        }
    };
    let two = "answer c1:transfer c2:transfer";
    let not_of_its_calls = "its plan is not of its calls";
    assert_eq!(planned("", two, |answered| drop(answered.calls.pop())), not_of_its_calls);
    assert_eq!(planned("", two, |answered| drop(answered.items.pop())), not_of_its_calls);
    assert_eq!(planned("", two, |answered| answered.calls.swap(0, 1)), not_of_its_calls);
    assert_eq!(planned("", two, |answered| answered.agent = "billing".into()), "another agent is current");
    let twice = |answered: &mut ModelResponded| {
        answered.calls[1].call = "c1".into();
        answered.items[1] = answered.items[0].clone();
    };
    assert_eq!(planned("", two, twice), "a call id stands for two calls");
    let reused = |answered: &mut ModelResponded| {
        answered.calls[0].call = "c0".into();
        answered.items[0] = Arc::new(Item::call("c0", "transfer", "{}"));
        answered.calls[1].predecessor = Some("c0".into());
    };
    let earlier = "answer c0:look; start c0; settle c0 succeeded";
    assert_eq!(planned(earlier, two, reused), "a call id stands for two calls");
    let follows = "a call is to follow one that does not come before it";
    assert_eq!(planned("", two, |answered| answered.calls[0].predecessor = Some("c2".into())), follows);
    assert_eq!(planned("", two, |answered| answered.calls[0].predecessor = Some("c1".into())), follows);
    assert_eq!(planned("", two, |answered| answered.calls[1].predecessor = Some("c9".into())), follows);
    let both =
        |answered: &mut ModelResponded| answered.calls[1].disposition = answered.calls[0].disposition.clone();
    let one_only = "control can pass to one agent only";
    assert_eq!(planned("", "answer h1:to_billing h2:to_desk", both), one_only);
}

#[test]
fn what_no_body_gives_is_not_withheld() {
    let cases: [(&str, &[&str]); 5] = [
        ("answer c1:look; start c1", &["succeeded", "failed", "timed_out", "receipt", "reconciled"]),
        ("answer c1:look", &["receipt"]),
        ("answer c1:pay; hold c1; approve c1", &["receipt"]),
        ("answer c1:transfer; start c1; doubt c1; happened c1", &["reconciled"]),
        ("answer c1:transfer; start c1; doubt c1", &[]),
    ];
    for (script, ways) in cases {
        for (word, _) in STATUS_NAMES {
            let fits = RunBench::from_script(script).try_line(&format!("end_body c1 {word}")).is_ok();
            assert_eq!(fits, ways.contains(&word), "{script}, then {word}");
            if !fits {
                refusal_message(script, &format!("end_body c1 {word}"));
            }
        }
    }
    let ended = "call `c1` may not start: its body has ended";
    assert_eq!(refusal_message("answer c1:look; start c1; end_body c1 succeeded", "start c1 2"), ended);
}
