//! A run reconstructed from its journal.

use std::collections::BTreeMap;

use super::{ApplyError, NewReceipt, Run};
use crate::canonical::Digest;
use crate::id::Timestamp;
use crate::item::OutputContent;
use crate::journal::{HistoryError, JournalEntry, JournalRecord};
use crate::usage::Usage;

/// The stored result of an idempotent call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallReceipt {
    /// The output of the call.
    pub output: OutputContent,
    /// Time at which it was recorded.
    pub created_at: Timestamp,
    /// Its generation: the number of receipts of the same operation that expired before.
    pub generation: u32,
}

/// A run reconstructed from its journal.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayedRun {
    /// The run.
    pub run: Run,
    /// Receipts of idempotent calls, including those of nested agents, by digest.
    pub receipts: BTreeMap<Digest, CallReceipt>,
    /// Usage of the run, including nested agents.
    pub usage: Usage,
    /// Sequence number of the next record.
    pub next_seq: u64,
    /// Digests of the receipts in the order in which they were left.
    pub(super) receipt_order: Vec<Digest>,
}

/// The reason why a journal cannot be replayed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The journal is empty.
    #[error("the journal is empty")]
    EmptyJournal,
    /// The first record is not a `RunStarted` entry.
    #[error("the journal does not begin with a `run_started` entry")]
    MissingRunStarted,
    /// The run refers to items of its session that were not loaded, or that are not those that it started with.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// Records are missing or out of order.
    #[error("record {expected} is missing: found record {found} in its place")]
    SequenceGap {
        /// The expected sequence number.
        expected: u64,
        /// The sequence number that was found.
        found: u64,
    },
    /// A record does not fit the state before it.
    #[error("record {seq} does not fit: {error}")]
    InvalidRecord {
        /// The record's sequence number.
        seq: u64,
        /// The reason why it does not fit.
        error: ApplyError,
    },
}

impl Run {
    /// Reconstructs a run from its journal. If the run refers to items of its session, they have been set with
    /// [`resolve_history`](crate::journal::resolve_history).
    ///
    /// # Errors
    ///
    /// Returns [`ReplayError`] if the journal is empty, has gaps, lacks the history that it refers to, or contains a
    /// record that does not fit.
    pub fn replay<'a>(
        records: impl IntoIterator<Item = &'a JournalRecord>,
    ) -> Result<ReplayedRun, ReplayError> {
        let mut records = records.into_iter();
        let mut replay = ReplayedRun::from_first_record(records.next().ok_or(ReplayError::EmptyJournal)?)?;
        for record in records {
            replay.apply_record(record)?;
        }
        Ok(replay)
    }
}

impl ReplayedRun {
    /// Creates the run from its first record.
    ///
    /// # Errors
    ///
    /// Returns [`ReplayError::MissingRunStarted`] if the record is not the start of a run, and
    /// [`ReplayError::History`] if the run refers to items that are missing.
    pub fn from_first_record(first: &JournalRecord) -> Result<Self, ReplayError> {
        let JournalEntry::RunStarted(started) = &first.entry else {
            return Err(ReplayError::MissingRunStarted);
        };
        if first.seq != 0 || !first.path.is_empty() {
            return Err(ReplayError::MissingRunStarted);
        }
        started.history.items()?;
        let run = Run::start((**started).clone());
        Ok(Self {
            run,
            receipts: BTreeMap::new(),
            usage: Usage::default(),
            next_seq: 1,
            receipt_order: Vec::new(),
        })
    }

    /// Applies the next record to the run.
    ///
    /// # Errors
    ///
    /// Returns [`ReplayError`] if the record is out of sequence or does not fit the state of the run.
    pub fn apply_record(&mut self, record: &JournalRecord) -> Result<(), ReplayError> {
        if record.seq != self.next_seq {
            return Err(ReplayError::SequenceGap { expected: self.next_seq, found: record.seq });
        }
        let applied = self
            .run
            .apply_at(&record.path, &record.entry)
            .map_err(|why| ReplayError::InvalidRecord { seq: record.seq, error: why })?;
        if let Some(NewReceipt { digest, output, generation }) = applied.receipt {
            self.receipt_order.push(digest);
            self.receipts.insert(digest, CallReceipt { output, created_at: record.at, generation });
        }
        self.usage.add(&record.entry.model_usage());
        self.next_seq += 1;
        Ok(())
    }
}
