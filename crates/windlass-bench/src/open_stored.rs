//! A long run that waits, in a file, and the cost of opening it.

use std::sync::Arc;

use windlass::core::id::RunId;
use windlass::store::{MemoryStore, SqliteStore, Store, StoreWrapper, load_paused, migrate_store};

use crate::{BenchScript, ScriptEnding, bench_agent};

/// Id of the run.
const RUN: &str = "long";

/// Number of records between snapshots: that of stores on disk.
const SNAPSHOT_INTERVAL: u64 = 256;

/// A store in memory with snapshots.
struct SnapshotMemoryStore(MemoryStore);

impl StoreWrapper for SnapshotMemoryStore {
    fn inner(&self) -> &dyn Store {
        &self.0
    }

    fn snapshot_interval(&self) -> Option<u64> {
        Some(SNAPSHOT_INTERVAL)
    }
}

/// Writes a file with a run of `turns` turns that waits for an approval, and its snapshot. A driver makes both in memory.
pub async fn prepare_file(path: &str, turns: usize) -> Result<(), String> {
    let memory = Arc::new(SnapshotMemoryStore(MemoryStore::default()));
    let script = BenchScript { turns, calls: 1, ending: ScriptEnding::Approval, ..BenchScript::default() };
    let run = bench_agent(script).run("go").run_id(RUN).store(memory.clone()).unlimited_turns();
    let result = run.await.map_err(|error| error.to_string())?;
    if !result.is_paused() {
        return Err("the run does not wait".to_owned());
    }
    let file = SqliteStore::open(path).map_err(|error| error.to_string())?;
    migrate_store(&*memory, &file).await.map_err(|error| error.to_string())?;
    let stored = file.load_snapshot(&RUN.into()).await.map_err(|error| error.to_string())?;
    let covered = stored.map_or(0, |snapshot| snapshot.record_count);
    println!("{} records, {covered} of them in the snapshot", result.record().journal().len());
    Ok(())
}

/// Opens the file, and the run in it unless `is_start_only`, as somebody does who decides about its pending call.
pub async fn open_file(path: &str, is_start_only: bool) -> Result<(), String> {
    let store = SqliteStore::open(path).map_err(|error| error.to_string())?;
    let run = RunId::from(if is_start_only { "none" } else { RUN });
    store.load_snapshot(&run).await.map_err(|error| error.to_string())?;
    if is_start_only {
        return Ok(());
    }
    let mut paused = load_paused(&store, &run).await.map_err(|error| error.to_string())?;
    paused.approve("gated").map_err(|error| error.to_string())
}
