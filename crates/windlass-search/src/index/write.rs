//! A batch of files becomes rows and one segment, in one transaction: after a crash it is there whole, or not at all.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension};

use super::codec::{self, Postings};
use super::{Inner, merge, schema};
use crate::chunk::{Chunking, Place};
use crate::embed::{Purpose, quantise};
use crate::text::{Analyser, Term};
use crate::{Attributes, EmbedError, Kind, SearchError};

/// A batch is written when it has this many chunks,
const MOST_CHUNKS: usize = 4096;
/// or this much text.
const MOST_BYTES: usize = 16 << 20;
/// How many texts an embedder is given at once.
const EMBEDDED_AT_ONCE: usize = 128;

/// A file that was read and cut.
pub(super) struct Prepared {
    pub(super) store: String,
    /// What it is known by: its path, or the name that it was put under.
    pub(super) path: String,
    pub(super) name: String,
    /// Its id for clients, where they have given it one.
    pub(super) public: Option<String>,
    pub(super) kind: Kind,
    pub(super) size: u64,
    pub(super) changed: i64,
    pub(super) hash: [u8; 32],
    pub(super) attributes: Attributes,
    pub(super) chunking: Chunking,
    pub(super) chunks: Vec<(Place, String)>,
}

/// A file that could not be read, remembered so that it is not tried again until it changes.
pub(super) struct Refused {
    pub(super) store: String,
    pub(super) path: String,
    pub(super) public: String,
    pub(super) size: u64,
    pub(super) changed: i64,
    pub(super) why: String,
}

/// Files that will be written together.
#[derive(Default)]
pub(super) struct Batch {
    files: Vec<Prepared>,
    refused: Vec<Refused>,
    chunks: usize,
    bytes: usize,
}

impl Batch {
    pub(super) fn add(&mut self, file: Prepared) {
        self.chunks += file.chunks.len();
        self.bytes += file.chunks.iter().map(|(_, text)| text.len()).sum::<usize>();
        self.files.push(file);
    }

    pub(super) fn refuse(&mut self, refused: Refused) {
        self.refused.push(refused);
    }

    pub(super) fn is_full(&self) -> bool {
        self.chunks >= MOST_CHUNKS || self.bytes >= MOST_BYTES || self.refused.len() >= MOST_CHUNKS
    }

    /// Writes everything, and leaves the batch empty.
    pub(super) fn write(&mut self, inner: &Inner, analyser: &mut Analyser) -> Result<(), SearchError> {
        let batch = std::mem::take(self);
        if batch.files.is_empty() && batch.refused.is_empty() {
            return Ok(());
        }
        let built = Built::of(&batch.files, analyser);
        let vectors = embed(inner, &batch.files)?;
        inner.write(|db| {
            insert(db, &batch, &built, vectors.as_deref())?;
            schema::next_generation(db)
        })?;
        // Each merge is a transaction of its own, so that other processes have their turn in between.
        while inner.write(merge::step)? {}
        Ok(())
    }
}

/// The searchable form of a batch.
struct Built {
    lengths: Vec<u32>,
    terms: Vec<(String, Postings)>,
}

impl Built {
    fn of(files: &[Prepared], analyser: &mut Analyser) -> Self {
        let mut known: HashMap<String, usize> = HashMap::new();
        let mut terms: Vec<(String, Postings)> = Vec::new();
        let mut lengths = Vec::new();
        let mut seen: Vec<usize> = Vec::new();
        for file in files {
            for (place, text) in &file.chunks {
                let mut length = 0;
                seen.clear();
                let mut take = |term: &str, kind: Term| {
                    let at = match known.get(term) {
                        Some(at) => *at,
                        None => {
                            known.insert(term.to_owned(), terms.len());
                            terms.push((term.to_owned(), Postings::default()));
                            terms.len() - 1
                        }
                    };
                    seen.push(at);
                    length += u32::from(kind != Term::Stop);
                };
                analyser.analyse(text, &mut take);
                analyser.analyse(&place.heading, &mut take);
                // A name that is a number says nothing.
                if file.name.contains(char::is_alphabetic) {
                    analyser.analyse(&file.name, &mut take);
                }
                seen.sort_unstable();
                let at = u32::try_from(lengths.len()).unwrap_or(u32::MAX);
                for same in seen.chunk_by(|left, right| left == right) {
                    terms[same[0]].1.add(at, u32::try_from(same.len()).unwrap_or(u32::MAX));
                }
                lengths.push(length);
            }
        }
        // In the order of the table, so that pages are written once.
        terms.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        Self { lengths, terms }
    }
}

/// The vectors of all chunks, as the segment keeps them.
fn embed(inner: &Inner, files: &[Prepared]) -> Result<Option<Vec<u8>>, SearchError> {
    let Some(embedder) = &inner.embedder else { return Ok(None) };
    let texts: Vec<String> = files
        .iter()
        .flat_map(|file| &file.chunks)
        .map(
            |(place, text)| {
                if place.heading.is_empty() { text.clone() } else { format!("{}\n{text}", place.heading) }
            },
        )
        .collect();
    embed_texts(&**embedder, &texts).map(Some).map_err(Into::into)
}

