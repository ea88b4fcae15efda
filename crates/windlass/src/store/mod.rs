//! Stores: they persist runs, and coordinate their drivers and approvers.
//!
//! A run has one driver at a time, by a lease with an epoch. The epoch is the fencing token: every write
//! carries the lease, and a writer whose lease was taken over is fenced off by its epoch. No clock of a store and no
//! stored time decides who drives a run: a contender observes the lease on its own monotonic clock
//! ([`LeaseObserver`]). Times in a store come from its callers and are informative.

mod approvers;
mod authentic;
mod decision_hints;
mod deltas;
mod encrypted;
mod event_feed;
mod fork;
mod lease;
mod lease_observer;
mod lease_owner;
mod memory;
mod memory_deltas;
mod memory_queue;
mod migrate;
mod observable;
mod open;
mod post_decision;
mod query;
mod restore;
mod retention;
#[cfg(feature = "sqlite")]
mod sqlite;
mod taken_decision;
mod wrapper;

pub(crate) use approvers::held_call;
pub use approvers::{ApproverPolicy, ApproverRules, ApproverSigner};
pub(crate) use authentic::{FindHeldCall, authenticate_snapshot, check_posted, load_posted_about};
pub use authentic::{PostedDecisions, RefusedDecision, load_posted_decisions};
pub use decision_hints::DecisionHints;
pub use deltas::{
    DeltaBatch, DeltaContent, DeltaFeed, DeltaOrigin, DeltaPosition, DeltaStore, FollowerRegistry, LiveDelta,
    StoredFollower,
};
pub(crate) use deltas::{DeltaRelay, RelayedResponse};
pub use encrypted::{EncryptedStore, EncryptionKeyError, EncryptionKeys};
pub use event_feed::EventFeed;
pub use fork::{StoredForkError, fork_run};
pub use lease_observer::{LeaseObserver, LeaseStanding};
pub use lease_owner::LeaseOwner;
pub use memory::MemoryStore;
pub use migrate::{MigrationError, MigrationReport, migrate_store};
pub use observable::{ObservableStore, RecordStream};
pub use open::{
    OpenRunError, SnapshotVerification, StoreVerification, load_history, load_paused, verify_run,
    verify_stored_run,
};
pub(crate) use open::{OpenedRun, read_run};
pub use post_decision::{
    DecisionReview, PostDecisionError, TakenDecision, UnsignedDecision, post_decision,
    post_decision_with_signature, post_reviewed_decision, post_signed_decision, prepare_decision,
};
pub use query::{RunCursor, RunQuery, StartSession, end_of_run, list_all_runs, session_of_first_line};
pub use restore::{RestoreReport, SkippedSchedule, mark_restored};
pub use retention::{RetentionPolicy, apply_retention};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteStore, StoreWarning, WriterStats};
pub use wrapper::{AppendOrigin, JournalAppend, StoreWrapper};

pub(crate) use lease::{DEFAULT_LEASE_DURATION, LeaseHeartbeat};
pub(crate) use lease_observer::{AcquiredLease, LeaseWatch, MAX_LEASE_POLL, acquire_lease, poll_interval};

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use serde::{Deserialize, Serialize};
use windlass_core::{
    authenticity::{MacKeyring, MessageMac},
    canonical::Digest,
    id::{AgentName, CallPath, RunId, SessionId, Timestamp},
    item::{Item, OutputContent},
    journal::{DecisionRecorded, HistoryReference, JournalLine},
};

use crate::error::StoreError;
use crate::session::{SessionStore, SessionWrite};

/// Name of the artefact with the items that a run refers to, one JSON text per line, if the run comes from another
/// store.
pub const HISTORY_ARTEFACT: &str = "history";

/// Name of the artefact with the sequence number of the last record that a driver had certainly announced to watchers and
/// hooks when it left the run open. A driver that ends without notice leaves none for the records after it.
pub const ANNOUNCED_ARTEFACT: &str = "windlass:announced";

