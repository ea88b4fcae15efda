//! The journal of one run, shared by its driver and the drivers of nested agents.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use windlass_core::{
    decision::HoldReason,
    id::{CallId, CallPath, RunId, SessionId, Timestamp},
    journal::{CallHeld, HashChain, JournalEntry, JournalRecord, RunStarted, unannounced_records},
    run::{ReplayedRun, Run},
    usage::Usage,
};

use super::snapshot_schedule::SnapshotSchedule;
use super::write_queue::{AppendTarget, ListedStatus, PendingWrite, WriteQueue};
use crate::clock::RunClock;
use crate::error::{RunError, StoreError};
use crate::lock_unpoisoned;
use crate::observe::{LiveEvents, UnannouncedRecord};
use crate::redaction::SecretRegistry;
use crate::run::{CancelSignal, JournalRecords};
use crate::secret_mask::SecretMask;
use crate::session::{Session, check_session_moved, export_items};
use crate::store::{
    ANNOUNCED_ARTEFACT, AcquiredLease, DerivedWrites, Durability, Lease, LeaseClaim, LeaseHeartbeat,
    LeaseObserver, LeaseOwner, OpenedRun, PostedDecision, PostedDecisions, RunStatus, SnapshotSegments,
    Store, StoredSnapshot, acquire_lease, authenticate_snapshot, check_posted, load_posted_decisions,
    read_run,
};

/// The journal of one run, with its write queue if there is a store.
pub(crate) struct RunJournal {
    owned: Option<Box<OwnedRun>>,
    clock: RunClock,
    state: Mutex<JournalState>,
}

/// An entry that has its place in the journal.
pub(crate) struct EnqueuedEntry<'a> {
    pub(crate) seq: u64,
    pub(crate) at: Timestamp,
    pub(crate) durability: Durability,
    /// The write, if there is a store.
    pub(crate) writing: Option<PendingWrite<'a>>,
}

/// A stored run whose lease this driver holds.
struct OwnedRun {
    queue: WriteQueue,
    /// The last time at which the driver before was seen.
    previous_driver_seen: Option<Timestamp>,
    /// Maximum time to release the lease after a failure.
    release_limit: Duration,
    warnings: Mutex<AuthenticityWarnings>,
    _heartbeat: LeaseHeartbeat,
}

/// Warnings about things in the store that are not authentic.
#[derive(Default)]
struct AuthenticityWarnings {
    /// Warnings that the driver has not emitted.
    pending: Vec<String>,
    /// All warnings, because the same decision is found again and again.
    known: BTreeSet<String>,
}

/// A paused run that its caller holds.
pub(crate) struct ResumedRun<'a> {
    pub(crate) run: &'a Run,
    pub(crate) records: JournalRecords,
    pub(crate) usage: Usage,
    /// The session that was handed over.
    pub(crate) session: Option<&'a Session>,
}

/// The terms of a run's lease.
#[derive(Clone)]
pub(crate) struct LeaseTerms {
    /// Duration of the lease without a renewal.
    pub(crate) lease_duration: Duration,
    /// The application's observations of leases; without them, the driver waits until a lease is abandoned.
    pub(crate) observer: Option<LeaseObserver>,
    /// Signal that cancels the driver when another one has taken over the run.
    pub(crate) cancel_on_loss: CancelSignal,
}

/// The records written so far, and the state derived from them.
#[derive(Default)]
struct JournalState {
    records: JournalRecords,
    snapshot_schedule: SnapshotSchedule,
    usage: Usage,
    /// True once the driver has written its last record.
    is_closed: bool,
}

/// A stored run, for a record that may follow its end.
pub(crate) struct EndedRun {
    target: Arc<AppendTarget>,
    lease_duration: Duration,
}

