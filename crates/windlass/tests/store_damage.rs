//! Files that are not ours, not whole, not readable or not writable: the error says which file, what it is and what
//! was kept, and nothing else is lost.

#![cfg(feature = "sqlite")]
#![allow(clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use windlass::core::{Chain, Entry, Item, Line, Record, RunId, Timestamp, read_lines};
use windlass::session::SessionStore;
use windlass::store::{Durability, LeaseClaim, Store};
use windlass::{SqliteStore, StoreError, StoreErrorKind};

const RUNS: usize = 24;
const LINES: u64 = 40;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// The lines of a journal, different for each run.
fn lines(run: &str, count: u64) -> Vec<Line> {
    let mut chain = Chain::default();
    let item = |seq: u64| std::sync::Arc::new(Item::user(format!("{run} {seq} {}", "padding ".repeat(12))));
    let entry = |seq| Entry::InputAdded(windlass::core::InputAdded { items: vec![item(seq)] });
    let record = |seq| Record { seq, at: Timestamp(seq), path: Vec::new(), entry: entry(seq) };
    (0..count).map(|seq| chain.add(&record(seq))).collect()
}

fn claim(owner: &str) -> LeaseClaim<'_> {
    LeaseClaim { owner, now: Timestamp(1_000), until: Timestamp(2_000) }
}

/// A store with some runs and a session, closed again, and what its runs hold.
async fn filled(path: &Path) -> BTreeMap<RunId, Vec<Line>> {
    let store = SqliteStore::open(path).expect("opens");
    let mut kept = BTreeMap::new();
    for name in (0..RUNS).map(|one| format!("run-{one:02}")) {
        let run = RunId::from(name.as_str());
        let lease = store.create(&run, &"agent".into(), claim("ann")).await.expect("made");
        let lines = lines(&name, LINES);
        Store::append(&store, &lease, 0, lines.clone(), Durability::Now).await.expect("kept");
        store.release(&lease).await.expect("given back");
        kept.insert(run, lines);
    }
    let items = (0..20).map(|one| std::sync::Arc::new(Item::user(format!("item {one}")))).collect();
    SessionStore::append(&store, &"session".into(), items).await.expect("kept");
    kept
}

fn refused(path: &Path) -> StoreError {
    SqliteStore::open(path).expect_err("it is refused")
}

