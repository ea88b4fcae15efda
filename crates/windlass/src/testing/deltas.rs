//! The contract of a store for deltas. A store that carries none has nothing to keep.

use std::future::Future;

use super::check::StoreCheck;
use crate::error::StoreErrorKind;
use crate::store::{DeltaBatch, DeltaPosition, DeltaStore, Store, StoredFollower};

pub(super) async fn check_deltas<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    let store = make().await;
    if store.deltas().is_none() {
        return;
    }
    deltas_are_fenced_and_in_order(StoreCheck("deltas are fenced and in order"), store).await;
    let store = make().await;
    if let Some(deltas) = store.deltas() {
        followers_are_renewed(StoreCheck("followers are renewed"), deltas).await;
    }
}

fn batch(epoch: u64, number: u64, body: &str) -> DeltaBatch {
    DeltaBatch { position: DeltaPosition { epoch, number }, body: body.to_owned() }
}

async fn deltas_are_fenced_and_in_order<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let Some(deltas) = store.deltas() else { return };
    let load = async |after| check.expect_ok("loading", deltas.load_deltas(&lease.run, after).await);
    check.expect_equal("none at first", load(None).await, Vec::new());
    let first = lease.epoch;
    for (number, body) in [(0, "a"), (1, "b"), (2, "c\u{0}\n\"")] {
        let published = deltas.publish_deltas(&lease, batch(first, number, body), 0).await;
        check.expect_ok("publishing", published);
    }
    let all = vec![batch(first, 0, "a"), batch(first, 1, "b"), batch(first, 2, "c\u{0}\n\"")];
    check.expect_equal("all", load(None).await, all.clone());
    check.expect_equal("later ones", load(Some(all[0].position)).await, all[1..].to_vec());
    check.expect_equal("none after the last", load(Some(all[2].position)).await, Vec::new());
    let published = deltas.publish_deltas(&lease, batch(first, 3, "d"), 2).await;
    check.expect_ok("publishing", published);
    check.expect_equal(
        "those before are removed",
        load(None).await,
        vec![all[2].clone(), batch(first, 3, "d")],
    );

    let next = check.take_over(&store, &lease, "bea").await;
    let late = deltas.publish_deltas(&lease, batch(first, 4, "late"), 4).await;
    check.expect_error("publishing with the old lease", late, StoreErrorKind::Fenced);
    let published = deltas.publish_deltas(&next, batch(next.epoch, 0, "anew"), 0).await;
    check.expect_ok("publishing with the new lease", published);
    check.expect_equal("the new driver's only", load(None).await, vec![batch(next.epoch, 0, "anew")]);
    check.expect_equal(
        "after the old ones",
        load(Some(all[2].position)).await,
        vec![batch(next.epoch, 0, "anew")],
    );
    check.expect_ok("removing", deltas.remove_deltas(&lease.run, first).await);
    check.expect_equal("later epochs stay", load(None).await.len(), 1);
    check.expect_ok("removing", deltas.remove_deltas(&lease.run, next.epoch).await);
    check.expect_equal("none are left", load(None).await, Vec::new());

    let published = deltas.publish_deltas(&next, batch(next.epoch, 1, "again"), 0).await;
    check.expect_ok("publishing", published);
    check.expect_ok("releasing", store.release_lease(&next).await);
    check.expect_ok("forgetting", store.forget_run(&next.run, None).await);
    check.expect_equal("a forgotten run has none", load(None).await, Vec::new());
    let unknown = deltas.publish_deltas(&next, batch(next.epoch, 2, "lost"), 0).await;
    check.expect_error("publishing for no run", unknown, StoreErrorKind::RunNotFound);
}

async fn followers_are_renewed(check: StoreCheck, deltas: &dyn DeltaStore) {
    let list = async || check.expect_ok("listing", deltas.list_followers().await);
    let renewed = deltas.renew_follower("ann", vec!["one".into(), "two".into()]).await;
    check.expect_ok("registering", renewed);
    let Some(StoredFollower { name, beat, runs }) = list().await.pop() else {
        // The store is of this process alone, whose registry has the followers.
        return;
    };
    check.expect_equal("the follower", (name.as_str(), runs), ("ann", vec!["one".into(), "two".into()]));
    check.expect_ok("renewing", deltas.renew_follower("ann", vec!["two".into()]).await);
    let renewed = StoredFollower { name: "ann".to_owned(), beat: beat + 1, runs: vec!["two".into()] };
    check.expect_equal("after a renewal", list().await, vec![renewed.clone()]);
    check.expect_ok("removing", deltas.remove_follower("ann", beat).await);
    check.expect_equal("a renewed follower stays", list().await, vec![renewed]);
    check.expect_ok("removing", deltas.remove_follower("ann", beat + 1).await);
    check.expect_equal("an observed one does not", list().await, Vec::new());
    check.expect_ok("registering", deltas.renew_follower("bea", vec!["one".into()]).await);
    check.expect_ok("leaving", deltas.renew_follower("bea", Vec::new()).await);
    check.expect_equal("a follower without runs is removed", list().await, Vec::new());
}
