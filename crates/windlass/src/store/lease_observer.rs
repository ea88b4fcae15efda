//! Take-over of leases by observation: only the contender's own monotonic clock decides.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use windlass_core::id::RunId;

use super::lease_owner::is_dead_owner;
use super::{Lease, LeaseClaim, Store, StoredLease};
use crate::clock::RunClock;
use crate::error::{StoreError, StoreErrorKind};

/// Maximum number of leases that an observer remembers. Beyond it the one that was seen the longest time ago is dropped,
/// and observed anew.
const MAX_OBSERVED_LEASES: usize = 10_000;
/// Longest interval between two looks at a lease.
pub(crate) const MAX_LEASE_POLL: Duration = Duration::from_millis(500);

/// The leases that this process has seen, and since when. A lease whose owner, epoch and beat stay the same for its whole
/// duration on this process's monotonic clock is abandoned, and so is one whose owner has provably died on this machine.
/// No wall clock decides.
///
/// A run that is recovered without an observer waits until it can tell. With one, it returns
/// [`StoreErrorKind::LeaseHeld`] at once, and later attempts with the same observer go on observing: a process that looks
/// after many runs has one observer for all of them. Clones share their observations.
#[derive(Clone, Debug, Default)]
pub struct LeaseObserver {
    watches: Arc<Mutex<BTreeMap<(String, RunId), LeaseWatch>>>,
}

/// The standing of a run's lease, as an observer has seen it so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseStanding {
    /// No driver holds the lease.
    Free,
    /// The owner has died, or has not renewed the lease for its whole duration. The run can be taken over.
    Abandoned(StoredLease),
    /// A driver holds the lease, as far as can be seen.
    Held {
        /// The lease.
        lease: StoredLease,
        /// Time until the lease is abandoned, unless it is renewed.
        remaining: Duration,
        /// True if the observer has seen a renewal: the driver is alive.
        is_renewed: bool,
    },
}

impl LeaseObserver {
    /// Creates an observer that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at the lease of a run.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, of the kind [`StoreErrorKind::RunNotFound`] if the run does not exist.
    pub async fn observe(&self, store: &dyn Store, run: &RunId) -> Result<LeaseStanding, StoreError> {
        let found = store.load_lease(run).await?;
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (store.store_id().to_owned(), run.clone());
        let Some(found) = found else {
            watches.remove(&key);
            return Ok(LeaseStanding::Free);
        };
        if !watches.contains_key(&key) && watches.len() >= MAX_OBSERVED_LEASES {
            let oldest = watches.iter().min_by_key(|(_, watch)| watch.last_looked_at);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                watches.remove(&oldest);
            }
        }
        Ok(watches.entry(key).or_insert_with(LeaseWatch::new).look(found))
    }

    /// Acquires the lease of a run, if it is free or abandoned.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::LeaseHeld`] if a driver holds the lease, with the time until it is
    /// abandoned: see [`StoreError::retry_after`].
    pub async fn acquire(
        &self,
        store: &dyn Store,
        run: &RunId,
        claim: LeaseClaim<'_>,
    ) -> Result<Lease, StoreError> {
        let seen = match self.observe(store, run).await? {
            LeaseStanding::Free => None,
            LeaseStanding::Abandoned(lease) => Some(lease),
            LeaseStanding::Held { lease, remaining, .. } => {
                return Err(StoreError::lease_held(run, &lease.owner).with_retry_after(remaining));
            }
        };
        let lease = store.acquire_lease(run, claim, seen.as_ref()).await?;
        self.forget(store, run);
        Ok(lease)
    }

    fn forget(&self, store: &dyn Store, run: &RunId) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.remove(&(store.store_id().to_owned(), run.clone()));
    }
}

/// One lease that this process watches.
#[derive(Debug)]
pub(crate) struct LeaseWatch {
    seen: Option<StoredLease>,
    since: Instant,
    last_looked_at: Instant,
    is_renewed: bool,
}

impl LeaseWatch {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { seen: None, since: now, last_looked_at: now, is_renewed: false }
    }

    /// Compares the lease with the one seen before. Call it after the lease was read: its owner promises to stop within
    /// the lease's duration from a moment that lies before the read ended.
    pub(crate) fn look(&mut self, lease: StoredLease) -> LeaseStanding {
        self.last_looked_at = Instant::now();
        match &self.seen {
            Some(seen) if seen.is_same_beat(&lease) => {}
            seen => {
                self.is_renewed = seen.as_ref().is_some_and(|seen| seen.is_same_owner(&lease));
                self.since = self.last_looked_at;
                self.seen = Some(lease.clone());
            }
        }
        let remaining = lease.duration.saturating_sub(self.last_looked_at.duration_since(self.since));
        match remaining.is_zero() || is_dead_owner(&lease.owner) {
            true => LeaseStanding::Abandoned(lease),
            false => LeaseStanding::Held { lease, remaining, is_renewed: self.is_renewed },
        }
    }
}

/// Returns the time until the next look at a lease that is abandoned after `remaining`.
pub(crate) fn poll_interval(lease: &StoredLease, remaining: Duration) -> Duration {
    remaining.min(lease.duration / 8).clamp(Duration::from_millis(1), MAX_LEASE_POLL)
}

/// A lease that was acquired.
pub(crate) struct AcquiredLease {
    pub(crate) lease: Lease,
    /// Instant before the lease was requested: its owner must stop within the lease's duration from here.
    pub(crate) requested_at: Instant,
    /// The lease that was taken over.
    pub(crate) previous: Option<StoredLease>,
}

/// Acquires the lease of a run: at once if it is free or abandoned; else with an observer not at all, and without one as
/// soon as the lease turns out to be abandoned.
///
/// # Errors
///
/// Returns an error of the kind [`StoreErrorKind::LeaseHeld`] if a driver holds the lease: with an observer at once,
/// without one when a renewal was seen or `cancel` fires.
pub(crate) async fn acquire_lease(
    store: &dyn Store,
    run: &RunId,
    owner: &str,
    duration: Duration,
    shared: Option<&LeaseObserver>,
    cancel: &CancellationToken,
) -> Result<AcquiredLease, StoreError> {
    let observer = shared.cloned().unwrap_or_default();
    let mut previous = None;
    loop {
        let requested_at = Instant::now();
        let claim = LeaseClaim { owner, now: RunClock::start().now(), duration };
        match store.acquire_lease(run, claim, previous.as_ref()).await {
            Ok(lease) => {
                observer.forget(store, run);
                return Ok(AcquiredLease { lease, requested_at, previous });
            }
            Err(error) if error.kind() == StoreErrorKind::LeaseHeld => {}
            Err(error) => return Err(error),
        }
        previous = loop {
            match observer.observe(store, run).await? {
                LeaseStanding::Free => break None,
                LeaseStanding::Abandoned(lease) => break Some(lease),
                LeaseStanding::Held { lease, remaining, is_renewed } if shared.is_some() || is_renewed => {
                    return Err(StoreError::lease_held(run, &lease.owner).with_retry_after(remaining));
                }
                LeaseStanding::Held { lease, remaining, .. } => {
                    let wait = tokio::time::sleep(poll_interval(&lease, remaining));
                    if cancel.run_until_cancelled(wait).await.is_none() {
                        return Err(StoreError::lease_held(run, &lease.owner).with_retry_after(remaining));
                    }
                }
            }
        };
    }
}
