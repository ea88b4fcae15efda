//! Opening stored runs, from any process and without a lease.

use std::sync::Arc;

use windlass_core::{
    authenticity::{MacError, MacKeyId, MacKeyring},
    id::RunId,
    inspect::{VerifiedJournal, verify_lines_with_history},
    journal::{
        HashChain, HistoryError, JournalEntry, JournalFormatError, JournalLine, JournalRecord, StartHistory,
    },
    run::{ParsedSegments, ReplayError, ReplayedRun, Run, RunOutline},
};

use super::approvers::held_call;
use super::authentic::{PostedDecisions, check_snapshot, load_posted_about, load_posted_decisions};
use super::{HISTORY_ARTEFACT, Store, StoredSnapshot};
use crate::error::{RunError, StoreError, StoreErrorKind};
use crate::run::{JournalRecords, PausedRun, RecordSource, SnapshotRecords};
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
/// A long run is loaded from its snapshot at the same cost as a short one, if the store has a
/// [`JournalReader`](super::JournalReader): neither the records before the snapshot nor the conversation that they led to
/// are read. [`RunRecord::read_journal`] reads and verifies the records, and [`RunRecord::read_state`] the conversation.
///
/// [`RunRecord::read_journal`]: crate::run::RunRecord::read_journal
/// [`RunRecord::read_state`]: crate::run::RunRecord::read_state
pub async fn load_paused(store: &dyn Store, run: &RunId) -> Result<PausedRun, OpenRunError> {
    let paused = match find_snapshot(store, run).await?.into_usable() {
        Some(UsableSnapshot { mut outline, covered, later, .. }) => {
            // A record about the conversation, such as a compaction, needs what lies before the snapshot.
            let fits = later.iter().all(|record| outline.apply_record(record).is_ok());
            let records = JournalRecords::after_snapshot(Some(covered), later);
            fits.then(|| PausedRun::from_outline(outline, records))
        }
        None => None,
    };
    let paused = match paused {
        Some(paused) => paused,
        None => {
            let OpenedRun { replay, records, .. } = read_run(store, run).await?;
            PausedRun::from_parts(replay, records)
        }
    };
    let mut paused = paused.with_stored_withheld(store).await?;
    if !paused.pending_calls().is_empty() {
        let outline = paused.record().outline();
        let posted = load_posted_about(store, run, &|path| Ok(held_call(outline, path))).await?;
        paused.set_posted(posted.authentic);
    }
    paused.set_keys(store.mac_keys().cloned());
    paused.set_approvers(store.approvers().cloned());
    Ok(paused)
}

/// A stored run as it was read, with its past.
pub(crate) struct OpenedRun {
    pub(crate) replay: ReplayedRun,
    pub(crate) records: JournalRecords,
    pub(crate) chain: HashChain,
    /// The reason why the stored snapshot was ignored, if it is not authentic.
    pub(crate) forged_snapshot: Option<ForgedSnapshot>,
}

/// The reason why a snapshot is not authentic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ForgedSnapshot {
    /// Its head is not what a holder of a key wrote.
    #[error(transparent)]
    Head(#[from] MacError),
    /// Its segments are not those that its head stands for.
    #[error("its segments are not those that were written")]
    Segments,
}

/// The snapshot of a stored run.
enum FoundSnapshot {
    /// There is none, or it is not of this run, version or journal.
    Unusable,
    /// It is not authentic.
    Forged(MacError),
    /// It can be used.
    Usable(Box<UsableSnapshot>),
}

/// A snapshot that is authentic and matches the journal.
struct UsableSnapshot {
    /// The run as of the snapshot, without its past.
    outline: RunOutline,
    /// The records that it covers.
    covered: SnapshotRecords,
    /// The records after it.
    later: Vec<JournalRecord>,
    /// The hash chain after the last record.
    chain: HashChain,
}

impl FoundSnapshot {
    fn into_usable(self) -> Option<UsableSnapshot> {
        match self {
            Self::Usable(found) => Some(*found),
            Self::Unusable | Self::Forged(_) => None,
        }
    }
}

