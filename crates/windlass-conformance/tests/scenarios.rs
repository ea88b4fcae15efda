//! Plays every scenario in `conformance/`, and compares its outcome with the reference's.

#![allow(clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::Value;
use windlass::store::{MemoryStore, SqliteStore, Store};
use windlass_conformance::compare::{OutcomeDifference, outcome_differences};
use windlass_conformance::json::OrderedJson;
use windlass_conformance::play::{PlayError, play_in_store, play_on_own_runtime, play_scenario};
use windlass_postgres::PostgresStore;

#[path = "../../windlass-postgres/tests/server/mod.rs"]
#[allow(dead_code, reason = "only a server without TLS is needed")]
mod server;

/// Number of scenarios played concurrently.
const WORKER_COUNT: usize = 16;

/// Factor by which scenarios with blocking bodies are slowed down.
const SLOWDOWN_FACTOR: i64 = 5;

/// Time that the siblings of a failed call have to end, in the scenarios.
const DRAIN_MS: i64 = 250;

/// Maximum number of attempts for a scenario with blocking bodies: on a busy machine even slowed-down timing
/// can fail. A real difference fails every attempt.
const MAX_TRIES: usize = 3;

#[test]
fn scenarios_come_out_as_in_the_reference() {
    let known = known_differences();
    let names = scenario_names();
    let unheard_of: Vec<_> = known.keys().filter(|name| !names.contains(*name)).collect();
    assert!(unheard_of.is_empty(), "`differences.json` names scenarios that are not there: {unheard_of:?}");

    let scenarios = names.iter().map(|name| (name.as_str(), load_scenario(name)));
    let (blocking, quick): (Vec<_>, Vec<_>) =
        scenarios.partition(|(_, scenario)| has_blocking_body(scenario));
    let mut wrong = find_faults(&quick, &known, &play_for_test);
    // Scenarios with blocking bodies run separately, because they need an idle machine.
    wrong.extend(find_lasting_faults(blocking, &known, &play_for_test));
    assert_no_faults(&wrong, names.len());
}

/// Returns the faults of scenarios that use real time: those that are found in every attempt.
fn find_lasting_faults(
    mut doubtful: Vec<(&str, OrderedJson)>,
    known: &BTreeMap<String, String>,
    play: &(dyn Fn(&OrderedJson) -> Result<Value, PlayError> + Sync),
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for _ in 0..MAX_TRIES {
        found = find_faults(&doubtful, known, play);
        doubtful.retain(|(name, _)| found.contains_key(*name));
    }
    found
}

fn assert_no_faults(wrong: &BTreeMap<String, String>, count: usize) {
    let report: Vec<&str> = wrong.values().map(String::as_str).collect();
    assert!(report.is_empty(), "{} of {count} scenarios are wrong\n{}", report.len(), report.join("\n"));
}

/// Plays scenarios with their runs and sessions in a store, in real time: every tenth, or all of them if the environment
/// variable `WINDLASS_ALL_SCENARIOS` is set.
fn check_on_store(open: impl Fn() -> StoreOpening + Sync) {
    let (known, names) = (known_differences(), scenario_names());
    let step = if std::env::var_os("WINDLASS_ALL_SCENARIOS").is_some() { 1 } else { 10 };
    let scenarios: Vec<_> =
        names.iter().step_by(step).map(|name| (name.as_str(), load_scenario(name))).collect();
    let count = scenarios.len();
    let play = |scenario: &OrderedJson| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let slowed = slow_down(&with_drain(scenario));
        let outcome = runtime.block_on(async { play_in_store(&slowed, open().await).await })?;
        Ok(with_determined_concurrency(scenario, with_original_timeouts(scenario, &outcome)))
    };
    assert_no_faults(&find_lasting_faults(scenarios, &known, &play), count);
}

/// The opening of a store on the runtime of a scenario.
type StoreOpening = Pin<Box<dyn Future<Output = Arc<dyn Store>>>>;

#[test]
fn scenarios_come_out_alike_on_a_store_in_memory() {
    check_on_store(|| Box::pin(async { Arc::new(MemoryStore::default()) as Arc<dyn Store> }));
}

