//! Foreign, damaged, truncated, unreadable and read-only files. The error names the file, its kind and the
//! surviving data, and nothing else is lost.

#![cfg(feature = "sqlite")]
#![allow(clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use windlass::core::{
    id::{RunId, Timestamp},
    item::Item,
    journal::{HashChain, JournalEntry, JournalLine, JournalRecord, decode_lines},
};
use windlass::session::SessionStore;
use windlass::store::{Durability, LeaseClaim, RunQuery, Store};
use windlass::{
    error::{StoreError, StoreErrorKind},
    store::SqliteStore,
};

const RUNS: usize = 24;
const LINES: u64 = 40;

fn temp_folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Returns journal lines that differ for each run.
fn journal_lines(run: &str, count: u64) -> Vec<JournalLine> {
    let mut chain = HashChain::default();
    let item = |seq: u64| std::sync::Arc::new(Item::user(format!("{run} {seq} {}", "padding ".repeat(12))));
    let entry = |seq| {
        JournalEntry::InputAdded(windlass::core::journal::InputAdded { items: vec![item(seq)], order: None })
    };
    let record = |seq| JournalRecord { seq, at: Timestamp(seq), path: Vec::new(), entry: entry(seq) };
    (0..count).map(|seq| chain.append(&record(seq))).collect()
}

fn lease_claim(owner: &str) -> LeaseClaim<'_> {
    LeaseClaim { owner, now: Timestamp(1_000), duration: std::time::Duration::from_secs(1) }
}

/// Writes a store with several runs and a session, closes it, and returns the lines of its runs.
async fn fill_store(path: &Path) -> BTreeMap<RunId, Vec<JournalLine>> {
    let store = SqliteStore::open(path).expect("opens");
    let mut kept = BTreeMap::new();
    for name in (0..RUNS).map(|one| format!("run-{one:02}")) {
        let run = RunId::from(name.as_str());
        let lease =
            store.create_run(&run, &"agent".into(), lease_claim("ann"), Vec::new()).await.expect("made");
        let lines = journal_lines(&name, LINES);
        Store::append_journal(&store, &lease, 0, lines.clone(), Durability::Sync).await.expect("kept");
        store.release_lease(&lease).await.expect("given back");
        kept.insert(run, lines);
    }
    let items = (0..20).map(|one| std::sync::Arc::new(Item::user(format!("item {one}")))).collect();
    SessionStore::append_items(&store, &"session".into(), items).await.expect("kept");
    kept
}

fn open_error(path: &Path) -> StoreError {
    SqliteStore::open(path).expect_err("it is refused")
}

