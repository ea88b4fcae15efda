//! Posted decisions, and the marks of those that a driver has taken.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::id::{CallPath, RunId};

use super::file::{SqliteError, compute_checksum, verify_checksum};
use super::queue;
use super::runs::{find_lease, find_owned_run, run_not_found};
use super::{from_json_text, from_sql_integer, to_json_text, to_sql_integer};
use crate::error::StoreError;
use crate::store::{Lease, PostedDecision};

/// Schema version 5: the order in which decisions were posted. A correction has a new position, so that the processes that
/// watch the file see it.
pub(super) const SCHEMA_V5: &str = "
    ALTER TABLE inbox ADD COLUMN position INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX inbox_by_position ON inbox (position);
";

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
    let write = "INSERT INTO inbox (run, path, attempt, hash, body, position) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
        ON CONFLICT (run, path, attempt)
        DO UPDATE SET hash = excluded.hash, body = excluded.body, position = excluded.position";
    let position = last_position(db)? + 1;
    let values = params![id, path, posted.attempt, compute_checksum(&body), body, position];
    db.prepare_cached(write)?.execute(values)?;
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

/// Returns the position of the decision that was posted last; 0 if there is none.
pub(super) fn last_position(db: &Connection) -> Result<i64, SqliteError> {
    let select = "SELECT coalesce(max(position), 0) FROM inbox";
    Ok(db.prepare_cached(select)?.query_row([], |row| row.get(0))?)
}

/// Returns the runs with decisions that were posted after this position.
pub(super) fn runs_decided_after(db: &Connection, position: i64) -> Result<Vec<RunId>, SqliteError> {
    let select =
        "SELECT DISTINCT runs.name FROM inbox JOIN runs ON runs.id = inbox.run WHERE inbox.position > ?1";
    let mut select = db.prepare_cached(select)?;
    let runs = select.query_map([position], |row| Ok(RunId::from(row.get::<_, String>(0)?)))?;
    Ok(runs.collect::<Result<_, _>>()?)
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
