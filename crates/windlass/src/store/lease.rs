//! The heartbeat that renews the lease of a driver.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Lease, Store};
use crate::clock::{RunClock, time_suspended};
use crate::run::CancelSignal;

/// Default duration of a lease without a renewal.
pub(crate) const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(30);

/// Renews a lease until it is dropped. If another driver has taken over the lease, or renewals have failed for
/// so long that one soon may, the driver loses the run: its writes would be fenced off, and its calls must not
/// run beside those of the next driver.
pub(crate) struct LeaseHeartbeat {
    task: JoinHandle<()>,
}

/// The last request for the lease that succeeded.
struct RenewalRequest {
    at: Instant,
    suspended: Duration,
}

impl RenewalRequest {
    fn new(at: Instant) -> Self {
        Self { at, suspended: time_suspended() }
    }

    /// Returns the time since the request. The time that the machine was suspended counts: contenders do not sleep with it.
    fn age(&self) -> Duration {
        self.at.elapsed() + time_suspended().saturating_sub(self.suspended)
    }
}

/// Part of the duration of a lease after which a driver without a renewal gives the run up.
fn limit_of(lasting: Duration) -> Duration {
    lasting * 4 / 5
}

/// Returns the time that a driver waits for the renewal of a lease whose last one is `age` ago. A driver that was stopped or
/// frozen past the limit asks once: unless it was taken over, the run is still its own. Before the end of the lease it waits
/// until then at most.
fn patience_for(age: Duration, lasting: Duration) -> Duration {
    let once = lasting / 10;
    match (limit_of(lasting).checked_sub(age), lasting.checked_sub(age)) {
        (Some(left), _) if !left.is_zero() => left,
        (_, Some(left)) if !left.is_zero() => left.min(once),
        _ => once,
    }
}

impl LeaseHeartbeat {
    /// Starts the renewal of a lease that was requested at `requested_at`.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        lease: Lease,
        lasting: Duration,
        requested_at: Instant,
        clock: RunClock,
        lost: CancelSignal,
    ) -> Self {
        let task = tokio::spawn(async move {
            // The lease lasts at least from the time of the request.
            let limit = limit_of(lasting);
            let mut renewed = RenewalRequest::new(requested_at);
            loop {
                let left = limit.saturating_sub(renewed.age());
                tokio::time::sleep(left.min(lasting / 3)).await;
                let request = RenewalRequest::new(Instant::now());
                let patience = patience_for(renewed.age(), lasting);
                match tokio::time::timeout(patience, store.renew_lease(&lease, clock.now())).await {
                    Ok(Ok(())) => {
                        renewed = request;
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
                if renewed.age() >= limit {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A pause that ends shortly before the end of the lease is as good as one that ends after it.
    #[test]
    fn a_driver_asks_once_however_long_it_was_stopped() {
        let lasting = Duration::from_secs(10);
        for (age, patience) in
            [(0, 8_000), (7_000, 1_000), (8_000, 1_000), (9_500, 500), (10_000, 1_000), (90_000, 1_000)]
        {
            assert_eq!(
                patience_for(Duration::from_millis(age), lasting),
                Duration::from_millis(patience),
                "{age}"
            );
        }
    }
}
