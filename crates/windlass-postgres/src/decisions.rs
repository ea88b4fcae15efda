//! Posted decisions, and the marks of those that a driver has taken.

use windlass::core::id::{CallPath, RunId};
use windlass::error::StoreError;
use windlass::store::{Lease, PostedDecision};

use crate::convert::{from_integer, from_json, to_integer, to_json, to_json_text};
use crate::database::{DbConnection, PgError};
use crate::{queue, runs};

pub(crate) async fn post_decision(
    db: &DbConnection,
    run: &RunId,
    mut posted: PostedDecision,
    record_count: u64,
) -> Result<(), PgError> {
    let select = "SELECT id, records FROM @runs WHERE name = $1 FOR UPDATE";
    let row = db.row(select, &[run.as_str().into()]).await?.ok_or_else(|| runs::run_not_found(run))?;
    let (id, records): (i64, u64) = (row.try_get(0)?, from_integer(row.try_get(1)?)?);
    let path = to_json_text(&posted.path)?;
    let known = find_posted(db, id, &path, posted.attempt).await?;
    if known.as_ref().is_some_and(|known| known.is_repeated_by(&posted)) {
        return Ok(());
    }
    let select = "SELECT epoch FROM @taken_decisions WHERE run = $1 AND path = $2 AND attempt = $3";
    let taken = db.row(select, &[id.into(), (&path).into(), posted.attempt.into()]).await?;
    if let Some(taken) = taken {
        let taken = from_integer(taken.try_get(0)?)?;
        if let Some((epoch, Some(_))) = runs::find_lease(db, run).await?
            && taken == epoch
        {
            return Err(StoreError::already_decided(run, &posted.path, known.as_ref()).into());
        }
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
    let body = to_json(&posted)?;
    let write = "INSERT INTO @inbox (run, path, attempt, body) VALUES ($1, $2, $3, $4)
        ON CONFLICT (run, path, attempt) DO UPDATE SET body = excluded.body";
    let values = [id.into(), (&path).into(), posted.attempt.into(), body.as_slice().into()];
    db.run(write, &values).await?;
    queue::signal_run(db, run).await
}

pub(crate) async fn take_decision(
    db: &DbConnection,
    lease: &Lease,
    call: &CallPath,
    attempt: u32,
) -> Result<Option<PostedDecision>, PgError> {
    let (id, _) = runs::find_owned_run(db, lease).await?;
    let path = to_json_text(call)?;
    let mark = "INSERT INTO @taken_decisions (run, path, attempt, epoch) VALUES ($1, $2, $3, $4)
        ON CONFLICT (run, path, attempt) DO UPDATE SET epoch = excluded.epoch";
    let values = [id.into(), (&path).into(), attempt.into(), to_integer(lease.epoch)?.into()];
    db.run(mark, &values).await?;
    find_posted(db, id, &path, attempt).await
}

pub(crate) async fn posted_decisions(db: &DbConnection, run: &RunId) -> Result<Vec<PostedDecision>, PgError> {
    let select = "SELECT i.body FROM @inbox i JOIN @runs r ON r.id = i.run WHERE r.name = $1 ORDER BY i.id";
    let rows = db.rows(select, &[run.as_str().into()]).await?;
    rows.iter().map(|row| from_json(row.try_get(0)?)).collect()
}

async fn find_posted(
    db: &DbConnection,
    run: i64,
    path: &str,
    attempt: u32,
) -> Result<Option<PostedDecision>, PgError> {
    let select = "SELECT body FROM @inbox WHERE run = $1 AND path = $2 AND attempt = $3";
    let row = db.row(select, &[run.into(), path.into(), attempt.into()]).await?;
    row.map(|row| from_json(row.try_get(0)?)).transpose()
}
