//! Stores: they persist runs, and coordinate their drivers and approvers.
//!
//! A run has one driver at a time, by a lease with an epoch. The epoch is the fencing token: every write
//! carries the lease, and a writer whose lease was taken over is fenced off by its epoch. All times come from
//! the caller: a store has no clock of its own.

mod fork;
mod lease;
mod memory;
mod open;
#[cfg(feature = "sqlite")]
mod sqlite;
mod wrapper;

pub use fork::{StoredForkError, fork_run};
pub use memory::MemoryStore;
pub use open::{OpenRunError, PostDecisionError, load_paused, post_decision};
pub(crate) use open::{OpenedRun, read_run};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteStore, WriterStats};
pub use wrapper::StoreWrapper;

pub(crate) use lease::{DEFAULT_LEASE_DURATION, LeaseHeartbeat, unique_owner_name};

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use windlass_core::{
    canonical::Digest,
    id::{AgentName, CallPath, RunId, Timestamp},
    item::OutputContent,
    journal::{DecisionRecorded, JournalLine},
};

use crate::error::StoreError;

/// The future of a store operation.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A store of runs. The suite in [`crate::testing`] checks the contract of an implementation.
pub trait Store: Send + Sync + 'static {
    /// Creates a run that is leased to the claimant.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::AlreadyExists`](crate::error::StoreErrorKind::AlreadyExists) if
    /// the run exists.
    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
    ) -> StoreFuture<'a, Lease>;

    /// Acquires the lease of a run that has no owner or whose lease has expired. The epoch increases.
    fn acquire_lease<'a>(&'a self, run: &'a RunId, claim: LeaseClaim<'a>) -> StoreFuture<'a, Lease>;

    /// Extends a lease.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced) if the lease was
    /// taken over.
    fn renew_lease<'a>(&'a self, lease: &'a Lease, until: Timestamp) -> StoreFuture<'a, ()>;

    /// Releases a lease. Releasing a lease that was taken over has no effect.
    fn release_lease<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, ()>;

    /// Appends lines to a run's journal atomically: the first has the sequence number `at`, which must be the
    /// next. With [`Durability::Sync`] they are durable, even on power loss, when the future resolves.
    ///
    /// # Cancel safety
    ///
    /// The lines are written even if the future is dropped.
    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()>;

    /// Sets the status of a run for lists. It is informative: the journal is authoritative.
    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()>;

    /// Loads the lines of a run's journal from sequence number `from` on; empty if the run is unknown.
    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>>;

    /// Returns the number of records between snapshots, which speed up opening long runs; `None` if the store
    /// keeps no snapshots.
    fn snapshot_interval(&self) -> Option<u64> {
        None
    }

    /// Saves a snapshot of a run, in place of the previous one. The journal is authoritative: a store may drop
    /// snapshots.
    fn save_snapshot<'a>(&'a self, _lease: &'a Lease, _snapshot: StoredSnapshot) -> StoreFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Loads the latest snapshot of a run, if there is one.
    fn load_snapshot<'a>(&'a self, _run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Lists all runs, newest first.
    fn list_runs(&self) -> StoreFuture<'_, Vec<StoredRun>>;

    /// Posts a decision for the current or a later driver of the run. Posting an identical decision again has
    /// no effect.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::AlreadyDecided`](crate::error::StoreErrorKind::AlreadyDecided)
    /// if the call has a different decision.
    fn post_decision<'a>(&'a self, run: &'a RunId, posted: PostedDecision) -> StoreFuture<'a, ()>;

    /// Returns the decisions that were posted for a run, oldest first.
    fn posted_decisions<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<PostedDecision>>;

    /// Returns the receipt of an identical idempotent call, or claims the right to execute it.
    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
    ) -> StoreFuture<'a, ReceiptClaim>;

    /// Saves the output of an idempotent call until `expires`. It has no effect unless `owner` holds the claim.
    fn save_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        owner: &'a str,
        output: &'a OutputContent,
        expires: Option<Timestamp>,
    ) -> StoreFuture<'a, ()>;

    /// Releases the claim of a call that did not succeed.
    fn release_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreFuture<'a, ()>;

    /// Saves the output of a call that its output guardrails have not passed yet, in place of an earlier one. Only the
    /// run's driver reads it: no list, export or page shows it.
    fn save_withheld_output<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        output: &'a OutputContent,
    ) -> StoreFuture<'a, ()>;

    /// Loads the withheld output of a call.
    fn load_withheld_output<'a>(
        &'a self,
        run: &'a RunId,
        call: &'a CallPath,
    ) -> StoreFuture<'a, Option<OutputContent>>;

    /// Erases the withheld outputs of a run, except those of these calls.
    fn erase_withheld_outputs<'a>(&'a self, lease: &'a Lease, except: &'a [CallPath]) -> StoreFuture<'a, ()>;

    /// Saves a text that belongs to a run and is too long for its journal.
    fn save_artefact<'a>(&'a self, run: &'a RunId, name: &'a str, text: &'a str) -> StoreFuture<'a, ()>;

    /// Loads an artefact of a run.
    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<String>>;
}