/// The future of a store operation.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A store of runs. The suite in [`crate::testing`] checks the contract of an implementation.
pub trait Store: Send + Sync + 'static {
    /// Returns the id of the store, which no other store has. It is part of the idempotency keys whose scope is the store.
    fn store_id(&self) -> &str;

    /// Returns the keys with which decisions and snapshots in this store are authenticated: see
    /// [`SqliteStore::with_keys`](crate::store::SqliteStore::with_keys). They are not in the store. Without keys, whoever
    /// can write to the store can decide.
    fn mac_keys(&self) -> Option<&Arc<MacKeyring>> {
        None
    }

    /// Returns the approvers whose signatures count: see
    /// [`SqliteStore::with_approvers`](crate::store::SqliteStore::with_approvers). Without them, decisions need no
    /// signature.
    fn approvers(&self) -> Option<&Arc<ApproverPolicy>> {
        None
    }

    /// Returns true if the store seals what it writes, so that a secret may pass through it.
    fn seals_values(&self) -> bool {
        false
    }

    /// Returns the part of the store that carries deltas of model responses between processes, if it has one.
    fn deltas(&self) -> Option<&dyn DeltaStore> {
        None
    }

    /// Creates a run that is leased to the claimant, with the first lines of its journal. Both happen in one transaction
    /// that is durable when the future resolves, so that no run is ever seen without its first record.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::AlreadyExists`](crate::error::StoreErrorKind::AlreadyExists) if
    /// the run exists. If the first line refers to a session of this store, the store keeps the items that it refers to
    /// until the run is forgotten, and holds the session for the run: it returns an error of the kind
    /// [`StoreErrorKind::SessionBusy`](crate::error::StoreErrorKind::SessionBusy) if it cannot, and of the kind
    /// [`StoreErrorKind::Stale`](crate::error::StoreErrorKind::Stale) if the session has changed since.
    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
    ) -> StoreFuture<'a, Lease>;

    /// Creates a run that comes from another store, as [`Store::create_run`] does, with the items of the session that its
    /// first line refers to. They become the run's artefact [`HISTORY_ARTEFACT`] in the same transaction, so the session
    /// may have changed, or be missing.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::create_run`], except that for a session that has changed.
    fn import_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
        history: Vec<u8>,
    ) -> StoreFuture<'a, Lease>;

    /// Acquires the lease of a run that has no owner, that the claimant owns, or whose lease is `abandoned`: its owner,
    /// epoch and beat are still those that the claimant has observed. The comparison and the change are one transaction.
    /// The epoch increases.
    ///
    /// The store trusts the claimant: [`LeaseObserver`] says when a lease is abandoned.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::LeaseHeld`](crate::error::StoreErrorKind::LeaseHeld) if the run has
    /// another owner, or its owner has renewed the lease since it was observed.
    fn acquire_lease<'a>(
        &'a self,
        run: &'a RunId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, Lease>;

    /// Loads the lease of a run, if the run has an owner.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::RunNotFound`](crate::error::StoreErrorKind::RunNotFound) if the run
    /// does not exist.
    fn load_lease<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredLease>>;

    /// Renews a lease: increments its beat. `now` is the owner's time, for lists.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced) if the lease was
    /// taken over.
    fn renew_lease<'a>(&'a self, lease: &'a Lease, now: Timestamp) -> StoreFuture<'a, ()>;

    /// Raises the epoch of a run to `epoch`, and returns the lease with it. Writes that carry an earlier epoch are
    /// rejected from then on. A lease whose epoch is as high already stays as it is.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced) if the lease was
    /// taken over.
    fn raise_epoch<'a>(&'a self, lease: &'a Lease, epoch: u64) -> StoreFuture<'a, Lease>;

    /// Releases a lease. Releasing a lease that was taken over has no effect.
    fn release_lease<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, ()>;

    /// Appends lines to a run's journal. The first line has the sequence number `at`.
    ///
    /// This is an ordinary async function. Each run has one writer, which awaits an append before it begins the next:
    /// a store need not order concurrent appends of one run, and may begin the work when the future is first polled.
    /// Appends of different runs are concurrent, and a store should commit them together.
    ///
    /// # Durability
    ///
    /// When the future resolves to `Ok`, every later load sees the lines. With [`Durability::Sync`] these lines and all
    /// earlier ones of the run survive power loss. With [`Durability::Deferred`] they may be lost in a crash, from
    /// their first line on; they are durable with the run's next append that is [`Durability::Sync`].
    ///
    /// # Order
    ///
    /// The lines continue the journal without a gap: `at` is the number of lines that the run has. An append is atomic:
    /// a journal has all of its lines or none of them.
    ///
    /// # Errors
    ///
    /// Errors of these kinds leave the journal unchanged:
    ///
    /// - [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced) if the epoch of the lease is not the run's
    ///   current one. The epoch is compared in the transaction that writes, so that no line of an earlier owner follows
    ///   a line of a later one.
    /// - [`StoreErrorKind::Stale`](crate::error::StoreErrorKind::Stale) if `at` is not the next sequence number.
    /// - [`StoreErrorKind::RunNotFound`](crate::error::StoreErrorKind::RunNotFound) if the run does not exist.
    ///
    /// After any other error the lines may be written or not. A writer does not append again with the same lease
    /// before it has read the journal; Windlass's own ends its run, and the next driver reads what is there.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it resolves, the lines are written completely or not at all, possibly later.
    /// Acquiring the lease anew settles which: an append of an earlier epoch changes nothing.
    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()>;

    /// Returns the sessions of this store, if it keeps sessions, too. Then a run and its session are written in one
    /// transaction, with [`Store::append_with_writes`].
    fn sessions(&self) -> Option<&dyn SessionStore> {
        None
    }

    /// Appends lines to a run's journal, and writes what is derived from them, in one transaction: items of the run's
    /// session, and receipts of its calls. A receipt has no effect unless its owner holds the claim. The contract is
    /// that of [`Store::append_journal`]; it also returns an error of the kind
    /// [`StoreErrorKind::SessionBusy`](crate::error::StoreErrorKind::SessionBusy) if another run holds the session. A
    /// store without sessions gets no items.
    fn append_with_writes<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
        writes: DerivedWrites,
    ) -> StoreFuture<'a, ()>;

    /// Loads the items of a session that the start of a run refers to; `None` if this store does not have all of them.
    fn load_history<'a>(
        &'a self,
        _reference: &'a HistoryReference,
    ) -> StoreFuture<'a, Option<Vec<Arc<Item>>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Holds a session of this store for the driver of a run: one run at a time appends to a session. The session is
    /// free again when the run's lease is released or taken over. [`Store::create_run`] holds the session that the
    /// first line refers to.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::SessionBusy`](crate::error::StoreErrorKind::SessionBusy) if the
    /// driver of another run holds the session, also by a claim ([`SessionStore::claim_session`]), and of the kind
    /// [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced) if the lease was taken over.
    fn hold_session<'a>(&'a self, _lease: &'a Lease, _session: &'a SessionId) -> StoreFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns the driver that holds a session, if there is one.
    fn session_holder<'a>(&'a self, _session: &'a SessionId) -> StoreFuture<'a, Option<SessionHolder>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Frees a session from a driver whose lease was observed to be abandoned. It has no effect if another driver holds
    /// the session, or if the lease has changed since.
    fn free_session<'a>(
        &'a self,
        _session: &'a SessionId,
        _holder: &'a SessionHolder,
    ) -> StoreFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Sets the status of a run for lists. It is informative: the journal is authoritative.
    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()>;

    /// Loads the lines of a run's journal from sequence number `from` on; empty if the run is unknown.
    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>>;

    /// Loads at most `limit` lines of a run's journal from sequence number `from` on; empty if there are none.
    fn load_journal_page<'a>(
        &'a self,
        run: &'a RunId,
        from: u64,
        limit: u32,
    ) -> StoreFuture<'a, Vec<JournalLine>>;

    /// Returns a blocking reader of the store's journals, if the store has one. A run is then opened from its snapshot
    /// alone, and the records before it are read when they are first needed. A store whose reads need the caller's
    /// runtime has none; its runs are loaded whole.
    fn journal_reader(&self) -> Option<Arc<dyn JournalReader>> {
        None
    }

    /// Returns the number of records between snapshots, which speed up opening long runs; `None` if the store
    /// keeps no snapshots.
    fn snapshot_interval(&self) -> Option<u64> {
        None
    }

    /// Saves a snapshot of a run, in place of the previous one, together with the segments that it adds: they replace the
    /// segments from number `segments.first` on, and those before it stay. The journal is authoritative: a store may drop
    /// snapshots.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if segments before `segments.first` are missing.
    fn save_snapshot<'a>(
        &'a self,
        _lease: &'a Lease,
        _snapshot: StoredSnapshot,
        _segments: SnapshotSegments,
    ) -> StoreFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Loads the first `count` segments of a run's snapshot, in order; fewer if there are not so many.
    fn load_snapshot_segments<'a>(&'a self, _run: &'a RunId, _count: u64) -> StoreFuture<'a, Vec<String>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Loads the latest snapshot of a run, without its segments, if there is one.
    fn load_snapshot<'a>(&'a self, _run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Lists the runs that match a query, newest first: by the time of their creation, then by their id.
    fn list_runs<'a>(&'a self, query: &'a RunQuery) -> StoreFuture<'a, Vec<StoredRun>>;

    /// Forgets a run: deletes its journal, snapshot, posted decisions, withheld outputs and artefacts. Receipts and
    /// the items that sessions show stay, and so do media that another run or a session of this store refers to. Items
    /// that a session no longer shows are deleted with the last run that refers to them. A run that has an owner is
    /// forgotten only if its lease is `abandoned`, as in [`Store::acquire_lease`].
    ///
    /// A later run may have the same id. It begins with a higher epoch than any that a forgotten run of the store had, so
    /// that a driver of the forgotten run is refused, by the store and by targets that compare fences.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::LeaseHeld`](crate::error::StoreErrorKind::LeaseHeld) if a driver
    /// holds the lease, and of the kind
    /// [`StoreErrorKind::RunNotFound`](crate::error::StoreErrorKind::RunNotFound) if the run does not exist.
    fn forget_run<'a>(&'a self, run: &'a RunId, abandoned: Option<&'a StoredLease>) -> StoreFuture<'a, ()>;

    /// Posts a decision for the current or a later driver of the run. It replaces an earlier one about the same hold of
    /// the same call, with the next revision, until a driver has taken that one: see [`Store::take_decision`]. Posting an
    /// identical decision again has no effect. A decision with a MAC keeps its revision, which the MAC covers. `record_count` is the number of records of the journal in which the
    /// caller has seen that the decision is not taken.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::AlreadyDecided`](crate::error::StoreErrorKind::AlreadyDecided)
    /// if the driver that holds the lease has taken a decision about this hold, and of the kind
    /// [`StoreErrorKind::Stale`](crate::error::StoreErrorKind::Stale) if an earlier driver had and the journal has more
    /// records than the caller has seen: then only the journal can tell whether the call has started. A decision with a MAC
    /// is refused with that kind, too, if another one with its revision or a higher one is posted.
    fn post_decision<'a>(
        &'a self,
        run: &'a RunId,
        posted: PostedDecision,
        record_count: u64,
    ) -> StoreFuture<'a, ()>;

    /// Takes the decision about a hold of a call, and returns the posted one, if there is one. From then on, and as long
    /// as this lease is current, no other is accepted. A driver calls it right before it records the start of the call,
    /// or the settlement that follows from the decision, and acts on the decision that it returns.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced) if the lease was
    /// taken over.
    fn take_decision<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        attempt: u32,
    ) -> StoreFuture<'a, Option<PostedDecision>>;

    /// Returns the decisions that were posted for a run, oldest first.
    fn posted_decisions<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<PostedDecision>>;

    /// Waits for a hint that a decision about a run was posted, by any process. A hint counts that is given after this
    /// call, also before the future is polled. Hints may be missing or needless: drivers also look for decisions at
    /// intervals. The default never resolves; [`DecisionHints`] keeps the waits of a process.
    fn wait_for_decision(&self, _run: &RunId) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }

    /// Returns the receipt of an identical idempotent call, or claims the right to execute it. A receipt that has expired
    /// is no answer; from then on the generation of its key is higher by one, also if the store deletes the output.
    ///
    /// A claim is a lease: its owner renews it by claiming again, which increments its beat, and another claimant gets it
    /// only if it was released or is `abandoned`, as in [`Store::acquire_lease`].
    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ReceiptClaim>;

    /// Finds the receipt of an identical idempotent call that has not expired at the time `now`, without a claim.
    fn find_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        now: Timestamp,
    ) -> StoreFuture<'a, Option<OutputContent>>;

    /// Releases the claim of a call that did not succeed.
    fn release_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreFuture<'a, ()>;

    /// Lists at most `limit` receipts whose keys come after `after`, in the order of their keys. A key that was only
    /// claimed so far is listed if its generation is above 0, because that must not go back.
    fn list_receipts<'a>(
        &'a self,
        after: Option<&'a ReceiptKey>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<StoredReceipt>>;

    /// Adds a receipt of another store. It has no effect if this store has a receipt of the same key with a higher
    /// generation, or with the same generation and an output. The claim of the key, if any, stays.
    fn import_receipt<'a>(&'a self, receipt: &'a StoredReceipt) -> StoreFuture<'a, ()>;

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

    /// Lists the calls of a run that have a withheld output.
    fn list_withheld_outputs<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<CallPath>>;

    /// Erases the withheld outputs of these calls.
    fn erase_withheld_outputs<'a>(&'a self, lease: &'a Lease, calls: &'a [CallPath]) -> StoreFuture<'a, ()>;

    /// Saves bytes that belong to a run and are too long for its journal, in place of those of the same name. They are
    /// durable when the future resolves.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced) if the lease was
    /// taken over. The artefact is then unchanged.
    fn save_artefact<'a>(&'a self, lease: &'a Lease, name: &'a str, body: &'a [u8]) -> StoreFuture<'a, ()>;

    /// Loads an artefact of a run.
    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<Vec<u8>>>;

    /// Lists the names of at most `limit` artefacts of a run that come after the name `after`, in the order of their
    /// bytes.
    fn list_artefacts<'a>(
        &'a self,
        run: &'a RunId,
        after: Option<&'a str>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<String>>;
}

