//! Deletion of runs. The freed pages are overwritten.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::id::RunId;

use super::file::SqliteError;
use super::history;
use super::queue;
use super::runs::{check_abandoned, find_lease, run_not_found};
use super::writer::WriteTx;
use super::{from_sql_integer, to_sql_integer};
use crate::store::StoredLease;

/// The number of lines that were deleted, so that a scan of the table knows how far row ids go. The table is created
/// with the first deletion.
const CREATE_TABLE_SQL: &str =
    "CREATE TABLE IF NOT EXISTS deleted_lines (id INTEGER PRIMARY KEY, count INTEGER NOT NULL) STRICT";

/// Schema version 6: the highest epoch of a forgotten run. New runs begin above it, because they may have the id of such a
/// run.
pub(super) const SCHEMA_V6: &str = "ALTER TABLE store ADD COLUMN forgotten_epoch INTEGER NOT NULL DEFAULT 0";

/// Returns the highest epoch of a forgotten run.
pub(super) fn last_forgotten_epoch(db: &Connection) -> Result<u64, SqliteError> {
    let mut select = db.prepare_cached("SELECT forgotten_epoch FROM store")?;
    from_sql_integer(select.query_row([], |row| row.get(0))?)
}

/// Forgets a run. The media in `kept` stay.
pub(super) fn forget_run(
    desk: &mut WriteTx<'_>,
    run: &RunId,
    abandoned: Option<&StoredLease>,
    kept: &[String],
) -> Result<(), SqliteError> {
    let db = desk.db;
    let found = db
        .prepare_cached("SELECT id, records FROM runs WHERE name = ?1")?
        .query_row([run.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (id, records): (i64, i64) = found.ok_or_else(|| run_not_found(run))?;
    let (epoch, known) = find_lease(db, run)?.ok_or_else(|| run_not_found(run))?;
    if let Some(known) = known {
        check_abandoned(run, &known, abandoned)?;
    }
    db.execute("UPDATE store SET forgotten_epoch = max(forgotten_epoch, ?1)", [to_sql_integer(epoch)?])?;
    delete_artefacts(db, run, kept)?;
    history::release_history(db, id)?;
    for table in ["snapshots", "snapshot_segments", "withheld_outputs", "live_deltas"] {
        if has_table(db, table)? {
            db.execute(&format!("DELETE FROM {table} WHERE run = ?1"), [id])?;
        }
    }
    db.execute("DELETE FROM inbox WHERE run = ?1", [id])?;
    db.execute("DELETE FROM taken_decisions WHERE run = ?1", [id])?;
    db.execute("DELETE FROM lines WHERE run = ?1", [id])?;
    db.execute("DELETE FROM runs WHERE id = ?1", [id])?;
    queue::forget_run(db, run)?;
    db.execute(CREATE_TABLE_SQL, [])?;
    db.execute(
        "INSERT INTO deleted_lines (id, count) VALUES (1, ?1)
         ON CONFLICT (id) DO UPDATE SET count = count + excluded.count",
        [records],
    )?;
    desk.gaps.clear_run(run);
    Ok(())
}

/// Finds the media of a run that another run or a session refers to. Their names are digests. This reads the journals
/// of all runs, so it is not for the writer.
pub(super) fn find_referenced_media(db: &Connection, run: &RunId) -> Result<Vec<String>, SqliteError> {
    let select = "SELECT name FROM artefacts WHERE run = ?1 AND length(name) = 64 AND (
        EXISTS (SELECT 1 FROM lines WHERE run != (SELECT id FROM runs WHERE name = ?1)
            AND instr(body, '/' || artefacts.name))
        OR EXISTS (SELECT 1 FROM items WHERE instr(body, '/' || artefacts.name)))";
    list_names(db, select, run)
}

fn list_names(db: &Connection, select: &str, run: &RunId) -> Result<Vec<String>, SqliteError> {
    let mut select = db.prepare_cached(select)?;
    let names = select.query_map([run.as_str()], |row| row.get(0))?;
    Ok(names.collect::<Result<_, _>>()?)
}

/// Deletes the artefacts of a run, except those in `kept`.
fn delete_artefacts(db: &Connection, run: &RunId, kept: &[String]) -> Result<(), SqliteError> {
    let mut delete = db.prepare_cached("DELETE FROM artefacts WHERE run = ?1 AND name = ?2")?;
    for name in list_names(db, "SELECT name FROM artefacts WHERE run = ?1", run)? {
        if !kept.contains(&name) {
            delete.execute(params![run.as_str(), name])?;
        }
    }
    Ok(())
}

/// Returns an upper limit of the row ids of lines, without reading the table of lines.
pub(super) fn last_line_id(db: &Connection) -> Result<i64, SqliteError> {
    let kept: Option<i64> =
        db.query_row("SELECT sum(records) FROM runs NOT INDEXED", [], |row| row.get(0))?;
    let deleted = match has_table(db, "deleted_lines")? {
        true => db.query_row("SELECT count FROM deleted_lines", [], |row| row.get(0)).optional()?,
        false => None,
    };
    let last = kept.unwrap_or_default().saturating_add(deleted.unwrap_or_default());
    // Checked, because the value of a damaged file can be any.
    to_sql_integer(u64::try_from(last).unwrap_or_default())
}

fn has_table(db: &Connection, name: &str) -> Result<bool, SqliteError> {
    let select = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    Ok(db.prepare_cached(select)?.exists([name])?)
}
