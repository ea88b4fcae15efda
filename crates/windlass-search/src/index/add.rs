//! Indexing of files, folders and documents.
//!
//! Invariant: a file whose size, modification time, attributes and chunking options are unchanged is not read
//! again.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::thread;

use sha2::{Digest, Sha256};

use super::walk::{FolderListing, FoundFile, list_folder, path_to_text};
use super::write::{PreparedFile, RejectedFile, WriteBatch, delete_file};
use super::{Index, IndexInner, IndexingProgress, IndexingReport, schema};
use crate::chunk::{ChunkingOptions, split_into_chunks};
use crate::extract::{ExtractionBudget, extract_text};
use crate::text::TextAnalyser;
use crate::{AttributeValue, DocumentFormat, FileAttributes, SearchError};

/// Maximum number of reader threads; as many files may wait for the writer.
const MAX_READER_THREADS: usize = 4;

/// A pending update of the index from a file or folder. See [`Index::add_path`].
#[must_use = "nothing is read before `run`"]
pub struct IndexUpdate<'a> {
    index: &'a Index,
    path: PathBuf,
    attributes: FileAttributes,
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
            progress: None,
        }
    }

    /// Updates every path that was added to the selected store, and returns the combined report.
    pub fn refresh(&self) -> Result<IndexingReport, SearchError> {
        let roots: Vec<(String, String)> = self.inner.read_transaction(|db| {
            db.prepare("SELECT path, attributes FROM roots WHERE store = ?1 ORDER BY path")?
                .query_map([&*self.store], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })?;
        let mut whole = IndexingReport::default();
        for (path, attributes) in roots {
            let add = IndexUpdate {
                attributes: serde_json::from_str(&attributes).unwrap_or_default(),
                ..self.add_path(&path)
            };
            let one = add.run()?;
            whole.added += one.added;
            whole.changed += one.changed;
            whole.unchanged += one.unchanged;
            whole.removed += one.removed;
            whole.chunks_written += one.chunks_written;
            whole.bytes_read += one.bytes_read;
            whole.problems.extend(one.problems);
            whole.unlisted_problems += one.unlisted_problems;
        }
        Ok(whole)
    }

    /// Indexes documents that are not files. A document replaces the document of the same name.
    pub fn put_documents(
        &self,
        documents: impl IntoIterator<Item = IndexDocument>,
    ) -> Result<IndexingReport, SearchError> {
        let mut report = IndexingReport::default();
        let mut batch = WriteBatch::default();
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

    /// Sets a callback that receives the progress after each file.
    pub fn progress(mut self, tell: impl FnMut(IndexingProgress<'_>) + 'a) -> Self {
        self.progress = Some(Box::new(tell));
        self
    }

    /// Reads and indexes new and changed files, and removes files that no longer exist.
    ///
    /// Blocks the thread; async code must call it where blocking is allowed, such as in `spawn_blocking`.
    ///
    /// # Errors
    ///
    /// Returns an error if the path cannot be accessed, the embedder fails or the index cannot be written.
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
            // A missing path that was added before means removal; any other missing path is an error.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.is_root(&root)? => {
                FolderListing::default()
            }
            Err(error) => return Err(fail(error)),
        };
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

    fn read_files(
        &mut self,
        entries: Vec<FoundFile>,
        known: &HashMap<String, KnownFile>,
        report: &mut IndexingReport,
    ) -> Result<(), SearchError> {
        let (index, store, attributes) = (self.index, &*self.index.store, &self.attributes);
        let inner = &*index.inner;
        let of_files = entries.len();
        let of_bytes = entries.iter().map(|entry| entry.size).sum();
        let (mut files, mut bytes) = (0, 0);
        let mut batch = WriteBatch::default();
        let mut analyser = TextAnalyser::default();
        let workers = thread::available_parallelism().map_or(1, usize::from).min(MAX_READER_THREADS);
        let queue = Mutex::new(entries.into_iter());
        // The bounded channel applies backpressure: memory holds a few files, however large the folder is.
        let (done, results) = mpsc::sync_channel(workers);
        thread::scope(|scope| {
            for _ in 0..workers {
                let (queue, done) = (&queue, done.clone());
                scope.spawn(move || {
                    loop {
                        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some(entry) = next else { return };
                        let came = scan_file(
                            inner,
                            store,
                            &entry,
                            attributes,
                            known.get(&path_to_text(&entry.path)),
                        );
                        if done.send((entry, came)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(done);
            for (entry, came) in results {
                files += 1;
                bytes += entry.size;
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
                        files_done: files,
                        total_files: of_files,
                        bytes_done: bytes,
                        total_bytes: of_bytes,
                        path: &entry.path,
                    });
                }
            }
            batch.write(inner, &mut analyser)
        })
    }
}

/// The stored state of a file, against which a scan compares it.
struct KnownFile {
    size: u64,
    modified_at: i64,
    hash: Vec<u8>,
    attributes: FileAttributes,
    chunking: Option<ChunkingOptions>,
    /// Reason of the rejection; absent if the file is indexed.
    rejection: Option<String>,
}

/// The outcome of scanning one file.
enum ScanOutcome {
    Unchanged,
    /// The content is the same, but the modification time or the attributes differ.
    MetadataChanged([u8; 32]),
    StillRejected(String),
    Rejected(RejectedFile),
    ContentRead(Box<PreparedFile>, Vec<String>),
}

fn scan_file(
    inner: &IndexInner,
    store: &str,
    entry: &FoundFile,
    attributes: &FileAttributes,
    known: Option<&KnownFile>,
) -> ScanOutcome {
    let is_as_it_was =
        |known: &&KnownFile| known.size == entry.size && known.modified_at == entry.modified_at;
    if let Some(known) = known.filter(is_as_it_was) {
        match &known.rejection {
            Some(why) => return ScanOutcome::StillRejected(why.clone()),
            None if known.attributes == *attributes && known.chunking == Some(inner.chunking) => {
                return ScanOutcome::Unchanged;
            }
            None => {}
        }
    }
    let path = path_to_text(&entry.path);
    let refuse_at = |changed: i64, why: String| {
        let public = super::derive_file_id("file", store, &path);
        let (store, path) = (store.to_owned(), path.clone());
        ScanOutcome::Rejected(RejectedFile {
            store,
            path,
            file_id: public,
            size: entry.size,
            modified_at: changed,
            reason: why,
        })
    };
    // A failure that the content did not cause may not recur, so the stored time forces another attempt.
    let refuse_for_now = |why: String| refuse_at(-1, why);
    let limit = inner.limits.max_file_bytes;
    if entry.size > limit {
        let (size, limit) = (entry.size >> 20, limit >> 20);
        return refuse_for_now(format!(
            "it has {size} MB, and files of up to {limit} MB are read; hint: `IndexingLimits::max_file_bytes`"
        ));
    }
    let bytes = match read_file(&entry.path, limit) {
        Ok(bytes) => bytes,
        Err(why) => return refuse_for_now(why),
    };
    let hash: [u8; 32] = Sha256::digest(&bytes).into();
    if known.is_some_and(|known| known.hash == hash && known.chunking == Some(inner.chunking)) {
        return ScanOutcome::MetadataChanged(hash);
    }
    let name =
        entry.path.file_name().map_or_else(|| path.clone(), |name| name.to_string_lossy().into_owned());
    let kind = DocumentFormat::from_path(&entry.path).or_else(|| DocumentFormat::from_bytes(&bytes));
    match extract_chunks(inner, kind, &bytes, inner.chunking) {
        Ok((kind, chunks, notes)) => {
            let prepared = PreparedFile {
                store: store.to_owned(),
                path,
                name,
                file_id: None,
                format: kind,
                size: entry.size,
                modified_at: entry.modified_at,
                hash,
                attributes: attributes.clone(),
                chunking: inner.chunking,
                chunks,
            };
            ScanOutcome::ContentRead(Box::new(prepared), notes)
        }
        Err(why) => refuse_at(entry.modified_at, why),
    }
}

/// Reads a file, at most `limit` bytes of it, because the file may grow while it is read.
fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("it cannot be read: {error}"))?;
    if bytes.len() as u64 > limit { Err("it grew while it was read".to_owned()) } else { Ok(bytes) }
}