/// Finds the snapshot of a run, and reads the records after it. Nothing before it is read, if the store has a reader for
/// later. The lines that are read are verified.
async fn find_snapshot(store: &dyn Store, run: &RunId) -> Result<FoundSnapshot, OpenRunError> {
    if store.approvers().is_some() {
        // No approver signs a snapshot.
        return Ok(FoundSnapshot::Unusable);
    }
    let keys = store.mac_keys().map(|keys| &**keys);
    // An unreadable snapshot is ignored: the journal suffices.
    let Some(snapshot) = store.load_snapshot(run).await.ok().flatten() else {
        return Ok(FoundSnapshot::Unusable);
    };
    let snapshot = match check_snapshot(keys, run, snapshot) {
        Ok((snapshot, _)) => snapshot,
        Err(reason) => {
            tracing::warn!(%run, %reason, "the snapshot is forged and is ignored");
            return Ok(FoundSnapshot::Forged(reason));
        }
    };
    let (Some(last), Some(outline)) = (snapshot.record_count.checked_sub(1), parse_outline(run, &snapshot))
    else {
        return Ok(FoundSnapshot::Unusable);
    };
    let reader = store.journal_reader();
    let first = if reader.is_some() { last } else { 0 };
    let mut lines = store.load_journal(run, first).await?;
    let covered = usize::try_from(snapshot.record_count - first).unwrap_or(usize::MAX);
    if lines.get(covered - 1).is_none_or(|line| line.hash != snapshot.head_hash) {
        return Ok(FoundSnapshot::Unusable);
    }
    let later = lines.split_off(covered);
    let source = match reader {
        Some(reader) => RecordSource::Store(reader),
        None => {
            let mut chain = HashChain::default();
            for (line, seq) in lines.iter().zip(0..) {
                chain
                    .verify_line(seq, line)
                    .map_err(|source| OpenRunError::JournalFormat { run: run.clone(), source })?;
            }
            RecordSource::Lines(Arc::new(lines))
        }
    };
    let mut chain = HashChain::from_head(snapshot.head_hash);
    let later = read_records(run, &mut chain, snapshot.record_count, &later, keys)?;
    let covered = SnapshotRecords::new(snapshot.head_hash, outline.clone(), source);
    Ok(FoundSnapshot::Usable(Box::new(UsableSnapshot { outline, covered, later, chain })))
}

/// Parses the head of a snapshot. Returns `None` if it is not one of this run.
fn parse_outline(run: &RunId, snapshot: &StoredSnapshot) -> Option<RunOutline> {
    let outline = RunOutline::parse(&snapshot.body)?;
    let replay = outline.replay();
    (replay.next_seq == snapshot.record_count && replay.run.id() == run).then_some(outline)
}

/// Reads a stored run with its past from its latest snapshot, if that is authentic and matches the journal, or else from
/// the start.
pub(crate) async fn read_run(store: &dyn Store, run: &RunId) -> Result<OpenedRun, OpenRunError> {
    let forged = match find_snapshot(store, run).await? {
        FoundSnapshot::Unusable => None,
        FoundSnapshot::Forged(reason) => Some(reason.into()),
        FoundSnapshot::Usable(found) => {
            let UsableSnapshot { outline, covered, later, chain } = *found;
            match load_past(store, run, &outline).await? {
                Some(base) => {
                    return Ok(OpenedRun {
                        replay: replay_records(run, Some(base.clone()), &later)?,
                        records: JournalRecords::after_snapshot(Some(covered.with_whole(base)), later),
                        chain,
                        forged_snapshot: None,
                    });
                }
                None => {
                    tracing::warn!(%run, "the segments of the snapshot are not its own and are ignored");
                    Some(ForgedSnapshot::Segments)
                }
            }
        }
    };
    Ok(OpenedRun { forged_snapshot: forged, ..read_whole_run(store, run).await? })
}

/// Loads the segments of a snapshot and returns the whole run as of the snapshot. Returns `None` if they are not its own.
async fn load_past(
    store: &dyn Store,
    run: &RunId,
    outline: &RunOutline,
) -> Result<Option<ReplayedRun>, OpenRunError> {
    let position = outline.position();
    let segments = store.load_snapshot_segments(run, position.segment_count()).await.unwrap_or_default();
    let Some(parsed) = ParsedSegments::parse(position, &segments) else { return Ok(None) };
    let mut history = parsed.start_history().cloned().unwrap_or_default();
    load_history(store, run, &mut history).await?;
    let past = parsed.resolve(history.items().unwrap_or_default().to_vec());
    Ok(past.and_then(|past| outline.complete(past)))
}

/// Reads all lines of a stored run and verifies them.
async fn read_whole_run(store: &dyn Store, run: &RunId) -> Result<OpenedRun, OpenRunError> {
    let lines = store.load_journal(run, 0).await?;
    if lines.is_empty() {
        return Err(run_not_found(run).into());
    }
    let mut chain = HashChain::default();
    let keys = store.mac_keys().map(|keys| &**keys);
    let mut records = read_records(run, &mut chain, 0, &lines, keys)?;
    if let Some(JournalRecord { entry: JournalEntry::RunStarted(started), .. }) = records.first_mut() {
        load_history(store, run, &mut started.history).await?;
    }
    if let Some(approvers) = store.approvers() {
        approvers
            .verify_records(run, &records)
            .map_err(|source| OpenRunError::JournalFormat { run: run.clone(), source })?;
    }
    Ok(OpenedRun {
        replay: replay_records(run, None, &records)?,
        records: records.into(),
        chain,
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
            Some(match (RunOutline::parse(&snapshot.body), parse_outline(run, &snapshot), replayed) {
                (None, ..) => SnapshotVerification::Unreadable,
                (Some(_), Some(outline), Some(replayed)) => match load_past(store, run, &outline).await? {
                    Some(restored) if restored == replayed => SnapshotVerification::Verified(key),
                    _ => SnapshotVerification::Different,
                },
                (Some(_), _, _) => SnapshotVerification::Different,
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
