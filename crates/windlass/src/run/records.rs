//! The journal of a run as a value. Records that a snapshot covers stay in the store and are read when they are first
//! needed.

use std::fmt;
use std::sync::{Arc, OnceLock};

use windlass_core::{
    authenticity::MacKeyring,
    canonical::Digest,
    id::RunId,
    item::Item,
    journal::{
        HashChain, JournalEntry, JournalLine, JournalRecord, authenticate_records, encode_text,
        resolve_history,
    },
    run::ReplayedRun,
};

use crate::error::{StoreError, StoreErrorKind};
use crate::store::{JournalReader, OpenRunError};

/// Number of lines that are read at a time.
const PAGE_LINES: u32 = 1024;

/// All records of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct JournalRecords {
    /// Records that are covered by the snapshot that the run was opened from.
    snapshot: Option<SnapshotRecords>,
    /// Records after the snapshot.
    later_records: Vec<JournalRecord>,
    /// All records, decoded on first access.
    all_records: OnceLock<Vec<JournalRecord>>,
}

/// The records that a snapshot covers.
#[derive(Clone)]
struct SnapshotRecords {
    run: RunId,
    count: u64,
    /// Hash of the last of them.
    head: Digest,
    /// The run after the last of them.
    base: Arc<ReplayedRun>,
    source: RecordSource,
}

/// The place of records that are not decoded.
#[derive(Clone)]
enum RecordSource {
    /// In memory, for stores that cannot be read later. The hash chain was verified.
    Lines(Vec<JournalLine>),
    /// In the store.
    Store(Arc<dyn JournalReader>),
}

impl fmt::Debug for SnapshotRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotRecords")
            .field("run", &self.run)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl From<Vec<JournalRecord>> for JournalRecords {
    fn from(records: Vec<JournalRecord>) -> Self {
        Self { later_records: records, ..Self::default() }
    }
}

impl JournalRecords {
    /// Creates the records from the lines that a snapshot covers, the run after them, and the records after them.
    pub(crate) fn from_lines(
        run: RunId,
        base: Option<Arc<ReplayedRun>>,
        earlier: Vec<JournalLine>,
        later: Vec<JournalRecord>,
    ) -> Self {
        let snapshot = earlier.last().map(|last| last.hash).zip(base).map(|(head, base)| SnapshotRecords {
            run,
            count: earlier.len() as u64,
            head,
            base,
            source: RecordSource::Lines(earlier),
        });
        Self { snapshot, later_records: later, all_records: OnceLock::new() }
    }

    /// Creates the records of a run that was opened from a snapshot of the first `count` records. Those are read from
    /// the store when they are needed.
    pub(crate) fn from_store(
        run: RunId,
        base: Arc<ReplayedRun>,
        (count, head): (u64, Digest),
        reader: Arc<dyn JournalReader>,
        later: Vec<JournalRecord>,
    ) -> Self {
        let snapshot = Some(SnapshotRecords { run, count, head, base, source: RecordSource::Store(reader) });
        Self { snapshot, later_records: later, all_records: OnceLock::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.snapshot_len() as usize + self.later_records.len()
    }

    /// Returns the number of records that the snapshot covers.
    pub(crate) fn snapshot_len(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.count)
    }

    /// Returns the run as the snapshot has it, if the run was opened from one.
    pub(crate) fn snapshot_base(&self) -> Option<&ReplayedRun> {
        self.snapshot.as_ref().map(|snapshot| &*snapshot.base)
    }

    /// Returns the hash chain after the snapshot.
    pub(crate) fn chain_after_snapshot(&self) -> HashChain {
        self.snapshot.as_ref().map_or_else(HashChain::default, |snapshot| HashChain::from_head(snapshot.head))
    }

    pub(crate) fn push(&mut self, record: JournalRecord) {
        self.later_records.push(record);
        self.all_records.take();
    }

    /// Returns the records after the snapshot.
    pub(crate) fn later_records(&self) -> &[JournalRecord] {
        &self.later_records
    }

