//! Snapshots of long runs. The tables are created with the first snapshot, so that versions without snapshots can
//! read and write the file too.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::{canonical::Digest, id::RunId};

use super::file::{SqliteError, compute_checksum, verify_checksum};
use super::runs::find_owned_run;
use super::{from_sql_integer, to_sql_integer};
use crate::error::StoreError;
use crate::store::{Lease, SnapshotSegments, StoredSnapshot};

const CREATE_TABLES_SQL: &str = "
    CREATE TABLE IF NOT EXISTS snapshots (
        run INTEGER PRIMARY KEY,
        records INTEGER NOT NULL,
        head BLOB NOT NULL,
        hash BLOB NOT NULL,
        body TEXT NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS snapshot_segments (
        run INTEGER NOT NULL,
        number INTEGER NOT NULL,
        hash BLOB NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (run, number)
    ) STRICT";

pub(super) fn save_snapshot(
    db: &Connection,
    lease: &Lease,
    snapshot: &StoredSnapshot,
    segments: &SnapshotSegments,
) -> Result<(), SqliteError> {
    let (id, _) = find_owned_run(db, lease)?;
    if !has_table(db, "snapshot_segments")? {
        db.execute_batch(CREATE_TABLES_SQL)?;
    }
    save_segments(db, lease, id, segments)?;
    let replace =
        "INSERT OR REPLACE INTO snapshots (run, records, head, hash, body) VALUES (?1, ?2, ?3, ?4, ?5)";
    let StoredSnapshot { record_count: records, head_hash: head, body } = snapshot;
    let values = params![id, to_sql_integer(*records)?, head.as_bytes(), compute_checksum(body), body];
    db.prepare_cached(replace)?.execute(values)?;
    Ok(())
}

fn save_segments(
    db: &Connection,
    lease: &Lease,
    id: i64,
    segments: &SnapshotSegments,
) -> Result<(), SqliteError> {
    let select = "SELECT max(number) + 1 FROM snapshot_segments WHERE run = ?1";
    let count: Option<i64> = db.prepare_cached(select)?.query_row([id], |row| row.get(0))?;
    let count = from_sql_integer(count.unwrap_or_default())?;
    if segments.first > count {
        return Err(StoreError::missing_segments(&lease.run, count).into());
    }
    if segments.first < count {
        db.prepare_cached("DELETE FROM snapshot_segments WHERE run = ?1 AND number >= ?2")?
            .execute([id, to_sql_integer(segments.first)?])?;
    }
    let insert = "INSERT INTO snapshot_segments (run, number, hash, body) VALUES (?1, ?2, ?3, ?4)";
    let mut insert = db.prepare_cached(insert)?;
    for (number, body) in (segments.first..).zip(&segments.bodies) {
        insert.execute(params![id, to_sql_integer(number)?, compute_checksum(body), body])?;
    }
    Ok(())
}

/// Loads the first segments of a run's snapshot.
pub(super) fn load_segments(db: &Connection, run: &RunId, count: u64) -> Result<Vec<String>, SqliteError> {
    if !has_table(db, "snapshot_segments")? {
        return Ok(Vec::new());
    }
    let select = "SELECT hash, body FROM snapshot_segments JOIN runs ON runs.id = snapshot_segments.run
        WHERE runs.name = ?1 AND number < ?2 ORDER BY number";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query(params![run.as_str(), to_sql_integer(count)?])?;
    let mut segments = Vec::new();
    while let Some(row) = rows.next()? {
        segments.push(verify_checksum(&row.get(0)?, row.get::<_, String>(1)?)?);
    }
    Ok(segments)
}

pub(super) fn load_snapshot(db: &Connection, run: &RunId) -> Result<Option<StoredSnapshot>, SqliteError> {
    if !has_table(db, "snapshots")? {
        return Ok(None);
    }
    let select =
        "SELECT snapshots.records, head, hash, body FROM snapshots JOIN runs ON runs.id = snapshots.run
        WHERE runs.name = ?1";
    let found = db
        .prepare_cached(select)?
        .query_row([run.as_str()], |row| {
            Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?, row.get::<_, String>(3)?))
        })
        .optional()?;
    let Some((records, head, hash, body)) = found else { return Ok(None) };
    Ok(Some(StoredSnapshot {
        record_count: from_sql_integer(records)?,
        head_hash: Digest::from_bytes(head),
        body: verify_checksum(&hash, body)?,
    }))
}

/// Deletes the snapshot of a run that has ended and will not be opened for driving again.
pub(super) fn delete_snapshot(db: &Connection, id: i64) -> Result<(), SqliteError> {
    for table in ["snapshots", "snapshot_segments"] {
        if has_table(db, table)? {
            db.prepare_cached(&format!("DELETE FROM {table} WHERE run = ?1"))?.execute([id])?;
        }
    }
    Ok(())
}

fn has_table(db: &Connection, name: &str) -> Result<bool, SqliteError> {
    let select = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    Ok(db.prepare_cached(select)?.exists([name])?)
}
