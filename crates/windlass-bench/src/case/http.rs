//! Runs whose model responses come over HTTP, plain or streamed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::task::JoinSet;
use windlass::model::SharedModel;
use windlass::{agent::Agent, event::RunEventKind};
use windlass_models::OpenAi;

use super::{BenchCase, CaseReport};
use crate::measure::{measure_time, peak_rss_kb};
use crate::{ToolWork, bench_tool, ensure_done};

pub(super) async fn measure_http_runs(case: &BenchCase, report: &CaseReport) -> Result<(), String> {
    let base = std::env::var("PERF_BASE_URL").unwrap_or_else(|_| "http://127.0.0.1:18080/v1".to_owned());
    let server = OpenAi::at(&base).key("x");
    // The server derives its script from the model's name.
    let name = format!("fake-t{}-c{}-d{}", case.turns, case.calls, case.deltas);
    let model = match case.api.as_str() {
        "responses" => server.responses(&name).map(SharedModel::new),
        _ => server.chat(&name).map(SharedModel::new),
    };
    let model = model.map_err(|error| error.to_string())?;
    let agent = Agent::new("bench")
        .instructions("You are a benchmark.")
        .model(model)
        .tools((bench_tool("noop", ToolWork::Nothing),));
    run_many(&agent, case, case.warm_runs).await?;
    for rep in 0..case.reps {
        let (took, deltas) = measure_time(run_many(&agent, case, case.runs)).await;
        let (deltas, runs) = (deltas?, case.runs as f64);
        let expected = if case.stream { case.runs * (case.turns + 1) * case.deltas } else { 0 };
        if deltas != expected {
            return Err(format!("{deltas} text deltas arrived, and {expected} were sent"));
        }
        report.print_row(json!({
            "rep": rep, "wall_s": took.wall, "cpu_s": took.cpu, "runs_per_s": runs / took.wall,
            "cpu_ms_per_run": took.cpu / runs * 1e3, "deltas": deltas, "deltas_expected": expected,
            "events_per_s": deltas as f64 / took.wall, "peak_rss_kb": peak_rss_kb(),
        }));
    }
    Ok(())
}

/// Executes `runs` runs with limited concurrency and returns the number of text deltas received.
async fn run_many(agent: &Agent, case: &BenchCase, runs: usize) -> Result<usize, String> {
    let begun = Arc::new(AtomicUsize::new(0));
    let mut all = JoinSet::new();
    for _ in 0..case.concurrency.min(runs) {
        let (agent, begun, is_streamed) = (agent.clone(), begun.clone(), case.stream);
        all.spawn(async move {
            let mut deltas = 0;
            while begun.fetch_add(1, Ordering::Relaxed) < runs {
                deltas += run_one(&agent, is_streamed).await?;
            }
            Ok::<usize, String>(deltas)
        });
    }
    let mut deltas = 0;
    while let Some(done) = all.join_next().await {
        deltas += done.map_err(|error| error.to_string())??;
    }
    Ok(deltas)
}

async fn run_one(agent: &Agent, is_streamed: bool) -> Result<usize, String> {
    let run = agent.run("go").unlimited_turns();
    if !is_streamed {
        ensure_done(run.await.map_err(|error| error.to_string())?)?;
        return Ok(0);
    }
    let mut stream = run.stream();
    let mut deltas = 0;
    while let Some(event) = stream.next().await {
        deltas += usize::from(matches!(event.kind, RunEventKind::TextDelta { .. }));
    }
    stream.result().await.map_err(|error| error.to_string())?;
    Ok(deltas)
}
