//! Runs, their journal lines and posted decisions.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use windlass_core::{
    canonical::Digest,
    id::{AgentName, RunId, Timestamp},
    journal::JournalLine,
};

use super::file::{SqliteError, is_corruption};
use super::writer::WriteTx;
use super::{
    forget, from_sql_integer, from_sql_time, history, queue, snapshots, to_sql_integer, to_sql_time,
};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::query::{StartSession, end_of_run, session_of_first_line};
use crate::store::{Lease, RunStatus, StoredLease, StoredRun};

/// An owned lease claim, for requests that are executed later on the writer thread.
#[derive(Clone, Debug)]
pub(super) struct OwnedLeaseClaim {
    pub(super) owner: String,
    pub(super) now: Timestamp,
    pub(super) duration: Duration,
}

pub(super) fn create_run(
    desk: &mut WriteTx<'_>,
    run: &RunId,
    agent: &AgentName,
    by: &OwnedLeaseClaim,
    lines: &[JournalLine],
    imported_history: Option<&[u8]>,
) -> Result<Lease, SqliteError> {
    queue::check_owner(desk.db, &by.owner)?;
    let insert =
        "INSERT INTO runs (name, agent, status, epoch, records, owner, beat, lease_ms, renewed, created, updated, session)
                  VALUES (?1, ?2, ?3, ?8, 0, ?4, 0, ?5, ?6, ?6, ?6, ?7) ON CONFLICT (name) DO NOTHING";
    let session = lines.first().and_then(session_of_first_line).map(|StartSession { session, .. }| session);
    let epoch = forget::last_forgotten_epoch(desk.db)? + 1;
    let added = desk.db.prepare_cached(insert)?.execute(params![
        run.as_str(),
        agent.as_str(),
        status_text(RunStatus::Running),
        by.owner,
        to_sql_millis(by.duration),
        to_sql_time(by.now),
        session.as_ref().map(|session| session.as_str()),
        to_sql_integer(epoch)?,
    ])?;
    if added == 0 {
        return Err(StoreError::already_exists(run).into());
    }
    desk.record_place()?;
    let lease = Lease { run: run.clone(), owner: by.owner.clone(), epoch };
    if let Some(first) = lines.first() {
        let id = desk.db.last_insert_rowid();
        append_journal(desk, &lease, 0, lines, end_of_run(lines))?;
        history::begin_run(desk.db, &lease, id, first, imported_history)?;
    }
    Ok(lease)
}

/// Loads the first line of a run.
pub(super) fn load_first_line(db: &Connection, run: i64) -> Result<Option<JournalLine>, SqliteError> {
    Ok(load_by_index(db, run, 0, 1)?.into_iter().next())
}

pub(super) fn acquire_lease(
    desk: &mut WriteTx<'_>,
    run: &RunId,
    by: &OwnedLeaseClaim,
    abandoned: Option<&StoredLease>,
) -> Result<Lease, SqliteError> {
    let (epoch, known) = find_lease(desk.db, run)?.ok_or_else(|| run_not_found(run))?;
    queue::check_owner(desk.db, &by.owner)?;
    if let Some(known) = known
        && known.owner != by.owner
    {
        check_abandoned(run, &known, abandoned)?;
        queue::retire_owner(desk.db, &known.owner)?;
    }
    let update =
        "UPDATE runs SET epoch = ?2, owner = ?3, beat = 0, lease_ms = ?4, renewed = ?5 WHERE name = ?1";
    desk.db.prepare_cached(update)?.execute(params![
        run.as_str(),
        to_sql_integer(epoch + 1)?,
        by.owner,
        to_sql_millis(by.duration),
        to_sql_time(by.now)
    ])?;
    desk.gaps.clear_run(run);
    desk.record_place()?;
    Ok(Lease { run: run.clone(), owner: by.owner.clone(), epoch: epoch + 1 })
}

pub(super) fn load_lease(db: &Connection, run: &RunId) -> Result<Option<StoredLease>, SqliteError> {
    Ok(find_lease(db, run)?.ok_or_else(|| run_not_found(run))?.1)
}

