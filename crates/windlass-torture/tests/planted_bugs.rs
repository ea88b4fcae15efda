//! The oracle finds every bug that can be planted: a torture that finds nothing proves something only then.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::process::Command;

/// Seeds that are tried one after the other: the machine decides whether a fault hits the right instruction.
const SEEDS: std::ops::RangeInclusive<u32> = 1..=12;

/// Returns true if a torture with the planted bug fails, and says so by one of these counts.
fn is_found(bug: &str, counts: &[&str], left_out: &str, seed: u32) -> bool {
    let seed = seed.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass-torture"));
    command.args(["--faults", "75", "--seed", &seed, "--workers", "3", "--plant", bug]);
    command.args(["--folder", env!("CARGO_TARGET_TMPDIR")]);
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

fn assert_found(bug: &str, counts: &[&str], left_out: &str) {
    let found = SEEDS.into_iter().find(|seed| is_found(bug, counts, left_out, *seed));
    assert!(found.is_some(), "no seed of {SEEDS:?} finds the planted bug {bug}");
}

#[test]
fn leases_by_the_wall_clock_are_found() {
    let others = "freeze,terminate,redeploy,full_disk,failed_sync,kill_in_store";
    assert_found("wall_clock_leases", &["twice"], others);
}

#[test]
fn keys_that_runs_share_are_found() {
    assert_found("shared_keys", &["twice", "lost"], "");
}

#[test]
fn keys_that_contain_the_schema_are_found() {
    assert_found("schema_keys", &["twice"], "");
}

#[test]
fn keys_that_are_used_again_after_their_receipt_expired_are_found() {
    assert_found("reused_keys", &["twice"], "");
}

#[test]
fn interrupted_calls_that_run_again_blindly_are_found() {
    assert_found("blind_retries", &["twice"], "");
}

#[test]
fn sessions_that_forget_items_are_found() {
    assert_found("forgotten_items", &["forgotten"], "");
}

#[test]
fn corrections_that_are_ignored_are_found() {
    assert_found("ignored_corrections", &["unapproved"], "");
}

#[test]
fn corrections_that_are_refused_too_early_are_found() {
    assert_found("refused_corrections", &["unapproved"], "");
}