#[test]
fn scenarios_come_out_alike_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Arc::new(SqliteStore::open(folder.path().join("store.db")).expect("opens"));
    check_on_store(|| {
        let store = store.clone();
        Box::pin(async { store as Arc<dyn Store> })
    });
}

#[test]
fn scenarios_come_out_alike_on_postgresql() {
    let Some(server) = server::TestServer::start() else { return };
    let address = server.address();
    check_on_store(|| {
        let address = address.clone();
        // The connections belong to the runtime of their scenario.
        Box::pin(async move {
            Arc::new(PostgresStore::connect(&address).await.expect("it connects")) as Arc<dyn Store>
        })
    });
}

/// Returns the differences of each scenario, by name.
fn find_faults(
    scenarios: &[(&str, OrderedJson)],
    known: &BTreeMap<String, String>,
    play: &(dyn Fn(&OrderedJson) -> Result<Value, PlayError> + Sync),
) -> BTreeMap<String, String> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..WORKER_COUNT {
            scope.spawn(|| {
                while let Some((name, scenario)) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(fault) = find_fault(name, scenario, known.get(*name), play) {
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

fn find_fault(
    name: &str,
    scenario: &OrderedJson,
    reason: Option<&String>,
    play: &(dyn Fn(&OrderedJson) -> Result<Value, PlayError> + Sync),
) -> Option<String> {
    let actual = match play(scenario) {
        Ok(actual) => actual,
        Err(error) => return Some(format!("{name}: {error}")),
    };
    let expected = load_expected(name);
    let found = outcome_differences(&expected, &actual);
    match reason {
        Some(reason) if found.is_empty() => {
            Some(format!("{name}: is the same by now; take it out of `differences.json` (`{reason}`)"))
        }
        Some(_) => None,
        None if found.is_empty() => None,
        None => {
            let lines = found.into_iter().map(|OutcomeDifference { key, expected, actual }| {
                format!("{name}: {key}\n  expected {expected}\n  actual   {actual}\n")
            });
            Some(lines.collect())
        }
    }
}

fn load_expected(name: &str) -> Value {
    read_json(&conformance_folder().join("expected").join(format!("{name}.json")))
}

/// Plays a scenario independently of the machine's load: the clock jumps from timer to timer. Blocking bodies
/// use real time, so their scenarios are slowed down.
fn play_for_test(scenario: &OrderedJson) -> Result<Value, PlayError> {
    if has_blocking_body(scenario) {
        return play_on_own_runtime(&slow_down(&with_drain(scenario)));
    }
    // MCP servers need real time.
    if has_servers(scenario) {
        return play_on_own_runtime(scenario);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(play_scenario(scenario))
}

fn has_blocking_body(scenario: &OrderedJson) -> bool {
    let tools = scenario.get("tools").map(OrderedJson::object_fields).unwrap_or_default();
    tools.iter().any(|(_, tool)| tool.bool_field("sync", false))
}

fn has_servers(scenario: &OrderedJson) -> bool {
    scenario.get("mcp_servers").is_some()
}

/// The outcome of a scenario does not depend on the protocol era of its MCP servers.
#[test]
fn servers_come_out_the_same_in_both_eras() {
    for name in scenario_names() {
        let scenario = load_scenario(&name);
        if !has_servers(&scenario) {
            continue;
        }
        let OrderedJson::Object(mut fields) = scenario.clone() else { panic!("{name} is an object") };
        fields.push(("mcp_era".to_owned(), OrderedJson::Text("legacy".to_owned())));
        let (later, earlier) = (play_for_test(&scenario), play_for_test(&OrderedJson::Object(fields)));
        let found = outcome_differences(&later.expect("it is played"), &earlier.expect("it is played"));
        let keys: Vec<&str> = found.iter().map(|found| found.key).collect();
        assert_eq!(keys, Vec::<&str>::new(), "{name}");
    }
}

/// Names the drain of the runs in the scenario, so that it is slowed down with the bodies.
fn with_drain(scenario: &OrderedJson) -> OrderedJson {
    let OrderedJson::Object(mut fields) = scenario.clone() else { return scenario.clone() };
    let drain = ("drain_ms".to_owned(), OrderedJson::Integer(DRAIN_MS));
    match fields.iter_mut().find(|(key, _)| key == "run") {
        Some((_, OrderedJson::Object(run))) => run.push(drain),
        _ => fields.push(("run".to_owned(), OrderedJson::Object(vec![drain]))),
    }
    OrderedJson::Object(fields)
}

/// Replaces the number of bodies that ran at once by the reference's where the scenario does not determine it: a body starts
/// when the store has its entry, so one that takes no time may overlap another. Scenarios with a limit determine it.
fn with_determined_concurrency(scenario: &OrderedJson, mut outcome: Value) -> Value {
    let tools = scenario.get("tools").map(OrderedJson::object_fields).unwrap_or_default();
    let takes_no_time =
        |tool: &OrderedJson| tool.get("does").is_none_or(|body| body.get("sleep_ms").is_none());
    let has_limit = scenario.get("run").is_some_and(|run| run.get("concurrency").is_some());
    if !has_limit && tools.iter().any(|(_, tool)| takes_no_time(tool)) {
        let name = scenario.text_field("name").expect("a scenario has a name");
        outcome["peak_concurrency"] = load_expected(name)["peak_concurrency"].take();
    }
    outcome
}

fn slow_down(value: &OrderedJson) -> OrderedJson {
    match value {
        OrderedJson::List(items) => OrderedJson::List(items.iter().map(slow_down).collect()),
        OrderedJson::Object(fields) => {
            let slow = |(key, value): &(String, OrderedJson)| {
                let value = match value {
                    OrderedJson::Integer(time) if key.ends_with("_ms") => {
                        OrderedJson::Integer(time * SLOWDOWN_FACTOR)
                    }
                    value => slow_down(value),
                };
                (key.clone(), value)
            };
            OrderedJson::Object(fields.iter().map(slow).collect())
        }
        value => value.clone(),
    }
}

/// Replaces the timeouts that the messages of a slowed-down scenario name by those of the scenario.
fn with_original_timeouts(scenario: &OrderedJson, outcome: &Value) -> Value {
    let mut text = outcome.to_string();
    for (_, tool) in scenario.get("tools").map(OrderedJson::object_fields).unwrap_or_default() {
        if let Some(OrderedJson::Integer(time)) = tool.get("timeout_ms") {
            let message = |time: i64| format!("timed out after {} seconds", time as f64 / 1000.0);
            text = text.replace(&message(time * SLOWDOWN_FACTOR), &message(*time));
        }
    }
    serde_json::from_str(&text).expect("only texts have changed")
}

#[test]
fn every_scenario_has_its_name_and_its_outcome() {
    let expected = file_stems(&conformance_folder().join("expected"));
    assert_eq!(scenario_names(), expected, "each scenario has an expected outcome, and the other way round");
    for name in scenario_names() {
        assert_eq!(load_scenario(&name).text_field("name"), Some(name.as_str()));
    }
}

/// Each section of `docs/differences.md` has its reason in the heading, in backquotes. It ends with the number
/// of scenarios that show the difference, and the names of some.
#[test]
fn every_difference_is_explained() {
    let page = fs::read_to_string(conformance_folder().join("../docs/differences.md"))
        .expect("the page can be read");
    let (page, _) =
        page.split_once("\n# Differences that no scenario can show").expect("the page has both parts");
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
    let paths = given.map(|name| conformance_folder().join("scenarios").join(format!("{name}.json")));
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
    let good = conformance_folder().join("scenarios/text_only.json");
    let ran = Command::new(env!("CARGO_BIN_EXE_windlass-conformance")).arg("no/such.json").arg(good).output();
    let ran = ran.expect("the command starts");
    assert!(!ran.status.success());
    assert!(String::from_utf8_lossy(&ran.stderr).starts_with("no/such.json: "));
    assert_eq!(String::from_utf8_lossy(&ran.stdout).lines().count(), 1, "the others are played");
}

fn conformance_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance")
}

fn scenario_names() -> BTreeSet<String> {
    file_stems(&conformance_folder().join("scenarios"))
}

fn load_scenario(name: &str) -> OrderedJson {
    read_json(&conformance_folder().join("scenarios").join(format!("{name}.json")))
}

fn known_differences() -> BTreeMap<String, String> {
    read_json(&conformance_folder().join("differences.json"))
}

fn file_stems(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("the folder can be read");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    paths.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
