//! Segments grow together, so that a search looks into a few large ones rather than many small ones. Chunks that are
//! gone are left out on the way.

use std::collections::{BTreeMap, HashSet};

use rusqlite::{Connection, Row};

use super::codec::{self, Postings};
use super::schema;

/// So many segments of about the same size become one.
const TOGETHER: usize = 8;
/// Segments do not grow beyond this many chunks, so that merging stays short.
const LARGEST: i64 = 65_536;

struct Old {
    id: i64,
    count: i64,
}

/// Merges once, if there is something to merge. Says whether there was.
pub(super) fn step(db: &Connection) -> rusqlite::Result<bool> {
    let Some(olds) = choose(db)? else { return Ok(false) };
    merge(db, &olds)?;
    schema::next_generation(db)?;
    Ok(true)
}

fn choose(db: &Connection) -> rusqlite::Result<Option<Vec<Old>>> {
    let all: Vec<Old> = db
        .prepare_cached("SELECT id, count FROM segments ORDER BY id")?
        .query_map([], |row| Ok(Old { id: row.get(0)?, count: row.get(1)? }))?
        .collect::<rusqlite::Result<_>>()?;
    let mut levels: BTreeMap<u32, Vec<Old>> = BTreeMap::new();
    for old in all {
        if old.count <= LARGEST / 2 {
            levels.entry((old.count.max(1).ilog2()) / 3).or_default().push(old);
        }
    }
    for (_, mut level) in levels {
        if level.len() >= TOGETHER {
            let mut sum = 0;
            level.truncate(2 * TOGETHER);
            level.retain(|old| {
                sum += old.count;
                sum <= LARGEST
            });
            if level.len() > 1 {
                return Ok(Some(level));
            }
        }
    }
    Ok(None)
}

fn merge(db: &Connection, olds: &[Old]) -> rusqlite::Result<()> {
    let dead: HashSet<u32> = db
        .prepare_cached("SELECT chunk FROM dead")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let (mut ids, mut lengths, mut files) = (Vec::new(), Vec::new(), Vec::new());
    let (mut scales, mut values) = (Vec::new(), Vec::new());
    let mut gone = Vec::new();
    // For each old segment, where its chunks are now.
    let mut moved: Vec<Vec<Option<u32>>> = Vec::new();
    let mut read = db.prepare_cached(
        "SELECT ids, lengths, files, data FROM segments LEFT JOIN vectors ON segment = id WHERE id = ?1",
    )?;
    // Ids stand in order in a segment; the ranges of two segments never mix.
    let mut order: Vec<(u32, &Old)> = Vec::new();
    for old in olds {
        let first: Vec<u32> = read.query_row([old.id], |row| list(row, 0))?;
        order.push((first.first().copied().unwrap_or(0), old));
    }
    order.sort_by_key(|(first, _)| *first);
    for (_, old) in &order {
        let mut rows = read.query([old.id])?;
        let Some(row) = rows.next()? else { continue };
        let old_ids = list(row, 0)?;
        let (old_lengths, old_files) = (list(row, 1)?, list(row, 2)?);
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
        codec::write_all(ids.iter().copied()),
        codec::write_all(lengths),
        codec::write_all(files),
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
    let mut bury = db.prepare_cached("DELETE FROM dead WHERE chunk = ?1")?;
    for id in gone {
        bury.execute([id])?;
    }
    if ids.is_empty() {
        db.prepare_cached("DELETE FROM segments WHERE id = ?1")?.execute([segment])?;
    }
    Ok(())
}

fn merge_postings(
    db: &Connection,
    sources: &[i64],
    moved: &[Vec<Option<u32>>],
    segment: i64,
) -> rusqlite::Result<()> {
    let select = "SELECT term, data FROM postings WHERE segment = ?1 ORDER BY term";
    let mut statements = sources.iter().map(|_| db.prepare(select)).collect::<rusqlite::Result<Vec<_>>>()?;
    let mut cursors = statements
        .iter_mut()
        .zip(sources)
        .map(|(statement, source)| statement.query([source]))
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let next = |rows: &mut rusqlite::Rows<'_>| -> rusqlite::Result<Option<(String, Vec<u8>)>> {
        rows.next()?.map(|row| Ok((row.get(0)?, row.get(1)?))).transpose()
    };
    let mut heads = cursors.iter_mut().map(next).collect::<rusqlite::Result<Vec<_>>>()?;
    let mut insert = db.prepare_cached("INSERT INTO postings VALUES (?1, ?2, ?3, ?4)")?;
    loop {
        let Some(term) = heads.iter().flatten().map(|(term, _)| term).min().cloned() else { return Ok(()) };
        let mut list = Postings::default();
        for (at, head) in heads.iter_mut().enumerate() {
            if head.as_ref().is_some_and(|(this, _)| *this == term) {
                let data = head.take().map(|(_, data)| data).unwrap_or_default();
                for (chunk, times) in codec::occurrences(&data) {
                    if let Some(Some(place)) = moved[at].get(chunk as usize) {
                        list.add(*place, times);
                    }
                }
                *head = next(&mut cursors[at])?;
            }
        }
        if list.count > 0 {
            insert.execute((segment, &term, list.count, &list.data))?;
        }
    }
}

fn list(row: &Row<'_>, at: usize) -> rusqlite::Result<Vec<u32>> {
    Ok(codec::read_all(row.get_ref(at)?.as_blob()?))
}
