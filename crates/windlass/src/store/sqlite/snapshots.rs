//! Snapshots of long runs. The table is created with the first snapshot, so that versions without snapshots can
//! read and write the file too.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::{canonical::Digest, id::RunId};

use super::file::{SqliteError, compute_checksum, verify_checksum};
use super::runs::find_owned_run;
use super::{from_sql_integer, to_sql_integer};
use crate::store::{Lease, StoredSnapshot};

const CREATE_TABLE_SQL: &str = "
    CREATE TABLE IF NOT EXISTS snapshots (
        run INTEGER PRIMARY KEY,
        records INTEGER NOT NULL,
        head BLOB NOT NULL,
        hash BLOB NOT NULL,
        body TEXT NOT NULL
    ) STRICT";

pub(super) fn save_snapshot(
    db: &Connection,
    lease: &Lease,
    snapshot: &StoredSnapshot,
) -> Result<(), SqliteError> {
    let (id, _) = find_owned_run(db, lease)?;
    db.execute(CREATE_TABLE_SQL, [])?;
    let replace =
        "INSERT OR REPLACE INTO snapshots (run, records, head, hash, body) VALUES (?1, ?2, ?3, ?4, ?5)";
    let StoredSnapshot { record_count: records, head_hash: head, body } = snapshot;
    let values = params![id, to_sql_integer(*records)?, head.as_bytes(), compute_checksum(body), body];
    db.prepare_cached(replace)?.execute(values)?;
    Ok(())
}

pub(super) fn load_snapshot(db: &Connection, run: &RunId) -> Result<Option<StoredSnapshot>, SqliteError> {
    if !has_table(db)? {
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
    if has_table(db)? {
        db.prepare_cached("DELETE FROM snapshots WHERE run = ?1")?.execute([id])?;
    }
    Ok(())
}

fn has_table(db: &Connection) -> Result<bool, SqliteError> {
    let select = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'snapshots'";
    Ok(db.prepare_cached(select)?.exists([])?)
}
