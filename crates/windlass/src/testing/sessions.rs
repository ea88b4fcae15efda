//! What every store of sessions must do.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::join_all;
use windlass_core::{Item, SessionId};

use super::check::Check;
use crate::error::StoreErrorKind;
use crate::session::{SessionState, SessionStore};

/// Puts a store of sessions through everything that every one must do. `make` makes an empty one for each check.
///
/// # Panics
///
/// Where the store does something else: with the name of the check, what was asked of the store, and what it did.
pub async fn session_suite<S, F, Fut>(make: F)
where
    S: SessionStore,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    items_come_back(Check("items come back"), make().await).await;
    sessions_are_apart(Check("sessions are apart"), make().await).await;
    batches_stay_whole(Check("batches of concurrent writers stay whole"), make().await).await;
    calls_are_in_order(Check("items are in the order of the calls"), make().await).await;
    a_session_is_replaced(Check("a session is replaced"), make().await).await;
    one_of_many_replaces(Check("one of many replaces"), make().await).await;
}

fn items(writer: usize, batch: usize, count: usize) -> Vec<Arc<Item>> {
    (0..count).map(|one| Arc::new(Item::user(format!("{writer} {batch} {one}")))).collect()
}

async fn state<S: SessionStore>(check: Check, store: &S, session: &str) -> SessionState {
    check.done("loading", store.load(&SessionId::from(session)).await)
}

async fn items_come_back<S: SessionStore>(check: Check, store: S) {
    let session = SessionId::from("s");
    check.same("a new session", state(check, &store, "s").await, SessionState::default());
    let first = vec![
        Arc::new(Item::user("hello\n\"🧵\"\u{0}")),
        Arc::new(Item::call("c1", "tool", "{\"a\": 1}")),
        Arc::new(Item::Output(windlass_core::Output {
            call: "c1".into(),
            content: "out".into(),
            status: windlass_core::OutputStatus::Failed,
        })),
    ];
    let second = vec![Arc::new(Item::assistant("goodbye"))];
    check.done("adding", store.append(&session, first.clone()).await);
    let one = state(check, &store, "s").await;
    check.same("the items", one.items, first.clone());
    check.done("adding more", store.append(&session, second.clone()).await);
    let two = state(check, &store, "s").await;
    check.same("the items", two.items, [first, second].concat());
    check.same("whether the version grows", two.version > one.version && one.version > 0, true);
}

async fn sessions_are_apart<S: SessionStore>(check: Check, store: S) {
    check.same("the sessions of an empty store", check.done("listing", store.sessions().await), Vec::new());
    for (at, name) in ["b", "a", "c"].into_iter().enumerate() {
        check.done("adding", store.append(&name.into(), items(at, 0, 1)).await);
    }
    for (at, name) in ["b", "a", "c"].into_iter().enumerate() {
        check.same("the items", state(check, &store, name).await.items, items(at, 0, 1));
    }
    let mut listed = check.done("listing", store.sessions().await);
    listed.sort();
    check.same("the sessions", listed, ["a", "b", "c"].map(SessionId::from).to_vec());
}

async fn batches_stay_whole<S: SessionStore>(check: Check, store: S) {
    const WRITERS: usize = 8;
    const BATCHES: usize = 12;
    const ITEMS: usize = 5;
    let session = SessionId::from("s");
    join_all((0..WRITERS).map(async |writer| {
        for batch in 0..BATCHES {
            check.done("adding", store.append(&session, items(writer, batch, ITEMS)).await);
        }
    }))
    .await;
    let found = state(check, &store, "s").await.items;
    check.same("how many items there are", found.len(), WRITERS * BATCHES * ITEMS);
    let mut due = [0; WRITERS];
    for batch in found.chunks(ITEMS) {
        let writer = (0..WRITERS)
            .find(|writer| due[*writer] < BATCHES && batch == items(*writer, due[*writer], ITEMS));
        let Some(writer) = writer else {
            panic!("check `{}`: a batch is torn, lost or out of order: {batch:?}", check.0)
        };
        due[writer] += 1;
    }
}

async fn calls_are_in_order<S: SessionStore>(check: Check, store: S) {
    let session = SessionId::from("s");
    let added: Vec<_> = (0..50).map(|batch| store.append(&session, items(0, batch, 2))).collect();
    // Awaited in another order than they were called in.
    for added in added.into_iter().rev() {
        check.done("adding", added.await);
    }
    let expected: Vec<_> = (0..50).flat_map(|batch| items(0, batch, 2)).collect();
    check.same("the items", state(check, &store, "s").await.items, expected);
}

async fn a_session_is_replaced<S: SessionStore>(check: Check, store: S) {
    let session = SessionId::from("s");
    check.done("replacing what is new", store.replace(&session, 0, items(0, 0, 4)).await);
    let before = state(check, &store, "s").await;
    check.same("the items", before.items.clone(), items(0, 0, 4));
    check.done("adding", store.append(&session, items(1, 0, 1)).await);
    let stale = store.replace(&session, before.version, items(2, 0, 1)).await;
    check.refused("replacing what has changed since", stale, StoreErrorKind::Stale);
    let now = state(check, &store, "s").await;
    check.same("the items", now.items, [items(0, 0, 4), items(1, 0, 1)].concat());
    let front = [items(0, 0, 2), items(3, 0, 1)].concat();
    check.done("replacing the end", store.replace(&session, now.version, front.clone()).await);
    let replaced = state(check, &store, "s").await;
    check.same("the items", replaced.items, front.clone());
    check.same("whether the version grows", replaced.version > now.version, true);
    check.done("adding after that", store.append(&session, items(4, 0, 2)).await);
    let added = state(check, &store, "s").await;
    check.same("the items", added.items, [front, items(4, 0, 2)].concat());
    check.done("emptying", store.replace(&session, added.version, Vec::new()).await);
    let empty = state(check, &store, "s").await;
    check.same("the items", empty.items, Vec::new());
    check.same("whether the version grows", empty.version > added.version, true);
}

async fn one_of_many_replaces<S: SessionStore>(check: Check, store: S) {
    let session = SessionId::from("s");
    check.done("adding", store.append(&session, items(0, 0, 3)).await);
    let version = state(check, &store, "s").await.version;
    let replaced = join_all((0..8).map(|writer| store.replace(&session, version, items(writer, 1, 2)))).await;
    check.same(
        "how many of eight replaced it",
        replaced.iter().filter(|replaced| replaced.is_ok()).count(),
        1,
    );
    let winner = replaced.iter().position(Result::is_ok).unwrap_or_default();
    check.same("the items", state(check, &store, "s").await.items, items(winner, 1, 2));
}
