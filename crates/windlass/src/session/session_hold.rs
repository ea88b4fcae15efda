//! One run at a time appends to a session: waiting for the run that does, or refusing.
//!
//! Invariant: a driver holds the session while it works on its run, and never while the run is parked. A session in the
//! run's own store is held with the run's lease; any other by a turn among the drivers of this process and a lease in the
//! store of the session. Both hold across processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout};
use windlass_core::id::SessionId;

use super::session_lease::SessionLease;
use super::{Session, SessionFence};
use crate::error::{RunError, StoreError, StoreErrorKind};
use crate::run::{CancelSignal, OnSessionBusy};
use crate::store::{LeaseStanding, LeaseWatch, Store};

/// Longest time between two attempts to hold a session.
const MAX_RETRY_DELAY: Duration = Duration::from_millis(250);

/// Number of attempts to start a run on a session that is changed by somebody else each time.
const MAX_STALE_ATTEMPTS: u32 = 100;

/// The attempts of a driver to hold a session.
pub(crate) struct SessionWait<'a> {
    policy: OnSessionBusy,
    cancel: &'a CancelSignal,
    /// The session and its store, if that is the run's own.
    session: Option<(&'a SessionId, &'a Arc<dyn Store>)>,
    /// The lease of the driver that holds the session.
    watch: LeaseWatch,
    started: Instant,
    delay: Duration,
    stale_attempts: u32,
}

impl<'a> SessionWait<'a> {
    pub(crate) fn new(
        policy: OnSessionBusy,
        cancel: &'a CancelSignal,
        session: Option<(&'a SessionId, &'a Arc<dyn Store>)>,
    ) -> Self {
        let (watch, delay) = (LeaseWatch::new(), Duration::from_millis(2));
        Self { policy, cancel, session, watch, started: Instant::now(), delay, stale_attempts: 0 }
    }

    /// Frees the session if the driver that holds it is gone. Returns true if it did.
    async fn free_abandoned_session(&mut self) -> Result<bool, StoreError> {
        let Some((session, store)) = self.session else { return Ok(false) };
        let Some(holder) = store.session_holder(session).await? else { return Ok(true) };
        match self.watch.look(holder.lease.clone()) {
            LeaseStanding::Free => Ok(true),
            LeaseStanding::Abandoned(_) => {
                store.free_session(session, &holder).await?;
                Ok(true)
            }
            LeaseStanding::Held { .. } => Ok(false),
        }
    }

    /// Waits until the next attempt is due, after one failed because the session is busy, or was changed while it was
    /// read.
    ///
    /// # Errors
    ///
    /// Returns the error if the policy waits no longer, or if there is another reason.
    pub(crate) async fn wait_after(&mut self, error: RunError) -> Result<(), RunError> {
        let error = match error {
            RunError::Store(error) if error.kind() == StoreErrorKind::SessionBusy => error,
            RunError::Store(error) if error.kind() == StoreErrorKind::Stale => {
                self.stale_attempts += 1;
                let has_given_up = self.stale_attempts >= MAX_STALE_ATTEMPTS;
                return if has_given_up { Err(RunError::Session(error)) } else { Ok(()) };
            }
            error => return Err(error),
        };
        if self.free_abandoned_session().await.map_err(RunError::Session)? {
            self.stale_attempts += 1;
            if self.stale_attempts < MAX_STALE_ATTEMPTS {
                return Ok(());
            }
        }
        let left = match self.policy {
            OnSessionBusy::Wait(limit) => limit.saturating_sub(self.started.elapsed()),
            OnSessionBusy::Refuse => Duration::ZERO,
        };
        let is_cancelled = timeout(self.delay.min(left), self.cancel.token.cancelled()).await.is_ok();
        if left.is_zero() || is_cancelled {
            return Err(RunError::Session(error));
        }
        self.delay = (self.delay * 2).min(MAX_RETRY_DELAY);
        Ok(())
    }
}

/// The right of a driver to append to a session that is not in the store of its run. Dropping it releases the session.
pub(crate) struct ForeignSessionHold {
    _guard: OwnedMutexGuard<()>,
    lease: Option<SessionLease>,
}

type SessionGate = tokio::sync::Mutex<()>;

/// The sessions that drivers of this process hold, by the address of their store.
static SESSION_GATES: Mutex<BTreeMap<(usize, SessionId), Weak<SessionGate>>> = Mutex::new(BTreeMap::new());

impl ForeignSessionHold {
    /// Holds a session among the drivers of all processes that reach its store.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::SessionBusy`] if another driver holds it for longer than the policy
    /// waits.
    pub(crate) async fn acquire(
        session: &Session,
        policy: OnSessionBusy,
        lease_duration: Duration,
        cancel: &CancelSignal,
    ) -> Result<Self, RunError> {
        let started = Instant::now();
        let gate = find_gate((session.store_address(), session.id().clone()));
        let held = match (gate.clone().try_lock_owned(), policy) {
            (Ok(guard), _) => Some(guard),
            (Err(_), OnSessionBusy::Refuse) => None,
            (Err(_), OnSessionBusy::Wait(limit)) => tokio::select! {
                biased;
                held = timeout(limit, gate.lock_owned()) => held.ok(),
                () = cancel.token.cancelled() => None,
            },
        };
        let Some(guard) = held else {
            return Err(RunError::Session(StoreError::session_busy_here(session.id())));
        };
        let policy = match policy {
            OnSessionBusy::Wait(limit) => OnSessionBusy::Wait(limit.saturating_sub(started.elapsed())),
            OnSessionBusy::Refuse => OnSessionBusy::Refuse,
        };
        let lease = SessionLease::acquire(session, policy, lease_duration, cancel).await?;
        Ok(Self { _guard: guard, lease })
    }

    /// Returns the right to append that the hold gives.
    pub(super) fn fence(&self) -> SessionFence {
        self.lease.as_ref().map_or(SessionFence::Unheld, SessionLease::fence)
    }

    /// Returns true if another driver may hold the session by now.
    pub(super) fn is_lost(&self) -> bool {
        self.lease.as_ref().is_some_and(SessionLease::is_lost)
    }

    /// Releases the session.
    pub(super) async fn release(self) {
        if let Some(lease) = self.lease {
            lease.release().await;
        }
    }
}

fn find_gate(key: (usize, SessionId)) -> Arc<SessionGate> {
    let mut gates = SESSION_GATES.lock().unwrap_or_else(PoisonError::into_inner);
    gates.retain(|_, gate| gate.strong_count() > 0);
    if let Some(gate) = gates.get(&key).and_then(Weak::upgrade) {
        return gate;
    }
    let gate = Arc::new(SessionGate::default());
    gates.insert(key, Arc::downgrade(&gate));
    gate
}
