//! The journal of a run as a value. Records that a snapshot covers stay encoded as in the store, and are
//! decoded on demand.

use std::sync::OnceLock;

use windlass_core::journal::{HashChain, JournalLine, JournalRecord, decode_lines};

/// All records of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct JournalRecords {
    /// Lines that are covered by the snapshot that the run was opened from. Their hash chain was verified.
    snapshot_lines: Vec<JournalLine>,
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
    /// Creates the records from the lines that a snapshot covers and the records after them.
    pub(crate) fn from_snapshot(earlier: Vec<JournalLine>, later: Vec<JournalRecord>) -> Self {
        Self { snapshot_lines: earlier, later_records: later, all_records: OnceLock::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.snapshot_lines.len() + self.later_records.len()
    }

    pub(crate) fn push(&mut self, record: JournalRecord) {
        self.later_records.push(record);
        self.all_records.take();
    }

    /// Returns the records after the snapshot.
    pub(crate) fn later_records(&self) -> &[JournalRecord] {
        &self.later_records
    }

    pub(crate) fn all_records(&self) -> &[JournalRecord] {
        if self.snapshot_lines.is_empty() {
            return &self.later_records;
        }
        self.all_records.get_or_init(|| {
            // The lines were decoded when the snapshot was made, and their hashes have been verified since.
            let mut all = decode_lines(&self.snapshot_lines).unwrap_or_default();
            all.extend(self.later_records.iter().cloned());
            all
        })
    }

    /// Encodes all records as lines.
    pub(crate) fn lines(&self) -> Vec<JournalLine> {
        let mut lines = self.snapshot_lines.clone();
        let mut chain = lines.last().map_or_else(HashChain::default, |line| HashChain::from_head(line.hash));
        lines.extend(self.later_records.iter().map(|record| chain.append(record)));
        lines
    }
}
