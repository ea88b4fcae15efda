use std::time::Duration;

use super::{RequestBody, RequeueResult, ResponseScheduler, ResponseTimeoutAction, ResponseTimeouts};
use crate::id::{CommandId, ItemId, ResponseId};

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn new_scheduler() -> ResponseScheduler {
    ResponseScheduler::new(ResponseTimeouts { start: at(1000), silence: at(3000), cancel: at(500) })
}

fn request_response(scheduler: &mut ResponseScheduler, now: u64, name: &str) -> bool {
    scheduler.next_request(at(now), || CommandId::from(name)).is_some()
}

fn start_response(scheduler: &mut ResponseScheduler, response: &str, asked_by: Option<&str>) {
    let asked_by = asked_by.map(CommandId::from);
    scheduler
        .on_response_started(at(0), ResponseId::from(response), asked_by.as_ref(), |item| *item == "known");
}

fn end_response(scheduler: &mut ResponseScheduler, response: &str) -> bool {
    scheduler.on_response_ended(at(0), &ResponseId::from(response))
}

#[test]
fn reasons_wait_for_the_end_and_become_one_question() {
    let mut scheduler = new_scheduler();
    scheduler.demand_response(at(0), None);
    assert!(request_response(&mut scheduler, 0, "q1"));
    for item in ["a", "b"] {
        scheduler.demand_response(at(1), Some(ItemId::from(item)));
        assert!(!request_response(&mut scheduler, 1, "q2"));
    }
    start_response(&mut scheduler, "r1", Some("q1"));
    assert!(!request_response(&mut scheduler, 2, "q2"));
    assert!(end_response(&mut scheduler, "r1"));
    assert!(request_response(&mut scheduler, 3, "q2"));
    start_response(&mut scheduler, "r2", Some("q2"));
    assert!(end_response(&mut scheduler, "r2"));
    assert!(!request_response(&mut scheduler, 4, "q3"));
}

#[test]
fn a_refused_question_is_asked_again_when_the_other_answer_has_ended() {
    let mut scheduler = new_scheduler();
    scheduler.demand_response(at(0), Some(ItemId::from("known")));
    assert!(request_response(&mut scheduler, 0, "q1"));
    // An unrequested response; the provider does not report its requester.
    start_response(&mut scheduler, "foreign", None);
    assert_eq!(scheduler.requeue_request(at(1), Some(&CommandId::from("q1"))), RequeueResult::Requeued);
    assert!(!request_response(&mut scheduler, 1, "q2"));
    assert!(end_response(&mut scheduler, "foreign"));
    assert!(request_response(&mut scheduler, 2, "q2"));
}

#[test]
fn a_refusal_that_comes_first_is_waited_out() {
    let mut scheduler = new_scheduler();
    scheduler.demand_response(at(0), Some(ItemId::from("known")));
    assert!(request_response(&mut scheduler, 0, "q1"));
    assert_eq!(scheduler.requeue_request(at(1), Some(&CommandId::from("q1"))), RequeueResult::Requeued);
    assert!(!request_response(&mut scheduler, 2, "q2"), "it would be refused again at once");
    assert_eq!(scheduler.deadline(), Some(at(501)));
    // The response that was in the way is reported at last. It is not the result of the rejected request.
    start_response(&mut scheduler, "foreign", None);
    assert!(end_response(&mut scheduler, "foreign"));
    assert!(request_response(&mut scheduler, 3, "q2"));
}

#[test]
fn a_provider_that_says_who_asked_is_believed() {
    let mut scheduler = new_scheduler();
    scheduler.demand_response(at(0), None);
    assert!(request_response(&mut scheduler, 0, "q0"));
    start_response(&mut scheduler, "r0", Some("q0"));
    assert!(end_response(&mut scheduler, "r0"));
    scheduler.demand_response(at(0), None);
    assert!(request_response(&mut scheduler, 0, "q1"));
    start_response(&mut scheduler, "foreign", None);
    assert!(end_response(&mut scheduler, "foreign"));
    // The requested response has yet to start, and no other is requested.
    assert!(!request_response(&mut scheduler, 1, "q2"));
    start_response(&mut scheduler, "r1", Some("q1"));
    assert!(end_response(&mut scheduler, "r1"));
    assert!(!request_response(&mut scheduler, 2, "q3"));
}

#[test]
fn somebody_elses_answer_meets_reasons_that_it_can_see() {
    let mut scheduler = new_scheduler();
    scheduler.demand_response(at(0), Some(ItemId::from("known")));
    start_response(&mut scheduler, "foreign", None);
    assert!(end_response(&mut scheduler, "foreign"));
    assert!(!request_response(&mut scheduler, 1, "q1"));
    scheduler.demand_response(at(0), Some(ItemId::from("unknown")));
    start_response(&mut scheduler, "foreign 2", None);
    assert!(end_response(&mut scheduler, "foreign 2"));
    assert!(request_response(&mut scheduler, 1, "q1"));
}

