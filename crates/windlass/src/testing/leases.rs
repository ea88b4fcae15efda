//! The contract of a store for leases: observed, never timed.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use windlass_core::id::{RunId, Timestamp};

use super::check::{StoreCheck, journal_lines, lease_claim, stored_lease};
use crate::error::StoreErrorKind;
use crate::store::{Durability, Lease, LeaseClaim, RunQuery, RunStatus, Store, StoredLease};

pub(super) async fn check_leases<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    a_lease_keeps_others_out(StoreCheck("a lease keeps others out"), make().await).await;
    a_renewal_is_seen(StoreCheck("a renewal is seen"), make().await).await;
    no_time_ends_a_lease(StoreCheck("no time ends a lease"), make().await).await;
    a_released_run_is_free(StoreCheck("a released run is free"), make().await).await;
    one_of_many_takes_over(StoreCheck("one of many takes over"), make().await).await;
    a_late_owner_is_refused(StoreCheck("a late owner is refused"), make().await).await;
    an_epoch_is_raised(StoreCheck("an epoch is raised"), make().await).await;
    a_driver_of_a_forgotten_run_is_refused(
        StoreCheck("a driver of a forgotten run is refused"),
        make().await,
    )
    .await;
    another_owner_is_refused(StoreCheck("another owner is refused"), make().await).await;
}

async fn load_lease<S: Store>(check: StoreCheck, store: &S, run: &RunId) -> Option<StoredLease> {
    check.expect_ok("loading the lease", store.load_lease(run).await)
}

async fn a_lease_keeps_others_out<S: Store>(check: StoreCheck, store: S) {
    let run = RunId::from("run");
    check.expect_error(
        "taking an unknown run",
        store.acquire_lease(&run, lease_claim("ann", 1_000), None).await,
        StoreErrorKind::RunNotFound,
    );
    check.expect_error(
        "the lease of an unknown run",
        store.load_lease(&run).await,
        StoreErrorKind::RunNotFound,
    );
    check.create_run(&store, "run", "ann").await;
    let seen = stored_lease("ann", 1, 0, 1_000);
    check.expect_equal("the lease", load_lease(check, &store, &run).await, Some(seen.clone()));
    let early = store.acquire_lease(&run, lease_claim("bea", 1_999), None).await;
    check.expect_error("taking it while it is owned", early, StoreErrorKind::LeaseHeld);
    let again =
        check.expect_ok("taking one's own", store.acquire_lease(&run, lease_claim("ann", 1_500), None).await);
    check.expect_equal("the epoch after taking one's own", again.epoch, 2);
    let stale = store.acquire_lease(&run, lease_claim("bea", 2_500), Some(&seen)).await;
    check.expect_error("taking over what was seen before", stale, StoreErrorKind::LeaseHeld);
    let seen = stored_lease("ann", 2, 0, 1_500);
    let taken = check.expect_ok(
        "taking over what was seen",
        store.acquire_lease(&run, lease_claim("bea", 2_500), Some(&seen)).await,
    );
    check.expect_equal("the lease", taken, Lease { run, owner: "bea".to_owned(), epoch: 3 });
    let listed = check.expect_ok("listing", store.list_runs(&RunQuery::default()).await);
    check.expect_equal(
        "the lease in the list",
        listed[0].lease.clone(),
        Some(stored_lease("bea", 3, 0, 2_500)),
    );
}

async fn a_renewal_is_seen<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let first = stored_lease("ann", 1, 0, 1_000);
    // The owner's clock may stand still or go back: the beat counts.
    for (beat, now) in [(1, 5_000), (2, 5_000), (3, 10)] {
        check.expect_ok("renewing", store.renew_lease(&lease, Timestamp(now)).await);
        let found = load_lease(check, &store, &lease.run).await;
        check.expect_equal("the lease", found, Some(stored_lease("ann", 1, beat, now)));
    }
    let early = store.acquire_lease(&lease.run, lease_claim("bea", 90_000), Some(&first)).await;
    check.expect_error("taking over after a renewal", early, StoreErrorKind::LeaseHeld);
    let other = stored_lease("cem", 1, 3, 10);
    let wrong = store.acquire_lease(&lease.run, lease_claim("bea", 90_000), Some(&other)).await;
    check.expect_error("taking over another owner's", wrong, StoreErrorKind::LeaseHeld);
    let last = stored_lease("ann", 1, 3, 10);
    check.expect_ok(
        "taking over what was seen last",
        store.acquire_lease(&lease.run, lease_claim("bea", 0), Some(&last)).await,
    );
    let unknown = Lease { run: "other".into(), ..lease };
    check.expect_error(
        "renewing an unknown run",
        store.renew_lease(&unknown, Timestamp(9)).await,
        StoreErrorKind::RunNotFound,
    );
}

