//! Tests of run outcomes, and of the history that they leave.

use super::bench::{
    describe_history, describe_items, describe_next, describe_outcome, play_script, refusal_message,
};

#[test]
fn however_a_run_ends_every_call_has_its_output() {
    let open = "user, call c1, call c2, output c1 failed, output c2 failed";
    let cases = [
        ("answer c1:look c2:look; fail", open),
        ("answer c1:look c2:pay; hold c2; cancel", open),
        ("answer c1:look c2:look; start c1; cancel", open),
        (
            "answer c1:look c2:look; start c1; settle c1 succeeded; fail",
            "user, call c1, call c2, output c1, output c2 failed",
        ),
        (
            "answer c1:look c2:look; start c2; settle c2 succeeded; cancel",
            "user, call c1, call c2, output c1 failed, output c2",
        ),
        ("answer c1:look c2:look; start c1; settle_and_end c1 failed; fail", open),
        ("answer c1:pay c2:pay; hold c1; approve c1; cancel", open),
        ("answer c1:pay c2:transfer; start c2; doubt c2; cancel", open),
        ("answer c1:look c2:to_billing; start c1; settle c1 failed; cancel", open),
        ("answer c1:books c2:look; start c1; c1/ nest; c1/ answer p1:pay; c1/ hold p1; cancel", open),
        ("answer c1:look c2:look; start c1; trip", open),
        ("answer c1:look c2:look; start c1; end_body c1 succeeded; cancel", open),
        ("answer c1:look c2:print; start c1; end_body c1 failed; end_body c2 receipt; fail", open),
        ("answer c1:look c2:look; start c1; end_body c1 succeeded; trip", open),
    ];
    for (script, expected) in cases {
        let run = play_script(script);
        assert_eq!(describe_history(&run), expected, "{script}");
        assert_eq!(describe_next(&run), "over", "{script}");
        assert!(run.is_between_turns() && run.pending_calls().is_empty(), "{script}");
    }
}

/// A driver that fails a run for a reason that no call has ends its nested runs before it records the failure, and may die
/// in between.
#[test]
fn a_run_whose_nested_runs_ended_because_it_fails_only_fails() {
    let nested = "answer c1:books c2:look; start c1; c1/ nest; c1/ answer p1:books; c1/ start p1; c1/p1/ nest; \
                  c1/p1/ answer q1:look; c1/p1/ start q1";
    let cases = [
        ("c1/p1/ settle_outer q1 2", "fail the model failed: gone"),
        ("c1/p1/ fail_outer 2", "fail the model failed: gone"),
        ("c1/ settle_outer p1 1", "fail the model failed: gone"),
        ("c1/ fail_outer 1", "fail the model failed: gone"),
        ("c1/p1/ fail_outer 2; settle c2 cancelled", "fail the model failed: gone"),
        // The run inside the call failed by itself, or with the run inside it; that is for its agent to answer.
        ("c1/ fail", "calls"),
        ("c1/p1/ fail_outer 1", "calls"),
        ("c1/p1/ cancel", "cancel"),
    ];
    for (script, expected) in cases {
        let run = play_script(&format!("{nested}; {script}"));
        let next = describe_next(&run);
        assert!(next.starts_with(expected), "{script}: {next}");
        assert_eq!(run.is_failing(), next.starts_with("fail"), "{script}");
        assert!(!run.is_failing() || !run.is_cancelling() && !run.is_paused(), "{script}");
    }
}

/// A driver that cancels a run settles its calls before it records the end, and may die in between.
#[test]
fn a_run_whose_calls_were_cancelled_only_ends() {
    let cases = [
        ("answer c1:look; start c1; settle c1 cancelled", "cancel"),
        ("answer c1:look c2:look; start c1; settle c1 cancelled", "cancel"),
        ("answer c1:look c2:pay; hold c2; settle c1 cancelled", "cancel"),
        // The run is cancelled with the one inside the call.
        (
            "answer c1:books; start c1; c1/ nest; c1/ answer p1:look; c1/ start p1; c1/ settle p1 cancelled",
            "cancel",
        ),
        ("answer c1:books; start c1; c1/ nest; c1/ cancel", "cancel"),
        // A failure counts, whatever was stopped by it.
        ("answer c1:look c2:look; start c1; settle_and_end c1 failed; settle c2 cancelled", "fail"),
        ("answer c1:look; start c1; settle c1 cancelled; cancel", "over"),
    ];
    for (script, expected) in cases {
        let run = play_script(script);
        assert_eq!(describe_next(&run).split(' ').next(), Some(expected), "{script}");
        assert!(!run.is_paused() && !run.is_awaiting_model(), "{script}");
    }
    let refused = refusal_message("answer c1:look; start c1; settle c1 cancelled", "say");
    assert_eq!(refused, "the run has ended");
}

