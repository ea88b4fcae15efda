//! Sessions: ordered items, appended in atomic batches, and a version that increases with every change.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::{id::SessionId, item::Item};

use super::file::{SqliteError, compute_checksum, verify_checksum};
use super::{from_json_text, from_sql_integer, to_json_text, to_sql_integer};
use crate::error::StoreError;
use crate::session::SessionState;

pub(super) fn append_items(
    db: &Connection,
    session: &SessionId,
    items: &[Arc<Item>],
) -> Result<(), SqliteError> {
    let (id, version) = find_or_create(db, session)?;
    let last = "SELECT max(seq) FROM items WHERE session = ?1";
    let last: Option<i64> = db.prepare_cached(last)?.query_row([id], |row| row.get(0))?;
    let items: Vec<String> = items.iter().map(to_json_text).collect::<Result<_, _>>()?;
    insert_items(db, id, last.map_or(0, |last| last + 1), &items)?;
    set_version(db, id, version + 1)
}

pub(super) fn replace_items(
    db: &Connection,
    session: &SessionId,
    version: u64,
    items: &[Arc<Item>],
) -> Result<(), SqliteError> {
    let (id, found) = find_or_create(db, session)?;
    if found != to_sql_integer(version)? {
        return Err(StoreError::session_changed(session).into());
    }
    let items: Vec<String> = items.iter().map(to_json_text).collect::<Result<_, _>>()?;
    // An unchanged prefix, as after a rewind, is not written again.
    let known: Vec<String> = db
        .prepare_cached("SELECT hash FROM items WHERE session = ?1 ORDER BY seq")?
        .query_map([id], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let stays = known.iter().zip(&items).take_while(|(hash, body)| **hash == compute_checksum(body)).count();
    let from = to_sql_integer(stays as u64)?;
    db.prepare_cached("DELETE FROM items WHERE session = ?1 AND seq >= ?2")?.execute(params![id, from])?;
    insert_items(db, id, from, &items[stays..])?;
    set_version(db, id, found + 1)
}

pub(super) fn load_session(db: &Connection, session: &SessionId) -> Result<SessionState, SqliteError> {
    // The version and the items must come from one transaction.
    let moment = db.unchecked_transaction()?;
    let select = "SELECT id, version FROM sessions WHERE name = ?1";
    let found = moment
        .prepare_cached(select)?
        .query_row([session.as_str()], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)))
        .optional()?;
    let Some((id, version)) = found else { return Ok(SessionState::default()) };
    let mut select =
        moment.prepare_cached("SELECT seq, hash, body FROM items WHERE session = ?1 ORDER BY seq")?;
    let mut rows = select.query([id])?;
    let mut items = Vec::new();
    while let Some(row) = rows.next()? {
        let expected = items.len() as u64;
        if from_sql_integer(row.get(0)?)? != expected {
            return Err(SqliteError::Corrupt(format!("item {expected} is missing")));
        }
        items.push(Arc::new(from_json_text(&verify_checksum(&row.get::<_, String>(1)?, row.get(2)?)?)?));
    }
    Ok(SessionState { version: from_sql_integer(version)?, items })
}

pub(super) fn list_sessions(db: &Connection) -> Result<Vec<SessionId>, SqliteError> {
    let mut select = db.prepare_cached("SELECT name FROM sessions ORDER BY name")?;
    let names = select.query_map([], |row| row.get::<_, String>(0))?;
    Ok(names.map(|name| name.map(SessionId::from)).collect::<Result<_, _>>()?)
}

fn find_or_create(db: &Connection, session: &SessionId) -> Result<(i64, i64), SqliteError> {
    let name = session.as_str();
    let make = "INSERT INTO sessions (name, version) VALUES (?1, 0) ON CONFLICT (name) DO NOTHING";
    db.prepare_cached(make)?.execute([name])?;
    let mut select = db.prepare_cached("SELECT id, version FROM sessions WHERE name = ?1")?;
    Ok(select.query_row([name], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

fn set_version(db: &Connection, id: i64, version: i64) -> Result<(), SqliteError> {
    db.prepare_cached("UPDATE sessions SET version = ?2 WHERE id = ?1")?.execute([id, version])?;
    Ok(())
}

fn insert_items(db: &Connection, session: i64, from: i64, items: &[String]) -> Result<(), SqliteError> {
    let mut insert =
        db.prepare_cached("INSERT INTO items (session, seq, hash, body) VALUES (?1, ?2, ?3, ?4)")?;
    for (seq, body) in (from..).zip(items) {
        insert.execute(params![session, seq, compute_checksum(body), body])?;
    }
    Ok(())
}