    /// Returns all records. The first call reads those that the snapshot covers and verifies their hash chain.
    pub(crate) fn all_records(&self) -> Result<&[JournalRecord], OpenRunError> {
        let Some(snapshot) = &self.snapshot else { return Ok(&self.later_records) };
        if let Some(all) = self.all_records.get() {
            return Ok(all);
        }
        let mut all = Vec::with_capacity(self.len());
        snapshot.read_records(|record, _| all.push(record))?;
        let history = self.history().to_vec();
        resolve_history(&mut all, history)
            .map_err(|source| OpenRunError::Replay { run: snapshot.run.clone(), source })?;
        all.extend(self.later_records.iter().cloned());
        Ok(self.all_records.get_or_init(|| all))
    }

    /// Returns the items of the session that the run refers to; none if it refers to none.
    fn history(&self) -> &[Arc<Item>] {
        let start = match (&self.snapshot, self.later_records.first().map(|first| &first.entry)) {
            (Some(snapshot), _) => snapshot.base.run.referenced_history(),
            (None, Some(JournalEntry::RunStarted(started))) => Some(&started.history),
            (None, _) => None,
        };
        let referenced = start.filter(|history| history.reference().is_some());
        referenced.and_then(|history| history.items().ok()).unwrap_or_default()
    }

    /// Encodes all records as text, with the items of the session that the run refers to.
    pub(crate) fn to_text(&self) -> Result<String, OpenRunError> {
        let mut earlier = Vec::new();
        if let Some(snapshot) = &self.snapshot {
            snapshot.read_records(|_, line| earlier.push(line))?;
        }
        Ok(encode_text(self.history(), earlier, &self.later_records))
    }

    /// Encodes all records as lines.
    pub(crate) fn lines(&self) -> Result<Vec<JournalLine>, OpenRunError> {
        let mut lines = Vec::with_capacity(self.len());
        if let Some(snapshot) = &self.snapshot {
            snapshot.read_records(|_, line| lines.push(line))?;
        }
        lines.extend(self.later_lines());
        Ok(lines)
    }

    /// Gives the decisions after the first `kept` records after the snapshot the MACs of this keyring. The store does not
    /// have them yet, and whoever hands the run over vouches for them.
    pub(crate) fn authenticate_later(&mut self, run: &RunId, kept: usize, keys: &MacKeyring) {
        let mut chain = self.chain_after_snapshot();
        let kept = kept.min(self.later_records.len());
        let (old, new) = self.later_records.split_at_mut(kept);
        if new.iter().all(|record| record.entry.decision_mac().is_none()) {
            return;
        }
        for record in old {
            chain.append(record);
        }
        for record in new.iter_mut() {
            record.entry.set_decision_mac(None);
        }
        authenticate_records(chain, run, new, Some(keys));
        self.all_records.take();
    }

    /// Returns the records with the MACs of this keyring, for a store that has none of them.
    pub(crate) fn authenticate_all(self, run: &RunId, keys: &MacKeyring) -> Result<Self, OpenRunError> {
        let mut records = match &self.snapshot {
            Some(_) => Self::from(self.all_records()?.to_vec()),
            None => self,
        };
        records.authenticate_later(run, 0, keys);
        Ok(records)
    }

    /// Encodes the records after the snapshot as lines.
    pub(crate) fn later_lines(&self) -> Vec<JournalLine> {
        let mut chain = self.chain_after_snapshot();
        self.later_records.iter().map(|record| chain.append(record)).collect()
    }
}

impl SnapshotRecords {
    /// Reads and verifies the records, page by page.
    fn read_records(
        &self,
        mut use_record: impl FnMut(JournalRecord, JournalLine),
    ) -> Result<(), OpenRunError> {
        let unreadable = |source| OpenRunError::JournalFormat { run: self.run.clone(), source };
        let mut chain = HashChain::default();
        let mut seq = 0;
        while seq < self.count {
            let limit = u32::try_from(self.count - seq).unwrap_or(PAGE_LINES).min(PAGE_LINES);
            let page = match &self.source {
                RecordSource::Lines(lines) => lines.clone(),
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
