//! The claims to execute idempotent calls: in this run, and, for shared receipts, in the whole store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass_core::{
    canonical::Digest,
    id::{CallPath, Timestamp},
    item::OutputContent,
};

use super::{InFlight, KeyScopes, LocalReceiptClaim, ReceiptAge, ReceiptCache};
use crate::clock::RunClock;
use crate::error::StoreError;
use crate::journal::RunJournal;
use crate::store::{
    LeaseClaim, LeaseStanding, LeaseWatch, ReceiptClaim, ReceiptKey, ReceiptWrite, Store, StoredLease,
    poll_interval,
};
use crate::tasks::{CallStop, RenewalTask};
use crate::tool::{ReceiptPolicy, ReceiptScope};

/// Longest poll interval while another process executes an identical call.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of claims of this process, so that each has a name of its own.
static CLAIM_COUNT: AtomicU64 = AtomicU64::new(0);

/// The receipts and claims of one run.
#[derive(Clone, Copy)]
pub(crate) struct RunReceipts<'a> {
    pub(crate) cache: &'a ReceiptCache,
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
pub(crate) enum ClaimVerdict<'a> {
    /// The call may run, with a key of this generation.
    Claimed { claim: Box<ExecutionClaim<'a>>, generation: u32 },
    /// An identical call has completed with this output.
    Completed(OutputContent),
}

/// A claim to execute a call. Identical calls wait until it is published or dropped.
pub(crate) struct ExecutionClaim<'a> {
    in_flight: InFlight<'a>,
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

/// A claim in the store. It is renewed while it is held, and given back when it is dropped.
pub(crate) struct SharedExecutionClaim {
    store: Arc<dyn Store>,
    key: ReceiptKey,
    owner: String,
    /// The renewal, until the claim ends.
    renewal: Option<RenewalTask>,
}

impl<'a> RunReceipts<'a> {
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

    /// Claims the execution of an idempotent call, and waits while an identical one is in flight. Returns `None` if the
    /// call stops first.
    pub(crate) async fn claim(
        &self,
        call: ReceiptRequest<'_>,
        stop: CallStop<'_>,
    ) -> Result<Option<ClaimVerdict<'a>>, StoreError> {
        let (in_flight, local_generation) = loop {
            match self.cache.claim(call.digest, self.receipt_age(call)) {
                LocalReceiptClaim::Acquired { in_flight, generation } => break (in_flight, generation),
                LocalReceiptClaim::Completed(output) => return Ok(Some(ClaimVerdict::Completed(output))),
                LocalReceiptClaim::InProgress(landed) => {
                    let settled = stop.unless_stopped(landed.cancelled()).await;
                    // Whoever settled may have ended the run.
                    if settled.is_none() || stop.is_stopped() {
                        return Ok(None);
                    }
                }
            }
        };
        let (shared, generation) = match self.shared_key(call) {
            Some((store, owner, key)) => match self.claim_shared(store, owner, key, stop).await? {
                Some(SharedVerdict::Claimed { claim, generation }) => (Some(*claim), generation),
                Some(SharedVerdict::Completed(output)) => return Ok(Some(ClaimVerdict::Completed(output))),
                None => return Ok(None),
            },
            None => (None, local_generation),
        };
        let claim = ExecutionClaim { in_flight, shared }.into();
        Ok(Some(ClaimVerdict::Claimed { claim, generation }))
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

impl ExecutionClaim<'_> {
    /// Returns the place for the call's receipt, if it is shared beyond this run.
    pub(crate) fn destination(&self, expire_after: Option<Duration>) -> Option<ReceiptDestination> {
        let shared = self.shared.as_ref()?;
        Some(ReceiptDestination { key: shared.key.clone(), owner: shared.owner.clone(), expire_after })
    }

    /// Ends the claim of a call that has settled or stopped. The receipt, if it left one, was written with the
    /// settlement and has ended the claim in the store.
    pub(crate) async fn end(self) -> Result<(), StoreError> {
        let Self { in_flight, shared } = self;
        let Some(mut shared) = shared else { return Ok(()) };
        if let Some(renewal) = shared.renewal.take() {
            renewal.end().await;
        }
        match in_flight.has_receipt() {
            true => Ok(()),
            false => shared.store.release_receipt(&shared.key, &shared.owner).await,
        }
    }
}

impl SharedExecutionClaim {
    /// Renews a claim that was granted with this generation.
    pub(super) fn new(
        store: Arc<dyn Store>,
        key: ReceiptKey,
        owner: String,
        generation: u32,
        lasting: Duration,
    ) -> Self {
        let renewal = {
            let (store, key, owner) = (store.clone(), key.clone(), owner.clone());
            RenewalTask::spawn(lasting, async move |stop| {
                let clock = RunClock::start();
                while stop.run_until_cancelled(tokio::time::sleep(lasting / 3)).await.is_some() {
                    let claim = LeaseClaim { owner: &owner, now: clock.now(), duration: lasting };
                    match store.claim_receipt(&key, claim, None).await {
                        Ok(ReceiptClaim::Acquired { generation: now }) if now != generation => {
                            // The call has settled, and its receipt has expired since.
                            release_claim(&*store, &key, &owner).await;
                            return;
                        }
                        Ok(ReceiptClaim::Completed(_)) => return,
                        Ok(ReceiptClaim::Acquired { .. } | ReceiptClaim::InProgress(_)) => {}
                        Err(error) => {
                            tracing::warn!(%error, "the right to make a call could not be renewed");
                        }
                    }
                }
            })
        };
        Self { store, key, owner, renewal: Some(renewal) }
    }
}

/// Releases the claim of a call that was dropped. A failure is only logged: then the claim is abandoned.
async fn release_claim(store: &dyn Store, key: &ReceiptKey, owner: &str) {
    if let Err(error) = store.release_receipt(key, owner).await {
        tracing::warn!(%error, "the right to make a call could not be given back");
    }
}

impl Drop for SharedExecutionClaim {
    fn drop(&mut self) {
        if let Some(renewal) = self.renewal.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (store, key, owner) = (self.store.clone(), self.key.clone(), self.owner.clone());
            runtime.spawn(async move {
                renewal.end().await;
                release_claim(&*store, &key, &owner).await;
            });
        }
    }
}
