//! Every queue of Windlass passes the queue conformance suite.

#![allow(clippy::expect_used)]

use windlass::store::MemoryStore;
use windlass::testing::run_queue_suite;

#[tokio::test]
async fn the_queue_in_memory_passes() {
    run_queue_suite(async || MemoryStore::default()).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn the_queue_in_a_file_passes() {
    use std::sync::atomic::{AtomicU32, Ordering};

    let folder = tempfile::tempdir().expect("a folder");
    let next = AtomicU32::new(0);
    run_queue_suite(async || {
        let file = format!("{}.db", next.fetch_add(1, Ordering::Relaxed));
        windlass::store::SqliteStore::open(folder.path().join(file)).expect("opens")
    })
    .await;
}
