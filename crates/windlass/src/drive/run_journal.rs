//! The journal of one run, shared by its driver and the drivers of nested agents.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use windlass_core::{
    id::{CallId, RunId, Timestamp},
    journal::{HashChain, JournalEntry, JournalRecord, RunStarted},
    run::ReplayedRun,
    usage::Usage,
};

use super::lock_unpoisoned;
use super::snapshot_schedule::SnapshotSchedule;
use crate::clock::RunClock;
use crate::error::{RunError, StoreError, StoreErrorKind};
use crate::run::{CancelSignal, JournalRecords, RunRecord};
use crate::store::{
    Durability, Lease, LeaseClaim, LeaseHeartbeat, OpenedRun, PostedDecision, RunStatus, Store, StoreFuture,
    StoredSnapshot, read_run, unique_owner_name,
};

/// The journal of one run, with its store and lease if there is a store.
pub(super) struct RunJournal {
    owned: Option<Box<OwnedRun>>,
    clock: RunClock,
    last_sequence: Arc<AtomicU64>,
    state: Mutex<JournalState>,
}

/// A queued append of a record to a store.
pub(super) type PendingWrite<'a> = StoreFuture<'a, ()>;

/// A stored run whose lease this driver holds.
struct OwnedRun {
    store: Arc<dyn Store>,
    lease: Lease,
    _heartbeat: LeaseHeartbeat,
}

/// The terms of a run's lease.
pub(super) struct LeaseTerms {
    /// Duration of the lease without a renewal.
    pub(super) lease_duration: Duration,
    /// Signal that cancels the driver when another one has taken over the run.
    pub(super) cancel_on_loss: CancelSignal,
}

/// The records written so far, and the state derived from them.
#[derive(Default)]
struct JournalState {
    records: JournalRecords,
    chain: HashChain,
    snapshot_schedule: SnapshotSchedule,
    usage: Usage,
    /// True if a record could not be written. No later record may be written then.
    has_failed: bool,
}

impl RunJournal {
    /// Creates the journal of a new run.
    pub(super) async fn create(
        started: RunStarted,
        store: Option<Arc<dyn Store>>,
        terms: LeaseTerms,
    ) -> Result<Self, RunError> {
        let clock = RunClock::start();
        let owned = match store {
            Some(store) => {
                let owner = unique_owner_name();
                let claim = LeaseClaim::for_duration(&owner, clock.now(), terms.lease_duration);
                let lease = match store.create_run(&started.run, &started.agent, claim).await {
                    // A process may have ended after it made the run and before it wrote anything.
                    Err(error)
                        if error.kind() == StoreErrorKind::AlreadyExists
                            && store.load_journal(&started.run, 0).await?.is_empty() =>
                    {
                        store.acquire_lease(&started.run, claim).await?
                    }
                    made => made?,
                };
                Some(OwnedRun::new(store, lease, clock, terms))
            }
            None => None,
        };
        let journal = Self { owned, clock, last_sequence: Arc::default(), state: Mutex::default() };
        journal.append(&[], JournalEntry::RunStarted(started.into())).await?;
        Ok(journal)
    }

    /// Opens the journal of a paused run that the caller holds. Fails if the store has records that the value
    /// lacks: then the run has continued elsewhere and the value is stale.
    pub(super) async fn resume(
        record: RunRecord,
        store: Option<Arc<dyn Store>>,
        terms: LeaseTerms,
    ) -> Result<Self, RunError> {
        let RunRecord { run, records, usage } = record;
        let clock = RunClock::start();
        let Some(store) = store else {
            let written = JournalState { records, usage, ..JournalState::default() };
            return Ok(Self::from_parts(None, clock, written));
        };
        let owner = unique_owner_name();
        let claim = LeaseClaim::for_duration(&owner, clock.now(), terms.lease_duration);
        let known = store.load_journal(run.id(), 0).await?;
        let lines = records.lines();
        let lease = match known.last() {
            Some(_) => store.acquire_lease(run.id(), claim).await?,
            None => {
                let agent = match records.all_records().first().map(|record| &record.entry) {
                    Some(JournalEntry::RunStarted(started)) => started.agent.clone(),
                    _ => run.agent().clone(),
                };
                store.create_run(run.id(), &agent, claim).await?
            }
        };
        let is_prefix = match known.last() {
            Some(last) => lines.get(known.len() - 1).is_some_and(|line| line.hash == last.hash),
            None => true,
        };
        if !is_prefix {
            store.release_lease(&lease).await?;
            return Err(StoreError::stale_read(run.id(), known.len() as u64, records.len() as u64).into());
        }
        let chain = lines.last().map_or_else(HashChain::default, |line| HashChain::from_head(line.hash));
        let new = lines[known.len()..].to_vec();
        if !new.is_empty() {
            store.append_journal(&lease, known.len() as u64, new, Durability::Sync).await?;
        }
        let written = JournalState { records, chain, usage, ..JournalState::default() };
        Ok(Self::from_parts(Some(OwnedRun::new(store, lease, clock, terms)), clock, written))
    }

