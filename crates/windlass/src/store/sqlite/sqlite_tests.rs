//! Cases that cannot be provoked from outside: a full file, and a short lock timeout.

use windlass_core::{
    id::Timestamp,
    item::Item,
    journal::{HashChain, InputAdded, JournalEntry, JournalLine, JournalRecord},
};

use super::*;
use crate::error::StoreErrorKind;

fn journal_line(before: &[JournalLine], length: usize) -> JournalLine {
    let mut chain = before.last().map_or_else(HashChain::default, |line| HashChain::from_head(line.hash));
    let items = vec![Arc::new(Item::user("x".repeat(length)))];
    let entry = JournalEntry::InputAdded(InputAdded { items, order: None });
    chain.append(&JournalRecord { seq: before.len() as u64, at: Timestamp(1), path: Vec::new(), entry })
}

fn lease_claim(owner: &str) -> LeaseClaim<'_> {
    LeaseClaim { owner, now: Timestamp(1_000), duration: std::time::Duration::from_secs(1) }
}

async fn set_limit(store: &SqliteStore, pages: u32) {
    let set = store.submit_write(RequestSubject::Store, AckLevel::Committed, move |desk| {
        Ok(desk.db.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?)
    });
    set.await.unwrap();
}

#[tokio::test]
async fn a_full_file_refuses_what_has_no_room_and_keeps_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("store.db")).unwrap();
    let lease =
        store.create_run(&"run".into(), &"agent".into(), lease_claim("ann"), Vec::new()).await.unwrap();
    let other =
        store.create_run(&"other".into(), &"agent".into(), lease_claim("ann"), Vec::new()).await.unwrap();
    let first = journal_line(&[], 100);
    Store::append_journal(&store, &lease, 0, vec![first.clone()], Durability::Sync).await.unwrap();
    set_limit(&store, 40).await;

    // The large line does not fit, and the append is atomic: the small line before it is not kept either.
    let lines = [first];
    let small = journal_line(&lines, 10);
    let large = journal_line(&[lines[0].clone(), small.clone()], 1_000_000);
    let large = Store::append_journal(&store, &lease, 1, vec![small.clone(), large], Durability::Sync);
    let behind = Store::append_journal(&store, &lease, 3, vec![small.clone()], Durability::Deferred);
    let beside = Store::append_journal(&store, &other, 0, vec![journal_line(&[], 100)], Durability::Sync);
    let (large, behind, beside) = tokio::join!(large, behind, beside);
    let error = large.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Disk);
    assert!(
        error.to_string().contains("is full: nothing of this was kept, everything before it was"),
        "{error}"
    );
    assert!(error.to_string().starts_with("run `run`: "), "{error}");
    let error = behind.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Disk);
    // SQLite may have rolled back the whole batch; then all of its requests fail.
    let was_done = beside.is_ok();
    assert_eq!(!Store::load_journal(&store, &"other".into(), 0).await.unwrap().is_empty(), was_done);
    assert_eq!(Store::load_journal(&store, &"run".into(), 0).await.unwrap(), lines);

    set_limit(&store, 100_000).await;
    Store::append_journal(&store, &lease, 1, vec![small], Durability::Sync).await.unwrap();
    assert_eq!(Store::load_journal(&store, &"run".into(), 0).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_file_that_stays_locked_is_given_up_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = SqliteStore::open(&path).unwrap();
    let lease =
        store.create_run(&"run".into(), &"agent".into(), lease_claim("ann"), Vec::new()).await.unwrap();
    let mut other = rusqlite::Connection::open(&path).unwrap();
    let kept_locked = other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    let error = Store::append_journal(&store, &lease, 0, vec![journal_line(&[], 10)], Durability::Sync)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Disk);
    assert!(error.to_string().contains("was kept locked by another process for 400ms"), "{error}");
    assert_eq!(
        Store::load_journal(&store, &"run".into(), 0).await.unwrap(),
        [],
        "what is locked can be read"
    );
    drop(kept_locked);
    Store::append_journal(&store, &lease, 0, vec![journal_line(&[], 10)], Durability::Sync).await.unwrap();
}

#[tokio::test]
async fn a_request_that_fails_halfway_leaves_nothing_and_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("store.db")).unwrap();
    let lease =
        store.create_run(&"run".into(), &"agent".into(), lease_claim("ann"), Vec::new()).await.unwrap();
    let other =
        store.create_run(&"other".into(), &"agent".into(), lease_claim("ann"), Vec::new()).await.unwrap();
    let change = async |sql: &'static str| {
        store
            .submit_write(RequestSubject::Store, AckLevel::Committed, move |desk| {
                Ok(desk.db.execute_batch(sql)?)
            })
            .await
            .unwrap();
    };
    // A conflicting row makes the second line fail.
    change("INSERT INTO lines (run, seq, hash, body) VALUES (1, 1, x'', '')").await;
    let first = journal_line(&[], 10);
    let lines = vec![first.clone(), journal_line(&[first], 10)];
    let fails = Store::append_journal(&store, &lease, 0, lines.clone(), Durability::Sync);
    let beside = Store::append_journal(&store, &other, 0, lines.clone(), Durability::Sync);
    let (fails, beside) = tokio::join!(fails, beside);
    fails.unwrap_err();
    beside.unwrap();
    assert_eq!(Store::load_journal(&store, &"other".into(), 0).await.unwrap(), lines);
    assert_eq!(Store::load_journal(&store, &"run".into(), 0).await.unwrap(), []);
    change("DELETE FROM lines WHERE run = 1 AND hash = x''").await;
    Store::append_journal(&store, &lease, 0, lines.clone(), Durability::Sync).await.unwrap();
    assert_eq!(Store::load_journal(&store, &"run".into(), 0).await.unwrap(), lines);
}

/// A damaged file is scanned up to the last row id that was given out, also after runs were deleted.
#[tokio::test]
async fn a_scan_finds_lines_after_those_of_a_forgotten_run() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("store.db")).unwrap();
    let mut lines = Vec::new();
    for _ in 0..5 {
        lines.push(journal_line(&lines, 10));
    }
    for run in ["gone", "kept"] {
        let lease =
            store.create_run(&run.into(), &"agent".into(), lease_claim("ann"), Vec::new()).await.unwrap();
        Store::append_journal(&store, &lease, 0, lines.clone(), Durability::Sync).await.unwrap();
        store.release_lease(&lease).await.unwrap();
    }
    store.forget_run(&"gone".into(), None).await.unwrap();
    let damage = store.submit_write(RequestSubject::Store, AckLevel::Committed, move |desk| {
        Ok(desk.db.execute_batch("UPDATE runs SET records = 6 WHERE name = 'kept'")?)
    });
    damage.await.unwrap();
    let error = Store::load_journal(&store, &"kept".into(), 0).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(error.to_string().contains("of 6 records, the first 5 can be read"), "{error}");
}
