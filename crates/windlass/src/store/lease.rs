//! Leases: the unique owner name of a driver and the heartbeat that renews its lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Lease, Store};
use crate::clock::RunClock;
use crate::run::CancelSignal;

/// Default duration of a lease without a renewal.
pub(crate) const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(30);

/// Returns an owner name that is unique among all drivers.
pub(crate) fn unique_owner_name() -> String {
    format!("{}-{}", std::process::id(), uuid::Uuid::now_v7())
}

/// Renews a lease until it is dropped. If another driver has taken over the lease, or renewals have failed for
/// so long that one soon may, the driver loses the run: its writes would be fenced off, and its calls must not
/// run beside those of the next driver.
pub(crate) struct LeaseHeartbeat {
    task: JoinHandle<()>,
}

impl LeaseHeartbeat {
    pub(crate) fn start(
        store: Arc<dyn Store>,
        lease: Lease,
        lasting: Duration,
        clock: RunClock,
        lost: CancelSignal,
    ) -> Self {
        let task = tokio::spawn(async move {
            let mut asked = clock.started_at();
            loop {
                // The lease lasts at least from the time of the request.
                let over = asked + lasting * 4 / 5;
                tokio::time::sleep_until((Instant::now() + lasting / 3).min(over)).await;
                let now = Instant::now();
                let renewed = tokio::time::timeout_at(
                    over,
                    store.renew_lease(&lease, clock.now().saturating_add(lasting)),
                )
                .await;
                match renewed {
                    Ok(Ok(())) => {
                        asked = now;
                        continue;
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(run = %lease.run, %error, "the lease could not be renewed");
                        if error.is_fenced() {
                            break;
                        }
                    }
                    Err(_) => tracing::warn!(run = %lease.run, "the store does not answer"),
                }
                if Instant::now() >= over {
                    break;
                }
            }
            lost.mark_lease_lost();
        });
        Self { task }
    }
}

impl Drop for LeaseHeartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}