#[test]
fn an_answer_of_which_nothing_took_effect_is_taken_back() {
    let cases = [
        ("answer c1:look c2:pay; cancel", "user"),
        ("answer h1:to_billing; cancel", "user"),
        ("say; cancel", "user"),
        ("say; trip", "user"),
        ("answer c1:look; trip", "user"),
        // The call took effect, or was shown to a person.
        ("say; fail", "user, assistant"),
        ("answer c1:look; fail", "user, call c1, output c1 failed"),
        ("answer c1:pay; hold c1; cancel", "user, call c1, output c1 failed"),
        ("answer c1:pay; approve c1; cancel", "user, call c1, output c1 failed"),
        ("answer c1:look; start c1; settle c1 succeeded; cancel", "user, call c1, output c1"),
        ("answer c1:look; start c1; end_body c1 succeeded; cancel", "user, call c1, output c1 failed"),
        ("answer c1:print; end_body c1 receipt; trip", "user, call c1, output c1 failed"),
    ];
    for (script, expected) in cases {
        let run = play_script(script);
        assert_eq!(describe_history(&run), expected, "{script}");
        assert_eq!(
            describe_items(run.items().iter().map(|produced| &produced.item)),
            expected.trim_start_matches("user").trim_start_matches(", ")
        );
    }
}

#[test]
fn an_output_that_a_guardrail_refused_is_withheld() {
    let done = "stop_on_first c1:look c2:look; start c1; settle c1 succeeded; start c2; settle c2 succeeded";
    let texts = |script: &str| -> Vec<String> {
        let run = play_script(script);
        let outputs = run.history().iter().filter_map(|item| match &**item {
            crate::item::Item::Output(output) => Some(output.content.text().into_owned()),
            _ => None,
        });
        outputs.collect()
    };
    assert_eq!(texts(&format!("{done}; finish")), ["c1 done", "c2 done"]);
    assert_eq!(
        texts(&format!("{done}; trip")),
        [crate::run::model_text::OUTPUT_WITHHELD, crate::run::model_text::OUTPUT_WITHHELD]
    );
}

#[test]
fn a_run_that_has_ended_stays_ended() {
    let entries = [
        "say",
        "answer c5:look",
        "refused",
        "failed_model",
        "hold c1",
        "approve c1",
        "revoke pay",
        "start c1",
        "end_body c1 succeeded",
        "settle c1 succeeded",
        "filter_input 0 1",
        "handoff h1 billing",
        "went_on",
        "input",
        "finish",
        "fail",
        "cancel",
        "started",
    ];
    for ended in ["say; finish", "fail", "cancel", "answer c1:pay; hold c1; cancel"] {
        for entry in entries {
            assert_eq!(refusal_message(ended, entry), "the run has ended", "{ended}, then {entry}");
        }
        let run = play_script(ended);
        assert_eq!(play_script(&format!("{ended}; late c1")), run, "a body that ends late changes nothing");
    }
}

#[test]
fn a_call_that_ended_the_run_has_ended_it_whoever_drives() {
    let ended = "tool `look` failed: c1 done";
    let open = "answer c1:look c2:look; start c1; start c2; settle_and_end c1 failed";
    let settled = format!("{open}; settle c2 succeeded");
    let judged = "judge c1:look; start c1; settle_and_end c1 failed";
    let handing_off = "answer c1:look h1:to_billing; start c1; settle_and_end c1 failed";
    for script in [open, &settled, judged, handing_off] {
        assert_eq!(describe_next(&play_script(script)), format!("fail {ended}"), "{script}");
        for entry in
            ["say", "refused", "failed_model", "filter_input 0 1", "went_on", "finish", "handoff h1 billing"]
        {
            assert_eq!(refusal_message(script, entry), "the run has ended", "{script}, then {entry}");
        }
        assert_eq!(describe_next(&play_script(&format!("{script}; fail"))), "over", "{script}");
    }
}

#[test]
fn a_body_of_a_nested_agent_may_end_after_the_agent() {
    let inside =
        "answer c1:books; start c1; c1/ nest; c1/ answer p1:look; c1/ start p1; c1/ settle p1 left_running";
    let over = format!("{inside}; c1/ say; c1/ finish");
    let settled = format!("{over}; settle c1 succeeded");
    for script in [inside, &over, &settled, &format!("{settled}; say; finish")] {
        assert_eq!(play_script(&format!("{script}; c1/ late p1")), play_script(script), "{script}");
    }
}

#[test]
fn ends_are_told_apart() {
    assert_eq!(describe_outcome(&play_script("say; finish")), "finished");
    assert_eq!(describe_outcome(&play_script("say; trip")), "failed");
    assert_eq!(describe_outcome(&play_script("cancel")), "cancelled");
    assert_eq!(describe_outcome(&play_script("say")), "going");
    let handled = play_script("finish_with_message");
    assert_eq!(describe_history(&handled), "user, assistant");
}

