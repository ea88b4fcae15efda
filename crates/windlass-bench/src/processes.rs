//! The throughput of several processes that drive runs in one SQLite file, and the size of a run in it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use windlass::store::SqliteStore;

use crate::durable::ScratchDir;
use crate::{BenchScript, bench_agent};

/// Numbers of processes that are compared.
const PROCESS_COUNTS: [usize; 3] = [1, 2, 4];
/// Number of interleaved repetitions.
const REPETITIONS: usize = 3;
/// Number of runs that a process drives at once.
const CONCURRENT_RUNS: usize = 64;
/// Number of turns of a run: with one call each they make 15 records.
const TURNS: usize = 4;

/// Drives `size` runs of 15 records in all, by one process and by several on one file, and prints the runs per second of
/// all of them together.
pub fn measure_processes(size: usize) -> Result<(), String> {
    let mut rates = vec![Vec::new(); PROCESS_COUNTS.len()];
    for _ in 0..REPETITIONS {
        for (place, count) in PROCESS_COUNTS.into_iter().enumerate() {
            let (rate, bytes) = drive_together(size, count)?;
            println!("{count} processes: {rate:.0} runs a second together, {bytes:.0} bytes a run on disk");
            rates[place].push(rate);
        }
    }
    for (rates, count) in rates.iter_mut().zip(PROCESS_COUNTS) {
        rates.sort_by(f64::total_cmp);
        println!("{count} processes: median {:.0} runs a second", rates[REPETITIONS / 2]);
    }
    Ok(())
}

/// Returns the runs per second, and the bytes of the file per run.
fn drive_together(size: usize, count: usize) -> Result<(f64, f64), String> {
    let scratch = ScratchDir::new()?;
    let file = scratch.store_path();
    let runs = size / count;
    let mut children = Vec::new();
    for _ in 0..count {
        children.push(start_child(&file, runs)?);
    }
    let began = Instant::now();
    for child in &mut children {
        let input = child.stdin.take().ok_or("a process cannot be told to start")?;
        drop(input);
    }
    for mut child in children {
        let status = child.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("a process ended with {status}"));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let total = (runs * count) as f64;
    let bytes = std::fs::metadata(&file).map_err(|error| error.to_string())?.len();
    Ok((total / seconds, bytes as f64 / total))
}

/// Starts a process, and waits until it has opened the file.
fn start_child(file: &Path, runs: usize) -> Result<Child, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(this);
    command.arg("processes-child").arg(file).arg(runs.to_string());
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = started.map_err(|error| error.to_string())?;
    let output = child.stdout.take().ok_or("a process cannot be heard")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).map_err(|error| error.to_string())?;
    Ok(child)
}

/// Drives `runs` runs in a file, when the standard input has ended.
pub fn run_child(file: &str, runs: &str) -> Result<(), String> {
    let runs: usize = runs.parse().map_err(|_| format!("`{runs}` is not a number"))?;
    let store = Arc::new(SqliteStore::open(file).map_err(|error| error.to_string())?);
    let mut out = std::io::stdout();
    writeln!(out, "ready").and_then(|()| out.flush()).map_err(|error| error.to_string())?;
    std::io::stdin().read_to_end(&mut Vec::new()).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let agent = bench_agent(BenchScript { turns: TURNS, calls: 1, ..BenchScript::default() });
        let start = || agent.run("go").store(store.clone()).into_future();
        let mut running: FuturesUnordered<_> = (0..CONCURRENT_RUNS.min(runs)).map(|_| start()).collect();
        let mut started = running.len();
        while let Some(ended) = running.next().await {
            ended.map_err(|error| error.to_string())?;
            if started < runs {
                running.push(start());
                started += 1;
            }
        }
        Ok(())
    })
}
