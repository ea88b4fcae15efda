//! The queue of runs: workers, submitted runs, orders and shares.
//!
//! Only rows that wait for something are in an index, so that parked and ended runs cost nothing when work is taken.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use windlass_core::id::{RunId, Timestamp};

use super::file::{SqliteError, compute_checksum, verify_checksum};
use super::runs::{self, OwnedLeaseClaim, to_sql_millis};
use super::{from_json_text, from_sql_integer, from_sql_time, to_json_text, to_sql_integer, to_sql_time};
use crate::error::{StoreError, StoreErrorKind};
use crate::fleet::{
    FairShares, LaneCandidate, NextStep, QueueFilter, QueueOrder, QueuedRun, QueuedState, ReadyLane,
    ReadyRunsQuery, RunDeparture, RunSubmission, SubmitResult, TakenRun, TakenWork, UnreadableRun,
    WorkRequest, WorkRows, choose_fairly, worker_of_owner,
};
use crate::store::StoredLease;

/// Tables that schema version 2 adds.
///
/// `state` is `ready`, `waiting`, `taken`, `parked`, `ended` or `dead`; `wake` is the time at which a waiting or parked run
/// is ready, `ready` its position among the ready ones. `signals` counts the decisions and orders that were posted. `queue_shares` has the virtual times of fair
/// queueing.
pub(super) const SCHEMA_V2: &str = "
    CREATE TABLE workers (
        name TEXT PRIMARY KEY,
        beat INTEGER NOT NULL,
        lease_ms INTEGER NOT NULL,
        renewed INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE queue (
        id INTEGER PRIMARY KEY,
        run TEXT NOT NULL UNIQUE,
        agent TEXT NOT NULL,
        tenant TEXT NOT NULL,
        priority INTEGER NOT NULL,
        state TEXT NOT NULL,
        ready INTEGER NOT NULL,
        wake INTEGER,
        worker TEXT,
        attempt INTEGER NOT NULL,
        max_attempts INTEGER NOT NULL,
        signals INTEGER NOT NULL,
        reason TEXT,
        hash BLOB NOT NULL,
        body TEXT NOT NULL
    ) STRICT;
    CREATE INDEX queue_ready ON queue (tenant, agent, priority DESC, ready, id) WHERE state = 'ready';
    CREATE INDEX queue_wake ON queue (wake) WHERE wake IS NOT NULL;
    CREATE INDEX queue_worker ON queue (worker) WHERE worker IS NOT NULL;
    CREATE TABLE queue_orders (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT NOT NULL,
        hash BLOB NOT NULL,
        body TEXT NOT NULL
    ) STRICT;
    CREATE INDEX queue_orders_of_run ON queue_orders (run);
    CREATE TABLE queue_refusals (
        run TEXT NOT NULL,
        build TEXT NOT NULL,
        reason TEXT NOT NULL,
        PRIMARY KEY (run, build)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE queue_shares (
        scope TEXT NOT NULL,
        name TEXT NOT NULL,
        time INTEGER NOT NULL,
        PRIMARY KEY (scope, name)
    ) STRICT, WITHOUT ROWID;
";

/// Maximum number of runs that are woken by one request for work.
const MAX_WOKEN: u32 = 1_000;

/// Returns a lease as it is now: that of a worker's run lives with the worker.
pub(super) fn current_lease(
    db: &Connection,
    lease: Option<StoredLease>,
) -> Result<Option<StoredLease>, SqliteError> {
    let Some(lease) = lease else { return Ok(None) };
    let Some(worker) = worker_of_owner(&lease.owner) else { return Ok(Some(lease)) };
    let StoredLease { owner, epoch, .. } = &lease;
    let alive = find_worker(db, worker)?;
    Ok(alive.map(|alive| StoredLease { owner: owner.clone(), epoch: *epoch, ..alive }))
}

/// Fails if the owner of a lease is a run of a worker that is not registered.
pub(super) fn check_owner(db: &Connection, owner: &str) -> Result<(), SqliteError> {
    match worker_of_owner(owner) {
        Some(worker) => check_worker(db, worker),
        None => Ok(()),
    }
}

fn check_worker(db: &Connection, worker: &str) -> Result<(), SqliteError> {
    match db.prepare_cached("SELECT 1 FROM workers WHERE name = ?1")?.exists([worker])? {
        true => Ok(()),
        false => Err(StoreError::worker_retired(worker).into()),
    }
}

fn find_worker(db: &Connection, worker: &str) -> Result<Option<StoredLease>, SqliteError> {
    // A damaged file of an earlier version is read as it is.
    let Ok(mut select) =
        db.prepare_cached("SELECT name, beat, lease_ms, renewed FROM workers WHERE name = ?1")
    else {
        return Ok(None);
    };
    let mut rows = select.query([worker])?;
    rows.next()?.map(read_worker).transpose()
}

fn read_worker(row: &Row<'_>) -> Result<StoredLease, SqliteError> {
    Ok(StoredLease {
        owner: row.get(0)?,
        epoch: 0,
        beat: from_sql_integer(row.get(1)?)?,
        duration: Duration::from_millis(from_sql_integer(row.get(2)?)?),
        renewed_at: from_sql_time(row.get(3)?),
    })
}

pub(super) fn register_worker(db: &Connection, by: &OwnedLeaseClaim) -> Result<(), SqliteError> {
    let insert = "INSERT INTO workers (name, beat, lease_ms, renewed) VALUES (?1, 0, ?2, ?3)
                  ON CONFLICT (name) DO NOTHING";
    let values = params![by.owner, to_sql_millis(by.duration), to_sql_time(by.now)];
    match db.prepare_cached(insert)?.execute(values)? {
        0 => {
            let message = format!("there is a worker `{}` already", by.owner);
            Err(StoreError::with_kind(StoreErrorKind::AlreadyExists, message).into())
        }
        _ => Ok(()),
    }
}

pub(super) fn renew_worker(db: &Connection, worker: &str, now: Timestamp) -> Result<(), SqliteError> {
    let update = "UPDATE workers SET beat = beat + 1, renewed = ?2 WHERE name = ?1";
    match db.prepare_cached(update)?.execute(params![worker, to_sql_time(now)])? {
        0 => Err(StoreError::worker_retired(worker).into()),
        _ => Ok(()),
    }
}

/// Retires the worker of a lease's owner, if it has one.
pub(super) fn retire_owner(db: &Connection, owner: &str) -> Result<(), SqliteError> {
    match worker_of_owner(owner) {
        Some(worker) => retire_worker(db, worker, None),
        None => Ok(()),
    }
}

pub(super) fn retire_worker(
    db: &Connection,
    worker: &str,
    abandoned: Option<&StoredLease>,
) -> Result<(), SqliteError> {
    let Some(known) = find_worker(db, worker)? else { return Ok(()) };
    if abandoned.is_some_and(|seen| !seen.is_same_beat(&known)) {
        let message = format!("worker `{worker}` has renewed its lease");
        return Err(StoreError::with_kind(StoreErrorKind::LeaseHeld, message).into());
    }
    let free = "UPDATE runs SET owner = NULL, beat = NULL, lease_ms = NULL, renewed = NULL
        WHERE name IN (SELECT run FROM queue WHERE worker = ?1)
        AND substr(owner, 1, length(?1) + 1) = ?1 || '~'";
    db.prepare_cached(free)?.execute([worker])?;
    let requeue = "UPDATE queue SET state = 'ready', worker = NULL, ready = ?2 WHERE worker = ?1";
    db.prepare_cached(requeue)?.execute(params![worker, next_position(db)?])?;
    db.prepare_cached("DELETE FROM workers WHERE name = ?1")?.execute([worker])?;
    Ok(())
}

pub(super) fn list_workers(db: &Connection) -> Result<Vec<StoredLease>, SqliteError> {
    let mut select = db.prepare_cached("SELECT name, beat, lease_ms, renewed FROM workers ORDER BY name")?;
    let mut rows = select.query([])?;
    let mut workers = Vec::new();
    while let Some(row) = rows.next()? {
        workers.push(read_worker(row)?);
    }
    Ok(workers)
}

pub(super) fn submit_run(
    db: &Connection,
    submission: &RunSubmission,
    now: Timestamp,
) -> Result<SubmitResult, SqliteError> {
    if let Some(known) = load_queued_run(db, &submission.run)? {
        return match known.submission == *submission {
            true => Ok(SubmitResult::AlreadySubmitted),
            false => Err(StoreError::already_exists(&submission.run).into()),
        };
    }
    let wake = submission.start_at.filter(|start| *start > now).map(to_sql_time);
    let body = to_json_text(submission)?;
    let insert =
        "INSERT INTO queue (run, agent, tenant, priority, state, ready, wake, attempt, max_attempts, signals,
        hash, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, 0, ?9, ?10)";
    db.prepare_cached(insert)?.execute(params![
        submission.run.as_str(),
        submission.agent.as_str(),
        submission.tenant,
        submission.priority,
        if wake.is_some() { "waiting" } else { "ready" },
        next_position(db)?,
        wake,
        submission.max_attempts,
        compute_checksum(&body),
        body
    ])?;
    Ok(SubmitResult::Accepted)
}

pub(super) fn take_work(db: &Connection, request: &WorkRequest) -> Result<TakenWork, SqliteError> {
    check_worker(db, &request.worker)?;
    wake_due_runs(db, request.now)?;
    loop {
        let mut runs = match &request.held {
            Some(held) => load_lost(db, &request.worker, held)?,
            None => Vec::new(),
        };
        let limit = (request.limit as usize).saturating_sub(runs.len());
        take_ready_runs(db, request, limit, &mut runs)?;
        let rows = WorkRows { runs, orders: load_orders(db, &request.worker)? };
        let (work, unreadable) = rows.split();
        for UnreadableRun { run, error } in &unreadable {
            let bury = "UPDATE queue SET state = 'dead', worker = NULL, reason = ?2 WHERE run = ?1";
            db.prepare_cached(bury)?.execute([run.as_str(), &error.to_string()])?;
        }
        // Damaged runs do not stand in front of others.
        if unreadable.is_empty() || !work.runs.is_empty() {
            return Ok(work);
        }
    }
}

/// Takes at most `limit` ready runs.
fn take_ready_runs(
    db: &Connection,
    request: &WorkRequest,
    limit: usize,
    runs: &mut Vec<(RunId, Result<TakenRun, StoreError>)>,
) -> Result<(), SqliteError> {
    let lanes = match (limit, &request.only) {
        (0, _) => Vec::new(),
        (_, Some(run)) if request.held.iter().flatten().any(|held| held == run) => Vec::new(),
        (_, Some(run)) => named_lane(db, request, run)?.into_iter().collect(),
        (_, None) => ready_lanes(db, request)?,
    };
    let mut shares = load_shares(db, &lanes)?;
    let chosen = choose_fairly(lanes, &mut shares, limit);
    let save = "INSERT OR REPLACE INTO queue_shares (scope, name, time) VALUES (?1, ?2, ?3)";
    for ((scope, name), time) in shares.into_changed() {
        db.prepare_cached(save)?.execute(params![scope, name, to_sql_integer(time)?])?;
    }
    let take = "UPDATE queue SET state = 'taken', worker = ?2, attempt = attempt + 1 WHERE run = ?1
        RETURNING run, attempt, signals, hash, body";
    let mut take = db.prepare_cached(take)?;
    for run in chosen {
        let mut rows = take.query(params![run, request.worker])?;
        while let Some(row) = rows.next()? {
            runs.push((row.get::<_, String>(0)?.into(), separate_damage(read_taken(row))?));
        }
    }
    Ok(())
}

/// Returns the next position among the ready runs, behind all others.
fn next_position(db: &Connection) -> Result<i64, SqliteError> {
    let next = "INSERT INTO queue_shares (scope, name, time) VALUES ('positions', '', 1)
        ON CONFLICT (scope, name) DO UPDATE SET time = time + 1 RETURNING time";
    Ok(db.prepare_cached(next)?.query_row([], |row| row.get(0))?)
}

/// Returns the last position that was given to a run, and true if a run is ready.
pub(super) fn last_position(db: &Connection) -> Result<(i64, bool), SqliteError> {
    let select =
        "SELECT coalesce((SELECT time FROM queue_shares WHERE scope = 'positions' AND name = ''), 0),
        EXISTS (SELECT 1 FROM queue WHERE state = 'ready')";
    Ok(db.prepare_cached(select)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

/// Loads the runs that a worker has taken and does not name: the answer to its request was lost.
fn load_lost(
    db: &Connection,
    worker: &str,
    held: &[RunId],
) -> Result<Vec<(RunId, Result<TakenRun, StoreError>)>, SqliteError> {
    let select = "SELECT run, attempt, signals, hash, body FROM queue WHERE worker = ?1 ORDER BY run";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([worker])?;
    let mut runs = Vec::new();
    while let Some(row) = rows.next()? {
        let run = RunId::from(row.get::<_, String>(0)?);
        if !held.contains(&run) {
            runs.push((run, separate_damage(read_taken(row))?));
        }
    }
    Ok(runs)
}

fn read_taken(row: &Row<'_>) -> Result<TakenRun, SqliteError> {
    Ok(TakenRun {
        attempt: row.get(1)?,
        signals: from_sql_integer(row.get(2)?)?,
        submission: from_json_text(&verify_checksum(&row.get(3)?, row.get::<_, String>(4)?)?)?,
    })
}

/// Separates the damage of one value from errors of the database.
fn separate_damage<T>(read: Result<T, SqliteError>) -> Result<Result<T, StoreError>, SqliteError> {
    match read {
        Ok(value) => Ok(Ok(value)),
        Err(SqliteError::Corrupt(reason)) => Ok(Err(StoreError::with_kind(StoreErrorKind::Corrupt, reason))),
        Err(error) => Err(error),
    }
}

/// Makes the runs ready whose time has come.
fn wake_due_runs(db: &Connection, now: Timestamp) -> Result<(), SqliteError> {
    let due = "SELECT 1 FROM queue WHERE wake <= ?1";
    if !db.prepare_cached(due)?.exists([to_sql_time(now)])? {
        return Ok(());
    }
    let wake = "UPDATE queue SET state = 'ready', ready = ?2, wake = NULL
        WHERE id IN (SELECT id FROM queue WHERE wake <= ?1 ORDER BY wake LIMIT ?3)";
    db.prepare_cached(wake)?.execute(params![to_sql_time(now), next_position(db)?, MAX_WOKEN])?;
    Ok(())
}

/// Makes a ready run a dead letter if its attempts are used up.
const BURY: &str = "UPDATE queue SET state = 'dead', reason = coalesce(reason, 'its workers died')
    WHERE run = ?1 AND state = 'ready' AND attempt >= max_attempts";

/// Reads the run that an engine has named, if it is ready and the worker can drive it.
fn named_lane(db: &Connection, request: &WorkRequest, run: &RunId) -> Result<Option<ReadyLane>, SqliteError> {
    db.prepare_cached(BURY)?.execute([run.as_str()])?;
    let select = "SELECT tenant, agent, priority FROM queue WHERE run = ?1 AND state = 'ready'";
    let read = |row: &Row<'_>| {
        let candidate = LaneCandidate { run: run.as_str().to_owned(), priority: row.get(2)? };
        Ok(ReadyLane { tenant: row.get(0)?, agent: row.get(1)?, candidates: vec![candidate] })
    };
    let Some(lane) = db.prepare_cached(select)?.query_row([run.as_str()], read).optional()? else {
        return Ok(None);
    };
    let is_declined = "SELECT 1 FROM queue_refusals WHERE run = ?1 AND build = ?2";
    let mut is_declined = db.prepare_cached(is_declined)?;
    for offer in request.offers.iter().filter(|offer| offer.agent.as_str() == lane.agent) {
        if !is_declined.exists([run.as_str(), &offer.build])? {
            return Ok(Some(lane));
        }
    }
    Ok(None)
}

/// Reads the ready runs that the worker can drive: of each tenant and agent, as many as may be taken. Those whose workers
/// have died too often become dead letters.
fn ready_lanes(db: &Connection, request: &WorkRequest) -> Result<Vec<ReadyLane>, SqliteError> {
    let next_lane = "SELECT tenant, agent FROM queue WHERE state = 'ready' AND (tenant, agent) > (?1, ?2)
        ORDER BY tenant, agent LIMIT 1";
    let first_lane = "SELECT tenant, agent FROM queue WHERE state = 'ready' ORDER BY tenant, agent LIMIT 1";
    let candidates = "SELECT run, priority FROM queue WHERE state = 'ready' AND tenant = ?1 AND agent = ?2
        AND NOT EXISTS (SELECT 1 FROM queue_refusals WHERE queue_refusals.run = queue.run AND build = ?3)
        AND run NOT IN (SELECT value FROM json_each(?5))
        ORDER BY priority DESC, ready, id LIMIT ?4";
    let held = to_json_text(&request.held.iter().flatten().map(RunId::as_str).collect::<Vec<_>>())?;
    let read_lane = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
    let mut lanes = Vec::new();
    let mut lane = db.prepare_cached(first_lane)?.query_row([], read_lane).optional()?;
    while let Some((tenant, agent)) = lane {
        if let Some(offer) = request.offers.iter().find(|offer| offer.agent.as_str() == agent) {
            let mut ready = Vec::new();
            loop {
                let mut select = db.prepare_cached(candidates)?;
                let values = params![tenant, agent, offer.build, request.limit, held];
                let found = select
                    .query_map(values, |row| Ok(LaneCandidate { run: row.get(0)?, priority: row.get(1)? }))?;
                let found = found.collect::<Result<Vec<_>, _>>()?;
                let mut is_any_dead = false;
                for candidate in &found {
                    is_any_dead |= db.prepare_cached(BURY)?.execute([&candidate.run])? > 0;
                }
                if !is_any_dead {
                    ready.extend(found);
                    break;
                }
            }
            lanes.push(ReadyLane { tenant: tenant.clone(), agent: agent.clone(), candidates: ready });
        }
        lane = db.prepare_cached(next_lane)?.query_row([&tenant, &agent], read_lane).optional()?;
    }
    Ok(lanes)
}

fn load_shares(db: &Connection, lanes: &[ReadyLane]) -> Result<FairShares, SqliteError> {
    let mut select = db.prepare_cached("SELECT time FROM queue_shares WHERE scope = ?1 AND name = ?2")?;
    let mut times = Vec::new();
    for (scope, name) in FairShares::keys_of(lanes) {
        if let Some(time) = select.query_row([&scope, &name], |row| row.get(0)).optional()? {
            times.push(((scope, name), from_sql_integer(time)?));
        }
    }
    Ok(FairShares::new(times))
}

fn load_orders(
    db: &Connection,
    worker: &str,
) -> Result<Vec<(RunId, u64, Result<QueueOrder, StoreError>)>, SqliteError> {
    let select = "SELECT queue_orders.run, number, queue_orders.hash, queue_orders.body FROM queue
        JOIN queue_orders ON queue_orders.run = queue.run WHERE queue.worker = ?1 ORDER BY number";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([worker])?;
    let mut orders = Vec::new();
    while let Some(row) = rows.next()? {
        let order = verify_checksum(&row.get(2)?, row.get::<_, String>(3)?);
        let order = separate_damage(order.and_then(|body| from_json_text(&body)))?;
        orders.push((RunId::from(row.get::<_, String>(0)?), from_sql_integer(row.get(1)?)?, order));
    }
    Ok(orders)
}

/// The orders for a run that its segment has not carried out.
struct OpenOrders {
    is_any: bool,
    is_cancelled: bool,
}

fn find_open_orders(db: &Connection, run: &RunId, orders_done: u64) -> Result<OpenOrders, SqliteError> {
    let select = "SELECT count(*) > 0, count(*) FILTER (WHERE body = ?3) > 0 FROM queue_orders
        WHERE run = ?1 AND number > ?2";
    let values = params![run.as_str(), to_sql_integer(orders_done)?, to_json_text(&QueueOrder::Cancel)?];
    let read = |row: &Row<'_>| Ok(OpenOrders { is_any: row.get(0)?, is_cancelled: row.get(1)? });
    Ok(db.prepare_cached(select)?.query_row(values, read)?)
}

pub(super) fn leave_run(db: &Connection, departure: &RunDeparture) -> Result<(), SqliteError> {
    let RunDeparture { worker, run, now, next, .. } = departure;
    let position = next_position(db)?;
    check_worker(db, worker)?;
    let found = db
        .prepare_cached("SELECT attempt, max_attempts, signals FROM queue WHERE run = ?1 AND worker = ?2")?
        .query_row([run.as_str(), worker], |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?)))
        .optional()?;
    let (attempt, max_attempts, signals): (u32, u32, i64) =
        found.ok_or_else(|| StoreError::worker_retired(worker))?;
    let is_signalled = from_sql_integer(signals)? != departure.signals_seen;
    // Orders that came during the segment wake the run as they wake one that waits or is a dead letter.
    let OpenOrders { is_any, is_cancelled } = find_open_orders(db, run, departure.orders_done)?;
    let (is_ordered, is_cancelled) = (is_signalled && is_any, is_signalled && is_cancelled);
    let (state, attempt, wake, reason) = match next {
        NextStep::Ready => ("ready", 0, None, None),
        NextStep::Park { .. } if is_signalled => ("ready", 0, None, None),
        NextStep::Park { wake_at } => ("parked", 0, *wake_at, None),
        NextStep::End => ("ended", attempt, None, None),
        NextStep::Retry { reason, .. } if attempt >= max_attempts => match is_cancelled {
            true => ("ready", 0, None, Some(reason)),
            false => ("dead", attempt, None, Some(reason)),
        },
        NextStep::Retry { reason, .. } if is_ordered => ("ready", attempt, None, Some(reason)),
        NextStep::Retry { at, reason } => ("waiting", attempt, Some(*at), Some(reason)),
        NextStep::Wait { .. } if is_ordered => ("ready", attempt.saturating_sub(1), None, None),
        NextStep::Wait { until } => ("waiting", attempt.saturating_sub(1), Some(*until), None),
        NextStep::Decline { build, reason } => {
            let insert = "INSERT OR REPLACE INTO queue_refusals (run, build, reason) VALUES (?1, ?2, ?3)";
            db.prepare_cached(insert)?.execute([run.as_str(), build, reason])?;
            ("ready", attempt.saturating_sub(1), None, None)
        }
        NextStep::Bury { reason } => ("dead", attempt, None, Some(reason)),
    };
    let update =
        "UPDATE queue SET state = ?2, worker = NULL, attempt = ?3, wake = ?4, reason = ?5, ready = ?6
        WHERE run = ?1";
    let values = params![run.as_str(), state, attempt, wake.map(to_sql_time), reason, position];
    db.prepare_cached(update)?.execute(values)?;
    let delete = "DELETE FROM queue_orders WHERE run = ?1 AND (?2 OR number <= ?3)";
    let done = to_sql_integer(departure.orders_done)?;
    db.prepare_cached(delete)?.execute(params![run.as_str(), state == "ended", done])?;
    let Some(lease) = &departure.lease else { return Ok(()) };
    match departure.status.map(|status| runs::set_status(db, lease, status, *now)).transpose() {
        Ok(_) => runs::release_lease(db, lease),
        // Another driver has the run.
        Err(SqliteError::Refused(error)) if error.is_fenced() => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn post_order(db: &Connection, run: &RunId, order: &QueueOrder) -> Result<u64, SqliteError> {
    let state: Option<String> = db
        .prepare_cached("SELECT state FROM queue WHERE run = ?1")?
        .query_row([run.as_str()], |row| row.get(0))
        .optional()?;
    let state = state.ok_or_else(|| StoreError::not_submitted(run))?;
    let body = to_json_text(order)?;
    let insert = "INSERT INTO queue_orders (run, hash, body) VALUES (?1, ?2, ?3)";
    db.prepare_cached(insert)?.execute(params![run.as_str(), compute_checksum(&body), body])?;
    let number = from_sql_integer(db.last_insert_rowid())?;
    if state == "ended" {
        let delete = "DELETE FROM queue_orders WHERE number = ?1";
        db.prepare_cached(delete)?.execute([to_sql_integer(number)?])?;
    }
    wake_run(db, run, "state IN ('parked', 'waiting')")?;
    if state == "dead" && matches!(order, QueueOrder::Cancel) {
        revive_run(db, run)?;
    }
    Ok(number)
}

/// Counts a decision, and makes a parked run ready.
pub(super) fn signal_run(db: &Connection, run: &RunId) -> Result<(), SqliteError> {
    wake_run(db, run, "state = 'parked'")
}

fn wake_run(db: &Connection, run: &RunId, sleeps: &str) -> Result<(), SqliteError> {
    let count = "UPDATE queue SET signals = signals + 1 WHERE run = ?1";
    if db.prepare_cached(count)?.execute([run.as_str()])? > 0 {
        let wake =
            format!("UPDATE queue SET state = 'ready', wake = NULL, ready = ?2 WHERE run = ?1 AND {sleeps}");
        db.prepare_cached(&wake)?.execute(params![run.as_str(), next_position(db)?])?;
    }
    Ok(())
}

pub(super) fn revive_run(db: &Connection, run: &RunId) -> Result<(), SqliteError> {
    let reset = "UPDATE queue SET attempt = 0, reason = NULL WHERE run = ?1";
    if db.prepare_cached(reset)?.execute([run.as_str()])? == 0 {
        return Err(StoreError::not_submitted(run).into());
    }
    db.prepare_cached("DELETE FROM queue_refusals WHERE run = ?1")?.execute([run.as_str()])?;
    let wake = "UPDATE queue SET state = 'ready', wake = NULL, ready = ?2
        WHERE run = ?1 AND state IN ('dead', 'waiting', 'parked')";
    db.prepare_cached(wake)?.execute(params![run.as_str(), next_position(db)?])?;
    Ok(())
}

/// Lists runs that are ready, and runs whose wake-up time has come.
pub(super) fn list_ready_runs(db: &Connection, query: &ReadyRunsQuery) -> Result<Vec<RunId>, SqliteError> {
    let except = to_json_text(&query.except.iter().map(RunId::as_str).collect::<Vec<_>>())?;
    let mut runs = Vec::new();
    for offer in &query.offers {
        let is_taken = "agent = ?1 AND run NOT IN (SELECT value FROM json_each(?3))
            AND NOT EXISTS (SELECT 1 FROM queue_refusals WHERE queue_refusals.run = queue.run AND build = ?2)";
        let ready = format!(
            "SELECT run FROM queue WHERE state = 'ready' AND {is_taken}
            UNION ALL SELECT run FROM queue WHERE wake <= ?4 AND {is_taken} LIMIT ?5"
        );
        let mut select = db.prepare_cached(&ready)?;
        let left = usize::try_from(query.limit).unwrap_or(usize::MAX) - runs.len();
        let values = params![
            offer.agent.as_str(),
            offer.build,
            except,
            to_sql_time(query.now),
            left.min(1 << 30) as i64
        ];
        let mut rows = select.query(values)?;
        while let Some(row) = rows.next()? {
            runs.push(RunId::from(row.get::<_, String>(0)?));
        }
    }
    Ok(runs)
}

/// Deletes a run from the queue.
pub(super) fn forget_run(db: &Connection, run: &RunId) -> Result<(), SqliteError> {
    for table in ["queue", "queue_orders", "queue_refusals"] {
        db.prepare_cached(&format!("DELETE FROM {table} WHERE run = ?1"))?.execute([run.as_str()])?;
    }
    Ok(())
}

pub(super) fn load_queued_run(db: &Connection, run: &RunId) -> Result<Option<QueuedRun>, SqliteError> {
    let select = "SELECT hash, body, state, wake, worker, attempt, reason FROM queue WHERE run = ?1";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query([run.as_str()])?;
    rows.next()?.map(|row| read_queued_run(db, row, read_submission(row)?)).transpose()
}

pub(super) fn list_queued_runs(
    db: &Connection,
    filter: QueueFilter,
    after: Option<&RunId>,
    limit: u32,
) -> Result<Vec<QueuedRun>, SqliteError> {
    let condition = match filter {
        QueueFilter::Open => "",
        QueueFilter::DeadLetters => "AND state = 'dead'",
        // A parked run has a journal, which says what it waits for.
        QueueFilter::NotStarted => {
            "AND state != 'parked' AND NOT EXISTS (SELECT 1 FROM runs WHERE name = queue.run)"
        }
    };
    // The empty name comes before all others.
    let select = format!(
        "SELECT hash, body, state, wake, worker, attempt, reason, run, agent, tenant, priority, max_attempts
        FROM queue WHERE run > ?1 AND state != 'ended' {condition} ORDER BY run LIMIT ?2"
    );
    let mut select = db.prepare_cached(&select)?;
    let mut rows = select.query(params![after.map_or("", RunId::as_str), limit])?;
    let mut runs = Vec::new();
    while let Some(row) = rows.next()? {
        runs.push(match separate_damage(read_submission(row))? {
            Ok(submission) => read_queued_run(db, row, submission)?,
            Err(error) => {
                let queued = read_queued_run(db, row, read_submission_columns(row)?)?;
                let reason = queued.reason.or_else(|| Some(error.to_string()));
                QueuedRun { reason, ..queued }
            }
        });
    }
    Ok(runs)
}

fn read_submission(row: &Row<'_>) -> Result<RunSubmission, SqliteError> {
    from_json_text(&verify_checksum(&row.get(0)?, row.get::<_, String>(1)?)?)
}

/// Reads a submission without its input from the columns after the first seven.
fn read_submission_columns(row: &Row<'_>) -> Result<RunSubmission, SqliteError> {
    Ok(RunSubmission {
        tenant: row.get(9)?,
        priority: row.get(10)?,
        max_attempts: row.get(11)?,
        input: Vec::new(),
        ..RunSubmission::new(row.get::<_, String>(7)?, row.get::<_, String>(8)?, "")
    })
}

fn read_queued_run(
    db: &Connection,
    row: &Row<'_>,
    submission: RunSubmission,
) -> Result<QueuedRun, SqliteError> {
    let wake = row.get::<_, Option<i64>>(3)?.map(from_sql_time);
    let state = match row.get::<_, String>(2)?.as_str() {
        "ready" => QueuedState::Ready,
        "waiting" => QueuedState::Waiting { until: wake.unwrap_or_default() },
        "taken" => QueuedState::Taken { worker: row.get::<_, Option<String>>(4)?.unwrap_or_default() },
        "parked" => QueuedState::Parked { wake_at: wake },
        "ended" => QueuedState::Ended,
        "dead" => QueuedState::DeadLetter,
        other => return Err(SqliteError::Corrupt(format!("a queued run is in the state `{other}`"))),
    };
    let mut refusals =
        db.prepare_cached("SELECT build, reason FROM queue_refusals WHERE run = ?1 ORDER BY build")?;
    let declined_by = refusals.query_map([submission.run.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let declined_by = declined_by.collect::<Result<_, _>>()?;
    Ok(QueuedRun { submission, state, attempt: row.get(5)?, reason: row.get(6)?, declined_by })
}
