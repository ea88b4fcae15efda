//! The lease of a session whose runs are in other stores: claimed, renewed while a driver works, released when it leaves.
//!
//! Invariant: a driver that has lost the lease leaves its run and appends nothing more. The store compares the owner of the
//! lease in the transaction of each append, so this holds for a driver that has not noticed, too. Contenders take the lease
//! over by observation, as they do with the lease of a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{Session, SessionClaim, SessionFence};
use crate::clock::RunClock;
use crate::error::{RunError, StoreError};
use crate::run::{CancelSignal, OnSessionBusy};
use crate::store::{LeaseClaim, LeaseOwner, LeaseStanding, LeaseWatch, poll_interval};
use crate::tasks::RenewalTask;

/// Number of attempts to take over a lease that changes each time.
const MAX_TAKE_OVERS: u32 = 100;

/// The lease of a session, for one driver.
pub(super) struct SessionLease {
    session: Session,
    owner: String,
    is_lost: Arc<AtomicBool>,
    /// The renewal, until the lease is released.
    renewal: Option<RenewalTask>,
}

impl SessionLease {
    /// Acquires the lease of a session. Returns `None` if no other process reaches its store.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::SessionBusy`](crate::error::StoreErrorKind::SessionBusy) if another
    /// driver holds it until `policy` waits no longer.
    pub(super) async fn acquire(
        session: &Session,
        policy: OnSessionBusy,
        duration: Duration,
        cancel: &CancelSignal,
    ) -> Result<Option<Self>, RunError> {
        let owner = LeaseOwner::for_new_driver().to_string();
        let clock = RunClock::start();
        let started = Instant::now();
        let (mut watch, mut abandoned, mut take_overs) = (LeaseWatch::new(), None, 0);
        let requested_at = loop {
            let requested_at = Instant::now();
            let claim = LeaseClaim { owner: &owner, now: clock.now(), duration };
            let held = match session.claim(claim, abandoned.as_ref()).await.map_err(RunError::Session)? {
                SessionClaim::ProcessLocal => return Ok(None),
                SessionClaim::Granted => break requested_at,
                SessionClaim::Held(lease) => lease,
            };
            let wait = match watch.look(held.clone()) {
                LeaseStanding::Abandoned(lease) if take_overs < MAX_TAKE_OVERS => {
                    take_overs += 1;
                    abandoned = Some(lease);
                    continue;
                }
                LeaseStanding::Held { lease, remaining, .. } => poll_interval(&lease, remaining),
                LeaseStanding::Abandoned(_) | LeaseStanding::Free => Duration::from_millis(1),
            };
            let left = match policy {
                OnSessionBusy::Wait(limit) => limit.saturating_sub(started.elapsed()),
                OnSessionBusy::Refuse => Duration::ZERO,
            };
            let is_cancelled = timeout(wait.min(left), cancel.token.cancelled()).await.is_ok();
            if left.is_zero() || is_cancelled {
                let busy = StoreError::session_busy_elsewhere(session.id(), &held.owner);
                return Err(RunError::Session(busy));
            }
        };
        let is_lost = Arc::new(AtomicBool::new(false));
        let renewal = RenewalTask::spawn(duration, |stop| {
            let (times, signals) = ((duration, requested_at, clock), (stop, cancel.clone()));
            renew_lease(session.clone(), owner.clone(), times, is_lost.clone(), signals)
        });
        Ok(Some(Self { session: session.clone(), owner, is_lost, renewal: Some(renewal) }))
    }

    /// Returns the right to append that the lease gives.
    pub(super) fn fence(&self) -> SessionFence {
        SessionFence::Claim(self.owner.clone())
    }

    /// Returns true if the lease may belong to another driver by now.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Releases the lease.
    pub(super) async fn release(mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.end().await;
        }
        if let Err(error) = self.session.release(&self.owner).await {
            tracing::warn!(session = %self.session.id(), %error, "the session could not be released");
        }
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        // The driver was dropped, or could not begin. Without a runtime the lease is taken over by observation.
        if let Some(renewal) = self.renewal.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (session, owner) = (self.session.clone(), self.owner.clone());
            runtime.spawn(async move {
                renewal.end().await;
                session.release(&owner).await
            });
        }
    }
}

/// Renews a lease until it is released or lost.
async fn renew_lease(
    session: Session,
    owner: String,
    (duration, requested_at, clock): (Duration, Instant, RunClock),
    is_lost: Arc<AtomicBool>,
    (stop, cancel): (CancellationToken, CancelSignal),
) {
    let limit = duration * 4 / 5;
    let mut renewed_at = requested_at;
    loop {
        let pause = tokio::time::sleep(limit.saturating_sub(renewed_at.elapsed()).min(duration / 3));
        if stop.run_until_cancelled(pause).await.is_none() {
            return;
        }
        let request = Instant::now();
        let claim = LeaseClaim { owner: &owner, now: clock.now(), duration };
        let patience = limit.saturating_sub(renewed_at.elapsed()).max(duration / 10);
        match timeout(patience, session.claim(claim, None)).await {
            Ok(Ok(SessionClaim::Granted | SessionClaim::ProcessLocal)) => renewed_at = request,
            Ok(Ok(SessionClaim::Held(_))) => break,
            Ok(Err(error)) => {
                tracing::warn!(session = %session.id(), %error, "the session could not be held on to");
            }
            Err(_) => tracing::warn!(session = %session.id(), "the session store does not answer"),
        }
        if renewed_at.elapsed() >= limit {
            break;
        }
    }
    is_lost.store(true, Ordering::Relaxed);
    cancel.mark_lease_lost();
}
