//! Locking and waiting, shared by the session and the test server.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Locks a mutex, also after a panic of its holder: one failed task must not take others with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until the deadline; for ever if there is none.
pub(crate) async fn sleep_until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Longest duration of a setting: a clock can be advanced by it many times.
const MAX_DURATION: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 10);

/// Returns the duration, or ten years if it is longer. Every setting passes through here, so that no sum of a time and
/// a setting overflows.
pub(crate) fn clamp_duration(duration: Duration) -> Duration {
    duration.min(MAX_DURATION)
}
