//! Conversions between values of Windlass and columns.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use windlass::core::canonical::Digest;
use windlass::core::id::Timestamp;
use windlass::core::journal::JournalLine;
use windlass::error::StoreError;
use windlass::fleet::worker_of_owner;
use windlass::store::{RunStatus, StoredLease};

use crate::database::PgError;

/// Columns of a lease, of the run `r` and its worker `w`: see [`read_run_lease`].
pub(crate) const LEASE_COLUMNS: &str =
    "r.epoch, r.owner, r.beat, r.lease_ms, r.renewed, w.beat, w.lease_ms, w.renewed";
/// Joins the run `r` with the worker `w` of its owner.
pub(crate) const JOIN_WORKER: &str = "LEFT JOIN @workers w ON w.name = split_part(r.owner, '~', 1)";

pub(crate) fn to_integer(number: u64) -> Result<i64, PgError> {
    i64::try_from(number).map_err(|_| StoreError::new(format!("{number} is too large a number")).into())
}

pub(crate) fn from_integer(number: i64) -> Result<u64, PgError> {
    u64::try_from(number).map_err(|_| PgError::Corrupt(format!("{number} stands where a count should")))
}

/// Converts a time. Later times saturate.
pub(crate) fn to_time(time: Timestamp) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

pub(crate) fn from_time(time: i64) -> Timestamp {
    Timestamp(u64::try_from(time).unwrap_or_default())
}

/// Converts the duration of a lease, rounded up to milliseconds.
pub(crate) fn to_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

pub(crate) fn to_json(value: &impl Serialize) -> Result<Vec<u8>, PgError> {
    serde_json::to_vec(value)
        .map_err(|error| StoreError::new("a value cannot be written").with_source(error).into())
}

pub(crate) fn to_json_text(value: &impl Serialize) -> Result<String, PgError> {
    serde_json::to_string(value)
        .map_err(|error| StoreError::new("a value cannot be written").with_source(error).into())
}

pub(crate) fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, PgError> {
    serde_json::from_slice(bytes)
        .map_err(|error| PgError::Corrupt(format!("a value cannot be read: {error}")))
}

pub(crate) fn read_digest(bytes: &[u8]) -> Result<Digest, PgError> {
    let bytes = bytes.try_into().map_err(|_| PgError::Corrupt("a hash cannot be read".to_owned()))?;
    Ok(Digest::from_bytes(bytes))
}

/// Reads a line: its hash from this column and its text from the next.
pub(crate) fn read_line(row: &Row, column: usize) -> Result<JournalLine, PgError> {
    let body = String::from_utf8(row.try_get(column + 1)?)
        .map_err(|_| PgError::Corrupt("a line is not text".to_owned()))?;
    Ok(JournalLine { hash: read_digest(row.try_get(column)?)?, body })
}

/// Reads a lease: its owner from this column, and its beat, duration and last renewal from the next ones.
pub(crate) fn read_lease(row: &Row, column: usize, epoch: u64) -> Result<Option<StoredLease>, PgError> {
    let Some(owner) = row.try_get::<_, Option<String>>(column)? else { return Ok(None) };
    let number =
        |offset: usize| row.try_get::<_, Option<i64>>(column + offset).map(Option::unwrap_or_default);
    Ok(Some(StoredLease {
        owner,
        epoch,
        beat: from_integer(number(1)?)?,
        duration: Duration::from_millis(from_integer(number(2)?)?),
        renewed_at: from_time(number(3)?),
    }))
}

/// Reads the lease of a run from [`LEASE_COLUMNS`] that begin at this column. The lease of a worker's run lives with the
/// worker.
pub(crate) fn read_run_lease(row: &Row, column: usize) -> Result<(u64, Option<StoredLease>), PgError> {
    let epoch = from_integer(row.try_get(column)?)?;
    let Some(lease) = read_lease(row, column + 1, epoch)? else { return Ok((epoch, None)) };
    if worker_of_owner(&lease.owner).is_none() {
        return Ok((epoch, Some(lease)));
    }
    let Some(beat) = row.try_get::<_, Option<i64>>(column + 5)? else { return Ok((epoch, None)) };
    let lease = StoredLease {
        beat: from_integer(beat)?,
        duration: Duration::from_millis(from_integer(row.try_get(column + 6)?)?),
        renewed_at: from_time(row.try_get(column + 7)?),
        ..lease
    };
    Ok((epoch, Some(lease)))
}

pub(crate) fn status_text(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Running => "running",
        RunStatus::Paused => "paused",
        RunStatus::Finished => "finished",
        RunStatus::Failed => "failed",
        RunStatus::Cancelled => "cancelled",
    }
}

pub(crate) fn parse_status(text: &str) -> Result<RunStatus, PgError> {
    Ok(match text {
        "running" => RunStatus::Running,
        "paused" => RunStatus::Paused,
        "finished" => RunStatus::Finished,
        "failed" => RunStatus::Failed,
        "cancelled" => RunStatus::Cancelled,
        other => return Err(PgError::Corrupt(format!("a run is in the state `{other}`"))),
    })
}

/// True if the run goes on after this status.
pub(crate) fn is_open(status: RunStatus) -> bool {
    matches!(status, RunStatus::Running | RunStatus::Paused)
}
