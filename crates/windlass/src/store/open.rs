//! Opening stored runs, from any process and without a lease.

use std::sync::Arc;

use windlass_core::{
    authenticity::{MacError, MacKeyId, MacKeyring},
    id::RunId,
    inspect::{VerifiedJournal, verify_lines_with_history},
    journal::{
        HashChain, HistoryError, JournalEntry, JournalFormatError, JournalLine, JournalRecord, StartHistory,
    },
    run::{ParsedSnapshot, ReplayError, ReplayedRun, Run},
};

use super::authentic::{PostedDecisions, check_snapshot, load_posted_decisions};
use super::{HISTORY_ARTEFACT, Store, StoredSnapshot};
use crate::error::{RunError, StoreError, StoreErrorKind};
use crate::run::{JournalRecords, PausedRun};
use crate::session::parse_export;

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

/// Loads a stored run: its record and its pending calls, with the decisions that were posted about them. The run's driver
/// is not affected.
///
/// A long run is loaded from its snapshot, without the records before it: [`RunRecord::read_journal`] reads and verifies
/// those.
///
/// [`RunRecord::read_journal`]: crate::run::RunRecord::read_journal
pub async fn load_paused(store: &dyn Store, run: &RunId) -> Result<PausedRun, OpenRunError> {
    let OpenedRun { replay, records, .. } = read_run(store, run).await?;
    let mut paused = PausedRun::from_parts(replay, records).with_stored_withheld(store).await?;
    if !paused.pending_calls().is_empty() {
        paused.set_posted(load_posted_decisions(store, run).await?.authentic);
    }
    paused.set_keys(store.mac_keys().cloned());
    paused.set_approvers(store.approvers().cloned());
    Ok(paused)
}

/// A stored run as it was read.
pub(crate) struct OpenedRun {
    pub(crate) replay: ReplayedRun,
    pub(crate) records: JournalRecords,
    pub(crate) chain: HashChain,
    /// Number of records that the snapshot covers; 0 without a snapshot.
    pub(crate) snapshot_record_count: u64,
    /// The reason why the stored snapshot was ignored, if it is not authentic.
    pub(crate) forged_snapshot: Option<MacError>,
}

/// Reads a stored run from its latest snapshot, if that is authentic and matches the journal, or else from the start. The
/// lines that are read are verified; those before a snapshot are verified when they are read.
pub(crate) async fn read_run(store: &dyn Store, run: &RunId) -> Result<OpenedRun, OpenRunError> {
    let keys = store.mac_keys().map(|keys| &**keys);
    if store.approvers().is_some() {
        // No approver signs a snapshot.
        return read_whole_run(store, run, None).await;
    }
    // An unreadable snapshot is ignored: the journal suffices.
    let snapshot = store.load_snapshot(run).await.ok().flatten();
    let snapshot = match snapshot.map(|snapshot| check_snapshot(keys, run, snapshot)).transpose() {
        Ok(snapshot) => snapshot.map(|(snapshot, _)| snapshot),
        Err(reason) => {
            tracing::warn!(%run, %reason, "the snapshot is forged and is ignored");
            let opened = read_whole_run(store, run, None).await?;
            return Ok(OpenedRun { forged_snapshot: Some(reason), ..opened });
        }
    };
    if let (Some(snapshot), Some(reader)) = (&snapshot, store.journal_reader())
        && let Some(last) = snapshot.record_count.checked_sub(1)
    {
        let lines = store.load_journal(run, last).await?;
        let is_of_these = lines.first().is_some_and(|line| line.hash == snapshot.head_hash);
        if is_of_these && let Some(replay) = decode_snapshot(store, run, snapshot).await? {
            let mut chain = HashChain::from_head(snapshot.head_hash);
            let base = Arc::new(replay.clone());
            let later = read_records(run, &mut chain, snapshot.record_count, &lines[1..], keys)?;
            let covered = (snapshot.record_count, snapshot.head_hash);
            return Ok(OpenedRun {
                replay: replay_records(run, Some(replay), &later)?,
                records: JournalRecords::from_store(run.clone(), base, covered, reader, later),
                chain,
                snapshot_record_count: snapshot.record_count,
                forged_snapshot: None,
            });
        }
    }
    read_whole_run(store, run, snapshot).await
}

