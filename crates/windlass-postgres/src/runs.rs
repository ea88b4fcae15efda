//! Runs, their leases and their journals.

use tokio_postgres::Row;
use windlass::core::id::{AgentName, RunId, Timestamp};
use windlass::core::journal::JournalLine;
use windlass::error::{StoreError, StoreErrorKind};
use windlass::store::{
    Lease, LeaseClaim, RunQuery, RunStatus, SnapshotSegments, StartSession, StoredLease, StoredRun,
    StoredSnapshot, end_of_run, session_of_first_line,
};

use crate::convert::{
    JOIN_WORKER, LEASE_COLUMNS, from_integer, from_time, is_open, parse_status, read_digest, read_line,
    read_run_lease, status_text, to_integer, to_millis, to_time,
};
use crate::database::{DbConnection, PgError};
use crate::value::SqlValue;
use crate::{history, queue};

pub(crate) async fn create_run(
    db: &DbConnection,
    run: &RunId,
    agent: &AgentName,
    claim: LeaseClaim<'_>,
    lines: &[JournalLine],
    imported_history: Option<&[u8]>,
) -> Result<Lease, PgError> {
    queue::check_owner(db, claim.owner).await?;
    let lease = |epoch| Lease { run: run.clone(), owner: claim.owner.to_owned(), epoch };
    let session = lines.first().and_then(session_of_first_line).map(|StartSession { session, .. }| session);
    let insert = "INSERT INTO @runs (name, agent, session, status, epoch, records, owner, beat, lease_ms, renewed, created,
        updated) VALUES ($1, $2, $3, 'running', 1, 0, $4, 0, $5, $6, $6, $6) ON CONFLICT (name) DO NOTHING RETURNING id";
    let values = [
        run.as_str().into(),
        agent.as_str().into(),
        session.as_ref().map(|session| session.as_str()).into(),
        claim.owner.into(),
        to_millis(claim.duration).into(),
        to_time(claim.now).into(),
    ];
    let Some(row) = db.row(insert, &values).await? else {
        return match created_epoch(db, run, claim.owner, lines).await? {
            Some(epoch) => Ok(lease(epoch)),
            None => Err(StoreError::already_exists(run).into()),
        };
    };
    let id: i64 = row.try_get(0)?;
    // A statement of its own: the insertion may have waited until a run of this id was forgotten.
    let update =
        "UPDATE @runs r SET epoch = s.forgotten_epoch + 1 FROM @store s WHERE r.id = $1 RETURNING r.epoch";
    let row = db.row(update, &[id.into()]).await?.ok_or_else(|| run_not_found(run))?;
    let lease = lease(from_integer(row.try_get(0)?)?);
    if let Some(first) = lines.first() {
        append_journal(db, &lease, 0, lines, end_of_run(lines), 0).await?;
        history::begin_run(db, &lease, id, first, imported_history).await?;
    }
    Ok(lease)
}

/// Returns the epoch of a run that an earlier attempt of the same claimant has created, and whose answer was lost. Only
/// attempts with lines can be told from a second creation.
async fn created_epoch(
    db: &DbConnection,
    run: &RunId,
    owner: &str,
    lines: &[JournalLine],
) -> Result<Option<u64>, PgError> {
    let Some(last) = lines.last() else { return Ok(None) };
    let select = "SELECT r.epoch FROM @runs r JOIN @lines l ON l.run = r.id
        WHERE r.name = $1 AND r.owner = $2 AND r.records = $3 AND l.seq = $3 - 1 AND l.hash = $4";
    let values = [
        run.as_str().into(),
        owner.into(),
        to_integer(lines.len() as u64)?.into(),
        last.hash.as_bytes().as_slice().into(),
    ];
    db.row(select, &values).await?.map(|row| from_integer(row.try_get(0)?)).transpose()
}

