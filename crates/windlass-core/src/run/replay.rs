//! A run rebuilt from its journal.

use std::collections::BTreeMap;

use super::{Illegal, Run};
use crate::canonical::Digest;
use crate::entry::{Entry, Record};
use crate::id::Timestamp;
use crate::item::OutputContent;
use crate::usage::Usage;

/// A run rebuilt from its journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The run.
    pub run: Run,
    /// Results of idempotent calls, of the run and of the agents nested in it, and since when they are there.
    pub receipts: BTreeMap<Digest, (OutputContent, Timestamp)>,
    /// What the run has cost, nested agents included.
    pub usage: Usage,
    /// The number of the next record.
    pub next_seq: u64,
}

/// Why a journal cannot be replayed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// There is nothing in it.
    #[error("the journal is empty")]
    Empty,
    /// It does not begin with a start.
    #[error("the journal does not begin with a `started` entry")]
    NoStart,
    /// Records are missing or out of order.
    #[error("record {expected} is missing: found record {found} in its place")]
    Gap {
        /// The number that should have come.
        expected: u64,
        /// The number that came.
        found: u64,
    },
    /// A record does not fit the state before it.
    #[error("record {seq} does not fit: {why}")]
    Illegal {
        /// Which record.
        seq: u64,
        /// Why not.
        why: Illegal,
    },
}

impl Run {
    /// Rebuilds a run from its journal.
    pub fn replay<'a>(records: impl IntoIterator<Item = &'a Record>) -> Result<Replay, ReplayError> {
        let mut records = records.into_iter();
        let mut replay = Replay::begin(records.next().ok_or(ReplayError::Empty)?)?;
        for record in records {
            replay.go_on(record)?;
        }
        Ok(replay)
    }
}

impl Replay {
    /// The run after its first record.
    pub fn begin(first: &Record) -> Result<Self, ReplayError> {
        let Entry::Started(started) = &first.entry else { return Err(ReplayError::NoStart) };
        if first.seq != 0 || !first.path.is_empty() {
            return Err(ReplayError::NoStart);
        }
        let run = Run::start((**started).clone());
        Ok(Self { run, receipts: BTreeMap::new(), usage: Usage::default(), next_seq: 1 })
    }

    /// Moves the run by its next record.
    pub fn go_on(&mut self, record: &Record) -> Result<(), ReplayError> {
        if record.seq != self.next_seq {
            return Err(ReplayError::Gap { expected: self.next_seq, found: record.seq });
        }
        let applied = self
            .run
            .apply_at(&record.path, &record.entry)
            .map_err(|why| ReplayError::Illegal { seq: record.seq, why })?;
        if let Some((digest, output)) = applied.receipt {
            self.receipts.insert(digest, (output, record.at));
        }
        self.usage.add(&record.entry.cost());
        self.next_seq += 1;
        Ok(())
    }
}
