//! A claim in the store: of a shared receipt, or of a place of a shared limit. It is renewed while it is held.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::RunClock;
use crate::error::StoreError;
use crate::store::{LeaseClaim, ReceiptClaim, ReceiptKey, Store};
use crate::tasks::RenewalTask;

/// A claim in the store. It is renewed while it is held, and given back when it is dropped.
pub(super) struct SharedExecutionClaim {
    store: Arc<dyn Store>,
    pub(super) key: ReceiptKey,
    pub(super) owner: String,
    /// The renewal, until the claim ends.
    renewal: Option<RenewalTask>,
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

    /// Ends the claim, which a receipt has ended in the store already. A renewal that is on its way arrives before.
    pub(super) async fn end(mut self, has_receipt: bool) -> Result<(), StoreError> {
        if let Some(renewal) = self.renewal.take() {
            renewal.end().await;
        }
        match has_receipt {
            true => Ok(()),
            false => self.store.release_receipt(&self.key, &self.owner).await,
        }
    }
}

/// Releases a claim that was dropped. A failure is only logged: then the claim is abandoned.
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
