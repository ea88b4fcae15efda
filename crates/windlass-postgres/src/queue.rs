//! The queue of runs: workers, submitted runs, orders and shares.
//!
//! Requests for work that find some wait for each other (a lock on the row of the store), so that shares are counted
//! exactly. Everything else is concurrent; a worker is retired under the lock of its own row.

use std::time::Duration;

use tokio_postgres::Row;
use windlass::core::id::{RunId, Timestamp};
use windlass::error::{StoreError, StoreErrorKind};
use windlass::fleet::{
    FairShares, LaneCandidate, NextStep, QueueFilter, QueueOrder, QueuedRun, QueuedState, ReadyLane,
    ReadyRunsQuery, RunDeparture, RunSubmission, SubmitResult, TakenRun, TakenWork, UnreadableRun,
    WorkRequest, WorkRows, choose_fairly, worker_of_owner,
};
use windlass::store::{LeaseClaim, StoredLease};

use crate::convert::{from_integer, from_json, from_time, to_integer, to_json, to_millis, to_time};
use crate::database::{DbConnection, PgError};
use crate::runs;
use crate::value::SqlValue;

/// Maximum number of runs that are woken by one request for work.
const MAX_WOKEN: u32 = 1_000;

/// The next position among the ready runs, behind all others.
const NEXT_POSITION: &str = "nextval('@queue_positions')";

/// Fails if the owner of a lease is a run of a worker that is not registered. The worker cannot be retired before the
/// transaction ends.
pub(crate) async fn check_owner(db: &DbConnection, owner: &str) -> Result<(), PgError> {
    match worker_of_owner(owner) {
        Some(worker) => check_worker(db, worker).await,
        None => Ok(()),
    }
}

async fn check_worker(db: &DbConnection, worker: &str) -> Result<(), PgError> {
    match db.row("SELECT 1 FROM @workers WHERE name = $1 FOR SHARE", &[worker.into()]).await? {
        Some(_) => Ok(()),
        None => Err(StoreError::worker_retired(worker).into()),
    }
}

fn read_worker(row: &Row) -> Result<StoredLease, PgError> {
    Ok(StoredLease {
        owner: row.try_get(0)?,
        epoch: 0,
        beat: from_integer(row.try_get(1)?)?,
        duration: Duration::from_millis(from_integer(row.try_get(2)?)?),
        renewed_at: from_time(row.try_get(3)?),
    })
}

pub(crate) async fn register_worker(
    db: &DbConnection,
    claim: LeaseClaim<'_>,
    attempt: u32,
) -> Result<(), PgError> {
    let insert = "INSERT INTO @workers (name, beat, lease_ms, renewed) VALUES ($1, 0, $2, $3)
        ON CONFLICT (name) DO NOTHING";
    let values = [claim.owner.into(), to_millis(claim.duration).into(), to_time(claim.now).into()];
    // A later attempt finds the row of the first: names are unique.
    if db.run(insert, &values).await? == 0 && attempt == 0 {
        let message = format!("there is a worker `{}` already", claim.owner);
        return Err(StoreError::with_kind(StoreErrorKind::AlreadyExists, message).into());
    }
    Ok(())
}

pub(crate) async fn renew_worker(db: &DbConnection, worker: &str, now: Timestamp) -> Result<(), PgError> {
    let update = "UPDATE @workers SET beat = beat + 1, renewed = $2 WHERE name = $1";
    match db.run(update, &[worker.into(), to_time(now).into()]).await? {
        0 => Err(StoreError::worker_retired(worker).into()),
        _ => Ok(()),
    }
}

/// Retires the worker of a lease's owner, if it has one.
pub(crate) async fn retire_owner(db: &DbConnection, owner: &str) -> Result<(), PgError> {
    match worker_of_owner(owner) {
        Some(worker) => retire_worker(db, worker, None).await,
        None => Ok(()),
    }
}