/// Returns the epoch of a run and its lease, if it has an owner.
pub(super) fn find_lease(
    db: &Connection,
    run: &RunId,
) -> Result<Option<(u64, Option<StoredLease>)>, SqliteError> {
    let mut select =
        db.prepare_cached("SELECT epoch, owner, beat, lease_ms, renewed FROM runs WHERE name = ?1")?;
    let mut rows = select.query([run.as_str()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let epoch = from_sql_integer(row.get(0)?)?;
    Ok(Some((epoch, queue::current_lease(db, read_lease(row, 1, epoch)?)?)))
}

/// Reads a lease: its owner from this column, and its beat, duration and last renewal from the next ones.
pub(super) fn read_lease(
    row: &Row<'_>,
    column: usize,
    epoch: u64,
) -> Result<Option<StoredLease>, SqliteError> {
    let Some(owner) = row.get(column)? else { return Ok(None) };
    let number = |offset: usize| row.get::<_, Option<i64>>(column + offset).map(Option::unwrap_or_default);
    Ok(Some(StoredLease {
        owner,
        epoch,
        beat: from_sql_integer(number(1)?)?,
        duration: Duration::from_millis(from_sql_integer(number(2)?)?),
        renewed_at: from_sql_time(number(3)?),
    }))
}

/// Fails if the known lease is not the one that was observed.
pub(super) fn check_abandoned(
    run: &RunId,
    known: &StoredLease,
    seen: Option<&StoredLease>,
) -> Result<(), SqliteError> {
    match seen {
        Some(seen) if seen.is_same_beat(known) => Ok(()),
        _ => Err(StoreError::lease_held(run, &known.owner).into()),
    }
}

pub(super) fn renew_lease(db: &Connection, lease: &Lease, now: Timestamp) -> Result<(), SqliteError> {
    let (id, _) = find_owned_run(db, lease)?;
    let update = "UPDATE runs SET beat = beat + 1, renewed = ?2 WHERE id = ?1";
    db.prepare_cached(update)?.execute(params![id, to_sql_time(now)])?;
    Ok(())
}

pub(super) fn raise_epoch(db: &Connection, lease: &Lease, epoch: u64) -> Result<Lease, SqliteError> {
    let (id, _) = find_owned_run(db, lease)?;
    let epoch = epoch.max(lease.epoch);
    let update = "UPDATE runs SET epoch = ?2 WHERE id = ?1";
    db.prepare_cached(update)?.execute(params![id, to_sql_integer(epoch)?])?;
    Ok(Lease { epoch, ..lease.clone() })
}

/// Converts the duration of a lease, rounded up to milliseconds.
pub(super) fn to_sql_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

pub(super) fn release_lease(db: &Connection, lease: &Lease) -> Result<(), SqliteError> {
    let update = "UPDATE runs SET owner = NULL, beat = NULL, lease_ms = NULL, renewed = NULL
                  WHERE name = ?1 AND epoch = ?2 AND owner = ?3";
    db.prepare_cached(update)?.execute(params![
        lease.run.as_str(),
        to_sql_integer(lease.epoch)?,
        lease.owner
    ])?;
    Ok(())
}

pub(super) fn set_status(
    db: &Connection,
    lease: &Lease,
    status: RunStatus,
    now: Timestamp,
) -> Result<(), SqliteError> {
    let (id, _) = find_owned_run(db, lease)?;
    set_status_of_row(db, id, status, now)
}

fn set_status_of_row(db: &Connection, id: i64, status: RunStatus, now: Timestamp) -> Result<(), SqliteError> {
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
    end: Option<(RunStatus, Timestamp)>,
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
        insert.execute(params![id, to_sql_integer(seq)?, line.hash.as_bytes(), line.body])?;
    }
    let records = to_sql_integer(at + lines.len() as u64)?;
    desk.db.prepare_cached("UPDATE runs SET records = ?2 WHERE id = ?1")?.execute([id, records])?;
    match end {
        Some((status, at)) => set_status_of_row(desk.db, id, status, at),
        None => Ok(()),
    }
}

/// Loads the lines of a run from `from` on, at most `limit`.
pub(super) fn load_journal(
    db: &Connection,
    run: &RunId,
    from: u64,
    limit: Option<u32>,
) -> Result<Vec<JournalLine>, SqliteError> {
    // The count and the lines must come from one transaction.
    let moment = db.unchecked_transaction()?;
    let select = "SELECT id, records FROM runs WHERE name = ?1";
    let found = moment
        .prepare_cached(select)?
        .query_row([run.as_str()], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))
        .optional()?;
    let Some((id, records)) = found else { return Ok(Vec::new()) };
    let records = from_sql_integer(records)?;
    let until = limit.map_or(records, |limit| records.min(from.saturating_add(limit.into())));
    match load_by_index(&moment, id, from, until) {
        Ok(lines) if lines.len() as u64 == until.saturating_sub(from) => Ok(lines),
        Err(SqliteError::Sqlite(error)) if !is_corruption(&error) => Err(error.into()),
        Ok(_) | Err(_) => load_by_table_scan(&moment, id, from, records).map(|mut lines| {
            lines.truncate(usize::try_from(until.saturating_sub(from)).unwrap_or(usize::MAX));
            lines
        }),
    }
}

