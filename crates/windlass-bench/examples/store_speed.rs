//! The speed of the SQLite store: appends with full durability, and opening long runs.
//!
//! `cargo run --release -p windlass-bench --example store_speed [folder]`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass::core::{
    id::{RunId, Timestamp},
    item::Item,
    journal::{HashChain, InputAdded, JournalEntry, JournalLine, JournalRecord, decode_lines},
};
use windlass::store::SqliteStore;
use windlass::store::{Durability, LeaseClaim, Store};

type StoreSpeedError = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), StoreSpeedError> {
    let folder: PathBuf = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("windlass-speed-{}.db", std::process::id()));
    let measured = measure_store(&path).await;
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", path.display())).ok();
    }
    measured
}

async fn measure_store(path: &std::path::Path) -> Result<(), StoreSpeedError> {
    let store = Arc::new(SqliteStore::open(path)?);
    for appenders in [1, 16, 128] {
        measure_appends(&store, appenders).await?;
    }
    for count in [10, 1_000, 100_000] {
        append_lines(&store, count).await?;
    }
    drop(store);
    for count in [10, 1_000, 100_000] {
        measure_open(path, count).await?;
    }
    measure_append_cost(path).await
}

/// Measures concurrent runs that append one line at a time and wait for the disk.
async fn measure_appends(store: &Arc<SqliteStore>, appenders: usize) -> Result<(), StoreSpeedError> {
    let each = 6_000 / appenders as u64 + 40;
    let before = store.writer_stats();
    let began = Instant::now();
    let tasks: Vec<_> = (0..appenders)
        .map(|one| {
            let store = store.clone();
            tokio::spawn(async move {
                let run = RunId::from(format!("appends-{appenders}-{one}"));
                let lease = store.create_run(&run, &"agent".into(), lease_claim(), Vec::new()).await?;
                let mut waits = Vec::new();
                for (at, line) in (0..).zip(journal_lines(each)) {
                    let began = Instant::now();
                    store.append_journal(&lease, at, vec![line], Durability::Sync).await?;
                    waits.push(began.elapsed());
                }
                Ok::<_, windlass::error::StoreError>(waits)
            })
        })
        .collect();
    let mut waits = Vec::new();
    for task in tasks {
        waits.extend(task.await??);
    }
    let took = began.elapsed();
    waits.sort();
    let written = store.writer_stats();
    let (requests, commits) = (written.requests - before.requests, written.commits - before.commits);
    println!(
        "{appenders:>3} appenders: {:>6.0} lines/s, {requests} requests in {commits} commits ({:.1} each), \
         wait p50 {:.2} ms, p99 {:.2} ms",
        waits.len() as f64 / took.as_secs_f64(),
        requests as f64 / commits as f64,
        as_ms(waits[waits.len() / 2]),
        as_ms(waits[waits.len() * 99 / 100]),
    );
    Ok(())
}

async fn append_lines(store: &SqliteStore, count: u64) -> Result<(), StoreSpeedError> {
    let lease = store.create_run(&run_id(count), &"agent".into(), lease_claim(), Vec::new()).await?;
    for (batch, lines) in (0..).zip(journal_lines(count).chunks(1_000)) {
        store.append_journal(&lease, batch * 1_000, lines.to_vec(), Durability::Sync).await?;
    }
    Ok(())
}

/// Measures the opening of a run as in a new process: open the file, load the lines, verify the chain and decode
/// the records.
async fn measure_open(path: &std::path::Path, count: u64) -> Result<(), StoreSpeedError> {
    let began = Instant::now();
    let store = SqliteStore::open(path)?;
    let opened = began.elapsed();
    let lines = store.load_journal(&run_id(count), 0).await?;
    let loaded = began.elapsed();
    let records = decode_lines(&lines)?;
    println!(
        "opening a run of {:>6}: file {:.1} ms, lines {:.1} ms, chain and records {:.1} ms",
        records.len(),
        as_ms(opened),
        as_ms(loaded - opened),
        as_ms(began.elapsed() - loaded),
    );
    Ok(())
}

/// Measures the cost of one more line for short and long runs.
async fn measure_append_cost(path: &std::path::Path) -> Result<(), StoreSpeedError> {
    let store = SqliteStore::open(path)?;
    for count in [10, 1_000, 100_000] {
        let lease = store.acquire_lease(&run_id(count), lease_claim(), None).await?;
        let began = Instant::now();
        for (at, line) in (count..).zip(journal_lines(500)) {
            store.append_journal(&lease, at, vec![line], Durability::Sync).await?;
        }
        println!("one line more after {count:>6}: {:.3} ms", as_ms(began.elapsed()) / 500.0);
    }
    Ok(())
}

fn lease_claim() -> LeaseClaim<'static> {
    LeaseClaim { owner: "bench", now: Timestamp(1_000), duration: Duration::from_secs(1) }
}

fn run_id(count: u64) -> RunId {
    RunId::from(format!("long-{count}"))
}

/// Returns `count` journal lines of about 450 bytes each.
fn journal_lines(count: u64) -> Vec<JournalLine> {
    let mut chain = HashChain::default();
    let item = Arc::new(Item::user("some words ".repeat(30)));
    let entry = JournalEntry::InputAdded(InputAdded { items: vec![item], order: None });
    let record = |seq| JournalRecord { seq, at: Timestamp(seq), path: Vec::new(), entry: entry.clone() };
    (0..count).map(|seq| chain.append(&record(seq))).collect()
}

fn as_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