pub(crate) async fn retire_worker(
    db: &DbConnection,
    worker: &str,
    abandoned: Option<&StoredLease>,
) -> Result<(), PgError> {
    let select = "SELECT name, beat, lease_ms, renewed FROM @workers WHERE name = $1 FOR UPDATE";
    let Some(row) = db.row(select, &[worker.into()]).await? else { return Ok(()) };
    let known = read_worker(&row)?;
    if abandoned.is_some_and(|seen| !seen.is_same_beat(&known)) {
        let message = format!("worker `{worker}` has renewed its lease");
        return Err(StoreError::with_kind(StoreErrorKind::LeaseHeld, message).into());
    }
    let free = "UPDATE @runs SET owner = NULL, beat = NULL, lease_ms = NULL, renewed = NULL
        WHERE name IN (SELECT run FROM @queue WHERE worker = $1) AND split_part(owner, '~', 1) = $1";
    db.run(free, &[worker.into()]).await?;
    let requeue = format!(
        "UPDATE @queue SET state = 'ready', worker = NULL, position = {NEXT_POSITION} WHERE worker = $1"
    );
    db.run(&requeue, &[worker.into()]).await?;
    db.run("DELETE FROM @workers WHERE name = $1", &[worker.into()]).await.map(|_| ())
}

pub(crate) async fn list_workers(db: &DbConnection) -> Result<Vec<StoredLease>, PgError> {
    let rows = db.rows("SELECT name, beat, lease_ms, renewed FROM @workers ORDER BY name", &[]).await?;
    rows.iter().map(read_worker).collect()
}

pub(crate) async fn submit_run(
    db: &DbConnection,
    submission: &RunSubmission,
    now: Timestamp,
) -> Result<SubmitResult, PgError> {
    let wake = submission.start_at.filter(|start| *start > now).map(to_time);
    let body = to_json(submission)?;
    let insert = format!(
        "INSERT INTO @queue (run, agent, tenant, priority, state, position, wake, attempt, max_attempts, signals, body)
        VALUES ($1, $2, $3, $4, $5, {NEXT_POSITION}, $6, 0, $7, 0, $8) ON CONFLICT (run) DO NOTHING"
    );
    let values = [
        submission.run.as_str().into(),
        submission.agent.as_str().into(),
        submission.tenant.as_str().into(),
        i64::from(submission.priority).into(),
        if wake.is_some() { "waiting" } else { "ready" }.into(),
        wake.into(),
        submission.max_attempts.into(),
        body.as_slice().into(),
    ];
    if db.run(&insert, &values).await? > 0 {
        return Ok(SubmitResult::Accepted);
    }
    match load_queued_run(db, &submission.run).await? {
        Some(known) if known.submission == *submission => Ok(SubmitResult::AlreadySubmitted),
        _ => Err(StoreError::already_exists(&submission.run).into()),
    }
}

pub(crate) async fn take_work(db: &DbConnection, request: &WorkRequest) -> Result<TakenWork, PgError> {
    // Idle workers do not wait for each other.
    let may_take = request.limit > 0 && has_ready_run(db, request).await?;
    if may_take {
        db.row("SELECT 1 FROM @store FOR UPDATE", &[]).await?;
    }
    check_worker(db, &request.worker).await?;
    if may_take {
        wake_due_runs(db, request.now).await?;
    }
    loop {
        let mut runs = match &request.held {
            Some(held) => load_lost(db, &request.worker, held).await?,
            None => Vec::new(),
        };
        let limit = (request.limit as usize).saturating_sub(runs.len());
        if may_take && limit > 0 {
            runs.extend(take_ready_runs(db, request, limit).await?);
        }
        let rows = WorkRows { runs, orders: load_orders(db, &request.worker).await? };
        let (work, unreadable) = rows.split();
        for UnreadableRun { run, error } in &unreadable {
            let bury = "UPDATE @queue SET state = 'dead', worker = NULL, reason = $2 WHERE run = $1";
            db.run(bury, &[run.as_str().into(), error.to_string().as_str().into()]).await?;
        }
        // Damaged runs do not stand in front of others.
        if unreadable.is_empty() || !work.runs.is_empty() {
            return Ok(work);
        }
    }
}

