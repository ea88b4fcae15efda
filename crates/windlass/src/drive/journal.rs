//! The journal of one run, shared by its driver and those of nested agents.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use windlass_core::{CallId, Chain, Entry, Record, Replay, RunId, Started, Timestamp, Usage};

use super::lock;
use super::snapshots::Snapshots;
use crate::clock::Clock;
use crate::error::{RunError, StoreError, StoreErrorKind};
use crate::run::{Cancel, Records, RunRecord};
use crate::store::{
    Durability, Heartbeat, Lease, LeaseClaim, Opened, Posted, RunStatus, Snapshot, Store, StoreResult,
    owner_name, read,
};

pub(super) struct Journal {
    owned: Option<Box<Owned>>,
    clock: Clock,
    sequence: Arc<AtomicU64>,
    written: Mutex<Written>,
}

/// A record on its way to a store.
pub(super) type Writing<'a> = StoreResult<'a, ()>;

/// A place in a store that this driver owns.
struct Owned {
    store: Arc<dyn Store>,
    lease: Lease,
    _heartbeat: Heartbeat,
}

/// On what terms a run is owned.
pub(super) struct Terms {
    /// How long a lease lasts without a sign of life.
    pub(super) lasting: Duration,
    /// Cancelled where the run was taken over.
    pub(super) lost: Cancel,
}

#[derive(Default)]
struct Written {
    records: Records,
    chain: Chain,
    snapshots: Snapshots,
    usage: Usage,
    /// A record could not be written. What would come after it must not be, for the run stops where it is.
    is_broken: bool,
}

impl Journal {
    /// The journal of a new run.
    pub(super) async fn begin(
        started: Started,
        store: Option<Arc<dyn Store>>,
        terms: Terms,
    ) -> Result<Self, RunError> {
        let clock = Clock::start();
        let owned = match store {
            Some(store) => {
                let owner = owner_name();
                let claim = LeaseClaim::lasting(&owner, clock.now(), terms.lasting);
                let lease = match store.create(&started.run, &started.agent, claim).await {
                    // A process may have ended after it made the run and before it wrote anything.
                    Err(error)
                        if error.kind() == StoreErrorKind::Exists
                            && store.load(&started.run, 0).await?.is_empty() =>
                    {
                        store.acquire(&started.run, claim).await?
                    }
                    made => made?,
                };
                Some(Owned::new(store, lease, clock, terms))
            }
            None => None,
        };
        let journal = Self { owned, clock, sequence: Arc::default(), written: Mutex::default() };
        journal.append(&[], Entry::Started(started.into())).await?;
        Ok(journal)
    }

    /// The journal of a run that somebody holds as a value. A store that knows it must not know more of it: then
    /// it has gone on elsewhere, and this value is of the past.
    pub(super) async fn resume(
        record: RunRecord,
        store: Option<Arc<dyn Store>>,
        terms: Terms,
    ) -> Result<Self, RunError> {
        let RunRecord { run, records, usage } = record;
        let clock = Clock::start();
        let Some(store) = store else {
            let written = Written { records, usage, ..Written::default() };
            return Ok(Self::of(None, clock, written));
        };
        let owner = owner_name();
        let claim = LeaseClaim::lasting(&owner, clock.now(), terms.lasting);
        let known = store.load(run.id(), 0).await?;
        let lines = records.lines();
        let lease = match known.last() {
            Some(_) => store.acquire(run.id(), claim).await?,
            None => {
                let agent = match records.all().first().map(|record| &record.entry) {
                    Some(Entry::Started(started)) => started.agent.clone(),
                    _ => run.agent().clone(),
                };
                store.create(run.id(), &agent, claim).await?
            }
        };
        let is_prefix = match known.last() {
            Some(last) => lines.get(known.len() - 1).is_some_and(|line| line.hash == last.hash),
            None => true,
        };
        if !is_prefix {
            store.release(&lease).await?;
            return Err(StoreError::stale(run.id(), known.len() as u64, records.len() as u64).into());
        }
        let chain = lines.last().map_or_else(Chain::default, |line| Chain::at(line.hash));
        let new = lines[known.len()..].to_vec();
        if !new.is_empty() {
            store.append(&lease, known.len() as u64, new, Durability::Now).await?;
        }
        let written = Written { records, chain, usage, ..Written::default() };
        Ok(Self::of(Some(Owned::new(store, lease, clock, terms)), clock, written))
    }

    /// The journal of a run that a store has, whatever became of its last driver, and what it adds up to.
    pub(super) async fn open(
        run: &RunId,
        store: Arc<dyn Store>,
        terms: Terms,
    ) -> Result<(Self, Replay), RunError> {
        let clock = Clock::start();
        let owner = owner_name();
        let lease = store.acquire(run, LeaseClaim::lasting(&owner, clock.now(), terms.lasting)).await?;
        let Opened { replay, records, chain, covered } = match read(&*store, run).await {
            Ok(opened) => opened,
            Err(error) => {
                store.release(&lease).await?;
                return Err(error.into());
            }
        };
        let snapshots = Snapshots::after(&replay, covered);
        let written = Written { records, chain, snapshots, usage: replay.usage, is_broken: false };
        Ok((Self::of(Some(Owned::new(store, lease, clock, terms)), clock, written), replay))
    }

