//! The items of sessions that runs refer to, and the right to append to a session.

use std::sync::Arc;

use rusqlite::{Connection, params};
use windlass_core::{
    id::{RunId, SessionId},
    item::Item,
    journal::{HistoryReference, ItemRange, JournalLine},
};

use super::file::SqliteError;
use super::runs::{OwnedLeaseClaim, to_sql_millis};
use super::sessions::{append_run_items, find_or_create, find_session, load_range};
use super::{artefacts, from_sql_integer, runs, to_sql_integer, to_sql_time};
use crate::error::StoreError;
use crate::session::{SessionClaim, SessionFence, SessionWrite};
use crate::store::query::{StartSession, session_of_first_line};
use crate::store::{HISTORY_ARTEFACT, Lease, SessionHolder, StoredLease};

/// Records the items that a new run refers to, and holds the session for it. The position of a forgotten run of the same
/// id is not its own.
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
    let forget = "DELETE FROM session_runs WHERE session = ?1 AND run = ?2";
    db.prepare_cached(forget)?.execute(params![row.id, lease.run.as_str()])?;
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
    runs::find_owned_run(db, lease)?;
    hold_for_owner(db, lease, session)
}

/// Holds a session for the driver of a run, whose lease is current.
fn hold_for_owner(db: &Connection, lease: &Lease, session: &SessionId) -> Result<(), SqliteError> {
    let row = find_or_create(db, session)?;
    let holder = find_holder(db, session)?;
    SessionHolder::check_run(holder.as_ref(), session, &lease.run)?;
    if holder.is_some() {
        return Ok(());
    }
    let update = "UPDATE sessions SET holder = ?2, epoch = ?3, claimant = NULL WHERE id = ?1";
    let values = params![row.id, lease.run.as_str(), to_sql_integer(lease.epoch)?];
    db.prepare_cached(update)?.execute(values)?;
    Ok(())
}

/// Claims a session for a driver whose run is in another store.
pub(super) fn claim_session(
    db: &Connection,
    session: &SessionId,
    by: &OwnedLeaseClaim,
    abandoned: Option<&StoredLease>,
) -> Result<SessionClaim, SqliteError> {
    let row = find_or_create(db, session)?;
    let beat = match SessionHolder::answer_claim(find_holder(db, session)?, &by.owner, abandoned) {
        Ok(beat) => to_sql_integer(beat)?,
        Err(held) => return Ok(SessionClaim::Held(held)),
    };
    let update = "UPDATE sessions SET holder = NULL, epoch = NULL, claimant = ?2, beat = ?3, lease_ms = ?4, renewed = ?5
        WHERE id = ?1";
    let (duration, now) = (to_sql_millis(by.duration), to_sql_time(by.now));
    db.prepare_cached(update)?.execute(params![row.id, by.owner, beat, duration, now])?;
    Ok(SessionClaim::Granted)
}

/// Releases the claim of a session, if `owner` holds it.
pub(super) fn release_claim(db: &Connection, session: &SessionId, owner: &str) -> Result<(), SqliteError> {
    let update = "UPDATE sessions SET claimant = NULL WHERE name = ?1 AND claimant = ?2";
    db.prepare_cached(update)?.execute([session.as_str(), owner])?;
    Ok(())
}

/// Frees a session from a driver whose lease is still the one that was observed.
pub(super) fn free_session(
    db: &Connection,
    session: &SessionId,
    abandoned: &SessionHolder,
) -> Result<(), SqliteError> {
    if find_holder(db, session)?.is_some_and(|holder| holder.is_same_beat(abandoned)) {
        let update = "UPDATE sessions SET holder = NULL, epoch = NULL, claimant = NULL WHERE name = ?1";
        db.prepare_cached(update)?.execute([session.as_str()])?;
    }
    Ok(())
}

/// Appends the items of a run to the session in its store, together with its lines. The lease is current.
pub(super) fn append_with_lines(
    db: &Connection,
    lease: &Lease,
    write: &SessionWrite,
) -> Result<(), SqliteError> {
    hold_for_owner(db, lease, &write.session)?;
    append_run_items(db, write)
}

/// Appends the items of a run, if its driver may append to the session.
pub(super) fn append_fenced(
    db: &Connection,
    write: &SessionWrite,
    fence: &SessionFence,
) -> Result<(), SqliteError> {
    match fence {
        SessionFence::Lease(lease) => hold_session(db, lease, &write.session)?,
        SessionFence::Claim(owner) => check_claim(db, &write.session, Some(owner))?,
        SessionFence::Unheld => check_claim(db, &write.session, None)?,
    }
    append_run_items(db, write)
}

fn check_claim(db: &Connection, session: &SessionId, claim: Option<&str>) -> Result<(), SqliteError> {
    let holder = find_holder(db, session)?;
    Ok(SessionHolder::check_claim(holder.as_ref(), session, claim)?)
}

/// Returns the driver that holds a session. A run without a driver holds none, whatever the session says.
pub(super) fn find_holder(
    db: &Connection,
    session: &SessionId,
) -> Result<Option<SessionHolder>, SqliteError> {
    let select = "SELECT holder, epoch, claimant, beat, lease_ms, renewed FROM sessions WHERE name = ?1";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([session.as_str()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    if let Some(lease) = runs::read_lease(row, 2, 0)? {
        return Ok(Some(SessionHolder { run: None, lease }));
    }
    let (Some(run), Some(epoch)) = (row.get::<_, Option<String>>(0)?, row.get::<_, Option<i64>>(1)?) else {
        return Ok(None);
    };
    let (run, epoch) = (RunId::from(run), from_sql_integer(epoch)?);
    let held = runs::find_lease(db, &run)?.and_then(|(_, lease)| lease).filter(|lease| lease.epoch == epoch);
    Ok(held.map(|lease| SessionHolder { run: Some(run), lease }))
}
