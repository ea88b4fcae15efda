//! The in-memory snapshot of an index: a few bytes per chunk, loaded on first use. A new generation reloads only
//! the segments that have changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rusqlite::{Connection, OptionalExtension};

use super::codec;
use super::vectors::SegmentVectors;
use crate::FileAttributes;

/// An immutable segment: chunks that were written together. Merging creates a new segment.
pub(super) struct IndexSegment {
    pub(super) id: i64,
    /// Ids of the chunks, ascending.
    pub(super) chunk_ids: Vec<u32>,
    /// Length of each chunk in terms, without stop words.
    pub(super) chunk_lengths: Vec<u32>,
    /// Id of the file of each chunk.
    pub(super) file_ids: Vec<u32>,
    vectors: OnceLock<Option<SegmentVectors>>,
}

/// The index at one generation.
pub(super) struct IndexSnapshot {
    pub(super) generation: i64,
    pub(super) segments: Vec<Arc<IndexSegment>>,
    /// Positions of the deleted chunks, by segment.
    pub(super) deleted: Vec<BTreeSet<u32>>,
    /// Ordinal of the first chunk of each segment; ordinals number the chunks of all segments consecutively.
    pub(super) segment_starts: Vec<usize>,
    pub(super) chunk_count: usize,
    pub(super) average_length: f32,
    /// Ids of the stores that have files.
    pub(super) stores: BTreeSet<String>,
    files: OnceLock<BTreeMap<u32, FilterableFile>>,
    /// Cache of document frequencies, by term.
    document_frequencies: Mutex<HashMap<String, u32>>,
}

/// Maximum number of cached document frequencies.
const MAX_CACHED_FREQUENCIES: usize = 50_000;

/// The store and attributes of a file, which filters read.
pub(super) struct FilterableFile {
    pub(super) store: String,
    pub(super) attributes: FileAttributes,
}

impl IndexSegment {
    fn load(db: &Connection, id: i64) -> rusqlite::Result<Self> {
        db.prepare_cached("SELECT ids, lengths, files FROM segments WHERE id = ?1")?.query_row([id], |row| {
            let list = |at| Ok::<_, rusqlite::Error>(codec::decode_u32s(row.get_ref(at)?.as_blob()?));
            Ok(Self {
                id,
                chunk_ids: list(0)?,
                chunk_lengths: list(1)?,
                file_ids: list(2)?,
                vectors: OnceLock::new(),
            })
        })
    }

    /// Returns the vectors, loaded on first use; `None` if the segment has no vectors of this dimension.
    pub(super) fn load_vectors(
        &self,
        db: &Connection,
        dimensions: usize,
    ) -> rusqlite::Result<Option<&SegmentVectors>> {
        if self.vectors.get().is_none() {
            let read = SegmentVectors::load(db, self.id, self.chunk_ids.len(), dimensions)?;
            // A concurrent search may have set the same value first.
            let _ = self.vectors.set(read);
        }
        Ok(self.vectors.get().and_then(Option::as_ref))
    }
}

impl IndexSnapshot {
    /// Loads the snapshot within the caller's read transaction, and reuses the segments of `before`.
    pub(super) fn load(db: &Connection, generation: i64, before: Option<&Self>) -> rusqlite::Result<Self> {
        let ids: Vec<i64> = db
            .prepare_cached("SELECT id FROM segments ORDER BY id")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let mut segments = Vec::with_capacity(ids.len());
        for id in ids {
            let known = before.and_then(|before| before.segments.iter().find(|segment| segment.id == id));
            segments.push(match known {
                Some(known) => known.clone(),
                None => Arc::new(IndexSegment::load(db, id)?),
            });
        }
        let mut dead = vec![BTreeSet::new(); segments.len()];
        let mut statement = db.prepare_cached("SELECT chunk FROM deleted_chunks")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let chunk: u32 = row.get(0)?;
            for (segment, dead) in segments.iter().zip(&mut dead) {
                if let Ok(at) = segment.chunk_ids.binary_search(&chunk) {
                    dead.insert(u32::try_from(at).unwrap_or(u32::MAX));
                }
            }
        }
        let starts = segments
            .iter()
            .scan(0, |total, segment| {
                let start = *total;
                *total += segment.chunk_ids.len();
                Some(start)
            })
            .collect();
        let total: usize = segments.iter().map(|segment| segment.chunk_ids.len()).sum();
        let words: u64 =
            segments.iter().flat_map(|segment| &segment.chunk_lengths).map(|count| u64::from(*count)).sum();
        let average = (words as f32 / total.max(1) as f32).max(1.0);
        let stores = db
            .prepare_cached("SELECT DISTINCT store FROM files")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        Ok(Self {
            generation,
            segments,
            deleted: dead,
            segment_starts: starts,
            chunk_count: total,
            average_length: average,
            stores,
            files: OnceLock::new(),
            document_frequencies: Mutex::default(),
        })
    }

    /// Returns the number of chunks that contain a term.
    pub(super) fn document_frequency(&self, db: &Connection, term: &str) -> rusqlite::Result<u32> {
        let known = || self.document_frequencies.lock().unwrap_or_else(PoisonError::into_inner);
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
        if known.len() >= MAX_CACHED_FREQUENCIES {
            known.clear();
        }
        known.insert(term.to_owned(), sum);
        Ok(sum)
    }

    /// Returns the files with their attributes, loaded on the first filtered search.
    pub(super) fn load_files(&self, db: &Connection) -> rusqlite::Result<&BTreeMap<u32, FilterableFile>> {
        if self.files.get().is_none() {
            let read = db
                .prepare_cached("SELECT id, store, attributes FROM files")?
                .query_map([], |row| {
                    let attributes: String = row.get(2)?;
                    let attributes = serde_json::from_str(&attributes).unwrap_or_default();
                    Ok((row.get(0)?, FilterableFile { store: row.get(1)?, attributes }))
                })?
                .collect::<rusqlite::Result<_>>()?;
            let _ = self.files.set(read);
        }
        self.files.get().ok_or(rusqlite::Error::QueryReturnedNoRows)
    }

    /// Returns the segment of a chunk ordinal and the chunk's position in it.
    pub(super) fn locate_chunk(&self, slot: usize) -> (&IndexSegment, usize) {
        let at = self.segment_starts.partition_point(|start| *start <= slot).saturating_sub(1);
        (&self.segments[at], slot - self.segment_starts[at])
    }

    /// Returns the approximate number of bytes held in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        let vectors = |segment: &IndexSegment| {
            segment.vectors.get().and_then(Option::as_ref).map_or(0, SegmentVectors::memory_bytes)
        };
        self.segments.iter().map(|segment| segment.chunk_ids.len() * 12 + vectors(segment)).sum()
    }
}
