//! The contract of a session store.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::join_all;
use windlass_core::{id::SessionId, item::Item};

use super::check::{StoreCheck, lease_claim, stored_lease};
use crate::error::StoreErrorKind;
use crate::session::{
    SessionClaim, SessionFence, SessionItemsPage, SessionState, SessionStore, SessionWrite, list_all_sessions,
};
use crate::store::StoredLease;

/// Checks the contract of a session store. `make` creates an empty store for each check.
///
/// # Panics
///
/// Panics if the store violates the contract, with the name of the check, the operation and its result.
pub async fn run_session_suite<S, F, Fut>(make: F)
where
    S: SessionStore,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    items_come_back(StoreCheck("items come back"), make().await).await;
    sessions_are_apart(StoreCheck("sessions are apart"), make().await).await;
    batches_stay_whole(StoreCheck("batches of concurrent writers stay whole"), make().await).await;
    calls_are_in_order(StoreCheck("items are in the order of the calls"), make().await).await;
    a_session_is_replaced(StoreCheck("a session is replaced"), make().await).await;
    one_of_many_replaces(StoreCheck("one of many replaces"), make().await).await;
    one_driver_holds_a_session(StoreCheck("one driver holds a session"), make().await).await;
}

/// A claim is granted to one owner, renewed by it, and given to another when it was released or seen unchanged.
async fn one_driver_holds_a_session<S: SessionStore>(check: StoreCheck, store: S) {
    let session = SessionId::from("s");
    let claim = async |owner: &str, now, abandoned: Option<&StoredLease>| {
        let claimed = store.claim_session(&session, lease_claim(owner, now), abandoned).await;
        check.expect_ok("claiming", claimed)
    };
    if claim("ann", 1_000, None).await == SessionClaim::ProcessLocal {
        return;
    }
    let held = |owner, beat, now| SessionClaim::Held(stored_lease(owner, 0, beat, now));
    check.expect_equal("the claim of another", claim("bea", 1_001, None).await, held("ann", 0, 1_000));
    check.expect_equal("the renewal", claim("ann", 2_000, None).await, SessionClaim::Granted);
    for now in [0, 3_000, 3_600_000] {
        check.expect_equal("no time ends a claim", claim("bea", now, None).await, held("ann", 1, 2_000));
    }
    let first = stored_lease("ann", 0, 0, 1_000);
    let stale = claim("bea", 3_000, Some(&first)).await;
    check.expect_equal("a claim that was renewed", stale, held("ann", 1, 2_000));
    let other = store.claim_session(&"t".into(), lease_claim("bea", 1_000), None).await;
    check.expect_equal("another session", check.expect_ok("claiming", other), SessionClaim::Granted);
    let seen = stored_lease("ann", 0, 1, 2_000);
    let taken = claim("bea", 3_000, Some(&seen)).await;
    check.expect_equal("a claim that was seen unchanged", taken, SessionClaim::Granted);
    let write = |text: &str| SessionWrite {
        session: session.clone(),
        run: "elsewhere".into(),
        from: 0,
        to: 1,
        items: vec![Arc::new(Item::user(text))],
    };
    for fence in [SessionFence::Claim("ann".to_owned()), SessionFence::Unheld] {
        let late = store.append_run_items(write("late"), fence).await;
        check.expect_error("adding after the claim was taken over", late, StoreErrorKind::SessionBusy);
    }
    let added = store.append_run_items(write("in time"), SessionFence::Claim("bea".to_owned())).await;
    check.expect_ok("adding with the claim", added);
    let items = load_state(check, &store, "s").await.items;
    check.expect_equal("the items", items, vec![Arc::new(Item::user("in time"))]);
    check.expect_ok("releasing too late", store.release_session(&session, "ann").await);
    check.expect_equal("the claim of the next", claim("cem", 3_001, None).await, held("bea", 0, 3_000));
    check.expect_ok("releasing", store.release_session(&session, "bea").await);
    let late = store.append_run_items(write("late"), SessionFence::Claim("bea".to_owned())).await;
    check.expect_error("adding after the claim was released", late, StoreErrorKind::SessionBusy);
    check.expect_equal("a free session", claim("cem", 3_002, None).await, SessionClaim::Granted);
}

