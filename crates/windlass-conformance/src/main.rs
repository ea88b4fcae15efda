//! Prints the outcome of each scenario, one a line.

use std::process::ExitCode;

use windlass_conformance::json::Json;
use windlass_conformance::play::play;

fn main() -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for path in std::env::args().skip(1) {
        // One thread, so that bodies begin in the order in which they are started, as the reference's do.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let outcome = std::fs::read_to_string(&path)
            .map_err(|error| error.to_string())
            .and_then(|text| serde_json::from_str::<Json>(&text).map_err(|error| error.to_string()))
            .and_then(|scenario| Ok(runtime.map_err(|error| error.to_string())?.block_on(play(&scenario))));
        match outcome {
            Ok(outcome) => println!("{outcome}"),
            Err(error) => {
                eprintln!("{path}: {error}");
                status = ExitCode::FAILURE;
            }
        }
    }
    status
}