/// A blocking reader of what opening a run from its snapshot leaves out. It may outlive the value of the store that it
/// came from.
pub trait JournalReader: Send + Sync + 'static {
    /// Reads at most `limit` lines of a run's journal from sequence number `from` on; empty if there are none.
    fn read_lines(&self, run: &RunId, from: u64, limit: u32) -> Result<Vec<JournalLine>, StoreError>;

    /// Reads the first `count` segments of a run's snapshot: see [`Store::load_snapshot_segments`].
    fn read_segments(&self, run: &RunId, count: u64) -> Result<Vec<String>, StoreError>;

    /// Reads the items of a session that a run refers to: see [`Store::load_history`].
    fn read_history(&self, reference: &HistoryReference) -> Result<Option<Vec<Arc<Item>>>, StoreError>;

    /// Reads an artefact of a run: see [`Store::load_artefact`].
    fn read_artefact(&self, run: &RunId, name: &str) -> Result<Option<Vec<u8>>, StoreError>;
}

/// The driver that holds a session: see [`Store::hold_session`] and [`SessionStore::claim_session`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionHolder {
    /// The run of the driver; `None` if it is in another store.
    pub run: Option<RunId>,
    /// The lease of the run, or the claim of the session.
    pub lease: StoredLease,
}

impl SessionHolder {
    /// Returns true if this is the same driver, and it has not renewed its lease since.
    pub fn is_same_beat(&self, other: &Self) -> bool {
        self.run == other.run && self.lease.is_same_beat(&other.lease)
    }

