//! Opening stored runs and posting decisions about them, from any process and without a lease.

use windlass_core::{
    decision::{Decision, DecisionScope},
    id::{CallPath, RunId},
    journal::{HashChain, JournalEntry, JournalFormatError, JournalLine},
    run::{ReplayError, ReplayedRun, Run},
};

use super::{PostedDecision, Store, StoredSnapshot};
use crate::error::{DecisionError, RunError, StoreError, StoreErrorKind};
use crate::run::{JournalRecords, PausedRun};

/// An error that prevents opening a stored run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenRunError {
    /// The store does not have the run, or could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The journal could not be decoded or its hashes do not match.
    #[error("run `{run}` cannot be read: {source}")]
    JournalFormat {
        /// Id of the run.
        run: RunId,
        /// The cause.
        source: JournalFormatError,
    },
    /// The journal was decoded and could not be replayed.
    #[error("run `{run}` cannot be replayed: {source}")]
    Replay {
        /// Id of the run.
        run: RunId,
        /// The cause.
        source: ReplayError,
    },
}

impl From<OpenRunError> for RunError {
    fn from(error: OpenRunError) -> Self {
        match error {
            OpenRunError::Store(error) => error.into(),
            OpenRunError::JournalFormat { source, .. } => source.into(),
            OpenRunError::Replay { source, .. } => source.into(),
        }
    }
}

/// An error that prevents posting a decision. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostDecisionError {
    /// The run could not be opened.
    #[error(transparent)]
    Open(#[from] OpenRunError),
    /// The decision is not valid.
    #[error(transparent)]
    Decide(#[from] DecisionError),
    /// The call already has a different decision, or the store could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Loads a stored run from its journal: its record and its pending calls. The run's driver is not affected.
pub async fn load_paused(store: &dyn Store, run: &RunId) -> Result<PausedRun, OpenRunError> {
    let OpenedRun { replay, records, .. } = read_run(store, run).await?;
    Ok(PausedRun::from_parts(replay, records))
}

/// A stored run as it was read.
pub(crate) struct OpenedRun {
    pub(crate) replay: ReplayedRun,
    pub(crate) records: JournalRecords,
    pub(crate) chain: HashChain,
    /// Number of records that the snapshot covers; 0 without a snapshot.
    pub(crate) snapshot_record_count: u64,
}

/// Reads a stored run from its latest snapshot, if that matches the journal, or else from the start. The hashes
/// of all lines are verified in either case.
pub(crate) async fn read_run(store: &dyn Store, run: &RunId) -> Result<OpenedRun, OpenRunError> {
    let mut lines = store.load_journal(run, 0).await?;
    if lines.is_empty() {
        return Err(
            StoreError::with_kind(StoreErrorKind::RunNotFound, format!("there is no run `{run}`")).into()
        );
    }
    // An unreadable snapshot is ignored: the journal suffices.
    let snapshot = store.load_snapshot(run).await.ok().flatten();
    let snapshot = snapshot.and_then(|snapshot| restore_snapshot(run, &lines, &snapshot));
    let covered = snapshot.as_ref().map_or(0, |replay| replay.next_seq);
    let later = lines.split_off(covered as usize);
    let unreadable = |source| OpenRunError::JournalFormat { run: run.clone(), source };
    let mut chain = HashChain::default();
    for (seq, line) in lines.iter().enumerate() {
        chain.verify_line(seq as u64, line).map_err(unreadable)?;
    }
    let later = later.iter().zip(covered..).map(|(line, seq)| chain.read_record(seq, line));
    let later = later.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    let replay = match snapshot {
        Some(mut replay) => later.iter().try_for_each(|record| replay.apply_record(record)).map(|()| replay),
        None => Run::replay(&later),
    };
    let replay = replay.map_err(|source| OpenRunError::Replay { run: run.clone(), source })?;
    Ok(OpenedRun {
        replay,
        records: JournalRecords::from_snapshot(lines, later),
        chain,
        snapshot_record_count: covered,
    })
}

/// Restores a snapshot if it matches the journal.
fn restore_snapshot(run: &RunId, lines: &[JournalLine], snapshot: &StoredSnapshot) -> Option<ReplayedRun> {
    let last = usize::try_from(snapshot.record_count).ok()?.checked_sub(1)?;
    let is_of_these = lines.get(last).is_some_and(|line| line.hash == snapshot.head_hash);
    let replay = is_of_these.then(|| ReplayedRun::from_snapshot(&snapshot.body)).flatten()?;
    (replay.next_seq == snapshot.record_count && replay.run.id() == run).then_some(replay)
}

/// Posts a decision about a pending call in the name of `by`. The decision is bound to the digest of the call
/// in the journal. The run's driver picks it up when only decisions are left to wait for; without a driver, the
/// next recovery does.
pub async fn post_decision(
    store: &dyn Store,
    run: &RunId,
    call: impl Into<CallPath>,
    decision: Decision,
    reach: DecisionScope,
    by: impl Into<String>,
) -> Result<(), PostDecisionError> {
    let mut paused = load_paused(store, run).await?;
    let call = call.into();
    let asked = paused.pending_calls();
    paused.decide_as(by);
    paused.decide(call.clone(), decision, reach)?;
    let made = paused.record().records.later_records().last().map(|record| (&record.path, &record.entry));
    let Some((within, JournalEntry::DecisionRecorded(decided))) = made else {
        return Err(DecisionError::NotPending(call).into());
    };
    let path = CallPath::new(within, decided.call.clone());
    let attempt = asked.iter().find(|pending| pending.path == path).map_or(0, |pending| pending.attempt);
    let posted = PostedDecision { path, attempt, decision: decided.clone() };
    Ok(store.post_decision(run, posted).await?)
}
