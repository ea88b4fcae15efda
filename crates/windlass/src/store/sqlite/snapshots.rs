//! Snapshots of long runs. Their table is made when the first is kept: a version that knows nothing of them reads and
//! writes the file as well without.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::RunId;

use super::file::{Trouble, seal, unseal};
use super::runs::owned;
use super::{number, to_number};
use crate::store::{Lease, Snapshot};

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS snapshots (
        run INTEGER PRIMARY KEY,
        records INTEGER NOT NULL,
        head TEXT NOT NULL,
        hash TEXT NOT NULL,
        body TEXT NOT NULL
    ) STRICT";

pub(super) fn keep(db: &Connection, lease: &Lease, snapshot: &Snapshot) -> Result<(), Trouble> {
    let (id, _) = owned(db, lease)?;
    db.execute(TABLE, [])?;
    let replace =
        "INSERT OR REPLACE INTO snapshots (run, records, head, hash, body) VALUES (?1, ?2, ?3, ?4, ?5)";
    let Snapshot { records, head, body } = snapshot;
    let values = params![id, number(*records)?, head.to_string(), seal(body), body];
    db.prepare_cached(replace)?.execute(values)?;
    Ok(())
}

pub(super) fn load(db: &Connection, run: &RunId) -> Result<Option<Snapshot>, Trouble> {
    if !is_there(db)? {
        return Ok(None);
    }
    let select =
        "SELECT snapshots.records, head, hash, body FROM snapshots JOIN runs ON runs.id = snapshots.run
        WHERE runs.name = ?1";
    let found = db
        .prepare_cached(select)?
        .query_row([run.as_str()], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?, row.get(3)?))
        })
        .optional()?;
    let Some((records, head, hash, body)) = found else { return Ok(None) };
    let head = head.parse().map_err(Trouble::Damaged)?;
    Ok(Some(Snapshot { records: to_number(records)?, head, body: unseal(&hash, body)? }))
}

/// A run that is over is not gone on with.
pub(super) fn drop_of(db: &Connection, id: i64) -> Result<(), Trouble> {
    if is_there(db)? {
        db.prepare_cached("DELETE FROM snapshots WHERE run = ?1")?.execute([id])?;
    }
    Ok(())
}

fn is_there(db: &Connection) -> Result<bool, Trouble> {
    let select = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'snapshots'";
    Ok(db.prepare_cached(select)?.exists([])?)
}
