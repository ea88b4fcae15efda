//! Artefacts: bytes that belong to a run, by name.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::id::RunId;

use super::file::{SqliteError, compute_checksum, verify_checksum};
use super::runs::find_owned_run;
use crate::store::Lease;

pub(super) fn save_artefact(
    db: &Connection,
    lease: &Lease,
    name: &str,
    body: &[u8],
) -> Result<(), SqliteError> {
    find_owned_run(db, lease)?;
    let insert = "INSERT INTO artefacts (run, name, hash, body) VALUES (?1, ?2, ?3, ?4)
                  ON CONFLICT (run, name) DO UPDATE SET hash = excluded.hash, body = excluded.body";
    db.prepare_cached(insert)?.execute(params![lease.run.as_str(), name, compute_checksum(body), body])?;
    Ok(())
}

pub(super) fn load_artefact(
    db: &Connection,
    run: &RunId,
    name: &str,
) -> Result<Option<Vec<u8>>, SqliteError> {
    let select = "SELECT hash, body FROM artefacts WHERE run = ?1 AND name = ?2";
    let found = db
        .prepare_cached(select)?
        .query_row(params![run.as_str(), name], |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?)))
        .optional()?;
    found.map(|(hash, body)| verify_checksum(&hash, body)).transpose()
}

pub(super) fn list_artefacts(
    db: &Connection,
    run: &RunId,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<String>, SqliteError> {
    let select =
        "SELECT name FROM artefacts WHERE run = ?1 AND (?2 IS NULL OR name > ?2) ORDER BY name LIMIT ?3";
    let mut select = db.prepare_cached(select)?;
    let names = select.query_map(params![run.as_str(), after, limit], |row| row.get(0))?;
    Ok(names.collect::<Result<_, _>>()?)
}