    /// Creates the error for another driver that asks for the session.
    pub fn busy_error(&self, session: &SessionId) -> StoreError {
        match &self.run {
            Some(run) => StoreError::session_busy(session, run),
            None => StoreError::session_busy_elsewhere(session, &self.lease.owner),
        }
    }

    /// Checks that the driver of a run of this store may append to a session with this holder, or hold it.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::SessionBusy`](crate::error::StoreErrorKind::SessionBusy) if another
    /// driver holds it.
    pub fn check_run(holder: Option<&Self>, session: &SessionId, run: &RunId) -> Result<(), StoreError> {
        match holder {
            Some(holder) if holder.run.as_ref() != Some(run) => Err(holder.busy_error(session)),
            Some(_) | None => Ok(()),
        }
    }

    /// Checks that a driver without a lease of this store may append to a session with this holder.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::SessionBusy`](crate::error::StoreErrorKind::SessionBusy) if it may
    /// not: see [`SessionFence`](crate::session::SessionFence).
    pub fn check_claim(
        holder: Option<&Self>,
        session: &SessionId,
        claim: Option<&str>,
    ) -> Result<(), StoreError> {
        match (holder, claim) {
            (None, None) => Ok(()),
            (Some(Self { run: None, lease }), Some(owner)) if lease.owner == owner => Ok(()),
            (Some(holder), _) => Err(holder.busy_error(session)),
            (None, Some(_)) => Err(StoreError::session_lost(session)),
        }
    }

