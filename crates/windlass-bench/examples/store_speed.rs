//! What the store in a file costs: appends with full durability, and opening long runs.
//!
//! `cargo run --release -p windlass-bench --example store_speed [folder]`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass::SqliteStore;
use windlass::core::{Chain, Entry, InputAdded, Item, Line, Record, RunId, Timestamp, read_lines};
use windlass::store::{Durability, LeaseClaim, Store};

type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let folder: PathBuf = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("windlass-speed-{}.db", std::process::id()));
    let measured = measure(&path).await;
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", path.display())).ok();
    }
    measured
}

async fn measure(path: &std::path::Path) -> Result<(), Error> {
    let store = Arc::new(SqliteStore::open(path)?);
    for appenders in [1, 16, 128] {
        appends(&store, appenders).await?;
    }
    for count in [10, 1_000, 100_000] {
        fill(&store, count).await?;
    }
    drop(store);
    for count in [10, 1_000, 100_000] {
        open(path, count).await?;
    }
    cost_at_length(path).await
}

/// Runs that append one line at a time, each waiting for the disk.
async fn appends(store: &Arc<SqliteStore>, appenders: usize) -> Result<(), Error> {
    let each = 6_000 / appenders as u64 + 40;
    let before = store.written();
    let began = Instant::now();
    let tasks: Vec<_> = (0..appenders)
        .map(|one| {
            let store = store.clone();
            tokio::spawn(async move {
                let run = RunId::from(format!("appends-{appenders}-{one}"));
                let lease = store.create(&run, &"agent".into(), claim()).await?;
                let mut waits = Vec::new();
                for (at, line) in (0..).zip(lines(each)) {
                    let began = Instant::now();
                    store.append(&lease, at, vec![line], Durability::Now).await?;
                    waits.push(began.elapsed());
                }
                Ok::<_, windlass::StoreError>(waits)
            })
        })
        .collect();
    let mut waits = Vec::new();
    for task in tasks {
        waits.extend(task.await??);
    }
    let took = began.elapsed();
    waits.sort();
    let written = store.written();
    let (requests, commits) = (written.requests - before.requests, written.commits - before.commits);
    println!(
        "{appenders:>3} appenders: {:>6.0} lines/s, {requests} requests in {commits} commits ({:.1} each), \
         wait p50 {:.2} ms, p99 {:.2} ms",
        waits.len() as f64 / took.as_secs_f64(),
        requests as f64 / commits as f64,
        ms(waits[waits.len() / 2]),
        ms(waits[waits.len() * 99 / 100]),
    );
    Ok(())
}

async fn fill(store: &SqliteStore, count: u64) -> Result<(), Error> {
    let lease = store.create(&name(count), &"agent".into(), claim()).await?;
    for (batch, lines) in (0..).zip(lines(count).chunks(1_000)) {
        store.append(&lease, batch * 1_000, lines.to_vec(), Durability::Now).await?;
    }
    Ok(())
}

/// A new process would do the same: open the file, read the lines, check the chain, read the records.
async fn open(path: &std::path::Path, count: u64) -> Result<(), Error> {
    let began = Instant::now();
    let store = SqliteStore::open(path)?;
    let opened = began.elapsed();
    let lines = store.load(&name(count), 0).await?;
    let loaded = began.elapsed();
    let records = read_lines(&lines)?;
    println!(
        "opening a run of {:>6}: file {:.1} ms, lines {:.1} ms, chain and records {:.1} ms",
        records.len(),
        ms(opened),
        ms(loaded - opened),
        ms(began.elapsed() - loaded),
    );
    Ok(())
}

/// One line more, for a short run and for a long one.
async fn cost_at_length(path: &std::path::Path) -> Result<(), Error> {
    let store = SqliteStore::open(path)?;
    for count in [10, 1_000, 100_000] {
        let late = LeaseClaim { now: Timestamp(10_000), until: Timestamp(20_000), ..claim() };
        let lease = store.acquire(&name(count), late).await?;
        let began = Instant::now();
        for (at, line) in (count..).zip(lines(500)) {
            store.append(&lease, at, vec![line], Durability::Now).await?;
        }
        println!("one line more after {count:>6}: {:.3} ms", ms(began.elapsed()) / 500.0);
    }
    Ok(())
}

fn claim() -> LeaseClaim<'static> {
    LeaseClaim { owner: "bench", now: Timestamp(1_000), until: Timestamp(2_000) }
}

fn name(count: u64) -> RunId {
    RunId::from(format!("long-{count}"))
}

/// Lines of about 450 bytes.
fn lines(count: u64) -> Vec<Line> {
    let mut chain = Chain::default();
    let item = Arc::new(Item::user("some words ".repeat(30)));
    let entry = Entry::InputAdded(InputAdded { items: vec![item] });
    let record = |seq| Record { seq, at: Timestamp(seq), path: Vec::new(), entry: entry.clone() };
    (0..count).map(|seq| chain.add(&record(seq))).collect()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