/// Takes at most `limit` ready runs.
async fn take_ready_runs(
    db: &DbConnection,
    request: &WorkRequest,
    limit: usize,
) -> Result<Vec<(RunId, Result<TakenRun, StoreError>)>, PgError> {
    let lanes = match &request.only {
        Some(run) if held_runs(request).any(|held| held == run) => Vec::new(),
        Some(run) => named_lane(db, request, run).await?.into_iter().collect(),
        None => ready_lanes(db, request).await?,
    };
    let mut shares = load_shares(db, &lanes).await?;
    let chosen = choose_fairly(lanes, &mut shares, limit);
    save_shares(db, shares).await?;
    let take = "UPDATE @queue SET state = 'taken', worker = $2, attempt = attempt + 1 WHERE run = ANY($1)
        RETURNING run, attempt, signals, body";
    let rows = db.rows(take, &[SqlValue::Texts(chosen.clone()), (&request.worker).into()]).await?;
    let mut taken = rows.iter().map(read_taken).collect::<Result<Vec<_>, _>>()?;
    taken.sort_by_key(|(run, _)| chosen.iter().position(|chosen| chosen == run.as_str()));
    Ok(taken)
}

/// Returns the runs that the worker says it has, and does not take.
fn held_runs(request: &WorkRequest) -> impl Iterator<Item = &RunId> {
    request.held.iter().flatten()
}

/// Returns true if a run is ready that the worker can drive, or the time of any run has come.
async fn has_ready_run(db: &DbConnection, request: &WorkRequest) -> Result<bool, PgError> {
    let select = "SELECT EXISTS (SELECT 1 FROM @queue q
            JOIN unnest($2::text[], $3::text[]) o(agent, build) ON o.agent = q.agent
            WHERE q.state = 'ready' AND NOT q.run = ANY($4)
            AND NOT EXISTS (SELECT 1 FROM @queue_refusals f WHERE f.run = q.run AND f.build = o.build))
        OR EXISTS (SELECT 1 FROM @queue WHERE wake <= $1)";
    let values = [
        to_time(request.now).into(),
        SqlValue::Texts(request.offers.iter().map(|offer| offer.agent.as_str().to_owned()).collect()),
        SqlValue::Texts(request.offers.iter().map(|offer| offer.build.clone()).collect()),
        SqlValue::Texts(held_runs(request).map(|run| run.as_str().to_owned()).collect()),
    ];
    match db.row(select, &values).await? {
        Some(row) => Ok(row.try_get(0)?),
        None => Ok(false),
    }
}

async fn wake_due_runs(db: &DbConnection, now: Timestamp) -> Result<(), PgError> {
    let wake = format!(
        "UPDATE @queue SET state = 'ready', position = {NEXT_POSITION}, wake = NULL
        WHERE run IN (SELECT run FROM @queue WHERE wake <= $1 ORDER BY wake LIMIT $2 FOR UPDATE SKIP LOCKED)"
    );
    db.run(&wake, &[to_time(now).into(), MAX_WOKEN.into()]).await.map(|_| ())
}

/// Makes ready runs dead letters whose attempts are used up.
const BURY: &str = "UPDATE @queue SET state = 'dead', reason = coalesce(reason, 'its workers died')
    WHERE state = 'ready' AND run = ANY($1) AND attempt >= max_attempts";

