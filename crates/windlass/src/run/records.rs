//! The journal of a run as a value. Records that a snapshot covers stay in the store and are read when they are first
//! needed.

use std::sync::{Arc, OnceLock};

use windlass_core::{
    authenticity::MacKeyring,
    id::RunId,
    item::Item,
    journal::{
        HashChain, JournalEntry, JournalLine, JournalRecord, authenticate_records, encode_text,
        resolve_history,
    },
    run::{ReplayedRun, RunOutline},
};

use super::snapshot_records::SnapshotRecords;
use crate::store::OpenRunError;

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

impl From<Vec<JournalRecord>> for JournalRecords {
    fn from(records: Vec<JournalRecord>) -> Self {
        Self { later_records: records, ..Self::default() }
    }
}

impl JournalRecords {
    /// Creates the records of a run that was opened from a snapshot, if there is one, and has these records after it.
    pub(crate) fn after_snapshot(snapshot: Option<SnapshotRecords>, later: Vec<JournalRecord>) -> Self {
        Self { snapshot, later_records: later, all_records: OnceLock::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.snapshot_len() as usize + self.later_records.len()
    }

    /// Returns the number of records that the snapshot covers.
    pub(crate) fn snapshot_len(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, SnapshotRecords::count)
    }

    /// Returns the whole run as the snapshot has it, if the run was opened from one. The first call may read it.
    pub(crate) fn load_snapshot_base(&self) -> Option<Result<&ReplayedRun, OpenRunError>> {
        self.snapshot.as_ref().map(SnapshotRecords::load_whole)
    }

    /// Returns the run as the snapshot has it, without its past, if the run was opened from one.
    pub(crate) fn snapshot_outline(&self) -> Option<&RunOutline> {
        self.snapshot.as_ref().map(SnapshotRecords::outline)
    }

    /// Returns the hash chain after the snapshot.
    pub(crate) fn chain_after_snapshot(&self) -> HashChain {
        self.snapshot
            .as_ref()
            .map_or_else(HashChain::default, |snapshot| HashChain::from_head(snapshot.head()))
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
        if all.first().is_some_and(refers_to_session) {
            let run = snapshot.outline().replay().run.id();
            resolve_history(&mut all, self.referenced_history()?.to_vec())
                .map_err(|source| OpenRunError::Replay { run: run.clone(), source })?;
        }
        all.extend(self.later_records.iter().cloned());
        Ok(self.all_records.get_or_init(|| all))
    }

    /// Returns the items of the session that the run refers to; none if it refers to none.
    fn referenced_history(&self) -> Result<&[Arc<Item>], OpenRunError> {
        let start = match (&self.snapshot, self.later_records.first().map(|first| &first.entry)) {
            (Some(snapshot), _) => snapshot.load_whole()?.run.referenced_history(),
            (None, Some(JournalEntry::RunStarted(started))) => Some(&started.history),
            (None, _) => None,
        };
        let referenced = start.filter(|history| history.reference().is_some());
        Ok(referenced.and_then(|history| history.items().ok()).unwrap_or_default())
    }

    /// Encodes all records as text, with the items of the session that the run refers to.
    pub(crate) fn to_text(&self) -> Result<String, OpenRunError> {
        let mut earlier = Vec::new();
        let mut refers = self.later_records.first().is_some_and(refers_to_session);
        if let Some(snapshot) = &self.snapshot {
            snapshot.read_records(|record, line| {
                refers |= refers_to_session(&record);
                earlier.push(line);
            })?;
        }
        let history = if refers { self.referenced_history()? } else { &[] };
        Ok(encode_text(history, earlier, &self.later_records))
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

/// Returns true if this is the start of a run that refers to items of its session.
fn refers_to_session(record: &JournalRecord) -> bool {
    record.path.is_empty()
        && matches!(&record.entry, JournalEntry::RunStarted(started) if started.history.reference().is_some())
}
