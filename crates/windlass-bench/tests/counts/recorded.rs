//! No hot path costs more instructions than recorded in `counts.json`, and a paused run no more than its bound.
//!
//! After a deliberate increase, record the counts again: `WINDLASS_COUNTS=record cargo test --profile count
//! -p windlass-bench --features count`. Compilers and C libraries differ slightly, so 5 % more is tolerated.

use std::collections::BTreeMap;
use std::path::Path;

use crate::count_instructions;

/// Factor by which a path may exceed its recorded count.
const TOLERANCE: f64 = 1.05;

/// The hot paths: case name, unit, and number of repetitions.
const HOT_PATHS: [(&str, &str, u32); 5] = [
    ("turns", "a turn with one call", 1_000),
    ("calls", "a call", 1_000),
    ("entries", "an entry", 5_000),
    ("events", "an event", 5_000),
    ("arguments", "reading arguments", 500),
];

/// Two thirds of the instructions that writing, reading and resuming a paused run of 1,000 items took in commit 335bc29.
const MAX_CYCLE_INSTRUCTIONS: f64 = 78_288_567.0 * 2.0 / 3.0;

#[test]
fn a_paused_run_is_written_read_and_resumed_at_two_thirds_of_its_first_cost() {
    let cycle = count_instructions("cycle-items", 1_000) - count_instructions("pause-items", 1_000);
    println!("instructions to write, read and resume 1,000 items: {cycle:.0}");
    assert!(
        cycle <= MAX_CYCLE_INSTRUCTIONS,
        "{cycle:.0} instructions to write, read and resume 1,000 items, at most {MAX_CYCLE_INSTRUCTIONS:.0}"
    );
}

#[test]
fn no_hot_path_costs_more_than_was_recorded() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("counts.json");
    let counted: BTreeMap<&str, f64> = HOT_PATHS
        .iter()
        .map(|(case, _, size)| {
            let cost = (count_instructions(case, *size) - count_instructions(case, 1)) / f64::from(size - 1);
            (*case, cost.round())
        })
        .collect();
    println!("instructions: {counted:?}");
    if std::env::var("WINDLASS_COUNTS").is_ok_and(|wish| wish == "record") {
        let text = serde_json::to_string_pretty(&counted).expect("counts print");
        std::fs::write(&file, text + "\n").expect("the file can be written");
        return;
    }
    let text = std::fs::read_to_string(&file).expect("the recorded counts are there");
    let recorded: BTreeMap<String, f64> = serde_json::from_str(&text).expect("the recorded counts are JSON");
    let dearer: Vec<String> = HOT_PATHS
        .iter()
        .filter(|(case, ..)| counted[case] > recorded.get(*case).copied().unwrap_or_default() * TOLERANCE)
        .map(|(case, what, _)| {
            format!("{what} (`{case}`): {} instructions, {:?} recorded", counted[case], recorded.get(*case))
        })
        .collect();
    assert!(dearer.is_empty(), "hot paths that cost more than was recorded: {dearer:#?}");
}
