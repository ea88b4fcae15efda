//! Runs with an in-process model: sequential and concurrent.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use windlass::agent::Agent;

use super::{BenchCase, BenchWorkload, CaseReport};
use crate::measure::{ArrivalBarrier, BenchClock, measure_time, peak_rss_kb, rss_kb};
use crate::{BenchScript, ToolWork, bench_agent, run_to_end};

/// Minimum duration of a repetition in seconds; short runs are repeated because clocks are too coarse for one.
const MIN_REPETITION_SECONDS: f64 = 0.02;

fn tool_work(sleep_ms: u64) -> ToolWork {
    match sleep_ms {
        0 => ToolWork::Nothing,
        sleep_ms => ToolWork::Sleep(Duration::from_millis(sleep_ms)),
    }
}

/// Measures one run of many turns with one call each, or of one turn with many calls.
pub(super) async fn measure_single_run(case: &BenchCase, report: &CaseReport) -> Result<(), String> {
    let (turns, calls) = match case.w {
        BenchWorkload::W1 => (case.turns_per_run, 1),
        _ => (1, case.calls_per_turn),
    };
    let script = BenchScript { turns, calls, work: tool_work(case.sleep_ms), ..BenchScript::default() };
    if case.warmup_calls > 0 {
        run_to_end(&bench_agent(BenchScript { calls: case.warmup_calls, ..script.clone() })).await?;
    }
    let agent = bench_agent(script);
    for _ in 0..case.warmup {
        run_to_end(&agent).await?;
    }
    let inner =
        if case.sleep_ms > 0 || case.warmup_calls > 0 { 1 } else { calibrate_repetitions(&agent).await? };
    for rep in 0..case.reps {
        let clock = BenchClock::start();
        for _ in 0..inner {
            run_to_end(&agent).await?;
        }
        let took = clock.stop();
        let (wall, cpu) = (took.wall / inner as f64, took.cpu / inner as f64);
        report.print_row(match case.w {
            BenchWorkload::W1 => json!({
                "rep": rep, "inner": inner, "wall_s": wall, "cpu_s": cpu,
                "us_per_turn": wall / turns as f64 * 1e6, "cpu_us_per_turn": cpu / turns as f64 * 1e6,
            }),
            _ => json!({
                "rep": rep, "inner": inner, "wall_s": wall, "cpu_s": cpu,
                "us_per_call_over_ideal": (wall - case.sleep_ms as f64 / 1e3) / calls as f64 * 1e6,
                "cpu_us_per_call": cpu / calls as f64 * 1e6,
            }),
        });
    }
    Ok(())
}

async fn calibrate_repetitions(agent: &Agent) -> Result<usize, String> {
    let (took, done) = measure_time(run_to_end(agent)).await;
    done?;
    Ok(((MIN_REPETITION_SECONDS / took.wall.max(1e-9)) as usize).clamp(1, 2000))
}

/// Measures many concurrent runs.
pub(super) async fn measure_concurrent_runs(case: &BenchCase, report: &CaseReport) -> Result<(), String> {
    let agent = bench_agent(BenchScript {
        turns: case.turns,
        calls: case.calls,
        work: tool_work(case.sleep_ms),
        ..BenchScript::default()
    });
    run_concurrently(case.warmup_concurrent_runs, &agent).await?;
    let base = rss_kb();
    for rep in 0..case.reps {
        let (took, done) = measure_time(run_concurrently(case.concurrent_runs, &agent)).await;
        done?;
        let runs = case.concurrent_runs as f64;
        report.print_row(json!({
            "rep": rep, "wall_s": took.wall, "cpu_s": took.cpu, "runs_per_s": runs / took.wall,
            "cpu_us_per_run": took.cpu / runs * 1e6, "base_rss_kb": base, "peak_rss_kb": peak_rss_kb(),
        }));
    }
    Ok(())
}

/// Measures the memory of runs while all of them wait in their first calls.
pub(super) async fn measure_parked_runs(case: &BenchCase, report: &CaseReport) -> Result<(), String> {
    let script = BenchScript { turns: case.turns, calls: case.calls, ..BenchScript::default() };
    run_concurrently(case.warmup_concurrent_runs, &bench_agent(script.clone())).await?;
    let gate = ArrivalBarrier::new(case.concurrent_runs * case.calls);
    let agent = bench_agent(BenchScript { work: ToolWork::WaitForAll(gate.clone()), ..script });
    let base = rss_kb();
    let (took, done) = measure_time(run_concurrently(case.concurrent_runs, &agent)).await;
    done?;
    let held = gate.rss_kb();
    report.print_row(json!({
        "rep": 0, "wall_s": took.wall, "cpu_s": took.cpu, "base_rss_kb": base, "parked_rss_kb": held,
        "kb_per_parked_run": (held as f64 - base as f64) / case.concurrent_runs as f64,
        "peak_rss_kb": peak_rss_kb(),
    }));
    Ok(())
}

async fn run_concurrently(runs: usize, agent: &Agent) -> Result<(), String> {
    let agent = Arc::new(agent.clone());
    let mut all = JoinSet::new();
    for _ in 0..runs {
        let agent = agent.clone();
        all.spawn(async move { run_to_end(&agent).await });
    }
    while let Some(done) = all.join_next().await {
        done.map_err(|error| error.to_string())??;
    }
    Ok(())
}
