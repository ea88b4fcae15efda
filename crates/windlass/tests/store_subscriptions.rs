//! Subscriptions to the records of a run: the stored ones and then the live ones, without a gap or a duplicate.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;
use windlass::core::id::{AgentName, RunId, Timestamp};
use windlass::core::journal::{
    HashChain, JournalEntry, JournalLine, JournalRecord, RunStarted, decode_lines,
};
use windlass::error::StoreError;
use windlass::guardrail::{ToolGuardrailVerdict, ToolOutputGuardrail};
use windlass::prelude::*;
use windlass::store::{
    Durability, Lease, LeaseClaim, MemoryStore, ObservableStore, RecordStream, Store, StoreFuture,
    StoreWrapper,
};

const RUN: &str = "run";

fn observable(store: Arc<dyn Store>) -> Arc<ObservableStore> {
    Arc::new(ObservableStore::new(store))
}

fn agent(turns: usize) -> Agent {
    let calls = (0..turns).map(|turn| {
        ScriptedResponse::call(&format!("c{turn}"), "count", serde_json::json!({ "input": "go" }))
    });
    let count = Tool::dynamic(
        "count",
        "Counts.",
        serde_json::json!({ "type": "object" }),
        |_: ToolContext, _: Value| async { Ok::<_, ToolError>("one more") },
    );
    Agent::new("counter")
        .model(ScriptedModel::new(calls.chain([ScriptedResponse::text("done")])))
        .tool(count.non_strict())
}

async fn stored(store: &dyn Store) -> Vec<JournalRecord> {
    decode_lines(&store.load_journal(&RUN.into(), 0).await.expect("read")).expect("intact")
}

async fn collect(mut records: RecordStream) -> Vec<JournalRecord> {
    let mut all = Vec::new();
    while let Some(record) = records.next().await {
        all.push(record.expect("readable"));
    }
    all
}

/// Appends lines to a run directly, as a driver does.
struct Writer {
    store: Arc<ObservableStore>,
    lease: Lease,
    chain: HashChain,
    next: u64,
}

impl Writer {
    async fn new(store: &Arc<ObservableStore>) -> Self {
        let claim = LeaseClaim { owner: "ann", now: Timestamp(0), duration: Duration::from_secs(60) };
        let lease =
            Store::create_run(&**store, &RunId::from(RUN), &AgentName::from("agent"), claim, Vec::new())
                .await;
        let lease = lease.expect("created");
        Self { store: store.clone(), lease, chain: HashChain::default(), next: 0 }
    }

    fn lines(&mut self, count: usize) -> Vec<JournalLine> {
        let Self { chain, next, .. } = self;
        (0..count)
            .map(|_| {
                let entry = match next {
                    0 => JournalEntry::RunStarted(RunStarted::new(RUN.into(), "agent".into()).into()),
                    _ => JournalEntry::TurnContinued,
                };
                let record = JournalRecord { seq: *next, at: Timestamp(*next), path: Vec::new(), entry };
                *next += 1;
                chain.append(&record)
            })
            .collect()
    }

    async fn append(&mut self, count: usize) -> Result<(), StoreError> {
        let (at, lines) = (self.next, self.lines(count));
        Store::append_journal(&*self.store, &self.lease, at, lines, Durability::Sync).await
    }
}

async fn seqs(records: &mut RecordStream) -> Vec<u64> {
    let mut seqs = Vec::new();
    while let Some(Some(record)) = records.next().now_or_never() {
        seqs.push(record.expect("readable").seq);
    }
    seqs
}

#[tokio::test]
async fn a_subscriber_gets_all_records_of_a_run() {
    let store = observable(Arc::new(MemoryStore::default()));
    let early = tokio::spawn(collect(store.subscribe(RUN, 0)));
    agent(3).run("go").store(store.clone()).run_id(RUN).await.expect("runs");
    let all = stored(&*store).await;
    assert!(all.len() > 10, "{}", all.len());
    assert_eq!(early.await.expect("collects"), all);
    // After the end: the whole journal, or its rest.
    assert_eq!(collect(store.subscribe(RUN, 0)).await, all);
    assert_eq!(collect(store.subscribe(RUN, 4)).await, all[4..]);
}

#[tokio::test]
async fn stored_records_come_first_and_live_ones_follow() {
    let store = observable(Arc::new(MemoryStore::default()));
    let mut writer = Writer::new(&store).await;
    writer.append(5).await.expect("written");
    let (mut whole, mut rest, mut future) =
        (store.subscribe(RUN, 0), store.subscribe(RUN, 3), store.subscribe(RUN, 7));
    assert_eq!(seqs(&mut whole).await, [0, 1, 2, 3, 4]);
    assert_eq!(seqs(&mut rest).await, [3, 4]);
    assert_eq!(seqs(&mut future).await, Vec::<u64>::new());
    writer.append(1).await.expect("written");
    assert_eq!(seqs(&mut whole).await, [5]);
    assert_eq!(seqs(&mut future).await, Vec::<u64>::new());
    writer.append(4).await.expect("written");
    assert_eq!(seqs(&mut whole).await, [6, 7, 8, 9]);
    assert_eq!(seqs(&mut rest).await, [5, 6, 7, 8, 9]);
    assert_eq!(seqs(&mut future).await, [7, 8, 9]);
}

