//! Looking at a stored run and deciding about it, from any process, without owning it.

use windlass_core::{
    CallPath, Chain, Decision, Entry, Line, Reach, Replay, ReplayError, Run, RunId, SavedError,
};

use super::{Posted, Snapshot, Store};
use crate::error::{DecideError, RunError, StoreError, StoreErrorKind};
use crate::run::{Paused, Records};

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

impl From<OpenError> for RunError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Store(error) => error.into(),
            OpenError::Saved { source, .. } => source.into(),
            OpenError::Replay { source, .. } => source.into(),
        }
    }
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
    let Opened { replay, records, .. } = read(store, run).await?;
    Ok(Paused::of(replay, records))
}

/// A stored run as it was read.
pub(crate) struct Opened {
    pub(crate) replay: Replay,
    pub(crate) records: Records,
    pub(crate) chain: Chain,
    /// How many records the snapshot covers that it was opened from; none without one.
    pub(crate) covered: u64,
}

/// Reads a stored run: from its snapshot, where there is one that fits, or else from its beginning. All of its lines
/// are checked to be what was written in either case.
pub(crate) async fn read(store: &dyn Store, run: &RunId) -> Result<Opened, OpenError> {
    let mut lines = store.load(run, 0).await?;
    if lines.is_empty() {
        return Err(StoreError::of(StoreErrorKind::NoSuchRun, format!("there is no run `{run}`")).into());
    }
    // Without it the run opens all the same.
    let snapshot = store.snapshot(run).await.ok().flatten();
    let snapshot = snapshot.and_then(|snapshot| fitting(run, &lines, &snapshot));
    let covered = snapshot.as_ref().map_or(0, |replay| replay.next_seq);
    let later = lines.split_off(covered as usize);
    let unreadable = |source| OpenError::Saved { run: run.clone(), source };
    let mut chain = Chain::default();
    for (seq, line) in lines.iter().enumerate() {
        chain.follow(seq as u64, line).map_err(unreadable)?;
    }
    let later = later.iter().zip(covered..).map(|(line, seq)| chain.read(seq, line));
    let later = later.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    let replay = match snapshot {
        Some(mut replay) => later.iter().try_for_each(|record| replay.go_on(record)).map(|()| replay),
        None => Run::replay(&later),
    };
    let replay = replay.map_err(|source| OpenError::Replay { run: run.clone(), source })?;
    Ok(Opened { replay, records: Records::since(lines, later), chain, covered })
}

/// What a snapshot stands for, where it is one of these lines.
fn fitting(run: &RunId, lines: &[Line], snapshot: &Snapshot) -> Option<Replay> {
    let last = usize::try_from(snapshot.records).ok()?.checked_sub(1)?;
    let is_of_these = lines.get(last).is_some_and(|line| line.hash == snapshot.head);
    let replay = is_of_these.then(|| Replay::from_snapshot(&snapshot.body)).flatten()?;
    (replay.next_seq == snapshot.records && replay.run.id() == run).then_some(replay)
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
    let made = paused.record().records.later().last().map(|record| (&record.path, &record.entry));
    let Some((within, Entry::Decided(decided))) = made else {
        return Err(DecideError::NotPending(call).into());
    };
    let path = CallPath::new(within, decided.call.clone());
    let attempt = asked.iter().find(|pending| pending.path == path).map_or(0, |pending| pending.attempt);
    let posted = Posted { path, attempt, decided: decided.clone() };
    Ok(store.post(run, posted).await?)
}
