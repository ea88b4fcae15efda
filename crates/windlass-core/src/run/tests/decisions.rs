//! Tests of decisions: the calls that they cover, and their scope.

use super::bench::{RunBench, describe_next, play_script, refusal_message};
use crate::decision::{DecisionScope, HoldReason, StandingVerdict};
use crate::id::Timestamp;
use crate::journal::{CallHeld, JournalEntry};
use crate::run::ToolNeed;

#[test]
fn a_decision_said_twice_is_one_and_another_replaces_it() {
    let held = "answer c1:pay c2:look; hold c1";
    let in_doubt = "answer c1:transfer c2:look; start c1; doubt c1";
    let cases = [
        // The held call, the decision, a second decision, and whether the second counts as the same. Nothing has started.
        (held, "approve c1", "approve c1", true),
        (held, "approve c1", "approve_always c1", true),
        (held, "approve_always c1", "approve c1", true),
        (held, "approve c1", "reject c1", false),
        (held, "approve c1", "edit c1", false),
        (held, "edit c1", "edit c1", true),
        (held, "edit c1", "approve c1", false),
        (held, "reject c1", "reject c1", true),
        (held, "reject c1", "reject_because c1", false),
        (held, "reject c1", "approve c1", false),
        (held, "reject_always c1", "approve_always c1", false),
        (in_doubt, "happened c1", "happened c1", true),
        (in_doubt, "happened c1", "did_not_happen c1", false),
        (in_doubt, "did_not_happen c1", "unknown c1", false),
        (in_doubt, "unknown c1", "unknown c1", true),
    ];
    for (state, first, second, is_same) in cases {
        let decided = format!("{state}; {first}");
        if is_same {
            let twice = play_script(&format!("{decided}; {second}"));
            let once = play_script(&decided);
            assert_eq!(twice.next(), once.next(), "{first}, then {second}");
            assert_eq!(describe_next(&twice), describe_next(&once), "{first}, then {second}");
        } else {
            let corrected = play_script(&format!("{decided}; {second}"));
            let only = play_script(&format!("{state}; {second}"));
            assert_eq!(corrected, only, "{first}, then {second}");
        }
    }
}

#[test]
fn a_decision_said_again_counts_as_said_whatever_has_become_of_the_call() {
    let decided = "answer c1:pay c2:look; hold c1; approve c1";
    let later = ["", "start c1", "start c1; end_body c1 succeeded", "start c1; settle c1 succeeded"];
    for then in later {
        let before = play_script(&format!("{decided}; {then}"));
        assert_eq!(play_script(&format!("{decided}; {then}; approve c1")), before, "{then}");
        if then.is_empty() {
            continue;
        }
        assert_eq!(
            refusal_message(&format!("{decided}; {then}"), "reject c1"),
            "a different decision about call `c1` was already recorded",
            "the decision is taken"
        );
    }
    assert_eq!(
        refusal_message("answer c1:pay c2:look; hold c1; reject c1; settle c1 rejected", "approve c1"),
        "a different decision about call `c1` was already recorded",
        "the rejection is taken"
    );
}

#[test]
fn a_correction_that_does_not_fit_changes_nothing() {
    let decided = "answer c1:pay c2:look; hold c1; approve c1";
    for wrong in ["happened c1", "edit_always c1", "approve_other c1", "reply c1"] {
        assert!(!refusal_message(decided, wrong).is_empty(), "{wrong}");
    }
}

#[test]
fn a_decision_answers_what_is_asked() {
    let waits = |why: &str| format!("call `c1` waits {why}, which this decision does not answer");
    let held = "answer c1:pay; hold c1";
    for wrong in ["happened c1", "did_not_happen c1", "unknown c1"] {
        assert_eq!(refusal_message(held, wrong), waits("for approval"));
        assert_eq!(refusal_message("answer c1:pay", wrong), waits("for approval"), "before it is held");
    }
    let in_doubt = "answer c1:transfer; start c1; doubt c1";
    for wrong in ["approve c1", "edit c1", "reject c1", "approve_always c1", "reject_always c1"] {
        assert_eq!(refusal_message(in_doubt, wrong), waits("to know whether it happened"));
    }
    assert_eq!(refusal_message(held, "edit_always c1"), waits("for a decision about itself alone"));
    for nothing_to_decide in ["nothing", "look!", "to_billing"] {
        let state = format!("answer c1:{nothing_to_decide} c2:look");
        assert_eq!(refusal_message(&state, "approve c1"), waits("for nobody"), "{nothing_to_decide}");
        assert_eq!(refusal_message(&state, "reject c1"), waits("for nobody"), "{nothing_to_decide}");
    }
}