pub(crate) async fn acquire_lease(
    db: &DbConnection,
    run: &RunId,
    claim: LeaseClaim<'_>,
    abandoned: Option<&StoredLease>,
) -> Result<Lease, PgError> {
    queue::check_owner(db, claim.owner).await?;
    lock_run(db, run).await?;
    let (epoch, known) = find_lease(db, run).await?.ok_or_else(|| run_not_found(run))?;
    if let Some(known) = known.filter(|known| known.owner != claim.owner) {
        check_abandoned(run, &known, abandoned)?;
        queue::retire_owner(db, &known.owner).await?;
    }
    let update =
        "UPDATE @runs SET epoch = $2, owner = $3, beat = 0, lease_ms = $4, renewed = $5 WHERE name = $1";
    let values = [
        run.as_str().into(),
        to_integer(epoch + 1)?.into(),
        claim.owner.into(),
        to_millis(claim.duration).into(),
        to_time(claim.now).into(),
    ];
    db.run(update, &values).await?;
    Ok(Lease { run: run.clone(), owner: claim.owner.to_owned(), epoch: epoch + 1 })
}

/// Locks the row of a run until the transaction ends.
pub(crate) async fn lock_run(db: &DbConnection, run: &RunId) -> Result<(), PgError> {
    db.row("SELECT 1 FROM @runs WHERE name = $1 FOR UPDATE", &[run.as_str().into()]).await.map(|_| ())
}

/// Returns the epoch of a run and its lease, if it has an owner.
pub(crate) async fn find_lease(
    db: &DbConnection,
    run: &RunId,
) -> Result<Option<(u64, Option<StoredLease>)>, PgError> {
    let select = format!("SELECT {LEASE_COLUMNS} FROM @runs r {JOIN_WORKER} WHERE r.name = $1");
    let row = db.row(&select, &[run.as_str().into()]).await?;
    row.map(|row| read_run_lease(&row, 0)).transpose()
}

pub(crate) async fn load_lease(db: &DbConnection, run: &RunId) -> Result<Option<StoredLease>, PgError> {
    Ok(find_lease(db, run).await?.ok_or_else(|| run_not_found(run))?.1)
}

/// Fails if the known lease is not the one that was observed.
pub(crate) fn check_abandoned(
    run: &RunId,
    known: &StoredLease,
    seen: Option<&StoredLease>,
) -> Result<(), PgError> {
    match seen {
        Some(seen) if seen.is_same_beat(known) => Ok(()),
        _ => Err(StoreError::lease_held(run, &known.owner).into()),
    }
}

pub(crate) async fn renew_lease(db: &DbConnection, lease: &Lease, now: Timestamp) -> Result<(), PgError> {
    let (id, _) = find_owned_run(db, lease).await?;
    let update = "UPDATE @runs SET beat = beat + 1, renewed = $2 WHERE id = $1";
    db.run(update, &[id.into(), to_time(now).into()]).await.map(|_| ())
}

/// Raises the epoch of a run. A repetition finds the epoch that an attempt before it has written.
pub(crate) async fn raise_epoch(db: &DbConnection, lease: &Lease, epoch: u64) -> Result<Lease, PgError> {
    let raised = Lease { epoch: epoch.max(lease.epoch), ..lease.clone() };
    let update = "UPDATE @runs SET epoch = $3 WHERE name = $1
        AND ((epoch = $2 AND (owner IS NULL OR owner = $4)) OR (epoch = $3 AND owner = $4))";
    let values = [
        lease.run.as_str().into(),
        to_integer(lease.epoch)?.into(),
        to_integer(raised.epoch)?.into(),
        lease.owner.as_str().into(),
    ];
    match db.run(update, &values).await? {
        // Tells a run that is not there from one that has another driver.
        0 => find_owned_run(db, lease).await.and(Err(StoreError::fenced_off(lease).into())),
        _ => Ok(raised),
    }
}

pub(crate) async fn release_lease(db: &DbConnection, lease: &Lease) -> Result<(), PgError> {
    let update = "UPDATE @runs SET owner = NULL, beat = NULL, lease_ms = NULL, renewed = NULL
        WHERE name = $1 AND epoch = $2 AND owner = $3";
    let values = [lease.run.as_str().into(), to_integer(lease.epoch)?.into(), lease.owner.as_str().into()];
    db.run(update, &values).await.map(|_| ())
}

pub(crate) async fn set_status(
    db: &DbConnection,
    lease: &Lease,
    status: RunStatus,
    now: Timestamp,
) -> Result<(), PgError> {
    let (id, _) = find_owned_run(db, lease).await?;
    set_status_of_row(db, id, status, now).await
}

