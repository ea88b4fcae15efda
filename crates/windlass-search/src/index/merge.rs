//! Merging of segments (compaction), so that a search reads a few large segments instead of many small ones. A
//! merge drops deleted chunks.

use std::collections::{BTreeMap, HashSet};

use rusqlite::{Connection, Row};

use super::codec::{self, PositionReader, PostingList};
use super::schema;

/// Number of segments of similar size that trigger a merge.
const MERGE_FACTOR: usize = 8;
/// Maximum number of chunks in a merged segment, which bounds the duration of a merge.
const MAX_SEGMENT_CHUNKS: i64 = 65_536;

/// A segment that may be merged.
struct MergeCandidate {
    id: i64,
    chunk_count: i64,
}

/// Performs one merge if one is due. Returns true if it merged.
pub(super) fn merge_step(db: &Connection) -> rusqlite::Result<bool> {
    let Some(olds) = choose_segments(db)? else { return Ok(false) };
    merge_segments(db, &olds)?;
    schema::bump_generation(db)?;
    Ok(true)
}

/// Returns the segments of the smallest size tier that is full; `None` if no tier is full.
fn choose_segments(db: &Connection) -> rusqlite::Result<Option<Vec<MergeCandidate>>> {
    let all: Vec<MergeCandidate> = db
        .prepare_cached("SELECT id, count FROM segments ORDER BY id")?
        .query_map([], |row| Ok(MergeCandidate { id: row.get(0)?, chunk_count: row.get(1)? }))?
        .collect::<rusqlite::Result<_>>()?;
    let mut levels: BTreeMap<u32, Vec<MergeCandidate>> = BTreeMap::new();
    for old in all {
        if old.chunk_count <= MAX_SEGMENT_CHUNKS / 2 {
            levels.entry((old.chunk_count.max(1).ilog2()) / 3).or_default().push(old);
        }
    }
    for (_, mut level) in levels {
        if level.len() >= MERGE_FACTOR {
            let mut sum = 0;
            level.truncate(2 * MERGE_FACTOR);
            level.retain(|old| {
                sum += old.chunk_count;
                sum <= MAX_SEGMENT_CHUNKS
            });
            if level.len() > 1 {
                return Ok(Some(level));
            }
        }
    }
    Ok(None)
}

