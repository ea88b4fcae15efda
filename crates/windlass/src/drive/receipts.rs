//! Receipts of idempotent calls, and the claims to execute them: in this run, and, for shared receipts, in the whole store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use windlass_core::{canonical::Digest, item::OutputContent, run::ReceiptVerdict};

use super::call::CallExecution;
use super::{DriveError, Driver};
use crate::clock::RunClock;
use crate::receipts::{InFlight, LocalReceiptClaim, ReceiptAge};
use crate::store::{
    LeaseClaim, LeaseStanding, LeaseWatch, ReceiptClaim, ReceiptKey, Store, StoredLease, poll_interval,
};
use crate::tool::ReceiptScope;

/// Longest poll interval while another process executes an identical call.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of claims of this process, so that each has a name of its own.
static CLAIM_COUNT: AtomicU64 = AtomicU64::new(0);

/// A claim to execute a call. Identical calls wait until it is published or dropped.
pub(super) struct ExecutionClaim<'a> {
    in_flight: InFlight<'a>,
    shared: Option<SharedExecutionClaim>,
}

/// The answer of the store to a claim.
enum SharedVerdict {
    Claimed { claim: Box<SharedExecutionClaim>, generation: u32 },
    Completed(OutputContent),
}

/// A claim in the store. It is renewed while it is held.
struct SharedExecutionClaim {
    store: Arc<dyn Store>,
    key: ReceiptKey,
    owner: String,
    renewal_task: JoinHandle<()>,
    is_held: bool,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Returns true if there is a receipt of an identical call: of this run, or of another one within the receipt's scope.
    pub(super) async fn has_receipt(&self, work: &CallExecution<'_, C>) -> Result<bool, DriveError> {
        let Some(digest) = work.receipt_digest() else { return Ok(false) };
        if self.shared.receipt_cache.find_receipt(&digest, self.receipt_age(work)).is_some() {
            return Ok(true);
        }
        match self.shared_receipt_key(digest, work) {
            Some((store, _, key)) => Ok(store.find_receipt(&key, self.shared.journal.now()).await?.is_some()),
            None => Ok(false),
        }
    }

