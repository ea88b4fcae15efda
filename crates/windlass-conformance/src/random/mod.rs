//! Random scenarios: a seed decides the scenario, Windlass plays it in simulated time, its outcome satisfies the
//! invariants, and equals the reference's outcome except for declared differences.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use self::invariants::violated_invariants;
use self::pair::OutcomePair;
use self::reference::ReferenceProcess;
use self::rules::{DECLARED, DifferenceRule, explain_pair};
use self::shrink::shrink_scenario;
use crate::compare::OutcomeDifference;
use crate::json::OrderedJson;
use crate::play::{PlayError, play_scenario};

pub mod draw;
pub mod invariants;
pub mod pair;
pub mod reference;
pub mod rules;
pub mod shrink;

/// Longest simulated time of a scenario.
const SIMULATED_LIMIT: Duration = Duration::from_secs(3600);

/// Part of the error of a scripted model without responses.
const SCRIPT_END: &str = "the script has no response left";

/// Error of the reference's scripted model without responses.
const REFERENCE_SCRIPT_END: &str = "UnexpectedModelCall";

/// Number of scenarios played concurrently. Each one has its own Python process.
const WORKER_COUNT: u64 = 2;

/// A fault that a random scenario shows.
#[derive(Clone, Debug)]
pub enum ScenarioFault {
    /// The scenario could not be played: a panic, a hang or an error.
    NotPlayed(String),
    /// The outcome violates invariants.
    InvariantsViolated {
        /// Violations, as sentences.
        violations: Vec<String>,
        /// Outcome on Windlass.
        windlass: Value,
    },
    /// The outcome differs from the reference's, and no declared difference explains it.
    Unexplained {
        /// Differences that no rule explains.
        differences: Vec<OutcomeDifference>,
        /// Both outcomes.
        pair: Box<OutcomePair>,
    },
}

impl ScenarioFault {
    /// Returns the subjects of the fault. A shrunk scenario has no others.
    fn subjects(&self) -> Vec<String> {
        match self {
            Self::NotPlayed(reason) => vec![reason.clone()],
            Self::InvariantsViolated { violations, .. } => {
                let subject = |text: &String| text.split(':').next().unwrap_or_default().to_owned();
                violations.iter().map(subject).collect()
            }
            Self::Unexplained { differences, .. } => {
                differences.iter().map(|difference| difference.key.to_owned()).collect()
            }
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && self.subjects().iter().all(|subject| other.subjects().contains(subject))
    }
}

impl fmt::Display for ScenarioFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPlayed(reason) => writeln!(f, "not played: {reason}"),
            Self::InvariantsViolated { violations, windlass } => {
                writeln!(f, "invariants violated:\n  {}\nwindlass  {windlass}", violations.join("\n  "))
            }
            Self::Unexplained { differences, pair } => {
                for OutcomeDifference { key, expected, actual } in differences {
                    writeln!(f, "{key}\n  reference {expected}\n  windlass  {actual}")?;
                }
                writeln!(f, "reference {}\nwindlass  {}", pair.reference, pair.windlass)
            }
        }
    }
}

/// A seed whose scenario shows a fault.
#[derive(Clone, Debug)]
pub struct FaultySeed {
    /// The seed.
    pub seed: u64,
    /// The shrunk scenario.
    pub scenario: Value,
    /// The fault that the shrunk scenario shows.
    pub fault: ScenarioFault,
}

impl fmt::Display for FaultySeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}\nscenario {}\n{}", self.seed, self.scenario, self.fault)
    }
}

/// The result of many random scenarios.
#[derive(Clone, Debug, Default)]
pub struct RandomReport {
    /// Number of scenarios that were played.
    pub played: u64,
    /// Number of scenarios by declared difference.
    pub declared: BTreeMap<&'static str, u64>,
    /// True if the outcomes were compared with the reference's.
    pub was_compared: bool,
    /// Number of scenarios of which only the part before a fork was compared.
    pub forked: u64,
    /// Seeds that show a fault.
    pub faults: Vec<FaultySeed>,
}

