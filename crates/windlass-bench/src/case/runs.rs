//! Runs in this process: one after another, and many at once.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use windlass::Agent;

use super::{Case, Report, Workload};
use crate::measure::{Clock, Gate, peak_rss_kb, rss_kb, timed};
use crate::{Body, Script, agent, finish};

/// How long a repetition takes at least where runs are short, in seconds: clocks are too coarse for one run.
const REPETITION: f64 = 0.02;

fn body(sleep_ms: u64) -> Body {
    match sleep_ms {
        0 => Body::Nothing,
        sleep_ms => Body::Sleep(Duration::from_millis(sleep_ms)),
    }
}

/// One run of many turns with one call each, or of one turn with many calls.
pub(super) async fn one(case: &Case, report: &Report) -> Result<(), String> {
    let (turns, calls) = match case.w {
        Workload::W1 => (case.turns_of_one, 1),
        _ => (1, case.calls_of_one),
    };
    let script = Script { turns, calls, body: body(case.sleep_ms), ..Script::default() };
    if case.warm_calls > 0 {
        finish(&agent(Script { calls: case.warm_calls, ..script.clone() })).await?;
    }
    let agent = agent(script);
    for _ in 0..case.warmup {
        finish(&agent).await?;
    }
    let inner = if case.sleep_ms > 0 || case.warm_calls > 0 { 1 } else { calibrated(&agent).await? };
    for rep in 0..case.reps {
        let clock = Clock::start();
        for _ in 0..inner {
            finish(&agent).await?;
        }
        let took = clock.stop();
        let (wall, cpu) = (took.wall / inner as f64, took.cpu / inner as f64);
        report.row(match case.w {
            Workload::W1 => json!({
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

async fn calibrated(agent: &Agent) -> Result<usize, String> {
    let (took, done) = timed(finish(agent)).await;
    done?;
    Ok(((REPETITION / took.wall.max(1e-9)) as usize).clamp(1, 2000))
}

/// Many runs that start together.
pub(super) async fn at_once(case: &Case, report: &Report) -> Result<(), String> {
    let agent = agent(Script {
        turns: case.turns,
        calls: case.calls,
        body: body(case.sleep_ms),
        ..Script::default()
    });
    together(case.warm_runs_at_once, &agent).await?;
    let base = rss_kb();
    for rep in 0..case.reps {
        let (took, done) = timed(together(case.runs_at_once, &agent)).await;
        done?;
        let runs = case.runs_at_once as f64;
        report.row(json!({
            "rep": rep, "wall_s": took.wall, "cpu_s": took.cpu, "runs_per_s": runs / took.wall,
            "cpu_us_per_run": took.cpu / runs * 1e6, "base_rss_kb": base, "peak_rss_kb": peak_rss_kb(),
        }));
    }
    Ok(())
}

/// What runs hold while all of them are in the middle of their first calls.
pub(super) async fn in_flight(case: &Case, report: &Report) -> Result<(), String> {
    let script = Script { turns: case.turns, calls: case.calls, ..Script::default() };
    together(case.warm_runs_at_once, &agent(script.clone())).await?;
    let gate = Gate::new(case.runs_at_once * case.calls);
    let agent = agent(Script { body: Body::Wait(gate.clone()), ..script });
    let base = rss_kb();
    let (took, done) = timed(together(case.runs_at_once, &agent)).await;
    done?;
    let held = gate.rss_kb();
    report.row(json!({
        "rep": 0, "wall_s": took.wall, "cpu_s": took.cpu, "base_rss_kb": base, "parked_rss_kb": held,
        "kb_per_parked_run": (held as f64 - base as f64) / case.runs_at_once as f64,
        "peak_rss_kb": peak_rss_kb(),
    }));
    Ok(())
}

async fn together(runs: usize, agent: &Agent) -> Result<(), String> {
    let agent = Arc::new(agent.clone());
    let mut all = JoinSet::new();
    for _ in 0..runs {
        let agent = agent.clone();
        all.spawn(async move { finish(&agent).await });
    }
    while let Some(done) = all.join_next().await {
        done.map_err(|error| error.to_string())??;
    }
    Ok(())
}
