//! Does a measured amount of work and nothing else, so that instruction counts mean something.
//!
//! `windlass-bench turns N` is one run of N turns with one call each; `windlass-bench calls N` is one turn with N
//! calls; `windlass-bench resume N` pauses after N turns, writes the run as text, reads it and goes on.
//! `windlass-bench durable N` makes N calls whose starts and settlements are on the disk before anything else
//! happens, one after another and many at once, and says how many entries a second that is; `windlass-bench open N`
//! says how long it takes to open a stored run of N entries.

use std::process::ExitCode;

use windlass_bench::{calls, durable, resume, turns};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [case, size] = arguments.as_slice() else {
        eprintln!("usage: windlass-bench turns|calls|resume|durable|open N");
        return ExitCode::FAILURE;
    };
    let (Ok(size), Ok(runtime)) =
        (size.parse(), tokio::runtime::Builder::new_current_thread().enable_time().build())
    else {
        eprintln!("`{size}` is not a number");
        return ExitCode::FAILURE;
    };
    let done = runtime.block_on(async {
        match case.as_str() {
            "turns" => turns(size).await,
            "calls" => calls(size).await,
            "resume" => resume(size).await,
            "durable" => durable::calls(size).await,
            "open" => durable::open(size).await,
            other => {
                Err(format!("`{other}` is not a case; the cases are: turns, calls, resume, durable, open"))
            }
        }
    });
    match done {
        Ok(calls) => {
            println!("{calls} calls");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