/// Reads the run that an engine has named, if it is ready and the worker can drive it.
async fn named_lane(
    db: &DbConnection,
    request: &WorkRequest,
    run: &RunId,
) -> Result<Option<ReadyLane>, PgError> {
    db.run(BURY, &[SqlValue::Texts(vec![run.as_str().to_owned()])]).await?;
    let select = "SELECT q.tenant, q.agent, q.priority FROM @queue q
        JOIN unnest($2::text[], $3::text[]) o(agent, build) ON o.agent = q.agent
        WHERE q.run = $1 AND q.state = 'ready'
        AND NOT EXISTS (SELECT 1 FROM @queue_refusals f WHERE f.run = q.run AND f.build = o.build) LIMIT 1";
    let values = [
        run.as_str().into(),
        SqlValue::Texts(request.offers.iter().map(|offer| offer.agent.as_str().to_owned()).collect()),
        SqlValue::Texts(request.offers.iter().map(|offer| offer.build.clone()).collect()),
    ];
    let Some(row) = db.row(select, &values).await? else { return Ok(None) };
    let priority = i32::try_from(row.try_get::<_, i64>(2)?).unwrap_or_default();
    let candidate = LaneCandidate { run: run.as_str().to_owned(), priority };
    Ok(Some(ReadyLane { tenant: row.try_get(0)?, agent: row.try_get(1)?, candidates: vec![candidate] }))
}

/// Reads the ready runs that the worker can drive: of each tenant and agent, as many as may be taken. Those whose workers
/// have died too often become dead letters.
async fn ready_lanes(db: &DbConnection, request: &WorkRequest) -> Result<Vec<ReadyLane>, PgError> {
    // The recursion skips from one pair of tenant and agent to the next in the index of ready runs.
    let select = "WITH RECURSIVE lanes AS (
            (SELECT tenant, agent FROM @queue WHERE state = 'ready' ORDER BY tenant, agent LIMIT 1)
            UNION ALL
            SELECT n.tenant, n.agent FROM lanes l, LATERAL (SELECT q.tenant, q.agent FROM @queue q
                WHERE q.state = 'ready' AND (q.tenant, q.agent) > (l.tenant, l.agent)
                ORDER BY q.tenant, q.agent LIMIT 1) n
        ), offers AS (SELECT * FROM unnest($1::text[], $2::text[]) o(agent, build))
        SELECT l.tenant, l.agent, c.run, c.priority, c.attempt >= c.max_attempts FROM lanes l
        JOIN offers o ON o.agent = l.agent
        CROSS JOIN LATERAL (SELECT q.run, q.priority, q.position, q.attempt, q.max_attempts FROM @queue q
            WHERE q.state = 'ready' AND q.tenant = l.tenant AND q.agent = l.agent
            AND NOT EXISTS (SELECT 1 FROM @queue_refusals f WHERE f.run = q.run AND f.build = o.build)
            AND NOT q.run = ANY($4)
            ORDER BY q.priority DESC, q.position LIMIT $3) c
        ORDER BY l.tenant, l.agent, c.priority DESC, c.position";
    loop {
        let values = [
            SqlValue::Texts(request.offers.iter().map(|offer| offer.agent.as_str().to_owned()).collect()),
            SqlValue::Texts(request.offers.iter().map(|offer| offer.build.clone()).collect()),
            request.limit.into(),
            SqlValue::Texts(held_runs(request).map(|run| run.as_str().to_owned()).collect()),
        ];
        let rows = db.rows(select, &values).await?;
        let mut lanes: Vec<ReadyLane> = Vec::new();
        let mut dead = Vec::new();
        for row in &rows {
            let (tenant, agent): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let run: String = row.try_get(2)?;
            if row.try_get(4)? {
                dead.push(run);
                continue;
            }
            let priority = i32::try_from(row.try_get::<_, i64>(3)?).unwrap_or_default();
            let candidate = LaneCandidate { run, priority };
            match lanes.last_mut().filter(|lane| lane.tenant == tenant && lane.agent == agent) {
                Some(lane) => lane.candidates.push(candidate),
                None => lanes.push(ReadyLane { tenant, agent, candidates: vec![candidate] }),
            }
        }
        if dead.is_empty() {
            return Ok(lanes);
        }
        db.run(BURY, &[SqlValue::Texts(dead)]).await?;
    }
}