impl EndedRun {
    /// Appends the late end of a body, under a lease of its own. Fails if the run has not ended: another driver may
    /// continue it.
    pub(crate) async fn append_late(&self, call: &CallPath, entry: JournalEntry) -> Result<(), StoreError> {
        let AppendTarget { store, lease } = &*self.target;
        let has_ended =
            |run: &Run| run.outcome().map(drop).ok_or_else(|| StoreError::new("the run has not ended"));
        let read = read_run(&**store, &lease.run).await;
        has_ended(&read.map_err(|error| StoreError::new(error.to_string()))?.replay.run)?;
        let (lease_duration, cancel_on_loss) = (self.lease_duration, CancelSignal::default());
        let terms = LeaseTerms { lease_duration, observer: None, cancel_on_loss };
        let (journal, replay) = RunJournal::open(&lease.run, store.clone(), terms)
            .await
            .map_err(|error| StoreError::new(error.to_string()))?;
        let written = match has_ended(&replay.run) {
            Ok(()) => journal.append(call.parent_calls(), entry).await,
            Err(error) => Err(error),
        };
        let written = match (&journal.owned, written) {
            (Some(owned), Ok(())) => owned.queue.flush().await,
            (_, written) => written,
        };
        journal.release_after_failure().await;
        written
    }
}

impl RunJournal {
    /// Returns the stored run, for a record that may follow its end; `None` without a store.
    pub(crate) fn ended_run(&self) -> Option<EndedRun> {
        let owned = self.owned.as_ref()?;
        Some(EndedRun { target: owned.queue.target().clone(), lease_duration: owned.release_limit })
    }

    /// Appends the late end of a body. Returns `None` if the driver has written its last record.
    pub(crate) async fn append_late(
        &self,
        call: &CallPath,
        entry: &JournalEntry,
    ) -> Option<Result<(), StoreError>> {
        Some(match self.enqueue_late(call, entry)? {
            Ok(EnqueuedEntry { writing: Some(writing), .. }) => writing.await,
            Ok(EnqueuedEntry { writing: None, .. }) => Ok(()),
            Err(error) => Err(error),
        })
    }