#[track_caller]
fn says(error: &StoreError, kind: StoreErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn a_database_of_another_program_is_refused_and_left_alone() {
    let folder = folder();
    let path = folder.path().join("mail.db");
    let db = rusqlite::Connection::open(&path).expect("opens");
    db.execute_batch("PRAGMA application_id = 0x4d41494c; CREATE TABLE letters (id INTEGER)").expect("made");
    drop(db);
    let before = fs::read(&path).expect("can be read");
    let error = refused(&path);
    says(&error, StoreErrorKind::Corrupt, &["mail.db", "another program", "0x4d41494c", "`letters`"]);
    assert_eq!(fs::read(&path).expect("can be read"), before);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing was put beside it");
    says(
        &SqliteStore::salvage(&path).expect_err("refused too"),
        StoreErrorKind::Corrupt,
        &["another program"],
    );
}

#[test]
fn a_database_without_a_mark_is_not_taken_for_an_empty_one() {
    let folder = folder();
    let path = folder.path().join("notes.db");
    let db = rusqlite::Connection::open(&path).expect("opens");
    db.execute_batch("CREATE TABLE runs (id INTEGER)").expect("made");
    drop(db);
    says(&refused(&path), StoreErrorKind::Corrupt, &["notes.db", "another program", "`runs`"]);
}

#[test]
fn files_of_other_kinds_are_named() {
    let folder = folder();
    let text = folder.path().join("todo.txt");
    fs::write(&text, "Buy milk.\nAnd bread.\n".repeat(300)).expect("written");
    says(
        &refused(&text),
        StoreErrorKind::Corrupt,
        &["todo.txt", "it is a text that begins with \"Buy milk.\""],
    );
    let short = folder.path().join("short.txt");
    fs::write(&short, "x").expect("written");
    says(&refused(&short), StoreErrorKind::Corrupt, &["short.txt", "it is a text"]);
    let binary = folder.path().join("picture.png");
    fs::write(&binary, [0x89, 0x50, 0x4e, 0x47, 0, 1, 2, 3].repeat(500)).expect("written");
    says(&refused(&binary), StoreErrorKind::Corrupt, &["picture.png", "another kind"]);
    assert_eq!(fs::read(&short).expect("can be read"), b"x");
}

#[tokio::test]
async fn an_empty_file_becomes_a_store() {
    let folder = folder();
    let path = folder.path().join("new.db");
    fs::write(&path, "").expect("written");
    assert_eq!(SqliteStore::open(&path).expect("opens").runs().await.expect("read").len(), 0);
    assert!(SqliteStore::salvage(&path).expect("ours now").runs().await.expect("read").is_empty());
}

#[tokio::test]
async fn a_newer_version_is_refused_with_its_number() {
    let folder = folder();
    let path = folder.path().join("new.db");
    filled(&path).await;
    let db = rusqlite::Connection::open(&path).expect("opens");
    db.pragma_update(None, "user_version", 7).expect("set");
    drop(db);
    let before = fs::read(&path).expect("can be read");
    says(&refused(&path), StoreErrorKind::TooNew, &["new.db", "version 7", "up to 1"]);
    assert_eq!(fs::read(&path).expect("can be read"), before);
}

#[test]
fn places_that_cannot_be_written_are_named() {
    let folder = folder();
    says(&refused(folder.path()), StoreErrorKind::Disk, &["is a folder"]);
    says(&refused(Path::new("/proc/windlass.db")), StoreErrorKind::Disk, &["/proc/windlass.db"]);
    says(
        &refused(Path::new("/proc/new/windlass.db")),
        StoreErrorKind::Disk,
        &["/proc/new", "cannot be made"],
    );
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    says(&refused(&file.join("windlass.db")), StoreErrorKind::Disk, &["file/windlass.db"]);
    let missing = folder.path().join("missing.db");
    says(&SqliteStore::salvage(&missing).expect_err("not made"), StoreErrorKind::Disk, &["missing.db"]);
    assert!(!missing.exists());
}

#[tokio::test]
async fn a_file_that_cannot_be_written_keeps_what_it_has() {
    let folder = folder();
    let path = folder.path().join("kept.db");
    let kept = filled(&path).await;
    let mut permissions = fs::metadata(&path).expect("there").permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).expect("set");
    if fs::OpenOptions::new().append(true).open(&path).is_ok() {
        // Permissions do not bind the superuser, so somebody else has to try.
        return as_nobody("a_file_that_cannot_be_written_keeps_what_it_has");
    }
    let before = fs::read(&path).expect("can be read");
    says(&refused(&path), StoreErrorKind::Disk, &["kept.db", "may be read and not written"]);
    assert_eq!(fs::read(&path).expect("can be read"), before);
    let store = SqliteStore::salvage(&path).expect("can be read");
    let run = RunId::from("run-03");
    assert_eq!(Store::load(&store, &run, 0).await.expect("read"), kept[&run]);
    let error = store.acquire(&run, claim("bea")).await.expect_err("not written");
    says(&error, StoreErrorKind::Disk, &["run `run-03`", "kept.db", "not written to"]);
}