#[tokio::test]
async fn a_slow_subscriber_reads_what_it_missed_from_the_store() {
    let store = observable(Arc::new(MemoryStore::default()));
    let mut writer = Writer::new(&store).await;
    let mut slow = store.subscribe(RUN, 0);
    writer.append(2).await.expect("written");
    assert_eq!(seqs(&mut slow).await, [0, 1]);
    for _ in 0..100 {
        writer.append(13).await.expect("written");
    }
    assert_eq!(seqs(&mut slow).await, (2..1302).collect::<Vec<_>>());
    writer.append(2_000).await.expect("written");
    assert_eq!(seqs(&mut slow).await, (1302..3302).collect::<Vec<_>>());
}

#[tokio::test]
async fn records_that_another_process_wrote_are_not_missed() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let store = observable(inner.clone());
    let mut writer = Writer::new(&store).await;
    let mut before = store.subscribe(RUN, 0);
    writer.append(2).await.expect("written");
    assert_eq!(seqs(&mut before).await, [0, 1]);
    // Past the wrapper, as another process writes.
    let (at, lines) = (writer.next, writer.lines(3));
    inner.append_journal(&writer.lease, at, lines, Durability::Sync).await.expect("written");
    assert_eq!(seqs(&mut store.subscribe(RUN, 0)).await, [0, 1, 2, 3, 4], "they are stored");
    writer.append(1).await.expect("written");
    assert_eq!(seqs(&mut before).await, [2, 3, 4, 5]);
}

/// A store whose appends fail on demand.
#[derive(Default)]
struct FailingStore {
    memory: MemoryStore,
    fails: AtomicBool,
}

impl StoreWrapper for FailingStore {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()> {
        if self.fails.load(Ordering::SeqCst) {
            return async { Err(StoreError::new("the disk is full")) }.boxed();
        }
        self.memory.append_journal(lease, at, lines, durability)
    }
}

#[tokio::test]
async fn what_was_not_written_is_not_seen() {
    let failing = Arc::new(FailingStore::default());
    let store = observable(failing.clone());
    let mut writer = Writer::new(&store).await;
    let mut records = store.subscribe(RUN, 0);
    writer.append(1).await.expect("written");
    failing.fails.store(true, Ordering::SeqCst);
    writer.append(1).await.expect_err("fails");
    assert_eq!(seqs(&mut records).await, [0]);
}

#[tokio::test]
async fn subscribers_see_no_secret_and_no_withheld_output() {
    const SECRET: &str = "4929-1234";
    const WITHHELD: &str = "the balance is 17";
    let store = observable(Arc::new(MemoryStore::default()));
    let guardrail = ToolOutputGuardrail::new("slow", |_, _| async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(ToolGuardrailVerdict::RejectCall("Not for you.".to_owned()))
    });
    let pay = Tool::dynamic(
        "pay",
        "Pays.",
        serde_json::json!({ "type": "object" }),
        |_: ToolContext, _: Value| async { Ok::<_, ToolError>(WITHHELD) },
    )
    .non_strict()
    .secret_arguments(["card"])
    .output_guardrail(guardrail);
    let replies = [
        ScriptedResponse::call("c1", "pay", serde_json::json!({ "card": SECRET })),
        ScriptedResponse::text("done"),
    ];
    let agent = Agent::new("teller").model(ScriptedModel::new(replies)).tool(pay);
    let seen = tokio::spawn(collect(store.subscribe(RUN, 0)));
    agent.run("go").store(store.clone()).run_id(RUN).await.expect("runs");
    let text = serde_json::to_string(&seen.await.expect("collects")).expect("prints");
    assert!(text.contains("call_body_ended") && text.contains("Not for you."), "{text}");
    assert!(!text.contains(SECRET) && !text.contains(WITHHELD), "{text}");
}

/// Subscribers that come and go at any time while appends of any size are written.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_subscribers_have_no_gap_and_no_duplicate() {
    const TOTAL: u64 = 3_000;
    let store = observable(Arc::new(MemoryStore::default()));
    let mut writer = Writer::new(&store).await;
    let subscribers: Vec<_> = (0..24_u64)
        .map(|one| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..one * 7 {
                    tokio::task::yield_now().await;
                }
                let from = one * 50 % 400;
                let mut records = store.subscribe(RUN, from);
                for seq in from..TOTAL {
                    if one % 3 == 0 && seq % 64 == 0 {
                        tokio::task::yield_now().await;
                    }
                    let record = records.next().await.expect("goes on").expect("readable");
                    assert_eq!(record.seq, seq);
                }
            })
        })
        .collect();
    let mut size = 1;
    while writer.next < TOTAL {
        size = size % 17 + 1;
        let left = usize::try_from(TOTAL - writer.next).expect("few");
        writer.append(size.min(left)).await.expect("written");
        tokio::task::yield_now().await;
    }
    for subscriber in subscribers {
        subscriber.await.expect("no gap and no duplicate");
    }
}
