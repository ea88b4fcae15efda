//! The records before a snapshot, and the run after the last of them. Both stay in the store until they are first needed.
//!
//! Invariant: what is loaded is what the snapshot's head stands for: segments by their digest, lines by the hash of the
//! last one. Segments that are not are ignored, because the journal suffices.

use std::fmt;
use std::sync::{Arc, OnceLock};

use windlass_core::{
    canonical::Digest,
    id::RunId,
    item::Item,
    journal::{HashChain, HistoryReference, JournalLine, JournalRecord, StartHistory, resolve_history},
    run::{ParsedSegments, ReplayedRun, Run, RunOutline},
};

use crate::error::{StoreError, StoreErrorKind};
use crate::session::parse_export;
use crate::store::{HISTORY_ARTEFACT, JournalReader, OpenRunError};

/// Number of lines that are read at a time.
const PAGE_LINES: u32 = 1024;

/// The records that a snapshot covers.
#[derive(Clone)]
pub(crate) struct SnapshotRecords {
    run: RunId,
    /// The hash of the last record.
    head: Digest,
    /// The run after the last record, without its past.
    outline: Arc<RunOutline>,
    /// The whole run after the last record, loaded on first access.
    whole: Arc<OnceLock<ReplayedRun>>,
    source: RecordSource,
}

/// The place of records that are not decoded.
#[derive(Clone)]
pub(crate) enum RecordSource {
    /// In memory, for stores that cannot be read later. The hash chain was verified.
    Lines(Arc<Vec<JournalLine>>),
    /// In the store.
    Store(Arc<dyn JournalReader>),
}

impl fmt::Debug for SnapshotRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotRecords")
            .field("run", &self.run)
            .field("count", &self.count())
            .finish_non_exhaustive()
    }
}

impl SnapshotRecords {
    /// Creates the records that a snapshot covers. `head` is the hash of the last one.
    pub(crate) fn new(head: Digest, outline: RunOutline, source: RecordSource) -> Self {
        let run = outline.replay().run.id().clone();
        Self { run, head, outline: Arc::new(outline), whole: Arc::default(), source }
    }

    /// Sets the whole run, which is loaded already.
    pub(crate) fn with_whole(self, whole: ReplayedRun) -> Self {
        self.whole.get_or_init(|| whole);
        self
    }

    /// Returns the number of the records.
    pub(crate) fn count(&self) -> u64 {
        self.outline.position().next_seq()
    }

    /// Returns the hash of the last record.
    pub(crate) fn head(&self) -> Digest {
        self.head
    }

    /// Returns the run after the last record, without its past.
    pub(crate) fn outline(&self) -> &RunOutline {
        &self.outline
    }

    /// Returns the run after the last record. The first call reads its past from the segments of the snapshot, or replays
    /// the records if the segments are not those of the snapshot.
    pub(crate) fn load_whole(&self) -> Result<&ReplayedRun, OpenRunError> {
        if let Some(whole) = self.whole.get() {
            return Ok(whole);
        }
        let from_segments = match &self.source {
            RecordSource::Store(reader) => self.read_segments(&**reader),
            RecordSource::Lines(_) => None,
        };
        let whole = match from_segments {
            Some(whole) => whole,
            None => self.replay()?,
        };
        Ok(self.whole.get_or_init(|| whole))
    }

    /// Completes the run from the segments of the snapshot. Returns `None` if they cannot be used.
    fn read_segments(&self, reader: &dyn JournalReader) -> Option<ReplayedRun> {
        let position = self.outline.position();
        let whole = reader.read_segments(&self.run, position.segment_count()).ok().and_then(|segments| {
            let parsed = ParsedSegments::parse(position, &segments)?;
            let history = match parsed.start_history().and_then(StartHistory::reference) {
                Some(reference) => read_history(reader, &self.run, reference).ok()?,
                None => Vec::new(),
            };
            self.outline.complete(parsed.resolve(history)?)
        });
        if whole.is_none() {
            tracing::warn!(run = %self.run, "the segments of the snapshot are not its own and are ignored");
        }
        whole
    }

    /// Replays the records.
    fn replay(&self) -> Result<ReplayedRun, OpenRunError> {
        let mut records = Vec::new();
        self.read_records(|record, _| records.push(record))?;
        let cannot_replay = |source| OpenRunError::Replay { run: self.run.clone(), source };
        let reference = match records.first().map(|first| &first.entry) {
            Some(windlass_core::journal::JournalEntry::RunStarted(started)) => started.history.reference(),
            _ => None,
        };
        if let (Some(reference), RecordSource::Store(reader)) = (reference.cloned(), &self.source) {
            let history = read_history(&**reader, &self.run, &reference)?;
            resolve_history(&mut records, history).map_err(cannot_replay)?;
        }
        Run::replay(&records).map_err(cannot_replay)
    }

    /// Reads and verifies the records, page by page.
    pub(crate) fn read_records(
        &self,
        mut use_record: impl FnMut(JournalRecord, JournalLine),
    ) -> Result<(), OpenRunError> {
        let unreadable = |source| OpenRunError::JournalFormat { run: self.run.clone(), source };
        let mut chain = HashChain::default();
        let (mut seq, count) = (0, self.count());
        while seq < count {
            let limit = u32::try_from(count - seq).unwrap_or(PAGE_LINES).min(PAGE_LINES);
            let page = match &self.source {
                RecordSource::Lines(lines) => lines.to_vec(),
                RecordSource::Store(reader) => reader.read_lines(&self.run, seq, limit)?,
            };
            if page.is_empty() {
                let message = format!("run `{}`: record {seq} is missing", self.run);
                return Err(StoreError::with_kind(StoreErrorKind::Corrupt, message).into());
            }
            for line in page {
                use_record(chain.read_record(seq, &line).map_err(unreadable)?, line);
                seq += 1;
            }
        }
        if chain.head() == self.head {
            Ok(())
        } else {
            let message = format!("run `{}` is not what its snapshot was made of", self.run);
            Err(StoreError::with_kind(StoreErrorKind::Corrupt, message).into())
        }
    }
}

/// Reads the items of the session that a run refers to: from the session, or from the run's own copy if the run comes
/// from another store.
fn read_history(
    reader: &dyn JournalReader,
    run: &RunId,
    reference: &HistoryReference,
) -> Result<Vec<Arc<Item>>, OpenRunError> {
    let of_session = match reference.ranges.is_empty() {
        true => Some(Vec::new()),
        false => reader.read_history(reference)?,
    };
    let error = match of_session {
        Some(items) => match reference.check_items(&items) {
            Ok(()) => return Ok(items),
            Err(error) => error,
        },
        None => reference.missing(),
    };
    let cannot_replay = |error: windlass_core::journal::HistoryError| OpenRunError::Replay {
        run: run.clone(),
        source: error.into(),
    };
    let Some(copy) = reader.read_artefact(run, HISTORY_ARTEFACT)? else { return Err(cannot_replay(error)) };
    let copy = String::from_utf8(copy).unwrap_or_default();
    let items = parse_export(&copy).map_err(|_| cannot_replay(error))?;
    reference.check_items(&items).map_err(cannot_replay)?;
    Ok(items)
}