    /// Claims the execution of an idempotent call, and waits while an identical one is in flight. Returns `None` if the
    /// call stops first.
    pub(super) async fn claim_receipt<'a>(
        &'a self,
        work: &mut CallExecution<'a, C>,
    ) -> Result<Option<ReceiptVerdict>, DriveError> {
        let Some(digest) = work.receipt_digest() else { return Ok(Some(ReceiptVerdict::Claimed)) };
        self.shared.key_scopes.check_tool(work.turn.agent.name(), &work.prepared.tool)?;
        let (in_flight, local_generation) = loop {
            match self.shared.receipt_cache.claim(digest, self.receipt_age(work)) {
                LocalReceiptClaim::Acquired { in_flight, generation } => break (in_flight, generation),
                LocalReceiptClaim::Completed(output) => {
                    return Ok(Some(ReceiptVerdict::Completed(output)));
                }
                LocalReceiptClaim::InProgress(landed) => {
                    let settled = work.stop().unless_stopped(landed.cancelled()).await;
                    // Whoever settled may have ended the run.
                    if settled.is_none() || work.stop().is_stopped() {
                        return Ok(None);
                    }
                }
            }
        };
        let (shared, generation) = match self.shared_receipt_key(digest, work) {
            Some((store, owner, key)) => match self.claim_shared_receipt(store, owner, key, work).await? {
                Some(SharedVerdict::Claimed { claim, generation }) => (Some(*claim), generation),
                Some(SharedVerdict::Completed(output)) => {
                    return Ok(Some(ReceiptVerdict::Completed(output)));
                }
                None => return Ok(None),
            },
            None => (None, local_generation),
        };
        work.ctx.fix_key(generation);
        work.claim = Some(ExecutionClaim { in_flight, shared }.into());
        Ok(Some(ReceiptVerdict::Claimed))
    }

    async fn claim_shared_receipt(
        &self,
        store: Arc<dyn Store>,
        owner: String,
        key: ReceiptKey,
        work: &CallExecution<'_, C>,
    ) -> Result<Option<SharedVerdict>, DriveError> {
        let duration = self.shared.config.lease_duration;
        let mut watch = LeaseWatch::new();
        let mut abandoned: Option<StoredLease> = None;
        loop {
            let claim = LeaseClaim { owner: &owner, now: self.shared.journal.now(), duration };
            match store.claim_receipt(&key, claim, abandoned.take().as_ref()).await? {
                ReceiptClaim::Acquired { generation } => {
                    let claim = SharedExecutionClaim::new(store, key, owner, duration).into();
                    return Ok(Some(SharedVerdict::Claimed { claim, generation }));
                }
                ReceiptClaim::Completed(output) => return Ok(Some(SharedVerdict::Completed(output))),
                ReceiptClaim::InProgress(held) => match watch.look(held) {
                    LeaseStanding::Free => {}
                    LeaseStanding::Abandoned(lease) => abandoned = Some(lease),
                    LeaseStanding::Held { lease, remaining, .. } => {
                        let wait = poll_interval(&lease, remaining).min(CLAIM_POLL_INTERVAL);
                        if work.stop().unless_stopped(tokio::time::sleep(wait)).await.is_none() {
                            return Ok(None);
                        }
                    }
                },
            }
        }
    }

    /// Returns the store, the owner name and the key of a receipt that is shared beyond this run.
    fn shared_receipt_key(
        &self,
        digest: Digest,
        work: &CallExecution<'_, C>,
    ) -> Option<(Arc<dyn Store>, String, ReceiptKey)> {
        let (store, driver) = self.shared.journal.store_and_owner()?;
        let scope = match work.prepared.tool.receipt_policy.scope {
            ReceiptScope::Call | ReceiptScope::Run => return None,
            ReceiptScope::Session => format!("session:{}", self.shared.key_scopes.session()?),
            ReceiptScope::Store => String::new(),
        };
        // Each claim has a name of its own: its beat alone tells a contender that its owner is alive.
        let number = CLAIM_COUNT.fetch_add(1, Ordering::Relaxed);
        let owner = format!("{driver}/{}#{number}", work.ctx.call_path());
        Some((store.clone(), owner, ReceiptKey { scope, digest }))
    }

    fn receipt_age(&self, work: &CallExecution<'_, C>) -> ReceiptAge {
        ReceiptAge {
            now: self.shared.journal.now(),
            expire_after: work.prepared.tool.receipt_policy.expire_after,
        }
    }

    /// Publishes the receipt of a call, or releases its claim if it left none.
    pub(super) async fn publish_receipt(
        &self,
        work: &mut CallExecution<'_, C>,
        expire_after: Option<Duration>,
    ) -> Result<(), DriveError> {
        let Some(claim) = work.claim.take() else { return Ok(()) };
        let ExecutionClaim { in_flight, shared } = *claim;
        if let Some(mut shared) = shared {
            shared.is_held = false;
            match in_flight.result() {
                Some(output) => {
                    let expires =
                        expire_after.map(|lasting| self.shared.journal.now().saturating_add(lasting));
                    shared.store.save_receipt(&shared.key, &shared.owner, &output, expires).await?;
                }
                None => shared.store.release_receipt(&shared.key, &shared.owner).await?,
            }
        }
        Ok(())
    }
}

impl SharedExecutionClaim {
    fn new(store: Arc<dyn Store>, key: ReceiptKey, owner: String, lasting: Duration) -> Self {
        let renewal = tokio::spawn({
            let (store, key, owner) = (store.clone(), key.clone(), owner.clone());
            async move {
                let clock = RunClock::start();
                loop {
                    tokio::time::sleep(lasting / 3).await;
                    let claim = LeaseClaim { owner: &owner, now: clock.now(), duration: lasting };
                    if let Err(error) = store.claim_receipt(&key, claim, None).await {
                        tracing::warn!(%error, "the right to make a call could not be renewed");
                    }
                }
            }
        });
        Self { store, key, owner, renewal_task: renewal, is_held: true }
    }
}

impl Drop for SharedExecutionClaim {
    fn drop(&mut self) {
        self.renewal_task.abort();
        if self.is_held
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (store, key, owner) = (self.store.clone(), self.key.clone(), self.owner.clone());
            runtime.spawn(async move {
                if let Err(error) = store.release_receipt(&key, &owner).await {
                    tracing::warn!(%error, "the right to make a call could not be given back");
                }
            });
        }
    }
}
