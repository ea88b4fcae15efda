//! The hold of a body: its permits, its conflict key and the claim of its receipt, and the waits of the calls that need them.
//!
//! Invariant: a hold belongs to its body and ends with it. Neither the timeout, nor the settlement of the call, nor the end
//! of the run gives it up while the body still runs. A call that waits for a body which outlived its deadline does not wait
//! for ever: it is refused when its patience ([`BodyPatience`]) has run out.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use windlass_core::{
    canonical::Digest,
    id::{CallPath, Timestamp},
    item::OutputContent,
};

use super::shared_permit::SharedPermit;
use super::store_claim::SharedExecutionClaim;
use super::{InFlight, KeyScopes, LocalReceiptClaim, ReceiptAge, ReceiptCache};
use crate::error::StoreError;
use crate::journal::RunJournal;
use crate::lock_unpoisoned;
use crate::store::{
    LeaseClaim, LeaseStanding, LeaseWatch, ReceiptClaim, ReceiptKey, ReceiptWrite, Store, StoredLease,
    poll_interval,
};
use crate::tasks::CallStop;
use crate::tool::{ReceiptPolicy, ReceiptScope};

/// Longest poll interval while another process executes an identical call.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of claims of this process, so that each has a name of its own.
static CLAIM_COUNT: AtomicU64 = AtomicU64::new(0);

/// The receipts and claims of one run.
#[derive(Clone, Copy)]
pub(crate) struct RunReceipts<'a> {
    pub(crate) cache: &'a Arc<ReceiptCache>,
    pub(crate) scopes: &'a KeyScopes,
    pub(crate) journal: &'a RunJournal,
    /// Duration of a claim in the store without a renewal.
    pub(crate) lease_duration: Duration,
}

/// An idempotent call, for its receipt.
#[derive(Clone, Copy)]
pub(crate) struct ReceiptRequest<'a> {
    pub(crate) digest: Digest,
    pub(crate) policy: &'a ReceiptPolicy,
    pub(crate) path: &'a CallPath,
}

/// The answer to a claim.
pub(crate) enum ClaimVerdict {
    /// The call may run, with a key of this generation.
    Claimed { claim: Arc<ExecutionClaim>, generation: u32 },
    /// An identical call has completed with this output.
    Completed(OutputContent),
}

/// A claim to execute a call. Identical calls wait until it is published or dropped; the call and its body hold it.
pub(crate) struct ExecutionClaim {
    in_flight: InFlight,
    shared: Option<SharedExecutionClaim>,
}

/// The place in the store for the receipt of a call that was claimed there.
pub(crate) struct ReceiptDestination {
    key: ReceiptKey,
    owner: String,
    expire_after: Option<Duration>,
}

impl ReceiptDestination {
    /// Returns the receipt with this output, as the store gets it with the settlement.
    pub(crate) fn receipt_write(self, output: OutputContent, now: Timestamp) -> ReceiptWrite {
        let Self { key, owner, expire_after } = self;
        let expires_at = expire_after.map(|lasting| now.saturating_add(lasting));
        ReceiptWrite { key, owner, output, expires_at }
    }
}

/// The answer of the store to a claim.
enum SharedVerdict {
    Claimed { claim: Box<SharedExecutionClaim>, generation: u32 },
    Completed(OutputContent),
}