#[test]
fn a_decision_covers_what_was_shown() {
    let other = "the decision does not cover call `c1`: it was made about another tool or other arguments";
    assert_eq!(refusal_message("answer c1:pay; hold c1", "approve_other c1"), other);
    assert_eq!(refusal_message("answer c1:pay", "approve_other c1"), other);
    assert_eq!(refusal_message("answer c1:pay; hold c1; approve c1", "approve_other c1"), other);
    assert_eq!(refusal_message("answer c1:pay; hold c1", "approve c9"), "there is no open call `c9`");
    assert_eq!(refusal_message("", "approve c1"), "there is no open call `c1`");
}

#[test]
fn a_decision_may_come_before_anybody_asked() {
    assert_eq!(describe_next(&play_script("answer c1:pay; approve c1")), "calls run c1#1");
    assert_eq!(describe_next(&play_script("answer c1:send; reject c1")), "calls settle c1 rejected");
    assert_eq!(describe_next(&play_script("answer c1:look; reject c1")), "calls settle c1 rejected");
    assert_eq!(
        refusal_message("answer c1:pay; approve c1", "hold c1"),
        "`call_held` does not fit here: the call has gone on"
    );
}

#[test]
fn a_call_that_nobody_let_run_does_not_run() {
    let may_not = |why: &str| format!("call `c1` may not start: {why}");
    let cases = [
        ("answer c1:pay", "it needs a decision"),
        ("answer c1:audited_books", "it needs a decision"),
        ("answer c1:pay; hold c1", "it waits for a decision"),
        ("answer c1:send; hold c1", "it waits for a decision"),
        ("answer c1:pay; hold c1; reject c1", "it was decided that it does not run"),
        ("answer c1:transfer; start c1; doubt c1", "it waits for a decision"),
        ("answer c1:transfer; start c1; doubt c1; happened c1", "it was decided that it does not run"),
        ("answer c1:transfer; start c1; doubt c1; unknown c1", "it was decided that it does not run"),
        ("answer c1:look!", "it has no body"),
        ("answer c1:nothing", "it has no body"),
        ("answer c1:to_billing", "it has no body"),
    ];
    for (state, why) in cases {
        for attempt in ["", "1", "2"] {
            assert_eq!(refusal_message(state, &format!("start c1 {attempt}")), may_not(why), "{state}");
        }
    }
}

#[test]
fn calls_are_decided_in_any_order_and_do_not_wait_for_each_other() {
    let held = "answer c1:pay c2:pay c3:pay; hold c1; hold c2; hold c3";
    let cases = [
        ("approve c3", "calls run c3#1"),
        ("reject c2; approve c1", "calls run c1#1, settle c2 rejected"),
        ("approve c2; start c2; settle c2 succeeded", "pause c1, c3"),
        ("reject c3; settle c3 rejected; approve c1; start c1", "calls doubt c1#1"),
    ];
    for (then, expected) in cases {
        assert_eq!(describe_next(&play_script(&format!("{held}; {then}"))), expected, "{then}");
    }
}

#[test]
fn a_decision_for_good_covers_every_call_of_the_tool() {
    let cases = [
        ("answer c1:pay c2:pay; hold c1; approve_always c1", "calls run c1#1, run c2#1"),
        ("answer c1:pay c2:pay; hold c1; hold c2; approve_always c2", "calls run c1#1, run c2#1"),
        ("answer c1:pay c2:pay; hold c1; reject_always c1", "calls settle c1 rejected, settle c2 rejected"),
        ("answer c1:pay c2:send; hold c1; approve_always c1", "calls run c1#1, gate c2"),
        // A decision about a single call is not replaced.
        (
            "answer c1:pay c2:pay; hold c1; hold c2; reject c2; approve_always c1",
            "calls run c1#1, settle c2 rejected",
        ),
        // Calls that cannot run are not decided.
        ("answer c1:pay c2:pay!; hold c1; reject_always c1", "calls settle c1 rejected, invalid c2"),
        ("answer c1:pay c2:pay!; hold c1; approve_always c1; settle c2 invalid", "calls run c1#1"),
        // A call in doubt is not covered by an approval decision.
        (
            "answer c1:send c2:send; start c1; doubt c1; hold c2; approve_always c2; start c2; settle c2 failed",
            "pause c1",
        ),
    ];
    for (script, expected) in cases {
        assert_eq!(describe_next(&play_script(script)), expected, "{script}");
    }
    let turn = |decision: &str| format!("answer c1:pay; hold c1; {decision} c1; ");
    let done = "start c1; settle c1 succeeded; ";
    assert_eq!(
        describe_next(&play_script(&format!("{}{done}answer c2:pay", turn("approve_always")))),
        "calls run c2#1"
    );
    assert_eq!(
        describe_next(&play_script(&format!("{}{done}answer c2:pay", turn("approve")))),
        "calls hold c2"
    );
    let refused = format!("{}settle c1 rejected; answer c2:pay", turn("reject_always"));
    assert_eq!(describe_next(&play_script(&refused)), "calls settle c2 rejected");
    let unasked = "answer c1:look; reject_always c1; settle c1 rejected; answer c2:look";
    assert_eq!(
        describe_next(&play_script(unasked)),
        "calls settle c2 rejected",
        "whether or not the tool asks"
    );
    let widened = format!("{}{}approve_always c1; {done}answer c2:pay", turn("approve"), "");
    assert_eq!(
        describe_next(&play_script(&widened)),
        "calls run c2#1",
        "a decision may reach further when it is said again"
    );
}

