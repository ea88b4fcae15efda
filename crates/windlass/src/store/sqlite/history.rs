//! The items of sessions that runs refer to, and the right to append to a session.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::{
    id::{RunId, SessionId},
    item::Item,
    journal::{HistoryReference, ItemRange, JournalLine},
};

use super::file::SqliteError;
use super::sessions::{find_or_create, find_session, load_range};
use super::{artefacts, from_sql_integer, runs, to_sql_integer};
use crate::error::StoreError;
use crate::session::SessionWrite;
use crate::store::query::{StartSession, session_of_first_line};
use crate::store::{HISTORY_ARTEFACT, Lease, StoredLease};

/// Records the items that a new run refers to, and holds the session for it.
pub(super) fn begin_run(
    db: &Connection,
    lease: &Lease,
    run: i64,
    first: &JournalLine,
    imported: Option<&[u8]>,
) -> Result<(), SqliteError> {
    let Some(StartSession { session, history: Some(reference) }) = session_of_first_line(first) else {
        return Ok(());
    };
    hold_session(db, lease, &session)?;
    if let Some(items) = imported {
        return artefacts::save_artefact(db, lease, HISTORY_ARTEFACT, items);
    }
    let row = find_or_create(db, &reference.session)?;
    if from_sql_integer(row.version)? != reference.version {
        return Err(StoreError::session_changed(&reference.session).into());
    }
    let insert = "INSERT INTO history_references (session, run, first, last) VALUES (?1, ?2, ?3, ?4)";
    let mut insert = db.prepare_cached(insert)?;
    for range in &reference.ranges {
        insert.execute([row.id, run, to_sql_integer(range.from)?, to_sql_integer(range.to)?])?;
    }
    Ok(())
}

/// Loads the items that a run refers to, or `None` if one of them is missing.
pub(super) fn load_history(
    db: &Connection,
    reference: &HistoryReference,
) -> Result<Option<Vec<Arc<Item>>>, SqliteError> {
    let moment = db.unchecked_transaction()?;
    let Some(row) = find_session(&moment, &reference.session)? else { return Ok(None) };
    let mut items = Vec::new();
    for range in &reference.ranges {
        let loaded = load_range(&moment, row.id, *range)?;
        if loaded.len() as u64 != range.len() {
            return Ok(None);
        }
        items.extend(loaded);
    }
    Ok(Some(items))
}

/// Removes the references of a run that is deleted, and the items that only it referred to.
pub(super) fn release_history(db: &Connection, run: i64) -> Result<(), SqliteError> {
    let first = runs::load_first_line(db, run)?;
    let Some(StartSession { history: Some(reference), .. }) = first.as_ref().and_then(session_of_first_line)
    else {
        return Ok(());
    };
    let Some(row) = find_session(db, &reference.session)? else { return Ok(()) };
    let delete = "DELETE FROM history_references WHERE session = ?1 AND run = ?2";
    db.prepare_cached(delete)?.execute([row.id, run])?;
    delete_unreferenced(db, &reference.session)
}

/// Deletes the items that a session does not show and that no run refers to.
pub(super) fn delete_unreferenced(db: &Connection, session: &SessionId) -> Result<(), SqliteError> {
    let Some(row) = find_session(db, session)?.filter(|row| row.has_hidden_items()) else { return Ok(()) };
    let mut kept = row.shown_ranges()?;
    let mut select = db.prepare_cached("SELECT first, last FROM history_references WHERE session = ?1")?;
    let mut rows = select.query([row.id])?;
    while let Some(row) = rows.next()? {
        kept.push(ItemRange { from: from_sql_integer(row.get(0)?)?, to: from_sql_integer(row.get(1)?)? });
    }
    kept.sort();
    let mut delete = db.prepare_cached("DELETE FROM items WHERE session = ?1 AND seq >= ?2 AND seq < ?3")?;
    let mut reached = 0;
    for range in kept.into_iter().chain([ItemRange { from: row.next, to: row.next }]) {
        if range.from > reached {
            delete.execute([row.id, to_sql_integer(reached)?, to_sql_integer(range.from)?])?;
        }
        reached = reached.max(range.to);
    }
    Ok(())
}

/// Holds a session for the driver of a run, as long as it has the run's lease.
pub(super) fn hold_session(db: &Connection, lease: &Lease, session: &SessionId) -> Result<(), SqliteError> {
    let row = find_or_create(db, session)?;
    match find_holder(db, session)? {
        Some(holder) if holder != lease.run => Err(StoreError::session_busy(session, &holder).into()),
        _ => set_holder(db, row.id, lease),
    }
}

/// Frees a session from a run whose lease is still the one that was observed.
pub(super) fn free_session(
    db: &Connection,
    session: &SessionId,
    holder: &RunId,
    abandoned: &StoredLease,
) -> Result<(), SqliteError> {
    let known = runs::find_lease(db, holder)?.and_then(|(_, lease)| lease);
    if known.is_some_and(|known| abandoned.is_same_beat(&known)) {
        let update = "UPDATE sessions SET holder = NULL, epoch = NULL WHERE name = ?1 AND holder = ?2";
        db.prepare_cached(update)?.execute([session.as_str(), holder.as_str()])?;
    }
    Ok(())
}

/// Checks that the driver of a run still holds its session, before it appends.
pub(super) fn check_holder(db: &Connection, session: &SessionId, lease: &Lease) -> Result<(), SqliteError> {
    match find_holder(db, session)? {
        Some(holder) if holder == lease.run => Ok(()),
        Some(holder) => Err(StoreError::session_busy(session, &holder).into()),
        None => {
            let row = find_or_create(db, session)?;
            set_holder(db, row.id, lease)
        }
    }
}

/// Checks that no other run holds the session that a run of this store appends to.
pub(super) fn check_run_may_append(db: &Connection, write: &SessionWrite) -> Result<(), SqliteError> {
    let is_known = || db.prepare_cached("SELECT 1 FROM runs WHERE name = ?1")?.exists([write.run.as_str()]);
    match find_holder(db, &write.session)? {
        Some(holder) if holder != write.run && is_known()? => {
            Err(StoreError::session_busy(&write.session, &holder).into())
        }
        _ => Ok(()),
    }
}

fn set_holder(db: &Connection, session: i64, lease: &Lease) -> Result<(), SqliteError> {
    let update = "UPDATE sessions SET holder = ?2, epoch = ?3 WHERE id = ?1";
    let values = params![session, lease.run.as_str(), to_sql_integer(lease.epoch)?];
    db.prepare_cached(update)?.execute(values)?;
    Ok(())
}

/// Returns the run that holds a session. A run without a driver holds none, whatever the session says.
pub(super) fn find_holder(db: &Connection, session: &SessionId) -> Result<Option<RunId>, SqliteError> {
    let select = "SELECT runs.name FROM sessions JOIN runs ON runs.name = sessions.holder
        WHERE sessions.name = ?1 AND runs.epoch = sessions.epoch AND runs.owner IS NOT NULL";
    let found = db.prepare_cached(select)?.query_row([session.as_str()], |row| row.get::<_, String>(0));
    Ok(found.optional()?.map(RunId::from))
}
