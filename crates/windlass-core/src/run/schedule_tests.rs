//! Tests of the schedule of a turn: which calls begin, and when.

use super::TurnSchedule;
use crate::id::CallId;
use crate::run::CallOutcome;
use crate::run::tests::bench::{RunBench, play_script};

const NO_LIMIT: usize = usize::MAX;

/// A run whose calls a driver works on as a schedule says.
struct ScheduleBench {
    bench: RunBench,
    schedule: TurnSchedule,
}

impl ScheduleBench {
    fn new(script: &str, limit: usize) -> Self {
        let bench = RunBench::from_script(script);
        let schedule = TurnSchedule::new(&bench.run, limit);
        Self { bench, schedule }
    }

    /// Begins all calls that can begin, and returns them in that order.
    fn begin(&mut self) -> String {
        let begun = std::iter::from_fn(|| self.schedule.begin_call(&self.bench.run));
        let calls: Vec<String> = begun.map(|(place, call)| format!("{place}:{call}")).collect();
        calls.join(" ")
    }

    fn record(&mut self, line: &str) {
        self.bench.try_line(line).unwrap_or_else(|why| panic!("`{line}`: {why}"));
    }

    /// Records entries, ends the work on the call at a position, and begins what can begin now.
    fn end(&mut self, place: usize, lines: &str) -> String {
        lines.split(';').map(str::trim).filter(|line| !line.is_empty()).for_each(|line| self.record(line));
        self.schedule.end_call(place, CallOutcome::LeftOpen, &self.bench.run);
        self.begin()
    }

    fn refresh(&mut self) -> String {
        self.schedule.refresh(&self.bench.run);
        self.begin()
    }
}

#[test]
fn without_an_open_turn_nothing_begins() {
    for script in ["", "say", "cancel", "answer h1:to_billing", "answer c1:look; start c1; settle c1 failed"]
    {
        let mut bench = ScheduleBench::new(script, NO_LIMIT);
        assert_eq!((bench.begin().as_str(), bench.schedule.active_count()), ("", 0), "{script}");
        assert_eq!(bench.refresh(), "", "{script}");
    }
}

#[test]
fn calls_begin_in_the_order_of_the_model() {
    let cases = [
        ("answer c3:look c1:look c2:look", "0:c3 1:c1 2:c2"),
        ("answer c1:look c2:pay c3:look! c4:nothing", "0:c1 1:c2 2:c3 3:c4"),
        ("answer c1:look h1:to_billing c2:look h2:to_desk", "0:c1 2:c2 3:h2"),
        ("answer c1:look c2:look c3:look; start c2; settle c2 failed", "0:c1 2:c3"),
        ("answer c1:pay c2:look; hold c1", "1:c2"),
        ("answer c1:pay c2:look; hold c1; approve c1", "0:c1 1:c2"),
        ("answer c1:pay c2:look; hold c1; reject c1", "0:c1 1:c2"),
        ("answer c1:look c2:look; start c1; end_body c1 succeeded", "0:c1 1:c2"),
        ("answer c1:transfer c2:look; start c1", "0:c1 1:c2"),
        ("answer c1:transfer c2:look; start c1; doubt c1", "1:c2"),
        ("answer c1:books c2:look; start c1; c1/ nest; c1/ answer p1:pay", "0:c1 1:c2"),
        ("answer c1:books c2:look; start c1; c1/ nest; c1/ answer p1:pay; c1/ hold p1", "1:c2"),
        ("answer c1:transfer c2:transfer c3:look c4:transfer", "0:c1 2:c3"),
        ("answer c1:transfer c2:transfer c3:transfer; start c1; settle c1 failed", "1:c2"),
    ];
    for (script, expected) in cases {
        let mut bench = ScheduleBench::new(script, NO_LIMIT);
        assert_eq!(bench.begin(), expected, "{script}");
        assert_eq!(bench.schedule.active_count(), expected.split_whitespace().count(), "{script}");
        assert_eq!(bench.begin(), "", "each begins once: {script}");
        assert_eq!(bench.refresh(), "", "what is worked on does not begin again: {script}");
    }
}

#[test]
fn no_more_calls_begin_than_the_limit_allows() {
    let mut bench = ScheduleBench::new("answer c1:look c2:look c3:look c4:look c5:look", 2);
    assert_eq!((bench.begin().as_str(), bench.schedule.active_count()), ("0:c1 1:c2", 2));
    assert_eq!(bench.refresh(), "", "the limit is reached");
    assert_eq!(bench.end(1, "start c2; settle c2 succeeded"), "2:c3");
    assert_eq!(bench.end(2, "settle c3 failed"), "3:c4");
    assert_eq!(bench.end(0, "settle c1 failed"), "4:c5");
    assert_eq!(bench.schedule.active_count(), 2);
    assert_eq!(bench.end(3, "settle c4 failed"), "");
    assert_eq!(bench.end(4, "settle c5 failed"), "");
    assert_eq!(bench.schedule.active_count(), 0);
    let mut bench = ScheduleBench::new("answer c1:look c2:look", 0);
    assert_eq!(bench.begin(), "0:c1", "a limit of none would never end");
    let mut bench = ScheduleBench::new("answer c1:pay c2:look c3:look", 1);
    assert_eq!(bench.begin(), "0:c1");
    assert_eq!(bench.end(0, "hold c1"), "1:c2", "whoever waits for a person takes no place");
}