/// Runs one of these tests again without the superuser's rights, where the system has a way to.
fn as_nobody(test: &str) {
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = std::process::Command::new("setpriv");
    command.args(nobody).arg(std::env::current_exe().expect("this binary")).args([test, "--exact"]);
    let Ok(output) = command.output() else { return };
    // 126 and 127: this binary is where nobody else can reach it.
    let is_run = !matches!(output.status.code(), Some(126 | 127));
    assert!(!is_run || output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The pages of a table or an index, from the file's own account of itself.
fn pages(path: &Path, of: &str) -> Vec<usize> {
    let db = rusqlite::Connection::open(path).expect("opens");
    let mut select =
        db.prepare("SELECT pageno FROM dbstat WHERE name = ?1 AND pagetype = 'leaf'").expect("a query");
    let pages = select.query_map([of], |row| row.get::<_, u32>(0).map(|page| page as usize)).expect("rows");
    pages.collect::<Result<_, _>>().expect("numbers")
}

const PAGE: usize = 4096;

fn with_bytes(path: &Path, to: PathBuf, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = fs::read(path).expect("can be read");
    change(&mut bytes);
    fs::write(&to, bytes).expect("written");
    to
}

/// Loads every run. What is given must be what was written; what is not given must be named.
async fn look(store: &SqliteStore, kept: &BTreeMap<RunId, Vec<Line>>) -> (usize, Vec<StoreError>) {
    let mut whole = 0;
    let mut errors = Vec::new();
    for (run, lines) in kept {
        match Store::load(store, run, 0).await {
            Ok(found) if found == *lines => whole += 1,
            // Its name was lost, and whoever asks for it is told so.
            Ok(found) if found.is_empty() => {
                let error = store.acquire(run, claim("bea")).await.expect_err("it is not found");
                assert!(
                    matches!(error.kind(), StoreErrorKind::NoSuchRun | StoreErrorKind::Corrupt),
                    "{error}"
                );
                errors.push(error);
            }
            // Text that was changed in place is found by the chain.
            Ok(found) => match read_lines(&found) {
                Ok(_) => panic!("run `{run}` was changed, and nobody noticed: {} of {LINES}", found.len()),
                Err(error) => {
                    errors.push(StoreError::of(StoreErrorKind::Corrupt, format!("run `{run}`: {error}")));
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
    let folder = folder();
    let path = folder.path().join("whole.db");
    let kept = filled(&path).await;
    let pages = pages(&path, "lines");
    assert!(pages.len() > 20, "{pages:?}");
    let page = pages[pages.len() / 2];
    let damaged = with_bytes(&path, folder.path().join("damaged.db"), |bytes| {
        bytes[(page - 1) * PAGE..page * PAGE].fill(0xa5);
    });
    let store = SqliteStore::open(&damaged).expect("the rest is whole");
    let (whole, errors) = look(&store, &kept).await;
    assert!((RUNS - 2..RUNS).contains(&whole), "{whole} of {RUNS} are whole");
    says(&errors[0], StoreErrorKind::Corrupt, &["run `run-", "damaged.db", "of 40 records, the first"]);
    // And life goes on for the others.
    let lease = store.acquire(&"run-00".into(), claim("bea")).await.expect("taken");
    let more = lines("run-00", LINES + 1).split_off(LINES as usize);
    Store::append(&store, &lease, LINES, more, Durability::Now).await.expect("kept");
    assert_eq!(SessionStore::load(&store, &"session".into()).await.expect("read").items.len(), 20);
}

#[tokio::test]
async fn a_flipped_bit_in_a_record_is_found() {
    let folder = folder();
    let path = folder.path().join("whole.db");
    let kept = filled(&path).await;
    let damaged = with_bytes(&path, folder.path().join("damaged.db"), |bytes| {
        let at = bytes.windows(12).position(|text| text == b"run-07 17 pa").expect("it is there");
        bytes[at + 10] ^= 1;
    });
    let store = SqliteStore::open(&damaged).expect("opens");
    let (whole, errors) = look(&store, &kept).await;
    assert_eq!(whole, RUNS - 1);
    assert!(errors[0].to_string().contains("record 17 is not what was written"), "{}", errors[0]);
    let error = windlass::store::paused(&store, &"run-07".into()).await.expect_err("found");
    assert_eq!(
        error.to_string(),
        "run `run-07` cannot be read: record 17 is not what was written: its hash does not fit"
    );
}

#[tokio::test]
async fn a_flipped_bit_in_a_session_is_found() {
    let folder = folder();
    let path = folder.path().join("whole.db");
    filled(&path).await;
    let damaged = with_bytes(&path, folder.path().join("damaged.db"), |bytes| {
        let at = bytes.windows(7).position(|text| text == b"item 11").expect("it is there");
        bytes[at + 6] ^= 1;
    });
    let store = SqliteStore::open(&damaged).expect("opens");
    let error = SessionStore::load(&store, &"session".into()).await.expect_err("found");
    says(&error, StoreErrorKind::Corrupt, &["session `session`", "damaged.db", "does not fit its hash"]);
}

#[tokio::test]
async fn no_damage_goes_unnoticed_or_makes_a_panic() {
    let folder = folder();
    let path = folder.path().join("whole.db");
    let kept = filled(&path).await;
    let whole = fs::read(&path).expect("can be read");
    let pages = whole.len() / PAGE;
    // Every page in turn, in every way.
    for (page, way) in (0..pages).flat_map(|page| (0..WAYS).map(move |way| (page, way))) {
        let damaged = with_bytes(&path, folder.path().join("damaged.db"), |bytes| {
            damage(&mut bytes[page * PAGE..(page + 1) * PAGE], way);
        });
        match SqliteStore::open(&damaged) {
            Ok(store) => {
                look(&store, &kept).await;
                for error in [store.runs().await.err(), store.sessions().await.err()].into_iter().flatten() {
                    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
                }
            }
            Err(error) => says(&error, StoreErrorKind::Corrupt, &["damaged.db"]),
        }
        for file in ["damaged.db-wal", "damaged.db-shm"] {
            fs::remove_file(folder.path().join(file)).ok();
        }
    }
}

const WAYS: usize = 6;

fn damage(page: &mut [u8], way: usize) {
    match way {
        0 => page.fill(0),
        1 => page[8..].rotate_left(7),
        2 => page[PAGE / 2..].fill(0xff),
        // How many cells there are, and where the last of them is.
        3 => page[4] ^= 4,
        4 => page[9] ^= 0x10,
        _ => page[3_000] ^= 1,
    }
}

#[tokio::test]
async fn what_is_left_of_a_file_that_was_cut_off_can_be_read() {
    let folder = folder();
    let path = folder.path().join("whole.db");
    let kept = filled(&path).await;
    let mut salvaged = Vec::new();
    for (tenths, more) in [(9, 0), (7, 100), (5, 0), (3, 4000)] {
        let cut = with_bytes(&path, folder.path().join(format!("{tenths}.db")), |bytes| {
            bytes.truncate(bytes.len() / PAGE * tenths / 10 * PAGE + more);
        });
        let before = fs::read(&cut).expect("can be read");
        says(&refused(&cut), StoreErrorKind::Corrupt, &["cut off", "SqliteStore::salvage"]);
        let store = SqliteStore::salvage(&cut).expect("the first page is whole");
        let (whole, errors) = look(&store, &kept).await;
        assert_eq!(whole + errors.len(), RUNS);
        salvaged.push(whole);
        drop(store);
        assert_eq!(fs::read(&cut).expect("can be read"), before, "salvage changes nothing");
    }
    assert!(salvaged.is_sorted_by(|more, less| more > less), "{salvaged:?}");
    assert!(salvaged[0] > RUNS / 2, "{salvaged:?}");
    let stump = with_bytes(&path, folder.path().join("stump.db"), |bytes| bytes.truncate(1_000));
    says(&refused(&stump), StoreErrorKind::Corrupt, &["stump.db"]);
    says(&SqliteStore::salvage(&stump).expect_err("nothing is left"), StoreErrorKind::Corrupt, &["stump.db"]);
}
