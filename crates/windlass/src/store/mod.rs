//! Stores: where runs are kept, owned and decided about.
//!
//! A run is owned by one driver at a time, through a lease with an epoch. Whoever writes shows its lease, and a
//! writer whose lease was taken over is refused, so that a process that slept through its own funeral changes
//! nothing. Times come in from the caller: a store has no clock of its own.

mod fork;
mod lease;
mod memory;
mod open;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use fork::{StoredForkError, fork};
pub use memory::MemoryStore;
pub use open::{OpenError, PostError, decide, paused};
pub(crate) use open::{Opened, read};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteStore, Written};

pub(crate) use lease::{Heartbeat, LEASE, owner_name};

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use windlass_core::{AgentName, CallPath, Decided, Digest, Line, OutputContent, RunId, Timestamp};

use crate::error::StoreError;

/// What a store gives back.
pub type StoreResult<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Where runs are kept. The suite in [`crate::testing`] says what every store must do.
pub trait Store: Send + Sync + 'static {
    /// Makes a new run, owned by `owner`. A run that exists is refused.
    fn create<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
    ) -> StoreResult<'a, Lease>;

    /// Takes a run that nobody owns, or whose owner's lease has run out. The epoch grows.
    fn acquire<'a>(&'a self, run: &'a RunId, claim: LeaseClaim<'a>) -> StoreResult<'a, Lease>;

    /// Makes a lease last longer. Refused where it was taken over.
    fn renew<'a>(&'a self, lease: &'a Lease, until: Timestamp) -> StoreResult<'a, ()>;

    /// Gives a run back. Giving back what was taken over does nothing.
    fn release<'a>(&'a self, lease: &'a Lease) -> StoreResult<'a, ()>;

    /// Adds lines to a run's journal, all or none: the first has the number `at`, which must be the next. With
    /// [`Durability::Now`] they must survive the loss of the process, and of the machine's power, when the
    /// future resolves.
    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<Line>,
        durability: Durability,
    ) -> StoreResult<'a, ()>;

    /// Says what state the run is in, for lists. It costs nothing to be wrong about: the journal knows.
    fn mark<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreResult<'a, ()>;

    /// The lines of a run's journal from number `from` on; none for a run that is not known.
    fn load<'a>(&'a self, run: &'a RunId, from: u64) -> StoreResult<'a, Vec<Line>>;

    /// After how many records of a run a snapshot of it is wanted, so that it opens fast when it is long; none for a
    /// store that keeps none.
    fn snapshot_every(&self) -> Option<u64> {
        None
    }

    /// Keeps a snapshot of a run, in place of the one before. The journal is the truth: a store may lose it.
    fn keep_snapshot<'a>(&'a self, _lease: &'a Lease, _snapshot: Snapshot) -> StoreResult<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The last snapshot of a run, where there is one.
    fn snapshot<'a>(&'a self, _run: &'a RunId) -> StoreResult<'a, Option<Snapshot>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// All runs, the newest first.
    fn runs(&self) -> StoreResult<'_, Vec<StoredRun>>;

    /// Puts a decision where the run's driver will find it, whoever drives it and whenever. The same decision
    /// twice is one; another decision about the same call is refused.
    fn post<'a>(&'a self, run: &'a RunId, posted: Posted) -> StoreResult<'a, ()>;

    /// The decisions that were posted for a run, oldest first.
    fn posted<'a>(&'a self, run: &'a RunId) -> StoreResult<'a, Vec<Posted>>;

    /// Asks for the result of an idempotent call that may have been made elsewhere, or for the right to make it.
    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
    ) -> StoreResult<'a, ReceiptClaim>;

    /// Keeps the result of an idempotent call, until `expires`. Only for whoever has the right to make it.
    fn keep_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        owner: &'a str,
        output: &'a OutputContent,
        expires: Option<Timestamp>,
    ) -> StoreResult<'a, ()>;

    /// Gives the right to make a call back, because it did not succeed.
    fn give_up_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreResult<'a, ()>;

    /// Keeps a text that belongs to a run and is too long for its journal.
    fn keep_artefact<'a>(&'a self, run: &'a RunId, name: &'a str, text: &'a str) -> StoreResult<'a, ()>;

    /// A text that was kept for a run.
    fn artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreResult<'a, Option<String>>;
}

/// How soon lines must survive the loss of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// With the next lines that must.
    Later,
    /// Before anything else happens.
    Now,
}

/// What the first records of a run add up to, written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// How many records.
    pub records: u64,
    /// The hash of the last of their lines: it stands for exactly these records.
    pub head: Digest,
    /// See [`windlass_core::Replay::to_snapshot`].
    pub body: String,
}

/// Who wants to own something, from when until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseClaim<'a> {
    /// A name for whoever asks, unique among all processes.
    pub owner: &'a str,
    /// The time.
    pub now: Timestamp,
    /// When the lease runs out.
    pub until: Timestamp,
}

impl<'a> LeaseClaim<'a> {
    /// A claim for so long.
    pub fn lasting(owner: &'a str, now: Timestamp, lasting: Duration) -> Self {
        let lasting = u64::try_from(lasting.as_millis()).unwrap_or(u64::MAX);
        Self { owner, now, until: Timestamp(now.0.saturating_add(lasting)) }
    }
}

/// The right to drive a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Which run.
    pub run: RunId,
    /// Who owns it.
    pub owner: String,
    /// Grows with every owner. A writer with an older one is refused.
    pub epoch: u64,
}

/// What state a run is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Somebody drives it, or did until the process ended.
    Running,
    /// It waits for a person.
    Paused,
    /// It ended with an output.
    Finished,
    /// It ended with an error.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// A run in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRun {
    /// Its id.
    pub run: RunId,
    /// The agent that it began with.
    pub agent: AgentName,
    /// What state it is in.
    pub status: RunStatus,
    /// How many records it has.
    pub records: u64,
    /// Who owns it, and until when, where somebody does.
    pub owner: Option<(String, Timestamp)>,
    /// When it began.
    pub created: Timestamp,
    /// When it was last written to.
    pub updated: Timestamp,
}

/// A decision on its way to a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Posted {
    /// The call and the calls that lead to it.
    pub path: CallPath,
    /// Which question about the call it answers: see [`windlass_core::Pending::attempt`].
    #[serde(default)]
    pub attempt: u32,
    /// The decision.
    pub decided: Decided,
}

impl Posted {
    /// Whether both answer the same question.
    pub fn is_about_the_same(&self, other: &Self) -> bool {
        self.path == other.path && self.attempt == other.attempt
    }
}

/// Which idempotent call a result belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReceiptKey {
    /// Who shares it: a session's name, or nothing for everybody who uses the store.
    pub scope: String,
    /// The tool and its canonical arguments.
    pub digest: Digest,
}

/// What an idempotent call finds in a store.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceiptClaim {
    /// The result of an identical call.
    Receipt(OutputContent),
    /// Somebody else makes it right now, and has the right to until then.
    Busy {
        /// Until when.
        until: Timestamp,
    },
    /// The right to make it.
    Mine,
}
