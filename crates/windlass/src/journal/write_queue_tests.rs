//! Tests of the write queue with a store whose appends wait for permission.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::Semaphore;
use windlass_core::{
    id::{AgentName, RunId, Timestamp},
    journal::{HashChain, JournalEntry, JournalLine, JournalRecord},
};

use super::{AppendTarget, ListedStatus, WriteQueue};
use crate::clock::RunClock;
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{
    DerivedWrites, Durability, Lease, LeaseClaim, MemoryStore, Store, StoreFuture, StoreWrapper,
};

/// A store in memory whose appends each take a permit, and are lazy.
#[derive(Default)]
struct GatedStore {
    memory: MemoryStore,
    permits: Option<Semaphore>,
    batches: Mutex<Vec<(u64, usize, Durability)>>,
    fails: AtomicBool,
    panics: AtomicBool,
}

impl StoreWrapper for GatedStore {
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
        async move {
            self.batches.lock().unwrap().push((at, lines.len(), durability));
            if let Some(permits) = &self.permits {
                permits.acquire().await.unwrap().forget();
            }
            assert!(!self.panics.load(Ordering::SeqCst), "this store panics");
            if self.fails.load(Ordering::SeqCst) {
                return Err(StoreError::with_kind(StoreErrorKind::Disk, "the disk is full"));
            }
            self.memory.append_journal(lease, at, lines, durability).await
        }
        .boxed()
    }
}

impl GatedStore {
    fn closed() -> Arc<Self> {
        Arc::new(Self { permits: Some(Semaphore::new(0)), ..Self::default() })
    }

    fn allow_appends(&self, count: usize) {
        self.permits.as_ref().unwrap().add_permits(count);
    }

    fn batches(&self) -> Vec<(u64, usize, Durability)> {
        self.batches.lock().unwrap().clone()
    }

    async fn line_count(&self) -> usize {
        self.memory.load_journal(&"run".into(), 0).await.unwrap().len()
    }
}

async fn queue_of(store: &Arc<GatedStore>) -> Arc<WriteQueue> {
    let claim = LeaseClaim { owner: "ann", now: Timestamp(0), duration: Duration::from_secs(60) };
    let lease = store
        .memory
        .create_run(&RunId::from("run"), &AgentName::from("agent"), claim, Vec::new())
        .await
        .unwrap();
    let target = Arc::new(AppendTarget { store: store.clone(), lease });
    Arc::new(WriteQueue::new(
        target,
        0,
        HashChain::default(),
        ListedStatus::Running,
        RunClock::start(),
        Duration::from_secs(30),
    ))
}

fn record(seq: u64) -> JournalRecord {
    JournalRecord { seq, at: Timestamp(seq), path: Vec::new(), entry: JournalEntry::TurnContinued }
}

#[tokio::test]
async fn entries_that_wait_are_one_append() {
    let store = GatedStore::closed();
    let queue = queue_of(&store).await;
    let mut first = queue.enqueue(&mut record(0), Durability::Deferred, DerivedWrites::default()).unwrap();
    assert!((&mut first).now_or_never().is_none());
    let second = queue.enqueue(&mut record(1), Durability::Deferred, DerivedWrites::default()).unwrap();
    let third = queue.enqueue(&mut record(2), Durability::Sync, DerivedWrites::default()).unwrap();
    let mut fourth = queue.enqueue(&mut record(3), Durability::Deferred, DerivedWrites::default()).unwrap();
    store.allow_appends(1);
    assert!((&mut fourth).now_or_never().is_none(), "the second append has no permit");
    first.await.unwrap();
    store.allow_appends(1);
    for written in join_all([second, third, fourth]).await {
        written.unwrap();
    }
    assert_eq!(store.batches(), [(0, 1, Durability::Deferred), (1, 3, Durability::Sync)]);
    let fifth = queue.enqueue(&mut record(4), Durability::Deferred, DerivedWrites::default()).unwrap();
    store.allow_appends(1);
    fifth.await.unwrap();
    assert_eq!(store.batches()[2..], [(4, 1, Durability::Deferred)], "durability is not carried over");
    assert_eq!(store.line_count().await, 5);
}

#[tokio::test]
async fn a_dropped_waiter_holds_nobody_up() {
    let store = GatedStore::closed();
    let queue = queue_of(&store).await;
    let spawn_waiter = |seq| {
        let queue = queue.clone();
        tokio::spawn(async move {
            queue.enqueue(&mut record(seq), Durability::Sync, DerivedWrites::default()).unwrap().await
        })
    };
    let polls = spawn_waiter(0);
    tokio::task::yield_now().await;
    let waits = spawn_waiter(1);
    tokio::task::yield_now().await;
    assert_eq!(store.batches().len(), 1, "the first waiter has begun the append");
    polls.abort();
    polls.await.unwrap_err();
    store.allow_appends(2);
    waits.await.unwrap().unwrap();
    assert_eq!(store.line_count().await, 2);
}

#[tokio::test]
async fn a_write_that_nobody_waits_for_is_flushed() {
    let store = GatedStore::closed();
    let queue = queue_of(&store).await;
    drop(queue.enqueue(&mut record(0), Durability::Sync, DerivedWrites::default()).unwrap());
    let mut polled = queue.enqueue(&mut record(1), Durability::Sync, DerivedWrites::default()).unwrap();
    assert!((&mut polled).now_or_never().is_none());
    drop(polled);
    drop(queue.enqueue(&mut record(2), Durability::Sync, DerivedWrites::default()).unwrap());
    store.allow_appends(2);
    queue.flush().await.unwrap();
    assert_eq!(store.batches(), [(0, 2, Durability::Sync), (2, 1, Durability::Sync)]);
    queue.flush().await.unwrap();
    assert_eq!(store.line_count().await, 3);
}