    fn enqueue_late(
        &self,
        call: &CallPath,
        entry: &JournalEntry,
    ) -> Option<Result<EnqueuedEntry<'_>, StoreError>> {
        let written = lock_unpoisoned(&self.state);
        if written.is_closed {
            return None;
        }
        Some(self.enqueue_locked(written, call.parent_calls(), entry.clone(), DerivedWrites::default()))
    }

    /// Creates the journal of a new run.
    pub(crate) async fn create(
        started: RunStarted,
        store: Option<Arc<dyn Store>>,
        terms: LeaseTerms,
    ) -> Result<Self, RunError> {
        let clock = RunClock::start();
        let (run, agent) = (started.run.clone(), started.agent.clone());
        let entry = JournalEntry::RunStarted(started.into());
        let first = JournalRecord { seq: 0, at: clock.now(), path: Vec::new(), entry };
        let mut written = JournalState::default();
        let owned = match store {
            Some(store) => {
                let owner = LeaseOwner::for_new_driver().to_string();
                let claim = LeaseClaim { owner: &owner, now: clock.now(), duration: terms.lease_duration };
                let requested_at = Instant::now();
                let mut chain = HashChain::default();
                let line = chain.append(&first);
                let lease = store.create_run(&run, &agent, claim, vec![line]).await?;
                let acquired = AcquiredLease { lease, requested_at, previous: None };
                Some(OwnedRun::new(store, acquired, clock, terms, 1, chain, ListedStatus::Running))
            }
            None => None,
        };
        written.records.push(first);
        Ok(Self::from_parts(owned, clock, written))
    }

    /// Opens the journal of a paused run that the caller holds. Fails if the store has records that the value
    /// lacks: then the run has continued elsewhere and the value is stale. Fails, too, if the store does not have the run, and
    /// its session was in the store that it comes from: a session of the same name is another one.
    pub(crate) async fn resume(
        source: ResumedRun<'_>,
        store: Option<Arc<dyn Store>>,
        terms: LeaseTerms,
    ) -> Result<Self, RunError> {
        let ResumedRun { run, mut records, usage, session } = source;
        let clock = RunClock::start();
        let Some(store) = store else {
            let written = JournalState { records, usage, ..JournalState::default() };
            return Ok(Self::from_parts(None, clock, written));
        };
        if let Some(approvers) = store.approvers() {
            approvers.verify_records(run.id(), records.all_records()?)?;
        }
        let owner = LeaseOwner::for_new_driver().to_string();
        // The snapshot that the value was opened from is of records that its store has. Another store has none of them.
        let shared = records.snapshot_len().saturating_sub(1);
        let known = store.load_journal(run.id(), shared).await?;
        let known =
            if known.is_empty() { (0, store.load_journal(run.id(), 0).await?) } else { (shared, known) };
        let (acquired, kept, listed) = match known {
            (from, known) if !known.is_empty() => {
                let acquired = terms.acquire(&*store, run.id(), &owner).await?;
                let count = from + known.len() as u64;
                let mut chain = records.chain_after_snapshot();
                let own = known.last().map(|line| line.hash);
                let mut forged = Ok(());
                let is_prefix = match count.checked_sub(records.snapshot_len()) {
                    // The value has lines that the store lacks before the snapshot: another run of the same id.
                    None => false,
                    Some(0) => own == Some(chain.head()),
                    Some(later) => {
                        let later = usize::try_from(later).unwrap_or(usize::MAX);
                        let record = records.later_records().get(later - 1);
                        record.is_some() && {
                            for record in &records.later_records()[..later] {
                                let before = chain;
                                let line = chain.append(record);
                                if let (Ok(()), Some(keys)) = (&forged, store.mac_keys()) {
                                    forged = before.verify_decision(run.id(), record, &line.body, keys);
                                }
                            }
                            own == Some(chain.head())
                        }
                    }
                };
                if !is_prefix {
                    store.release_lease(&acquired.lease).await?;
                    return Err(StoreError::stale_read(run.id(), count, records.len() as u64).into());
                }
                release_on_error(&*store, &acquired, forged).await?;
                (acquired, count, ListedStatus::MaybePaused)
            }
            _ => {
                if let (None, Some(session), true) =
                    (session, run.session(), run.referenced_history().is_some())
                {
                    check_session_moved(&*store, session, run.id()).await?;
                }
                if let Some(keys) = store.mac_keys() {
                    records = records.authenticate_all(run.id(), keys)?;
                }
                let lines = records.lines()?;
                let agent = match records.all_records()?.first().map(|record| &record.entry) {
                    Some(JournalEntry::RunStarted(started)) => started.agent.clone(),
                    _ => run.agent().clone(),
                };
                let count = lines.len() as u64;
                let requested_at = Instant::now();
                let claim = LeaseClaim { owner: &owner, now: clock.now(), duration: terms.lease_duration };
                // The session that the run refers to may be in another store.
                let history = run.referenced_history().and_then(|history| history.items().ok());
                let lease = match history {
                    Some(items) => {
                        store.import_run(run.id(), &agent, claim, lines, export_items(items).into()).await?
                    }
                    None => store.create_run(run.id(), &agent, claim, lines).await?,
                };
                (AcquiredLease { lease, requested_at, previous: None }, count, ListedStatus::Running)
            }
        };
        let written = usize::try_from(kept - records.snapshot_len()).unwrap_or(usize::MAX);
        if let Some(keys) = store.mac_keys() {
            records.authenticate_later(run.id(), written, keys);
        }
        let lines = records.later_lines();
        let chain = lines
            .last()
            .map_or_else(|| records.chain_after_snapshot(), |line| HashChain::from_head(line.hash));
        let new = lines.get(written..).unwrap_or_default().to_vec();
        if !new.is_empty() {
            let appended = store.append_journal(&acquired.lease, kept, new, Durability::Sync).await;
            release_on_error(&*store, &acquired, appended).await?;
        }
        let owned = OwnedRun::new(store, acquired, clock, terms, records.len() as u64, chain, listed);
        // Another store may lack the segments; it refuses the next one then, and the schedule starts anew.
        let position = records.snapshot_outline().map(|outline| outline.position().clone());
        let snapshot_schedule = SnapshotSchedule::after_open(position);
        let written = JournalState { records, snapshot_schedule, usage, is_closed: false };
        Ok(Self::from_parts(Some(owned), clock, written))
    }

    /// Opens the journal of a stored run and replays it, whatever happened to its last driver.
    pub(crate) async fn open(
        run: &RunId,
        store: Arc<dyn Store>,
        terms: LeaseTerms,
    ) -> Result<(Self, ReplayedRun), RunError> {
        let owner = LeaseOwner::for_new_driver().to_string();
        let acquired = terms.acquire(&*store, run, &owner).await?;
        let clock = RunClock::start();
        let OpenedRun { replay, records, chain, forged_snapshot } =
            release_on_error(&*store, &acquired, read_run(&*store, run).await).await?;
        let position = records.snapshot_outline().map(|outline| outline.position().clone());
        let snapshots = SnapshotSchedule::after_open(position);
        let listed = match replay.run.is_paused() {
            true => ListedStatus::MaybePaused,
            false => ListedStatus::Running,
        };
        let mut owned = OwnedRun::new(store, acquired, clock, terms, records.len() as u64, chain, listed);
        let last_record_at = records.later_records().last().map(|record| record.at);
        owned.previous_driver_seen = owned.previous_driver_seen.max(last_record_at);
        if let Some(reason) = forged_snapshot {
            owned.add_warning(format!("the snapshot of run `{run}` is forged and was ignored: {reason}"));
        }
        let written =
            JournalState { records, snapshot_schedule: snapshots, usage: replay.usage, is_closed: false };
        Ok((Self::from_parts(Some(owned), clock, written), replay))
    }

    fn from_parts(owned: Option<Box<OwnedRun>>, clock: RunClock, written: JournalState) -> Self {
        Self { owned, clock, state: Mutex::new(written) }
    }

    /// Holds a session of the run's store for this driver.
    pub(crate) async fn hold_session(&self, session: &SessionId) -> Result<(), RunError> {
        match self.store_and_lease() {
            Some((store, lease)) => Ok(store.hold_session(lease, session).await?),
            None => Ok(()),
        }
    }

    /// Returns the sequence number of the last record.
    pub(crate) fn last_sequence(&self) -> u64 {
        lock_unpoisoned(&self.state).records.len().saturating_sub(1) as u64
    }

    /// Returns the observations of a run that has these records, and the records that are announced again. A run without
    /// a store comes from a driver that announced everything before it left.
    pub(crate) async fn resume_events(&self, is_observed: bool) -> (LiveEvents, Vec<UnannouncedRecord>) {
        let is_due = self.is_announcement_due(is_observed);
        let announced_up_to = match self.store_and_lease() {
            Some((store, lease)) if is_due => load_announced_mark(&**store, &lease.run).await,
            Some(_) | None => Some(u64::MAX),
        };
        match is_observed || is_due {
            true => {
                let records = &lock_unpoisoned(&self.state).records;
                // A driver has loaded the run that its snapshot has.
                let base = records.load_snapshot_base().and_then(Result::ok);
                LiveEvents::resume(base, records.later_records(), announced_up_to)
            }
            false => Default::default(),
        }
    }

    /// Marks the records so far as announced, before a driver leaves an open run. A failure is only logged: the next
    /// driver then announces some of them again.
    pub(crate) async fn mark_announced(&self, is_observed: bool) {
        if let Some((store, lease)) = self.store_and_lease()
            && self.is_announcement_due(is_observed)
        {
            save_announced_mark(&**store, lease, self.last_sequence()).await;
        }
    }

    /// Returns true if a driver has records to announce. Nobody knows here whether nested agents have hooks.
    fn is_announcement_due(&self, is_observed: bool) -> bool {
        let state = lock_unpoisoned(&self.state);
        let records = unannounced_records(state.records.later_records());
        records.iter().any(|record| is_observed || !record.path.is_empty())
    }

    /// Returns the secrets of a run that has these records and resumes in the process that made it.
    pub(crate) fn resume_secrets(&self, run: &Run, mask: SecretMask) -> SecretRegistry {
        SecretRegistry::resume(lock_unpoisoned(&self.state).records.later_records(), run, mask)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Appends an entry and waits until it is durable. The entry is enqueued before the first await, so records
    /// keep the order of the calls.
    pub(crate) async fn append(&self, path: &[CallId], entry: JournalEntry) -> Result<(), StoreError> {
        match self.enqueue(path, entry, DerivedWrites::default())?.writing {
            Some(writing) => writing.await,
            None => Ok(()),
        }
    }

    /// Enqueues an entry, and with it what is derived from it and lies in the same store.
    pub(crate) fn enqueue(
        &self,
        path: &[CallId],
        entry: JournalEntry,
        writes: DerivedWrites,
    ) -> Result<EnqueuedEntry<'_>, StoreError> {
        self.enqueue_locked(lock_unpoisoned(&self.state), path, entry, writes)
    }

    fn enqueue_locked(
        &self,
        mut written: MutexGuard<'_, JournalState>,
        path: &[CallId],
        entry: JournalEntry,
        writes: DerivedWrites,
    ) -> Result<EnqueuedEntry<'_>, StoreError> {
        let durability = required_durability(&entry);
        let queue = self.owned.as_ref().map(|owned| &owned.queue);
        let seq = written.records.len() as u64;
        let at = self.clock.now();
        let mut record = JournalRecord { seq, at, path: path.to_vec(), entry };
        let writing = queue.map(|queue| queue.enqueue(&mut record, durability, writes)).transpose()?;
        written.usage.add(&record.entry.model_usage());
        written.records.push(record);
        Ok(EnqueuedEntry { seq, at, durability, writing })
    }

    /// Returns the store and this driver's owner name.
    pub(crate) fn store_and_owner(&self) -> Option<(&Arc<dyn Store>, &str)> {
        self.store_and_lease().map(|(store, lease)| (store, lease.owner.as_str()))
    }

    /// Returns the store and the lease of the run.
    pub(crate) fn store_and_lease(&self) -> Option<(&Arc<dyn Store>, &Lease)> {
        let target = self.owned.as_ref()?.queue.target();
        Some((&target.store, &target.lease))
    }

    /// Returns the store and the lease of the run, to share.
    pub(crate) fn ownership(&self) -> Option<Arc<AppendTarget>> {
        Some(self.owned.as_ref()?.queue.target().clone())
    }

    /// Returns the epoch of the lease: the fencing token; 0 without a store.
    pub(crate) fn epoch(&self) -> u64 {
        self.store_and_lease().map_or(0, |(_, lease)| lease.epoch)
    }

    /// Returns the last time at which the driver before this one was seen: its last renewal, or the last record before
    /// this driver's own.
    pub(crate) fn previous_driver_seen(&self) -> Option<Timestamp> {
        self.owned.as_ref()?.previous_driver_seen
    }

    /// Returns the entry of a call that waits for a person. An approval expires; a doubt names the time at which the driver
    /// that left it was last seen.
    pub(crate) fn call_held(&self, call: &CallId, reason: HoldReason, expiry: Option<Duration>) -> CallHeld {
        let (expires_at, last_driver_seen) = match &reason {
            HoldReason::Approval => (expiry.map(|expiry| self.now().saturating_add(expiry)), None),
            HoldReason::InDoubt => (None, self.previous_driver_seen()),
            _ => (None, None),
        };
        CallHeld { expires_at, last_driver_seen, ..CallHeld::new(call.clone(), reason) }
    }

    /// Returns the posted decisions of the run that are authentic. Others lead to warnings.
    pub(crate) async fn load_posted_decisions(&self) -> Result<Vec<PostedDecision>, StoreError> {
        let Some(owned) = &self.owned else { return Ok(Vec::new()) };
        let AppendTarget { store, lease } = &**owned.queue.target();
        let PostedDecisions { authentic, refused } = load_posted_decisions(&**store, &lease.run).await?;
        for refused in refused {
            owned.add_warning(refused.to_string());
        }
        Ok(authentic)
    }

    /// Takes the decision about a hold of a call: see [`Store::take_decision`]. One that is not authentic leads to a
    /// warning, and is not returned.
    pub(crate) async fn take_posted_decision(
        &self,
        call: &CallPath,
        attempt: u32,
    ) -> Result<Option<PostedDecision>, StoreError> {
        let Some(owned) = &self.owned else { return Ok(None) };
        let AppendTarget { store, lease } = &**owned.queue.target();
        let Some(posted) = store.take_decision(lease, call, attempt).await? else { return Ok(None) };
        match check_posted(&**store, &lease.run, posted).await {
            Ok(posted) => Ok(Some(posted)),
            Err(refused) => {
                owned.add_warning(refused.to_string());
                Ok(None)
            }
        }
    }

    /// Takes the warnings about things in the store that are not authentic. Each is returned once.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        let Some(owned) = &self.owned else { return Vec::new() };
        std::mem::take(&mut lock_unpoisoned(&owned.warnings).pending)
    }

    /// Marks a turn boundary. Returns a snapshot to save if one is due.
    pub(crate) fn mark_turn_boundary(&self) -> Option<(StoredSnapshot, SnapshotSegments)> {
        let queue = &self.owned.as_ref()?.queue;
        let every = queue.target().store.snapshot_interval()?;
        let mut written = lock_unpoisoned(&self.state);
        let JournalState { records, snapshot_schedule: snapshots, .. } = &mut *written;
        snapshots.mark_turn_boundary(records.len() as u64, queue.head());
        if snapshots.is_due(every) { snapshots.build_snapshot(records) } else { None }
    }

    /// Returns a snapshot to save before the driver leaves an open run, if it is worthwhile.
    fn snapshot_before_leaving(&self, status: RunStatus) -> Option<(StoredSnapshot, SnapshotSegments)> {
        let every = self.store_and_lease()?.0.snapshot_interval()?;
        let mut written = lock_unpoisoned(&self.state);
        let JournalState { records, snapshot_schedule: snapshots, .. } = &mut *written;
        let goes_on = matches!(status, RunStatus::Running | RunStatus::Paused);
        if goes_on && snapshots.is_due(every) { snapshots.build_snapshot(records) } else { None }
    }

    /// Saves a snapshot. A failure is only logged, because the journal has the same information.
    pub(crate) async fn save_snapshot(&self, (snapshot, segments): (StoredSnapshot, SnapshotSegments)) {
        if let Some((store, lease)) = self.store_and_lease()
            && let snapshot =
                authenticate_snapshot(store.mac_keys().map(|keys| &**keys), &lease.run, snapshot)
            && let Err(error) = store.save_snapshot(lease, snapshot, segments).await
        {
            tracing::debug!(run = %lease.run, %error, "a snapshot could not be kept");
            lock_unpoisoned(&self.state).snapshot_schedule.restart_segments();
        }
    }

    /// Writes what is left of the journal, sets the status of the run in the store and releases the lease.
    pub(crate) async fn release_run(&self, status: RunStatus) -> Result<(), StoreError> {
        lock_unpoisoned(&self.state).is_closed = true;
        let Some(owned) = &self.owned else { return Ok(()) };
        // A waiter may have been dropped before its record was written.
        owned.queue.flush().await?;
        if let Some(snapshot) = self.snapshot_before_leaving(status) {
            self.save_snapshot(snapshot).boxed().await;
        }
        let AppendTarget { store, lease } = &**owned.queue.target();
        store.set_status(lease, status, self.now()).await?;
        store.release_lease(lease).await
    }

    /// Releases the lease of a driver that has failed, so that another can take the run over at once. Its records stay as
    /// they are. A failure is only logged: then the lease is abandoned when its duration is over.
    pub(crate) async fn release_after_failure(&self) {
        lock_unpoisoned(&self.state).is_closed = true;
        let Some(owned) = &self.owned else { return };
        let AppendTarget { store, lease } = &**owned.queue.target();
        match tokio::time::timeout(owned.release_limit, store.release_lease(lease)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(run = %lease.run, %error, "the lease could not be released"),
            Err(_) => tracing::warn!(run = %lease.run, "the store did not answer: the lease is not released"),
        }
    }

    /// Takes all records and the usage, for the outcome.
    pub(crate) fn take_records(&self) -> (JournalRecords, Usage) {
        let mut written = lock_unpoisoned(&self.state);
        (std::mem::take(&mut written.records), written.usage)
    }
}