#[test]
fn the_end_of_work_counts_once() {
    let mut bench = ScheduleBench::new("answer c1:look c2:look c3:look", 1);
    assert_eq!(bench.begin(), "0:c1");
    assert_eq!(bench.end(0, "settle c1 failed"), "1:c2");
    assert_eq!(bench.end(0, ""), "", "c2 still has its place");
    assert_eq!(bench.end(9, ""), "", "nor does a call that is not there give one up");
    assert_eq!(bench.schedule.active_count(), 1);
    assert_eq!(bench.end(1, ""), "2:c3", "work may end without an output");
    assert_eq!(bench.end(2, "settle c3 failed"), "", "and c2 is not begun by the same driver again unasked");
    assert_eq!(bench.schedule.active_count(), 0);
}

#[test]
fn calls_of_one_conflict_key_begin_one_after_another() {
    let mut bench = ScheduleBench::new("answer c1:transfer c2:transfer c3:look c4:transfer", NO_LIMIT);
    assert_eq!(bench.begin(), "0:c1 2:c3");
    assert_eq!(bench.end(2, "settle c3 failed"), "");
    bench.record("start c1");
    assert_eq!(bench.refresh(), "", "c1 has only begun");
    bench.record("end_body c1 succeeded");
    assert_eq!(bench.refresh(), "", "its output is withheld");
    assert_eq!(bench.end(0, "settle c1 succeeded"), "1:c2");
    assert_eq!(bench.end(1, "settle c2 failed"), "3:c4", "how it settled does not matter here");
    assert_eq!(bench.end(3, "settle c4 failed"), "");
}

#[test]
fn a_follower_waits_for_a_place_too() {
    let mut bench = ScheduleBench::new("answer c1:transfer c2:look c3:transfer c4:look", 1);
    assert_eq!(bench.begin(), "0:c1");
    assert_eq!(bench.end(0, "settle c1 failed"), "1:c2");
    assert_eq!(bench.end(1, "settle c2 failed"), "2:c3", "it comes before c4 in the order of the model");
    assert_eq!(bench.end(2, "settle c3 failed"), "3:c4");
}

#[test]
fn an_earlier_call_that_becomes_ready_comes_first() {
    let mut bench = ScheduleBench::new("answer c1:transfer c2:transfer c3:look c4:look c5:look", 2);
    assert_eq!(bench.begin(), "0:c1 2:c3");
    assert_eq!(bench.end(2, "settle c3 failed"), "3:c4");
    assert_eq!(bench.end(0, "settle c1 failed"), "1:c2", "before c5, though c4 has begun");
    assert_eq!(bench.end(3, "settle c4 failed"), "4:c5");
}

#[test]
fn followers_of_a_held_call_wait_until_it_has_settled() {
    let mut bench = ScheduleBench::new("answer c1:transfer c2:transfer c3:look; start c1", NO_LIMIT);
    assert_eq!(bench.begin(), "0:c1 2:c3");
    assert_eq!(bench.end(0, "doubt c1"), "", "c2 follows a call that waits for a person");
    assert_eq!(bench.refresh(), "");
    assert_eq!(bench.end(2, "settle c3 failed"), "");
    bench.record("unknown c1");
    assert_eq!(bench.begin(), "", "the schedule has not heard of it");
    assert_eq!(bench.refresh(), "0:c1");
    assert_eq!(bench.end(0, "settle c1 unknown"), "1:c2");
}

#[test]
fn a_decision_makes_its_call_ready() {
    let held = "answer c1:pay c2:look c3:pay c4:pay; hold c1; hold c3; hold c4";
    let mut bench = ScheduleBench::new(held, NO_LIMIT);
    assert_eq!(bench.begin(), "1:c2");
    bench.record("approve c3");
    assert_eq!(bench.refresh(), "2:c3", "it does not wait for its siblings");
    bench.record("reject_always c1");
    assert_eq!(bench.refresh(), "0:c1 3:c4", "a standing decision reaches several");
    assert_eq!(bench.refresh(), "", "nothing begins twice");
    assert_eq!(bench.schedule.active_count(), 4);
    let mut bench = ScheduleBench::new("answer c1:look c2:look; start c1", NO_LIMIT);
    assert_eq!(bench.begin(), "0:c1 1:c2");
    assert_eq!(bench.end(0, "ask c1"), "");
    bench.record("reply c1");
    assert_eq!(bench.refresh(), "0:c1", "an answer is a decision");
}

