//! The cost of durability: entries per second on a real disk, and the time to open long runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use windlass::core::{
    id::{RunId, Timestamp},
    journal::decode_lines,
    run::Run,
};
use windlass::store::{LeaseClaim, SnapshotSegments, SqliteStore, Store, StoredSnapshot, load_paused};

use crate::{BenchScript, bench_agent};

/// A temporary folder that is removed on drop.
pub(crate) struct ScratchDir(PathBuf);

impl ScratchDir {
    pub(crate) fn new() -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("windlass-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        Ok(Self(folder))
    }

    #[cfg(feature = "search")]
    pub(crate) fn path(&self) -> &std::path::Path {
        &self.0
    }

    /// Returns the path of the store file.
    pub(crate) fn store_path(&self) -> PathBuf {
        self.0.join("bench.db")
    }

    fn open_store(&self) -> Result<Arc<SqliteStore>, String> {
        let store = SqliteStore::open(self.store_path()).map_err(|error| error.to_string())?;
        Ok(Arc::new(store))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _left_behind = std::fs::remove_dir_all(&self.0);
    }
}

/// Number of runs that share a store in the concurrent measurement.
const CONCURRENT_RUNS: usize = 64;

/// Executes `size` durable calls three times: one per turn, all in one turn, and one per turn in concurrent runs.
pub async fn measure_durable_calls(size: usize) -> Result<usize, String> {
    let scratch = ScratchDir::new()?;
    let store = scratch.open_store()?;
    let script = |turns, calls| bench_agent(BenchScript { turns, calls, ..BenchScript::default() });
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
    let (agent, before, began) =
        (script(size.div_ceil(CONCURRENT_RUNS), 1), store.writer_stats(), Instant::now());
    let runs = (0..CONCURRENT_RUNS).map(|_| agent.run("go").store(store.clone()).unlimited_turns());
    let mut entries = 0;
    for outcome in join_all(runs).await {
        entries += outcome.map_err(|error| error.to_string())?.record().journal().len();
    }
    let (seconds, syncs) = (began.elapsed().as_secs_f64(), store.writer_stats().syncs - before.syncs);
    println!(
        "{CONCURRENT_RUNS} runs at once: {entries} entries, {:.0} entries a second, {syncs} syncs, {:.1} entries a sync",
        entries as f64 / seconds,
        entries as f64 / syncs.max(1) as f64,
    );
    Ok(size * 3)
}

/// Stores a run of about `size` entries and opens it twice: from its whole journal, and from a snapshot.
pub async fn measure_open(size: usize) -> Result<usize, String> {
    let scratch = ScratchDir::new()?;
    let store = scratch.open_store()?;
    let turns = (size / 3).max(1);
    let run = RunId::from("long");
    let agent = bench_agent(BenchScript { turns, calls: 1, ..BenchScript::default() });
    let going = agent.run("go").run_id(run.clone()).store(store.clone()).unlimited_turns();
    going.await.map_err(|error| error.to_string())?;
    // A finished run has no snapshot, so the first opening replays the whole journal.
    let (whole, records) = time_open(&*store, &run).await?;
    save_snapshot(&*store, &run).await?;
    let (from_snapshot, _) = time_open(&*store, &run).await?;
    println!("{records} entries: opened in {whole:.2} ms whole, in {from_snapshot:.2} ms from a snapshot");
    Ok(turns)
}

async fn time_open(store: &dyn Store, run: &RunId) -> Result<(f64, usize), String> {
    let began = Instant::now();
    let opened = load_paused(store, run).await.map_err(|error| error.to_string())?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    Ok((took, opened.record().journal().len()))
}

/// Stores a snapshot of a run as of its last point between two turns.
async fn save_snapshot(store: &dyn Store, run: &RunId) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let lines = store.load_journal(run, 0).await.map_err(|error| said(&error))?;
    let records = decode_lines(&lines).map_err(|error| said(&error))?;
    let mut replay = Run::replay(&records[..1]).map_err(|error| said(&error))?;
    let mut last = 1;
    for record in &records[1..] {
        replay.apply_record(record).map_err(|error| said(&error))?;
        if replay.run.is_awaiting_model() {
            last = record.seq + 1;
        }
    }
    let before = Run::replay(&records[..last as usize]).map_err(|error| said(&error))?;
    let Some(snapshot) = before.to_snapshot(None) else { return Err("calls are open".to_owned()) };
    let claim = LeaseClaim {
        owner: "bench",
        now: Timestamp(u64::MAX / 4),
        duration: std::time::Duration::from_secs(30),
    };
    let lease = store.acquire_lease(run, claim, None).await.map_err(|error| said(&error))?;
    let segments = SnapshotSegments { first: 0, bodies: vec![snapshot.segment] };
    let head_hash = lines[last as usize - 1].hash;
    let snapshot = StoredSnapshot { record_count: last, head_hash, body: snapshot.head };
    store.save_snapshot(&lease, snapshot, segments).await.map_err(|error| said(&error))
}
