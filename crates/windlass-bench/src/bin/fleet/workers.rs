//! Workers: how fast waiting work finishes, how many entries a backend takes, and how soon a decision is carried out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use windlass::core::decision::{Decision, DecisionScope};
use windlass::core::id::{RunId, Timestamp};
use windlass::core::item::Item;
use windlass::fleet::{AgentRegistry, DeployedAgent, RunQueue, RunSubmission, Worker};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::prelude::*;
use windlass::store::post_decision;

use super::places::StorePlace;

/// Number of runs that a worker drives at once.
const CONCURRENCY: usize = 16;
/// Calls of each run, one turn after another.
const CALLS_PER_RUN: usize = 4;
/// Records of such a run: its start and end, the last response, and three records of each call.
const RECORDS_PER_RUN: usize = 3 + 3 * CALLS_PER_RUN;

/// A model that calls `work` once a turn, and then ends the run.
#[derive(Clone)]
struct WorkModel {
    calls: usize,
}

impl Model for WorkModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let done = request.input.iter().filter(|item| matches!(&***item, Item::Output(_))).count();
        let item = match done < self.calls {
            true => Item::call(format!("c{done}").as_str(), "work", "{}"),
            false => Item::assistant("finished"),
        };
        Ok(ModelResponse { items: vec![Arc::new(item)], ..ModelResponse::default() })
    }
}

fn worker_agent(calls: usize, body: Duration) -> Agent {
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let work = Tool::dynamic("work", "Works.", schema, move |_: ToolContext, _: Value| async move {
        if !body.is_zero() {
            tokio::time::sleep(body).await;
        }
        Ok::<_, ToolError>("done")
    });
    Agent::new("desk").model(WorkModel { calls }).tool(work)
}

fn registry(agent: &Agent) -> AgentRegistry {
    AgentRegistry::new().deploy(DeployedAgent::new(agent.clone()))
}

async fn submit_runs(queue: &dyn RunQueue, count: usize) -> Result<(), String> {
    for number in 0..count {
        let submission = RunSubmission::new(format!("run-{number:06}"), "desk", "go");
        queue.submit_run(&submission, Timestamp(0)).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Returns the time in which some workers, each with connections of its own, finish the runs.
async fn time_workers(
    address: &str,
    workers: usize,
    runs: usize,
    body: Duration,
) -> Result<Duration, String> {
    let place = StorePlace::new(address, "bench_workers");
    let queue = place.open().await?;
    submit_runs(&*queue, runs).await?;
    let agent = worker_agent(CALLS_PER_RUN, body);
    let mut stores = Vec::new();
    for _ in 0..workers {
        stores.push(place.open().await?);
    }
    let began = Instant::now();
    let working = stores.into_iter().map(|store| {
        tokio::spawn(Worker::new(store, registry(&agent)).concurrency(CONCURRENCY).run_until_idle())
    });
    let mut ended = 0;
    for worker in working.collect::<Vec<_>>() {
        let report = worker.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        ended += report.ended;
    }
    let took = began.elapsed();
    drop(queue);
    place.remove().await?;
    match usize::try_from(ended) == Ok(runs) {
        true => Ok(took),
        false => Err(format!("{ended} of {runs} runs ended")),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub(crate) async fn compare_workers(address: &str, pairs: usize) -> Result<(), String> {
    let (runs, body) = (256, Duration::from_millis(50));
    let (mut one, mut four, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..pairs {
        let alone = time_workers(address, 1, runs, body).await?.as_secs_f64();
        let together = time_workers(address, 4, runs, body).await?.as_secs_f64();
        println!("1 worker {alone:.2} s, 4 workers {together:.2} s, {:.2} times as fast", alone / together);
        one.push(alone);
        four.push(together);
        ratios.push(alone / together);
    }
    let (one, four, ratio) = (median(one), median(four), median(ratios));
    println!(
        "median of {pairs} pairs, {runs} runs of {CALLS_PER_RUN} bodies of 50 ms: {one:.2} s and {four:.2} s, {ratio:.2} times"
    );
    Ok(())
}

pub(crate) async fn measure_entries(address: &str) -> Result<(), String> {
    let runs = 512;
    for workers in [1, 2, 4] {
        let took = time_workers(address, workers, runs, Duration::ZERO).await?.as_secs_f64();
        let entries = (runs * RECORDS_PER_RUN) as f64 / took;
        println!(
            "{workers} workers with {CONCURRENCY} runs: {entries:.0} entries/s, {:.0} runs/s",
            runs as f64 / took
        );
    }
    Ok(())
}

/// Number of runs that wait for a decision.
const PAUSED_RUNS: usize = 1_000;
/// Number of decisions a second.
const DECISION_RATE: u32 = 100;

pub(crate) async fn measure_decisions(address: &str) -> Result<(), String> {
    let place = StorePlace::new(address, "bench_decisions");
    let queue = place.open().await?;
    submit_runs(&*queue, PAUSED_RUNS).await?;
    let (started, mut starts) = mpsc::unbounded_channel::<(RunId, Instant)>();
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let work = Tool::dynamic("work", "Works.", schema, move |ctx: ToolContext, _: Value| {
        started.send((ctx.run_context().run_id().clone(), Instant::now())).ok();
        async { Ok::<_, ToolError>("done") }
    });
    let agent = Agent::new("desk").model(WorkModel { calls: 1 }).tool(work.needs_approval());
    let parking = Worker::new(place.open().await?, registry(&agent)).concurrency(CONCURRENCY);
    parking.run_until_idle().await.map_err(|error| error.to_string())?;
    let worker = Worker::new(place.open().await?, registry(&agent)).concurrency(CONCURRENCY);
    let stop = worker.stop_handle();
    let working = tokio::spawn(worker.run());
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / DECISION_RATE);
    let mut posted = std::collections::BTreeMap::new();
    let mut deciding = tokio::task::JoinSet::new();
    for number in 0..PAUSED_RUNS {
        ticks.tick().await;
        let run = RunId::from(format!("run-{number:06}"));
        posted.insert(run.clone(), Instant::now());
        let queue = queue.clone();
        deciding.spawn(async move {
            post_decision(&*queue, &run, "c0", Decision::Approve, DecisionScope::ThisCall, "bench").await
        });
    }
    while let Some(decided) = deciding.join_next().await {
        decided.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    }
    let mut delays = Vec::new();
    while delays.len() < PAUSED_RUNS {
        let (run, at) = starts.recv().await.ok_or("a run did not go on")?;
        delays.push((at - posted[&run]).as_secs_f64() * 1_000.0);
    }
    stop.drain();
    working.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    drop(queue);
    place.remove().await?;
    delays.sort_by(f64::total_cmp);
    let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
    println!(
        "{PAUSED_RUNS} paused runs, {DECISION_RATE} decisions/s, from the post to the start of the body: p50 {:.1} ms, p99 {:.1} ms, most {:.1} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    Ok(())
}