#[test]
fn a_decision_that_comes_before_the_end_of_work_is_found_by_the_next_refresh() {
    let mut bench = ScheduleBench::new("answer c1:pay c2:look", NO_LIMIT);
    assert_eq!(bench.begin(), "0:c1 1:c2");
    bench.record("hold c1");
    bench.record("approve c1");
    assert_eq!(bench.refresh(), "", "it is still worked on");
    let begun = bench.end(0, "");
    let later = bench.refresh();
    assert_eq!(format!("{begun}{later}"), "0:c1");
}

#[test]
fn an_agent_inside_a_call_makes_it_ready_again() {
    let nested = "answer c1:books c2:look; start c1; c1/ nest; c1/ answer p1:pay; c1/ hold p1";
    let mut bench = ScheduleBench::new(nested, NO_LIMIT);
    assert_eq!(bench.begin(), "1:c2");
    bench.record("c1/ approve p1");
    assert_eq!(bench.refresh(), "0:c1");
    let child = bench.bench.run.at_path(&[CallId::from("c1")]).expect("it runs");
    let mut inner = TurnSchedule::new(child, NO_LIMIT);
    assert_eq!(inner.begin_call(child), Some((0, "p1".into())), "the agent has a schedule of its own");
}

#[test]
fn a_run_that_ends_begins_nothing() {
    let mut bench = ScheduleBench::new("answer c1:look c2:look c3:look", 1);
    assert_eq!(bench.begin(), "0:c1");
    bench.record("cancel");
    assert_eq!(bench.end(0, ""), "");
    let run = play_script("answer c1:look c2:look; start c1; settle_and_end c1 failed; fail");
    assert_eq!(TurnSchedule::new(&run, NO_LIMIT).begin_call(&run), None);
}

/// Carries out the calls of a turn in a seeded order, and checks after each step what may be worked on.
#[test]
fn whatever_ends_first_the_order_of_conflicts_and_the_limit_are_kept() {
    for seed in 0..200_u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next_below = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % limit as u64) as usize
        };
        let count = 1 + next_below(8);
        let tools: Vec<&str> = (0..count).map(|_| ["look", "transfer", "pay"][next_below(3)]).collect();
        let calls: Vec<String> = tools.iter().enumerate().map(|(at, tool)| format!("c{at}:{tool}")).collect();
        let limit = 1 + next_below(4);
        let mut bench = ScheduleBench::new(&format!("answer {}", calls.join(" ")), limit);
        let (mut active, mut settled, mut held) = (Vec::new(), vec![false; count], Vec::new());
        while settled.contains(&false) {
            while let Some((place, call)) = bench.schedule.begin_call(&bench.bench.run) {
                assert_eq!(call, format!("c{place}").as_str());
                assert!(!settled[place] && !active.contains(&place) && !held.contains(&place), "seed {seed}");
                let is_before = |at: &usize| tools[*at] == "transfer" && tools[place] == "transfer";
                assert!(
                    (0..place).filter(is_before).all(|at| settled[at]),
                    "seed {seed}: c{place} overtakes"
                );
                active.push(place);
            }
            assert!(active.len() <= limit, "seed {seed}");
            assert_eq!(active.len(), bench.schedule.active_count(), "seed {seed}");
            if !held.is_empty() && (active.is_empty() || next_below(3) == 0) {
                let place: usize = held.swap_remove(next_below(held.len()));
                bench.record(&format!("approve c{place}"));
                bench.schedule.refresh(&bench.bench.run);
                continue;
            }
            assert!(!active.is_empty(), "seed {seed}: nothing moves");
            let place = active.swap_remove(next_below(active.len()));
            let call = format!("c{place}");
            let is_decided = bench.bench.records.iter().any(|record| {
                matches!(&record.entry, crate::journal::JournalEntry::DecisionRecorded(decided) if decided.call == call.as_str())
            });
            if tools[place] == "pay" && !is_decided {
                bench.record(&format!("hold {call}"));
                held.push(place);
            } else {
                bench.record(&format!("start {call}"));
                bench.record(&format!("settle {call} failed"));
                settled[place] = true;
            }
            let outcome = if settled[place] { CallOutcome::Settled } else { CallOutcome::Held };
            bench.schedule.end_call(place, outcome, &bench.bench.run);
        }
        assert_eq!(bench.begin(), "", "seed {seed}");
    }
}

#[test]
fn calls_whose_body_ended_under_an_earlier_driver_come_first() {
    let script = "answer c1:look c2:look c3:look c4:look; start c2; end_body c2 succeeded; start c4; end_body c4 failed";
    assert_eq!(ScheduleBench::new(script, NO_LIMIT).begin(), "1:c2 3:c4 0:c1 2:c3");
    let mut limited = ScheduleBench::new(script, 1);
    assert_eq!(limited.begin(), "1:c2");
    assert_eq!(limited.end(1, "settle c2 succeeded"), "3:c4");
    assert_eq!(limited.end(3, "settle c4 failed"), "0:c1");
}
