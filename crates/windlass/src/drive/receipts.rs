//! Receipts of idempotent calls, and the claims to execute them: in this run, and, for shared receipts, in the whole store.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use windlass_core::{canonical::Digest, item::OutputContent, run::ReceiptVerdict};

use super::call::CallExecution;
use super::receipt_cache::{InFlight, LocalReceiptClaim, ReceiptAge};
use super::{DriveError, Driver};
use crate::clock::RunClock;
use crate::store::{DEFAULT_LEASE_DURATION, LeaseClaim, ReceiptClaim, ReceiptKey, Store};
use crate::tool::ReceiptScope;

/// Poll interval while another process executes an identical call.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A claim to execute a call. Identical calls wait until it is published or dropped.
pub(super) struct ExecutionClaim<'a> {
    in_flight: InFlight<'a>,
    shared: Option<SharedExecutionClaim>,
}

/// The answer of the store to a claim.
enum SharedVerdict {
    Claimed(Box<SharedExecutionClaim>),
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
    /// Returns true if this run has the receipt of an identical call.
    pub(super) fn has_receipt(&self, work: &CallExecution<'_, C>) -> bool {
        let Some(digest) = work.prepared.receipt_digest else { return false };
        self.shared.receipt_cache.find_receipt(&digest, self.receipt_age(work)).is_some()
    }

    /// Claims the execution of an idempotent call, and waits while an identical one is in flight. Returns `None` if the
    /// call stops first.
    pub(super) async fn claim_receipt<'a>(
        &'a self,
        work: &mut CallExecution<'a, C>,
    ) -> Result<Option<ReceiptVerdict>, DriveError> {
        let Some(digest) = work.prepared.receipt_digest else { return Ok(Some(ReceiptVerdict::Claimed)) };
        let in_flight = loop {
            match self.shared.receipt_cache.claim(digest, self.receipt_age(work)) {
                LocalReceiptClaim::Acquired(in_flight) => break in_flight,
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
        let shared = match self.shared_receipt_key(digest, work) {
            Some((store, owner, key)) => match self.claim_shared_receipt(store, owner, key, work).await? {
                Some(SharedVerdict::Claimed(shared)) => Some(*shared),
                Some(SharedVerdict::Completed(output)) => {
                    return Ok(Some(ReceiptVerdict::Completed(output)));
                }
                None => return Ok(None),
            },
            None => None,
        };
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
        loop {
            let claim = LeaseClaim::for_duration(&owner, self.shared.journal.now(), DEFAULT_LEASE_DURATION);
            match store.claim_receipt(&key, claim).await? {
                ReceiptClaim::Acquired => {
                    let shared = SharedExecutionClaim::new(store, key, owner);
                    return Ok(Some(SharedVerdict::Claimed(shared.into())));
                }
                ReceiptClaim::Completed(output) => return Ok(Some(SharedVerdict::Completed(output))),
                ReceiptClaim::InProgress { .. } => {
                    let waited = work.stop().unless_stopped(tokio::time::sleep(CLAIM_POLL_INTERVAL)).await;
                    if waited.is_none() {
                        return Ok(None);
                    }
                }
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
            ReceiptScope::Session => format!("session:{}", self.shared.config.session.as_ref()?.id()),
            ReceiptScope::Store => String::new(),
        };
        // One driver may have several calls under way, so each claims under its own name.
        let owner = format!("{driver}/{}", work.ctx.call_path());
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
    fn new(store: Arc<dyn Store>, key: ReceiptKey, owner: String) -> Self {
        let renewal = tokio::spawn({
            let (store, key, owner) = (store.clone(), key.clone(), owner.clone());
            async move {
                let clock = RunClock::start();
                loop {
                    tokio::time::sleep(DEFAULT_LEASE_DURATION / 3).await;
                    let claim = LeaseClaim::for_duration(&owner, clock.now(), DEFAULT_LEASE_DURATION);
                    if let Err(error) = store.claim_receipt(&key, claim).await {
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
