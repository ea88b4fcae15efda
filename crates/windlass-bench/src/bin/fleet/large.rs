//! A store with millions of runs: what users wait for costs as much as in an empty one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass::core::decision::{Decision, DecisionScope};
use windlass::core::id::{RunId, Timestamp};
use windlass::fleet::{
    AgentOffer, NextStep, QueueFilter, RunDeparture, RunQueue, RunSubmission, WorkRequest,
};
use windlass::prelude::*;
use windlass::store::{LeaseClaim, RunQuery, RunStatus, load_paused, post_decision};

use super::places::StorePlace;

/// Number of repetitions of each operation.
const REPETITIONS: usize = 200;

/// The median times of the operations.
struct OperationTimes(Vec<(&'static str, f64)>);

pub(crate) async fn measure_large_store(address: &str, count: u64) -> Result<(), String> {
    let place = StorePlace::new(address, "bench_large");
    let queue = place.open().await?;
    prepare_runs(&queue).await?;
    let empty = measure_operations(&queue, "small").await?;
    let began = Instant::now();
    fill_store(&place, count).await?;
    println!("{count} parked and {count} ended runs were made in {:.0} s", began.elapsed().as_secs_f64());
    let large = measure_operations(&queue, "large").await?;
    for ((name, before), (_, after)) in empty.0.iter().zip(&large.0) {
        println!(
            "{name}: {before:.3} ms in an empty store, {after:.3} ms in the large one, {:.2} times",
            after / before
        );
    }
    drop(queue);
    place.remove().await
}

/// Makes the runs that are opened and decided about: they wait for an approval.
async fn prepare_runs(queue: &Arc<dyn RunQueue>) -> Result<(), String> {
    for name in ["small", "large"] {
        for number in 0..REPETITIONS {
            let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
            let work = Tool::dynamic("work", "Works.", schema, |_: ToolContext, _: Value| async {
                Ok::<_, ToolError>("done")
            });
            let model = ScriptedModel::new([ScriptedResponse::call("c0", "work", json!({}))]);
            let agent = Agent::new("desk").model(model).tool(work.needs_approval());
            let run = agent.run("go").run_id(format!("{name}-{number}")).store(queue.clone());
            run.await.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

async fn measure_operations(queue: &Arc<dyn RunQueue>, name: &str) -> Result<OperationTimes, String> {
    let fail = |error: windlass::error::StoreError| error.to_string();
    let worker = format!("worker-{name}");
    let now = Timestamp(1_700_000_000_000);
    let claim = LeaseClaim { owner: &worker, now, duration: Duration::from_secs(3_600) };
    queue.register_worker(claim).await.map_err(fail)?;
    let request = WorkRequest {
        worker: worker.clone(),
        now,
        held: None,
        offers: vec![AgentOffer { agent: "desk".into(), build: "b".to_owned() }],
        limit: 32,
        only: None,
    };
    let mut times: Vec<(&'static str, Vec<f64>)> = [
        "submit",
        "take work",
        "leave",
        "list a page",
        "list paused",
        "list running",
        "list an agent",
        "list a session",
        "list the queue",
        "open",
        "decide",
    ]
    .map(|name| (name, Vec::new()))
    .into();
    let pages = [
        RunQuery { limit: 50, ..RunQuery::default() },
        RunQuery { limit: 50, statuses: vec![RunStatus::Paused], ..RunQuery::default() },
        RunQuery { limit: 50, statuses: vec![RunStatus::Running, RunStatus::Failed], ..RunQuery::default() },
        RunQuery { limit: 50, agent: Some("desk".into()), ..RunQuery::default() },
        RunQuery { limit: 50, session: Some("nobody".into()), ..RunQuery::default() },
    ];
    for number in 0..REPETITIONS {
        let mut at = 0;
        let mut lap = |began: Instant| {
            times[at].1.push(began.elapsed().as_secs_f64() * 1_000.0);
            at += 1;
        };
        let queued = RunId::from(format!("queued-{name}-{number}"));
        let began = Instant::now();
        queue.submit_run(&RunSubmission::new(queued.clone(), "desk", "go"), now).await.map_err(fail)?;
        lap(began);
        let began = Instant::now();
        let taken = queue.take_work(&request).await.map_err(fail)?;
        lap(began);
        let signals_seen = taken.runs.first().ok_or("nothing was taken")?.signals;
        let departure = RunDeparture {
            worker: worker.clone(),
            run: queued,
            lease: None,
            status: None,
            now,
            signals_seen,
            orders_done: 0,
            next: NextStep::Park { wake_at: None },
        };
        let began = Instant::now();
        queue.leave_run(&departure).await.map_err(fail)?;
        lap(began);
        for page in &pages {
            let began = Instant::now();
            queue.list_runs(page).await.map_err(fail)?;
            lap(began);
        }
        let began = Instant::now();
        queue.list_queued_runs(QueueFilter::Open, None, 50).await.map_err(fail)?;
        lap(began);
        let run = RunId::from(format!("{name}-{number}"));
        let began = Instant::now();
        load_paused(&**queue, &run).await.map_err(|error| error.to_string())?;
        lap(began);
        let began = Instant::now();
        let decided =
            post_decision(&**queue, &run, "c0", Decision::Approve, DecisionScope::ThisCall, "ann").await;
        decided.map_err(|error| error.to_string())?;
        lap(began);
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Ok(OperationTimes(times.into_iter().map(|(name, values)| (name, median(values))).collect()))
}

/// Makes parked and ended runs: every other one is parked, of 20 agents, 50 tenants and many sessions.
async fn fill_store(place: &StorePlace<'_>, count: u64) -> Result<(), String> {
    let total = count * 2;
    let body = r#"{"run":"r","agent":"a","input":[],"max_attempts":5}"#;
    if place.is_database() {
        let schema = place.schema();
        let sql = format!(
            "SET synchronous_commit = off;
            INSERT INTO \"{schema}\".runs (name, agent, session, status, epoch, records, created, updated)
                SELECT 'old-' || lpad(g::text, 8, '0'), 'agent-' || g % 20,
                CASE WHEN g % 4 = 0 THEN 's-' || g / 40 END, CASE WHEN g % 2 = 0 THEN 'paused' ELSE 'finished' END,
                1, 2, 1600000000000 + g, 1600000000000 + g FROM generate_series(1, {total}) g;
            INSERT INTO \"{schema}\".lines (run, seq, hash, body)
                SELECT r.id, s, decode(repeat('ab', 32), 'hex'), convert_to(repeat('x', 300), 'UTF8')
                FROM \"{schema}\".runs r, generate_series(0, 1) s WHERE r.name LIKE 'old-%';
            INSERT INTO \"{schema}\".queue (run, agent, tenant, priority, state, position, wake, attempt, max_attempts,
                signals, body) SELECT 'old-' || lpad(g::text, 8, '0'), 'agent-' || g % 20, 'tenant-' || g % 50, 0,
                CASE WHEN g % 2 = 0 THEN 'parked' ELSE 'ended' END, nextval('\"{schema}\".queue_positions'),
                CASE WHEN g % 20 = 0 THEN 1900000000000 + g END, 0, 5, 0, convert_to('{body}', 'UTF8')
                FROM generate_series(1, {total}) g;
            ANALYZE \"{schema}\".runs; ANALYZE \"{schema}\".queue; ANALYZE \"{schema}\".lines;"
        );
        return place.execute(&sql).await;
    }
    // The queue's bodies are checked when they are read, so the hash of the body is needed.
    let hash = windlass::core::canonical::Digest::of_bytes(body.as_bytes());
    let sql = format!(
        "PRAGMA synchronous = OFF; BEGIN;
        CREATE TEMP TABLE numbers AS WITH RECURSIVE n(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM n WHERE g < {total})
            SELECT g FROM n;
        INSERT INTO runs (name, agent, session, status, epoch, records, created, updated)
            SELECT printf('old-%08d', g), 'agent-' || g % 20, CASE WHEN g % 4 = 0 THEN 's-' || g / 40 END,
            CASE WHEN g % 2 = 0 THEN 'paused' ELSE 'finished' END, 1, 2, 1600000000000 + g, 1600000000000 + g
            FROM numbers;
        INSERT INTO lines (run, seq, hash, body) SELECT r.id, 0, randomblob(32), printf('%.300c', 'x') FROM runs r
            WHERE r.name LIKE 'old-%';
        INSERT INTO queue (run, agent, tenant, priority, state, ready, wake, attempt, max_attempts, signals, hash, body)
            SELECT printf('old-%08d', g), 'agent-' || g % 20, 'tenant-' || g % 50, 0,
            CASE WHEN g % 2 = 0 THEN 'parked' ELSE 'ended' END, 0, CASE WHEN g % 20 = 0 THEN 1900000000000 + g END,
            0, 5, 0, x'{hash}', '{body}' FROM numbers;
        COMMIT; PRAGMA wal_checkpoint(TRUNCATE);"
    );
    place.execute(&sql).await
}
