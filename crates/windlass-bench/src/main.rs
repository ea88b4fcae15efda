//! The command line of the benchmarks.
//!
//! - `windlass-bench '{"id":"x","w":"W1","T":100,"warmup":1,"reps":3}'` measures one case, in the format of the
//!   peers' runners, and prints a line of JSON for every repetition.
//! - `windlass-bench compare --peers DIR` measures Windlass and its peers, interleaved, and writes the table in
//!   `docs/benchmarks.md` and the chart beside it.
//!
//! The following do a fixed amount of work and nothing else, so that their instructions can be counted:
//!
//! - `turns N` executes one run of N turns with one call each; `calls N` one turn with N calls.
//! - `stored-turns N` and `stored-calls N` do the same with a store in memory.
//! - `resume N` pauses a run after N turns, serialises it, restores it and resumes it.
//! - `pause-items N` pauses a run with a history of N items; `cycle-items N` also writes it, reads it and resumes it.
//! - `entries N` applies and serialises N journal entries; `events N` streams one response of N deltas.
//! - `arguments N` checks the arguments of a call N times.
//! - `open-stored FILE` opens a waiting run in a file and decides about its call; `open-start FILE` opens only the file.
//!   `open-prepare FILE N` writes the file, with a run of N turns.
//!
//! The following measure time:
//!
//! - `durable N` executes N calls with write-ahead of their starts and results, sequentially and concurrently,
//!   and prints the entries per second.
//! - `processes N` drives N runs of 15 records by one, two and four processes on one file.
//! - `open N` prints the time to open a stored run of N entries.
//! - `seeds N` simulates N runs with a crash at a random point, and prints the seeds per second.
//! - `search N…` (feature `search`) builds indexes of N chunks and searches them; `search FOLDER` uses the files of
//!   a folder.
//! - `computer --node FOLDER --python PROGRAM` (feature `computer`) measures a browser, and Playwright if it is
//!   named.

use std::process::ExitCode;

use windlass_bench::{
    apply_entries, arguments, case, compare, cycle_items, durable, open_stored, pause_and_resume,
    pause_items, processes, run_calls, run_stored_calls, run_stored_turns, run_turns, seeds, stream_events,
};

const USAGE: &str = "usage: windlass-bench CASE-AS-JSON | compare --peers DIR | turns|calls|stored-turns|stored-calls|resume|pause-items|cycle-items|entries|events|arguments|durable|processes|open|seeds N | open-prepare FILE N | open-stored|open-start FILE | search N|FOLDER | computer [--node FOLDER] [--python PROGRAM]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        [case] if case.starts_with('{') => case::run_case(case),
        ["compare", options @ ..] => compare::run_comparison(options),
        #[cfg(feature = "search")]
        ["search", what @ ..] => windlass_bench::search::run_search_bench(what),
        #[cfg(feature = "computer")]
        ["computer", options @ ..] => windlass_bench::computer::run_browser_bench(options),
        ["processes-child", file, runs] => processes::run_child(file, runs),
        ["open-prepare", file, turns] => run_on_file(|| async {
            let turns = turns.parse().map_err(|_| format!("`{turns}` is not a number"))?;
            open_stored::prepare_file(file, turns).await
        }),
        ["open-stored", file] => run_on_file(|| open_stored::open_file(file, false)),
        ["open-start", file] => run_on_file(|| open_stored::open_file(file, true)),
        [work, size] => run_counted(work, size),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs work on a file in a runtime of one thread.
fn run_on_file<F: Future<Output = Result<(), String>>>(work: impl FnOnce() -> F) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.map_err(|error| error.to_string())?.block_on(work())
}

fn run_counted(work: &str, size: &str) -> Result<(), String> {
    let size: usize = size.parse().map_err(|_| format!("`{size}` is not a number"))?;
    if work == "seeds" {
        println!("{} done", seeds::run_seeds(size)?);
        return Ok(());
    }
    if work == "processes" {
        return processes::measure_processes(size);
    }
    // A paused clock keeps instruction counts independent of time.
    let is_timed = matches!(work, "durable" | "open");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(!is_timed).build();
    let done = runtime.map_err(|error| error.to_string())?.block_on(async {
        match work {
            "turns" => run_turns(size).await,
            "calls" => run_calls(size).await,
            "stored-turns" => run_stored_turns(size).await,
            "stored-calls" => run_stored_calls(size).await,
            "resume" => pause_and_resume(size).await,
            "pause-items" => pause_items(size).await,
            "cycle-items" => cycle_items(size).await,
            "entries" => apply_entries(size),
            "events" => stream_events(size).await,
            "arguments" => arguments::check_order(size),
            "durable" => durable::measure_durable_calls(size).await,
            "open" => durable::measure_open(size).await,
            other => Err(format!("`{other}` is not a benchmark; {USAGE}")),
        }
    })?;
    println!("{done} done");
    Ok(())
}
