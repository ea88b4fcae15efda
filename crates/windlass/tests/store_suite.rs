//! Every store of Windlass passes the store conformance suite.

#![allow(clippy::expect_used)]

use std::sync::Arc;

use windlass::core::id::{RunId, Timestamp};
use windlass::error::StoreError;
use windlass::prelude::*;
use windlass::session::MemorySessionStore;
use windlass::store::{
    MemoryStore, RetentionPolicy, RunQuery, Store, StoreFuture, StoreWrapper, StoredLease, apply_retention,
};
use windlass::testing::{run_session_suite, run_store_suite};

#[tokio::test]
async fn the_store_in_memory_passes() {
    run_store_suite(async || MemoryStore::default()).await;
}

#[tokio::test]
async fn the_sessions_in_memory_pass() {
    run_session_suite(async || MemorySessionStore::default()).await;
}

/// A store that cannot forget one of its runs.
struct StuckStore(MemoryStore);

impl StoreWrapper for StuckStore {
    fn inner(&self) -> &dyn Store {
        &self.0
    }

    fn forget_run<'a>(&'a self, run: &'a RunId, abandoned: Option<&'a StoredLease>) -> StoreFuture<'a, ()> {
        match run.as_str() {
            "stuck" => Box::pin(std::future::ready(Err(StoreError::new("it takes too long")))),
            _ => self.0.forget_run(run, abandoned),
        }
    }
}

#[tokio::test]
async fn retention_goes_on_past_a_run_that_cannot_be_forgotten() {
    let store = Arc::new(StuckStore(MemoryStore::default()));
    for run in ["older", "stuck", "newer"] {
        let agent = Agent::new("desk").model(ScriptedModel::new([ScriptedResponse::text("done")]));
        agent.run("go").run_id(run).store(store.clone()).await.expect("it ends");
    }
    let policy = RetentionPolicy::ended_runs(std::time::Duration::ZERO);
    let error = apply_retention(&*store, &policy, Timestamp(u64::MAX)).await.expect_err("one is stuck");
    assert_eq!(error.to_string(), "it takes too long");
    let left = store.0.list_runs(&RunQuery::default()).await.expect("listed");
    assert_eq!(left.iter().map(|run| run.run.as_str()).collect::<Vec<_>>(), ["stuck"]);
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
