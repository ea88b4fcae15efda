//! The cost of a call does not grow with the length of the run, measured in instruction counts.

use crate::count_instructions;

/// Returns the instructions per call at a small and at a large size, without those of the start-up.
fn instructions_per_call(case: &str, small: u32, large: u32) -> (f64, f64) {
    let base = count_instructions(case, 1);
    let at = |size: u32| (count_instructions(case, size) - base) / f64::from(size - 1);
    (at(small), at(large))
}

#[test]
fn a_turn_costs_the_same_however_long_the_run() {
    let (first, all) = instructions_per_call("turns", 100, 10_000);
    println!("instructions for a turn with one call: {first:.0} of 100, {all:.0} of 10,000");
    assert!(all <= 2.0 * first, "a turn costs {first:.0} instructions at first and {all:.0} in a long run");
}

#[test]
fn a_call_costs_the_same_however_many_there_are_in_a_turn() {
    let (first, all) = instructions_per_call("calls", 100, 10_000);
    println!("instructions for a call in one turn: {first:.0} of 100, {all:.0} of 10,000");
    assert!(all <= 2.0 * first, "a call costs {first:.0} instructions among 100 and {all:.0} among 10,000");
}

#[test]
fn writing_reading_and_resuming_is_linear() {
    let (first, all) = instructions_per_call("resume", 100, 2_000);
    println!("instructions for a resumed turn: {first:.0} of 100, {all:.0} of 2,000");
    assert!(
        all <= 2.0 * first,
        "a turn costs {first:.0} instructions to resume at first and {all:.0} in a long run"
    );
}