#[test]
fn what_is_asked_each_time_is_not_covered_by_an_approval_for_good() {
    let alone = "call `c1` waits for a decision about itself alone, which this decision does not answer";
    assert_eq!(refusal_message("answer c1:sign; hold c1", "approve_always c1"), alone);
    assert_eq!(refusal_message("answer c1:sign", "approve_always c1"), alone, "before it is held");
    assert_eq!(
        refusal_message("answer c1:sign; hold c1; approve c1", "approve_always c1"),
        alone,
        "nor is it widened"
    );
    assert_eq!(refusal_message("answer c1:sign", "start c1"), "call `c1` may not start: it needs a decision");
    let reach = |script: &str| play_script(script).pending_calls()[0].max_approval_scope;
    assert_eq!(reach("answer c1:sign; hold c1"), DecisionScope::ThisCall);
    assert_eq!(reach("answer c1:post; hold c1"), DecisionScope::ToolForRun);
    let cases = [
        ("answer c1:sign c2:sign; hold c1; approve c1", "calls run c1#1, hold c2"),
        // A standing rejection covers calls that require approval every time.
        ("answer c1:sign c2:sign; hold c1; reject_always c1", "calls settle c1 rejected, settle c2 rejected"),
        ("answer c1:post c2:post; hold c1; reject_always c1", "calls settle c1 rejected, settle c2 rejected"),
        // The rule is still evaluated; the standing approval covers everything else.
        ("answer c1:post c2:post; hold c1; approve_always c1", "calls run c1#1, gate c2 covered"),
        (
            "answer c1:post c2:post; hold c1; approve_always c1; hold c2; start c1; settle c1 failed",
            "pause c2",
        ),
        (
            "answer c1:post c2:post; hold c1; approve_always c1; reject c2",
            "calls run c1#1, settle c2 rejected",
        ),
        (
            "answer c1:post c2:post c3:post; hold c1; approve_always c1; reject_always c2",
            "calls run c1#1, settle c2 rejected, settle c3 rejected",
        ),
        // A held call stays held.
        (
            "answer c1:post c2:post; hold c1; hold c2; approve_always c1; start c1; settle c1 succeeded",
            "pause c2",
        ),
        // In a later turn.
        (
            "answer c1:post; hold c1; approve_always c1; start c1; settle c1 succeeded; answer c2:post",
            "calls gate c2 covered",
        ),
        (
            "answer c1:post; hold c1; approve_always c1; start c1; settle c1 succeeded; revoke post; answer c2:post",
            "calls gate c2",
        ),
        // The call runs if the rule requires no approval.
        ("answer c1:post; start c1", "calls doubt c1#1"),
    ];
    for (script, expected) in cases {
        assert_eq!(describe_next(&play_script(script)), expected, "{script}");
        assert_eq!(
            describe_next(&RunBench::from_script(script).replay().run),
            expected,
            "replayed: {script}"
        );
    }
}

#[test]
fn what_stands_is_of_one_agent() {
    let script = "answer c1:pay h1:to_billing; hold c1; approve_always c1; start c1; settle c1 succeeded; \
                  handoff h1 billing; answer c2:pay";
    let run = play_script(script);
    assert_eq!(describe_next(&run), "calls hold c2", "another agent's calls are not covered");
    assert_eq!(run.standing_decisions().len(), 1);
    assert_eq!(run.standing_decisions()[0].verdict, StandingVerdict::Approve);
    let nested = "answer c1:pay c2:books; hold c1; approve_always c1; start c2; c2/ nest; c2/ answer p1:pay; c2/ hold p1; \
                  start c1; settle c1 succeeded";
    assert_eq!(describe_next(&play_script(nested)), "pause c2/p1", "nor are those of a nested agent");
}