/// The time by which appended lines must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// With the next append that is [`Durability::Sync`].
    Deferred,
    /// Before the append completes.
    Sync,
}

/// A snapshot: the state after the first records of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// Number of records that the snapshot covers.
    pub record_count: u64,
    /// Hash of the last covered line, which identifies exactly these records.
    pub head_hash: Digest,
    /// The encoded state: see [`windlass_core::run::ReplayedRun::to_snapshot`].
    pub body: String,
}

/// A request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseClaim<'a> {
    /// Name of the claimant, unique among all processes.
    pub owner: &'a str,
    /// The current time.
    pub now: Timestamp,
    /// Expiry time of the lease.
    pub expires_at: Timestamp,
}

impl<'a> LeaseClaim<'a> {
    /// Creates a claim for this duration.
    pub fn for_duration(owner: &'a str, now: Timestamp, lasting: Duration) -> Self {
        let lasting = u64::try_from(lasting.as_millis()).unwrap_or(u64::MAX);
        Self { owner, now, expires_at: Timestamp(now.0.saturating_add(lasting)) }
    }
}

/// The exclusive right to drive a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Id of the run.
    pub run: RunId,
    /// Name of the driver that holds the lease, unique among all processes.
    pub owner: String,
    /// Epoch, which increases with every owner: the fencing token. Writes with an older epoch are rejected.
    pub epoch: u64,
}

/// The status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// A driver runs it, or did until its process ended.
    Running,
    /// The run waits for a person.
    Paused,
    /// The run ended with an output.
    Finished,
    /// The run ended with an error.
    Failed,
    /// The run was cancelled.
    Cancelled,
}

/// A run in the list of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRun {
    /// Id of the run.
    pub run: RunId,
    /// The agent that the run started with.
    pub agent: AgentName,
    /// Status of the run.
    pub status: RunStatus,
    /// Number of records in the run's journal.
    pub record_count: u64,
    /// Owner of the lease and its expiry time, if the run is leased.
    pub owner: Option<(String, Timestamp)>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last status change.
    pub updated_at: Timestamp,
}

/// A decision that was posted for a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PostedDecision {
    /// Path of the call: the calls that lead to it, and the call itself.
    pub path: CallPath,
    /// Number of the hold that it decides: see [`windlass_core::decision::PendingCall::attempt`].
    #[serde(default)]
    pub attempt: u32,
    /// The decision.
    pub decision: DecisionRecorded,
}

impl PostedDecision {
    /// True if both decide the same hold of the same call.
    pub fn answers_same_question(&self, other: &Self) -> bool {
        self.path == other.path && self.attempt == other.attempt
    }
}

/// The key of the receipt of an idempotent call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReceiptKey {
    /// The scope: the id of a session, or empty for the whole store.
    pub scope: String,
    /// Digest of the tool and its canonical arguments.
    pub digest: Digest,
}

/// The result of claiming a receipt.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceiptClaim {
    /// An identical call has completed, with this output.
    Completed(OutputContent),
    /// Another caller is executing the call.
    InProgress {
        /// Expiry time of its claim.
        expires_at: Timestamp,
    },
    /// The claim is granted: the caller may execute the call.
    Acquired,
}
