//! Measurements of fleets: workers on a SQLite file or on a PostgreSQL database.
//!
//! A store is a path, or an address that begins with `postgres://`. Every case uses tables or files of its own and prints
//! a line for each figure.
//!
//! - `workers STORE [PAIRS]` compares one worker with 16 runs with four such workers, on runs with bodies of 50 ms.
//! - `entries STORE` prints the journal entries per second with one, two and four workers, on runs whose bodies return
//!   at once.
//! - `decisions STORE` posts 100 decisions a second for 1,000 paused runs, and prints the time until the run goes on.
//! - `large STORE N` times taking work, listing, opening and deciding in an empty store and in one with N parked and N
//!   ended runs, which are made by SQL.

mod large;
mod places;
mod workers;

use std::process::ExitCode;

const USAGE: &str = "usage: fleet workers STORE [PAIRS] | entries STORE | decisions STORE | large STORE N";

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("there is no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(async {
        match words.as_slice() {
            ["workers", store] => workers::compare_workers(store, 5).await,
            ["workers", store, pairs] => workers::compare_workers(store, number(pairs)?).await,
            ["entries", store] => workers::measure_entries(store).await,
            ["decisions", store] => workers::measure_decisions(store).await,
            ["large", store, runs] => large::measure_large_store(store, number(runs)?).await,
            _ => Err(USAGE.to_owned()),
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