#[test]
fn what_stands_can_be_taken_back() {
    let always = "answer c1:pay; hold c1; approve_always c1; start c1; settle c1 succeeded";
    let run = play_script(&format!("{always}; revoke pay"));
    assert!(run.standing_decisions().is_empty());
    assert_eq!(describe_next(&play_script(&format!("{always}; revoke pay; answer c2:pay"))), "calls hold c2");
    assert_eq!(
        play_script(&format!("{always}; revoke send")).standing_decisions().len(),
        1,
        "another tool's stays"
    );
    let repeated = "answer c1:pay c2:look; hold c1; approve_always c1; revoke pay; approve_always c1";
    assert!(
        play_script(repeated).standing_decisions().is_empty(),
        "an old decision that comes again does not undo that"
    );
}

#[test]
fn what_stands_and_the_same_said_of_a_call_agree() {
    let both = "answer c1:pay c2:pay; hold c1; hold c2; approve_always c1";
    assert_eq!(describe_next(&play_script(&format!("{both}; approve c2"))), "calls run c1#1, run c2#1");
    assert_eq!(
        describe_next(&play_script(&format!("{both}; approve_always c2"))),
        "calls run c1#1, run c2#1"
    );
}

#[test]
fn what_is_said_of_a_call_counts_for_more_than_what_stands() {
    let both = "answer c1:pay c2:pay c3:pay; hold c1; hold c2; hold c3; approve_always c1";
    let one = format!("{both}; reject c2");
    assert_eq!(describe_next(&play_script(&one)), "calls run c1#1, settle c2 rejected, run c3#1");
    let again = format!("{one}; approve c2");
    assert_eq!(describe_next(&play_script(&again)), "calls run c1#1, run c2#1, run c3#1");
    // A correction of the decision that covers the others takes it back for them, too.
    let withdrawn = play_script(&format!("{both}; reject c1"));
    assert_eq!(describe_next(&withdrawn), "calls settle c1 rejected, hold c2, hold c3");
    assert_eq!(withdrawn.standing_decisions(), []);
    assert_eq!(
        refusal_message(both, "unknown c2"),
        "a different decision about call `c2` was already recorded"
    );
    // A later standing decision covers calls that have not started; a decision about a single call is kept.
    let other = format!("{both}; reject_always c2");
    assert_eq!(describe_next(&play_script(&other)), "calls run c1#1, settle c2 rejected, settle c3 rejected");
    assert_eq!(
        play_script(&other).standing_decisions()[0].verdict,
        StandingVerdict::Reject { message: None }
    );
    let begun = format!("{both}; start c3; reject_always c2");
    assert!(describe_next(&play_script(&begun)).contains("c3"), "what has begun is not taken back");
    assert_eq!(
        refusal_message(&format!("{both}; start c3"), "reject c3"),
        "a different decision about call `c3` was already recorded"
    );
}

#[test]
fn nested_calls_are_decided_where_they_are() {
    let script = "answer c1:books c2:pay; start c1; c1/ nest; c1/ answer p1:pay p2:books; c1/ hold p1; \
                  c1/ start p2; c1/p2/ nest; c1/p2/ answer q1:pay; c1/p2/ hold q1; hold c2";
    let bench = RunBench::from_script(script);
    let paths: Vec<String> =
        bench.run.pending_calls().iter().map(|pending| pending.path.to_string()).collect();
    assert_eq!(paths, ["c1/p1", "c1/p2/q1", "c2"]);
    assert_eq!(refusal_message(script, "approve p1"), "there is no open call `p1`");
    assert_eq!(refusal_message(script, "c1/ approve q1"), "there is no open call `q1`");
    assert_eq!(refusal_message(script, "c2/ approve p1"), "there is no open call `c2`");
    let decided = play_script(&format!("{script}; c1/p2/ approve q1; approve c2; c1/ reject p1"));
    assert!(decided.pending_calls().is_empty());
    assert_eq!(describe_next(&decided), "calls go on c1#1, run c2#1");
    let clerk = decided.nested_run(&"c1".into()).expect("it runs");
    assert_eq!(describe_next(clerk), "calls settle p1 rejected, go on p2#1");
}