async fn set_status_of_row(
    db: &DbConnection,
    id: i64,
    status: RunStatus,
    now: Timestamp,
) -> Result<(), PgError> {
    let update = "UPDATE @runs SET status = $2, updated = $3 WHERE id = $1";
    db.run(update, &[id.into(), status_text(status).into(), to_time(now).into()]).await?;
    if !is_open(status) {
        db.run("DELETE FROM @snapshots WHERE run = $1", &[id.into()]).await?;
        db.run("DELETE FROM @snapshot_segments WHERE run = $1", &[id.into()]).await?;
    }
    Ok(())
}

/// Appends lines. In a later attempt, lines that an earlier one has written are not written again.
pub(crate) async fn append_journal(
    db: &DbConnection,
    lease: &Lease,
    at: u64,
    lines: &[JournalLine],
    ended: Option<(RunStatus, Timestamp)>,
    attempt: u32,
) -> Result<(), PgError> {
    let (id, next) = find_owned_run(db, lease).await?;
    let end = at + lines.len() as u64;
    if next != at {
        let is_written =
            attempt > 0 && next == end && has_line(db, id, end.saturating_sub(1), lines.last()).await?;
        return if is_written { Ok(()) } else { Err(StoreError::stale_read(&lease.run, next, at).into()) };
    }
    if !lines.is_empty() {
        let insert = "INSERT INTO @lines (run, seq, hash, body)
            SELECT $1, s.seq, s.hash, s.body FROM unnest($2::bigint[], $3::bytea[], $4::bytea[]) s(seq, hash, body)";
        let numbers = (at..end).map(to_integer).collect::<Result<Vec<_>, _>>()?;
        let values = [
            id.into(),
            SqlValue::Integers(numbers),
            SqlValue::ByteRows(lines.iter().map(|line| line.hash.as_bytes().to_vec()).collect()),
            SqlValue::ByteRows(lines.iter().map(|line| line.body.as_bytes().to_vec()).collect()),
        ];
        db.run(insert, &values).await?;
        db.run("UPDATE @runs SET records = $2 WHERE id = $1", &[id.into(), to_integer(end)?.into()]).await?;
    }
    match ended {
        Some((status, at)) => set_status_of_row(db, id, status, at).await,
        None => Ok(()),
    }
}

/// True if a run has this line at this place. The hash chain covers the lines before it.
async fn has_line(
    db: &DbConnection,
    run: i64,
    seq: u64,
    line: Option<&JournalLine>,
) -> Result<bool, PgError> {
    let Some(line) = line else { return Ok(false) };
    let select = "SELECT 1 FROM @lines WHERE run = $1 AND seq = $2 AND hash = $3";
    let values = [run.into(), to_integer(seq)?.into(), line.hash.as_bytes().as_slice().into()];
    Ok(db.row(select, &values).await?.is_some())
}

pub(crate) async fn load_journal(
    db: &DbConnection,
    run: &RunId,
    from: u64,
    limit: Option<u32>,
) -> Result<Vec<JournalLine>, PgError> {
    let Some(row) = db.row("SELECT id, records FROM @runs WHERE name = $1", &[run.as_str().into()]).await?
    else {
        return Ok(Vec::new());
    };
    let (id, records) = (row.try_get::<_, i64>(0)?, from_integer(row.try_get(1)?)?);
    let until = limit.map_or(records, |limit| records.min(from.saturating_add(limit.into())));
    if from >= until {
        return Ok(Vec::new());
    }
    let select = "SELECT hash, body FROM @lines WHERE run = $1 AND seq >= $2 AND seq < $3 ORDER BY seq";
    let rows = db.rows(select, &[id.into(), to_integer(from)?.into(), to_integer(until)?.into()]).await?;
    if rows.len() as u64 != until - from {
        return Err(PgError::Corrupt(format!(
            "run `{run}`: one of the records {from} to {until} is missing"
        )));
    }
    rows.iter().map(|row| read_line(row, 0)).collect()
}