#[test]
fn a_session_keeps_what_was_done() {
    let kept = |script: &str| describe_items(play_script(script).session_items(0).iter());
    let cases = [
        ("say; finish", "assistant"),
        ("answer c1:look; start c1; settle c1 succeeded; say; finish", "call c1, output c1, assistant"),
        // An open turn is not stored until it has settled.
        ("answer c1:look c2:look; start c1; settle c1 succeeded", ""),
        // Of an interrupted turn, the calls that took effect are stored.
        ("answer c1:look c2:look; start c1; settle c1 succeeded; fail", "call c1, output c1"),
        ("answer c1:look c2:look; start c1; settle_and_end c1 failed; fail", ""),
        ("answer c1:look h1:to_billing; start c1; settle c1 succeeded; fail", "call c1, output c1"),
        ("answer c1:look; start c1; settle c1 failed; fail", "call c1, output c1 failed"),
        // So are those whose output was withheld: they took effect.
        ("answer c1:look c2:look; start c1; end_body c1 succeeded; fail", "call c1, output c1 failed"),
        (
            "answer c1:look c2:look; start c1; end_body c1 succeeded; settle_and_end c1 withheld; fail",
            "call c1, output c1 failed",
        ),
        (
            "answer c1:look c2:look; start c1; start c2; end_body c2 succeeded; settle_and_end c1 failed; fail",
            "call c2, output c2 failed",
        ),
        ("stop_on_first c1:look; start c1; settle c1 succeeded; trip", "call c1, output c1 failed"),
        // So are those whose effect is unknown: the next run on the session must not repeat them blindly.
        ("answer c1:send c2:look; start c1; settle_and_end c2 failed; fail", "call c1, output c1 failed"),
        (
            "answer c1:send c2:look; start c1; settle_and_end c2 failed; settle c1 cancelled; fail",
            "call c1, output c1 failed",
        ),
        ("answer c1:print c2:look; start c1; settle_and_end c2 failed; fail", "call c1, output c1 failed"),
        ("answer c1:send c2:look; start c1; settle_and_end c1 failed; fail", "call c1, output c1 failed"),
        (
            "answer c1:send c2:look; start c1; settle_and_end c1 left_running; fail",
            "call c1, output c1 failed",
        ),
        (
            "answer c1:send c2:look; start c1; doubt c1; settle_and_end c2 failed; fail",
            "call c1, output c1 failed",
        ),
        (
            "answer c1:send c2:look; start c1; doubt c1; happened c1; settle_and_end c2 failed; fail",
            "call c1, output c1 failed",
        ),
        ("answer c1:send c2:look; start c1; doubt c1; did_not_happen c1; settle_and_end c2 failed; fail", ""),
        ("answer c1:send c2:look; start c1; ask c1; settle_and_end c2 failed; fail", ""),
        // An agent may have done what its calls did.
        (
            "answer c1:books c2:look; start c1; c1/ nest; c1/ answer n1:send; c1/ start n1; \
             c1/ settle n1 succeeded; settle_and_end c2 failed; settle c1 cancelled; fail",
            "call c1, output c1 failed",
        ),
        (
            "answer c1:books c2:look; start c1; c1/ nest; settle_and_end c2 failed; settle c1 cancelled; fail",
            "",
        ),
    ];
    for (script, expected) in cases {
        assert_eq!(kept(script), expected, "{script}");
    }
}

#[test]
fn a_run_that_ends_says_what_is_known_of_the_effects_of_its_calls() {
    use crate::run::model_text::{CANCELLED, EFFECT_UNKNOWN, OUTPUT_NOT_CHECKED};
    let open = "answer c1:look c2:look c3:send c4:send; start c1; end_body c1 succeeded; start c2; start c3";
    for end in ["cancel", "fail", "trip"] {
        let run = play_script(&format!("{open}; {end}"));
        let texts: Vec<String> = run
            .history()
            .iter()
            .filter_map(|item| match &**item {
                crate::item::Item::Output(output) => Some(output.content.text().into_owned()),
                _ => None,
            })
            .collect();
        assert_eq!(texts, [OUTPUT_NOT_CHECKED, CANCELLED, EFFECT_UNKNOWN, CANCELLED], "{end}");
        assert!(run.withheld_calls().is_empty(), "{end}");
    }
}

#[test]
fn the_first_call_in_the_order_of_the_model_says_why_the_run_failed() {
    let open = "answer c1:look c2:look c3:look; start c1; start c2; start c3";
    let first = "fail tool `look` failed: c1 done";
    for order in [["c1", "c2"], ["c2", "c1"]] {
        let script = order.map(|call| format!("settle_and_end {call} failed")).join("; ");
        assert_eq!(describe_next(&play_script(&format!("{open}; {script}"))), first, "{order:?}");
        let whole = format!("{open}; {script}; settle c3 succeeded");
        assert_eq!(describe_next(&play_script(&whole)), first, "{order:?}, when all have settled");
    }
    let withheld =
        format!("{open}; settle_and_end c3 failed; end_body c2 succeeded; settle_and_end c2 withheld");
    assert_eq!(describe_next(&play_script(&withheld)), "fail tool `look` failed: c2 done");
}
