//! A correction of a decision that a driver has taken without the start, or the settlement, being durable yet.
//!
//! Invariant: a decision is taken when the journal says so. A driver that took one and is alive makes it durable at once;
//! one that has died never does, and its lease is ended here, so that its mark does not refuse corrections.

use std::time::Duration;

use tokio::time::Instant;
use windlass_core::id::RunId;

use super::{LeaseClaim, LeaseObserver, LeaseOwner, LeaseStanding, Store, poll_interval};
use crate::clock::RunClock;
use crate::error::{StoreError, StoreErrorKind};

/// Longest wait for a live driver that has taken a decision and does not record what follows from it.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Number of refusals after which a run that no driver holds is given up.
const MAX_FREE_REFUSALS: u32 = 16;

/// The wait for the driver that has taken a decision.
pub(super) struct TakenDecisionWait {
    observer: LeaseObserver,
    started_at: Instant,
    free_refusals: u32,
}

impl TakenDecisionWait {
    pub(super) fn new() -> Self {
        Self { observer: LeaseObserver::new(), started_at: Instant::now(), free_refusals: 0 }
    }

    /// Waits until it is worthwhile to look at the journal again, and ends the lease of a driver that has died or has not
    /// renewed it for its whole duration.
    ///
    /// # Errors
    ///
    /// Returns the refusal if the driver renews its lease and records nothing.
    pub(super) async fn wait(
        &mut self,
        store: &dyn Store,
        run: &RunId,
        refusal: StoreError,
    ) -> Result<(), StoreError> {
        let abandoned = match self.observer.observe(store, run).await? {
            LeaseStanding::Free => {
                self.free_refusals += 1;
                return if self.free_refusals < MAX_FREE_REFUSALS { Ok(()) } else { Err(refusal) };
            }
            LeaseStanding::Abandoned(lease) => lease,
            LeaseStanding::Held { lease, remaining, .. } => {
                if self.started_at.elapsed() >= MAX_WAIT.min(lease.duration * 2) {
                    return Err(refusal);
                }
                tokio::time::sleep(poll_interval(&lease, remaining)).await;
                return Ok(());
            }
        };
        let owner = LeaseOwner::for_new_driver().to_string();
        let claim = LeaseClaim { owner: &owner, now: RunClock::start().now(), duration: abandoned.duration };
        match store.acquire_lease(run, claim, Some(&abandoned)).await {
            Ok(lease) => store.release_lease(&lease).await,
            // Another driver was faster.
            Err(error) if error.kind() == StoreErrorKind::LeaseHeld => Ok(()),
            Err(error) => Err(error),
        }
    }
}
