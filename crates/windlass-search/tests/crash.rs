//! Processes that are killed, two that write, and searches while something is written.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use windlass_search::{Chunking, Index, Signals};

const INDEX: &str = "WINDLASS_TEST_INDEX";
const FOLDER: &str = "WINDLASS_TEST_FOLDER";
/// A generous guard, not a measurement.
const PATIENCE: Duration = Duration::from_secs(240);

/// What the processes of these tests do. Without its variables it does nothing.
#[test]
fn child() {
    let (Ok(index), Ok(folder)) = (std::env::var(INDEX), std::env::var(FOLDER)) else { return };
    open(Path::new(&index)).add(folder).run().expect("runs");
}

/// Small chunks, so that there are several batches in little text.
fn open(path: &Path) -> Index {
    let chunking = Chunking { max_tokens: 100, overlap_tokens: 0 };
    Index::options().chunking(chunking).open(path).expect("opens")
}

fn start(index: &Path, folder: &Path) -> Child {
    Command::new(std::env::current_exe().expect("has a path"))
        .args(["--exact", "child"])
        .env(INDEX, index)
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .spawn()
        .expect("starts")
}

/// Files enough for several batches.
fn write_files(folder: &Path, count: usize) {
    fs::create_dir_all(folder).expect("made");
    for at in 0..count {
        let text: String = (0..40)
            .map(|paragraph| {
                format!("marker{at} paragraph {paragraph} {}\n\n", "some words of the text ".repeat(18))
            })
            .collect();
        fs::write(folder.join(format!("file{at}.txt")), text).expect("written");
    }
}

fn check(index: &Index, count: usize) {
    for at in (0..count).step_by(9) {
        let found = index.search(format!("marker{at}")).signals(Signals::Words).run().expect("searches");
        let names: Vec<&str> = found.hits.iter().map(|hit| hit.name.as_str()).collect();
        assert!(
            !names.is_empty() && names.iter().all(|name| *name == format!("file{at}.txt")),
            "{at}: {names:?}"
        );
    }
}

fn wait_for_chunks(index: &Index, least: u64) {
    let began = Instant::now();
    while index.chunks().expect("counts") < least {
        assert!(began.elapsed() < PATIENCE, "nothing was written in {PATIENCE:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_a_killed_process_wrote_is_whole_and_is_gone_on_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let (docs, path) = (folder.path().join("docs"), folder.path().join("killed.index"));
    write_files(&docs, 250);
    let index = open(&path);
    let mut chunks = 0;
    for _ in 0..2 {
        let mut child = start(&path, &docs);
        wait_for_chunks(&index, chunks + 1);
        child.kill().expect("killed");
        child.wait().expect("ends");
        let check = rusqlite::Connection::open(&path).expect("opens");
        let whole: String = check.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("checks");
        assert_eq!(whole, "ok");
        // Every file that is there has all of its chunks, and every chunk is in a segment.
        let torn: i64 = check
            .query_row("SELECT count(*) FROM files WHERE chunks <> (SELECT count(*) FROM chunks WHERE file = files.id)", [], |row| row.get(0))
            .expect("counts");
        assert_eq!(torn, 0);
        let in_segments: i64 = check
            .query_row("SELECT sum(count) - (SELECT count(*) FROM dead) FROM segments", [], |row| row.get(0))
            .expect("counts");
        chunks = index.chunks().expect("counts");
        assert_eq!(u64::try_from(in_segments).expect("is positive"), chunks);
    }
    let report = index.add(&docs).run().expect("goes on");
    assert_eq!(report.added + report.unchanged, 250, "{report}");
    assert!(report.unchanged > 0, "what was written before is not read again: {report}");
    check(&index, 250);
}

#[test]
fn two_processes_write_one_index_and_searches_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let path = folder.path().join("shared.index");
    write_files(&one, 120);
    fs::create_dir(&two).expect("made");
    fs::write(two.join("heron.txt"), "the quiet heron waits").expect("written");
    let index = open(&path);
    index.add(&two).run().expect("runs");
    // Both add the same folder: the one who is last replaces what the other wrote.
    let mut children = [start(&path, &one), start(&path, &one)];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let found = index.search("heron").run().expect("searches while others write");
                    assert_eq!(found.hits[0].name, "heron.txt");
                }
            });
        }
        for child in &mut children {
            assert!(child.wait().expect("ends").success());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    check(&index, 120);
    let files = index.files().expect("lists");
    assert_eq!(files.len(), 121, "no file is there twice");
    // Writing from here goes on as well.
    fs::write(one.join("file7.txt"), "only a dragon now").expect("written");
    assert_eq!(index.add(&one).run().expect("runs").changed, 1);
    assert_eq!(
        index.search("dragon").signals(Signals::Words).run().expect("searches").hits[0].name,
        "file7.txt"
    );
    assert_eq!(index.search("marker7").signals(Signals::Words).run().expect("searches").hits.len(), 0);
}