#[track_caller]
fn assert_error(error: &StoreError, kind: StoreErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn a_database_of_another_program_is_refused_and_left_alone() {
    let folder = temp_folder();
    let path = folder.path().join("mail.db");
    let db = rusqlite::Connection::open(&path).expect("opens");
    db.execute_batch("PRAGMA application_id = 0x4d41494c; CREATE TABLE letters (id INTEGER)").expect("made");
    drop(db);
    let before = fs::read(&path).expect("can be read");
    let error = open_error(&path);
    assert_error(&error, StoreErrorKind::Corrupt, &["mail.db", "another program", "0x4d41494c", "`letters`"]);
    assert_eq!(fs::read(&path).expect("can be read"), before);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing was put beside it");
    assert_error(
        &SqliteStore::salvage(&path).expect_err("refused too"),
        StoreErrorKind::Corrupt,
        &["another program"],
    );
}

#[test]
fn a_database_without_a_mark_is_not_taken_for_an_empty_one() {
    let folder = temp_folder();
    let path = folder.path().join("notes.db");
    let db = rusqlite::Connection::open(&path).expect("opens");
    db.execute_batch("CREATE TABLE runs (id INTEGER)").expect("made");
    drop(db);
    assert_error(&open_error(&path), StoreErrorKind::Corrupt, &["notes.db", "another program", "`runs`"]);
}

#[test]
fn files_of_other_kinds_are_named() {
    let folder = temp_folder();
    let text = folder.path().join("todo.txt");
    fs::write(&text, "Buy milk.\nAnd bread.\n".repeat(300)).expect("written");
    assert_error(
        &open_error(&text),
        StoreErrorKind::Corrupt,
        &["todo.txt", "it is a text that begins with \"Buy milk.\""],
    );
    let short = folder.path().join("short.txt");
    fs::write(&short, "x").expect("written");
    assert_error(&open_error(&short), StoreErrorKind::Corrupt, &["short.txt", "it is a text"]);
    let binary = folder.path().join("picture.png");
    fs::write(&binary, [0x89, 0x50, 0x4e, 0x47, 0, 1, 2, 3].repeat(500)).expect("written");
    assert_error(&open_error(&binary), StoreErrorKind::Corrupt, &["picture.png", "another kind"]);
    assert_eq!(fs::read(&short).expect("can be read"), b"x");
}

#[tokio::test]
async fn an_empty_file_becomes_a_store() {
    let folder = temp_folder();
    let path = folder.path().join("new.db");
    fs::write(&path, "").expect("written");
    assert_eq!(
        SqliteStore::open(&path).expect("opens").list_runs(&RunQuery::default()).await.expect("read").len(),
        0
    );
    assert!(
        SqliteStore::salvage(&path)
            .expect("ours now")
            .list_runs(&RunQuery::default())
            .await
            .expect("read")
            .is_empty()
    );
}

#[tokio::test]
async fn a_newer_version_is_refused_with_its_number() {
    let folder = temp_folder();
    let path = folder.path().join("new.db");
    fill_store(&path).await;
    let db = rusqlite::Connection::open(&path).expect("opens");
    let known: i32 = db.pragma_query_value(None, "user_version", |row| row.get(0)).expect("read");
    db.pragma_update(None, "user_version", known + 2).expect("set");
    drop(db);
    let before = fs::read(&path).expect("can be read");
    let (newer, readable) = (format!("version {}", known + 2), format!("up to {known}"));
    assert_error(&open_error(&path), StoreErrorKind::UnsupportedVersion, &["new.db", &newer, &readable]);
    assert_eq!(fs::read(&path).expect("can be read"), before);
}

#[test]
fn places_that_cannot_be_written_are_named() {
    let folder = temp_folder();
    assert_error(&open_error(folder.path()), StoreErrorKind::Disk, &["is a folder"]);
    assert_error(&open_error(Path::new("/proc/windlass.db")), StoreErrorKind::Disk, &["/proc/windlass.db"]);
    assert_error(
        &open_error(Path::new("/proc/new/windlass.db")),
        StoreErrorKind::Disk,
        &["/proc/new", "cannot be created"],
    );
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    assert_error(&open_error(&file.join("windlass.db")), StoreErrorKind::Disk, &["file/windlass.db"]);
    let missing = folder.path().join("missing.db");
    assert_error(
        &SqliteStore::salvage(&missing).expect_err("not made"),
        StoreErrorKind::Disk,
        &["missing.db"],
    );
    assert!(!missing.exists());
}

#[tokio::test]
async fn a_file_that_cannot_be_written_keeps_what_it_has() {
    let folder = temp_folder();
    let path = folder.path().join("kept.db");
    let kept = fill_store(&path).await;
    let mut permissions = fs::metadata(&path).expect("there").permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).expect("set");
    if fs::OpenOptions::new().append(true).open(&path).is_ok() {
        // Permissions do not bind the superuser, so the test runs again as an unprivileged user.
        return rerun_unprivileged("a_file_that_cannot_be_written_keeps_what_it_has");
    }
    let before = fs::read(&path).expect("can be read");
    assert_error(&open_error(&path), StoreErrorKind::Disk, &["kept.db", "is read-only"]);
    assert_eq!(fs::read(&path).expect("can be read"), before);
    let store = SqliteStore::salvage(&path).expect("can be read");
    let run = RunId::from("run-03");
    assert_eq!(Store::load_journal(&store, &run, 0).await.expect("read"), kept[&run]);
    let error = store.acquire_lease(&run, lease_claim("bea"), None).await.expect_err("not written");
    assert_error(&error, StoreErrorKind::Disk, &["run `run-03`", "kept.db", "not written to"]);
}

