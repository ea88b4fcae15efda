//! Tests of the run state machine at its boundary: a script of entries in, the next action or the refusal out.

#[path = "tests/bench.rs"]
pub(crate) mod bench;
#[path = "tests/decisions.rs"]
mod decisions;
#[path = "tests/ends.rs"]
mod ends;
#[path = "tests/refusals.rs"]
mod refusals;
#[path = "tests/walks.rs"]
mod walks;

use bench::{RunBench, describe_action, describe_history, describe_next, play_script};

use super::{StopRequest, model_text};
use crate::canonical::Digest;
use crate::journal::{CallSettled, CallStatus, JournalEntry};

#[test]
fn what_is_asked_for_follows_from_the_entries() {
    let cases = [
        ("", "model desk 1"),
        ("say", "finish “said” message"),
        ("refuse_to_say", "finish “no” refusal"),
        ("hosted", "model desk 2"),
        ("answer c1:look", "calls run c1#1"),
        ("answer c1:send", "calls gate c1"),
        ("answer c1:pay", "calls hold c1"),
        ("answer c1:look!", "calls invalid c1"),
        ("answer c1:nothing", "calls settle c1 missing"),
        ("answer h1:to_billing", "handoff h1 desk billing"),
        ("answer h1:to_billing h2:to_desk", "calls settle h2 ignored"),
        ("answer h1:to_billing c1:look", "calls run c1#1"),
        ("answer h1:to_billing c1:look; start c1; settle c1 succeeded", "handoff h1 desk billing"),
        ("answer h1:to_billing; handoff h1 billing", "model billing 2"),
        ("answer h1:to_billing; settle h1 missing", "model desk 2"),
        ("answer c1:look h1:to_billing; start c1; settle c1 succeeded; settle h1 missing", "model desk 2"),
        ("say; reject_output", "model desk 2"),
        ("answer c1:look c2:pay c3:look!", "calls run c1#1, hold c2, invalid c3"),
        ("answer c1:look; start c1; settle c1 succeeded", "model desk 2"),
        ("answer c1:pay; hold c1", "pause c1"),
        ("answer c1:pay c2:look; hold c1", "calls run c2#1"),
        ("answer c1:pay c2:look; hold c1; start c2; settle c2 failed", "pause c1"),
        ("answer c1:pay; hold c1; approve c1", "calls run c1#1"),
        ("answer c1:pay; hold c1; reject c1", "calls settle c1 rejected"),
        ("answer c1:pay; hold c1; reject c1; settle c1 rejected", "model desk 2"),
        ("refused", "model desk 2"),
        ("failed_model", "model desk 1"),
        ("cancel", "over"),
    ];
    for (script, expected) in cases {
        let run = play_script(script);
        assert_eq!(describe_next(&run), expected, "{script}");
        assert_eq!(run.next(), run.next(), "asking changes nothing: {script}");
    }
}

#[test]
fn a_turn_budget_is_kept() {
    let turn = "answer c#:look; start c#; settle c# succeeded; ";
    let script: String = (1..=5).map(|at| turn.replace('#', &at.to_string())).collect();
    assert_eq!(describe_next(&play_script(&script)), "exhausted 5");
    assert_eq!(describe_next(&play_script(&format!("{script} finish"))), "over");
}

#[test]
fn a_request_to_stop_changes_the_next_action() {
    let all = [
        StopRequest::Cancel,
        StopRequest::Pause,
        StopRequest::Leave,
        StopRequest::CancelAfterTurn,
        StopRequest::LeaveAfterTurn,
    ];
    let calls = "calls run c1#1";
    let (paused, ran) = ("pause c2", "calls run c1#2");
    let cases = [
        ("", ["cancel", "pause ", "leave", "cancel", "leave"]),
        ("answer c1:look", ["cancel", "pause ", "leave", calls, calls]),
        ("answer c1:pay; hold c1", ["cancel", "pause c1", "leave", "pause c1", "pause c1"]),
        ("answer c1:look c2:pay; start c1; hold c2", ["cancel", paused, "leave", ran, ran]),
        ("answer c1:look; start c1; settle c1 succeeded", ["cancel", "pause ", "leave", "cancel", "leave"]),
        ("answer c1:look; start c1; settle c1 succeeded; cancel", ["over"; 5]),
    ];
    for (script, expected) in cases {
        let run = play_script(script);
        assert_eq!(all.map(|request| describe_action(&run, Some(request))), expected, "{script}");
        assert_eq!(describe_action(&run, None), describe_next(&run), "{script}");
    }
    let turn = "answer c#:look; start c#; settle c# succeeded; ";
    let script: String = (1..=5).map(|at| turn.replace('#', &at.to_string())).collect();
    let exhausted = play_script(&script);
    let expected = ["cancel", "pause ", "leave", "cancel", "leave"];
    assert_eq!(all.map(|request| describe_action(&exhausted, Some(request))), expected);
}