async fn load_shares(db: &DbConnection, lanes: &[ReadyLane]) -> Result<FairShares, PgError> {
    let (scopes, names): (Vec<String>, Vec<String>) = FairShares::keys_of(lanes).into_iter().unzip();
    let select = "SELECT s.scope, s.name, s.time FROM unnest($1::text[], $2::text[]) k(scope, name)
        JOIN @queue_shares s ON s.scope = k.scope AND s.name = k.name";
    let rows = db.rows(select, &[SqlValue::Texts(scopes), SqlValue::Texts(names)]).await?;
    let read =
        |row: &Row| Ok::<_, PgError>(((row.try_get(0)?, row.try_get(1)?), from_integer(row.try_get(2)?)?));
    Ok(FairShares::new(rows.iter().map(read).collect::<Result<Vec<_>, _>>()?))
}

async fn save_shares(db: &DbConnection, shares: FairShares) -> Result<(), PgError> {
    let changed = shares.into_changed();
    if changed.is_empty() {
        return Ok(());
    }
    let times = changed.iter().map(|(_, time)| to_integer(*time)).collect::<Result<Vec<_>, _>>()?;
    let (scopes, names): (Vec<String>, Vec<String>) = changed.into_iter().map(|(key, _)| key).unzip();
    let save = "INSERT INTO @queue_shares (scope, name, time)
        SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
        ON CONFLICT (scope, name) DO UPDATE SET time = excluded.time";
    db.run(save, &[SqlValue::Texts(scopes), SqlValue::Texts(names), SqlValue::Integers(times)])
        .await
        .map(|_| ())
}

/// Loads the runs that a worker has taken and does not name: the answer to its request was lost.
async fn load_lost(
    db: &DbConnection,
    worker: &str,
    held: &[RunId],
) -> Result<Vec<(RunId, Result<TakenRun, StoreError>)>, PgError> {
    let held = held.iter().map(|run| run.as_str().to_owned()).collect();
    let select =
        "SELECT run, attempt, signals, body FROM @queue WHERE worker = $1 AND NOT run = ANY($2) ORDER BY run";
    let rows = db.rows(select, &[worker.into(), SqlValue::Texts(held)]).await?;
    rows.iter().map(read_taken).collect()
}

fn read_taken(row: &Row) -> Result<(RunId, Result<TakenRun, StoreError>), PgError> {
    let read = || {
        Ok(TakenRun {
            attempt: read_attempt(row, 1)?,
            signals: from_integer(row.try_get(2)?)?,
            submission: from_json(row.try_get(3)?)?,
        })
    };
    Ok((RunId::from(row.try_get::<_, String>(0)?), separate_damage(read())?))
}

/// Separates the damage of one value from errors of the database.
fn separate_damage<T>(read: Result<T, PgError>) -> Result<Result<T, StoreError>, PgError> {
    match read {
        Ok(value) => Ok(Ok(value)),
        Err(error @ PgError::Corrupt(_)) => Ok(Err(error.into_store_error())),
        Err(error) => Err(error),
    }
}

fn read_attempt(row: &Row, column: usize) -> Result<u32, PgError> {
    let attempt: i64 = row.try_get(column)?;
    u32::try_from(attempt).map_err(|_| PgError::Corrupt(format!("{attempt} is no number of attempts")))
}

async fn load_orders(
    db: &DbConnection,
    worker: &str,
) -> Result<Vec<(RunId, u64, Result<QueueOrder, StoreError>)>, PgError> {
    let select = "SELECT o.run, o.number, o.body FROM @queue q JOIN @queue_orders o ON o.run = q.run
        WHERE q.worker = $1 ORDER BY o.number";
    let read = |row: &Row| {
        let order = separate_damage(from_json(row.try_get(2)?))?;
        Ok((RunId::from(row.try_get::<_, String>(0)?), from_integer(row.try_get(1)?)?, order))
    };
    db.rows(select, &[worker.into()]).await?.iter().map(read).collect()
}

/// The orders for a run that its segment has not carried out.
struct OpenOrders {
    is_any: bool,
    is_cancelled: bool,
}