/// Whatever the clocks of the owner and of a contender say, nothing is taken that was not seen.
async fn no_time_ends_a_lease<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    for now in [0, 1_000, 2_000, 3_600_000, u64::MAX / 4] {
        for duration in [Duration::ZERO, Duration::from_secs(3_600)] {
            let claim = LeaseClaim { owner: "bea", now: Timestamp(now), duration };
            let early = store.acquire_lease(&lease.run, claim, None).await;
            check.expect_error("taking what is held", early, StoreErrorKind::LeaseHeld);
        }
    }
    check.expect_error(
        "forgetting what is held",
        store.forget_run(&lease.run, None).await,
        StoreErrorKind::LeaseHeld,
    );
}

async fn a_released_run_is_free<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let seen = load_lease(check, &store, &lease.run).await;
    check.expect_ok("giving it back", store.release_lease(&lease).await);
    check.expect_ok("giving it back again", store.release_lease(&lease).await);
    check.expect_equal("the lease", load_lease(check, &store, &lease.run).await, None);
    let listed = check.expect_ok("listing", store.list_runs(&RunQuery::default()).await);
    check.expect_equal("the lease in the list", listed[0].lease.clone(), None);
    let taken = store.acquire_lease(&lease.run, lease_claim("bea", 1_001), seen.as_ref()).await;
    let taken = check.expect_ok("taking it at once", taken);
    check.expect_equal("the epoch", taken.epoch, 2);
    check.expect_ok("giving back what was taken over", store.release_lease(&lease).await);
    let third = store.acquire_lease(&lease.run, lease_claim("cem", 1_002), seen.as_ref()).await;
    check.expect_error("taking what the second owner has", third, StoreErrorKind::LeaseHeld);
    let unknown = Lease { run: "other".into(), ..lease };
    check.expect_ok("giving back an unknown run", store.release_lease(&unknown).await);
}

async fn one_of_many_takes_over<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let seen = load_lease(check, &store, &lease.run).await;
    let owners: Vec<String> = (0..8).map(|one| format!("owner-{one}")).collect();
    let taken = join_all(
        owners.iter().map(|owner| store.acquire_lease(&lease.run, lease_claim(owner, 3_000), seen.as_ref())),
    )
    .await;
    check.expect_equal(
        "how many of eight took it over",
        taken.iter().filter(|taken| taken.is_ok()).count(),
        1,
    );
    for refused in taken.into_iter().filter(Result::is_err) {
        check.expect_error("taking it over after somebody else did", refused, StoreErrorKind::LeaseHeld);
    }
}

async fn an_epoch_is_raised<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let raised = check.expect_ok("raising it", store.raise_epoch(&lease, 70).await);
    check.expect_equal("the lease", raised.clone(), Lease { epoch: 70, ..lease.clone() });
    let seen = load_lease(check, &store, &lease.run).await;
    check.expect_equal("the stored lease", seen, Some(stored_lease("ann", 70, 0, 1_000)));
    let late = store.append_journal(&lease, 0, journal_lines(1), Durability::Sync).await;
    check.expect_error("an append with the epoch before", late, StoreErrorKind::Fenced);
    let late = store.raise_epoch(&lease, 80).await;
    check.expect_error("raising it with the epoch before", late, StoreErrorKind::Fenced);
    let same = check.expect_ok("a lower epoch", store.raise_epoch(&raised, 60).await);
    check.expect_equal("the lease after a lower epoch", same, raised.clone());
    let append = store.append_journal(&raised, 0, journal_lines(1), Durability::Sync).await;
    check.expect_ok("an append with the epoch", append);
    check.expect_ok("releasing", store.release_lease(&raised).await);
    let next = store.acquire_lease(&lease.run, lease_claim("bea", 2_000), None).await;
    check.expect_equal("the next epoch", check.expect_ok("a lease", next).epoch, 71);
    let unknown = Lease { run: "other".into(), ..lease };
    let unknown = store.raise_epoch(&unknown, 9).await;
    check.expect_error("the epoch of an unknown run", unknown, StoreErrorKind::RunNotFound);
}

