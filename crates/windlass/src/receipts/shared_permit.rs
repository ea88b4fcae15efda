//! The permits of limits that processes share. Each place of a limit is a claim in the store.
//!
//! A claim is a lease by observation, so a place whose process has died is free again, and no clock decides. The places of
//! a rate are occupied for the whole period, also if the process dies: its death is not looked at.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass_core::canonical::Digest;

use super::store_claim::SharedExecutionClaim;
use super::{BodyLimit, BodyPatience, BodyPermits, WaitVerdict};
use crate::clock::RunClock;
use crate::error::StoreError;
use crate::journal::RunJournal;
use crate::store::{LeaseClaim, LeaseStanding, LeaseWatch, ReceiptClaim, ReceiptKey, Store, StoredLease};
use crate::tasks::CallStop;
use crate::tool::SharedLimit;

/// Largest number of places that are tried before the next wait.
const MAX_TRIED_PLACES: u32 = 8;
/// First wait while all tried places are occupied; it doubles up to [`MAX_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(10);
const MAX_WAIT: Duration = Duration::from_millis(160);
/// Number of permits of this process, so that each has an owner of its own and begins at another place.
static PERMIT_COUNT: AtomicU64 = AtomicU64::new(0);

/// The permit to run a body under a shared limit.
pub(super) enum SharedPermit {
    /// It is given back when it is dropped.
    Concurrency(#[expect(dead_code, reason = "it is held")] SharedExecutionClaim),
    /// It is given back when the period has passed.
    Rate,
}

/// The places of one limit, as one call has seen them.
struct LimitPlaces<'a> {
    store: &'a Arc<dyn Store>,
    limit: &'a SharedLimit,
    owner: String,
    duration: Duration,
    watches: Vec<LeaseWatch>,
}

impl BodyPermits {
    /// Acquires the permits of the limits that processes share, then those of this process.
    ///
    /// Shared permits are taken in the order of their names, so that bodies with several limits do not wait for each other
    /// in a circle.
    pub(crate) async fn acquire(
        journal: &RunJournal,
        shared_limits: &[SharedLimit],
        lease_duration: Duration,
        of_process: impl IntoIterator<Item = &Arc<BodyLimit>>,
        patience: BodyPatience<'_>,
    ) -> Result<WaitVerdict<Self>, StoreError> {
        let mut limits: Vec<&SharedLimit> = shared_limits.iter().collect();
        limits.sort_by(|one, other| one.name().cmp(other.name()));
        let mut shared = Vec::with_capacity(limits.len());
        for limit in limits {
            // A run without a store is refused before its calls are planned.
            let Some((store, driver)) = journal.store_and_owner() else { break };
            match acquire_permit(store, driver, limit, lease_duration, patience.stop).await? {
                Some(permit) => shared.push(permit),
                None => return Ok(WaitVerdict::Stopped),
            }
        }
        Ok(Self::with_shared(shared).acquire_local(of_process, patience).await)
    }
}

/// Acquires a permit of a limit, and waits while all of its places are occupied. Returns `None` if the call stops first.
async fn acquire_permit(
    store: &Arc<dyn Store>,
    driver: &str,
    limit: &SharedLimit,
    lease_duration: Duration,
    stop: CallStop<'_>,
) -> Result<Option<SharedPermit>, StoreError> {
    let number = PERMIT_COUNT.fetch_add(1, Ordering::Relaxed);
    let (owner, duration) = match limit.period() {
        None => (format!("{driver}/permit#{number}"), lease_duration),
        // Not the name of a process: the place stays occupied when the process dies.
        Some(period) => (format!("rate/{driver}#{number}"), period),
    };
    let watches = (0..limit.bodies()).map(|_| LeaseWatch::new()).collect();
    let mut places = LimitPlaces { store, limit, owner, duration, watches };
    // Spreads the callers over the places.
    let mut next = u32::from(Digest::of_text(&places.owner).as_bytes()[0]);
    let mut wait = FIRST_WAIT;
    loop {
        for _ in 0..limit.bodies().min(MAX_TRIED_PLACES) {
            next = (next + 1) % limit.bodies();
            if places.try_place(next).await? {
                return Ok(Some(places.into_permit(next)));
            }
        }
        if stop.unless_stopped(tokio::time::sleep(wait)).await.is_none() {
            return Ok(None);
        }
        wait = (wait * 2).min(MAX_WAIT);
    }
}

impl LimitPlaces<'_> {
    fn key(&self, place: u32) -> ReceiptKey {
        let name = format!("{}/{place}", self.limit.name());
        ReceiptKey { scope: "windlass:limit".to_owned(), digest: Digest::of_text(&name) }
    }

    /// Occupies a place that is free or whose owner has abandoned it. Returns false if it is occupied.
    async fn try_place(&mut self, place: u32) -> Result<bool, StoreError> {
        let key = self.key(place);
        let mut abandoned: Option<StoredLease> = None;
        loop {
            let now = RunClock::start().now();
            let claim = LeaseClaim { owner: &self.owner, now, duration: self.duration };
            match self.store.claim_receipt(&key, claim, abandoned.as_ref()).await? {
                ReceiptClaim::Acquired { .. } => return Ok(true),
                // Nobody writes a receipt for a place.
                ReceiptClaim::Completed(_) => return Ok(false),
                ReceiptClaim::InProgress(held) => match self.watches[place as usize].look(held) {
                    LeaseStanding::Abandoned(lease) if abandoned.is_none() => abandoned = Some(lease),
                    LeaseStanding::Free | LeaseStanding::Abandoned(_) | LeaseStanding::Held { .. } => {
                        return Ok(false);
                    }
                },
            }
        }
    }

    fn into_permit(self, place: u32) -> SharedPermit {
        let (store, key) = (self.store.clone(), self.key(place));
        let Some(period) = self.limit.period() else {
            return SharedPermit::Concurrency(SharedExecutionClaim::new(
                store,
                key,
                self.owner,
                0,
                self.duration,
            ));
        };
        let owner = self.owner;
        tokio::spawn(async move {
            tokio::time::sleep(period).await;
            if let Err(error) = store.release_receipt(&key, &owner).await {
                tracing::warn!(%error, "a place of a shared rate could not be given back; it is free after its period");
            }
        });
        SharedPermit::Rate
    }
}
