//! Many runs, many runs that wait, and a run with many calls: the work for a page does not grow with them. The tests are
//! small by default; `WINDLASS_LARGE_RUNS`, `WINDLASS_LARGE_OPEN` and `WINDLASS_LARGE_CALLS` set the numbers, for example
//! 100000, 20000 and 10000.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt;
use serde_json::{Value, json};
use support::counting_queue::CountingQueue;
use support::{PATIENCE, TestClient, TestServer};
use windlass::agent::Agent;
use windlass::core::id::{RunId, Timestamp};
use windlass::core::item::Item;
use windlass::core::journal::{
    HashChain, JournalEntry, JournalLine, JournalRecord, ModelResponded, RunFinished, RunStarted,
    ToolUsePolicyKind, authenticate_records, decode_lines,
};
use windlass::core::provenance::ContentSources;
use windlass::core::usage::Usage;
use windlass::fleet::RunQueue;
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse, SharedModel};
use windlass::store::{LeaseClaim, RunStatus, SqliteStore};
use windlass::tool::{Tool, ToolContext, ToolError};
use windlass_server::{AgentServer, ServerLimits};

fn number_of(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Returns the lines of a run with one answer.
fn lines_of(run: &RunId, at: Timestamp) -> Vec<JournalLine> {
    let answer = ModelResponded {
        agent: "clerk".into(),
        items: vec![Arc::new(Item::assistant("Done."))],
        calls: Vec::new(),
        duplicate_calls: 0,
        context_sources: ContentSources::default(),
        tool_use_policy: ToolUsePolicyKind::default(),
        usage: Usage::of_tokens(10, 5),
        response_id: None,
        request_id: None,
        model: Some("clerk-1".to_owned()),
        attempts: 1,
        requested_at: Some(at),
        requested: Default::default(),
        finish_reason: None,
        active_ms: 0,
    };
    let finished = RunFinished { output: "Done.".to_owned(), message: None };
    let entries = [
        JournalEntry::RunStarted(RunStarted::new(run.clone(), "clerk".into()).into()),
        JournalEntry::ModelResponded(answer.into()),
        JournalEntry::RunFinished(finished),
    ];
    let record = |(seq, entry)| JournalRecord { seq, at, path: Vec::new(), entry };
    let mut records: Vec<JournalRecord> = (0..).zip(entries).map(record).collect();
    authenticate_records(HashChain::default(), run, &mut records, None)
}

/// Stores finished runs, from one number to another.
async fn store_runs(queue: &Arc<dyn RunQueue>, numbers: std::ops::Range<usize>) {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    let store_one = |number: usize| {
        let queue = queue.clone();
        async move {
            let (run, at) =
                (RunId::from(format!("run-{number:06}")), Timestamp(now - 1_000 + number as u64 % 1_000));
            let claim = LeaseClaim { owner: "filler", now: at, duration: Duration::from_secs(60) };
            let lease = queue.create_run(&run, &"clerk".into(), claim, lines_of(&run, at)).await.unwrap();
            queue.set_status(&lease, RunStatus::Finished, at).await.unwrap();
            queue.release_lease(&lease).await.unwrap();
        }
    };
    futures_util::stream::iter(numbers).map(store_one).buffer_unordered(512).collect::<Vec<()>>().await;
}

/// Reads a page, and returns its text.
async fn read_page(client: &TestClient, path: &str) -> String {
    let began = Instant::now();
    let (code, text) = client.get_text(path).await;
    assert_eq!(code, 200, "{path}: {text}");
    let _ = writeln!(std::io::stderr(), "{path}: {} KiB in {:?}", text.len() / 1024, began.elapsed());
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_read_the_same_with_few_and_with_many_runs() {
    let count = number_of("WINDLASS_LARGE_RUNS", 3_000);
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn RunQueue> = Arc::new(SqliteStore::open(folder.path().join("store.db")).unwrap());
    let queue = CountingQueue::new(store.clone());
    let server = TestServer::start_on(queue.clone(), |server| server).await;
    let client = server.client();
    let mut small = None;
    for stored in [0..count / 10, count / 10..count] {
        store_runs(&store, stored).await;
        let mut seen = Vec::new();
        for path in ["/", "/runs", "/runs?status=failed", "/fleet", "/runs/run-000007", "/v1/runs?limit=50"] {
            queue.take_counts();
            read_page(&client, path).await;
            seen.push((path, queue.take_counts()));
        }
        match small.take() {
            None => small = Some(seen),
            Some(small) => assert_eq!(seen, small, "a page reads more with more runs"),
        }
    }
    // All pages of the list together have every run once.
    let (mut next, mut listed) = (String::new(), std::collections::BTreeSet::new());
    loop {
        let (_, page) = client.get(&format!("/v1/runs?limit=500&after={next}")).await;
        let runs = page["runs"].as_array().unwrap();
        listed.extend(runs.iter().map(|run| run["run"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(cursor) => next = cursor.to_owned(),
            None => break,
        }
    }
    assert_eq!(listed.len(), count);
    // The first report says what it has not counted yet, and a later one has counted everything.
    let (_, first) = client.get("/v1/costs").await;
    let counted = |report: &Value| report["total"]["requests"].as_u64().unwrap();
    assert_eq!(counted(&first) + first["unread_runs"].as_u64().unwrap(), count as u64, "{}", first["total"]);
    assert!(first["unread_runs"].as_u64().unwrap() > 0, "the report waited for every journal");
    let deadline = tokio::time::Instant::now() + PATIENCE * 4;
    loop {
        let (_, report) = client.get("/v1/costs").await;
        if report["unread_runs"] == 0 {
            assert_eq!(counted(&report), count as u64);
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the costs were never read");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    queue.take_counts();
    read_page(&client, "/costs").await;
    assert_eq!(queue.take_counts().1, 0, "a journal that has not changed is not read again");
}

/// Stores a copy of a run that waits, under another id.
async fn store_copy(queue: &Arc<dyn RunQueue>, records: &[JournalRecord], number: usize) {
    let run = RunId::from(format!("open-{number:06}"));
    let mut records = records.to_vec();
    if let JournalEntry::RunStarted(started) = &mut records[0].entry {
        started.run = run.clone();
    }
    let lines = authenticate_records(HashChain::default(), &run, &mut records, None);
    let now = records[0].at;
    let claim = LeaseClaim { owner: "filler", now, duration: Duration::from_secs(60) };
    let lease = queue.create_run(&run, &"clerk".into(), claim, lines).await.unwrap();
    queue.set_status(&lease, RunStatus::Paused, now).await.unwrap();
    queue.release_lease(&lease).await.unwrap();
}

/// `WINDLASS_LARGE_OPEN` sets the number of runs that wait.
#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_of_many_runs_reads_each_of_them_once() {
    let count = number_of("WINDLASS_LARGE_OPEN", 300);
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn RunQueue> = Arc::new(SqliteStore::open(folder.path().join("store.db")).unwrap());
    let first = TestServer::start_on(store.clone(), |server| server).await;
    first.client().start_until("first", "pay Ropeworks", "paused").await;
    drop(first.stop().await);
    let lines = store.load_journal(&"first".into(), 0).await.unwrap();
    let records = decode_lines(&lines).unwrap();
    let copies = futures_util::stream::iter(1..count).map(|number| store_copy(&store, &records, number));
    copies.buffer_unordered(256).collect::<Vec<()>>().await;
    let queue = CountingQueue::new(store);
    let limits = ServerLimits { concurrent_runs: 0, ..ServerLimits::default() };
    let server = TestServer::start_on(queue.clone(), |server| server.limits(limits)).await;
    let client = server.client();
    let total = async || client.get("/v1/inbox?limit=1").await.1["total"].clone();
    let began = Instant::now();
    assert_eq!(total().await, json!(count));
    let _ = writeln!(std::io::stderr(), "{count} open runs: first look in {:?}", began.elapsed());
    // The watch looks once a second. The second look is after its next one.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    queue.take_counts();
    let began = Instant::now();
    assert_eq!(total().await, json!(count));
    assert_eq!(client.get_text("/metrics").await.0, 200);
    let _ = writeln!(std::io::stderr(), "{count} open runs: later look and metrics in {:?}", began.elapsed());
    assert_eq!(queue.take_counts().1, 0, "runs that have not changed were read again");
}

/// A model that makes as many calls as it is asked for, in five answers.
struct CallingModel;

impl Model for CallingModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let asked = request.input.iter().find_map(|item| match &**item {
            Item::Message(message) => message.text().parse::<u32>().ok(),
            _ => None,
        });
        let turn = request.turn;
        let items = match turn <= 5 {
            true => (0..asked.unwrap_or(0) / 5)
                .map(|n| Arc::new(Item::call(format!("c{turn}-{n}"), "read", json!({ "n": n }).to_string())))
                .collect(),
            false => vec![Arc::new(Item::assistant("Done."))],
        };
        Ok(ModelResponse { items, usage: Some(Usage::of_tokens(10, 5)), ..ModelResponse::default() })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_a_long_run_is_no_larger_than_that_of_a_short_one() {
    let calls = number_of("WINDLASS_LARGE_CALLS", 1_000);
    let read = Tool::dynamic(
        "read",
        "Reads.",
        json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"], "additionalProperties": false }),
        |_: ToolContext, _: Value| async { Ok::<_, ToolError>("a line") },
    );
    let agent = Agent::new("reader").model(SharedModel::new(CallingModel)).tool(read);
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn RunQueue> = Arc::new(SqliteStore::open(folder.path().join("store.db")).unwrap());
    let server = TestServer::start_agents_on([agent], store, |server: AgentServer| server).await;
    let client = server.client();
    let mut seen = Vec::new();
    for (run, calls) in [("short", 100), ("long", calls)] {
        client.post("/v1/runs", &json!({ "run": run, "agent": "reader", "input": calls.to_string() })).await;
        client.wait_for(run, "finished").await;
        let page = read_page(&client, &format!("/runs/{run}")).await;
        let middle = read_page(&client, &format!("/runs/{run}?page=1")).await;
        read_page(&client, &format!("/runs/{run}?at=50")).await;
        seen.push(page.len().max(middle.len()));
    }
    let [short, long] = seen[..] else { unreachable!() };
    assert!(long < short * 2, "{long} bytes, and {short} for the short run");
}
