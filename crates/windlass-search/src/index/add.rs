//! Indexing of files, folders and documents.
//!
//! Invariant: a file whose size, modification time, attributes and chunking options are unchanged is not read
//! again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::claim::ClaimOwner;
use super::scan::{KnownFile, ScanOutcome, load_known_files, prepare_document, scan_group, update_metadata};
use super::walk::{FolderListing, FoundFile, list_folder, path_to_text};
use super::write::{WriteBatch, delete_file};
use super::{Index, IndexingProgress, IndexingReport, schema};
use crate::chunk::ChunkingOptions;
use crate::text::TextAnalyser;
use crate::{AttributeValue, DocumentFormat, FileAttributes, SearchError};

/// Maximum number of reader threads; as many files may wait for the writer.
const MAX_READER_THREADS: usize = 4;
/// Number of files that a reader thread claims at a time.
const CLAIMED_FILES: usize = 16;
/// Interval of looking for files that other processes have claimed.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A pending update of the index from a file or folder. See [`Index::add_path`].
#[must_use = "nothing is read before `run`"]
pub struct IndexUpdate<'a> {
    index: &'a Index,
    path: PathBuf,
    attributes: FileAttributes,
    removes_if_missing: bool,
    progress: Option<Box<dyn FnMut(IndexingProgress<'_>) + 'a>>,
}

/// A document to index that does not come from the file system.
#[derive(Clone, Debug)]
#[must_use]
pub struct IndexDocument {
    pub(super) name: String,
    pub(super) file_id: Option<String>,
    pub(super) format: Option<DocumentFormat>,
    pub(super) content: Vec<u8>,
    pub(super) attributes: FileAttributes,
    pub(super) chunking: Option<ChunkingOptions>,
}

impl IndexDocument {
    /// Creates a document from a text or from the bytes of a file. The extension of the name selects the format.
    pub fn new(name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.into(),
            file_id: None,
            format: None,
            content: bytes.into(),
            attributes: FileAttributes::new(),
            chunking: None,
        }
    }

    /// Sets the format, which overrides the extension of the name.
    pub fn format(mut self, kind: DocumentFormat) -> Self {
        self.format = Some(kind);
        self
    }

    /// Adds an attribute that filters can compare.
    pub fn attribute(mut self, key: &str, value: impl Into<AttributeValue>) -> Self {
        self.attributes.insert(key.to_owned(), value.into());
        self
    }
}

