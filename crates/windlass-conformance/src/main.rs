//! Prints the outcome of each scenario, one per line.

use std::error::Error;
use std::process::ExitCode;

use windlass_conformance::json::OrderedJson;
use windlass_conformance::play::play_on_own_runtime;

fn main() -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for path in std::env::args().skip(1) {
        match play_file(&path) {
            Ok(outcome) => println!("{outcome}"),
            Err(error) => {
                eprintln!("{path}: {}", with_causes(&*error));
                status = ExitCode::FAILURE;
            }
        }
    }
    status
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
