//! Load on loopback: many open streams, many decisions, and a restart in the middle; memory of a stream. The tests are short
//! by default; `WINDLASS_LOAD_STREAMS` sets the number of streams and runs.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{PAYMENTS, TestClient, TestServer};
use windlass_server::ServerLimits;

/// Number of streams, and of runs.
fn stream_count(default: usize) -> usize {
    std::env::var("WINDLASS_LOAD_STREAMS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Returns the resident memory of a process.
fn resident_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Follows a run until it ends, over restarts of the server; returns the numbers of its records.
async fn follow(client: TestClient, run: String) -> Vec<u64> {
    let mut seqs: Vec<u64> = Vec::new();
    loop {
        let last = seqs.last().map(u64::to_string);
        let Some(mut events) = client.try_events(&format!("/v1/runs/{run}/events"), last.as_deref()).await
        else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        while let Some(event) = events.next().await {
            if event.event.as_deref() == Some("end") {
                return seqs;
            }
            seqs.push(event.id.unwrap().parse().unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_decisions_lose_nothing_and_repeat_nothing_over_a_restart() {
    let count = stream_count(60);
    let limits =
        ServerLimits { requests_per_second: 1_000_000, concurrent_runs: 64, ..ServerLimits::default() };
    let server = TestServer::start_with(|server| server.limits(limits)).await;
    let client = server.client();
    for n in 0..count {
        let start = json!({ "run": format!("r{n}"), "agent": "clerk", "input": "pay Ropeworks" });
        assert_eq!(client.post("/v1/runs", &start).await.0, 201);
    }
    while client.get("/v1/inbox?limit=1").await.1["total"] != count {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let followers: Vec<_> =
        (0..count).map(|n| tokio::spawn(follow(client.clone(), format!("r{n}")))).collect();
    let mut items: Vec<Value> = Vec::new();
    while items.len() < count {
        let (_, page) = client.get(&format!("/v1/inbox?limit=500&skip={}", items.len())).await;
        items.extend(page["calls"].as_array().unwrap().iter().cloned());
    }
    let (first, second) = items.split_at(count / 2);
    let began = Instant::now();
    decide_all(&client, first).await;
    let first_half = began.elapsed();
    let (address, (store, folder)) = (server.address, server.stop().await);
    let server =
        TestServer::start_on(store, |server| server.limits(limits).address(address.to_string())).await;
    let began = Instant::now();
    decide_all(&client, second).await;
    let per_second = count as f64 / (first_half + began.elapsed()).as_secs_f64();
    for follower in followers {
        let seqs = follower.await.unwrap();
        assert_eq!(seqs, (0..seqs.len() as u64).collect::<Vec<_>>());
    }
    assert_eq!(PAYMENTS.load(Ordering::SeqCst) as usize, count, "each payment was made once");
    let _ = writeln!(std::io::stderr(), "{count} streams, {per_second:.0} decisions a second");
    drop((server, folder));
}

/// The example server in a process of its own.
struct ServerProcess {
    child: std::process::Child,
    address: std::net::SocketAddr,
    _folder: tempfile::TempDir,
}

impl ServerProcess {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let test = std::env::current_exe().unwrap();
        let program = test.ancestors().nth(2).unwrap().join("examples/clerk_server");
        let mut child = Command::new(program)
            .arg("127.0.0.1:0")
            .arg(folder.path().join("store.db"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.trim().parse().ok());
        Self { child, address: address.unwrap(), _folder: folder }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_stream_takes_little_memory_of_the_server() {
    let count = stream_count(200);
    let server = tokio::task::spawn_blocking(ServerProcess::start).await.unwrap();
    let client = TestClient { address: server.address, token: None };
    let run = client.start_until("waiting", "pay Ropeworks", "paused").await;
    let last = (run["records"].as_u64().unwrap() - 1).to_string();
    let open = async |count: usize| {
        let mut streams = Vec::new();
        for _ in 0..count {
            let mut stream = client.events("/v1/runs/waiting/events", None).await;
            while stream.next().await.unwrap().id.as_ref() != Some(&last) {}
            streams.push(stream);
        }
        streams
    };
    let warm = open(20).await;
    let before = resident_kib(server.child.id());
    let streams = open(count).await;
    let per_stream = resident_kib(server.child.id()).saturating_sub(before) as f64 / count as f64;
    let _ = writeln!(std::io::stderr(), "{count} streams: {per_stream:.1} KiB of the server for each");
    assert!(per_stream < 64.0, "{per_stream} KiB a stream");
    drop((warm, streams));
}

async fn decide_all(client: &TestClient, items: &[Value]) {
    let slots = Arc::new(tokio::sync::Semaphore::new(16));
    let tasks: Vec<_> = items
        .iter()
        .map(|item| {
            let (client, item, slots) = (client.clone(), item.clone(), slots.clone());
            tokio::spawn(async move {
                let _slot = slots.acquire().await;
                let path = format!("/v1/runs/{}/decisions", item["run"].as_str().unwrap());
                let body = json!({ "call": item["call"], "attempt": item["attempt"],
                    "displayed": item["sheet"]["digest"], "decision": { "type": "approve" } });
                let (code, answer) = client.post(&path, &body).await;
                assert_eq!(code, 200, "{answer}");
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}
