//! Prints the outcome of each scenario, one per line, or plays random scenarios.

use std::error::Error;
use std::process::ExitCode;

use windlass_conformance::json::OrderedJson;
use windlass_conformance::play::play_on_own_runtime;
use windlass_conformance::random::{draw::draw_scenario, play_seeds, reference::find_reference_python};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((command, rest)) if command == "random" => play_random(rest),
        Some((command, rest)) if command == "draw" => draw_random(rest),
        _ => play_files(&arguments),
    }
}

fn play_files(paths: &[String]) -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for path in paths {
        match play_file(path) {
            Ok(outcome) => println!("{outcome}"),
            Err(error) => {
                eprintln!("{path}: {}", with_causes(&*error));
                status = ExitCode::FAILURE;
            }
        }
    }
    status
}

/// Plays the scenarios of `FIRST COUNT [MAX_FAULTS]` seeds and prints their faults.
fn play_random(arguments: &[String]) -> ExitCode {
    let number =
        |at: usize, default: u64| arguments.get(at).map_or(Some(default), |text| text.parse::<u64>().ok());
    let (Some(first), Some(count), Some(max_faults)) = (number(0, 0), number(1, 100), number(2, 1)) else {
        eprintln!("usage: windlass-conformance random [FIRST_SEED [COUNT [MAX_FAULTS]]]");
        return ExitCode::FAILURE;
    };
    let python = find_reference_python();
    if let Err(reason) = &python {
        eprintln!("not compared with the reference: {reason}");
    }
    let max_faults = usize::try_from(max_faults).unwrap_or(usize::MAX);
    let report = play_seeds(first..first.saturating_add(count), python.ok().as_deref(), max_faults);
    for fault in &report.faults {
        println!("{fault}");
    }
    println!("{} scenarios, {} faults", report.played, report.faults.len());
    for (reason, count) in &report.declared {
        println!("{reason}: {count}");
    }
    if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the scenarios of seeds, one per line.
fn draw_random(seeds: &[String]) -> ExitCode {
    for seed in seeds {
        match seed.parse() {
            Ok(seed) => println!("{}", draw_scenario(seed)),
            Err(_) => {
                eprintln!("`{seed}` is not a seed");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn play_file(path: &str) -> Result<String, Box<dyn Error>> {
    let scenario: OrderedJson = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    Ok(play_on_own_runtime(&scenario)?.to_string())
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}
