//! The cost of the hot paths in instruction counts, which do not depend on the load of the machine.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod growth;
mod opening;
mod recorded;

use std::path::PathBuf;
use std::process::Command;

/// Returns the number of instructions that the program executes for a case, measured by callgrind.
fn count_instructions(case: &str, size: u32) -> f64 {
    count_instructions_of(&format!("{case}.{size}"), &[case, &size.to_string()])
}

/// Returns the number of instructions that the program executes with these arguments.
fn count_instructions_of(case: &str, arguments: &[&str]) -> f64 {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let out = folder.join(format!("callgrind.{case}"));
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", &format!("--callgrind-out-file={}", out.display())])
        .arg(env!("CARGO_BIN_EXE_windlass-bench"))
        .args(arguments)
        .output()
        .expect(
            "valgrind counts the instructions of this test: install it (Debian: `apt-get install valgrind`)",
        );
    assert!(run.status.success(), "{case}: {}", String::from_utf8_lossy(&run.stderr));
    let profile = std::fs::read_to_string(&out).expect("callgrind writes its profile");
    let total = profile
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    total.and_then(|total| total.trim().parse().ok()).expect("the profile has a total")
}
