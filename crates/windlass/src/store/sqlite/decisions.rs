//! Posted decisions, and the marks of those that a driver has taken.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::id::{CallPath, RunId};

use super::file::{SqliteError, compute_checksum, verify_checksum};
use super::queue;
use super::runs::{find_lease, find_owned_run, run_not_found};
use super::{from_json_text, from_sql_integer, to_json_text, to_sql_integer};
use crate::error::StoreError;
use crate::store::{Lease, PostedDecision};

pub(super) fn post_decision(
    db: &Connection,
    run: &RunId,
    mut posted: PostedDecision,
    record_count: u64,
) -> Result<(), SqliteError> {
    let (id, records): (i64, i64) = db
        .prepare_cached("SELECT id, records FROM runs WHERE name = ?1")?
        .query_row([run.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?
        .ok_or_else(|| run_not_found(run))?;
    let path = to_json_text(&posted.path)?;
    let known = find_posted(db, id, &path, posted.attempt)?;
    if known.as_ref().is_some_and(|known| known.is_repeated_by(&posted)) {
        return Ok(());
    }
    let taken: Option<i64> = db
        .prepare_cached("SELECT epoch FROM taken_decisions WHERE run = ?1 AND path = ?2 AND attempt = ?3")?
        .query_row(params![id, path, posted.attempt], |row| row.get(0))
        .optional()?;
    if let Some(taken) = taken {
        if let Some((epoch, Some(_))) = find_lease(db, run)?
            && from_sql_integer(taken)? == epoch
        {
            return Err(StoreError::already_decided(run, &posted.path, known.as_ref()).into());
        }
        let records = from_sql_integer(records)?;
        if records != record_count {
            return Err(StoreError::stale_read(run, records, record_count).into());
        }
    }
    let next = known.map_or(0, |known| known.decision.posted_revision) + 1;
    if posted.mac.is_some() && posted.decision.posted_revision < next {
        return Err(StoreError::stale_revision(run, &posted.path).into());
    }
    // A decision that comes from another store keeps its revision.
    posted.decision.posted_revision = posted.decision.posted_revision.max(next);
    let body = to_json_text(&posted)?;
    let write = "INSERT INTO inbox (run, path, attempt, hash, body) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (run, path, attempt) DO UPDATE SET hash = excluded.hash, body = excluded.body";
    db.prepare_cached(write)?.execute(params![id, path, posted.attempt, compute_checksum(&body), body])?;
    queue::signal_run(db, run)
}

pub(super) fn take_decision(
    db: &Connection,
    lease: &Lease,
    call: &CallPath,
    attempt: u32,
) -> Result<Option<PostedDecision>, SqliteError> {
    let (id, _) = find_owned_run(db, lease)?;
    let path = to_json_text(call)?;
    let mark = "INSERT INTO taken_decisions (run, path, attempt, epoch) VALUES (?1, ?2, ?3, ?4)
                ON CONFLICT (run, path, attempt) DO UPDATE SET epoch = excluded.epoch";
    db.prepare_cached(mark)?.execute(params![id, path, attempt, to_sql_integer(lease.epoch)?])?;
    find_posted(db, id, &path, attempt)
}

pub(super) fn posted_decisions(db: &Connection, run: &RunId) -> Result<Vec<PostedDecision>, SqliteError> {
    let select = "SELECT hash, body FROM inbox WHERE run = (SELECT id FROM runs WHERE name = ?1) ORDER BY id";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([run.as_str()])?;
    let mut posted = Vec::new();
    while let Some(row) = rows.next()? {
        posted.push(from_json_text(&verify_checksum(&row.get(0)?, row.get::<_, String>(1)?)?)?);
    }
    Ok(posted)
}

fn find_posted(
    db: &Connection,
    run: i64,
    path: &str,
    attempt: u32,
) -> Result<Option<PostedDecision>, SqliteError> {
    let select = "SELECT hash, body FROM inbox WHERE run = ?1 AND path = ?2 AND attempt = ?3";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query(params![run, path, attempt])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(Some(from_json_text(&verify_checksum(&row.get(0)?, row.get::<_, String>(1)?)?)?))
}