impl OwnedRun {
    /// Creates the owned run whose journal ends with `chain` after `next` lines.
    fn new(
        store: Arc<dyn Store>,
        acquired: AcquiredLease,
        clock: RunClock,
        terms: LeaseTerms,
        next: u64,
        chain: HashChain,
        listed: ListedStatus,
    ) -> Box<Self> {
        let AcquiredLease { lease, requested_at, previous } = acquired;
        if let Some(previous) = &previous {
            tracing::info!(run = %lease.run, from = %previous.owner, last_seen = previous.renewed_at.0, "took over");
        }
        let heartbeat = LeaseHeartbeat::start(
            store.clone(),
            lease.clone(),
            terms.lease_duration,
            requested_at,
            clock,
            terms.cancel_on_loss,
        );
        let target = Arc::new(AppendTarget { store, lease });
        let queue = WriteQueue::new(target, next, chain, listed, clock, terms.lease_duration);
        let previous_driver_seen = previous.map(|lease| lease.renewed_at);
        Box::new(Self {
            queue,
            previous_driver_seen,
            release_limit: terms.lease_duration,
            warnings: Mutex::default(),
            _heartbeat: heartbeat,
        })
    }

    fn add_warning(&self, message: String) {
        let mut warnings = lock_unpoisoned(&self.warnings);
        if warnings.known.insert(message.clone()) {
            warnings.pending.push(message);
        }
    }
}

