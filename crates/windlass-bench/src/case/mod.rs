//! One case as JSON, one line of JSON for every repetition: the contract that the runners of the peers keep.
//!
//! `PERF_WORKERS` says how many threads the runtime has (2 without it; 1 is a runtime on the caller's thread),
//! `PERF_BASE_URL` where the server of the HTTP cases is, `PERF_ROOT` where the fixtures are.

mod approval;
mod http;
mod order;
mod runs;

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::measure::{peak_rss_kb, rss_kb};
use crate::{Body, Script, agent, finish};

/// A case.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Case {
    id: String,
    w: Workload,
    warmup: usize,
    reps: usize,
    #[serde(rename = "T")]
    turns_of_one: usize,
    #[serde(rename = "K")]
    calls_of_one: usize,
    #[serde(rename = "warm_K")]
    warm_calls: usize,
    #[serde(rename = "R")]
    runs_at_once: usize,
    #[serde(rename = "warm_R")]
    warm_runs_at_once: usize,
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

/// What is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
enum Workload {
    /// One run of many turns.
    #[default]
    W1,
    /// One turn of many calls.
    W2,
    /// Many runs at once.
    W3,
    /// What a run in flight holds.
    W3M,
    /// Pausing, writing, reading, resuming.
    W4,
    /// The way to a server.
    W5,
    /// A process that starts.
    W6,
    /// Arguments.
    W7,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Does what a case asks for, and prints what came of it.
pub fn run(text: &str) -> Result<(), String> {
    let case: Case = serde_json::from_str(text).map_err(|error| format!("this is not a case: {error}"))?;
    let runtime = runtime().map_err(|error| error.to_string())?;
    // On a worker, not on the thread that waits for it: that is where programs run.
    let done = runtime.block_on(async { tokio::spawn(measure(case)).await });
    done.map_err(|error| error.to_string())?
}

fn runtime() -> std::io::Result<Runtime> {
    let workers = std::env::var("PERF_WORKERS").ok().and_then(|workers| workers.parse().ok()).unwrap_or(2);
    match workers {
        0 | 1 => Builder::new_current_thread().enable_all().build(),
        workers => Builder::new_multi_thread().worker_threads(workers).enable_all().build(),
    }
}

async fn measure(case: Case) -> Result<(), String> {
    let report = Report::of(&case);
    let done = match case.w {
        Workload::W1 | Workload::W2 => runs::one(&case, &report).await,
        Workload::W3 => runs::at_once(&case, &report).await,
        Workload::W3M => runs::in_flight(&case, &report).await,
        Workload::W4 => approval::cycle(&case, &report).await,
        Workload::W5 => http::runs(&case, &report).await,
        Workload::W6 => start().await,
        Workload::W7 => order::read(&case, &report),
    };
    if let Err(error) = &done {
        report.row(json!({"error": error}));
    }
    done
}

/// The first tool of a process that has just started.
async fn start() -> Result<(), String> {
    finish(&agent(Script { turns: 1, calls: 1, body: Body::Print, ..Script::default() })).await?;
    println!("{}", json!({"ev": "done", "rss_kb": rss_kb(), "peak_rss_kb": peak_rss_kb()}));
    Ok(())
}

/// Where rows go.
struct Report {
    head: Map<String, Value>,
}

impl Report {
    fn of(case: &Case) -> Self {
        let mut head = Map::new();
        head.insert("peer".to_owned(), "windlass".into());
        head.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
        head.insert("case".to_owned(), case.id.clone().into());
        head.insert("w".to_owned(), case.w.to_string().into());
        Self { head }
    }

    fn row(&self, row: Value) {
        let mut whole = self.head.clone();
        if let Value::Object(row) = row {
            whole.extend(row);
        }
        println!("{}", Value::Object(whole));
    }
}