#[test]
fn after_a_crash_a_call_follows_its_effect() {
    let cases = [
        ("answer c1:look; start c1", "calls run c1#2"),
        ("answer c1:print; start c1", "calls run c1#2"),
        ("answer c1:transfer; start c1", "calls doubt c1#1"),
        ("answer c1:transfer; start c1; start c1 2", "calls doubt c1#2"),
        ("answer c1:send; start c1", "calls doubt c1#1"),
        ("answer c1:pay; hold c1; approve c1; start c1", "calls doubt c1#1"),
        ("answer c1:pay; hold c1; edit c1; start c1", "calls doubt c1#1 edited"),
        ("answer c1:look c2:transfer; start c2", "calls run c1#1, doubt c2#1"),
        ("answer c1:transfer; start c1; doubt c1", "pause c1"),
        ("answer c1:transfer; start c1; doubt c1; happened c1", "calls settle c1 reconciled"),
        ("answer c1:transfer; start c1; doubt c1; unknown c1", "calls settle c1 unknown"),
        ("answer c1:transfer; start c1; doubt c1; did_not_happen c1", "calls run c1#2"),
        ("answer c1:transfer; start c1; doubt c1; did_not_happen c1; start c1 2", "calls doubt c1#2"),
        ("answer c1:books; start c1", "calls go on c1#1"),
        ("answer c1:books; start c1; c1/ nest", "calls go on c1#1"),
        ("answer c1:books; start c1; c1/ nest; c1/ answer p1:transfer; c1/ start p1", "calls go on c1#1"),
        ("answer c1:books; start c1; c1/ nest; c1/ answer p1:pay; c1/ hold p1", "pause c1/p1"),
        ("answer c1:books; start c1; c1/ nest; c1/ say; c1/ finish", "calls go on c1#1"),
        ("answer c1:transfer; start c1; end_body c1 succeeded", "calls check c1 succeeded"),
        ("answer c1:look; start c1; end_body c1 failed", "calls check c1 failed"),
        ("answer c1:print; end_body c1 receipt", "calls check c1 receipt"),
        (
            "answer c1:books; start c1; c1/ nest; c1/ say; c1/ finish; end_body c1 succeeded",
            "calls check c1 succeeded",
        ),
        (
            "answer c1:pay; hold c1; edit c1; start c1; end_body c1 succeeded",
            "calls check c1 succeeded edited",
        ),
        (
            "answer c1:transfer; start c1; doubt c1; happened c1; end_body c1 reconciled",
            "calls check c1 reconciled",
        ),
    ];
    for (script, expected) in cases {
        assert_eq!(describe_next(&play_script(script)), expected, "{script}");
    }
    let inner = "answer c1:books; start c1; c1/ nest; c1/ answer p1:transfer; c1/ start p1";
    let run = play_script(inner);
    let child = run.at_path(&["c1".into()]).expect("it runs");
    assert_eq!(describe_next(child), "calls doubt p1#1", "a nested call follows its effect too");
}

#[test]
fn what_a_person_changed_runs_again_as_they_changed_it() {
    let run = play_script("answer c1:pay; hold c1; edit c1; start c1; doubt c1");
    assert_eq!(run.pending_calls()[0].arguments, "{\"edited\":true}", "what is in doubt is what ran");
    let run = play_script("answer c1:pay; hold c1; edit c1; start c1; doubt c1; did_not_happen c1");
    assert_eq!(describe_next(&run), "calls run c1#2 edited");
}