async fn find_open_orders(db: &DbConnection, run: &RunId, orders_done: u64) -> Result<OpenOrders, PgError> {
    let select = "SELECT count(*) > 0, count(*) FILTER (WHERE body = $3) > 0 FROM @queue_orders
        WHERE run = $1 AND number > $2";
    let cancel = to_json(&QueueOrder::Cancel)?;
    let values = [run.as_str().into(), to_integer(orders_done)?.into(), cancel.as_slice().into()];
    match db.row(select, &values).await? {
        Some(row) => Ok(OpenOrders { is_any: row.try_get(0)?, is_cancelled: row.try_get(1)? }),
        None => Ok(OpenOrders { is_any: false, is_cancelled: false }),
    }
}

pub(crate) async fn leave_run(db: &DbConnection, departure: &RunDeparture) -> Result<(), PgError> {
    let RunDeparture { worker, run, now, next, .. } = departure;
    check_worker(db, worker).await?;
    // The row of the run first, as every other operation that locks both.
    runs::lock_run(db, run).await?;
    let select =
        "SELECT attempt, max_attempts, signals FROM @queue WHERE run = $1 AND worker = $2 FOR UPDATE";
    let row = db.row(select, &[run.as_str().into(), worker.into()]).await?;
    let row = row.ok_or_else(|| StoreError::worker_retired(worker))?;
    let (attempt, max_attempts) = (read_attempt(&row, 0)?, read_attempt(&row, 1)?);
    let is_signalled = from_integer(row.try_get(2)?)? != departure.signals_seen;
    // Orders that came during the segment wake the run as they wake one that waits or is a dead letter.
    let OpenOrders { is_any, is_cancelled } = find_open_orders(db, run, departure.orders_done).await?;
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
            let insert = "INSERT INTO @queue_refusals (run, build, reason) VALUES ($1, $2, $3)
                ON CONFLICT (run, build) DO UPDATE SET reason = excluded.reason";
            db.run(insert, &[run.as_str().into(), build.into(), reason.into()]).await?;
            ("ready", attempt.saturating_sub(1), None, None)
        }
        NextStep::Bury { reason } => ("dead", attempt, None, Some(reason)),
    };
    let update = format!(
        "UPDATE @queue SET state = $2, worker = NULL, attempt = $3, wake = $4, reason = $5, position = {NEXT_POSITION}
        WHERE run = $1"
    );
    let values = [
        run.as_str().into(),
        state.into(),
        attempt.into(),
        wake.map(to_time).into(),
        reason.map(String::as_str).into(),
    ];
    db.run(&update, &values).await?;
    let delete = "DELETE FROM @queue_orders WHERE run = $1 AND ($2 = 'ended' OR number <= $3)";
    let done = to_integer(departure.orders_done)?;
    db.run(delete, &[run.as_str().into(), state.into(), done.into()]).await?;
    let Some(lease) = &departure.lease else { return Ok(()) };
    if let Some(status) = departure.status {
        match runs::set_status(db, lease, status, *now).await {
            // Another driver has the run.
            Err(PgError::Refused(error)) if error.is_fenced() => return Ok(()),
            result => result?,
        }
    }
    runs::release_lease(db, lease).await
}

pub(crate) async fn post_order(db: &DbConnection, run: &RunId, order: &QueueOrder) -> Result<u64, PgError> {
    let state = db.row("SELECT state FROM @queue WHERE run = $1 FOR UPDATE", &[run.as_str().into()]).await?;
    let state: String = state.ok_or_else(|| StoreError::not_submitted(run))?.try_get(0)?;
    let body = to_json(order)?;
    let insert = "INSERT INTO @queue_orders (run, body) VALUES ($1, $2) RETURNING number";
    let row = db.row(insert, &[run.as_str().into(), body.as_slice().into()]).await?;
    let number: i64 = row.ok_or_else(|| PgError::Corrupt("an order has no number".to_owned()))?.try_get(0)?;
    if state == "ended" {
        db.run("DELETE FROM @queue_orders WHERE number = $1", &[number.into()]).await?;
    }
    wake_run(db, run, "'parked', 'waiting'").await?;
    if state == "dead" && matches!(order, QueueOrder::Cancel) {
        revive_run(db, run).await?;
    }
    from_integer(number)
}

