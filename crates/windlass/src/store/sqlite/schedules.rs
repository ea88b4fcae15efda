//! The schedules of the queue.

use rusqlite::{Connection, OptionalExtension, Row, params};
use windlass_core::id::Timestamp;

use super::file::{SqliteError, compute_checksum, verify_checksum};
use super::queue::separate_damage;
use super::{from_json_text, from_sql_time, to_json_text, to_sql_time};
use crate::fleet::{RunSchedule, StoredSchedule};

/// Table that schema version 3 adds.
pub(super) const SCHEMA_V3: &str = "
    CREATE TABLE schedules (
        name TEXT PRIMARY KEY,
        covered INTEGER NOT NULL,
        hash BLOB NOT NULL,
        body TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
";

pub(super) fn save_schedule(
    db: &Connection,
    schedule: &RunSchedule,
    now: Timestamp,
) -> Result<(), SqliteError> {
    let body = to_json_text(schedule)?;
    let known: Option<String> = db
        .prepare_cached("SELECT body FROM schedules WHERE name = ?1")?
        .query_row([&schedule.name], |row| row.get(0))
        .optional()?;
    if known.is_some_and(|known| known == body) {
        return Ok(());
    }
    let insert = "INSERT INTO schedules (name, covered, hash, body) VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (name) DO UPDATE SET covered = excluded.covered, hash = excluded.hash, body = excluded.body";
    let hash = compute_checksum(&body);
    db.prepare_cached(insert)?.execute(params![schedule.name, to_sql_time(now), hash, body])?;
    Ok(())
}

pub(super) fn remove_schedule(db: &Connection, name: &str) -> Result<bool, SqliteError> {
    Ok(db.prepare_cached("DELETE FROM schedules WHERE name = ?1")?.execute([name])? > 0)
}

pub(super) fn list_schedules(db: &Connection) -> Result<Vec<StoredSchedule>, SqliteError> {
    let mut select = db.prepare_cached("SELECT covered, hash, body, name FROM schedules ORDER BY name")?;
    let mut rows = select.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(read_schedule(row)?);
    }
    Ok(found)
}

pub(super) fn advance_schedule(
    db: &Connection,
    name: &str,
    from: Timestamp,
    until: Timestamp,
) -> Result<(), SqliteError> {
    let update = "UPDATE schedules SET covered = ?3 WHERE name = ?1 AND covered = ?2";
    db.prepare_cached(update)?.execute(params![name, to_sql_time(from), to_sql_time(until)])?;
    Ok(())
}

fn read_schedule(row: &Row<'_>) -> Result<StoredSchedule, SqliteError> {
    let read = || from_json_text(&verify_checksum(&row.get(1)?, row.get::<_, String>(2)?)?);
    Ok(StoredSchedule {
        name: row.get(3)?,
        schedule: separate_damage(read())?,
        covered_until: from_sql_time(row.get(0)?),
    })
}
