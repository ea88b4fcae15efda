//! Runs, their journal lines, posted decisions and artefacts.

use rusqlite::{Connection, OptionalExtension, Row, params};
use windlass_core::{
    id::{AgentName, RunId, Timestamp},
    journal::JournalLine,
};

use super::file::{SqliteError, compute_checksum, is_corruption, verify_checksum};
use super::writer::WriteTx;
use super::{
    from_json_text, from_sql_integer, from_sql_time, snapshots, to_json_text, to_sql_integer, to_sql_time,
};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{Lease, PostedDecision, RunStatus, StoredRun};

/// An owned lease claim, for requests that are executed later on the writer thread.
#[derive(Clone, Debug)]
pub(super) struct OwnedLeaseClaim {
    pub(super) owner: String,
    pub(super) now: Timestamp,
    pub(super) expires_at: Timestamp,
}

pub(super) fn create_run(
    db: &Connection,
    run: &RunId,
    agent: &AgentName,
    by: &OwnedLeaseClaim,
) -> Result<Lease, SqliteError> {
    let insert =
        "INSERT INTO runs (name, agent, status, epoch, records, owner, owned_until, created, updated)
                  VALUES (?1, ?2, ?3, 1, 0, ?4, ?5, ?6, ?6) ON CONFLICT (name) DO NOTHING";
    let added = db.prepare_cached(insert)?.execute(params![
        run.as_str(),
        agent.as_str(),
        status_text(RunStatus::Running),
        by.owner,
        to_sql_time(by.expires_at),
        to_sql_time(by.now),
    ])?;
    if added == 0 {
        return Err(StoreError::with_kind(
            StoreErrorKind::AlreadyExists,
            format!("there is a run `{run}` already"),
        )
        .into());
    }
    Ok(Lease { run: run.clone(), owner: by.owner.clone(), epoch: 1 })
}