/// Runs one of these tests again without superuser rights, if the system has `setpriv`.
fn rerun_unprivileged(test: &str) {
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = std::process::Command::new("setpriv");
    command.args(nobody).arg(std::env::current_exe().expect("this binary")).args([test, "--exact"]);
    let Ok(output) = command.output() else { return };
    // 126 and 127: an unprivileged user cannot reach this binary.
    let is_run = !matches!(output.status.code(), Some(126 | 127));
    assert!(!is_run || output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Returns the leaf pages of a table or an index, from SQLite's `dbstat`.
fn leaf_pages(path: &Path, of: &str) -> Vec<usize> {
    let db = rusqlite::Connection::open(path).expect("opens");
    let mut select =
        db.prepare("SELECT pageno FROM dbstat WHERE name = ?1 AND pagetype = 'leaf'").expect("a query");
    let pages = select.query_map([of], |row| row.get::<_, u32>(0).map(|page| page as usize)).expect("rows");
    pages.collect::<Result<_, _>>().expect("numbers")
}

const PAGE_SIZE: usize = 4096;

fn copy_with_change(path: &Path, to: PathBuf, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = fs::read(path).expect("can be read");
    change(&mut bytes);
    fs::write(&to, bytes).expect("written");
    to
}

/// Loads every run and returns the number of intact runs and the errors. Returned lines must equal the written
/// ones; every lost run must be named in an error.
async fn load_all_runs(
    store: &SqliteStore,
    kept: &BTreeMap<RunId, Vec<JournalLine>>,
) -> (usize, Vec<StoreError>) {
    let mut whole = 0;
    let mut errors = Vec::new();
    for (run, lines) in kept {
        match Store::load_journal(store, run, 0).await {
            Ok(found) if found == *lines => whole += 1,
            // The run's row was lost, and `acquire` reports it.
            Ok(found) if found.is_empty() => {
                let error =
                    store.acquire_lease(run, lease_claim("bea"), None).await.expect_err("it is not found");
                assert!(
                    matches!(error.kind(), StoreErrorKind::RunNotFound | StoreErrorKind::Corrupt),
                    "{error}"
                );
                errors.push(error);
            }
            // The hash chain detects text that was changed in place.
            Ok(found) => match decode_lines(&found) {
                Ok(_) => panic!("run `{run}` was changed, and nobody noticed: {} of {LINES}", found.len()),
                Err(error) => {
                    errors.push(StoreError::with_kind(
                        StoreErrorKind::Corrupt,
                        format!("run `{run}`: {error}"),
                    ));
                }
            },
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
                assert!(error.to_string().contains(run.as_str()), "the run is not named: {error}");
                errors.push(error);
            }
        }
    }
    (whole, errors)
}

#[tokio::test]
async fn a_damaged_page_costs_the_runs_that_stand_on_it_and_no_others() {
    let folder = temp_folder();
    let path = folder.path().join("whole.db");
    let kept = fill_store(&path).await;
    let pages = leaf_pages(&path, "lines");
    assert!(pages.len() > 20, "{pages:?}");
    let page = pages[pages.len() / 2];
    let damaged = copy_with_change(&path, folder.path().join("damaged.db"), |bytes| {
        bytes[(page - 1) * PAGE_SIZE..page * PAGE_SIZE].fill(0xa5);
    });
    let store = SqliteStore::open(&damaged).expect("the rest is whole");
    let (whole, errors) = load_all_runs(&store, &kept).await;
    assert!((RUNS - 2..RUNS).contains(&whole), "{whole} of {RUNS} are whole");
    assert_error(
        &errors[0],
        StoreErrorKind::Corrupt,
        &["run `run-", "damaged.db", "of 40 records, the first"],
    );
    // The other runs stay usable.
    let lease = store.acquire_lease(&"run-00".into(), lease_claim("bea"), None).await.expect("taken");
    let more = journal_lines("run-00", LINES + 1).split_off(LINES as usize);
    Store::append_journal(&store, &lease, LINES, more, Durability::Sync).await.expect("kept");
    assert_eq!(SessionStore::load_session(&store, &"session".into()).await.expect("read").items.len(), 20);
}

#[tokio::test]
async fn a_flipped_bit_in_a_record_is_found() {
    let folder = temp_folder();
    let path = folder.path().join("whole.db");
    let kept = fill_store(&path).await;
    let damaged = copy_with_change(&path, folder.path().join("damaged.db"), |bytes| {
        let at = bytes.windows(12).position(|text| text == b"run-07 17 pa").expect("it is there");
        bytes[at + 10] ^= 1;
    });
    let store = SqliteStore::open(&damaged).expect("opens");
    let (whole, errors) = load_all_runs(&store, &kept).await;
    assert_eq!(whole, RUNS - 1);
    assert!(errors[0].to_string().contains("record 17 is not what was written"), "{}", errors[0]);
    let error = windlass::store::load_paused(&store, &"run-07".into()).await.expect_err("found");
    assert_eq!(
        error.to_string(),
        "run `run-07` cannot be read: record 17 is not what was written: its hash does not match"
    );
}

#[tokio::test]
async fn a_flipped_bit_in_a_session_is_found() {
    let folder = temp_folder();
    let path = folder.path().join("whole.db");
    fill_store(&path).await;
    let damaged = copy_with_change(&path, folder.path().join("damaged.db"), |bytes| {
        let at = bytes.windows(7).position(|text| text == b"item 11").expect("it is there");
        bytes[at + 6] ^= 1;
    });
    let store = SqliteStore::open(&damaged).expect("opens");
    let error = SessionStore::load_session(&store, &"session".into()).await.expect_err("found");
    assert_error(
        &error,
        StoreErrorKind::Corrupt,
        &["session `session`", "damaged.db", "does not fit its hash"],
    );
}

#[tokio::test]
async fn no_damage_goes_unnoticed_or_makes_a_panic() {
    let folder = temp_folder();
    let path = folder.path().join("whole.db");
    let kept = fill_store(&path).await;
    let whole = fs::read(&path).expect("can be read");
    let pages = whole.len() / PAGE_SIZE;
    // Damages every page in turn, in every way.
    for (page, way) in (0..pages).flat_map(|page| (0..DAMAGE_KINDS).map(move |way| (page, way))) {
        let damaged = copy_with_change(&path, folder.path().join("damaged.db"), |bytes| {
            damage_page(&mut bytes[page * PAGE_SIZE..(page + 1) * PAGE_SIZE], way);
        });
        match SqliteStore::open(&damaged) {
            Ok(store) => {
                load_all_runs(&store, &kept).await;
                for error in [
                    store.list_runs(&RunQuery::default()).await.err(),
                    store.list_sessions(None, 9).await.err(),
                ]
                .into_iter()
                .flatten()
                {
                    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
                }
            }
            Err(error) => assert_error(&error, StoreErrorKind::Corrupt, &["damaged.db"]),
        }
        for file in ["damaged.db-wal", "damaged.db-shm"] {
            fs::remove_file(folder.path().join(file)).ok();
        }
    }
}

const DAMAGE_KINDS: usize = 6;

fn damage_page(page: &mut [u8], way: usize) {
    match way {
        0 => page.fill(0),
        1 => page[8..].rotate_left(7),
        2 => page[PAGE_SIZE / 2..].fill(0xff),
        // The number of cells, and the offset of the last one.
        3 => page[4] ^= 4,
        4 => page[9] ^= 0x10,
        _ => page[3_000] ^= 1,
    }
}

#[tokio::test]
async fn what_is_left_of_a_file_that_was_cut_off_can_be_read() {
    let folder = temp_folder();
    let path = folder.path().join("whole.db");
    let kept = fill_store(&path).await;
    let mut salvaged = Vec::new();
    for (tenths, more) in [(9, 0), (7, 100), (5, 0), (3, 4000)] {
        let cut = copy_with_change(&path, folder.path().join(format!("{tenths}.db")), |bytes| {
            bytes.truncate(bytes.len() / PAGE_SIZE * tenths / 10 * PAGE_SIZE + more);
        });
        let before = fs::read(&cut).expect("can be read");
        assert_error(&open_error(&cut), StoreErrorKind::Corrupt, &["cut off", "SqliteStore::salvage"]);
        let store = SqliteStore::salvage(&cut).expect("the first page is whole");
        let (whole, errors) = load_all_runs(&store, &kept).await;
        assert_eq!(whole + errors.len(), RUNS);
        salvaged.push(whole);
        drop(store);
        assert_eq!(fs::read(&cut).expect("can be read"), before, "salvage changes nothing");
    }
    assert!(salvaged.is_sorted_by(|more, less| more > less), "{salvaged:?}");
    assert!(salvaged[0] > RUNS / 2, "{salvaged:?}");
    let stump = copy_with_change(&path, folder.path().join("stump.db"), |bytes| bytes.truncate(1_000));
    assert_error(&open_error(&stump), StoreErrorKind::Corrupt, &["stump.db"]);
    assert_error(
        &SqliteStore::salvage(&stump).expect_err("nothing is left"),
        StoreErrorKind::Corrupt,
        &["stump.db"],
    );
}
