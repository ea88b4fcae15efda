//! Measures Windlass.
//!
//! `windlass-bench '{"id":"x","w":"W1","T":100,"warmup":1,"reps":3}'` measures one case, in the form that the
//! runners of the peers have, and prints a line of JSON for every repetition.
//!
//! `windlass-bench compare --peers DIR` measures Windlass and its peers side by side, interleaved, and writes the table
//! in `docs/benchmarks.md` and the chart beside it.
//!
//! The others do a measured amount of work and nothing else, so that instruction counts mean something:
//! `windlass-bench turns N` is one run of N turns with one call each; `calls N` is one turn with N calls; `resume N`
//! pauses after N turns, writes the run as text, reads it and goes on; `entries N` applies and writes N entries; `events N` watches an answer in N pieces;
//! `arguments N` reads an order N times.
//! `durable N` makes N calls whose starts and settlements are on the disk before anything else happens, one after
//! another and many at once, and says how many entries a second that is; `open N` says how long it takes to open a
//! stored run of N entries; `seeds N` simulates N lives of a run that crash somewhere, and says how many a second.
//! With the feature `search`, `search N…` makes indexes of N chunks and searches them; `search FOLDER` does so with the
//! files of a folder.
//! With the feature `computer`, `computer --node FOLDER --python PROGRAM` measures a browser, beside Playwright where it
//! is told where that is.

use std::process::ExitCode;

use windlass_bench::{arguments, calls, case, compare, durable, entries, events, resume, seeds, turns};

const USAGE: &str = "usage: windlass-bench CASE-AS-JSON | compare --peers DIR | turns|calls|resume|entries|events|arguments|durable|open|seeds N | search N|FOLDER | computer [--node FOLDER] [--python PROGRAM]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        [case] if case.starts_with('{') => case::run(case),
        ["compare", options @ ..] => compare::run(options),
        #[cfg(feature = "search")]
        ["search", what @ ..] => windlass_bench::search::run(what),
        #[cfg(feature = "computer")]
        ["computer", options @ ..] => windlass_bench::computer::run(options),
        [work, size] => counted(work, size),
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

fn counted(work: &str, size: &str) -> Result<(), String> {
    let size: usize = size.parse().map_err(|_| format!("`{size}` is not a number"))?;
    if work == "seeds" {
        println!("{} done", seeds::run(size)?);
        return Ok(());
    }
    // What is counted must not depend on how long anything takes.
    let is_timed = matches!(work, "durable" | "open");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(!is_timed).build();
    let done = runtime.map_err(|error| error.to_string())?.block_on(async {
        match work {
            "turns" => turns(size).await,
            "calls" => calls(size).await,
            "resume" => resume(size).await,
            "entries" => entries(size),
            "events" => events(size).await,
            "arguments" => arguments::read(size),
            "durable" => durable::calls(size).await,
            "open" => durable::open(size).await,
            other => Err(format!("`{other}` is not something to do; {USAGE}")),
        }
    })?;
    println!("{done} done");
    Ok(())
}
