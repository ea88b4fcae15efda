//! What durability costs: entries a second on a real disk, and opening long runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use windlass::core::{Run, RunId, read_lines};
use windlass::store::{SqliteStore, Store};

use crate::{Script, agent};

/// A folder that is gone when this is.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("windlass-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        Ok(Self(folder))
    }

    fn store(&self) -> Result<Arc<dyn Store>, String> {
        let store = SqliteStore::open(self.0.join("bench.db")).map_err(|error| error.to_string())?;
        Ok(Arc::new(store))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _left_behind = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes so many durable calls: one a turn, then all in one turn.
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
    Ok(size * 2)
}

/// Stores a run of about so many entries, then opens it: load, check, replay.
pub async fn open(size: usize) -> Result<usize, String> {
    let scratch = Scratch::new()?;
    let store = scratch.store()?;
    let turns = (size / 3).max(1);
    let run = RunId::from("long");
    let agent = agent(Script { turns: 1, calls: turns, ..Script::default() });
    agent.run("go").run_id(run.clone()).store(store.clone()).await.map_err(|error| error.to_string())?;
    let began = Instant::now();
    let lines = store.load(&run, 0).await.map_err(|error| error.to_string())?;
    let loaded = began.elapsed();
    let records = read_lines(&lines).map_err(|error| error.to_string())?;
    let read = began.elapsed();
    let replayed = Run::replay(&records).map_err(|error| error.to_string())?;
    let ready = began.elapsed();
    println!(
        "{} entries: loaded after {:.2} ms, read and checked after {:.2} ms, replayed after {:.2} ms; turn {}",
        records.len(),
        loaded.as_secs_f64() * 1e3,
        read.as_secs_f64() * 1e3,
        ready.as_secs_f64() * 1e3,
        replayed.run.turn(),
    );
    Ok(turns)
}
