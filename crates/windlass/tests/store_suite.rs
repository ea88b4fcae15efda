//! Every store of Windlass passes the store conformance suite.

#![allow(clippy::expect_used)]

use windlass::session::MemorySessionStore;
use windlass::store::MemoryStore;
use windlass::testing::{run_session_suite, run_store_suite};

#[tokio::test]
async fn the_store_in_memory_passes() {
    run_store_suite(async || MemoryStore::default()).await;
}

#[tokio::test]
async fn the_sessions_in_memory_pass() {
    run_session_suite(async || MemorySessionStore::default()).await;
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::sync::atomic::{AtomicU32, Ordering};

    use windlass::store::SqliteStore;

    use super::{run_session_suite, run_store_suite};
    use std::sync::Arc;
    use windlass::store::{EncryptedStore, EncryptionKeys};

    /// Returns a factory of stores, each in a new file of one folder.
    fn store_factory() -> (tempfile::TempDir, impl Fn() -> SqliteStore) {
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
        let (_folder, make) = store_factory();
        run_store_suite(async || make()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_store_in_a_file_passes_on_many_threads() {
        let (_folder, make) = store_factory();
        run_store_suite(async || make()).await;
    }

    #[tokio::test]
    async fn the_sessions_in_a_file_pass() {
        let (_folder, make) = store_factory();
        run_session_suite(async || make()).await;
    }

    fn encrypted(store: SqliteStore) -> EncryptedStore {
        let keys = EncryptionKeys::text_of_secrets(&[[7; 32]]);
        EncryptedStore::new(Arc::new(store), EncryptionKeys::from_text(&keys).expect("they are keys"))
    }

    #[tokio::test]
    async fn the_encrypted_store_passes() {
        let (_folder, make) = store_factory();
        run_store_suite(async || encrypted(make())).await;
    }

    #[tokio::test]
    async fn the_encrypted_sessions_pass() {
        let (_folder, make) = store_factory();
        run_session_suite(async || encrypted(make())).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_encrypted_queue_passes() {
        let (_folder, make) = store_factory();
        windlass::testing::run_queue_suite(async || encrypted(make())).await;
    }
}