fn user_items(writer: usize, batch: usize, count: usize) -> Vec<Arc<Item>> {
    (0..count).map(|one| Arc::new(Item::user(format!("{writer} {batch} {one}")))).collect()
}

async fn load_state<S: SessionStore>(check: StoreCheck, store: &S, session: &str) -> SessionState {
    check.expect_ok("loading", store.load_session(&SessionId::from(session)).await)
}

async fn items_come_back<S: SessionStore>(check: StoreCheck, store: S) {
    let session = SessionId::from("s");
    check.expect_equal("a new session", load_state(check, &store, "s").await, SessionState::default());
    let first = vec![
        Arc::new(Item::user("hello\n\"🧵\"\u{0}")),
        Arc::new(Item::call("c1", "tool", "{\"a\": 1}")),
        Arc::new(Item::Output(windlass_core::item::CallOutput {
            call: "c1".into(),
            content: "out".into(),
            status: windlass_core::item::OutputStatus::Failed,
            sources: Default::default(),
        })),
    ];
    let second = vec![Arc::new(Item::assistant("goodbye"))];
    check.expect_ok("adding", store.append_items(&session, first.clone()).await);
    let one = load_state(check, &store, "s").await;
    check.expect_equal("the items", one.items, first.clone());
    check.expect_ok("adding more", store.append_items(&session, second.clone()).await);
    let two = load_state(check, &store, "s").await;
    let all = [first, second].concat();
    check.expect_equal("the items", two.items, all.clone());
    // An item that is removed is in no page.
    let kept = [&all[..1], &all[2..]].concat();
    check.expect_ok("removing one", store.replace_items(&session, two.version, kept.clone()).await);
    for (skip, limit) in [(0, 9), (0, 1), (1, 1), (1, 2), (2, 9), (3, 9), (u64::MAX, u32::MAX), (0, 0)] {
        let page = check.expect_ok("a page", store.load_session_items(&session, skip, limit).await);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let items = kept.iter().skip(skip).take(limit as usize).cloned().collect();
        check.expect_equal("a page of the items", page, SessionItemsPage { total: 3, items });
    }
    let page = check.expect_ok("a page", store.load_session_items(&"none".into(), 0, 9).await);
    check.expect_equal("a page of no session", page, SessionItemsPage::default());
    check.expect_equal("whether the version grows", two.version > one.version && one.version > 0, true);
}

async fn sessions_are_apart<S: SessionStore>(check: StoreCheck, store: S) {
    check.expect_equal(
        "the sessions of an empty store",
        check.expect_ok("listing", store.list_sessions(None, 9).await),
        Vec::new(),
    );
    for (at, name) in ["b", "a", "c"].into_iter().enumerate() {
        check.expect_ok("adding", store.append_items(&name.into(), user_items(at, 0, 1)).await);
    }
    for (at, name) in ["b", "a", "c"].into_iter().enumerate() {
        check.expect_equal("the items", load_state(check, &store, name).await.items, user_items(at, 0, 1));
    }
    for (after, limit, expected) in [
        (None, 9, &["a", "b", "c"][..]),
        (None, 2, &["a", "b"]),
        (Some("a"), 9, &["b", "c"]),
        (Some("a-"), 1, &["b"]),
        (Some("c"), 9, &[]),
    ] {
        let after = after.map(SessionId::from);
        let listed = check.expect_ok("listing", store.list_sessions(after.as_ref(), limit).await);
        let expected: Vec<_> = expected.iter().copied().map(SessionId::from).collect();
        check.expect_equal(&format!("{limit} sessions after {after:?}"), listed, expected);
    }
    let all = check.expect_ok("listing all", list_all_sessions(&store).await);
    check.expect_equal("all sessions", all, ["a", "b", "c"].map(SessionId::from).to_vec());
}