fn merge_segments(db: &Connection, olds: &[MergeCandidate]) -> rusqlite::Result<()> {
    let dead: HashSet<u32> = db
        .prepare_cached("SELECT chunk FROM deleted_chunks")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let (mut ids, mut lengths, mut files) = (Vec::new(), Vec::new(), Vec::new());
    let (mut scales, mut values) = (Vec::new(), Vec::new());
    let mut gone = Vec::new();
    // New position of each chunk, by source segment; `None` for deleted chunks.
    let mut moved: Vec<Vec<Option<u32>>> = Vec::new();
    let mut read = db.prepare_cached(
        "SELECT ids, lengths, files, data FROM segments LEFT JOIN vectors ON segment = id WHERE id = ?1",
    )?;
    // Chunk ids are sorted within a segment, and the id ranges of segments do not overlap.
    let mut order: Vec<(u32, &MergeCandidate)> = Vec::new();
    for old in olds {
        let first: Vec<u32> = read.query_row([old.id], |row| read_u32_column(row, 0))?;
        order.push((first.first().copied().unwrap_or(0), old));
    }
    order.sort_by_key(|(first, _)| *first);
    for (_, old) in &order {
        let mut rows = read.query([old.id])?;
        let Some(row) = rows.next()? else { continue };
        let old_ids = read_u32_column(row, 0)?;
        let (old_lengths, old_files) = (read_u32_column(row, 1)?, read_u32_column(row, 2)?);
        let vectors = row.get_ref(3)?.as_blob_or_null()?.unwrap_or_default();
        let dimensions = (vectors.len() / old_ids.len().max(1)).saturating_sub(4);
        let mut places = Vec::with_capacity(old_ids.len());
        for (at, id) in old_ids.iter().enumerate() {
            if dead.contains(id) {
                gone.push(*id);
                places.push(None);
                continue;
            }
            places.push(Some(u32::try_from(ids.len()).unwrap_or(u32::MAX)));
            ids.push(*id);
            lengths.push(old_lengths[at]);
            files.push(old_files[at]);
            if dimensions > 0 {
                scales.extend_from_slice(&vectors[at * 4..][..4]);
                values.extend_from_slice(&vectors[old_ids.len() * 4 + at * dimensions..][..dimensions]);
            }
        }
        moved.push(places);
    }
    let words: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
    db.prepare_cached(
        "INSERT INTO segments (count, words, ids, lengths, files) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute((
        i64::try_from(ids.len()).unwrap_or(i64::MAX),
        i64::try_from(words).unwrap_or(i64::MAX),
        codec::encode_u32s(ids.iter().copied()),
        codec::encode_u32s(lengths),
        codec::encode_u32s(files),
    ))?;
    let segment = db.last_insert_rowid();
    if !scales.is_empty() {
        scales.append(&mut values);
        db.prepare_cached("INSERT INTO vectors VALUES (?1, ?2)")?.execute((segment, scales))?;
    }
    let sources: Vec<i64> = order.iter().map(|(_, old)| old.id).collect();
    merge_postings(db, &sources, &moved, segment)?;
    for old in olds {
        db.prepare_cached("DELETE FROM postings WHERE segment = ?1")?.execute([old.id])?;
        db.prepare_cached("DELETE FROM vectors WHERE segment = ?1")?.execute([old.id])?;
        db.prepare_cached("DELETE FROM segments WHERE id = ?1")?.execute([old.id])?;
    }
    let mut bury = db.prepare_cached("DELETE FROM deleted_chunks WHERE chunk = ?1")?;
    for id in gone {
        bury.execute([id])?;
    }
    if ids.is_empty() {
        db.prepare_cached("DELETE FROM segments WHERE id = ?1")?.execute([segment])?;
    }
    Ok(())
}

/// Merges the posting lists of the source segments term by term (k-way merge).
fn merge_postings(
    db: &Connection,
    sources: &[i64],
    moved: &[Vec<Option<u32>>],
    segment: i64,
) -> rusqlite::Result<()> {
    let select = "SELECT term, data, positions FROM postings WHERE segment = ?1 ORDER BY term";
    let mut statements = sources.iter().map(|_| db.prepare(select)).collect::<rusqlite::Result<Vec<_>>>()?;
    let mut cursors = statements
        .iter_mut()
        .zip(sources)
        .map(|(statement, source)| statement.query([source]))
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let next = |rows: &mut rusqlite::Rows<'_>| -> rusqlite::Result<Option<(String, Vec<u8>, Vec<u8>)>> {
        rows.next()?.map(|row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).transpose()
    };
    let mut heads = cursors.iter_mut().map(next).collect::<rusqlite::Result<Vec<_>>>()?;
    let mut insert = db.prepare_cached("INSERT INTO postings VALUES (?1, ?2, ?3, ?4, ?5)")?;
    let mut in_chunk = Vec::new();
    loop {
        let Some(term) = heads.iter().flatten().map(|(term, ..)| term).min().cloned() else { return Ok(()) };
        let mut list = PostingList::default();
        for (at, head) in heads.iter_mut().enumerate() {
            if head.as_ref().is_some_and(|(this, ..)| *this == term) {
                let (_, data, positions) = head.take().unwrap_or_default();
                let mut reader = PositionReader::new(&data, &positions);
                while let Some(chunk) = reader.next_chunk(&mut in_chunk) {
                    if let Some(Some(place)) = moved[at].get(chunk as usize) {
                        list.push(*place, in_chunk.iter().copied());
                    }
                }
                *head = next(&mut cursors[at])?;
            }
        }
        if list.chunk_count > 0 {
            insert.execute((segment, &term, list.chunk_count, &list.encoded, &list.word_positions))?;
        }
    }
}

fn read_u32_column(row: &Row<'_>, at: usize) -> rusqlite::Result<Vec<u32>> {
    Ok(codec::decode_u32s(row.get_ref(at)?.as_blob()?))
}