    /// Returns the beat of a claim of a session with this holder: the next one of the same owner, otherwise 0.
    ///
    /// # Errors
    ///
    /// Returns the lease of the holder if the claim is not granted: see
    /// [`SessionStore::claim_session`].
    pub fn answer_claim(
        holder: Option<Self>,
        owner: &str,
        abandoned: Option<&StoredLease>,
    ) -> Result<u64, StoredLease> {
        match holder {
            Some(Self { run: None, lease }) if lease.owner == owner => Ok(lease.beat + 1),
            Some(Self { lease, .. }) if !abandoned.is_some_and(|seen| seen.is_same_beat(&lease)) => {
                Err(lease)
            }
            Some(_) | None => Ok(0),
        }
    }
}

/// The time by which appended lines must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// With the next append that is [`Durability::Sync`].
    Deferred,
    /// Before the append completes.
    Sync,
}

/// The segments that a snapshot adds to those of the snapshot before it. A segment has the growth of the run between two
/// snapshots, and is written once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotSegments {
    /// Number of the first of them, counted from 0. Those from this number on are replaced.
    pub first: u64,
    /// The segments: see [`windlass_core::run::EncodedSnapshot::segment`].
    pub bodies: Vec<String>,
}

/// A snapshot: the state after the first records of a run. It is small, whatever the length of the run; what grows with
/// the run is in segments ([`SnapshotSegments`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// Number of records that the snapshot covers.
    pub record_count: u64,
    /// Hash of the last covered line, which identifies exactly these records.
    pub head_hash: Digest,
    /// The head: see [`windlass_core::run::EncodedSnapshot::head`]. It has a digest of the segments. If the store has keys,
    /// a line with the MAC is before it.
    pub body: String,
}