/// A file's format, its chunks with their locations, and the warnings of the extraction.
type ChunkedFile = (DocumentFormat, Vec<(crate::ChunkLocation, String)>, Vec<String>);

/// Extracts the text of a file and splits it into chunks. A panic of the extractor becomes a problem of that file.
fn extract_chunks(
    inner: &IndexInner,
    kind: Option<DocumentFormat>,
    bytes: &[u8],
    chunking: ChunkingOptions,
) -> Result<ChunkedFile, String> {
    let kind = kind.ok_or("it is not text and not in a known format")?;
    let budget = ExtractionBudget {
        text_bytes: inner.limits.max_text_bytes,
        inflated_bytes: inner.limits.max_inflated_bytes,
    };
    let work = AssertUnwindSafe(|| {
        let extracted = extract_text(kind, bytes, budget)?;
        let pieces = split_into_chunks(&extracted, chunking);
        let pieces = pieces.into_iter().map(|chunk| (chunk.location, chunk.text.to_owned())).collect();
        Ok((kind, pieces, extracted.warnings))
    });
    catch_unwind(work).unwrap_or_else(|_| Err("the text extractor panicked, which is a bug".to_owned()))
}

/// Extracts and splits a document, with the warnings of the extraction; returns the rejection if it cannot be
/// read.
pub(super) fn prepare_document(
    inner: &IndexInner,
    store: &str,
    document: IndexDocument,
) -> Result<(PreparedFile, Vec<String>), RejectedFile> {
    let IndexDocument { name, file_id: public, format: kind, content: bytes, attributes, chunking } =
        document;
    let size = bytes.len() as u64;
    let path = public.clone().unwrap_or_else(|| name.clone());
    let chunking = chunking.unwrap_or(inner.chunking);
    let kind = kind
        .or_else(|| DocumentFormat::from_path(Path::new(&name)))
        .or_else(|| DocumentFormat::from_bytes(&bytes));
    let came = if size > inner.limits.max_file_bytes {
        Err(format!("it has {size} bytes, and {} are the most", inner.limits.max_file_bytes))
    } else {
        extract_chunks(inner, kind, &bytes, chunking)
    };
    match came {
        Ok((kind, chunks, notes)) => {
            let hash = Sha256::digest(&bytes).into();
            let store = store.to_owned();
            let prepared = PreparedFile {
                store,
                path,
                name,
                file_id: public,
                format: kind,
                size,
                modified_at: 0,
                hash,
                attributes,
                chunking,
                chunks,
            };
            Ok((prepared, notes))
        }
        Err(why) => {
            let public = public.unwrap_or_else(|| super::derive_file_id("file", store, &path));
            Err(RejectedFile {
                store: store.to_owned(),
                path,
                file_id: public,
                size,
                modified_at: 0,
                reason: why,
            })
        }
    }
}

