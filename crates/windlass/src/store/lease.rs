//! Owning a run: a name for this driver, and a heartbeat while it works.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Lease, Store};
use crate::clock::Clock;

/// How long a lease lasts without a sign of life, unless the run says otherwise.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A name that no other driver has.
pub(crate) fn owner_name() -> String {
    format!("{}-{}", std::process::id(), uuid::Uuid::now_v7())
}

/// Renews a lease until it is dropped. Where the lease was taken over, it stops the run: its writes would be
/// refused in any case, and its calls should not go on.
pub(crate) struct Heartbeat {
    task: JoinHandle<()>,
}

impl Heartbeat {
    pub(crate) fn start(
        store: Arc<dyn Store>,
        lease: Lease,
        lasting: Duration,
        clock: Clock,
        lost: CancellationToken,
    ) -> Self {
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(lasting / 3).await;
                let until = clock.now().after(lasting);
                if let Err(error) = store.renew(&lease, until).await {
                    tracing::warn!(run = %lease.run, %error, "the lease could not be renewed");
                    if error.is_fenced() {
                        lost.cancel();
                        return;
                    }
                }
            }
        });
        Self { task }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}