async fn batches_stay_whole<S: SessionStore>(check: StoreCheck, store: S) {
    const WRITERS: usize = 8;
    const BATCHES: usize = 12;
    const ITEMS: usize = 5;
    let session = SessionId::from("s");
    join_all((0..WRITERS).map(async |writer| {
        for batch in 0..BATCHES {
            check.expect_ok("adding", store.append_items(&session, user_items(writer, batch, ITEMS)).await);
        }
    }))
    .await;
    let found = load_state(check, &store, "s").await.items;
    check.expect_equal("how many items there are", found.len(), WRITERS * BATCHES * ITEMS);
    let mut due = [0; WRITERS];
    for batch in found.chunks(ITEMS) {
        let writer = (0..WRITERS)
            .find(|writer| due[*writer] < BATCHES && batch == user_items(*writer, due[*writer], ITEMS));
        let Some(writer) = writer else {
            panic!("check `{}`: a batch is torn, lost or out of order: {batch:?}", check.0)
        };
        due[writer] += 1;
    }
}

async fn calls_are_in_order<S: SessionStore>(check: StoreCheck, store: S) {
    let session = SessionId::from("s");
    let added: Vec<_> = (0..50).map(|batch| store.append_items(&session, user_items(0, batch, 2))).collect();
    // Awaited in reverse order of the calls.
    for added in added.into_iter().rev() {
        check.expect_ok("adding", added.await);
    }
    let expected: Vec<_> = (0..50).flat_map(|batch| user_items(0, batch, 2)).collect();
    check.expect_equal("the items", load_state(check, &store, "s").await.items, expected);
}

async fn a_session_is_replaced<S: SessionStore>(check: StoreCheck, store: S) {
    let session = SessionId::from("s");
    check.expect_ok("replacing what is new", store.replace_items(&session, 0, user_items(0, 0, 4)).await);
    let before = load_state(check, &store, "s").await;
    check.expect_equal("the items", before.items.clone(), user_items(0, 0, 4));
    check.expect_ok("adding", store.append_items(&session, user_items(1, 0, 1)).await);
    let stale = store.replace_items(&session, before.version, user_items(2, 0, 1)).await;
    check.expect_error("replacing what has changed since", stale, StoreErrorKind::Stale);
    let now = load_state(check, &store, "s").await;
    check.expect_equal("the items", now.items, [user_items(0, 0, 4), user_items(1, 0, 1)].concat());
    let front = [user_items(0, 0, 2), user_items(3, 0, 1)].concat();
    check.expect_ok("replacing the end", store.replace_items(&session, now.version, front.clone()).await);
    let replaced = load_state(check, &store, "s").await;
    check.expect_equal("the items", replaced.items, front.clone());
    check.expect_equal("whether the version grows", replaced.version > now.version, true);
    check.expect_ok("adding after that", store.append_items(&session, user_items(4, 0, 2)).await);
    let added = load_state(check, &store, "s").await;
    check.expect_equal("the items", added.items, [front, user_items(4, 0, 2)].concat());
    check.expect_ok("emptying", store.replace_items(&session, added.version, Vec::new()).await);
    let empty = load_state(check, &store, "s").await;
    check.expect_equal("the items", empty.items, Vec::new());
    check.expect_equal("whether the version grows", empty.version > added.version, true);
}

async fn one_of_many_replaces<S: SessionStore>(check: StoreCheck, store: S) {
    let session = SessionId::from("s");
    check.expect_ok("adding", store.append_items(&session, user_items(0, 0, 3)).await);
    let version = load_state(check, &store, "s").await.version;
    let replaced =
        join_all((0..8).map(|writer| store.replace_items(&session, version, user_items(writer, 1, 2)))).await;
    check.expect_equal(
        "how many of eight replaced it",
        replaced.iter().filter(|replaced| replaced.is_ok()).count(),
        1,
    );
    let winner = replaced.iter().position(Result::is_ok).unwrap_or_default();
    check.expect_equal("the items", load_state(check, &store, "s").await.items, user_items(winner, 1, 2));
}
