//! A store notices that its file is not what its owner takes it for: hard links, a lost write-ahead log, copies.

#![cfg(all(feature = "sqlite", unix))]
#![allow(clippy::expect_used)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use windlass::core::{
    id::{RunId, Timestamp},
    journal::{HashChain, JournalEntry, JournalLine, JournalRecord, RunStarted},
};
use windlass::store::{LeaseClaim, SqliteStore, Store, StoreWarning};

fn first_line(run: &str) -> Vec<JournalLine> {
    let entry = JournalEntry::RunStarted(RunStarted::new(run.into(), "agent".into()).into());
    let record = JournalRecord { seq: 0, at: Timestamp(1), path: Vec::new(), entry };
    vec![HashChain::default().append(&record)]
}

async fn create_run(store: &SqliteStore, run: &str) {
    let claim = LeaseClaim { owner: "ann", now: Timestamp(1_000), duration: Duration::from_secs(1) };
    store.create_run(&RunId::from(run), &"agent".into(), claim, first_line(run)).await.expect("made");
}

async fn make_store(path: &Path, runs: usize) {
    let store = SqliteStore::open(path).expect("opens");
    assert_eq!(store.warnings(), []);
    for run in 0..runs {
        create_run(&store, &format!("run-{run}")).await;
    }
}

fn open_warnings(path: &Path) -> Vec<StoreWarning> {
    SqliteStore::open(path).expect("opens").warnings().to_vec()
}

#[tokio::test]
async fn a_store_in_its_place_has_no_warnings() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    make_store(&path, 3).await;
    assert_eq!(open_warnings(&path), []);
    let other = SqliteStore::open(&path).expect("opens");
    create_run(&other, "another").await;
    assert_eq!(open_warnings(&path), [], "while another has it open");
}

#[tokio::test]
async fn a_second_name_of_the_file_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, second) = (folder.path().join("store.db"), folder.path().join("second.db"));
    make_store(&path, 1).await;
    fs::hard_link(&path, &second).expect("linked");
    for name in [&path, &second] {
        let warnings = open_warnings(name);
        assert!(warnings.contains(&StoreWarning::HardLinks { names: 2 }), "{warnings:?}");
    }
}

#[tokio::test]
async fn a_deleted_log_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    make_store(&path, 1).await;
    // As after a kill: the log is not merged into the file.
    let store = SqliteStore::open(&path).expect("opens");
    for run in 0..5 {
        create_run(&store, &format!("later-{run}")).await;
    }
    let (lost, kept) = (folder.path().join("lost"), folder.path().join("kept"));
    for (copy, files) in [(&lost, &["", "-turn"][..]), (&kept, &["", "-turn", "-wal"][..])] {
        fs::create_dir(copy).expect("made");
        for end in files {
            let name = format!("store.db{end}");
            fs::copy(folder.path().join(&name), copy.join(&name)).expect("copied");
        }
    }
    drop(store);
    let warnings = open_warnings(&lost.join("store.db"));
    assert!(
        warnings.iter().any(|warning| matches!(warning, StoreWarning::LostCommits { found, expected } if expected - found == 5)),
        "{warnings:?}"
    );
    assert!(warnings[0].to_string().starts_with("5 commits are missing"), "{}", warnings[0]);
    let warnings = open_warnings(&kept.join("store.db"));
    assert!(
        !warnings.iter().any(|warning| matches!(warning, StoreWarning::LostCommits { .. })),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn an_older_copy_in_place_of_the_store_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, backup) = (folder.path().join("store.db"), folder.path().join("backup.db"));
    make_store(&path, 1).await;
    fs::copy(&path, &backup).expect("copied");
    let store = SqliteStore::open(&path).expect("opens");
    create_run(&store, "later").await;
    drop(store);
    fs::copy(&backup, &path).expect("put in place");
    let warnings = open_warnings(&path);
    assert!(matches!(warnings[..], [StoreWarning::LostCommits { .. }]), "{warnings:?}");
}

#[tokio::test]
async fn a_copy_beside_its_original_is_noticed_until_the_original_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, copy) = (folder.path().join("store.db"), folder.path().join("copy.db"));
    make_store(&path, 1).await;
    fs::copy(&path, &copy).expect("copied");
    let original = path.canonicalize().expect("it is there");
    for _ in 0..2 {
        let store = SqliteStore::open(&copy).expect("opens");
        assert_eq!(store.warnings(), [StoreWarning::Copied { original: original.clone() }]);
        // A driver is warned, and not stopped.
        create_run(&store, &format!("of the copy {}", next_number())).await;
    }
    assert_eq!(open_warnings(&path), [], "the original is what it was");
    fs::remove_file(&path).expect("removed");
    let warnings = open_warnings(&copy);
    assert!(matches!(&warnings[..], [StoreWarning::Moved { path, .. }] if *path == original), "{warnings:?}");
    let store = SqliteStore::open(&copy).expect("opens");
    create_run(&store, "driven here").await;
    drop(store);
    assert_eq!(open_warnings(&copy), [], "it has its place here now");
}

/// The disk of a cloned machine has the same paths and inodes.
#[tokio::test]
async fn a_store_on_a_cloned_disk_is_noticed_by_its_host() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    make_store(&path, 1).await;
    let db = rusqlite::Connection::open(&path).expect("opens");
    db.execute("UPDATE store SET host = 'another'", []).expect("written");
    drop(db);
    let original = path.canonicalize().expect("it is there");
    let moved = StoreWarning::Moved { host: "another".to_owned(), path: original };
    assert_eq!(open_warnings(&path), [moved]);
    let store = SqliteStore::open(&path).expect("opens");
    create_run(&store, "driven here").await;
    drop(store);
    assert_eq!(open_warnings(&path), [], "it has its place here now");
}

/// Returns a number that no other call returns.
fn next_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