#[test]
fn nothing_is_waited_for_too_long() {
    let mut scheduler = new_scheduler();
    scheduler.demand_response(at(0), None);
    for time in 0..3 {
        assert!(request_response(&mut scheduler, time * 2000, "q"), "try {time}");
        let action = match time {
            2 => ResponseTimeoutAction::ReportAbandoned { attempts: 3 },
            _ => ResponseTimeoutAction::ReportNotStarted,
        };
        assert_eq!(scheduler.elapsed_timeout(at(time * 2000 + 1000)), Some(action));
    }
    assert!(!request_response(&mut scheduler, 9000, "q"), "it gives up");
    let mut scheduler = new_scheduler();
    start_response(&mut scheduler, "r", None);
    assert_eq!(scheduler.elapsed_timeout(at(2999)), None);
    scheduler.record_activity(at(2999), &ResponseId::from("r"));
    assert_eq!(scheduler.elapsed_timeout(at(3000)), None);
    assert_eq!(
        scheduler.elapsed_timeout(at(5999)),
        Some(ResponseTimeoutAction::Cancel(ResponseId::from("r")))
    );
    assert_eq!(
        scheduler.elapsed_timeout(at(6499)),
        Some(ResponseTimeoutAction::Abandon(ResponseId::from("r")))
    );
}

#[test]
fn a_lost_connection_keeps_the_questions() {
    let mut scheduler = new_scheduler();
    scheduler.demand_response(at(0), None);
    assert!(request_response(&mut scheduler, 0, "q1"));
    scheduler.on_disconnected();
    assert!(request_response(&mut scheduler, 1, "q2"));
    assert!(scheduler.drop_request(&CommandId::from("q2")));
    assert!(!request_response(&mut scheduler, 2, "q3"), "asking again does not help");
}

#[test]
fn a_question_that_is_always_refused_or_lost_is_asked_a_limited_number_of_times() {
    let mut scheduler = new_scheduler();
    scheduler.demand_response(at(0), None);
    let mut now = 0;
    for attempt in 1..=6 {
        assert!(request_response(&mut scheduler, now, "q"), "attempt {attempt}");
        let refused = scheduler.requeue_request(at(now), Some(&CommandId::from("q")));
        let expected =
            if attempt == 6 { RequeueResult::GivenUp { attempts: 6 } } else { RequeueResult::Requeued };
        assert_eq!(refused, expected);
        now += 60_000;
    }
    assert!(!request_response(&mut scheduler, now, "q"));
    let mut scheduler = new_scheduler();
    scheduler.demand_response(at(0), None);
    for attempt in 1..=3 {
        // The response starts each time, and its connection is lost each time.
        assert!(request_response(&mut scheduler, 0, "q"), "attempt {attempt}");
        assert_eq!(scheduler.on_disconnected(), (attempt == 3).then_some(3));
    }
    assert!(!request_response(&mut scheduler, 0, "q"));
}

#[test]
fn a_question_that_another_answer_is_always_ahead_of_is_asked_a_limited_number_of_times() {
    for is_refused_first in [true, false] {
        let mut scheduler = new_scheduler();
        scheduler.demand_response(at(0), Some(ItemId::from("known")));
        for attempt in 1..=6_u64 {
            let now = attempt * 60_000;
            assert!(request_response(&mut scheduler, now, "q"), "attempt {attempt}");
            let foreign = format!("foreign {attempt}");
            if !is_refused_first {
                start_response(&mut scheduler, &foreign, None);
            }
            let refused = scheduler.requeue_request(at(now), Some(&CommandId::from("q")));
            let expected =
                if attempt == 6 { RequeueResult::GivenUp { attempts: 6 } } else { RequeueResult::Requeued };
            assert_eq!(refused, expected, "attempt {attempt}");
            if is_refused_first {
                start_response(&mut scheduler, &foreign, None);
            }
            assert!(end_response(&mut scheduler, &foreign));
        }
        assert!(!request_response(&mut scheduler, 600_000, "q"), "it gives up");
    }
    // A question that is answered at last counts anew.
    let mut scheduler = new_scheduler();
    for round in 0..4 {
        scheduler.demand_response(at(0), None);
        for name in ["q1", "q2", "q3"] {
            assert!(request_response(&mut scheduler, 0, name), "round {round}");
            start_response(&mut scheduler, "foreign", None);
            let refused = scheduler.requeue_request(at(0), Some(&CommandId::from(name)));
            assert_eq!(refused, RequeueResult::Requeued, "round {round}");
            assert!(end_response(&mut scheduler, "foreign"));
        }
        assert!(request_response(&mut scheduler, 0, "q4"));
        start_response(&mut scheduler, "own", Some("q4"));
        assert!(end_response(&mut scheduler, "own"));
    }
}

#[test]
fn requests_that_the_application_worded_are_asked_one_by_one_in_their_order() {
    let mut scheduler = new_scheduler();
    let body = |name: &str| RequestBody::Raw(name.into());
    scheduler.demand_response(at(0), None);
    assert!(scheduler.queue_request(at(1), body("one")));
    assert!(scheduler.queue_request(at(2), body("two")));
    for (number, expected) in [None, Some(body("one")), Some(body("two"))].into_iter().enumerate() {
        let name = format!("q{number}");
        let (_, asked) = scheduler.next_request(at(3), || CommandId::from(name.as_str())).expect("is due");
        assert_eq!(asked, expected);
        start_response(&mut scheduler, &name, Some(&name));
        assert!(end_response(&mut scheduler, &name));
    }
    // A request that is lost with its connection keeps its wording.
    assert!(scheduler.queue_request(at(1), body("three")));
    assert!(request_response(&mut scheduler, 4, "q"));
    assert_eq!(scheduler.on_disconnected(), None);
    let (_, asked) = scheduler.next_request(at(5), || CommandId::from("q5")).expect("is due");
    assert_eq!(asked, Some(body("three")));
}