/// The declared differences of a scenario.
#[derive(Clone, Debug, Default)]
pub struct DeclaredDifferences {
    /// Their reasons.
    pub reasons: Vec<&'static str>,
    /// True if only the part before a fork was compared.
    pub is_forked: bool,
}

/// Environment variable that sets the number of seeds to try.
const SEED_COUNT_VARIABLE: &str = "WINDLASS_SCENARIO_SEEDS";
/// Environment variable that sets the first seed.
const BASE_SEED_VARIABLE: &str = "WINDLASS_SCENARIO_BASE_SEED";

/// Returns the number of seeds to try: from the environment, or the default.
///
/// # Errors
/// Returns a sentence if the variable is not a number.
pub fn seed_count(default: u64) -> Result<u64, String> {
    env_number(SEED_COUNT_VARIABLE, default)
}

/// Returns the first seed to try: from the environment, or 0.
///
/// # Errors
/// Returns a sentence if the variable is not a number.
pub fn first_seed() -> Result<u64, String> {
    env_number(BASE_SEED_VARIABLE, 0)
}

fn env_number(variable: &str, default: u64) -> Result<u64, String> {
    match std::env::var(variable) {
        Ok(number) => number.parse().map_err(|error| format!("{variable} is not a number: {error}")),
        Err(_) => Ok(default),
    }
}

/// Plays the scenarios of seeds on Windlass, and on the reference if `python` has it. Stops after `max_faults`
/// faults.
pub fn play_seeds(seeds: std::ops::Range<u64>, python: Option<&Path>, max_faults: usize) -> RandomReport {
    let next = AtomicU64::new(seeds.start);
    let report = RandomReport { was_compared: python.is_some(), ..RandomReport::default() };
    let report = Mutex::new(report);
    thread::scope(|scope| {
        for _ in 0..WORKER_COUNT {
            scope.spawn(|| {
                let mut judge = ScenarioJudge::new(python);
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let is_full =
                        report.lock().unwrap_or_else(PoisonError::into_inner).faults.len() >= max_faults;
                    if seed >= seeds.end || is_full {
                        break;
                    }
                    let scenario = draw::draw_scenario(seed);
                    let judged = judge.judge(&scenario);
                    let faulty = judged.as_ref().err().map(|fault| judge.shrink(seed, &scenario, fault));
                    let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                    report.played += 1;
                    let judged = judged.unwrap_or_default();
                    report.forked += u64::from(judged.is_forked);
                    for reason in judged.reasons {
                        *report.declared.entry(reason).or_default() += 1;
                    }
                    report.faults.extend(faulty);
                }
            });
        }
    });
    report.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Plays scenarios and judges their outcomes.
pub struct ScenarioJudge<'a> {
    python: Option<&'a Path>,
    process: Option<ReferenceProcess>,
    rules: Vec<DifferenceRule>,
}

impl<'a> ScenarioJudge<'a> {
    /// Creates a judge that compares with the reference if `python` has it.
    pub fn new(python: Option<&'a Path>) -> Self {
        Self { python, process: None, rules: DECLARED.to_vec() }
    }

    /// Plays a scenario and returns its declared differences.
    ///
    /// # Errors
    /// Returns the fault that the scenario shows.
    pub fn judge(&mut self, scenario: &Value) -> Result<DeclaredDifferences, ScenarioFault> {
        let windlass = play_simulated(scenario).map_err(ScenarioFault::NotPlayed)?;
        if windlass["error"]["message"].as_str().is_some_and(|message| message.contains(SCRIPT_END)) {
            return Err(ScenarioFault::NotPlayed("the script of a model is too short".to_owned()));
        }
        let mut violations = violated_invariants(scenario, &windlass);
        violations.extend(self.differing_variants(scenario, &windlass));
        if !violations.is_empty() {
            return Err(ScenarioFault::InvariantsViolated { violations, windlass });
        }
        let Some(python) = self.python else { return Ok(DeclaredDifferences::default()) };
        let reference = self.play_on_reference(python, scenario).map_err(ScenarioFault::NotPlayed)?;
        if reference["error"]["kind"] == REFERENCE_SCRIPT_END {
            return Err(ScenarioFault::NotPlayed("the script of a model is too short".to_owned()));
        }
        let pair = OutcomePair::new(scenario.clone(), reference, windlass);
        let explained = explain_pair(&pair, &self.rules);
        if explained.unexplained.is_empty() {
            let (reasons, is_forked) = (explained.reasons, explained.is_forked);
            return Ok(DeclaredDifferences { reasons, is_forked });
        }
        Err(ScenarioFault::Unexplained { differences: explained.unexplained, pair: Box::new(pair) })
    }