/// Counts a decision, and makes a parked run ready.
pub(crate) async fn signal_run(db: &DbConnection, run: &RunId) -> Result<(), PgError> {
    wake_run(db, run, "'parked'").await
}

async fn wake_run(db: &DbConnection, run: &RunId, sleeping: &str) -> Result<(), PgError> {
    let count = "UPDATE @queue SET signals = signals + 1 WHERE run = $1";
    if db.run(count, &[run.as_str().into()]).await? > 0 {
        let wake = format!(
            "UPDATE @queue SET state = 'ready', wake = NULL, position = {NEXT_POSITION}
            WHERE run = $1 AND state IN ({sleeping})"
        );
        db.run(&wake, &[run.as_str().into()]).await?;
    }
    Ok(())
}

pub(crate) async fn revive_run(db: &DbConnection, run: &RunId) -> Result<(), PgError> {
    let reset = "UPDATE @queue SET attempt = 0, reason = NULL WHERE run = $1";
    if db.run(reset, &[run.as_str().into()]).await? == 0 {
        return Err(StoreError::not_submitted(run).into());
    }
    db.run("DELETE FROM @queue_refusals WHERE run = $1", &[run.as_str().into()]).await?;
    let wake = format!(
        "UPDATE @queue SET state = 'ready', wake = NULL, position = {NEXT_POSITION}
        WHERE run = $1 AND state IN ('dead', 'waiting', 'parked')"
    );
    db.run(&wake, &[run.as_str().into()]).await.map(|_| ())
}

/// Lists runs that are ready, and runs whose wake-up time has come.
pub(crate) async fn list_ready_runs(
    db: &DbConnection,
    query: &ReadyRunsQuery,
) -> Result<Vec<RunId>, PgError> {
    let select = "WITH offers AS (SELECT * FROM unnest($2::text[], $3::text[]) o(agent, build))
        (SELECT q.run FROM @queue q JOIN offers o ON o.agent = q.agent
            WHERE q.state = 'ready' AND NOT q.run = ANY($4)
            AND NOT EXISTS (SELECT 1 FROM @queue_refusals f WHERE f.run = q.run AND f.build = o.build) LIMIT $5)
        UNION ALL (SELECT q.run FROM @queue q JOIN offers o ON o.agent = q.agent
            WHERE q.wake <= $1 AND NOT q.run = ANY($4)
            AND NOT EXISTS (SELECT 1 FROM @queue_refusals f WHERE f.run = q.run AND f.build = o.build) LIMIT $5)
        LIMIT $5";
    let values = [
        to_time(query.now).into(),
        SqlValue::Texts(query.offers.iter().map(|offer| offer.agent.as_str().to_owned()).collect()),
        SqlValue::Texts(query.offers.iter().map(|offer| offer.build.clone()).collect()),
        SqlValue::Texts(query.except.iter().map(|run| run.as_str().to_owned()).collect()),
        query.limit.into(),
    ];
    let rows = db.rows(select, &values).await?;
    rows.iter().map(|row| Ok(RunId::from(row.try_get::<_, String>(0)?))).collect()
}

/// Deletes a run from the queue.
pub(crate) async fn forget_run(db: &DbConnection, run: &RunId) -> Result<(), PgError> {
    for table in ["queue", "queue_orders", "queue_refusals"] {
        db.run(&format!("DELETE FROM @{table} WHERE run = $1"), &[run.as_str().into()]).await?;
    }
    Ok(())
}

const QUEUED_COLUMNS: &str =
    "body, state, wake, worker, attempt, reason, run, agent, tenant, priority, max_attempts";