impl Index {
    /// Adds a file, or a folder with all its files. Adding the same path again updates it: new and changed files
    /// are read, and files that no longer exist are removed from the index.
    pub fn add_path(&self, path: impl AsRef<Path>) -> IndexUpdate<'_> {
        IndexUpdate {
            index: self,
            path: path.as_ref().to_owned(),
            attributes: FileAttributes::new(),
            removes_if_missing: false,
            progress: None,
        }
    }

    /// Updates every path that was added to the selected store, and returns the combined report.
    ///
    /// # Errors
    ///
    /// Returns [`SearchError::MissingRoot`] if a path does not exist any more, or is a folder without files now, after the
    /// others were updated. Its files stay in the index, because a disk that is not mounted looks the same as a folder
    /// that was deleted or emptied.
    pub fn refresh(&self) -> Result<IndexingReport, SearchError> {
        let roots: Vec<(String, String)> = self.inner.read_transaction(|db| {
            db.prepare("SELECT path, attributes FROM roots WHERE store = ?1 ORDER BY path")?
                .query_map([&*self.store], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })?;
        let mut whole = IndexingReport::default();
        let mut missing = None;
        for (path, attributes) in roots {
            let add = IndexUpdate {
                attributes: serde_json::from_str(&attributes).unwrap_or_default(),
                ..self.add_path(&path)
            };
            let one = match add.run() {
                Err(error @ SearchError::MissingRoot { .. }) => {
                    missing.get_or_insert(error);
                    continue;
                }
                other => other?,
            };
            whole.added += one.added;
            whole.changed += one.changed;
            whole.unchanged += one.unchanged;
            whole.removed += one.removed;
            whole.chunks_written += one.chunks_written;
            whole.bytes_read += one.bytes_read;
            whole.problems.extend(one.problems);
            whole.unlisted_problems += one.unlisted_problems;
        }
        missing.map_or(Ok(whole), Err)
    }

    /// Indexes documents that are not files. A document replaces the document of the same name.
    pub fn put_documents(
        &self,
        documents: impl IntoIterator<Item = IndexDocument>,
    ) -> Result<IndexingReport, SearchError> {
        let mut report = IndexingReport::default();
        let mut batch = WriteBatch::new(&self.inner);
        let mut analyser = TextAnalyser::default();
        for document in documents {
            let path = PathBuf::from(&document.name);
            match prepare_document(&self.inner, &self.store, document) {
                Ok((prepared, notes)) => {
                    notes.into_iter().for_each(|note| report.add_problem(&path, note));
                    report.added += 1;
                    report.chunks_written += prepared.chunks.len();
                    report.bytes_read += prepared.size;
                    batch.add_file(prepared);
                }
                Err(refused) => {
                    report.add_problem(&path, &refused.reason);
                    batch.add_rejected(refused);
                }
            }
            if batch.is_full() {
                batch.write(&self.inner, &mut analyser)?;
            }
        }
        batch.write(&self.inner, &mut analyser)?;
        Ok(report)
    }

    /// Removes a file, a folder or a document, and returns the number of removed files.
    pub fn remove_path(&self, path: impl AsRef<Path>) -> Result<usize, SearchError> {
        let path = path.as_ref();
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.inner.write_transaction(|db| {
            let mut count = usize::from(delete_file(db, &self.store, &path_to_text(path))?);
            for known in load_paths_under(db, &self.store, &whole)? {
                count += usize::from(delete_file(db, &self.store, &known)?);
            }
            db.execute(
                "DELETE FROM roots WHERE store = ?1 AND path = ?2",
                (&*self.store, path_to_text(&whole)),
            )?;
            schema::bump_generation(db)?;
            Ok(count)
        })
    }
}

impl<'a> IndexUpdate<'a> {
    /// Adds an attribute to every file of the update.
    pub fn attribute(mut self, key: &str, value: impl Into<AttributeValue>) -> Self {
        self.attributes.insert(key.to_owned(), value.into());
        self
    }

    /// Removes the files of the path from the index if it does not exist any more, or is a folder without files now. By
    /// default that is an error.
    pub fn remove_if_missing(mut self) -> Self {
        self.removes_if_missing = true;
        self
    }

