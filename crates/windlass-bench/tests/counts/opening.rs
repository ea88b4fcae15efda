//! Opening a stored run to decide about it costs the same however long the run is, measured in instruction counts.

use std::path::PathBuf;
use std::process::Command;

use crate::count_instructions_of;

/// Returns the instructions to open a run of so many turns and to decide about its call, without those of the start-up.
fn instructions_to_open(turns: u32) -> f64 {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("open-{turns}.db"));
    for name in [file.clone(), file.with_extension("db-wal"), file.with_extension("db-shm")] {
        let _missing = std::fs::remove_file(name);
    }
    let path = file.to_str().expect("the path is text");
    let prepared = Command::new(env!("CARGO_BIN_EXE_windlass-bench"))
        .args(["open-prepare", path, &turns.to_string()])
        .output()
        .expect("the program runs");
    assert!(prepared.status.success(), "{}", String::from_utf8_lossy(&prepared.stderr));
    print!("{}", String::from_utf8_lossy(&prepared.stdout));
    let count = |case: &str| count_instructions_of(&format!("{case}.{turns}"), &[case, path]);
    count("open-stored") - count("open-start")
}

#[test]
fn opening_a_hundred_thousand_records_costs_at_most_five_times_as_much_as_a_hundred() {
    // A turn has three records. The long run has 255 records after its last snapshot: no run has more.
    let (short, long) = (instructions_to_open(33), instructions_to_open(33_366));
    println!("instructions to open: {short:.0} for 100 records, {long:.0} for 100,000");
    assert!(long <= 5.0 * short, "{long:.0} instructions for 100,000 records, {short:.0} for 100");
}
