//! Plays every scenario in `conformance/`, and compares what came of it with what the reference made of it.

#![allow(clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::Value;
use windlass_conformance::compare::{Difference, differences};
use windlass_conformance::json::Json;
use windlass_conformance::play::{PlayError, play, play_alone};

/// How many scenarios are played at one time.
const AT_ONCE: usize = 16;

/// How much longer than described everything takes where bodies block.
const SLOW_MOTION: i64 = 5;

/// How often a scenario with blocking bodies may be played: a machine can be so busy that even slow motion is
/// too fast for it. What is wrong comes out wrong every time.
const TRIES: usize = 3;

#[test]
fn scenarios_come_out_as_in_the_reference() {
    let known = known_differences();
    let names = names();
    let unheard_of: Vec<_> = known.keys().filter(|name| !names.contains(*name)).collect();
    assert!(unheard_of.is_empty(), "`differences.json` names scenarios that are not there: {unheard_of:?}");

    let scenarios = names.iter().map(|name| (name.as_str(), scenario(name)));
    let (blocking, quick): (Vec<_>, Vec<_>) =
        scenarios.partition(|(_, scenario)| has_blocking_body(scenario));
    let mut wrong = faults(&quick, &known);
    // Blocking bodies come by themselves: they need a machine that is not kept busy by the others.
    let mut doubtful = blocking;
    let mut found = BTreeMap::new();
    for _ in 0..TRIES {
        found = faults(&doubtful, &known);
        doubtful.retain(|(name, _)| found.contains_key(*name));
    }
    wrong.extend(found);
    let report: Vec<&str> = wrong.values().map(String::as_str).collect();
    assert!(
        report.is_empty(),
        "{} of {} scenarios are wrong\n{}",
        report.len(),
        names.len(),
        report.join("\n")
    );
}

/// What is wrong with the outcomes of scenarios, by their names.
fn faults(scenarios: &[(&str, Json)], known: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((name, scenario)) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(fault) = fault(name, scenario, known.get(*name)) {
                        found
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .insert((*name).to_owned(), fault);
                    }
                }
            });
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn fault(name: &str, scenario: &Json, reason: Option<&String>) -> Option<String> {
    let actual = match outcome(scenario) {
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
            let lines = found.into_iter().map(|Difference { key, expected, actual }| {
                format!("{name}: {key}\n  expected {expected}\n  actual   {actual}\n")
            });
            Some(lines.collect())
        }
    }
}

/// Plays a scenario so that its outcome does not hang on how busy the machine is. Time jumps from one timer to
/// the next. A blocking body knows real time only, and there everything is played in slow motion.
fn outcome(scenario: &Json) -> Result<Value, PlayError> {
    if has_blocking_body(scenario) {
        return play_alone(&slowed(scenario));
    }
    // Servers are spoken to in real time.
    if has_servers(scenario) {
        return play_alone(scenario);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(play(scenario))
}

fn has_blocking_body(scenario: &Json) -> bool {
    let tools = scenario.get("tools").map(Json::fields).unwrap_or_default();
    tools.iter().any(|(_, tool)| tool.switch("sync", false))
}

fn has_servers(scenario: &Json) -> bool {
    scenario.get("mcp_servers").is_some()
}

/// What comes of a scenario does not hang on which life of the protocol its servers lead.
#[test]
fn servers_come_out_the_same_in_both_eras() {
    for name in names() {
        let scenario = scenario(&name);
        if !has_servers(&scenario) {
            continue;
        }
        let Json::Object(mut fields) = scenario.clone() else { panic!("{name} is an object") };
        fields.push(("mcp_era".to_owned(), Json::Text("legacy".to_owned())));
        let (later, earlier) = (outcome(&scenario), outcome(&Json::Object(fields)));
        let found = differences(&later.expect("it is played"), &earlier.expect("it is played"));
        let keys: Vec<&str> = found.iter().map(|found| found.key).collect();
        assert_eq!(keys, Vec::<&str>::new(), "{name}");
    }
}

fn slowed(value: &Json) -> Json {
    match value {
        Json::List(items) => Json::List(items.iter().map(slowed).collect()),
        Json::Object(fields) => {
            let slow = |(key, value): &(String, Json)| {
                let value = match value {
                    Json::Whole(time) if key.ends_with("_ms") => Json::Whole(time * SLOW_MOTION),
                    value => slowed(value),
                };
                (key.clone(), value)
            };
            Json::Object(fields.iter().map(slow).collect())
        }
        value => value.clone(),
    }
}

#[test]
fn every_scenario_has_its_name_and_its_outcome() {
    let expected = stems(&folder().join("expected"));
    assert_eq!(names(), expected, "each scenario has an expected outcome, and the other way round");
    for name in names() {
        assert_eq!(scenario(&name).text_of("name"), Some(name.as_str()));
    }
}

/// A reason stands in a heading of `docs/differences.md`, in backquotes. Its section ends with the number of
/// scenarios that show it, and the names of some.
#[test]
fn every_difference_is_explained() {
    let page = fs::read_to_string(folder().join("../docs/differences.md")).expect("the page can be read");
    let known = known_differences();
    let mut explained = BTreeSet::new();
    for section in page.split("\n## ").skip(1) {
        let reason = in_backquotes(section.lines().next().unwrap_or_default()).next().unwrap_or_default();
        let shown_by = section.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
        let count = known.values().filter(|given| *given == reason).count();
        assert!(
            shown_by.starts_with(&format!("Scenarios: {count}, ")),
            "{reason}: {count} scenarios show it"
        );
        for name in in_backquotes(shown_by) {
            assert_eq!(known.get(name).map(String::as_str), Some(reason), "{name} is named under {reason}");
        }
        explained.insert(reason);
    }
    let given: BTreeSet<&str> = known.values().map(String::as_str).collect();
    assert_eq!(explained, given, "`docs/differences.md` explains exactly the reasons in `differences.json`");
}

fn in_backquotes(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
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

fn scenario(name: &str) -> Json {
    read(&folder().join("scenarios").join(format!("{name}.json")))
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
