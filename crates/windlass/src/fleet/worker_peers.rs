//! The other workers of a queue, and the things that a worker looks at from time to time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::queue::RunQueue;
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{LeaseStanding, LeaseWatch};

/// Something that a worker looks at from time to time.
#[derive(Default)]
pub(super) struct RegularCheck {
    looked_at: Option<tokio::time::Instant>,
}

impl RegularCheck {
    /// Returns true if it is time to look again.
    pub(super) fn is_due(&mut self, interval: Duration) -> bool {
        let now = tokio::time::Instant::now();
        let is_due = self.looked_at.is_none_or(|last| now.duration_since(last) >= interval);
        if is_due {
            self.looked_at = Some(now);
        }
        is_due
    }
}

/// The schedules that a worker could not fire when it looked last.
#[derive(Default)]
pub(super) struct UnfiredSchedules {
    errors: BTreeMap<String, String>,
}

impl UnfiredSchedules {
    /// Logs each failure, unless the last look has found the same.
    pub(super) fn report(&mut self, worker: &str, failures: Vec<(String, StoreError)>) {
        let errors: BTreeMap<_, _> =
            failures.into_iter().map(|(schedule, error)| (schedule, error.to_string())).collect();
        for (schedule, error) in &errors {
            if self.errors.get(schedule) != Some(error) {
                tracing::warn!(worker, schedule, error, "a schedule could not be fired");
            }
        }
        self.errors = errors;
    }
}

/// The other workers, as this one has observed them.
#[derive(Default)]
pub(super) struct OtherWorkers {
    pub(super) check: RegularCheck,
    watches: BTreeMap<String, LeaseWatch>,
}

impl OtherWorkers {
    /// Retires the workers whose leases are abandoned, so that their runs are ready again.
    pub(super) async fn retire_abandoned(&mut self, queue: &dyn RunQueue, own: &str) {
        let workers = match queue.list_workers().await {
            Ok(workers) => workers,
            Err(error) => {
                tracing::warn!(%error, "the workers cannot be listed");
                return;
            }
        };
        self.watches.retain(|name, _| workers.iter().any(|lease| lease.owner == *name));
        for lease in workers.into_iter().filter(|lease| lease.owner != own) {
            let watch = self.watches.entry(lease.owner.clone()).or_insert_with(LeaseWatch::new);
            if let LeaseStanding::Abandoned(seen) = watch.look(lease) {
                tracing::info!(worker = %seen.owner, "retiring a worker that has died");
                match queue.retire_worker(&seen.owner, Some(&seen)).await {
                    Ok(()) => {}
                    Err(error) if error.kind() == StoreErrorKind::LeaseHeld => {}
                    Err(error) => tracing::warn!(%error, "a worker could not be retired"),
                }
            }
        }
    }
}