impl LeaseTerms {
    async fn acquire(
        &self,
        store: &dyn Store,
        run: &RunId,
        owner: &str,
    ) -> Result<AcquiredLease, StoreError> {
        let cancel = &self.cancel_on_loss.token;
        acquire_lease(store, run, owner, self.lease_duration, self.observer.as_ref(), cancel).await
    }
}

/// Releases the lease if the driver cannot start.
async fn release_on_error<T, E>(
    store: &dyn Store,
    acquired: &AcquiredLease,
    result: Result<T, E>,
) -> Result<T, E> {
    if result.is_err()
        && let Err(error) = store.release_lease(&acquired.lease).await
    {
        tracing::warn!(run = %acquired.lease.run, %error, "the lease could not be released");
    }
    result
}

/// Saves the sequence number of the last record whose announcement is certain.
pub(crate) async fn save_announced_mark(store: &dyn Store, lease: &Lease, seq: u64) {
    if let Err(error) = store.save_artefact(lease, ANNOUNCED_ARTEFACT, seq.to_string().as_bytes()).await {
        tracing::warn!(run = %lease.run, %error, "the announced records could not be marked");
    }
}

/// Loads the sequence number of the last record whose announcement is certain, if it is known.
async fn load_announced_mark(store: &dyn Store, run: &RunId) -> Option<u64> {
    match store.load_artefact(run, ANNOUNCED_ARTEFACT).await {
        Ok(mark) => std::str::from_utf8(&mark?).ok()?.parse().ok(),
        Err(error) => {
            tracing::warn!(%run, %error, "the mark of the announced records could not be read");
            None
        }
    }
}