#[test]
fn calls_of_one_conflict_key_keep_the_order_of_the_model() {
    let cases = [
        ("answer c1:transfer c2:transfer c3:transfer", "calls run c1#1"),
        ("answer c1:transfer c2:look c3:transfer", "calls run c1#1, run c2#1"),
        ("answer c1:transfer c2:transfer; start c1; settle c1 failed", "calls run c2#1"),
        ("answer c1:transfer c2:transfer; start c1", "calls doubt c1#1"),
        ("answer c1:transfer c2:transfer; start c1; end_body c1 succeeded", "calls check c1 succeeded"),
        ("answer c1:transfer c2:transfer c3:transfer; start c1; doubt c1", "pause c1"),
        ("answer c1:transfer c2:transfer; start c1; doubt c1; unknown c1", "calls settle c1 unknown"),
        (
            "answer c1:transfer c2:transfer c3:transfer; start c1; settle c1 failed; start c2; settle c2 succeeded",
            "calls run c3#1",
        ),
    ];
    for (script, expected) in cases {
        assert_eq!(describe_next(&play_script(script)), expected, "{script}");
    }
}

#[test]
fn outputs_stand_in_the_order_of_the_model() {
    let run = play_script(
        "answer c1:look c2:pay c3:look c4:look!; hold c2; start c3; settle c3 succeeded; settle c4 invalid; \
         start c1; settle c1 timed_out; approve c2; start c2; settle c2 succeeded",
    );
    let calls = "user, call c1, call c2, call c3, call c4";
    assert_eq!(
        describe_history(&run),
        format!("{calls}, output c1 failed, output c2, output c3, output c4 failed")
    );
    assert!(run.is_between_turns());
}

#[test]
fn a_handoff_stands_where_the_model_put_it() {
    let script =
        "answer c1:look h1:to_billing c2:look; start c2; settle c2 succeeded; start c1; settle c1 succeeded";
    let run = play_script(&format!("{script}; handoff h1 billing"));
    assert_eq!(describe_history(&run), "user, call c1, call h1, call c2, output c1, handoff h1, output c2");
    assert_eq!(run.agent(), &"billing");
    let run = play_script(&format!("{script}; input; filter h1 billing"));
    assert_eq!(describe_history(&run), "user, user", "what is added later is not filtered away");
    assert_eq!(run.input().len(), 1, "what the run was given stays what it was given");
}

#[test]
fn input_that_comes_late_follows_the_outputs() {
    let cases = [
        ("input", "user, user"),
        ("answer c1:look; input; start c1; settle c1 succeeded", "user, call c1, output c1, user"),
        ("answer h1:to_billing; input; handoff h1 billing", "user, call h1, handoff h1, user"),
        ("judge c1:look; start c1; settle c1 succeeded; input; went_on", "user, call c1, output c1, user"),
        ("say; input; finish", "user, assistant, user"),
        ("answer c1:look; input; cancel", "user, user"),
    ];
    for (script, expected) in cases {
        assert_eq!(describe_history(&play_script(script)), expected, "{script}");
    }
}

#[test]
fn results_may_be_final() {
    let done = "start c1; settle c1 succeeded; start c2; settle c2 succeeded";
    let cases = [
        ("stop_on_first c1:look c2:print", "finish “c1 done” tool c1"),
        ("stop_at:print c1:look c2:print", "finish “c2 done” tool c2"),
        ("stop_at:pay c1:look c2:print", "model desk 2"),
        ("judge c1:look c2:print", "judge desk"),
        ("answer c1:look c2:print", "model desk 2"),
    ];
    for (answer, expected) in cases {
        assert_eq!(describe_next(&play_script(&format!("{answer}; {done}"))), expected, "{answer}");
    }
    let run = play_script("stop_on_first c1:nothing c2:look!; settle c1 missing; settle c2 invalid");
    assert_eq!(describe_next(&run), "finish “c2 done” tool c2", "a tool that is not there has no result");
    let run = play_script(&format!("judge c1:look c2:print; {done}"));
    assert_eq!(run.turn_results().len(), 2);
    assert_eq!(
        describe_next(&play_script(&format!("judge c1:look c2:print; {done}; went_on"))),
        "model desk 2"
    );
}

#[test]
fn equal_calls_in_a_row_are_counted() {
    let turn = |id: &str, tool: &str| format!("answer {id}:{tool}; start {id}; settle {id} succeeded; ");
    let repeats = |turns: &[(&str, &str)]| {
        play_script(&turns.iter().map(|(id, tool)| turn(id, tool)).collect::<String>()).repeat_count()
    };
    assert_eq!(repeats(&[("c1", "look"), ("c2", "look"), ("c3", "look")]), 3);
    assert_eq!(repeats(&[("c1", "look"), ("c2", "print"), ("c3", "look")]), 1);
}

