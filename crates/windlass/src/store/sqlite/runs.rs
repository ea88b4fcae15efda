//! Runs, their lines, the decisions that were posted for them, and their artefacts.

use rusqlite::{Connection, OptionalExtension, Row, params};
use windlass_core::{AgentName, Line, RunId, Timestamp};

use super::file::{Trouble, is_damage, seal, unseal};
use super::writer::Desk;
use super::{number, snapshots, text, time, to_number, to_time, value};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{Lease, Posted, RunStatus, StoredRun};

/// Who wants to own something, kept for a thread that carries it out later.
#[derive(Clone, Debug)]
pub(super) struct Claimant {
    pub(super) owner: String,
    pub(super) now: Timestamp,
    pub(super) until: Timestamp,
}

pub(super) fn create(
    db: &Connection,
    run: &RunId,
    agent: &AgentName,
    by: &Claimant,
) -> Result<Lease, Trouble> {
    let insert =
        "INSERT INTO runs (name, agent, status, epoch, records, owner, owned_until, created, updated)
                  VALUES (?1, ?2, ?3, 1, 0, ?4, ?5, ?6, ?6) ON CONFLICT (name) DO NOTHING";
    let added = db.prepare_cached(insert)?.execute(params![
        run.as_str(),
        agent.as_str(),
        status_text(RunStatus::Running),
        by.owner,
        time(by.until),
        time(by.now),
    ])?;
    if added == 0 {
        return Err(StoreError::of(StoreErrorKind::Exists, format!("there is a run `{run}` already")).into());
    }
    Ok(Lease { run: run.clone(), owner: by.owner.clone(), epoch: 1 })
}

