//! Owning a run: a name for this driver, and a heartbeat while it works.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Lease, Store};
use crate::clock::Clock;
use crate::run::Cancel;

/// How long a lease lasts without a sign of life, unless the run says otherwise.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A name that no other driver has.
pub(crate) fn owner_name() -> String {
    format!("{}-{}", std::process::id(), uuid::Uuid::now_v7())
}

/// Renews a lease until it is dropped. Where the lease was taken over, or could not be renewed for so long that it
/// soon may be, the run is lost to this driver: its writes would be refused, and its calls must not go on beside
/// those of the next.
pub(crate) struct Heartbeat {
    task: JoinHandle<()>,
}

impl Heartbeat {
    pub(crate) fn start(
        store: Arc<dyn Store>,
        lease: Lease,
        lasting: Duration,
        clock: Clock,
        lost: Cancel,
    ) -> Self {
        let task = tokio::spawn(async move {
            let mut asked = clock.began();
            loop {
                // The store counts from when it was asked, or later.
                let over = asked + lasting * 4 / 5;
                tokio::time::sleep_until((Instant::now() + lasting / 3).min(over)).await;
                let now = Instant::now();
                let renewed =
                    tokio::time::timeout_at(over, store.renew(&lease, clock.now().after(lasting))).await;
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
            lost.lose();
        });
        Self { task }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}
