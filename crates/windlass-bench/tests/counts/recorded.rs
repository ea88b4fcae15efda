//! The hot paths cost what was recorded of them, or less.
//!
//! Whoever makes one dearer on purpose records it anew: `WINDLASS_COUNTS=record cargo test --profile count
//! -p windlass-bench --features count`. Compilers and C libraries differ a little, so a little more is let pass.

use std::collections::BTreeMap;
use std::path::Path;

use crate::instructions;

/// By how much a path may cost more than was recorded.
const TOLERANCE: f64 = 1.05;

/// The paths: what one of them is, and how many are counted.
const PATHS: [(&str, &str, u32); 5] = [
    ("turns", "a turn with one call", 1_000),
    ("calls", "a call", 1_000),
    ("entries", "an entry", 5_000),
    ("events", "an event", 5_000),
    ("arguments", "reading arguments", 500),
];

#[test]
fn no_hot_path_costs_more_than_was_recorded() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("counts.json");
    let counted: BTreeMap<&str, f64> = PATHS
        .iter()
        .map(|(case, _, size)| {
            let cost = (instructions(case, *size) - instructions(case, 1)) / f64::from(size - 1);
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
    let dearer: Vec<String> = PATHS
        .iter()
        .filter(|(case, ..)| counted[case] > recorded.get(*case).copied().unwrap_or_default() * TOLERANCE)
        .map(|(case, what, _)| {
            format!("{what} (`{case}`): {} instructions, {:?} recorded", counted[case], recorded.get(*case))
        })
        .collect();
    assert!(dearer.is_empty(), "hot paths that cost more than was recorded: {dearer:#?}");
}
