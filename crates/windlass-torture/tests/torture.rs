//! A short torture with every test run; `windlass-torture --faults N` runs a long one.

use std::process::Command;

#[test]
fn nothing_is_done_twice_lost_forgotten_or_unapproved_whatever_happens_to_the_processes() {
    let out = Command::new(env!("CARGO_BIN_EXE_windlass-torture"))
        .args(["--faults", "40", "--seed", "7", "--workers", "3", "--folder", env!("CARGO_TARGET_TMPDIR")])
        .output()
        .expect("the program was built with this test");
    let said = String::from_utf8_lossy(&out.stdout);
    let reasons = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}{reasons}");
    let [line] = said.lines().collect::<Vec<_>>()[..] else { panic!("not one line: {said}") };
    let counts: Vec<(&str, u64)> = line
        .split(' ')
        .filter_map(|part| part.split_once('='))
        .map(|(name, count)| (name, count.parse().expect("a number")))
        .collect();
    let names: Vec<&str> = counts.iter().map(|(name, _)| *name).collect();
    let expected = [
        "kills",
        "freezes",
        "clock_steps",
        "redeploys",
        "runs",
        "calls",
        "twice",
        "lost",
        "forgotten",
        "unapproved",
        "unfinished",
    ];
    assert_eq!(names, expected, "{line}");
    let count = |name| counts.iter().find(|(other, _)| *other == name).map(|(_, count)| *count);
    assert!(count("kills") > Some(0) && count("runs") > Some(5) && count("calls") > Some(20), "{line}");
}