pub(crate) async fn list_runs(db: &DbConnection, query: &RunQuery) -> Result<Vec<StoredRun>, PgError> {
    let select = format!(
        "SELECT r.name, r.agent, r.status, r.records, r.created, r.updated, {LEASE_COLUMNS} FROM @runs r {JOIN_WORKER}
        WHERE ($1::text IS NULL OR r.agent = $1) AND ($2::bigint IS NULL OR r.updated >= $2)
        AND ($3::bigint IS NULL OR r.updated < $3)
        AND ($4::bigint IS NULL OR (r.created, r.name) < ($4, $5 COLLATE \"C\"))
        AND (cardinality($6::text[]) = 0 OR r.status = ANY($6)) AND ($7::text IS NULL OR r.session = $7)
        ORDER BY r.created DESC, r.name DESC LIMIT $8"
    );
    let statuses = query.statuses.iter().map(|status| status_text(*status).to_owned()).collect();
    let after = query.after.as_ref();
    let values = [
        query.agent.as_ref().map(|agent| agent.as_str()).into(),
        query.updated_from.map(to_time).into(),
        query.updated_before.map(to_time).into(),
        after.map(|after| to_time(after.created_at)).into(),
        after.map(|after| after.run.as_str()).into(),
        SqlValue::Texts(statuses),
        query.session.as_ref().map(|session| session.as_str()).into(),
        query.limit.into(),
    ];
    db.rows(&select, &values).await?.iter().map(read_stored_run).collect()
}

fn read_stored_run(row: &Row) -> Result<StoredRun, PgError> {
    Ok(StoredRun {
        run: RunId::from(row.try_get::<_, String>(0)?),
        agent: AgentName::from(row.try_get::<_, String>(1)?),
        status: parse_status(row.try_get(2)?)?,
        record_count: from_integer(row.try_get(3)?)?,
        lease: read_run_lease(row, 6)?.1,
        created_at: from_time(row.try_get(4)?),
        updated_at: from_time(row.try_get(5)?),
    })
}

/// Locks the row of a run, and returns its id and number of records, if the lease is current.
pub(crate) async fn find_owned_run(db: &DbConnection, lease: &Lease) -> Result<(i64, u64), PgError> {
    let select =
        "SELECT id, records, epoch, owner IS NULL OR owner = $2 FROM @runs WHERE name = $1 FOR UPDATE";
    let values = [lease.run.as_str().into(), lease.owner.as_str().into()];
    let row = db.row(select, &values).await?.ok_or_else(|| run_not_found(&lease.run))?;
    match from_integer(row.try_get(2)?)? == lease.epoch && row.try_get(3)? {
        true => Ok((row.try_get(0)?, from_integer(row.try_get(1)?)?)),
        false => Err(StoreError::fenced_off(lease).into()),
    }
}

/// Finds the media of a run that another run or a session refers to. Their names are digests. This reads the journals
/// of all runs, so it holds no lock.
pub(crate) async fn find_referenced_media(db: &DbConnection, run: &RunId) -> Result<Vec<String>, PgError> {
    let row = db.row("SELECT id FROM @runs WHERE name = $1", &[run.as_str().into()]).await?;
    let id: i64 = row.ok_or_else(|| run_not_found(run))?.try_get(0)?;
    let select = "SELECT a.name FROM @artefacts a WHERE a.run = $1 AND length(a.name) = 64 AND (
        EXISTS (SELECT 1 FROM @lines WHERE run <> $2 AND position(convert_to('/' || a.name, 'UTF8') IN body) > 0)
        OR EXISTS (SELECT 1 FROM @items WHERE position(convert_to('/' || a.name, 'UTF8') IN body) > 0))";
    let rows = db.rows(select, &[run.as_str().into(), id.into()]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Forgets a run. The media in `kept` stay.
pub(crate) async fn forget_run(
    db: &DbConnection,
    run: &RunId,
    abandoned: Option<&StoredLease>,
    kept: &[String],
) -> Result<(), PgError> {
    lock_run(db, run).await?;
    let (epoch, known) = find_lease(db, run).await?.ok_or_else(|| run_not_found(run))?;
    if let Some(known) = known {
        check_abandoned(run, &known, abandoned)?;
    }
    let row = db.row("SELECT id FROM @runs WHERE name = $1", &[run.as_str().into()]).await?;
    let id: i64 = row.ok_or_else(|| run_not_found(run))?.try_get(0)?;
    let delete = "DELETE FROM @artefacts WHERE run = $1 AND name <> ALL($2)";
    db.run(delete, &[run.as_str().into(), SqlValue::Texts(kept.to_vec())]).await?;
    history::release_history(db, id).await?;
    for table in [
        "snapshots",
        "snapshot_segments",
        "withheld_outputs",
        "live_deltas",
        "inbox",
        "taken_decisions",
        "lines",
    ] {
        db.run(&format!("DELETE FROM @{table} WHERE run = $1"), &[id.into()]).await?;
    }
    db.run("DELETE FROM @runs WHERE id = $1", &[id.into()]).await?;
    queue::forget_run(db, run).await?;
    // Last, because everything that is forgotten at this time waits for this row.
    let raise = "UPDATE @store SET forgotten_epoch = greatest(forgotten_epoch, $1)";
    db.run(raise, &[to_integer(epoch)?.into()]).await.map(|_| ())
}

pub(crate) async fn save_snapshot(
    db: &DbConnection,
    lease: &Lease,
    snapshot: &StoredSnapshot,
    segments: &SnapshotSegments,
) -> Result<(), PgError> {
    let (id, _) = find_owned_run(db, lease).await?;
    let row = db.row("SELECT count(*) FROM @snapshot_segments WHERE run = $1", &[id.into()]).await?;
    let count = row.map_or(Ok(0), |row| from_integer(row.try_get(0)?))?;
    if segments.first > count {
        return Err(StoreError::missing_segments(&lease.run, count).into());
    }
    let delete = "DELETE FROM @snapshot_segments WHERE run = $1 AND number >= $2";
    db.run(delete, &[id.into(), to_integer(segments.first)?.into()]).await?;
    for (number, body) in (segments.first..).zip(&segments.bodies) {
        let insert = "INSERT INTO @snapshot_segments (run, number, body) VALUES ($1, $2, $3)";
        db.run(insert, &[id.into(), to_integer(number)?.into(), body.as_bytes().into()]).await?;
    }
    let replace = "INSERT INTO @snapshots (run, records, head, body) VALUES ($1, $2, $3, $4)
        ON CONFLICT (run) DO UPDATE SET records = excluded.records, head = excluded.head, body = excluded.body";
    let values = [
        id.into(),
        to_integer(snapshot.record_count)?.into(),
        snapshot.head_hash.as_bytes().as_slice().into(),
        snapshot.body.as_bytes().into(),
    ];
    db.run(replace, &values).await.map(|_| ())
}

pub(crate) async fn load_segments(
    db: &DbConnection,
    run: &RunId,
    count: u64,
) -> Result<Vec<String>, PgError> {
    let select = "SELECT s.body FROM @snapshot_segments s JOIN @runs r ON r.id = s.run
        WHERE r.name = $1 AND s.number < $2 ORDER BY s.number";
    let rows = db.rows(select, &[run.as_str().into(), to_integer(count)?.into()]).await?;
    let not_text = |_| PgError::Corrupt("a segment of a snapshot is not text".to_owned());
    rows.iter().map(|row| String::from_utf8(row.try_get(0)?).map_err(not_text)).collect()
}

pub(crate) async fn load_snapshot(db: &DbConnection, run: &RunId) -> Result<Option<StoredSnapshot>, PgError> {
    let select =
        "SELECT s.records, s.head, s.body FROM @snapshots s JOIN @runs r ON r.id = s.run WHERE r.name = $1";
    let Some(row) = db.row(select, &[run.as_str().into()]).await? else { return Ok(None) };
    let body = String::from_utf8(row.try_get(2)?)
        .map_err(|_| PgError::Corrupt("a snapshot is not text".to_owned()))?;
    let (records, head) = (from_integer(row.try_get(0)?)?, read_digest(row.try_get(1)?)?);
    Ok(Some(StoredSnapshot { record_count: records, head_hash: head, body }))
}

pub(crate) fn run_not_found(run: &RunId) -> PgError {
    StoreError::with_kind(StoreErrorKind::RunNotFound, format!("there is no run `{run}`")).into()
}
