//! What cannot be seen from outside: a file that has no room for another page.

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

    // A large line has no room. The small ones beside it, which may be in the same batch, have.
    let lines = [first];
    let large = Store::append(&store, &lease, 1, vec![line(&lines, 1_000_000)], Durability::Now);
    let behind = Store::append(&store, &lease, 2, vec![line(&lines, 10)], Durability::Later);
    let small = Store::append(&store, &other, 0, vec![line(&[], 100)], Durability::Now);
    let error = large.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Disk);
    assert!(error.to_string().contains("is full: nothing of this was kept, everything before it was"), "{error}");
    assert!(error.to_string().starts_with("run `run`: "), "{error}");
    let error = behind.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Disk);
    assert!(small.await.is_ok() || Store::load(&store, &"other".into(), 0).await.unwrap().is_empty());
    assert_eq!(Store::load(&store, &"run".into(), 0).await.unwrap(), lines);

    set_limit(&store, 100_000).await;
    Store::append(&store, &lease, 1, vec![line(&lines, 1_000_000)], Durability::Now).await.unwrap();
    assert_eq!(Store::load(&store, &"run".into(), 0).await.unwrap().len(), 2);
}
