//! Files and folders come into the index, and what has not changed is left alone.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::thread;

use sha2::{Digest, Sha256};

use super::walk::{Entry, Walked, text, walk};
use super::write::{Batch, Prepared, Refused, forget};
use super::{Index, Inner, Progress, Report, schema};
use crate::chunk::{Chunking, chunks};
use crate::extract::{Budget, extract};
use crate::text::Analyser;
use crate::{Attribute, Attributes, Kind, SearchError};

/// How many files are read at once, and how many of them may wait to be written.
const READERS: usize = 4;

/// Files that come into the index. See [`Index::add`].
#[must_use = "nothing is read before `run`"]
pub struct Add<'a> {
    index: &'a Index,
    path: PathBuf,
    attributes: Attributes,
    progress: Option<Box<dyn FnMut(Progress<'_>) + 'a>>,
}

/// A text that comes into the index though it is not a file.
#[derive(Clone, Debug)]
#[must_use]
pub struct Document {
    pub(super) name: String,
    pub(super) public: Option<String>,
    pub(super) kind: Option<Kind>,
    pub(super) bytes: Vec<u8>,
    pub(super) attributes: Attributes,
    pub(super) chunking: Option<Chunking>,
}

impl Document {
    /// A text or the bytes of a file, under a name whose ending says what it is.
    pub fn new(name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.into(),
            public: None,
            kind: None,
            bytes: bytes.into(),
            attributes: Attributes::new(),
            chunking: None,
        }
    }

    /// What it is, whatever its name says.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = Some(kind);
        self
    }

    /// Adds an attribute.
    pub fn attribute(mut self, key: &str, value: impl Into<Attribute>) -> Self {
        self.attributes.insert(key.to_owned(), value.into());
        self
    }
}

impl Index {
    /// Adds a file, or a folder with all that is in it. Added again, it is brought up to date: what is new or different
    /// is read, what is gone is taken out.
    pub fn add(&self, path: impl AsRef<Path>) -> Add<'_> {
        Add { index: self, path: path.as_ref().to_owned(), attributes: Attributes::new(), progress: None }
    }

    /// Brings everything that was ever added up to date.
    pub fn refresh(&self) -> Result<Report, SearchError> {
        let roots: Vec<(String, String)> = self.inner.read(|db| {
            db.prepare("SELECT path, attributes FROM roots WHERE store = ?1 ORDER BY path")?
                .query_map([&*self.store], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })?;
        let mut whole = Report::default();
        for (path, attributes) in roots {
            let add =
                Add { attributes: serde_json::from_str(&attributes).unwrap_or_default(), ..self.add(&path) };
            let one = add.run()?;
            whole.added += one.added;
            whole.changed += one.changed;
            whole.unchanged += one.unchanged;
            whole.removed += one.removed;
            whole.chunks += one.chunks;
            whole.bytes += one.bytes;
            whole.problems.extend(one.problems);
            whole.more_problems += one.more_problems;
        }
        Ok(whole)
    }

    /// Puts texts in that are not files. One of the same name is replaced.
    pub fn put(&self, documents: impl IntoIterator<Item = Document>) -> Result<Report, SearchError> {
        let mut report = Report::default();
        let mut batch = Batch::default();
        let mut analyser = Analyser::default();
        for document in documents {
            let path = PathBuf::from(&document.name);
            match prepare_document(&self.inner, &self.store, document) {
                Ok((prepared, notes)) => {
                    notes.into_iter().for_each(|note| report.problem(&path, note));
                    report.added += 1;
                    report.chunks += prepared.chunks.len();
                    report.bytes += prepared.size;
                    batch.add(prepared);
                }
                Err(refused) => {
                    report.problem(&path, &refused.why);
                    batch.refuse(refused);
                }
            }
            if batch.is_full() {
                batch.write(&self.inner, &mut analyser)?;
            }
        }
        batch.write(&self.inner, &mut analyser)?;
        Ok(report)
    }

    /// Takes a file, a folder or a text out. Says how many files that were.
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<usize, SearchError> {
        let path = path.as_ref();
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.inner.write(|db| {
            let mut count = usize::from(forget(db, &self.store, &text(path))?);
            for known in known_under(db, &self.store, &whole)? {
                count += usize::from(forget(db, &self.store, &known)?);
            }
            db.execute("DELETE FROM roots WHERE store = ?1 AND path = ?2", (&*self.store, text(&whole)))?;
            schema::next_generation(db)?;
            Ok(count)
        })
    }
}

