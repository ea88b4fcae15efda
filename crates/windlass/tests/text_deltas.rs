//! The text of a run is followed from other processes while a model writes it.

#![cfg(feature = "sqlite")]
#![allow(clippy::expect_used)]

mod followed_text;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use windlass::core::id::{RunId, Timestamp};
use windlass::fleet::{AgentRegistry, QueueWrapper, RunQueue, RunSubmission, Worker};
use windlass::prelude::*;
use windlass::store::{
    DeltaBatch, DeltaFeed, DeltaOrigin, DeltaPosition, DeltaStore, FollowerRegistry, Lease, SqliteStore,
    Store, StoreFuture, StoreWrapper, StoredFollower,
};

/// Returns three stores of one file, each with connections of its own, as processes have.
fn processes(folder: &Path) -> [Arc<dyn RunQueue>; 3] {
    [(); 3].map(|()| {
        let store: Arc<dyn RunQueue> = Arc::new(SqliteStore::open(folder.join("store.db")).expect("opens"));
        store
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_sees_the_text_while_it_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    followed_text::check_a_followed_run(processes(folder.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_follower_gets_the_message_with_its_record() {
    let folder = tempfile::tempdir().expect("a folder");
    followed_text::check_a_late_follower(processes(folder.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_failed_request_is_void() {
    let folder = tempfile::tempdir().expect("a folder");
    followed_text::check_a_repeated_request(processes(folder.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_lost_driver_is_void() {
    let folder = tempfile::tempdir().expect("a folder");
    followed_text::check_a_lost_driver(processes(folder.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_a_guardrail_may_block_is_not_relayed() {
    let folder = tempfile::tempdir().expect("a folder");
    followed_text::check_withheld_text(processes(folder.path())).await;
}

/// A store that never finishes to write deltas.
struct StuckDeltas(Arc<SqliteStore>);

impl StoreWrapper for StuckDeltas {
    fn inner(&self) -> &dyn Store {
        &*self.0
    }

    fn deltas(&self) -> Option<&dyn DeltaStore> {
        Some(self)
    }
}

impl QueueWrapper for StuckDeltas {
    fn inner_queue(&self) -> &dyn RunQueue {
        &*self.0
    }
}

impl DeltaStore for StuckDeltas {
    fn followers(&self) -> &FollowerRegistry {
        self.0.followers()
    }

    fn renew_follower<'a>(&'a self, follower: &'a str, runs: Vec<RunId>) -> StoreFuture<'a, ()> {
        self.0.renew_follower(follower, runs)
    }

    fn list_followers(&self) -> StoreFuture<'_, Vec<StoredFollower>> {
        self.0.list_followers()
    }

    fn remove_follower<'a>(&'a self, follower: &'a str, beat: u64) -> StoreFuture<'a, ()> {
        self.0.remove_follower(follower, beat)
    }

    fn publish_deltas<'a>(&'a self, _: &'a Lease, _: DeltaBatch, _: u64) -> StoreFuture<'a, ()> {
        std::future::pending().boxed()
    }

    fn load_deltas<'a>(
        &'a self,
        run: &'a RunId,
        after: Option<DeltaPosition>,
    ) -> StoreFuture<'a, Vec<DeltaBatch>> {
        self.0.load_deltas(run, after)
    }

    fn remove_deltas<'a>(&'a self, run: &'a RunId, epoch: u64) -> StoreFuture<'a, ()> {
        self.0.remove_deltas(run, epoch)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_does_not_wait_for_deltas_that_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || Arc::new(SqliteStore::open(folder.path().join("store.db")).expect("opens"));
    let (driver, follower) = (Arc::new(StuckDeltas(open())), open());
    let feed = DeltaFeed::new(follower.clone(), "run", DeltaOrigin::AnyProcess).expect("it has deltas");
    feed.register().await;
    follower.submit_run(&RunSubmission::new("run", "desk", "go"), Timestamp(0)).await.expect("submitted");
    // More text than may wait: the rest of the preview is given up.
    let text = "word ".repeat(200_000);
    let agent = Agent::new("desk").model(ScriptedModel::new([ScriptedResponse::text(&text)]));
    let worker = Worker::new(driver, AgentRegistry::from(agent)).poll_interval(Duration::from_millis(10));
    assert_eq!(worker.run_until_idle().await.expect("it works").ended, 1);
    let end = windlass::store::load_paused(&*follower, &"run".into()).await.expect("it opens");
    assert!(end.record().to_text().contains(text.trim_end()), "the message is whole");
}