#[test]
fn receipts_are_of_the_arguments_that_ran() {
    let receipts = |script: &str| RunBench::from_script(script).replay().receipts.len();
    assert_eq!(receipts("answer c1:print; start c1; settle c1 succeeded"), 1);
    assert_eq!(receipts("answer c1:print; start c1; settle c1 failed"), 0);
    assert_eq!(receipts("answer c1:print; settle c1 receipt"), 0);
    let withheld = "answer c1:print; start c1; end_body c1 succeeded";
    assert_eq!(receipts(withheld), 0, "what is withheld is no receipt");
    assert_eq!(receipts(&format!("{withheld}; settle c1 succeeded")), 1);
    assert_eq!(receipts(&format!("{withheld}; settle c1 withheld")), 0, "nor is what stays withheld");
    assert_eq!(receipts("answer c1:print; end_body c1 receipt; settle c1 receipt"), 0);
    assert_eq!(receipts("answer c1:look; start c1; settle c1 succeeded"), 0);
    for end in ["settle c1 succeeded", "end_body c1 succeeded; settle c1 succeeded"] {
        let edited = RunBench::from_script(&format!("answer c1:print; edit c1; start c1; {end}"));
        let JournalEntry::CallStarted(started) = &edited.records[3].entry else { panic!("it starts there") };
        let digests: Vec<Option<Digest>> = edited.replay().receipts.keys().copied().map(Some).collect();
        assert_eq!(digests, [started.receipt_digest], "that of the changed arguments: {end}");
        assert_ne!(digests, [edited.run.call_digests().get(&"c1".into()).copied()], "{end}");
    }
    assert_eq!(
        receipts(
            "answer c1:books; start c1; c1/ nest; c1/ answer p1:print; c1/ start p1; c1/ settle p1 succeeded"
        ),
        1
    );
}

#[test]
fn a_receipt_of_a_redacted_output_says_that_its_secrets_were_not_kept() {
    for (is_output_redacted, expected) in
        [(false, "c1 done".to_owned()), (true, format!("c1 done\n{}", model_text::SECRETS_LOST_NOTE))]
    {
        let mut bench = RunBench::from_script("answer c1:print; start c1");
        let settled = CallSettled::new("c1".into(), CallStatus::Succeeded, "c1 done");
        let entry = JournalEntry::CallSettled(CallSettled { is_output_redacted, ..settled });
        bench.try_record(vec![], entry).expect("it ends");
        let receipts = bench.replay().receipts;
        let outputs: Vec<String> =
            receipts.values().map(|receipt| receipt.output.text().into_owned()).collect();
        assert_eq!(outputs, [expected]);
    }
}

#[test]
fn a_journal_replays_to_the_same_run() {
    let scripts = [
        "answer c1:look c2:pay; hold c2; start c1; settle c1 succeeded",
        "answer c1:pay c2:pay; hold c1; approve_always c1; start c1; settle c1 succeeded; revoke pay; input",
        "answer c1:books; start c1; c1/ nest; c1/ answer p1:pay; c1/ hold p1; c1/ reject p1",
        "answer c1:look c2:transfer; start c1; end_body c1 succeeded; start c2; end_body c2 failed; settle c2 withheld",
        "filter_input 0 1; answer c1:look; start c1; settle c1 succeeded; failed_model; filter_input 1 3; say",
        "answer c1:look; start c1; ask c1; reply c1; start c1 2; settle_and_end c1 failed; fail",
        "answer h1:to_billing; filter h1 billing; answer c1:look; start c1; settle c1 succeeded; say; finish",
    ];
    for script in scripts {
        let bench = RunBench::from_script(script);
        let replay = bench.replay();
        assert_eq!(replay.run, bench.run, "{script}");
        assert_eq!(replay.next_seq, bench.records.len() as u64);
    }
}

#[test]
fn a_journal_with_a_gap_is_refused() {
    use super::{ReplayError, Run};
    let records = RunBench::from_script("answer c1:look; start c1; settle c1 succeeded").records;
    assert_eq!(Run::replay(&[]), Err(ReplayError::EmptyJournal));
    assert_eq!(Run::replay(&records[1..]), Err(ReplayError::MissingRunStarted));
    let missing = [&records[..2], &records[3..]].concat();
    assert_eq!(Run::replay(&missing), Err(ReplayError::SequenceGap { expected: 2, found: 3 }));
    let mut out_of_place = records;
    out_of_place.swap(1, 2);
    (out_of_place[1].seq, out_of_place[2].seq) = (1, 2);
    assert!(matches!(Run::replay(&out_of_place), Err(ReplayError::InvalidRecord { seq: 1, .. })));
}

