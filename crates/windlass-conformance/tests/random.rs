//! Plays random scenarios on Windlass and on the reference. `WINDLASS_SCENARIO_SEEDS` sets their number, and
//! `WINDLASS_REFERENCE_PYTHON` names a Python interpreter with the reference SDK. Without it, the outcomes only
//! have to satisfy the invariants.

#![allow(clippy::expect_used)]

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use windlass_conformance::random::draw::draw_scenario;
use windlass_conformance::random::invariants::violated_invariants;
use windlass_conformance::random::pair::OutcomePair;
use windlass_conformance::random::reference::find_reference_python;
use windlass_conformance::random::rules::{DECLARED, explain_pair};
use windlass_conformance::random::shrink::shrink_scenario;
use windlass_conformance::random::{RandomReport, first_seed, play_seeds, play_simulated, seed_count};

/// Number of seeds if the environment does not set it.
const DEFAULT_SEEDS: u64 = 300;
/// Seeds whose differences had no rule, or too narrow a one.
const KEPT_SEEDS: [u64; 13] = [79, 207, 215, 502, 908, 2015, 2328, 3086, 3255, 3358, 4135, 4655, 5406];
/// Maximum share of scenarios, in percent, of which only the part before a fork is compared.
const MAX_FORKED_PERCENT: u64 = 8;
/// Maximum share of scenarios, in percent, that have one declared difference.
const MAX_DECLARED_PERCENT: u64 = 12;
/// Minimum share of the reasons, in percent, that the default seeds show.
const MIN_SHOWN_PERCENT: usize = 50;
/// Number of seeds for the tests of the rules.
const RULE_SEEDS: u64 = 60;

#[test]
fn random_scenarios_come_out_as_in_the_reference() {
    let python = find_reference_python();
    if let Err(reason) = &python {
        writeln!(std::io::stderr(), "random scenarios were not compared with the reference: {reason}")
            .expect("standard error can be written");
    }
    let count = seed_count(DEFAULT_SEEDS).expect("the number of seeds is valid");
    let first = first_seed().expect("the first seed is valid");
    let report = play_seeds(first..first + count, python.ok().as_deref(), 3);
    writeln!(std::io::stderr(), "{} of {count} scenarios have a fork: {:?}", report.forked, report.declared)
        .expect("standard error can be written");
    let faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
    assert!(faults.is_empty(), "{} of {} seeds\n{}", faults.len(), report.played, faults.join("\n"));
    assert_eq!(report.played, count);
    if report.was_compared {
        assert_differences_are_rare(&report);
    }
}

/// Checks that most scenarios are compared as a whole, and that no rule explains so many that it could hide a fault.
fn assert_differences_are_rare(report: &RandomReport) {
    let RandomReport { played, forked, declared, .. } = report;
    assert!(forked * 100 <= played * MAX_FORKED_PERCENT, "{forked} of {played} have a fork: {declared:#?}");
    for (reason, count) in declared {
        assert!(count * 100 <= played * MAX_DECLARED_PERCENT, "{reason} is in {count} of {played}");
    }
    // A rule that explains nothing is not needed.
    let reasons: BTreeSet<&str> = DECLARED.iter().map(|rule| rule.reason).collect();
    assert!(declared.keys().all(|reason| reasons.contains(reason)), "{declared:#?}");
    let shown = declared.len() * 100;
    assert!(*played < DEFAULT_SEEDS || shown >= reasons.len() * MIN_SHOWN_PERCENT, "{declared:#?}");
}

