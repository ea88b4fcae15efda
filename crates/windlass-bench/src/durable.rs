//! What durability costs: entries a second on a real disk, and opening long runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use windlass::core::{Run, RunId, Timestamp, read_lines};
use windlass::store::{LeaseClaim, Snapshot, SqliteStore, Store, paused};

use crate::{Script, agent};

/// A folder that is gone when this is.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("windlass-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        Ok(Self(folder))
    }

    #[cfg(feature = "search")]
    pub(crate) fn path(&self) -> &std::path::Path {
        &self.0
    }

    fn store(&self) -> Result<Arc<SqliteStore>, String> {
        let store = SqliteStore::open(self.0.join("bench.db")).map_err(|error| error.to_string())?;
        Ok(Arc::new(store))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _left_behind = std::fs::remove_dir_all(&self.0);
    }
}

/// How many runs share a store where many do.
const RUNS: usize = 64;

/// Makes so many durable calls: one a turn, then all in one turn, then one a turn in many runs at once.
pub async fn calls(size: usize) -> Result<usize, String> {
    let scratch = Scratch::new()?;
    let store = scratch.store()?;
    let script = |turns, calls| agent(Script { turns, calls, ..Script::default() });
    for (name, agent) in [("one a turn", script(size, 1)), ("all at once", script(1, size))] {
        let began = Instant::now();
        let outcome = agent
            .run("go")
            .store(store.clone())
            .unlimited_turns()
            .await
            .map_err(|error| error.to_string())?;
        let seconds = began.elapsed().as_secs_f64();
        let entries = outcome.record().journal().len();
        println!("{name}: {entries} entries, {:.0} entries a second", entries as f64 / seconds);
    }
    let (agent, before, began) = (script(size.div_ceil(RUNS), 1), store.written(), Instant::now());
    let runs = (0..RUNS).map(|_| agent.run("go").store(store.clone()).unlimited_turns().into_future());
    let mut entries = 0;
    for outcome in join_all(runs).await {
        entries += outcome.map_err(|error| error.to_string())?.record().journal().len();
    }
    let (seconds, syncs) = (began.elapsed().as_secs_f64(), store.written().syncs - before.syncs);
    println!(
        "{RUNS} runs at once: {entries} entries, {:.0} entries a second, {syncs} syncs, {:.1} entries a sync",
        entries as f64 / seconds,
        entries as f64 / syncs.max(1) as f64,
    );
    Ok(size * 3)
}

/// Stores a run of about so many entries, then opens it: from its whole journal, and from a snapshot of it.
pub async fn open(size: usize) -> Result<usize, String> {
    let scratch = Scratch::new()?;
    let store = scratch.store()?;
    let turns = (size / 3).max(1);
    let run = RunId::from("long");
    let agent = agent(Script { turns, calls: 1, ..Script::default() });
    let going = agent.run("go").run_id(run.clone()).store(store.clone()).unlimited_turns();
    going.await.map_err(|error| error.to_string())?;
    // It is over, and so has none: opened whole, it tells what the other way must come to.
    let (whole, records) = opened(&*store, &run).await?;
    keep_snapshot(&*store, &run).await?;
    let (from_snapshot, _) = opened(&*store, &run).await?;
    println!("{records} entries: opened in {whole:.2} ms whole, in {from_snapshot:.2} ms from a snapshot");
    Ok(turns)
}

async fn opened(store: &dyn Store, run: &RunId) -> Result<(f64, usize), String> {
    let began = Instant::now();
    let opened = paused(store, run).await.map_err(|error| error.to_string())?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    Ok((took, opened.record().journal().len()))
}

/// Keeps a snapshot of a run as it last stood between two turns.
async fn keep_snapshot(store: &dyn Store, run: &RunId) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let lines = store.load(run, 0).await.map_err(|error| said(&error))?;
    let records = read_lines(&lines).map_err(|error| said(&error))?;
    let mut replay = Run::replay(&records[..1]).map_err(|error| said(&error))?;
    let mut last = 1;
    for record in &records[1..] {
        replay.go_on(record).map_err(|error| said(&error))?;
        if replay.run.is_ready() {
            last = record.seq + 1;
        }
    }
    let before = Run::replay(&records[..last as usize]).map_err(|error| said(&error))?;
    let Some(body) = before.to_snapshot() else { return Err("calls are open".to_owned()) };
    let claim = LeaseClaim { owner: "bench", now: Timestamp(u64::MAX / 4), until: Timestamp(u64::MAX / 4) };
    let lease = store.acquire(run, claim).await.map_err(|error| said(&error))?;
    let snapshot = Snapshot { records: last, head: lines[last as usize - 1].hash, body };
    store.keep_snapshot(&lease, snapshot).await.map_err(|error| said(&error))
}