fn load_by_index(db: &Connection, run: i64, from: u64, until: u64) -> Result<Vec<JournalLine>, SqliteError> {
    let select = "SELECT seq, hash, body FROM lines WHERE run = ?1 AND seq >= ?2 AND seq < ?3 ORDER BY seq";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([run, to_sql_integer(from)?, to_sql_integer(until)?])?;
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
    let last = forget::last_line_id(db)?;
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
    let hash = row.get_ref(column)?.as_bytes().ok().and_then(|hash| hash.try_into().ok());
    let hash = hash.ok_or_else(|| SqliteError::Corrupt("a hash cannot be read".to_owned()))?;
    Ok(JournalLine { hash: Digest::from_bytes(hash), body: row.get(column + 1)? })
}

pub(super) fn read_stored_run(row: &Row<'_>) -> Result<StoredRun, SqliteError> {
    let run = RunId::from(row.get::<_, String>(0)?);
    let status: String = row.get(2)?;
    let status = parse_status(&status).ok_or_else(|| {
        SqliteError::Corrupt(format!("run `{run}` is in a state that is not known: `{status}`"))
    })?;
    Ok(StoredRun {
        run,
        agent: AgentName::from(row.get::<_, String>(1)?),
        status,
        record_count: from_sql_integer(row.get(5)?)?,
        lease: read_lease(row, 7, from_sql_integer(row.get(6)?)?)?,
        created_at: from_sql_time(row.get(3)?),
        updated_at: from_sql_time(row.get(4)?),
    })
}

/// Returns the row id and the number of records of a run, if the lease is current.
pub(super) fn find_owned_run(db: &Connection, lease: &Lease) -> Result<(i64, u64), SqliteError> {
    let select = "SELECT id, records, epoch, owner IS NULL OR owner = ?2 FROM runs WHERE name = ?1";
    let found = db
        .prepare_cached(select)?
        .query_row([lease.run.as_str(), &lease.owner], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
        .optional()?;
    let (id, records, epoch, is_owner): (i64, i64, i64, bool) =
        found.ok_or_else(|| run_not_found(&lease.run))?;
    if from_sql_integer(epoch)? == lease.epoch && is_owner {
        Ok((id, from_sql_integer(records)?))
    } else {
        Err(StoreError::fenced_off(lease).into())
    }
}

pub(super) fn run_not_found(run: &RunId) -> SqliteError {
    StoreError::with_kind(StoreErrorKind::RunNotFound, format!("there is no run `{run}`")).into()
}

pub(super) fn status_text(status: RunStatus) -> &'static str {
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