    /// Opens the journal of a stored run and replays it, whatever happened to its last driver.
    pub(super) async fn open(
        run: &RunId,
        store: Arc<dyn Store>,
        terms: LeaseTerms,
    ) -> Result<(Self, ReplayedRun), RunError> {
        let clock = RunClock::start();
        let owner = unique_owner_name();
        let lease = store
            .acquire_lease(run, LeaseClaim::for_duration(&owner, clock.now(), terms.lease_duration))
            .await?;
        let OpenedRun { replay, records, chain, snapshot_record_count: covered } =
            match read_run(&*store, run).await {
                Ok(opened) => opened,
                Err(error) => {
                    store.release_lease(&lease).await?;
                    return Err(error.into());
                }
            };
        let snapshots = SnapshotSchedule::after_open(&replay, covered);
        let written = JournalState {
            records,
            chain,
            snapshot_schedule: snapshots,
            usage: replay.usage,
            has_failed: false,
        };
        Ok((Self::from_parts(Some(OwnedRun::new(store, lease, clock, terms)), clock, written), replay))
    }

    fn from_parts(owned: Option<Box<OwnedRun>>, clock: RunClock, written: JournalState) -> Self {
        let sequence = Arc::new(AtomicU64::new(written.records.len().saturating_sub(1) as u64));
        Self { owned, clock, last_sequence: sequence, state: Mutex::new(written) }
    }

    /// Returns the sequence number of the last record, for events.
    pub(super) fn last_sequence(&self) -> Arc<AtomicU64> {
        self.last_sequence.clone()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Appends an entry and waits until it is durable. The entry is queued before the first await, so records
    /// keep the order of the calls.
    pub(super) async fn append(&self, path: &[CallId], entry: JournalEntry) -> Result<(), StoreError> {
        match self.enqueue(path, entry)? {
            Some(writing) => self.wait_durable(writing).await,
            None => Ok(()),
        }
    }

    /// Enqueues an entry. Returns the pending write if there is a store.
    pub(super) fn enqueue(
        &self,
        path: &[CallId],
        entry: JournalEntry,
    ) -> Result<Option<PendingWrite<'_>>, StoreError> {
        let durability = required_durability(&entry);
        let mut written = lock_unpoisoned(&self.state);
        if written.has_failed {
            return Err(StoreError::new("an earlier record could not be written"));
        }
        let seq = written.records.len() as u64;
        written.usage.add(&entry.model_usage());
        let record = JournalRecord { seq, at: self.clock.now(), path: path.to_vec(), entry };
        self.last_sequence.store(seq, Ordering::Relaxed);
        let writing = self.owned.as_ref().map(|owned| {
            let line = written.chain.append(&record);
            owned.store.append_journal(&owned.lease, seq, vec![line], durability)
        });
        written.records.push(record);
        Ok(writing)
    }

    /// Waits until a pending write is durable.
    pub(super) async fn wait_durable(&self, writing: PendingWrite<'_>) -> Result<(), StoreError> {
        let result = writing.await;
        if result.is_err() {
            lock_unpoisoned(&self.state).has_failed = true;
        }
        result
    }

    /// Returns the store and this driver's owner name.
    pub(super) fn store_and_owner(&self) -> Option<(&Arc<dyn Store>, &str)> {
        self.owned.as_ref().map(|owned| (&owned.store, owned.lease.owner.as_str()))
    }

    /// Returns the store and the lease of the run.
    pub(super) fn store_and_lease(&self) -> Option<(&Arc<dyn Store>, &Lease)> {
        self.owned.as_ref().map(|owned| (&owned.store, &owned.lease))
    }