pub(super) fn embed_texts(embedder: &dyn crate::Embedder, texts: &[String]) -> Result<Vec<u8>, EmbedError> {
    let mut scales = Vec::with_capacity(texts.len() * 4);
    let mut values = Vec::with_capacity(texts.len() * embedder.dimensions());
    for some in texts.chunks(EMBEDDED_AT_ONCE) {
        let some: Vec<&str> = some.iter().map(String::as_str).collect();
        let vectors = embedder.embed(&some, Purpose::Document)?;
        let fits =
            vectors.len() == some.len() && vectors.iter().all(|vector| vector.len() == embedder.dimensions());
        if !fits {
            let why =
                format!("it gave other than {} vectors of {} numbers", some.len(), embedder.dimensions());
            return Err(EmbedError::new(embedder.name(), why));
        }
        for vector in vectors {
            let small = quantise(&vector);
            scales.extend(small.scale.to_le_bytes());
            values.extend(small.values.iter().map(|value| value.cast_unsigned()));
        }
    }
    scales.append(&mut values);
    Ok(scales)
}

fn insert(db: &Connection, batch: &Batch, built: &Built, vectors: Option<&[u8]>) -> rusqlite::Result<()> {
    let now = super::now();
    for refused in &batch.refused {
        forget(db, &refused.store, &refused.path)?;
        db.prepare_cached("INSERT OR REPLACE INTO refused VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?.execute(
            (
                &refused.store,
                &refused.path,
                &refused.public,
                i64::try_from(refused.size).unwrap_or(i64::MAX),
                refused.changed,
                &refused.why,
                now,
            ),
        )?;
    }
    if batch.files.is_empty() {
        return Ok(());
    }
    let first = u32::try_from(schema::number(db, "next_chunk")?).unwrap_or(u32::MAX);
    let mut next = first;
    let mut owners = Vec::with_capacity(built.lengths.len());
    for file in &batch.files {
        let id = insert_file(db, file, now)?;
        let mut statement = db.prepare_cached("INSERT INTO chunks VALUES (?1, ?2, ?3, ?4)")?;
        for (place, text) in &file.chunks {
            let place = serde_json::to_string(place).unwrap_or_default();
            statement.execute((next, id, place, text))?;
            owners.push(id);
            next = next.checked_add(1).ok_or(rusqlite::Error::IntegralValueOutOfRange(0, i64::from(next)))?;
        }
    }
    schema::set_number(db, "next_chunk", i64::from(next))?;
    let words: u64 = built.lengths.iter().map(|length| u64::from(*length)).sum();
    db.prepare_cached(
        "INSERT INTO segments (count, words, ids, lengths, files) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute((
        i64::from(next - first),
        i64::try_from(words).unwrap_or(i64::MAX),
        codec::write_all(first..next),
        codec::write_all(built.lengths.iter().copied()),
        codec::write_all(owners),
    ))?;
    let segment = db.last_insert_rowid();
    if let Some(vectors) = vectors {
        db.prepare_cached("INSERT INTO vectors VALUES (?1, ?2)")?.execute((segment, vectors))?;
    }
    let mut postings = db.prepare_cached("INSERT INTO postings VALUES (?1, ?2, ?3, ?4)")?;
    let mut terms = db.prepare_cached("INSERT OR IGNORE INTO terms VALUES (?1)")?;
    for (term, list) in &built.terms {
        postings.execute((segment, term, list.count, &list.data))?;
        terms.execute([term])?;
    }
    Ok(())
}

fn insert_file(db: &Connection, file: &Prepared, now: i64) -> rusqlite::Result<u32> {
    // A file that changed keeps its id for clients.
    let public: Option<String> = db
        .prepare_cached("SELECT public FROM files WHERE store = ?1 AND path = ?2")?
        .query_row((&file.store, &file.path), |row| row.get(0))
        .optional()?;
    let public =
        file.public.clone().or(public).unwrap_or_else(|| super::public_id("file", &file.store, &file.path));
    forget(db, &file.store, &file.path)?;
    db.prepare_cached(
        "INSERT INTO files (public, store, path, name, kind, size, changed, hash, attributes, chunking, created, chunks)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?
    .execute((
        public,
        &file.store,
        &file.path,
        &file.name,
        file.kind.name(),
        i64::try_from(file.size).unwrap_or(i64::MAX),
        file.changed,
        file.hash.as_slice(),
        serde_json::to_string(&file.attributes).unwrap_or_default(),
        serde_json::to_string(&file.chunking).unwrap_or_default(),
        now,
        i64::try_from(file.chunks.len()).unwrap_or(i64::MAX),
    ))?;
    u32::try_from(db.last_insert_rowid())
        .map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, db.last_insert_rowid()))
}

/// Takes a file out, if it is there.
pub(super) fn forget(db: &Connection, store: &str, path: &str) -> rusqlite::Result<bool> {
    db.prepare_cached("DELETE FROM refused WHERE store = ?1 AND path = ?2")?.execute((store, path))?;
    let id: Option<i64> = db
        .prepare_cached("SELECT id FROM files WHERE store = ?1 AND path = ?2")?
        .query_row((store, path), |row| row.get(0))
        .optional()?;
    let Some(id) = id else { return Ok(false) };
    db.prepare_cached("INSERT OR IGNORE INTO dead SELECT id FROM chunks WHERE file = ?1")?.execute([id])?;
    db.prepare_cached("DELETE FROM chunks WHERE file = ?1")?.execute([id])?;
    db.prepare_cached("DELETE FROM files WHERE id = ?1")?.execute([id])?;
    Ok(true)
}
