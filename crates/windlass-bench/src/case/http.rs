//! The way to a server and back: runs whose answers come over HTTP, whole or piece by piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::task::JoinSet;
use windlass::model::SharedModel;
use windlass::{Agent, EventKind};
use windlass_models::OpenAi;

use super::{Case, Report};
use crate::measure::{peak_rss_kb, timed};
use crate::{Body, finished, tool};

pub(super) async fn runs(case: &Case, report: &Report) -> Result<(), String> {
    let base = std::env::var("PERF_BASE_URL").unwrap_or_else(|_| "http://127.0.0.1:18080/v1".to_owned());
    let server = OpenAi::at(&base).key("x");
    // The server reads its script off the name.
    let name = format!("fake-t{}-c{}-d{}", case.turns, case.calls, case.deltas);
    let model = match case.api.as_str() {
        "responses" => server.responses(&name).map(SharedModel::new),
        _ => server.chat(&name).map(SharedModel::new),
    };
    let model = model.map_err(|error| error.to_string())?;
    let agent = Agent::new("bench")
        .instructions("You are a benchmark.")
        .model(model)
        .tools((tool("noop", Body::Nothing),));
    many(&agent, case, case.warm_runs).await?;
    for rep in 0..case.reps {
        let (took, deltas) = timed(many(&agent, case, case.runs)).await;
        let (deltas, runs) = (deltas?, case.runs as f64);
        let expected = if case.stream { case.runs * (case.turns + 1) * case.deltas } else { 0 };
        if deltas != expected {
            return Err(format!("{deltas} pieces of text came, and {expected} were sent"));
        }
        report.row(json!({
            "rep": rep, "wall_s": took.wall, "cpu_s": took.cpu, "runs_per_s": runs / took.wall,
            "cpu_ms_per_run": took.cpu / runs * 1e3, "deltas": deltas, "deltas_expected": expected,
            "events_per_s": deltas as f64 / took.wall, "peak_rss_kb": peak_rss_kb(),
        }));
    }
    Ok(())
}

/// So many runs, a few at a time. Gives how many pieces of text came.
async fn many(agent: &Agent, case: &Case, runs: usize) -> Result<usize, String> {
    let begun = Arc::new(AtomicUsize::new(0));
    let mut all = JoinSet::new();
    for _ in 0..case.concurrency.min(runs) {
        let (agent, begun, is_streamed) = (agent.clone(), begun.clone(), case.stream);
        all.spawn(async move {
            let mut deltas = 0;
            while begun.fetch_add(1, Ordering::Relaxed) < runs {
                deltas += one(&agent, is_streamed).await?;
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

async fn one(agent: &Agent, is_streamed: bool) -> Result<usize, String> {
    let run = agent.run("go").unlimited_turns();
    if !is_streamed {
        finished(run.await.map_err(|error| error.to_string())?)?;
        return Ok(0);
    }
    let mut stream = run.stream();
    let mut deltas = 0;
    while let Some(event) = stream.next().await {
        deltas += usize::from(matches!(event.kind, EventKind::TextDelta { .. }));
    }
    stream.outcome().await.map_err(|error| error.to_string())?;
    Ok(deltas)
}