impl<'a> Add<'a> {
    /// An attribute of every file.
    pub fn attribute(mut self, key: &str, value: impl Into<Attribute>) -> Self {
        self.attributes.insert(key.to_owned(), value.into());
        self
    }

    /// Is told how far the work is, after each file.
    pub fn progress(mut self, tell: impl FnMut(Progress<'_>) + 'a) -> Self {
        self.progress = Some(Box::new(tell));
        self
    }

    /// Reads what is new or different. It blocks; in async code, call it where blocking is allowed.
    pub fn run(mut self) -> Result<Report, SearchError> {
        let fail = |source| SearchError::Path { path: self.path.clone(), source };
        let root = std::path::absolute(&self.path).map_err(fail)?;
        if root.to_str().is_none() {
            let why = "its name is not UTF-8, and could not be found again; hint: add the folder above it";
            return Err(fail(std::io::Error::new(std::io::ErrorKind::InvalidInput, why)));
        }
        let mut report = Report::default();
        let walked = match walk(&root, &self.index.inner.limits, &mut report) {
            Ok(walked) => walked,
            // What was added once and is gone now is taken out; what never was there is a mistake.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.is_root(&root)? => {
                Walked::default()
            }
            Err(error) => return Err(fail(error)),
        };
        let (index, store) = (self.index, &*self.index.store);
        index.inner.write(|db| {
            let attributes = serde_json::to_string(&self.attributes).unwrap_or_default();
            db.execute("INSERT OR REPLACE INTO roots VALUES (?1, ?2, ?3)", (store, text(&root), attributes))?;
            Ok(())
        })?;
        let known = index.inner.read(|db| known_files(db, store))?;
        report.removed = self.take_out_what_is_gone(&root, &walked)?;
        self.read_all(walked.files, &known, &mut report)?;
        Ok(report)
    }

    fn is_root(&self, root: &Path) -> Result<bool, SearchError> {
        self.index.inner.read(|db| {
            let found = "SELECT count(*) FROM roots WHERE store = ?1 AND path = ?2";
            db.query_row(found, (&*self.index.store, text(root)), |row| row.get::<_, bool>(0))
        })
    }

    fn take_out_what_is_gone(&self, root: &Path, walked: &Walked) -> Result<usize, SearchError> {
        let there: std::collections::HashSet<String> =
            walked.files.iter().map(|entry| text(&entry.path)).collect();
        let store = &*self.index.store;
        let gone: Vec<String> = self
            .index
            .inner
            .read(|db| known_under(db, store, root))?
            .into_iter()
            .filter(|path| !there.contains(path))
            // What could not be looked at may still be there.
            .filter(|path| !walked.unseen.iter().any(|unseen| Path::new(path).starts_with(text(unseen))))
            .collect();
        if gone.is_empty() {
            return Ok(0);
        }
        self.index.inner.write(|db| {
            let mut count = 0;
            for path in &gone {
                count += usize::from(forget(db, store, path)?);
            }
            schema::next_generation(db)?;
            Ok(count)
        })
    }

