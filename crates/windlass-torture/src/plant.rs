//! Planted bugs: each lets the processes of a round break one promise, so that a test can see the oracle find it. All of
//! them lie in this crate, in a wrapper of the store or in the tools, so that no build of Windlass contains them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use windlass::BoxFuture;
use windlass::core::canonical::Digest;
use windlass::core::id::{AgentName, CallPath, RunId, SessionId, Timestamp};
use windlass::core::item::{Item, OutputContent};
use windlass::core::journal::JournalLine;
use windlass::error::StoreError;
use windlass::fleet::RunQueue;
use windlass::session::{
    SessionClaim, SessionFence, SessionItemsPage, SessionState, SessionStore, SessionWrite,
};
use windlass::store::{
    DerivedWrites, Durability, Lease, LeaseClaim, PostedDecision, ReceiptClaim, ReceiptKey, SqliteStore,
    Store, StoreFuture, StoreWrapper, StoredLease, session_of_first_line,
};

use windlass_postgres::PostgresStore;

use crate::deployment::WorkerBuild;

/// Time between a settlement and its receipt, with the bug that writes receipts late.
const RECEIPT_DELAY: Duration = Duration::from_millis(400);

/// A bug that is planted into all processes of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A contender compares the last renewal of a lease with its own wall clock.
    WallClockLeases,
    /// The idempotency key of a run's scope lacks the run.
    SharedKeys,
    /// The identity of an operation contains the schema of the tool.
    SchemaKeys,
    /// The generation of a key stays the same when its receipt expires.
    ReusedKeys,
    /// A call that was interrupted runs again, without a look at the outside world.
    BlindRetries,
    /// The items that a session lacks are not written when a driver takes over or leaves.
    ForgottenItems,
    /// A correction of a posted decision is accepted and ignored.
    IgnoredCorrections,
    /// A correction is refused before the decision is taken.
    RefusedCorrections,
    /// A receipt is written in a transaction of its own, a while after the settlement.
    LateReceipts,
    /// A run appends to its session while another one holds it.
    UnheldSessions,
}

impl PlantedBug {
    /// All bugs that can be planted.
    pub const ALL: [Self; 10] = [
        Self::WallClockLeases,
        Self::SharedKeys,
        Self::SchemaKeys,
        Self::ReusedKeys,
        Self::BlindRetries,
        Self::ForgottenItems,
        Self::IgnoredCorrections,
        Self::RefusedCorrections,
        Self::LateReceipts,
        Self::UnheldSessions,
    ];
}

impl fmt::Display for PlantedBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WallClockLeases => "wall_clock_leases",
            Self::SharedKeys => "shared_keys",
            Self::SchemaKeys => "schema_keys",
            Self::ReusedKeys => "reused_keys",
            Self::BlindRetries => "blind_retries",
            Self::ForgottenItems => "forgotten_items",
            Self::IgnoredCorrections => "ignored_corrections",
            Self::RefusedCorrections => "refused_corrections",
            Self::LateReceipts => "late_receipts",
            Self::UnheldSessions => "unheld_sessions",
        })
    }
}

impl FromStr for PlantedBug {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bug = Self::ALL.into_iter().find(|bug| bug.to_string() == text);
        bug.ok_or_else(|| format!("there is no bug `{text}` to plant"))
    }
}

/// The store of a process, and the sessions in it.
#[derive(Clone)]
pub struct ProcessStore {
    /// The runs.
    pub runs: Arc<dyn Store>,
    /// The sessions, in the same store.
    pub sessions: Arc<dyn SessionStore>,
    /// The queue in the same store; absent with a planted bug.
    pub queue: Option<Arc<dyn RunQueue>>,
}

impl ProcessStore {
    /// Returns the store in a database.
    pub fn of_database(store: PostgresStore) -> Self {
        let store = Arc::new(store);
        Self { runs: store.clone(), sessions: store.clone(), queue: Some(store) }
    }

    /// Returns the store itself, or with a planted bug its wrapper.
    pub fn new(store: SqliteStore, bug: Option<PlantedBug>, build: WorkerBuild) -> Self {
        let store = Arc::new(store);
        let Some(bug) = bug else {
            return Self { runs: store.clone(), sessions: store.clone(), queue: Some(store) };
        };
        let sessions = Arc::new(PlantedSessions { inner: store.clone(), bug });
        let posted = Mutex::default();
        let runs = Arc::new(PlantedStore { inner: store, sessions: sessions.clone(), bug, build, posted });
        Self { runs, sessions, queue: None }
    }
}

/// A store with a bug.
struct PlantedStore {
    inner: Arc<SqliteStore>,
    sessions: Arc<PlantedSessions>,
    bug: PlantedBug,
    build: WorkerBuild,
    /// The holds about which a decision was posted.
    posted: Mutex<BTreeSet<(RunId, String, u32)>>,
}

