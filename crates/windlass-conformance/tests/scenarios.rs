//! Plays every scenario in `conformance/`, and compares what came of it with what the reference made of it.

#![allow(clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::Value;
use windlass_conformance::compare::differences;
use windlass_conformance::json::Json;
use windlass_conformance::play::{play, play_alone};

/// How many scenarios are played at one time. Those with blocking bodies sleep for real.
const AT_ONCE: usize = 16;

#[test]
fn scenarios_come_out_as_in_the_reference() {
    let known = known_differences();
    let names = names();
    let unheard_of: Vec<_> = known.keys().filter(|name| !names.contains(*name)).collect();
    assert!(unheard_of.is_empty(), "`differences.json` names scenarios that are not there: {unheard_of:?}");

    let names: Vec<String> = names.into_iter().collect();
    let next = AtomicUsize::new(0);
    let wrong: Mutex<BTreeMap<&str, String>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(what) = fault(name, known.get(name).map(String::as_str)) {
                        wrong.lock().unwrap_or_else(PoisonError::into_inner).insert(name, what);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    let report: Vec<&str> = wrong.values().map(String::as_str).collect();
    assert!(
        report.is_empty(),
        "{} of {} scenarios are wrong\n{}",
        report.len(),
        names.len(),
        report.join("\n")
    );
}

/// What is wrong with a scenario's outcome, where something is.
fn fault(name: &str, reason: Option<&str>) -> Option<String> {
    let actual = match outcome(name) {
        Ok(actual) => actual,
        Err(error) => return Some(format!("{name}: {error}")),
    };
    let expected: Value = read(&folder().join("expected").join(format!("{name}.json")));
    let found = differences(&expected, &actual);
    match reason {
        Some(reason) if found.is_empty() => {
            Some(format!("{name}: is the same by now; take it out of `differences.json` (`{reason}`)"))
        }
        Some(_) => None,
        None if found.is_empty() => None,
        None => {
            let mut report = String::new();
            for one in found {
                let (key, expected, actual) = (one.key, one.expected, one.actual);
                writeln!(report, "{name}: {key}\n  expected {expected}\n  actual   {actual}").ok()?;
            }
            Some(report)
        }
    }
}

/// Time jumps from one timer to the next, so that nothing hangs on how busy the machine is. A blocking body
/// knows no other time than the real one.
fn outcome(name: &str) -> Result<Value, String> {
    let path = folder().join("scenarios").join(format!("{name}.json"));
    let scenario: Json = read(&path);
    let blocks = scenario
        .get("tools")
        .is_some_and(|tools| tools.fields().iter().any(|(_, tool)| tool.switch("sync", false)));
    let played = if blocks {
        play_alone(&scenario)
    } else {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime can be built").block_on(play(&scenario))
    };
    played.map_err(|error| error.to_string())
}

#[test]
fn every_scenario_has_its_name_and_its_outcome() {
    let expected = stems(&folder().join("expected"));
    assert_eq!(names(), expected, "each scenario has an expected outcome, and the other way round");
    for name in names() {
        let scenario: Json = read(&folder().join("scenarios").join(format!("{name}.json")));
        assert_eq!(scenario.text_of("name"), Some(name.as_str()));
    }
}

/// A reason stands in a heading of `docs/differences.md`, in backquotes.
#[test]
fn every_difference_is_explained() {
    let page = fs::read_to_string(folder().join("../docs/differences.md")).expect("the page can be read");
    let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
    let explained: BTreeSet<&str> = headings.filter_map(|heading| heading.split('`').nth(1)).collect();
    let known = known_differences();
    let given: BTreeSet<&str> = known.values().map(String::as_str).collect();
    assert_eq!(explained, given, "`docs/differences.md` explains exactly the reasons in `differences.json`");
}

#[test]
fn the_command_prints_one_outcome_a_line() {
    let given = ["one_call", "text_only", "order_kept"];
    let paths = given.map(|name| folder().join("scenarios").join(format!("{name}.json")));
    let ran = Command::new(env!("CARGO_BIN_EXE_windlass-conformance")).args(paths).output();
    let ran = ran.expect("the command starts");
    let printed = String::from_utf8(ran.stdout).expect("outcomes are text");
    let names: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("an outcome is JSON")["name"].take())
        .collect();
    assert!(ran.status.success());
    assert_eq!(names, given);
}

#[test]
fn the_command_says_which_file_it_cannot_play() {
    let good = folder().join("scenarios/text_only.json");
    let ran = Command::new(env!("CARGO_BIN_EXE_windlass-conformance")).arg("no/such.json").arg(good).output();
    let ran = ran.expect("the command starts");
    assert!(!ran.status.success());
    assert!(String::from_utf8_lossy(&ran.stderr).starts_with("no/such.json: "));
    assert_eq!(String::from_utf8_lossy(&ran.stdout).lines().count(), 1, "the others are played");
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance")
}

fn names() -> BTreeSet<String> {
    stems(&folder().join("scenarios"))
}

fn known_differences() -> BTreeMap<String, String> {
    read(&folder().join("differences.json"))
}

fn stems(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("the folder can be read");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    paths.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