/// Updates the modification time and attributes of a file whose content has not changed.
fn update_metadata(
    inner: &IndexInner,
    store: &str,
    entry: &FoundFile,
    attributes: &FileAttributes,
    hash: &[u8; 32],
) -> Result<(), SearchError> {
    let attributes = serde_json::to_string(attributes).unwrap_or_default();
    inner.write_transaction(|db| {
        db.prepare_cached(
            "UPDATE files SET modified = ?3, attributes = ?4 WHERE store = ?1 AND path = ?2 AND hash = ?5",
        )?
        .execute((
            store,
            path_to_text(&entry.path),
            entry.modified_at,
            &attributes,
            hash.as_slice(),
        ))?;
        schema::bump_generation(db)
    })
}

fn load_known_files(db: &rusqlite::Connection, store: &str) -> rusqlite::Result<HashMap<String, KnownFile>> {
    let mut known = HashMap::new();
    let mut files =
        db.prepare("SELECT path, size, modified, hash, attributes, chunking FROM files WHERE store = ?1")?;
    let mut rows = files.query([store])?;
    while let Some(row) = rows.next()? {
        let attributes: String = row.get(4)?;
        let chunking: String = row.get(5)?;
        let facts = KnownFile {
            size: u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0),
            modified_at: row.get(2)?,
            hash: row.get(3)?,
            attributes: serde_json::from_str(&attributes).unwrap_or_default(),
            chunking: serde_json::from_str(&chunking).ok(),
            rejection: None,
        };
        known.insert(row.get(0)?, facts);
    }
    let mut refused =
        db.prepare("SELECT path, size, modified, reason FROM rejected_files WHERE store = ?1")?;
    let mut rows = refused.query([store])?;
    while let Some(row) = rows.next()? {
        let facts = KnownFile {
            size: u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0),
            modified_at: row.get(2)?,
            hash: Vec::new(),
            attributes: FileAttributes::new(),
            chunking: None,
            rejection: Some(row.get(3)?),
        };
        known.insert(row.get(0)?, facts);
    }
    Ok(known)
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