impl PlantedStore {
    /// Frees a session from another run, with the bug that no run holds one.
    async fn free_held_session(&self, session: &SessionId, run: &RunId) -> Result<(), StoreError> {
        if self.bug != PlantedBug::UnheldSessions {
            return Ok(());
        }
        match self.inner.session_holder(session).await? {
            Some(holder) if holder.run.as_ref() != Some(run) => {
                self.inner.free_session(session, &holder).await
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the key of a receipt as the bug has it.
    fn receipt_key(&self, key: &ReceiptKey) -> ReceiptKey {
        let digest = match self.bug {
            PlantedBug::SchemaKeys => Digest::of_bytes(format!("{} {}", key.digest, self.build).as_bytes()),
            _ => key.digest,
        };
        ReceiptKey { scope: key.scope.clone(), digest }
    }
}

impl StoreWrapper for PlantedStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        Some(&*self.sessions)
    }

    fn append_with_writes<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
        mut writes: DerivedWrites,
    ) -> StoreFuture<'a, ()> {
        for receipt in &mut writes.receipts {
            receipt.key = self.receipt_key(&receipt.key);
        }
        Box::pin(async move {
            let late = match self.bug {
                PlantedBug::LateReceipts => std::mem::take(&mut writes.receipts),
                _ => Vec::new(),
            };
            for write in &writes.sessions {
                self.free_held_session(&write.session, &lease.run).await?;
            }
            let end = at + lines.len() as u64;
            self.inner.append_with_writes(lease, at, lines, durability, writes).await?;
            for receipt in late {
                tokio::time::sleep(RECEIPT_DELAY).await;
                let writes = DerivedWrites { receipts: vec![receipt], ..DerivedWrites::default() };
                self.inner.append_with_writes(lease, end, Vec::new(), durability, writes).await?;
            }
            Ok(())
        })
    }

    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
    ) -> StoreFuture<'a, Lease> {
        Box::pin(async move {
            if let Some(start) = lines.first().and_then(session_of_first_line) {
                self.free_held_session(&start.session, run).await?;
            }
            self.inner.create_run(run, agent, claim, lines).await
        })
    }

    fn hold_session<'a>(&'a self, lease: &'a Lease, session: &'a SessionId) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.free_held_session(session, &lease.run).await?;
            self.inner.hold_session(lease, session).await
        })
    }

    fn acquire_lease<'a>(
        &'a self,
        run: &'a RunId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, Lease> {
        Box::pin(async move {
            let known = self.inner.load_lease(run).await?;
            let is_expired =
                |lease: &StoredLease| lease.renewed_at.saturating_add(lease.duration) <= claim.now;
            let expired = known.filter(|lease| self.bug == PlantedBug::WallClockLeases && is_expired(lease));
            self.inner.acquire_lease(run, claim, expired.as_ref().or(abandoned)).await
        })
    }

    fn post_decision<'a>(
        &'a self,
        run: &'a RunId,
        posted: PostedDecision,
        record_count: u64,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let path: CallPath = posted.path.clone();
            let hold = (run.clone(), path.to_string(), posted.attempt);
            let is_first = self.posted.lock().unwrap_or_else(PoisonError::into_inner).insert(hold);
            match self.bug {
                PlantedBug::IgnoredCorrections if !is_first => Ok(()),
                PlantedBug::RefusedCorrections if !is_first => {
                    Err(StoreError::already_decided(run, &path, None))
                }
                _ => self.inner.post_decision(run, posted, record_count).await,
            }
        })
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        Box::pin(async move {
            let claimed = self.inner.claim_receipt(&self.receipt_key(key), claim, abandoned).await?;
            let ReceiptClaim::Acquired { generation } = claimed else { return Ok(claimed) };
            let generation = match self.bug {
                PlantedBug::ReusedKeys => 0,
                // The generation is the one part of a key that a store decides.
                PlantedBug::SchemaKeys => generation + 1_000 * self.build as u32,
                _ => generation,
            };
            Ok(ReceiptClaim::Acquired { generation })
        })
    }

    fn find_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        now: Timestamp,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        Box::pin(async move { self.inner.find_receipt(&self.receipt_key(key), now).await })
    }

    fn release_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.inner.release_receipt(&self.receipt_key(key), owner).await })
    }
}

/// The sessions of a store with a bug.
struct PlantedSessions {
    inner: Arc<SqliteStore>,
    bug: PlantedBug,
}

impl SessionStore for PlantedSessions {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        self.inner.load_session(session)
    }

    fn load_session_items<'a>(
        &'a self,
        session: &'a SessionId,
        skip: u64,
        limit: u32,
    ) -> BoxFuture<'a, Result<SessionItemsPage, StoreError>> {
        self.inner.load_session_items(session, skip, limit)
    }

    fn append_items<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.append_items(session, items)
    }

    fn append_run_items(
        &self,
        mut write: SessionWrite,
        fence: SessionFence,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        if self.bug == PlantedBug::ForgottenItems && write.from > 0 {
            write.items.clear();
        }
        self.inner.append_run_items(write, fence)
    }

    fn run_position<'a>(
        &'a self,
        session: &'a SessionId,
        run: &'a RunId,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.inner.run_position(session, run)
    }

    fn list_run_positions<'a>(
        &'a self,
        session: &'a SessionId,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<(RunId, u64)>, StoreError>> {
        self.inner.list_run_positions(session, after, limit)
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.replace_items(session, version, items)
    }

    fn claim_session<'a>(
        &'a self,
        session: &'a SessionId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> BoxFuture<'a, Result<SessionClaim, StoreError>> {
        self.inner.claim_session(session, claim, abandoned)
    }

    fn release_session<'a>(
        &'a self,
        session: &'a SessionId,
        owner: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.release_session(session, owner)
    }

    fn list_sessions<'a>(
        &'a self,
        after: Option<&'a SessionId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<SessionId>, StoreError>> {
        self.inner.list_sessions(after, limit)
    }
}
