//! Killed processes, concurrent writers, and searches during writes.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use windlass_search::{ChunkingOptions, Index, SearchSignals};

const INDEX_VARIABLE: &str = "WINDLASS_TEST_INDEX";
const FOLDER_VARIABLE: &str = "WINDLASS_TEST_FOLDER";
/// Generous upper bound for a test; not a measurement.
const TEST_TIMEOUT: Duration = Duration::from_secs(240);

/// Entry point of the child processes; does nothing unless their environment variables are set.
#[test]
fn child() {
    let (Ok(index), Ok(folder)) = (std::env::var(INDEX_VARIABLE), std::env::var(FOLDER_VARIABLE)) else {
        return;
    };
    open_index(Path::new(&index)).add_path(folder).run().expect("runs");
}

/// Opens an index with small chunks, so that little text fills several batches.
fn open_index(path: &Path) -> Index {
    let chunking = ChunkingOptions { max_tokens: 100, overlap_tokens: 0 };
    Index::options().chunking(chunking).open(path).expect("opens")
}

fn spawn_indexer(index: &Path, folder: &Path) -> Child {
    Command::new(std::env::current_exe().expect("has a path"))
        .args(["--exact", "child"])
        .env(INDEX_VARIABLE, index)
        .env(FOLDER_VARIABLE, folder)
        .stdout(Stdio::null())
        .spawn()
        .expect("starts")
}

/// Writes enough files for several batches.
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

fn assert_all_found(index: &Index, count: usize) {
    for at in (0..count).step_by(9) {
        let found =
            index.search(format!("marker{at}")).signals(SearchSignals::Bm25Only).run().expect("searches");
        let names: Vec<&str> = found.hits.iter().map(|hit| hit.file_name.as_str()).collect();
        assert!(
            !names.is_empty() && names.iter().all(|name| *name == format!("file{at}.txt")),
            "{at}: {names:?}"
        );
    }
}

fn wait_for_chunks(index: &Index, least: u64) {
    let began = Instant::now();
    while index.chunk_count().expect("counts") < least {
        assert!(began.elapsed() < TEST_TIMEOUT, "nothing was written in {TEST_TIMEOUT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_a_killed_process_wrote_is_whole_and_is_gone_on_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let (docs, path) = (folder.path().join("docs"), folder.path().join("killed.index"));
    write_files(&docs, 250);
    let index = open_index(&path);
    let mut chunks = 0;
    for _ in 0..2 {
        let mut child = spawn_indexer(&path, &docs);
        wait_for_chunks(&index, chunks + 1);
        child.kill().expect("killed");
        child.wait().expect("ends");
        let check = rusqlite::Connection::open(&path).expect("opens");
        let whole: String = check.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("checks");
        assert_eq!(whole, "ok");
        // Every indexed file has all its chunks, and every chunk is in a segment.
        let torn: i64 = check
            .query_row("SELECT count(*) FROM files WHERE chunks <> (SELECT count(*) FROM chunks WHERE file = files.id)", [], |row| row.get(0))
            .expect("counts");
        assert_eq!(torn, 0);
        let in_segments: i64 = check
            .query_row("SELECT sum(count) - (SELECT count(*) FROM deleted_chunks) FROM segments", [], |row| {
                row.get(0)
            })
            .expect("counts");
        chunks = index.chunk_count().expect("counts");
        assert_eq!(u64::try_from(in_segments).expect("is positive"), chunks);
    }
    let report = index.add_path(&docs).run().expect("goes on");
    assert_eq!(report.added + report.unchanged, 250, "{report}");
    assert!(report.unchanged > 0, "what was written before is not read again: {report}");
    assert_all_found(&index, 250);
}

#[test]
fn two_processes_write_one_index_and_searches_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let path = folder.path().join("shared.index");
    write_files(&one, 120);
    fs::create_dir(&two).expect("made");
    fs::write(two.join("heron.txt"), "the quiet heron waits").expect("written");
    let index = open_index(&path);
    index.add_path(&two).run().expect("runs");
    // Both processes add the same folder; the later writer replaces the files of the earlier one.
    let mut children = [spawn_indexer(&path, &one), spawn_indexer(&path, &one)];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let found = index.search("heron").run().expect("searches while others write");
                    assert_eq!(found.hits[0].file_name, "heron.txt");
                }
            });
        }
        for child in &mut children {
            assert!(child.wait().expect("ends").success());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_all_found(&index, 120);
    let files = index.list_files().expect("lists");
    assert_eq!(files.len(), 121, "no file is there twice");
    // This process can still write.
    fs::write(one.join("file7.txt"), "only a dragon now").expect("written");
    assert_eq!(index.add_path(&one).run().expect("runs").changed, 1);
    assert_eq!(
        index.search("dragon").signals(SearchSignals::Bm25Only).run().expect("searches").hits[0].file_name,
        "file7.txt"
    );
    assert_eq!(
        index.search("marker7").signals(SearchSignals::Bm25Only).run().expect("searches").hits.len(),
        0
    );
}