/// Reads all lines of a stored run and verifies them.
async fn read_whole_run(
    store: &dyn Store,
    run: &RunId,
    snapshot: Option<StoredSnapshot>,
) -> Result<OpenedRun, OpenRunError> {
    let mut lines = store.load_journal(run, 0).await?;
    if lines.is_empty() {
        return Err(run_not_found(run).into());
    }
    let last = snapshot.as_ref().and_then(|snapshot| snapshot.record_count.checked_sub(1));
    let last = last.and_then(|last| lines.get(usize::try_from(last).ok()?));
    let snapshot = match snapshot.filter(|snapshot| last.is_some_and(|line| line.hash == snapshot.head_hash))
    {
        Some(snapshot) => decode_snapshot(store, run, &snapshot).await?,
        None => None,
    };
    let covered = snapshot.as_ref().map_or(0, |replay| replay.next_seq);
    let later = lines.split_off(covered as usize);
    let mut chain = HashChain::default();
    for (seq, line) in lines.iter().enumerate() {
        chain
            .verify_line(seq as u64, line)
            .map_err(|source| OpenRunError::JournalFormat { run: run.clone(), source })?;
    }
    let base = snapshot.clone().map(Arc::new);
    let keys = store.mac_keys().map(|keys| &**keys);
    let mut later = read_records(run, &mut chain, covered, &later, keys)?;
    if let (0, Some(JournalRecord { entry: JournalEntry::RunStarted(started), .. })) =
        (covered, later.first_mut())
    {
        load_history(store, run, &mut started.history).await?;
    }
    if let Some(approvers) = store.approvers() {
        approvers
            .verify_records(run, &later)
            .map_err(|source| OpenRunError::JournalFormat { run: run.clone(), source })?;
    }
    Ok(OpenedRun {
        replay: replay_records(run, snapshot, &later)?,
        records: JournalRecords::from_lines(run.clone(), base, lines, later),
        chain,
        snapshot_record_count: covered,
        forged_snapshot: None,
    })
}

/// Verifies and reads lines from a sequence number on, with the MACs of decisions if there are keys.
fn read_records(
    run: &RunId,
    chain: &mut HashChain,
    from: u64,
    lines: &[JournalLine],
    keys: Option<&MacKeyring>,
) -> Result<Vec<JournalRecord>, OpenRunError> {
    let records = lines.iter().zip(from..).map(|(line, seq)| chain.read_authentic(run, seq, line, keys));
    records
        .collect::<Result<_, _>>()
        .map_err(|source| OpenRunError::JournalFormat { run: run.clone(), source })
}

/// Replays the records after a snapshot, or all records without one.
fn replay_records(
    run: &RunId,
    snapshot: Option<ReplayedRun>,
    later: &[JournalRecord],
) -> Result<ReplayedRun, OpenRunError> {
    let replay = match snapshot {
        Some(mut replay) => later.iter().try_for_each(|record| replay.apply_record(record)).map(|()| replay),
        None => Run::replay(later),
    };
    replay.map_err(|source| OpenRunError::Replay { run: run.clone(), source })
}

/// Decodes a snapshot, with the items of the session that its run refers to. Returns `None` if it is not one of this run.
async fn decode_snapshot(
    store: &dyn Store,
    run: &RunId,
    snapshot: &StoredSnapshot,
) -> Result<Option<ReplayedRun>, OpenRunError> {
    let Some(parsed) = ParsedSnapshot::parse(&snapshot.body) else { return Ok(None) };
    let mut history = parsed.start_history().cloned().unwrap_or_default();
    load_history(store, run, &mut history).await?;
    let replay = parsed.restore(history.items().unwrap_or_default().to_vec());
    Ok(replay.filter(|replay| replay.next_seq == snapshot.record_count && replay.run.id() == run))
}

/// Verifies the journal of a stored run: every hash matches, no line is missing before another, the records replay, and
/// the items of the session that the run refers to are those that it started with.
///
/// # Errors
///
/// Returns an error for the first invalid record, or if the run does not exist.
pub async fn verify_run(store: &dyn Store, run: &RunId) -> Result<VerifiedJournal, OpenRunError> {
    let lines = store.load_journal(run, 0).await?;
    let unreadable = |source| OpenRunError::JournalFormat { run: run.clone(), source };
    let Some(first) = lines.first() else { return Err(run_not_found(run).into()) };
    let history = match HashChain::default().read_record(0, first).map_err(unreadable)?.entry {
        JournalEntry::RunStarted(mut started) => {
            load_history(store, run, &mut started.history).await?;
            started.history.items().unwrap_or_default().to_vec()
        }
        _ => Vec::new(),
    };
    let keys = store.mac_keys().map(|keys| (run, &**keys));
    let verified = verify_lines_with_history(history, &lines, keys).map_err(unreadable)?;
    if let Some(approvers) = store.approvers() {
        approvers.verify_records(run, &verified.records).map_err(unreadable)?;
    }
    Ok(verified)
}