    fn read_all(
        &mut self,
        entries: Vec<Entry>,
        known: &HashMap<String, Known>,
        report: &mut Report,
    ) -> Result<(), SearchError> {
        let (index, store, attributes) = (self.index, &*self.index.store, &self.attributes);
        let inner = &*index.inner;
        let of_files = entries.len();
        let of_bytes = entries.iter().map(|entry| entry.size).sum();
        let (mut files, mut bytes) = (0, 0);
        let mut batch = Batch::default();
        let mut analyser = Analyser::default();
        let workers = thread::available_parallelism().map_or(1, usize::from).min(READERS);
        let queue = Mutex::new(entries.into_iter());
        // Few may wait, so that memory is bounded by a few files however large the folder is.
        let (done, results) = mpsc::sync_channel(workers);
        thread::scope(|scope| {
            for _ in 0..workers {
                let (queue, done) = (&queue, done.clone());
                scope.spawn(move || {
                    loop {
                        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some(entry) = next else { return };
                        let came = look(inner, store, &entry, attributes, known.get(&text(&entry.path)));
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
                    Came::Unchanged => report.unchanged += 1,
                    Came::StillRefused(why) => report.problem(&entry.path, why),
                    Came::Touched(hash) => {
                        report.unchanged += 1;
                        touch(inner, store, &entry, attributes, &hash)?;
                    }
                    Came::Refused(refused) => {
                        report.problem(&entry.path, &refused.why);
                        batch.refuse(refused);
                    }
                    Came::Read(prepared, notes) => {
                        let is_known = known.get(&prepared.path).is_some_and(|known| known.why.is_none());
                        *(if is_known { &mut report.changed } else { &mut report.added }) += 1;
                        report.chunks += prepared.chunks.len();
                        report.bytes += prepared.size;
                        notes.into_iter().for_each(|note| report.problem(&entry.path, note));
                        batch.add(*prepared);
                    }
                }
                if batch.is_full() {
                    batch.write(inner, &mut analyser)?;
                }
                if let Some(tell) = &mut self.progress {
                    tell(Progress { files, of_files, bytes, of_bytes, path: &entry.path });
                }
            }
            batch.write(inner, &mut analyser)
        })
    }
}

/// What the index knows of a file.
struct Known {
    size: u64,
    changed: i64,
    hash: Vec<u8>,
    attributes: Attributes,
    chunking: Option<Chunking>,
    /// Why it was refused, if it was.
    why: Option<String>,
}

enum Came {
    Unchanged,
    /// The bytes are the same, and something else is not.
    Touched([u8; 32]),
    StillRefused(String),
    Refused(Refused),
    Read(Box<Prepared>, Vec<String>),
}

fn look(inner: &Inner, store: &str, entry: &Entry, attributes: &Attributes, known: Option<&Known>) -> Came {
    let is_as_it_was = |known: &&Known| known.size == entry.size && known.changed == entry.changed;
    if let Some(known) = known.filter(is_as_it_was) {
        match &known.why {
            Some(why) => return Came::StillRefused(why.clone()),
            None if known.attributes == *attributes && known.chunking == Some(inner.chunking) => {
                return Came::Unchanged;
            }
            None => {}
        }
    }
    let path = text(&entry.path);
    let refuse_at = |changed: i64, why: String| {
        let public = super::public_id("file", store, &path);
        let (store, path) = (store.to_owned(), path.clone());
        Came::Refused(Refused { store, path, public, size: entry.size, changed, why })
    };
    // What is no fault of the bytes may be otherwise next time, though they are the same.
    let refuse_for_now = |why: String| refuse_at(-1, why);
    let limit = inner.limits.file_bytes;
    if entry.size > limit {
        let (size, limit) = (entry.size >> 20, limit >> 20);
        return refuse_for_now(format!(
            "it has {size} MB, and files of up to {limit} MB are read; hint: `Limits::file_bytes`"
        ));
    }
    let bytes = match read(&entry.path, limit) {
        Ok(bytes) => bytes,
        Err(why) => return refuse_for_now(why),
    };
    let hash: [u8; 32] = Sha256::digest(&bytes).into();
    if known.is_some_and(|known| known.hash == hash && known.chunking == Some(inner.chunking)) {
        return Came::Touched(hash);
    }
    let name =
        entry.path.file_name().map_or_else(|| path.clone(), |name| name.to_string_lossy().into_owned());
    let kind = Kind::of_path(&entry.path).or_else(|| Kind::of_bytes(&bytes));
    match cut(inner, kind, &bytes, inner.chunking) {
        Ok((kind, chunks, notes)) => {
            let prepared = Prepared {
                store: store.to_owned(),
                path,
                name,
                public: None,
                kind,
                size: entry.size,
                changed: entry.changed,
                hash,
                attributes: attributes.clone(),
                chunking: inner.chunking,
                chunks,
            };
            Came::Read(Box::new(prepared), notes)
        }
        Err(why) => refuse_at(entry.changed, why),
    }
}

/// A file's bytes, and not more than the limit though it may grow while it is read.
fn read(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("it cannot be read: {error}"))?;
    if bytes.len() as u64 > limit { Err("it grew while it was read".to_owned()) } else { Ok(bytes) }
}

type CutUp = (Kind, Vec<(crate::Place, String)>, Vec<String>);

/// Reads and cuts. A reader that panics is that file's problem.
fn cut(inner: &Inner, kind: Option<Kind>, bytes: &[u8], chunking: Chunking) -> Result<CutUp, String> {
    let kind = kind.ok_or("it is not text, nor of a kind that is known")?;
    let budget = Budget { text: inner.limits.text_bytes, inflated: inner.limits.inflated_bytes };
    let work = AssertUnwindSafe(|| {
        let extracted = extract(kind, bytes, budget)?;
        let pieces = chunks(&extracted, chunking);
        let pieces = pieces.into_iter().map(|chunk| (chunk.place, chunk.text.to_owned())).collect();
        Ok((kind, pieces, extracted.notes))
    });
    catch_unwind(work)
        .unwrap_or_else(|_| Err("reading it failed inside of the reader, which is a bug".to_owned()))
}

pub(super) fn prepare_document(
    inner: &Inner,
    store: &str,
    document: Document,
) -> Result<(Prepared, Vec<String>), Refused> {
    let Document { name, public, kind, bytes, attributes, chunking } = document;
    let size = bytes.len() as u64;
    let path = public.clone().unwrap_or_else(|| name.clone());
    let chunking = chunking.unwrap_or(inner.chunking);
    let kind = kind.or_else(|| Kind::of_path(Path::new(&name))).or_else(|| Kind::of_bytes(&bytes));
    let came = if size > inner.limits.file_bytes {
        Err(format!("it has {size} bytes, and {} are the most", inner.limits.file_bytes))
    } else {
        cut(inner, kind, &bytes, chunking)
    };
    match came {
        Ok((kind, chunks, notes)) => {
            let hash = Sha256::digest(&bytes).into();
            let store = store.to_owned();
            let prepared = Prepared {
                store,
                path,
                name,
                public,
                kind,
                size,
                changed: 0,
                hash,
                attributes,
                chunking,
                chunks,
            };
            Ok((prepared, notes))
        }
        Err(why) => {
            let public = public.unwrap_or_else(|| super::public_id("file", store, &path));
            Err(Refused { store: store.to_owned(), path, public, size, changed: 0, why })
        }
    }
}

/// The bytes are what they were: only what is said about them changes.
fn touch(
    inner: &Inner,
    store: &str,
    entry: &Entry,
    attributes: &Attributes,
    hash: &[u8; 32],
) -> Result<(), SearchError> {
    let attributes = serde_json::to_string(attributes).unwrap_or_default();
    inner.write(|db| {
        db.prepare_cached(
            "UPDATE files SET changed = ?3, attributes = ?4 WHERE store = ?1 AND path = ?2 AND hash = ?5",
        )?
        .execute((store, text(&entry.path), entry.changed, &attributes, hash.as_slice()))?;
        schema::next_generation(db)
    })
}

fn known_files(db: &rusqlite::Connection, store: &str) -> rusqlite::Result<HashMap<String, Known>> {
    let mut known = HashMap::new();
    let mut files =
        db.prepare("SELECT path, size, changed, hash, attributes, chunking FROM files WHERE store = ?1")?;
    let mut rows = files.query([store])?;
    while let Some(row) = rows.next()? {
        let attributes: String = row.get(4)?;
        let chunking: String = row.get(5)?;
        let facts = Known {
            size: u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0),
            changed: row.get(2)?,
            hash: row.get(3)?,
            attributes: serde_json::from_str(&attributes).unwrap_or_default(),
            chunking: serde_json::from_str(&chunking).ok(),
            why: None,
        };
        known.insert(row.get(0)?, facts);
    }
    let mut refused = db.prepare("SELECT path, size, changed, why FROM refused WHERE store = ?1")?;
    let mut rows = refused.query([store])?;
    while let Some(row) = rows.next()? {
        let facts = Known {
            size: u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0),
            changed: row.get(2)?,
            hash: Vec::new(),
            attributes: Attributes::new(),
            chunking: None,
            why: Some(row.get(3)?),
        };
        known.insert(row.get(0)?, facts);
    }
    Ok(known)
}

/// The files that the index has at a path or under it.
fn known_under(db: &rusqlite::Connection, store: &str, root: &Path) -> rusqlite::Result<Vec<String>> {
    let mut found = Vec::new();
    for table in ["files", "refused"] {
        let mut statement = db.prepare(&format!("SELECT path FROM {table} WHERE store = ?1"))?;
        let mut rows = statement.query([store])?;
        while let Some(row) = rows.next()? {
            let path: String = row.get(0)?;
            if Path::new(&path).starts_with(text(root)) {
                found.push(path);
            }
        }
    }
    Ok(found)
}