/// The id of a forgotten run can be used again. No driver of the forgotten one may touch the new run.
async fn a_driver_of_a_forgotten_run_is_refused<S: Store>(check: StoreCheck, store: S) {
    let first = check.create_run(&store, "run", "ann").await;
    let late = check.take_over(&store, &first, "bea").await;
    let abandoned = load_lease(check, &store, &late.run).await;
    check.expect_ok("forgetting", store.forget_run(&late.run, abandoned.as_ref()).await);
    let again = check.create_run(&store, "run", "cem").await;
    check.expect_equal("an epoch above the forgotten ones", again.epoch > late.epoch, true);
    let stored = load_lease(check, &store, &again.run).await;
    check.expect_equal("the stored lease", stored.clone(), Some(stored_lease("cem", again.epoch, 0, 1_000)));
    for forgotten in [&first, &late] {
        expect_refused(check, &store, forgotten).await;
        check.expect_equal("the lease after it", load_lease(check, &store, &again.run).await, stored.clone());
    }
    // The next one is above both, and other ids are no exception.
    check.expect_ok("releasing", store.release_lease(&again).await);
    check.expect_ok("forgetting again", store.forget_run(&again.run, None).await);
    let third = check.create_run(&store, "run", "ann").await;
    check.expect_equal("a still higher epoch", third.epoch > again.epoch, true);
    let append = store.append_journal(&third, 0, journal_lines(1), Durability::Sync).await;
    check.expect_ok("a line of the new run", append);
}

/// The epoch alone does not make a lease: its owner counts, too.
async fn another_owner_is_refused<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let other = Lease { owner: "bea".to_owned(), ..lease.clone() };
    expect_refused(check, &store, &other).await;
    let kept = load_lease(check, &store, &lease.run).await;
    check.expect_equal("the lease", kept, Some(stored_lease("ann", 1, 0, 1_000)));
    let append = store.append_journal(&lease, 0, journal_lines(1), Durability::Sync).await;
    check.expect_ok("a line of the owner", append);
}

/// Expects that writes with a lease are refused, and that giving it back changes nothing.
async fn expect_refused<S: Store>(check: StoreCheck, store: &S, lease: &Lease) {
    let refused = StoreErrorKind::Fenced;
    for durability in [Durability::Sync, Durability::Deferred] {
        let late = store.append_journal(lease, 0, journal_lines(1), durability).await;
        check.expect_error("a line", late, refused);
    }
    check.expect_error("a renewal", store.renew_lease(lease, Timestamp(9)).await, refused);
    let raised = store.raise_epoch(lease, lease.epoch + 9).await;
    check.expect_error("a raised epoch", raised, refused);
    let status = store.set_status(lease, RunStatus::Failed, Timestamp(9)).await;
    check.expect_error("a status", status, refused);
    check.expect_ok("giving it back", store.release_lease(lease).await);
}

async fn a_late_owner_is_refused<S: Store>(check: StoreCheck, store: S) {
    let late = check.create_run(&store, "run", "ann").await;
    let lines = journal_lines(3);
    let append = |lease, at, lines| store.append_journal(lease, at, lines, Durability::Sync);
    check.expect_ok("a line of the first owner", append(&late, 0, lines[..1].to_vec()).await);
    let owner = check.take_over(&store, &late, "bea").await;
    let refused = StoreErrorKind::Fenced;
    check.expect_error("a late line", append(&late, 1, lines[1..2].to_vec()).await, refused);
    check.expect_error("a late line out of place", append(&late, 7, lines[1..2].to_vec()).await, refused);
    let later = store.append_journal(&late, 1, lines[1..2].to_vec(), Durability::Deferred).await;
    check.expect_error("a late line for later", later, refused);
    check.expect_error("a late renewal", store.renew_lease(&late, Timestamp(90_000)).await, refused);
    check.expect_error(
        "a late mark",
        store.set_status(&late, RunStatus::Failed, Timestamp(9)).await,
        refused,
    );
    let same_name = check.take_over(&store, &late, "bea").await;
    check.expect_error(
        "an older lease of the same owner",
        append(&owner, 1, lines[1..].to_vec()).await,
        refused,
    );
    check.expect_ok("a line of the new owner", append(&same_name, 1, lines[1..].to_vec()).await);
    check.expect_equal(
        "the lines",
        check.expect_ok("loading", store.load_journal(&late.run, 0).await),
        lines,
    );
    let listed = check.expect_ok("listing", store.list_runs(&RunQuery::default()).await).remove(0);
    check.expect_equal(
        "the state",
        (listed.status, listed.updated_at),
        (RunStatus::Running, Timestamp(1_000)),
    );
}
