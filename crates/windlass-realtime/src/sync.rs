//! Locking and waiting, shared by the session and the test server.

use std::sync::{Mutex, MutexGuard, PoisonError};

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
