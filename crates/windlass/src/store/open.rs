//! Looking at a stored run and deciding about it, from any process, without owning it.

use windlass_core::{CallPath, Decision, Entry, Reach, ReplayError, RunId, SavedError, read_lines};

use super::{Posted, Store};
use crate::error::{DecideError, StoreError, StoreErrorKind};
use crate::run::Paused;

/// Why a stored run cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The store does not have it, or cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its journal is not what was written.
    #[error("run `{run}` cannot be read: {source}")]
    Saved {
        /// Which run.
        run: RunId,
        /// Why not.
        source: SavedError,
    },
    /// Its journal can be read and does not add up.
    #[error("run `{run}` cannot be replayed: {source}")]
    Replay {
        /// Which run.
        run: RunId,
        /// Why not.
        source: ReplayError,
    },
}

/// Why a decision was not posted. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The run cannot be looked at.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The decision does not count.
    #[error(transparent)]
    Decide(#[from] DecideError),
    /// Another decision was there first, or the store cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A stored run as it stands in its journal: what it did, and what waits. Whoever drives it goes on with it.
pub async fn paused(store: &dyn Store, run: &RunId) -> Result<Paused, OpenError> {
    let lines = store.load(run, 0).await?;
    if lines.is_empty() {
        return Err(StoreError::of(StoreErrorKind::NoSuchRun, format!("there is no run `{run}`")).into());
    }
    let records = read_lines(&lines).map_err(|source| OpenError::Saved { run: run.clone(), source })?;
    Paused::from_records(records).map_err(|source| OpenError::Replay { run: run.clone(), source })
}

/// Decides about a call that waits, in somebody's name. The decision is bound to what the journal shows of the call,
/// and posted: the run's driver takes it when nothing but decisions is left to wait for, or else whoever recovers
/// the run.
pub async fn decide(
    store: &dyn Store,
    run: &RunId,
    call: impl Into<CallPath>,
    decision: Decision,
    reach: Reach,
    by: impl Into<String>,
) -> Result<(), PostError> {
    let mut paused = paused(store, run).await?;
    let call = call.into();
    let asked = paused.pending();
    paused.decide_as(by);
    paused.decide(call.clone(), decision, reach)?;
    let made = paused.record().records.last().map(|record| (&record.path, &record.entry));
    let Some((within, Entry::Decided(decided))) = made else {
        return Err(DecideError::NotPending(call).into());
    };
    let path = CallPath::new(within, decided.call.clone());
    let attempt = asked.iter().find(|pending| pending.path == path).map_or(0, |pending| pending.attempt);
    let posted = Posted { path, attempt, decided: decided.clone() };
    Ok(store.post(run, posted).await?)
}
