//! Restored stores: the open runs of a backup come back in doubt.
//!
//! A backup is older than the world. A run that was open when it was made may have gone on until the store was lost, and
//! the journal does not say how far. [`mark_restored`] records that in every open run, and the state machine does the
//! rest: see [`windlass_core::journal::RunRestored`].

use windlass_core::{
    id::RunId,
    journal::{HashChain, JournalEntry, JournalRecord, RunRestored, decode_record},
};

use super::{
    DEFAULT_LEASE_DURATION, Durability, Lease, LeaseClaim, LeaseOwner, RunCursor, RunQuery, RunStatus,
    StoredRun,
};
use crate::clock::RunClock;
use crate::error::{StoreError, StoreErrorKind};
use crate::fleet::RunQueue;

/// The result of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// Runs that were open at the time of the backup, newest first. Their calls may be in doubt.
    pub open_runs: Vec<RunId>,
}

/// Records in every open run of a store that the store was restored from a backup, retires the workers of the backup, and
/// makes the open runs of its queue ready. Nobody may drive runs of the store meanwhile. A repetition after an
/// interruption marks the runs that are left.
///
/// [`SqliteStore::restore`](crate::store::SqliteStore::restore) does it for a file. Call it for a database that was restored
/// by its own means, before its first worker starts.
///
/// # Errors
///
/// Returns an error of the kind [`StoreErrorKind::LeaseHeld`] if somebody drives a run of the store.
pub async fn mark_restored(store: &dyn RunQueue) -> Result<RestoreReport, StoreError> {
    for worker in store.list_workers().await? {
        store.retire_worker(&worker.owner, Some(&worker)).await?;
    }
    let marking =
        RestoreMarking { store, owner: LeaseOwner::for_new_driver().to_string(), clock: RunClock::start() };
    let statuses = vec![RunStatus::Running, RunStatus::Paused];
    let mut query = RunQuery { statuses, ..RunQuery::default() };
    let mut report = RestoreReport::default();
    loop {
        let page = store.list_runs(&query).await?;
        let Some(last) = page.last() else { return Ok(report) };
        query.after = Some(RunCursor::from(last));
        for stored in page {
            marking.mark_run(&stored).await?;
            report.open_runs.push(stored.run);
        }
    }
}

struct RestoreMarking<'a> {
    store: &'a dyn RunQueue,
    owner: String,
    clock: RunClock,
}

impl RestoreMarking<'_> {
    async fn mark_run(&self, stored: &StoredRun) -> Result<(), StoreError> {
        let store = self.store;
        let claim =
            LeaseClaim { owner: &self.owner, now: self.clock.now(), duration: DEFAULT_LEASE_DURATION };
        // The owner that the backup names has not outlived the store.
        let lease = store.acquire_lease(&stored.run, claim, stored.lease.as_ref()).await?;
        self.append_mark(&lease, stored.record_count).await?;
        store.set_status(&lease, RunStatus::Running, self.clock.now()).await?;
        store.release_lease(&lease).await?;
        match store.revive_run(&stored.run).await {
            // The run was not submitted to the queue.
            Err(error) if error.kind() == StoreErrorKind::RunNotFound => Ok(()),
            revived => revived,
        }
    }

    /// Appends the mark, unless it is the last record already.
    async fn append_mark(&self, lease: &Lease, record_count: u64) -> Result<(), StoreError> {
        let Some(last_seq) = record_count.checked_sub(1) else { return Ok(()) };
        let last = self.store.load_journal_page(&lease.run, last_seq, 1).await?.pop();
        let last = last.ok_or_else(|| {
            let message = format!("run `{}` has no record {last_seq}", lease.run);
            StoreError::with_kind(StoreErrorKind::Corrupt, message)
        })?;
        let is_marked = decode_record(last_seq, &last.body)
            .is_ok_and(|record| matches!(record.entry, JournalEntry::RunRestored(_)));
        if is_marked {
            return Ok(());
        }
        let mark = JournalRecord {
            seq: record_count,
            at: self.clock.now(),
            path: Vec::new(),
            entry: JournalEntry::RunRestored(RunRestored::default()),
        };
        let line = HashChain::from_head(last.hash).append(&mark);
        self.store.append_journal(lease, record_count, vec![line], Durability::Sync).await
    }
}
