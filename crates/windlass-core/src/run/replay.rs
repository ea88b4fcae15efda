//! A run rebuilt from its journal.

use std::collections::BTreeMap;

use super::{Illegal, Run};
use crate::canonical::Digest;
use crate::entry::{Entry, Record};
use crate::id::Timestamp;
use crate::item::OutputContent;

/// A run rebuilt from its journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The run.
    pub run: Run,
    /// Results of idempotent calls, of the run and of the agents nested in it, and since when they are there.
    pub receipts: BTreeMap<Digest, (OutputContent, Timestamp)>,
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
        let first = records.next().ok_or(ReplayError::Empty)?;
        let Entry::Started(started) = &first.entry else { return Err(ReplayError::NoStart) };
        if first.seq != 0 || !first.path.is_empty() {
            return Err(ReplayError::NoStart);
        }
        let mut replay = Replay { run: Self::start(started.clone()), receipts: BTreeMap::new(), next_seq: 1 };
        for record in records {
            if record.seq != replay.next_seq {
                return Err(ReplayError::Gap { expected: replay.next_seq, found: record.seq });
            }
            let applied = replay
                .run
                .apply_at(&record.path, &record.entry)
                .map_err(|why| ReplayError::Illegal { seq: record.seq, why })?;
            if let Some((digest, output)) = applied.receipt {
                replay.receipts.insert(digest, (output, record.at));
            }
            replay.next_seq += 1;
        }
        Ok(replay)
    }
}
