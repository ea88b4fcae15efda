//! What an index remembers of its file between searches: a few bytes for each chunk, read when first needed, and read
//! again in the parts that another writer changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rusqlite::{Connection, OptionalExtension};

use super::codec;
use super::vectors::Vectors;
use crate::Attributes;

/// Chunks that were written together. It never changes: merging makes another.
pub(super) struct Segment {
    pub(super) id: i64,
    /// The chunks' ids, in order.
    pub(super) ids: Vec<u32>,
    /// How many words each has.
    pub(super) lengths: Vec<u32>,
    /// Which file each is of.
    pub(super) files: Vec<u32>,
    vectors: OnceLock<Option<Vectors>>,
}

/// The index at one moment.
pub(super) struct Snapshot {
    pub(super) generation: i64,
    pub(super) segments: Vec<Arc<Segment>>,
    /// Chunks that are gone, by segment and place in it.
    pub(super) dead: Vec<BTreeSet<u32>>,
    /// Where each segment begins when all chunks are counted through.
    pub(super) starts: Vec<usize>,
    pub(super) total: usize,
    pub(super) average: f32,
    /// Which stores have files.
    pub(super) stores: BTreeSet<String>,
    files: OnceLock<BTreeMap<u32, FileFacts>>,
    /// How many chunks have a term, for terms that were asked for.
    frequencies: Mutex<HashMap<String, u32>>,
}

/// How many terms are remembered.
const REMEMBERED: usize = 50_000;

/// What filters look at.
pub(super) struct FileFacts {
    pub(super) store: String,
    pub(super) attributes: Attributes,
}

impl Segment {
    fn read(db: &Connection, id: i64) -> rusqlite::Result<Self> {
        db.prepare_cached("SELECT ids, lengths, files FROM segments WHERE id = ?1")?.query_row([id], |row| {
            let list = |at| Ok::<_, rusqlite::Error>(codec::read_all(row.get_ref(at)?.as_blob()?));
            Ok(Self { id, ids: list(0)?, lengths: list(1)?, files: list(2)?, vectors: OnceLock::new() })
        })
    }

    /// Its vectors, read when they are first wanted. `None` where there are none of this size.
    pub(super) fn vectors(&self, db: &Connection, dimensions: usize) -> rusqlite::Result<Option<&Vectors>> {
        if self.vectors.get().is_none() {
            let read = Vectors::read(db, self.id, self.ids.len(), dimensions)?;
            // Another search may have been faster, with the same.
            let _ = self.vectors.set(read);
        }
        Ok(self.vectors.get().and_then(Option::as_ref))
    }
}

impl Snapshot {
    /// Reads what has changed since `before`, within the reader's transaction.
    pub(super) fn read(db: &Connection, generation: i64, before: Option<&Self>) -> rusqlite::Result<Self> {
        let ids: Vec<i64> = db
            .prepare_cached("SELECT id FROM segments ORDER BY id")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let mut segments = Vec::with_capacity(ids.len());
        for id in ids {
            let known = before.and_then(|before| before.segments.iter().find(|segment| segment.id == id));
            segments.push(match known {
                Some(known) => known.clone(),
                None => Arc::new(Segment::read(db, id)?),
            });
        }
        let mut dead = vec![BTreeSet::new(); segments.len()];
        let mut statement = db.prepare_cached("SELECT chunk FROM dead")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let chunk: u32 = row.get(0)?;
            for (segment, dead) in segments.iter().zip(&mut dead) {
                if let Ok(at) = segment.ids.binary_search(&chunk) {
                    dead.insert(u32::try_from(at).unwrap_or(u32::MAX));
                }
            }
        }
        let starts = segments
            .iter()
            .scan(0, |total, segment| {
                let start = *total;
                *total += segment.ids.len();
                Some(start)
            })
            .collect();
        let total: usize = segments.iter().map(|segment| segment.ids.len()).sum();
        let words: u64 =
            segments.iter().flat_map(|segment| &segment.lengths).map(|count| u64::from(*count)).sum();
        let average = (words as f32 / total.max(1) as f32).max(1.0);
        let stores = db
            .prepare_cached("SELECT DISTINCT store FROM files")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        Ok(Self {
            generation,
            segments,
            dead,
            starts,
            total,
            average,
            stores,
            files: OnceLock::new(),
            frequencies: Mutex::default(),
        })
    }

    /// How many chunks have a term.
    pub(super) fn frequency(&self, db: &Connection, term: &str) -> rusqlite::Result<u32> {
        let known = || self.frequencies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = known().get(term) {
            return Ok(*count);
        }
        let mut statement =
            db.prepare_cached("SELECT count FROM postings WHERE segment = ?1 AND term = ?2")?;
        let mut sum = 0u32;
        for segment in &self.segments {
            let count: Option<u32> = statement.query_row((segment.id, term), |row| row.get(0)).optional()?;
            sum = sum.saturating_add(count.unwrap_or(0));
        }
        let mut known = known();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(term.to_owned(), sum);
        Ok(sum)
    }

    /// What filters look at, read when there is a filter.
    pub(super) fn files(&self, db: &Connection) -> rusqlite::Result<&BTreeMap<u32, FileFacts>> {
        if self.files.get().is_none() {
            let read = db
                .prepare_cached("SELECT id, store, attributes FROM files")?
                .query_map([], |row| {
                    let attributes: String = row.get(2)?;
                    let attributes = serde_json::from_str(&attributes).unwrap_or_default();
                    Ok((row.get(0)?, FileFacts { store: row.get(1)?, attributes }))
                })?
                .collect::<rusqlite::Result<_>>()?;
            let _ = self.files.set(read);
        }
        self.files.get().ok_or(rusqlite::Error::QueryReturnedNoRows)
    }

    /// The segment and the place in it of a chunk that is counted through all of them.
    pub(super) fn locate(&self, slot: usize) -> (&Segment, usize) {
        let at = self.starts.partition_point(|start| *start <= slot).saturating_sub(1);
        (&self.segments[at], slot - self.starts[at])
    }

    /// How many bytes it holds in memory, about.
    pub(super) fn bytes(&self) -> usize {
        let vectors =
            |segment: &Segment| segment.vectors.get().and_then(Option::as_ref).map_or(0, Vectors::bytes);
        self.segments.iter().map(|segment| segment.ids.len() * 12 + vectors(segment)).sum()
    }
}
