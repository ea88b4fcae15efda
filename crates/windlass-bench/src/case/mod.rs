//! The runner contract shared with the peers: one case as JSON in, one line of JSON for every repetition out.
//!
//! `PERF_WORKERS` is the number of runtime threads (default 2; 1 means a current-thread runtime), `PERF_BASE_URL`
//! the base URL of the HTTP cases' server, and `PERF_ROOT` the folder of the fixtures.

mod approval;
mod argument_check;
mod http;
mod runs;

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::measure::{peak_rss_kb, rss_kb};
use crate::{BenchScript, ToolWork, bench_agent, run_to_end};

/// A benchmark case. The JSON names are those of the peers' runners.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct BenchCase {
    id: String,
    w: BenchWorkload,
    warmup: usize,
    reps: usize,
    #[serde(rename = "T")]
    turns_per_run: usize,
    #[serde(rename = "K")]
    calls_per_turn: usize,
    #[serde(rename = "warm_K")]
    warmup_calls: usize,
    #[serde(rename = "R")]
    concurrent_runs: usize,
    #[serde(rename = "warm_R")]
    warmup_concurrent_runs: usize,
    turns: usize,
    calls: usize,
    sleep_ms: u64,
    items: usize,
    api: String,
    stream: bool,
    runs: usize,
    concurrency: usize,
    deltas: usize,
    warm_runs: usize,
    n: usize,
    warm_n: usize,
}

/// The workload of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
enum BenchWorkload {
    /// One run of many turns.
    #[default]
    W1,
    /// One turn of many calls.
    W2,
    /// Many runs at once.
    W3,
    /// The memory of a run in flight.
    W3M,
    /// Pausing, serialising, deserialising and resuming a run.
    W4,
    /// Runs with a model server over HTTP.
    W5,
    /// The start of a process.
    W6,
    /// The check of a call's arguments.
    W7,
}

impl fmt::Display for BenchWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Measures a case and prints its rows.
pub fn run_case(text: &str) -> Result<(), String> {
    let case: BenchCase =
        serde_json::from_str(text).map_err(|error| format!("this is not a case: {error}"))?;
    let runtime = build_runtime().map_err(|error| error.to_string())?;
    // The case runs on a worker thread, as in real programs, not on the thread that blocks on it.
    let done = runtime.block_on(async { tokio::spawn(measure_case(case)).await });
    done.map_err(|error| error.to_string())?
}

fn build_runtime() -> std::io::Result<Runtime> {
    let workers = std::env::var("PERF_WORKERS").ok().and_then(|workers| workers.parse().ok()).unwrap_or(2);
    match workers {
        0 | 1 => Builder::new_current_thread().enable_all().build(),
        workers => Builder::new_multi_thread().worker_threads(workers).enable_all().build(),
    }
}

async fn measure_case(case: BenchCase) -> Result<(), String> {
    let report = CaseReport::for_case(&case);
    let done = match case.w {
        BenchWorkload::W1 | BenchWorkload::W2 => runs::measure_single_run(&case, &report).await,
        BenchWorkload::W3 => runs::measure_concurrent_runs(&case, &report).await,
        BenchWorkload::W3M => runs::measure_parked_runs(&case, &report).await,
        BenchWorkload::W4 => approval::measure_approval_cycle(&case, &report).await,
        BenchWorkload::W5 => http::measure_http_runs(&case, &report).await,
        BenchWorkload::W6 => measure_cold_start().await,
        BenchWorkload::W7 => argument_check::measure_argument_check(&case, &report),
    };
    if let Err(error) = &done {
        report.print_row(json!({"error": error}));
    }
    done
}

/// Executes the first tool call of a new process.
async fn measure_cold_start() -> Result<(), String> {
    run_to_end(&bench_agent(BenchScript {
        turns: 1,
        calls: 1,
        work: ToolWork::PrintEvent,
        ..BenchScript::default()
    }))
    .await?;
    println!("{}", json!({"ev": "done", "rss_kb": rss_kb(), "peak_rss_kb": peak_rss_kb()}));
    Ok(())
}

/// A printer of the rows of one case.
struct CaseReport {
    common_fields: Map<String, Value>,
}

impl CaseReport {
    fn for_case(case: &BenchCase) -> Self {
        let mut head = Map::new();
        head.insert("peer".to_owned(), "windlass".into());
        head.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
        head.insert("case".to_owned(), case.id.clone().into());
        head.insert("w".to_owned(), case.w.to_string().into());
        Self { common_fields: head }
    }

    fn print_row(&self, row: Value) {
        let mut whole = self.common_fields.clone();
        if let Value::Object(row) = row {
            whole.extend(row);
        }
        println!("{}", Value::Object(whole));
    }
}
