//! Killed processes, concurrent writers, and searches during writes.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use windlass_search::{ChunkingOptions, EmbedError, Embedder, EmbeddingPurpose, Index, SearchSignals};

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
    let report = open_index(Path::new(&index)).add_path(folder).run().expect("runs");
    println!("added {}", report.added);
}

/// Opens an index with small chunks, so that little text fills several batches.
fn open_index(path: &Path) -> Index {
    let chunking = ChunkingOptions { max_tokens: 100, overlap_tokens: 0 };
    Index::options().chunking(chunking).open(path).expect("opens")
}

fn spawn_indexer(index: &Path, folder: &Path) -> Child {
    Command::new(std::env::current_exe().expect("has a path"))
        .args(["--exact", "child", "--nocapture"])
        .env(INDEX_VARIABLE, index)
        .env(FOLDER_VARIABLE, folder)
        .stdout(Stdio::piped())
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
    // Both processes add the same folder and share its files.
    let mut added: Vec<usize> = Vec::new();
    let children = [spawn_indexer(&path, &one), spawn_indexer(&path, &one)];
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
        for child in children {
            let output = child.wait_with_output().expect("ends");
            assert!(output.status.success());
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let count =
                said.split("added ").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            added.push(count.unwrap_or_else(|| panic!("{said}")));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(added.iter().sum::<usize>(), 120, "every file is indexed by one of them: {added:?}");
    assert!(added.iter().all(|count| *count > 0), "they share the work: {added:?}");
    let workers = fs::read_dir(folder.path()).expect("lists").flatten();
    let workers = workers.filter(|entry| entry.file_name().to_string_lossy().contains("-worker-"));
    assert_eq!(workers.count(), 0, "no lock file is left");
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

/// An embedder that fails after some calls, and counts the texts that it has embedded.
struct FailingEmbedder {
    calls_left: AtomicUsize,
    texts: Arc<AtomicUsize>,
}

impl Embedder for FailingEmbedder {
    fn name(&self) -> &str {
        "failing"
    }

    fn dimensions(&self) -> usize {
        4
    }

    fn batch_size(&self) -> usize {
        16
    }

    fn embed(&self, texts: &[&str], _: EmbeddingPurpose) -> Result<Vec<Vec<f32>>, EmbedError> {
        let take = |left: usize| left.checked_sub(1);
        if self.calls_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            return Err(EmbedError::new("failing", "the quota is used up"));
        }
        self.texts.fetch_add(texts.len(), Ordering::SeqCst);
        Ok(texts.iter().map(|text| vec![1.0, text.len() as f32, 0.5, 2.0]).collect())
    }
}

fn open_failing(path: &Path, calls: usize) -> (Index, Arc<AtomicUsize>) {
    let texts = Arc::new(AtomicUsize::new(0));
    let embedder = FailingEmbedder { calls_left: AtomicUsize::new(calls), texts: texts.clone() };
    let chunking = ChunkingOptions { max_tokens: 100, overlap_tokens: 0 };
    (Index::options().chunking(chunking).embedder(embedder).open(path).expect("opens"), texts)
}

/// Vectors cost money or minutes. A provider that fails late, in one large file or in many, loses none.
#[test]
fn vectors_survive_a_provider_that_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let docs = folder.path().join("docs");
    fs::create_dir(&docs).expect("made");
    // One large file and some small ones; no two chunks are equal.
    for (file, lines) in [(0, 3000), (1, 300), (2, 300), (3, 300)] {
        let line =
            |at: usize| format!("file {file} line {at} is a line of its own with several more words\n\n");
        fs::write(docs.join(format!("{file}.txt")), (0..lines).map(line).collect::<String>())
            .expect("written");
    }
    let path = folder.path().join("failing.index");
    let mut paid = 0;
    for calls in [3, 20, 7] {
        let (index, texts) = open_failing(&path, calls);
        let failed = index.add_path(&docs).run().expect_err("fails");
        assert!(failed.to_string().contains("quota"), "{failed}");
        paid += texts.load(Ordering::SeqCst);
        assert!(texts.load(Ordering::SeqCst) > 16 * (calls - 3), "nearly all calls are full");
    }
    let (index, texts) = open_failing(&path, usize::MAX);
    index.add_path(&docs).run().expect("runs");
    paid += texts.load(Ordering::SeqCst);
    assert_eq!(paid as u64, index.chunk_count().expect("counts"), "no text was embedded twice");
    let left: i64 = rusqlite::Connection::open(&path)
        .and_then(|db| db.query_row("SELECT count(*) FROM pending_vectors", [], |row| row.get(0)))
        .expect("counts");
    assert_eq!(left, 0);
}