    /// Sets a callback that receives the progress after each file.
    pub fn progress(mut self, tell: impl FnMut(IndexingProgress<'_>) + 'a) -> Self {
        self.progress = Some(Box::new(tell));
        self
    }

    /// Reads and indexes new and changed files, and removes files that no longer exist. Processes that index the same
    /// folder at the same time share its files; a file that another process indexed counts as unchanged.
    ///
    /// Blocks the thread; async code must call it where blocking is allowed, such as in `spawn_blocking`.
    ///
    /// # Errors
    ///
    /// Returns an error if the path cannot be accessed, the embedder fails or the index cannot be written, and
    /// [`SearchError::MissingRoot`] if the path was added before and does not exist any more, or had files and has none.
    /// Problems with single files are listed in the report.
    pub fn run(mut self) -> Result<IndexingReport, SearchError> {
        let fail = |source| SearchError::PathAccess { path: self.path.clone(), source };
        let root = std::path::absolute(&self.path).map_err(fail)?;
        if root.to_str().is_none() {
            let why =
                "its path is not UTF-8, so a refresh could not find it again; hint: add its parent folder";
            return Err(fail(std::io::Error::new(std::io::ErrorKind::InvalidInput, why)));
        }
        let mut report = IndexingReport::default();
        let walked = match list_folder(&root, &self.index.inner.limits, &mut report) {
            Ok(walked) => walked,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.is_root(&root)? => {
                FolderListing::default()
            }
            Err(error) => return Err(fail(error)),
        };
        // A mount point without its disk is an empty folder.
        if walked.files.is_empty() && !self.removes_if_missing && self.is_root(&root)? {
            let store = &*self.index.store;
            let mut known = self.index.inner.read_transaction(|db| load_paths_under(db, store, &root))?;
            // Folders that were not listed may have theirs.
            known.retain(|path| {
                !walked.unscanned.iter().any(|unseen| Path::new(path).starts_with(path_to_text(unseen)))
            });
            if !known.is_empty() || !root.exists() {
                return Err(SearchError::MissingRoot { path: root, file_count: known.len() });
            }
        }
        let (index, store) = (self.index, &*self.index.store);
        index.inner.write_transaction(|db| {
            let attributes = serde_json::to_string(&self.attributes).unwrap_or_default();
            db.execute(
                "INSERT OR REPLACE INTO roots VALUES (?1, ?2, ?3)",
                (store, path_to_text(&root), attributes),
            )?;
            Ok(())
        })?;
        let known = index.inner.read_transaction(|db| load_known_files(db, store))?;
        report.removed = self.remove_missing_files(&root, &walked)?;
        self.read_files(walked.files, &known, &mut report)?;
        Ok(report)
    }

    fn is_root(&self, root: &Path) -> Result<bool, SearchError> {
        self.index.inner.read_transaction(|db| {
            let found = "SELECT count(*) FROM roots WHERE store = ?1 AND path = ?2";
            db.query_row(found, (&*self.index.store, path_to_text(root)), |row| row.get::<_, bool>(0))
        })
    }

    fn remove_missing_files(&self, root: &Path, walked: &FolderListing) -> Result<usize, SearchError> {
        let there: std::collections::HashSet<String> =
            walked.files.iter().map(|entry| path_to_text(&entry.path)).collect();
        let store = &*self.index.store;
        let gone: Vec<String> = self
            .index
            .inner
            .read_transaction(|db| load_paths_under(db, store, root))?
            .into_iter()
            .filter(|path| !there.contains(path))
            // A path that could not be scanned may still exist.
            .filter(|path| {
                !walked.unscanned.iter().any(|unseen| Path::new(path).starts_with(path_to_text(unseen)))
            })
            .collect();
        if gone.is_empty() {
            return Ok(0);
        }
        self.index.inner.write_transaction(|db| {
            let mut count = 0;
            for path in &gone {
                count += usize::from(delete_file(db, store, path)?);
            }
            schema::bump_generation(db)?;
            Ok(count)
        })
    }

    /// Reads the files that this process can claim, then those that other processes claimed and did not write.
    fn read_files(
        &mut self,
        entries: Vec<FoundFile>,
        known: &HashMap<String, KnownFile>,
        report: &mut IndexingReport,
    ) -> Result<(), SearchError> {
        let (index, store) = (self.index, self.index.store.clone());
        let inner = &*index.inner;
        let mut progress = ProgressCounter {
            total_files: entries.len(),
            total_bytes: entries.iter().map(|entry| entry.size).sum(),
            ..ProgressCounter::default()
        };
        let owner = ClaimOwner::register(inner)?;
        let mut left = self.read_claimed(entries, known, &owner, &mut progress, report)?;
        let mut last_progress = Instant::now();
        while !left.is_empty() && last_progress.elapsed() < inner.limits.max_claim_wait {
            // The others commit a batch every few seconds.
            thread::sleep(CLAIM_POLL_INTERVAL);
            let known = inner.read_transaction(|db| load_known_files(db, &store))?;
            let count_before = left.len();
            left = self.read_claimed(left, &known, &owner, &mut progress, report)?;
            if left.len() < count_before {
                last_progress = Instant::now();
            }
        }
        for entry in left {
            report.add_problem(&entry.path, "another process has claimed the file and does not index it");
        }
        Ok(())
    }

    /// Reads the files that this process can claim, and returns those that other processes have claimed.
    fn read_claimed(
        &mut self,
        entries: Vec<FoundFile>,
        known: &HashMap<String, KnownFile>,
        owner: &ClaimOwner,
        progress: &mut ProgressCounter,
        report: &mut IndexingReport,
    ) -> Result<Vec<FoundFile>, SearchError> {
        let (index, store, attributes) = (self.index, &*self.index.store, &self.attributes);
        let inner = &*index.inner;
        let mut batch = WriteBatch::new(inner);
        let mut analyser = TextAnalyser::default();
        let workers = thread::available_parallelism().map_or(1, usize::from).min(MAX_READER_THREADS);
        let queue = Mutex::new(entries.into_iter());
        let elsewhere = Mutex::new(Vec::new());
        // The bounded channel applies backpressure: memory holds a few files, however large the folder is.
        let (done, results) = mpsc::sync_channel(workers);
        thread::scope(|scope| {
            for _ in 0..workers {
                let (queue, elsewhere, done) = (&queue, &elsewhere, done.clone());
                scope.spawn(move || {
                    loop {
                        let some: Vec<FoundFile> = {
                            let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                            queue.by_ref().take(CLAIMED_FILES).collect()
                        };
                        if some.is_empty() {
                            return;
                        }
                        let came = scan_group(inner, store, some, attributes, known, owner, |entry, came| {
                            done.send(Ok((entry, came))).is_ok()
                        });
                        match came {
                            Ok(others) => {
                                elsewhere.lock().unwrap_or_else(PoisonError::into_inner).extend(others);
                            }
                            Err(error) => {
                                let _ = done.send(Err(error));
                                return;
                            }
                        }
                    }
                });
            }
            drop(done);
            for came in results {
                let (entry, came) = came?;
                progress.files += 1;
                progress.bytes += entry.size;
                match came {
                    ScanOutcome::Unchanged => report.unchanged += 1,
                    ScanOutcome::StillRejected(why) => report.add_problem(&entry.path, why),
                    ScanOutcome::MetadataChanged(hash) => {
                        report.unchanged += 1;
                        update_metadata(inner, store, &entry, attributes, &hash)?;
                    }
                    ScanOutcome::Rejected(refused) => {
                        report.add_problem(&entry.path, &refused.reason);
                        batch.add_rejected(refused);
                    }
                    ScanOutcome::ContentRead(prepared, notes) => {
                        let is_known =
                            known.get(&prepared.path).is_some_and(|known| known.rejection.is_none());
                        *(if is_known { &mut report.changed } else { &mut report.added }) += 1;
                        report.chunks_written += prepared.chunks.len();
                        report.bytes_read += prepared.size;
                        notes.into_iter().for_each(|note| report.add_problem(&entry.path, note));
                        batch.add_file(*prepared);
                    }
                }
                if batch.is_full() {
                    batch.write(inner, &mut analyser)?;
                }
                if let Some(tell) = &mut self.progress {
                    tell(IndexingProgress {
                        files_done: progress.files,
                        total_files: progress.total_files,
                        bytes_done: progress.bytes,
                        total_bytes: progress.total_bytes,
                        path: &entry.path,
                    });
                }
            }
            batch.write(inner, &mut analyser)
        })?;
        owner.release(inner)?;
        Ok(elsewhere.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The progress over all files of an update.
#[derive(Default)]
struct ProgressCounter {
    files: usize,
    total_files: usize,
    bytes: u64,
    total_bytes: u64,
}

/// Loads the paths that the index holds at `root` or under it, rejected files included.
fn load_paths_under(db: &rusqlite::Connection, store: &str, root: &Path) -> rusqlite::Result<Vec<String>> {
    let mut found = Vec::new();
    for table in ["files", "rejected_files"] {
        let mut statement = db.prepare(&format!("SELECT path FROM {table} WHERE store = ?1"))?;
        let mut rows = statement.query([store])?;
        while let Some(row) = rows.next()? {
            let path: String = row.get(0)?;
            if Path::new(&path).starts_with(path_to_text(root)) {
                found.push(path);
            }
        }
    }
    Ok(found)
}