impl RunReceipts<'_> {
    /// Returns true if there is a receipt of an identical call: of this run, or of another one within the receipt's scope.
    pub(crate) async fn has_receipt(&self, call: ReceiptRequest<'_>) -> Result<bool, StoreError> {
        if self.cache.find_receipt(&call.digest, self.receipt_age(call)).is_some() {
            return Ok(true);
        }
        match self.shared_key(call) {
            Some((store, _, key)) => Ok(store.find_receipt(&key, self.journal.now()).await?.is_some()),
            None => Ok(false),
        }
    }

    /// Claims the execution of an idempotent call, and waits while an identical one is in flight.
    pub(crate) async fn claim(
        &self,
        call: ReceiptRequest<'_>,
        patience: BodyPatience<'_>,
    ) -> Result<WaitVerdict<ClaimVerdict>, StoreError> {
        let completed = |output| Ok(WaitVerdict::Granted(ClaimVerdict::Completed(output)));
        let (in_flight, local_generation) = loop {
            match self.cache.claim(call.digest, self.receipt_age(call)) {
                LocalReceiptClaim::Acquired { in_flight, generation } => break (in_flight, generation),
                LocalReceiptClaim::Completed(output) => return completed(output),
                LocalReceiptClaim::InProgress(flight) => {
                    let landed = flight.landed.cancelled();
                    match patience.wait(landed, &flight.is_late, |is_late| *is_late).await {
                        WaitVerdict::Granted(()) => {}
                        WaitVerdict::BodyStillRuns => return Ok(WaitVerdict::BodyStillRuns),
                        WaitVerdict::Stopped => return Ok(WaitVerdict::Stopped),
                    }
                }
            }
        };
        let (shared, generation) = match self.shared_key(call) {
            Some((store, owner, key)) => match self.claim_shared(store, owner, key, patience.stop).await? {
                Some(SharedVerdict::Claimed { claim, generation }) => (Some(*claim), generation),
                Some(SharedVerdict::Completed(output)) => return completed(output),
                None => return Ok(WaitVerdict::Stopped),
            },
            None => (None, local_generation),
        };
        let claim = ExecutionClaim { in_flight, shared }.into();
        Ok(WaitVerdict::Granted(ClaimVerdict::Claimed { claim, generation }))
    }

    async fn claim_shared(
        &self,
        store: Arc<dyn Store>,
        owner: String,
        key: ReceiptKey,
        stop: CallStop<'_>,
    ) -> Result<Option<SharedVerdict>, StoreError> {
        let duration = self.lease_duration;
        let mut watch = LeaseWatch::new();
        let mut abandoned: Option<StoredLease> = None;
        loop {
            let claim = LeaseClaim { owner: &owner, now: self.journal.now(), duration };
            match store.claim_receipt(&key, claim, abandoned.take().as_ref()).await? {
                ReceiptClaim::Acquired { generation } => {
                    let claim = SharedExecutionClaim::new(store, key, owner, generation, duration).into();
                    return Ok(Some(SharedVerdict::Claimed { claim, generation }));
                }
                ReceiptClaim::Completed(output) => return Ok(Some(SharedVerdict::Completed(output))),
                ReceiptClaim::InProgress(held) => match watch.look(held) {
                    LeaseStanding::Free => {}
                    LeaseStanding::Abandoned(lease) => abandoned = Some(lease),
                    LeaseStanding::Held { lease, remaining, .. } => {
                        let wait = poll_interval(&lease, remaining).min(CLAIM_POLL_INTERVAL);
                        if stop.unless_stopped(tokio::time::sleep(wait)).await.is_none() {
                            return Ok(None);
                        }
                    }
                },
            }
        }
    }

    /// Returns the store, the owner name and the key of a receipt that is shared beyond this run.
    fn shared_key(&self, call: ReceiptRequest<'_>) -> Option<(Arc<dyn Store>, String, ReceiptKey)> {
        let (store, driver) = self.journal.store_and_owner()?;
        let scope = match call.policy.scope {
            ReceiptScope::Call | ReceiptScope::Run => return None,
            ReceiptScope::Session => self.scopes.session_receipts()?,
            ReceiptScope::Store => String::new(),
        };
        // Each claim has a name of its own: its beat alone tells a contender that its owner is alive.
        let number = CLAIM_COUNT.fetch_add(1, Ordering::Relaxed);
        let owner = format!("{driver}/{}#{number}", call.path);
        Some((store.clone(), owner, ReceiptKey { scope, digest: call.digest }))
    }

    fn receipt_age(&self, call: ReceiptRequest<'_>) -> ReceiptAge {
        ReceiptAge { now: self.journal.now(), expire_after: call.policy.expire_after }
    }
}

impl ExecutionClaim {
    /// Marks the body of the call as one that has outlived its deadline.
    pub(super) fn mark_late(&self) {
        self.in_flight.mark_late();
    }

    /// Returns the place for the call's receipt, if it is shared beyond this run.
    pub(crate) fn destination(&self, expire_after: Option<Duration>) -> Option<ReceiptDestination> {
        let shared = self.shared.as_ref()?;
        Some(ReceiptDestination { key: shared.key.clone(), owner: shared.owner.clone(), expire_after })
    }

