//! Retention: forgetting runs by age and status.

use std::time::Duration;

use windlass_core::id::{RunId, Timestamp};

use super::{RunCursor, RunQuery, RunStatus, Store};
use crate::error::{StoreError, StoreErrorKind};

/// A rule that says which runs a store forgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Time since the last change of a run's status after which the run is forgotten.
    pub max_age: Duration,
    /// Statuses of the runs that are forgotten.
    pub statuses: Vec<RunStatus>,
}

impl RetentionPolicy {
    /// Creates a policy that forgets runs of this age that have ended.
    pub fn ended_runs(max_age: Duration) -> Self {
        Self { max_age, statuses: vec![RunStatus::Finished, RunStatus::Failed, RunStatus::Cancelled] }
    }
}

/// Forgets the runs that a policy no longer retains, and returns their ids. Runs that are being driven are kept.
///
/// # Errors
///
/// Returns the first error of the store. A run that cannot be forgotten keeps no other one: the rest are forgotten.
pub async fn apply_retention(
    store: &dyn Store,
    policy: &RetentionPolicy,
    now: Timestamp,
) -> Result<Vec<RunId>, StoreError> {
    let max_age = u64::try_from(policy.max_age.as_millis()).unwrap_or(u64::MAX);
    let mut forgotten = Vec::new();
    // An empty list of statuses means any status in a query, and no run here.
    if policy.statuses.is_empty() {
        return Ok(forgotten);
    }
    let mut query = RunQuery {
        statuses: policy.statuses.clone(),
        updated_before: Some(Timestamp(now.0.saturating_sub(max_age))),
        ..RunQuery::default()
    };
    let mut first_error = None;
    loop {
        let page = match store.list_runs(&query).await {
            Ok(page) => page,
            Err(error) => return Err(first_error.unwrap_or(error)),
        };
        let Some(last) = page.last() else { return first_error.map_or(Ok(forgotten), Err) };
        query.after = Some(RunCursor::from(last));
        for stored in page {
            let abandoned = stored.lease.as_ref().filter(|lease| lease.is_owner_dead());
            match store.forget_run(&stored.run, abandoned).await {
                Ok(()) => forgotten.push(stored.run),
                Err(error)
                    if matches!(error.kind(), StoreErrorKind::LeaseHeld | StoreErrorKind::RunNotFound) => {}
                Err(error) => {
                    tracing::warn!(run = %stored.run, %error, "a run could not be forgotten");
                    first_error.get_or_insert(error);
                }
            }
        }
    }
}