#[test]
fn what_follows_a_call_that_was_not_done_is_broken_off() {
    let is = |script: &str, call: &str| play_script(script).is_blocked_by_predecessor(&call.into());
    let three = "answer c1:transfer c2:transfer c3:transfer c4:look; hold c1";
    for (then, expected) in [
        ("", false),
        ("approve c1; start c1", false),
        ("approve c1; start c1; settle c1 succeeded", false),
        ("approve c1; start c1; settle c1 failed", true),
        ("reject c1; settle c1 rejected", true),
        ("approve c1; settle c1 guarded", true),
    ] {
        let script = format!("{three}; {then}");
        assert_eq!((is(&script, "c2"), is(&script, "c3")), (expected, expected), "{then}");
        assert!(!is(&script, "c1") && !is(&script, "c4"), "what follows nothing is not: {then}");
    }
}

#[test]
fn an_answer_fits_its_question() {
    let asked = "answer c1:look c2:look; start c1; ask c1";
    let refused = refusal_message(asked, "reply_badly c1");
    assert!(refused.starts_with("the answer to call `c1` does not fit: "), "{refused}");
    assert_eq!(play_script(asked).answered_questions(&"c1".into()), []);
    let answered = play_script(&format!("{asked}; reply c1"));
    assert_eq!(answered.answered_questions(&"c1".into())[0].answer, "this");
    assert_eq!(describe_next(&answered), "calls run c1#2, run c2#1");
    let refused = refusal_message(&format!("{asked}; reply c1"), "reply_badly c1");
    assert!(refused.starts_with("the answer to call `c1` does not fit: "), "{refused}");
    let corrected = play_script(&format!("{asked}; reply c1; reject c1"));
    assert_eq!(corrected.answered_questions(&"c1".into()), []);
    assert_eq!(describe_next(&corrected), "calls settle c1 rejected, run c2#1");
    assert_eq!(
        describe_next(&play_script(&format!("{asked}; reject c1"))),
        "calls settle c1 rejected, run c2#1"
    );
    let waits = "call `c1` waits for an answer to its question, which this decision does not answer";
    for wrong in ["approve c1", "edit c1", "happened c1", "did_not_happen c1", "unknown c1"] {
        assert_eq!(refusal_message(asked, wrong), waits, "{wrong}");
    }
}

#[test]
fn a_body_that_has_ended_cannot_be_decided_about() {
    let ended = "answer c1:look c2:look; start c1; end_body c1 succeeded";
    let decided = "a different decision about call `c1` was already recorded";
    for entry in
        ["approve c1", "edit c1", "reject c1", "happened c1", "did_not_happen c1", "unknown c1", "reply c1"]
    {
        assert_eq!(refusal_message(ended, entry), decided, "{entry}");
    }
    let standing =
        "answer c1:pay c2:pay; hold c1; approve c1; start c1; end_body c1 succeeded; reject_always c2";
    assert_eq!(describe_next(&play_script(standing)), "calls check c1 succeeded, settle c2 rejected");
}

#[test]
fn expired_approvals_are_rejected_and_others_wait() {
    let mut bench = RunBench::from_script("answer c1:pay c2:pay c3:look; hold c2");
    let held =
        CallHeld { expires_at: Some(Timestamp(100)), ..CallHeld::new("c1".into(), HoldReason::Approval) };
    bench.try_record(Vec::new(), JournalEntry::CallHeld(held)).expect("it can be held");
    assert_eq!(bench.run.expired_rejections(Timestamp(99)), []);
    let rejections = bench.run.expired_rejections(Timestamp(100));
    assert_eq!(rejections.len(), 1);
    for (path, entry) in rejections {
        assert_eq!(path, "c1".into());
        bench.try_record(path.parent_calls().to_vec(), entry).expect("it can be rejected");
    }
    assert_eq!(bench.run.expired_rejections(Timestamp(100)), []);
    assert_eq!(describe_next(&bench.run), "calls settle c1 rejected, run c3#1");
}

#[test]
fn a_call_needs_its_tool_until_its_output_is_known() {
    let required = |has_edited_arguments| ToolNeed::Required { has_edited_arguments };
    let cases = [
        ("answer c1:look", required(false)),
        ("answer c1:pay; hold c1", required(false)),
        ("answer c1:pay; hold c1; edit c1", required(true)),
        ("answer c1:pay; hold c1; reject c1", ToolNeed::IfPresent),
        ("answer c1:look; start c1", required(false)),
        ("answer c1:look!", ToolNeed::IfPresent),
        ("answer c1:nothing", ToolNeed::None),
        ("answer c2:look", ToolNeed::None),
    ];
    for (script, expected) in cases {
        assert_eq!(play_script(script).tool_need(&"c1".into()), expected, "{script}");
    }
}
