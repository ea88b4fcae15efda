//! Every store that comes with Windlass does what every store must do.

#![allow(clippy::expect_used)]

use windlass::MemoryStore;
use windlass::session::MemorySessions;
use windlass::testing::{session_suite, store_suite};

#[tokio::test]
async fn the_store_in_memory_passes() {
    store_suite(async || MemoryStore::default()).await;
}

#[tokio::test]
async fn the_sessions_in_memory_pass() {
    session_suite(async || MemorySessions::default()).await;
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::sync::atomic::{AtomicU32, Ordering};

    use windlass::SqliteStore;

    use super::{session_suite, store_suite};

    /// A new file each time, all in one folder.
    fn fresh() -> (tempfile::TempDir, impl Fn() -> SqliteStore) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        let next = AtomicU32::new(0);
        let make = move || {
            let file = format!("{}.db", next.fetch_add(1, Ordering::Relaxed));
            SqliteStore::open(path.join(file)).expect("opens")
        };
        (folder, make)
    }

    #[tokio::test]
    async fn the_store_in_a_file_passes() {
        let (_folder, make) = fresh();
        store_suite(async || make()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_store_in_a_file_passes_on_many_threads() {
        let (_folder, make) = fresh();
        store_suite(async || make()).await;
    }

    #[tokio::test]
    async fn the_sessions_in_a_file_pass() {
        let (_folder, make) = fresh();
        session_suite(async || make()).await;
    }
}