    /// Ends the claim of a call that has settled or stopped, unless its body still runs: then the claim ends with it. The
    /// receipt, if it left one, was written with the settlement and has ended the claim in the store.
    pub(crate) async fn end(self: Arc<Self>) -> Result<(), StoreError> {
        let Some(Self { in_flight, shared }) = Arc::into_inner(self) else { return Ok(()) };
        match shared {
            Some(shared) => shared.end(in_flight.has_receipt()).await,
            None => Ok(()),
        }
    }
}

/// A state of late bodies, on whose changes calls wait. They are woken in the order in which they began to wait.
#[derive(Default)]
pub(super) struct LateState<S> {
    state: Mutex<S>,
    changed: Notify,
}

/// A limit on the bodies of this process that run at the same time.
pub(crate) struct BodyLimit {
    permits: Arc<Semaphore>,
    size: usize,
    /// Number of permits of bodies that outlived their deadline.
    late_count: LateState<usize>,
}

/// The permit of one body.
struct LimitPermit {
    limit: Arc<BodyLimit>,
    _permit: OwnedSemaphorePermit,
}

/// The conflict keys of the bodies of one run, nested agents included, that outlived their deadline, with their numbers.
#[derive(Default)]
pub(crate) struct LateConflictKeys(LateState<BTreeMap<Arc<str>, usize>>);

/// The permits and the conflict key with which a body may begin.
#[derive(Default)]
pub(crate) struct BodyPermits {
    of_process: Vec<LimitPermit>,
    shared: Vec<SharedPermit>,
}

/// The answer to a call that waits for other bodies.
pub(crate) enum WaitVerdict<T> {
    Granted(T),
    /// A body that outlived its deadline still runs.
    BodyStillRuns,
    /// The call stops.
    Stopped,
}

/// The patience of a call with bodies that outlived their deadline: its own timeout, and at least the drain timeout.
#[derive(Clone, Copy)]
pub(crate) struct BodyPatience<'a> {
    pub(crate) stop: CallStop<'a>,
    pub(crate) timeout: Option<Duration>,
}

/// The hold of one body.
pub(crate) struct BodyHold {
    permits: BodyPermits,
    conflict_key: Option<Arc<str>>,
    claim: Option<Arc<ExecutionClaim>>,
    /// Set when the body has outlived its deadline.
    late_keys: OnceLock<Arc<LateConflictKeys>>,
}

impl<S> LateState<S> {
    /// Changes the state, and wakes those who wait.
    pub(super) fn modify(&self, change: impl FnOnce(&mut S)) {
        change(&mut lock_unpoisoned(&self.state));
        self.changed.notify_waiters();
    }

    fn is(&self, condition: impl Fn(&S) -> bool) -> bool {
        condition(&lock_unpoisoned(&self.state))
    }

    async fn wait_until(&self, condition: impl Fn(&S) -> bool) {
        loop {
            // It is listed before the state is read, so that no change is missed.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is(&condition) {
                return;
            }
            changed.await;
        }
    }
}

impl BodyPatience<'_> {
    fn duration(self) -> Duration {
        self.timeout.unwrap_or_default().max(self.stop.drain_timeout())
    }

    /// Waits for `ready`, and while `late` says that only late bodies are in the way, no longer than the patience lasts.
    pub(super) async fn wait<T, S: Send>(
        self,
        ready: impl Future<Output = T> + Send,
        late: &LateState<S>,
        is_blocked: impl Fn(&S) -> bool + Send + Sync,
    ) -> WaitVerdict<T> {
        let out_of_patience = async {
            loop {
                late.wait_until(&is_blocked).await;
                let unblocked = late.wait_until(|late| !is_blocked(late));
                if tokio::time::timeout(self.duration(), unblocked).await.is_err() {
                    return;
                }
            }
        };
        let waited = self.stop.unless_stopped(async {
            tokio::select! {
                biased;
                ready = ready => WaitVerdict::Granted(ready),
                () = out_of_patience => WaitVerdict::BodyStillRuns,
            }
        });
        match waited.await {
            // The body that ended may have ended the run.
            Some(_) if self.stop.is_stopped() => WaitVerdict::Stopped,
            Some(verdict) => verdict,
            None => WaitVerdict::Stopped,
        }
    }
}