pub(super) fn acquire(desk: &mut Desk<'_>, run: &RunId, by: &Claimant) -> Result<Lease, Trouble> {
    let select = "SELECT epoch, owner, owned_until FROM runs WHERE name = ?1";
    let found = desk
        .db
        .prepare_cached(select)?
        .query_row([run.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let (epoch, owner, until): (i64, Option<String>, Option<i64>) = found.ok_or_else(|| no_such_run(run))?;
    if let (Some(owner), Some(until)) = (owner, until)
        && to_time(until) > by.now
        && owner != by.owner
    {
        return Err(StoreError::leased(run, &owner).into());
    }
    let update = "UPDATE runs SET epoch = ?2, owner = ?3, owned_until = ?4 WHERE name = ?1";
    desk.db.prepare_cached(update)?.execute(params![run.as_str(), epoch + 1, by.owner, time(by.until)])?;
    desk.gaps.forget(run);
    Ok(Lease { run: run.clone(), owner: by.owner.clone(), epoch: to_number(epoch + 1)? })
}

pub(super) fn renew(db: &Connection, lease: &Lease, until: Timestamp) -> Result<(), Trouble> {
    let (id, _) = owned(db, lease)?;
    let update = "UPDATE runs SET owner = ?2, owned_until = ?3 WHERE id = ?1";
    db.prepare_cached(update)?.execute(params![id, lease.owner, time(until)])?;
    Ok(())
}

pub(super) fn release(db: &Connection, lease: &Lease) -> Result<(), Trouble> {
    let update = "UPDATE runs SET owner = NULL, owned_until = NULL WHERE name = ?1 AND epoch = ?2";
    db.prepare_cached(update)?.execute(params![lease.run.as_str(), number(lease.epoch)?])?;
    Ok(())
}

pub(super) fn mark(db: &Connection, lease: &Lease, status: RunStatus, now: Timestamp) -> Result<(), Trouble> {
    let (id, _) = owned(db, lease)?;
    let update = "UPDATE runs SET status = ?2, updated = ?3 WHERE id = ?1";
    db.prepare_cached(update)?.execute(params![id, status_text(status), time(now)])?;
    match status {
        RunStatus::Running | RunStatus::Paused => Ok(()),
        RunStatus::Finished | RunStatus::Failed | RunStatus::Cancelled => snapshots::drop_of(db, id),
    }
}

pub(super) fn append(desk: &mut Desk<'_>, lease: &Lease, at: u64, lines: &[Line]) -> Result<(), Trouble> {
    let (id, next) = owned(desk.db, lease)?;
    if next != at {
        return Err(if next < at && desk.gaps.is_behind(lease) {
            let message = format!(
                "run `{}`: record {at} cannot be written, because records before it could not: {next} were kept",
                lease.run
            );
            StoreError::of(StoreErrorKind::Disk, message).into()
        } else {
            StoreError::stale(&lease.run, next, at).into()
        });
    }
    desk.gaps.forget(&lease.run);
    let mut insert =
        desk.db.prepare_cached("INSERT INTO lines (run, seq, hash, body) VALUES (?1, ?2, ?3, ?4)")?;
    for (seq, line) in (at..).zip(lines) {
        insert.execute(params![id, number(seq)?, line.hash.to_string(), line.body])?;
    }
    let records = number(at + lines.len() as u64)?;
    desk.db.prepare_cached("UPDATE runs SET records = ?2 WHERE id = ?1")?.execute([id, records])?;
    Ok(())
}

pub(super) fn load(db: &Connection, run: &RunId, from: u64) -> Result<Vec<Line>, Trouble> {
    // The count and the lines must be of one moment.
    let moment = db.unchecked_transaction()?;
    let select = "SELECT id, records FROM runs WHERE name = ?1";
    let found = moment
        .prepare_cached(select)?
        .query_row([run.as_str()], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))
        .optional()?;
    let Some((id, records)) = found else { return Ok(Vec::new()) };
    let records = to_number(records)?;
    match by_index(&moment, id, from) {
        Ok(lines) if lines.len() as u64 == records.saturating_sub(from) => Ok(lines),
        Err(Trouble::Sqlite(error)) if !is_damage(&error) => Err(error.into()),
        Ok(_) | Err(_) => without_index(&moment, id, from, records),
    }
}

fn by_index(db: &Connection, run: i64, from: u64) -> Result<Vec<Line>, Trouble> {
    let select = "SELECT seq, hash, body FROM lines WHERE run = ?1 AND seq >= ?2 ORDER BY seq";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([run, number(from)?])?;
    let mut lines = Vec::new();
    while let Some(row) = rows.next()? {
        let expected = from + lines.len() as u64;
        if to_number(row.get(0)?)? != expected {
            return Err(Trouble::Damaged(format!("record {expected} is missing")));
        }
        lines.push(line(row, 1)?);
    }
    Ok(lines)
}

/// Looks at all lines of the table, one by one. Whatever can be read is found, however damaged the index is, and
/// other pages are.
fn without_index(db: &Connection, run: i64, from: u64, records: u64) -> Result<Vec<Line>, Trouble> {
    // Lines are never deleted, so they are numbered without gaps.
    let last: i64 = db.query_row("SELECT sum(records) FROM runs NOT INDEXED", [], |row| row.get(0))?;
    let mut select = db.prepare("SELECT seq, hash, body, run FROM lines WHERE id = ?1")?;
    let mut lines = Vec::new();
    for id in 1..=last {
        let expected = from + lines.len() as u64;
        let found = select.query_row([id], |row| {
            let is_next =
                row.get::<_, i64>(3)? == run && u64::try_from(row.get::<_, i64>(0)?) == Ok(expected);
            Ok(if is_next { line(row, 1).ok() } else { None })
        });
        match found {
            Ok(Some(line)) => lines.push(line),
            Ok(None) | Err(rusqlite::Error::QueryReturnedNoRows) => {}
            Err(error) if is_damage(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match from + lines.len() as u64 {
        kept if kept < records => Err(Trouble::Damaged(format!(
            "of {records} records, the first {kept} can be read, and record {kept} cannot"
        ))),
        _ => Ok(lines),
    }
}

/// The line whose hash stands in this column and whose text in the next.
fn line(row: &Row<'_>, column: usize) -> Result<Line, Trouble> {
    let hash = row.get_ref(column)?.as_str().ok().and_then(|hash| hash.parse().ok());
    let hash = hash.ok_or_else(|| Trouble::Damaged("a hash cannot be read".to_owned()))?;
    Ok(Line { hash, body: row.get(column + 1)? })
}

pub(super) fn list(db: &Connection) -> Result<Vec<StoredRun>, Trouble> {
    let select = "SELECT name, agent, status, owner, owned_until, created, updated, records
                  FROM runs ORDER BY created DESC, name DESC";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([])?;
    let mut runs = Vec::new();
    while let Some(row) = rows.next()? {
        runs.push(stored_run(row)?);
    }
    Ok(runs)
}

fn stored_run(row: &Row<'_>) -> Result<StoredRun, Trouble> {
    let run = RunId::from(row.get::<_, String>(0)?);
    let status: String = row.get(2)?;
    let status = status_of(&status).ok_or_else(|| {
        Trouble::Damaged(format!("run `{run}` is in a state that is not known: `{status}`"))
    })?;
    let owner: Option<String> = row.get(3)?;
    let until: Option<i64> = row.get(4)?;
    Ok(StoredRun {
        run,
        agent: AgentName::from(row.get::<_, String>(1)?),
        status,
        records: to_number(row.get(7)?)?,
        owner: owner.zip(until.map(to_time)),
        created: to_time(row.get(5)?),
        updated: to_time(row.get(6)?),
    })
}

pub(super) fn post(db: &Connection, run: &RunId, posted: &Posted) -> Result<(), Trouble> {
    let id = id_of(db, run)?.ok_or_else(|| no_such_run(run))?;
    let path = text(&posted.path)?;
    let select = "SELECT hash, body FROM inbox WHERE run = ?1 AND path = ?2 AND attempt = ?3";
    let known = db
        .prepare_cached(select)?
        .query_row(params![id, path, posted.attempt], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))
        .optional()?;
    if let Some((hash, body)) = known {
        let known: Posted = value(&unseal(&hash, body)?)?;
        let is_same = known.decided.is_same(&posted.decided);
        return if is_same { Ok(()) } else { Err(StoreError::decided(run, &posted.path).into()) };
    }
    let body = text(posted)?;
    let insert = "INSERT INTO inbox (run, path, attempt, hash, body) VALUES (?1, ?2, ?3, ?4, ?5)";
    db.prepare_cached(insert)?.execute(params![id, path, posted.attempt, seal(&body), body])?;
    Ok(())
}

pub(super) fn posted(db: &Connection, run: &RunId) -> Result<Vec<Posted>, Trouble> {
    let select = "SELECT hash, body FROM inbox WHERE run = (SELECT id FROM runs WHERE name = ?1) ORDER BY id";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([run.as_str()])?;
    let mut posted = Vec::new();
    while let Some(row) = rows.next()? {
        posted.push(value(&unseal(&row.get::<_, String>(0)?, row.get(1)?)?)?);
    }
    Ok(posted)
}

pub(super) fn keep_artefact(db: &Connection, run: &RunId, name: &str, text: &str) -> Result<(), Trouble> {
    let insert = "INSERT INTO artefacts (run, name, hash, body) VALUES (?1, ?2, ?3, ?4)
                  ON CONFLICT (run, name) DO UPDATE SET hash = excluded.hash, body = excluded.body";
    db.prepare_cached(insert)?.execute(params![run.as_str(), name, seal(text), text])?;
    Ok(())
}

pub(super) fn artefact(db: &Connection, run: &RunId, name: &str) -> Result<Option<String>, Trouble> {
    let select = "SELECT hash, body FROM artefacts WHERE run = ?1 AND name = ?2";
    let found = db
        .prepare_cached(select)?
        .query_row(params![run.as_str(), name], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))
        .optional()?;
    found.map(|(hash, body)| unseal(&hash, body)).transpose()
}

/// The number of a run and how many records it has, for whoever owns it.
pub(super) fn owned(db: &Connection, lease: &Lease) -> Result<(i64, u64), Trouble> {
    let select = "SELECT id, records, epoch FROM runs WHERE name = ?1";
    let found = db
        .prepare_cached(select)?
        .query_row([lease.run.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let (id, records, epoch): (i64, i64, i64) = found.ok_or_else(|| no_such_run(&lease.run))?;
    if to_number(epoch)? == lease.epoch {
        Ok((id, to_number(records)?))
    } else {
        Err(StoreError::fenced(lease).into())
    }
}

fn id_of(db: &Connection, run: &RunId) -> Result<Option<i64>, Trouble> {
    let mut select = db.prepare_cached("SELECT id FROM runs WHERE name = ?1")?;
    Ok(select.query_row([run.as_str()], |row| row.get(0)).optional()?)
}

fn no_such_run(run: &RunId) -> Trouble {
    StoreError::of(StoreErrorKind::NoSuchRun, format!("there is no run `{run}`")).into()
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

fn status_of(text: &str) -> Option<RunStatus> {
    Some(match text {
        "running" => RunStatus::Running,
        "paused" => RunStatus::Paused,
        "finished" => RunStatus::Finished,
        "failed" => RunStatus::Failed,
        "cancelled" => RunStatus::Cancelled,
        _ => return None,
    })
}
