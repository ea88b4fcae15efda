//! The one heartbeat of a worker, on which the leases of all its runs depend.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::queue::RunQueue;
use crate::clock::RunClock;
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{LeaseClaim, LeaseOwner};

/// Renewals in the duration of a worker's lease.
const RENEWALS_PER_DURATION: u32 = 6;

/// The heartbeat of a registered worker. Dropping it stops the renewals.
pub(super) struct WorkerPulse {
    name: String,
    beats: watch::Receiver<PulseState>,
    task: JoinHandle<()>,
}

/// The last renewal.
#[derive(Clone, Copy, Debug)]
struct PulseState {
    /// Instant before the last renewal that succeeded was requested.
    requested_at: Instant,
    /// True if the worker was retired, or could not renew its lease in time.
    is_lost: bool,
}

impl WorkerPulse {
    /// Registers a worker under a new name, and starts its renewals.
    ///
    /// # Errors
    ///
    /// Returns the error of the store.
    pub(super) async fn start(queue: Arc<dyn RunQueue>, duration: Duration) -> Result<Self, StoreError> {
        let name = LeaseOwner::for_new_driver().to_string();
        let clock = RunClock::start();
        let requested_at = Instant::now();
        let claim = LeaseClaim { owner: &name, now: clock.now(), duration };
        // A lease that took longer than it lasts is worth nothing. Others retire the name if it was registered.
        let registered = tokio::time::timeout(duration, queue.register_worker(claim)).await;
        registered.map_err(|_| StoreError::new("the store does not answer"))??;
        let (sender, beats) = watch::channel(PulseState { requested_at, is_lost: false });
        let task = tokio::spawn(renew(queue, name.clone(), duration, clock, sender));
        Ok(Self { name, beats, task })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_lost(&self) -> bool {
        self.beats.borrow().is_lost
    }

    /// Waits until the worker has lost its lease.
    pub(super) async fn wait_until_lost(&self) {
        let mut beats = self.beats.clone();
        // A stopped heartbeat is a lost one.
        beats.wait_for(|state| state.is_lost).await.ok();
    }

    /// Waits for a renewal that was requested after this call.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::Fenced`] if the worker has lost its lease.
    pub(super) async fn wait_for_beat(&self) -> Result<(), StoreError> {
        let asked_at = Instant::now();
        let mut beats = self.beats.clone();
        let state = beats.wait_for(|state| state.is_lost || state.requested_at >= asked_at).await;
        match state {
            Ok(state) if !state.is_lost => Ok(()),
            _ => Err(StoreError::worker_retired(&self.name)),
        }
    }
}

impl Drop for WorkerPulse {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn renew(
    queue: Arc<dyn RunQueue>,
    name: String,
    duration: Duration,
    clock: RunClock,
    beats: watch::Sender<PulseState>,
) {
    loop {
        tokio::time::sleep(duration / RENEWALS_PER_DURATION).await;
        let requested_at = Instant::now();
        let renewed = tokio::time::timeout(duration, queue.renew_worker(&name, clock.now())).await;
        match renewed {
            Ok(Ok(())) => {
                beats.send_replace(PulseState { requested_at, is_lost: false });
                continue;
            }
            Ok(Err(error)) if error.kind() == StoreErrorKind::Fenced => {
                tracing::warn!(worker = %name, "another worker has retired this one");
                break;
            }
            Ok(Err(error)) => tracing::warn!(worker = %name, %error, "the worker's lease was not renewed"),
            Err(_) => tracing::warn!(worker = %name, "the store does not answer"),
        }
        // The drivers stop by themselves before their leases can be taken over.
        if beats.borrow().requested_at.elapsed() >= duration {
            break;
        }
    }
    beats.send_modify(|state| state.is_lost = true);
}
