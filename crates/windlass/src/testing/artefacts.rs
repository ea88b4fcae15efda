//! The contract of a store for artefacts.

use std::future::Future;

use super::check::{StoreCheck, lease_claim};
use crate::error::StoreErrorKind;
use crate::store::{Lease, Store};

pub(super) async fn check_artefacts<S, F, Fut>(make: &F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    artefacts_are_kept(StoreCheck("artefacts are kept"), make().await).await;
    artefacts_are_fenced(StoreCheck("artefacts are fenced"), make().await).await;
    artefacts_are_listed_in_pages(StoreCheck("artefacts are listed in pages"), make().await).await;
}

async fn artefacts_are_kept<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let long: Vec<u8> = (0..200_000_u32).map(|byte| (byte % 251) as u8).chain([0, 0xff, 0xc3]).collect();
    check.expect_ok("keeping", store.save_artefact(&lease, "c1", b"short").await);
    check.expect_ok("keeping again", store.save_artefact(&lease, "c1", &long).await);
    check.expect_equal(
        "what was kept",
        check.expect_ok("reading", store.load_artefact(&lease.run, "c1").await),
        Some(long),
    );
    check.expect_equal(
        "what was not",
        check.expect_ok("reading", store.load_artefact(&lease.run, "c2").await),
        None,
    );
    check.expect_equal(
        "another run's",
        check.expect_ok("reading", store.load_artefact(&"other".into(), "c1").await),
        None,
    );
    let unknown = Lease { run: "other".into(), owner: "ann".to_owned(), epoch: 1 };
    check.expect_error(
        "keeping for no run",
        store.save_artefact(&unknown, "c1", b"lost").await,
        StoreErrorKind::RunNotFound,
    );
}

async fn artefacts_are_fenced<S: Store>(check: StoreCheck, store: S) {
    let old = check.create_run(&store, "run", "ann").await;
    check.expect_ok("keeping", store.save_artefact(&old, "c1", b"of ann").await);
    check.expect_ok("releasing", store.release_lease(&old).await);
    let claim = lease_claim("bea", 2_500);
    let new = check.expect_ok("taking over", store.acquire_lease(&old.run, claim, None).await);
    let late = store.save_artefact(&old, "c1", b"of ann, late").await;
    check.expect_error("keeping with the old lease", late, StoreErrorKind::Fenced);
    check.expect_equal(
        "what was kept",
        check.expect_ok("reading", store.load_artefact(&new.run, "c1").await),
        Some(b"of ann".to_vec()),
    );
    check.expect_ok("keeping with the new lease", store.save_artefact(&new, "c1", b"of bea").await);
}

async fn artefacts_are_listed_in_pages<S: Store>(check: StoreCheck, store: S) {
    let lease = check.create_run(&store, "run", "ann").await;
    let other = check.create_run(&store, "other", "ann").await;
    let names: Vec<String> = (0..25).map(|number| format!("c{number:02}")).collect();
    for name in names.iter().rev() {
        check.expect_ok("keeping", store.save_artefact(&lease, name, b"x").await);
    }
    check.expect_ok("keeping", store.save_artefact(&other, "c99", b"x").await);
    let mut listed: Vec<String> = Vec::new();
    loop {
        let after = listed.last().cloned();
        let page = store.list_artefacts(&lease.run, after.as_deref(), 10).await;
        let page = check.expect_ok("listing", page);
        check.expect_equal("the length of a page", page.len() <= 10, true);
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    check.expect_equal("the names", listed, names);
}