#[test]
fn the_differences_of_kept_seeds_are_explained() {
    let python = find_reference_python().ok();
    for seed in KEPT_SEEDS {
        let report = play_seeds(seed..seed + 1, python.as_deref(), 1);
        let faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}

/// The rules excuse their differences only: an outcome that was changed by hand is not excused.
#[test]
fn a_changed_outcome_is_not_excused() {
    let mut changed: Vec<(&str, fn(&mut Value) -> bool)> = Vec::new();
    changed.push(("an output is lost", |outcome| {
        let Some(items) = outcome["items"].as_array_mut() else { return false };
        let before = items.len();
        items.retain(|item| item["type"] != "output");
        items.len() < before
    }));
    changed.push(("the run fails", |outcome| {
        let is_completed = outcome["status"] == "completed";
        outcome["status"] = "failed".into();
        outcome["error"] = json!({ "kind": "UserError", "message": "" });
        is_completed
    }));
    changed.push(("a body runs twice", |outcome| {
        let Some(log) = outcome["log"].as_array_mut() else { return false };
        let start =
            log.iter().find(|line| line.as_str().is_some_and(|line| line.starts_with("start "))).cloned();
        let found = start.is_some();
        log.extend(start);
        found
    }));
    changed.push(("a tool is offered", |outcome| {
        let Some(calls) = outcome["model_calls"].as_array_mut() else { return false };
        for call in calls.iter_mut() {
            call["tools"] = json!(["another"]);
        }
        !calls.is_empty()
    }));
    let (mut made, mut excused) = (0, Vec::new());
    for seed in 0..RULE_SEEDS {
        let scenario = draw_scenario(seed);
        let outcome = play_simulated(&scenario).expect("the scenario can be played");
        for (name, change) in &changed {
            let mut windlass = outcome.clone();
            if !change(&mut windlass) {
                continue;
            }
            made += 1;
            let pair = OutcomePair::new(scenario.clone(), outcome.clone(), windlass);
            let explained = explain_pair(&pair, DECLARED);
            if explained.unexplained.is_empty() {
                excused.push(format!("seed {seed}: {name}: {}", explained.reasons.join(", ")));
            }
        }
    }
    // After a fork, such as a disputed call, nothing can be compared.
    assert!(
        excused.len() * 12 < made,
        "{} of {made} changes are excused\n{}",
        excused.len(),
        excused.join("\n")
    );
}

/// A scenario in `conformance/` that shows a difference between siblings is explained by the rule of that difference.
#[test]
fn differences_between_siblings_are_explained() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let read = |path: &str| -> Value {
        let text = std::fs::read_to_string(folder.join(path)).expect("the file can be read");
        serde_json::from_str(&text).expect("the file is JSON")
    };
    let reasons = [
        "earlier_siblings_run_on",
        "no_start_after_failure",
        "enabled_before_body",
        "withheld_output_kept",
        "started_calls_kept",
        "limit_covers_nested",
    ];
    let known = read("differences.json");
    let mut shown = BTreeSet::new();
    for (name, reason) in known.as_object().expect("an object").iter() {
        let Some(reason) = reasons.into_iter().find(|known| reason == known) else { continue };
        let scenario = read(&format!("scenarios/{name}.json"));
        let windlass = play_simulated(&scenario).expect("the scenario can be played");
        let reference = read(&format!("expected/{name}.json"));
        let explained = explain_pair(&OutcomePair::new(scenario, reference, windlass), DECLARED);
        assert_eq!(explained.unexplained, [], "{name}");
        assert!(explained.reasons.contains(&reason), "{name}: {:?}", explained.reasons);
        shown.insert(reason);
    }
    assert_eq!(shown, BTreeSet::from(reasons));
}

/// A body that ended is in the session, or the outcome violates an invariant.
#[test]
fn a_forgotten_call_is_found() {
    let (mut made, mut missed) = (0, Vec::new());
    for seed in 0..DEFAULT_SEEDS {
        let scenario = draw_scenario(seed);
        let mut outcome = play_simulated(&scenario).expect("the scenario can be played");
        let is_failed = outcome["status"] == "failed";
        let Some(stored) = outcome["session"].as_array_mut().filter(|_| is_failed) else { continue };
        let before = stored.len();
        let is_call = |line: &str| line.starts_with("call ") || line.starts_with("output ");
        stored.retain(|line| !line.as_str().is_some_and(is_call));
        let is_executed = outcome["log"].to_string().contains("tool end t");
        if before == outcome["session"].as_array().map_or(0, Vec::len) || !is_executed {
            continue;
        }
        made += 1;
        if violated_invariants(&scenario, &outcome).is_empty() {
            missed.push(seed);
        }
    }
    assert!(made > 5 && missed.len() * 2 < made, "{missed:?} of {made}");
}