    /// Returns the variants of a scenario with another outcome. A run has the same outcome if it is played again,
    /// if it is not streamed, and if its pauses are not serialised.
    fn differing_variants(&self, scenario: &Value, outcome: &Value) -> Vec<String> {
        let is_set = |key: &str| scenario["run"][key] == true;
        let mut variants = vec![("repeated", "stream", is_set("stream"))];
        if scenario["run"]["cancel_on"].is_null() {
            variants.push(("streamed or not", "stream", !is_set("stream")));
        }
        variants.push(("serialised or not", "serialise", scenario["run"]["serialise"] == false));
        let mut found = Vec::new();
        for (name, key, value) in variants {
            let mut variant = scenario.clone();
            variant["run"][key] = value.into();
            match play_simulated(&variant) {
                Ok(mut other) => {
                    let mut outcome = outcome.clone();
                    // The player emulates the reference, which lists approvals again after each serialisation.
                    for outcome in [&mut outcome, &mut other] {
                        if let Some(items) = outcome["items"].as_array_mut() {
                            items.retain(|item| item["type"] != "approval");
                        }
                        if name == "streamed or not" {
                            outcome["events"] = Value::Null;
                        }
                    }
                    let pair = OutcomePair::new(scenario.clone(), outcome, other);
                    let differences = explain_pair(&pair, &[]).unexplained;
                    let keys: Vec<&str> = differences.iter().map(|difference| difference.key).collect();
                    if !keys.is_empty() {
                        found.push(format!("{name}: another outcome in {}", keys.join(", ")));
                    }
                }
                Err(error) => found.push(format!("{name}: {error}")),
            }
        }
        found
    }

    fn play_on_reference(&mut self, python: &Path, scenario: &Value) -> Result<Value, String> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => ReferenceProcess::start(python).map_err(|error| error.to_string())?,
        };
        let played = process.play(scenario).map_err(|error| error.to_string());
        // After a hang, the next scenario gets a new process.
        if played.as_ref().map_or_else(|error| error.contains("cannot play"), |_| true) {
            self.process = Some(process);
        }
        played
    }

    fn shrink(&mut self, seed: u64, scenario: &Value, fault: &ScenarioFault) -> FaultySeed {
        let mut found = fault.clone();
        let is_whole = |scenario: &Value| {
            let start = scenario["start"].as_str().unwrap_or_default();
            scenario["agents"].get(start).is_some()
                && scenario["input"].as_array().is_none_or(|all| !all.is_empty())
        };
        let smallest = shrink_scenario(scenario, |smaller| match self.judge(smaller) {
            _ if !is_whole(smaller) => false,
            Err(smaller) if smaller.is_like(fault) => {
                found = smaller;
                true
            }
            _ => false,
        });
        FaultySeed { seed, scenario: smallest, fault: found }
    }
}

/// Plays a scenario on Windlass in simulated time.
///
/// # Errors
/// Returns a sentence if the scenario cannot be played, panics or hangs.
pub fn play_simulated(scenario: &Value) -> Result<Value, String> {
    let scenario: OrderedJson =
        serde_json::from_value(scenario.clone()).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let play = async { tokio::time::timeout(SIMULATED_LIMIT, play_scenario(&scenario)).await };
    match catch_unwind(AssertUnwindSafe(|| runtime.block_on(play))) {
        Ok(Ok(Ok(outcome))) => Ok(outcome),
        Ok(Ok(Err(error))) => Err(with_causes(&error)),
        Ok(Err(_)) => Err("the run hangs".to_owned()),
        Err(_) => Err("the run panics".to_owned()),
    }
}

fn with_causes(error: &PlayError) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}
