//! Outputs that their output guardrails have not passed yet. The table is created with the first of them.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::id::{CallPath, RunId};
use windlass_core::item::OutputContent;

use super::file::{SqliteError, compute_checksum, verify_checksum};
use super::runs::find_owned_run;
use super::{from_json_text, to_json_text};
use crate::store::Lease;

const CREATE_TABLE_SQL: &str = "
    CREATE TABLE IF NOT EXISTS withheld_outputs (
        run INTEGER NOT NULL,
        path TEXT NOT NULL,
        hash BLOB NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (run, path)
    ) STRICT, WITHOUT ROWID";

pub(super) fn save_output(
    db: &Connection,
    lease: &Lease,
    call: &CallPath,
    output: &OutputContent,
) -> Result<(), SqliteError> {
    let (id, _) = find_owned_run(db, lease)?;
    db.execute(CREATE_TABLE_SQL, [])?;
    let body = to_json_text(output)?;
    let replace = "INSERT OR REPLACE INTO withheld_outputs (run, path, hash, body) VALUES (?1, ?2, ?3, ?4)";
    db.prepare_cached(replace)?.execute(params![id, to_json_text(call)?, compute_checksum(&body), body])?;
    Ok(())
}

pub(super) fn load_output(
    db: &Connection,
    run: &RunId,
    call: &CallPath,
) -> Result<Option<OutputContent>, SqliteError> {
    if !has_table(db)? {
        return Ok(None);
    }
    let select = "SELECT hash, body FROM withheld_outputs JOIN runs ON runs.id = withheld_outputs.run
        WHERE runs.name = ?1 AND path = ?2";
    let found = db
        .prepare_cached(select)?
        .query_row(params![run.as_str(), to_json_text(call)?], |row| {
            Ok((row.get(0)?, row.get::<_, String>(1)?))
        })
        .optional()?;
    found.map(|(hash, body)| from_json_text(&verify_checksum(&hash, body)?)).transpose()
}

pub(super) fn list_outputs(db: &Connection, run: &RunId) -> Result<Vec<CallPath>, SqliteError> {
    if !has_table(db)? {
        return Ok(Vec::new());
    }
    let select = "SELECT path FROM withheld_outputs JOIN runs ON runs.id = withheld_outputs.run
        WHERE runs.name = ?1";
    let mut select = db.prepare_cached(select)?;
    let paths = select.query_map([run.as_str()], |row| row.get::<_, String>(0))?;
    paths.map(|path| from_json_text(&path?)).collect()
}

/// Erases the outputs of these calls. Connections overwrite what they erase (`secure_delete`); the write-ahead log has
/// it until the log is written over.
pub(super) fn erase_outputs(db: &Connection, lease: &Lease, calls: &[CallPath]) -> Result<(), SqliteError> {
    let (id, _) = find_owned_run(db, lease)?;
    if !has_table(db)? {
        return Ok(());
    }
    for call in calls {
        db.prepare_cached("DELETE FROM withheld_outputs WHERE run = ?1 AND path = ?2")?
            .execute(params![id, to_json_text(call)?])?;
    }
    Ok(())
}

fn has_table(db: &Connection) -> Result<bool, SqliteError> {
    let select = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'withheld_outputs'";
    Ok(db.prepare_cached(select)?.exists([])?)
}