pub(super) fn acquire_lease(
    desk: &mut WriteTx<'_>,
    run: &RunId,
    by: &OwnedLeaseClaim,
) -> Result<Lease, SqliteError> {
    let select = "SELECT epoch, owner, owned_until FROM runs WHERE name = ?1";
    let found = desk
        .db
        .prepare_cached(select)?
        .query_row([run.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let (epoch, owner, until): (i64, Option<String>, Option<i64>) =
        found.ok_or_else(|| run_not_found(run))?;
    if let (Some(owner), Some(until)) = (owner, until)
        && from_sql_time(until) > by.now
        && owner != by.owner
    {
        return Err(StoreError::lease_held(run, &owner).into());
    }
    let update = "UPDATE runs SET epoch = ?2, owner = ?3, owned_until = ?4 WHERE name = ?1";
    desk.db.prepare_cached(update)?.execute(params![
        run.as_str(),
        epoch + 1,
        by.owner,
        to_sql_time(by.expires_at)
    ])?;
    desk.gaps.clear_run(run);
    Ok(Lease { run: run.clone(), owner: by.owner.clone(), epoch: from_sql_integer(epoch + 1)? })
}

pub(super) fn renew_lease(db: &Connection, lease: &Lease, until: Timestamp) -> Result<(), SqliteError> {
    let (id, _) = find_owned_run(db, lease)?;
    let update = "UPDATE runs SET owner = ?2, owned_until = ?3 WHERE id = ?1";
    db.prepare_cached(update)?.execute(params![id, lease.owner, to_sql_time(until)])?;
    Ok(())
}

pub(super) fn release_lease(db: &Connection, lease: &Lease) -> Result<(), SqliteError> {
    let update = "UPDATE runs SET owner = NULL, owned_until = NULL WHERE name = ?1 AND epoch = ?2";
    db.prepare_cached(update)?.execute(params![lease.run.as_str(), to_sql_integer(lease.epoch)?])?;
    Ok(())
}

pub(super) fn set_status(
    db: &Connection,
    lease: &Lease,
    status: RunStatus,
    now: Timestamp,
) -> Result<(), SqliteError> {
    let (id, _) = find_owned_run(db, lease)?;
    let update = "UPDATE runs SET status = ?2, updated = ?3 WHERE id = ?1";
    db.prepare_cached(update)?.execute(params![id, status_text(status), to_sql_time(now)])?;
    match status {
        RunStatus::Running | RunStatus::Paused => Ok(()),
        RunStatus::Finished | RunStatus::Failed | RunStatus::Cancelled => snapshots::delete_snapshot(db, id),
    }
}

pub(super) fn append_journal(
    desk: &mut WriteTx<'_>,
    lease: &Lease,
    at: u64,
    lines: &[JournalLine],
) -> Result<(), SqliteError> {
    let (id, next) = find_owned_run(desk.db, lease)?;
    if next != at {
        return Err(if next < at && desk.gaps.has_gap(lease) {
            let message = format!(
                "run `{}`: record {at} cannot be written, because records before it could not: {next} were kept",
                lease.run
            );
            StoreError::with_kind(StoreErrorKind::Disk, message).into()
        } else {
            StoreError::stale_read(&lease.run, next, at).into()
        });
    }
    desk.gaps.clear_run(&lease.run);
    let mut insert =
        desk.db.prepare_cached("INSERT INTO lines (run, seq, hash, body) VALUES (?1, ?2, ?3, ?4)")?;
    for (seq, line) in (at..).zip(lines) {
        insert.execute(params![id, to_sql_integer(seq)?, line.hash.to_string(), line.body])?;
    }
    let records = to_sql_integer(at + lines.len() as u64)?;
    desk.db.prepare_cached("UPDATE runs SET records = ?2 WHERE id = ?1")?.execute([id, records])?;
    Ok(())
}

pub(super) fn load_journal(db: &Connection, run: &RunId, from: u64) -> Result<Vec<JournalLine>, SqliteError> {
    // The count and the lines must come from one transaction.
    let moment = db.unchecked_transaction()?;
    let select = "SELECT id, records FROM runs WHERE name = ?1";
    let found = moment
        .prepare_cached(select)?
        .query_row([run.as_str()], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))
        .optional()?;
    let Some((id, records)) = found else { return Ok(Vec::new()) };
    let records = from_sql_integer(records)?;
    match load_by_index(&moment, id, from) {
        Ok(lines) if lines.len() as u64 == records.saturating_sub(from) => Ok(lines),
        Err(SqliteError::Sqlite(error)) if !is_corruption(&error) => Err(error.into()),
        Ok(_) | Err(_) => load_by_table_scan(&moment, id, from, records),
    }
}

fn load_by_index(db: &Connection, run: i64, from: u64) -> Result<Vec<JournalLine>, SqliteError> {
    let select = "SELECT seq, hash, body FROM lines WHERE run = ?1 AND seq >= ?2 ORDER BY seq";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([run, to_sql_integer(from)?])?;
    let mut lines = Vec::new();
    while let Some(row) = rows.next()? {
        let expected = from + lines.len() as u64;
        if from_sql_integer(row.get(0)?)? != expected {
            return Err(SqliteError::Corrupt(format!("record {expected} is missing")));
        }
        lines.push(read_line(row, 1)?);
    }
    Ok(lines)
}

/// Scans the whole table for the lines of a run. It finds every readable line, even if the index or other pages
/// are corrupt.
fn load_by_table_scan(
    db: &Connection,
    run: i64,
    from: u64,
    records: u64,
) -> Result<Vec<JournalLine>, SqliteError> {
    // Lines are never deleted, so their ids have no gaps.
    let last: i64 = db.query_row("SELECT sum(records) FROM runs NOT INDEXED", [], |row| row.get(0))?;
    let mut select = db.prepare("SELECT seq, hash, body, run FROM lines WHERE id = ?1")?;
    let mut lines = Vec::new();
    for id in 1..=last {
        let expected = from + lines.len() as u64;
        let found = select.query_row([id], |row| {
            let is_next =
                row.get::<_, i64>(3)? == run && u64::try_from(row.get::<_, i64>(0)?) == Ok(expected);
            Ok(if is_next { read_line(row, 1).ok() } else { None })
        });
        match found {
            Ok(Some(line)) => lines.push(line),
            Ok(None) | Err(rusqlite::Error::QueryReturnedNoRows) => {}
            Err(error) if is_corruption(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match from + lines.len() as u64 {
        kept if kept < records => Err(SqliteError::Corrupt(format!(
            "of {records} records, the first {kept} can be read, and record {kept} cannot"
        ))),
        _ => Ok(lines),
    }
}

/// Reads a line: its hash from this column and its text from the next.
fn read_line(row: &Row<'_>, column: usize) -> Result<JournalLine, SqliteError> {
    let hash = row.get_ref(column)?.as_str().ok().and_then(|hash| hash.parse().ok());
    let hash = hash.ok_or_else(|| SqliteError::Corrupt("a hash cannot be read".to_owned()))?;
    Ok(JournalLine { hash, body: row.get(column + 1)? })
}

pub(super) fn list_runs(db: &Connection) -> Result<Vec<StoredRun>, SqliteError> {
    let select = "SELECT name, agent, status, owner, owned_until, created, updated, records
                  FROM runs ORDER BY created DESC, name DESC";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([])?;
    let mut runs = Vec::new();
    while let Some(row) = rows.next()? {
        runs.push(read_stored_run(row)?);
    }
    Ok(runs)
}

fn read_stored_run(row: &Row<'_>) -> Result<StoredRun, SqliteError> {
    let run = RunId::from(row.get::<_, String>(0)?);
    let status: String = row.get(2)?;
    let status = parse_status(&status).ok_or_else(|| {
        SqliteError::Corrupt(format!("run `{run}` is in a state that is not known: `{status}`"))
    })?;
    let owner: Option<String> = row.get(3)?;
    let until: Option<i64> = row.get(4)?;
    Ok(StoredRun {
        run,
        agent: AgentName::from(row.get::<_, String>(1)?),
        status,
        record_count: from_sql_integer(row.get(7)?)?,
        owner: owner.zip(until.map(from_sql_time)),
        created_at: from_sql_time(row.get(5)?),
        updated_at: from_sql_time(row.get(6)?),
    })
}

pub(super) fn post_decision(
    db: &Connection,
    run: &RunId,
    posted: &PostedDecision,
) -> Result<(), SqliteError> {
    let id = run_row_id(db, run)?.ok_or_else(|| run_not_found(run))?;
    let path = to_json_text(&posted.path)?;
    let select = "SELECT hash, body FROM inbox WHERE run = ?1 AND path = ?2 AND attempt = ?3";
    let known = db
        .prepare_cached(select)?
        .query_row(params![id, path, posted.attempt], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))
        .optional()?;
    if let Some((hash, body)) = known {
        let known: PostedDecision = from_json_text(&verify_checksum(&hash, body)?)?;
        let is_same = known.decision.is_same_decision(&posted.decision);
        return if is_same { Ok(()) } else { Err(StoreError::already_decided(run, &posted.path).into()) };
    }
    let body = to_json_text(posted)?;
    let insert = "INSERT INTO inbox (run, path, attempt, hash, body) VALUES (?1, ?2, ?3, ?4, ?5)";
    db.prepare_cached(insert)?.execute(params![id, path, posted.attempt, compute_checksum(&body), body])?;
    Ok(())
}

pub(super) fn posted_decisions(db: &Connection, run: &RunId) -> Result<Vec<PostedDecision>, SqliteError> {
    let select = "SELECT hash, body FROM inbox WHERE run = (SELECT id FROM runs WHERE name = ?1) ORDER BY id";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([run.as_str()])?;
    let mut posted = Vec::new();
    while let Some(row) = rows.next()? {
        posted.push(from_json_text(&verify_checksum(&row.get::<_, String>(0)?, row.get(1)?)?)?);
    }
    Ok(posted)
}

pub(super) fn save_artefact(db: &Connection, run: &RunId, name: &str, text: &str) -> Result<(), SqliteError> {
    let insert = "INSERT INTO artefacts (run, name, hash, body) VALUES (?1, ?2, ?3, ?4)
                  ON CONFLICT (run, name) DO UPDATE SET hash = excluded.hash, body = excluded.body";
    db.prepare_cached(insert)?.execute(params![run.as_str(), name, compute_checksum(text), text])?;
    Ok(())
}

pub(super) fn load_artefact(db: &Connection, run: &RunId, name: &str) -> Result<Option<String>, SqliteError> {
    let select = "SELECT hash, body FROM artefacts WHERE run = ?1 AND name = ?2";
    let found = db
        .prepare_cached(select)?
        .query_row(params![run.as_str(), name], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))
        .optional()?;
    found.map(|(hash, body)| verify_checksum(&hash, body)).transpose()
}

/// Returns the row id and the number of records of a run, if the lease is current.
pub(super) fn find_owned_run(db: &Connection, lease: &Lease) -> Result<(i64, u64), SqliteError> {
    let select = "SELECT id, records, epoch FROM runs WHERE name = ?1";
    let found = db
        .prepare_cached(select)?
        .query_row([lease.run.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let (id, records, epoch): (i64, i64, i64) = found.ok_or_else(|| run_not_found(&lease.run))?;
    if from_sql_integer(epoch)? == lease.epoch {
        Ok((id, from_sql_integer(records)?))
    } else {
        Err(StoreError::fenced_off(lease).into())
    }
}

fn run_row_id(db: &Connection, run: &RunId) -> Result<Option<i64>, SqliteError> {
    let mut select = db.prepare_cached("SELECT id FROM runs WHERE name = ?1")?;
    Ok(select.query_row([run.as_str()], |row| row.get(0)).optional()?)
}

fn run_not_found(run: &RunId) -> SqliteError {
    StoreError::with_kind(StoreErrorKind::RunNotFound, format!("there is no run `{run}`")).into()
}

fn status_text(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Running => "running",
        RunStatus::Paused => "paused",
        RunStatus::Finished => "finished",
        RunStatus::Failed => "failed",
        RunStatus::Cancelled => "cancelled",
    }
}

fn parse_status(text: &str) -> Option<RunStatus> {
    Some(match text {
        "running" => RunStatus::Running,
        "paused" => RunStatus::Paused,
        "finished" => RunStatus::Finished,
        "failed" => RunStatus::Failed,
        "cancelled" => RunStatus::Cancelled,
        _ => return None,
    })
}
