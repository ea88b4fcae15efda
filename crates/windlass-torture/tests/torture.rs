//! A short torture with every test run; `windlass-torture --faults N` runs a long one.

#![allow(clippy::expect_used)]

use std::io::Write;
use std::process::Command;

#[test]
fn nothing_is_done_twice_lost_forgotten_or_unapproved_whatever_happens_to_the_processes() {
    torture("40", "file");
}

/// The server of the store crashes, too.
#[test]
fn nothing_is_done_twice_lost_forgotten_or_unapproved_in_a_database() {
    let has_server = std::fs::read_dir("/usr/lib/postgresql")
        .is_ok_and(|versions| versions.flatten().any(|entry| entry.path().join("bin/initdb").is_file()));
    if !has_server {
        writeln!(std::io::stderr(), "not shown: torture in PostgreSQL, which is not installed")
            .expect("stderr");
        return;
    }
    torture("30", "postgres");
}

fn torture(faults: &str, store: &str) {
    // The server of a database runs as a user of its own, to whom the folder of the build may be closed.
    let folder = match store {
        "postgres" => std::env::temp_dir(),
        _ => env!("CARGO_TARGET_TMPDIR").into(),
    };
    let out = Command::new(env!("CARGO_BIN_EXE_windlass-torture"))
        .args(["--faults", faults, "--seed", "7", "--workers", "3", "--store", store])
        .arg("--folder")
        .arg(folder)
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
        "network_cuts",
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
    assert!(count("runs") > Some(5) && count("calls") > Some(20), "{line}");
    let mut faults = vec!["kills", "freezes", "redeploys"];
    faults.extend((store == "postgres").then_some("network_cuts"));
    // The torture says what it cannot show without a C compiler.
    let has_shim = Command::new("cc").arg("--version").output().is_ok_and(|out| out.status.success());
    faults.extend(has_shim.then_some("clock_steps"));
    for fault in faults {
        assert!(count(fault) > Some(0), "no {fault}: {line}");
    }
}
