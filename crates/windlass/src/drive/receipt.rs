//! The right to make an idempotent call: in this run, and where its results are shared, in the whole store.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use windlass_core::{Digest, How};

use super::call::CallWork;
use super::ledger::{Age, Claim, Flight};
use super::stop::{unless_stopped, waited_for};
use super::told::Given;
use super::{Driver, Halt};
use crate::clock::Clock;
use crate::store::{LEASE, LeaseClaim, ReceiptClaim, ReceiptKey, Store};
use crate::tool::Scope;

/// How often a call asks whether somebody else's identical one has ended.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// The right to make a call. Identical calls wait until it is landed or dropped.
pub(super) struct Right<'a> {
    flight: Flight<'a>,
    shared: Option<SharedRight>,
}

/// The right to make a call, in a store. It is renewed while it is held.
struct SharedRight {
    store: Arc<dyn Store>,
    key: ReceiptKey,
    owner: String,
    renewal: JoinHandle<()>,
    is_held: bool,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// The result of an identical call in this run, where there is one.
    pub(super) fn receipt(&self, work: &CallWork<'_, C>) -> Option<Given> {
        let digest = work.ready.tool.receipt(&work.ready.arguments)?;
        let output = self.shared.ledger.receipt(&digest, self.age(work))?;
        Some(Given::new(How::Receipt, output))
    }

    /// For an idempotent tool: the right to run, or what an identical call gives.
    pub(super) async fn claim(
        &self,
        work: &CallWork<'_, C>,
    ) -> Result<Result<Option<Box<Right<'_>>>, Box<Given>>, Halt> {
        let Some(digest) = work.ready.tool.receipt(&work.ready.arguments) else { return Ok(Ok(None)) };
        let flight = loop {
            match self.shared.ledger.claim(digest, self.age(work)) {
                Claim::Mine(flight) => break flight,
                Claim::Receipt(output) => return Ok(Err(Given::new(How::Receipt, output).into())),
                Claim::Wait(landed) => {
                    if waited_for(&work.turn.stop, landed.cancelled()).await.is_none() {
                        return Ok(Err(Given::cancelled().into()));
                    }
                }
            }
        };
        let shared = match self.shared_key(digest, work) {
            Some((store, owner, key)) => match self.claim_shared(store, owner, key, work).await? {
                Ok(shared) => Some(shared),
                Err(given) => return Ok(Err(given.into())),
            },
            None => None,
        };
        Ok(Ok(Some(Right { flight, shared }.into())))
    }

    async fn claim_shared(
        &self,
        store: Arc<dyn Store>,
        owner: String,
        key: ReceiptKey,
        work: &CallWork<'_, C>,
    ) -> Result<Result<SharedRight, Given>, Halt> {
        loop {
            let claim = LeaseClaim::lasting(&owner, self.shared.journal.now(), LEASE);
            match store.claim_receipt(&key, claim).await? {
                ReceiptClaim::Mine => return Ok(Ok(SharedRight::new(store, key, owner))),
                ReceiptClaim::Receipt(output) => return Ok(Err(Given::new(How::Receipt, output))),
                ReceiptClaim::Busy { .. } => {
                    if unless_stopped(&work.turn.stop, tokio::time::sleep(ASK_AGAIN)).await.is_none() {
                        return Ok(Err(Given::cancelled()));
                    }
                }
            }
        }
    }

    /// Where a call's result is shared beyond its run: the store, the name to claim under, and the key.
    fn shared_key(
        &self,
        digest: Digest,
        work: &CallWork<'_, C>,
    ) -> Option<(Arc<dyn Store>, String, ReceiptKey)> {
        let (store, driver) = self.shared.journal.store()?;
        let scope = match work.ready.tool.receipts.scope {
            Scope::Call | Scope::Run => return None,
            Scope::Session => format!("session:{}", self.shared.config.session.as_ref()?.id()),
            Scope::Store => String::new(),
        };
        // One driver may have several calls under way, so each claims under its own name.
        let owner = format!("{driver}/{}", work.ctx.path());
        Some((store.clone(), owner, ReceiptKey { scope, digest }))
    }

    fn age(&self, work: &CallWork<'_, C>) -> Age {
        Age { now: self.shared.journal.now(), expire_after: work.ready.tool.receipts.expire_after }
    }

    /// Shares what the call left, or gives the right to make it back.
    pub(super) async fn land(&self, right: Right<'_>, work_expires: Option<Duration>) -> Result<(), Halt> {
        let Right { flight, shared } = right;
        if let Some(mut shared) = shared {
            shared.is_held = false;
            match flight.result() {
                Some(output) => {
                    let expires = work_expires.map(|lasting| self.shared.journal.now().after(lasting));
                    shared.store.keep_receipt(&shared.key, &shared.owner, &output, expires).await?;
                }
                None => shared.store.give_up_receipt(&shared.key, &shared.owner).await?,
            }
        }
        Ok(())
    }
}

impl SharedRight {
    fn new(store: Arc<dyn Store>, key: ReceiptKey, owner: String) -> Self {
        let renewal = tokio::spawn({
            let (store, key, owner) = (store.clone(), key.clone(), owner.clone());
            async move {
                let clock = Clock::start();
                loop {
                    tokio::time::sleep(LEASE / 3).await;
                    let claim = LeaseClaim::lasting(&owner, clock.now(), LEASE);
                    if let Err(error) = store.claim_receipt(&key, claim).await {
                        tracing::warn!(%error, "the right to make a call could not be renewed");
                    }
                }
            }
        });
        Self { store, key, owner, renewal, is_held: true }
    }
}

impl Drop for SharedRight {
    fn drop(&mut self) {
        self.renewal.abort();
        if self.is_held
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (store, key, owner) = (self.store.clone(), self.key.clone(), self.owner.clone());
            runtime.spawn(async move {
                if let Err(error) = store.give_up_receipt(&key, &owner).await {
                    tracing::warn!(%error, "the right to make a call could not be given back");
                }
            });
        }
    }
}