/// A request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseClaim<'a> {
    /// Name of the claimant, unique among all processes. Windlass's drivers use [`LeaseOwner`].
    pub owner: &'a str,
    /// The claimant's time. It is shown in lists and expires receipts; it decides nothing about leases.
    pub now: Timestamp,
    /// Duration of the lease without a renewal, on the monotonic clock of whoever measures it.
    pub duration: Duration,
}

/// The exclusive right to drive a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Id of the run.
    pub run: RunId,
    /// Name of the driver that holds the lease, unique among all processes.
    pub owner: String,
    /// Epoch, which increases with every owner, and from a forgotten run to a later one of its id: the fencing token.
    /// Writes with an older epoch, or for another owner, are rejected.
    pub epoch: u64,
}

/// A lease as the store has it, for those who do not hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLease {
    /// Name of the owner.
    pub owner: String,
    /// Epoch of the lease; 0 for the claim of a receipt.
    pub epoch: u64,
    /// Number of renewals.
    pub beat: u64,
    /// Duration of the lease without a renewal.
    pub duration: Duration,
    /// Time of the last renewal on the owner's clock. It is informative: the beat is authoritative.
    pub renewed_at: Timestamp,
}

impl StoredLease {
    /// True if both are the same lease without a renewal between them.
    pub fn is_same_beat(&self, other: &Self) -> bool {
        self.is_same_owner(other) && self.beat == other.beat
    }

