//! The throughput of several processes on one SQLite file, and the size of the file per run.
//!
//! `cargo run --release -p windlass-bench --example store_processes [folder] [rounds] [seconds]` measures one, two and
//! four processes, interleaved, and prints the median of the runs per second of all processes together.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use windlass::store::SqliteStore;
use windlass_bench::{BenchScript, bench_agent};

type ProcessSpeedError = Box<dyn std::error::Error>;

/// Number of turns, so that a run has 15 records.
const TURNS: usize = 4;
/// Number of concurrent runs in each process.
const CONCURRENT_RUNS: usize = 64;

fn main() -> Result<(), ProcessSpeedError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["worker", path, seconds] = words.as_slice() {
        return run_worker(Path::new(path), Duration::from_secs_f64(seconds.parse()?));
    }
    let folder = words.first().map_or_else(std::env::temp_dir, PathBuf::from);
    let rounds: usize = words.get(1).unwrap_or(&"5").parse()?;
    let seconds = *words.get(2).unwrap_or(&"3");
    print_size(&folder.join(format!("windlass-size-{}.db", std::process::id())))?;
    let mut measured: [Vec<f64>; 3] = Default::default();
    for round in 0..rounds {
        for (processes, rates) in [1, 2, 4].into_iter().zip(&mut measured) {
            let path =
                folder.join(format!("windlass-processes-{}-{round}-{processes}.db", std::process::id()));
            rates.push(measure_processes(&path, processes, seconds)?);
            remove_store(&path);
        }
    }
    for (processes, rates) in [1, 2, 4].into_iter().zip(&mut measured) {
        rates.sort_by(f64::total_cmp);
        println!(
            "{processes} processes: {:.0} runs/s together (median), all: {rates:.0?}",
            rates[rates.len() / 2]
        );
    }
    Ok(())
}

/// Starts the processes on one file and returns the runs per second of all together.
fn measure_processes(path: &Path, processes: usize, seconds: &str) -> Result<f64, ProcessSpeedError> {
    drop(SqliteStore::open(path)?);
    let start = || {
        Command::new(std::env::current_exe()?)
            .args(["worker".as_ref(), path.as_os_str(), seconds.as_ref()])
            .stdout(Stdio::piped())
            .spawn()
    };
    let workers: Vec<_> = (0..processes).map(|_| start()).collect::<Result<_, _>>()?;
    let mut rate = 0.0;
    for worker in workers {
        let output = worker.wait_with_output()?;
        rate += String::from_utf8(output.stdout)?.trim().parse::<f64>()?;
    }
    Ok(rate)
}

/// Executes runs for a time and prints the runs per second.
fn run_worker(path: &Path, duration: Duration) -> Result<(), ProcessSpeedError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rate = runtime.block_on(async {
        let store = Arc::new(SqliteStore::open(path)?);
        let agent = bench_agent(BenchScript { turns: TURNS, calls: 1, ..BenchScript::default() });
        let (done, began) = (AtomicUsize::new(0), Instant::now());
        let run_until_end = async || {
            while began.elapsed() < duration {
                agent.run("go").store(store.clone()).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, windlass::error::RunError>(())
        };
        for ended in join_all((0..CONCURRENT_RUNS).map(|_| run_until_end())).await {
            ended?;
        }
        Ok::<_, ProcessSpeedError>(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
    })?;
    println!("{rate}");
    Ok(())
}

/// Prints the size of a file with 1,000 finished runs of 15 records.
fn print_size(path: &Path) -> Result<(), ProcessSpeedError> {
    const RUNS: usize = 1_000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = Arc::new(SqliteStore::open(path)?);
        let agent = bench_agent(BenchScript { turns: TURNS, calls: 1, ..BenchScript::default() });
        for _ in 0..RUNS / 50 {
            for ended in join_all((0..50).map(|_| agent.run("go").store(store.clone()))).await {
                assert_eq!(ended?.record().journal().len(), 15, "records of a run");
            }
        }
        Ok::<_, ProcessSpeedError>(())
    })?;
    // Dropping the last connection has checkpointed the write-ahead log.
    let size = std::fs::metadata(path)?.len();
    println!("{RUNS} runs of 15 records: {size} bytes, {} a run", size / RUNS as u64);
    remove_store(path);
    Ok(())
}

fn remove_store(path: &Path) {
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", path.display())).ok();
    }
}