/// Returns the durability of an entry. Model responses (which were paid for), decisions, call starts,
/// settlements and ends must be durable before the run continues, and so must a failed model request: the run may wait
/// long for the next attempt, and everybody can see why. Entries that can be recomputed are deferred.
fn required_durability(entry: &JournalEntry) -> Durability {
    match entry {
        JournalEntry::RunStarted(_)
        | JournalEntry::ModelResponded(_)
        | JournalEntry::ModelRequestFailed(_)
        | JournalEntry::BudgetReserved(_)
        | JournalEntry::BudgetReached(_)
        | JournalEntry::CallHeld(_)
        | JournalEntry::DecisionRecorded(_)
        | JournalEntry::DecisionRevoked(_)
        | JournalEntry::CallStarted(_)
        | JournalEntry::CallBodyEnded(_)
        | JournalEntry::CallSettled(_)
        | JournalEntry::HandoffRecorded(_)
        | JournalEntry::OutputRejected(_)
        | JournalEntry::HistoryCompacted(_)
        | JournalEntry::InputAdded(_)
        | JournalEntry::RunRestored(_)
        | JournalEntry::RunFinished(_)
        | JournalEntry::RunFailed(_)
        | JournalEntry::RunCancelled(_) => Durability::Sync,
        JournalEntry::ResponseRejected(_)
        | JournalEntry::ModelInputFiltered(_)
        | JournalEntry::CallEndedLate(_)
        | JournalEntry::TurnContinued => Durability::Deferred,
    }
}
