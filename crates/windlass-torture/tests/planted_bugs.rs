//! The oracle finds every bug that can be planted: a torture that finds nothing proves something only then.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::io::Write;
use std::process::Command;

use windlass_torture::plant::PlantedBug;

/// Seeds that are tried one after the other: the machine decides whether a fault hits the right instruction.
const SEEDS: std::ops::RangeInclusive<u32> = 1..=12;

/// Returns true if a torture with the planted bug fails, and says so by one of these counts.
fn is_found(bug: PlantedBug, store: &str, seed: u32) -> bool {
    let (counts, left_out) = signs_of(bug);
    let seed = seed.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass-torture"));
    command.args(["--faults", "75", "--seed", &seed, "--workers", "3", "--plant", &bug.to_string()]);
    command.args(["--store", store]);
    // The server of a database runs as a user of its own, to whom the folder of the build may be closed.
    command.arg("--folder").arg(match store {
        "postgres" => std::env::temp_dir(),
        _ => env!("CARGO_TARGET_TMPDIR").into(),
    });
    if !left_out.is_empty() {
        command.args(["--except", left_out]);
    }
    let out = command.output().expect("the program was built with this test");
    let (said, reasons) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let line = said.lines().last().unwrap_or_else(|| panic!("no verdict: {reasons}"));
    if let Some((_, folder)) = reasons.rsplit_once("everything is kept in ") {
        std::fs::remove_dir_all(folder.trim()).expect("a failed torture keeps its folder");
    }
    let is_counted = |name: &&str| !line.contains(&format!(" {name}=0"));
    let is_found = counts.iter().any(is_counted);
    assert!(!is_found || !out.status.success(), "the torture succeeds with violations: {line}");
    is_found
}

/// The bugs that every test run looks for: the first seeds find them.
const QUICK_BUGS: [PlantedBug; 4] = [
    PlantedBug::SharedKeys,
    PlantedBug::ForgottenItems,
    PlantedBug::IgnoredCorrections,
    PlantedBug::LostInputs,
];

/// Returns the counts that name a bug, and the faults that would only distract from it.
fn signs_of(bug: PlantedBug) -> (&'static [&'static str], &'static str) {
    match bug {
        PlantedBug::WallClockLeases => {
            (&["twice"], "freeze,terminate,redeploy,full_disk,failed_sync,kill_in_store")
        }
        PlantedBug::SharedKeys => (&["twice", "lost"], ""),
        PlantedBug::SchemaKeys
        | PlantedBug::ReusedKeys
        | PlantedBug::BlindRetries
        | PlantedBug::LateReceipts => (&["twice"], ""),
        PlantedBug::ForgottenItems => (&["forgotten"], ""),
        // A run that keeps its driver for three turns shows it.
        PlantedBug::UnheldSessions => {
            (&["forgotten"], "freeze,kill,terminate,redeploy,full_disk,failed_sync,kill_in_store")
        }
        PlantedBug::IgnoredCorrections | PlantedBug::RefusedCorrections => (&["unapproved"], ""),
        PlantedBug::LostInputs => (&["lost"], ""),
    }
}

/// `WINDLASS_PLANTED_BUGS=all` looks for all bugs: some of them need many seeds, and minutes.
#[test]
fn planted_bugs_are_found() {
    let wanted = std::env::var("WINDLASS_PLANTED_BUGS").unwrap_or_default();
    let bugs = match wanted.as_str() {
        "" => &QUICK_BUGS[..],
        "all" => &PlantedBug::ALL[..],
        other => panic!("WINDLASS_PLANTED_BUGS is `{other}`, not `all`"),
    };
    bugs.iter().for_each(|bug| find(*bug, "file"));
}

/// The oracle reads a database as it reads a file.
#[test]
fn a_planted_bug_is_found_in_a_database() {
    let has_server = std::fs::read_dir("/usr/lib/postgresql")
        .is_ok_and(|versions| versions.flatten().any(|entry| entry.path().join("bin/initdb").is_file()));
    if !has_server {
        writeln!(std::io::stderr(), "not shown: planted bugs in PostgreSQL, which is not installed")
            .expect("stderr");
        return;
    }
    find(PlantedBug::SharedKeys, "postgres");
}

fn find(bug: PlantedBug, store: &str) {
    let found = SEEDS.into_iter().find(|seed| is_found(bug, store, *seed));
    assert!(found.is_some(), "no seed of {SEEDS:?} finds the planted bug {bug}");
}