#[tokio::test]
async fn an_error_reaches_everybody_who_waits() {
    let store = GatedStore::closed();
    let queue = queue_of(&store).await;
    let mut written = queue.enqueue(&mut record(0), Durability::Sync, DerivedWrites::default()).unwrap();
    store.allow_appends(1);
    assert!((&mut written).now_or_never().unwrap().is_ok());
    let mut in_flight = queue.enqueue(&mut record(1), Durability::Sync, DerivedWrites::default()).unwrap();
    assert!((&mut in_flight).now_or_never().is_none());
    let waiting: Vec<_> = (2..5)
        .map(|seq| queue.enqueue(&mut record(seq), Durability::Sync, DerivedWrites::default()).unwrap())
        .collect();
    store.fails.store(true, Ordering::SeqCst);
    store.allow_appends(1);
    for failed in join_all([in_flight].into_iter().chain(waiting)).await {
        let error = failed.unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (StoreErrorKind::Disk, "the disk is full".to_owned()));
    }
    let refused =
        queue.enqueue(&mut record(5), Durability::Sync, DerivedWrites::default()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Disk);
    assert_eq!(refused.to_string(), "an earlier record could not be written: the disk is full");
    queue.flush().await.unwrap_err();
    assert_eq!(store.batches().len(), 2, "nothing is written after an error");
}

#[tokio::test]
async fn a_panic_of_the_store_ends_the_queue() {
    let store = GatedStore::closed();
    let queue = queue_of(&store).await;
    let waiters: Vec<_> = (0..3)
        .map(|seq| {
            let queue = queue.clone();
            tokio::spawn(async move {
                queue.enqueue(&mut record(seq), Durability::Sync, DerivedWrites::default()).unwrap().await
            })
        })
        .collect();
    tokio::task::yield_now().await;
    store.panics.store(true, Ordering::SeqCst);
    store.allow_appends(1);
    let mut panics = 0;
    for waiter in waiters {
        match waiter.await {
            Err(error) => panics += usize::from(error.is_panic()),
            Ok(result) => {
                assert_eq!(result.unwrap_err().to_string(), "the store panicked during an append");
            }
        }
    }
    assert_eq!(panics, 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_queue_writes_its_rest() {
    let store = GatedStore::closed();
    let queue = queue_of(&store).await;
    let mut polled = queue.enqueue(&mut record(0), Durability::Sync, DerivedWrites::default()).unwrap();
    assert!((&mut polled).now_or_never().is_none());
    drop(polled);
    drop(queue.enqueue(&mut record(1), Durability::Deferred, DerivedWrites::default()).unwrap());
    drop(queue.enqueue(&mut record(2), Durability::Deferred, DerivedWrites::default()).unwrap());
    drop(queue);
    store.allow_appends(2);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(store.batches(), [(0, 1, Durability::Sync), (1, 2, Durability::Deferred)]);
    assert_eq!(store.line_count().await, 3);
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_dropped_queue_has_a_limit() {
    let store = GatedStore::closed();
    let queue = queue_of(&store).await;
    drop(queue.enqueue(&mut record(0), Durability::Sync, DerivedWrites::default()).unwrap());
    drop(queue);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(Arc::strong_count(&store), 1, "the task that wrote has ended");
    assert_eq!((store.batches().len(), store.line_count().await), (1, 0));
}

/// Many tasks on several threads, half of which give up waiting: every entry is written, in order, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writers_keep_the_order() {
    const WRITERS: u64 = 16;
    const ENTRIES: u64 = 200;
    let store = GatedStore::closed();
    let queue = queue_of(&store).await;
    let next = Arc::new(Mutex::new(0));
    let opener = tokio::spawn({
        let store = store.clone();
        async move {
            loop {
                store.allow_appends(1);
                tokio::task::yield_now().await;
            }
        }
    });
    let writers = (0..WRITERS).map(|writer| {
        let (queue, next) = (queue.clone(), next.clone());
        tokio::spawn(async move {
            for round in 0..ENTRIES {
                let pending = {
                    let mut next = next.lock().unwrap();
                    let pending = queue
                        .enqueue(&mut record(*next), Durability::Sync, DerivedWrites::default())
                        .unwrap();
                    *next += 1;
                    pending
                };
                if (writer + round) % 2 == 0 {
                    let given_up = tokio::task::yield_now();
                    tokio::select! {
                        biased;
                        written = pending => written.unwrap(),
                        () = given_up => {}
                    }
                } else {
                    pending.await.unwrap();
                }
            }
        })
    });
    for writer in join_all(writers).await {
        writer.unwrap();
    }
    queue.flush().await.unwrap();
    opener.abort();
    let lines = store.memory.load_journal(&"run".into(), 0).await.unwrap();
    let mut chain = HashChain::default();
    let expected: Vec<_> = (0..WRITERS * ENTRIES).map(|seq| chain.append(&record(seq))).collect();
    assert!(lines == expected, "{} lines", lines.len());
}
