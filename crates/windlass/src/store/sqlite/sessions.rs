//! Sessions: a log of items, a view that says which of them the session shows, and a version that increases with every
//! change.
//!
//! Invariant: a position in the log is never used for another item. Items that the session no longer shows stay until
//! no run refers to them: see `history.rs`.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::{
    id::{RunId, SessionId},
    item::Item,
    journal::ItemRange,
};

use super::file::{Checksum, SqliteError, compute_checksum, verify_checksum};
use super::{from_json_text, from_sql_integer, history, to_json_text, to_sql_integer};
use crate::error::StoreError;
use crate::session::log::kept_ends;
use crate::session::{SessionItemsPage, SessionState, SessionWrite};

/// Tables of schema version 1.
///
/// `next` is the next position in the log, which does not reveal that its end is missing. `view` lists the positions that
/// the session shows; without it, all. `holder` is the run that appends to the session, at `epoch`. `session_runs` has
/// the position of each run in its session, and `history_references` the items that runs started with.
pub(super) const SCHEMA_V1: &str = "
    CREATE TABLE sessions (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        version INTEGER NOT NULL,
        next INTEGER NOT NULL,
        view TEXT,
        holder TEXT,
        epoch INTEGER
    ) STRICT;
    CREATE TABLE items (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        hash BLOB NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (session, seq)
    ) STRICT;
    CREATE TABLE session_runs (
        session INTEGER NOT NULL,
        run TEXT NOT NULL,
        position INTEGER NOT NULL,
        PRIMARY KEY (session, run)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE history_references (
        session INTEGER NOT NULL,
        run INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        PRIMARY KEY (session, run, first)
    ) STRICT, WITHOUT ROWID;
";

/// Columns that schema version 4 adds: the claim of a driver whose run is in another store, as the lease of a run.
pub(super) const SCHEMA_V4: &str = "
    ALTER TABLE sessions ADD COLUMN claimant TEXT;
    ALTER TABLE sessions ADD COLUMN beat INTEGER;
    ALTER TABLE sessions ADD COLUMN lease_ms INTEGER;
    ALTER TABLE sessions ADD COLUMN renewed INTEGER;
";

/// A row of a session.
pub(super) struct SessionRow {
    pub(super) id: i64,
    pub(super) version: i64,
    /// Next position in the log.
    pub(super) next: u64,
    /// The view as text; `None` if the session shows its whole log.
    view: Option<String>,
}

/// The positions that a session shows: closed ranges, and all positions from `open_from` on.
#[derive(serde::Serialize, serde::Deserialize)]
struct SessionView {
    ranges: Vec<ItemRange>,
    open_from: u64,
}

impl SessionRow {
    /// Returns the positions that the session shows, in its order.
    pub(super) fn shown_ranges(&self) -> Result<Vec<ItemRange>, SqliteError> {
        let view = match &self.view {
            Some(view) => from_json_text(view)?,
            None => SessionView { ranges: Vec::new(), open_from: 0 },
        };
        let open = ItemRange { from: view.open_from, to: self.next };
        Ok(view.ranges.into_iter().chain([open]).filter(|range| !range.is_empty()).collect())
    }

    /// Returns true if the log may have items that the session does not show.
    pub(super) fn has_hidden_items(&self) -> bool {
        self.view.is_some()
    }
}

pub(super) fn append_items(
    db: &Connection,
    session: &SessionId,
    items: &[Arc<Item>],
) -> Result<(), SqliteError> {
    let row = find_or_create(db, session)?;
    let items: Vec<String> = items.iter().map(to_json_text).collect::<Result<_, _>>()?;
    insert_items(db, row.id, row.next, &items)?;
    let next = to_sql_integer(row.next + items.len() as u64)?;
    let update = "UPDATE sessions SET version = version + 1, next = ?2 WHERE id = ?1";
    db.prepare_cached(update)?.execute([row.id, next])?;
    Ok(())
}

pub(super) fn append_run_items(db: &Connection, write: &SessionWrite) -> Result<(), SqliteError> {
    if !write.is_new_at(run_position(db, &write.session, &write.run)?)? {
        return Ok(());
    }
    append_items(db, &write.session, &write.items)?;
    let row = find_or_create(db, &write.session)?;
    let replace = "INSERT OR REPLACE INTO session_runs (session, run, position) VALUES (?1, ?2, ?3)";
    db.prepare_cached(replace)?.execute(params![row.id, write.run.as_str(), to_sql_integer(write.to)?])?;
    Ok(())
}

pub(super) fn run_position(db: &Connection, session: &SessionId, run: &RunId) -> Result<u64, SqliteError> {
    let select = "SELECT position FROM session_runs JOIN sessions ON sessions.id = session_runs.session
        WHERE sessions.name = ?1 AND run = ?2";
    let position = db.prepare_cached(select)?.query_row([session.as_str(), run.as_str()], |row| row.get(0));
    position.optional()?.map_or(Ok(0), from_sql_integer)
}

pub(super) fn list_run_positions(
    db: &Connection,
    session: &SessionId,
    after: Option<&RunId>,
    limit: u32,
) -> Result<Vec<(RunId, u64)>, SqliteError> {
    let select = "SELECT run, position FROM session_runs JOIN sessions ON sessions.id = session_runs.session
        WHERE sessions.name = ?1 AND (?2 IS NULL OR run > ?2) ORDER BY run LIMIT ?3";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query(params![session.as_str(), after.map(RunId::as_str), limit])?;
    let mut positions = Vec::new();
    while let Some(row) = rows.next()? {
        positions.push((RunId::from(row.get::<_, String>(0)?), from_sql_integer(row.get(1)?)?));
    }
    Ok(positions)
}

pub(super) fn replace_items(
    db: &Connection,
    session: &SessionId,
    version: u64,
    items: &[Arc<Item>],
) -> Result<(), SqliteError> {
    let row = find_or_create(db, session)?;
    if row.version != to_sql_integer(version)? {
        return Err(StoreError::session_changed(session).into());
    }
    let shown: Vec<u64> = row.shown_ranges()?.iter().flat_map(|range| range.from..range.to).collect();
    let mut known = Vec::with_capacity(shown.len());
    let mut select = db.prepare_cached("SELECT hash FROM items WHERE session = ?1 AND seq = ?2")?;
    for position in &shown {
        let hash: Option<Checksum> =
            select.query_row([row.id, to_sql_integer(*position)?], |row| row.get(0)).optional()?;
        known.push(hash);
    }
    let items: Vec<String> = items.iter().map(to_json_text).collect::<Result<_, _>>()?;
    let hashes: Vec<Checksum> = items.iter().map(compute_checksum).collect();
    // Items that stay, as after a rewind or a compaction, are not written again.
    let (front, back) =
        kept_ends(known.len(), items.len(), |old, new| known[old].as_ref() == Some(&hashes[new]));
    let middle = &items[front..items.len() - back];
    insert_items(db, row.id, row.next, middle)?;
    let next = row.next + middle.len() as u64;
    let kept_back = shown[shown.len() - back..].iter().copied();
    let positions = shown[..front].iter().copied().chain(row.next..next).chain(kept_back);
    let view = SessionView { ranges: ItemRange::from_positions(positions), open_from: next };
    let update = "UPDATE sessions SET version = version + 1, next = ?2, view = ?3 WHERE id = ?1";
    db.prepare_cached(update)?.execute(params![row.id, to_sql_integer(next)?, to_json_text(&view)?])?;
    history::delete_unreferenced(db, session)
}

pub(super) fn load_session(db: &Connection, session: &SessionId) -> Result<SessionState, SqliteError> {
    // The version and the items must come from one transaction.
    let moment = db.unchecked_transaction()?;
    let Some(row) = find_session(&moment, session)? else { return Ok(SessionState::default()) };
    let positions = row.shown_ranges()?;
    let items = load_ranges(&moment, row.id, &positions)?;
    Ok(SessionState { version: from_sql_integer(row.version)?, items, positions })
}

pub(super) fn load_session_items(
    db: &Connection,
    session: &SessionId,
    skip: u64,
    limit: u32,
) -> Result<SessionItemsPage, SqliteError> {
    let moment = db.unchecked_transaction()?;
    let Some(row) = find_session(&moment, session)? else { return Ok(SessionItemsPage::default()) };
    let (total, ranges) = ItemRange::page(&row.shown_ranges()?, skip, limit);
    Ok(SessionItemsPage { total, items: load_ranges(&moment, row.id, &ranges)? })
}

/// Loads the items at these positions, all of which exist.
fn load_ranges(db: &Connection, session: i64, ranges: &[ItemRange]) -> Result<Vec<Arc<Item>>, SqliteError> {
    let mut items = Vec::new();
    for range in ranges {
        let loaded = load_range(db, session, *range)?;
        if loaded.len() as u64 != range.len() {
            let (from, to) = (range.from, range.to);
            return Err(SqliteError::Corrupt(format!("one of the items {from} to {to} is missing")));
        }
        items.extend(loaded);
    }
    Ok(items)
}

/// Loads the items at these positions, as far as they exist.
pub(super) fn load_range(
    db: &Connection,
    session: i64,
    range: ItemRange,
) -> Result<Vec<Arc<Item>>, SqliteError> {
    let select = "SELECT hash, body FROM items WHERE session = ?1 AND seq >= ?2 AND seq < ?3 ORDER BY seq";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([session, to_sql_integer(range.from)?, to_sql_integer(range.to)?])?;
    let mut items = Vec::new();
    while let Some(row) = rows.next()? {
        items.push(Arc::new(from_json_text(&verify_checksum(&row.get(0)?, row.get::<_, String>(1)?)?)?));
    }
    Ok(items)
}

pub(super) fn list_sessions(
    db: &Connection,
    after: Option<&SessionId>,
    limit: u32,
) -> Result<Vec<SessionId>, SqliteError> {
    let select =
        "SELECT name FROM sessions WHERE version > 0 AND (?1 IS NULL OR name > ?1) ORDER BY name LIMIT ?2";
    let mut select = db.prepare_cached(select)?;
    let names =
        select.query_map(params![after.map(SessionId::as_str), limit], |row| row.get::<_, String>(0))?;
    Ok(names.map(|name| name.map(SessionId::from)).collect::<Result<_, _>>()?)
}

pub(super) fn find_session(db: &Connection, session: &SessionId) -> Result<Option<SessionRow>, SqliteError> {
    let select = "SELECT id, version, next, view FROM sessions WHERE name = ?1";
    let row = db.prepare_cached(select)?.query_row([session.as_str()], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?, row.get(3)?))
    });
    let Some((id, version, next, view)) = row.optional()? else { return Ok(None) };
    Ok(Some(SessionRow { id, version, next: from_sql_integer(next)?, view }))
}

pub(super) fn find_or_create(db: &Connection, session: &SessionId) -> Result<SessionRow, SqliteError> {
    let make = "INSERT INTO sessions (name, version, next) VALUES (?1, 0, 0) ON CONFLICT (name) DO NOTHING";
    db.prepare_cached(make)?.execute([session.as_str()])?;
    find_session(db, session)?.ok_or_else(|| SqliteError::Corrupt(format!("session `{session}` is missing")))
}

fn insert_items(db: &Connection, session: i64, from: u64, items: &[String]) -> Result<(), SqliteError> {
    let mut insert =
        db.prepare_cached("INSERT INTO items (session, seq, hash, body) VALUES (?1, ?2, ?3, ?4)")?;
    for (seq, body) in (from..).zip(items) {
        insert.execute(params![session, to_sql_integer(seq)?, compute_checksum(body), body])?;
    }
    Ok(())
}