    /// True if both are the same lease of the same owner.
    pub fn is_same_owner(&self, other: &Self) -> bool {
        self.owner == other.owner && self.epoch == other.epoch
    }

    /// Returns true if the owner is a process of this machine that has provably ended.
    pub fn is_owner_dead(&self) -> bool {
        lease_owner::is_dead_owner(&self.owner)
    }
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
    /// The lease, if the run has an owner.
    pub lease: Option<StoredLease>,
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
    /// The decision. The store sets its revision.
    pub decision: DecisionRecorded,
    /// Time at which it was posted, on the clock of whoever posted it.
    #[serde(default)]
    pub posted_at: Timestamp,
    /// MAC of the decision, if it was posted to a store with keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MessageMac>,
}

impl PostedDecision {
    /// True if both decide the same hold of the same call.
    pub fn answers_same_question(&self, other: &Self) -> bool {
        self.path == other.path && self.attempt == other.attempt
    }

    /// Returns true if `later` says the same as this posted decision with the same signature, and the run has not recorded another one since:
    /// `later` has the revision after which another one was recorded, 0 if none was.
    pub fn is_repeated_by(&self, later: &Self) -> bool {
        self.decision.is_same_decision(&later.decision)
            && self.decision.signature == later.decision.signature
            && self.decision.posted_revision > later.decision.posted_revision
    }
}

/// The key of the receipt of an idempotent call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReceiptKey {
    /// The scope: names a session, or empty for the whole store.
    pub scope: String,
    /// Digest of the agent, the tool and the arguments: see
    /// [`operation_digest`](windlass_core::idempotency::operation_digest).
    pub digest: Digest,
}

/// The writes that are derived from lines of a journal, and made in the transaction that appends the lines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DerivedWrites {
    /// Items of sessions.
    pub sessions: Vec<SessionWrite>,
    /// Receipts of calls that the lines settle.
    pub receipts: Vec<ReceiptWrite>,
    /// True if the lines may end the run before its session has them, which is in another store. The run then keeps its
    /// status until its driver sets it ([`Store::set_status`]), so that it is recovered if the process ends in between.
    pub is_status_deferred: bool,
}

impl DerivedWrites {
    /// Returns true if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.receipts.is_empty() && !self.is_status_deferred
    }

    /// Returns the status that the append of these lines gives to the run, with its time, if they end the run.
    pub fn end_status(&self, lines: &[JournalLine]) -> Option<(RunStatus, Timestamp)> {
        end_of_run(lines).filter(|_| !self.is_status_deferred)
    }

    /// Adds the writes that are derived from later lines.
    pub fn extend(&mut self, later: Self) {
        self.sessions.extend(later.sessions);
        self.receipts.extend(later.receipts);
        self.is_status_deferred |= later.is_status_deferred;
    }
}

/// The receipt of a call that has settled.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceiptWrite {
    /// The key.
    pub key: ReceiptKey,
    /// Owner of the claim that the call was executed under. The receipt ends the claim.
    pub owner: String,
    /// The output.
    pub output: OutputContent,
    /// Expiry time; `None` if the receipt does not expire.
    pub expires_at: Option<Timestamp>,
}

/// A receipt in the list of a store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredReceipt {
    /// The key.
    pub key: ReceiptKey,
    /// Number of receipts under this key that have expired.
    pub generation: u32,
    /// The output; absent if the last receipt has expired and none followed it.
    pub output: Option<OutputContent>,
    /// Expiry time; `None` if the receipt does not expire.
    pub expires_at: Option<Timestamp>,
}

/// The result of claiming a receipt.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceiptClaim {
    /// An identical call has completed, with this output.
    Completed(OutputContent),
    /// Another caller is executing the call under this claim.
    InProgress(StoredLease),
    /// The claim is granted: the caller may execute the call.
    Acquired {
        /// Generation of the call's idempotency key: the number of receipts under this key that have expired.
        generation: u32,
    },
}