    /// Returns the posted decisions of the run.
    pub(super) async fn load_posted_decisions(&self) -> Result<Vec<PostedDecision>, StoreError> {
        match &self.owned {
            Some(owned) => owned.store.posted_decisions(&owned.lease.run).await,
            None => Ok(Vec::new()),
        }
    }

    /// Marks a turn boundary. Returns a snapshot to save if one is due.
    pub(super) fn mark_turn_boundary(&self) -> Option<StoredSnapshot> {
        let every = self.owned.as_ref()?.store.snapshot_interval()?;
        let mut written = lock_unpoisoned(&self.state);
        let JournalState { records, chain, snapshot_schedule: snapshots, .. } = &mut *written;
        snapshots.mark_turn_boundary(records.len() as u64, chain.head());
        if snapshots.is_due(every) { snapshots.build_snapshot(records) } else { None }
    }

    /// Returns a snapshot to save before the driver leaves an open run, if it is worthwhile.
    fn snapshot_before_leaving(&self, status: RunStatus) -> Option<StoredSnapshot> {
        let every = self.owned.as_ref()?.store.snapshot_interval()?;
        let mut written = lock_unpoisoned(&self.state);
        let JournalState { records, snapshot_schedule: snapshots, .. } = &mut *written;
        let goes_on = matches!(status, RunStatus::Running | RunStatus::Paused);
        if goes_on && snapshots.is_worthwhile(every) { snapshots.build_snapshot(records) } else { None }
    }

    /// Saves a snapshot. A failure is only logged, because the journal has the same information.
    pub(super) async fn save_snapshot(&self, snapshot: StoredSnapshot) {
        if let Some(owned) = &self.owned
            && let Err(error) = owned.store.save_snapshot(&owned.lease, snapshot).await
        {
            tracing::debug!(run = %owned.lease.run, %error, "a snapshot could not be kept");
        }
    }

    /// Sets the status of the run in the store and releases the lease.
    pub(super) async fn release_run(&self, status: RunStatus) -> Result<(), StoreError> {
        match &self.owned {
            Some(owned) => {
                if let Some(snapshot) = self.snapshot_before_leaving(status) {
                    self.save_snapshot(snapshot).boxed().await;
                }
                owned.store.set_status(&owned.lease, status, self.now()).await?;
                owned.store.release_lease(&owned.lease).await
            }
            None => Ok(()),
        }
    }

    /// Takes all records and the usage, for the outcome.
    pub(super) fn take_records(&self) -> (JournalRecords, Usage) {
        let mut written = lock_unpoisoned(&self.state);
        (std::mem::take(&mut written.records), written.usage)
    }
}

impl OwnedRun {
    fn new(store: Arc<dyn Store>, lease: Lease, clock: RunClock, terms: LeaseTerms) -> Box<Self> {
        let heartbeat = LeaseHeartbeat::start(
            store.clone(),
            lease.clone(),
            terms.lease_duration,
            clock,
            terms.cancel_on_loss,
        );
        Box::new(Self { store, lease, _heartbeat: heartbeat })
    }
}

/// Returns the durability of an entry. Model responses (which were paid for), decisions, call starts,
/// settlements and ends must be durable before the run continues; entries that can be recomputed are deferred.
fn required_durability(entry: &JournalEntry) -> Durability {
    match entry {
        JournalEntry::RunStarted(_)
        | JournalEntry::ModelResponded(_)
        | JournalEntry::CallHeld(_)
        | JournalEntry::DecisionRecorded(_)
        | JournalEntry::DecisionRevoked(_)
        | JournalEntry::CallStarted(_)
        | JournalEntry::CallBodyEnded(_)
        | JournalEntry::CallSettled(_)
        | JournalEntry::HandoffRecorded(_)
        | JournalEntry::InputAdded(_)
        | JournalEntry::RunFinished(_)
        | JournalEntry::RunFailed(_)
        | JournalEntry::RunCancelled(_) => Durability::Sync,
        JournalEntry::ResponseRejected(_)
        | JournalEntry::ModelRequestFailed(_)
        | JournalEntry::ModelInputFiltered(_)
        | JournalEntry::CallEndedLate(_)
        | JournalEntry::TurnContinued => Durability::Deferred,
    }
}