impl BodyLimit {
    /// Creates a limit on this number of bodies, at least one.
    pub(crate) fn new(size: usize) -> Arc<Self> {
        let size = size.clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self { permits: Arc::new(Semaphore::new(size)), size, late_count: LateState::default() })
    }

    async fn acquire(self: &Arc<Self>, patience: BodyPatience<'_>) -> WaitVerdict<LimitPermit> {
        let granted = |permit| WaitVerdict::Granted(LimitPermit { limit: self.clone(), _permit: permit });
        if let Ok(permit) = self.permits.clone().try_acquire_owned()
            && !patience.stop.is_stopped()
        {
            return granted(permit);
        }
        let acquiring = self.permits.clone().acquire_owned();
        match patience.wait(acquiring, &self.late_count, |late| *late >= self.size).await {
            WaitVerdict::Granted(Ok(permit)) => granted(permit),
            WaitVerdict::Granted(Err(_)) | WaitVerdict::Stopped => WaitVerdict::Stopped,
            WaitVerdict::BodyStillRuns => WaitVerdict::BodyStillRuns,
        }
    }
}

impl LateConflictKeys {
    /// Waits until no late body has this key.
    pub(crate) async fn wait(&self, key: &str, patience: BodyPatience<'_>) -> WaitVerdict<()> {
        if !self.0.is(|late| late.contains_key(key)) {
            return WaitVerdict::Granted(());
        }
        let ended = self.0.wait_until(|late| !late.contains_key(key));
        patience.wait(ended, &self.0, |late| late.contains_key(key)).await
    }

    fn add(&self, key: &Arc<str>) {
        self.0.modify(|late| *late.entry(key.clone()).or_default() += 1);
    }

    fn remove(&self, key: &str) {
        self.0.modify(|late| {
            if let Some(count) = late.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    late.remove(key);
                }
            }
        });
    }
}

impl BodyPermits {
    /// Adds permits of limits that processes share.
    pub(super) fn with_shared(shared: Vec<SharedPermit>) -> Self {
        Self { of_process: Vec::new(), shared }
    }

    /// Acquires a permit of each limit of this process.
    pub(super) async fn acquire_local<'l>(
        mut self,
        limits: impl IntoIterator<Item = &'l Arc<BodyLimit>>,
        patience: BodyPatience<'_>,
    ) -> WaitVerdict<Self> {
        for limit in limits {
            match limit.acquire(patience).await {
                WaitVerdict::Granted(permit) => self.of_process.push(permit),
                WaitVerdict::BodyStillRuns => return WaitVerdict::BodyStillRuns,
                WaitVerdict::Stopped => return WaitVerdict::Stopped,
            }
        }
        WaitVerdict::Granted(self)
    }

    fn is_empty(&self) -> bool {
        self.of_process.is_empty() && self.shared.is_empty()
    }
}

impl BodyHold {
    /// Creates the hold of a body; `None` if the body holds nothing.
    pub(crate) fn new(
        permits: BodyPermits,
        conflict_key: Option<Arc<str>>,
        claim: Option<Arc<ExecutionClaim>>,
    ) -> Option<Arc<Self>> {
        let is_empty = permits.is_empty() && conflict_key.is_none() && claim.is_none();
        let hold = || Arc::new(Self { permits, conflict_key, claim, late_keys: OnceLock::new() });
        (!is_empty).then(hold)
    }

    /// Marks the body as one that has outlived its deadline, for the calls that wait for it.
    pub(crate) fn mark_late(&self, keys: &Arc<LateConflictKeys>) {
        if self.late_keys.set(keys.clone()).is_err() {
            return;
        }
        for permit in &self.permits.of_process {
            permit.limit.late_count.modify(|late| *late += 1);
        }
        if let Some(key) = &self.conflict_key {
            keys.add(key);
        }
        if let Some(claim) = &self.claim {
            claim.mark_late();
        }
    }
}

impl Drop for BodyHold {
    fn drop(&mut self) {
        let Some(keys) = self.late_keys.get() else { return };
        for permit in &self.permits.of_process {
            permit.limit.late_count.modify(|late| *late -= 1);
        }
        if let Some(key) = &self.conflict_key {
            keys.remove(key);
        }
    }
}