pub(crate) async fn load_queued_run(db: &DbConnection, run: &RunId) -> Result<Option<QueuedRun>, PgError> {
    let select = format!("SELECT {QUEUED_COLUMNS} FROM @queue WHERE run = $1");
    match db.row(&select, &[run.as_str().into()]).await? {
        Some(row) => {
            let queued = read_queued_run(&row, from_json(row.try_get(0)?)?)?;
            Ok(load_refusals(db, vec![queued]).await?.pop())
        }
        None => Ok(None),
    }
}

pub(crate) async fn list_queued_runs(
    db: &DbConnection,
    filter: QueueFilter,
    after: Option<&RunId>,
    limit: u32,
) -> Result<Vec<QueuedRun>, PgError> {
    let condition = match filter {
        QueueFilter::Open => "",
        QueueFilter::DeadLetters => "AND state = 'dead'",
        // A parked run has a journal, which says what it waits for.
        QueueFilter::NotStarted => {
            "AND state <> 'parked' AND NOT EXISTS (SELECT 1 FROM @runs r WHERE r.name = run)"
        }
    };
    let select = format!(
        "SELECT {QUEUED_COLUMNS} FROM @queue WHERE ($1::text IS NULL OR run > $1 COLLATE \"C\") AND state <> 'ended'
        {condition} ORDER BY run LIMIT $2"
    );
    let rows = db.rows(&select, &[after.map(RunId::as_str).into(), limit.into()]).await?;
    let read = |row: &Row| match separate_damage(from_json(row.try_get(0)?))? {
        Ok(submission) => read_queued_run(row, submission),
        Err(error) => {
            let queued = read_queued_run(row, read_submission_columns(row)?)?;
            let reason = queued.reason.or_else(|| Some(error.to_string()));
            Ok(QueuedRun { reason, ..queued })
        }
    };
    let runs = rows.iter().map(read).collect::<Result<Vec<_>, PgError>>()?;
    load_refusals(db, runs).await
}

/// Reads a submission without its input from the columns after the first six.
fn read_submission_columns(row: &Row) -> Result<RunSubmission, PgError> {
    Ok(RunSubmission {
        tenant: row.try_get(8)?,
        priority: i32::try_from(row.try_get::<_, i64>(9)?).unwrap_or_default(),
        max_attempts: read_attempt(row, 10)?,
        input: Vec::new(),
        ..RunSubmission::new(row.try_get::<_, String>(6)?, row.try_get::<_, String>(7)?, "")
    })
}

/// Loads who has declined the runs, with one query for all.
async fn load_refusals(db: &DbConnection, mut runs: Vec<QueuedRun>) -> Result<Vec<QueuedRun>, PgError> {
    let names = runs.iter().map(|run| run.submission.run.as_str().to_owned()).collect();
    let select = "SELECT run, build, reason FROM @queue_refusals WHERE run = ANY($1) ORDER BY run, build";
    for row in db.rows(select, &[SqlValue::Texts(names)]).await? {
        let run: &str = row.try_get(0)?;
        if let Some(declined) = runs.iter_mut().find(|known| known.submission.run.as_str() == run) {
            declined.declined_by.push((row.try_get(1)?, row.try_get(2)?));
        }
    }
    Ok(runs)
}

fn read_queued_run(row: &Row, submission: RunSubmission) -> Result<QueuedRun, PgError> {
    let wake = row.try_get::<_, Option<i64>>(2)?.map(from_time);
    let state = match row.try_get::<_, String>(1)?.as_str() {
        "ready" => QueuedState::Ready,
        "waiting" => QueuedState::Waiting { until: wake.unwrap_or_default() },
        "taken" => QueuedState::Taken { worker: row.try_get::<_, Option<String>>(3)?.unwrap_or_default() },
        "parked" => QueuedState::Parked { wake_at: wake },
        "ended" => QueuedState::Ended,
        "dead" => QueuedState::DeadLetter,
        other => return Err(PgError::Corrupt(format!("a queued run is in the state `{other}`"))),
    };
    let (attempt, reason) = (read_attempt(row, 4)?, row.try_get(5)?);
    Ok(QueuedRun { submission, state, attempt, reason, declined_by: Vec::new() })
}