    fn of(owned: Option<Box<Owned>>, clock: Clock, written: Written) -> Self {
        let sequence = Arc::new(AtomicU64::new(written.records.len().saturating_sub(1) as u64));
        Self { owned, clock, sequence, written: Mutex::new(written) }
    }

    /// The number of the last record, for events to carry.
    pub(super) fn sequence(&self) -> Arc<AtomicU64> {
        self.sequence.clone()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Writes an entry. It has its place, and is on its way to the store, before the first await: so records
    /// stand in the order of the calls.
    pub(super) async fn append(&self, path: &[CallId], entry: Entry) -> Result<(), StoreError> {
        match self.place(path, entry)? {
            Some(writing) => self.written(writing).await,
            None => Ok(()),
        }
    }

    /// Gives an entry its place, and what is to be waited for where a store keeps it.
    pub(super) fn place(&self, path: &[CallId], entry: Entry) -> Result<Option<Writing<'_>>, StoreError> {
        let durability = durability(&entry);
        let mut written = lock(&self.written);
        if written.is_broken {
            return Err(StoreError::new("an earlier record could not be written"));
        }
        let seq = written.records.len() as u64;
        written.usage.add(&entry.cost());
        let record = Record { seq, at: self.clock.now(), path: path.to_vec(), entry };
        self.sequence.store(seq, Ordering::Relaxed);
        let writing = self.owned.as_ref().map(|owned| {
            let line = written.chain.add(&record);
            owned.store.append(&owned.lease, seq, vec![line], durability)
        });
        written.records.push(record);
        Ok(writing)
    }

    /// Waits until the store has what was placed.
    pub(super) async fn written(&self, writing: Writing<'_>) -> Result<(), StoreError> {
        let result = writing.await;
        if result.is_err() {
            lock(&self.written).is_broken = true;
        }
        result
    }

    /// The store and the name under which this driver writes to it.
    pub(super) fn store(&self) -> Option<(&Arc<dyn Store>, &str)> {
        self.owned.as_ref().map(|owned| (&owned.store, owned.lease.owner.as_str()))
    }

    /// The decisions that were posted for the run.
    pub(super) async fn posted(&self) -> Result<Vec<Posted>, StoreError> {
        match &self.owned {
            Some(owned) => owned.store.posted(&owned.lease.run).await,
            None => Ok(Vec::new()),
        }
    }

    /// The run stands between two turns. Where it has grown long, what it adds up to is to be kept too.
    pub(super) fn between_turns(&self) -> Option<Snapshot> {
        let every = self.owned.as_ref()?.store.snapshot_every()?;
        let mut written = lock(&self.written);
        let Written { records, chain, snapshots, .. } = &mut *written;
        snapshots.between_turns(records.len() as u64, chain.head());
        if snapshots.is_due(every) { snapshots.make(records) } else { None }
    }

    /// What is to be kept of a run that is left for somebody to go on with.
    fn before_leaving(&self, status: RunStatus) -> Option<Snapshot> {
        let every = self.owned.as_ref()?.store.snapshot_every()?;
        let mut written = lock(&self.written);
        let Written { records, snapshots, .. } = &mut *written;
        let goes_on = matches!(status, RunStatus::Running | RunStatus::Paused);
        if goes_on && snapshots.is_worthwhile(every) { snapshots.make(records) } else { None }
    }

    /// A snapshot that cannot be kept is missed by nobody: the journal says the same.
    pub(super) async fn keep(&self, snapshot: Snapshot) {
        if let Some(owned) = &self.owned
            && let Err(error) = owned.store.keep_snapshot(&owned.lease, snapshot).await
        {
            tracing::debug!(run = %owned.lease.run, %error, "a snapshot could not be kept");
        }
    }

    /// Says in the store what state the run is in, and gives it back.
    pub(super) async fn leave(&self, status: RunStatus) -> Result<(), StoreError> {
        match &self.owned {
            Some(owned) => {
                if let Some(snapshot) = self.before_leaving(status) {
                    self.keep(snapshot).boxed().await;
                }
                owned.store.mark(&owned.lease, status, self.now()).await?;
                owned.store.release(&owned.lease).await
            }
            None => Ok(()),
        }
    }

    /// Everything written, for the outcome.
    pub(super) fn take(&self) -> (Records, Usage) {
        let mut written = lock(&self.written);
        (std::mem::take(&mut written.records), written.usage)
    }
}

impl Owned {
    fn new(store: Arc<dyn Store>, lease: Lease, clock: Clock, terms: Terms) -> Box<Self> {
        let heartbeat = Heartbeat::start(store.clone(), lease.clone(), terms.lasting, clock, terms.lost);
        Box::new(Self { store, lease, _heartbeat: heartbeat })
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
