//! What cannot be brought about from outside: a file without room for another page, and a short patience.

use windlass_core::{Chain, Entry, InputAdded, Item, Line, Record, Timestamp};

use super::*;
use crate::error::StoreErrorKind;

fn line(before: &[Line], length: usize) -> Line {
    let mut chain = before.last().map_or_else(Chain::default, |line| Chain::at(line.hash));
    let items = vec![Arc::new(Item::user("x".repeat(length)))];
    let entry = Entry::InputAdded(InputAdded { items });
    chain.add(&Record { seq: before.len() as u64, at: Timestamp(1), path: Vec::new(), entry })
}

fn claim(owner: &str) -> LeaseClaim<'_> {
    LeaseClaim { owner, now: Timestamp(1_000), until: Timestamp(2_000) }
}

async fn set_limit(store: &SqliteStore, pages: u32) {
    let set = store.write(About::Store, When::Committed, move |desk| {
        Ok(desk.db.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?)
    });
    set.await.unwrap();
}

#[tokio::test]
async fn a_full_file_refuses_what_has_no_room_and_keeps_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("store.db")).unwrap();
    let lease = store.create(&"run".into(), &"agent".into(), claim("ann")).await.unwrap();
    let other = store.create(&"other".into(), &"agent".into(), claim("ann")).await.unwrap();
    let first = line(&[], 100);
    Store::append(&store, &lease, 0, vec![first.clone()], Durability::Now).await.unwrap();
    set_limit(&store, 40).await;

    // A large line has no room, and the small one before it does not stay alone.
    let lines = [first];
    let small = line(&lines, 10);
    let large = line(&[lines[0].clone(), small.clone()], 1_000_000);
    let large = Store::append(&store, &lease, 1, vec![small.clone(), large], Durability::Now);
    let behind = Store::append(&store, &lease, 3, vec![small.clone()], Durability::Later);
    let beside = Store::append(&store, &other, 0, vec![line(&[], 100)], Durability::Now);
    let error = large.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Disk);
    assert!(
        error.to_string().contains("is full: nothing of this was kept, everything before it was"),
        "{error}"
    );
    assert!(error.to_string().starts_with("run `run`: "), "{error}");
    let error = behind.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Disk);
    // SQLite may have undone everything in the batch; then all of it is refused.
    let was_done = beside.await.is_ok();
    assert_eq!(!Store::load(&store, &"other".into(), 0).await.unwrap().is_empty(), was_done);
    assert_eq!(Store::load(&store, &"run".into(), 0).await.unwrap(), lines);

    set_limit(&store, 100_000).await;
    Store::append(&store, &lease, 1, vec![small], Durability::Now).await.unwrap();
    assert_eq!(Store::load(&store, &"run".into(), 0).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_file_that_stays_locked_is_given_up_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = SqliteStore::open(&path).unwrap();
    let lease = store.create(&"run".into(), &"agent".into(), claim("ann")).await.unwrap();
    let mut other = rusqlite::Connection::open(&path).unwrap();
    let kept_locked = other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    let error = Store::append(&store, &lease, 0, vec![line(&[], 10)], Durability::Now).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Disk);
    assert!(error.to_string().contains("was kept locked by another process for 400ms"), "{error}");
    assert_eq!(Store::load(&store, &"run".into(), 0).await.unwrap(), [], "what is locked can be read");
    drop(kept_locked);
    Store::append(&store, &lease, 0, vec![line(&[], 10)], Durability::Now).await.unwrap();
}

#[tokio::test]
async fn a_request_that_fails_halfway_leaves_nothing_and_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("store.db")).unwrap();
    let lease = store.create(&"run".into(), &"agent".into(), claim("ann")).await.unwrap();
    let other = store.create(&"other".into(), &"agent".into(), claim("ann")).await.unwrap();
    let change = async |sql: &'static str| {
        store
            .write(About::Store, When::Committed, move |desk| Ok(desk.db.execute_batch(sql)?))
            .await
            .unwrap();
    };
    // Something that should not be there is in the way of the second line.
    change("INSERT INTO lines (run, seq, hash, body) VALUES (1, 1, '', '')").await;
    let first = line(&[], 10);
    let lines = vec![first.clone(), line(&[first], 10)];
    let fails = Store::append(&store, &lease, 0, lines.clone(), Durability::Now);
    let beside = Store::append(&store, &other, 0, lines.clone(), Durability::Now);
    fails.await.unwrap_err();
    beside.await.unwrap();
    assert_eq!(Store::load(&store, &"other".into(), 0).await.unwrap(), lines);
    assert_eq!(Store::load(&store, &"run".into(), 0).await.unwrap(), []);
    change("DELETE FROM lines WHERE run = 1 AND hash = ''").await;
    Store::append(&store, &lease, 0, lines.clone(), Durability::Now).await.unwrap();
    assert_eq!(Store::load(&store, &"run".into(), 0).await.unwrap(), lines);
}