#[test]
fn a_seed_decides_its_scenario() {
    assert_eq!(draw_scenario(7), draw_scenario(7));
    assert_ne!(draw_scenario(7)["agents"], draw_scenario(8)["agents"]);
}

#[test]
fn the_seeds_cover_the_format() {
    let drawn: Vec<String> = (0..DEFAULT_SEEDS).map(|seed| draw_scenario(seed).to_string()).collect();
    let parts = [
        "handoffs",
        "tool_choice",
        "reset_tool_choice",
        "stop_on_first_tool",
        "stop_at",
        "input_guardrails",
        "output_guardrails",
        "\"error\"",
        "\"text\"",
        "does_for",
        "sync",
        "propagate",
        "\"message\"",
        "timeout_ms",
        "raise_exception",
        "\"above\"",
        "\"approval\":true",
        "\"enabled\":false",
        "\"enabled\":{",
        "\"reject\"",
        "\"parallel\":false",
        "max_turns",
        "concurrency",
        "return_error_to_model",
        "pre_approval_guardrails",
        "\"stream\":true",
        "\"session\":true",
        "\"serialise\":false",
        "after_turn",
        "immediate",
        "always",
        "never",
        "\"kind\":\"agent\"",
        "\"echo\"",
        "\"set\"",
        "\"sleep_ms\"",
        "\"return\":12",
        "\"x\":\"number\"",
        "\"x\":\"boolean\"",
        "\"x\":\"strings\"",
        "missing",
        "extra",
    ];
    let absent: Vec<&str> =
        parts.into_iter().filter(|part| !drawn.iter().any(|scenario| scenario.contains(part))).collect();
    assert!(absent.is_empty(), "no scenario has {absent:?}");
}

#[test]
fn a_scenario_shrinks_to_the_parts_that_fail() {
    let has_two_calls = |scenario: &Value| {
        let steps = scenario["agents"]["main"]["script"].as_array();
        steps.into_iter().flatten().any(|step| step["calls"].as_array().is_some_and(|calls| calls.len() > 1))
    };
    let seed = (0..100).find(|seed| has_two_calls(&draw_scenario(*seed))).expect("a scenario has two calls");
    let smallest = shrink_scenario(&draw_scenario(seed), has_two_calls);
    assert_eq!(smallest["agents"]["main"]["script"].as_array().map(Vec::len), Some(1));
    assert_eq!(smallest["agents"]["main"]["script"][0]["calls"].as_array().map(Vec::len), Some(2));
    assert_eq!(smallest["agents"].as_object().map(serde_json::Map::len), Some(1));
    assert_eq!(smallest["run"], json!({}));
}

#[test]
fn a_violated_invariant_is_found() {
    let scenario = json!({
        "agents": { "main": { "script": [{ "calls": [{ "id": "c1", "name": "t", "args": {} }] }], "tools": ["t"] } },
        "tools": { "t": { "approval": true, "params": {} } },
        "run": { "max_turns": 1 },
        "start": "main",
        "input": "go",
    });
    let outcome = json!({
        "status": "completed",
        "items": [{ "type": "call", "id": "c1" }],
        "log": ["llm start main", "start t c1", "start t c1", "done t c2", "llm start main"],
        "session": ["user: go", "call c1 t {}", "output c2 ok"],
        "model_calls": [],
        "rounds": [],
    });
    assert_eq!(
        violated_invariants(&scenario, &outcome),
        [
            "session: the output of `c2` has no call before it",
            "session: the call `c1` has no output",
            "items: the call \"c1\" does not have one output",
            "start: `c1` started although it had started before",
            "start: `c1` started although nobody approved it",
            "log: `done t c2` has no `start t c2` before it",
            "turns: 2 in 1 runs of at most 1",
        ]
    );
}
