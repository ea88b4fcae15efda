use std::time::Duration;

use super::{Gate, Overdue, Patience};
use crate::id::{CommandId, ItemId, ResponseId};

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn gate() -> Gate {
    Gate::new(Patience { begin: at(1000), silence: at(3000), stop: at(500) })
}

fn ask(gate: &mut Gate, now: u64, name: &str) -> bool {
    gate.ask(at(now), || CommandId::from(name)).is_some()
}

fn starts(gate: &mut Gate, response: &str, asked_by: Option<&str>) {
    let asked_by = asked_by.map(CommandId::from);
    gate.started(at(0), ResponseId::from(response), asked_by.as_ref(), |item| *item == "known");
}

fn ends(gate: &mut Gate, response: &str) -> bool {
    gate.ended(at(0), &ResponseId::from(response))
}

#[test]
fn reasons_wait_for_the_end_and_become_one_question() {
    let mut gate = gate();
    gate.want(at(0), None);
    assert!(ask(&mut gate, 0, "q1"));
    for item in ["a", "b"] {
        gate.want(at(1), Some(ItemId::from(item)));
        assert!(!ask(&mut gate, 1, "q2"));
    }
    starts(&mut gate, "r1", Some("q1"));
    assert!(!ask(&mut gate, 2, "q2"));
    assert!(ends(&mut gate, "r1"));
    assert!(ask(&mut gate, 3, "q2"));
    starts(&mut gate, "r2", Some("q2"));
    assert!(ends(&mut gate, "r2"));
    assert!(!ask(&mut gate, 4, "q3"));
}

#[test]
fn a_refused_question_is_asked_again_when_the_other_answer_has_ended() {
    let mut gate = gate();
    gate.want(at(0), Some(ItemId::from("known")));
    assert!(ask(&mut gate, 0, "q1"));
    // Somebody else's answer, of which the provider does not say who asked.
    starts(&mut gate, "foreign", None);
    assert!(gate.ask_again(at(1), Some(&CommandId::from("q1"))));
    assert!(!ask(&mut gate, 1, "q2"));
    assert!(ends(&mut gate, "foreign"));
    assert!(ask(&mut gate, 2, "q2"));
}

#[test]
fn a_refusal_that_comes_first_is_waited_out() {
    let mut gate = gate();
    gate.want(at(0), Some(ItemId::from("known")));
    assert!(ask(&mut gate, 0, "q1"));
    assert!(gate.ask_again(at(1), Some(&CommandId::from("q1"))));
    assert!(!ask(&mut gate, 2, "q2"), "it would be refused again at once");
    assert_eq!(gate.deadline(), Some(at(501)));
    // The answer in the way is told of at last. It is not the answer to the question that was refused.
    starts(&mut gate, "foreign", None);
    assert!(ends(&mut gate, "foreign"));
    assert!(ask(&mut gate, 3, "q2"));
}

#[test]
fn a_provider_that_says_who_asked_is_believed() {
    let mut gate = gate();
    gate.want(at(0), None);
    assert!(ask(&mut gate, 0, "q0"));
    starts(&mut gate, "r0", Some("q0"));
    assert!(ends(&mut gate, "r0"));
    gate.want(at(0), None);
    assert!(ask(&mut gate, 0, "q1"));
    starts(&mut gate, "foreign", None);
    assert!(ends(&mut gate, "foreign"));
    // The one that was asked for has yet to begin, and no other is asked for.
    assert!(!ask(&mut gate, 1, "q2"));
    starts(&mut gate, "r1", Some("q1"));
    assert!(ends(&mut gate, "r1"));
    assert!(!ask(&mut gate, 2, "q3"));
}

#[test]
fn somebody_elses_answer_meets_reasons_that_it_can_see() {
    let mut gate = gate();
    gate.want(at(0), Some(ItemId::from("known")));
    starts(&mut gate, "foreign", None);
    assert!(ends(&mut gate, "foreign"));
    assert!(!ask(&mut gate, 1, "q1"));
    gate.want(at(0), Some(ItemId::from("unknown")));
    starts(&mut gate, "foreign 2", None);
    assert!(ends(&mut gate, "foreign 2"));
    assert!(ask(&mut gate, 1, "q1"));
}

#[test]
fn nothing_is_waited_for_too_long() {
    let mut gate = gate();
    gate.want(at(0), None);
    for time in 0..3 {
        assert!(ask(&mut gate, time * 2000, "q"), "try {time}");
        assert_eq!(gate.overdue(at(time * 2000 + 1000)), Some(Overdue::NeverBegan));
    }
    assert!(!ask(&mut gate, 9000, "q"), "it gives up");
    let mut gate = self::gate();
    starts(&mut gate, "r", None);
    assert_eq!(gate.overdue(at(2999)), None);
    gate.heard(at(2999), &ResponseId::from("r"));
    assert_eq!(gate.overdue(at(3000)), None);
    assert_eq!(gate.overdue(at(5999)), Some(Overdue::Stop(ResponseId::from("r"))));
    assert_eq!(gate.overdue(at(6499)), Some(Overdue::GiveUp(ResponseId::from("r"))));
}

#[test]
fn a_lost_connection_keeps_the_questions() {
    let mut gate = gate();
    gate.want(at(0), None);
    assert!(ask(&mut gate, 0, "q1"));
    gate.lost();
    assert!(ask(&mut gate, 1, "q2"));
    assert!(gate.refused(&CommandId::from("q2")));
    assert!(!ask(&mut gate, 2, "q3"), "asking again does not help");
}