/// The result of the verification of everything in a store that can decide about a run.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreVerification {
    /// The journal.
    pub journal: VerifiedJournal,
    /// The state of the snapshot, if there is one.
    pub snapshot: Option<SnapshotVerification>,
    /// The decisions that are posted, and those among them that are forged.
    pub posted: PostedDecisions,
}

/// The result of the verification of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotVerification {
    /// It is the state that the journal has, with the key of its MAC if the store has keys.
    Verified(Option<MacKeyId>),
    /// It is not authentic. Drivers ignore it.
    Forged(MacError),
    /// It is not the state that the journal has. A driver without keys would believe it.
    Different,
    /// It was written by another version. Drivers ignore it.
    Unreadable,
}

impl StoreVerification {
    /// Returns true if something in the store is forged.
    pub fn has_forgery(&self) -> bool {
        matches!(self.snapshot, Some(SnapshotVerification::Forged(_) | SnapshotVerification::Different))
            || !self.posted.refused.is_empty()
    }
}

/// Verifies everything in a store that can decide about a run: its journal as [`verify_run`] does, its snapshot against
/// the journal, and the decisions that are posted. MACs are verified if the store has keys.
///
/// # Errors
///
/// Returns an error for the first invalid record of the journal, or if the run does not exist.
pub async fn verify_stored_run(store: &dyn Store, run: &RunId) -> Result<StoreVerification, OpenRunError> {
    let journal = verify_run(store, run).await?;
    let keys = store.mac_keys().map(|keys| &**keys);
    let snapshot = match store.load_snapshot(run).await?.map(|snapshot| check_snapshot(keys, run, snapshot)) {
        None => None,
        Some(Err(reason)) => Some(SnapshotVerification::Forged(reason)),
        Some(Ok((snapshot, key))) => {
            let covered = usize::try_from(snapshot.record_count).ok();
            let covered = covered.and_then(|count| journal.records.get(..count));
            let replayed = covered.and_then(|records| Run::replay(records).ok());
            Some(match (ParsedSnapshot::parse(&snapshot.body), replayed) {
                (None, _) => SnapshotVerification::Unreadable,
                (Some(_), None) => SnapshotVerification::Different,
                (Some(_), Some(replayed)) => match decode_snapshot(store, run, &snapshot).await? {
                    Some(restored) if restored == replayed => SnapshotVerification::Verified(key),
                    _ => SnapshotVerification::Different,
                },
            })
        }
    };
    let posted = load_posted_decisions(store, run).await?;
    Ok(StoreVerification { journal, snapshot, posted })
}

fn run_not_found(run: &RunId) -> StoreError {
    StoreError::with_kind(StoreErrorKind::RunNotFound, format!("there is no run `{run}`"))
}

/// Loads the items of the session that the start of a run refers to: from the session, or from the run's own copy if
/// the run comes from another store.
///
/// # Errors
///
/// Returns an error with the name of the session if its items are missing, or are not those that the run started with.
pub async fn load_history(
    store: &dyn Store,
    run: &RunId,
    history: &mut StartHistory,
) -> Result<(), OpenRunError> {
    let Some(reference) = history.reference().filter(|_| history.is_missing()) else { return Ok(()) };
    let of_session = match reference.ranges.is_empty() {
        true => Some(Vec::new()),
        false => store.load_history(reference).await?,
    };
    let of_session = match of_session {
        Some(items) => history.resolve(items),
        None => Err(reference.missing()),
    };
    let Err(error) = of_session else { return Ok(()) };
    let cannot_replay = |error: HistoryError| OpenRunError::Replay { run: run.clone(), source: error.into() };
    let Some(copy) = store.load_artefact(run, HISTORY_ARTEFACT).await? else {
        return Err(cannot_replay(error));
    };
    let copy = String::from_utf8(copy).unwrap_or_default();
    history.resolve(parse_export(&copy).map_err(|_| cannot_replay(error))?).map_err(cannot_replay)
}
