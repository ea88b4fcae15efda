//! The journal of one run, shared by its driver and those of nested agents.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use windlass_core::{CallId, Entry, Record, RunId, Timestamp, Usage};

use super::lock;
use crate::error::StoreError;
use crate::run::{RunRecord, add_usage};
use crate::store::{Durability, Store};

pub(super) struct Journal {
    run: RunId,
    store: Option<Arc<dyn Store>>,
    clock: Clock,
    sequence: Arc<AtomicU64>,
    written: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    records: Vec<Record>,
    usage: Usage,
}

/// Wall time that follows the runtime's clock, so that a simulated clock is followed too.
struct Clock {
    began: Instant,
    wall: SystemTime,
}

impl Clock {
    fn start() -> Self {
        Self { began: Instant::now(), wall: SystemTime::now() }
    }

    fn now(&self) -> Timestamp {
        let now = (self.wall + self.began.elapsed()).duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Journal {
    pub(super) fn new(run: RunId, store: Option<Arc<dyn Store>>) -> Self {
        Self { run, store, clock: Clock::start(), sequence: Arc::default(), written: Mutex::default() }
    }

    /// The journal of a run that is gone on with. A store is given what it does not have yet.
    pub(super) async fn resumed(record: RunRecord, store: Option<Arc<dyn Store>>) -> Result<Self, StoreError> {
        let RunRecord { run, records, usage } = record;
        if let Some(store) = &store {
            let known = store.load(run.id()).await?.len();
            if let Some(new) = records.get(known..).filter(|new| !new.is_empty()) {
                store.append(run.id(), new, Durability::Now).await?;
            }
        }
        let sequence = Arc::new(AtomicU64::new(records.len().saturating_sub(1) as u64));
        let written = Mutex::new(Written { records, usage });
        Ok(Self { run: run.id().clone(), store, clock: Clock::start(), sequence, written })
    }

    /// The number of the last record, for events to carry.
    pub(super) fn sequence(&self) -> Arc<AtomicU64> {
        self.sequence.clone()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Writes an entry. It has its place before the first await, so records stand in the order of the calls.
    pub(super) async fn append(&self, path: &[CallId], entry: Entry) -> Result<(), StoreError> {
        let stored = {
            let mut written = lock(&self.written);
            let seq = written.records.len() as u64;
            add_usage(&mut written.usage, &entry);
            let record = Record { seq, at: self.clock.now(), path: path.to_vec(), entry };
            self.sequence.store(seq, Ordering::Relaxed);
            let copy = self.store.is_some().then(|| record.clone());
            written.records.push(record);
            copy
        };
        match (&self.store, stored) {
            (Some(store), Some(record)) => {
                let durability = durability(&record.entry);
                store.append(&self.run, &[record], durability).await
            }
            _ => Ok(()),
        }
    }

    /// Everything written, for the outcome.
    pub(super) fn take(&self) -> (Vec<Record>, Usage) {
        let mut written = lock(&self.written);
        (std::mem::take(&mut written.records), written.usage)
    }
}

/// What must survive before anything else happens: answers, which were paid for; decisions; starts and
/// settlements; ends. What can be worked out again need not.
fn durability(entry: &Entry) -> Durability {
    match entry {
        Entry::Started(_)
        | Entry::Answered(_)
        | Entry::Held(_)
        | Entry::Decided(_)
        | Entry::Revoked(_)
        | Entry::CallStarted(_)
        | Entry::CallSettled(_)
        | Entry::HandedOff(_)
        | Entry::InputAdded(_)
        | Entry::Finished(_)
        | Entry::Failed(_)
        | Entry::Cancelled(_) => Durability::Now,
        Entry::AnswerRefused(_) | Entry::ModelFailed(_) | Entry::CallEndedLate(_) | Entry::WentOn => {
            Durability::Later
        }
    }
}
