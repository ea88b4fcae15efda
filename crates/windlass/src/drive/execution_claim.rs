//! Execution claims of idempotent calls: in this run, and, for shared receipts, in the whole store.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use windlass_core::{canonical::Digest, journal::CallStatus};

use super::call_execution::CallExecution;
use super::call_result::CallResult;
use super::receipt_cache::{InFlight, LocalReceiptClaim, ReceiptAge};
use super::stop::{unless_stopped, wait_unless_stopped};
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

/// A claim in the store. It is renewed while it is held.
struct SharedExecutionClaim {
    store: Arc<dyn Store>,
    key: ReceiptKey,
    owner: String,
    renewal_task: JoinHandle<()>,
    is_held: bool,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Returns the receipt of an identical call in this run, if any.
    pub(super) fn find_receipt(&self, work: &CallExecution<'_, C>) -> Option<CallResult> {
        let digest = work.prepared.tool.receipt_digest(&work.prepared.arguments)?;
        let output = self.shared.receipt_cache.find_receipt(&digest, self.receipt_age(work))?;
        Some(CallResult::new(CallStatus::Deduplicated, output))
    }

    /// Claims the execution of an idempotent call, or returns the result of an identical one.
    pub(super) async fn claim_execution(
        &self,
        work: &CallExecution<'_, C>,
    ) -> Result<Result<Option<Box<ExecutionClaim<'_>>>, Box<CallResult>>, DriveError> {
        let Some(digest) = work.prepared.tool.receipt_digest(&work.prepared.arguments) else {
            return Ok(Ok(None));
        };
        let flight = loop {
            match self.shared.receipt_cache.claim(digest, self.receipt_age(work)) {
                LocalReceiptClaim::Acquired(flight) => break flight,
                LocalReceiptClaim::Completed(output) => {
                    return Ok(Err(CallResult::new(CallStatus::Deduplicated, output).into()));
                }
                LocalReceiptClaim::InProgress(landed) => {
                    if wait_unless_stopped(&work.turn.stop, landed.cancelled()).await.is_none() {
                        return Ok(Err(CallResult::cancelled().into()));
                    }
                }
            }
        };
        let shared = match self.shared_receipt_key(digest, work) {
            Some((store, owner, key)) => match self.claim_shared_execution(store, owner, key, work).await? {
                Ok(shared) => Some(shared),
                Err(given) => return Ok(Err(given.into())),
            },
            None => None,
        };
        Ok(Ok(Some(ExecutionClaim { in_flight: flight, shared }.into())))
    }

    async fn claim_shared_execution(
        &self,
        store: Arc<dyn Store>,
        owner: String,
        key: ReceiptKey,
        work: &CallExecution<'_, C>,
    ) -> Result<Result<SharedExecutionClaim, CallResult>, DriveError> {
        loop {
            let claim = LeaseClaim::for_duration(&owner, self.shared.journal.now(), DEFAULT_LEASE_DURATION);
            match store.claim_receipt(&key, claim).await? {
                ReceiptClaim::Acquired => return Ok(Ok(SharedExecutionClaim::new(store, key, owner))),
                ReceiptClaim::Completed(output) => {
                    return Ok(Err(CallResult::new(CallStatus::Deduplicated, output)));
                }
                ReceiptClaim::InProgress { .. } => {
                    if unless_stopped(&work.turn.stop, tokio::time::sleep(CLAIM_POLL_INTERVAL))
                        .await
                        .is_none()
                    {
                        return Ok(Err(CallResult::cancelled()));
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

    /// Publishes the receipt of a call, or releases its claim if there is none.
    pub(super) async fn publish_result(
        &self,
        right: ExecutionClaim<'_>,
        work_expires: Option<Duration>,
    ) -> Result<(), DriveError> {
        let ExecutionClaim { in_flight: flight, shared } = right;
        if let Some(mut shared) = shared {
            shared.is_held = false;
            match flight.result() {
                Some(output) => {
                    let expires =
                        work_expires.map(|lasting| self.shared.journal.now().saturating_add(lasting));
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