#[test]
fn what_is_withheld_is_known_by_its_digest_until_it_settles() {
    let digest = |script: &str| play_script(script).withheld_output(&"c1".into());
    let ended = "answer c1:look c2:look; start c1; end_body c1 succeeded";
    let given = crate::item::OutputContent::from("c1 done").digest();
    assert_eq!(digest("answer c1:look c2:look; start c1"), None);
    assert_eq!(digest(ended), Some(given));
    assert_eq!(digest(&format!("{ended}; settle c1 succeeded")), None);
    let paths = |script: &str| -> Vec<String> {
        play_script(script).withheld_calls().iter().map(ToString::to_string).collect()
    };
    assert_eq!(paths(ended), ["c1"]);
    let nested = "answer c1:books c2:look; start c1; c1/ nest; c1/ answer p1:look p2:look; c1/ start p2; \
                  c1/ end_body p2 failed; start c2; end_body c2 succeeded";
    assert_eq!(paths(nested), ["c1/p2", "c2"]);
    assert_eq!(
        paths(&format!("{nested}; c1/ settle p2 withheld; settle c2 succeeded")),
        Vec::<String>::new()
    );
    let texts = format!("{:?}", RunBench::from_script(ended).records);
    assert!(!texts.contains("c1 done"), "the journal has no byte of it: {texts}");
}

#[test]
fn what_the_model_was_asked_is_what_the_filter_left() {
    let asked = |script: &str| bench::describe_items(play_script(script).last_model_input().iter());
    assert_eq!(asked(""), "user");
    assert_eq!(asked("say"), "user");
    assert_eq!(asked("filter_input 0 0"), "user", "before the answer it is not yet the last");
    assert_eq!(asked("filter_input 0 0; say"), "system");
    assert_eq!(asked("filter_input 0 0; filter_input 0 1; say"), "system, user", "the last one counts");
    assert_eq!(asked("filter_input 0 0; failed_model; say"), "user", "a retry is filtered anew");
    let turn = "filter_input 0 1; answer c1:look; start c1; settle c1 succeeded";
    assert_eq!(asked(turn), "system, user");
    assert_eq!(asked(&format!("{turn}; filter_input 1 3; say")), "system, call c1, output c1");
    assert_eq!(asked(&format!("{turn}; say")), "user, call c1, output c1", "a filter is of one request");
    assert_eq!(
        describe_history(&play_script(&format!("{turn}; filter_input 1 3; say"))),
        "user, call c1, output c1, assistant"
    );
}

#[test]
fn a_compaction_replaces_the_history_and_nothing_else() {
    let turn = "answer c1:look; start c1; settle c1 succeeded";
    let whole = play_script(turn);
    let run = play_script(&format!("{turn}; compact 1 3"));
    assert_eq!(describe_history(&run), "user, call c1, output c1");
    assert_eq!(bench::describe_items(run.next_model_input().iter()), "user, call c1, output c1");
    assert_eq!(run.items(), whole.items(), "the items of the run and of its session stay");
    assert_eq!(run.call_digests(), whole.call_digests(), "an old call id is still known");
    assert_eq!(run.last_model_input(), whole.last_model_input(), "the last request was the whole history");
    assert_eq!((run.usage().requests, run.usage().input_tokens), (2, whole.usage().input_tokens + 9));
    let later = play_script(&format!("{turn}; compact 3 3; answer c2:look; start c2; settle c2 succeeded"));
    assert_eq!(describe_history(&later), "user, call c2, output c2");
    assert_eq!(bench::describe_items(later.last_model_input().iter()), "user");
}

#[test]
fn a_compaction_keeps_pairs_and_has_its_place() {
    let turn = "answer c1:look; start c1; settle c1 succeeded";
    for (script, entry) in [
        (turn, "compact 2 3"),
        (turn, "compact 1 2"),
        (turn, "compact 2 9"),
        ("answer c1:look", "compact 0 1"),
        ("say; finish", "compact 0 1"),
    ] {
        let mut bench = RunBench::from_script(script);
        let before = bench.run.clone();
        assert!(bench.try_line(entry).is_err(), "{script}; {entry}");
        assert_eq!(bench.run, before, "nothing changed");
    }
}
